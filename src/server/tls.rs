//! Certificates for the server, by rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::config::TlsSection;

/// The files of a section.
pub fn files(tls: &TlsSection) -> Vec<PathBuf> {
    [&tls.cert, &tls.key, &tls.client_ca].into_iter().filter(|path| !path.as_os_str().is_empty()).cloned().collect()
}

/// Reads the files of a section.
pub fn server_config(tls: &TlsSection) -> Result<ServerConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = if tls.client_ca.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&tls.client_ca)? {
            roots.add(certificate).map_err(|e| format!("{}: {e}", tls.client_ca.display()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| format!("{}: {e}", tls.client_ca.display()))?;
        builder.with_client_cert_verifier(verifier)
    };
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| format!("{}: {e}", tls.key.display()))?;
    let mut config = builder
        .with_single_cert(certificates(&tls.cert)?, key)
        .map_err(|e| format!("{} and {}: {e}", tls.cert.display(), tls.key.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let error = |e: rustls::pki_types::pem::Error| format!("{}: {e}", path.display());
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(error)?.collect::<Result<Vec<_>, _>>().map_err(error)?;
    if certificates.is_empty() {
        return Err(format!("{}: no certificate in it", path.display()));
    }
    Ok(certificates)
}
