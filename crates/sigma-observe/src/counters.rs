//! Counters that cost a worker one plain load and one plain store.
//!
//! Each worker writes only its own block, so no read-modify-write is needed. The atomics are for the control thread,
//! which reads them while the worker runs. A reader may see one counter slightly ahead of another; every single value
//! is one that the worker has stored.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error_lines;

/// Slots for faults by kind; the last slot also counts kinds beyond it.
pub const FAULT_SLOTS: usize = 64;

/// The counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Request heads that were read completely.
    Requests,
    /// Finished exchanges, with or without a response
    ExchangesEnded,
    /// Responses 100 to 199 sent downstream.
    Responses1xx,
    /// Responses 200 to 299 sent downstream.
    Responses2xx,
    /// Responses 300 to 399 sent downstream.
    Responses3xx,
    /// Responses 400 to 499 sent downstream.
    Responses4xx,
    /// Responses 500 and above sent downstream.
    Responses5xx,
    /// Accepted downstream connections
    ConnectionsAccepted,
    /// Downstream connections closed at once, because their address had reached its limit
    ConnectionsRefusedAddress,
    /// Open downstream connections; goes up and down
    ConnectionsActive,
    /// Bytes read from downstream.
    BytesIn,
    /// Bytes written downstream.
    BytesOut,
    /// Connections opened to upstream nodes.
    UpstreamConnects,
    /// Exchanges that found an idle upstream connection, or one with room.
    UpstreamReuses,
    /// Exchanges that waited for a stream on a shared upstream connection
    UpstreamWaits,
    /// Upstream connections without an exchange; goes up and down
    UpstreamIdle,
    /// Idle upstream connections kept beyond the pool's size for a recent peak; goes up and down
    UpstreamIdleBeyondSize,
    /// Idle upstream connections that were closed because there were too many.
    UpstreamClosedForRoom,
    /// Connections to upstream nodes over QUIC.
    UpstreamQuicConnects,
    /// Connections to upstream nodes over QUIC that failed, mostly because the node does not respond.
    UpstreamQuicFailures,
    /// Attempts after an exchange's first.
    UpstreamRetries,
    /// Attempts prevented by a retry budget
    UpstreamRetriesOverBudget,
    /// Hedged requests: second attempts while the first has no response
    UpstreamHedges,
    /// Hedged requests whose second attempt responded first
    UpstreamHedgesWon,
    /// Requests rejected by the limits of an upstream
    UpstreamRefusedLimit,
    /// Requests rejected by a circuit breaker
    UpstreamRefusedBreaker,
    /// Requests rejected by admission control
    UpstreamRefusedAdmission,
    /// Requests rejected by adaptive concurrency
    UpstreamRefusedConcurrency,
    /// Requests that one of them would have rejected without its dry run
    UpstreamRefusedDryRun,
    /// Requests rejected because the gateway runs out of resources
    RequestsShed,
    /// Requests that would have been rejected for that without a dry run
    RequestsShedDryRun,
    /// Bytes held for clients; goes up and down
    HeldBytes,
    /// Requests and bodies rejected because the limit of held bytes is reached
    HeldBytesRefused,
    /// Exchanges without progress that were ended because too many bytes are held
    HeldBytesRevoked,
    /// Access lines dropped because the writer was behind, or lost in a failed write
    AccessLinesDropped,
    /// Lines of the error log that were dropped or lost; counted by the process, not by workers
    ErrorLinesDropped,
    /// TLS handshakes with clients that succeeded.
    TlsHandshakes,
    /// Failed TLS handshakes with clients
    TlsHandshakeFailures,
    /// Safe requests in early data, served before the end of the handshake
    EarlyRequests,
    /// Other requests in early data, which waited for the handshake
    EarlyRequestsDelayed,
    /// Clients over QUIC that had to prove their address first
    QuicRetries,
    /// Clients over QUIC without a response: too many handshakes were incomplete
    QuicIgnored,
    /// Packets of QUIC passed to their worker, or to the process before
    QuicForwarded,
    /// Packets of QUIC whose worker could not take them
    QuicDropped,
    /// Packets of QUIC whose connection id was retired before they arrived
    QuicLate,
    /// Connections over QUIC ended because of too many frames without data
    QuicFloods,
    /// WebSockets opened by `Upgrade` (RFC 6455).
    WebsocketsByUpgrade,
    /// Open WebSockets by `Upgrade`; goes up and down
    WebsocketsByUpgradeActive,
    /// WebSockets opened by extended CONNECT (RFC 8441).
    WebsocketsByConnect,
    /// Open WebSockets by CONNECT; goes up and down
    WebsocketsByConnectActive,
    /// Bytes read from clients in WebSockets, counted as they pass.
    WebsocketBytesIn,
    /// Bytes for clients in WebSockets, counted as they pass.
    WebsocketBytesOut,
    /// Sessions on listeners for streams.
    StreamSessions,
    /// Open sessions on listeners for streams; goes up and down
    StreamSessionsActive,
    /// Sessions closed by plugins
    StreamSessionsRefused,
    /// Sessions ended because their client's certificate is no longer trusted
    StreamSessionsDistrusted,
    /// UDP sessions evicted for others
    StreamSessionsEvicted,
    /// Bytes from clients to nodes in sessions, counted as they pass.
    StreamBytesIn,
    /// Bytes from nodes to clients in sessions, counted as they pass.
    StreamBytesOut,
    /// Datagrams from clients sent to nodes
    StreamDatagramsIn,
    /// Datagrams from nodes sent to clients
    StreamDatagramsOut,
    /// Dropped datagrams, of either side: too large, or without room to wait
    StreamDatagramsDropped,
    /// Datagrams of clients without room for a session
    StreamDatagramsRefused,
    /// Datagrams rejected because their source address has reached its limit of sessions
    StreamDatagramsRefusedAddress,
    /// Datagrams rejected because their source network has reached its limit of sessions
    StreamDatagramsRefusedNetwork,
    /// HTTP/2 streams cancelled by clients
    GlitchesReset,
    /// HTTP/2 streams ended because the client broke a rule
    GlitchesStreamError,
    /// HTTP/2 heads that exceed a limit or break a rule
    GlitchesHead,
    /// HTTP/2 streams beyond a client's limit
    GlitchesRefused,
    /// HTTP/2 control frames: PING, SETTINGS, priorities, unknown ones
    GlitchesControl,
    /// WINDOW_UPDATE frames of clients.
    GlitchesWindow,
    /// Useless empty HTTP/2 frames
    GlitchesEmpty,
    /// CONTINUATION frames of clients.
    GlitchesContinuation,
    /// Cleartext connections on TLS listeners
    RefusedCleartext,
    /// TLS connections on cleartext listeners
    RefusedTls,
    /// Handshakes for names without a certificate.
    RefusedName,
    /// Sessions without a stream route
    RefusedRoute,
    /// Handshakes that failed for another reason.
    RefusedHandshake,
    /// Connections without an original destination
    RefusedDestination,
}

impl Counter {
    /// Returns true if it can also go down.
    fn is_gauge(self) -> bool {
        matches!(
            self,
            Counter::ConnectionsActive
                | Counter::HeldBytes
                | Counter::UpstreamIdle
                | Counter::UpstreamIdleBeyondSize
                | Counter::StreamSessionsActive
                | Counter::WebsocketsByUpgradeActive
                | Counter::WebsocketsByConnectActive
        )
    }
}

/// The prefix of counters that are kinds of one metric with a label.
const KINDS: &str = "refusals_";

/// Every counter with its public name, in the order of [`Counter`].
const NAMES: [(Counter, &str); 79] = [
    (Counter::Requests, "requests"),
    (Counter::ExchangesEnded, "exchanges_ended"),
    (Counter::Responses1xx, "responses_1xx"),
    (Counter::Responses2xx, "responses_2xx"),
    (Counter::Responses3xx, "responses_3xx"),
    (Counter::Responses4xx, "responses_4xx"),
    (Counter::Responses5xx, "responses_5xx"),
    (Counter::ConnectionsAccepted, "connections_accepted"),
    (Counter::ConnectionsRefusedAddress, "connections_refused_address"),
    (Counter::ConnectionsActive, "connections_active"),
    (Counter::BytesIn, "bytes_in"),
    (Counter::BytesOut, "bytes_out"),
    (Counter::UpstreamConnects, "upstream_connects"),
    (Counter::UpstreamReuses, "upstream_reuses"),
    (Counter::UpstreamWaits, "upstream_waits"),
    (Counter::UpstreamIdle, "upstream_idle"),
    (Counter::UpstreamIdleBeyondSize, "upstream_idle_beyond_size"),
    (Counter::UpstreamClosedForRoom, "upstream_closed_for_room"),
    (Counter::UpstreamQuicConnects, "upstream_quic_connects"),
    (Counter::UpstreamQuicFailures, "upstream_quic_failures"),
    (Counter::UpstreamRetries, "upstream_retries"),
    (Counter::UpstreamRetriesOverBudget, "upstream_retries_over_budget"),
    (Counter::UpstreamHedges, "upstream_hedges"),
    (Counter::UpstreamHedgesWon, "upstream_hedges_won"),
    (Counter::UpstreamRefusedLimit, "upstream_refused_limit"),
    (Counter::UpstreamRefusedBreaker, "upstream_refused_breaker"),
    (Counter::UpstreamRefusedAdmission, "upstream_refused_admission"),
    (Counter::UpstreamRefusedConcurrency, "upstream_refused_concurrency"),
    (Counter::UpstreamRefusedDryRun, "upstream_refused_dry_run"),
    (Counter::RequestsShed, "requests_shed"),
    (Counter::RequestsShedDryRun, "requests_shed_dry_run"),
    (Counter::HeldBytes, "held_bytes"),
    (Counter::HeldBytesRefused, "held_bytes_refused"),
    (Counter::HeldBytesRevoked, "held_bytes_revoked"),
    (Counter::AccessLinesDropped, "access_lines_dropped"),
    (Counter::ErrorLinesDropped, "error_lines_dropped"),
    (Counter::TlsHandshakes, "tls_handshakes"),
    (Counter::TlsHandshakeFailures, "tls_handshake_failures"),
    (Counter::EarlyRequests, "early_requests"),
    (Counter::EarlyRequestsDelayed, "early_requests_delayed"),
    (Counter::QuicRetries, "quic_retries"),
    (Counter::QuicIgnored, "quic_ignored"),
    (Counter::QuicForwarded, "quic_forwarded"),
    (Counter::QuicDropped, "quic_dropped"),
    (Counter::QuicLate, "quic_late"),
    (Counter::QuicFloods, "quic_floods"),
    (Counter::WebsocketsByUpgrade, "websockets_by_upgrade"),
    (Counter::WebsocketsByUpgradeActive, "websockets_by_upgrade_active"),
    (Counter::WebsocketsByConnect, "websockets_by_connect"),
    (Counter::WebsocketsByConnectActive, "websockets_by_connect_active"),
    (Counter::WebsocketBytesIn, "websocket_bytes_in"),
    (Counter::WebsocketBytesOut, "websocket_bytes_out"),
    (Counter::StreamSessions, "stream_sessions"),
    (Counter::StreamSessionsActive, "stream_sessions_active"),
    (Counter::StreamSessionsRefused, "stream_sessions_refused"),
    (Counter::StreamSessionsDistrusted, "stream_sessions_distrusted"),
    (Counter::StreamSessionsEvicted, "stream_sessions_evicted"),
    (Counter::StreamBytesIn, "stream_bytes_in"),
    (Counter::StreamBytesOut, "stream_bytes_out"),
    (Counter::StreamDatagramsIn, "stream_datagrams_in"),
    (Counter::StreamDatagramsOut, "stream_datagrams_out"),
    (Counter::StreamDatagramsDropped, "stream_datagrams_dropped"),
    (Counter::StreamDatagramsRefused, "stream_datagrams_refused"),
    (Counter::StreamDatagramsRefusedAddress, "stream_datagrams_refused_address"),
    (Counter::StreamDatagramsRefusedNetwork, "stream_datagrams_refused_network"),
    (Counter::GlitchesReset, "http2_glitches_reset"),
    (Counter::GlitchesStreamError, "http2_glitches_stream_error"),
    (Counter::GlitchesHead, "http2_glitches_head"),
    (Counter::GlitchesRefused, "http2_glitches_refused"),
    (Counter::GlitchesControl, "http2_glitches_control"),
    (Counter::GlitchesWindow, "http2_glitches_window"),
    (Counter::GlitchesEmpty, "http2_glitches_empty"),
    (Counter::GlitchesContinuation, "http2_glitches_continuation"),
    (Counter::RefusedCleartext, "refusals_cleartext_on_tls_listener"),
    (Counter::RefusedTls, "refusals_tls_on_cleartext_listener"),
    (Counter::RefusedName, "refusals_unknown_server_name"),
    (Counter::RefusedRoute, "refusals_no_stream_route"),
    (Counter::RefusedHandshake, "refusals_tls_handshake_failed"),
    (Counter::RefusedDestination, "refusals_no_original_destination"),
];

/// One worker's counters. Only that worker writes them; any thread may read them.
///
/// Aligned to two cache lines (x86 prefetches lines in pairs), so that no other data shares one.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerCounters {
    values: [AtomicU64; NAMES.len()],
    faults: [AtomicU64; FAULT_SLOTS],
    /// Access lines of this worker that the log writer has lost; only that thread writes it.
    lines_lost: AtomicU64,
    /// The store's revision in use by the worker.
    revision: AtomicU64,
    /// Changes as long as the worker runs.
    beat: AtomicU64,
}

impl Default for WorkerCounters {
    fn default() -> Self {
        WorkerCounters {
            values: [const { AtomicU64::new(0) }; NAMES.len()],
            faults: [const { AtomicU64::new(0) }; FAULT_SLOTS],
            lines_lost: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            beat: AtomicU64::new(0),
        }
    }
}

impl WorkerCounters {
    /// Sets the store's revision in use by the worker.
    pub fn set_revision(&self, revision: u64) {
        self.revision.store(revision, Ordering::Relaxed);
    }

    /// Returns the store's revision in use by the worker; 0 for a file.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Sends a sign of life. Only for the owning worker.
    pub fn beat(&self) {
        bump(&self.beat, 1);
    }

    /// Returns a number that changes as long as the worker runs.
    pub fn beats(&self) -> u64 {
        self.beat.load(Ordering::Relaxed)
    }

    /// Adds `n`. Only for the owning worker: two writers would lose counts.
    pub fn add(&self, counter: Counter, n: u64) {
        bump(&self.values[counter as usize], n);
    }

    /// Lowers a gauge; never below 0. Only for the owning worker.
    pub fn lower(&self, counter: Counter, n: u64) {
        let cell = &self.values[counter as usize];
        cell.store(cell.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

    /// Sets a gauge. Only for the owning worker.
    pub fn set(&self, counter: Counter, value: u64) {
        self.values[counter as usize].store(value, Ordering::Relaxed);
    }

    /// Counts a response by the class of its status. Only for the owning worker.
    pub fn add_response(&self, status: u16) {
        let class = match status {
            0..200 => Counter::Responses1xx,
            200..300 => Counter::Responses2xx,
            300..400 => Counter::Responses3xx,
            400..500 => Counter::Responses4xx,
            500.. => Counter::Responses5xx,
        };
        self.add(class, 1);
    }

    /// Counts a fault by the number of its kind. Only for the owning worker.
    pub fn add_fault(&self, kind: usize) {
        bump(&self.faults[kind.min(FAULT_SLOTS - 1)], 1);
    }

    /// Counts access lines that were queued and could not be written. They count as dropped too, but in a separate
    /// cell, as the worker's cell has one writer already. Only for the log writer.
    pub(crate) fn lose_lines(&self, lines: u64) {
        self.lines_lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Sets the counts of another process, by name. Unknown names are ignored. Only before the owning worker starts.
    pub fn begin_with(
        &self,
        counters: &BTreeMap<String, u64>,
        faults: &BTreeMap<String, u64>,
        fault_names: &[&str],
    ) {
        for (counter, name) in NAMES.iter().filter(|(counter, _)| !counter.is_gauge()) {
            if let Some(&count) = counters.get(*name) {
                self.add(*counter, count);
            }
        }
        for (name, &count) in faults {
            if let Some(kind) = fault_names.iter().position(|known| known == name) {
                bump(&self.faults[kind.min(FAULT_SLOTS - 1)], count);
            }
        }
    }

    /// Returns the current value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        let value = self.values[counter as usize].load(Ordering::Relaxed);
        match counter {
            Counter::AccessLinesDropped => value.wrapping_add(self.lines_lost.load(Ordering::Relaxed)),
            _ => value,
        }
    }
}

/// Uses a load and a store instead of a locked add: there is one writer.
fn bump(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The sums over all workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    values: [u64; NAMES.len()],
    faults: [u64; FAULT_SLOTS],
}

/// Sums up the current counters of all workers.
pub fn merge(workers: &[Arc<WorkerCounters>]) -> Totals {
    let mut totals = Totals { values: [0; NAMES.len()], faults: [0; FAULT_SLOTS] };
    for worker in workers {
        for (sum, cell) in totals.values.iter_mut().zip(&worker.values) {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        }
        totals.add(Counter::AccessLinesDropped, worker.lines_lost.load(Ordering::Relaxed));
        for (sum, cell) in totals.faults.iter_mut().zip(&worker.faults) {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        }
    }
    totals.values[Counter::ErrorLinesDropped as usize] = error_lines::dropped();
    totals
}

impl Totals {
    /// Adds a count from another source.
    pub fn add(&mut self, counter: Counter, n: u64) {
        let sum = &mut self.values[counter as usize];
        *sum = sum.wrapping_add(n);
    }

    /// Returns the sum of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Returns the sum of one kind of fault.
    pub fn fault(&self, kind: usize) -> u64 {
        self.faults[kind.min(FAULT_SLOTS - 1)]
    }

    /// Returns the counters that only grow, and the faults that occurred, by name, for [`WorkerCounters::begin_with`]
    /// of another process.
    pub fn by_name(&self, fault_names: &[&str]) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        let growing = NAMES.iter().filter(|(counter, _)| !counter.is_gauge());
        let counters = growing.map(|(counter, name)| ((*name).to_owned(), self.get(*counter))).collect();
        let faults = self.occurred(fault_names).into_iter().map(|(name, count)| (name.to_owned(), count));
        (counters, faults.collect())
    }

    /// Formats `name value` lines, which Prometheus can scrape directly.
    ///
    /// `fault_names[kind]` is the name of a kind of fault; only faults that occurred are listed.
    pub fn render_text(&self, fault_names: &[&str]) -> String {
        let mut out = String::with_capacity(1024);
        for (counter, name) in NAMES {
            let suffix = if counter.is_gauge() { "" } else { "_total" };
            // Writing to a String cannot fail.
            let _ = match name.strip_prefix(KINDS) {
                Some(kind) => {
                    writeln!(out, "sigma_refusals_total{{kind=\"{kind}\"}} {}", self.get(counter))
                }
                None => writeln!(out, "sigma_{name}{suffix} {}", self.get(counter)),
            };
        }
        for (name, count) in self.occurred(fault_names) {
            let _ = writeln!(out, "sigma_faults_total{{kind=\"{name}\"}} {count}");
        }
        out
    }

    /// Formats one JSON object; faults that occurred are a nested object.
    pub fn render_json(&self, fault_names: &[&str]) -> String {
        let mut out = String::with_capacity(1024);
        for (counter, name) in NAMES {
            let separator = if out.is_empty() { '{' } else { ',' };
            let _ = write!(out, "{separator}\"{name}\":{}", self.get(counter));
        }
        out.push_str(",\"faults\":{");
        for (i, (name, count)) in self.occurred(fault_names).into_iter().enumerate() {
            let separator = if i == 0 { "" } else { "," };
            let _ = write!(out, "{separator}\"{name}\":{count}");
        }
        out.push_str("}}");
        out
    }

    /// Returns names and sums of the faults that occurred. Kinds with the same name are summed up: a repeated series
    /// or member would be malformed.
    fn occurred<'a>(&self, names: &[&'a str]) -> Vec<(&'a str, u64)> {
        let mut sums: Vec<(&str, u64)> = Vec::new();
        for (kind, &count) in self.faults.iter().enumerate().filter(|(_, count)| **count > 0) {
            // Names are tokens of lower-case letters and `_`, which need no quotes in either format.
            let name = names.get(kind).copied().unwrap_or("other");
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name, count)),
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_counters() {
        for (i, (counter, name)) in NAMES.iter().enumerate() {
            assert_eq!(*counter as usize, i, "{name}");
        }
    }

    #[test]
    fn responses_fall_into_classes() {
        let cases = [
            (101, Counter::Responses1xx),
            (200, Counter::Responses2xx),
            (299, Counter::Responses2xx),
            (304, Counter::Responses3xx),
            (404, Counter::Responses4xx),
            (502, Counter::Responses5xx),
            (999, Counter::Responses5xx),
        ];
        for (status, class) in cases {
            let counters = WorkerCounters::default();
            counters.add_response(status);
            for (counter, name) in NAMES {
                assert_eq!(counters.get(counter), u64::from(counter == class), "{status}: {name}");
            }
        }
    }

    #[test]
    fn a_process_begins_with_the_counts_of_the_previous_one() {
        let before = Arc::new(WorkerCounters::default());
        before.add(Counter::Requests, 5);
        before.add(Counter::ConnectionsActive, 3);
        before.add_fault(1);
        let names = ["first", "second"];
        let (mut counters, faults) = merge(&[before]).by_name(&names);
        counters.insert("of_the_future".to_owned(), 9);
        let next = Arc::new(WorkerCounters::default());
        next.add(Counter::Requests, 1);
        next.begin_with(&counters, &faults, &["other", "first", "second"]);
        assert_eq!((next.get(Counter::Requests), next.get(Counter::ConnectionsActive)), (6, 0));
        let totals = merge(&[next]);
        assert_eq!((totals.fault(1), totals.fault(2)), (0, 1));
    }

    #[test]
    fn workers_add_up() {
        let workers: Vec<_> = (1..=3).map(|_| Arc::new(WorkerCounters::default())).collect();
        for (i, worker) in workers.iter().enumerate() {
            worker.add(Counter::BytesIn, 10 + i as u64);
            worker.add(Counter::ConnectionsActive, 2);
            worker.lower(Counter::ConnectionsActive, 1);
            worker.lower(Counter::UpstreamRetries, 5);
            worker.add_fault(1);
        }
        workers[0].add_fault(FAULT_SLOTS + 7);
        let totals = merge(&workers);
        assert_eq!(totals.get(Counter::BytesIn), 33);
        assert_eq!(totals.get(Counter::ConnectionsActive), 3);
        assert_eq!(totals.get(Counter::UpstreamRetries), 0);
        assert_eq!(totals.fault(1), 3);
        assert_eq!(totals.fault(FAULT_SLOTS - 1), 1);
        assert_eq!(merge(&[]).get(Counter::Requests), 0);
    }

    #[test]
    fn renders_both_forms() {
        let worker = Arc::new(WorkerCounters::default());
        worker.add(Counter::Requests, 7);
        worker.add(Counter::ConnectionsActive, 1);
        worker.add(Counter::WebsocketsByConnect, 2);
        worker.add(Counter::WebsocketsByConnectActive, 1);
        worker.add(Counter::RefusedName, 4);
        worker.add_fault(1);
        worker.add_fault(2);
        worker.add_fault(30);
        worker.add_fault(31);
        let totals = merge(&[worker]);
        let names = ["dns_timeout", "connection_refused", "connection_refused"];
        let text = totals.render_text(&names);
        for line in [
            "sigma_requests_total 7",
            "sigma_connections_active 1",
            "sigma_bytes_out_total 0",
            "sigma_websockets_by_connect_total 2",
            "sigma_websockets_by_connect_active 1",
            "sigma_websockets_by_upgrade_active 0",
            "sigma_refusals_total{kind=\"unknown_server_name\"} 4",
            "sigma_faults_total{kind=\"connection_refused\"} 2",
            "sigma_faults_total{kind=\"other\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
        }
        assert_eq!(text.lines().count(), NAMES.len() + 2);
        let json = totals.render_json(&names);
        assert!(json.starts_with("{\"requests\":7,\"exchanges_ended\":0,"), "{json}");
        assert!(json.ends_with(",\"faults\":{\"connection_refused\":2,\"other\":2}}"), "{json}");
        assert!(merge(&[]).render_json(&names).ends_with(",\"faults\":{}}"));
    }

    #[test]
    fn a_reader_never_sees_a_count_go_back() {
        let worker = Arc::new(WorkerCounters::default());
        let written = worker.clone();
        let writer = std::thread::spawn(move || (0..100_000).for_each(|_| written.add(Counter::Requests, 1)));
        let mut last = 0;
        while !writer.is_finished() {
            let now = worker.get(Counter::Requests);
            assert!(now >= last);
            last = now;
        }
        assert!(writer.join().is_ok());
        assert_eq!(worker.get(Counter::Requests), 100_000);
    }

    #[test]
    fn blocks_share_no_cache_line() {
        assert_eq!(align_of::<WorkerCounters>(), 128);
        assert_eq!(size_of::<WorkerCounters>() % 128, 0);
    }
}
