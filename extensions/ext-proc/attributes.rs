//! Attributes of an exchange, by Envoy's names.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::{Context, Env};
use sigma_plugin_kit::envoy::{Kind, Struct, Value};

/// An attribute that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Attribute {
    /// The path with its query
    #[serde(rename = "request.path")]
    Path,
    /// The path without its query
    #[serde(rename = "request.url_path")]
    UrlPath,
    /// The query
    #[serde(rename = "request.query")]
    Query,
    /// The host
    #[serde(rename = "request.host")]
    Host,
    /// The scheme
    #[serde(rename = "request.scheme")]
    Scheme,
    /// The method
    #[serde(rename = "request.method")]
    Method,
    /// The fields of the request
    #[serde(rename = "request.headers")]
    RequestHeaders,
    /// The field Referer
    #[serde(rename = "request.referer")]
    Referer,
    /// The field User-Agent
    #[serde(rename = "request.useragent")]
    UserAgent,
    /// The time of day, in seconds
    #[serde(rename = "request.time")]
    Time,
    /// The id of the request
    #[serde(rename = "request.id")]
    Id,
    /// The version of HTTP
    #[serde(rename = "request.protocol")]
    Protocol,
    /// The status
    #[serde(rename = "response.code")]
    Code,
    /// The fields of the response
    #[serde(rename = "response.headers")]
    ResponseHeaders,
    /// The client's address
    #[serde(rename = "source.address")]
    SourceAddress,
    /// The client's port
    #[serde(rename = "source.port")]
    SourcePort,
    /// The local address of the connection
    #[serde(rename = "destination.address")]
    DestinationAddress,
    /// The local port of the connection
    #[serde(rename = "destination.port")]
    DestinationPort,
    /// The number of the connection
    #[serde(rename = "connection.id")]
    ConnectionId,
    /// Whether the client has a verified certificate
    #[serde(rename = "connection.mtls")]
    Mtls,
    /// The name that the client requests over TLS
    #[serde(rename = "connection.requested_server_name")]
    RequestedServerName,
    /// The version of TLS
    #[serde(rename = "connection.tls_version")]
    TlsVersion,
    /// The subject of the client's verified certificate
    #[serde(rename = "connection.subject_peer_certificate")]
    SubjectPeerCertificate,
    /// The name of the route, or its id
    #[serde(rename = "xds.route_name")]
    RouteName,
}

impl Attribute {
    /// Returns the name in the protocol.
    fn name(self) -> &'static str {
        match self {
            Attribute::Path => "request.path",
            Attribute::UrlPath => "request.url_path",
            Attribute::Query => "request.query",
            Attribute::Host => "request.host",
            Attribute::Scheme => "request.scheme",
            Attribute::Method => "request.method",
            Attribute::RequestHeaders => "request.headers",
            Attribute::Referer => "request.referer",
            Attribute::UserAgent => "request.useragent",
            Attribute::Time => "request.time",
            Attribute::Id => "request.id",
            Attribute::Protocol => "request.protocol",
            Attribute::Code => "response.code",
            Attribute::ResponseHeaders => "response.headers",
            Attribute::SourceAddress => "source.address",
            Attribute::SourcePort => "source.port",
            Attribute::DestinationAddress => "destination.address",
            Attribute::DestinationPort => "destination.port",
            Attribute::ConnectionId => "connection.id",
            Attribute::Mtls => "connection.mtls",
            Attribute::RequestedServerName => "connection.requested_server_name",
            Attribute::TlsVersion => "connection.tls_version",
            Attribute::SubjectPeerCertificate => "connection.subject_peer_certificate",
            Attribute::RouteName => "xds.route_name",
        }
    }

    /// Returns the value, if the exchange has one.
    fn value(self, ctx: &Context, env: &Env<'_>) -> Option<Kind> {
        let (request, client, tls) = (&ctx.request, &ctx.client, ctx.client.tls.as_deref());
        let verified = tls.filter(|tls| tls.client_verify == "SUCCESS");
        match self {
            Attribute::Path => Some(text(ctx.outgoing_target())),
            Attribute::UrlPath => ctx.outgoing_target().split(|byte| *byte == b'?').next().map(text),
            Attribute::Query => Some(text(ctx.outgoing_query().unwrap_or_default())),
            Attribute::Host => Some(text(request.authority())),
            Attribute::Scheme => Some(text(ctx.scheme().as_bytes())),
            Attribute::Method => Some(text(request.method_token())),
            Attribute::RequestHeaders => Some(fields(&request.headers)),
            Attribute::Referer => request.headers.find(b"referer").map(text),
            Attribute::UserAgent => request.headers.get(HeaderId::UserAgent).map(text),
            Attribute::Time => Some(Kind::Number(env.unix_time().as_secs_f64())),
            Attribute::Id => Some(text(ctx.request_id_bytes())),
            Attribute::Protocol => Some(text(request.version.as_str().as_bytes())),
            Attribute::Code => (ctx.response.status != 0).then(|| Kind::Number(ctx.response.status.into())),
            Attribute::ResponseHeaders => (ctx.response.status != 0).then(|| fields(&ctx.response.headers)),
            Attribute::SourceAddress => Some(text(ctx.remote_addr().as_bytes())),
            Attribute::SourcePort => Some(Kind::Number(client.port.into())),
            Attribute::DestinationAddress => {
                client.local.map(|local| text(local.ip().to_canonical().to_string().as_bytes()))
            }
            Attribute::DestinationPort => client.local.map(|local| Kind::Number(local.port().into())),
            Attribute::ConnectionId => Some(Kind::Number(client.connection as f64)),
            Attribute::Mtls => Some(Kind::Bool(verified.is_some())),
            Attribute::RequestedServerName => tls?.server_name.as_deref().map(|name| text(name.as_bytes())),
            Attribute::TlsVersion => tls.map(|tls| text(tls.protocol.as_bytes())),
            Attribute::SubjectPeerCertificate => {
                verified?.client_subject.as_deref().map(|subject| text(subject.as_bytes()))
            }
            Attribute::RouteName => {
                let route = ctx.route.as_deref()?;
                Some(text(route.name.as_deref().unwrap_or(&route.id).as_bytes()))
            }
        }
    }
}

/// Returns the values of these attributes.
pub(crate) fn values(attributes: &[Attribute], ctx: &Context, env: &Env<'_>) -> Struct {
    let named =
        |attribute: &Attribute| Some((attribute.name().to_owned(), Value::from(attribute.value(ctx, env)?)));
    Struct { fields: attributes.iter().filter_map(named).collect() }
}

fn text(bytes: &[u8]) -> Kind {
    Kind::Text(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns fields as an object; values of one name are joined by commas.
fn fields(headers: &Headers) -> Kind {
    let mut all = Struct::default();
    for (name, value) in headers.iter() {
        let name = String::from_utf8_lossy(&name.to_ascii_lowercase()).into_owned();
        let value = String::from_utf8_lossy(value);
        let joined = match all.fields.get(&name).and_then(|known| known.kind.as_ref()) {
            Some(Kind::Text(known)) => format!("{known},{value}"),
            _ => value.into_owned(),
        };
        all.fields.insert(name, Kind::Text(joined).into());
    }
    Kind::Struct(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Case;

    #[test]
    fn attributes_have_their_own_names_in_configurations() {
        for name in ["request.path", "response.code", "source.port", "xds.route_name", "connection.mtls"] {
            let attribute: Attribute = serde_json::from_value(json!(name)).unwrap();
            assert_eq!(attribute.name(), name);
        }
        assert!(serde_json::from_value::<Attribute>(json!("request.unknown")).is_err());
    }

    #[test]
    fn values_of_an_exchange() {
        let case = Case::new("GET /a?b=1 HTTP/1.1\nHost: x.y\nA: 1\na: 2");
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let wanted = [
            Attribute::Path,
            Attribute::UrlPath,
            Attribute::Query,
            Attribute::Host,
            Attribute::RequestHeaders,
            Attribute::Code,
            Attribute::Mtls,
            Attribute::TlsVersion,
        ];
        let values = values(&wanted, &case.ctx, &env);
        let value = Value::from(Kind::Struct(values)).json();
        assert_eq!(
            value,
            json!({
                "request.path": "/a?b=1", "request.url_path": "/a", "request.query": "b=1", "request.host": "x.y",
                "request.headers": {"host": "x.y", "a": "1,2"}, "connection.mtls": false,
            })
        );
    }
}
