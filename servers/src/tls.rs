//! Certificates for one server.

use std::fs;
use std::path::Path;

use crate::redis::PACKAGE;

/// Clients must trust this CA certificate.
pub(crate) const CA_CERTIFICATE: &str = "ca.crt";

pub(crate) const CERTIFICATE: &str = "server.crt";
pub(crate) const KEY: &str = "server.key";

pub(crate) const CLIENT_CERTIFICATE: &str = "client.crt";
pub(crate) const CLIENT_KEY: &str = "client.key";

/// Clients such as rustls require separate certificates for CA and server, and a `subjectAltName`.
const CONFIGURATION: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = dq tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
[client]
basicConstraints = CA:FALSE
extendedKeyUsage = clientAuth
";

const COMMANDS: [&str; 5] = [
    "ecparam -name prime256v1 -genkey -noout -out ca.key",
    "req -config openssl.cnf -extensions authority -new -x509 -days 3650 -key ca.key -out ca.crt",
    "ecparam -name prime256v1 -genkey -noout -out server.key",
    "req -config openssl.cnf -new -key server.key -out server.csr",
    "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 3650 \
    -extfile openssl.cnf -extensions server -out server.crt",
];

const CLIENT_COMMANDS: [&str; 3] = [
    "ecparam -name prime256v1 -genkey -noout -out client.key",
    "req -config openssl.cnf -new -key client.key -subj /CN=dq -out client.csr",
    "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -set_serial 2 -days 3650 \
    -extfile openssl.cnf -extensions client -out client.crt",
];

/// Creates `ca.crt`, and `server.crt` with `server.key` for 127.0.0.1 and localhost.
pub fn create_certificates(dir: &Path) {
    let file = dir.join("openssl.cnf");
    fs::write(&file, CONFIGURATION)
        .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    run(dir, &COMMANDS);
}

/// Creates `client.crt`, with `client.key` for the user `dq`, after [`create_certificates`].
pub(crate) fn create_client_certificate(dir: &Path) {
    run(dir, &CLIENT_COMMANDS);
}

fn run(dir: &Path, commands: &[&str]) {
    let openssl = PACKAGE.program("openssl");
    for arguments in commands {
        let mut command = openssl.command();
        let output = command.args(arguments.split_whitespace()).current_dir(dir).output();
        let output = output.unwrap_or_else(|error| panic!("openssl cannot be started: {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments} failed:\n{stderr}");
    }
}
