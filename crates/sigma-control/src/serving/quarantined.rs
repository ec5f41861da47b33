//! Objects of the store that are not served as they are there.

use std::time::SystemTime;

use sigma_config::kind::ResourceKey;

/// An object of the store that is not served as it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its key, such as `routes/1`.
    pub key: ResourceKey,
    /// Its problem.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// The store's revision in which it was written.
    pub revision: u64,
    /// The form that is served instead.
    pub standing: Standing,
}

/// The replacement of an object that cannot be served as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The form before it.
    LastGood,
    /// 503, or no handshake for the names of an ssl. That is so without an earlier form, and where the
    /// earlier form lets requests pass that the new one guards.
    Closed,
    /// Nothing: its requests are unknown, or it serves none by itself. The former state stays in force.
    LeftOut,
}

impl Standing {
    /// Its word in answers and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Standing::LastGood => "last_good",
            Standing::Closed => "closed",
            Standing::LeftOut => "left_out",
        }
    }
}
