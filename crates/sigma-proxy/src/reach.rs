//! How the nodes of an upstream are reached: from settings to the terms of a connection.

use sigma_upstream::connection::Dial;
use sigma_upstream::connection::h2::TrunkLimits;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::pool::Target;

use crate::snapshot::{Snapshot, Upstream};

/// What a connection to `endpoint` of `upstream` has to be.
pub(crate) fn target<'t>(
    snapshot: &'t Snapshot,
    upstream: &'t Upstream,
    endpoint: &'t Endpoint,
    connect_ms: u64,
) -> Target<'t> {
    let (http2, limits) = (&snapshot.settings.http2, &snapshot.settings.limits);
    let trunk = TrunkLimits {
        streams: http2.upstream_streams,
        stream_window_bytes: http2.stream_window_bytes,
        connection_window_bytes: http2.connection_window_bytes,
        frame_bytes: http2.frame_bytes,
        header_list_bytes: limits.response_head_bytes,
        send_buffer_bytes: limits.exchange_buffer_bytes as usize,
    };
    let dial = Dial { scheme: upstream.config.scheme, timeout_ms: connect_ms, trunk, tls: None };
    Target { endpoint, dial, limits: upstream.pool }
}
