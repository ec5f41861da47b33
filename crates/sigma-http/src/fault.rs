//! Faults of an exchange: a small vocabulary in the terms of RFC 9209.
//!
//! A fault has a kind and a side. The response, the retry and the counter each depend on this value alone, in one
//! place each.

/// The side of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client
    Downstream,
    /// The upstream
    Upstream,
    /// The gateway's own decision or failure
    Gateway,
}

/// A row of the table of reasons: the cause of an error response, a truncated response, or a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonRow {
    /// The word in bodies, logs and metrics: an error type of RFC 9209 §2.3 if one matches exactly. Kinds of fault
    /// may share a word.
    pub word: &'static str,
    /// The status of the response, or of the access line; None without a response.
    pub status: Option<u16>,
    /// The meaning: a sentence or two.
    pub meaning: &'static str,
    /// The remedy, with links to other pages in Markdown.
    pub remedy: &'static str,
}

impl ReasonRow {
    /// Returns the remedy without Markdown, with the pages of its links in parentheses.
    pub fn plain_remedy(&self) -> String {
        plain(self.remedy)
    }

    /// Returns the rows of faults, of refusals and of plugins, in this order.
    pub fn all() -> impl Iterator<Item = &'static ReasonRow> {
        let faults = FaultKind::ALL.iter().map(|kind| kind.row());
        faults.chain(EarlyRefusal::ALL.iter().map(|kind| kind.row())).chain([&PLUGIN])
    }
}

/// Removes Markdown links; their pages are in parentheses.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split("](").enumerate() {
        match part.split_once(')').filter(|_| at > 0) {
            Some((page, rest)) => {
                let page = page.split('#').next().unwrap_or_default();
                out.push_str(" (docs/");
                out.push_str(page);
                out.push(')');
                out.push_str(&rest.replace('[', ""));
            }
            None => out.push_str(&part.replace('[', "")),
        }
    }
    out
}

/// The row of responses by plugins.
pub static PLUGIN: ReasonRow = ReasonRow {
    word: "plugin",
    status: None,
    meaning: "A plugin of the route made the response. Its name follows the word: `plugin:limit-count`.",
    remedy: "Read the page of the [plugin](plugins/README.md). A limit responds with 503 unless its `rejected_code` is set.",
};

macro_rules! fault_kinds {
    (@first $first:literal $($rest:literal)*) => { $first };
    ($($name:ident $side:ident $status:literal $error_type:literal $(as $proxy:literal)?,
        $meaning:literal, $remedy:literal;)*) => {
        /// A kind of fault. `as usize` is a dense index for counters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FaultKind { $(#[doc = $meaning] $name,)* }

        impl FaultKind {
            /// Every kind, in order of its index.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$name,)*];

            const ROWS: &[ReasonRow] = &[$(ReasonRow {
                word: $error_type,
                status: Some($status),
                meaning: $meaning,
                remedy: $remedy,
            },)*];

            /// Returns its side.
            pub const fn side(self) -> Side {
                match self { $(FaultKind::$name => Side::$side,)* }
            }

            /// Returns its type in `Proxy-Status`: one of the types of RFC 9209 §2.3.
            pub const fn proxy_error(self) -> &'static str {
                match self { $(FaultKind::$name => fault_kinds!(@first $($proxy)? $error_type),)* }
            }
        }
    };
}

impl FaultKind {
    /// Returns its row of the table of reasons.
    pub const fn row(self) -> &'static ReasonRow {
        &FaultKind::ROWS[self as usize]
    }

    /// Returns the word of its row.
    pub const fn error_type(self) -> &'static str {
        self.row().word
    }
}

// Side, status, word and, if it differs, the type of `Proxy-Status`; meaning; remedy.
fault_kinds! {
    BadRequest Downstream 400 "http_request_error",
        "The request breaks HTTP.",
        "`detail` names the rule. Old clients may need a word of `tolerate`.";
    BadPath Downstream 400 "http_request_path_error" as "http_request_error",
        "The path is invalid, or a node may read it in another way than the routes.",
        "Use `router.forward_path: canonical`, or `router.ambiguous_paths: allow`.";
    UriTooLong Downstream 414 "http_request_uri_too_long" as "http_request_error",
        "The request line is over its limit.",
        "Raise `limits.request_line_bytes`.";
    RequestHeadTooLarge Downstream 431 "http_request_header_section_size" as "http_request_error",
        "The request head is over its limits.",
        "Raise `limits.request_head_bytes` or `limits.request_headers`.";
    RequestBodyTooLarge Downstream 413 "http_request_body_size" as "http_request_error",
        "The request body is over a limit.",
        "Raise `limits.request_body_bytes`, or the limit of the plugin that `detail` names.";
    RequestHeadTimeout Downstream 408 "http_request_head_timeout" as "http_request_error",
        "The client did not send the request head in time.",
        "Raise `timeouts.request_head_ms` for slow clients.";
    RequestBodyTimeout Downstream 408 "http_request_body_timeout" as "http_request_error",
        "The client sends the request body too slowly.",
        "Raise the `timeouts.request_body_…` that applies.";
    ResponseSendTimeout Downstream 499 "http_response_send_timeout" as "proxy_internal_error",
        "The client does not read the response. The status is in logs alone.",
        "Raise `timeouts.response_send_ms` for slow clients.";
    ClientGone Downstream 499 "client_gone" as "http_request_error",
        "The client closed the connection. The status is in logs alone.",
        "None for single clients. If many do it, nodes are too slow.";
    MethodRefused Gateway 405 "http_request_denied",
        "Sigma does not serve CONNECT, or `router.methods: known` refuses the method.",
        "Use another method, or `router.methods: any`.";
    NotImplemented Gateway 501 "http_upgrade_refused" as "http_request_denied",
        "The route does not allow the protocol of `Upgrade`.",
        "Set `enable_websocket` or `upgrade_protocols` of the route.";
    Untranslatable Downstream 400 "http_request_untranslatable" as "http_request_error",
        "The protocol of the node cannot express the request.",
        "`detail` names the part.";
    CleartextOnTls Downstream 400 "cleartext_on_tls_listener" as "http_request_error",
        "A client sent a request of HTTP in cleartext to a TLS listener.",
        "Use `https://` in the client.";
    ExpectationFailed Gateway 417 "expectation_failed" as "http_request_error",
        "`Expect` has another value than `100-continue`.",
        "Remove the field in the client.";
    Misdirected Downstream 421 "http_request_misdirected" as "http_request_error",
        "The TLS session of the client is for another host.",
        "The client must open a connection for this host. For client certificates see [TLS](tls.md).";
    Loop Gateway 508 "proxy_loop_detected",
        "The request passed this gateway more often than `limits.loop_passes` allows.",
        "Correct the upstream that leads back; see `limits.loop_passes`.";
    NoRoute Gateway 404 "no_route" as "destination_not_found",
        "No route matches.",
        "`sigma routes -c sigma.yaml METHOD HOST PATH` shows why.";
    MethodNotAllowed Gateway 405 "method_not_allowed" as "http_request_error",
        "A route matches except for the method.",
        "Add the method to `methods`.";
    UnsupportedMediaType Gateway 415 "unsupported_media_type" as "http_request_error",
        "A route matches except for the `Content-Type`.",
        "Correct the route's condition.";
    NotAcceptable Gateway 406 "not_acceptable" as "http_request_error",
        "A route matches except for the types in `Accept`.",
        "Correct the route's condition on `Accept`.";
    NoService Gateway 404 "no_service" as "proxy_configuration_error",
        "The route names a service that does not exist.",
        "Correct `service_id`.";
    NoUpstream Gateway 503 "proxy_configuration_error",
        "The route has no upstream, or an object is quarantined.",
        "`detail` says which; `sigma ctl quarantine` lists quarantined objects.";
    NoNode Upstream 503 "destination_unavailable",
        "The upstream has no node, too few healthy nodes, or lacks the node of the session.",
        "`sigma ctl upstreams` shows the nodes and why they are out.";
    DnsError Upstream 503 "dns_error",
        "The name servers have no address for the node's name.",
        "Correct the name, or `dns.servers`.";
    DnsTimeout Upstream 503 "dns_timeout",
        "No name server responded for the node's name.",
        "Check `dns.servers`.";
    NodesExhausted Upstream 502 "destination_unavailable",
        "All nodes were tried, all are in maintenance, or the time for retries is over.",
        "`sigma ctl upstreams` shows the nodes; the error log has a line for each that failed.";
    ConnectRefused Upstream 502 "connection_refused",
        "The node refused the connection or cannot be reached.",
        "Start the service; check address, port and firewall.";
    ConnectTimeout Upstream 504 "connection_timeout",
        "The node did not accept the connection in time.",
        "Check the network; raise `timeout.connect` of the upstream.";
    TlsProtocol Upstream 502 "tls_protocol_error",
        "The node does not support TLS, or no version or cipher that the upstream allows.",
        "Correct `scheme` or `tls` of the upstream: `http` where the node speaks cleartext.";
    TlsCertificate Upstream 502 "tls_certificate_error",
        "The upstream's settings do not trust the node's certificate.",
        "Set `tls.ca` of the upstream, or correct the expected name; see [TLS to upstreams](tls.md#tls-to-upstreams).";
    TlsAlert Upstream 502 "tls_alert_received",
        "The node ended the TLS handshake with an alert, for example because it wants a client certificate.",
        "Set the upstream's client certificate.";
    ProtocolMismatch Upstream 502 "http_protocol_error",
        "The node does not support the version of HTTP that `scheme` requires.",
        "Correct `scheme` of the upstream.";
    ConnectionTerminated Upstream 502 "connection_terminated",
        "The node closed the connection before a complete response head. A node that expects TLS does so with cleartext.",
        "Read the node's log; use `scheme: https` where the node expects TLS.";
    NodeWithdrawn Upstream 502 "node_withdrawn" as "destination_unavailable",
        "The node was removed or became unhealthy while the session was open.",
        "Clients reconnect.";
    UpstreamSendTimeout Upstream 504 "connection_write_timeout",
        "The node does not read the request.",
        "Check the node; raise `timeout.send` of the upstream.";
    ResponseTimeout Upstream 504 "http_response_timeout",
        "The response did not arrive in time.",
        "Check the node; raise `timeout.read` of the upstream.";
    BadResponse Upstream 502 "http_protocol_error",
        "The response breaks HTTP.",
        "Correct the service; `tolerate` accepts some old servers.";
    ResponseHeadTooLarge Upstream 502 "http_response_header_section_size",
        "The response head is over its limits.",
        "Raise `limits.response_head_bytes` or `limits.response_headers`.";
    ResponseIncomplete Upstream 502 "http_response_incomplete",
        "The response ended before its declared length. If it had begun, the client gets a part and a closed connection.",
        "Read the node's log.";
    ResponseCoding Upstream 502 "http_response_content_coding",
        "The response is not encoded as `Content-Encoding` says.",
        "Correct the service.";
    ResponseBodyTooLarge Gateway 502 "http_response_body_size",
        "A plugin reads the response, and it is over the plugin's limit.",
        "Raise that limit.";
    UpgradeFailed Upstream 502 "http_upgrade_failed",
        "The node changed to a protocol that the client did not request.",
        "Correct the service.";
    Overloaded Gateway 503 "upstream_overloaded" as "connection_limit_reached",
        "The limits of the upstream admit no further request.",
        "See [overload](circuit-breakers.md).";
    BreakerOpen Gateway 503 "circuit_breaker_open" as "destination_unavailable",
        "The circuit breaker of the upstream is open.",
        "Repair the service; see [overload](circuit-breakers.md).";
    GatewayOverloaded Gateway 503 "gateway_overloaded" as "proxy_internal_error",
        "The gateway is short of memory, descriptors or time, and serves more important requests (`load_shedding`).",
        "Add workers or machines.";
    MemoryLimit Gateway 503 "memory_limit_reached" as "proxy_internal_error",
        "Memory for clients is used up.",
        "Raise `limits.held_bytes_per_worker`.";
    Stopping Gateway 503 "gateway_stopping" as "proxy_internal_error",
        "The gateway stops, and the time for open requests has ended.",
        "Clients repeat the request; see `timeouts.drain_ms`.";
    OutOfSockets Gateway 503 "connection_limit_reached",
        "This machine has no descriptor, port or buffer for a connection to a node.",
        "Raise `LimitNOFILE` or `net.ipv4.ip_local_port_range`.";
    Internal Gateway 500 "proxy_internal_error",
        "A resource of the gateway ran out, or Sigma has a fault.",
        "Read the error log; report it.";
}

macro_rules! refusals {
    ($($name:ident $status:expr, $word:literal, $meaning:literal, $remedy:literal;)*) => {
        /// A refusal of a connection before there is a request or a session.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EarlyRefusal { $(#[doc = $meaning] $name,)* }

        impl EarlyRefusal {
            /// Every kind, in order of its index.
            pub const ALL: &[EarlyRefusal] = &[$(EarlyRefusal::$name,)*];

            const ROWS: &[ReasonRow] =
                &[$(ReasonRow { word: $word, status: $status, meaning: $meaning, remedy: $remedy },)*];
        }
    };
}

impl EarlyRefusal {
    /// Returns its row of the table of reasons.
    pub const fn row(self) -> &'static ReasonRow {
        &EarlyRefusal::ROWS[self as usize]
    }
}

refusals! {
    CleartextOnTls Some(400), "cleartext_on_tls_listener",
        "A client sent cleartext to a TLS listener.",
        "Use `https://` in the client. For databases that begin in cleartext see [databases with TLS](databases.md).";
    TlsOnCleartext Some(400), "tls_on_cleartext_listener",
        "A client began TLS on a listener without TLS.",
        "Use `http://` in the client, or give the listener `tls`.";
    UnknownName None, "unknown_server_name",
        "A client sent a server name (SNI) without a certificate, or no server name.",
        "Add a certificate for the name to `ssls` ([TLS](tls.md)).";
    NoStreamRoute None, "no_stream_route",
        "No stream route matches the session.",
        "Correct the conditions of the stream routes ([streams](streams.md)), or send the name (SNI) in the client.";
    Handshake None, "tls_handshake_failed",
        "The TLS handshake with a client failed.",
        "The line of the error log has the cause: versions and ciphers, a certificate that the client does not trust, a client certificate that is missing, or time.";
    NoDestination None, "no_original_destination",
        "A client connected to a listener with `original_destination` itself, without a redirection of the kernel.",
        "Redirect the connections of clients by iptables or nftables ([transparent proxy](transparent-proxy.md)), or remove `original_destination`.";
}

/// A fault: its kind, its side, and the progress of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The broken rule, for logs and the error body. Never peer-supplied text.
    pub reason: &'static str,
}

impl Fault {
    /// Returns a fault of `kind` with its reason.
    pub const fn new(kind: FaultKind, reason: &'static str) -> Fault {
        Fault { kind, reason }
    }

    /// Returns its side.
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
    fn links_become_pages() {
        assert_eq!(plain("See [TLS](tls.md#a), or [b](c.md)."), "See TLS (docs/tls.md), or b (docs/c.md).");
        assert_eq!(plain("Raise it."), "Raise it.");
    }

    #[test]
    fn rows_are_complete() {
        for (at, row) in ReasonRow::all().enumerate() {
            let word = row.word;
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
            for text in [row.meaning, row.remedy] {
                assert!(text.ends_with('.') && !text.contains('|'), "{word}: {text}");
            }
            assert!(row.status.is_none_or(|status| (400..=508).contains(&status)), "{word}");
            let twins = ReasonRow::all().take(at).filter(|other| other.word == word);
            assert!(twins.into_iter().all(|other| other.meaning != row.meaning), "{word} stands twice");
        }
    }

    #[test]
    fn every_kind_has_a_registered_type() {
        for kind in FaultKind::ALL {
            assert!(REGISTERED.contains(&kind.proxy_error()), "{kind:?}: {}", kind.proxy_error());
        }
    }
}
