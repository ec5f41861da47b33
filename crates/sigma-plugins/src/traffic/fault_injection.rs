//! `fault-injection`: delays and answers on purpose.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_config::expr::Expr;
use sigma_config::template::Template;
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use super::text::{Field, check_names, rendered};

/// The plugin.
pub(crate) static FAULT_INJECTION: Descriptor = Descriptor {
    name: "fault-injection",
    version: "0.1",
    priority: 11000,
    doc: "Delays requests, or answers them with a fault, to see what clients make of it.\n\n\
        Both apply to a share of the requests, and to those whose variables match. A request that \
        is to be delayed and answered is delayed first.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema,
    check: Some(|conf| {
        let fields = conf.pointer("/abort/headers").and_then(Value::as_object);
        check_names(fields.into_iter().flat_map(|fields| fields.keys().map(String::as_str)))?;
        parse(conf).map(drop)
    }),
    build,
    variables: &[
        VariablePlace::shown("abort.vars", VariableForm::Condition),
        VariablePlace::shown("delay.vars", VariableForm::Condition),
        VariablePlace::shown("abort.body", VariableForm::Template),
        VariablePlace::shown("abort.headers.*", VariableForm::Template),
    ],
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      fault-injection:
        abort:
          http_status: 503
          body: "a fault, as asked for\n"
          vars: [[[http_x_fault, "==", "1"]]]
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i -H 'X-Fault: 1' http://127.0.0.1:9080/orders
HTTP/1.1 503 Service Unavailable
…
a fault, as asked for
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
```
"#;

fn schema() -> Value {
    let percentage = json!({"type": "integer", "minimum": 0, "maximum": 100,
        "description": "Share of the requests, in percent; without it all."});
    let vars = json!({"type": "array", "maxItems": 20, "items": {"type": "array"},
        "description": "Expressions on variables, one of which must hold."});
    json!({
        "type": "object",
        "properties": {
            "abort": {
                "type": "object",
                "properties": {
                    "http_status": {"type": "integer", "minimum": 200, "maximum": 999, "description": "Status."},
                    "body": {"type": "string", "minLength": 0, "description": "Body, a text with variables."},
                    "headers": {
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "number"}]},
                        "description": "Header fields; their values are texts with variables."
                    },
                    "percentage": percentage,
                    "vars": vars
                },
                "required": ["http_status"],
                "description": "Answers requests with a fault."
            },
            "delay": {
                "type": "object",
                "properties": {
                    "duration": {"type": "number", "minimum": 0, "description": "Seconds."},
                    "percentage": percentage,
                    "vars": vars
                },
                "required": ["duration"],
                "description": "Delays requests."
            }
        },
        "minProperties": 1
    })
}

#[derive(Deserialize)]
struct Config {
    abort: Option<AbortConfig>,
    delay: Option<DelayConfig>,
}

#[derive(Deserialize)]
struct AbortConfig {
    http_status: u16,
    body: Option<String>,
    headers: Option<Map<String, Value>>,
    #[serde(flatten)]
    share: Share,
}

#[derive(Deserialize)]
struct DelayConfig {
    duration: f64,
    #[serde(flatten)]
    share: Share,
}

/// Which requests are meant.
#[derive(Deserialize)]
struct Share {
    percentage: Option<u64>,
    vars: Option<Vec<Expr>>,
}

impl Share {
    fn has(&self, ctx: &Context, env: &Env<'_>) -> bool {
        let sampled = self.percentage.is_none_or(|percentage| env.local.random() % 100 < percentage);
        sampled && self.vars.as_ref().is_none_or(|vars| vars.iter().any(|vars| vars.eval(ctx)))
    }
}

fn parse(conf: &Value) -> Result<Config, String> {
    Config::deserialize(conf).map_err(|error| error.to_string())
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    let Config { abort, delay } = build.config()?;
    let abort = abort.map(|config| {
        let fault = Fault {
            status: config.http_status,
            body: config.body.as_deref().map(Template::parse),
            fields: config.headers.as_ref().map(Field::all).unwrap_or_default(),
        };
        (config.share, Arc::new(fault))
    });
    // No timer goes on for years.
    let delay = delay.map(|config| (config.share, Duration::from_secs_f64(config.duration.min(1e8))));
    Ok(Arc::new(FaultInjection { abort, delay }))
}

struct FaultInjection {
    abort: Option<(Share, Arc<Fault>)>,
    delay: Option<(Share, Duration)>,
}

struct Fault {
    status: u16,
    body: Option<Template>,
    fields: Vec<Field>,
}

impl Fault {
    fn step(&self, ctx: &Context) -> Step {
        let mut reply = Reply::new(self.status);
        for (name, value) in self.fields.iter().map(|field| field.of(ctx)) {
            reply = reply.header(name, value);
        }
        match &self.body {
            Some(body) => reply.text(rendered(body, ctx)).into(),
            None => reply.into(),
        }
    }
}

impl Plugin for FaultInjection {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let delay = self.delay.as_ref().filter(|(share, _)| share.has(ctx, env)).map(|(_, delay)| *delay);
        let abort =
            self.abort.as_ref().filter(|(share, _)| share.has(ctx, env)).map(|(_, fault)| Arc::clone(fault));
        let abort = move |ctx: &Context| abort.map_or(Step::Next, |fault| fault.step(ctx));
        match delay.filter(|delay| !delay.is_zero()) {
            None => abort(ctx),
            Some(delay) => {
                Step::wait(async move { tokio::time::sleep(delay).await }, move |(), ctx, _| abort(ctx))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal};

    #[test]
    fn shares_and_conditions() {
        // How many of 1000 requests are answered.
        fn check(abort: Value, expected: std::ops::RangeInclusive<usize>) {
            let text = abort.to_string();
            let entry = entry("fault-injection", json!({"abort": abort})).unwrap();
            let mut case = Case::new("GET /?name=jack HTTP/1.1\nHost: h\n");
            let hits = (0..1000).filter(|_| case.run(&entry, Phase::Rewrite).is_some()).count();
            assert!(expected.contains(&hits), "{text}: {hits}");
        }
        check(json!({"http_status": 503}), 1000..=1000);
        check(json!({"http_status": 503, "percentage": 0}), 0..=0);
        check(json!({"http_status": 503, "percentage": 100}), 1000..=1000);
        check(json!({"http_status": 503, "percentage": 20}), 120..=280);
        let jack = json!([["arg_name", "==", "jack"]]);
        let rose = json!([["arg_name", "==", "rose"]]);
        check(json!({"http_status": 503, "vars": [rose, jack]}), 1000..=1000);
        check(json!({"http_status": 503, "vars": [rose]}), 0..=0);
        check(json!({"http_status": 503, "vars": []}), 0..=0);
    }

    #[test]
    fn answers_may_hold_variables() {
        let conf = json!({"abort": {"http_status": 201, "body": "$arg_name$none.", "headers": {"X-A": "${uri}", "X-N": 1}}});
        let entry = entry("fault-injection", conf).unwrap();
        let reply = Case::new("GET /x?name=jack HTTP/1.1\nHost: h\n").run(&entry, Phase::Rewrite).unwrap();
        assert_eq!((reply.status, reply.body.as_deref()), (201, Some(&b"jack."[..])));
        assert_eq!(reply.headers, [("X-A".into(), b"/x".to_vec()), ("X-N".into(), b"1".to_vec())]);
    }

    #[test]
    fn a_delay_comes_first() {
        let entry =
            entry("fault-injection", json!({"delay": {"duration": 0.05}, "abort": {"http_status": 500}}))
                .unwrap();
        let began = std::time::Instant::now();
        let reply = Case::new("GET / HTTP/1.1\nHost: h\n").run(&entry, Phase::Rewrite).unwrap();
        assert_eq!((reply.status, reply.body), (500, None));
        assert!(began.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn configurations() {
        let check =
            |conf: Value, reason: &str| assert_eq!(refusal("fault-injection", &conf), reason, "{conf}");
        check(json!({"delay": {"duration": 0.5}}), "");
        check(json!({}), "expect object to have at least 1 properties");
        check(
            json!({"abort": {}}),
            "property \"abort\" validation failed: property \"http_status\" is required",
        );
        check(
            json!({"abort": {"http_status": 100}}),
            "property \"abort\" validation failed: property \"http_status\" validation failed: expected 100 to be at least 200",
        );
        let wrong =
            refusal("fault-injection", &json!({"abort": {"http_status": 200, "vars": [[["a", "??", 1]]]}}));
        assert!(!wrong.is_empty());
    }
}
