//! Access lines: a format is compiled once, then rendered for every finished exchange.

mod json;

use crate::date::Clock;
use crate::escape;
use crate::field::Field;
use crate::line::{Line, Literal, Put, nearest_ms, put_number, put_seconds};

/// The word that selects JSON lines instead of a text format.
const JSON_WORD: &str = "json";

/// The source of the values of one line: a finished exchange.
pub trait Entry {
    /// Writes the value of `field` to `place`, or nothing without a value.
    ///
    /// It is not called for the three times (`TimeLocal`, `TimeIso8601`, `Msec`), which come from the clock.
    fn write(&self, field: &Field, place: &mut ValueWriter<'_>);
}

/// The position of one value in a line. A value is written in the format of the line; the first value counts.
pub struct ValueWriter<'a> {
    line: &'a mut Line,
    style: Style,
    is_filled: bool,
}

impl<'a> ValueWriter<'a> {
    /// Returns a place that appends its value to `line` unescaped, for comparisons.
    pub fn raw(line: &'a mut Line) -> ValueWriter<'a> {
        ValueWriter { line, style: Style::Raw, is_filled: false }
    }

    /// Returns true if a value was written.
    pub fn is_filled(&self) -> bool {
        self.is_filled
    }

    /// Writes untrusted bytes, escaped.
    #[inline]
    pub fn text(&mut self, value: &[u8]) {
        self.pieces(|line| line.put(value));
    }

    /// Writes untrusted bytes as [`ValueWriter::text`] does; `write` appends them in pieces.
    #[inline(always)]
    pub fn pieces(&mut self, write: impl FnOnce(&mut Line)) {
        self.quoted(|line, style| {
            let from = line.len();
            write(line);
            match style {
                Style::Raw => {}
                Style::Text => escape::text(line, from),
                Style::Json => escape::json(line, from),
            }
        });
    }

    /// Writes dates, addresses, and words of the gateway itself, which never need escapes.
    #[inline]
    pub fn word(&mut self, value: &[u8]) {
        self.words(|line| line.put(value));
    }

    /// The same; `write` appends in pieces.
    #[inline(always)]
    pub fn words(&mut self, write: impl FnOnce(&mut Line)) {
        self.quoted(|line, _| write(line));
    }

    /// Writes a number, in JSON without quotes.
    #[inline]
    pub fn number(&mut self, value: u64) {
        self.is_filled = true;
        put_number(value, self.line);
    }

    /// Writes milliseconds as seconds with three decimals, as nginx shows times.
    #[inline]
    pub fn seconds(&mut self, ms: f64) {
        self.is_filled = true;
        put_seconds(ms, self.line);
    }

    /// Writes milliseconds as a whole number.
    pub fn milliseconds(&mut self, ms: f64) {
        self.number(nearest_ms(ms));
    }

    /// Writes JSON that `write` appends: a value in a JSON line, a text in other lines.
    #[inline(always)]
    pub fn json(&mut self, write: impl FnOnce(&mut Line)) {
        let from = self.line.len();
        self.is_filled = true;
        write(self.line);
        if self.style == Style::Text {
            escape::text(self.line, from);
        }
    }

    #[inline(always)]
    fn quoted(&mut self, write: impl FnOnce(&mut Line, Style)) {
        self.is_filled = true;
        match self.style {
            Style::Json => {
                self.line.push(b'"');
                write(self.line, self.style);
                self.line.push(b'"');
            }
            _ => write(self.line, self.style),
        }
    }
}

/// The reason why a format cannot be used. Positions are byte offsets into the format, from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No variable has this name.
    #[error("unknown variable `${name}` at byte {at}{}", hint(*suggestion))]
    UnknownVariable {
        /// The name without `$`.
        name: String,
        /// The offset of its `$`.
        at: usize,
        /// The known name nearest to it.
        suggestion: Option<&'static str>,
    },
    /// A `$` without a name
    #[error("`$` at byte {at} is not followed by a variable name; a format cannot contain a literal `$`")]
    NoName {
        /// The offset of the `$`.
        at: usize,
    },
    /// A `${` without its `}`.
    #[error("`${{` at byte {at} has no closing `}}`; write `${{name}}`")]
    Unclosed {
        /// The offset of the `$`.
        at: usize,
    },
    /// There is nothing to write
    #[error("the format is empty; write a line with $variables or the word `json`")]
    Empty,
}

fn hint(suggestion: Option<&'static str>) -> String {
    match suggestion {
        Some(name) => format!("; did you mean `${name}`?"),
        None => "; docs/variables.md lists the variables".into(),
    }
}

/// A value of a text format, with the text before it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    before: Literal,
    field: Field,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Values are not escaped
    Raw,
    Text,
    Json,
}

/// A compiled access log format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFormat(Form);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Json,
    Text {
        segments: Box<[Segment]>,
        /// The text after the last value, with the line end.
        end: Box<[u8]>,
    },
}

impl AccessFormat {
    fn of_text(
        format: &str,
        lookup: &dyn Fn(&str, usize) -> Result<Field, FormatError>,
    ) -> Result<AccessFormat, FormatError> {
        if format.is_empty() {
            return Err(FormatError::Empty);
        }
        let (segments, mut end) = text_segments(format, lookup)?;
        end.push(b'\n');
        Ok(AccessFormat(Form::Text { segments: segments.into(), end: end.into() }))
    }

    /// Compiles nginx-style text with `$name` and `${name}`, or the word `json`. `is_variable` knows the variables of
    /// an exchange besides the log fields.
    ///
    /// # Errors
    /// Returns an error with the position if a part cannot be rendered.
    pub fn compile(format: &str, is_variable: fn(&str) -> bool) -> Result<AccessFormat, FormatError> {
        match format {
            JSON_WORD => Ok(AccessFormat(Form::Json)),
            text => AccessFormat::of_text(text, &|name, at| lookup(name, at, is_variable)),
        }
    }

    /// As [`AccessFormat::compile`], for a format in which everything but the time is a variable known to
    /// `is_variable`.
    ///
    /// # Errors
    /// Returns an error with the position if a part cannot be rendered.
    pub fn of_sessions(format: &str, is_variable: fn(&str) -> bool) -> Result<AccessFormat, FormatError> {
        AccessFormat::of_text(format, &|name, at| match Field::from_name(name) {
            Some(time @ (Field::TimeLocal | Field::TimeIso8601 | Field::Msec)) => Ok(time),
            _ if is_variable(name) => Ok(Field::Variable(name.into())),
            _ => Err(FormatError::UnknownVariable { name: name.into(), at, suggestion: None }),
        })
    }

    /// Returns the same format with the values hidden that `is_credential` selects.
    #[must_use]
    pub fn hiding(self, is_credential: impl Fn(&Field) -> bool) -> AccessFormat {
        let Form::Text { segments, end } = self.0 else { return self };
        let hidden = |Segment { before, field }: Segment| match is_credential(&field) {
            true => Segment { before, field: Field::Credential(Box::new(field)) },
            false => Segment { before, field },
        };
        AccessFormat(Form::Text { segments: segments.into_iter().map(hidden).collect(), end })
    }

    /// Returns true if any value is a [`Field::Variable`].
    pub fn asks_for_variables(&self) -> bool {
        let Form::Text { segments, .. } = &self.0 else { return false };
        segments.iter().any(|segment| matches!(segment.field, Field::Variable(_) | Field::Credential(_)))
    }

    /// Appends one line with its newline to `out`.
    ///
    /// A missing value is `-` in text and `null` in JSON. Values are escaped, so that a line is always one line.
    pub fn render<E: Entry>(&self, entry: &E, clock: &Clock, out: &mut Line) {
        match &self.0 {
            Form::Json => json::render(entry, clock, out),
            Form::Text { segments, end } => {
                segments.iter().for_each(|segment| segment.render(entry, clock, out));
                out.put(end);
            }
        }
    }
}

impl Segment {
    fn render<E: Entry>(&self, entry: &E, clock: &Clock, out: &mut Line) {
        self.before.put(out);
        let mut place = ValueWriter { line: out, style: Style::Text, is_filled: false };
        match &self.field {
            Field::TimeLocal => place.word(clock.time_local()),
            Field::TimeIso8601 => place.word(clock.time_iso8601()),
            Field::Msec => place.seconds(clock.unix_ms() as f64),
            other => entry.write(other, &mut place),
        }
        if !place.is_filled {
            out.push(b'-');
        }
    }
}

/// Splits a text format: values with the text before each, and the text after the last one.
fn text_segments(
    format: &str,
    lookup: &dyn Fn(&str, usize) -> Result<Field, FormatError>,
) -> Result<(Vec<Segment>, Vec<u8>), FormatError> {
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(ahead) = format[at..].find('$') {
        let before = format.as_bytes()[at..at + ahead].to_vec();
        at += ahead;
        let (name, len) = variable(&format[at..], at)?;
        segments.push(Segment { before: Literal::new(&before), field: lookup(name, at)? });
        at += len;
    }
    Ok((segments, format.as_bytes()[at..].to_vec()))
}

/// Parses the variable at the start of `text`, a `$`: its name, and its length with `$` and braces.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Values by variable name.
    struct Values<'a>(&'a [(&'a str, &'a [u8])]);

    impl Entry for Values<'_> {
        fn write(&self, field: &Field, place: &mut ValueWriter<'_>) {
            let found = self.0.iter().find(|(name, _)| Field::from_name(name).as_ref() == Some(field));
            let Some((_, value)) = found else { return };
            match field {
                Field::Status => place.number(200),
                Field::RequestTime => place.seconds(12.0),
                Field::RequestTimeMs => place.milliseconds(12.0),
                Field::UpstreamAttempts => place.json(|line| line.put(value)),
                Field::UpstreamStatus => place.word(value),
                Field::Uri => place.pieces(|line| value.iter().for_each(|byte| line.push(*byte))),
                _ => place.text(value),
            }
        }
    }

    const VALUES: Values<'static> = Values(&[
        ("remote_addr", b"192.0.2.7"),
        ("status", b"200"),
        ("request", b"GET /a?b=\"c\" HTTP/1.1"),
        ("request_time", b""),
        ("request_time_ms", b""),
        ("uri", b"/\"\n"),
        ("http_user_agent", b"x\ny\xff"),
        ("sent_http_content_type", b"text/plain"),
        ("upstream_http_server", b"origin"),
        ("upstream_status", b"502, 200"),
        ("upstream_attempts", br#"[{"node":"a:1","status":502}]"#),
        ("args", b""),
    ]);

    fn is_variable(name: &str) -> bool {
        name == "consumer_name"
    }

    fn check(format: &str, expected: &str) {
        let clock = Clock::new(784_111_777_042);
        let mut out = Line::default();
        out.put(b"before|");
        let format = AccessFormat::compile(format, is_variable).expect(format);
        format.render(&VALUES, &clock, &mut out);
        assert_eq!(String::from_utf8_lossy(out.as_bytes()), format!("before|{expected}\n"), "{format:?}");
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
            ("[$uri]", r"[/\x22\x0A]"),
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
                r#""remote_port":null,"request_id":null,"request_method":null,"scheme":null,"#,
                r#""host":null,"request_uri":null,"server_protocol":null,"status":200,"#,
                r#""request_length":null,"bytes_sent":null,"body_bytes_sent":null,"request_time":0.012,"#,
                r#""http_referer":null,"http_user_agent":"x\ny"#,
                "\u{fffd}",
                r#"","route_id":null,"service_id":null,"consumer_name":null,"upstream_addr":null,"#,
                r#""upstream_status":"502, 200","upstream_response_time":null,"#,
                r#""upstream_attempts":[{"node":"a:1","status":502}],"fault":null}"#,
            ),
        );
    }

    #[test]
    fn the_trace_is_a_member_if_there_is_one() {
        let format = AccessFormat::compile("json", is_variable).unwrap();
        let (clock, mut out) = (Clock::new(0), Line::default());
        format.render(&Values(&[("trace_id", b"4b\"f9"), ("span_id", b"00f0")]), &clock, &mut out);
        let line = String::from_utf8(out.take()).unwrap();
        assert!(
            line.ends_with(",\"fault\":null,\"trace_id\":\"4b\\\"f9\",\"span_id\":\"00f0\"}\n"),
            "{line}"
        );
        check("$trace_id $span_id", "- -");
    }

    #[test]
    fn unusable_formats_are_rejected() {
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
    fn errors_name_the_position_and_the_remedy() {
        let cases = [
            ("$remote_adr", "unknown variable `$remote_adr` at byte 0; did you mean `$remote_addr`?"),
            ("$xyzzy", "unknown variable `$xyzzy` at byte 0; docs/variables.md lists the variables"),
            ("${a", "`${` at byte 0 has no closing `}`; write `${name}`"),
        ];
        for (format, expected) in cases {
            assert_eq!(AccessFormat::compile(format, is_variable).unwrap_err().to_string(), expected);
        }
    }

    /// In the form for comparisons.
    #[test]
    fn raw_values_are_unchanged() {
        let cases: [(Field, &[u8]); 6] = [
            (Field::Request, b"GET /a?b=\"c\" HTTP/1.1"),
            (Field::Uri, b"/\"\n"),
            (Field::Status, b"200"),
            (Field::RequestTimeMs, b"12"),
            (Field::UpstreamStatus, b"502, 200"),
            (Field::UpstreamAttempts, br#"[{"node":"a:1","status":502}]"#),
        ];
        for (field, expected) in cases {
            let mut out = Line::default();
            let mut place = ValueWriter::raw(&mut out);
            VALUES.write(&field, &mut place);
            assert!(place.is_filled(), "{field:?}");
            assert_eq!(out.as_bytes(), expected, "{field:?}");
        }
        let mut out = Line::default();
        let mut place = ValueWriter::raw(&mut out);
        VALUES.write(&Field::Fault, &mut place);
        assert!(!place.is_filled() && out.is_empty());
    }
}
