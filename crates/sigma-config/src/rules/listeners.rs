//! What must hold of listeners.

use serde_json::Value;

use super::Object;
use crate::problem::{Problem, element, member};

/// The problems of a whole document; `root` is it in its long form.
pub(crate) fn of_document(root: &Object) -> Vec<Problem> {
    let listeners = root.get("listeners").and_then(Value::as_array).into_iter().flatten().enumerate();
    let opaque = listeners.filter(|(_, listener)| {
        let writes_tls = listener.get("tls").is_some_and(|tls| *tls != Value::Null);
        listener.get("stream").and_then(Value::as_str) == Some("tcp") && writes_tls
    });
    let problem = |(index, _)| {
        let message = "the bytes of a listener with `stream: tcp` are not looked at";
        let hint = "write `stream: tls` for sessions that begin with TLS";
        Problem::new(member(&element("listeners", index), "tls"), "conflict", message).hint(hint)
    };
    opaque.map(problem).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tls_is_for_listeners_that_look() {
        let check = |listener: Value, expected: &[&str]| {
            let document = json!({ "listeners": [listener] });
            let found = of_document(document.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            assert_eq!(places, expected, "{document}");
        };
        check(json!({"address": ":1", "stream": "tcp", "tls": true}), &["listeners[0].tls"]);
        check(json!({"address": ":1", "stream": "tls", "tls": {"certificates": []}}), &[]);
        check(json!({"address": ":1", "stream": "tcp"}), &[]);
        check(json!({"address": ":1", "tls": true}), &[]);
        check(json!(":1"), &[]);
    }
}
