//! The references of a resource.

use serde_json::Value;

use crate::resources::kind::Kind;
use sigma_schema::id::text_of_id;

/// A reference from one resource to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The field with the reference, e.g. `upstream.tls.client_cert_id`.
    pub field: String,
    /// The kind of the target.
    pub kind: Kind,
    /// The id of the target.
    pub id: String,
    /// The beginning of the error text; `, response code: 404` or `: <error>` follows.
    pub message_prefix: String,
}

/// The fields of a kind with references, in the order in which APISIX checks them.
const FIELDS: [(Kind, &str, Kind); 15] = [
    (Kind::Route, "upstream.tls.client_cert_id", Kind::Ssl),
    (Kind::Route, "upstream_id", Kind::Upstream),
    (Kind::Route, "service_id", Kind::Service),
    (Kind::Route, "plugin_config_id", Kind::PluginConfig),
    (Kind::Service, "upstream.tls.client_cert_id", Kind::Ssl),
    (Kind::Service, "upstream_id", Kind::Upstream),
    (Kind::Upstream, "tls.client_cert_id", Kind::Ssl),
    (Kind::Upstream, "circuit_breaker.fallback.upstream_id", Kind::Upstream),
    (Kind::Route, "upstream.circuit_breaker.fallback.upstream_id", Kind::Upstream),
    (Kind::Service, "upstream.circuit_breaker.fallback.upstream_id", Kind::Upstream),
    (Kind::Consumer, "group_id", Kind::ConsumerGroup),
    (Kind::StreamRoute, "upstream.tls.client_cert_id", Kind::Ssl),
    (Kind::StreamRoute, "upstream_id", Kind::Upstream),
    (Kind::StreamRoute, "service_id", Kind::Service),
    (Kind::StreamRoute, "protocol.superior_id", Kind::StreamRoute),
];

impl Reference {
    /// Returns whether the target is a member of this upstream.
    pub fn is_to_member(&self) -> bool {
        self.field.contains("members[")
    }
}

/// Returns the text for a member that has members itself.
#[must_use]
pub fn nested_members(id: &str) -> String {
    format!("upstream [{id}] has members itself")
}

/// Returns the references of `value`. An ssl must be of type `client`, see [`wrong_ssl_type`]. The consumer of a
/// credential is part of its key and not included.
pub fn references(kind: Kind, value: &Value) -> Vec<Reference> {
    let fields = FIELDS.into_iter().filter(|(of, ..)| *of == kind);
    let named = fields.filter_map(|(_, field, target)| reference(value, field.to_owned(), target));
    named.chain(members(kind, value)).collect()
}

/// Returns the members of an upstream.
fn members(kind: Kind, value: &Value) -> Vec<Reference> {
    let (place, upstream) = match kind {
        Kind::Upstream => ("members", Some(value)),
        _ => ("upstream.members", value.get("upstream")),
    };
    let list = upstream.and_then(|upstream| upstream.get("members")?.as_array());
    let member = |(number, member): (usize, &Value)| {
        named(member.get("upstream_id")?, format!("{place}[{number}].upstream_id"), Kind::Upstream)
    };
    list.into_iter().flatten().enumerate().filter_map(member).collect()
}

fn reference(value: &Value, field: String, kind: Kind) -> Option<Reference> {
    let place = field.split('.').try_fold(value, |value, key| value.get(key))?;
    named(place, field, kind)
}

fn named(id: &Value, field: String, kind: Kind) -> Option<Reference> {
    let id = text_of_id(id)?;
    let message_prefix = match kind {
        Kind::StreamRoute => format!("failed to fetch stream routes[{id}]"),
        kind => {
            let word = kind.word();
            format!("failed to fetch {word} info by {word} id [{id}]")
        }
    };
    Some(Reference { field, kind, id, message_prefix })
}

/// Returns the text for a reference to an ssl for servers.
#[must_use]
pub fn wrong_ssl_type(id: &str) -> String {
    format!("failed to fetch ssl info by ssl id [{id}], wrong ssl type")
}
