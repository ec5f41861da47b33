//! `handle_response` and the response matchers of a proxy.

use serde_json::{Map, Value, json};

use super::parse::Line;
use super::proxy::Settings;
use super::run::Runner;

/// `handle_response @m { respond … }` and `replace_status`.
pub(super) fn response(runner: &mut Runner<'_>, line: &Line, settings: &mut Settings) {
    let place = line.place();
    let matcher = line.arg(0).unwrap_or_default();
    let defined = runner.response_matchers.get(matcher).cloned();
    let statuses: Vec<Value> = match defined {
        Some(list) => list,
        None => {
            runner
                .remarks
                .gap(place, "Only responses with listed statuses can be replaced: use `error-page`.");
            return;
        }
    };
    let is_error =
        |status: &Value| status.as_u64().map_or(status != "2xx" && status != "3xx", |status| status >= 400);
    if !statuses.iter().all(is_error) {
        runner.remarks.gap(place, "Pages replace responses of 400 and above only.");
        return;
    }
    let respond = line.lines().iter().find(|line| line.name() == "respond");
    let others = line.lines().iter().filter(|line| line.name() != "respond");
    let Some(respond) = respond.filter(|_| others.clone().all(is_plain_header)) else {
        runner
            .remarks
            .gap(place, "Only `respond` and `header` in `handle_response` are converted: use `error-page`.");
        return;
    };
    let mut headers = Map::new();
    for line in others {
        let value = runner.text(line.place(), line.arg(1).unwrap_or_default());
        headers.insert(line.arg(0).unwrap_or_default().to_owned(), value.into());
    }
    let args = respond.args();
    let (text, status) = match args.as_slice() {
        [one] if one.len() == 3 && one.parse::<u16>().is_ok() && !respond.words[1].quoted => {
            (String::new(), one.parse::<u16>().ok())
        }
        [one] => (one.clone(), Some(200)),
        [text, status, ..] => (text.clone(), status.parse::<u16>().ok()),
        [] => (String::new(), Some(200)),
    };
    let text = runner.text(respond.place(), &text);
    let mut page = json!({"status": statuses, "text": text, "response_status": status.unwrap_or(200)});
    if !headers.is_empty() {
        page["headers"] = Value::Object(headers);
    }
    settings.pages.push(page);
}

/// Whether a line sets one field to a text.
fn is_plain_header(line: &Line) -> bool {
    let name = line.arg(0).unwrap_or("-");
    line.name() == "header"
        && line.args().len() == 2
        && !name.starts_with(['@', '+', '-', '?', '>', '/', '*'])
}

/// Statuses of the response matchers of a proxy.
pub(super) fn matchers(lines: &[Line]) -> Vec<(String, Vec<Value>)> {
    let mut found = Vec::new();
    for line in lines.iter().filter(|line| line.name().starts_with('@')) {
        let rows: Vec<Vec<String>> = match &line.block {
            Some(block) => {
                block.iter().map(|row| row.words.iter().map(|word| word.text.clone()).collect()).collect()
            }
            None => vec![line.args()],
        };
        if let [row] = rows.as_slice()
            && row.first().is_some_and(|kind| kind == "status")
        {
            let list = row[1..].iter().flat_map(|arg| match arg.len() {
                3 if arg.ends_with("xx") => vec![Value::from(arg.as_str())],
                1 => vec![Value::from(format!("{arg}xx"))],
                _ => arg.parse::<u16>().ok().map(Value::from).into_iter().collect(),
            });
            found.push((line.name().to_owned(), list.collect()));
        }
    }
    found
}
