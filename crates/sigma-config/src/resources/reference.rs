//! References to secrets stored elsewhere: `$secret://vault/1/path/key`, `$env://NAME/field`.
//!
//! This module only parses them. The control plane looks up the secrets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::SecretProvider;

/// A reference to a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretRef<'a> {
    /// A secret of a secret manager.
    Secret {
        /// The kind of secret manager.
        provider: SecretProvider,
        /// The id of the manager's configuration, without the manager: `1` of `vault/1`.
        id: &'a str,
        /// The path of the secret in the manager; at least one segment.
        key: &'a str,
    },
    /// An environment variable.
    Env {
        /// Its name.
        name: &'a str,
        /// The member of the JSON object in the variable; unset: the whole value.
        field: Option<&'a str>,
    },
}

impl<'a> SecretRef<'a> {
    /// Parses a reference. Returns None for any other text, and for an incomplete reference.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<SecretRef<'a>> {
        if let Some(path) = text.strip_prefix("$secret://") {
            let (manager, rest) = path.split_once('/')?;
            let (id, key) = rest.split_once('/')?;
            let provider = SecretProvider::of_name(manager)?;
            return (!id.is_empty() && !key.is_empty()).then_some(SecretRef::Secret { provider, id, key });
        }
        let path = strip_env(text)?;
        let (name, field) = match path.split_once('/') {
            Some((name, field)) => (name, Some(field).filter(|field| !field.is_empty())),
            None => (path, None),
        };
        (!name.is_empty()).then_some(SecretRef::Env { name, field })
    }
}

/// Returns whether a text begins like a reference. APISIX then does not check the rest.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    sigma_schema::validation::is_secret_reference(text)
}

/// Returns the text after `$env://`, in any case.
fn strip_env(text: &str) -> Option<&str> {
    const PREFIX: &str = "$env://";
    let head = text.get(..PREFIX.len())?;
    head.eq_ignore_ascii_case(PREFIX).then(|| &text[PREFIX.len()..])
}

/// The lookup of secrets for `$secret://` references. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretLookup {
    /// Milliseconds between two rounds, with a random difference of a tenth. A round looks up all references whose
    /// `keep_ms` or `keep_failure_ms` has passed, so that a secret changed at its manager takes effect.
    #[schemars(range(min = 10))]
    pub refresh_ms: u32,
    /// Milliseconds until a secret is requested again from its manager.
    pub keep_ms: u32,
    /// Milliseconds until a failed lookup, or one without a response, is repeated.
    pub keep_failure_ms: u32,
    /// Timeout of one response in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
}

impl Default for SecretLookup {
    fn default() -> Self {
        SecretLookup { refresh_ms: 60_000, keep_ms: 300_000, keep_failure_ms: 60_000, timeout_ms: 5_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read() {
        let check = |text: &str, expected: Option<SecretRef<'_>>| {
            assert_eq!(SecretRef::parse(text), expected, "{text}");
        };
        let secret = |provider, id, key| Some(SecretRef::Secret { provider, id, key });
        check("$secret://vault/1/a/b", secret(SecretProvider::Vault, "1", "a/b"));
        check("$secret://aws/x/name", secret(SecretProvider::Aws, "x", "name"));
        check("$env://NAME", Some(SecretRef::Env { name: "NAME", field: None }));
        check("$ENV://NAME/field", Some(SecretRef::Env { name: "NAME", field: Some("field") }));
        for other in [
            "",
            "$",
            "env://A",
            "$env://",
            "$secret://vault/1",
            "$secret://x/1/a",
            "$secret://vault//a",
            "€nv://",
        ] {
            check(other, None);
        }
        assert!(is_reference("$secret://x") && is_reference("$Env://") && !is_reference("$envx"));
    }
}
