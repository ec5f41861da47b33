//! JSON lines. Their members are known at compile time, so each has its own instructions: in a loop over a list the
//! processor would mispredict at every member.

use std::borrow::Cow;

use super::{Entry, Style, ValueWriter};
use crate::date::Clock;
use crate::field::Field;
use crate::line::{Line, Put};

/// Appends one line with its newline. The name of a member is the name of its variable. A missing value is `null`;
/// missing members of traces are omitted.
pub(super) fn render<E: Entry>(entry: &E, clock: &Clock, line: &mut Line) {
    const REFERER: Field = Field::HttpHeader(Cow::Borrowed("referer"));
    const USER_AGENT: Field = Field::HttpHeader(Cow::Borrowed("user-agent"));
    line.put(br#"{"time_iso8601":""#);
    line.put(clock.time_iso8601());
    line.push(b'"');
    member(br#","remote_addr":"#, &Field::RemoteAddr, entry, line);
    member(br#","remote_port":"#, &Field::RemotePort, entry, line);
    member(br#","request_id":"#, &Field::RequestId, entry, line);
    member(br#","request_method":"#, &Field::RequestMethod, entry, line);
    member(br#","scheme":"#, &Field::Scheme, entry, line);
    member(br#","host":"#, &Field::Host, entry, line);
    member(br#","request_uri":"#, &Field::RequestUri, entry, line);
    member(br#","server_protocol":"#, &Field::ServerProtocol, entry, line);
    member(br#","status":"#, &Field::Status, entry, line);
    member(br#","request_length":"#, &Field::RequestLength, entry, line);
    member(br#","bytes_sent":"#, &Field::BytesSent, entry, line);
    member(br#","body_bytes_sent":"#, &Field::BodyBytesSent, entry, line);
    member(br#","request_time":"#, &Field::RequestTime, entry, line);
    member(br#","http_referer":"#, &REFERER, entry, line);
    member(br#","http_user_agent":"#, &USER_AGENT, entry, line);
    member(br#","route_id":"#, &Field::RouteId, entry, line);
    member(br#","service_id":"#, &Field::ServiceId, entry, line);
    member(br#","consumer_name":"#, &Field::ConsumerName, entry, line);
    member(br#","upstream_addr":"#, &Field::UpstreamAddr, entry, line);
    member(br#","upstream_status":"#, &Field::UpstreamStatus, entry, line);
    member(br#","upstream_response_time":"#, &Field::UpstreamResponseTime, entry, line);
    member(br#","upstream_attempts":"#, &Field::UpstreamAttempts, entry, line);
    member(br#","fault":"#, &Field::Fault, entry, line);
    optional(br#","trace_id":"#, &Field::TraceId, entry, line);
    optional(br#","span_id":"#, &Field::SpanId, entry, line);
    line.put(b"}\n");
}

#[inline(always)]
fn member<const N: usize>(name: &[u8; N], field: &Field, entry: &impl Entry, line: &mut Line) {
    if !is_written(name, field, entry, line) {
        line.put(b"null");
    }
}

#[inline(always)]
fn optional<const N: usize>(name: &[u8; N], field: &Field, entry: &impl Entry, line: &mut Line) {
    let from = line.len();
    if !is_written(name, field, entry, line) {
        line.truncate(from);
    }
}

/// Appends a name, and the value if there is one.
#[inline(always)]
fn is_written<const N: usize>(name: &[u8; N], field: &Field, entry: &impl Entry, line: &mut Line) -> bool {
    line.put_some(name, N);
    let mut place = ValueWriter { line, style: Style::Json, is_filled: false };
    entry.write(field, &mut place);
    place.is_filled
}
