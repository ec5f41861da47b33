//! Whether a resource could be served, asked before it is stored.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::{self, SslCrl, SslOcsp};
use sigma_config::settings::Settings;
use sigma_config::stored;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    Authorities, CertificateDer, ClientTls, Inquiries, KeyPassphrases, RevocationLists, Staple, TicketKeys,
};
use sigma_plugin::Roster;
use sigma_proxy::compile::{
    CertificateSource, EndpointSource, FileSource, NoCertificates, NoSecrets, Sources, StapleWish,
    key_passphrases, try_out,
};
use sigma_schema::Problem;
use sigma_upstream::endpoint::{EndpointSet, UpstreamCell};
use sigma_upstream::health::plan::Plan;
use sigma_upstream::identity::EndpointIds;

use crate::serving::endpoints;

/// Compiles resources that are not to be served. A resource that passes compiles equally when it comes into
/// force, as far as that depends on nothing else.
pub struct Trial {
    roster: Arc<Roster>,
    /// The authorities of the system, read once.
    authorities: Mutex<Option<Authorities>>,
    /// Whether this process orders certificates.
    ordered: Option<NoCertificates>,
    /// Passphrases of private keys.
    passphrases: KeyPassphrases,
}

impl Trial {
    /// One with these plugins, for a process with these settings.
    pub fn new(roster: Arc<Roster>, settings: &Settings) -> Trial {
        let ordered = settings.acme.clone().map(NoCertificates);
        let passphrases = key_passphrases(&settings.tls);
        Trial { roster, authorities: Mutex::default(), ordered, passphrases }
    }

    /// Tries a resource that has passed its check.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the resource could not be served.
    pub fn run(&self, kind: Kind, id: &str, value: &Value) -> Result<(), String> {
        let key = ResourceKey::new(kind, id);
        let Some(resource) = stored::outline(&key, value) else { return Ok(()) };
        let (endpoints, files) = (&mut Nowhere, &mut Untouched(self));
        let ordered = self.ordered.as_ref().map(|ordered| ordered as &dyn CertificateSource);
        let passphrases = self.passphrases.clone();
        let sources =
            Sources { endpoints, secrets: &NoSecrets, files, geography: None, ordered, passphrases };
        let tried = try_out(resource, &self.roster, sources);
        tried.map_err(|problems| {
            problems.into_iter().next().map_or_else(String::new, |problem| problem.message)
        })
    }
}

/// Leads nowhere, and refuses what could lead nowhere.
struct Nowhere;

impl EndpointSource for Nowhere {
    fn identities(&self) -> Arc<EndpointIds> {
        Arc::default()
    }

    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        probes: Option<&ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem> {
        endpoints::spoken(key, config.scheme)?;
        let plan = endpoints::plan(key, config, probes)?;
        Ok((Arc::new(UpstreamCell::new(Arc::new(EndpointSet::new(Vec::new(), Arc::default())))), plan))
    }
}

/// Reads no file: lists of revoked certificates are read when they are used.
struct Untouched<'t>(&'t Trial);

impl FileSource for Untouched<'_> {
    fn authorities(&mut self, file: Option<&Path>) -> Result<Authorities, String> {
        // The settings of a trial name no file.
        debug_assert!(file.is_none());
        let mut known = self.0.authorities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let authorities = Authorities::system().map_err(|error| error.to_string())?;
        Ok(known.insert(authorities).clone())
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
