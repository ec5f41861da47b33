//! Plugins nested in the configurations of others.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::Value;
use sigma_schema::id::Id;

use super::{Lookup, Roster};
use crate::descriptor::Family;
use crate::{Entry, Kind, Node, Resource};

/// Makes the nested plugins of a plugin under construction.
pub(super) struct Children<'b> {
    pub(super) roster: &'b Roster,
    pub(super) lookup: &'b dyn Lookup,
    pub(super) made: RefCell<Vec<Arc<Entry>>>,
    /// The requested definitions.
    pub(super) protos: RefCell<Vec<(Id, Option<Resource>)>>,
}

impl Family for Children<'_> {
    fn child(
        &self,
        name: &str,
        conf: &Value,
        resource: &str,
        node: &Arc<Node>,
    ) -> Result<Arc<Entry>, String> {
        let written = Arc::new(conf.clone());
        let entry = self.roster.build(name, &written, conf.clone(), resource, self.lookup, node)?;
        let entry = Arc::new(entry);
        self.made.borrow_mut().push(Arc::clone(&entry));
        Ok(entry)
    }

    fn kinds(&self) -> Vec<Arc<dyn Kind>> {
        self.roster.kinds().cloned().collect()
    }

    fn proto(&self, id: &Id) -> Option<Resource> {
        let proto = self.lookup.proto(id);
        self.protos.borrow_mut().push((id.clone(), proto.clone()));
        proto
    }

    fn written(&self, resource: &str, plugin: &str) -> Option<Arc<Value>> {
        self.lookup.written(resource, plugin)
    }
}
