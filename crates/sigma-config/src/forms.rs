//! Texts with a form of their own, as the schemas name them.
//!
//! A schema says `"format": "cidr"`; the checker looks the word up here, and a message is made
//! from the same entry.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::cidr::Cidr;
use crate::settings::ListenAddress;

/// One form: its name, its test, and what a text of another form is told.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) holds: fn(&str) -> bool,
    pub(crate) expected: &'static str,
    pub(crate) hint: &'static str,
}

/// The methods that a route may name.
pub const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

/// All forms.
pub(crate) const FORMS: [Form; 6] = [
    Form {
        name: "cidr",
        holds: |text| text.parse::<Cidr>().is_ok(),
        expected: "an IP address or a network",
        hint: "for example 10.0.0.0/8",
    },
    Form {
        name: "host-pattern",
        holds: is_host_pattern,
        expected: "a host pattern",
        hint: "for example example.com, *.example.com or *",
    },
    Form {
        name: "uri-pattern",
        holds: |text| text.starts_with(['/', '*']),
        expected: "a path pattern, which starts with `/` or `*`",
        hint: "for example /hello or /api/*",
    },
    Form {
        name: "http-method",
        holds: |text| METHODS.contains(&text),
        expected: "a method",
        hint: "one of GET, POST, PUT, DELETE, PATCH, HEAD, OPTIONS, CONNECT, TRACE, PURGE",
    },
    Form {
        name: "listen-address",
        holds: |text| text.parse::<ListenAddress>().is_ok(),
        expected: "an address to listen on",
        hint: "write ip:port, [v6]:port, :port or unix:/path",
    },
    Form {
        name: "socket-address",
        holds: |text| text.parse::<std::net::SocketAddr>().is_ok(),
        expected: "an address with a port",
        hint: "for example 127.0.0.1:7085",
    },
];

/// `^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$`.
fn is_host_pattern(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'[' | b']' | b':');
    let rest = text.strip_prefix('*').unwrap_or(text);
    text == "*" || (!rest.is_empty() && rest.bytes().all(allowed))
}

macro_rules! text_schema {
    ($($(#[$doc:meta])* $name:ident => $format:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format })
            }
        }
    )*};
}

text_schema! {
    /// Schema of an address or network.
    CidrText => "cidr";
    /// Schema of a host pattern.
    HostPattern => "host-pattern";
    /// Schema of a path pattern.
    UriPattern => "uri-pattern";
    /// Schema of a method name.
    MethodName => "http-method";
    /// Schema of a listening address.
    ListenText => "listen-address";
    /// Schema of an IP address with a port.
    SocketText => "socket-address";
}
