//! Request fields that only trusted peers may send.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Names of request fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct UntrustedFields(Vec<String>);

/// Fields that a request needs, or that have their own rules.
const REFUSED: [&str; 7] =
    ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "expect"];

impl UntrustedFields {
    /// Fields that a gateway on the Internet should not accept from clients: applications and frameworks read prefix,
    /// scheme, path, method, address or certificate of a request from them.
    pub const EDGE: [&str; 18] = [
        "Proxy",
        "X-Forwarded-Prefix",
        "X-Forwarded-Server",
        "X-Forwarded-Ssl",
        "X-Forwarded-Scheme",
        "X-Forwarded-Path",
        "X-Forwarded-Uri",
        "X-Forwarded-Method",
        "Front-End-Https",
        "X-Original-URL",
        "X-Original-Host",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "True-Client-IP",
        "X-Client-IP",
        "X-Client-Cert",
    ];

    /// Returns the fields of [`UntrustedFields::EDGE`].
    #[must_use]
    pub fn edge() -> UntrustedFields {
        UntrustedFields(UntrustedFields::EDGE.map(str::to_owned).into())
    }

    /// Returns the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl Default for UntrustedFields {
    fn default() -> Self {
        // CGI applications use it as the proxy of their own calls (CVE-2016-5385); no client needs it.
        UntrustedFields(vec!["Proxy".to_owned()])
    }
}

impl<'de> Deserialize<'de> for UntrustedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        for name in &names {
            if name.is_empty() || !name.bytes().all(token) {
                let reason = format!("`{name}` is not the name of a header field");
                return Err(serde::de::Error::custom(reason));
            }
            if REFUSED.iter().any(|refused| refused.eq_ignore_ascii_case(name)) {
                let reason = format!("`{name}` cannot be removed from requests; leave it out");
                return Err(serde::de::Error::custom(reason));
            }
        }
        Ok(UntrustedFields(names))
    }
}

impl JsonSchema for UntrustedFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "UntrustedFields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "array", "items": {"type": "string", "minLength": 1}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_fields_that_can_be_removed() {
        let read =
            |json: &str| serde_json::from_str::<UntrustedFields>(json).map_err(|error| error.to_string());
        let names: Vec<String> = read(r#"["X-A", "proxy"]"#).unwrap().iter().map(str::to_owned).collect();
        assert_eq!(names, ["X-A", "proxy"]);
        assert!(read(r#"["a b"]"#).unwrap_err().contains("`a b` is not the name of a header field"));
        assert!(read(r#"["HOST"]"#).unwrap_err().contains("`HOST` cannot be removed"));
        assert!(UntrustedFields::edge().iter().any(|name| name == "X-Forwarded-Prefix"));
    }
}
