//! What is known of an exchange when it is over; feeds counters, logs and metrics.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_http::Fault;
use sigma_observe::line::{Put, put_number, put_seconds};
use sigma_observe::moment;

use crate::Phase;
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

/// Who wants the course of an exchange recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Somebody does in any case.
    pub(crate) is_lasting: bool,
    /// Somebody wants to know times to the microsecond, and not as of the turn of the task ([`moment`]).
    pub(crate) is_precise: bool,
    /// Plugins that do unless they say otherwise.
    pub(crate) samplers: u8,
}

impl Interest {
    /// That of somebody who looks at every exchange.
    pub const ALWAYS: Interest = Interest { is_lasting: true, is_precise: true, samplers: 0 };

    /// That of the access log, which shows milliseconds.
    pub const LINES: Interest = Interest { is_lasting: true, is_precise: false, samplers: 0 };

    /// That of a plugin that chooses exchanges.
    pub(crate) const SAMPLER: Interest = Interest { is_lasting: false, is_precise: false, samplers: 1 };

    /// That of both.
    #[must_use]
    pub fn and(self, other: Interest) -> Interest {
        Interest {
            is_lasting: self.is_lasting || other.is_lasting,
            is_precise: self.is_precise || other.is_precise,
            samplers: self.samplers.saturating_add(other.samplers),
        }
    }

    /// Whether anybody is interested.
    pub fn is_any(self) -> bool {
        self.is_lasting || self.samplers > 0
    }
}

/// The course of one exchange.
#[derive(Debug, Default)]
pub struct Record {
    /// When the head was read, if anybody will ask.
    pub started: Option<Instant>,
    /// Who asks.
    pub interest: Interest,
    /// When it was over: read once for all who look at it then. None before, and where `started` is not set.
    pub ended: Option<Instant>,
    /// The status sent downstream, 0 if none.
    pub status: u16,
    /// Who made the response.
    pub source: Source,
    /// What went wrong in the gateway's eyes.
    pub fault: Option<Fault>,
    /// Attempts on nodes; kept only where `started` is set.
    pub attempts: Vec<Attempt>,
    /// The hooks that waited, in the order in which they did; kept only where `started` is set.
    pub waits: Vec<Wait>,
    /// The status of the node in each attempt, 0 if it gave none; always kept.
    pub upstream_statuses: Vec<u16>,
    /// How the upstream's nodes are spoken to, e.g. `https`; None before one is picked.
    pub upstream_scheme: Option<&'static str>,
    /// The client may not see the statuses of nodes, nor the reason of an error.
    pub hides_reason: bool,
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
        let Record { attempts, waits, upstream_statuses, .. } = self;
        attempts.clear();
        waits.clear();
        upstream_statuses.clear();
        // Each in its place: a record made anew would be moved here through another one.
        self.interest = Interest::default();
        (self.started, self.ended, self.fault, self.upstream_scheme) = (None, None, None, None);
        (self.status, self.source, self.connection_requests) = (0, Source::default(), 0);
        self.hides_reason = false;
        (self.bytes_sent, self.body_bytes_sent, self.bytes_received) = (0, 0, 0);
    }

    /// The time, for those who ask how the exchange goes.
    pub fn now(&self) -> Instant {
        let is_precise = self.interest.is_precise || self.interest.samplers > 0;
        if is_precise { Instant::now() } else { moment::now() }
    }

    /// Somebody asks, or may: what happens from now on is recorded. Where all who do choose exchanges first, it is when
    /// one of them has chosen ([`Record::sampled`]), or something is waited for: clocks cost more than all else that
    /// is done for an exchange that nobody chooses.
    pub fn watch(&mut self, interest: Interest) {
        self.interest = self.interest.and(interest);
        if interest.is_lasting {
            self.begin();
        }
    }

    /// From now on it takes time that those will ask for who have yet to choose.
    pub fn begin(&mut self) {
        if self.started.is_none() && self.interest.is_any() {
            self.started = Some(self.now());
        }
    }

    /// One of those who choose exchanges ([`crate::Plugin::samples`]) has chosen this one.
    pub fn sampled(&mut self) {
        self.begin();
    }

    /// One of those who choose exchanges has not chosen this one. Where nobody else asks, its course is not recorded any
    /// more.
    pub fn not_sampled(&mut self) {
        self.interest.samplers = self.interest.samplers.saturating_sub(1);
        if !self.interest.is_any() {
            self.started = None;
        }
    }

    /// Milliseconds since the last attempt began; None if nobody asks.
    fn attempt_ms(&self) -> Option<f64> {
        let began = self.attempts.last()?.began?;
        Some(milliseconds(self.now().saturating_duration_since(began)))
    }

    /// The node of the last attempt has answered.
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

    /// The node has all of the request.
    pub fn sent(&mut self) {
        let sent_ms = self.attempt_ms();
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.sent_ms = sent_ms;
        }
    }

    /// The last attempt has carried so many bytes to the node, and from it.
    pub fn carried(&mut self, bytes: (u64, u64)) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.carried = Some(bytes);
        }
    }

    /// The connection of the last attempt stands: made for it, or kept from an earlier one, which nothing is waited
    /// for.
    pub fn connected(&mut self, is_kept: bool) {
        let connect_ms = if is_kept { None } else { self.attempt_ms() };
        if let Some(attempt) = self.attempts.last_mut() {
            let kept_ms = attempt.began.filter(|_| is_kept).map(|_| 0.0);
            (attempt.connect_ms, attempt.reused) = (connect_ms.or(kept_ms), is_kept);
        }
    }

    /// The last attempt dialled. `at` is when the transport stood, before TLS; None if it never did, or if nobody
    /// can say.
    pub fn linked(&mut self, at: Option<Instant>) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.linked_ms = attempt.began.zip(at).map(|(began, at)| milliseconds(at - began));
        }
    }

    /// A hook of a plugin has waited since `began`, in vain if the client has left; None where nobody asks.
    pub fn waited(&mut self, plugin: &str, phase: Phase, began: Option<Instant>) {
        if let Some(began) = began {
            let ended = began + began.elapsed();
            self.waits.push(Wait { plugin: plugin.into(), phase, began, ended });
        }
    }

    /// The attempts as logs show them, a list; None if there were none.
    pub fn shown_attempts(&self) -> Option<Value> {
        let shown: Vec<Value> = self.attempts.iter().map(Attempt::shown).collect();
        (!shown.is_empty()).then_some(Value::Array(shown))
    }

    /// Appends [`Record::shown_attempts`] as the text of JSON, for lines of logs: made at once, not of a value. Appends
    /// nothing, and returns false, if there were none.
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

    /// The exchange is over.
    pub fn end(&mut self) {
        self.ended = self.started.map(|_| self.now());
    }

    /// The time since the head was read, until the exchange was over if it is.
    pub fn elapsed(&self) -> Option<Duration> {
        let started = self.started?;
        Some(self.ended.unwrap_or_else(|| self.now()).saturating_duration_since(started))
    }

    /// The same in milliseconds.
    pub fn elapsed_ms(&self) -> Option<f64> {
        self.elapsed().map(milliseconds)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A hook of a plugin that waited: for a service that it asked, a time, or the request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The name of the plugin.
    pub plugin: Box<str>,
    /// The phase of the hook.
    pub phase: Phase,
    /// When it began to wait.
    pub began: Instant,
    /// When it went on, or was given up.
    pub ended: Instant,
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
    /// The connection was kept from an earlier request.
    pub reused: bool,
    /// Milliseconds until the transport of a new connection stood, before TLS; None if nobody can say, as for one
    /// that was opened for several requests.
    pub linked_ms: Option<f64>,
    /// Bytes of the request to the node and of the answer from it, with their heads; None if nobody can say, as of
    /// an attempt that was given up.
    pub carried: Option<(u64, u64)>,
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
    /// As logs show it: the node, its status, and the times in seconds, each `null` if it never came.
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
            // Nothing of it has to be escaped.
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

    /// Milliseconds that the node took for the head of its answer once it had the whole request: a client
    /// that sends slowly is not in it. None if it has not answered, or answered before.
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
    fn an_attempt_knows_how_its_connection_came() {
        let began = Instant::now();
        let mut record = Record { attempts: vec![attempt(Some(began))], ..Record::default() };
        record.linked(Some(began + Duration::from_millis(7)));
        record.connected(false);
        let last = &record.attempts[0];
        assert_eq!((last.linked_ms, last.reused, last.connect_ms.is_some()), (Some(7.0), false, true));
        // One that was opened for several says nothing of its transport.
        record.linked(None);
        record.connected(true);
        let last = &record.attempts[0];
        assert_eq!((last.linked_ms, last.reused), (None, true));
        // Nobody asks.
        let mut record = Record::default();
        record.linked(Some(began));
        record.connected(true);
        assert!(record.attempts.is_empty());
    }

    #[test]
    fn attempts_are_written_as_they_are_shown() {
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
    fn the_course_is_recorded_as_long_as_anybody_asks() {
        let sampler = Interest::SAMPLER;
        // The interests in turn, then how many say that they have not chosen it, and whether it is recorded when the next
        // one has.
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
    fn waits_are_kept_for_those_who_ask() {
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
