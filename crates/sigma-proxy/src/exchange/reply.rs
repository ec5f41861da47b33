//! Responses for faults. Their status is in the table of reasons (`crates/sigma-http/src/fault.rs`).

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;

use sigma_config::settings::ShowReason;
use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId, Method, Side};
use sigma_plugin::record::Source;
use sigma_plugin::{Context, Reply};

use super::delivery::{Delivery, Hold, OwnBody};
use super::local_reply::{self, Draft, LocalReply, plain_body};
use super::response::Verdict;
use super::transfer::Transfer;
use super::{Exchange, dubbo, grpc, proxy_status};
use crate::worker::drain::{Leave, Turn};

/// The body of a request without a route; scripts of APISIX's users compare it.
const NO_ROUTE_BODY: &[u8] = b"{\"error_msg\":\"404 Route Not Found\"}\n";

/// Seconds after which a request that did not fit in memory may be sent again.
const RETRY_AFTER_S: &str = "1";

/// Returns the status of the response for a fault; None if the client is gone.
pub(super) fn status(kind: FaultKind) -> Option<u16> {
    kind.row().status.filter(|status| *status != CLIENT_GONE_STATUS)
}

/// Returns true if a stale response may replace the error: the upstream does not respond, because its nodes fail or
/// get no request.
pub(super) fn may_be_stale(fault: Fault) -> bool {
    fault.side() == Side::Upstream
        || matches!(
            fault.kind,
            FaultKind::BreakerOpen
                | FaultKind::Overloaded
                | FaultKind::GatewayOverloaded
                | FaultKind::OutOfSockets
        )
}

/// Returns the status of the response for a fault of an exchange; None if the client is gone.
pub(super) fn status_of(kind: FaultKind, ctx: &Context) -> Option<u16> {
    let own = if dubbo::is_in_lines(ctx) { status_of_call(kind) } else { None };
    own.or_else(|| status(kind))
}

/// Returns the status for a failed call of Dubbo with parameters in lines (APISIX: http-dubbo). None if it is the
/// same as for other requests.
fn status_of_call(kind: FaultKind) -> Option<u16> {
    match kind {
        FaultKind::ConnectRefused
        | FaultKind::ConnectTimeout
        | FaultKind::TlsProtocol
        | FaultKind::TlsCertificate
        | FaultKind::TlsAlert
        | FaultKind::ProtocolMismatch => Some(502),
        FaultKind::RequestBodyTooLarge => Some(413),
        FaultKind::UpstreamSendTimeout
        | FaultKind::ResponseTimeout
        | FaultKind::ConnectionTerminated
        | FaultKind::BadResponse
        | FaultKind::ResponseHeadTooLarge
        | FaultKind::ResponseIncomplete => Some(500),
        _ => None,
    }
}

/// The status in access lines and counters of a client that left without a response (nginx's).
const CLIENT_GONE_STATUS: u16 = 499;

impl Exchange<'_, '_> {
    /// Ends the exchange with a fault: a response if one can still be sent, a cut if not.
    pub(super) async fn fail(&mut self, fault: Fault) {
        let record = &mut self.scratch.ctx.record;
        record.fault.get_or_insert(fault);
        if record.status != 0 {
            self.scratch.response.is_cut = true;
            // The response has begun; only the cut tells the client that it is incomplete.
            if fault.kind != FaultKind::Stopping || Box::pin(self.end_call(fault)).await.is_err() {
                self.down.abort();
            }
            return;
        }
        if self.scratch.turn.is_some() {
            match Box::pin(self.stand_in(fault)).await {
                Ok(false) => {}
                Ok(true) => return,
                Err(_) => return self.down.abort(),
            }
        }
        let status = status_of(fault.kind, &self.scratch.ctx);
        let record = &mut self.scratch.ctx.record;
        let Some(status) = status else {
            record.status = CLIENT_GONE_STATUS;
            self.down.abort();
            return;
        };
        if !record.upstream_statuses.is_empty() {
            record.source = Source::Fault;
        }
        if fault.side() != Side::Upstream {
            // The last attempt was not ended by its node, so it is not listed.
            record.upstream_statuses.pop_if(|status| *status == 0);
        }
        let is_refusal = matches!(fault.kind, FaultKind::GatewayOverloaded | FaultKind::MemoryLimit);
        if matches!(status, 400 | 408 | 413) || fault.kind == FaultKind::MemoryLimit {
            self.down.close_after();
        }
        let reply = match grpc::is_from_caller(&self.scratch.ctx) {
            true => Reply::new(status).text(self.shown_reason(status, fault)),
            false => self.error_reply(status, fault),
        };
        let mut sending = Box::pin(self.send_reply(Draft { reply, stream: None, peer: None }));
        let sent = poll_fn(|task| match sending.as_mut().poll(task) {
            // A request that was rejected to save memory is not kept until its client reads.
            Poll::Pending if is_refusal => Poll::Ready(Err(fault)),
            polled => polled,
        });
        let sent = sent.await;
        drop(sending);
        if sent.is_err() {
            let record = &mut self.scratch.ctx.record;
            if record.status == 0 {
                record.status = CLIENT_GONE_STATUS;
            }
            self.down.abort();
        }
    }

    /// Ends a call whose response has begun with a status of its protocol, after the bytes that the client accepts at
    /// once.
    ///
    /// # Errors
    /// Returns an error if it is no call, or the client accepts nothing.
    async fn end_call(&mut self, fault: Fault) -> Result<(), Fault> {
        if !grpc::is_from_caller(&self.scratch.ctx) || !self.down.has_room() {
            return Err(fault);
        }
        let reason = self.shown_reason(503, fault);
        self.down.send(Frame::Trailers(Box::new(grpc::unavailable(reason))));
        poll_fn(|task| match self.down.poll_flush(task) {
            Poll::Pending => Poll::Ready(Err(fault)),
            ready => ready,
        })
        .await
    }

    /// Returns the reason of a fault, or the phrase of its status if the client may not see the reason.
    fn shown_reason(&self, status: u16, fault: Fault) -> &'static str {
        if self.hides_reason() { sigma_http::head::reason_phrase(status) } else { fault.reason }
    }

    /// Returns true if the client may not see why the request failed (`show_reason`).
    pub(super) fn hides_reason(&self) -> bool {
        match self.view.snapshot.settings.show_reason {
            ShowReason::Always => false,
            ShowReason::Never => true,
            ShowReason::Internal => self.client_addr().is_some_and(|addr| !is_internal(addr)),
        }
    }

    fn error_reply(&self, status: u16, fault: Fault) -> Reply {
        if fault.kind == FaultKind::NoRoute {
            return Reply::new(status).text(NO_ROUTE_BODY);
        }
        if dubbo::is_in_lines(&self.scratch.ctx) && status_of_call(fault.kind).is_some() {
            return Reply::new(status).text("");
        }
        let reply = Reply::new(status)
            .header(HeaderId::ContentType.name(), "application/json")
            .text(if self.hides_reason() { plain_body(status) } else { error_body(status, fault) });
        match fault.kind {
            FaultKind::MemoryLimit => reply.header("Retry-After", RETRY_AFTER_S),
            FaultKind::MethodNotAllowed => reply.header(HeaderId::Allow.name(), self.scratch.value.clone()),
            _ => reply,
        }
    }

    /// Sends a response of the gateway itself through the response plugins.
    pub(super) async fn send_reply(&mut self, draft: Draft) -> Result<(), Fault> {
        self.scratch.ctx.record.hides_reason = self.hides_reason();
        let own = local_reply::begin(draft, &mut self.scratch.ctx, &self.view);
        self.send_own(own).await
    }

    /// Sends a response of the gateway itself, whose head is complete, through the response plugins.
    pub(super) async fn send_own(&mut self, mut own: LocalReply) -> Result<(), Fault> {
        let view = Rc::clone(&self.view);
        self.scratch.ctx.has_response_body =
            !own.length.is_empty() && self.scratch.ctx.request.client_method() != Method::Head;
        if let Some(in_force) = self.stage.in_force(self.worker, &view) {
            own.lend(&mut self.scratch.ctx);
            let verdict = in_force.respond(&mut self.scratch.ctx, &mut self.down, false).await?;
            match verdict {
                Verdict::Replaced(other) => own = *other,
                Verdict::Pass | Verdict::Retry => own.take_back(&mut self.scratch.ctx),
            }
        }
        self.deliver_local(own).await
    }

    /// Sends a response of the gateway itself whose head the plugins have seen.
    pub(super) async fn deliver_local(&mut self, own: LocalReply) -> Result<(), Fault> {
        let LocalReply { mut body, mut length, is_silent } = own;
        if is_silent {
            self.scratch.ctx.record.source = Source::Gateway;
            self.down.abort();
            return Ok(());
        }
        if self.wants_tunnel() && (200..300).contains(&self.scratch.ctx.response.status) {
            // A header filter has made a success of it. The client would take its tunnel as open (RFC 8441 §5).
            self.scratch.ctx.response.status = 502;
        }
        self.down.forgo_body();
        if self.worker.is_draining() || self.worker.is_past_age(self.down.origin()) {
            self.down.close_after();
        }
        let view = Rc::clone(&self.view);
        let mut filters = Vec::new();
        if let Some(in_force) = self.stage.in_force(self.worker, &view) {
            (filters, length) = in_force.body_filters(&mut self.scratch.ctx, length);
        }
        let ctx = &mut self.scratch.ctx;
        // Even if a plugin sets one: a body after such a head would be read as the next response (RFC 9110 §6.4.1), and a
        // 205 has no content (§15.3.6).
        let is_empty = matches!(ctx.response.status, 204 | 205 | 304);
        if is_empty {
            length = BodyLength::None;
            ctx.response.headers.remove(HeaderId::ContentLength);
        }
        proxy_status::tell_timing(&mut ctx.response.headers, &ctx.record, &view.snapshot.settings);
        if is_empty || ctx.request.client_method() == Method::Head {
            // A body that is not sent is not made either.
            body = OwnBody::EMPTY;
        }
        let timeouts = &view.snapshot.settings.timeouts;
        let mut delivery = Delivery::new(filters, BodyLength::Streamed);
        let hold = if self.scratch.response.is_refused { Hold::Never } else { Hold::WhereAsked };
        delivery.begin(&mut self.down, ctx, length, self.worker.clock.borrow().http_date(), hold);
        let mut transfer = Transfer::own(&mut self.down, &mut body, timeouts);
        let (mut leave, worker) = (Leave::default(), self.worker);
        let delivered = poll_fn(|task| {
            // An endless response ends when tunnels do; any other has the time of an exchange.
            if leave.turn(&worker.drain, || worker.random(), task) == Turn::Begin {
                transfer.tell_source();
            }
            transfer.poll_body(task, &mut delivery, ctx)
        })
        .await;
        match delivery.refusal(ctx).filter(|_| delivered.is_err()) {
            None => delivered,
            Some(reply) => {
                self.scratch.response.is_refused = true;
                // Boxed, as few responses are refused; once, as no head is held back then.
                Box::pin(self.send_reply(Draft { reply, stream: None, peer: None })).await
            }
        }
    }
}

/// Returns true if an address is of this machine or of a private network.
fn is_internal(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(addr) => addr.is_loopback() || addr.is_private() || addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_loopback() || addr.is_unique_local() || addr.is_unicast_link_local(),
    }
}

/// `reason` distinguishes a gateway fault from an upstream's own response: no upstream body has it by chance.
fn error_body(status: u16, fault: Fault) -> Vec<u8> {
    let phrase = sigma_http::head::reason_phrase(status);
    // Reasons are our own constants, free of characters that JSON would escape.
    format!(
        "{{\"error_msg\":\"{status} {phrase}\",\"reason\":\"{}\",\"detail\":\"{}\"}}\n",
        fault.kind.error_type(),
        fault.reason
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_answer_and_plain_text() {
        for kind in FaultKind::ALL {
            if let Some(status) = status(*kind) {
                assert!((400..=508).contains(&status), "{kind:?}");
                assert!(!sigma_http::head::reason_phrase(status).is_empty(), "{status}");
            }
        }
    }

    #[test]
    fn private_addresses_are_internal() {
        for (addr, internal) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("192.168.0.1", true),
            ("169.254.1.1", true),
            ("203.0.113.1", false),
            ("::1", true),
            ("::ffff:10.0.0.1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_internal(addr.parse().unwrap()), internal, "{addr}");
        }
    }
}
