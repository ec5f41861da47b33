//! `client-control`: how large the body of a request may be.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::HeaderId;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;

/// The plugin.
pub(crate) static CLIENT_CONTROL: Descriptor = Descriptor {
    name: "client-control",
    priority: 22000,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    warnings: Some(|_, conf| warnings(conf)),
    ..Descriptor::itself::<ClientControl>()
};

/// Limits the size of request bodies.
///
/// A request with a larger Content-Length gets 413 at once. A body without a length is counted while it arrives. The
/// limit applies to every reader of the body: the node and plugins that need the whole body. The limit of the
/// gateway, `limits.request_body_bytes`, applies too; this one can only be smaller.
#[derive(Deserialize, JsonSchema)]
struct ClientControl {
    /// Largest body in bytes. 0 or unset: no limit.
    max_body_size: Option<u64>,
}

impl Configuration for ClientControl {}

fn warnings(conf: &Value) -> Vec<Problem> {
    match conf.get("max_body_size") {
        Some(Value::Number(size)) if size.as_u64() == Some(0) => {
            let message = "`max_body_size: 0` has no effect: it does not raise the limit of the gateway";
            let hint = "set `limits.request_body_bytes` to the largest body of all routes, and a smaller `max_body_size` on other routes";
            vec![Problem::new("max_body_size", "no_effect", message).hint(hint)]
        }
        _ => Vec::new(),
    }
}

impl ClientControl {
    fn limit(&self) -> Option<u64> {
        self.max_body_size.filter(|limit| *limit > 0)
    }
}

impl Plugin for ClientControl {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let Some(limit) = self.limit() else { return Step::Next };
        let said = ctx.request.headers.get(HeaderId::ContentLength);
        let said = said.and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok());
        // A global rule may have had the body read before.
        let known = said.max(ctx.body.as_ref().map(|body| body.len() as u64));
        if known.is_some_and(|known| known > limit) {
            return Step::status(413);
        }
        ctx.limit_request_body(limit);
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, summary, warned};

    #[test]
    fn sizes_that_are_said() {
        let check = |conf: Value, fields: &str, expected: &str| {
            let mut case = Case::new(&format!("POST / HTTP/1.1\nHost: h\n{fields}"));
            let reply = case.run(&entry("client-control", conf.clone()).unwrap(), Phase::Rewrite);
            assert_eq!(summary(reply.as_ref()), expected, "{conf} {fields}");
        };
        check(json!({"max_body_size": 5}), "Content-Length: 5", "passed");
        check(json!({"max_body_size": 5}), "Content-Length: 6", "413");
        check(json!({"max_body_size": 5}), "Transfer-Encoding: chunked", "passed");
        check(json!({"max_body_size": 0}), "Content-Length: 6", "passed");
        check(json!({}), "Content-Length: 6", "passed");
    }

    #[test]
    fn the_lowest_limit_of_the_exchange_counts() {
        let mut case = Case::new("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked");
        for (limit, lowest) in [(0, 0), (5, 5), (7, 5), (3, 3)] {
            case.run(&entry("client-control", json!({ "max_body_size": limit })).unwrap(), Phase::Rewrite);
            assert_eq!(case.ctx.request_body_limit, lowest, "{limit}");
        }
    }

    #[test]
    fn a_body_that_was_read_before_is_refused() {
        let mut case = Case::new("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked");
        case.ctx.body = Some(b"123456".to_vec());
        let reply = case.run(&entry("client-control", json!({"max_body_size": 5})).unwrap(), Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "413");
    }

    #[test]
    fn configurations() {
        let name = "client-control";
        assert_refusal(name, &json!({"max_body_size": -1}), "property \"max_body_size\" validation failed");
        assert_refusal(name, &json!({"max_body_size": "1"}), "expected integer, got string");
        assert_eq!(warned(name, PluginScope::Http, &json!({"max_body_size": 0})), ["max_body_size"]);
        assert!(warned(name, PluginScope::Http, &json!({"max_body_size": 1})).is_empty());
    }
}
