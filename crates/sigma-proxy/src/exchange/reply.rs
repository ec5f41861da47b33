//! From a fault to an answer. No other file gives a fault a status.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId, Headers, Method, Side};
use sigma_plugin::record::Source;
use sigma_plugin::{BodySource, Pieces, Reply};

use super::phases::{chains, env};
use super::response::BodyRow;
use super::transfer::client_gone;
use super::{Exchange, answer, grpc};
use crate::downstream::Departure;

/// The body of a request without a route; scripts of APISIX's users compare it.
const NO_ROUTE_BODY: &[u8] = b"{\"error_msg\":\"404 Route Not Found\"}\n";

/// The status that a fault is answered with; none if there is nobody to answer.
pub(super) fn status(kind: FaultKind) -> Option<u16> {
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
        FaultKind::Loop => 508,
        FaultKind::Misdirected => 421,
        FaultKind::RequestHeadTooLarge => 431,
        FaultKind::Internal => 500,
        FaultKind::NotImplemented => 501,
        FaultKind::NodesExhausted
        | FaultKind::ConnectRefused
        | FaultKind::ConnectionTerminated
        | FaultKind::BadResponse
        | FaultKind::ResponseHeadTooLarge
        | FaultKind::ResponseIncomplete
        | FaultKind::ResponseCoding
        | FaultKind::ResponseBodyTooLarge
        | FaultKind::UpgradeFailed => 502,
        FaultKind::NoUpstream | FaultKind::NoNode | FaultKind::OutOfSockets => 503,
        FaultKind::ConnectTimeout | FaultKind::UpstreamSendTimeout | FaultKind::ResponseTimeout => 504,
    })
}

/// The status in access lines and counters of a client that left without an answer (nginx's).
const CLIENT_GONE_STATUS: u16 = 499;

impl Exchange<'_, '_> {
    /// Ends the exchange with a fault: an answer if one can still be given, a cut if not.
    pub(super) async fn fail(&mut self, fault: Fault) {
        let record = &mut self.scratch.cx.record;
        record.fault = Some(fault);
        if record.status != 0 {
            // The answer has begun; only the cut tells the client that it is not whole.
            self.down.abort();
            return;
        }
        let Some(status) = status(fault.kind) else {
            record.status = CLIENT_GONE_STATUS;
            self.down.abort();
            return;
        };
        if !record.upstream_statuses.is_empty() {
            record.source = Source::Fault;
        }
        if fault.side() != Side::Upstream {
            // Not the node ended the last attempt, so nothing is told of it.
            record.upstream_statuses.pop_if(|status| *status == 0);
        }
        if matches!(status, 400 | 408 | 413) {
            self.down.close_after();
        }
        let reply = match grpc::is_call(&self.scratch.cx.request) {
            true => Reply::new(status).text(fault.reason),
            false => self.error_reply(status, fault),
        };
        Box::pin(self.send_reply(reply)).await;
    }

    fn error_reply(&self, status: u16, fault: Fault) -> Reply {
        if fault.kind == FaultKind::NoRoute {
            return Reply::new(status).text(NO_ROUTE_BODY);
        }
        let reply = Reply::new(status)
            .header(HeaderId::ContentType.name(), "application/json")
            .text(error_body(status, fault));
        match fault.kind {
            FaultKind::MethodNotAllowed => reply.header(HeaderId::Allow.name(), self.scratch.value.clone()),
            _ => reply,
        }
    }

    /// Sends a response of the gateway's own, through the plugins that see responses.
    pub(super) async fn send_reply(&mut self, reply: Reply) {
        if self.worker.is_draining() {
            self.down.close_after();
        }
        let refused = grpc::is_call(&self.scratch.cx.request) && !(200..300).contains(&reply.status);
        let mut reply = if refused { grpc::refusal(reply) } else { reply };
        let stream = self.stream.take().filter(|_| reply.body.is_none());
        if stream.is_some() {
            reply.body = Some(Vec::new());
        }
        let body = self.own_head(reply);
        let view = Rc::clone(&self.view);
        let cx = &mut self.scratch.cx;
        let mut length = BodyLength::Known(body.len() as u64);
        if let Some(stream) = &stream {
            length = stream.length;
            declare_length(&mut cx.response.headers, length);
        }
        let mut row = BodyRow::default();
        if self.opened {
            let in_force = chains(&view, self.route, self.merged.as_deref());
            (row, length) = BodyRow::begin(in_force, cx, &env(self.worker, &view), length);
        }
        // Whatever a plugin says: a body behind such a head would be read as the next answer
        // (RFC 9110 §6.4.1).
        if matches!(cx.response.status, 204 | 304) {
            length = BodyLength::None;
            cx.response.headers.remove(HeaderId::ContentLength);
        }
        cx.record.status = cx.response.status;
        self.down.send_head(&mut cx.response, length, self.worker.clock.borrow().http_date());
        if let Some(stream) = stream
            && cx.request.client_method() != Method::Head
            && !self.send_stream(stream.source, &mut row).await
        {
            return;
        }
        let mut pieces = Pieces::default();
        pieces.bytes(&body);
        pieces.frame(Frame::End);
        for frame in pieces.drain() {
            row.push(frame, &mut self.scratch.cx);
        }
        if self.send_ready(&mut row).await {
            self.flush_reply().await;
        }
    }

    /// Sends a body while it is made, all but its end; whether all of it could be sent.
    async fn send_stream(&mut self, mut source: Box<dyn BodySource>, row: &mut BodyRow) -> bool {
        let send_ms = u64::from(self.view.snapshot.settings.timeouts.response_send_ms);
        loop {
            let down = &mut self.down;
            down.deadline().set(send_ms);
            let piece = poll_fn(|task| {
                // What is queued leaves while the next piece is made.
                let late = match down.poll_flush(task) {
                    Poll::Ready(Ok(())) => {
                        down.deadline().clear();
                        false
                    }
                    Poll::Ready(Err(_)) => true,
                    Poll::Pending => down.deadline().poll_expired(task).is_ready(),
                };
                if late || matches!(down.poll_departure(task), Poll::Ready(Departure::Gone)) {
                    return Poll::Ready(Err(client_gone()));
                }
                source.poll_piece(task).map_err(|error| {
                    tracing::warn!(%error, "a response body could not be read to its end");
                    Fault::new(FaultKind::Internal, "the body of a reply broke off")
                })
            })
            .await;
            match piece {
                Ok(Some(data)) => row.push(Frame::Data(data), &mut self.scratch.cx),
                Ok(None) => return true,
                Err(fault) => {
                    self.scratch.cx.record.fault = Some(fault);
                    self.down.abort();
                    return false;
                }
            }
            if !self.send_ready(row).await {
                return false;
            }
        }
    }

    /// Queues what the filters have passed on; whether the client takes it.
    async fn send_ready(&mut self, row: &mut BodyRow) -> bool {
        if let Some(fault) = row.fault() {
            self.scratch.cx.record.fault = Some(fault);
            if self.flush_reply().await {
                self.down.abort();
            }
            return false;
        }
        while let Some(frame) = row.pop() {
            while !self.down.has_room() {
                if !self.flush_reply().await {
                    return false;
                }
            }
            self.down.send(frame);
        }
        true
    }

    /// Makes the head of a response of the gateway's own; returns the body.
    fn own_head(&mut self, reply: Reply) -> Vec<u8> {
        let Reply { status, headers, body } = reply;
        let head = &mut self.scratch.cx.response;
        head.start(status);
        for (name, value) in &headers {
            head.headers.append(name, value);
        }
        let (body, content_type): (Vec<u8>, &[u8]) = match body {
            Some(body) => (body, b"text/plain; charset=utf-8"),
            None if status >= 400 => (plain_body(status), b"application/json"),
            None => (Vec::new(), b""),
        };
        if !content_type.is_empty() && !head.headers.has(HeaderId::ContentType) {
            head.headers.add(HeaderId::ContentType, content_type);
        }
        if !matches!(status, 204 | 304) {
            head.headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(body.len()).as_bytes());
        }
        let server = self.view.snapshot.settings.server_header.as_deref();
        if let Some(name) = server.or(Some("sigma")).filter(|name| !name.is_empty()) {
            head.headers.set(HeaderId::Server, name.as_bytes());
        }
        let when = self.view.snapshot.settings.upstream_status_header;
        answer::tell_upstream_status(head, &self.scratch.cx.record.upstream_statuses, when);
        body
    }

    /// Writes what is queued; whether all of it left in time.
    async fn flush_reply(&mut self) -> bool {
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
        flushed
    }
}

fn declare_length(headers: &mut Headers, length: BodyLength) {
    match length {
        BodyLength::Known(bytes) => {
            headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(bytes).as_bytes());
        }
        _ => headers.remove(HeaderId::ContentLength),
    }
}

/// The body of a status for which a plugin gave none.
fn plain_body(status: u16) -> Vec<u8> {
    let said = format!("{status} {}", sigma_http::head::reason_phrase(status));
    // Not every status has a phrase.
    format!("{{\"error_msg\":\"{}\"}}\n", said.trim_end()).into_bytes()
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
                assert!((400..=508).contains(&status), "{kind:?}");
                assert!(!sigma_http::head::reason_phrase(status).is_empty(), "{status}");
            }
        }
    }
}
