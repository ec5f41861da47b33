//! `api-breaker`: spares a node that fails.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::counter::Shared;
use sigma_plugin::record::Source;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use sigma_plugin_kit::response_fields::Fields;

/// The plugin.
pub(crate) static API_BREAKER: Descriptor = Descriptor {
    name: "api-breaker",
    priority: 1005,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::Log]),
    build: |build| {
        Ok(Arc::new(ApiBreaker { config: build.config()?, breakers: build.node.part(Breakers::default) }))
    },
    ..Descriptor::of::<Config>()
};

/// Circuit breaker: responds instead of failing nodes, so that they can recover.
///
/// After `unhealthy.failures` failures of one host and path, the breaker opens: requests get `break_response_code` for
/// two seconds, then four, eight …, up to `max_breaker_sec`. `healthy.successes` successes close the breaker. Breakers
/// of one host and path are shared by all routes of this gateway.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Status of requests while the breaker is open.
    #[schemars(range(min = 200, max = 599))]
    break_response_code: u16,
    /// Body of these responses. Default: a plain response.
    break_response_body: Option<String>,
    /// Header fields of these responses, if they have a body.
    break_response_headers: Option<LastFields>,
    /// Maximum seconds for which the breaker stays open.
    #[schemars(range(min = 3), extend("default" = 300))]
    max_breaker_sec: u64,
    /// Conditions that open the breaker.
    #[schemars(extend("default" = {"http_statuses": [500], "failures": 3}))]
    unhealthy: Unhealthy,
    /// Conditions that close the breaker.
    #[schemars(extend("default" = {"http_statuses": [200], "successes": 3}))]
    healthy: Healthy,
}

impl Configuration for Config {}

/// Header fields. Of several fields with one name the last one is sent.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Field>")]
#[schemars(with = "Vec<Field>")]
struct LastFields(Fields);

#[derive(Deserialize, JsonSchema)]
struct Field {
    /// Name.
    #[schemars(length(min = 1))]
    key: String,
    /// Value, a text with variables.
    #[schemars(length(min = 1))]
    value: String,
}

impl TryFrom<Vec<Field>> for LastFields {
    type Error = String;

    fn try_from(fields: Vec<Field>) -> Result<LastFields, String> {
        let mut last: Vec<Field> = Vec::new();
        for field in fields {
            last.retain(|known| !known.key.eq_ignore_ascii_case(&field.key));
            last.push(field);
        }
        Fields::new(last.into_iter().map(|Field { key, value }| (key, value))).map(LastFields)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Unhealthy {
    /// Statuses that count as failures.
    #[schemars(length(min = 1), inner(range(min = 500, max = 599)))]
    #[schemars(extend("uniqueItems" = true, "default" = [500]))]
    http_statuses: Vec<u16>,
    /// Failures that open the breaker.
    #[schemars(range(min = 1), extend("default" = 3))]
    failures: u64,
}

#[derive(Deserialize, JsonSchema)]
struct Healthy {
    /// Statuses that count as successes.
    #[schemars(length(min = 1), inner(range(min = 200, max = 499)))]
    #[schemars(extend("uniqueItems" = true, "default" = [200]))]
    http_statuses: Vec<u16>,
    /// Successes that close the breaker.
    #[schemars(range(min = 1), extend("default" = 3))]
    successes: u64,
}

/// The breakers of all hosts and paths of this gateway.
#[derive(Default)]
struct Breakers(Shared<Breaker>);

/// State of one host and path.
#[derive(Debug, Clone, Copy, Default)]
struct Breaker {
    failures: u64,
    successes: u64,
    /// When it opened last, in seconds, and when that is forgotten.
    opened: Option<(u64, u64)>,
}

impl Breaker {
    fn is_open(&self, config: &Config, now_s: u64) -> bool {
        let Some((opened_s, until_s)) = self.opened else { return false };
        if now_s >= until_s || self.failures == 0 {
            return false;
        }
        let times = (self.failures / config.unhealthy.failures).clamp(1, 63);
        opened_s.saturating_add((1 << times).min(config.max_breaker_sec)) >= now_s
    }

    fn failed(&mut self, config: &Config, now_s: u64) {
        self.failures += 1;
        self.successes = 0;
        if self.failures.is_multiple_of(config.unhealthy.failures) {
            self.opened = Some((now_s, now_s.saturating_add(config.max_breaker_sec)));
        }
    }

    /// Whether it is closed permanently.
    fn succeeded(&mut self, config: &Config) -> bool {
        self.successes += 1;
        self.successes >= config.healthy.successes
    }
}

struct ApiBreaker {
    config: Config,
    breakers: Arc<Breakers>,
}

fn key(ctx: &Context) -> Vec<u8> {
    crate::shared::quota::bounded([&*ctx.host_name(), &ctx.uri].concat())
}

/// The status of the last attempt on a node; None if no node was queried.
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
    sigma_plugin_kit::clock::process_ms() / 1000
}

impl Plugin for ApiBreaker {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let (config, now_s) = (&self.config, now_s());
        let open = self.breakers.0.peek(&key(ctx), 0, |slot| slot.value.is_open(config, now_s));
        if open != Some(true) {
            return Step::Next;
        }
        let Some(body) = &config.break_response_body else { return Step::status(config.break_response_code) };
        let mut reply = Reply::new(config.break_response_code);
        if let Some(LastFields(fields)) = &config.break_response_headers {
            reply = fields.added_to(reply, ctx);
        }
        reply.text(body.as_bytes()).into()
    }

    fn log(&self, ctx: &mut Context, _env: &Env<'_>) {
        let Some(status) = upstream_status(ctx) else { return };
        let (key, breakers, config) = (key(ctx), &self.breakers.0, &self.config);
        if config.unhealthy.http_statuses.contains(&status) {
            breakers.with(&key, 0, |slot| slot.value.failed(config, now_s()));
        } else if config.healthy.http_statuses.contains(&status) {
            let closed = breakers.peek(&key, 0, |slot| slot.value.succeeded(config));
            if closed == Some(true) {
                breakers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, entry, refusal};
    use sigma_plugin::address::NodeAddr;
    use sigma_plugin::record::Attempt;

    #[test]
    fn open_times_double_up_to_the_longest() {
        let config: Config = serde_json::from_value(json!({
            "break_response_code": 500, "max_breaker_sec": 6,
            "unhealthy": {"http_statuses": [500], "failures": 2}, "healthy": {"http_statuses": [200], "successes": 2}
        }))
        .unwrap();
        let mut breaker = Breaker::default();
        // After so many failures at second 100, the last second at which it is open.
        for (failures, last_s) in
            [(1, None), (2, Some(102)), (3, Some(102)), (4, Some(104)), (5, Some(104)), (6, Some(105))]
        {
            breaker.failed(&config, 100);
            let open: Vec<u64> = (100..120).filter(|now_s| breaker.is_open(&config, *now_s)).collect();
            assert_eq!(open.last().copied(), last_s, "{failures}");
        }
    }

    fn answered(case: &mut Case, status: u16) {
        let attempt = Attempt {
            addr: NodeAddr::Tcp(([127, 0, 0, 1], 1).into()),
            host: String::new(),
            began: None,
            reused: false,
            version: None,
            linked_ms: None,
            status,
            connect_ms: None,
            sent_ms: None,
            header_ms: None,
            carried: None,
            response_ms: None,
        };
        case.ctx.record.attempts = vec![attempt];
        case.ctx.record.status = status;
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
    fn replies_of_the_gateway_do_not_count() {
        let entry =
            entry("api-breaker", json!({"break_response_code": 502, "unhealthy": {"failures": 1}})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
        case.ctx.record.status = 500;
        case.log(&entry);
        assert!(case.run(&entry, Phase::Access).is_none());
        answered(&mut case, 0);
        case.ctx.record.status = 500;
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
            "`a b` is not the name of a header field",
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
