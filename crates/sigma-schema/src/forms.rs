//! Texts with a fixed form: their schemas, and the remedy for an invalid text.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::address::ListenAddress;
use crate::id::{ID_PATTERN, MAX_ID_LENGTH};

/// One form as schemas express it.
pub struct Form {
    /// The name in the reference, where it is clearer than the hint.
    pub shown: Option<&'static str>,
    /// The wording of a refusal.
    pub said: FormRule,
    /// The remedy for a text of another form.
    pub hint: &'static str,
}

/// How a schema says a form.
pub enum FormRule {
    /// By `format`, with this word and this test.
    Format(&'static str, fn(&str) -> bool),
    /// As `pattern`.
    Pattern(&'static str),
}

/// The methods that a route may list.
pub const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

/// A host as APISIX defines it.
pub const HOST_PATTERN: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$";

/// The host of a node; Unix sockets are Sigma's addition.
pub const NODE_PATTERN: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$|^unix:/.+$";

/// An IPv4 network as APISIX defines it.
pub const IPV4_NETWORK_PATTERN: &str = r"^([0-9]{1,3}\.){3}[0-9]{1,3}/([0-9]|[12][0-9]|3[0-2])$";

/// The name of a consumer.
pub const USERNAME_PATTERN: &str = r"^[a-zA-Z0-9_\-]+$";

/// The value of a label.
pub const LABEL_PATTERN: &str = r"^\S+$";

/// The address of a service.
pub const URL_PATTERN: &str = r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?";

const FORMS: [Form; 8] = [
    Form {
        shown: Some("listen address"),
        said: FormRule::Format("listen-address", |text| text.parse::<ListenAddress>().is_ok()),
        hint: "write ip:port, [v6]:port, :port or unix:/path",
    },
    Form {
        shown: Some("socket address"),
        said: FormRule::Format("socket-address", |text| text.parse::<std::net::SocketAddr>().is_ok()),
        hint: "for example 127.0.0.1:7085",
    },
    Form {
        shown: Some("cidr"),
        said: FormRule::Pattern(IPV4_NETWORK_PATTERN),
        hint: "for example 10.0.0.0/8",
    },
    Form {
        shown: Some("host pattern"),
        said: FormRule::Pattern(HOST_PATTERN),
        hint: "for example example.com, *.example.com or *",
    },
    Form {
        shown: None,
        said: FormRule::Pattern(ID_PATTERN),
        hint: "1 to 64 letters, digits, `-`, `_` or `.`, or an integer from 1",
    },
    Form {
        shown: None,
        said: FormRule::Pattern(USERNAME_PATTERN),
        hint: "1 to 256 letters, digits, `-` or `_`",
    },
    Form { shown: None, said: FormRule::Pattern(LABEL_PATTERN), hint: "write it without spaces" },
    Form { shown: None, said: FormRule::Pattern(URL_PATTERN), hint: "for example http://127.0.0.1:8200" },
];

/// Returns the form of a JSON Schema `format`.
pub fn of_format(name: &str) -> Option<&'static Form> {
    FORMS.iter().find(|form| matches!(form.said, FormRule::Format(word, _) if word == name))
}

/// Returns the form with this pattern, if there is one.
pub fn of_pattern(source: &str) -> Option<&'static Form> {
    FORMS.iter().find(|form| matches!(form.said, FormRule::Pattern(pattern) if pattern == source))
}

macro_rules! text_schema {
    ($($(#[$doc:meta])* $name:ident => $schema:tt;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

text_schema! {
    /// Schema of an address or network.
    CidrText => { "anyOf": [
        { "type": "string", "format": "ipv4" },
        { "type": "string", "pattern": IPV4_NETWORK_PATTERN },
        { "type": "string", "format": "ipv6" },
        {
            "type": "string",
            "pattern": r"^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/[0-9]{1,3}$",
        },
    ] };
    /// Schema of labels.
    LabelMap => {
        "type": "object",
        "patternProperties": {
            ".*": { "type": "string", "pattern": LABEL_PATTERN, "minLength": 1, "maxLength": 256 },
        },
    };
    /// Schema of the id of a credential: its own id, or `consumer/credentials/id`.
    CredentialId => { "anyOf": [
        { "type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH, "pattern": ID_PATTERN },
        { "type": "integer", "minimum": 1 },
        {
            "type": "string",
            "minLength": 15,
            "maxLength": 128,
            "pattern": "^[a-zA-Z0-9-_]+/credentials/[a-zA-Z0-9-_.]+$",
        },
    ] };
    /// Schema of a host pattern.
    HostPattern => { "type": "string", "pattern": HOST_PATTERN };
    /// Schema of a method name.
    MethodName => { "type": "string", "enum": METHODS };
    /// Schema of a listening address.
    ListenText => { "type": "string", "format": "listen-address" };
    /// Schema of an IP address with a port.
    SocketText => { "type": "string", "format": "socket-address" };
}
