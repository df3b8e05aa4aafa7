//! Private RabbitMQ servers.

mod cluster;
mod family;
mod greeting;
mod installation;
mod options;
mod tools;

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub use cluster::RabbitCluster;
pub(crate) use installation::Installation;
pub use options::RabbitOptions;

use crate::process::Process;
use crate::rabbitmq::family::Family;
use crate::rabbitmq::tools::Tools;
use crate::tls;

/// How long a node may take to start or to answer a tool: several at once, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The user of every server, an administrator. Only this machine can connect.
const USER: &str = "dq";
const PASSWORD: &str = "secret";

/// One private RabbitMQ node at a free port of 127.0.0.1, with a directory, a cookie and a port
/// daemon (epmd) of its own.
///
/// Dropping it ends the server and removes the directory. So does the end of the process, whatever
/// ends it.
#[derive(Debug)]
pub struct RabbitMq {
    process: Process,
    family: Arc<Family>,
    node: String,
    /// Without TLS, whatever the options say.
    port: u16,
    tls: Option<u16>,
    management: Option<u16>,
}

impl RabbitMq {
    /// A server ready to answer, with the settings that are recommended for delayed jobs.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// A server with settings.
    pub fn options() -> RabbitOptions {
        RabbitOptions::default()
    }

    /// What a client connects to: `amqp://USER:PASSWORD@127.0.0.1:PORT/%2f`, the default virtual
    /// host. With [`RabbitOptions::tls`], the same with `amqps`.
    pub fn url(&self) -> String {
        self.url_of("%2f")
    }

    /// Makes a virtual host with nothing in it and returns its URL. The name is of letters,
    /// digits, `-` and `_`.
    pub fn vhost(&self, name: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert!(name.bytes().all(plain) && !name.is_empty(), "{name:?} is no plain name");
        // As `add_vhost` and `set_permissions` do, but at once.
        self.eval(&format!(
            "rabbit_vhost:add(<<\"{name}\">>, <<\"{USER}\">>), \
             rabbit_auth_backend_internal:set_permissions(<<\"{USER}\">>, <<\"{name}\">>, \
             <<\".*\">>, <<\".*\">>, <<\".*\">>, <<\"{USER}\">>)"
        ));
        self.url_of(name)
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port of [`url`](Self::url), which stays the same over [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.tls.unwrap_or(self.port)
    }

    /// With [`RabbitOptions::management`]: where its pages and its API are,
    /// `http://USER:PASSWORD@127.0.0.1:PORT`.
    pub fn management_url(&self) -> String {
        let port = self.management.expect("the server was started with `management`");
        format!("http://{USER}:{PASSWORD}@127.0.0.1:{port}")
    }

    /// With [`RabbitOptions::tls`]: the certificate of the authority that clients must trust, as
    /// PEM.
    pub fn ca(&self) -> PathBuf {
        self.family.dir().join(tls::AUTHORITY)
    }

    /// The name of the node, `NAME@localhost`.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The port of the node's own daemon (epmd), which stays while the node is down.
    pub fn epmd_port(&self) -> u16 {
        self.family.epmd
    }

    /// The server's own directory, with its data and its `log`.
    pub fn dir(&self) -> &Path {
        self.process.dir()
    }

    /// The id of the server's process, or nothing after [`kill`](Self::kill) or
    /// [`stop`](Self::stop).
    pub fn process_id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Ends the server like a crash: SIGKILL.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Ends the server in the orderly way: SIGTERM.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Starts the server again after [`kill`](Self::kill) or [`stop`](Self::stop), at the same port
    /// and with what is on disk. It is ready to answer when this returns.
    pub fn restart(&self) {
        self.process.start();
        self.must_be_ready();
    }

    /// Stops the server's process in the midst of what it does (SIGSTOP): connections stay open,
    /// and nobody answers.
    pub fn freeze(&self) {
        self.process.signal("STOP");
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal("CONT");
    }

    /// Runs `rabbitmqctl` on this node, and returns what it prints. Panics if it fails, or takes
    /// longer than two minutes.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        self.try_ctl(words).unwrap_or_else(|said| panic!("rabbitmqctl {words:?} failed:\n{said}"))
    }

    /// As [`ctl`](Self::ctl); the error is what it prints when it fails.
    pub fn try_ctl(&self, words: &[&str]) -> Result<String, String> {
        self.tools().ctl(words)
    }

    /// Evaluates Erlang expressions, separated by commas, on this node, and returns the value of
    /// the last as Erlang writes it. A hundred times as quick as [`ctl`](Self::ctl). Panics if one
    /// fails, or takes longer than two minutes.
    #[track_caller]
    pub fn eval(&self, expressions: &str) -> String {
        self.try_eval(expressions).unwrap_or_else(|said| panic!("{expressions} failed:\n{said}"))
    }

    /// As [`eval`](Self::eval); the error says why an expression fails.
    pub fn try_eval(&self, expressions: &str) -> Result<String, String> {
        self.tools().eval(expressions)
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The end of the log, for messages: all of it is long.
    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(150)..].join("\n")
    }

    fn tools(&self) -> Tools<'_> {
        Tools { family: &self.family, node: &self.node, dir: self.dir() }
    }

    fn url_of(&self, vhost: &str) -> String {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        format!("{scheme}://{USER}:{PASSWORD}@{}/{vhost}", self.address())
    }

    fn must_be_ready(&self) {
        if let Err(reason) = self.until_ready() {
            panic!("RabbitMQ is not ready again: {reason}");
        }
    }

    /// Waits until the server answers. The error is the reason with the log.
    fn until_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let name = self.family.name.as_bytes();
        loop {
            let heard = greeting::hear(self.port);
            let is_ours = |frame: &Vec<u8>| frame.windows(name.len()).any(|part| part == name);
            // The ports of newer ones open one after the other.
            let is_open = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            if heard.as_ref().is_ok_and(is_ours)
                && self.tls.into_iter().chain(self.management).all(is_open)
            {
                return Ok(());
            }
            if let Some(status) = self.process.ended() {
                self.process.kill();
                return Err(format!("it ended ({status}) with the log:\n{}", self.last_words()));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "answered {heard:?}, or did not open all its ports, for two minutes; log:\n{}",
                    self.last_words()
                ));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// One server for all tests of this process, for those that keep to queues or virtual hosts of
/// their own. It is started at first use and ends with the process.
pub fn shared_rabbitmq() -> &'static RabbitMq {
    static SHARED: OnceLock<RabbitMq> = OnceLock::new();
    SHARED.get_or_init(RabbitMq::start)
}
