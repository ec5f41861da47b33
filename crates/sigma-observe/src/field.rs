//! The variables of access lines.

use std::borrow::Cow;

/// One value of a finished exchange. Names are nginx's where nginx has the variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `$remote_addr`: the client's address.
    RemoteAddr,
    /// `$remote_port`: the client's port.
    RemotePort,
    /// `$remote_user`: the user name of Basic credentials, verified or not.
    RemoteUser,
    /// `$time_local`: `10/Oct/2000:13:55:36 +0000`, always UTC.
    TimeLocal,
    /// `$time_iso8601`: `2000-10-10T13:55:36+00:00`, always UTC.
    TimeIso8601,
    /// `$msec`: Unix time in seconds with milliseconds.
    Msec,
    /// `$request`: the request line as it was received.
    Request,
    /// `$request_method`.
    RequestMethod,
    /// `$request_uri`: the request target as it was received.
    RequestUri,
    /// `$uri`: the normalised path.
    Uri,
    /// `$args`, `$query_string`: the query without its `?`.
    Args,
    /// `$host`: the host that the request was routed by, lower case, without port.
    Host,
    /// `$http_NAME`: a request header, its name in lower case with hyphens.
    HttpHeader(Cow<'static, str>),
    /// `$sent_http_NAME`: a header of the response sent downstream.
    SentHttpHeader(Cow<'static, str>),
    /// `$upstream_http_NAME`: a header of the upstream's response.
    UpstreamHeader(Cow<'static, str>),
    /// `$status`: the status sent downstream.
    Status,
    /// `$body_bytes_sent`: bytes of the response without its head.
    BodyBytesSent,
    /// `$bytes_sent`: bytes of the response with its head.
    BytesSent,
    /// `$request_length`: bytes of the request, head and body.
    RequestLength,
    /// `$request_time`: seconds with milliseconds, from the first byte read to the last byte written.
    RequestTime,
    /// `$request_time_ms`: the same in whole milliseconds.
    RequestTimeMs,
    /// `$request_id`, `$apisix_request_id`.
    RequestId,
    /// `$server_protocol`: `HTTP/1.1`.
    ServerProtocol,
    /// `$server_addr`: the local address of the downstream connection.
    ServerAddr,
    /// `$server_port`: the local port of the downstream connection.
    ServerPort,
    /// `$scheme`: `http` or `https`.
    Scheme,
    /// `$https`: `on` if the downstream connection is encrypted.
    Https,
    /// `$ssl_NAME`: a fact of the downstream TLS session.
    Tls(&'static str),
    /// `$upstream_addr`: the node, or the nodes of all attempts joined by `, `.
    UpstreamAddr,
    /// `$upstream_status`: the node's status, per attempt.
    UpstreamStatus,
    /// `$upstream_response_time`: seconds with milliseconds to the end of the response, per attempt.
    UpstreamResponseTime,
    /// `$upstream_connect_time`: seconds with milliseconds to the connection, per attempt.
    UpstreamConnectTime,
    /// `$upstream_header_time`: seconds with milliseconds to the head of the response, per attempt.
    UpstreamHeaderTime,
    /// `$upstream_attempts`: all attempts as a JSON list of objects.
    UpstreamAttempts,
    /// `$upstream_host`: the `Host` sent upstream.
    UpstreamHost,
    /// `$upstream_protocol`: the version of HTTP towards the node, per attempt.
    UpstreamProtocol,
    /// `$upstream_scheme`: the scheme towards the node.
    UpstreamScheme,
    /// `$upstream_uri`: the request target sent upstream.
    UpstreamUri,
    /// `$connection`: the number of the downstream connection.
    Connection,
    /// `$connection_requests`: the number of the request on its connection, from 1.
    ConnectionRequests,
    /// `$route_id`: the matched route's id.
    RouteId,
    /// `$route_name`: the matched route's name.
    RouteName,
    /// `$service_id`: the id of the route's service.
    ServiceId,
    /// `$consumer_name`: the consumer of the request.
    ConsumerName,
    /// `$trace_id`: the trace of the exchange, if a plugin publishes it.
    TraceId,
    /// `$span_id`: the span of the exchange in that trace.
    SpanId,
    /// `$fault`: the reason of a response that does not come from a node, or of a truncated one.
    Fault,
    /// Any other variable of an exchange, by its name.
    Variable(Box<str>),
    /// A credential: a line shows only its presence.
    Credential(Box<Field>),
}

/// Names and fields; a field's own name precedes its aliases.
static NAMES: [(&str, Field); 53] = [
    ("remote_addr", Field::RemoteAddr),
    ("remote_port", Field::RemotePort),
    ("remote_user", Field::RemoteUser),
    ("time_local", Field::TimeLocal),
    ("time_iso8601", Field::TimeIso8601),
    ("msec", Field::Msec),
    ("request", Field::Request),
    ("request_method", Field::RequestMethod),
    ("request_uri", Field::RequestUri),
    ("uri", Field::Uri),
    ("args", Field::Args),
    ("query_string", Field::Args),
    ("host", Field::Host),
    ("status", Field::Status),
    ("body_bytes_sent", Field::BodyBytesSent),
    ("bytes_sent", Field::BytesSent),
    ("request_length", Field::RequestLength),
    ("request_time", Field::RequestTime),
    ("request_time_ms", Field::RequestTimeMs),
    ("request_id", Field::RequestId),
    ("apisix_request_id", Field::RequestId),
    ("server_protocol", Field::ServerProtocol),
    ("server_addr", Field::ServerAddr),
    ("server_port", Field::ServerPort),
    ("scheme", Field::Scheme),
    ("https", Field::Https),
    ("ssl_protocol", Field::Tls("protocol")),
    ("ssl_cipher", Field::Tls("cipher")),
    ("ssl_server_name", Field::Tls("server_name")),
    ("ssl_client_verify", Field::Tls("client_verify")),
    ("ssl_client_s_dn", Field::Tls("client_s_dn")),
    ("ssl_client_i_dn", Field::Tls("client_i_dn")),
    ("ssl_client_serial", Field::Tls("client_serial")),
    ("ssl_client_fingerprint", Field::Tls("client_fingerprint")),
    ("upstream_addr", Field::UpstreamAddr),
    ("upstream_status", Field::UpstreamStatus),
    ("upstream_response_time", Field::UpstreamResponseTime),
    ("upstream_connect_time", Field::UpstreamConnectTime),
    ("upstream_header_time", Field::UpstreamHeaderTime),
    ("upstream_attempts", Field::UpstreamAttempts),
    ("upstream_host", Field::UpstreamHost),
    ("upstream_protocol", Field::UpstreamProtocol),
    ("upstream_scheme", Field::UpstreamScheme),
    ("upstream_uri", Field::UpstreamUri),
    ("connection", Field::Connection),
    ("connection_requests", Field::ConnectionRequests),
    ("route_id", Field::RouteId),
    ("route_name", Field::RouteName),
    ("service_id", Field::ServiceId),
    ("consumer_name", Field::ConsumerName),
    ("trace_id", Field::TraceId),
    ("span_id", Field::SpanId),
    ("fault", Field::Fault),
];

impl Field {
    /// Returns the field for `name` (without `$`).
    ///
    /// As in nginx, a header's hyphens are written as underscores, so a header whose own name has an underscore
    /// cannot be used.
    pub fn from_name(name: &str) -> Option<Field> {
        if let Some((_, field)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Some(field.clone());
        }
        let header = |prefix: &str| {
            let rest = name.strip_prefix(prefix)?;
            (!rest.is_empty()).then(|| rest.to_ascii_lowercase().replace('_', "-").into())
        };
        if let Some(name) = header("upstream_http_") {
            return Some(Field::UpstreamHeader(name));
        }
        if let Some(name) = header("sent_http_") {
            return Some(Field::SentHttpHeader(name));
        }
        header("http_").map(Field::HttpHeader)
    }

    /// Returns the known name nearest to `name`, if it is near enough for a typo.
    pub(crate) fn suggest(name: &str) -> Option<&'static str> {
        let (known, distance) = NAMES
            .iter()
            .map(|(known, _)| (*known, strsim::damerau_levenshtein(known, name)))
            .min_by_key(|(_, distance)| *distance)?;
        // Up to a third of the letters may be wrong in a typo.
        (distance <= name.len().div_ceil(3)).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (i, (name, field)) in NAMES.iter().enumerate() {
            assert_eq!(Field::from_name(name).as_ref(), Some(field), "{name}");
            assert!(NAMES[..i].iter().all(|(other, _)| other != name), "{name} stands twice");
        }
    }

    #[test]
    fn headers_are_named_by_prefix() {
        let cases = [
            ("http_user_agent", Some(Field::HttpHeader("user-agent".into()))),
            ("http_Referer", Some(Field::HttpHeader("referer".into()))),
            ("sent_http_content_type", Some(Field::SentHttpHeader("content-type".into()))),
            ("upstream_http_server", Some(Field::UpstreamHeader("server".into()))),
            ("http_", None),
            ("sent_http_", None),
            ("", None),
            ("Status", None),
        ];
        for (name, expected) in cases {
            assert_eq!(Field::from_name(name), expected, "{name}");
        }
    }

    #[test]
    fn typos_are_recognised() {
        let cases = [
            ("remote_adr", Some("remote_addr")),
            ("stauts", Some("status")),
            ("upstream_response_tme", Some("upstream_response_time")),
            ("Status", Some("status")),
            ("cookie_session", None),
            ("x", None),
        ];
        for (name, expected) in cases {
            assert_eq!(Field::suggest(name), expected, "{name}");
        }
    }
}
