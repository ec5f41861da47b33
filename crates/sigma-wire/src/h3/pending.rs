//! A request before its head is complete.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held::{Account, EXCHANGE_BYTES};
use sigma_http::h3::{ErrorCode, Event, Glitch, Message, Request, Scope, send_order};
use sigma_net::quic::IncomingStream;

use super::body::{Cut, Receiving};
use super::common::Common;
use super::sending::Sending;
use super::server::{Incoming, Origin, ServerStream};

/// A request whose head has not come.
#[derive(Debug)]
pub(super) struct Pending {
    receiving: Receiving,
    sending: Sending,
    /// The time at which the stream was opened.
    pub(super) since_ms: u64,
    number: u32,
    is_early: bool,
}

/// The result of reading a head.
pub(super) enum Outcome {
    /// More bytes are needed.
    Waits,
    Request(Box<Incoming>),
    /// The stream has ended.
    Over,
}

impl Pending {
    /// Takes a stream of the client; None if it is rejected.
    pub(super) fn new(
        common: &Common,
        incoming: IncomingStream,
        streams: usize,
        now_ms: u64,
    ) -> Option<Pending> {
        let IncomingStream { id, mut recv, send, is_early } = incoming;
        let mut send = send?;
        // The client opens the bidirectional streams: each fourth number.
        let id = id.index() * 4;
        let may_begin = common.active() < streams && common.may_begin();
        if !may_begin || !common.drive(|codec| codec.begin(id)) {
            send.reset(ErrorCode::REQUEST_REJECTED.0);
            recv.stop(ErrorCode::REQUEST_REJECTED.0);
            common.with(|codec| codec.abandon(id));
            common.spend(Glitch::Refused);
            return None;
        }
        let number = common.look(sigma_http::h3::Codec::begun);
        let receiving = Receiving::new(Message::new(id, false), recv);
        Some(Pending { receiving, sending: Sending::new(id, send), since_ms: now_ms, number, is_early })
    }

    /// Returns the memory of the head so far.
    pub(super) fn memory(&self) -> usize {
        self.receiving.memory()
    }

    /// Reads the head as far as possible.
    pub(super) fn poll(
        mut self,
        cx: &mut Context<'_>,
        common: &Rc<Common>,
        body_bytes: u64,
    ) -> (Outcome, Option<Pending>) {
        if let Poll::Ready(Err(_)) = self.receiving.fill_first(cx) {
            self.cancel(common);
            return (Outcome::Over, None);
        }
        match self.receiving.poll_event(cx, common) {
            Poll::Pending => (Outcome::Waits, Some(self)),
            Poll::Ready(Ok(Event::Request(request))) => (self.begin(common, *request, body_bytes), None),
            Poll::Ready(Ok(_)) => (Outcome::Over, None),
            Poll::Ready(Err(Cut::Reset(_) | Cut::Lost)) => {
                self.cancel(common);
                (Outcome::Over, None)
            }
            Poll::Ready(Err(Cut::Broken(broken))) => {
                if broken.scope == Scope::Stream {
                    self.reject(common, broken.code);
                    common.spend(Glitch::StreamError);
                }
                (Outcome::Over, None)
            }
        }
    }

    /// Handles the cancellation by the client.
    fn cancel(&mut self, common: &Common) {
        self.reject(common, ErrorCode::REQUEST_CANCELLED);
        common.spend(Glitch::Reset);
    }

    /// Ends the stream without a response.
    pub(super) fn reject(&mut self, common: &Common, code: ErrorCode) {
        self.sending.reset(code);
        self.receiving.stop(common, code);
    }

    fn begin(mut self, common: &Rc<Common>, request: Request, body_bytes: u64) -> Outcome {
        let Request { head, length, malformed, priority } = request;
        let id = self.receiving.message.id();
        self.sending.set_order(send_order(priority, id));
        let account = Account::of_exchange(&common.account);
        account.grow(head.headers.memory() + EXCHANGE_BYTES);
        let running = common.begin(id, account);
        let stream = ServerStream::new(
            Rc::clone(common),
            running,
            self.receiving,
            self.sending,
            Origin { number: self.number, body_bytes, malformed },
        );
        Outcome::Request(Box::new(Incoming { stream, head, length, is_early: self.is_early }))
    }
}
