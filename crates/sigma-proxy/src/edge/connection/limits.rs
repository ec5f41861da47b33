//! The limits of clients' connections, from the settings.

use sigma_config::settings::{Http3, Settings, Tolerate};
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_net::quic::QuicLimits;
use sigma_upstream::dial::{DialLimits, QuicDial};
use sigma_wire::h1::ServerLimits;
use sigma_wire::h2::{self, FloodLimits, FlowWindows, SessionLimits};
use sigma_wire::h3;

/// Returns the limits of a connection.
pub(crate) fn server_limits(settings: &Settings) -> ServerLimits {
    let (limits, timeouts) = (&settings.limits, &settings.timeouts);
    ServerLimits {
        head: HeadLimits {
            line_bytes: limits.request_line_bytes as usize,
            head_bytes: limits.request_head_bytes as usize,
            fields: usize::from(limits.request_headers),
            tolerance: tolerance(settings),
        },
        body_bytes: limits.request_body_bytes,
        requests: limits.keepalive_requests,
        head_ms: timeouts.request_head_ms.into(),
        idle_ms: timeouts.keepalive_ms.into(),
        half_close_ms: timeouts.half_close_ms.into(),
        alternative: None,
    }
}

/// Returns the limits of response heads from nodes.
pub(crate) fn answer_limits(settings: &Settings) -> HeadLimits {
    let head_bytes = settings.limits.response_head_bytes as usize;
    HeadLimits {
        line_bytes: head_bytes,
        head_bytes,
        fields: usize::from(settings.limits.response_headers),
        tolerance: tolerance(settings),
    }
}

/// Returns the limits of a connection with streams.
pub(crate) fn session_limits(settings: &Settings) -> SessionLimits {
    let (timeouts, http2) = (&settings.timeouts, &settings.http2);
    let ServerLimits { head, body_bytes, requests, head_ms, idle_ms, .. } = server_limits(settings);
    SessionLimits {
        head,
        body_bytes,
        requests,
        head_ms,
        idle_ms,
        send_ms: timeouts.response_send_ms.into(),
        progress_bytes: timeouts.response_send_bytes.into(),
        streams: http2.concurrent_streams,
        header_list_bytes: http2.header_list_bytes,
        frame_bytes: http2.frame_bytes,
        windows: FlowWindows {
            stream_bytes: http2.stream_window_bytes,
            connection_bytes: http2.connection_window_bytes,
        },
        pending_resets: http2.pending_resets as usize,
        flood: FloodLimits {
            resets_per_minute: http2.resets_per_minute,
            controls_per_second: http2.control_frames_per_second,
        },
    }
}

/// Returns the limits of a connection of HTTP/3; the defaults without settings.
pub(crate) fn h3_limits(settings: &Settings, http3: Option<&Http3>) -> h3::SessionLimits {
    let default = Http3::default();
    let http3 = http3.unwrap_or(&default);
    let SessionLimits { head, body_bytes, requests, head_ms, idle_ms, pending_resets, flood, .. } =
        session_limits(settings);
    h3::SessionLimits {
        head,
        body_bytes,
        requests,
        head_ms,
        idle_ms,
        streams: http3.concurrent_streams,
        pending_resets,
        header_list_bytes: http3.header_list_bytes,
        table_bytes: http3.qpack_table_bytes,
        blocked_streams: http3.qpack_blocked_streams,
        flood,
    }
}

/// The largest chain of certificates of a node, with the rest of its handshake.
const NODE_HANDSHAKE_BYTES: usize = 64 * 1024;

/// Returns the limits of connections to nodes for several exchanges.
pub(crate) fn dial_limits(settings: &Settings) -> DialLimits {
    let http2 = &settings.http2;
    let shared = h2::SharedLimits {
        head: answer_limits(settings),
        streams: http2.upstream_streams,
        windows: FlowWindows {
            stream_bytes: http2.stream_window_bytes,
            connection_bytes: http2.connection_window_bytes,
        },
        frame_bytes: http2.frame_bytes,
        header_list_bytes: settings.limits.response_head_bytes,
        controls_per_second: http2.upstream_control_frames_per_second,
        crowded_ms: http2.upstream_crowded_ms.into(),
        stalled_ms: http2.upstream_stalled_ms.into(),
    };
    DialLimits { shared, quic: quic_dial(settings) }
}

/// Returns the limits and times of connections to nodes over QUIC.
fn quic_dial(settings: &Settings) -> QuicDial {
    let http3 = &settings.http3;
    // Unidirectional streams of the node are read at once; they have the window of one more stream.
    let window_bytes = http3.stream_window_bytes.saturating_mul(http3.streams.saturating_add(1));
    QuicDial {
        shared: h3::SharedLimits {
            head: answer_limits(settings),
            streams: http3.streams,
            header_list_bytes: settings.limits.response_head_bytes,
            table_bytes: http3.qpack_table_bytes,
            blocked_streams: http3.qpack_blocked_streams,
            controls_per_second: settings.http2.upstream_control_frames_per_second,
            silence_ms: http3.silence_timeout_ms.into(),
        },
        transport: QuicLimits {
            streams: 0,
            stream_window_bytes: http3.stream_window_bytes,
            window_bytes,
            send_window_bytes: http3.send_window_bytes,
            idle_ms: http3.idle_timeout_ms.into(),
            handshake_ms: http3.handshake_timeout_ms.into(),
            hello_bytes: NODE_HANDSHAKE_BYTES,
            ..QuicLimits::default()
        },
        tcp_delay_ms: http3.tcp_delay_ms.into(),
        retry_after_ms: http3.retry_after_ms.into(),
        announcement_ms: u64::from(http3.alt_svc_max_age) * 1_000,
    }
}

/// Returns the deviations from the strict grammar that the settings accept.
fn tolerance(settings: &Settings) -> Tolerance {
    let Tolerate { lone_percent, raw_utf8, empty_host, bare_lf, equal_lengths } = settings.tolerate;
    Tolerance { lone_percent, raw_utf8, empty_host, bare_lf, equal_lengths }
}
