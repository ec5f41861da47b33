//! Names that clients send as digests (RFC 7616 §3.4.4), so that who listens learns none.

use std::cell::RefCell;
use std::collections::HashMap;

use sigma_plugin::Env;

use super::Consumer;
use super::credentials::Hash;
use sigma_plugin_kit::clock::process_ms;

/// Milliseconds until the digests of all names are computed again for an unknown one: made-up digests must
/// not keep a worker busy.
const PAUSE_MS: u64 = 5_000;

/// The digests of a worker's consumers, by realm and function.
#[derive(Default)]
pub(super) struct HashedNames(RefCell<HashMap<(Box<str>, Hash), Table>>);

#[derive(Default)]
struct Table {
    made_ms: Option<u64>,
    names: HashMap<Vec<u8>, Box<str>>,
}

impl HashedNames {
    /// The name with this digest; None if the name does not exist, or only since a few seconds.
    pub(super) fn find(&self, digest: &[u8], realm: &str, hash: Hash, env: &Env<'_>) -> Option<Box<str>> {
        let mut tables = self.0.borrow_mut();
        let table = tables.entry((realm.into(), hash)).or_default();
        let digest = digest.to_ascii_lowercase();
        if let Some(name) = table.names.get(&digest) {
            return Some(name.clone());
        }
        let now_ms = process_ms();
        if table.made_ms.is_some_and(|made_ms| now_ms.saturating_sub(made_ms) < PAUSE_MS) {
            return None;
        }
        table.made_ms = Some(now_ms);
        let consumers = env.consumers.all("digest-auth").filter_map(|identity| identity.data::<Consumer>());
        let names = consumers.map(|consumer| &consumer.username);
        let named = |name: &String| (hash.of(&[name.as_bytes(), realm.as_bytes()]), name.as_str().into());
        table.names = names.map(named).collect();
        table.names.get(&digest).cloned()
    }
}
