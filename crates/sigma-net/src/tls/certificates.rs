//! The choice of an identity by the requested name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::ServerIdentity;

/// Names and their identities. Immutable; unchanged identities are shared with the previous table, so that a new
/// table costs one pass over the names.
#[derive(Debug, Default)]
pub struct Certificates {
    exact: HashMap<Box<str>, Arc<ServerIdentity>>,
    /// By the name after `*.`.
    wildcard: HashMap<Box<str>, Arc<ServerIdentity>>,
    any: Option<Arc<ServerIdentity>>,
    fallback: Option<Box<str>>,
}

impl Certificates {
    /// Returns a table of `entries`: a name, `*.` and a name, or `*`. Of two with the same name the first counts.
    /// `fallback` is the assumed name for clients without a name.
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

    /// Returns the identity for `name`: its own, else the wildcard's for exactly its first label, else the one for
    /// `*`.
    pub fn find(&self, name: &str) -> Option<&Arc<ServerIdentity>> {
        let name = normal(name);
        self.exact
            .get(&*name)
            .or_else(|| name.split_once('.').and_then(|(_, rest)| self.wildcard.get(rest)))
            .or(self.any.as_ref())
    }

    /// Returns the identity whose demands apply to requests to the host `name`. Here a wildcard covers names of any
    /// depth, as in routing, although a certificate covers one label only: a name below a guarded name needs the same
    /// guard.
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

    /// Returns the identity for a client that requests `name`, or no name.
    pub fn choose(&self, name: Option<&str>) -> Option<&Arc<ServerIdentity>> {
        self.find(name.or(self.fallback.as_deref())?)
    }
}

/// Converts to lower case, without the trailing dot of an absolute name.
fn normal(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}
