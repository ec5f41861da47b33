//! What is known of an exchange when it is over; feeds counters, logs and metrics.

use std::time::Instant;

use sigma_http::Fault;

use crate::address::NodeAddr;

/// Who made a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// A plugin, or the gateway before it asked a node.
    #[default]
    Gateway,
    /// The gateway, because no node gave an answer.
    Fault,
    /// A node.
    Upstream,
}

impl Source {
    /// APISIX's word for it, the label `response_source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Gateway => "apisix",
            Source::Fault => "nginx",
            Source::Upstream => "upstream",
        }
    }
}

/// The course of one exchange.
#[derive(Debug, Default)]
pub struct Record {
    /// When the head was read, if anybody will ask.
    pub started: Option<Instant>,
    /// The status sent downstream, 0 if none.
    pub status: u16,
    /// Who made the response.
    pub source: Source,
    /// What went wrong in the gateway's eyes.
    pub fault: Option<Fault>,
    /// Attempts on nodes; kept only where `started` is set.
    pub attempts: Vec<Attempt>,
    /// The status of the node in each attempt, 0 if it gave none; always kept.
    pub upstream_statuses: Vec<u16>,
    /// How the upstream's nodes are spoken to, e.g. `https`; None before one is picked.
    pub upstream_scheme: Option<&'static str>,
    /// Bytes sent downstream, heads included.
    pub bytes_sent: u64,
    /// Bytes of the response body sent downstream.
    pub body_bytes_sent: u64,
    /// Bytes of the request received, its head included.
    pub bytes_received: u64,
    /// Which request on its connection this is, from 1.
    pub connection_requests: u32,
}

impl Record {
    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        let Record { attempts, upstream_statuses, .. } = self;
        attempts.clear();
        upstream_statuses.clear();
        // Each in its place: a record made anew would be moved here through another one.
        (self.started, self.fault, self.upstream_scheme) = (None, None, None);
        (self.status, self.source, self.connection_requests) = (0, Source::default(), 0);
        (self.bytes_sent, self.body_bytes_sent, self.bytes_received) = (0, 0, 0);
    }

    /// The node of the last attempt has answered.
    pub fn answered(&mut self, status: u16) {
        self.source = Source::Upstream;
        if let Some(last) = self.upstream_statuses.last_mut() {
            *last = status;
        }
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.status = status;
            attempt.header_ms = attempt.elapsed_ms();
        }
    }

    /// The node has all of the request.
    pub fn sent(&mut self) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.sent_ms = attempt.elapsed_ms();
        }
    }

    /// The connection of the last attempt stands: made for it, or kept from an earlier one.
    pub fn connected(&mut self) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.connect_ms = attempt.elapsed_ms();
        }
    }

    /// Milliseconds since the head was read.
    pub fn elapsed_ms(&self) -> Option<f64> {
        self.started.map(|at| at.elapsed().as_secs_f64() * 1000.0)
    }
}

/// One attempt on a node.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The node.
    pub addr: NodeAddr,
    /// The node's host as it was configured: a name, or an address.
    pub host: String,
    /// When it began.
    pub began: Option<Instant>,
    /// The node's status, 0 if it gave none.
    pub status: u16,
    /// Milliseconds until a connection stood.
    pub connect_ms: Option<f64>,
    /// Milliseconds until all of the request had left.
    pub sent_ms: Option<f64>,
    /// Milliseconds until the head of the response was there.
    pub header_ms: Option<f64>,
    /// Milliseconds until the attempt was over.
    pub response_ms: Option<f64>,
}

impl Attempt {
    /// Milliseconds that the node took for the head of its answer once it had the whole request: a client
    /// that sends slowly is not in it. None if it has not answered, or answered before.
    pub fn waited_ms(&self) -> Option<f64> {
        Some(self.header_ms? - self.sent_ms?)
    }

    fn elapsed_ms(&self) -> Option<f64> {
        self.began.map(|at| at.elapsed().as_secs_f64() * 1000.0)
    }
}
