use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::port;
use crate::process::Process;
use crate::program::{NGINX, Program};
use crate::watchdog::Watchdog;

const ATTEMPTS: usize = 5;

/// nginx as a proxy in front of a test server; it removes a prefix from requests.
#[derive(Debug)]
pub struct Nginx {
    _process: Process,
    address: SocketAddr,
}

impl Nginx {
    /// Starts nginx in front of `server`, with a prefix such as `/ops/dq`.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    #[must_use]
    pub fn strip_prefix(prefix: &str, server: SocketAddr) -> Self {
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            match Self::try_start(prefix, server) {
                Ok(nginx) => return nginx,
                // Another process may have taken the port.
                Err(error) => reason = error,
            }
        }
        panic!("nginx does not start: {reason}");
    }

    /// Returns nginx's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn try_start(prefix: &str, server: SocketAddr) -> Result<Self, String> {
        let program = Program::expect(NGINX, "nginx");
        let watchdog = Watchdog::start("dq-nginx-");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
        let file = watchdog.dir().join("nginx.conf");
        fs::write(&file, configuration(prefix, address, server))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        let directory = watchdog.dir().as_os_str().to_owned();
        let arguments = ["-p".into(), directory, "-c".into(), "nginx.conf".into()];
        let arguments = arguments.into_iter().chain(["-e".into(), "error.log".into()]).collect();
        let process = Process::new(watchdog, program, arguments);
        process.start();
        process.wait_until_ready(|| {
            TcpStream::connect(address).map(drop).map_err(|error| error.to_string())
        })?;
        Ok(Self { _process: process, address })
    }
}

/// Uses the guide's location.
fn configuration(prefix: &str, address: SocketAddr, server: SocketAddr) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path tmp-{name};\n"))
        .concat();
    format!(
        "daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
{temporary}    server {{
        listen {address};
        location {prefix}/ {{
            proxy_pass http://{server}/;
            proxy_set_header Host $http_host;
            proxy_http_version 1.1;
            proxy_buffering off;
        }}
    }}
}}
"
    )
}
