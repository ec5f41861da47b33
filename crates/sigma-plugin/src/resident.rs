//! What plugins do for the process as a whole, beside all requests.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::{Build, Node, Roster};

/// What a plugin does for the process as a whole, as its metadata say; see [`crate::Descriptor::resident`].
pub trait Resident: Send + Sync {
    /// The metadata that it was made of are about to be in force: what exchanges go by has to be in its place before the
    /// first of them begins. Called once, on the control thread, before [`Resident::begin`]. Must not block.
    fn prepare(&self, _node: &Arc<Node>) {}

    /// The metadata that it was made of are in force: it takes the place of the one before it, which is told nothing.
    /// Called once, on the control thread. Must not block.
    fn begin(&self, _node: &Arc<Node>) {}
}

/// The logs that the process writes itself; none, when it is about to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnLogs {
    /// The file of the access log.
    pub access: Option<PathBuf>,
    /// The file of the error log.
    pub error: Option<PathBuf>,
    /// The plugin that rotates them is named among those that are enabled.
    pub rotated: bool,
}

/// What the enabled plugins do for the process in one generation of its configuration.
#[derive(Default)]
pub struct Residents(Vec<Place>);

struct Place {
    plugin: Box<str>,
    metadata: Option<Arc<Value>>,
    resident: Arc<dyn Resident>,
}

impl Residents {
    /// Those of a configuration with this metadata; what is as it was `before` is taken over.
    ///
    /// # Errors
    /// Returns the plugins that refuse their metadata, and why.
    pub fn new(
        roster: &Roster,
        before: Option<&Residents>,
        metadata_of: &dyn Fn(&str) -> Option<Arc<Value>>,
        node: &Arc<Node>,
    ) -> Result<Residents, Vec<(String, String)>> {
        let (mut places, mut refused) = (Vec::new(), Vec::new());
        for kind in roster.kinds() {
            // Most do nothing for the process, and a start waits until they are all asked.
            let Some(make) = kind.resident() else { continue };
            let (plugin, metadata) = (kind.name(), metadata_of(kind.name()));
            let known = before.and_then(|before| before.0.iter().find(|place| *place.plugin == *plugin));
            if let Some(same) = known.filter(|known| known.metadata == metadata) {
                let Place { plugin, metadata, resident } = same;
                let (plugin, metadata, resident) = (plugin.clone(), metadata.clone(), Arc::clone(resident));
                places.push(Place { plugin, metadata, resident });
                continue;
            }
            let filled = roster.filled_metadata(plugin, metadata.as_deref());
            let made = make(&Build::new(plugin, &Value::Null, "", &filled, node));
            match roster.check_metadata(plugin, metadata.as_deref()).and(made) {
                Ok(resident) => places.push(Place { plugin: plugin.into(), metadata, resident }),
                Err(reason) => refused.push((plugin.to_owned(), reason)),
            }
        }
        if refused.is_empty() { Ok(Residents(places)) } else { Err(refused) }
    }

    /// The generation is about to be in force: those prepare for it that the one `before` did not have.
    pub fn prepare(&self, before: Option<&Residents>, node: &Arc<Node>) {
        self.beside(before).for_each(|resident| resident.prepare(node));
    }

    /// The generation is in force: those begin that the one `before` did not have.
    pub fn begin(&self, before: Option<&Residents>, node: &Arc<Node>) {
        self.beside(before).for_each(|resident| resident.begin(node));
    }

    fn beside(&self, before: Option<&Residents>) -> impl Iterator<Item = &Arc<dyn Resident>> {
        let is_known = move |place: &Place| {
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
