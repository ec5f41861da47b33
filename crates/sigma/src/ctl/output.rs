//! Resources on a terminal.

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use sigma_observe::Clock;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Columns
    Table,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// Prints a value; a table of it has a row for each member.
pub(crate) fn print(form: Form, value: &Value) -> Result<()> {
    match form {
        Form::Json => println!("{}", serde_json::to_string_pretty(value)?),
        Form::Yaml => print!("{}", serde_norway::to_string(value)?),
        Form::Table => {
            let members = value.as_object().into_iter().flatten();
            let rows = members.map(|(name, value)| vec![name.clone(), text(value)]).collect();
            print!("{}", table(&["MEMBER", "VALUE"], rows));
        }
    }
    Ok(())
}

/// Prints a list as the Admin API answers it.
pub(crate) fn print_list(form: Form, list: &Value) -> Result<()> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    if form != Form::Table {
        let values: Value = items.iter().map(|item| item["value"].clone()).collect();
        return print(form, &values);
    }
    let rows = items.iter().map(|item| {
        let value = &item["value"];
        let first = |names: &[&str]| names.iter().map(|name| &value[*name]).find(|found| !found.is_null());
        let cell = |names: &[&str]| first(names).map(text).unwrap_or_default();
        let serves = ["uri", "uris", "sni", "snis", "nodes", "service_name", "field_path", "plugins"];
        vec![cell(&["id", "username"]), cell(&["name", "desc"]), cell(&serves), text(&item["modifiedIndex"])]
    });
    print!("{}", table(&["ID", "NAME", "SERVES", "REVISION"], rows.collect()));
    Ok(())
}

/// Prints the reports of nodes.
pub(crate) fn print_nodes(form: Form, nodes: &Value) -> Result<()> {
    if form != Form::Table {
        return print(form, nodes);
    }
    let rows = nodes.as_array().into_iter().flatten().map(|node| {
        let state = match (&node["error"], &node["store"]["lost"]) {
            (Value::String(error), _) => error.clone(),
            (_, Value::Null) => "ok".to_owned(),
            (_, lost) => format!("store lost: {}", text(&lost["reason"])),
        };
        let quarantined =
            node["quarantined"].as_array().map_or_else(String::new, |list| list.len().to_string());
        let store = text(&node["store"]["kind"]);
        vec![
            text(&node["node"]),
            text(&node["revision"]),
            text(&node["store"]["revision"]),
            store,
            quarantined,
            state,
        ]
    });
    let names = ["NODE", "SERVED", "STORED", "STORE", "QUARANTINED", "STATE"];
    print!("{}", table(&names, rows.collect()));
    Ok(())
}

/// Prints upstreams, a row for each of their nodes.
pub(crate) fn print_upstreams(form: Form, upstreams: &Value) -> Result<()> {
    if form != Form::Table {
        return print(form, upstreams);
    }
    let mut rows = Vec::new();
    for upstream in upstreams.as_array().into_iter().flatten() {
        // The id of a route in a file is its place there: the path says more.
        let name = match upstream["uri"].as_str() {
            Some(uri) => format!("{} ({uri})", text(&upstream["upstream"])),
            None => text(&upstream["upstream"]),
        };
        if let Some(reason) = upstream.get("reason") {
            let mut row = vec![name.clone()];
            row.extend(["-"; 5].map(str::to_owned));
            row.push(text(reason));
            rows.push(row);
        }
        for node in upstream["nodes"].as_array().into_iter().flatten() {
            let member = |name: &str| node.get(name).map(text).unwrap_or_default();
            let mut row = vec![name.clone()];
            row.extend(["node", "address", "weight", "state", "status", "reason"].map(member));
            rows.push(row);
        }
    }
    print!("{}", table(&["UPSTREAM", "NODE", "ADDRESS", "WEIGHT", "STATE", "STATUS", "REASON"], rows));
    Ok(())
}

/// Prints the quarantined objects of nodes, a row for each object.
pub(crate) fn print_quarantine(form: Form, nodes: &[Value]) -> Result<()> {
    let mut objects = Vec::new();
    for node in nodes {
        let failed = node["error"].as_str().map(|error| json!({"node": node["node"], "reason": error}));
        objects.extend(failed);
        for one in node["quarantined"].as_array().into_iter().flatten() {
            let mut one = one.clone();
            one["node"] = node["node"].clone();
            objects.push(one);
        }
    }
    if form != Form::Table {
        return print(form, &Value::Array(objects));
    }
    let columns = ["node", "key", "served", "revision", "reason"];
    let row = |one: &Value| columns.iter().map(|column| text(&one[*column])).collect();
    let names = ["NODE", "KEY", "SERVED", "REVISION", "REASON"];
    print!("{}", table(&names, objects.iter().map(row).collect()));
    Ok(())
}

/// Prints the certificates that nodes show.
pub(crate) fn print_certificates(form: Form, certificates: &[Value]) -> Result<()> {
    if form != Form::Table {
        return print(form, &Value::Array(certificates.to_vec()));
    }
    let row = |one: &Value| {
        let mut row: Vec<String> = ["node", "resource", "type", "names", "serial"]
            .iter()
            .map(|column| text(&one[*column]))
            .collect();
        row.push(date(&one["chain_validity_end"]));
        row.push(one.get("error").unwrap_or(&one["status"]).as_str().unwrap_or_default().to_owned());
        row
    };
    let names = ["NODE", "RESOURCE", "TYPE", "NAMES", "SERIAL", "EXPIRES", "STATUS"];
    print!("{}", table(&names, certificates.iter().map(row).collect()));
    Ok(())
}

/// Prints the certificates that nodes order.
pub(crate) fn print_orders(form: Form, orders: &[Value]) -> Result<()> {
    if form != Form::Table {
        return print(form, &Value::Array(orders.to_vec()));
    }
    let row = |one: &Value| {
        let mut row: Vec<String> =
            ["node", "ssl", "names", "state"].iter().map(|column| text(&one[*column])).collect();
        row.extend([date(&one["not_after"]), moment(&one["next_attempt"]), text(&one["last_error"])]);
        row
    };
    let names = ["NODE", "SSL", "NAMES", "STATE", "EXPIRES", "NEXT TRY", "LAST ERROR"];
    print!("{}", table(&names, orders.iter().map(row).collect()));
    Ok(())
}

/// A time in Unix seconds, to the second.
pub(super) fn moment(seconds: &Value) -> String {
    let Some(seconds) = seconds.as_i64() else { return String::new() };
    let clock = Clock::new(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    String::from_utf8_lossy(&clock.time_iso8601()[..19]).into_owned()
}

/// The day of a time in Unix seconds.
fn date(seconds: &Value) -> String {
    let Some(seconds) = seconds.as_i64() else { return String::new() };
    // A time before 1970 is in the past.
    let clock = Clock::new(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    String::from_utf8_lossy(&clock.time_iso8601()[..10]).into_owned()
}

/// A value on one line; objects show their keys.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(object) => object.keys().cloned().collect::<Vec<_>>().join(","),
        Value::Array(list) => list.iter().map(item).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// An element of a list; a node is shown as its address.
fn item(value: &Value) -> String {
    match (value.get("host").and_then(Value::as_str), value.get("port")) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        _ => text(value),
    }
}

/// Columns as wide as their widest cell; control characters of a name do not reach the terminal.
pub(super) fn table(names: &[&str], rows: Vec<Vec<String>>) -> String {
    let clean = |cell: String| cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let head = names.iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.into_iter().map(|row| row.into_iter().map(clean).collect()))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_one_line() {
        let check = |value: Value, expected: &str| assert_eq!(text(&value), expected);
        check(json!("a"), "a");
        check(json!({"127.0.0.1:1": 1, "h:2": 0}), "127.0.0.1:1,h:2");
        check(json!([{"host": "h", "port": 1, "weight": 1}, {"host": "i", "weight": 1}]), "h:1,i");
        check(json!(null), "");
        check(json!(3), "3");
    }

    #[test]
    fn dates_are_days() {
        let check = |value: Value, expected: &str| assert_eq!(date(&value), expected);
        check(json!(1_798_761_599), "2026-12-31");
        check(json!(-5), "1970-01-01");
        check(json!(null), "");
        check(json!(i64::MAX), "9999-12-31");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = vec![vec!["1".into(), "long\u{7} name".into()], vec!["22".into(), String::new()]];
        assert_eq!(table(&["ID", "NAME"], rows), "ID  NAME\n1   long  name\n22\n");
    }
}
