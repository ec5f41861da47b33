//! Access lines: a format is compiled once, then rendered for every finished exchange.

use std::io::Write;

use crate::date::Clock;
use crate::escape;
use crate::field::Field;

/// The word that selects JSON lines instead of a text format.
const JSON_WORD: &str = "json";

/// The members of a JSON line, in this order. A member's name is its variable's.
const JSON_FIELDS: [&str; 23] = [
    "time_iso8601",
    "remote_addr",
    "remote_port",
    "request_id",
    "request_method",
    "scheme",
    "host",
    "request_uri",
    "server_protocol",
    "status",
    "request_length",
    "bytes_sent",
    "body_bytes_sent",
    "request_time",
    "http_referer",
    "http_user_agent",
    "route_id",
    "service_id",
    "upstream_addr",
    "upstream_status",
    "upstream_response_time",
    "upstream_attempts",
    "fault",
];

/// Members that a line has only where there is a value.
const OPTIONAL_FIELDS: [&str; 2] = ["trace_id", "span_id"];

/// Where the values of one line come from: a finished exchange.
pub trait Entry {
    /// Appends the raw value of `field` to `out`; escaping is the format's work.
    ///
    /// `UpstreamAttempts` is appended as JSON, which JSON lines hold as it is.
    ///
    /// Returns false, with `out` untouched, when the exchange has no such value. Is not asked for
    /// the three times (`TimeLocal`, `TimeIso8601`, `Msec`), which come from the clock, nor for
    /// `RequestTimeMs`, which is made from `RequestTime`.
    fn write(&self, field: &Field, out: &mut Vec<u8>) -> bool;
}

/// Why a format cannot be used. Positions are byte offsets into the format, from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No variable has this name.
    #[error("unknown variable `${name}` at byte {at}{}", hint(*suggestion))]
    UnknownVariable {
        /// The name without `$`.
        name: String,
        /// Where its `$` stands.
        at: usize,
        /// The known name nearest to it.
        suggestion: Option<&'static str>,
    },
    /// A `$` that no name follows.
    #[error("`$` at byte {at} is not followed by a variable name; a format cannot hold a `$` of its own")]
    NoName {
        /// Where the `$` stands.
        at: usize,
    },
    /// A `${` without its `}`.
    #[error("`${{` at byte {at} has no closing `}}`; write `${{name}}`")]
    Unclosed {
        /// Where the `$` stands.
        at: usize,
    },
    /// Nothing to write.
    #[error("the format is empty; write a line with $variables or the word `json`")]
    Empty,
}

fn hint(suggestion: Option<&'static str>) -> String {
    match suggestion {
        Some(name) => format!("; did you mean `${name}`?"),
        None => "; docs/logging.md lists the variables".into(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<[u8]>),
    Value(Field),
    /// A member of JSON with the comma before it, left out where there is no value.
    Member(&'static str, Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Text,
    Json,
}

/// A compiled access log format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFormat {
    style: Style,
    segments: Box<[Segment]>,
    asks_for_variables: bool,
}

impl AccessFormat {
    fn new(style: Style, segments: Box<[Segment]>) -> AccessFormat {
        let is_variable = |segment: &Segment| matches!(segment, Segment::Value(Field::Variable(_)));
        let asks_for_variables = segments.iter().any(is_variable);
        AccessFormat { style, segments, asks_for_variables }
    }

    /// Compiles nginx-style text with `$name` and `${name}`, or the word `json`. `is_variable` knows
    /// the variables that an exchange has besides the fields of the log.
    ///
    /// # Errors
    /// Returns an error, with the place, if a part cannot be rendered.
    pub fn compile(format: &str, is_variable: fn(&str) -> bool) -> Result<AccessFormat, FormatError> {
        match format {
            "" => Err(FormatError::Empty),
            JSON_WORD => Ok(AccessFormat::new(Style::Json, json_segments()?)),
            text => {
                let segments = text_segments(text, &|name, at| lookup(name, at, is_variable))?;
                Ok(AccessFormat::new(Style::Text, segments))
            }
        }
    }

    /// As [`AccessFormat::compile`], for text of which everything but the time is a variable that
    /// `is_variable` knows.
    ///
    /// # Errors
    /// Returns an error, with the place, if a part cannot be rendered.
    pub fn of_sessions(format: &str, is_variable: fn(&str) -> bool) -> Result<AccessFormat, FormatError> {
        if format.is_empty() {
            return Err(FormatError::Empty);
        }
        let lookup = |name: &str, at: usize| match Field::from_name(name) {
            Some(time @ (Field::TimeLocal | Field::TimeIso8601 | Field::Msec)) => Ok(time),
            _ if is_variable(name) => Ok(Field::Variable(name.into())),
            _ => Err(FormatError::UnknownVariable { name: name.into(), at, suggestion: None }),
        };
        Ok(AccessFormat::new(Style::Text, text_segments(format, &lookup)?))
    }

    /// Whether any value is a [`Field::Variable`].
    pub fn asks_for_variables(&self) -> bool {
        self.asks_for_variables
    }

    /// Appends one line with its newline to `out`.
    ///
    /// A missing value is `-` in text and `null` in JSON. Values are escaped, so a line is one line
    /// whatever a client sent.
    pub fn render(&self, entry: &dyn Entry, clock: &Clock, out: &mut Vec<u8>) {
        for segment in &self.segments {
            match (segment, self.style) {
                (Segment::Literal(bytes), _) => out.extend_from_slice(bytes),
                (Segment::Value(field), Style::Text) => text_value(field, entry, clock, out),
                (Segment::Value(field), Style::Json) => json_value(field, entry, clock, out),
                (Segment::Member(name, field), _) => json_member(name, field, entry, clock, out),
            }
        }
        out.push(b'\n');
    }
}

fn json_segments() -> Result<Box<[Segment]>, FormatError> {
    let mut segments = Vec::with_capacity(2 * JSON_FIELDS.len() + 1);
    for (i, name) in JSON_FIELDS.iter().enumerate() {
        let separator = if i == 0 { '{' } else { ',' };
        segments.push(Segment::Literal(format!("{separator}\"{name}\":").into_bytes().into()));
        segments.push(Segment::Value(lookup(name, 0, |_| false)?));
    }
    for name in OPTIONAL_FIELDS {
        segments.push(Segment::Member(name, lookup(name, 0, |_| false)?));
    }
    segments.push(Segment::Literal(b"}".as_slice().into()));
    Ok(segments.into())
}

fn text_segments(
    format: &str,
    lookup: &dyn Fn(&str, usize) -> Result<Field, FormatError>,
) -> Result<Box<[Segment]>, FormatError> {
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(ahead) = format[at..].find('$') {
        if ahead > 0 {
            segments.push(Segment::Literal(format.as_bytes()[at..at + ahead].into()));
        }
        at += ahead;
        let (name, len) = variable(&format[at..], at)?;
        segments.push(Segment::Value(lookup(name, at)?));
        at += len;
    }
    if at < format.len() {
        segments.push(Segment::Literal(format.as_bytes()[at..].into()));
    }
    Ok(segments.into())
}

/// Reads the variable that `text` begins with, a `$`: its name, and its length with `$` and braces.
fn variable(text: &str, at: usize) -> Result<(&str, usize), FormatError> {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let rest = &text[1..];
    let Some(inner) = rest.strip_prefix('{') else {
        let end = rest.find(is_end).unwrap_or(rest.len());
        return if end == 0 { Err(FormatError::NoName { at }) } else { Ok((&rest[..end], 1 + end)) };
    };
    match inner.find(is_end) {
        Some(end) if inner[end..].starts_with('}') && end > 0 => Ok((&inner[..end], end + 3)),
        Some(0) => Err(FormatError::NoName { at }),
        _ => Err(FormatError::Unclosed { at }),
    }
}

fn lookup(name: &str, at: usize, is_variable: fn(&str) -> bool) -> Result<Field, FormatError> {
    let variable = || is_variable(name).then(|| Field::Variable(name.into()));
    Field::from_name(name).or_else(variable).ok_or_else(|| FormatError::UnknownVariable {
        name: name.into(),
        at,
        suggestion: Field::suggest(name),
    })
}

/// Appends the raw value; false when there is none.
fn raw_value(field: &Field, entry: &dyn Entry, clock: &Clock, out: &mut Vec<u8>) -> bool {
    match field {
        Field::TimeLocal => out.extend_from_slice(clock.time_local()),
        Field::TimeIso8601 => out.extend_from_slice(clock.time_iso8601()),
        Field::Msec => {
            let ms = clock.unix_ms();
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{}.{:03}", ms / 1000, ms % 1000);
        }
        Field::RequestTimeMs => {
            let from = out.len();
            if !entry.write(&Field::RequestTime, out) {
                return false;
            }
            whole_milliseconds(out, from);
        }
        other => return entry.write(other, out),
    }
    true
}

/// Turns the seconds with three decimals from `from` on into milliseconds: `0.012` into `12`.
fn whole_milliseconds(out: &mut Vec<u8>, from: usize) {
    if let Some(dot) = out[from..].iter().position(|&byte| byte == b'.') {
        out.remove(from + dot);
    }
    let zeros = out[from..].iter().take_while(|&&byte| byte == b'0').count();
    // The last digit stays, so that nothing at all is `0`.
    let end = (from + zeros).min(out.len().saturating_sub(1)).max(from);
    out.drain(from..end);
}

fn text_value(field: &Field, entry: &dyn Entry, clock: &Clock, out: &mut Vec<u8>) {
    let from = out.len();
    if raw_value(field, entry, clock, out) {
        escape::text(out, from);
    } else {
        out.push(b'-');
    }
}

fn json_value(field: &Field, entry: &dyn Entry, clock: &Clock, out: &mut Vec<u8>) {
    let from = out.len();
    if field.is_json() {
        if !raw_value(field, entry, clock, out) {
            out.extend_from_slice(b"null");
        }
        return;
    }
    if field.is_number() {
        if raw_value(field, entry, clock, out) && is_json_number(&out[from..]) {
            return;
        }
        out.truncate(from);
    }
    out.push(b'"');
    if raw_value(field, entry, clock, out) {
        if !field.is_plain() {
            escape::json(out, from + 1);
        }
        out.push(b'"');
    } else {
        out.truncate(from);
        out.extend_from_slice(b"null");
    }
}

fn json_member(name: &str, field: &Field, entry: &dyn Entry, clock: &Clock, out: &mut Vec<u8>) {
    let from = out.len();
    // Writing to a Vec cannot fail.
    let _ = write!(out, ",\"{name}\":\"");
    let value = out.len();
    if raw_value(field, entry, clock, out) {
        escape::json(out, value);
        out.push(b'"');
    } else {
        out.truncate(from);
    }
}

/// Digits with at most one fraction and no leading zero: what our own numbers look like.
fn is_json_number(bytes: &[u8]) -> bool {
    let (whole, fraction) = match bytes.iter().position(|&b| b == b'.') {
        Some(dot) => (&bytes[..dot], &bytes[dot + 1..]),
        None => (bytes, b"0".as_slice()),
    };
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    digits(whole) && digits(fraction) && (whole.len() == 1 || whole[0] != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values by variable name.
    struct Values<'a>(&'a [(&'a str, &'a [u8])]);

    impl Entry for Values<'_> {
        fn write(&self, field: &Field, out: &mut Vec<u8>) -> bool {
            let found = self.0.iter().find(|(name, _)| Field::from_name(name).as_ref() == Some(field));
            if let Some((_, value)) = found {
                out.extend_from_slice(value);
            }
            found.is_some()
        }
    }

    const VALUES: Values<'static> = Values(&[
        ("remote_addr", b"192.0.2.7"),
        ("status", b"200"),
        ("request", b"GET /a?b=\"c\" HTTP/1.1"),
        ("request_time", b"0.012"),
        ("http_user_agent", b"x\ny\xff"),
        ("sent_http_content_type", b"text/plain"),
        ("upstream_http_server", b"origin"),
        ("upstream_status", b"502, 200"),
        ("upstream_attempts", br#"[{"node":"a:1","status":502}]"#),
        ("remote_port", b"not a number"),
        ("args", b""),
    ]);

    fn is_variable(name: &str) -> bool {
        name == "consumer_name"
    }

    fn check(format: &str, expected: &str) {
        let clock = Clock::new(784_111_777_042);
        let mut out = b"before|".to_vec();
        let format = AccessFormat::compile(format, is_variable).expect(format);
        format.render(&VALUES, &clock, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), format!("before|{expected}\n"), "{format:?}");
    }

    #[test]
    fn renders_text() {
        let cases = [
            ("plain", "plain"),
            ("$remote_addr", "192.0.2.7"),
            ("$remote_addr$status", "192.0.2.7200"),
            ("${request_time_ms}ms", "12ms"),
            ("${status}x $status.", "200x 200."),
            ("$remote_addr - $remote_user", "192.0.2.7 - -"),
            ("\"$request\"", r#""GET /a?b=\x22c\x22 HTTP/1.1""#),
            ("[$time_local] $msec", "[06/Nov/1994:08:49:37 +0000] 784111777.042"),
            ("$time_iso8601", "1994-11-06T08:49:37+00:00"),
            ("$http_user_agent", r"x\x0Ay\xFF"),
            ("$sent_http_content_type $upstream_http_server", "text/plain origin"),
            ("$upstream_status $fault", "502, 200 -"),
            ("[$query_string]", "[]"),
            ("$consumer_name", "-"),
            ("é $status é", "é 200 é"),
        ];
        for (format, expected) in cases {
            check(format, expected);
        }
    }

    #[test]
    fn renders_json() {
        check(
            "json",
            concat!(
                r#"{"time_iso8601":"1994-11-06T08:49:37+00:00","remote_addr":"192.0.2.7","#,
                r#""remote_port":"not a number","request_id":null,"request_method":null,"scheme":null,"#,
                r#""host":null,"request_uri":null,"server_protocol":null,"status":200,"#,
                r#""request_length":null,"bytes_sent":null,"body_bytes_sent":null,"request_time":0.012,"#,
                r#""http_referer":null,"http_user_agent":"x\ny"#,
                "\u{fffd}",
                r#"","route_id":null,"service_id":null,"upstream_addr":null,"#,
                r#""upstream_status":"502, 200","upstream_response_time":null,"#,
                r#""upstream_attempts":[{"node":"a:1","status":502}],"fault":null}"#,
            ),
        );
    }

    #[test]
    fn the_trace_is_a_member_where_there_is_one() {
        let format = AccessFormat::compile("json", is_variable).unwrap();
        let (clock, mut out) = (Clock::new(0), Vec::new());
        format.render(&Values(&[("trace_id", b"4b\"f9"), ("span_id", b"00f0")]), &clock, &mut out);
        let line = String::from_utf8(out).unwrap();
        assert!(
            line.ends_with(",\"fault\":null,\"trace_id\":\"4b\\\"f9\",\"span_id\":\"00f0\"}\n"),
            "{line}"
        );
        check("$trace_id $span_id", "- -");
    }

    #[test]
    fn refuses_what_it_cannot_render() {
        let unknown =
            |name: &str, at, suggestion| FormatError::UnknownVariable { name: name.into(), at, suggestion };
        let cases = [
            ("", FormatError::Empty),
            ("$", FormatError::NoName { at: 0 }),
            ("a $ b", FormatError::NoName { at: 2 }),
            ("$$status", FormatError::NoName { at: 0 }),
            ("${}", FormatError::NoName { at: 0 }),
            ("ab ${status", FormatError::Unclosed { at: 3 }),
            ("${status ?? x}", FormatError::Unclosed { at: 0 }),
            ("$status $stats", unknown("stats", 8, Some("status"))),
            ("${cookie_session}", unknown("cookie_session", 0, None)),
        ];
        for (format, expected) in cases {
            assert_eq!(AccessFormat::compile(format, is_variable), Err(expected), "{format}");
        }
    }

    #[test]
    fn errors_name_the_place_and_the_remedy() {
        let cases = [
            ("$remote_adr", "unknown variable `$remote_adr` at byte 0; did you mean `$remote_addr`?"),
            ("$xyzzy", "unknown variable `$xyzzy` at byte 0; docs/logging.md lists the variables"),
            ("${a", "`${` at byte 0 has no closing `}`; write `${name}`"),
        ];
        for (format, expected) in cases {
            assert_eq!(AccessFormat::compile(format, is_variable).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn json_numbers() {
        let cases = [("0", true), ("0.5", true), ("12.345", true), ("", false), ("01", false), ("1.", false)];
        let odd = [(".5", false), ("1.2.3", false), ("-1", false), ("502, 200", false), ("1e3", false)];
        for (text, expected) in cases.into_iter().chain(odd) {
            assert_eq!(is_json_number(text.as_bytes()), expected, "{text}");
        }
    }
}
