//! Resources of the configuration, as a plugin gets them.
//!
//! The contract does not depend on the types of resources. It passes them on, and a plugin that looks at one names its
//! type.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A type of resources. All types that can be compared and shared are.
pub trait AnyResource: Any + fmt::Debug + Send + Sync {
    /// Whether `other` has the same type and the same value.
    fn equals(&self, other: &dyn AnyResource) -> bool;
}

impl<T: Any + fmt::Debug + PartialEq + Send + Sync> AnyResource for T {
    fn equals(&self, other: &dyn AnyResource) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A resource as it was written, shared with the configuration.
#[derive(Debug, Clone)]
pub struct Resource(Arc<dyn AnyResource>);

impl Resource {
    /// Wraps a resource. Nothing is copied.
    pub fn new<T: AnyResource>(resource: Arc<T>) -> Resource {
        Resource(resource)
    }

    /// The resource; None if it has another type.
    pub fn get<T: AnyResource>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }

    /// The shared resource; None if it has another type.
    pub fn share<T: AnyResource>(&self) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = self.0.clone();
        any.downcast().ok()
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.equals(&*other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_keep_their_type_and_value() {
        let shared = Arc::new(String::from("a"));
        let resource = Resource::new(Arc::clone(&shared));
        assert_eq!(resource.get::<String>(), Some(&*shared));
        assert_eq!(resource.get::<u8>(), None);
        assert!(resource.share::<String>().is_some_and(|same| Arc::ptr_eq(&same, &shared)));
        assert!(resource.share::<u8>().is_none());
        assert_eq!(resource, Resource::new(Arc::new(String::from("a"))));
        assert_ne!(resource, Resource::new(Arc::new(String::from("b"))));
        assert_ne!(resource, Resource::new(Arc::new(1_u8)));
    }
}
