//! Limits of connections with streams.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP/2, towards clients and towards upstreams. Bodies wait in windows: what is not passed on is
/// not acknowledged, so that a window is also the memory that a peer may take up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http2 {
    /// Requests at a time on one client connection; more are refused and may be repeated. As nginx;
    /// RFC 9113 advises at least 100.
    #[schemars(range(min = 1))]
    pub concurrent_streams: u32,
    /// Largest list of header fields in bytes, each counted with 32 more, after decompression; larger
    /// is answered 431, several times larger closes the connection. `limits.request_head_bytes` applies as well.
    #[schemars(range(min = 1024))]
    pub header_list_bytes: u32,
    /// Largest frame that a peer may send. The smallest keeps a connection
    /// responsive to its other streams.
    #[schemars(range(min = 16_384, max = 16_777_215))]
    pub frame_bytes: u32,
    /// Bytes of one body that a peer may send ahead of what was passed on. Bounds the speed of one
    /// upload to this much per round trip.
    #[schemars(range(min = 1024, max = 2_147_483_647))]
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    #[schemars(range(min = 65_535, max = 2_147_483_647))]
    pub connection_window_bytes: u32,
    /// Streams that a client may take back per minute and connection (rapid reset), or that it may have
    /// taken back by breaking a rule; more closes it. One budget with `control_frames_per_second`: who has
    /// used up half of one has half of the other left.
    pub resets_per_minute: u32,
    /// Streams that a client may have taken back while their exchanges are not over yet; more closes the
    /// connection.
    pub pending_resets: u32,
    /// Frames without a part of a message that a client may send per second, besides one for each KiB and four for
    /// each DATA frame that it was sent: SETTINGS (one for each 16 entries), PING, priorities, WINDOW_UPDATE, empty and
    /// unknown ones, and each CONTINUATION; more closes the connection.
    pub control_frames_per_second: u32,
    /// The same for a node, which also has four more for each request that it is sent. RST_STREAM and heads of streams
    /// that are over count as well. Beyond it the connection to the node ends, which counts as a failure of the node.
    /// Far more than servers send, and less than a hundredth of a worker's time.
    #[schemars(range(min = 1))]
    pub upstream_control_frames_per_second: u32,
    /// Requests at a time on one upstream connection; a further one is opened beyond it, up to
    /// `keepalive_pool.size`. Upstreams may set fewer.
    #[schemars(range(min = 1))]
    pub upstream_streams: u32,
    /// An upstream connection whose window is used up by responses that clients do not take gets no more requests
    /// after this time.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub upstream_crowded_ms: u32,
    /// After so much more the responses are ended of which nothing was taken meanwhile: others on the connection wait
    /// for them. A client that takes 64 KiB, the largest piece, in this time keeps its response, by default 4 KiB a
    /// second.
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
