//! The end of an exchange: counters and the access line.

use std::time::Instant;

use sigma_http::Headers;
use sigma_net::Peer;
use sigma_observe::access::Entry;
use sigma_observe::counters::Counter;
use sigma_observe::field::Field;

use super::request::host_name;
use super::{Attempt, Exchange, PeerText, normal_path};

impl Exchange<'_, '_> {
    pub(super) fn finish(&mut self) {
        let counters = &self.worker.counters;
        if self.record.status != 0 {
            counters.add_response(self.record.status);
        }
        if let Some(fault) = self.record.fault {
            counters.add_fault(fault.kind as usize);
        }
        counters.add(Counter::BytesIn, self.down.bytes_received());
        counters.add(Counter::BytesOut, self.down.bytes_sent().0);
        if let Some(format) = &self.view.snapshot.access_format
            && let Some(sink) = self.worker.log.borrow_mut().as_mut()
        {
            let clock = self.worker.clock.borrow();
            sink.line(|out| format.render(self, &clock, out));
        }
    }

    fn attempts(&self, out: &mut Vec<u8>, mut value: impl FnMut(&Attempt, &mut Vec<u8>)) -> bool {
        for (n, attempt) in self.record.attempts.iter().enumerate() {
            if n > 0 {
                out.extend_from_slice(b", ");
            }
            value(attempt, out);
        }
        !self.record.attempts.is_empty()
    }
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

fn number(out: &mut Vec<u8>, value: u64) -> bool {
    bytes(out, itoa::Buffer::new().format(value).as_bytes())
}

/// Seconds with milliseconds, as nginx prints times.
fn seconds(out: &mut Vec<u8>, ms: Option<f64>) -> bool {
    match ms {
        Some(ms) => bytes(out, format!("{:.3}", ms / 1000.0).as_bytes()),
        None => bytes(out, b"-"),
    }
}

fn header(out: &mut Vec<u8>, headers: &Headers, name: &str) -> bool {
    headers.find(name.as_bytes()).is_some_and(|value| bytes(out, value))
}

/// The user of Basic credentials, whoever may verify them.
fn basic_user(headers: &Headers, out: &mut Vec<u8>) -> bool {
    use base64::Engine;
    let value = headers.get(sigma_http::HeaderId::Authorization).unwrap_or_default();
    let Some(encoded) = value.get(..6).filter(|s| s.eq_ignore_ascii_case(b"basic ")).map(|_| &value[6..])
    else {
        return false;
    };
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
    match decoded.iter().position(|b| *b == b':') {
        Some(at) if at > 0 => bytes(out, &decoded[..at]),
        _ => false,
    }
}

impl Entry for Exchange<'_, '_> {
    fn write(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        match field {
            Field::Request
            | Field::RequestMethod
            | Field::RequestUri
            | Field::Uri
            | Field::Args
            | Field::Host
            | Field::HttpHeader(_)
            | Field::RemoteUser
            | Field::ServerProtocol
            | Field::RequestLength => self.write_request(field, out),
            Field::UpstreamAddr
            | Field::UpstreamStatus
            | Field::UpstreamResponseTime
            | Field::UpstreamConnectTime
            | Field::UpstreamHeaderTime
            | Field::UpstreamHost
            | Field::UpstreamScheme
            | Field::UpstreamUri
            | Field::UpstreamHeader(_) => self.write_upstream(field, out),
            _ => self.write_rest(field, out),
        }
    }
}

impl Exchange<'_, '_> {
    fn write_request(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        let head = &self.scratch.request;
        let known = !head.method_token().is_empty();
        match field {
            Field::RequestLength => number(out, self.down.bytes_received()),
            // A head that was not understood has no parts to show.
            _ if !known => false,
            Field::Request => {
                out.extend_from_slice(head.method_token());
                out.push(b' ');
                out.extend_from_slice(head.path_and_query());
                out.push(b' ');
                bytes(out, head.version.as_str().as_bytes())
            }
            Field::RequestMethod => bytes(out, head.method_token()),
            Field::RequestUri => bytes(out, head.path_and_query()),
            Field::Uri => match normal_path(head, &self.view.snapshot) {
                Ok(path) => bytes(out, &path.uri),
                Err(_) => bytes(out, head.raw_path()),
            },
            Field::Args => head.query().is_some_and(|query| bytes(out, query)),
            Field::Host => bytes(out, &host_name(head.authority())),
            Field::HttpHeader(name) => header(out, &head.headers, name),
            Field::RemoteUser => basic_user(&head.headers, out),
            Field::ServerProtocol => bytes(out, head.version.as_str().as_bytes()),
            _ => false,
        }
    }

    fn write_upstream(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        if self.record.attempts.is_empty() {
            return false;
        }
        let head = &self.scratch.request;
        match field {
            Field::UpstreamAddr => self.attempts(out, |a, out| out.extend_from_slice(a.addr.as_bytes())),
            Field::UpstreamStatus => self.attempts(out, |a, out| {
                if a.status == 0 {
                    out.push(b'-');
                } else {
                    number(out, a.status.into());
                }
            }),
            Field::UpstreamResponseTime => self.attempts(out, |a, out| {
                seconds(out, a.response_ms);
            }),
            Field::UpstreamConnectTime => self.attempts(out, |a, out| {
                seconds(out, a.connect_ms);
            }),
            Field::UpstreamHeaderTime => self.attempts(out, |a, out| {
                seconds(out, a.header_ms);
            }),
            Field::UpstreamHost => header(out, &head.headers, "host"),
            Field::UpstreamScheme => bytes(out, b"http"),
            Field::UpstreamUri => {
                let rewritten = &self.scratch.target;
                bytes(out, if rewritten.is_empty() { head.path_and_query() } else { rewritten })
            }
            Field::UpstreamHeader(name) => header(out, &self.scratch.response.headers, name),
            _ => false,
        }
    }

    fn write_rest(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        let origin = self.down.origin();
        let snapshot = &self.view.snapshot;
        let route = self.route_of(snapshot);
        match field {
            Field::RemoteAddr => bytes(out, PeerText::new(origin.peer).as_bytes()),
            Field::RemotePort => match origin.peer {
                Peer::Ip(addr) => number(out, addr.port().into()),
                Peer::Unix => false,
            },
            Field::SentHttpHeader(name) => header(out, &self.scratch.response.headers, name),
            Field::Status => number(out, self.record.status.into()),
            Field::BodyBytesSent => number(out, self.down.bytes_sent().1),
            Field::BytesSent => number(out, self.down.bytes_sent().0),
            Field::RequestTime => {
                seconds(out, self.record.started.map(|at: Instant| at.elapsed().as_secs_f64() * 1000.0))
            }
            Field::ServerAddr => {
                origin.local.is_some_and(|a| bytes(out, a.ip().to_canonical().to_string().as_bytes()))
            }
            Field::ServerPort => number(out, origin.local_port().into()),
            Field::Scheme => bytes(out, b"http"),
            Field::Connection => number(out, origin.connection),
            Field::ConnectionRequests => number(out, self.down.request_number().into()),
            Field::RouteId => route.is_some_and(|r| bytes(out, r.id.as_bytes())),
            Field::RouteName => route.and_then(|r| r.name.as_ref()).is_some_and(|n| bytes(out, n.as_bytes())),
            Field::ServiceId => {
                route.and_then(|r| r.service_id.as_ref()).is_some_and(|id| bytes(out, id.as_bytes()))
            }
            Field::Fault => self.record.fault.is_some_and(|f| bytes(out, f.kind.error_type().as_bytes())),
            _ => false,
        }
    }
}
