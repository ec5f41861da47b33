//! The inputs of compiling from outside: four ports, which the control side implements, and what was read
//! beforehand.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::acme::Acme;
use sigma_config::resources::{self, Ssl, SslCrl, SslOcsp, SslStapling};
use sigma_config::tls::Stapling;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    Authorities, CertificateDer, ClientTls, Inquiries, Issuer, RevocationLists, Staple, TicketKeys,
};
use sigma_plugin::geography::Geography;
use sigma_schema::Problem;
use sigma_upstream::endpoint::UpstreamCell;
use sigma_upstream::health::plan::Plan;

use crate::challenges::Challenges;

/// Gives upstreams their endpoints.
pub trait EndpointSource {
    /// The cell and the checks of the upstream with this key. Probes over TLS use the settings
    /// `probes`.
    ///
    /// # Errors
    /// Returns an error if there is a problem that the check of the configuration could not see.
    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        probes: Option<&ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem>;
}

/// Knows what references to secrets stand for; see [`sigma_config::reference`].
pub trait SecretSource {
    /// Puts what references stand for into a plugin's configuration, as far as it is known.
    fn reveal(&self, conf: &mut Value);

    /// Whether any reference within a plugin's configuration stands for something else than it did
    /// in the compilation before.
    fn has_changed(&self, conf: &Value) -> bool;

    /// The reason for which a reference has no secret, if that is known. It names no secret.
    fn refusal(&self, reference: &str) -> Option<&str> {
        let _ = reference;
        None
    }
}

/// Reads the files that a configuration names.
pub trait FileSource {
    /// The authorities that may vouch for nodes: those in a file (PEM), else those of the system.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if they cannot be read.
    fn authorities(&mut self, file: Option<&Path>) -> Result<Authorities, String>;

    /// The content of a file.
    ///
    /// # Errors
    /// Returns an error, which is a sentence with the file's name, if it cannot be read.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// The certificate of an ssl and its key, which are in `key`, or in `cert` as well. While the files cannot be used,
    /// the last good pair stays.
    ///
    /// # Errors
    /// Returns an error, which is a sentence with the names of the files, if there is no good pair yet.
    fn pair(&mut self, cert: &Path, key: Option<&Path>) -> Result<Pair, String>;

    /// The lists of revoked certificates that `crl` names, signed by `authorities` or by who is below them. They
    /// are kept up to date; the same settings have the same lists.
    fn revocation(&mut self, crl: &SslCrl, authorities: &[CertificateDer<'static>]) -> Arc<RevocationLists>;

    /// What responders say of certificates of clients, as `ocsp` has them asked; `authorities` have issued them, or
    /// who is below them. The same settings have the same.
    fn inquiries(&mut self, ocsp: &SslOcsp, authorities: &[CertificateDer<'static>]) -> Arc<Inquiries>;

    /// The keys of session tickets that are kept or shared; None if they stay in the process.
    fn ticket_keys(&self) -> Option<Arc<TicketKeys>>;

    /// What is stapled to the first certificate of a chain, which is kept up to date; the same wishes have the
    /// same. None if nothing is to be, or can be, which is told where it matters.
    fn staple(&mut self, chain: &[CertificateDer<'static>], wish: &StapleWish<'_>) -> Option<Arc<Staple>>;
}

/// How a certificate is to be stapled.
#[derive(Debug, Clone, Copy)]
pub struct StapleWish<'w> {
    /// Where the certificate stands, such as `ssls/1`.
    pub place: &'w str,
    /// What its ssl says; None if nothing.
    pub own: Option<&'w SslStapling>,
    /// What the settings say.
    pub settings: &'w Stapling,
}

/// Knows the certificates that the gateway has ordered by itself.
pub trait CertificateSource {
    /// That of an ssl with this id; None while there is none.
    fn pair(&self, ssl: &str) -> Option<Pair>;

    /// Why none can be ordered for this ssl, which is of type acme; None if one can.
    fn refusal(&self, ssl: &Ssl) -> Option<String>;

    /// Who has certificates made for names that have none, if that is done.
    fn issuer(&self) -> Option<Arc<dyn Issuer>> {
        None
    }

    /// What authorities are answered that ask whether a name is this gateway's.
    fn challenges(&self) -> Option<Arc<Challenges>>;
}

/// The inputs of one compilation.
pub struct Sources<'s> {
    /// Endpoints of upstreams.
    pub endpoints: &'s mut dyn EndpointSource,
    /// Secrets that are kept elsewhere.
    pub secrets: &'s dyn SecretSource,
    /// Files.
    pub files: &'s mut dyn FileSource,
    /// What the databases of addresses say; read beforehand, as they are large.
    pub geography: Option<Geography>,
    /// Certificates that are ordered; None if none are.
    pub ordered: Option<&'s dyn CertificateSource>,
}

impl Sources<'_> {
    /// The same ports for a shorter time.
    pub(super) fn reborrow(&mut self) -> Sources<'_> {
        Sources {
            endpoints: self.endpoints,
            secrets: self.secrets,
            files: self.files,
            geography: self.geography.clone(),
            ordered: self.ordered,
        }
    }
}

/// Knows no secret: references stay as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSecrets;

impl SecretSource for NoSecrets {
    fn reveal(&self, _: &mut Value) {}

    fn has_changed(&self, _: &Value) -> bool {
        false
    }
}

/// Certificates are ordered as these settings say, and there is none yet.
#[derive(Debug, Clone)]
pub struct NoCertificates(pub Acme);

impl CertificateSource for NoCertificates {
    fn pair(&self, _: &str) -> Option<Pair> {
        None
    }

    fn refusal(&self, ssl: &Ssl) -> Option<String> {
        self.0.refusal(ssl)
    }

    fn challenges(&self) -> Option<Arc<Challenges>> {
        None
    }
}

/// No file can be read.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) struct NoFiles;

#[cfg(any(test, feature = "fuzzing"))]
impl FileSource for NoFiles {
    fn authorities(&mut self, _: Option<&Path>) -> Result<Authorities, String> {
        Authorities::system().map_err(|error| error.to_string())
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        Err(format!("{} cannot be read here", path.display()))
    }

    fn pair(&mut self, cert: &Path, _: Option<&Path>) -> Result<Pair, String> {
        Err(format!("{} cannot be read here", cert.display()))
    }

    fn revocation(&mut self, _: &SslCrl, _: &[CertificateDer<'static>]) -> Arc<RevocationLists> {
        Arc::default()
    }

    fn inquiries(&mut self, _: &SslOcsp, _: &[CertificateDer<'static>]) -> Arc<Inquiries> {
        Arc::new(Inquiries::unanswered())
    }

    fn ticket_keys(&self) -> Option<Arc<TicketKeys>> {
        None
    }

    fn staple(&mut self, _: &[CertificateDer<'static>], _: &StapleWish<'_>) -> Option<Arc<Staple>> {
        None
    }
}
