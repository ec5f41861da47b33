//! Process-wide parts of plugins, independent of requests.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::{Build, Node, Roster};

/// The process-wide part of a plugin, configured by its metadata; see [`crate::Descriptor::resident`].
pub trait Resident: Send + Sync {
    /// Prepares state for exchanges, before its metadata come into force. Called once, on the control thread, before
    /// [`Resident::begin`]. It must not block.
    fn prepare(&self, _node: &Arc<Node>) {}

    /// Starts it, after its metadata have come into force. It replaces the previous one, which gets no notification.
    /// Called once, on the control thread. It must not block.
    fn begin(&self, _node: &Arc<Node>) {}
}

/// The logs that the process writes itself; empty when it is about to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnLogs {
    /// The file of the access log.
    pub access: Option<PathBuf>,
    /// The file of the error log.
    pub error: Option<PathBuf>,
    /// The plugin that rotates them is enabled.
    pub rotated: bool,
}

/// The process-wide parts of the enabled plugins, for one generation of the configuration.
#[derive(Default)]
pub struct Residents(Vec<ResidentSlot>);

struct ResidentSlot {
    plugin: Box<str>,
    metadata: Option<Arc<Value>>,
    resident: Arc<dyn Resident>,
}

impl Residents {
    /// Makes the parts for a configuration with this metadata; unchanged ones are taken from `before`.
    ///
    /// # Errors
    /// Returns the plugins that reject their metadata, with the reasons.
    pub fn new(
        roster: &Roster,
        before: Option<&Residents>,
        metadata_of: &dyn Fn(&str) -> Option<Arc<Value>>,
        node: &Arc<Node>,
    ) -> Result<Residents, Vec<(String, String)>> {
        let (mut places, mut refused) = (Vec::new(), Vec::new());
        for kind in roster.kinds() {
            // Most kinds have no such part, and a start asks all of them.
            let Some(make) = kind.resident() else { continue };
            let (plugin, metadata) = (kind.name(), metadata_of(kind.name()));
            let known = before.and_then(|before| before.0.iter().find(|place| *place.plugin == *plugin));
            if let Some(same) = known.filter(|known| known.metadata == metadata) {
                let ResidentSlot { plugin, metadata, resident } = same;
                let (plugin, metadata, resident) = (plugin.clone(), metadata.clone(), Arc::clone(resident));
                places.push(ResidentSlot { plugin, metadata, resident });
                continue;
            }
            let filled = roster.filled_metadata(plugin, metadata.as_deref());
            let made = make(&Build::new(plugin, &Value::Null, "", &filled, node));
            match roster.check_metadata(plugin, metadata.as_deref()).and(made) {
                Ok(resident) => places.push(ResidentSlot { plugin: plugin.into(), metadata, resident }),
                Err(reason) => refused.push((plugin.to_owned(), reason)),
            }
        }
        if refused.is_empty() { Ok(Residents(places)) } else { Err(refused) }
    }

    /// Prepares the parts that `before` does not have, before the generation comes into force.
    pub fn prepare(&self, before: Option<&Residents>, node: &Arc<Node>) {
        self.beside(before).for_each(|resident| resident.prepare(node));
    }

    /// Starts the parts that `before` does not have, once the generation is in force.
    pub fn begin(&self, before: Option<&Residents>, node: &Arc<Node>) {
        self.beside(before).for_each(|resident| resident.begin(node));
    }

    fn beside(&self, before: Option<&Residents>) -> impl Iterator<Item = &Arc<dyn Resident>> {
        let is_known = move |place: &ResidentSlot| {
            let known = before.iter().flat_map(|before| &before.0);
            known.into_iter().any(|known| Arc::ptr_eq(&known.resident, &place.resident))
        };
        self.0.iter().filter(move |place| !is_known(place)).map(|place| &place.resident)
    }
}

impl std::fmt::Debug for Residents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|place| &place.plugin)).finish()
    }
}
