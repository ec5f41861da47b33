//! Certificates that the gateway orders by itself (RFC 8555): for ssls of type acme.
//!
//! `keeper` is the task that looks after all of them, one order at a time. `schedule` says when something is due, and
//! knows neither clock nor network. `order` goes through one order, over the calls of `client`; `proofs` has the
//! responses to the authority, and `dns` has the records that prove names. `on_demand` has the names that clients ask
//! for in handshakes and no ssl is for. `kept` is the folder in which all of it lasts, and `shared` the store of
//! several gateways; `storage` is either. An attempt is recorded before it is made, so that a process that ends again
//! and again does not use up an authority's limits. [`Ordered`] is the interface for others: the existing
//! certificates, and the state of orders.

mod client;
mod dns;
mod keeper;
mod kept;
mod on_demand;
mod order;
mod proofs;
mod schedule;
mod shared;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_config::acme::Acme;
use sigma_config::crypt::Keyring;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::{AcmeChallenge, CertificateKey, Resources, Ssl, SslType};
use sigma_config::settings::Settings;
use sigma_config::store::StoreKind;
use sigma_net::tls::Issuer;
use sigma_net::tls::pem::Pair;
use sigma_proxy::challenges::{Challenges, Expected};
use sigma_proxy::compile::CertificateSource;
use tokio::sync::Notify;

pub(crate) use keeper::Keeper;
use kept::{Folder, Record};
use on_demand::OnDemand;
use shared::{Heard, Shared};
use storage::Storage;

use crate::serving::clock::unix_seconds;
use crate::store::{Event, Store};

/// The certificates that were ordered, and how orders stand.
#[derive(Default)]
pub(crate) struct Ordered {
    settings: Acme,
    /// Name servers of the settings; empty for the system's.
    resolvers: Vec<SocketAddr>,
    state: Mutex<State>,
    /// There is a certificate that is not in force yet.
    news: Notify,
    /// Other certificates are wanted than before.
    wishes: Notify,
    challenges: Arc<Challenges>,
    /// The shared store, if other gateways may use it.
    shared: Option<Arc<Shared>>,
    /// The proofs that are given for whichever of them orders.
    given: Mutex<Vec<Expected>>,
    /// Names that have certificates without an ssl.
    on_demand: Option<Arc<OnDemand>>,
}

#[derive(Default)]
struct State {
    wanted: Vec<CertificateSpec>,
    pairs: BTreeMap<String, Pair>,
    /// Ssls whose certificate is not in force yet.
    fresh: BTreeSet<String>,
    standing: Vec<Standing>,
    /// Ssls that an operator wants ordered now.
    demanded: BTreeSet<String>,
    /// When operators wanted that last, in Unix seconds.
    last_demands: BTreeMap<String, i64>,
}

impl State {
    /// Seconds until an ssl may be demanded again; None if it may be now. A clock that was set back keeps none out.
    fn demand_backoff(&self, ssl: &str, settings: &Acme, now: i64) -> Option<i64> {
        let last = self.last_demands.get(ssl)?;
        let next = last + i64::from(settings.retry_s);
        (*last..next).contains(&now).then_some(next - now)
    }
}

/// Why a certificate is not ordered now.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwilling {
    #[error("the gateway orders no certificate for this ssl: GET /v1/acme lists its orders")]
    Unknown,
    #[error("the certificate was ordered a moment ago; retry in {after_s} s (`acme.retry_s`)")]
    TooSoon { after_s: i64 },
    #[error("cannot reach the gateway that orders certificates: {0}")]
    Lost(String),
}

/// How long the notification of other gateways about the end of this process may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// The state of the order for one ssl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The ssl.
    pub(crate) ssl: String,
    pub(crate) names: Vec<String>,
    /// `ordering`, `valid`, `failed` or `waiting`.
    pub(crate) state: &'static str,
    /// When the certificate runs out, in Unix seconds; None without a certificate.
    pub(crate) not_after: Option<i64>,
    /// When something is tried next, in Unix seconds.
    pub(crate) next_attempt: i64,
    /// Failed orders since the last successful one.
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
    /// Returns the ordered certificates and their keeper, if the settings have them. They are the
    /// certificates that an earlier process has kept; or the shared ones of gateways on one etcd, in which
    /// `keyring` seals private keys.
    pub(crate) async fn of(
        settings: &Settings,
        store: Option<&Arc<dyn Store>>,
        keyring: &Keyring,
    ) -> (Option<Arc<Ordered>>, Option<Keeper>) {
        let Some(acme) = settings.acme.clone() else { return (None, None) };
        let is_shared = settings.store.as_ref().is_some_and(|store| store.kind == StoreKind::Etcd);
        let lease = Duration::from_secs(acme.lease_s.into());
        let shared =
            |store: &Arc<dyn Store>| Arc::new(Shared::new(Arc::clone(store), keyring.clone(), lease));
        let shared = store.filter(|_| is_shared).map(shared);
        let resolvers = settings.dns.servers.iter().map(|server| server.0).collect();
        let (ordered, keeper) = Ordered::open(acme, resolvers, shared).await;
        (Some(ordered), Some(keeper))
    }

    async fn open(
        settings: Acme,
        resolvers: Vec<SocketAddr>,
        shared: Option<Arc<Shared>>,
    ) -> (Arc<Ordered>, Keeper) {
        let on_demand = settings.on_demand.as_ref().map(|settings| Arc::new(OnDemand::new(settings)));
        let ordered = Arc::new(Ordered { settings, resolvers, shared, on_demand, ..Ordered::default() });
        let folder = Folder::new(&ordered.settings.storage);
        let (storage, records) = match &ordered.shared {
            Some(shared) => {
                // Missing data comes with the first read of the store that succeeds.
                ordered.catch_up().await;
                (Storage::Shared(Arc::clone(shared)), shared.records().unwrap_or_default())
            }
            None => {
                let records = folder.read_all().await;
                records.values().for_each(|record| ordered.take_in(record));
                (Storage::Folder(folder), records)
            }
        };
        // They are compiled with everything else.
        ordered.state().fresh.clear();
        let keeper = Keeper::new(storage, records, Arc::clone(&ordered));
        (ordered, keeper)
    }

    /// Has the certificate of a record come into force.
    fn take_in(&self, record: &Record) {
        match record.pair() {
            Ok(Some(pair)) => self.put(&record.ssl, pair),
            Ok(None) => {}
            Err(reason) => tracing::error!(ssl = record.ssl, reason, "a stored certificate is invalid"),
        }
    }

    /// The store tells something.
    pub(crate) fn hear(&self, event: &Event) {
        if let Some(shared) = &self.shared {
            self.take_up(shared, shared.hear(event));
        }
    }

    /// Reads changes that the watch may have missed; false if it could not.
    async fn catch_up(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        match shared.catch_up().await {
            Ok(heard) => {
                self.take_up(shared, heard);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the certificates that other gateways ordered");
                false
            }
        }
    }

    /// Puts received changes into force. All receivers do so on one thread and without a pause until here, so
    /// that a gateway does not announce proofs before it serves them.
    fn take_up(&self, shared: &Shared, heard: Vec<Heard>) {
        for heard in heard {
            match heard {
                Heard::Record(record) => self.take_in(&record),
                Heard::Demand(ssl) => self.demand(&ssl, unix_seconds()),
                Heard::Proofs(proofs) => {
                    let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
                    // First: a response ends with the one that gave it, also if another gives the same.
                    given.clear();
                    for proof in proofs {
                        match proof.give(&self.challenges) {
                            Ok(expected) => given.extend(expected),
                            Err(reason) => {
                                tracing::error!(
                                    name = proof.name,
                                    reason,
                                    "cannot publish a challenge response"
                                )
                            }
                        }
                    }
                    shared.has_news();
                }
            }
        }
    }

    /// Decides on names that are requested, until the process ends.
    async fn decide(&self) {
        if let Some(on_demand) = &self.on_demand {
            on_demand.decide(&self.wishes).await;
        }
    }

    /// Whether there is an order for this ssl, or for a name in its form.
    fn is_wanted(&self, ssl: &str) -> bool {
        let named = on_demand::name_of(ssl).zip(self.on_demand.as_ref());
        named.is_some_and(|(name, on_demand)| on_demand.has(name))
            || self.state().wanted.iter().any(|wanted| wanted.ssl == ssl)
    }

    /// Keeps this gateway's presence written, and reads missed changes, until the process ends.
    async fn attend(&self) {
        let Some(shared) = &self.shared else { return };
        loop {
            if shared.is_behind() {
                self.catch_up().await;
            }
            shared.be_there().await;
        }
    }

    /// The process ends: hands its tasks for others over to them.
    pub(crate) async fn leave(&self) {
        if let Some(shared) = &self.shared {
            // Without a response the lease ends it.
            let _ = tokio::time::timeout(GOODBYE, shared.leave()).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // All who lock it do so for a moment, and leave nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has certificates ordered for all ssls of type acme, and no others from now on.
    pub(crate) fn want(&self, resources: &Resources) {
        let wanted = CertificateSpec::of(resources, &self.settings);
        let mut state = self.state();
        if state.wanted != wanted {
            state.wanted = wanted;
            let State { wanted, last_demands, .. } = &mut *state;
            last_demands.retain(|ssl, _| wanted.iter().any(|wanted| wanted.ssl == *ssl));
            self.wishes.notify_one();
        }
    }

    /// Has a certificate come into force.
    fn put(&self, ssl: &str, pair: Pair) {
        if let Some(name) = on_demand::name_of(ssl) {
            if let Some(on_demand) = &self.on_demand {
                on_demand.show(name, pair);
            }
            return;
        }
        let mut state = self.state();
        if state.pairs.get(ssl).is_some_and(|known| known.is(&pair)) {
            return;
        }
        state.pairs.insert(ssl.to_owned(), pair);
        state.fresh.insert(ssl.to_owned());
        drop(state);
        self.news.notify_one();
    }

    /// Waits for certificates that are not in force yet; [`Ordered::take_fresh`] returns them.
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

    /// Orders the certificate of an ssl now, even if it is not due. Of several gateways the one that orders
    /// is notified.
    ///
    /// # Errors
    /// Returns an error if there is no such ssl, it was ordered a moment ago, or the others cannot be
    /// notified.
    pub(crate) async fn order_now(&self, ssl: &str, now: i64) -> Result<(), Unwilling> {
        if !self.is_wanted(ssl) {
            return Err(Unwilling::Unknown);
        }
        if let Some(after_s) = self.state().demand_backoff(ssl, &self.settings, now) {
            return Err(Unwilling::TooSoon { after_s });
        }
        match &self.shared {
            Some(shared) => shared.demand(ssl).await.map_err(|error| Unwilling::Lost(error.to_string()))?,
            None => self.demand(ssl, now),
        }
        self.state().last_demands.insert(ssl.to_owned(), now);
        Ok(())
    }

    fn demand(&self, ssl: &str, now: i64) {
        let is_wanted = self.is_wanted(ssl);
        let mut state = self.state();
        // Of others there is nothing to order; of several gateways each may have been asked.
        if is_wanted && state.demand_backoff(ssl, &self.settings, now).is_none() {
            state.demanded.insert(ssl.to_owned());
            state.last_demands.insert(ssl.to_owned(), now);
            drop(state);
            self.wishes.notify_one();
        }
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

    fn issuer(&self) -> Option<Arc<dyn Issuer>> {
        self.on_demand.clone().map(|on_demand| on_demand as Arc<dyn Issuer>)
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
struct CertificateSpec {
    ssl: String,
    /// In lower case, each once.
    names: Vec<String>,
    key_type: CertificateKey,
    challenge: AcmeChallenge,
}

impl CertificateSpec {
    /// Returns all ssls of type acme that are in force.
    fn of(resources: &Resources, settings: &Acme) -> Vec<CertificateSpec> {
        let is_ordered = |ssl: &&Arc<Ssl>| {
            let key = ResourceKey::new(Kind::Ssl, ssl.id.as_str());
            ssl.kind == SslType::Acme && ssl.status.is_on() && !resources.is_closed(&key)
        };
        let wanted = |ssl: &Arc<Ssl>| {
            let normal = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let names: BTreeSet<String> = ssl.names().map(normal).collect();
            let own = ssl.acme.clone().unwrap_or_default();
            CertificateSpec {
                ssl: ssl.id.to_string(),
                names: names.into_iter().collect(),
                key_type: own.key_type.unwrap_or(settings.key_type),
                challenge: own.challenge.unwrap_or(settings.challenge),
            }
        };
        resources.ssls.iter().filter(is_ordered).map(wanted).collect()
    }

    /// The certificate of a name that a client has requested.
    fn on_demand(name: String, settings: &Acme) -> CertificateSpec {
        CertificateSpec {
            ssl: on_demand::ssl_of(&name),
            names: vec![name],
            key_type: settings.key_type,
            challenge: settings.challenge,
        }
    }

    /// Whether a kept certificate is one like this.
    fn is_met_by(&self, record: &Record, directory: &str) -> bool {
        record.directory == directory && record.key_type == self.key_type && record.names == self.names
    }
}
