//! Memory that plugins take for bodies: bounded for all bodies of a worker together, since their number
//! is the clients' to choose.

use std::cell::Cell;
use std::rc::Rc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::Build;

/// What `plugin_attr` may tell a plugin that has a budget.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Attributes {
    /// Bytes that bodies may take in one worker.
    worker_bytes: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { worker_bytes: 256 << 20 }
    }
}

/// What it tells this plugin.
///
/// # Errors
/// Returns an error if it is no number of bytes.
pub(super) fn worker_bytes(build: &Build<'_>, plugin: &str) -> Result<usize, String> {
    let told = Option::<Attributes>::deserialize(build.node.attribute(plugin));
    let told = told.map_err(|_| format!("plugin_attr.{plugin}.worker_bytes is no number of bytes"))?;
    Ok(told.unwrap_or_default().worker_bytes)
}

/// Bytes that are taken now; a part of the worker.
#[derive(Debug, Default)]
pub(super) struct Held(Cell<usize>);

/// A share of [`Held`], given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    held: Rc<Held>,
    bytes: usize,
}

impl Share {
    /// One without a byte.
    pub(super) fn new(held: Rc<Held>) -> Share {
        Share { held, bytes: 0 }
    }

    /// One of so many bytes; None if that is over what is left of `limit`.
    pub(super) fn of(held: Rc<Held>, bytes: usize, limit: usize) -> Option<Share> {
        let mut share = Share::new(held);
        (bytes <= share.room(limit)).then(|| {
            share.grow(bytes);
            share
        })
    }

    /// Bytes that may be taken on top.
    pub(super) fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.held.0.get())
    }

    /// Takes bytes on top.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.held.0.set(self.held.0.get() + bytes);
        self.bytes += bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.0.set(self.held.0.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let held = Rc::new(Held::default());
        let share = |bytes| Share::of(Rc::clone(&held), bytes, 10);
        let first = share(6).unwrap();
        assert!(share(5).is_none() && share(4).is_some());
        drop(first);
        assert!(share(10).is_some());
    }
}
