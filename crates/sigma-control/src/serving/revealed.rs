//! The values of references to secrets, as far as they were looked up.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use sigma_proxy::compile::SecretSource;

use super::secret::Unresolved;

/// Secrets by reference.
#[derive(Default)]
pub(crate) struct Revealed {
    secrets: HashMap<String, String>,
    /// References that stand for something else than before the last [`Revealed::learn`].
    changed: HashSet<String>,
    /// The reasons for which references have no secret.
    refusals: HashMap<String, String>,
}

impl Revealed {
    /// Sets the values of references; returns the changed references, until the next call.
    pub(crate) fn learn(&mut self, found: impl IntoIterator<Item = (String, String)>) -> &HashSet<String> {
        self.changed.clear();
        for (reference, secret) in found {
            match self.secrets.get_mut(&reference) {
                Some(known) if *known == secret => {}
                Some(known) => {
                    *known = secret;
                    self.changed.insert(reference);
                }
                None => drop(self.secrets.insert(reference, secret)),
            }
        }
        &self.changed
    }
}

impl Revealed {
    /// Notes which of the `asked` references have no secret, and why.
    pub(crate) fn note_refusals(&mut self, asked: &[String], unresolved: &[Unresolved]) {
        asked.iter().for_each(|reference| drop(self.refusals.remove(reference)));
        let refusals = unresolved.iter().map(|secret| (secret.reference.clone(), secret.reason.clone()));
        self.refusals.extend(refusals);
    }
}

impl SecretSource for Revealed {
    fn reveal(&self, conf: &mut Value) {
        match conf {
            Value::String(text) => {
                if let Some(secret) = self.secrets.get(text.as_str()) {
                    text.clone_from(secret);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.reveal(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.reveal(member)),
            _ => {}
        }
    }

    fn has_changed(&self, conf: &Value) -> bool {
        if self.changed.is_empty() {
            return false;
        }
        match conf {
            Value::String(text) => self.changed.contains(text.as_str()),
            Value::Array(items) => items.iter().any(|item| self.has_changed(item)),
            Value::Object(members) => members.values().any(|member| self.has_changed(member)),
            _ => false,
        }
    }

    fn refusal(&self, reference: &str) -> Option<&str> {
        self.refusals.get(reference).map(String::as_str)
    }
}
