//! What a client shows a server, and how it knows the server.

use std::fmt;

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::error::{Error, Result};

/// A token, and certificates.
#[derive(Clone, Default)]
pub struct Credentials {
    token: Option<MetadataValue<Ascii>>,
    ca: Option<Certificate>,
    identity: Option<Identity>,
    domain: Option<String>,
}

impl Credentials {
    /// The token to send.
    pub fn token(mut self, token: &str) -> Result<Credentials> {
        let value = format!("Bearer {token}").parse();
        self.token = Some(value.map_err(|_| Error::Setup("the token has characters that cannot be sent".into()))?);
        Ok(self)
    }

    /// The authority that signed the servers' certificates, PEM. With it the client speaks TLS.
    pub fn ca(mut self, pem: impl AsRef<[u8]>) -> Credentials {
        self.ca = Some(Certificate::from_pem(pem));
        self
    }

    /// The client's own certificate and key, PEM, for servers that ask for one.
    pub fn identity(mut self, cert: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Credentials {
        self.identity = Some(Identity::from_pem(cert, key));
        self
    }

    /// The name that the servers' certificates carry, where it is not the host's.
    pub fn domain(mut self, name: impl Into<String>) -> Credentials {
        self.domain = Some(name.into());
        self
    }

    /// A request that shows the token.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// Shows the token in headers.
    pub(super) fn add_to(&self, headers: &mut http::HeaderMap) {
        if let Some(value) = self.token.as_ref().and_then(|token| token.as_bytes().try_into().ok()) {
            headers.insert(http::header::AUTHORIZATION, value);
        }
    }

    /// How to speak TLS; `None` is plain text.
    pub(super) fn tls(&self) -> Option<ClientTlsConfig> {
        let mut tls = ClientTlsConfig::new().ca_certificate(self.ca.clone()?);
        if let Some(identity) = &self.identity {
            tls = tls.identity(identity.clone());
        }
        if let Some(domain) = &self.domain {
            tls = tls.domain_name(domain);
        }
        Some(tls)
    }
}

impl fmt::Debug for Credentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, tls, identity) = (self.token.is_some(), self.ca.is_some(), self.identity.is_some());
        write!(f, "Credentials {{ token: {token}, tls: {tls}, identity: {identity} }}")
    }
}
