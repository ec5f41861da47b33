//! The references of a resource.

use serde_json::Value;

use crate::id::text_of_id;
use crate::kind::Kind;

/// A reference from one resource to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The field that names the other one, e.g. `upstream.tls.client_cert_id`.
    pub field: &'static str,
    /// The kind of the other one.
    pub kind: Kind,
    /// Its identity.
    pub id: String,
    /// How a refusal begins; `, response code: 404` or `: <error>` follows.
    pub message_prefix: String,
}

/// The fields of a kind that refer to others, in the order in which APISIX looks at them.
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

/// What `value` refers to. An ssl must be of type `client`, see [`wrong_ssl_type`]; the consumer
/// of a credential is named by its key and is not among these.
pub fn references(kind: Kind, value: &Value) -> Vec<Reference> {
    let fields = FIELDS.into_iter().filter(|(of, ..)| *of == kind);
    fields.filter_map(|(_, field, target)| reference(value, field, target)).collect()
}

fn reference(value: &Value, field: &'static str, kind: Kind) -> Option<Reference> {
    let place = field.split('.').try_fold(value, |value, key| value.get(key))?;
    let id = text_of_id(place)?;
    let message_prefix = match kind {
        Kind::StreamRoute => format!("failed to fetch stream routes[{id}]"),
        kind => {
            let word = kind.word();
            format!("failed to fetch {word} info by {word} id [{id}]")
        }
    };
    Some(Reference { field, kind, id, message_prefix })
}

/// The text for a reference to an ssl that is for servers.
#[must_use]
pub fn wrong_ssl_type(id: &str) -> String {
    format!("failed to fetch ssl info by ssl id [{id}], wrong ssl type")
}
