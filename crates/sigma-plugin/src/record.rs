//! The record of an exchange, for counters, logs and metrics.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_http::{CarriedBytes, Fault, Version};
use sigma_observe::line::{Put, put_number, put_seconds};
use sigma_observe::moment;

use crate::Phase;
use crate::address::NodeAddr;

/// The maker of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// A plugin, or the gateway before it reached a node.
    #[default]
    Gateway,
    /// The gateway, as no node responded.
    Fault,
    /// A node.
    Upstream,
}

impl Source {
    /// Returns APISIX's word for it, the label `response_source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Gateway => "apisix",
            Source::Fault => "nginx",
            Source::Upstream => "upstream",
        }
    }
}

/// The demand for a record of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// The record is needed in any case.
    pub(crate) is_lasting: bool,
    /// Times are needed to the microsecond, not at the turn of the task ([`moment`]).
    pub(crate) is_precise: bool,
    /// The number of plugins that need it unless they decline.
    pub(crate) samplers: u8,
}

impl Interest {
    /// The interest of a reader of every exchange.
    pub const ALWAYS: Interest = Interest { is_lasting: true, is_precise: true, samplers: 0 };

    /// The interest of the access log, which shows milliseconds.
    pub const LINES: Interest = Interest { is_lasting: true, is_precise: false, samplers: 0 };

    /// The interest of a plugin that selects exchanges.
    pub(crate) const SAMPLER: Interest = Interest { is_lasting: false, is_precise: false, samplers: 1 };

    /// Combines two interests.
    #[must_use]
    pub fn and(self, other: Interest) -> Interest {
        Interest {
            is_lasting: self.is_lasting || other.is_lasting,
            is_precise: self.is_precise || other.is_precise,
            samplers: self.samplers.saturating_add(other.samplers),
        }
    }

    /// Returns true if a record is needed.
    pub fn is_any(self) -> bool {
        self.is_lasting || self.samplers > 0
    }
}

/// The record of one exchange.
#[derive(Debug, Default)]
pub struct Record {
    /// The time at which the head was read; set only if the record is needed.
    pub started: Option<Instant>,
    /// The demand for it.
    pub interest: Interest,
    /// The end time: read once for all readers. None before the end, and if `started` is not set.
    pub ended: Option<Instant>,
    /// The status sent downstream, 0 without one.
    pub status: u16,
    /// The maker of the response.
    pub source: Source,
    /// The fault, as the gateway classifies it.
    pub fault: Option<Fault>,
    /// Attempts on nodes; kept only if `started` is set.
    pub attempts: Vec<Attempt>,
    /// The hooks that waited, in order; kept only if `started` is set.
    pub waits: Vec<Wait>,
    /// The status of the node in each attempt, 0 without one; always kept.
    pub upstream_statuses: Vec<u16>,
    /// The scheme of the upstream, e.g. `https`; None before an upstream is chosen.
    pub upstream_scheme: Option<&'static str>,
    /// The client must not see the statuses of nodes, nor the reason of an error.
    pub hides_reason: bool,
    /// Bytes sent downstream, heads included.
    pub bytes_sent: u64,
    /// Bytes of the response body sent downstream.
    pub body_bytes_sent: u64,
    /// Bytes of the request received, its head included.
    pub bytes_received: u64,
    /// The number of this request on its connection, from 1.
    pub connection_requests: u32,
}

impl Record {
    /// Resets it, keeping its memory.
    pub fn clear(&mut self) {
        let Record { attempts, waits, upstream_statuses, .. } = self;
        attempts.clear();
        waits.clear();
        upstream_statuses.clear();
        // Each field on its own: a new record would be moved here through a copy.
        self.interest = Interest::default();
        (self.started, self.ended, self.fault, self.upstream_scheme) = (None, None, None, None);
        (self.status, self.source, self.connection_requests) = (0, Source::default(), 0);
        self.hides_reason = false;
        (self.bytes_sent, self.body_bytes_sent, self.bytes_received) = (0, 0, 0);
    }

    /// Returns the time at the needed precision.
    pub fn now(&self) -> Instant {
        let is_precise = self.interest.is_precise || self.interest.samplers > 0;
        if is_precise { moment::exact() } else { moment::now() }
    }

    /// Starts recording if it is needed, or may be needed. If every reader selects exchanges, recording starts with
    /// the first selection ([`Record::sampled`]) or the first wait: clocks cost more than all other work for an
    /// exchange that no reader selects.
    pub fn watch(&mut self, interest: Interest) {
        self.interest = self.interest.and(interest);
        if interest.is_lasting {
            self.begin();
        }
    }

    /// Records the times that pending samplers may need.
    pub fn begin(&mut self) {
        if self.started.is_none() && self.interest.is_any() {
            self.started = Some(self.now());
        }
    }

    /// Records that a sampling plugin ([`crate::Plugin::samples`]) has selected this exchange.
    pub fn sampled(&mut self) {
        self.begin();
    }

    /// Records that a sampling plugin has not selected this exchange. Without another reader, recording stops.
    pub fn not_sampled(&mut self) {
        self.interest.samplers = self.interest.samplers.saturating_sub(1);
        if !self.interest.is_any() {
            self.started = None;
        }
    }

    /// Returns milliseconds since the start of the last attempt; None if they are not recorded.
    fn attempt_ms(&self) -> Option<f64> {
        let began = self.attempts.last()?.began?;
        Some(milliseconds(self.now().saturating_duration_since(began)))
    }

    /// Records that the node of the last attempt has responded.
    pub fn answered(&mut self, status: u16) {
        self.source = Source::Upstream;
        if let Some(last) = self.upstream_statuses.last_mut() {
            *last = status;
        }
        let header_ms = self.attempt_ms();
        if let Some(attempt) = self.attempts.last_mut() {
            (attempt.status, attempt.header_ms) = (status, header_ms);
        }
    }

    /// Records that the node has the whole request.
    pub fn sent(&mut self) {
        let sent_ms = self.attempt_ms();
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.sent_ms = sent_ms;
        }
    }

    /// Records the bytes to and from the node in the last attempt.
    pub fn carried(&mut self, bytes: CarriedBytes) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.carried = Some(bytes);
        }
    }

    /// Records that the last attempt has a connection: a new one, or a pooled one, which has no wait.
    pub fn connected(&mut self, is_kept: bool) {
        let connect_ms = if is_kept { None } else { self.attempt_ms() };
        if let Some(attempt) = self.attempts.last_mut() {
            let kept_ms = attempt.began.filter(|_| is_kept).map(|_| 0.0);
            (attempt.connect_ms, attempt.reused) = (connect_ms.or(kept_ms), is_kept);
        }
    }

    /// Records the version of HTTP of the last attempt's connection.
    pub fn speaks(&mut self, version: Option<Version>) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.version = version;
        }
    }

    /// Records that the last attempt has dialled. `at` is the time at which the transport was established, before
    /// TLS; None if it failed or the time is unknown.
    pub fn linked(&mut self, at: Option<Instant>) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.linked_ms = attempt.began.zip(at).map(|(began, at)| milliseconds(at - began));
        }
    }

    /// Records that a hook of a plugin has waited since `began`; the wait may have ended because the client left.
    /// `began` is None if waits are not recorded.
    pub fn waited(&mut self, plugin: &str, phase: Phase, began: Option<Instant>) {
        if let Some(began) = began {
            let ended = began + began.elapsed();
            self.waits.push(Wait { plugin: plugin.into(), phase, began, ended });
        }
    }

    /// Returns the attempts as logs show them, a list; None without an attempt.
    pub fn shown_attempts(&self) -> Option<Value> {
        let shown: Vec<Value> = self.attempts.iter().map(Attempt::shown).collect();
        (!shown.is_empty()).then_some(Value::Array(shown))
    }

    /// Appends [`Record::shown_attempts`] as JSON text, without an intermediate value, for log lines. Appends
    /// nothing, and returns false, without an attempt.
    pub fn write_attempts(&self, out: &mut impl Put) -> bool {
        for (number, attempt) in self.attempts.iter().enumerate() {
            out.put(if number == 0 { b"[" } else { b"," });
            attempt.write(out);
        }
        if !self.attempts.is_empty() {
            out.put(b"]");
        }
        !self.attempts.is_empty()
    }

    /// Records the end of the exchange.
    pub fn end(&mut self) {
        self.ended = self.started.map(|_| self.now());
    }

    /// Returns the time from the head to the end of the exchange, or to now.
    pub fn elapsed(&self) -> Option<Duration> {
        let started = self.started?;
        Some(self.ended.unwrap_or_else(|| self.now()).saturating_duration_since(started))
    }

    /// Returns the same in milliseconds.
    pub fn elapsed_ms(&self) -> Option<f64> {
        self.elapsed().map(milliseconds)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A hook of a plugin that waited: for a service, a time, or the request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The plugin's name.
    pub plugin: Box<str>,
    /// The phase of the hook.
    pub phase: Phase,
    /// The start of the wait.
    pub began: Instant,
    /// The end of the wait, or of the exchange.
    pub ended: Instant,
}

/// One attempt on a node.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The node.
    pub addr: NodeAddr,
    /// The node's host as it was configured: a name, or an address.
    pub host: String,
    /// Its start.
    pub began: Option<Instant>,
    /// The node's status, 0 without one.
    pub status: u16,
    /// The connection is from the pool.
    pub reused: bool,
    /// The version of HTTP on the connection; None before there is one, and for other protocols.
    pub version: Option<Version>,
    /// Milliseconds until the transport of a new connection was established, before TLS; None if unknown, for example
    /// for a connection that was opened for several requests.
    pub linked_ms: Option<f64>,
    /// Bytes of the request to the node and of its response; None if unknown, for example after a cancelled attempt.
    pub carried: Option<CarriedBytes>,
    /// Milliseconds until a connection was established.
    pub connect_ms: Option<f64>,
    /// Milliseconds until the whole request was sent.
    pub sent_ms: Option<f64>,
    /// Milliseconds until the head of the response.
    pub header_ms: Option<f64>,
    /// Milliseconds until the end of the attempt.
    pub response_ms: Option<f64>,
}

impl Attempt {
    /// Returns its form in logs: the node, its status, and the times in seconds, each `null` if missing.
    pub fn shown(&self) -> Value {
        json!({
            "node": self.addr.to_string(),
            "status": (self.status != 0).then_some(self.status),
            "connect_time": self.connect_ms.map(whole_ms),
            "header_time": self.header_ms.map(whole_ms),
            "response_time": self.response_ms.map(whole_ms),
        })
    }

    fn write(&self, out: &mut impl Put) {
        out.put(b"{\"node\":");
        match &self.addr {
            // The text needs no escapes.
            NodeAddr::Tcp(_) => {
                out.put(b"\"");
                self.addr.put(out);
                out.put(b"\"");
            }
            NodeAddr::Unix(_) => out.put(Value::from(self.addr.to_string()).to_string().as_bytes()),
        }
        out.put(b",\"status\":");
        match self.status {
            0 => out.put(b"null"),
            status => put_number(status.into(), out),
        }
        let times = [
            (&b",\"connect_time\":"[..], self.connect_ms),
            (b",\"header_time\":", self.header_ms),
            (b",\"response_time\":", self.response_ms),
        ];
        for (name, ms) in times {
            out.put(name);
            match ms {
                Some(ms) => put_seconds(ms, out),
                None => out.put(b"null"),
            }
        }
        out.put(b"}");
    }

    /// Returns milliseconds from the end of the request to the head of the response; slow sending by the client is
    /// not included. None without a response, or with one before the end of the request.
    pub fn waited_ms(&self) -> Option<f64> {
        Some(self.header_ms? - self.sent_ms?)
    }
}

/// Seconds, with whole milliseconds.
pub(crate) fn whole_ms(ms: f64) -> f64 {
    ms.round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(began: Option<Instant>) -> Attempt {
        Attempt {
            addr: NodeAddr::Unix("/n".into()),
            host: String::new(),
            began,
            reused: true,
            version: None,
            linked_ms: None,
            status: 0,
            connect_ms: None,
            sent_ms: None,
            header_ms: None,
            carried: None,
            response_ms: None,
        }
    }

    #[test]
    fn an_attempt_records_its_connection() {
        let began = Instant::now();
        let mut record = Record { attempts: vec![attempt(Some(began))], ..Record::default() };
        record.linked(Some(began + Duration::from_millis(7)));
        record.connected(false);
        let last = &record.attempts[0];
        assert_eq!((last.linked_ms, last.reused, last.connect_ms.is_some()), (Some(7.0), false, true));
        // A connection opened for several requests has no transport time.
        record.linked(None);
        record.connected(true);
        let last = &record.attempts[0];
        assert_eq!((last.linked_ms, last.reused), (None, true));
        // There is no reader.
        let mut record = Record::default();
        record.linked(Some(began));
        record.connected(true);
        assert!(record.attempts.is_empty());
    }

    #[test]
    fn written_attempts_match_the_shown_ones() {
        let mut record = Record::default();
        let mut out = b"before".to_vec();
        assert!(!record.write_attempts(&mut out) && out == b"before" && record.shown_attempts().is_none());
        let answered = Attempt {
            addr: NodeAddr::Tcp("[::1]:80".parse().unwrap()),
            status: 200,
            connect_ms: Some(0.2),
            header_ms: Some(12.5),
            response_ms: Some(61_234.4),
            ..attempt(None)
        };
        record.attempts =
            vec![attempt(None), answered, Attempt { addr: NodeAddr::Unix("/a\"b".into()), ..attempt(None) }];
        assert!(record.write_attempts(&mut out));
        let written: Value = serde_json::from_slice(&out[6..]).expect("JSON");
        assert_eq!(Some(written), record.shown_attempts());
    }

    #[test]
    fn the_record_is_kept_while_it_is_needed() {
        let sampler = Interest::SAMPLER;
        // The interests in turn; then the number of samplers that decline; then whether the record is kept when the
        // next one selects.
        let cases = [
            (vec![], 0, false),
            (vec![Interest::default()], 0, false),
            (vec![Interest::ALWAYS], 0, true),
            (vec![sampler], 0, true),
            (vec![sampler], 1, false),
            (vec![sampler, sampler], 1, true),
            (vec![sampler, sampler], 2, false),
            (vec![sampler, Interest::ALWAYS], 2, true),
            (vec![Interest::ALWAYS, sampler], 5, true),
        ];
        for (interests, refusals, expected) in cases {
            let mut record = Record::default();
            interests.iter().for_each(|interest| record.watch(*interest));
            let is_lasting = interests.contains(&Interest::ALWAYS);
            assert_eq!(record.started.is_some(), is_lasting, "{interests:?}: nobody has chosen yet");
            (0..refusals).for_each(|_| record.not_sampled());
            record.sampled();
            assert_eq!(record.started.is_some(), expected, "{interests:?}, {refusals}");
            record.clear();
            record.watch(sampler);
            record.begin();
            assert!(record.started.is_some(), "something was waited for");
            record.not_sampled();
            assert_eq!(record.started, None, "of an exchange before: {interests:?}");
        }
    }

    #[test]
    fn waits_are_kept_while_they_are_needed() {
        let mut record = Record::default();
        record.waited("opa", Phase::Access, None);
        assert!(record.waits.is_empty());
        let began = Instant::now();
        record.waited("opa", Phase::Access, Some(began));
        let [wait] = &record.waits[..] else { panic!("{record:?}") };
        assert_eq!((&*wait.plugin, wait.phase, wait.began), ("opa", Phase::Access, began));
        assert!(wait.ended >= began);
        record.clear();
        assert!(record.waits.is_empty());
    }
}
