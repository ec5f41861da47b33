//! Entries of the history: its beginning, and the content of a file in the terms of a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value;
use sigma_config::Config;
use sigma_config::crypt::Keyring;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::store::StoreKind;
use sigma_schema::plugins::PluginSchemas;

use crate::serving::source::Source;
use crate::store::history::{Author, By, History, HistoryLocation, Limits, SETTINGS};
use crate::store::{Contents, Store};

/// The file next to the store.
const FILE_NAME: &str = "history.redb";
/// A file with more routes, upstreams and consumers has no history in memory: it would hold all of them once more.
const IN_MEMORY_OBJECTS: usize = 10_000;
/// Periods between two looks whether something was missed, which may have everything read again.
pub(super) const LOOK_PERIODS: u32 = 15;

/// The cause of a reload of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The process has started.
    Start,
    /// SIGHUP.
    Signal,
    /// The file changed.
    Watch,
    /// A call of an operator.
    Call,
    /// A followed document changed.
    Followed,
}

impl Trigger {
    fn name(self) -> &'static str {
        match self {
            Trigger::Start => "start",
            Trigger::Signal => "SIGHUP",
            Trigger::Watch => "watch",
            Trigger::Call => "call",
            Trigger::Followed => "followed document",
        }
    }
}

/// The history of this process, and the state to write it.
pub(super) struct ProcessHistory {
    pub(super) history: Arc<History>,
    keyring: Keyring,
    plugins: Arc<dyn PluginSchemas>,
    /// Periods until it is looked whether something was missed.
    pub(super) until_look: u32,
}

impl ProcessHistory {
    /// Begins the history that the settings ask for. `store` is the resources' store, if they are in one.
    pub(super) fn begin(
        config: &Config,
        store: Option<&Arc<dyn Store>>,
        keyring: &Keyring,
        plugins: Arc<dyn PluginSchemas>,
    ) -> Option<ProcessHistory> {
        let Config { settings, resources, .. } = config;
        if settings.history.keep == 0 {
            return None;
        }
        let stored = store.map(|_| settings.store.clone().unwrap_or_default());
        let folder =
            settings.history.path.clone().or_else(|| stored.as_ref().map(|store| store.path.clone()));
        let objects = resources.routes.len() + resources.upstreams.len() + resources.consumers.len();
        if folder.is_none() && objects > IN_MEMORY_OBJECTS {
            tracing::warn!(
                objects,
                "the file is too large for the history in the store; set a folder in `history.path`"
            );
            return None;
        }
        let (subject, others) = match &stored {
            None => ("file".to_owned(), By::File),
            Some(store) if store.kind == StoreKind::Etcd => (format!("etcd {}", store.prefix), By::Etcd),
            Some(_) => ("embedded".to_owned(), By::Expiry),
        };
        let place = HistoryLocation { file: folder.map(|folder| folder.join(FILE_NAME)), subject, others };
        match History::begin(place, Limits::from(&settings.history)) {
            Ok(history) => Some(ProcessHistory {
                history: Arc::new(history),
                keyring: keyring.clone(),
                plugins,
                until_look: LOOK_PERIODS,
            }),
            Err(error) => {
                tracing::error!(%error, "no history is recorded: cannot start its thread");
                None
            }
        }
    }

    /// Records the resources that were loaded from the store. A copy may be older than the known revision.
    pub(super) fn loaded(&self, store: &dyn Store, contents: &Contents) {
        if store.status().copied.is_none() {
            self.history.found(contents);
        }
    }

    /// Records the content of a file that is in force now.
    pub(super) fn file(&self, source: &Source, trigger: Trigger, config: &Config, is_stored: bool) {
        self.history.file(author(source, trigger), self.values(config, is_stored));
    }

    /// Records that the file was refused.
    pub(super) fn refused(&self, source: &Source, trigger: Trigger, reason: &str) {
        self.history.refused(author(source, trigger), reason);
    }

    /// The resources as a store would have them, and of each setting a hash: their secrets are not known by name.
    fn values(&self, config: &Config, is_stored: bool) -> BTreeMap<String, Vec<u8>> {
        let mut values = BTreeMap::new();
        let settings = serde_json::to_value(&config.settings).unwrap_or_default();
        for (name, value) in settings.as_object().into_iter().flatten() {
            let hash = digest(&SHA256, value.to_string().as_bytes());
            values.insert(format!("{SETTINGS}{name}"), hash.as_ref().to_vec());
        }
        if is_stored {
            return values;
        }
        let resources = serde_json::to_value(&config.resources).unwrap_or_default();
        for kind in Kind::ALL {
            let items =
                resources.get(kind.section()).and_then(Value::as_array).filter(|_| kind != Kind::Credential);
            for item in items.into_iter().flatten() {
                let id = item.get("id").or_else(|| item.get("username")).and_then(Value::as_str);
                let id = id.unwrap_or_default();
                let kind = if id.contains("/credentials/") { Kind::Credential } else { kind };
                let mut value = item.clone();
                self.keyring.encrypt_resource(kind, &mut value, &*self.plugins);
                values.insert(ResourceKey::new(kind, id).to_string(), value.to_string().into_bytes());
            }
        }
        values
    }
}

fn author(source: &Source, trigger: Trigger) -> Author {
    Author {
        file: Some(source.path.display().to_string()),
        trigger: Some(trigger.name().to_owned()),
        ..Author::of(By::File)
    }
}
