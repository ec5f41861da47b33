//! What is contradictory, or without effect, in the rules for retries and deadlines.

use serde_json::Value;

use super::Object;
use crate::problem::Problem;

fn problem(place: &str, message: &str, hint: &'static str) -> Problem {
    Problem::new(place, "conflict", message).hint(hint)
}

fn object<'o>(item: &'o Object, key: &str) -> Option<&'o Object> {
    item.get(key).and_then(Value::as_object)
}

fn number(item: &Object, key: &str) -> Option<f64> {
    item.get(key).and_then(Value::as_f64)
}

/// Of a route or an upstream.
pub(crate) fn breaches(item: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(policy) = object(item, "retry_policy") {
        retries(item, policy, &mut found);
    }
    found
}

fn retries(item: &Object, policy: &Object, found: &mut Vec<Problem>) {
    let empty = |key: &str| policy.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty);
    if ["retry_on", "retriable_status_codes", "retriable_headers"].into_iter().all(empty) {
        let hint = "add retry_on, for example [connect-failure, gateway-error]; retries: 0 turns retries off";
        found.push(problem("retry_policy", "`retry_policy` names no condition: nothing is retried", hint));
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
    fn what_says_nothing_is_refused() {
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
        let places = ["retry_policy.back_off.max_interval", "retry_policy.per_try_timeout"];
        check(json!({ "retry_policy": late, "deadline": { "timeout": 2 } }), &places);
    }
}
