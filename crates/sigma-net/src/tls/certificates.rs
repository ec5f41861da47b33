//! Which identity a client sees for the name it asks for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::ServerIdentity;

/// Names and their identities. Immutable; identities that did not change are shared with the
/// table before it, so that a new table costs one pass over the names.
#[derive(Debug, Default)]
pub struct Certificates {
    exact: HashMap<Box<str>, Arc<ServerIdentity>>,
    /// By what follows `*.`.
    wildcard: HashMap<Box<str>, Arc<ServerIdentity>>,
    any: Option<Arc<ServerIdentity>>,
    fallback: Option<Box<str>>,
}

impl Certificates {
    /// A table of `entries`: a name, `*.` and a name, or `*`. If two have the same name the first
    /// counts. `fallback` is the name that a client which gives none is taken to ask for.
    pub fn new<'n>(
        entries: impl IntoIterator<Item = (&'n str, Arc<ServerIdentity>)>,
        fallback: Option<&str>,
    ) -> Certificates {
        let mut table =
            Certificates { fallback: fallback.map(|name| normal(name).into()), ..Certificates::default() };
        for (name, identity) in entries {
            let name = normal(name);
            if &*name == "*" {
                table.any.get_or_insert(identity);
            } else if let Some(rest) = name.strip_prefix("*.") {
                table.wildcard.entry(rest.into()).or_insert(identity);
            } else {
                table.exact.entry(name.into()).or_insert(identity);
            }
        }
        table
    }

    /// The identity for `name`: its own, else that of the wildcard for exactly its first label,
    /// else that of `*`.
    pub fn find(&self, name: &str) -> Option<&Arc<ServerIdentity>> {
        let name = normal(name);
        self.exact
            .get(&*name)
            .or_else(|| name.split_once('.').and_then(|(_, rest)| self.wildcard.get(rest)))
            .or(self.any.as_ref())
    }

    /// The identity whose demands hold for requests to the host `name`. A wildcard guards names of
    /// any depth, as it does where requests are routed, although a certificate is good for one label
    /// only: what is below a guarded name is not less guarded than its parent.
    pub fn guard(&self, name: &str) -> Option<&Arc<ServerIdentity>> {
        let name = normal(name);
        let mut rest = &*name;
        if let Some(own) = self.exact.get(rest) {
            return Some(own);
        }
        while let Some((_, parent)) = rest.split_once('.') {
            if let Some(identity) = self.wildcard.get(parent) {
                return Some(identity);
            }
            rest = parent;
        }
        self.any.as_ref()
    }

    /// The identity for a client that asks for `name`, or for none.
    pub fn choose(&self, name: Option<&str>) -> Option<&Arc<ServerIdentity>> {
        self.find(name.or(self.fallback.as_deref())?)
    }
}

/// Lower case, without the dot at the end that makes a name absolute.
fn normal(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}
