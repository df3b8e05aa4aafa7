//! Settings of a private RabbitMQ server.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::port;
use crate::process::Process;
use crate::rabbitmq::family::Family;
use crate::rabbitmq::tools::{LOOPBACK, Tools};
use crate::rabbitmq::{PASSWORD, RabbitCluster, RabbitMq, USER};
use crate::tls;
use crate::watchdog::Watchdog;

/// How often a lost race for a port is run again.
const ATTEMPTS: usize = 10;

/// Of `rabbitmq.conf`, unless it is set otherwise. Several servers share one machine, and a test
/// must not fail because the disk of that machine is rather full.
const USUAL: [(&str, &str); 5] = [
    ("vm_memory_high_watermark.absolute", "512MB"),
    ("disk_free_limit.absolute", "10MB"),
    ("raft.wal_max_size_bytes", "67108864"),
    ("log.console", "true"),
    ("log.file", "false"),
];

/// What is recommended for dead letters that are published at least once, unless it is set
/// otherwise: of `rabbit` in `advanced.config`. The stock values are 180000 and 32.
const RECOMMENDED: [(&str, &str); 2] = [
    ("dead_letter_worker_publisher_confirm_timeout", "5000"),
    ("dead_letter_worker_consumer_prefetch", "512"),
];

/// For Erlang, beside what RabbitMQ's own script gives it: two schedulers, however many cores there
/// are, no shell, no daemon of its own.
const ARGUMENTS: &str = "-noinput -s rabbit boot -boot start_sasl -start_epmd false +W w +S 2:2 \
    +P 1048576 +t 5000000 +zdbbl 128000 +sbwt none +sbwtdcpu none +sbwtdio none \
    -syslog logger [] -syslog syslog_error_logger false \
    -kernel prevent_overlapping_partitions false -kernel inet_dist_use_interface";

/// How Erlang finds addresses: only that of the nodes, without asking anyone. A program that it
/// would ask with outlives a killed server by some seconds.
const ADDRESSES: &str = "{lookup, [file]}.\n{host, {127,0,0,1}, [\"localhost\"]}.\n";

/// What a server shall be like; made by [`RabbitMq::options`].
#[derive(Clone, Debug, Default)]
pub struct RabbitOptions {
    settings: Vec<(String, String)>,
    advanced: Vec<[String; 3]>,
    plugins: Vec<String>,
    without_flags: Vec<String>,
    stock: bool,
    tls: bool,
    management: bool,
}

impl RabbitOptions {
    /// Any line of `rabbitmq.conf`; the value is written there as it is. The last one of a key
    /// counts.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.retain(|(name, _)| name != key);
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// A setting of an Erlang application in `advanced.config`; the value is an Erlang term. The
    /// last one of a key counts: `advanced("rabbit", "quorum_tick_interval", "1000")`.
    pub fn advanced(mut self, application: &str, key: &str, term: &str) -> Self {
        self.advanced.retain(|[of, name, _]| (&**of, &**name) != (application, key));
        self.advanced.push([application, key, term].map(str::to_owned));
        self
    }

    /// Without the settings of `advanced.config` that are recommended for delayed jobs: as a server
    /// is that nobody has set up.
    pub fn stock(mut self) -> Self {
        self.stock = true;
        self
    }

    /// With a plugin, which RabbitMQ's directory of plugins must have.
    pub fn plugin(mut self, name: &str) -> Self {
        self.plugins.push(name.to_owned());
        self
    }

    /// With the management plugin: [`RabbitMq::management_url`].
    pub fn management(mut self) -> Self {
        self.management = true;
        self.plugin("rabbitmq_management")
    }

    /// TLS at a port of its own, by a certificate of an authority of its own: [`RabbitMq::ca`].
    /// The URL names that port. The nodes of a cluster have the same certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Without a feature flag such as `stream_queue`, as in a server that was upgraded and left
    /// there. All others are enabled, as they are in every new server, and so is one without which the
    /// server does not start: newer ones insist on more of them.
    pub fn without_feature_flag(mut self, name: &str) -> Self {
        self.without_flags.push(name.to_owned());
        self
    }

    /// Starts the server. It is ready to answer when this returns; if it cannot be had, this
    /// panics with the reason and the server's log.
    pub fn start(self) -> RabbitMq {
        self.nodes(1).remove(0)
    }

    /// Starts a cluster of that many nodes with the same settings. When this returns, each of them
    /// says that all are running.
    pub fn start_cluster(self, nodes: usize) -> RabbitCluster {
        let cluster = RabbitCluster::of(self.nodes(nodes));
        cluster.until_well();
        cluster
    }

    /// The nodes of a cluster, each of which is ready to answer.
    fn nodes(&self, count: usize) -> Vec<RabbitMq> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(count) {
                Ok(nodes) => return nodes,
                Err(reason) if reason.contains("eaddrinuse") && attempts < ATTEMPTS => {}
                Err(reason) => panic!("RabbitMQ does not start: {reason}"),
            }
        }
    }

    fn attempt(&self, count: usize) -> Result<Vec<RabbitMq>, String> {
        let family = Arc::new(Family::start());
        if self.tls {
            tls::certify(family.dir());
        }
        let nodes: Vec<RabbitMq> = (1..=count).map(|number| self.place(&family, number)).collect();
        let (first, others) = nodes.split_first().expect("a cluster has at least one node");
        // The others join the first. All at once might found clusters of their own.
        first.process.start();
        first.until_ready()?;
        others.iter().for_each(|node| node.process.start());
        others.iter().try_for_each(RabbitMq::until_ready)?;
        self.enable_flags(first);
        Ok(nodes)
    }

    /// A directory, ports and the configuration for the node of that number.
    fn place(&self, family: &Arc<Family>, number: usize) -> RabbitMq {
        let watchdog = Watchdog::start("dq-rabbitmq-");
        let dir = watchdog.dir().to_owned();
        let node = family.node(number);
        let port = port::free();
        let tls = self.tls.then(port::free);
        let management = self.management.then(port::free);

        let mut settings = self.configuration(family, port, tls, management);
        if number > 1 {
            for (place, known) in [1, number].into_iter().enumerate() {
                let key = format!("cluster_formation.classic_config.nodes.{}", place + 1);
                let _ = writeln!(settings, "{key} = {}", family.node(known));
            }
        }
        write(&dir.join("rabbitmq.conf"), &settings, 0o600);
        write(&dir.join("advanced.config"), &self.terms(), 0o600);
        write(&dir.join("enabled_plugins"), &format!("[{}].\n", self.plugins.join(",")), 0o600);
        write(&dir.join("inetrc"), ADDRESSES, 0o600);
        // Erlang insists that nobody else can read it.
        write(&dir.join(".erlang.cookie"), &family.cookie, 0o400);

        let environment = Tools { family, node: &node, dir: &dir }.environment();
        let mut server = family.installation.erl(environment);
        if !self.without_flags.is_empty() {
            // No flag at first; see `enable_flags`.
            let none = ("RABBITMQ_FEATURE_FLAGS", OsString::new());
            server.environment.get_or_insert_default().push(none);
        }
        let mut arguments: Vec<OsString> = ARGUMENTS.split_whitespace().map(Into::into).collect();
        arguments.extend([LOOPBACK, "-sname", &node].map(OsString::from));
        let process = Process::new(watchdog, server, arguments);
        RabbitMq { process, family: family.clone(), node, port, tls, management }
    }

    /// `rabbitmq.conf`.
    fn configuration(
        &self,
        family: &Family,
        port: u16,
        tls: Option<u16>,
        management: Option<u16>,
    ) -> String {
        let mut text = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\ncluster_name = {}\n\
             default_user = {USER}\ndefault_pass = {PASSWORD}\n",
            family.name
        );
        if let Some(port) = tls {
            let file = |name: &str| family.dir().join(name).display().to_string();
            let _ = write!(
                text,
                "listeners.ssl.local = 127.0.0.1:{port}\nssl_options.cacertfile = {}\n\
                 ssl_options.certfile = {}\nssl_options.keyfile = {}\n\
                 ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n",
                file(tls::AUTHORITY),
                file(tls::CERTIFICATE),
                file(tls::KEY)
            );
        }
        if let Some(port) = management {
            let _ = write!(text, "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        }
        let set = |name: &str| self.settings.iter().any(|(key, _)| key == name);
        for (key, value) in USUAL.into_iter().filter(|(key, _)| !set(key)) {
            let _ = writeln!(text, "{key} = {value}");
        }
        for (key, value) in &self.settings {
            let _ = writeln!(text, "{key} = {value}");
        }
        text
    }

    /// `advanced.config`: the settings of each application together, since RabbitMQ would take
    /// only the last of several groups.
    fn terms(&self) -> String {
        let mut settings = self.advanced.clone();
        let set =
            |name: &str| self.advanced.iter().any(|[of, key, _]| of == "rabbit" && key == name);
        let recommended = RECOMMENDED.into_iter().filter(|(key, _)| !self.stock && !set(key));
        settings.extend(recommended.map(|(key, term)| ["rabbit", key, term].map(str::to_owned)));
        settings.sort();
        let groups = settings.chunk_by(|one, other| one[0] == other[0]).map(|group| {
            let terms = group.iter().map(|[_, key, term]| format!("{{{key},{term}}}"));
            format!("{{{},[{}]}}", group[0][0], terms.collect::<Vec<_>>().join(","))
        });
        format!("[{}].\n", groups.collect::<Vec<_>>().join(","))
    }

    /// All flags but those that are unwanted, if there are such. Otherwise, the server has done it.
    fn enable_flags(&self, rabbit: &RabbitMq) {
        if !self.without_flags.is_empty() {
            let unwanted = self.without_flags.join(",");
            rabbit.eval(&format!(
                "[ok = rabbit_feature_flags:enable(Flag) || \
                 Flag <- maps:keys(rabbit_feature_flags:list(disabled)) -- [{unwanted}], \
                 rabbit_feature_flags:get_stability(Flag) =/= experimental]"
            ));
        }
    }
}

fn write(file: &Path, text: &str, mode: u32) {
    let mut options = File::options();
    let written = options.create_new(true).write(true).mode(mode).open(file);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
}
