//! nginx as a reverse proxy.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::package::Package;
use crate::port;
use crate::process::{Process, start_on_free_port};
use crate::watchdog::Watchdog;

pub(crate) const PACKAGE: Package =
    Package { directory: "nginx", programs: &[("nginx", "-v")], debian_packages: &["nginx-light"] };

/// nginx as a proxy in front of test servers.
#[derive(Debug)]
pub struct Nginx {
    _process: Process,
    address: SocketAddr,
}

impl Nginx {
    /// Starts nginx in front of `server`. It removes a prefix such as `/ops/dq` from requests.
    #[must_use]
    pub fn strip_prefix(prefix: &str, server: SocketAddr) -> Self {
        start_on_free_port("nginx", || Self::try_start(prefix, &[server]))
    }

    /// Starts nginx in front of several servers, which take turns. If one refuses the connection,
    /// the next one gets the request.
    #[must_use]
    pub fn balance(servers: &[SocketAddr]) -> Self {
        start_on_free_port("nginx", || Self::try_start("", servers))
    }

    /// Returns nginx's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn try_start(prefix: &str, servers: &[SocketAddr]) -> Result<Self, String> {
        let program = PACKAGE.program("nginx");
        let watchdog = Watchdog::start("dq-nginx-");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
        let file = watchdog.dir().join("nginx.conf");
        fs::write(&file, configuration(prefix, address, servers))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        let directory = watchdog.dir().as_os_str().to_owned();
        let files = ["-c", "nginx.conf", "-e", "stderr"].map(OsString::from);
        let arguments = ["-p".into(), directory].into_iter().chain(files).collect();
        let process = Process::new(watchdog, program, arguments);
        process.start();
        // Written once nginx has the port, which another process may have taken.
        let pid = process.dir().join("nginx.pid");
        process.wait_until_ready(|| {
            fs::metadata(&pid).map(drop).map_err(|error| error.to_string())?;
            TcpStream::connect(address).map(drop).map_err(|error| error.to_string())
        })?;
        Ok(Self { _process: process, address })
    }
}

fn configuration(prefix: &str, address: SocketAddr, servers: &[SocketAddr]) -> String {
    // By default, a server that has failed once gets no request for ten seconds.
    let servers: String =
        servers.iter().map(|server| format!("server {server} max_fails=0; ")).collect();
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
{temporary}    upstream servers {{ {servers}}}
    server {{
        listen {address};
        location {prefix}/ {{
            proxy_pass http://servers/;
            proxy_set_header Host $http_host;
            proxy_http_version 1.1;
            proxy_buffering off;
        }}
    }}
}}
"
    )
}
