//! Trust and identity of `sigma ctl` over TLS.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

/// TLS towards the Admin API.
#[derive(Debug, Default, Args)]
pub(crate) struct Identity {
    /// A file with the authorities (PEM) that are trusted instead of the system's [env: SIGMA_ADMIN_CA]
    #[arg(long, value_name = "FILE", global = true, help_heading = super::GATEWAY)]
    ca: Option<PathBuf>,
    /// A file with a client certificate (PEM) for the Admin API [env: SIGMA_ADMIN_CERT]
    #[arg(long, value_name = "FILE", global = true, help_heading = super::GATEWAY)]
    cert: Option<PathBuf>,
    /// A file with its key (PEM) [env: SIGMA_ADMIN_CERT_KEY]
    #[arg(long, value_name = "FILE", global = true, help_heading = super::GATEWAY)]
    cert_key: Option<PathBuf>,
}

impl Identity {
    /// Has `client` speak TLS as the arguments say, or the environment where they say nothing.
    pub(crate) fn apply(self, mut client: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let ca = self.ca.or_else(|| variable("SIGMA_ADMIN_CA"));
        let cert = self.cert.or_else(|| variable("SIGMA_ADMIN_CERT"));
        let key = self.cert_key.or_else(|| variable("SIGMA_ADMIN_CERT_KEY"));
        if let Some(path) = &ca {
            let found = reqwest::Certificate::from_pem_bundle(&read(path)?)?;
            if found.is_empty() {
                bail!("{} contains no certificate; name a file in PEM format", path.display());
            }
            client = client.tls_certs_only(found);
        }
        match (cert, key) {
            (None, None) => Ok(client),
            (Some(cert), Some(key)) => {
                let mut both = read(&cert)?;
                both.push(b'\n');
                both.extend(read(&key)?);
                let used = || format!("cannot use {} and {}", cert.display(), key.display());
                Ok(client.identity(reqwest::Identity::from_pem(&both).with_context(used)?))
            }
            _ => bail!("a certificate needs its key: give both --cert and --cert-key"),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
