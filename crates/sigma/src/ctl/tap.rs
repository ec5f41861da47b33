//! `sigma ctl tap`: exchanges of a running gateway, as they end.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use super::client::{Client, with_query};

/// A line is no longer than the gateway's settings allow; a longer one is from another server.
const LINE_BYTES: usize = 16 << 20;

/// Which exchanges are shown.
#[derive(Debug, Args)]
pub(super) struct Tap {
    /// Only exchanges of this route, by its id
    #[arg(long, value_name = "ID")]
    route: Option<String>,
    /// Only exchanges of this service, by its id
    #[arg(long, value_name = "ID")]
    service: Option<String>,
    /// Only exchanges of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only exchanges of clients in this network, such as 10.0.0.0/8; may be given several times
    #[arg(long, value_name = "CIDR")]
    client: Vec<String>,
    /// Only exchanges with this status, such as 404 or 5xx
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only one in this number of exchanges, at random
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// End after so many
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the lines of JSON as they come
    #[arg(long)]
    json: bool,
    /// Ask this Control API instead of the Admin API; its gateway must have `tap.control_api`
    #[arg(long, value_name = "URL")]
    control: Option<String>,
}

/// Shows them until there are enough, or the gateway ends it.
pub(super) async fn show(client: &Client, tap: Tap) -> Result<ExitCode> {
    let sample = tap.sample.to_string();
    let named = [
        ("route", &tap.route),
        ("service", &tap.service),
        ("consumer", &tap.consumer),
        ("status", &tap.status),
    ];
    let mut arguments: Vec<(&str, &str)> =
        named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    arguments.extend(tap.client.iter().map(|network| ("client", network.as_str())));
    arguments.push(("sample", &sample));
    let path = with_query("tap", arguments.into_iter());
    let mut answer = client.stream(tap.control.as_deref(), &path).await?;
    let (mut pending, mut left) = (Vec::new(), tap.count);
    let mut out = std::io::stdout().lock();
    while let Some(piece) = answer.chunk().await? {
        pending.extend_from_slice(&piece);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let text: Vec<u8> = pending.drain(..=end).collect();
            let told: Value = serde_json::from_slice(&text)?;
            match tap.json {
                true => out.write_all(&text)?,
                false => out.write_all(shown(&told).as_bytes())?,
            }
            out.flush()?;
            if told["type"] == "end" {
                return Ok(ExitCode::SUCCESS);
            }
            if told["type"] == "exchange"
                && let Some(left) = &mut left
            {
                *left -= 1;
                if *left == 0 {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        if pending.len() > LINE_BYTES {
            bail!("a line is longer than {LINE_BYTES} bytes; check that the URL is the API of a gateway");
        }
    }
    bail!("the gateway closed the connection before the end of the response")
}

/// A block that people read; nothing for what only programs want.
fn shown(told: &Value) -> String {
    let mut text = String::new();
    match told["type"].as_str() {
        Some("exchange") => exchange(told, &mut text),
        Some("lost") => {
            line(
                &mut text,
                &format!("… {} more were dropped because the output was too slow", told["exchanges"]),
            );
        }
        Some("end") => line(&mut text, &format!("The tap has ended: {}.", word(told, "reason"))),
        _ => {}
    }
    text
}

/// One line; control characters do not reach the terminal.
fn line(text: &mut String, row: &str) {
    text.extend(row.chars().map(|letter| if letter.is_control() { ' ' } else { letter }));
    text.push('\n');
}

fn word<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn items<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn exchange(told: &Value, text: &mut String) {
    let took = told["ms"].as_f64().map(|ms| format!("  {ms} ms")).unwrap_or_default();
    let (method, target, version) = (word(told, "method"), word(told, "target"), word(told, "version"));
    let head = format!("{} {}  {method} {target} {version}{took}", word(told, "time"), told["status"]);
    line(text, head.trim_end());
    let names =
        [("route", "route"), ("route_name", "name"), ("service", "service"), ("consumer", "consumer")];
    let about = names.iter().filter_map(|(field, name)| Some(format!(", {name} {}", told[*field].as_str()?)));
    line(text, &format!("  client {}{}", word(told, "client"), about.collect::<String>()));
    if let Some(rewritten) = told["rewritten"].as_str() {
        line(text, &format!("  request to the node: {rewritten}"));
    }
    heads(told, "request", ">", text);
    heads(told, "answer", "<", text);
    for attempt in items(told, "attempts") {
        let time = |name: &str| match attempt[name].as_f64() {
            Some(seconds) => format!("{} ms", (seconds * 1000.0).round()),
            None => "–".to_owned(),
        };
        let status =
            attempt["status"].as_u64().map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        line(
            text,
            &format!(
                "  node {}: {status}, connected {}, head {}, over {}",
                word(attempt, "node"),
                time("connect_time"),
                time("header_time"),
                time("response_time")
            ),
        );
    }
    for wait in items(told, "waits") {
        line(text, &format!("  {} waited {} ms", word(wait, "plugin"), wait["ms"]));
    }
    if let Some(fault) = told["fault"].as_object() {
        let part = |name: &str| fault.get(name).and_then(Value::as_str).unwrap_or_default();
        line(text, &format!("  fault {}: {}", part("type"), part("reason")));
    } else if let Some(plugin) = told["plugin"].as_str() {
        line(text, &format!("  fault plugin: {plugin}"));
    }
    text.push('\n');
}

fn heads(told: &Value, name: &str, sign: &str, text: &mut String) {
    for field in items(&told[name], "fields") {
        let part = |at: usize| field[at].as_str().unwrap_or_default();
        line(text, &format!("  {sign} {}: {}", part(0), part(1)));
    }
    if let Some(more) = told[name]["left_out"].as_u64().filter(|more| *more > 0) {
        line(text, &format!("  {sign} and {more} more"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_exchange_is_a_block() {
        let told = json!({
            "type": "exchange", "time": "2026-01-01T00:00:00+00:00", "status": 502, "method": "GET",
            "target": "/a", "version": "HTTP/1.1", "ms": 1.5, "client": "10.0.0.1", "route": "7",
            "consumer": "jack", "rewritten": "/b",
            "request": {"fields": [["Host", "h"], ["X-Odd", "a\u{1b}[2Jb"]], "left_out": 2},
            "answer": {"fields": [], "left_out": 0},
            "attempts": [{"node": "127.0.0.1:1", "status": null, "connect_time": null, "response_time": 0.003}],
            "waits": [{"plugin": "opa", "ms": 2.0}],
            "fault": {"type": "connection_refused", "reason": "refused"},
        });
        let text = shown(&told);
        let expected = "2026-01-01T00:00:00+00:00 502  GET /a HTTP/1.1  1.5 ms\n\
            \u{20} client 10.0.0.1, route 7, consumer jack\n\
            \u{20} request to the node: /b\n\
            \u{20} > Host: h\n";
        assert!(text.starts_with(expected), "{text}");
        // A client's text cannot control a terminal.
        assert!(!text.contains('\u{1b}'), "{text:?}");
        for part in [
            "  > and 2 more\n",
            "  node 127.0.0.1:1: no answer, connected –, head –, over 3 ms\n",
            "  opa waited 2.0 ms\n",
            "  fault connection_refused: refused\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let refused = shown(&json!({"type": "exchange", "status": 503, "plugin": "limit-count"}));
        assert!(refused.ends_with("  fault plugin: limit-count\n\n"), "{refused}");
        assert_eq!(shown(&json!({"type": "alive"})), "");
        assert!(shown(&json!({"type": "lost", "exchanges": 3})).starts_with("… 3 more"));
    }
}
