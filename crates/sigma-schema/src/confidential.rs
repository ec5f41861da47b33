//! Texts that no log, store or view shows.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::described::CONFIDENTIAL;

/// The text that stands in an answer for a secret that its reader must not see. Not the
/// ciphertext: the keyring may be the one that everybody knows.
pub const MASK: &str = "***";

/// A text that must not show up in a log: a private key, a token. It is shown as dots.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidential(Box<str>);

impl Confidential {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Confidential {
    fn from(text: &str) -> Self {
        Confidential(text.into())
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"…\"")
    }
}

impl JsonSchema for Confidential {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Confidential".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = String::json_schema(generator);
        schema.insert(CONFIDENTIAL.to_owned(), true.into());
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confidential_is_not_shown() {
        assert_eq!(format!("{:?}", Confidential::from("-----BEGIN")), "\"…\"");
    }
}
