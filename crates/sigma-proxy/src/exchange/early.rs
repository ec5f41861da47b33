//! Requests in early data (RFC 8470): until the end of the handshake they may be a replay.
//!
//! A safe request without a body continues, marked for nodes by `Early-Data: 1`; routes and plugins can refuse it by
//! that field. Every other request waits for the handshake, because a replay of it could do something twice.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use sigma_http::{Fault, Method};
use sigma_net::Deadline;
use sigma_net::tls::EarlyHandshake;
use sigma_observe::counters::Counter;
use sigma_plugin::Reply;

use super::Exchange;
use super::local_reply::Draft;
use super::transfer::client_gone;

/// The response to a request that may be a replay (RFC 8470 §5.2).
const TOO_EARLY: u16 = 425;

impl Exchange<'_, '_> {
    /// Returns the handshake that the request has preceded, if it is not complete.
    pub(super) fn early_handshake(&self) -> Option<Arc<EarlyHandshake>> {
        self.down.tls_session()?.early().filter(|early| !early.is_complete()).cloned()
    }

    /// Marks a request in early data, or waits for the end of the handshake. Returns the response to a client that
    /// does not complete it in time.
    ///
    /// # Errors
    /// Returns an error if the client leaves.
    pub(super) async fn meet_early(&mut self, early: &EarlyHandshake) -> Result<Option<Box<Draft>>, Fault> {
        let request = &mut self.scratch.ctx.request;
        let is_safe = matches!(request.method, Method::Get | Method::Head | Method::Options);
        if is_safe && self.down.body_length().is_empty() && !self.asks_upgrade && !self.down.asks_tunnel() {
            // This replaces the client's own field, which can only have the same meaning.
            request.headers.remove_name(b"early-data");
            request.headers.append("Early-Data", b"1");
            self.worker.counters.add(Counter::EarlyRequests, 1);
            return Ok(None);
        }
        self.worker.counters.add(Counter::EarlyRequestsDelayed, 1);
        let deadline = Deadline::new();
        deadline.set(self.view.snapshot.settings.timeouts.request_head_ms.into());
        let is_complete = poll_fn(|cx| {
            // It reads the connection.
            if self.down.poll_departure(cx).is_ready() {
                return Poll::Ready(Err(client_gone()));
            }
            if early.poll_complete(cx).is_ready() {
                return Poll::Ready(Ok(true));
            }
            deadline.poll_expired(cx).map(|()| Ok(false))
        });
        Ok((!is_complete.await?).then(|| Reply::new(TOO_EARLY).into()))
    }
}
