//! Orders to forget what caches keep, for this gateway and for all others of its store.
//!
//! The gateway with the order purges at once, and writes the order next to the resources under a lease, where
//! the others read it. A gateway that was away from its store reads the orders that it missed, and purges
//! everything if orders may be lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sigma_cache::{Purge, Zones};
use sigma_config::settings::Settings;
use sigma_config::store::{StoreAccess, StoreKind};
use sigma_plugin::cache::key_end;
use sigma_plugin::variables::{host_name, percent_decoded};
use sigma_proxy::route::normalize::normalize_path;

use super::cache_disk::{Admission, Asking, STAMP_PERIOD};
use crate::store::{Change, Event, Record, Store, StoreError, Transaction, Write};

/// Where orders are, among what gateways report.
const FOLDER: &str = "data_plane/purges/";

/// For how long an order can be read.
const TTL: Duration = Duration::from_secs(600);

/// How long the removal of purged responses from disks is awaited: one that hangs delays nothing else.
const ERASING: Duration = Duration::from_secs(10);

/// The pause before orders are read again that could not be.
const AGAIN: Duration = Duration::from_secs(1);

/// Most entries of each list of an order.
const ENTRIES_MAX: usize = 1_000;

/// An order as operators write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PurgeOrder {
    /// Only in this zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// Everything.
    all: bool,
    /// Responses to requests for these.
    urls: Vec<String>,
    /// Responses to requests for URLs with these prefixes.
    prefixes: Vec<String>,
    /// Responds with one of these tags of their node.
    tags: Vec<String>,
    /// Responds with keys whose last parts have these values.
    keys: Vec<Vec<String>>,
}

impl PurgeOrder {
    /// What is meant.
    ///
    /// # Errors
    /// Returns a sentence if the order names nothing, too much, or what nothing can be found by.
    fn meant(&self) -> Result<Purge, String> {
        let lists = [
            ("urls", self.urls.len()),
            ("prefixes", self.prefixes.len()),
            ("tags", self.tags.len()),
            ("keys", self.keys.len()),
        ];
        if let Some((name, _)) = lists.iter().find(|(_, length)| *length > ENTRIES_MAX) {
            return Err(format!("{name} has more than {ENTRIES_MAX} entries: send several purges"));
        }
        if !self.all && lists.iter().all(|(_, length)| *length == 0) {
            return Err(
                "the purge is empty: set `urls`, `prefixes`, `tags` or `keys`, or `all`: true".to_owned()
            );
        }
        if self.tags.iter().any(|tag| tag.is_empty() || tag.contains([' ', '\t', ','])) {
            return Err("a tag may not contain spaces or commas".to_owned());
        }
        if self.keys.iter().any(Vec::is_empty) {
            return Err("a key is a list of the values of its last parts, with at least one value".to_owned());
        }
        let each = |urls: &[String], path: Path| {
            urls.iter().map(|url| resource(url, path)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Purge {
            zone: self.zone.as_deref().map(Box::from),
            all: self.all,
            resources: each(&self.urls, normal)?.into_iter().collect(),
            prefixes: each(&self.prefixes, |path| percent_decoded(path).into_owned())?,
            tags: self.tags.iter().map(|tag| tag.as_bytes().into()).collect(),
            keys: self.keys.iter().map(|values| key_end(values).into()).collect(),
        })
    }
}

/// How a path is read.
type Path = fn(&[u8]) -> Vec<u8>;

/// Parses a URL, with or without scheme and port, into the form of responses' requests: with the path in its normal
/// form, for any spelling of clients.
fn resource(url: &str, path_of: Path) -> Result<Box<[u8]>, String> {
    let named = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or(url);
    let (authority, rest) = named.split_at(named.find('/').unwrap_or(named.len()));
    let host = host_name(authority.as_bytes());
    if host.is_empty() || rest.contains('#') || named.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err(format!("{url:?} is not a URL: write host and path, such as shop.example/a?b=c"));
    }
    let rest = if rest.is_empty() { "/" } else { rest };
    let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    Ok([&host, &path_of(path.as_bytes())[..], query.as_bytes()].concat().into())
}

fn normal(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::new();
    match normalize_path(path, &mut normal) {
        Ok(()) => normal,
        // No request has it.
        Err(_) => path.to_vec(),
    }
}

/// Why an order was not carried out everywhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurgeError {
    /// It means nothing.
    #[error("{0}")]
    Unclear(String),
    /// This gateway has purged; the others were not notified.
    #[error("this gateway has purged it, but cannot notify the others: {0}; repeat the purge")]
    Alone(#[from] StoreError),
}

/// The result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purged {
    /// How many responses this gateway has forgotten.
    pub(crate) forgotten: usize,
    /// The other gateways of the store hear of it.
    pub(crate) is_told: bool,
}

/// Carries out orders.
pub(crate) struct Purges {
    zones: Arc<Zones>,
    /// The store that all gateways share; None if this one is alone.
    store: Option<Arc<dyn Store>>,
    /// This one may tell the others.
    may_write: bool,
    /// The prefix of the keys of this gateway's own orders.
    own: String,
    /// Since when the store cannot be reached.
    lost: Mutex<Option<Instant>>,
    /// This gateway knows of all orders.
    is_in_touch: Arc<AtomicBool>,
    /// One order is carried out after the other: each looks at all that is kept.
    walking: tokio::sync::Mutex<()>,
}

impl Purges {
    /// Returns the purges of a gateway with these settings.
    pub(crate) fn of(
        settings: &Settings,
        zones: Arc<Zones>,
        store: Option<&Arc<dyn Store>>,
        asking: Asking,
    ) -> Arc<Purges> {
        let of_settings = settings.store.clone().unwrap_or_default();
        let shared = store.filter(|_| of_settings.kind == StoreKind::Etcd).cloned();
        let may_write = of_settings.access == StoreAccess::ReadWrite;
        let purges = Purges { is_in_touch: asking.is_in_touch, ..Purges::new(zones, shared, may_write) };
        let purges = Arc::new(purges);
        tokio::spawn(Arc::clone(&purges).admit(asking.admissions));
        purges
    }

    fn new(zones: Arc<Zones>, store: Option<Arc<dyn Store>>, may_write: bool) -> Purges {
        let own = format!("{FOLDER}{:016x}-", fastrand::u64(..));
        let (lost, is_in_touch) = (Mutex::default(), Arc::new(AtomicBool::new(true)));
        Purges { zones, store, may_write, own, lost, is_in_touch, walking: tokio::sync::Mutex::default() }
    }

    /// What is kept.
    pub(crate) fn zones(&self) -> &Zones {
        &self.zones
    }

    /// Sends disk caches the orders that they missed.
    async fn admit(self: Arc<Self>, mut asking: tokio::sync::mpsc::Receiver<Admission>) {
        while let Some(Admission { since, reply }) = asking.recv().await {
            let purges = Arc::clone(&self);
            tokio::spawn(async move {
                // A receiver that does not listen has ended.
                let _ = reply.send(purges.missed(since).await);
            });
        }
    }

    /// Returns the orders since a time, in seconds since 1970. Orders that cannot be read any more mean
    /// everything.
    async fn missed(&self, since: Option<u64>) -> Vec<Purge> {
        let Some(store) = &self.store else { return Vec::new() };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let readable = (TTL - 2 * STAMP_PERIOD).as_secs();
        if since.is_none_or(|since| since > now || now - since >= readable) {
            return vec![Purge::everything()];
        }
        loop {
            match store.list(FOLDER).await {
                Ok(records) => return records.iter().filter_map(|record| self.meant_by(record)).collect(),
                Err(error) => {
                    tracing::debug!(%error, "the purge of the disk caches waits for the purges in the store")
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Purges by orders, in parallel with everything else; returns the number of removed responses. When it returns,
    /// none of these answers is on a disk.
    async fn forget(self: Arc<Self>, orders: Vec<Purge>) -> usize {
        let walking = self.walking.lock().await;
        let zones = Arc::clone(&self.zones);
        let walk = move || orders.iter().map(|order| zones.purge(order)).collect::<Vec<_>>();
        let walked = tokio::task::spawn_blocking(walk).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a purge was not completed");
            Vec::new()
        });
        drop(walking);
        let forgotten = walked.iter().map(|(count, _)| count).sum();
        let erased = async {
            for (_, erasure) in walked {
                erasure.done().await;
            }
        };
        if tokio::time::timeout(ERASING, erased).await.is_err() {
            tracing::warn!("purged responses are still on a disk that is too slow");
        }
        forgotten
    }

    fn forget_aside(self: &Arc<Self>, orders: Vec<Purge>) {
        if !orders.is_empty() {
            tokio::spawn(Arc::clone(self).forget(orders));
        }
    }

    /// Carries out an order of this gateway's operators.
    ///
    /// # Errors
    /// Returns an error if the order is invalid, or if the other gateways could not be notified.
    pub(crate) async fn order(self: &Arc<Self>, order: &PurgeOrder) -> Result<Purged, PurgeError> {
        let meant = order.meant().map_err(PurgeError::Unclear)?;
        self.check_zone(order).map_err(PurgeError::Unclear)?;
        let forgotten = Arc::clone(self).forget(vec![meant]).await;
        let Some(store) = self.store.as_ref().filter(|_| self.may_write) else {
            return Ok(Purged { forgotten, is_told: false });
        };
        let value = serde_json::to_vec(order).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let key = format!("{}{:016x}", self.own, fastrand::u64(..));
        let writes = vec![Write::Put { key, value: value.into(), ttl: Some(TTL) }];
        store.commit(Transaction { conditions: Vec::new(), writes }).await?;
        Ok(Purged { forgotten, is_told: true })
    }

    /// An unknown zone is a mistake: the responses to purge would stay. Orders of other gateways are not checked, as
    /// they may have other zones.
    fn check_zone(&self, order: &PurgeOrder) -> Result<(), String> {
        let Some(zone) = order.zone.as_deref().filter(|zone| !zone.is_empty()) else { return Ok(()) };
        // The zones that the configuration has named since the start, in order.
        let known: Vec<Box<str>> = self.zones.all().into_iter().map(|(name, _)| name).collect();
        if known.iter().any(|name| **name == *zone) {
            return Ok(());
        }
        let named: Vec<&str> = known.iter().map(|name| &**name).filter(|name| !name.is_empty()).collect();
        let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        Err(format!("no route uses the zone `{zone}`; zones in use: {named}"))
    }

    /// The store tells something.
    pub(crate) fn hear(self: &Arc<Self>, event: &Event) {
        match event {
            Event::Changed { changes, .. } => {
                let put = changes.iter().filter_map(|change| match change {
                    Change::Put(record) => self.meant_by(record),
                    _ => None,
                });
                self.forget_aside(put.collect());
            }
            Event::Reloaded(contents) => {
                self.is_back();
                let orders = contents.records.iter().filter_map(|record| self.meant_by(record)).collect();
                tokio::spawn(Arc::clone(self).forget_missed(orders));
            }
            Event::Lost(_) => {
                self.lost().get_or_insert_with(Instant::now);
                self.is_in_touch.store(false, Ordering::Release);
            }
            Event::Regained { .. } => {
                self.is_back();
                tokio::spawn(Arc::clone(self).catch_up());
            }
        }
    }

    /// Carries out the orders that came while the store could not be reached. If it cannot be read, nothing
    /// is sure.
    async fn catch_up(self: Arc<Self>) {
        let Some(store) = &self.store else { return };
        match store.list(FOLDER).await {
            Ok(records) => {
                let orders = records.iter().filter_map(|record| self.meant_by(record)).collect();
                self.forget_missed(orders).await;
            }
            Err(_) => self.forget_missed(vec![Purge::everything()]).await,
        }
    }

    /// Purges by the missed orders. Then all orders are known.
    async fn forget_missed(self: Arc<Self>, orders: Vec<Purge>) {
        Arc::clone(&self).forget(orders).await;
        if self.lost().is_none() {
            self.is_in_touch.store(true, Ordering::Release);
        }
    }

    /// Orders that were missed have gone with their leases.
    fn is_back(self: &Arc<Self>) {
        if self.lost().take().is_some_and(|lost| lost.elapsed() >= TTL) {
            tracing::info!("the store was unreachable for too long: all caches start empty");
            self.forget_aside(vec![Purge::everything()]);
        }
    }

    /// Returns the meaning of another gateway's order. One that cannot be read may mean anything, so
    /// everything goes.
    fn meant_by(&self, record: &Record) -> Option<Purge> {
        if !record.key.starts_with(FOLDER) || record.key.starts_with(&self.own) {
            return None;
        }
        let order = serde_json::from_slice::<PurgeOrder>(&record.value).map_err(|error| error.to_string());
        let purge = order.and_then(|order| order.meant()).unwrap_or_else(|error| {
            tracing::warn!(key = record.key, error, "a stored purge is unreadable: all caches start empty");
            Purge::everything()
        });
        Some(purge)
    }

    fn lost(&self) -> MutexGuard<'_, Option<Instant>> {
        // It is whole at any time.
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::memory::Memory;

    fn order(value: serde_json::Value) -> PurgeOrder {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn orders_are_read() {
        let meant = order(json!({
            "urls": ["https://Shop.Example:8443/a?b=c", "shop.example", "h//a%20b/%2e/c?x=%20"],
            "prefixes": ["shop.example/a"], "tags": ["red"], "keys": [["h", "/a"]], "zone": "z",
        }))
        .meant()
        .unwrap();
        let resources = [&b"shop.example/a?b=c"[..], b"shop.example/", b"h/a b/c?x=%20"].map(Box::from);
        assert_eq!(meant.resources, resources.into());
        assert_eq!((&meant.prefixes[..], meant.all), (&[b"shop.example/a"[..].into()][..], false));
        assert_eq!(*meant.keys[0], *b"h\x01\0\0\0\0\0\0\0/a\x02\0\0\0\0\0\0\0");
        let refused = |value| order(value).meant().unwrap_err();
        assert!(refused(json!({})).starts_with("the purge is empty"));
        assert!(refused(json!({"zone": "z"})).starts_with("the purge is empty"));
        for url in ["", "/a", "http:///a", "shop.example/a b", "shop.example/a#b", ":80/a"] {
            assert!(refused(json!({"urls": [url]})).contains("is not a URL"), "{url}");
            assert!(refused(json!({"prefixes": [url]})).contains("is not a URL"), "{url}");
        }
        assert!(refused(json!({"tags": ["a,b"]})).starts_with("a tag may not contain spaces"));
        assert!(refused(json!({"keys": [[]]})).starts_with("a key is"));
        assert!(refused(json!({"tags": vec!["a"; ENTRIES_MAX + 1]})).contains("more than 1000"));
        assert!(serde_json::from_value::<PurgeOrder>(json!({"everything": true})).is_err());
    }

    #[tokio::test]
    async fn others_are_told() {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let one = Arc::new(Purges::new(Arc::default(), Some(Arc::clone(&store)), true));
        let order = order(json!({"tags": ["red"]}));
        assert_eq!(one.order(&order).await.unwrap(), Purged { forgotten: 0, is_told: true });
        let records = store.list(FOLDER).await.unwrap();
        assert_eq!(serde_json::from_slice::<PurgeOrder>(&records[0].value).unwrap(), order);
        for (store, may_write) in [(None, true), (Some(Arc::clone(&store)), false)] {
            let alone = Arc::new(Purges::new(Arc::default(), store, may_write));
            assert_eq!(alone.order(&order).await.unwrap(), Purged { forgotten: 0, is_told: false });
        }
        assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn unknown_zones_are_refused() {
        let purges = Arc::new(Purges::new(Arc::default(), None, true));
        let told = async |zone: &str| {
            let outcome = purges.order(&order(json!({"all": true, "zone": zone}))).await;
            outcome.map(|purged| purged.forgotten).map_err(|error| error.to_string())
        };
        assert_eq!(told("b").await, Err("no route uses the zone `b`; zones in use: none".to_owned()));
        for name in ["two", "", "one", "three"] {
            purges.zones.zone(name, 1 << 20, None);
        }
        assert_eq!(
            told("b").await,
            Err("no route uses the zone `b`; zones in use: one, three, two".to_owned())
        );
        // That of routes with a `cache` has no name.
        for known in ["one", "three", ""] {
            assert_eq!(told(known).await, Ok(0), "{known:?}");
        }
    }
}
