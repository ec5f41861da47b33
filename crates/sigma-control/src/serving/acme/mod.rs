//! Certificates that the gateway orders by itself (RFC 8555): for ssls of type acme.
//!
//! `keeper` is the task that looks after all of them, one order at a time. `schedule` says when something
//! is due, and knows neither clock nor network. `order` goes through one order, over the calls of `client`;
//! `dns` has the records that prove names.
//! `kept` is the folder in which all of it lasts: what was tried is written down before it is tried, so that
//! a process that ends again and again does not use up what an authority allows. [`Ordered`] is what the
//! others see: the certificates that are there, and how orders stand.

mod client;
mod dns;
mod keeper;
mod kept;
mod order;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sigma_config::acme::Acme;
use sigma_config::dns::Dns;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::{AcmeChallenge, CertificateKey, Resources, Ssl, SslType};
use sigma_net::tls::pem::Pair;
use sigma_proxy::challenges::Challenges;
use sigma_proxy::compile::CertificateSource;
use tokio::sync::Notify;

pub(crate) use keeper::Keeper;
use kept::{Folder, Record};

/// The certificates that were ordered, and how orders stand.
#[derive(Default)]
pub(crate) struct Ordered {
    settings: Acme,
    /// Name servers that the gateway asks; none: those of the system.
    resolvers: Vec<SocketAddr>,
    state: Mutex<State>,
    /// There is a certificate that is not in force yet.
    news: Notify,
    /// Other certificates are wanted than before.
    wishes: Notify,
    challenges: Arc<Challenges>,
}

#[derive(Default)]
struct State {
    wanted: Vec<Wanted>,
    pairs: BTreeMap<String, Pair>,
    /// Ssls whose certificate is not in force yet.
    fresh: BTreeSet<String>,
    standing: Vec<Standing>,
}

/// How the order for one ssl stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The ssl.
    pub(crate) ssl: String,
    pub(crate) names: Vec<String>,
    /// `ordering`, `valid`, `failed` or `waiting`.
    pub(crate) state: &'static str,
    /// When the certificate runs out, in Unix seconds; None while there is none.
    pub(crate) not_after: Option<i64>,
    /// When something is tried next, in Unix seconds.
    pub(crate) next_attempt: i64,
    /// Orders that failed since the last that did not.
    pub(crate) failures: u32,
    pub(crate) last_error: Option<String>,
}

impl Standing {
    /// As operators see it.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "ssl": self.ssl,
            "names": self.names,
            "state": self.state,
            "not_after": self.not_after,
            "next_attempt": self.next_attempt,
            "failures": self.failures,
            "last_error": self.last_error,
        })
    }
}

impl Ordered {
    /// Reads what an earlier process has kept. Returns the certificates, and what looks after them.
    pub(crate) async fn open(settings: &Acme, dns: &Dns) -> (Arc<Ordered>, Keeper) {
        let resolvers = dns.servers.iter().map(|server| server.0).collect();
        let ordered = Arc::new(Ordered { settings: settings.clone(), resolvers, ..Ordered::default() });
        let folder = Folder::new(&settings.storage);
        let records = folder.read_all().await;
        for record in records.values() {
            match record.pair() {
                Ok(Some(pair)) => drop(ordered.state().pairs.insert(record.ssl.clone(), pair)),
                Ok(None) => {}
                Err(reason) => tracing::error!(ssl = record.ssl, reason, "a kept certificate cannot be used"),
            }
        }
        let keeper = Keeper::new(folder, records, Arc::clone(&ordered));
        (ordered, keeper)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // All who lock it do so for a moment, and leave nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has certificates ordered for all ssls of type acme, and no others from now on.
    pub(crate) fn want(&self, resources: &Resources) {
        let wanted = Wanted::of(resources, &self.settings);
        let mut state = self.state();
        if state.wanted != wanted {
            state.wanted = wanted;
            self.wishes.notify_one();
        }
    }

    /// Has a certificate come into force.
    fn put(&self, ssl: &str, pair: Pair) {
        let mut state = self.state();
        state.pairs.insert(ssl.to_owned(), pair);
        state.fresh.insert(ssl.to_owned());
        drop(state);
        self.news.notify_one();
    }

    /// Waits for certificates that are not in force yet; they are those of [`Ordered::take_fresh`].
    pub(crate) async fn fresh(&self) {
        loop {
            if !self.state().fresh.is_empty() {
                return;
            }
            self.news.notified().await;
        }
    }

    /// The ssls whose certificates are not in force yet. They count as being so from now on.
    pub(crate) fn take_fresh(&self) -> Vec<ResourceKey> {
        let fresh = std::mem::take(&mut self.state().fresh);
        fresh.into_iter().map(|ssl| ResourceKey::new(Kind::Ssl, ssl)).collect()
    }

    fn tell(&self, standing: Vec<Standing>) {
        self.state().standing = standing;
    }

    /// How the orders stand.
    pub(crate) fn standing(&self) -> Vec<Standing> {
        self.state().standing.clone()
    }
}

impl CertificateSource for Ordered {
    fn pair(&self, ssl: &str) -> Option<Pair> {
        self.state().pairs.get(ssl).cloned()
    }

    fn refusal(&self, ssl: &Ssl) -> Option<String> {
        self.settings.refusal(ssl)
    }

    fn challenges(&self) -> Option<Arc<Challenges>> {
        Some(Arc::clone(&self.challenges))
    }
}

/// The certificate that an ssl is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    ssl: String,
    /// In lower case, each once.
    names: Vec<String>,
    key_type: CertificateKey,
    challenge: AcmeChallenge,
}

impl Wanted {
    /// Those of all ssls of type acme that are in force.
    fn of(resources: &Resources, settings: &Acme) -> Vec<Wanted> {
        let is_ordered = |ssl: &&Arc<Ssl>| {
            let key = ResourceKey::new(Kind::Ssl, ssl.id.as_str());
            ssl.kind == SslType::Acme && ssl.status.is_on() && !resources.is_closed(&key)
        };
        let wanted = |ssl: &Arc<Ssl>| {
            let normal = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let names: BTreeSet<String> = ssl.names().map(normal).collect();
            let own = ssl.acme.clone().unwrap_or_default();
            Wanted {
                ssl: ssl.id.to_string(),
                names: names.into_iter().collect(),
                key_type: own.key_type.unwrap_or(settings.key_type),
                challenge: own.challenge.unwrap_or(settings.challenge),
            }
        };
        resources.ssls.iter().filter(is_ordered).map(wanted).collect()
    }

    /// Whether a kept certificate is one like this.
    fn is_met_by(&self, record: &Record, directory: &str) -> bool {
        record.directory == directory && record.key_type == self.key_type && record.names == self.names
    }
}
