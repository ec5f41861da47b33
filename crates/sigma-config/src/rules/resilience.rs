//! Rules for retries and deadlines: contradictions, and options without effect.

use serde_json::Value;

use super::Object;
use sigma_schema::problem::Problem;

fn problem(place: &str, message: &str, hint: &'static str) -> Problem {
    Problem::new(place, "conflict", message).hint(hint)
}

fn object<'o>(item: &'o Object, key: &str) -> Option<&'o Object> {
    item.get(key).and_then(Value::as_object)
}

fn number(item: &Object, key: &str) -> Option<f64> {
    item.get(key).and_then(Value::as_f64)
}

/// Returns the contradictions of a route or an upstream.
pub(crate) fn breaches(item: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(policy) = object(item, "retry_policy") {
        retries(item, policy, &mut found);
    }
    if let Some(breaker) = object(item, "circuit_breaker") {
        self::breaker(breaker, &mut found);
    }
    if let Some(rules) = object(item, "adaptive_concurrency") {
        let bound = |key: &str, default: f64| number(rules, key).unwrap_or(default);
        if bound("min_concurrency", 3.0) > bound("max_concurrency_limit", 1000.0) {
            let place = "adaptive_concurrency.min_concurrency";
            found.push(problem(place, "`min_concurrency` is above `max_concurrency_limit`", "lower it"));
        }
    }
    found
}

fn breaker(breaker: &Object, found: &mut Vec<Problem>) {
    if breaker.contains_key("slow_call_rate_threshold")
        && !breaker.contains_key("slow_call_duration_threshold")
    {
        let message = "`slow_call_rate_threshold` has no effect without `slow_call_duration_threshold`";
        let hint = "set the seconds at which a request is slow";
        found.push(problem("circuit_breaker.slow_call_rate_threshold", message, hint));
    }
    let Some(fallback) = object(breaker, "fallback") else { return };
    if fallback.contains_key("upstream_id") {
        for field in ["body", "content_type"].into_iter().filter(|field| fallback.contains_key(*field)) {
            let message = format!("`{field}` has no effect together with `upstream_id`");
            found.push(problem(&format!("circuit_breaker.fallback.{field}"), &message, "remove one of them"));
        }
    }
}

fn retries(item: &Object, policy: &Object, found: &mut Vec<Problem>) {
    let empty = |key: &str| policy.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty);
    if ["retry_on", "retriable_status_codes", "retriable_headers"].into_iter().all(empty) {
        let hint = "add retry_on, for example [connect-failure, gateway-error]; retries: 0 turns retries off";
        found.push(problem("retry_policy", "`retry_policy` has no condition, so it retries nothing", hint));
    }
    for field in ["session_affinity", "stick_table"] {
        if policy.contains_key("hedging") && item.contains_key(field) {
            let message = format!("`hedging` uses other nodes, but `{field}` keeps the same node");
            found.push(problem("retry_policy.hedging", &message, "keep one of the two"));
        }
    }
    if item.get("retries").and_then(Value::as_u64) == Some(0) {
        let message = "`retry_policy` has no effect with `retries: 0`";
        found.push(problem("retry_policy", message, "raise `retries`, or remove the policy"));
    }
    if let Some(back_off) = object(policy, "back_off") {
        let base = number(back_off, "base_interval").unwrap_or(0.025);
        if number(back_off, "max_interval").is_some_and(|longest| longest < base) {
            let message = "`max_interval` is below `base_interval`";
            found.push(problem("retry_policy.back_off.max_interval", message, "raise it, or leave it out"));
        }
    }
    let whole = object(item, "deadline").and_then(|deadline| number(deadline, "timeout"));
    if let (Some(one), Some(whole)) = (number(policy, "per_try_timeout"), whole)
        && one >= whole
    {
        let message = "`per_try_timeout` has no effect: the `deadline` is not longer";
        found.push(problem("retry_policy.per_try_timeout", message, "shorten it"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_without_effect_are_refused() {
        let check = |item: Value, want: &[&str]| {
            let found = breaches(item.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
            assert_eq!(places, want, "{item}");
        };
        let on = json!(["reset"]);
        check(json!({}), &[]);
        check(json!({ "retry_policy": { "retry_on": on } }), &[]);
        check(json!({ "retry_policy": { "retriable_status_codes": [503] }, "retries": 1 }), &[]);
        check(json!({ "retry_policy": {} }), &["retry_policy"]);
        check(json!({ "retry_policy": { "retry_on": on }, "retries": 0 }), &["retry_policy"]);
        let late = json!({ "retry_on": on, "per_try_timeout": 2, "back_off": { "max_interval": 0.01 } });
        let breaker = |breaker: Value| json!({ "circuit_breaker": breaker });
        check(breaker(json!({ "slow_call_duration_threshold": 1, "slow_call_rate_threshold": 50 })), &[]);
        let place = "circuit_breaker.slow_call_rate_threshold";
        check(breaker(json!({ "slow_call_rate_threshold": 50 })), &[place]);
        check(breaker(json!({ "fallback": { "status": 200, "body": "x" } })), &[]);
        let place = "circuit_breaker.fallback.body";
        check(breaker(json!({ "fallback": { "upstream_id": 1, "body": "x" } })), &[place]);
        let rules = json!({ "adaptive_concurrency": { "min_concurrency": 1001 } });
        check(rules, &["adaptive_concurrency.min_concurrency"]);
        let hedging = json!({ "retry_on": ["reset"], "hedging": { "delay": 1 } });
        check(json!({ "retry_policy": hedging }), &[]);
        check(json!({ "retry_policy": hedging, "session_affinity": {} }), &["retry_policy.hedging"]);
        let places = ["retry_policy.back_off.max_interval", "retry_policy.per_try_timeout"];
        check(json!({ "retry_policy": late, "deadline": { "timeout": 2 } }), &places);
    }
}
