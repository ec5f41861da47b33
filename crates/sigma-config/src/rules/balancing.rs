//! Rules for combinations of an upstream's balancing options.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Object, hashes, problem, word};
use crate::resources::{Ports, Upstream};
use sigma_schema::id::text_of_id;
use sigma_schema::problem::{Problem, member};
use sigma_schema::template::Template;

/// Returns the options without effect for the type, or in combination.
pub(super) fn rules(upstream: &Object) -> Vec<Problem> {
    if let Some(members) = upstream.get("members").and_then(Value::as_array) {
        return of_members(upstream, members);
    }
    if upstream.contains_key("original_destination") {
        return of_destination(upstream);
    }
    let balance = word(upstream, "type").unwrap_or("roundrobin");
    let mut found = Vec::new();
    let mut conflict = |field: &str, message: String, hint| {
        found.push(problem(field, "conflict", message, hint));
    };
    let has = |field: &str| upstream.contains_key(field);
    if has("bounded_load") && !hashes(balance) {
        let message = format!("`bounded_load` needs hashing, and `{balance}` does not hash");
        conflict("bounded_load", message, "write type: chash, maglev or rendezvous, or remove it");
    }
    if has("slow_start") && !matches!(balance, "roundrobin" | "random" | "least_request" | "peak_ewma") {
        let message = format!("`slow_start` does not work with `type: {balance}`");
        let hint = "write type: roundrobin, random, least_request or peak_ewma, or remove it";
        conflict("slow_start", message, hint);
    }
    let fails = upstream.get("fail_traffic_on_panic").and_then(Value::as_bool) == Some(true);
    if fails && upstream.get("panic_threshold").and_then(Value::as_u64).is_none_or(|at| at == 0) {
        let message = "`fail_traffic_on_panic` has no effect without a `panic_threshold` above 0".to_owned();
        conflict("fail_traffic_on_panic", message, "add `panic_threshold`, or remove it");
    }
    if has("zone_aware") && (hashes(balance) || balance == "none") {
        let message =
            format!("`zone_aware` has no effect with `type: {balance}`: the key decides on the node");
        conflict("zone_aware", message, "choose another `type`, or remove it");
    }
    if has("subsets") && matches!(balance, "maglev" | "none") {
        let message =
            format!("`subsets` do not work with `type: {balance}`: each subset would need its own table");
        conflict("subsets", message, "write type: chash, or another one");
    }
    if has("subsets") && has("bounded_load") {
        let message =
            "`bounded_load` uses the mean load of all nodes, and `subsets` use only some of them".to_owned();
        conflict("bounded_load", message, "remove one of the two");
    }
    let cookie = upstream.get("session_affinity").and_then(|affinity| affinity.get("cookie"));
    let says =
        |field: &str, value: &str| cookie.and_then(|cookie| cookie.get(field)?.as_str()) == Some(value);
    let secure = cookie.and_then(|cookie| cookie.get("secure")?.as_bool()) == Some(true);
    if says("same_site", "none") && !secure {
        let message = "browsers drop a cookie with `same_site: none` that is not `secure`".to_owned();
        conflict("session_affinity.cookie.same_site", message, "add secure: true, or write lax");
    }
    for field in ["session_affinity", "stick_table"] {
        if has(field) && balance == "none" {
            conflict(field, format!("`{field}` has no effect where no node is chosen"), "remove it");
        }
    }
    if has("stick_table") && has("session_affinity") {
        let message =
            "`session_affinity` and `stick_table` would both choose the node of a session".to_owned();
        conflict("stick_table", message, "remove one of the two");
    }
    found.extend(upstream.get("stick_table").and_then(Value::as_object).map(stick_table).unwrap_or_default());
    found.extend(upstream.get("subsets").and_then(Value::as_object).map(subsets).unwrap_or_default());
    found
}

/// The fields that an upstream of original destinations may have: identification, and how a node is reached.
const OF_DESTINATION: [&str; 16] = [
    "original_destination",
    "id",
    "name",
    "desc",
    "labels",
    "create_time",
    "update_time",
    "scheme",
    "timeout",
    "tls",
    "proxy_protocol",
    "limits",
    "pass_host",
    "upstream_host",
    "keepalive_pool",
    "deadline",
];

fn of_destination(upstream: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    for field in written(upstream).filter(|field| !OF_DESTINATION.contains(field)) {
        let message = format!(
            "`{field}` has no effect together with `original_destination`: the client chooses the only node"
        );
        found.push(problem(field, "conflict", message, "remove it"));
    }
    let per_node = upstream.get("limits").and_then(|limits| limits.get("max_requests_per_node"));
    if per_node.is_some_and(|limit| !limit.is_null()) {
        let message = "`max_requests_per_node` needs configured nodes";
        found.push(problem("limits.max_requests_per_node", "conflict", message, "write `max_requests`"));
    }
    let ports = upstream.get("original_destination").and_then(|destination| destination.get("ports"));
    for (number, port) in ports.and_then(Value::as_array).into_iter().flatten().enumerate() {
        if let Some(Err(message)) = port.as_str().map(str::parse::<Ports>) {
            let place = format!("original_destination.ports[{number}]");
            found.push(problem(place, "value", message, "write the lower port first"));
        }
    }
    let scheme = word(upstream, "scheme").unwrap_or("http");
    if !matches!(scheme, "http" | "https" | "grpc" | "grpcs" | "tcp" | "tls") {
        let message = format!("`original_destination` does not work with `scheme: {scheme}`");
        let hint = "write http, https, grpc or grpcs for routes, tcp or tls for stream routes";
        found.push(problem("scheme", "conflict", message, hint));
    }
    found
}

/// The fields that say more than the default. A value in a store has the defaults of all fields.
fn written(upstream: &Object) -> impl Iterator<Item = &str> {
    let defaults = serde_json::to_value(Upstream::default()).unwrap_or_default();
    let says = move |(field, value): &(&String, &Value)| defaults.get(field.as_str()) != Some(value);
    upstream.iter().filter(says).map(|(field, _)| field.as_str())
}

/// The fields that an upstream with members may have: identification only, not fields that need nodes.
const OF_MEMBERS: [&str; 7] = ["members", "id", "name", "desc", "labels", "create_time", "update_time"];

fn of_members(upstream: &Object, members: &[Value]) -> Vec<Problem> {
    let mut found = Vec::new();
    for field in written(upstream).filter(|field| !OF_MEMBERS.contains(field)) {
        let message =
            format!("`{field}` has no effect together with `members`: each member uses its own fields");
        found.push(problem(field, "conflict", message, "write it at the members, or remove it"));
    }
    if members.iter().all(|member| member.get("weight").and_then(Value::as_u64) == Some(0)) {
        let message = "no member has a weight: nothing would be served";
        found.push(problem("members", "conflict", message, "give one a weight above 0"));
    }
    let ids: Vec<Option<String>> =
        members.iter().map(|member| member.get("upstream_id").and_then(text_of_id)).collect();
    for (number, id) in ids.iter().enumerate().filter(|(_, id)| id.is_some()) {
        let place = format!("members[{number}].upstream_id");
        if ids[..number].contains(id) {
            found.push(problem(place, "conflict", "this upstream is already a member", "list each once"));
        } else if *id == upstream.get("id").and_then(text_of_id) {
            found.push(problem(
                place,
                "conflict",
                "an upstream cannot be a member of itself",
                "name another",
            ));
        }
    }
    found
}

/// Checks that exactly one thing identifies a session, and that it differs between requests.
fn stick_table(table: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    let by_address = table.get("address").and_then(Value::as_bool) == Some(true);
    let ways = [table.contains_key("cookie"), table.contains_key("header"), by_address];
    if ways.iter().filter(|way| **way).count() != 1 {
        let message =
            "a session is identified by a response cookie, a response header, or the client's address";
        let hint = "write one of `cookie` and `header`, or `address: true`";
        found.push(problem("stick_table", "conflict", message, hint));
    }
    if by_address && table.contains_key("match") {
        let message = "`match` has no effect together with `address`, which already identifies sessions";
        found.push(problem("stick_table.match", "conflict", message, "remove one of the two"));
    }
    let texts = table.get("match").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (number, text) in texts.iter().enumerate() {
        let template = Template::parse(text.as_str().unwrap_or_default());
        let place = format!("stick_table.match[{number}]");
        if let Some(reason) = template.unknown() {
            found.push(problem(place, "variable", reason, "see the variables in docs/variables.md"));
        } else if template.literal().is_some() {
            let message = "without a variable all requests belong to one session";
            found.push(problem(place, "conflict", message, "write a variable, for example $arg_session"));
        }
    }
    found
}

/// Checks that requests select subsets by keys that a selector has.
fn subsets(subsets: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    let selectors = subsets.get("selectors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let keys = |selector: &Value| selector.get("keys").and_then(Value::as_array).cloned().unwrap_or_default();
    let known: Vec<Value> = selectors.iter().flat_map(keys).collect();
    let criteria = subsets.get("criteria").and_then(Value::as_object);
    for (key, text) in criteria.into_iter().flatten() {
        let place = member("subsets.criteria", key);
        if !known.iter().any(|known| known == key) {
            let message = format!("`{key}` is in no selector: requests with it find no subset");
            found.push(problem(place, "conflict", message, "add it to the `keys` of a selector"));
        } else if let Some(reason) = text.as_str().and_then(|text| Template::parse(text).unknown()) {
            found.push(problem(place, "variable", reason, "see the variables in docs/variables.md"));
        }
    }
    let says = |of: &Object, policy: &str| word(of, "fallback") == Some(policy);
    let of_selectors: Vec<&Object> = selectors.iter().filter_map(Value::as_object).collect();
    let defaults = says(subsets, "default") || of_selectors.iter().any(|selector| says(selector, "default"));
    if defaults != subsets.contains_key("default") {
        let message = "`default` and `fallback: default` belong together";
        found.push(problem("subsets.default", "conflict", message, "add the other one, or remove it"));
    }
    for (number, selector) in of_selectors.iter().enumerate() {
        let place = format!("subsets.selectors[{number}].fallback_keys_subset");
        let fewer = selector.contains_key("fallback_keys_subset");
        if fewer != says(selector, "keys_subset") {
            let message = "`fallback_keys_subset` and `fallback: keys_subset` belong together";
            found.push(problem(place, "conflict", message, "add the other one, or remove it"));
        } else if fewer && !narrows(selector, &of_selectors) {
            let message =
                "`fallback_keys_subset` must be some of the `keys`, and equal the `keys` of another selector";
            found.push(problem(place, "conflict", message, "add a selector with just these keys"));
        }
    }
    found
}

/// Returns whether the fallback keys of a selector are some of its own keys, and another selector's keys.
fn narrows(selector: &Object, all: &[&Object]) -> bool {
    let set = |of: &Object, field: &str| -> BTreeSet<String> {
        let keys = of.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        keys.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (own, fewer) = (set(selector, "keys"), set(selector, "fallback_keys_subset"));
    fewer.len() < own.len() && fewer.is_subset(&own) && all.iter().any(|other| set(other, "keys") == fewer)
}
