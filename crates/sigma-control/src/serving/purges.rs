//! Orders to forget what caches keep, for this gateway and for all others of its store.
//!
//! Who is ordered forgets at once, and writes the order beside the resources under a lease, where the others hear of
//! it. A gateway that was away from its store reads what was ordered meanwhile, and forgets everything if orders may
//! have gone unread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sigma_cache::{Purge, Zones};
use sigma_config::settings::Settings;
use sigma_config::store::{StoreAccess, StoreKind};
use sigma_plugin::cache::key_end;
use sigma_plugin::variables::host_name;

use crate::store::{Change, Event, Record, Store, StoreError, Transaction, Write};

/// Where orders are, among what gateways report.
const FOLDER: &str = "data_plane/purges/";

/// For how long an order can be read.
const TTL: Duration = Duration::from_secs(600);

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
    /// What was answered to requests for these.
    urls: Vec<String>,
    /// What was answered to requests for what begins so.
    prefixes: Vec<String>,
    /// What its node gave one of these names.
    tags: Vec<String>,
    /// What is kept under keys whose last parts have these values.
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
            return Err(format!("{name} has more than {ENTRIES_MAX} entries: send several orders"));
        }
        if !self.all && lists.iter().all(|(_, length)| *length == 0) {
            return Err(
                "nothing is named: give `urls`, `prefixes`, `tags`, `keys`, or `all`: true".to_owned()
            );
        }
        if self.tags.iter().any(|tag| tag.is_empty() || tag.contains([' ', '\t', ','])) {
            return Err("a tag is a word: these fields of nodes part tags by spaces and commas".to_owned());
        }
        if self.keys.iter().any(Vec::is_empty) {
            return Err("a key is the list of the values of its last parts, and has one at least".to_owned());
        }
        let each = |urls: &[String]| urls.iter().map(|url| resource(url)).collect::<Result<Vec<_>, _>>();
        Ok(Purge {
            zone: self.zone.as_deref().map(Box::from),
            all: self.all,
            resources: each(&self.urls)?.into_iter().collect(),
            prefixes: each(&self.prefixes)?,
            tags: self.tags.iter().map(|tag| tag.as_bytes().into()).collect(),
            keys: self.keys.iter().map(|values| key_end(values).into()).collect(),
        })
    }
}

/// A URL, with or without scheme and port, as answers know what they were asked for.
fn resource(url: &str) -> Result<Box<[u8]>, String> {
    let named = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or(url);
    let (authority, rest) = named.split_at(named.find('/').unwrap_or(named.len()));
    let host = host_name(authority.as_bytes());
    if host.is_empty() || rest.contains('#') || named.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err(format!("{url:?} is no URL: write host and path, such as shop.example/a?b=c"));
    }
    let rest = if rest.is_empty() { "/" } else { rest };
    Ok([&host, rest.as_bytes()].concat().into())
}

/// Why an order was not carried out everywhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurgeError {
    /// It means nothing.
    #[error("{0}")]
    Unclear(String),
    /// This gateway has forgotten; the others were not told.
    #[error("this gateway has forgotten it, the others could not be told: {0}; order it again")]
    Alone(#[from] StoreError),
}

/// What came of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purged {
    /// How many answers this gateway has forgotten.
    pub(crate) forgotten: usize,
    /// The other gateways of the store hear of it.
    pub(crate) is_told: bool,
}

/// Carries out orders.
pub(crate) struct Purges {
    zones: Arc<Zones>,
    /// What all gateways see; None if this one is alone.
    store: Option<Arc<dyn Store>>,
    /// This one may tell the others.
    may_write: bool,
    /// What the keys of this gateway's own orders begin with.
    own: String,
    /// Since when the store cannot be reached.
    lost: Mutex<Option<Instant>>,
}

impl Purges {
    /// Those of a gateway with these settings.
    pub(crate) fn of(settings: &Settings, zones: Arc<Zones>, store: Option<&Arc<dyn Store>>) -> Purges {
        let of_settings = settings.store.clone().unwrap_or_default();
        let shared = store.filter(|_| of_settings.kind == StoreKind::Etcd).cloned();
        Purges::new(zones, shared, of_settings.access == StoreAccess::ReadWrite)
    }

    fn new(zones: Arc<Zones>, store: Option<Arc<dyn Store>>, may_write: bool) -> Purges {
        let own = format!("{FOLDER}{:016x}-", fastrand::u64(..));
        Purges { zones, store, may_write, own, lost: Mutex::default() }
    }

    /// Carries out an order of this gateway's operators.
    ///
    /// # Errors
    /// Returns an error if the order is none, or if the other gateways could not be told.
    pub(crate) async fn order(&self, order: &PurgeOrder) -> Result<Purged, PurgeError> {
        let forgotten = self.zones.purge(&order.meant().map_err(PurgeError::Unclear)?);
        let Some(store) = self.store.as_ref().filter(|_| self.may_write) else {
            return Ok(Purged { forgotten, is_told: false });
        };
        let value = serde_json::to_vec(order).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let key = format!("{}{:016x}", self.own, fastrand::u64(..));
        let writes = vec![Write::Put { key, value: value.into(), ttl: Some(TTL) }];
        store.commit(Transaction { conditions: Vec::new(), writes }).await?;
        Ok(Purged { forgotten, is_told: true })
    }

    /// The store tells something.
    pub(crate) fn hear(self: &Arc<Self>, event: &Event) {
        match event {
            Event::Changed { changes, .. } => {
                for change in changes {
                    if let Change::Put(record) = change {
                        self.carry_out(record);
                    }
                }
            }
            Event::Reloaded(contents) => {
                self.is_back();
                contents.records.iter().for_each(|record| self.carry_out(record));
            }
            Event::Lost(_) => {
                self.lost().get_or_insert_with(Instant::now);
            }
            Event::Regained { .. } => {
                self.is_back();
                tokio::spawn(Arc::clone(self).catch_up());
            }
        }
    }

    /// Carries out what was ordered while the store could not be reached. If it cannot be read, nothing is sure.
    async fn catch_up(self: Arc<Self>) {
        let Some(store) = &self.store else { return };
        match store.list(FOLDER).await {
            Ok(records) => records.iter().for_each(|record| self.carry_out(record)),
            Err(_) => drop(self.zones.purge(&Purge::everything())),
        }
    }

    /// Orders that nobody could read have gone with their leases.
    fn is_back(&self) {
        if self.lost().take().is_some_and(|lost| lost.elapsed() >= TTL) {
            tracing::info!("the store was away for long: all caches begin anew");
            self.zones.purge(&Purge::everything());
        }
    }

    /// What cannot be read may mean anything, so everything goes.
    fn carry_out(&self, record: &Record) {
        if !record.key.starts_with(FOLDER) || record.key.starts_with(&self.own) {
            return;
        }
        let order = serde_json::from_slice::<PurgeOrder>(&record.value).map_err(|error| error.to_string());
        let purge = order.and_then(|order| order.meant()).unwrap_or_else(|error| {
            tracing::warn!(
                key = record.key,
                error,
                "an order to purge cannot be read: all caches begin anew"
            );
            Purge::everything()
        });
        self.zones.purge(&purge);
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
            "urls": ["https://Shop.Example:8443/a?b=c", "shop.example"],
            "prefixes": ["shop.example/a"], "tags": ["red"], "keys": [["h", "/a"]], "zone": "z",
        }))
        .meant()
        .unwrap();
        let resources = [&b"shop.example/a?b=c"[..], b"shop.example/"].map(Box::from);
        assert_eq!(meant.resources, resources.into());
        assert_eq!((&meant.prefixes[..], meant.all), (&[b"shop.example/a"[..].into()][..], false));
        assert_eq!(*meant.keys[0], *b"h\x01\0\0\0\0\0\0\0/a\x02\0\0\0\0\0\0\0");
        let refused = |value| order(value).meant().unwrap_err();
        assert!(refused(json!({})).starts_with("nothing is named"));
        assert!(refused(json!({"zone": "z"})).starts_with("nothing is named"));
        for url in ["", "/a", "http:///a", "shop.example/a b", "shop.example/a#b", ":80/a"] {
            assert!(refused(json!({"urls": [url]})).contains("is no URL"), "{url}");
            assert!(refused(json!({"prefixes": [url]})).contains("is no URL"), "{url}");
        }
        assert!(refused(json!({"tags": ["a,b"]})).starts_with("a tag is a word"));
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
            let alone = Purges::new(Arc::default(), store, may_write);
            assert_eq!(alone.order(&order).await.unwrap(), Purged { forgotten: 0, is_told: false });
        }
        assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
    }
}
