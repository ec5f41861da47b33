//! A client's connection, from the view of the task that drives it.
//!
//! It drives the control streams and the heads of requests, and enforces the limits of the whole connection: idle
//! time, floods, graceful end. Each request has its own task after its head.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held::{self, Account};
use sigma_http::h1::HeadLimits;
use sigma_http::h3::{Broken, Codec, Config, ErrorCode, FloodLimits, GLITCHES, Glitch, Role, Scope};
use sigma_net::quic::{Connection, Dir};
use sigma_net::{Deadline, Peer, deadline};

use super::common::Common;
use super::control::Control;
use super::datagrams::read_datagrams;
use super::pending::{Outcome, Pending};
use super::server::Incoming;

/// How long a client may take to acknowledge the last responses.
const LEAVE_MS: u64 = 2_000;

/// The least time that a client has to receive the last GOAWAY. The close of the connection drops all frames
/// without an acknowledgement, and without the GOAWAY a client does not know that a request on its way was not processed.
const TOLD_MS: u64 = 100;

/// The same in round trips: time for a GOAWAY that was lost once.
const TOLD_ROUND_TRIPS: u32 = 3;

/// The limits of a client's connection.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// The head of a request.
    pub head: HeadLimits,
    /// Bytes of a request body; 0 for no limit.
    pub body_bytes: u64,
    /// Requests on one connection.
    pub requests: u32,
    /// Until the first request, and for each head.
    pub head_ms: u64,
    /// Until the next request.
    pub idle_ms: u64,
    /// Concurrent requests.
    pub streams: u32,
    /// Cancelled requests whose exchanges still run.
    pub pending_resets: usize,
    /// Largest list of request fields.
    pub header_list_bytes: u32,
    /// The capacity of the dynamic table that the client may fill.
    pub table_bytes: u32,
    /// Requests that may wait for the dynamic table.
    pub blocked_streams: u32,
    /// The limits of useless frames.
    pub flood: FloodLimits,
}

/// The reason for a wait of the connection; each has its own time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The first request
    First,
    /// The next request
    Idle,
    /// The rest of a head whose stream was opened at this time
    Head(u64),
    /// The end of exchanges, which have their own time limits
    Exchanges,
    /// The round trip after the first GOAWAY
    Announced,
    /// The round trips after the last GOAWAY
    Told,
    /// The acknowledgement of the last responses
    Leaving,
}

/// A client's connection.
#[derive(Debug)]
pub struct Session {
    peer: Peer,
    common: Rc<Common>,
    control: Control,
    pending: Vec<Pending>,
    ready: VecDeque<Incoming>,
    limits: SessionLimits,
    deadline: Deadline,
    wait: Wait,
    /// The client has had time to receive the last GOAWAY.
    is_told: bool,
    /// The revocations of accounts that were handled.
    revocations: u64,
}

impl Session {
    /// Takes a connection after its handshake. `peer` is the name in logs.
    pub fn accept(connection: Connection, peer: Peer, limits: SessionLimits) -> Session {
        let common = Common::new(connection, config(&limits), Account::of_connection());
        let deadline = Deadline::new();
        deadline.set(limits.head_ms);
        Session {
            peer,
            common,
            control: Control::default(),
            pending: Vec::new(),
            ready: VecDeque::new(),
            limits,
            deadline,
            wait: Wait::First,
            is_told: false,
            revocations: held::revocations(),
        }
    }

    /// Returns the next request; None at the end of the connection. `closing` makes it stop to accept requests. It
    /// also drives the connection: its control streams progress only while a task waits for the next request.
    pub async fn next(&mut self, closing: impl Fn() -> bool) -> Option<Incoming> {
        poll_fn(|cx| self.poll_next(cx, &closing)).await
    }

    /// Returns the number of each kind of glitch since the last call, in the order of [`Glitch::ALL`].
    pub fn take_glitches(&mut self) -> [u32; GLITCHES] {
        self.common.drive(Codec::take_glitches)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, closing: &impl Fn() -> bool) -> Poll<Option<Incoming>> {
        if let Some(incoming) = self.ready.pop_front() {
            return Poll::Ready(Some(incoming));
        }
        self.common.register_driver(cx);
        self.check_accounts();
        loop {
            if let Poll::Ready(lost) = self.common.connection.poll_closed(cx) {
                tracing::debug!(peer = ?self.peer, %lost, "a client's connection ended");
                return Poll::Ready(None);
            }
            if let Err(broken) = self.control.poll(cx, &self.common) {
                self.common.fail(broken);
                continue;
            }
            if let Err(broken) = read_datagrams(&self.common, cx) {
                self.common.fail(broken);
                continue;
            }
            self.accept_streams(cx);
            self.read_heads(cx);
            if let Some(incoming) = self.ready.pop_front() {
                return Poll::Ready(Some(incoming));
            }
            let begun = self.common.look(Codec::begun);
            if closing() || begun >= self.limits.requests {
                self.common.drive(Codec::leave);
            }
            // Heads and the end have caused output.
            if let Err(broken) = self.control.write(cx, &self.common) {
                self.common.fail(broken);
                continue;
            }
            self.common.count_memory(self.pending.iter().map(Pending::memory).sum());
            if self.is_done() && self.common.is_acknowledged(cx) {
                self.common.connection.close(ErrorCode::NO_ERROR.0, "");
                return Poll::Ready(None);
            }
            if self.poll_wait(cx).is_pending() {
                return Poll::Pending;
            }
            self.expire();
        }
    }

    /// Handles revoked accounts.
    fn check_accounts(&mut self) {
        if self.revocations == held::revocations() {
            return;
        }
        self.revocations = held::revocations();
        if !self.common.end_revoked() {
            self.common.fail(Broken {
                scope: Scope::Connection,
                code: ErrorCode::EXCESSIVE_LOAD,
                reason: "the peer does not read, and the memory for clients is nearly used up",
            });
        }
    }

    fn accept_streams(&mut self, cx: &mut Context<'_>) {
        let streams = self.limits.streams as usize + self.limits.pending_resets;
        let now_ms = deadline::now_ms();
        while let Poll::Ready(Ok(incoming)) = self.common.connection.poll_accept(cx, Dir::Bi) {
            self.pending.extend(Pending::new(&self.common, incoming, streams, now_ms));
        }
    }

    fn read_heads(&mut self, cx: &mut Context<'_>) {
        let mut at = 0;
        while at < self.pending.len() {
            let pending = self.pending.swap_remove(at);
            let (outcome, rest) = pending.poll(cx, &self.common, self.limits.body_bytes);
            if let Outcome::Request(incoming) = outcome {
                self.ready.push_back(*incoming);
            }
            if let Some(pending) = rest {
                self.pending.push(pending);
                let last = self.pending.len() - 1;
                self.pending.swap(at, last);
                at += 1;
            }
        }
    }

    /// Returns true if the client knows the first excluded request, and no request is left.
    fn is_done(&self) -> bool {
        self.is_told && self.common.active() == 0 && self.pending.is_empty()
    }

    /// Handles the end of a wait.
    fn expire(&mut self) {
        match self.wait {
            Wait::First | Wait::Idle => {
                self.common.drive(|codec| {
                    codec.leave();
                    codec.leave_at_last();
                });
            }
            Wait::Head(_) => {
                let oldest = deadline::now_ms().saturating_sub(self.limits.head_ms);
                let common = &self.common;
                self.pending.retain_mut(|pending| {
                    let is_late = pending.since_ms <= oldest;
                    if is_late {
                        pending.reject(common, ErrorCode::REQUEST_REJECTED);
                        common.spend(Glitch::Head);
                    }
                    !is_late
                });
                // The next head has its own time.
                self.wait = Wait::Exchanges;
            }
            Wait::Announced => self.common.drive(Codec::leave_at_last),
            Wait::Told => self.is_told = true,
            Wait::Leaving => self.common.connection.close(ErrorCode::NO_ERROR.0, ""),
            Wait::Exchanges => {}
        }
    }

    /// Returns the time of this number of round trips.
    fn round_trips_ms(&self, number: u32) -> u64 {
        let time = self.common.connection.rtt().saturating_mul(number);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    /// Ready when the time limit of the current wait has ended.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limits = &self.limits;
        let (is_leaving, has_left, begun) =
            self.common.look(|codec| (codec.is_leaving(), codec.has_left(), codec.begun()));
        let oldest = self.pending.iter().map(|pending| pending.since_ms).min();
        let wait = match oldest {
            _ if is_leaving && !has_left => Wait::Announced,
            Some(since_ms) => Wait::Head(since_ms),
            None if self.common.active() > 0 => Wait::Exchanges,
            None if has_left && !self.is_told => Wait::Told,
            None if has_left => Wait::Leaving,
            None if begun == 0 => Wait::First,
            None => Wait::Idle,
        };
        if wait != self.wait {
            self.wait = wait;
            match wait {
                Wait::First => self.deadline.set(limits.head_ms),
                Wait::Head(since_ms) => {
                    let spent = deadline::now_ms().saturating_sub(since_ms);
                    self.deadline.set(limits.head_ms.saturating_sub(spent).max(1));
                }
                Wait::Idle => self.deadline.set(limits.idle_ms),
                Wait::Announced => self.deadline.set(self.round_trips_ms(1).clamp(1, LEAVE_MS)),
                Wait::Told => {
                    self.deadline.set(self.round_trips_ms(TOLD_ROUND_TRIPS).clamp(TOLD_MS, LEAVE_MS));
                }
                Wait::Leaving => self.deadline.set(LEAVE_MS),
                Wait::Exchanges => self.deadline.clear(),
            }
        }
        // Polled even when it is not set: a stop reaches this task through it.
        self.deadline.poll_expired(cx)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The remaining exchanges have no driver any more.
        self.common.connection.close(ErrorCode::INTERNAL_ERROR.0, "");
    }
}

fn config(limits: &SessionLimits) -> Config {
    Config {
        role: Role::Server,
        streams: limits.streams,
        header_list_bytes: limits.header_list_bytes,
        table_bytes: limits.table_bytes,
        blocked_streams: limits.blocked_streams,
        head: limits.head,
        flood: limits.flood,
    }
}
