//! Memory that plugins take for bodies: bounded for all bodies of a worker together, since clients choose their
//! number. It is a part of the worker's budget (`limits.held_bytes_per_worker`), which bounds it as well.

use std::cell::Cell;
use std::rc::Rc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_buffer::held;
use sigma_plugin::Build;

/// The `plugin_attr` of a plugin that takes memory for bodies.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Budget {
    /// Maximum bytes of all bodies in one worker.
    worker_bytes: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { worker_bytes: 256 << 20 }
    }
}

impl Budget {
    /// Reads the budget of the plugin that is being built.
    ///
    /// # Errors
    /// Returns an error if a value is not a number of bytes.
    pub fn of(build: &Build<'_>) -> Result<Budget, String> {
        let told = Option::<Budget>::deserialize(build.node.attribute(build.plugin));
        let wrong = |_| format!("plugin_attr.{}.worker_bytes is not a number of bytes", build.plugin);
        Ok(told.map_err(wrong)?.unwrap_or_default())
    }

    /// Returns an empty share.
    pub fn share(self, held: Rc<WorkerBytes>) -> Share {
        Share { held, limit: self.worker_bytes, bytes: held::CountedBytes::default() }
    }
}

/// Bytes that are taken now; a part of the worker.
#[derive(Debug, Default)]
pub struct WorkerBytes(Cell<usize>);

/// A share of [`WorkerBytes`], given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    held: Rc<WorkerBytes>,
    /// Bytes that all shares may have together.
    limit: usize,
    /// The bytes of this share, in the worker's budget.
    bytes: held::CountedBytes,
}

impl Share {
    /// Returns the bytes that may be taken in addition.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.held.0.get()).min(held::body_room())
    }

    /// Takes more bytes.
    pub fn grow(&mut self, bytes: usize) {
        self.held.0.set(self.held.0.get() + bytes);
        self.bytes.set(self.bytes.bytes() + bytes);
    }

    /// Gives some of its bytes back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes.bytes());
        self.held.0.set(self.held.0.get() - bytes);
        self.bytes.set(self.bytes.bytes() - bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.0.set(self.held.0.get() - self.bytes.bytes());
    }
}

impl Share {
    /// Returns an empty share of `held`, where all shares together may have `limit` bytes.
    #[must_use]
    pub fn within(limit: usize, held: &Rc<WorkerBytes>) -> Share {
        Budget { worker_bytes: limit }.share(Rc::clone(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let held = Rc::new(WorkerBytes::default());
        let mut first = Share::within(10, &held);
        first.grow(6);
        first.grow(2);
        first.shrink(2);
        assert_eq!(Share::within(10, &held).room(), 4);
        assert_eq!(Share::within(5, &held).room(), 0);
        drop(first);
        assert_eq!(Share::within(10, &held).room(), 10);
    }
}
