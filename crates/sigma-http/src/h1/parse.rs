//! Parsing of heads.

use std::ops::Range;

use super::Tolerance;
use super::bytes::{is_authority, is_target, is_token, is_value, token_len};
use crate::header::{Several, list_items};
use crate::header_id::NameTraits;
use crate::swar::{find_control, find_near};
use crate::{Fault, FaultKind, HeaderId, Headers, Method, RequestHead, ResponseHead, TargetForm, Version};

/// The limits of a head.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Bytes of the first line.
    pub line_bytes: usize,
    /// Bytes of the whole head.
    pub head_bytes: usize,
    /// Number of fields.
    pub fields: usize,
    /// Accepted deviations from the strict grammar.
    pub tolerance: Tolerance,
}

/// The reason for a rejected head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The grammar is broken; the text names the rule.
    Invalid(&'static str),
    /// The request line exceeds its limit.
    LineTooLong,
    /// The head, or the number of its fields, exceeds its limit.
    HeadTooLarge,
}

use ParseError::Invalid;

impl ParseError {
    /// Returns the fault of a client that sends such a head.
    pub fn of_request(self) -> Fault {
        match self {
            Invalid(reason) => Fault::new(FaultKind::BadRequest, reason),
            ParseError::LineTooLong => {
                Fault::new(FaultKind::UriTooLong, "the request line exceeds its limit")
            }
            ParseError::HeadTooLarge => {
                Fault::new(FaultKind::RequestHeadTooLarge, "the request head exceeds its limit")
            }
        }
    }

    /// Returns the fault of a node that sends such a head.
    pub fn of_response(self) -> Fault {
        match self {
            Invalid(reason) => Fault::new(FaultKind::BadResponse, reason),
            ParseError::LineTooLong | ParseError::HeadTooLarge => {
                Fault::new(FaultKind::ResponseHeadTooLarge, "the response head exceeds its limit")
            }
        }
    }
}

/// Finds the end of a head that arrives in pieces; it reads every byte once.
///
/// The parser starts over on every call, which is quadratic for single bytes. So after a first incomplete parse this
/// type decides when another is useful.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadScanner {
    /// Small, as every idle connection has one; no head reaches 4 GiB.
    scanned: u32,
    line_start: u32,
}

impl HeadScanner {
    /// Returns true if `bytes` (which start with the head and only grow) have a whole head, or an error that the
    /// parser finds.
    pub fn ready(&mut self, bytes: &[u8]) -> bool {
        let (mut scanned, mut line_start) = (self.scanned as usize, self.line_start as usize);
        while let Some(at) = memchr::memchr(b'\n', &bytes[scanned..]).map(|i| i + scanned) {
            let line = &bytes[line_start..at];
            let leading = line == b"\r" && at < empty_lines(bytes);
            if !line.ends_with(b"\r") || (line == b"\r" && !leading) {
                return true;
            }
            (scanned, line_start) = (at + 1, at + 1);
        }
        (self.scanned, self.line_start) = (bytes.len() as u32, line_start as u32);
        false
    }
}

/// Empty lines before a request that are skipped: RFC 9112 §2.2 wants one at least, and some clients end a body with
/// two line ends. More are no request.
const EMPTY_LINES_MAX: usize = 4;

/// Returns the bytes of the skipped empty lines at the front of `bytes`.
fn empty_lines(bytes: &[u8]) -> usize {
    let lines = bytes.chunks_exact(2).take(EMPTY_LINES_MAX);
    2 * lines.take_while(|line| *line == b"\r\n").count()
}

/// Parses a request head at the front of `bytes` into `head`.
///
/// Returns its length, or `None` if more bytes are needed. Up to [`EMPTY_LINES_MAX`] empty lines before it are skipped.
/// Host rules (RFC 9112 §3.2) are checked here, framing in [`super::framing`].
///
/// # Errors
/// Returns an error if the head must not be forwarded or exceeds `limits`.
pub fn parse_request(
    bytes: &[u8],
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<Option<usize>, ParseError> {
    let start = if let [b'\r', b'\n', ..] = bytes { empty_lines(bytes) } else { 0 };
    if let [b'\r', b'\n', ..] = bytes[start..] {
        return Err(Invalid("there are more than four empty lines before the request line"));
    }
    let Some(line) = next_line(bytes, start)? else {
        return incomplete(bytes.len() - start, limits.line_bytes, ParseError::LineTooLong);
    };
    if line.text.len() > limits.line_bytes {
        return Err(ParseError::LineTooLong);
    }
    head.clear();
    let Some(end) = parse_fields(bytes, line.next, limits, &mut head.headers)? else {
        return incomplete(bytes.len(), limits.head_bytes, ParseError::HeadTooLarge);
    };
    parse_request_line(bytes, line.text, limits.tolerance, head)?;
    check_host(head, limits.tolerance)?;
    Ok(Some(end))
}

/// Parses the known part of a rejected or incomplete request head into `head`, for logs: the request line, and the
/// fields before the first invalid one. Without a valid request line the head is empty.
pub fn parse_known(bytes: &[u8], limits: &HeadLimits, head: &mut RequestHead) {
    head.clear();
    let Ok(Some(line)) = next_line(bytes, empty_lines(bytes)) else { return };
    if line.text.len() > limits.line_bytes {
        return;
    }
    let mut end = line.next;
    for _ in 0..limits.fields {
        match parse_field(bytes, end, &mut head.headers) {
            Ok(next) => end = next,
            Err(_) => break,
        }
    }
    head.headers.hold(&bytes[..end]);
    if parse_request_line(bytes, line.text, limits.tolerance, head).is_err() {
        head.clear();
    }
}

/// Parses a response head at the front of `bytes` into `head`; see [`parse_request`].
///
/// # Errors
/// Returns an error if the head must not be forwarded or exceeds `limits`.
pub fn parse_response(
    bytes: &[u8],
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<Option<usize>, ParseError> {
    let parsed = match parse_strict_response(bytes, limits, head) {
        Err(error) => match limits.tolerance.mended_response(bytes) {
            Some((mended, len)) => parse_strict_response(&mended, limits, head)?.map(|_| len),
            // It may still become a head that can be repaired.
            None if limits.tolerance.bare_lf && error == BARE_LF && bytes.len() <= limits.head_bytes => None,
            None => return Err(error),
        },
        Ok(parsed) => parsed,
    };
    if limits.tolerance.equal_lengths && parsed.is_some() {
        merge_equal_lengths(&mut head.headers);
    }
    Ok(parsed)
}

const BARE_LF: ParseError = Invalid("a line ends in a bare LF");

/// Merges equal lengths into one: repeated fields, or a list that a proxy made of them (RFC 9112 §6.3).
fn merge_equal_lengths(headers: &mut Headers) {
    let lengths: Vec<&[u8]> = headers.get_all(HeaderId::ContentLength).flat_map(list_items).collect();
    if let [first, rest @ ..] = &lengths[..]
        && !rest.is_empty()
        && rest.iter().all(|length| length == first)
    {
        let first = first.to_vec();
        headers.set(HeaderId::ContentLength, &first);
    }
}

fn parse_strict_response(
    bytes: &[u8],
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<Option<usize>, ParseError> {
    let Some(line) = next_line(bytes, 0)? else {
        // Bytes that are not HTTP are rejected at once, before the head limit.
        let probe = bytes.len().min(7);
        if bytes[..probe] != b"HTTP/1."[..probe] {
            return Err(Invalid("the status line does not start with HTTP/1."));
        }
        return incomplete(bytes.len(), limits.head_bytes, ParseError::HeadTooLarge);
    };
    head.clear();
    let (version, status, reason) = parse_status_line(bytes, line.text.clone())?;
    let Some(end) = parse_fields(bytes, line.next, limits, &mut head.headers)? else {
        return incomplete(bytes.len(), limits.head_bytes, ParseError::HeadTooLarge);
    };
    head.version = version;
    head.status = status;
    head.reason = reason;
    Ok(Some(end))
}

/// Parses trailer fields, ended by an empty line, into `headers`.
///
/// # Errors
/// Returns an error in the same cases as [`parse_request`].
pub fn parse_trailers(
    bytes: &[u8],
    limits: &HeadLimits,
    headers: &mut Headers,
) -> Result<Option<usize>, ParseError> {
    match parse_fields(bytes, 0, limits, headers)? {
        Some(end) => Ok(Some(end)),
        None => incomplete(bytes.len(), limits.head_bytes, ParseError::HeadTooLarge),
    }
}

struct Line {
    /// The line without its CRLF.
    text: Range<usize>,
    /// The start of the next line.
    next: usize,
}

fn next_line(bytes: &[u8], start: usize) -> Result<Option<Line>, ParseError> {
    let Some(lf) = find_near(b'\n', bytes, start) else { return Ok(None) };
    if lf == start || bytes[lf - 1] != b'\r' {
        return Err(BARE_LF);
    }
    Ok(Some(Line { text: start..lf - 1, next: lf + 1 }))
}

fn incomplete<T>(have: usize, limit: usize, error: ParseError) -> Result<Option<T>, ParseError> {
    if have > limit { Err(error) } else { Ok(None) }
}

/// Parses field lines from `start` to the empty line, in one pass. Copies the head into the arena only once it is
/// complete, so an incomplete parse copies nothing.
fn parse_fields(
    bytes: &[u8],
    start: usize,
    limits: &HeadLimits,
    headers: &mut Headers,
) -> Result<Option<usize>, ParseError> {
    headers.clear();
    let error = match parse_lines(bytes, start, limits.fields, headers) {
        Ok(end) if end <= limits.head_bytes => {
            headers.hold(&bytes[..end]);
            return Ok(Some(end));
        }
        Ok(_) => ParseError::HeadTooLarge,
        Err(error) => error,
    };
    // The registered lines have no bytes yet.
    headers.clear();
    // An incomplete line breaks the grammar too; so a head is judged when it is complete.
    match end_of_head(bytes, start)? {
        None => Ok(None),
        Some(end) if end > limits.head_bytes => Err(ParseError::HeadTooLarge),
        Some(_) => Err(error),
    }
}

/// Returns the end of the head whose field lines begin at `start`, if it is complete.
fn end_of_head(bytes: &[u8], start: usize) -> Result<Option<usize>, ParseError> {
    let mut at = start;
    while let Some(line) = next_line(bytes, at)? {
        at = line.next;
        if line.text.is_empty() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Parses field lines until the empty one and returns its end.
fn parse_lines(
    bytes: &[u8],
    start: usize,
    fields: usize,
    headers: &mut Headers,
) -> Result<usize, ParseError> {
    let mut at = start;
    for _ in 0..=fields {
        if let [b'\r', b'\n', ..] = bytes[at..] {
            return Ok(at + 2);
        }
        at = parse_field(bytes, at, headers)?;
    }
    Err(ParseError::HeadTooLarge)
}

fn parse_field(bytes: &[u8], at: usize, headers: &mut Headers) -> Result<usize, ParseError> {
    let (name, colon) = parse_name(bytes, at)?;
    let is_ows = |b: u8| matches!(b, b' ' | b'\t');
    // White space around the value is not part of it (RFC 9110 §5.6.3).
    let mut value = colon + 1;
    while bytes.get(value).is_some_and(|b| is_ows(*b)) {
        value += 1;
    }
    let cr = find_control(bytes, value);
    let [b'\r', b'\n', ..] = bytes[cr..] else {
        return Err(Invalid("a field value contains a control byte"));
    };
    let mut value_end = cr;
    while value_end > value && is_ows(bytes[value_end - 1]) {
        value_end -= 1;
    }
    headers.push_line(name, at..cr + 2, colon - at, value..value_end);
    Ok(cr + 2)
}

/// The traits of the field name at `at`, and where its colon is.
fn parse_name(bytes: &[u8], at: usize) -> Result<(NameTraits, usize), ParseError> {
    let broken = || Err(broken_name(bytes, at));
    let Some(colon) = find_near(b':', bytes, at) else { return broken() };
    let name = &bytes[at..colon];
    match HeaderId::of(name) {
        HeaderId::Other if name.len() <= usize::from(u16::MAX) && is_token(name) => {
            Ok((NameTraits::other(name), colon))
        }
        HeaderId::Other => broken(),
        known => Ok((NameTraits::known(known), colon)),
    }
}

/// Returns the reason why the bytes at `at` are not a field name.
fn broken_name(bytes: &[u8], at: usize) -> ParseError {
    let name_len = token_len(&bytes[at..]);
    match bytes.get(at + name_len) {
        Some(b' ' | b'\t') if name_len == 0 => Invalid("a field is folded over lines (obs-fold)"),
        Some(b' ' | b'\t') => Invalid("white space before the colon of a field"),
        _ => Invalid("a field name is empty or not a token"),
    }
}

fn parse_request_line(
    bytes: &[u8],
    line: Range<usize>,
    tolerance: Tolerance,
    head: &mut RequestHead,
) -> Result<(), ParseError> {
    let text = &bytes[line.clone()];
    let method_len = find_near(b' ', text, 0).unwrap_or_default();
    head.method = Method::parse(&text[..method_len]);
    if head.method == Method::Other && !is_token(&text[..method_len]) {
        return Err(Invalid("the request line does not start with a method and a space"));
    }
    let rest = &text[method_len + 1..];
    let Some(target_len) = rest.len().checked_sub(b" HTTP/1.x".len()) else {
        return Err(Invalid("the request line has no version"));
    };
    let (target, version) = rest.split_at(target_len);
    head.version = match version {
        b" HTTP/1.1" => Version::Http11,
        b" HTTP/1.0" => Version::Http10,
        _ => return Err(Invalid("the version is not HTTP/1.1 or HTTP/1.0")),
    };
    let mended = tolerance.mended_target(target);
    let target = mended.as_deref().unwrap_or(target);
    if !is_target(target) {
        return Err(Invalid("the request target is empty or contains a forbidden byte"));
    }
    head.method_range = line.start as u32..(line.start + method_len) as u32;
    let at = match &mended {
        Some(mended) => head.headers.keep(mended).start as usize,
        None => line.start + method_len + 1,
    };
    classify_target(target, at, head)
}

fn classify_target(target: &[u8], at: usize, head: &mut RequestHead) -> Result<(), ParseError> {
    let range = |from: usize, to: usize| (at + from) as u32..(at + to) as u32;
    if head.method == Method::Connect {
        if !is_authority(target) {
            return Err(Invalid("the target of CONNECT is not host:port"));
        }
        head.form = TargetForm::Authority;
        head.target = range(0, target.len());
        return Ok(());
    }
    if target[0] == b'/' {
        head.form = TargetForm::Origin;
        head.target = range(0, target.len());
        return Ok(());
    }
    if target == b"*" {
        if head.method != Method::Options {
            return Err(Invalid("the target * is for OPTIONS only"));
        }
        head.form = TargetForm::Asterisk;
        head.target = range(0, 1);
        return Ok(());
    }
    let scheme_len = match target {
        t if t.len() > 7 && t[..7].eq_ignore_ascii_case(b"http://") => 7,
        t if t.len() > 8 && t[..8].eq_ignore_ascii_case(b"https://") => 8,
        _ => return Err(Invalid("the request target has no known form")),
    };
    let rest = &target[scheme_len..];
    let authority_len = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    if !is_authority(&rest[..authority_len]) {
        return Err(Invalid("the authority of the request target is invalid"));
    }
    head.form = TargetForm::Absolute;
    head.authority = range(scheme_len, scheme_len + authority_len);
    head.target = match &rest[authority_len..] {
        // The empty path is `/` (RFC 9110 §4.2.3); later code need not know the difference.
        query if query.first() == Some(&b'?') => head.headers.keep(&[b"/", query].concat()),
        _ => range(scheme_len + authority_len, target.len()),
    };
    Ok(())
}

fn parse_status_line(bytes: &[u8], line: Range<usize>) -> Result<(Version, u16, Range<u32>), ParseError> {
    let text = &bytes[line.clone()];
    let version = match text.get(..9) {
        Some(b"HTTP/1.1 ") => Version::Http11,
        Some(b"HTTP/1.0 ") => Version::Http10,
        _ => return Err(Invalid("the status line does not start with HTTP/1.1 or HTTP/1.0")),
    };
    let digits = text.get(9..12).filter(|d| d.iter().all(u8::is_ascii_digit));
    let status = digits.map_or(0, |d| d.iter().fold(0u16, |n, d| n * 10 + u16::from(d - b'0')));
    if !(100..=999).contains(&status) {
        return Err(Invalid("the status code is not three digits from 100"));
    }
    // The reason may be missing together with its space; servers in the field do both.
    let reason = match text.get(12) {
        None => line.end..line.end,
        Some(b' ') => line.start + 13..line.end,
        Some(_) => return Err(Invalid("the status code is not followed by a space")),
    };
    if !is_value(&bytes[reason.clone()]) {
        return Err(Invalid("the reason phrase contains a control byte"));
    }
    Ok((version, status, reason.start as u32..reason.end as u32))
}

/// Checks RFC 9112 §3.2: exactly one valid Host in HTTP/1.1, at most one in HTTP/1.0.
fn check_host(head: &RequestHead, tolerance: Tolerance) -> Result<(), ParseError> {
    match head.headers.only(HeaderId::Host) {
        Ok(None) if head.version == Version::Http10 => Ok(()),
        Ok(None) => Err(Invalid("the Host field is missing")),
        Err(Several) => Err(Invalid("more than one Host field")),
        Ok(Some(host)) if is_authority(host) || (tolerance.empty_host && host.is_empty()) => Ok(()),
        Ok(Some(_)) => Err(Invalid("the Host field is invalid")),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
