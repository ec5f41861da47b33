//! Faults of an exchange: a small vocabulary in the terms of RFC 9209.
//!
//! A fault says what happened and on whose side. Other places decide from this value, once each,
//! on the answer, on a retry and on how it is counted.

/// Whose side a fault is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client's.
    Downstream,
    /// The upstream's.
    Upstream,
    /// The gateway's own decision or failure.
    Gateway,
}

macro_rules! fault_kinds {
    (@first $first:literal $($rest:literal)*) => { $first };
    ($($(#[$doc:meta])* $name:ident $side:ident $error_type:literal $(as $proxy:literal)?;)*) => {
        /// A kind of fault. `as usize` is a dense index for counters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FaultKind { $($(#[$doc])* $name,)* }

        impl FaultKind {
            /// Every kind, in order of its index.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$name,)*];

            /// Whose side it is on.
            pub const fn side(self) -> Side {
                match self { $(FaultKind::$name => Side::$side,)* }
            }

            /// The name used in bodies, logs and metrics: RFC 9209 §2.3's error type where one says it exactly.
            pub const fn error_type(self) -> &'static str {
                match self { $(FaultKind::$name => $error_type,)* }
            }

            /// What `Proxy-Status` says of it: one of the types of RFC 9209 §2.3, which every kind has.
            pub const fn proxy_error(self) -> &'static str {
                match self { $(FaultKind::$name => fault_kinds!(@first $($proxy)? $error_type),)* }
            }
        }
    };
}

fault_kinds! {
    /// The request breaks the protocol.
    BadRequest Downstream "http_request_error";
    /// The path is invalid, or a node may read it in another way than the routes.
    BadPath Downstream "http_request_path_error" as "http_request_error";
    /// The request line is over its limit.
    UriTooLong Downstream "http_request_uri_too_long" as "http_request_error";
    /// The request head is over its limits.
    RequestHeadTooLarge Downstream "http_request_header_section_size" as "http_request_error";
    /// The request body is over its limit.
    RequestBodyTooLarge Downstream "http_request_body_size" as "http_request_error";
    /// The request head did not arrive in time.
    RequestHeadTimeout Downstream "http_request_head_timeout" as "http_request_error";
    /// The request body stalled.
    RequestBodyTimeout Downstream "http_request_body_timeout" as "http_request_error";
    /// The client does not read its answer.
    ResponseSendTimeout Downstream "http_response_send_timeout" as "proxy_internal_error";
    /// The client went away.
    ClientGone Downstream "client_gone" as "http_request_error";
    /// CONNECT or another method that this gateway does not serve.
    MethodRefused Gateway "http_request_denied";
    /// A protocol to change to, or another service, that nobody here offers.
    NotImplemented Gateway "http_upgrade_refused" as "http_request_denied";
    /// What the request has in its body cannot be said in the protocol of the node.
    Untranslatable Downstream "http_request_untranslatable" as "http_request_error";
    /// An expectation other than `100-continue`.
    ExpectationFailed Gateway "expectation_failed" as "http_request_error";
    /// The request came in a TLS session that is not for its host.
    Misdirected Downstream "http_request_misdirected" as "http_request_error";
    /// The request came through this gateway more often than it may.
    Loop Gateway "proxy_loop_detected";
    /// No route matches.
    NoRoute Gateway "no_route" as "destination_not_found";
    /// A route matches but for the method.
    MethodNotAllowed Gateway "method_not_allowed" as "http_request_error";
    /// A route matches but for the request's content type.
    UnsupportedMediaType Gateway "unsupported_media_type" as "http_request_error";
    /// A route matches but for the accepted types.
    NotAcceptable Gateway "not_acceptable" as "http_request_error";
    /// The route names a service that does not exist.
    NoService Gateway "no_service" as "proxy_configuration_error";
    /// The route has no upstream.
    NoUpstream Gateway "proxy_configuration_error";
    /// The upstream has no usable node.
    NoNode Upstream "destination_unavailable";
    /// The name servers have no address for the names of the upstream's nodes.
    DnsError Upstream "dns_error";
    /// No name server has answered for the names of the upstream's nodes.
    DnsTimeout Upstream "dns_timeout";
    /// All nodes were tried, or the time for retries is over.
    NodesExhausted Upstream "destination_unavailable";
    /// The node refused the connection or cannot be reached.
    ConnectRefused Upstream "connection_refused";
    /// The node did not accept the connection in time.
    ConnectTimeout Upstream "connection_timeout";
    /// The node speaks no TLS, or none that the upstream's settings allow.
    TlsProtocol Upstream "tls_protocol_error";
    /// The node's certificate is not one that the upstream's settings trust.
    TlsCertificate Upstream "tls_certificate_error";
    /// The node ended the TLS handshake with an alert.
    TlsAlert Upstream "tls_alert_received";
    /// The node does not speak the version of HTTP that it is asked in.
    ProtocolMismatch Upstream "http_protocol_error";
    /// The node closed the connection before a complete response head.
    ConnectionTerminated Upstream "connection_terminated";
    /// The node went out while the session was open.
    NodeWithdrawn Upstream "node_withdrawn" as "destination_unavailable";
    /// The node does not take the request.
    UpstreamSendTimeout Upstream "connection_write_timeout";
    /// The response did not arrive in time.
    ResponseTimeout Upstream "http_response_timeout";
    /// The response breaks the protocol.
    BadResponse Upstream "http_protocol_error";
    /// The response head is over its limits.
    ResponseHeadTooLarge Upstream "http_response_header_section_size";
    /// The response ended before its declared length.
    ResponseIncomplete Upstream "http_response_incomplete";
    /// The response is not encoded as it says.
    ResponseCoding Upstream "http_response_content_coding";
    /// The response body is over a limit of this gateway.
    ResponseBodyTooLarge Gateway "http_response_body_size";
    /// The node upgraded although nobody asked, or to something else.
    UpgradeFailed Upstream "http_upgrade_failed";
    /// The limits of the upstream let no further request pass.
    Overloaded Gateway "upstream_overloaded" as "connection_limit_reached";
    /// The circuit breaker of the upstream is open.
    BreakerOpen Gateway "circuit_breaker_open" as "destination_unavailable";
    /// The gateway runs out of resources and serves more important requests.
    GatewayOverloaded Gateway "gateway_overloaded" as "proxy_internal_error";
    /// The gateway holds as much for its clients as it may.
    MemoryLimit Gateway "memory_limit_reached" as "proxy_internal_error";
    /// The gateway stops, and the time that open exchanges had is over.
    Stopping Gateway "gateway_stopping" as "proxy_internal_error";
    /// No descriptor, port or buffer of this machine is left for a connection to a node.
    OutOfSockets Gateway "connection_limit_reached";
    /// A local resource ran out or an invariant broke.
    Internal Gateway "proxy_internal_error";
}

/// A fault: what happened, on whose side, and how far the request had got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// Names the rule that was broken, for logs and the error body. Never peer-supplied text.
    pub reason: &'static str,
}

impl Fault {
    /// A fault of `kind` with its reason.
    pub const fn new(kind: FaultKind, reason: &'static str) -> Fault {
        Fault { kind, reason }
    }

    /// Whose side it is on.
    pub const fn side(self) -> Side {
        self.kind.side()
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.error_type(), self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9209 §2.3, and with it the registry of IANA.
    const REGISTERED: [&str; 32] = [
        "dns_timeout",
        "dns_error",
        "destination_not_found",
        "destination_unavailable",
        "destination_ip_prohibited",
        "destination_ip_unroutable",
        "connection_refused",
        "connection_terminated",
        "connection_timeout",
        "connection_read_timeout",
        "connection_write_timeout",
        "connection_limit_reached",
        "tls_protocol_error",
        "tls_certificate_error",
        "tls_alert_received",
        "http_request_error",
        "http_request_denied",
        "http_response_incomplete",
        "http_response_header_section_size",
        "http_response_header_size",
        "http_response_body_size",
        "http_response_trailer_section_size",
        "http_response_trailer_size",
        "http_response_transfer_coding",
        "http_response_content_coding",
        "http_response_timeout",
        "http_upgrade_failed",
        "http_protocol_error",
        "proxy_internal_response",
        "proxy_internal_error",
        "proxy_configuration_error",
        "proxy_loop_detected",
    ];

    #[test]
    fn every_kind_has_a_registered_type() {
        for kind in FaultKind::ALL {
            assert!(REGISTERED.contains(&kind.proxy_error()), "{kind:?}: {}", kind.proxy_error());
        }
    }
}
