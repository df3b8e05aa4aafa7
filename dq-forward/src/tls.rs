//! The cryptographic library of all TLS connections.

/// Has no effect if the application has installed another provider.
pub(crate) fn install_provider() {
    rustls::crypto::ring::default_provider().install_default().ok();
}
