//! Secret texts, which no log, store or view shows.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::described::CONFIDENTIAL;

/// The text that replaces a secret in a response to a client that must not see it. It is not the ciphertext, because
/// the keyring may be the public default.
pub const MASK: &str = "***";

/// A text that must not appear in a log, such as a private key or a token. It is shown as dots.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidential(Box<str>);

impl Confidential {
    /// Returns the text itself.
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
    fn confidential_texts_are_masked() {
        assert_eq!(format!("{:?}", Confidential::from("-----BEGIN")), "\"…\"");
    }
}
