//! What is known of an exchange when it is over; feeds counters, logs and metrics.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_http::Fault;

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
    /// The hooks that waited, in the order in which they did; kept only where `started` is set.
    pub waits: Vec<Wait>,
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
        let Record { attempts, waits, upstream_statuses, .. } = self;
        attempts.clear();
        waits.clear();
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

    /// The last attempt has carried so many bytes to the node, and from it.
    pub fn carried(&mut self, bytes: (u64, u64)) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.carried = Some(bytes);
        }
    }

    /// The connection of the last attempt stands: made for it, or kept from an earlier one.
    pub fn connected(&mut self, is_kept: bool) {
        if let Some(attempt) = self.attempts.last_mut() {
            (attempt.connect_ms, attempt.reused) = (attempt.elapsed_ms(), is_kept);
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
    pub fn write_attempts(&self, out: &mut Vec<u8>) -> bool {
        for (number, attempt) in self.attempts.iter().enumerate() {
            out.push(if number == 0 { b'[' } else { b',' });
            attempt.write(out);
        }
        if !self.attempts.is_empty() {
            out.push(b']');
        }
        !self.attempts.is_empty()
    }

    /// Milliseconds since the head was read.
    pub fn elapsed_ms(&self) -> Option<f64> {
        self.started.map(|at| milliseconds(at.elapsed()))
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

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"node\":");
        match &self.addr {
            // Nothing of it has to be escaped.
            NodeAddr::Tcp(_) => {
                out.push(b'"');
                self.addr.write(out);
                out.push(b'"');
            }
            NodeAddr::Unix(_) => {
                // Writing to memory cannot fail.
                let _ = serde_json::to_writer(&mut *out, &self.addr.to_string());
            }
        }
        out.extend_from_slice(b",\"status\":");
        match self.status {
            0 => out.extend_from_slice(b"null"),
            status => out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes()),
        }
        let times = [
            (&b",\"connect_time\":"[..], self.connect_ms),
            (b",\"header_time\":", self.header_ms),
            (b",\"response_time\":", self.response_ms),
        ];
        for (name, ms) in times {
            out.extend_from_slice(name);
            match ms {
                Some(ms) => write_seconds(ms, out),
                None => out.extend_from_slice(b"null"),
            }
        }
        out.push(b'}');
    }

    /// Milliseconds that the node took for the head of its answer once it had the whole request: a client
    /// that sends slowly is not in it. None if it has not answered, or answered before.
    pub fn waited_ms(&self) -> Option<f64> {
        Some(self.header_ms? - self.sent_ms?)
    }

    /// Milliseconds since it began.
    pub fn elapsed_ms(&self) -> Option<f64> {
        self.began.map(|at| milliseconds(at.elapsed()))
    }
}

/// Appends milliseconds as seconds with three decimals, as nginx prints times.
pub fn write_seconds(ms: f64, out: &mut Vec<u8>) {
    let ms = (ms + 0.5) as u64;
    let digit = |of: u64| b'0' + (of % 10) as u8;
    out.extend_from_slice(itoa::Buffer::new().format(ms / 1000).as_bytes());
    out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
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
    fn times_are_seconds_with_milliseconds() {
        for ms in [0.0, 0.4, 0.6, 1.0, 12.3, 999.4, 999.6, 1_000.0, 61_234.567, 1e9] {
            let mut out = Vec::new();
            write_seconds(ms, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{:.3}", ms / 1000.0));
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
