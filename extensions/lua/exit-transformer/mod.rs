//! `exit-transformer`: changes of responses of the gateway itself, by functions in Lua or by rules.

mod functions;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
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

use functions::Functions;

/// The plugin.
pub(crate) static EXIT_TRANSFORMER: Descriptor = Descriptor {
    name: "exit-transformer",
    priority: 22950,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    variables: &[
        VariableField::shown("rules.*.body", VariableForm::Template),
        VariableField::shown("rules.*.headers.*", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(ExitTransformer::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Changes status, fields and body of responses of plugins and of the gateway itself.
///
/// `functions` are Lua chunks, as in APISIX. Each chunk gets status, body and fields as `...`, and returns the new ones;
/// the next chunk gets its results. The body is a table if it is a JSON object or array, else a text. A table that is
/// returned becomes JSON, nil leaves the default body of the status. A function that fails is logged, and the values
/// before it count. Functions cannot wait; their limits are in [Lua](../lua.md).
///
/// `rules` do the same without code: the first rule for the status applies.
///
/// Responses of nodes pass unchanged, and so do the gateway's errors without a response of a node (502, 504), and
/// streamed responses. In a global rule the plugin sees requests without a route too. A build without the feature `lua`
/// refuses the plugin, also with `rules`.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Lua chunks that get `(code, body, header)` and return the three, in running order.
    functions: Option<Vec<String>>,
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
        match (&self.functions, &self.rules) {
            (Some(functions), None) => functions::check(functions),
            (None, Some(rules)) => {
                let idle = rules
                    .iter()
                    .position(|rule| rule.status.is_none() && rule.headers.is_none() && rule.body.is_none());
                idle.map_or(Ok(()), |at| Err(format!("rules[{at}]: write `status`, `headers` or `body`")))
            }
            (Some(_), Some(_)) => Err("write `functions` or `rules`, not both".to_owned()),
            (None, None) => Err("property \"functions\" is required".to_owned()),
        }
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
        let is_own = |name: &str| self.headers.as_ref().is_some_and(|fields| fields.has(name));
        let reply = with_fields_of(ctx, reply, |name| is_own(name) || is_content_type(name));
        match &self.headers {
            Some(fields) => fields.added_to(reply, ctx),
            None => reply,
        }
    }
}

fn is_content_type(name: &str) -> bool {
    HeaderId::of(name.as_bytes()) == HeaderId::ContentType
}

/// Adds the fields of the response that do not describe its body, such as a challenge of another plugin.
fn with_fields_of(ctx: &Context, mut reply: Reply, is_left_out: impl Fn(&str) -> bool) -> Reply {
    for (name, value) in ctx.response.headers.iter() {
        let name = String::from_utf8_lossy(name).into_owned();
        let is_of_gateway = HeaderId::of(name.as_bytes()) == HeaderId::Server || frames(&name);
        if !is_of_gateway && !describes_body(&name) && !is_left_out(&name) {
            reply = reply.header(name, value);
        }
    }
    reply
}

/// An instance.
enum ExitTransformer {
    Rules(Vec<Rule>),
    Functions(Functions),
}

impl ExitTransformer {
    fn new(build: &Build<'_>) -> Result<ExitTransformer, String> {
        let config: Config = build.config()?;
        Ok(match (config.functions, config.rules) {
            (Some(functions), _) => {
                let place = format!("{} of {}", build.plugin, build.resource);
                ExitTransformer::Functions(Functions::new(functions, place))
            }
            (None, rules) => ExitTransformer::Rules(rules.unwrap_or_default()),
        })
    }
}

impl Plugin for ExitTransformer {
    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        if ctx.record.source != Source::Gateway {
            return ResponseStep::Next;
        }
        let rules = match self {
            ExitTransformer::Functions(functions) => return functions.applied(ctx, env),
            ExitTransformer::Rules(rules) => rules,
        };
        let rule = rules.iter().find(|rule| rule.is_for(ctx.response.status));
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
    use serde_json::{Value, json};

    use super::*;
    use crate::snippets::case_of;
    use crate::testing::{Case, assert_refusal, entry, field, summary};

    fn step(conf: &Value, source: Source, status: u16) -> (Case, ResponseStep) {
        let mut case = case_of("GET /a%0ab HTTP/1.1\nHost: h");
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
        check(json!({}), "property \"functions\" is required");
        check(json!({"functions": ["return ..."]}), "");
        check(
            json!({"functions": ["local x ="]}),
            "[string \"local x =\"]:1: unexpected symbol near '<eof>'",
        );
        check(
            json!({"functions": [7]}),
            "property \"functions\" validation failed: failed to validate item 1: wrong type: expected string, got number",
        );
        check(json!({"functions": [], "rules": [{"body": "x"}]}), "write `functions` or `rules`, not both");
        check(json!({"rules": [{"statuses": [404]}]}), "rules[0]: write `status`, `headers` or `body`");
        check(json!({"rules": [{"status": 99}]}), "expected 99 to be at least 200");
        check(json!({"rules": [{"headers": {"a b": "c"}}]}), "`a b` is not the name of a header field");
        check(json!({"rules": [{"body": "x"}]}), "");
    }
}
