//! The flags of every command that talks to a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tonic::Code;

use crate::client::{Client, Credentials, Error as Refusal, Options};

/// Where the server is, and what to show it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// Any shard of the cluster: host:port, or unix:path [default: 127.0.0.1:7700].
    #[arg(long, short, env = "HOTROW_ENDPOINT", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    /// The token to show, where servers ask for one.
    #[arg(long, env = "HOTROW_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The authority that signed the servers' certificates, PEM: speak TLS. Without it: plain text.
    #[arg(long, env = "HOTROW_CA")]
    pub ca: Option<PathBuf>,
    /// The certificate to show, PEM, where servers ask for one.
    #[arg(long, env = "HOTROW_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, env = "HOTROW_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Seconds that a call may take, all attempts together.
    #[arg(long, env = "HOTROW_TIMEOUT", default_value_t = 10.0)]
    pub timeout: f64,
}

impl Connect {
    /// The options that the flags ask for.
    pub fn options(&self) -> Result<Options> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut credentials = Credentials::default();
        if let Some(token) = &self.token {
            credentials = credentials.token(token)?;
        }
        if let Some(ca) = &self.ca {
            credentials = credentials.ca(read(ca)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            credentials = credentials.identity(read(cert)?, read(key)?);
        }
        let timeout = Duration::try_from_secs_f64(self.timeout).context("--timeout")?;
        Ok(Options { credentials, timeout, ..Options::default() })
    }

    /// A client.
    pub async fn client(&self) -> Result<Client> {
        self.client_with(self.options()?).await
    }

    /// A client with other options.
    pub async fn client_with(&self, options: Options) -> Result<Client> {
        let default = ["127.0.0.1:7700".to_string()];
        let endpoints = if self.endpoint.is_empty() { &default[..] } else { &self.endpoint };
        Client::connect_with(endpoints, options).await.map_err(|error| match error {
            Refusal::TimedOut { .. } => {
                let hint = "is `hotrow serve` running there, and does it speak TLS (--ca)?";
                anyhow::Error::new(error).context(format!("cannot reach {}: {hint}", endpoints.join(" or ")))
            }
            Refusal::Refused { code: Code::Unauthenticated, .. } => anyhow::Error::new(error).context("--token"),
            _ => error.into(),
        })
    }
}
