//! Names of a gateway in `Via` and `Proxy-Status`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// A name of this gateway, a pseudonym as in RFC 9110 §7.6.3: a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ViaName(String);

impl ViaName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ViaName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if text.is_empty() || !text.bytes().all(token) {
            let reason = format!("`{text}` is not a gateway name: use letters, digits, `-`, `.` and `_`");
            return Err(serde::de::Error::custom(reason));
        }
        Ok(ViaName(text))
    }
}
