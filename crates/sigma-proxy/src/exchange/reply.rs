//! From a fault to an answer. No other file gives a fault a status.

use std::future::poll_fn;

use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId};

use super::Exchange;

/// The body of a request without a route; scripts of APISIX's users compare it.
const NO_ROUTE_BODY: &[u8] = b"{\"error_msg\":\"404 Route Not Found\"}\n";

/// The status that a fault is answered with; none if there is nobody to answer.
fn status(kind: FaultKind) -> Option<u16> {
    Some(match kind {
        FaultKind::ClientGone | FaultKind::ResponseSendTimeout => return None,
        FaultKind::BadRequest => 400,
        FaultKind::NoRoute | FaultKind::NoService => 404,
        FaultKind::MethodRefused | FaultKind::MethodNotAllowed => 405,
        FaultKind::NotAcceptable => 406,
        FaultKind::RequestHeadTimeout | FaultKind::RequestBodyTimeout => 408,
        FaultKind::RequestBodyTooLarge => 413,
        FaultKind::UriTooLong => 414,
        FaultKind::UnsupportedMediaType => 415,
        FaultKind::ExpectationFailed => 417,
        FaultKind::RequestHeadTooLarge => 431,
        FaultKind::Internal => 500,
        FaultKind::NodesExhausted
        | FaultKind::ConnectRefused
        | FaultKind::ConnectionTerminated
        | FaultKind::BadResponse
        | FaultKind::ResponseHeadTooLarge
        | FaultKind::ResponseIncomplete
        | FaultKind::UpgradeFailed => 502,
        FaultKind::NoUpstream | FaultKind::NoNode => 503,
        FaultKind::ConnectTimeout | FaultKind::UpstreamSendTimeout | FaultKind::ResponseTimeout => 504,
    })
}

/// The status in access lines and counters of a client that left without an answer (nginx's).
const CLIENT_GONE_STATUS: u16 = 499;

impl Exchange<'_, '_> {
    /// Ends the exchange with a fault: an answer if one can still be given, a cut if not.
    pub(super) async fn fail(&mut self, fault: Fault) {
        self.record.fault = Some(fault);
        if self.record.status != 0 {
            // The answer has begun; only the cut tells the client that it is not whole.
            self.down.abort();
            return;
        }
        let Some(status) = status(fault.kind) else {
            self.record.status = CLIENT_GONE_STATUS;
            self.down.abort();
            return;
        };
        self.record.status = status;
        self.queue_error(status, fault);
        self.flush_error().await;
    }

    fn queue_error(&mut self, status: u16, fault: Fault) {
        let no_route = fault.kind == FaultKind::NoRoute;
        let body = if no_route { NO_ROUTE_BODY.to_vec() } else { error_body(status, fault) };
        let head = &mut self.scratch.response;
        head.start(status);
        let content_type: &[u8] = if no_route { b"text/plain; charset=utf-8" } else { b"application/json" };
        head.headers.add(HeaderId::ContentType, content_type);
        head.headers.add(HeaderId::ContentLength, itoa::Buffer::new().format(body.len()).as_bytes());
        if fault.kind == FaultKind::MethodNotAllowed {
            head.headers.add(HeaderId::Allow, &self.scratch.value);
        }
        let server = self.view.snapshot.settings.server_header.as_deref();
        if let Some(name) = server.or(Some("sigma")).filter(|name| !name.is_empty()) {
            head.headers.add(HeaderId::Server, name.as_bytes());
        }
        if self.worker.is_draining() || matches!(status, 400 | 408 | 413) {
            self.down.close_after();
        }
        let clock = self.worker.clock.borrow();
        self.down.send_head(head, BodyLength::Known(body.len() as u64), clock.http_date());
        self.down.send(Frame::Data(Chunk::copy_of(&body)));
        self.down.send(Frame::End);
    }

    async fn flush_error(&mut self) {
        let down = &mut self.down;
        down.deadline().set(u64::from(self.view.snapshot.settings.timeouts.response_send_ms));
        let flushed = poll_fn(|cx| match down.poll_flush(cx) {
            std::task::Poll::Pending => down.deadline().poll_expired(cx).map(|()| false),
            ready => ready.map(|result| result.is_ok()),
        })
        .await;
        if !flushed {
            self.down.abort();
        }
    }
}

/// `reason` tells a gateway fault from an upstream's own answer: no upstream body has it by chance.
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
                assert!((400..=504).contains(&status), "{kind:?}");
                assert!(!sigma_http::head::reason_phrase(status).is_empty(), "{status}");
            }
        }
    }
}
