//! The events that a test program writes, a line of JSON each.

use serde_json::Value;

/// An event of one test.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Started(String),
    Passed(String),
    Ignored(String),
    /// The test failed, with its output.
    Failed(String, String),
    /// The test has been running for a minute.
    Slow(String),
    /// The beginning or the end of all tests of the program.
    Suite,
}

/// The beginning of each event.
const BEGIN: &str = "{ \"type\": ";

/// Returns the output of other processes in a line, and the event behind it: a child may have written a part of a line
/// to the same pipe before.
pub(super) fn split(line: &str) -> (&str, Option<Event>) {
    for (at, _) in line.match_indices(BEGIN) {
        if let Some(event) = parse(&line[at..]) {
            return (&line[..at], Some(event));
        }
    }
    (line, None)
}

fn parse(line: &str) -> Option<Event> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let name = text("name");
    match (value["type"].as_str()?, value["event"].as_str()?) {
        ("suite", _) => Some(Event::Suite),
        ("test", "started") => Some(Event::Started(name)),
        ("test", "ok") => Some(Event::Passed(name)),
        ("test", "ignored") => Some(Event::Ignored(name)),
        ("test", "failed") => Some(Event::Failed(name, text("stdout") + &text("reason") + &text("message"))),
        ("test", "timeout") => Some(Event::Slow(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_behind_the_output_of_children() {
        let check = |line: &str, expected: (&str, Option<Event>)| assert_eq!(split(line), expected, "{line}");
        let started = || Some(Event::Started("a::b".to_owned()));
        let line = r#"{ "type": "test", "event": "started", "name": "a::b" }"#;
        check(line, ("", started()));
        check(&format!("half a line{line}"), ("half a line", started()));
        check(&format!(r#"{{ "type": "te{line}"#), (r#"{ "type": "te"#, started()));
        check(r#"{ "type": "other", "event": "x" }"#, (r#"{ "type": "other", "event": "x" }"#, None));
        check("plain text", ("plain text", None));
        check(r#"{ "type": "suite", "event": "started", "test_count": 2 }"#, ("", Some(Event::Suite)));
        let failed = r#"{ "type": "test", "name": "a", "event": "failed", "stdout": "x\ny\n" }"#;
        check(failed, ("", Some(Event::Failed("a".to_owned(), "x\ny\n".to_owned()))));
        check(
            r#"{ "type": "test", "event": "timeout", "name": "a" }"#,
            ("", Some(Event::Slow("a".to_owned()))),
        );
    }
}
