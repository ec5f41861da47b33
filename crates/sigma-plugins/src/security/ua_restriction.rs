//! `ua-restriction`: clients by what they call themselves.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::wording::pcre::Pattern;
use sigma_http::HeaderId;
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// Allows or denies clients by `User-Agent`.
pub(crate) static UA_RESTRICTION: Descriptor = Descriptor {
    name: "ua-restriction",
    priority: 2999,
    doc: "Allows or denies clients by regular expressions on `User-Agent`.\n\n\
        The expressions are searched anywhere in the value and tell upper from lower case. Of several \
        fields one on the `allowlist` suffices to pass, and one on the `denylist` to be refused.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access]),
    schema,
    check: Some(|conf| {
        let lists = ["allowlist", "denylist"].into_iter().filter_map(|name| conf.get(name)?.as_array());
        patterns(lists.flatten().filter_map(Value::as_str)).map(|_| ())
    }),
    build: |build| Ok(Arc::new(UaRestriction::new(build)?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      ua-restriction: { denylist: ["^curl/"] }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 403 Forbidden
…
{"message":"Not allowed"}
$ curl -i -A my-browser http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
```
"#;

fn schema() -> Value {
    let list = |description: &str| {
        json!({
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "minLength": 1},
            "description": description
        })
    };
    json!({
        "type": "object",
        "properties": {
            "bypass_missing": {
                "type": "boolean",
                "default": false,
                "description": "Whether requests without `User-Agent` pass."
            },
            "allowlist": list("Regular expressions; only clients that match one may pass."),
            "denylist": list("Regular expressions; clients that match one may not pass."),
            "message": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1024,
                "default": "Not allowed",
                "description": "The message of a refusal."
            }
        },
        "oneOf": [{"required": ["allowlist"]}, {"required": ["denylist"]}]
    })
}

fn patterns<'p>(sources: impl Iterator<Item = &'p str>) -> Result<Vec<Pattern>, String> {
    sources.map(|source| Pattern::compile(source).map_err(|error| error.to_string())).collect()
}

#[derive(Deserialize)]
struct Config {
    bypass_missing: bool,
    allowlist: Option<Vec<String>>,
    denylist: Option<Vec<String>>,
    message: String,
}

struct UaRestriction {
    bypass_missing: bool,
    /// Whether those who match pass; if not, they are refused.
    matching_pass: bool,
    patterns: Vec<Pattern>,
    message: String,
}

impl UaRestriction {
    fn new(build: &Build<'_>) -> Result<UaRestriction, String> {
        let Config { bypass_missing, allowlist, denylist, message } = build.config()?;
        let matching_pass = allowlist.is_some();
        let sources = allowlist.or(denylist).ok_or("an allowlist or a denylist is needed")?;
        let patterns = patterns(sources.iter().map(String::as_str))?;
        Ok(UaRestriction { bypass_missing, matching_pass, patterns, message })
    }

    fn admits(&self, ctx: &Context) -> bool {
        if !ctx.request.headers.has(HeaderId::UserAgent) {
            return self.bypass_missing;
        }
        let mut agents = ctx.request.headers.get_all(HeaderId::UserAgent);
        let found = agents.any(|agent| {
            let agent = String::from_utf8_lossy(agent.trim_ascii());
            self.patterns.iter().any(|pattern| pattern.is_match(&agent))
        });
        found == self.matching_pass
    }
}

impl Plugin for UaRestriction {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        if self.admits(ctx) { Step::Next } else { Step::json(403, &json!({ "message": self.message })) }
    }
}

#[cfg(test)]
mod tests {
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
