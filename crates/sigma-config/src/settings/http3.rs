//! HTTP/3 of a listener, and to upstreams.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP/3 on the UDP port with the listener's number; `true` means all defaults. Certificates, client certificates and
/// limits of handshakes come from `tls`; `http2` has the limits of useless frames. Windows are also the memory that a
/// client can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http3 {
    /// The port in `Alt-Svc`, if clients reach the UDP port by another number, for example behind a load balancer;
    /// unset: the listener's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub alt_svc_port: Option<u16>,
    /// Seconds for which clients may remember that the listener has HTTP/3; 0 sends no `Alt-Svc`.
    pub alt_svc_max_age: u32,
    /// Maximum number of concurrent requests on one connection; a client waits with more. RFC 9114 recommends at least
    /// 100.
    #[schemars(range(min = 1, max = 65_536))]
    pub concurrent_streams: u32,
    /// Bytes of one request that a client may send before earlier ones are forwarded.
    #[schemars(range(min = 1024, max = 2_147_483_647))]
    pub stream_window_bytes: u32,
    /// The same limit for all streams of a connection together.
    #[schemars(range(min = 16_384, max = 2_147_483_647))]
    pub connection_window_bytes: u32,
    /// Maximum number of bytes of a connection that are sent and not yet acknowledged; they stay in memory until then.
    /// It limits a download to this many bytes per round trip.
    #[schemars(range(min = 16_384, max = 2_147_483_647))]
    pub send_window_bytes: u32,
    /// Milliseconds without any packet after which a connection is dropped. A client may request less.
    #[schemars(range(min = 1_000, max = 600_000))]
    pub idle_timeout_ms: u32,
    /// Number of incomplete handshakes of a worker, above which new clients must first prove their address (Retry). It
    /// costs them a round trip, and forged addresses cost the gateway no memory.
    pub retry_above_handshakes: u32,
    /// Maximum number of incomplete handshakes of a worker; further clients get no response.
    #[schemars(range(min = 1))]
    pub handshakes_per_worker: u32,
    /// Number of QUIC frames without data that a client may send per second (PING, window updates, connection ids, and
    /// others), besides two for each frame of the gateway; more closes the connection with H3_EXCESSIVE_LOAD.
    #[schemars(range(min = 10))]
    pub control_frames_per_second: u32,
    /// Maximum size of a field section in bytes after decompression, with 32 bytes added per field.
    /// `limits.request_head_bytes` also applies.
    #[schemars(range(min = 1024))]
    pub header_list_bytes: u32,
    /// Size in bytes of the table that a client may fill to compress its fields (QPACK); 0 for none.
    #[schemars(range(max = 65_536))]
    pub qpack_table_bytes: u32,
    /// Maximum number of requests that may wait for an update of that table.
    #[schemars(range(max = 100))]
    pub qpack_blocked_streams: u32,
}

impl Default for Http3 {
    fn default() -> Self {
        Http3 {
            alt_svc_port: None,
            alt_svc_max_age: 86_400,
            concurrent_streams: 128,
            stream_window_bytes: 256 * 1024,
            connection_window_bytes: 1024 * 1024,
            send_window_bytes: 1024 * 1024,
            idle_timeout_ms: 30_000,
            retry_above_handshakes: 100,
            handshakes_per_worker: 1_000,
            control_frames_per_second: 1_000,
            header_list_bytes: 32 * 1024,
            qpack_table_bytes: 4096,
            qpack_blocked_streams: 16,
        }
    }
}

/// HTTP/3 to upstreams whose `tls.alpn` has `h3`, or whose nodes announce it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamHttp3 {
    /// Milliseconds for a connection over QUIC alone. Then TCP is tried as well, and the first connection is used.
    #[schemars(range(min = 1, max = 10_000))]
    pub tcp_delay_ms: u32,
    /// Maximum time in milliseconds for the handshake, in addition to `timeout.connect` of the upstream.
    #[schemars(range(min = 100, max = 60_000))]
    pub handshake_timeout_ms: u32,
    /// Milliseconds for which a node that did not respond over QUIC is used over TCP alone.
    #[schemars(range(min = 1_000, max = 86_400_000))]
    pub retry_after_ms: u32,
    /// Maximum time in seconds for which an `Alt-Svc` of a node counts.
    #[schemars(range(min = 1, max = 604_800))]
    pub alt_svc_max_age: u32,
    /// Maximum number of concurrent requests on one connection; further requests open another one, up to
    /// `keepalive_pool.size`. Nodes may set a lower limit.
    #[schemars(range(min = 1, max = 1_000))]
    pub streams: u32,
    /// Bytes of one response that a node may send before earlier ones are forwarded. A connection has this memory for
    /// each of its streams, so clients that read slowly never stop other responses.
    #[schemars(range(min = 16_384, max = 4_194_304))]
    pub stream_window_bytes: u32,
    /// Maximum number of bytes of a connection that are sent and not yet acknowledged; they stay in memory until then.
    #[schemars(range(min = 16_384, max = 2_147_483_647))]
    pub send_window_bytes: u32,
    /// Milliseconds without any packet after which an idle connection is dropped. Nodes may request less.
    #[schemars(range(min = 1_000, max = 600_000))]
    pub idle_timeout_ms: u32,
    /// Milliseconds without any packet after which a connection with requests is dropped. A node that works
    /// acknowledges packets at once, however long its response takes.
    #[schemars(range(min = 500, max = 60_000))]
    pub silence_timeout_ms: u32,
    /// Size in bytes of the table that a node may fill to compress its fields (QPACK); 0 for none.
    #[schemars(range(max = 65_536))]
    pub qpack_table_bytes: u32,
    /// Maximum number of responses that may wait for an update of that table.
    #[schemars(range(max = 100))]
    pub qpack_blocked_streams: u32,
}

impl Default for UpstreamHttp3 {
    fn default() -> Self {
        UpstreamHttp3 {
            tcp_delay_ms: 300,
            handshake_timeout_ms: 5_000,
            retry_after_ms: 300_000,
            alt_svc_max_age: 86_400,
            streams: 100,
            stream_window_bytes: 128 * 1024,
            send_window_bytes: 1024 * 1024,
            idle_timeout_ms: 30_000,
            silence_timeout_ms: 3_000,
            qpack_table_bytes: 4096,
            qpack_blocked_streams: 16,
        }
    }
}
