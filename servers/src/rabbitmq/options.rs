//! Settings for private RabbitMQ servers and clusters.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::port;
use crate::process::{Process, start_on_free_port};
use crate::rabbitmq::cluster::{RabbitCluster, take_turn};
use crate::rabbitmq::cluster_identity::ClusterIdentity;
use crate::rabbitmq::server::{PASSWORD, RabbitMq, USER};
use crate::rabbitmq::tools::{LOOPBACK, environment};
use crate::tls::{self, CA_CERTIFICATE, CERTIFICATE, KEY};
use crate::watchdog::Watchdog;

/// The defaults of `rabbitmq.conf`. With 512 MB of memory, an alarm stopped the last trials of a
/// run. On a busy machine a handshake may take longer than the stock 10 s, after which the broker
/// resets the connection.
const DEFAULTS: [(&str, &str); 6] = [
    ("handshake_timeout", "60000"),
    ("vm_memory_high_watermark.absolute", "2GB"),
    ("disk_free_limit.absolute", "10MB"),
    ("raft.wal_max_size_bytes", "67108864"),
    ("log.console", "true"),
    ("log.file", "false"),
];

/// The defaults of `advanced.config`, recommended for at-least-once dead-lettering. The stock
/// values are 180000 and 32.
const RECOMMENDED: [(&str, &str); 2] = [
    ("dead_letter_worker_publisher_confirm_timeout", "5000"),
    ("dead_letter_worker_consumer_prefetch", "512"),
];

/// From RabbitMQ's own start script, plus test settings: always two schedulers, no busy waiting, no
/// shell, and no epmd start. [`LOOPBACK`] must follow as the last argument's value.
const ARGUMENTS: &str = "-noinput -s rabbit boot -boot start_sasl -start_epmd false +W w +S 2:2 \
    +P 1048576 +t 5000000 +zdbbl 128000 +sbwt none +sbwtdcpu none +sbwtdio none \
    -syslog logger [] -syslog syslog_error_logger false \
    -kernel prevent_overlapping_partitions false -kernel inet_dist_use_interface";

/// Resolves host names by this file only. By default, Erlang starts a helper program for this,
/// which outlives a killed server by some seconds.
const INETRC: &str = "{lookup, [file]}.\n{host, {127,0,0,1}, [\"localhost\"]}.\n";

/// Settings for a private RabbitMQ server; created by [`RabbitMq::options`].
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    settings: BTreeMap<String, String>,
    advanced: BTreeMap<String, String>,
    disabled_flag: Option<String>,
    tls: bool,
    management: bool,
}

impl RabbitOptions {
    /// Sets a key in `rabbitmq.conf` to a literal value. The last value counts.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets a key of the application `rabbit` in `advanced.config` to an Erlang term. The last
    /// value counts.
    pub fn advanced(mut self, key: &str, term: &str) -> Self {
        self.advanced.insert(key.to_owned(), term.to_owned());
        self
    }

    /// Omits the `advanced.config` settings that are recommended for delayed jobs.
    pub fn stock(mut self) -> Self {
        self.advanced
            .retain(|key, _| RECOMMENDED.iter().all(|(recommended, _)| recommended != key));
        self
    }

    /// Enables the management plugin: [`RabbitMq::management_url`].
    pub fn management(mut self) -> Self {
        self.management = true;
        self
    }

    /// Adds a TLS port, which the URL then has, with a certificate from a private CA:
    /// [`RabbitMq::ca`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Leaves a feature flag such as `stream_queue` disabled, as on an upgraded server, unless the
    /// version requires it.
    pub fn without_feature_flag(mut self, name: &str) -> Self {
        self.disabled_flag = Some(name.to_owned());
        self
    }

    /// Starts the server and waits until it is ready. Panics with the log if it does not start.
    pub fn start(self) -> RabbitMq {
        self.start_nodes(1).remove(0)
    }

    /// Starts a cluster and waits until each node sees all others running.
    pub fn start_cluster(self, nodes: usize) -> RabbitCluster {
        let turn = take_turn();
        let nodes = self.start_nodes(nodes);
        let cluster = RabbitCluster { nodes, partitioned: Mutex::default(), _turn: turn };
        cluster.wait_until_healthy();
        cluster
    }

    fn start_nodes(&self, count: usize) -> Vec<RabbitMq> {
        start_on_free_port("RabbitMQ", || self.try_start_nodes(count))
    }

    fn try_start_nodes(&self, count: usize) -> Result<Vec<RabbitMq>, String> {
        let identity = Arc::new(ClusterIdentity::start());
        if self.tls {
            tls::create_certificates(identity.dir());
        }
        let nodes: Vec<RabbitMq> =
            (1..=count).map(|number| self.create_node(&identity, number)).collect();
        let (first, others) = nodes.split_first().expect("a cluster has at least one node");
        // The others join the first node. If all start at once, they may form separate clusters.
        first.process.start();
        first.wait_until_ready()?;
        others.iter().for_each(|node| node.process.start());
        others.iter().try_for_each(RabbitMq::wait_until_ready)?;
        // Without `disabled_flag`, the server has enabled all flags at its start.
        if let Some(unwanted) = &self.disabled_flag {
            first.eval(&format!(
                "[ok = rabbit_feature_flags:enable(Flag) || \
                 Flag <- maps:keys(rabbit_feature_flags:list(disabled)) -- [{unwanted}], \
                 rabbit_feature_flags:get_stability(Flag) =/= experimental]"
            ));
        }
        Ok(nodes)
    }

    /// Prepares a node with its own directory and ports.
    fn create_node(&self, identity: &Arc<ClusterIdentity>, number: usize) -> RabbitMq {
        let watchdog = Watchdog::start("dq-rabbitmq-");
        let dir = watchdog.dir().to_owned();
        let node = identity.node(number);
        let port = port::free();
        let tls = self.tls.then(port::free);
        let management = self.management.then(port::free);

        let mut settings = self.configuration(identity, port, tls, management);
        if number > 1 {
            for (index, peer) in [1, number].into_iter().enumerate() {
                let key = format!("cluster_formation.classic_config.nodes.{}", index + 1);
                let _ = writeln!(settings, "{key} = {}", identity.node(peer));
            }
        }
        let plugins = if self.management { "[rabbitmq_management].\n" } else { "[].\n" };
        for (file, text, mode) in [
            ("rabbitmq.conf", &*settings, 0o600),
            ("advanced.config", &self.advanced_config(), 0o600),
            ("enabled_plugins", plugins, 0o600),
            ("inetrc", INETRC, 0o600),
            // Erlang rejects a cookie that other users can read.
            (".erlang.cookie", &identity.cookie, 0o400),
        ] {
            let mut options = File::options();
            let written = options.create_new(true).write(true).mode(mode).open(dir.join(file));
            let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
            written.unwrap_or_else(|error| panic!("{file} cannot be written: {error}"));
        }

        let environment = environment(identity, &node, &dir);
        let mut server = identity.installation.erl(environment);
        if self.disabled_flag.is_some() {
            // The node starts without optional flags; the wanted ones are enabled later.
            let none = ("RABBITMQ_FEATURE_FLAGS", OsString::new());
            server.environment.get_or_insert_default().push(none);
        }
        let mut arguments: Vec<OsString> = ARGUMENTS.split_whitespace().map(Into::into).collect();
        arguments.extend([LOOPBACK, "-sname", &node].map(OsString::from));
        let process = Process::new(watchdog, server, arguments);
        RabbitMq { process, identity: identity.clone(), node, port, tls, management }
    }

    fn configuration(
        &self,
        identity: &ClusterIdentity,
        port: u16,
        tls: Option<u16>,
        management: Option<u16>,
    ) -> String {
        let mut text = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\ncluster_name = {}\n\
             default_user = {USER}\ndefault_pass = {PASSWORD}\n",
            identity.name
        );
        if let Some(port) = tls {
            let certificates = identity.dir().display();
            let _ = write!(
                text,
                "listeners.ssl.local = 127.0.0.1:{port}\n\
                 ssl_options.cacertfile = {certificates}/{CA_CERTIFICATE}\n\
                 ssl_options.certfile = {certificates}/{CERTIFICATE}\n\
                 ssl_options.keyfile = {certificates}/{KEY}\n\
                 ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n"
            );
        }
        if let Some(port) = management {
            let _ = write!(text, "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        }
        for (key, value) in &self.settings {
            let _ = writeln!(text, "{key} = {value}");
        }
        text
    }

    fn advanced_config(&self) -> String {
        let terms = self.advanced.iter().map(|(key, term)| format!("{{{key},{term}}}"));
        format!("[{{rabbit,[{}]}}].\n", terms.collect::<Vec<_>>().join(","))
    }
}

impl RabbitMq {
    /// Starts a server with the settings recommended for delayed jobs, and waits until it is ready.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// Returns settings for a server.
    pub fn options() -> RabbitOptions {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        RabbitOptions {
            settings: DEFAULTS.map(owned).into(),
            advanced: RECOMMENDED.map(owned).into(),
            disabled_flag: None,
            tls: false,
            management: false,
        }
    }
}

/// Returns a server for all tests in this process.
///
/// Use your own queues or virtual host. The server starts at first use and ends with the process.
pub fn shared_rabbitmq() -> &'static RabbitMq {
    static SHARED: OnceLock<RabbitMq> = OnceLock::new();
    SHARED.get_or_init(RabbitMq::start)
}
