//! The gateways on one store: the record of each, and the list of them all.
//!
//! Each writes a record under a lease, next to the resources. It writes again when it serves a change of
//! resources, and otherwise only keeps its lease alive: records move the store's revision, so a record that
//! followed that would follow itself. No gateway keeps a table of the others; a list is read from the store.

mod name;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigma_config::settings::Settings;
use sigma_config::store::{StoreAccess, StoreKind};
use sigma_observe::counters::WorkerCounters;
use sigma_plugin::system::{Host, System};
use tokio::task::JoinHandle;

use crate::serving::clock::unix_seconds;
use crate::serving::publisher::Publisher;
use crate::store::report::{Report, take_back};
use crate::store::{REPORTS, Store};

/// How often a gateway looks whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);

/// A list that is on its way.
pub(crate) type Listing = Pin<Box<dyn Future<Output = Value> + Send>>;

/// The record of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) hostname: String,
    pub(crate) version: String,
    /// Since when it serves, in seconds since 1970; the process before an upgrade counts.
    pub(crate) boot_time: i64,
    /// Where it accepts connections, as its file says.
    pub(crate) listeners: Vec<String>,
    /// All its workers serve this revision, or a later one without another change of resources.
    pub(crate) revision: u64,
    /// How many objects of the store it does not serve as they stand there.
    pub(crate) quarantined: usize,
}

/// This gateway among the others.
pub(crate) struct Members {
    id: Arc<str>,
    hostname: String,
    boot_time: i64,
    publisher: Arc<Publisher>,
    counters: Vec<Arc<WorkerCounters>>,
    /// The store that all gateways share; None if this one is alone.
    store: Option<Arc<dyn Store>>,
    /// For how long its word holds; None if it says nothing.
    ttl: Option<Duration>,
    /// The same of the record that APISIX's plugin server-info writes.
    server_info_ttl: Option<Duration>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl Members {
    /// Applies the settings. Reads or makes the file with the id.
    pub(crate) fn new(
        settings: &Settings,
        store: Option<&Arc<dyn Store>>,
        hostname: &str,
        publisher: &Arc<Publisher>,
        counters: &[Arc<WorkerCounters>],
    ) -> Members {
        let of_settings = settings.store.clone().unwrap_or_default();
        let id = settings.members.id.clone();
        let id = id.unwrap_or_else(|| name::settled(store.map(|_| &*of_settings.path)));
        let is_shared = of_settings.kind == StoreKind::Etcd;
        let may_write = is_shared && of_settings.access == StoreAccess::ReadWrite;
        let seconds = |seconds: u64| Duration::from_secs(seconds);
        let ttl =
            (may_write && settings.members.reports()).then(|| seconds(settings.members.ttl_seconds().into()));
        let server_info = settings.plugins.iter().flatten().any(|plugin| plugin.name == SERVER_INFO);
        Members {
            id: id.into(),
            hostname: hostname.to_owned(),
            boot_time: unix_seconds() - i64::try_from(Host.uptime().as_secs()).unwrap_or_default(),
            publisher: Arc::clone(publisher),
            counters: counters.to_vec(),
            store: store.filter(|_| is_shared).cloned(),
            ttl,
            server_info_ttl: (may_write && server_info).then(|| seconds(report_ttl(settings))),
            telling: Mutex::default(),
        }
    }

    /// Returns the id of this gateway.
    pub(crate) fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn own(&self) -> Member {
        let (revision, quarantined, listeners) = self.serves();
        Member {
            id: self.id.to_string(),
            hostname: self.hostname.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_time: self.boot_time,
            listeners,
            revision,
            quarantined,
        }
    }

    /// The revision that all workers serve, how much of the store they do not, and where they listen.
    fn serves(&self) -> (u64, usize, Vec<String>) {
        let state = self.publisher.state();
        let workers = self.counters.iter().map(|counters| counters.revision());
        let revision = workers.min().unwrap_or(state.published);
        let listeners = state.snapshot.iter().flat_map(|snapshot| &snapshot.settings.listeners);
        let listeners = listeners.map(|listener| listener.address.to_string()).collect();
        (revision, state.desired.quarantine().count(), listeners)
    }

    /// Begins to tell the others, until [`Members::leave`]. Within a runtime.
    pub(crate) fn begin(self: &Arc<Members>) {
        let Some(store) = &self.store else { return };
        let report =
            |folder: &str, ttl: Duration| Report::new(Arc::clone(store), format!("{folder}{}", self.id), ttl);
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ttl) = self.ttl {
            telling.push(tokio::spawn(Arc::clone(self).tell(report(&folder(), ttl))));
        }
        if let Some(ttl) = self.server_info_ttl {
            tracing::warn!("The server-info plugin is deprecated and will be removed in a future release.");
            telling.push(tokio::spawn(
                Arc::clone(self).tell_server_info(report(&server_info_folder(), ttl), ttl),
            ));
        }
    }

    async fn tell(self: Arc<Members>, mut report: Report) {
        let mut told: Option<Member> = None;
        loop {
            let (own, read_at) = (self.own(), self.publisher.state().desired.read_at());
            // A change that is not in force yet is written later. A revision that moved without a change of
            // resources is not written.
            let is_news = told.as_ref().is_none_or(|told| {
                let serves_change = own.revision >= read_at && told.revision < read_at;
                serves_change || Member { revision: told.revision, ..own.clone() } != *told
            });
            if is_news || report.is_due() {
                let own = told.take().filter(|_| !is_news).unwrap_or(own);
                let text = serde_json::to_vec(&own).unwrap_or_default();
                match report.tell(text).await {
                    Ok(()) => told = Some(own),
                    Err(error) => {
                        tracing::warn!(%error, "cannot register this gateway in the store; check `members`")
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn tell_server_info(self: Arc<Members>, mut report: Report, ttl: Duration) {
        loop {
            let text = self.server_info().await.to_string().into_bytes();
            if let Err(error) = report.tell(text).await {
                tracing::warn!(%error, "server-info: cannot report to etcd");
            }
            tokio::time::sleep(ttl / 2).await;
        }
    }

    /// Says nothing any more: a successor of the same id does. True if there was something to say.
    pub(crate) fn fall_silent(&self) -> bool {
        let telling = std::mem::take(&mut *self.telling.lock().unwrap_or_else(PoisonError::into_inner));
        telling.iter().for_each(JoinHandle::abort);
        !telling.is_empty()
    }

    /// Removes this gateway's record, as it ends.
    pub(crate) async fn leave(&self) {
        let has_told = self.fall_silent();
        let Some(store) = self.store.as_ref().filter(|_| has_told) else { return };
        for folder in [folder(), server_info_folder()] {
            take_back(store, &format!("{folder}{}", self.id), LOOK).await;
        }
    }

    /// Returns all gateways of the store, by their ids; this one is among them, with or without a record.
    pub(crate) fn list(&self) -> impl Future<Output = Value> + Send + use<> {
        let (own, changed, store) =
            (self.own(), self.publisher.state().desired.changed(), self.store.clone());
        async move {
            let (mut members, mut problem) = (Vec::new(), None);
            if let Some(store) = store {
                match store.list(&folder()).await {
                    Ok(records) => {
                        members.extend(records.iter().map(|record| read(&record.key, &record.value)))
                    }
                    Err(error) => problem = Some(format!("cannot list the other gateways: {error}")),
                }
            }
            // Its record may be a second old.
            members.retain(|member| member["id"] != *own.id);
            let mut this = shown(&own, changed);
            this["this"] = true.into();
            members.iter_mut().for_each(|member| judge(member, changed));
            members.push(this);
            members.sort_by(|a, b| a["id"].as_str().cmp(&b["id"].as_str()));
            json!({ "members": members, "changed": changed, "problem": problem })
        }
    }

    /// Returns the data of the plugin server-info.
    pub(crate) fn server_info(&self) -> impl Future<Output = Value> + Send + use<> {
        let (store, id) = (self.store.clone(), Arc::clone(&self.id));
        let (hostname, boot_time) = (self.hostname.clone(), self.boot_time);
        async move {
            let asked = match &store {
                Some(store) => store.version().await.ok().flatten(),
                None => None,
            };
            json!({
                "etcd_version": asked.as_deref().unwrap_or("unknown"),
                "hostname": hostname,
                "id": &*id,
                "version": env!("CARGO_PKG_VERSION"),
                "boot_time": boot_time,
            })
        }
    }
}

/// The plugin that has the record of APISIX's written.
const SERVER_INFO: &str = "server-info";

fn folder() -> String {
    format!("{REPORTS}members/")
}

fn server_info_folder() -> String {
    format!("{REPORTS}server_info/")
}

/// `plugin_attr.server-info.report_ttl`, whose schema the check has held it to.
fn report_ttl(settings: &Settings) -> u64 {
    let told = settings.plugin_attr.get(SERVER_INFO).and_then(|told| told.get("report_ttl")?.as_u64());
    told.unwrap_or(60).clamp(3, 86_400)
}

/// Reads the record of another gateway, which may have another version and another form.
fn read(key: &str, value: &[u8]) -> Value {
    let id = key.strip_prefix(&folder()).unwrap_or(key);
    let member: Result<Member, _> = serde_json::from_slice(value);
    match member {
        Ok(member) => shown(&Member { id: id.to_owned(), ..member }, 0),
        Err(error) => {
            json!({ "id": id, "problem": format!("cannot read its record in the store: {error}") })
        }
    }
}

fn shown(member: &Member, changed: u64) -> Value {
    // The type has no map with keys that are no strings.
    let mut shown = serde_json::to_value(member).unwrap_or_default();
    judge(&mut shown, changed);
    shown
}

/// Says of a gateway whether it is behind a change that this one knows.
fn judge(member: &mut Value, changed: u64) {
    if let Some(revision) = member["revision"].as_u64() {
        member["behind"] = (revision < changed).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_others_are_read_or_reported() {
        let own = Member {
            id: "a".into(),
            hostname: "h".into(),
            version: "1".into(),
            boot_time: 5,
            listeners: vec!["127.0.0.1:80".into()],
            revision: 7,
            quarantined: 0,
        };
        let text = serde_json::to_vec(&own).unwrap();
        let mut other = read("data_plane/members/b", &text);
        // Each gateway reports itself only.
        assert_eq!((&other["id"], &other["revision"]), (&json!("b"), &json!(7)));
        for (changed, behind) in [(6, false), (7, false), (8, true)] {
            judge(&mut other, changed);
            assert_eq!(other["behind"], behind, "{changed}");
        }
        let mut odd = read("data_plane/members/c", b"[]");
        judge(&mut odd, 8);
        assert!(odd["problem"].is_string() && odd.get("behind").is_none(), "{odd}");
    }

    #[test]
    fn the_time_of_server_info_is_what_its_schema_allows() {
        let check = |attribute: Value, expected: u64| {
            let plugin_attr = serde_json::Map::from_iter([(SERVER_INFO.to_owned(), attribute)]);
            assert_eq!(report_ttl(&Settings { plugin_attr, ..Settings::default() }), expected);
        };
        check(json!({}), 60);
        check(json!({"report_ttl": 5}), 5);
    }
}
