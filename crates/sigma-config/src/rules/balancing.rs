//! The rules of an upstream by which a node is chosen: which of them go together.

use super::{Object, hashes, problem, word};
use crate::problem::Problem;

/// What has no effect beside the type, or beside each other.
pub(super) fn rules(upstream: &Object) -> Vec<Problem> {
    let balance = word(upstream, "type").unwrap_or("roundrobin");
    let mut found = Vec::new();
    let mut conflict = |field: &str, message: String, hint| {
        found.push(problem(field, "conflict", message, hint));
    };
    let has = |field: &str| upstream.contains_key(field);
    if has("bounded_load") && !hashes(balance) {
        let message = format!("`bounded_load` bounds what hashes to a node, and `{balance}` hashes nothing");
        conflict("bounded_load", message, "write type: chash or maglev, or remove it");
    }
    if has("slow_start") && !matches!(balance, "roundrobin" | "random" | "least_request" | "peak_ewma") {
        let message = format!("`slow_start` lets shares grow, and `{balance}` has none that can");
        let hint = "write type: roundrobin, random, least_request or peak_ewma, or remove it";
        conflict("slow_start", message, hint);
    }
    let fails = upstream.get("fail_traffic_on_panic").and_then(serde_json::Value::as_bool) == Some(true);
    if fails && upstream.get("panic_threshold").and_then(serde_json::Value::as_u64).is_none_or(|at| at == 0) {
        let message = "`fail_traffic_on_panic` has no effect without a `panic_threshold` above 0".to_owned();
        conflict("fail_traffic_on_panic", message, "add `panic_threshold`, or remove it");
    }
    let cookie = upstream.get("session_affinity").and_then(|affinity| affinity.get("cookie"));
    let says =
        |field: &str, value: &str| cookie.and_then(|cookie| cookie.get(field)?.as_str()) == Some(value);
    let secure = cookie.and_then(|cookie| cookie.get("secure")?.as_bool()) == Some(true);
    if says("same_site", "none") && !secure {
        let message = "browsers drop a cookie with `same_site: none` that is not `secure`".to_owned();
        conflict("session_affinity.cookie.same_site", message, "add secure: true, or write lax");
    }
    if cookie.is_some() && balance == "none" {
        let message = "`session_affinity` has no effect where no node is chosen".to_owned();
        conflict("session_affinity", message, "remove it");
    }
    found
}
