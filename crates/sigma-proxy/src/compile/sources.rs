//! The inputs of a compilation from outside: four ports, implemented by the control side, and data read in advance.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::acme::Acme;
use sigma_config::resources::{self, Ssl, SslCrl, SslOcsp, SslStapling};
use sigma_config::tls::{Stapling, Tls};
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    Authorities, CertificateDer, ClientTls, Inquiries, Issuer, KeyPassphrases, RevocationLists, Staple,
    TicketKeys,
};
use sigma_plugin::geography::Geography;
use sigma_schema::Problem;
use sigma_upstream::endpoint::UpstreamCell;
use sigma_upstream::health::plan::Plan;
use sigma_upstream::identity::EndpointIds;

use crate::edge::challenges::Challenges;

/// Provides the endpoints of upstreams.
pub trait EndpointSource {
    /// Returns the cell and the checks of the upstream with this key. Probes over TLS use the settings `probes`.
    ///
    /// # Errors
    /// Returns an error for a problem that the check of the configuration could not see.
    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        probes: Option<&ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem>;

    /// Returns the identities of endpoints, for those that clients choose.
    fn identities(&self) -> Arc<EndpointIds>;
}

/// Resolves references to secrets; see [`sigma_config::reference`].
pub trait SecretSource {
    /// Replaces references in a plugin's configuration, as far as their values are known.
    fn reveal(&self, conf: &mut Value);

    /// Returns true if the value of a reference in a plugin's configuration has changed since the last compilation.
    fn has_changed(&self, conf: &Value) -> bool;

    /// Returns the reason why a reference has no secret, if it is known. It contains no secret.
    fn refusal(&self, reference: &str) -> Option<&str> {
        let _ = reference;
        None
    }
}

/// Reads the files of a configuration.
pub trait FileSource {
    /// Returns the trusted authorities for nodes: from a file (PEM), or else the system's.
    ///
    /// # Errors
    /// Returns an error message if they cannot be read.
    fn authorities(&mut self, file: Option<&Path>) -> Result<Authorities, String>;

    /// Returns the content of a file.
    ///
    /// # Errors
    /// Returns an error message with the file's name if it cannot be read.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// Returns the certificate of an ssl and its key, which are in `key`, or also in `cert`. The key may be encrypted
    /// with one of the passphrases. While the files are unusable, the last good pair stays.
    ///
    /// # Errors
    /// Returns an error message with the names of the files if there is no good pair yet.
    fn pair(&mut self, cert: &Path, key: Option<&Path>, passphrases: &KeyPassphrases)
    -> Result<Pair, String>;

    /// Returns the revocation lists of `crl`, signed by `authorities` or authorities below them. They are kept up to
    /// date; equal settings share the lists.
    fn revocation(&mut self, crl: &SslCrl, authorities: &[CertificateDer<'static>]) -> Arc<RevocationLists>;

    /// Returns the OCSP inquiries about client certificates, with the settings `ocsp`; `authorities` or authorities
    /// below them have issued these. Equal settings share the inquiries.
    fn inquiries(&mut self, ocsp: &SslOcsp, authorities: &[CertificateDer<'static>]) -> Arc<Inquiries>;

    /// Returns the stored or shared keys of session tickets; None if they stay in the process.
    fn ticket_keys(&self) -> Option<Arc<TicketKeys>>;

    /// Returns the staple for the first certificate of a chain, which is kept up to date; equal wishes share it. None
    /// if stapling is off, or impossible, which is logged where it matters.
    fn staple(&mut self, chain: &[CertificateDer<'static>], wish: &StapleWish<'_>) -> Option<Arc<Staple>>;
}

/// The stapling settings for a certificate.
#[derive(Debug, Clone, Copy)]
pub struct StapleWish<'w> {
    /// The position of the certificate, such as `ssls/1`.
    pub place: &'w str,
    /// The settings of its ssl; None without such settings.
    pub own: Option<&'w SslStapling>,
    /// The general settings.
    pub settings: &'w Stapling,
}

/// Provides certificates that the gateway has ordered itself.
pub trait CertificateSource {
    /// Returns the pair of an ssl with this id; None before the first one.
    fn pair(&self, ssl: &str) -> Option<Pair>;

    /// Returns the reason why no certificate can be ordered for this ssl, which is of type acme; None if ordering is
    /// possible.
    fn refusal(&self, ssl: &Ssl) -> Option<String>;

    /// Returns the issuer of certificates for names without one, if that is enabled.
    fn issuer(&self) -> Option<Arc<dyn Issuer>> {
        None
    }

    /// Returns the responses to challenges of authorities.
    fn challenges(&self) -> Option<Arc<Challenges>>;
}

/// The inputs of one compilation.
pub struct Sources<'s> {
    /// The endpoints of upstreams.
    pub endpoints: &'s mut dyn EndpointSource,
    /// External secrets.
    pub secrets: &'s dyn SecretSource,
    /// Files.
    pub files: &'s mut dyn FileSource,
    /// Address databases; read in advance, as they are large.
    pub geography: Option<Geography>,
    /// Ordered certificates; None without orders.
    pub ordered: Option<&'s dyn CertificateSource>,
    /// Passphrases of private keys, for a trial. Compilers use the passphrases of the configuration.
    pub passphrases: KeyPassphrases,
}

impl Sources<'_> {
    /// Returns the same ports for a shorter time.
    pub(super) fn reborrow(&mut self) -> Sources<'_> {
        Sources {
            endpoints: self.endpoints,
            secrets: self.secrets,
            files: self.files,
            geography: self.geography.clone(),
            ordered: self.ordered,
            passphrases: self.passphrases.clone(),
        }
    }
}

/// Returns the passphrases of private keys in the settings.
pub fn key_passphrases(tls: &Tls) -> KeyPassphrases {
    let texts = tls.key_passphrases.iter().map(|text| text.reveal().to_owned());
    KeyPassphrases::new(texts, tls.key_passphrase_files.clone())
}

/// Resolves no secrets: references stay unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSecrets;

impl SecretSource for NoSecrets {
    fn reveal(&self, _: &mut Value) {}

    fn has_changed(&self, _: &Value) -> bool {
        false
    }
}

/// Certificates are ordered with these settings, and no order is complete yet.
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

/// Reads no files.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) struct NoFiles;

#[cfg(any(test, feature = "fuzzing"))]
impl FileSource for NoFiles {
    fn authorities(&mut self, _: Option<&Path>) -> Result<Authorities, String> {
        Authorities::system().map_err(|error| error.to_string())
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        Err(format!("cannot read {} on this machine", path.display()))
    }

    fn pair(&mut self, cert: &Path, _: Option<&Path>, _: &KeyPassphrases) -> Result<Pair, String> {
        Err(format!("cannot read {} on this machine", cert.display()))
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
