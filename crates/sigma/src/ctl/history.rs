//! `sigma ctl history`, `diff` and `rollback`: who changed what, and the way back.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use super::client::{Client, Method, with_query};
use super::output::{self, Form, table};

/// Width of a terminal of default size.
const COLUMNS: usize = 79;
/// Keys that a row of a list has room for.
const KEYS: usize = 3;
/// Versions among which a change of resources is looked for.
const UNDO_LOOKS: &str = "100";

/// Which past is meant.
#[derive(Debug, Args)]
pub(super) struct Past {
    /// Only changes of this object, such as routes/1
    #[arg(long, value_name = "KEY")]
    object: Option<String>,
    /// Call this Control API, for a gateway with its routes in a file and no Admin API
    #[arg(long, value_name = "URL")]
    control: Option<String>,
}

impl Past {
    async fn ask(&self, client: &Client, path: &str, more: &[(&str, String)]) -> Result<Value> {
        let more = more.iter().map(|(name, value)| (*name, value.as_str()));
        let path = with_query(path, more.chain(self.object.as_deref().map(|key| ("key", key))));
        client.ask(self.control.as_deref(), &path).await
    }
}

/// Lists versions.
pub(super) async fn list(
    client: &Client,
    past: Past,
    limit: u64,
    before: Option<u64>,
    form: Option<Form>,
) -> Result<()> {
    let mut arguments = vec![("limit", limit.to_string())];
    arguments.extend(before.map(|before| ("before", before.to_string())));
    let found = past.ask(client, "history", &arguments).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => print_lines(&listed(&found["list"])),
        form => output::print(form, &found["list"])?,
    }
    Ok(())
}

/// Shows one version.
pub(super) async fn one(client: &Client, past: Past, version: u64, form: Option<Form>) -> Result<()> {
    let found = past.ask(client, &format!("history/{version}"), &[]).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => print_lines(&(head(&found) + &changes(&found))),
        form => output::print(form, &found)?,
    }
    Ok(())
}

/// Shows the differences between two versions.
pub(super) async fn difference(
    client: &Client,
    past: Past,
    from: u64,
    to: u64,
    form: Option<Form>,
) -> Result<ExitCode> {
    let found = past.ask(client, &format!("history/{from}/diff/{to}"), &[]).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => print_lines(&changes(&found)),
        form => output::print(form, &found)?,
    }
    let is_same = found["total"].as_u64() == Some(0);
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(super::DIFFERENT) })
}

/// Goes back to a version.
pub(super) async fn rollback(client: &Client, version: u64, dry_run: bool, form: Option<Form>) -> Result<()> {
    let arguments = dry_run.then_some(("dry_run", "true"));
    let path = with_query(&format!("history/{version}/rollback"), arguments.into_iter());
    let found = client.call(Method::Post, &path, None).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => print_lines(&rolled_back(&found, dry_run)),
        form => output::print(form, &found)?,
    }
    Ok(())
}

/// Takes back the newest change of resources.
pub(super) async fn undo(client: &Client, dry_run: bool, form: Option<Form>) -> Result<()> {
    let newest =
        client.call(Method::Get, &with_query("history", [("limit", UNDO_LOOKS)].into_iter()), None).await?;
    let list = newest["list"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Settings are in the file: a version of those alone has nothing to go back on.
    let Some(last) = list.iter().find(|one| has_resources(one)) else {
        bail!("there is no change of resources to undo; `sigma ctl history` lists the versions");
    };
    let (Some(seen), Some(version)) = (list[0]["version"].as_u64(), last["version"].as_u64()) else {
        bail!("the history has an unknown format; use `sigma ctl rollback VERSION` instead");
    };
    let before = version.saturating_sub(1);
    let arguments = dry_run.then_some(("dry_run", "true"));
    let path = with_query(&format!("history/{before}/rollback"), arguments.into_iter());
    let found = client.call_if_newest(&path, seen).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => {
            let what = if dry_run { "would be undone" } else { "is undone" };
            let mut text = String::new();
            line(
                &mut text,
                &format!("version {version} by {}, {}, {what}:", author(&last["author"]), moment(last)),
            );
            print_lines(&(text + &rolled_back(&found, dry_run)));
        }
        form => output::print(form, &found)?,
    }
    Ok(())
}

/// Whether a version changed resources, and is no beginning.
fn has_resources(version: &Value) -> bool {
    let changed =
        ["created", "changed", "deleted"].iter().any(|name| version["summary"][*name].as_u64() > Some(0));
    let keys = version["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    changed && keys.iter().filter_map(Value::as_str).any(|key| !key.starts_with("settings/"))
}

/// A line for each object that a rollback creates, changes or deletes.
fn rolled_back(found: &Value, dry_run: bool) -> String {
    let mut text = String::new();
    let mut named = 0;
    let kinds = ["created", "changed", "deleted"];
    // An earlier version tells the keys alone.
    let is_told = kinds.iter().any(|kind| found[*kind].is_array());
    let kinds = kinds.iter().map(|kind| (*kind, *kind));
    for (member, done) in kinds.chain((!is_told).then_some(("keys", "brought back"))) {
        for key in found[member].as_array().into_iter().flatten().filter_map(Value::as_str) {
            named += 1;
            line(&mut text, &format!("{key}: {}{done}", if dry_run { "would be " } else { "" }));
        }
    }
    let objects = found["objects"].as_u64().unwrap_or_default();
    if objects > named {
        line(&mut text, &format!("and {} more", objects - named));
    }
    if objects == 0 {
        line(&mut text, "nothing has changed since that version");
    }
    for (list, remedy) in [
        ("settings", "is in the gateway's configuration file: change it there and reload"),
        ("expired", "its time to live has ended: write it again if you need it"),
    ] {
        for key in found["left"][list].as_array().into_iter().flatten().filter_map(Value::as_str) {
            line(&mut text, &format!("{key}: left, {remedy}"));
        }
    }
    text
}

/// The sign of what became of an object.
fn sign(operation: Option<&str>) -> char {
    match operation {
        Some("created") => '+',
        Some("deleted") => '-',
        _ => '~',
    }
}

/// A row for each version.
fn listed(list: &Value) -> String {
    let row = |one: &Value| {
        let summary = &one["summary"];
        let mut what: Vec<String> = [("created", '+'), ("changed", '~'), ("deleted", '-')]
            .iter()
            .filter_map(|(name, sign)| Some(format!("{sign}{}", summary[*name].as_u64().filter(|n| *n > 0)?)))
            .collect();
        let keys = one["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        what.extend(keys.iter().enumerate().take(KEYS).filter_map(|(at, key)| {
            // An earlier version tells the keys alone.
            let sign = one["operations"][at].as_str().map(|operation| sign(Some(operation)));
            Some(sign.into_iter().chain(key.as_str()?.chars()).collect())
        }));
        if keys.len() > KEYS {
            what.push("…".to_owned());
        }
        if let Some(version) = one["rollback_to"].as_u64() {
            what.insert(0, format!("back to {version}:"));
        }
        if keys.is_empty() {
            let note = one["note"].as_str().or_else(|| one["result"]["reason"].as_str());
            what.extend(note.map(str::to_owned));
        }
        // The beginning of a history has no author.
        let by = if keys.is_empty() {
            author(&one["author"]).replace("unknown", "-")
        } else {
            author(&one["author"])
        };
        vec![one["version"].to_string(), moment(one), by, state(one), what.join(" ")]
    };
    let rows = list.as_array().into_iter().flatten().map(row).collect();
    let text = table(&["VERSION", "TIME", "BY", "RESULT", "CHANGES"], rows);
    text.lines().fold(String::new(), |mut clean, row| {
        line(&mut clean, row);
        clean
    })
}

/// Returns the description of a version.
fn head(one: &Value) -> String {
    let mut text = String::new();
    line(&mut text, &format!("version {}, {}, revision {}", one["version"], moment(one), one["revision"]));
    let by = &one["author"];
    let mut who = author(by);
    for (name, word) in [("address", "from"), ("certificate", "certificate"), ("trigger", "by")] {
        if let Some(value) = by[name].as_str() {
            let _ = write!(who, ", {word} {value}");
        }
    }
    line(&mut text, &format!("by {who}"));
    if let Some(version) = one["rollback_to"].as_u64() {
        line(&mut text, &format!("restored version {version}"));
    }
    if let Some(note) = one["note"].as_str() {
        line(&mut text, note);
    }
    line(&mut text, &format!("result: {}", state(one)));
    let result = &one["result"];
    if let Some(reason) = result["reason"].as_str() {
        wrapped(&mut text, reason);
    }
    for object in result["objects"].as_array().into_iter().flatten() {
        let word = |name: &str| object[name].as_str().unwrap_or_default();
        line(&mut text, &format!("  {} ({}):", word("key"), word("served")));
        wrapped(&mut text, word("reason"));
    }
    text
}

/// A line for each object, and below it one for each member that is different.
fn changes(found: &Value) -> String {
    let mut text = String::new();
    let all = found["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for change in all {
        let sign = sign(change["operation"].as_str());
        line(&mut text, &format!("{sign} {}", change["key"].as_str().unwrap_or_default()));
        for path in change["fields"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let side =
                |name: &str| at(&change[name], path).map_or_else(|| "none".to_owned(), Value::to_string);
            line(&mut text, &format!("    {path}: {} -> {}", short(&side("before")), short(&side("after"))));
        }
    }
    let total = found["total"].as_u64().unwrap_or_default();
    if total > all.len() as u64 {
        let more = total - all.len() as u64;
        line(&mut text, &format!("and {more} more objects; --object KEY shows one"));
    }
    text
}

/// The value at a path such as `plugins.key-auth.key` or `nodes[0].weight`; names may have dots themselves.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    if path.is_empty() {
        return Some(value);
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    match value {
        Value::Object(object) => object.iter().find_map(|(name, member)| {
            let rest = path.strip_prefix(name.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then(|| at(member, rest))?
        }),
        Value::Array(list) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            at(list.get(index.parse::<usize>().ok()?)?, rest)
        }
        _ => None,
    }
}

fn moment(one: &Value) -> String {
    let time = one["time"].as_str().unwrap_or_default();
    time.get(..19).unwrap_or(time).replace('T', " ")
}

fn author(by: &Value) -> String {
    let word = |name: &str| by[name].as_str();
    match (word("by"), word("key")) {
        (Some("admin"), Some(key)) => key.to_owned(),
        (Some("admin"), None) => "no key".to_owned(),
        (Some("expiry"), _) => "time to live".to_owned(),
        (other, _) => other.unwrap_or_default().to_owned(),
    }
}

fn state(one: &Value) -> String {
    one["result"]["state"].as_str().unwrap_or_default().replace('_', " ")
}

fn short(text: &str) -> String {
    const ROOM: usize = 24;
    if text.chars().count() <= ROOM {
        return text.to_owned();
    }
    text.chars().take(ROOM - 1).chain(['…']).collect()
}

/// One line; control characters do not reach the terminal.
pub(super) fn line(text: &mut String, row: &str) {
    text.extend(row.chars().map(|letter| if letter.is_control() { ' ' } else { letter }));
    text.push('\n');
}

/// Prints lines: to a terminal no longer than its width, to a pipe or a file whole.
pub(super) fn print_lines(text: &str) {
    match std::io::stdout().is_terminal() {
        true => print!("{}", fitted(text)),
        false => print!("{text}"),
    }
}

/// Cuts lines to the width of a terminal.
pub(super) fn fitted(text: &str) -> String {
    let mut fitted = String::with_capacity(text.len());
    for row in text.lines() {
        match row.chars().count() > COLUMNS {
            true => fitted.extend(row.chars().take(COLUMNS - 1).chain(['…'])),
            false => fitted.push_str(row),
        }
        fitted.push('\n');
    }
    fitted
}

/// A sentence in as many lines as it takes.
fn wrapped(text: &mut String, sentence: &str) {
    let mut row = String::from("   ");
    for word in sentence.split_whitespace() {
        if row.chars().count() + 1 + word.chars().count() > COLUMNS && row.trim() != "" {
            line(text, &row);
            row = String::from("   ");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(text, &row);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version() -> Value {
        json!({
            "version": 12,
            "time": "2026-11-23T14:55:01+00:00",
            "author": {"by": "admin", "key": "dashboard\u{1b}[2J", "address": "127.0.0.1", "certificate": "CN=alice"},
            "revision": 41,
            "summary": {"created": 1, "changed": 2, "deleted": 0},
            "keys": ["routes/1", "routes/2", "upstreams/a-name-that-takes-much-room", "ssls/1"],
            "operations": ["changed", "created", "changed"],
            "result": {"state": "quarantined", "objects": [
                {"key": "routes/2", "served": "closed", "reason": "it names a plugin that this build does not have, which is told in a long sentence"},
            ]},
            "changes": [
                {"key": "routes/1", "operation": "changed", "fields": ["uri", "plugins.key-auth.key", "upstream.nodes.127.0.0.1:80", "list[1].a"],
                 "before": {"uri": "/a", "plugins": {"key-auth": {"key": "***"}}, "upstream": {"nodes": {"127.0.0.1:80": 1}}, "list": [0, {"a": 1}]},
                 "after": {"uri": "/b", "plugins": {"key-auth": {"key": "***"}}, "upstream": {"nodes": {}}, "list": [0, {"a": 2}]}},
                {"key": "upstreams/u", "operation": "created", "before": null, "after": {}},
            ],
            "total": 3,
        })
    }

    #[test]
    fn a_version_fits_a_terminal() {
        let text = format!("{}{}", head(&version()), changes(&version()));
        let expected = "version 12, 2026-11-23 14:55:01, revision 41\n\
            by dashboard [2J, from 127.0.0.1, certificate CN=alice\n\
            result: quarantined\n  routes/2 (closed):\n    \
            it names a plugin that this build does not have, which is told in a long\n    sentence\n\
            ~ routes/1\n    uri: \"/a\" -> \"/b\"\n    plugins.key-auth.key: \"***\" -> \"***\"\n    \
            upstream.nodes.127.0.0.1:80: 1 -> none\n    list[1].a: 1 -> 2\n+ upstreams/u\n\
            and 1 more objects; --object KEY shows one\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn versions_are_rows() {
        let begun = json!({
            "version": 1, "time": "2026-11-23T14:00:00+00:00", "author": {"by": "unknown"}, "keys": [],
            "summary": {"created": 0, "changed": 0, "deleted": 0}, "result": {"state": "in_force"},
            "note": "the history begins, with 3 objects",
        });
        let mut earlier = version();
        earlier.as_object_mut().unwrap().shift_remove("operations");
        assert!(listed(&json!([earlier])).contains("+1 ~2 routes/1 rou"));
        let text = listed(&json!([version(), begun]));
        let expected = "VERSION  TIME                 BY             RESULT       CHANGES\n\
            12       2026-11-23 14:55:01  dashboard [2J  quarantined  +1 ~2 ~routes/1 +rou…\n\
            1        2026-11-23 14:00:00  -              in force     the history begins, …\n";
        assert_eq!(fitted(&text), expected);
        assert!(text.contains("+1 ~2 ~routes/1 +routes/"), "{text}");
    }

    #[test]
    fn objects_left_by_a_rollback_are_listed() {
        let found = json!({
            "objects": 3, "keys": ["routes/1", "routes/2", "upstreams/u"],
            "created": ["upstreams/u"], "changed": ["routes/2"], "deleted": ["routes/1"],
            "left": {"settings": ["settings/listeners"], "expired": []},
        });
        let expected = "upstreams/u: created\nroutes/2: changed\nroutes/1: deleted\n\
            settings/listeners: left, is in the gateway's configuration file: change it th…\n";
        assert_eq!(fitted(&rolled_back(&found, false)), expected);
        let earlier = json!({"objects": 2, "keys": ["routes/1"], "left": {"settings": [], "expired": []}});
        assert_eq!(rolled_back(&earlier, true), "routes/1: would be brought back\nand 1 more\n");
        let nothing = json!({"objects": 0, "keys": [], "left": {"settings": [], "expired": []}});
        assert_eq!(rolled_back(&nothing, true), "nothing has changed since that version\n");
    }
}
