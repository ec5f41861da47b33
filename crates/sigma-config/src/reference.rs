//! Texts that stand for a secret kept elsewhere: `$secret://vault/1/path/key`, `$env://NAME/field`.
//!
//! Only their form is known here. The control plane looks up the secrets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::SecretProvider;

/// A text that stands for a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretRef<'a> {
    /// A secret of a secret manager.
    Secret {
        /// The kind of secret manager.
        provider: SecretProvider,
        /// The identity of the access, without the manager: `1` of `vault/1`.
        id: &'a str,
        /// The path that the manager is asked for; has at least one segment.
        key: &'a str,
    },
    /// An environment variable.
    Env {
        /// Its name.
        name: &'a str,
        /// The member of the JSON object that it holds; unset: the whole value.
        field: Option<&'a str>,
    },
}

impl<'a> SecretRef<'a> {
    /// Reads a reference; None for any other text, and for a reference that names nothing.
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

/// Whether a text begins like a reference. APISIX then checks nothing else of it.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    sigma_schema::wording::is_secret_reference(text)
}

/// The text behind `$env://`, in any case.
fn strip_env(text: &str) -> Option<&str> {
    const PREFIX: &str = "$env://";
    let head = text.get(..PREFIX.len())?;
    head.eq_ignore_ascii_case(PREFIX).then(|| &text[PREFIX.len()..])
}

/// How secrets are looked up that `$secret://` references stand for. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretLookup {
    /// Pause between two rounds in which all references are looked up again, so that a secret that
    /// changed at its manager comes into force; it differs by a tenth at random. A round asks only for
    /// what `keep_ms` or `keep_failure_ms` have run out for.
    #[schemars(range(min = 10))]
    pub refresh_ms: u32,
    /// How long the answer of a secret manager is kept before it is asked again.
    pub keep_ms: u32,
    /// The same for a refusal, and for no answer.
    pub keep_failure_ms: u32,
    /// Time for one answer.
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
