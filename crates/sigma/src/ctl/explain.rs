//! `sigma ctl explain`: the route, plugins and nodes of a request that is not sent.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::client::{Client, with_query};
use super::history::{line, print_lines};
use super::output::{self, Form};
use crate::output::verdict;

/// Exit status if no route serves the request.
const NO_ROUTE: u8 = 3;

/// The verdict on a route that matches, though the gateway itself responds.
const MATCHES: &str = "matches this request";

/// A request that is not sent.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Its method
    #[arg(value_name = "METHOD")]
    method: String,
    /// Its URL, such as https://example.com/a?b=c
    #[arg(value_name = "URL")]
    url: String,
    /// A field of it, such as "X-Tenant: a"; may be given several times
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// The address of the client
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// The name of the listener that receives it
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// The consumer that sends it
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Call this Control API instead of the Admin API
    #[arg(long, value_name = "URL")]
    control: Option<String>,
}

/// Shows it.
pub(super) async fn show(client: &Client, wish: Explain, form: Option<Form>) -> Result<ExitCode> {
    let Explain { method, url, headers, client: address, listener, consumer, control } = wish;
    let mut arguments = vec![("method", method.as_str()), ("url", &url)];
    arguments.extend(headers.iter().map(|field| ("header", field.as_str())));
    let named = [("client", &address), ("listener", &listener), ("consumer", &consumer)];
    arguments.extend(named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
    let found = client.ask(control.as_deref(), &with_query("explain", arguments.into_iter())).await?;
    match form.unwrap_or(Form::Table) {
        Form::Table => print_lines(&table_of(&found)),
        form => output::print(form, &found)?,
    }
    Ok(if found["route"].is_null() { ExitCode::from(NO_ROUTE) } else { ExitCode::SUCCESS })
}

fn word<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn items<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn table_of(found: &Value) -> String {
    let mut text = String::new();
    line(&mut text, "routes:");
    for route in items(found, "routes") {
        match route["reason"].as_str() {
            None => {
                let refusers: Vec<&str> =
                    items(found, "may_be_refused_by").filter_map(Value::as_str).collect();
                let is_served = found["refused"].is_null();
                let verdict =
                    if is_served || !refusers.is_empty() { verdict(&refusers) } else { MATCHES.to_owned() };
                line(&mut text, &format!("  {}: {verdict}", word(route, "id")));
            }
            Some(reason) => line(&mut text, &format!("  {}: no: {reason}", word(route, "id"))),
        }
    }
    let all = found["other_routes"].as_u64().unwrap_or_default();
    let elsewhere = found["routes_with_other_paths"].as_u64().unwrap_or(all);
    match elsewhere {
        0 => {}
        1 => line(&mut text, "  1 other route has another path"),
        many => line(&mut text, &format!("  {many} other routes have other paths")),
    }
    if all > elsewhere {
        line(&mut text, &format!("  {} more routes do not match, and are not listed", all - elsewhere));
    }
    if let Some(refused) = found["refused"].as_str() {
        line(&mut text, &format!("response: {refused}"));
    }
    if let Some(service) = found["service"]["key"].as_str() {
        line(&mut text, &format!("service: {service}"));
    }
    plugins(&mut text, found);
    upstream(&mut text, &found["upstream"]);
    to_node(&mut text, &found["to_node"]);
    text
}

fn plugins(text: &mut String, found: &Value) {
    for (phase, names) in found["phases"].as_object().into_iter().flatten() {
        let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        line(text, &format!("{phase}: {}", names.join(", ")));
    }
    if items(found, "plugins").next().is_some() {
        line(text, "plugins:");
    }
    for one in items(found, "plugins") {
        let mut row = format!("  {} ({})", word(one, "name"), word(one, "source"));
        match one["reason"].as_str() {
            Some(reason) => row.push_str(&format!(": skipped: {reason}")),
            None if one["filter"] == true => row.push_str(": _meta.filter matches"),
            None => {}
        }
        line(text, &row);
        for (name, value) in
            one["would"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
        {
            line(
                text,
                &format!("    {name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            );
        }
    }
}

fn upstream(text: &mut String, upstream: &Value) {
    if upstream.is_null() {
        return;
    }
    let mut row = format!("upstream: {}, {}", word(upstream, "key"), word(upstream, "type"));
    if let Some(state) = upstream["circuit_breaker"].as_str() {
        row.push_str(&format!(", circuit breaker {state}"));
    }
    row.push_str(&in_flight(upstream));
    line(text, &row);
    for member in items(upstream, "members").filter_map(Value::as_str) {
        line(text, &format!("  member {member}"));
    }
    for node in items(upstream, "nodes") {
        let mut row = format!("  {} weight {}, {}", word(node, "node"), node["weight"], word(node, "status"));
        if node["state"] != "ready" {
            row.push_str(&format!(", {}", word(node, "state")));
        }
        row.push_str(&in_flight(node));
        if let Some(reason) = node["reason"].as_str() {
            row.push_str(&format!(": {reason}"));
        }
        line(text, &row);
    }
}

fn in_flight(of: &Value) -> String {
    match &of["in_flight"] {
        Value::Null => String::new(),
        counts => format!(", {} of {} in flight", counts["now"], counts["max"]),
    }
}

fn to_node(text: &mut String, request: &Value) {
    if request.is_null() {
        return;
    }
    line(text, &format!("to the node: {} {}", word(request, "method"), word(request, "path")));
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        line(text, &format!("  {name}: {}", value.as_str().unwrap_or_default()));
    }
    let plugins: Vec<&str> = items(request, "may_be_changed_by").filter_map(Value::as_str).collect();
    if !plugins.is_empty() {
        line(text, &format!("  may be changed by {}", plugins.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::history::fitted;
    use super::*;

    #[test]
    fn an_explanation_fits_a_terminal() {
        let found = json!({
            "routes": [
                {"id": "1", "matched": true, "reason": null},
                {"id": "2", "matched": false, "reason": "method GET not in [POST], which is a reason with more words than a line has room for"},
            ],
            "other_routes": 7, "routes_with_other_paths": 5, "may_be_refused_by": ["key-auth"],
            "service": {"key": "services/s"},
            "refused": null,
            "plugins": [
                {"name": "key-auth", "source": "services/s", "filter": true, "would": {"problem": "p", "host": null}},
                {"name": "limit-count", "source": "routes/1", "reason": "_meta.disable"},
            ],
            "phases": {"rewrite": ["key-auth"], "log": ["prometheus", "http-logger"]},
            "upstream": {"key": "upstreams/u", "type": "roundrobin", "circuit_breaker": "open", "in_flight": {"now": 1, "max": 9},
                "nodes": [
                    {"node": "127.0.0.1:80", "weight": 1, "status": "unchecked", "state": "ready"},
                    {"node": "127.0.0.2:80", "weight": 0, "status": "unhealthy", "state": "drain", "reason": "a\u{1b}b"},
                ]},
            "to_node": {"method": "GET", "path": "/a", "headers": {"Host": "a.com"}, "may_be_changed_by": ["key-auth"]},
        });
        let expected = "routes:\n  1: matches this request; key-auth may still refuse it\n\
            \x20 2: no: method GET not in [POST], which is a reason with more words than a li…\n\
            \x20 5 other routes have other paths\n\
            \x20 2 more routes do not match, and are not listed\n\
            service: services/s\nrewrite: key-auth\nlog: prometheus, http-logger\nplugins:\n\
            \x20 key-auth (services/s): _meta.filter matches\n    problem: p\n\
            \x20 limit-count (routes/1): skipped: _meta.disable\n\
            upstream: upstreams/u, roundrobin, circuit breaker open, 1 of 9 in flight\n\
            \x20 127.0.0.1:80 weight 1, unchecked\n\
            \x20 127.0.0.2:80 weight 0, unhealthy, drain: a b\n\
            to the node: GET /a\n  Host: a.com\n  may be changed by key-auth\n";
        assert_eq!(fitted(&table_of(&found)), expected);
        assert!(expected.lines().all(|line| line.chars().count() < 80));
        let none =
            json!({"routes": [], "other_routes": 0, "refused": "404: no route", "plugins": [], "phases": {}});
        assert_eq!(table_of(&none), "routes:\nresponse: 404: no route\n");
        let refused = "503 destination_unavailable: the upstream has no node";
        let unavailable = json!({"routes": [{"id": "1", "reason": null}], "refused": refused});
        let expected = format!("routes:\n  1: matches this request\nresponse: {refused}\n");
        assert_eq!(table_of(&unavailable), expected);
    }
}
