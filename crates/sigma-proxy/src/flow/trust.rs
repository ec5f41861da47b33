//! A repeated check that the client of an open session would still be admitted: its certificate may have been
//! revoked, or another one may be required. A request is checked when it comes; a session has no requests, so it is
//! checked now and then.

use std::task::{Context, Poll};

use sigma_http::{Fault, FaultKind};
use sigma_net::Deadline;

use crate::edge::connection::TlsSession;
use crate::worker::Worker;

/// How often a client with a required certificate is checked.
const LOOK_MS: u64 = 1_000;

/// How often others are: the next configuration may require one.
const RARE_LOOK_MS: u64 = 10_000;

/// The client of a session whose TLS ends at the gateway.
#[derive(Debug)]
pub(super) struct Trust {
    session: TlsSession,
    every_ms: u64,
    look: Deadline,
}

impl Trust {
    /// Begins to watch a session of this client.
    pub(super) fn watch(session: TlsSession) -> Trust {
        let every_ms = if session.asks() { LOOK_MS } else { RARE_LOOK_MS };
        let look = Deadline::new();
        look.set(every_ms);
        Trust { session, every_ms, look }
    }

    /// Ready when the current rules would reject the client.
    pub(super) fn poll(&self, worker: &Worker, cx: &mut Context<'_>) -> Poll<()> {
        while self.look.poll_expired(cx).is_ready() {
            if !self.session.admits(&worker.view().snapshot.certificates) {
                return Poll::Ready(());
            }
            self.look.set(self.every_ms);
        }
        Poll::Pending
    }
}

/// Returns the fault of a client without a trusted certificate, or whose certificate is trusted no longer.
pub(super) fn untrusted(is_open: bool) -> Fault {
    let reason = match is_open {
        false => "client certificate verification is not passed",
        true => "the client's certificate is no longer trusted",
    };
    Fault::new(FaultKind::BadRequest, reason)
}
