//! Rejections before there is a request or a session: each is counted by its kind, and some leave a line in the error
//! log.

use std::time::{Duration, Instant};

use sigma_config::settings::ListenPlace;
use sigma_http::EarlyRefusal;
use sigma_net::Peer;
use sigma_observe::counters::Counter;
use sigma_observe::throttle::{Allowance, Throttles};

use crate::exchange::PeerText;
use crate::worker::Worker;

/// Lines of one kind, in each worker.
const LINES: Allowance = Allowance { burst: 5, pause: Duration::from_secs(10) };

/// Characters of a detail that a line shows.
const DETAIL_CHARS: usize = 200;

/// The counter of a kind.
fn counter(kind: EarlyRefusal) -> Counter {
    match kind {
        EarlyRefusal::CleartextOnTls => Counter::RefusedCleartext,
        EarlyRefusal::TlsOnCleartext => Counter::RefusedTls,
        EarlyRefusal::UnknownName => Counter::RefusedName,
        EarlyRefusal::NoStreamRoute => Counter::RefusedRoute,
        EarlyRefusal::Handshake => Counter::RefusedHandshake,
        EarlyRefusal::NoDestination => Counter::RefusedDestination,
    }
}

/// Counts and logs a rejection. `detail` may contain bytes of the client.
#[cold]
pub(crate) fn note(
    worker: &Worker,
    kind: EarlyRefusal,
    peer: Peer,
    place: Option<&ListenPlace>,
    detail: &str,
) {
    thread_local! {
        static THROTTLES: Throttles = const { Throttles::new() };
    }
    worker.counters.add(counter(kind), 1);
    let Some(left_out) = THROTTLES.with(|all| all.pass(kind as usize, LINES, Instant::now())) else { return };
    let client = PeerText::of(peer.ip());
    let detail: String = detail.escape_debug().take(DETAIL_CHARS).collect();
    tracing::warn!(
        reason = kind.row().word,
        client = %String::from_utf8_lossy(client.as_bytes()),
        listener = place.map(tracing::field::display),
        left_out,
        "a connection was refused: {detail}"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sigma_observe::counters::{WorkerCounters, merge};

    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_word() {
        for kind in EarlyRefusal::ALL {
            let counters = Arc::new(WorkerCounters::default());
            counters.add(counter(*kind), 1);
            let line = format!("sigma_refusals_total{{kind=\"{}\"}} 1", kind.row().word);
            assert!(merge(&[counters]).render_text(&[]).lines().any(|found| found == line), "{line}");
        }
    }
}
