//! `fault-injection`: delays and answers on purpose.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::expr::Expr;
use sigma_schema::template::Template;

use sigma_plugin_kit::response_fields::Fields;

/// The plugin.
pub(crate) static FAULT_INJECTION: Descriptor = Descriptor {
    name: "fault-injection",
    priority: 11000,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    variables: &[
        VariableField::shown("abort.vars", VariableForm::Condition),
        VariableField::shown("delay.vars", VariableForm::Condition),
        VariableField::shown("abort.body", VariableForm::Template),
        VariableField::shown("abort.headers.*", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(FaultInjection(Arc::new(build.config()?)))),
    ..Descriptor::of::<Faults>()
};

/// Delays requests or responds with a fault, to test clients.
///
/// Both apply to a share of the requests, or to requests whose variables match. With both, the delay is first.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
struct Faults {
    /// Responds to requests with a fault.
    abort: Option<Abort>,
    /// Delays requests.
    delay: Option<Delay>,
}

impl Configuration for Faults {}

#[derive(Deserialize, JsonSchema)]
struct Abort {
    /// Status.
    #[schemars(range(min = 200, max = 999))]
    http_status: u16,
    /// Body, a text with variables.
    #[schemars(length(min = 0))]
    body: Option<Template>,
    /// Header fields; their values are texts with variables.
    headers: Option<Fields>,
    #[serde(flatten)]
    share: Share,
}

#[derive(Deserialize, JsonSchema)]
struct Delay {
    /// Delay in seconds.
    #[schemars(range(min = 0))]
    duration: f64,
    #[serde(flatten)]
    share: Share,
}

/// The affected requests.
#[derive(Deserialize, JsonSchema)]
struct Share {
    /// Share of the requests in percent. Default: all.
    #[schemars(range(min = 0, max = 100))]
    percentage: Option<u64>,
    /// Expressions on variables; one must match.
    #[schemars(length(max = 20))]
    vars: Option<Vec<Expr>>,
}

impl Share {
    fn has(&self, ctx: &Context, env: &Env<'_>) -> bool {
        let sampled = self.percentage.is_none_or(|percentage| env.local.random() % 100 < percentage);
        sampled && self.vars.as_ref().is_none_or(|vars| vars.iter().any(|vars| vars.may_hold(ctx)))
    }
}

impl Abort {
    fn step(&self, ctx: &Context) -> Step {
        let mut reply = Reply::new(self.http_status);
        if let Some(fields) = &self.headers {
            reply = fields.added_to(reply, ctx);
        }
        match &self.body {
            Some(body) => reply.text(body.rendered(ctx)).into(),
            None => reply.into(),
        }
    }
}

struct FaultInjection(Arc<Faults>);

impl Plugin for FaultInjection {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Faults { abort, delay } = &*self.0;
        // No timer goes on for years.
        let duration = |delay: &Delay| Duration::from_secs_f64(delay.duration.min(1e8));
        let delay = delay.as_ref().filter(|delay| delay.share.has(ctx, env)).map(duration);
        let abort = abort.as_ref().filter(|abort| abort.share.has(ctx, env));
        let Some(delay) = delay.filter(|delay| !delay.is_zero()) else {
            return abort.map_or(Step::Next, |abort| abort.step(ctx));
        };
        let faults = abort.map(|_| Arc::clone(&self.0));
        Step::wait(async move { tokio::time::sleep(delay).await }, move |(), ctx, _| {
            let abort = faults.as_ref().and_then(|faults| faults.abort.as_ref());
            abort.map_or(Step::Next, |abort| abort.step(ctx))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, entry, refusal};

    #[test]
    fn shares_and_conditions() {
        // How many of 1000 requests get a response.
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
    fn repeated_values_are_aborted_by_any_of_them() {
        let entry = |name: &str| {
            let conf = json!({"abort": {"http_status": 403, "vars": [[[name, "==", "admin"]]]}});
            entry("fault-injection", conf).unwrap()
        };
        let check = |name: &str, target: &str, fields: &str, expected: bool| {
            let mut case = Case::new(&format!("GET {target} HTTP/1.1\nHost: h\n{fields}"));
            let found = case.run(&entry(name), Phase::Rewrite).is_some();
            assert_eq!(found, expected, "{name} {target} {fields}");
        };
        check("arg_role", "/?role=x&role=admin", "", true);
        check("arg_role", "/?role=admin&role=x", "", true);
        check("arg_role", "/?role=x&role=y", "", false);
        check("http_x_role", "/", "X-Role: x\nX-Role: admin", true);
        check("cookie_role", "/", "Cookie: role=x; role=admin", true);
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
