//! `ua-restriction`: restricts clients by their `User-Agent`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::HeaderId;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::validation::pcre::Pattern;

use crate::shared::refusal::{self, Refusal};

/// Allows or denies clients by `User-Agent`.
pub(crate) static UA_RESTRICTION: Descriptor = Descriptor {
    name: "ua-restriction",
    priority: 2999,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(refusal::warnings),
    ..Descriptor::itself::<UaRestriction>()
};

/// Allows or denies clients by regular expressions on `User-Agent`.
///
/// The expressions match anywhere in the value, with case. With several fields, one on the `allowlist` permits the
/// request, and one on the `denylist` refuses it.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{"required": ["allowlist"]}, {"required": ["denylist"]}]))]
struct UaRestriction {
    /// Whether requests without `User-Agent` are allowed.
    #[schemars(extend("default" = false))]
    bypass_missing: bool,
    /// Regular expressions of permitted clients; all others are refused.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    allowlist: Option<Vec<Pattern>>,
    /// Regular expressions of refused clients.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    denylist: Option<Vec<Pattern>>,
    /// The message of a refusal.
    #[schemars(length(min = 1, max = 1024), extend("default" = "Not allowed"))]
    message: String,
    #[serde(flatten)]
    refusal: Refusal,
}

impl Configuration for UaRestriction {}

impl UaRestriction {
    fn admits(&self, ctx: &Context) -> bool {
        if !ctx.request.headers.has(HeaderId::UserAgent) {
            return self.bypass_missing;
        }
        let on_list = |list: &[Pattern]| {
            ctx.request.headers.get_all(HeaderId::UserAgent).any(|agent| {
                let agent = String::from_utf8_lossy(agent.trim_ascii());
                list.iter().any(|pattern| pattern.is_match(&agent))
            })
        };
        match (&self.allowlist, &self.denylist) {
            (Some(list), _) => on_list(list),
            (None, Some(list)) => !on_list(list),
            // The schema requests one of them.
            (None, None) => false,
        }
    }
}

impl Plugin for UaRestriction {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.admits(ctx) {
            return Step::Next;
        }
        self.refusal.step(Reply::new(403).json(&json!({ "message": self.message })), env)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    #[test]
    fn agents_pass_or_do_not() {
        let check = |conf: &Value, agents: &[&str], expected: bool| {
            let entry = entry("ua-restriction", conf.clone()).unwrap();
            let fields: String = agents.iter().map(|agent| format!("\nUser-Agent: {agent}")).collect();
            let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h{fields}"));
            let reply = case.run(&entry, Phase::Access);
            let said = if expected { "passed" } else { r#"403 {"message":"Not allowed"}"# };
            assert_eq!(summary(reply.as_ref()), said, "{conf} {agents:?}");
        };
        let allow = json!({"allowlist": ["my-bot1", "(Baiduspider)/(\\d+)\\.(\\d+)"]});
        check(&allow, &["my-bot1"], true);
        check(&allow, &["x Baiduspider/2.0 y"], true);
        check(&allow, &["My-Bot1"], false);
        check(&allow, &[], false);
        check(&allow, &[""], false);
        check(&allow, &["other", "my-bot1"], true);
        let deny = json!({"denylist": ["^my-bot1$"], "bypass_missing": true});
        check(&deny, &["my-bot1"], false);
        check(&deny, &["  my-bot1  "], false);
        check(&deny, &["my-bot2"], true);
        check(&deny, &[""], true);
        check(&deny, &[], true);
        check(&deny, &["other", "my-bot1"], false);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check =
            |conf: Value, expected: &str| assert_eq!(refusal("ua-restriction", &conf), expected, "{conf}");
        check(json!({}), "value should match only one schema, but matches none");
        check(
            json!({"allowlist": ["a"], "denylist": ["b"]}),
            "value should match only one schema, but matches both schemas 1 and 2",
        );
        check(json!({"denylist": ["(a"]}), "pattern `(a` is not a valid expression: unclosed group");
    }
}
