//! Limits of HTTP/2 connections.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP/2, to clients and to upstreams. Bodies wait in flow-control windows: bytes that are not yet forwarded are not
/// acknowledged. So a window is also the memory that a peer can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http2 {
    /// Maximum number of concurrent requests on one client connection; more are refused and may be repeated. Same as
    /// nginx; RFC 9113 recommends at least 100.
    #[schemars(range(min = 1))]
    pub concurrent_streams: u32,
    /// Maximum size of a header list in bytes after decompression, with 32 bytes added per field. A larger one gets
    /// 431; a several times larger one closes the connection. `limits.request_head_bytes` also applies.
    #[schemars(range(min = 1024))]
    pub header_list_bytes: u32,
    /// Maximum size of a peer's frame in bytes. The minimum keeps a connection responsive to its other streams.
    #[schemars(range(min = 16_384, max = 16_777_215))]
    pub frame_bytes: u32,
    /// Bytes of one body that a peer may send before earlier ones are forwarded. It limits an upload to this many bytes
    /// per round trip.
    #[schemars(range(min = 1024, max = 2_147_483_647))]
    pub stream_window_bytes: u32,
    /// The same limit for all streams of a connection together.
    #[schemars(range(min = 65_535, max = 2_147_483_647))]
    pub connection_window_bytes: u32,
    /// Maximum number of streams per minute that a client may reset (rapid reset), or that end because it breaks a
    /// rule; more closes the connection. The budget is shared with `control_frames_per_second`: a client that has used
    /// half of one has half of the other left.
    pub resets_per_minute: u32,
    /// Maximum number of streams that a client has reset and whose exchanges are not over; more closes the connection.
    pub pending_resets: u32,
    /// Maximum number of control frames that a client may send per second; more closes the connection. Counted are
    /// SETTINGS (one per 16 entries), PING, priorities, WINDOW_UPDATE, empty and unknown frames, and each CONTINUATION.
    /// For each KiB sent to it the client may send one more, and for each DATA frame four more.
    pub control_frames_per_second: u32,
    /// The same limit for a node, which may send four more for each request that it gets. RST_STREAM and heads of
    /// finished streams also count. More closes the connection to the node, which counts as a failure of the node. The
    /// default is far more than servers send, and costs less than a hundredth of a worker's time.
    #[schemars(range(min = 1))]
    pub upstream_control_frames_per_second: u32,
    /// Maximum number of concurrent requests on one upstream connection; further requests open another one, up to
    /// `keepalive_pool.size`. Upstreams may set a lower limit.
    #[schemars(range(min = 1))]
    pub upstream_streams: u32,
    /// Milliseconds after which an upstream connection gets no more requests, if responses that clients do not read
    /// fill its window.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub upstream_crowded_ms: u32,
    /// Milliseconds after that until stalled responses are ended, because other responses on the connection wait for
    /// them. A client that reads 64 KiB, the largest piece, in this time keeps its response; by default this is 4 KiB
    /// per second.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub upstream_stalled_ms: u32,
}

impl Default for Http2 {
    fn default() -> Self {
        Http2 {
            concurrent_streams: 128,
            header_list_bytes: 32 * 1024,
            frame_bytes: 16 * 1024,
            stream_window_bytes: 256 * 1024,
            connection_window_bytes: 1024 * 1024,
            resets_per_minute: 1_000,
            pending_resets: 20,
            control_frames_per_second: 1_000,
            upstream_control_frames_per_second: 10_000,
            upstream_streams: 100,
            upstream_crowded_ms: 1_000,
            upstream_stalled_ms: 14_000,
        }
    }
}
