//! The certificate authorities that the setting `ca` trusts.

use std::path::Path;

use dq_core::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::invalid_setting;

pub(crate) const REMEDY: &str =
    "set `ca` to a PEM file with the certificates of your certificate authority";

/// Reads the certificates of the setting `ca`; `Config` if there is none.
pub(crate) fn certificates(ca: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let unusable =
        |why: String| invalid_setting(format!("the file of `ca`, {}, {why}", ca.display()), REMEDY);
    let text = std::fs::read(ca).map_err(|error| unusable(format!("cannot be read: {error}")))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(format!("is not PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(unusable("has no certificate in PEM form".to_owned()));
    }
    Ok(certificates)
}

/// The error of a `ca` beside a URL without TLS; `scheme` is the one with it.
pub(crate) fn without_tls(scheme: &str) -> Error {
    invalid_setting(
        format!("`ca` is set, but `url` does not begin with {scheme}://"),
        format!("begin `url` with {scheme}://, or remove `ca`"),
    )
}
