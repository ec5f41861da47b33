//! `exit-transformer`: other answers instead of the gateway's own.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::HeaderId;
use sigma_plugin::record::Source;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep,
};
use sigma_schema::template::Template;

use sigma_plugin_kit::changed_body::describes_body;
use sigma_plugin_kit::fields::frames;
use sigma_plugin_kit::response_fields::Fields;

/// The plugin.
pub(crate) static EXIT_TRANSFORMER: Descriptor = Descriptor {
    name: "exit-transformer",
    priority: 22950,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    variables: &[
        VariableField::shown("rules.*.body", VariableForm::Template),
        VariableField::shown("rules.*.headers.*", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(ExitTransformer::new(build)?)),
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
global_rules:
  - id: answers
    plugins:
      exit-transformer:
        rules:
          - { statuses: [401, 403], status: 404 }
          - { statuses: [404], headers: { Content-Type: application/json }, body: "{\"nothing at\": \"$uri\"}" }
routes:
  - { uri: /orders, plugins: { key-auth: {} }, upstream: "http://127.0.0.1:9000" }
```

```console
$ curl -i http://127.0.0.1:9080/nowhere
HTTP/1.1 404 Not Found
Content-Type: application/json
…
{"nothing at": "/nowhere"}
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders
404
```
"#;

/// Changes status, fields and body of responses of plugins and of the gateway itself.
///
/// APISIX uses Lua functions for this, which this gateway does not run: `functions` is refused; use `rules`. The
/// first rule for the status applies. Responses of nodes pass unchanged, and so do the gateway's errors without a
/// response of a node (502, 504). In a global rule the plugin sees requests without a route too.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Refused: there is no Lua engine.
    #[schemars(extend("type" = "array", "items" = {"type": "string"}))]
    functions: Option<Value>,
    /// Changes, by the status of the response.
    #[schemars(length(min = 1))]
    rules: Option<Vec<Rule>>,
}

#[derive(Deserialize, JsonSchema)]
struct Rule {
    /// The statuses of changed responses. Default: all from 400 on.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)))]
    statuses: Option<Vec<u16>>,
    /// The new status.
    #[schemars(range(min = 200, max = 599))]
    status: Option<u16>,
    /// Fields of the response; they replace fields with the same name. Values may contain variables.
    headers: Option<Fields>,
    /// The new body, a text with variables. Default: the text of the status, if `status` changes it.
    body: Option<Template>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.functions.is_some() {
            return Err("functions: there is no Lua engine yet; write their effect as `rules`".to_owned());
        }
        let Some(rules) = &self.rules else { return Err("property \"rules\" is required".to_owned()) };
        let idle = rules
            .iter()
            .position(|rule| rule.status.is_none() && rule.headers.is_none() && rule.body.is_none());
        idle.map_or(Ok(()), |at| Err(format!("rules[{at}]: write `status`, `headers` or `body`")))
    }
}

impl Rule {
    fn is_for(&self, status: u16) -> bool {
        self.statuses.as_ref().map_or(status >= 400, |statuses| statuses.contains(&status))
    }

    fn applied(&self, ctx: &Context) -> Reply {
        let status = self.status.unwrap_or(ctx.response.status);
        let mut reply = Reply::new(status);
        if let Some(body) = &self.body {
            reply = reply.text(body.rendered(ctx));
        }
        let own = |name: &str| self.headers.as_ref().is_some_and(|fields| fields.has(name));
        for (name, value) in ctx.response.headers.iter() {
            let name = String::from_utf8_lossy(name).into_owned();
            let is_of_body =
                matches!(HeaderId::of(name.as_bytes()), HeaderId::ContentType | HeaderId::Server)
                    || describes_body(&name);
            // Fields of other plugins stay, such as a challenge.
            if !frames(&name) && !is_of_body && !own(&name) {
                reply = reply.header(name, value);
            }
        }
        match &self.headers {
            Some(fields) => fields.added_to(reply, ctx),
            None => reply,
        }
    }
}

struct ExitTransformer(Vec<Rule>);

impl ExitTransformer {
    fn new(build: &Build<'_>) -> Result<ExitTransformer, String> {
        let config: Config = build.config()?;
        Ok(ExitTransformer(config.rules.unwrap_or_default()))
    }
}

impl Plugin for ExitTransformer {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if ctx.record.source != Source::Gateway {
            return ResponseStep::Next;
        }
        let rule = self.0.iter().find(|rule| rule.is_for(ctx.response.status));
        let Some(rule) = rule else { return ResponseStep::Next };
        // A rule with fields alone keeps the body.
        if let (None, None, Some(fields)) = (rule.status, &rule.body, &rule.headers) {
            fields.set_in(ctx);
            return ResponseStep::Next;
        }
        ResponseStep::Replace(Box::new(rule.applied(ctx)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, field, summary};

    fn step(conf: &Value, source: Source, status: u16) -> (Case, ResponseStep) {
        let mut case = Case::new("GET /a%0ab HTTP/1.1\nHost: h");
        case.respond(
            status,
            "Content-Type: application/json\nWWW-Authenticate: Basic\nX-A: 1\nContent-Length: 3",
        );
        case.ctx.record.source = source;
        let step = case.response_step(&entry("exit-transformer", conf.clone()).unwrap());
        (case, step)
    }

    #[test]
    fn answers_of_the_gateway_are_changed() {
        let conf = json!({"rules": [
            {"statuses": [401], "status": 404},
            {"statuses": [429, 403], "body": "no $uri", "headers": {"X-A": "2", "X-Status": "$status"}},
            {"statuses": [200], "headers": {"X-A": "3"}},
            {"status": 500, "body": ""},
        ]});
        let check = |status: u16, expected: &str, fields: [Option<&str>; 3]| {
            let (_, ResponseStep::Replace(reply)) = step(&conf, Source::Gateway, status) else {
                panic!("{status}")
            };
            assert_eq!(summary(Some(&reply)), expected);
            let found = ["WWW-Authenticate", "X-A", "Content-Type"].map(|name| field(&reply, name));
            assert_eq!(found, fields.map(|value| value.map(str::to_owned)), "{status}");
        };
        check(401, "404", [Some("Basic"), Some("1"), None]);
        check(429, "429 no /a\nb", [Some("Basic"), Some("2"), None]);
        check(503, "500", [Some("Basic"), Some("1"), None]);
        let (case, fields_alone) = step(&conf, Source::Gateway, 200);
        assert!(matches!(fields_alone, ResponseStep::Next));
        assert_eq!(
            (case.answered("X-A"), case.answered("Content-Type")),
            ("3".into(), "application/json".into())
        );
        for (source, status) in [(Source::Upstream, 401), (Source::Fault, 503), (Source::Gateway, 302)] {
            let (case, step) = step(&conf, source, status);
            assert!(matches!(step, ResponseStep::Next) && case.answered("X-A") == "1", "{source:?} {status}");
        }
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("exit-transformer", &conf, expected);
        check(
            json!({"functions": ["return ..."]}),
            "functions: there is no Lua engine yet; write their effect as `rules`",
        );
        check(json!({}), "property \"rules\" is required");
        check(json!({"rules": [{"statuses": [404]}]}), "rules[0]: write `status`, `headers` or `body`");
        check(json!({"rules": [{"status": 99}]}), "expected 99 to be at least 200");
        check(json!({"rules": [{"headers": {"a b": "c"}}]}), "`a b` is no name of a header field");
        check(json!({"rules": [{"body": "x"}]}), "");
    }
}
