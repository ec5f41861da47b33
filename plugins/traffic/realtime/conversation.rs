//! A client's WebSocket: its events are queried about one after the other, and pushes go between their responses.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll};

use sigma_http::Chunk;
use sigma_http::websocket::messages::Kind;
use sigma_net::Deadline;
use sigma_plugin::Takeover;
use sigma_plugin::outbound::{CallError, Calling, ServiceResponse};

use super::service::Caller;
use crate::shared::room::{Next, Seat};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::websocket::{Heard, Socket};

/// Events of ended connections that are being sent at once, for a worker; more are dropped.
const ENDINGS: usize = 1000;

/// The service rejects the client's message; WebSocket has no status for the reason (RFC 6455 §7.4.1).
const POLICY: u16 = 1008;
const BROKEN: u16 = 1011;

/// The client has left without a word (RFC 6455 §7.1.5).
const NO_WORD: u16 = 1006;

/// Endings of connections that are being sent to the service, for a worker.
#[derive(Default)]
pub(super) struct Endings(Cell<usize>);

/// The connection.
pub(super) struct Conversation {
    socket: Socket,
    seat: Seat,
    /// None once the end was sent.
    caller: Option<Caller>,
    /// The call with the message that is being sent to the service.
    asked: Option<Calling>,
    endings: Rc<Endings>,
    pulse: Deadline,
    /// The client was heard since the last ping.
    is_heard: bool,
    /// The code that the gateway has ended it with.
    ended: Option<u16>,
}

impl Conversation {
    pub(super) fn new(seat: Seat, caller: Caller, endings: Rc<Endings>) -> Conversation {
        let pulse = Deadline::new();
        pulse.set(caller.config.ping_ms());
        Conversation {
            socket: Socket::new(caller.config.max_message_bytes),
            seat,
            caller: Some(caller),
            asked: None,
            endings,
            pulse,
            is_heard: true,
            ended: None,
        }
    }

    /// Sets the first message for the client.
    pub(super) fn begin_with(&mut self, answer: &ServiceResponse) {
        self.say(answer);
    }

    /// Reads on as long as no message is being sent to the service.
    fn go_on(&mut self) {
        while self.asked.is_none()
            && let Some(heard) = self.socket.receive()
        {
            self.is_heard = true;
            if let (Heard::Message(kind, bytes), Some(caller)) = (heard, &self.caller) {
                self.asked = Some(caller.message(kind, bytes));
            }
        }
    }

    fn answered(&mut self, answer: Result<ServiceResponse, CallError>) {
        // The delay was not the client's fault.
        self.is_heard = true;
        match answer {
            Ok(answer) if (200..300).contains(&answer.status) => {
                if let Some(caller) = &mut self.caller {
                    caller.learn(&answer, &self.seat);
                }
                self.say(&answer);
            }
            Ok(answer) if (400..500).contains(&answer.status) => self.end(POLICY, ""),
            other => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    let said =
                        other.map_or_else(|error| error.0, |answer| format!("status {}", answer.status));
                    tracing::error!(left_out, "realtime: the service refused a message: {said}");
                }
                self.end(BROKEN, "");
            }
        }
    }

    /// Sends the body of a response, if it has one: as text, unless its type or its bytes are binary.
    fn say(&mut self, answer: &ServiceResponse) {
        if answer.body.is_empty() {
            return;
        }
        let media_type = answer.headers.find(b"content-type").unwrap_or_default();
        let is_binary = media_type.trim_ascii().to_ascii_lowercase().starts_with(b"application/octet-stream")
            || std::str::from_utf8(&answer.body).is_err();
        self.socket.send(if is_binary { Kind::Binary } else { Kind::Text }, &answer.body);
    }

    fn end(&mut self, code: u16, reason: &str) {
        if self.socket.is_open() {
            self.ended = Some(code);
            self.socket.close(code, reason);
        }
    }

    /// Asks a client whether it is there that was not heard for a while; ends it if it was queried before.
    fn poll_pulse(&mut self, task: &mut Task<'_>) -> Poll<()> {
        while self.pulse.poll_expired(task).is_ready() {
            let Some(caller) = self.caller.as_ref().filter(|_| self.socket.is_open()) else { break };
            self.pulse.set(caller.config.ping_ms());
            if !std::mem::replace(&mut self.is_heard, self.asked.is_some()) {
                return Poll::Ready(());
            }
            self.socket.ping();
        }
        Poll::Pending
    }
}

impl Takeover for Conversation {
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Poll::Ready(piece) = self.socket.poll_piece(task) {
                return Poll::Ready(Ok(piece));
            }
            if let Some(calling) = &mut self.asked
                && let Poll::Ready(answer) = calling.as_mut().poll(task)
            {
                self.asked = None;
                // It is ready for more, whether there is anything to send or not.
                task.waker().wake_by_ref();
                self.answered(answer);
                self.go_on();
                continue;
            }
            if !self.socket.is_open() {
                return Poll::Pending;
            }
            match self.seat.next(task) {
                Some(Next::Message(kind, bytes)) => self.socket.send(kind, &bytes),
                Some(Next::End(code, reason)) => self.end(code, &reason),
                None => {
                    if self.poll_pulse(task).is_ready() {
                        return Poll::Ready(Ok(None));
                    }
                    if self.socket.waiting_bytes() == 0 {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn poll_ready(&mut self, _task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if self.socket.has_room() && self.asked.is_none() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn take(&mut self, data: Chunk) {
        self.is_heard = true;
        self.socket.take(data);
        self.go_on();
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let Some(caller) = self.caller.take() else { return };
        let endings = Rc::clone(&self.endings);
        if endings.0.get() >= ENDINGS {
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                tracing::error!(
                    left_out,
                    "realtime: too many connections end at once; the service does not get an event"
                );
            }
            return;
        }
        let code = self.ended.or(self.socket.farewell()).unwrap_or(NO_WORD);
        let calling = caller.disconnect(code);
        endings.0.set(endings.0.get() + 1);
        tokio::task::spawn_local(async move {
            // The connection is gone, so a failure cannot be reported.
            let _ = calling.await;
            endings.0.set(endings.0.get() - 1);
        });
    }
}
