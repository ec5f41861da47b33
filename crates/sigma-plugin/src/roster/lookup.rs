//! Other resources, for a plugin that is being made.

use std::sync::Arc;

use serde_json::Value;
use sigma_config::id::Id;
use sigma_config::resources::Proto;

/// Finds what other resources say for a plugin that is being made.
pub trait Lookup {
    /// The metadata of a plugin, as they were written.
    fn metadata(&self, plugin: &str) -> Option<Arc<Value>>;

    /// A Protocol Buffers definition.
    fn proto(&self, _id: &Id) -> Option<Arc<Proto>> {
        None
    }

    /// The configuration of a plugin of a resource, as it was written.
    fn written(&self, _resource: &str, _plugin: &str) -> Option<Arc<Value>> {
        None
    }
}

/// Where there are metadata alone.
impl<F: Fn(&str) -> Option<Arc<Value>>> Lookup for F {
    fn metadata(&self, plugin: &str) -> Option<Arc<Value>> {
        self(plugin)
    }
}
