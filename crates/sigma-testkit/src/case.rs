//! The language of the wire cases: the bytes that each side sends and must receive, in one order.
//!
//! A file holds cases, each begun by `=== name`. `#` starts a comment line. Within a case:
//!
//! | line | meaning |
//! |---|---|
//! | `config:` | indented YAML that follows is added to the gateway's configuration; with `routes:` in it, the catch-all route is left out |
//! | `route:` / `upstream:` | indented YAML added to the catch-all route / to its upstream |
//! | `only: h1` | the case is about the notation of HTTP/1 itself; other protocol pairs skip it |
//! | `only: h1 client`, `only: h1 origin` | the same for one side: the other may use any protocol |
//! | `only: clear` | not over TLS: the origin does nothing before a step names it, not even a handshake |
//! | `alone` | the case shares its gateway with no other: it leaves state behind there, or would be disturbed by some |
//! | `client> TEXT` | the client sends TEXT |
//! | `client< [METHOD] STATUS [cut]` | the client reads one response (to METHOD if not GET); `cut`: it must break off |
//! | `client<= TEXT` | the client reads exactly these bytes |
//! | `client refused STATUS` | the client reads STATUS, or nothing, and then the end of the connection |
//! | `client closed` | the connection ends without another byte |
//! | `client close`, `reset`, `half-close` | the client does so |
//! | `origin< METHOD TARGET [head]` | the origin reads one request; `head`: only its head |
//! | `origin> TEXT`, `origin<= TEXT`, `origin closed`, … | as for the client |
//! | `origin connections N` | the origin has seen N connections so far |
//! | `origin untouched` | the origin has seen no connection |
//! | `origin never complete` | its connections end, none of them with a further complete request |
//!
//! `client 2>` is a second client connection, `origin 2<` the second connection that the origin accepted. TEXT knows
//! `\r \n \t \0 \\ \s` (space), `\xHH`, and `\(N*x)` for N times `x`; an indented line continues it. `{origin}` is
//! the origin's address, `{refused}` an address without a listener, `{port}` the gateway's port; `{origin_port}` and
//! `{refused_port}` are the ports alone.
//!
//! Under an expectation, indented lines demand more: `Name: value`, `Name ~ part`, `!Name` (absent), `Name #2` (occurs
//! twice), `body: TEXT`, `body ~ TEXT`, `trailer Name: value`, `!trailer Name`, and `fault` for the JSON body of a
//! response that the gateway made itself.

use anyhow::{Context, Result, bail, ensure};

/// One case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Case {
    /// Its name, unique within the file.
    pub name: String,
    /// YAML added to the configuration.
    pub config: String,
    /// YAML added to the catch-all route.
    pub route: String,
    /// YAML added to its upstream.
    pub upstream: String,
    /// The client has to use HTTP/1.
    pub h1_client: bool,
    /// The origin has to use HTTP/1.
    pub h1_origin: bool,
    /// It does not apply to connections over TLS.
    pub clear: bool,
    /// It needs its own gateway, in addition to what its settings require.
    pub alone: bool,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One line of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Line number in the file.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// The acting side and its connection, counted from 1.
    pub side: Side,
    /// The action.
    pub action: Action,
}

/// The acting side of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The n-th client connection.
    Client(usize),
    /// The n-th connection that the origin accepted.
    Origin(usize),
}

/// An action of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send text.
    Send(String),
    /// Read a message and check it.
    Expect(Expect),
    /// Read exactly this text.
    Exact(String),
    /// Read this status or nothing, then the end.
    Refused(u16),
    /// The other side must have closed without another byte.
    Closed,
    /// Close.
    Close,
    /// Close with a reset.
    Reset,
    /// Close the sending direction.
    HalfClose,
    /// The origin has seen this many connections.
    Connections(usize),
    /// No connection of the origin carries another complete request.
    NeverComplete,
}

/// An expected message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expect {
    /// `METHOD STATUS` for a response, `METHOD TARGET` for a request.
    pub start: (String, String),
    /// Only the head is read.
    pub head_only: bool,
    /// The message must break off before its end.
    pub cut: bool,
    /// The further demands.
    pub checks: Vec<Check>,
}

/// A demand on a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The field occurs once, with this value.
    Equals(String, String),
    /// The first such field contains this.
    Contains(String, String),
    /// There is no such field.
    Absent(String),
    /// The field occurs this many times.
    Count(String, usize),
    /// The body is this.
    Body(String),
    /// The body contains this.
    BodyContains(String),
    /// There is this trailer.
    Trailer(String, String),
    /// There is no such trailer.
    TrailerAbsent(String),
    /// The body is the gateway's JSON error.
    Fault,
}

/// Parses a file of cases.
pub fn parse_cases(text: &str) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    let mut open = Open::Nothing;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let result = if let Some(name) = line.strip_prefix("===") {
            cases.push(Case { name: name.trim().into(), ..Case::default() });
            Ok(Open::Nothing)
        } else {
            let Some(case) = cases.last_mut() else {
                bail!("line {number}: no case has begun with `=== name`")
            };
            match line.starts_with(' ') {
                true => open.continue_with(case, line).map(|()| open),
                false => begin(case, number, line),
            }
        };
        open = result.with_context(|| format!("line {number}: {line}"))?;
    }
    Ok(cases)
}

/// The owner of an indented line.
#[derive(Debug, Clone, Copy)]
enum Open {
    Nothing,
    Config,
    Route,
    Upstream,
    Step,
}

impl Open {
    fn continue_with(self, case: &mut Case, line: &str) -> Result<()> {
        let block = match self {
            Open::Config => &mut case.config,
            Open::Route => &mut case.route,
            Open::Upstream => &mut case.upstream,
            Open::Step => {
                let step = case.steps.last_mut().context("no step to continue")?;
                return continue_step(&mut step.action, line.trim());
            }
            Open::Nothing => bail!("an indented line continues nothing"),
        };
        block.push_str(line.strip_prefix("  ").unwrap_or(line));
        block.push('\n');
        Ok(())
    }
}

fn begin(case: &mut Case, number: usize, line: &str) -> Result<Open> {
    match line.trim_end() {
        "config:" => return Ok(Open::Config),
        "route:" => return Ok(Open::Route),
        "upstream:" => return Ok(Open::Upstream),
        "only: h1" => {
            (case.h1_client, case.h1_origin) = (true, true);
            return Ok(Open::Nothing);
        }
        "only: h1 client" => {
            case.h1_client = true;
            return Ok(Open::Nothing);
        }
        "only: h1 origin" => {
            case.h1_origin = true;
            return Ok(Open::Nothing);
        }
        "alone" => {
            case.alone = true;
            return Ok(Open::Nothing);
        }
        "only: clear" => {
            case.clear = true;
            return Ok(Open::Nothing);
        }
        _ => {}
    }
    let (side, rest) = side(line)?;
    let action = action(side, rest)?;
    case.steps.push(Step { line: number, text: line.trim_end().to_string(), side, action });
    Ok(Open::Step)
}

fn side(line: &str) -> Result<(Side, &str)> {
    let (make, rest): (fn(usize) -> Side, &str) = if let Some(rest) = line.strip_prefix("client") {
        (Side::Client, rest)
    } else if let Some(rest) = line.strip_prefix("origin") {
        (Side::Origin, rest)
    } else {
        bail!("expected `client…`, `origin…` or a section");
    };
    let digits = rest.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return Ok((make(1), rest));
    }
    let number: usize = digits[..end].parse()?;
    ensure!(number > 0, "connections are counted from 1");
    Ok((make(number), &digits[end..]))
}

fn action(side: Side, rest: &str) -> Result<Action> {
    if let Some(text) = rest.strip_prefix('>') {
        return Ok(Action::Send(unescape(text.trim())?));
    }
    if let Some(text) = rest.strip_prefix("<=") {
        return Ok(Action::Exact(unescape(text.trim())?));
    }
    if let Some(text) = rest.strip_prefix('<') {
        return expect(side, text).map(Action::Expect);
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    Ok(match words[..] {
        ["closed"] => Action::Closed,
        ["close"] => Action::Close,
        ["reset"] => Action::Reset,
        ["half-close"] => Action::HalfClose,
        ["refused", status] => Action::Refused(status.parse()?),
        ["connections", n] => Action::Connections(n.parse()?),
        ["untouched"] => Action::Connections(0),
        ["never", "complete"] => Action::NeverComplete,
        _ => bail!("unknown action {rest:?}"),
    })
}

fn expect(side: Side, text: &str) -> Result<Expect> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let mut expect = Expect::default();
    match words.last() {
        Some(&"head") => expect.head_only = true,
        Some(&"cut") => expect.cut = true,
        _ => {}
    }
    if expect.head_only || expect.cut {
        words.pop();
    }
    let start = match (side, &words[..]) {
        (Side::Client(_), [status]) => ("GET", *status),
        (_, [method, second]) => (*method, *second),
        _ => bail!("expected `METHOD STATUS`, `STATUS` or `METHOD TARGET`"),
    };
    expect.start = (start.0.to_string(), unescape(start.1)?);
    Ok(expect)
}

fn continue_step(action: &mut Action, line: &str) -> Result<()> {
    match action {
        Action::Send(text) | Action::Exact(text) => text.push_str(&unescape(line)?),
        Action::Expect(expect) => expect.checks.push(check(line)?),
        _ => bail!("this step takes no further lines"),
    }
    Ok(())
}

fn check(line: &str) -> Result<Check> {
    if line == "fault" {
        return Ok(Check::Fault);
    }
    if let Some(name) = line.strip_prefix("!trailer ") {
        return Ok(Check::TrailerAbsent(name.into()));
    }
    if let Some(name) = line.strip_prefix('!') {
        return Ok(Check::Absent(name.into()));
    }
    if let Some(text) = line.strip_prefix("body:") {
        return Ok(Check::Body(unescape(text.trim())?));
    }
    if let Some(text) = line.strip_prefix("body ~") {
        return Ok(Check::BodyContains(unescape(text.trim())?));
    }
    if let Some((name, part)) = line.split_once(" ~ ") {
        return Ok(Check::Contains(name.into(), unescape(part.trim())?));
    }
    if let Some((name, n)) = line.split_once(" #") {
        return Ok(Check::Count(name.into(), n.parse()?));
    }
    let Some((name, value)) = line.split_once(':') else { bail!("unknown demand") };
    let value = unescape(value.trim())?;
    Ok(match name.strip_prefix("trailer ") {
        Some(name) => Check::Trailer(name.into(), value),
        None => Check::Equals(name.into(), value),
    })
}

/// Resolves escapes; the result holds one character per byte.
fn unescape(text: &str) -> Result<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            ensure!(c.is_ascii(), "write {c:?} as \\xHH bytes");
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('r') => out.push('\r'),
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('s') => out.push(' '),
            Some('0') => out.push('\0'),
            Some('\\') => out.push('\\'),
            Some('x') => {
                let hex: String = chars.by_ref().take(2).collect();
                out.push(u8::from_str_radix(&hex, 16)? as char);
            }
            Some('(') => {
                let inner: String = chars.by_ref().take_while(|&c| c != ')').collect();
                let (n, unit) = inner.split_once('*').context("`\\(N*text)`")?;
                out.push_str(&unescape(unit)?.repeat(n.parse()?));
            }
            other => bail!("unknown escape {other:?}"),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(unescape(text).ok().as_deref(), expected, "{text}");
        }
        check(r"a\r\n\t\s\\", Some("a\r\n\t \\"));
        check(r"\x00\xff", Some("\0\u{ff}"));
        check(r"\(3*ab\r)c", Some("ab\rab\rab\rc"));
        check(r"\q", None);
        check("é", None);
    }

    #[test]
    fn a_case_has_steps_of_both_sides() {
        let text = "=== one\n# why\nconfig:\n  limits:\n    request_headers: 3\nclient> GET /\n  \\sHTTP/1.1\nclient< HEAD 200 cut\n  A: b\n  !C\norigin 2 never complete\n";
        let cases = parse_cases(text).unwrap();
        assert_eq!(cases[0].config, "limits:\n  request_headers: 3\n");
        assert_eq!(cases[0].steps[0].action, Action::Send("GET / HTTP/1.1".into()));
        let Action::Expect(expect) = &cases[0].steps[1].action else { panic!() };
        assert_eq!((expect.start.0.as_str(), expect.cut, expect.checks.len()), ("HEAD", true, 2));
        assert_eq!(cases[0].steps[2].side, Side::Origin(2));
    }

    #[test]
    fn mistakes_are_named() {
        fn check(text: &str) {
            let error = parse_cases(text).unwrap_err().to_string();
            assert!(error.starts_with("line "), "{error}");
        }
        check("client> a");
        check("=== a\n  indented");
        check("=== a\nserver> x");
        check("=== a\nclient jumps");
    }
}
