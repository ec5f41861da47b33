//! `compose`: one response made of the responses of several requests to the gateway itself.

mod plan;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::HeaderId;
use sigma_plugin::outbound::ServiceResponse;
use sigma_plugin::step::CallResult;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Problem;

use crate::shared::subrequest::fields_of_client;
use plan::{CallConf, CallResults, Common, Planned, planned};
use sigma_plugin_kit::body_template::Template;
use sigma_plugin_kit::json_body::{self, Unread};

/// The plugin.
pub(crate) static COMPOSE: Descriptor = Descriptor {
    name: "compose",
    priority: 502,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(Compose(Arc::new(Composition::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// JSON values of one response.
const MOST_VALUES: usize = 250_000;

/// Composes one response from several requests to this gateway itself.
///
/// Each call goes through routing and the plugins of its route, as if the client had sent it over its own connection.
/// It has the fields of the client's request, except fields about the body. Independent calls run at the same time; a
/// call that uses the response of another one (`${calls.user.id}`) waits for it. A call succeeds with a 2xx and JSON.
/// The objects of all calls are merged; of equal members the call that is listed last wins. `group` puts the result of
/// a call into its own member, and `template` transforms the whole result. `X-Sigma-Completed: false` means that some
/// calls have failed and their parts are missing. Without any part, or without a `required` one, the response is 502,
/// or the status from 400 to 499 of the required call. The request's own body is not read. A called route may itself
/// be composed, four levels deep.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Config {
    /// The calls.
    #[schemars(length(min = 1, max = 64))]
    calls: Vec<CallConf>,
    /// Timeout of each call in milliseconds.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Largest response of a call and largest output of a template, in bytes. A call with a larger response has
    /// failed.
    #[serde(default = "max_body_size")]
    #[schemars(range(min = 1))]
    max_body_size: u64,
    /// The body of the response, as a template of `body-transformer`: responses are in `calls`, variables in
    /// `_ctx.var`.
    #[schemars(length(min = 1))]
    template: Option<String>,
    /// The media type of the response.
    #[serde(default = "content_type")]
    #[schemars(regex(pattern = r"^[!-~ ]+$"))]
    content_type: String,
}

fn timeout() -> u64 {
    3000
}

fn max_body_size() -> u64 {
    1 << 20
}

fn content_type() -> String {
    "application/json".to_owned()
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        planned(&self.calls)?;
        self.template
            .as_deref()
            .map(Template::parse)
            .transpose()
            .map_err(|reason| format!("template: {reason}"))?;
        Ok(())
    }
}

fn warnings(conf: &Value) -> Vec<Problem> {
    let calls = Vec::<CallConf>::deserialize(&conf["calls"]).unwrap_or_default();
    let of_call = |(n, call): (usize, &CallConf)| {
        let problems = call.unknown().into_iter();
        problems
            .map(move |reason| Problem::new(format!("calls[{n}]"), "unknown-variable", reason))
            .collect::<Vec<_>>()
    };
    calls.iter().enumerate().flat_map(of_call).collect()
}

struct Compose(Arc<Composition>);

struct Composition {
    plan: Vec<Planned>,
    /// The places in `plan`, in the order in which calls are listed.
    listed: Vec<usize>,
    template: Option<Template>,
    timeout_ms: u64,
    limit: usize,
    content_type: String,
}

impl Composition {
    fn new(build: &Build<'_>) -> Result<Composition, String> {
        let config: Config = build.config()?;
        let plan = planned(&config.calls)?;
        let place = |call: &CallConf| plan.iter().position(|planned| planned.name == call.name);
        Ok(Composition {
            listed: config.calls.iter().filter_map(place).collect(),
            plan,
            template: config.template.as_deref().map(Template::parse).transpose()?,
            timeout_ms: config.timeout,
            limit: usize::try_from(config.max_body_size).unwrap_or(usize::MAX),
            content_type: config.content_type,
        })
    }
}

impl Plugin for Compose {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let composition = Arc::clone(&self.0);
        let fields = fields_of_client(ctx);
        let common = Common { fields, timeout_ms: composition.timeout_ms, limit: composition.limit };
        let states = composition.plan.iter().map(|_| State::Waits).collect();
        Box::new(RunningComposition { composition, common, states, results: Map::new() }).next(ctx)
    }
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Asked,
    Succeeded,
    /// It failed; with the status of its response, or 0.
    Failed(u16),
}

/// A composition under way.
struct RunningComposition {
    composition: Arc<Composition>,
    common: Common,
    states: Vec<State>,
    /// Results of calls, by name.
    results: Map<String, Value>,
}

impl RunningComposition {
    /// Makes all calls that can be made now, or answers if none is left.
    fn next(mut self: Box<RunningComposition>, ctx: &mut Context) -> Step {
        let composition = Arc::clone(&self.composition);
        let (mut calls, mut asked_for) = (Vec::new(), Vec::new());
        // Each comes after those that it needs, so one that cannot be made fails those behind it in this pass.
        for (at, planned) in composition.plan.iter().enumerate() {
            if self.states[at] != State::Waits {
                continue;
            }
            let needed = || planned.after.iter().map(|place| self.states[*place]);
            if needed().any(|state| matches!(state, State::Failed(_))) {
                self.states[at] = State::Failed(0);
            } else if needed().all(|state| state == State::Succeeded) {
                match planned.call(&CallResults { ctx, results: &self.results }, &self.common) {
                    Ok(call) => {
                        calls.push(call);
                        asked_for.push(at);
                        self.states[at] = State::Asked;
                    }
                    Err(reason) => self.fail(at, 0, &reason),
                }
            }
        }
        let misses_required =
            composition.plan.iter().zip(&self.states).find_map(|(planned, state)| match state {
                State::Failed(status) if planned.required => Some((planned, *status)),
                _ => None,
            });
        if let Some((planned, status)) = misses_required {
            let status = if (400..500).contains(&status) { status } else { 502 };
            return refused(status, &format!("the call {} failed", planned.name));
        }
        if calls.is_empty() {
            return self.respond(ctx);
        }
        let then = move |ctx: &mut Context, _: &Env<'_>, asked: Vec<CallResult>| {
            asked_for.into_iter().zip(asked).for_each(|(at, asked)| self.take(at, asked));
            self.next(ctx)
        };
        Step::Ask { calls, then: Box::new(then) }
    }

    fn take(&mut self, at: usize, asked: CallResult) {
        let status = asked.as_ref().map_or(0, |answer| answer.status);
        match asked.map_err(|error| error.0).and_then(read) {
            Ok(value) => {
                self.states[at] = State::Succeeded;
                self.results.insert(self.composition.plan[at].name.clone(), value);
            }
            Err(reason) => self.fail(at, status, &reason),
        }
    }

    fn fail(&mut self, at: usize, status: u16, reason: &str) {
        tracing::debug!(call = %self.composition.plan[at].name, status, reason, "a call of a composition failed");
        self.states[at] = State::Failed(status);
    }

    fn respond(&self, ctx: &mut Context) -> Step {
        if self.results.is_empty() {
            return refused(502, "all calls failed");
        }
        let composition = &self.composition;
        let body = match &composition.template {
            Some(template) => {
                let known = CallResults { ctx, results: &self.results };
                match known.text(template, self.common.limit) {
                    Ok(body) => body,
                    Err(reason) => {
                        tracing::warn!(reason, "the template of a composition returns no response");
                        return refused(500, "the template of the composition returns no response");
                    }
                }
            }
            None => self.composition.merged(&self.results),
        };
        let complete = self.states.iter().all(|state| *state == State::Succeeded);
        Reply::new(200)
            .header(HeaderId::ContentType.name(), composition.content_type.clone())
            .header("X-Sigma-Completed", if complete { "true" } else { "false" })
            .text(body)
            .into()
    }
}

impl Composition {
    /// Returns the results of calls as one object.
    fn merged(&self, results: &Map<String, Value>) -> String {
        let mut merged = Map::new();
        for planned in self.listed.iter().map(|place| &self.plan[*place]) {
            match (results.get(&planned.name), &planned.group) {
                (None, _) => {}
                (Some(value), Some(group)) => drop(merged.insert(group.clone(), value.clone())),
                (Some(Value::Object(members)), None) => merged.extend(members.clone()),
                (Some(value), None) => drop(merged.insert(planned.name.clone(), value.clone())),
            }
        }
        format!("{}\n", Value::Object(merged))
    }
}

/// Returns the JSON value of a call's response.
fn read(answer: ServiceResponse) -> Result<Value, String> {
    if !(200..300).contains(&answer.status) {
        return Err(format!("the response has the status {}", answer.status));
    }
    json_body::read(&answer.body, MOST_VALUES).map_err(|unread| match unread {
        Unread::TooMany => format!("it has more than {MOST_VALUES} values"),
        Unread::Invalid(reason) => format!("it is not JSON: {reason}"),
    })
}

fn refused(status: u16, reason: &str) -> Step {
    let reply = Reply::new(status).header(HeaderId::ContentType.name(), "application/json");
    reply.json(&json!({ "error_msg": reason })).into()
}
