//! `uri-blocker`: requests by their URI.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::validation::pcre::Pattern;

use crate::shared::refusal::{self, Refusal};

/// Refuses requests by their URI.
pub(crate) static URI_BLOCKER: Descriptor = Descriptor {
    name: "uri-blocker",
    priority: 2900,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    warnings: Some(refusal::warnings),
    build: |build| Ok(Arc::new(UriBlocker::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Refuses requests whose URI matches a regular expression.
///
/// The rules search the normalised, decoded path and, after `?`, the query as it was sent: `%2e%2e` or `//` cannot
/// bypass a rule, and a `.` matches a line feed too. Flags at the beginning of a rule, such as `(?i)`, apply to the
/// rules after it too, as in APISIX. An empty list of rules matches every URI.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Regular expressions, searched anywhere in path and query.
    #[schemars(inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    block_rules: Vec<String>,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 999), extend("default" = 403))]
    rejected_code: u16,
    /// The message of a refusal. Default: only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Whether rules ignore case.
    #[schemars(extend("default" = false))]
    case_insensitive: bool,
    #[serde(flatten)]
    refusal: Refusal,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.rules().map(drop)
    }
}

impl Config {
    /// Rules that match one after the other. APISIX joins them to one expression, where flags at the
    /// beginning of a rule also hold for those behind it; who relies on that must not lose a rule here.
    ///
    /// A `.` matches a line feed as well, which it does not in APISIX: the path is decoded, and a `%0a`
    /// in it would lead around every rule with a `.*`.
    fn rules(&self) -> Result<Vec<Pattern>, String> {
        let mut flags = String::from(if self.case_insensitive { "si" } else { "s" });
        let compile = |rule: &String| {
            let (own, rest) = leading_flags(rule);
            // An expression refuses a flag that it has already.
            flags.extend(own.chars().filter(|flag| !flags.contains(*flag)).collect::<Vec<_>>());
            // Told as it was written.
            Pattern::compile(rule).and_then(|_| Pattern::compile(&format!("(?{flags}){rest}")))
        };
        self.block_rules.iter().map(compile).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }
}

/// Returns the letters of `(?…)` at the beginning of a rule, and the rest.
fn leading_flags(rule: &str) -> (&str, &str) {
    let is_flag = |b: u8| matches!(b, b'i' | b'm' | b's' | b'x');
    match rule.strip_prefix("(?").and_then(|rest| rest.split_once(')')) {
        Some((flags, rest)) if flags.bytes().all(is_flag) => (flags, rest),
        _ => ("", rule),
    }
}

struct UriBlocker {
    rules: Vec<Pattern>,
    config: Config,
}

impl UriBlocker {
    fn new(build: &Build<'_>) -> Result<UriBlocker, String> {
        let config: Config = build.config()?;
        Ok(UriBlocker { rules: config.rules()?, config })
    }
}

impl Plugin for UriBlocker {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let uri = ctx.request_uri();
        let uri = String::from_utf8_lossy(&uri);
        if !self.rules.is_empty() && !self.rules.iter().any(|rule| rule.is_match(&uri)) {
            return Step::Next;
        }
        let reply = Reply::new(self.config.rejected_code);
        let reply = match &self.config.rejected_msg {
            Some(message) => reply.json(&json!({ "error_msg": message })),
            None => reply,
        };
        self.config.refusal.step(reply, env)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    #[test]
    fn uris_pass_or_do_not() {
        let check = |conf: Value, uri: &str, expected: &str| {
            let entry = entry("uri-blocker", conf.clone()).unwrap();
            let mut case = Case::new(&format!("GET {uri} HTTP/1.1\nHost: h"));
            let reply = case.run(&entry, Phase::Rewrite);
            assert_eq!(summary(reply.as_ref()), expected, "{conf} {uri}");
        };
        let rules = || json!({"block_rules": ["root.exe", "root.m+", "^/a b$"]});
        check(rules(), "/x?n=root.exe", "403");
        check(rules(), "/root.mm", "403");
        check(rules(), "/a%20b", "403");
        check(rules(), "/a%20b?x", "passed");
        check(rules(), "/ROOT.EXE", "passed");
        check(rules(), "/x?n=root%2eexe", "passed");
        check(json!({"block_rules": ["^/admin"], "case_insensitive": true}), "/ADMIN", "403");
        check(json!({"block_rules": ["(?i)one", "two"]}), "/TWO", "403");
        check(json!({"block_rules": ["one", "(?i)two"]}), "/ONE", "passed");
        check(json!({"block_rules": ["(?i)one", "(?i)two", "(?is)three"]}), "/THREE", "403");
        check(json!({"block_rules": ["(?i)a", "^(?!/open)"]}), "/x", "403");
        check(json!({"block_rules": ["(?i)a", "^(?!/open)"]}), "/open", "passed");
        check(json!({"block_rules": ["^/admin.*\\.php$"]}), "/admin/%0a/x.php", "403");
        check(json!({"block_rules": []}), "/", "403");
        let worded = json!({"block_rules": ["x"], "rejected_code": 401, "rejected_msg": "no \"x\""});
        check(worded, "/x", r#"401 {"error_msg":"no \"x\""}"#);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check =
            |conf: Value, expected: &str| assert_eq!(refusal("uri-blocker", &conf), expected, "{conf}");
        check(json!({}), "property \"block_rules\" is required");
        check(json!({"block_rules": [".+("]}), "pattern `.+(` is not a valid expression: unclosed group");
        check(
            json!({"block_rules": ["x"], "rejected_code": 100}),
            "property \"rejected_code\" validation failed: expected 100 to be at least 200",
        );
    }
}
