//! Timeouts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Timeouts in milliseconds. A coarse clock checks them: they are up to 100 ms late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// From the first byte of a request to the end of its head; then 408.
    pub request_head_ms: u32,
    /// Between two reads of a request body; then 408.
    pub request_body_ms: u32,
    /// Maximum time for a whole request body; then 408. 0: no limit. Only the time in which the gateway waits for the
    /// client counts, until the response begins: slow nodes and rate limits do not use it up.
    pub request_body_total_ms: u32,
    /// Minimum rate of a request body in bytes per second, over the time that `request_body_total_ms` counts; a slower
    /// one gets 408. 0: no limit, for clients that stream little data.
    pub request_body_min_bytes_per_second: u32,
    /// Time at the start of a request body without the minimum rate.
    pub request_body_grace_ms: u32,
    /// Idle timeout of a keep-alive connection.
    pub keepalive_ms: u32,
    /// Age after which a client's connection takes no further request: HTTP/1 gets `Connection: close` with the next
    /// response, HTTP/2 and HTTP/3 get GOAWAY; requests in progress continue. An idle connection is closed. 0: no limit.
    /// It moves clients to new gateways behind a load balancer. Upgraded connections and sessions of stream routes have
    /// no age.
    pub connection_age_ms: u32,
    /// The part of `connection_age_ms`, in percent, by which an age is shortened at random, so that clients that came
    /// together do not reconnect together.
    #[schemars(range(max = 100))]
    pub connection_age_spread_percent: u8,
    /// Time in which a client must read `response_send_bytes` of a waiting response; then the response is cut off.
    pub response_send_ms: u32,
    /// Bytes of a response that a client must read within `response_send_ms`. Without it a client that reads a few
    /// bytes at a time could keep its response in memory forever.
    #[schemars(range(min = 1))]
    pub response_send_bytes: u32,
    /// Time after which a client that closed its sending side counts as gone, if it gets no byte, before or during the
    /// response; then the upstream exchange is cancelled.
    pub half_close_ms: u32,
    /// How long the gateway waits for a node's 100 (Continue) after a client's `Expect: 100-continue`; then it sends
    /// 100 (Continue) itself. 0: it waits for the node.
    pub continue_ms: u32,
    /// Idle timeout of an upgraded connection (WebSocket), without a byte in either direction.
    pub tunnel_idle_ms: u32,
    /// Idle timeout of a session of a stream route, without a byte in either direction. If its upstream has a
    /// `timeout`, its `read` applies instead.
    #[schemars(range(min = 1))]
    pub stream_idle_ms: u32,
    /// Idle timeout of a UDP session, without a datagram in either direction. If its upstream has a `timeout`, its
    /// `read` applies instead. UDP sessions have no other end, and each one holds a socket: nginx's ten minutes are too
    /// long for clients that send one request.
    #[schemars(range(min = 1))]
    pub stream_udp_idle_ms: u32,
    /// Idle timeout of a UDP session until the node has replied. Source addresses can be forged, so such a session is
    /// kept only for a short time, but longer than a node needs to reply.
    #[schemars(range(min = 1))]
    pub stream_udp_new_ms: u32,
    /// Time to wait for the bytes that plugins of a stream route need; then the session is closed.
    #[schemars(range(min = 1))]
    pub stream_preread_ms: u32,
    /// How long connections to a node beyond `keepalive_pool.size` are kept idle, up to a recent peak of use, so that
    /// bursts do not reconnect each time. The peak is halved every 5 seconds. 0: no connections beyond the size.
    pub upstream_burst_ms: u32,
    /// Time for open exchanges to finish after SIGTERM, or after another process has taken over. Then the rest is
    /// ended: a request without a response gets 503, a gRPC call `UNAVAILABLE`.
    pub drain_ms: u32,
    /// The last part of `drain_ms`, in percent, in which WebSockets, other upgraded connections and sessions of stream
    /// routes are ended. Each one is ended at a random time, so that their clients do not reconnect all at once. 0: all
    /// are ended together, `goodbye_ms` before the end.
    #[schemars(range(max = 100))]
    pub drain_spread_percent: u8,
    /// Time for both sides to respond to the end of such a session. Both sides of a WebSocket get a close frame with
    /// 1001; the node of another session gets the end of the client's data.
    pub goodbye_ms: u32,
    /// After another process has taken over: how long the old one keeps idle HTTP/1 connections, so that a request that
    /// is already on its way is served. Each response tells its client to use a new connection.
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
            connection_age_ms: 0,
            connection_age_spread_percent: 10,
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
