//! `api-breaker`: spares a node that fails.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::counter::Shared;
use sigma_plugin::record::Source;
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use super::text::{Field, check_names};

/// The plugin.
pub(crate) static API_BREAKER: Descriptor = Descriptor {
    name: "api-breaker",
    version: "0.1",
    priority: 1005,
    doc: "Answers in the place of nodes that fail, to give them time.\n\n\
        After `unhealthy.failures` bad answers to one host and path, requests are answered \
        `break_response_code` for two seconds, then four, eight …, at most `max_breaker_sec`. \
        `healthy.successes` good answers close the breaker. Breakers of one host and path are \
        shared by all routes of this gateway.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access, Phase::Log]),
    schema,
    check: Some(|conf| {
        let fields = conf.get("break_response_headers").and_then(Value::as_array).into_iter().flatten();
        check_names(fields.filter_map(|field| field.get("key")?.as_str()))
    }),
    build,
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /orders
    plugins:
      api-breaker:
        break_response_code: 503
        break_response_body: "the orders have a rest\n"
        unhealthy: { http_statuses: [502], failures: 2 }
    upstream: http://127.0.0.1:9999   # where nobody listens
```

```console
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders
502
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders
502
$ until curl -s http://127.0.0.1:9080/orders | grep rest; do :; done
the orders have a rest
```
"#;

fn schema() -> Value {
    let statuses = |least: u16, most: u16, default: u16, about: &str| {
        json!({"type": "array", "minItems": 1, "uniqueItems": true,
            "items": {"type": "integer", "minimum": least, "maximum": most},
            "default": [default], "description": about})
    };
    let times = |about: &str| json!({"type": "integer", "minimum": 1, "default": 3, "description": about});
    json!({
        "type": "object",
        "properties": {
            "break_response_code": {"type": "integer", "minimum": 200, "maximum": 599,
                "description": "Status of requests that are not passed on."},
            "break_response_body": {"type": "string", "description": "Body of such answers; none for a plain answer."},
            "break_response_headers": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "description": "Name."},
                        "value": {"type": "string", "minLength": 1, "description": "Value, a text with variables."}
                    },
                    "required": ["key", "value"]
                },
                "description": "Header fields of such answers, if they have a body."
            },
            "max_breaker_sec": {"type": "integer", "minimum": 3, "default": 300,
                "description": "Longest time for which nothing is passed on, in seconds."},
            "unhealthy": {
                "type": "object",
                "properties": {
                    "http_statuses": statuses(500, 599, 500, "Statuses that count as failures."),
                    "failures": times("Failures that open the breaker.")
                },
                "default": {"http_statuses": [500], "failures": 3},
                "description": "What opens the breaker."
            },
            "healthy": {
                "type": "object",
                "properties": {
                    "http_statuses": statuses(200, 499, 200, "Statuses that count as successes."),
                    "successes": times("Successes that close the breaker.")
                },
                "default": {"http_statuses": [200], "successes": 3},
                "description": "What closes the breaker."
            }
        },
        "required": ["break_response_code"]
    })
}

#[derive(Deserialize)]
struct Config {
    break_response_code: u16,
    break_response_body: Option<String>,
    #[serde(default)]
    break_response_headers: Vec<ConfigField>,
    max_breaker_sec: u64,
    unhealthy: Unhealthy,
    healthy: Healthy,
}

#[derive(Deserialize)]
struct ConfigField {
    key: String,
    value: Value,
}

#[derive(Deserialize)]
struct Unhealthy {
    http_statuses: Vec<u16>,
    failures: u64,
}

#[derive(Deserialize)]
struct Healthy {
    http_statuses: Vec<u16>,
    successes: u64,
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    let config: Config = build.config()?;
    // Of a name that is there twice the last one counts.
    let mut named: Map<String, Value> = Map::new();
    for ConfigField { key, value } in &config.break_response_headers {
        named.retain(|known, _| !known.eq_ignore_ascii_case(key));
        named.insert(key.clone(), value.clone());
    }
    Ok(Arc::new(ApiBreaker {
        status: config.break_response_code,
        fields: Field::all(&named),
        body: config.break_response_body,
        limits: Limits {
            failures: config.unhealthy.failures,
            successes: config.healthy.successes,
            longest_s: config.max_breaker_sec,
        },
        unhealthy: config.unhealthy.http_statuses,
        healthy: config.healthy.http_statuses,
        breakers: build.node.part(Breakers::default),
    }))
}

/// The breakers of all hosts and paths of this gateway.
#[derive(Default)]
struct Breakers(Shared<Breaker>);

/// What is known of one host and path.
#[derive(Debug, Clone, Copy, Default)]
struct Breaker {
    failures: u64,
    successes: u64,
    /// When it opened last, in seconds, and when that is forgotten.
    opened: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    failures: u64,
    successes: u64,
    longest_s: u64,
}

impl Breaker {
    fn is_open(&self, limits: Limits, now_s: u64) -> bool {
        let Some((opened_s, until_s)) = self.opened else { return false };
        if now_s >= until_s || self.failures == 0 {
            return false;
        }
        let times = (self.failures / limits.failures).clamp(1, 63);
        opened_s.saturating_add((1 << times).min(limits.longest_s)) >= now_s
    }

    fn failed(&mut self, limits: Limits, now_s: u64) {
        self.failures += 1;
        self.successes = 0;
        if self.failures.is_multiple_of(limits.failures) {
            self.opened = Some((now_s, now_s.saturating_add(limits.longest_s)));
        }
    }

    /// Whether it is closed for good.
    fn succeeded(&mut self, limits: Limits) -> bool {
        self.successes += 1;
        self.successes >= limits.successes
    }
}

struct ApiBreaker {
    status: u16,
    body: Option<String>,
    fields: Vec<Field>,
    limits: Limits,
    unhealthy: Vec<u16>,
    healthy: Vec<u16>,
    breakers: Arc<Breakers>,
}

fn key(ctx: &Context) -> Vec<u8> {
    crate::limit::bounded([&*ctx.host_name(), &ctx.uri].concat())
}

/// The status of the last attempt on a node; None if no node was asked.
fn upstream_status(ctx: &Context) -> Option<u16> {
    let record = &ctx.record;
    match record.attempts.last() {
        Some(attempt) if attempt.status != 0 => Some(attempt.status),
        Some(_) => Some(record.status),
        None => (record.source != Source::Gateway).then_some(record.status),
    }
}

/// Whole seconds of a clock that never goes back.
fn now_s() -> u64 {
    crate::limit::process_ms() / 1000
}

impl Plugin for ApiBreaker {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let now_s = now_s();
        let open = self.breakers.0.peek(&key(ctx), 0, |slot| slot.value.is_open(self.limits, now_s));
        if open != Some(true) {
            return Step::Next;
        }
        let Some(body) = &self.body else { return Step::status(self.status) };
        let reply = self
            .fields
            .iter()
            .map(|field| field.of(ctx))
            .fold(Reply::new(self.status), |reply, (name, value)| reply.header(name, value));
        reply.text(body.as_bytes()).into()
    }

    fn log(&self, ctx: &mut Context, _env: &Env<'_>) {
        let Some(status) = upstream_status(ctx) else { return };
        let (key, breakers) = (key(ctx), &self.breakers.0);
        if self.unhealthy.contains(&status) {
            breakers.with(&key, 0, |slot| slot.value.failed(self.limits, now_s()));
        } else if self.healthy.contains(&status) {
            let closed = breakers.peek(&key, 0, |slot| slot.value.succeeded(self.limits));
            if closed == Some(true) {
                breakers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal};
    use sigma_plugin::record::Attempt;

    const LIMITS: Limits = Limits { failures: 2, successes: 2, longest_s: 6 };

    #[test]
    fn open_times_double_up_to_the_longest() {
        let mut breaker = Breaker::default();
        // After so many failures at second 100, the last second at which it is open.
        for (failures, last_s) in
            [(1, None), (2, Some(102)), (3, Some(102)), (4, Some(104)), (5, Some(104)), (6, Some(105))]
        {
            breaker.failed(LIMITS, 100);
            let open: Vec<u64> = (100..120).filter(|now_s| breaker.is_open(LIMITS, *now_s)).collect();
            assert_eq!(open.last().copied(), last_s, "{failures}");
        }
    }

    fn answered(case: &mut Case, status: u16) {
        let attempt = Attempt {
            addr: "127.0.0.1:1".into(),
            host: String::new(),
            began: None,
            status,
            connect_ms: None,
            header_ms: None,
            response_ms: None,
        };
        case.cx.record.attempts = vec![attempt];
        case.cx.record.status = status;
    }

    #[test]
    fn failures_open_and_successes_close() {
        let conf = json!({
            "break_response_code": 599, "break_response_body": "broken",
            "break_response_headers": [
                {"key": "x-path", "value": "first"}, {"key": "X-Path", "value": "$uri!"},
                {"key": "Content-Length", "value": "99"}
            ],
            "unhealthy": {"http_statuses": [500, 503], "failures": 2}, "healthy": {"successes": 1}
        });
        let entry = entry("api-breaker", conf).unwrap();
        let mut case = Case::new("GET /a HTTP/1.1\nHost: h.test:80\n");
        for (status, opens) in
            [(500, false), (404, false), (503, true), (302, true), (200, false), (500, false)]
        {
            case.request("GET /a HTTP/1.1\nHost: H.test:81\n");
            answered(&mut case, status);
            case.log(&entry);
            case.request("GET /a?x HTTP/1.1\nHost: h.test\n");
            let reply = case.run(&entry, Phase::Access);
            assert_eq!(reply.is_some(), opens, "{status}");
            if let Some(reply) = reply {
                assert_eq!((reply.status, reply.body.as_deref()), (599, Some(&b"broken"[..])));
                assert_eq!(reply.headers, [("X-Path".into(), b"/a!".to_vec())]);
            }
            case.request("GET /b HTTP/1.1\nHost: h.test\n");
            assert!(case.run(&entry, Phase::Access).is_none());
        }
    }

    #[test]
    fn what_the_gateway_answers_itself_does_not_count() {
        let entry =
            entry("api-breaker", json!({"break_response_code": 502, "unhealthy": {"failures": 1}})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
        case.cx.record.status = 500;
        case.log(&entry);
        assert!(case.run(&entry, Phase::Access).is_none());
        answered(&mut case, 0);
        case.cx.record.status = 500;
        case.log(&entry);
        let reply = case.run(&entry, Phase::Access).unwrap();
        assert_eq!((reply.status, reply.body), (502, None));
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, reason: &str| assert_eq!(refusal("api-breaker", &conf), reason, "{conf}");
        check(json!({"break_response_code": 200}), "");
        check(
            json!({"break_response_code": 200, "break_response_headers": [{"key": "a b", "value": "c"}]}),
            "`a b` is no name of a header field",
        );
        check(json!({}), "property \"break_response_code\" is required");
        check(
            json!({"break_response_code": 199}),
            "property \"break_response_code\" validation failed: expected 199 to be at least 200",
        );
        check(
            json!({"break_response_code": 200, "max_breaker_sec": 2}),
            "property \"max_breaker_sec\" validation failed: expected 2 to be at least 3",
        );
    }
}
