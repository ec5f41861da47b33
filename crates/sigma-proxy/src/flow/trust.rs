//! Whether the client of an open session would still be let in: its certificate may have been revoked, or other
//! ones may be asked for. A request is judged when it comes; a session has none, so it is looked at.

use std::task::{Context, Poll};

use sigma_http::{Fault, FaultKind};
use sigma_net::Deadline;

use crate::connection::TlsSession;
use crate::worker::Worker;

/// How often a client is looked at that had to show a certificate.
const LOOK_MS: u64 = 1_000;

/// How often others are: the next configuration may ask them for one.
const RARE_LOOK_MS: u64 = 10_000;

/// The client of a session whose TLS ends at the gateway.
#[derive(Debug)]
pub(super) struct Trust {
    session: TlsSession,
    every_ms: u64,
    look: Deadline,
}

impl Trust {
    /// A session of this client begins.
    pub(super) fn watch(session: TlsSession) -> Trust {
        let every_ms = if session.asks() { LOOK_MS } else { RARE_LOOK_MS };
        let look = Deadline::new();
        look.set(every_ms);
        Trust { session, every_ms, look }
    }

    /// Ready when the client is not let in any more, by what is in force now.
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

/// The fault of a client that shows no certificate that is trusted, or does so no longer.
pub(super) fn untrusted(is_open: bool) -> Fault {
    let reason = match is_open {
        false => "client certificate verification is not passed",
        true => "the client's certificate is trusted no longer",
    };
    Fault::new(FaultKind::BadRequest, reason)
}
