//! TLS with rustls and *ring*.

use std::path::Path;
use std::sync::Arc;

use dq_core::Result;
use dq_core::config::invalid_setting;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

/// PEM files.
pub(crate) struct TlsFiles<'a> {
    pub(crate) ca: Option<&'a Path>,
    pub(crate) certificate: Option<&'a Path>,
    pub(crate) key: Option<&'a Path>,
}

/// `is_plain` says that TLS is off, so the system's certificates need not be read.
pub(super) fn connector(files: &TlsFiles<'_>, is_plain: bool) -> Result<MakeRustlsConnect> {
    let mut roots = RootCertStore::empty();
    match files.ca {
        Some(path) => {
            for certificate in certificates("ca", path)? {
                roots.add(certificate).map_err(|error| unusable("ca", path, &error))?;
            }
        }
        None if is_plain => {}
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid_setting(format!("TLS cannot be used: {error}"), "report this"))?
        .with_root_certificates(roots);
    let config = match (files.certificate, files.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates("certificate", certificate)?;
            let key_der =
                PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("key", key, &error))?;
            builder
                .with_client_auth_cert(chain, key_der)
                .map_err(|error| unusable("key", key, &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn certificates(field: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unusable(field, path, &error))?;
    if certificates.is_empty() {
        return Err(unusable(field, path, &"it has no certificate"));
    }
    Ok(certificates)
}

fn unusable(field: &str, path: &Path, reason: &dyn std::fmt::Display) -> dq_core::Error {
    invalid_setting(
        format!("`{field}` is {}, which cannot be used: {reason}", path.display()),
        "name a readable PEM file",
    )
}
