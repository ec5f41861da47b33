//! Deadlines of everything that waits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Deadlines in milliseconds. Kept by a coarse clock: they fire up to 100 ms late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// From the first byte of a request to the end of its head; then 408.
    pub request_head_ms: u32,
    /// Between two reads of a request body; then 408.
    pub request_body_ms: u32,
    /// Time that a client may take in all for a request body; then 408. 0: no limit. Only the time counts in which the
    /// gateway waits for the client, until the response begins: neither slow nodes nor rate limits use it up.
    pub request_body_total_ms: u32,
    /// Least rate of a request body in bytes per second, over the time that `request_body_total_ms` counts; below it 408.
    /// 0: no limit, for streams whose clients send little and seldom.
    pub request_body_min_bytes_per_second: u32,
    /// Time at the start of a request body in which that rate does not count.
    pub request_body_grace_ms: u32,
    /// An idle keep-alive connection is closed after this.
    pub keepalive_ms: u32,
    /// Time in which a client has to take `response_send_bytes` of a response that waits for it; then the response is cut
    /// off.
    pub response_send_ms: u32,
    /// Bytes of a response that a client has to take within `response_send_ms`: one that takes a few at a time would keep
    /// its response in memory forever.
    #[schemars(range(min = 1))]
    pub response_send_bytes: u32,
    /// A client that closed its sending side counts as gone after this time without a byte for it, before the response
    /// begins and while it is under way; then the upstream exchange is cancelled.
    pub half_close_ms: u32,
    /// How long a node has to invite a request body that its client sends with `Expect: 100-continue`; then the gateway
    /// sends the client 100 (Continue) itself. 0 waits for the node.
    pub continue_ms: u32,
    /// An upgraded connection (WebSocket) without a byte in either direction is closed after this.
    pub tunnel_idle_ms: u32,
    /// A session of a stream route without a byte in either direction is closed after this, unless its
    /// upstream has a `timeout`, whose `read` then counts.
    #[schemars(range(min = 1))]
    pub stream_idle_ms: u32,
    /// A session over UDP without a datagram in either direction ends after this, unless its upstream has a
    /// `timeout`, whose `read` then counts. UDP has no other end, and each session holds a socket: nginx's ten
    /// minutes are too long for clients that ask once.
    #[schemars(range(min = 1))]
    pub stream_udp_idle_ms: u32,
    /// The same while the node has not replied. A source address can be made up, so such a session is kept for a
    /// short time only. It is longer than a node takes to reply.
    #[schemars(range(min = 1))]
    pub stream_udp_new_ms: u32,
    /// Until the bytes are there that plugins of a stream route wait for; then the session is closed.
    #[schemars(range(min = 1))]
    pub stream_preread_ms: u32,
    /// Connections to a node beyond `keepalive_pool.size` are kept idle for this long, but no more than a
    /// recent peak had in use at once: bursts do not dial anew each time. The peak is forgotten by half
    /// every 5 seconds. 0 keeps none beyond the size.
    pub upstream_burst_ms: u32,
    /// Time for open exchanges to finish after SIGTERM, or after another process has taken over. What is open then is
    /// ended: a request without an answer gets a 503, a call of gRPC the code `UNAVAILABLE`.
    pub drain_ms: u32,
    /// The last part of `drain_ms`, in percent, in which WebSockets, other upgraded connections and sessions of
    /// stream routes are ended, each at a random time, so that their clients do not come back all at once. 0
    /// ends all of them together, `goodbye_ms` before the end.
    #[schemars(range(max = 100))]
    pub drain_spread_percent: u8,
    /// A session that is ended so is told in the way of its protocol: both sides of a WebSocket get a close
    /// frame with 1001, the node of another session the end of what its client sends. This is how long they
    /// have to answer.
    pub goodbye_ms: u32,
    /// After another process has taken over: how long the old one keeps idle connections of HTTP/1, so that a request
    /// which is just on its way is answered. Each answer tells its client to take a new connection.
    pub drain_idle_ms: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            request_head_ms: 60_000,
            request_body_ms: 60_000,
            request_body_total_ms: 0,
            request_body_min_bytes_per_second: 0,
            request_body_grace_ms: 20_000,
            keepalive_ms: 60_000,
            response_send_ms: 60_000,
            response_send_bytes: 1024,
            half_close_ms: 1_000,
            continue_ms: 1_000,
            tunnel_idle_ms: 300_000,
            stream_idle_ms: 600_000,
            stream_udp_idle_ms: 60_000,
            stream_udp_new_ms: 10_000,
            stream_preread_ms: 30_000,
            upstream_burst_ms: 10_000,
            drain_ms: 30_000,
            drain_spread_percent: 50,
            goodbye_ms: 1_000,
            drain_idle_ms: 5_000,
        }
    }
}
