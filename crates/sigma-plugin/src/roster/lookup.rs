//! Other resources, for a plugin under construction.

use std::sync::Arc;

use serde_json::Value;
use sigma_schema::id::Id;

use crate::Resource;

/// Looks up other resources for a plugin under construction.
pub trait Lookup {
    /// Returns the metadata of a plugin, as they were written.
    fn metadata(&self, plugin: &str) -> Option<Arc<Value>>;

    /// Returns a Protocol Buffers definition.
    fn proto(&self, _id: &Id) -> Option<Resource> {
        None
    }

    /// Returns the configuration of a plugin of a resource, as it was written.
    fn written(&self, _resource: &str, _plugin: &str) -> Option<Arc<Value>> {
        None
    }
}

/// A lookup with metadata alone.
impl<F: Fn(&str) -> Option<Arc<Value>>> Lookup for F {
    fn metadata(&self, plugin: &str) -> Option<Arc<Value>> {
        self(plugin)
    }
}
