//! `ext-plugin-pre-req` and `ext-plugin-post-req`: the runner decides about requests, before all other plugins or
//! after them.

use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{HeaderId, is_authority};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, ResponseStep,
    Slot, Step,
};
use sigma_plugin_kit::changed_body::change_head;

use crate::caller::{BODY_MAX, Caller, resident, variable};
use crate::client::{Call, Event, Failure, Outcome};
use crate::config::Fields;
use crate::fields::{self, Field, arguments, checked, is_kept};
use crate::messages::{
    Entry, InfoRequest, Message, RequestCall, RequestReply, Rewrite, request_call, request_reply,
};

/// The plugin before all others.
pub(crate) static EXT_PLUGIN_PRE_REQ: Descriptor = Descriptor {
    name: "ext-plugin-pre-req",
    priority: 12_000,
    example: include_str!("ext-plugin-pre-req/example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    guards: true,
    identifies: true,
    names_persons: false,
    build: |build| Ok(Arc::new(PreReq(Arc::new(RequestFilter::new(build)?)))),
    resident: Some(resident),
    ..Descriptor::of::<PreReqConfig>()
};

/// The plugin after all others.
pub(crate) static EXT_PLUGIN_POST_REQ: Descriptor = Descriptor {
    name: "ext-plugin-post-req",
    priority: -3_000,
    example: include_str!("ext-plugin-post-req/example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    identifies: true,
    names_persons: false,
    build: |build| Ok(Arc::new(PostReq(Arc::new(RequestFilter::new(build)?)))),
    resident: Some(resident),
    ..Descriptor::of::<PostReqConfig>()
};

/// Passes requests to plugins in Python, Go or Java, before all other plugins run.
///
/// The setting `ext-plugin` starts the runner, a program that contains these plugins. The gateway sends it the method,
/// the path, the arguments and the fields of each request. Variables and a body of at most 16 MB follow if a plugin
/// reads them. The runner responds to the client itself, or changes path, arguments, fields and body for the node, and
/// fields of the response. Fields that the runner sets for the node cannot come from the client.
///
/// Each worker has its own connections to the runner, and at most 1,024 calls at a time. A runner that does not respond
/// within 60 s has failed. A cache treats the request as one of a user without a name, since the runner may identify
/// users.
#[derive(Deserialize, JsonSchema)]
struct PreReqConfig {
    #[serde(flatten)]
    #[expect(dead_code, reason = "the instance reads these fields by themselves")]
    fields: Fields,
}

/// Passes requests to plugins in Python, Go or Java, after all other plugins have run.
///
/// It works as `ext-plugin-pre-req`, and sees the changes of all other plugins. `$consumer_name` has the name of the
/// authenticated consumer.
#[derive(Deserialize, JsonSchema)]
struct PostReqConfig {
    #[serde(flatten)]
    #[expect(dead_code, reason = "the instance reads these fields by themselves")]
    fields: Fields,
}

impl Configuration for PreReqConfig {}

impl Configuration for PostReqConfig {}

struct PreReq(Arc<RequestFilter>);

struct PostReq(Arc<RequestFilter>);

impl Plugin for PreReq {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        Arc::clone(&self.0).begin(Slot::from(self), ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        add_response_fields(Slot::from(self), ctx)
    }
}

impl Plugin for PostReq {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        Arc::clone(&self.0).begin(Slot::from(self), ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        add_response_fields(Slot::from(self), ctx)
    }
}

/// Fields of the runner for the response, from whatever source it comes.
struct ResponseFields(Vec<Field>);

fn add_response_fields(slot: Slot, ctx: &mut Context) -> ResponseStep {
    if let Some(ResponseFields(fields)) = ctx.take_kept(slot) {
        for (at, field) in fields.iter().enumerate() {
            let headers = &mut ctx.response.headers;
            let is_first = !fields[..at].iter().any(|known| known.name.eq_ignore_ascii_case(&field.name));
            // Cookies of node and runner have different names.
            if is_first && !field.name.eq_ignore_ascii_case("set-cookie") {
                headers.remove_name(field.name.as_bytes());
            }
            if let Some(value) = &field.value {
                headers.append(&field.name, value);
            }
        }
        // A response of another source may follow.
        ctx.keep(slot, ResponseFields(fields));
    }
    ResponseStep::Next
}

struct RequestFilter(Caller);

/// Changes of a runner whose fields are sound.
struct Changes {
    target: Option<Vec<u8>>,
    host: Option<Vec<u8>>,
    headers: Vec<Field>,
    response: Vec<Field>,
    body: Option<Vec<u8>>,
}

impl RequestFilter {
    fn new(build: &Build<'_>) -> Result<RequestFilter, String> {
        Caller::new(build).map(RequestFilter)
    }

    fn begin(self: Arc<RequestFilter>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        match self.0.call(env, |id| message(ctx, id)) {
            Ok(call) => Step::wait(call.begin(), move |outcome, ctx, _| self.go_on(slot, outcome, ctx)),
            Err(failure) => self.failed(&failure),
        }
    }

    /// Continues a call with the runner's question or decision.
    fn go_on(self: Arc<RequestFilter>, slot: Slot, outcome: Outcome, ctx: &mut Context) -> Step {
        match outcome {
            Err(failure) => self.failed(&failure),
            Ok(Event::InfoRequest(call, InfoRequest::Variable(name))) => {
                let value = variable(ctx, &name);
                self.reply(slot, call, value.as_deref())
            }
            Ok(Event::InfoRequest(call, InfoRequest::ResponseBody)) => self.reply(slot, call, None),
            Ok(Event::InfoRequest(call, InfoRequest::RequestBody)) => Step::ReadBody {
                limit: BODY_MAX,
                then: Box::new(move |ctx, _, read| match read {
                    BodyRead::Whole => self.reply(slot, call, ctx.body.as_deref()),
                    BodyRead::TooLarge => self.failed(&too_large("be sent to the runner")),
                }),
            },
            Ok(Event::Reply(received)) => match request_reply(&received.payload) {
                Ok(reply) => self.decide(slot, reply, ctx),
                Err(_) => self.failed(&invalid("it is not a valid FlatBuffers table")),
            },
        }
    }

    fn reply(self: Arc<RequestFilter>, slot: Slot, call: Call, result: Option<&[u8]>) -> Step {
        Step::wait(call.reply(result), move |outcome, ctx, _| self.go_on(slot, outcome, ctx))
    }

    fn failed(&self, failure: &Failure) -> Step {
        self.0.failed(failure).map_or(Step::Next, Step::from)
    }

    fn decide(self: Arc<RequestFilter>, slot: Slot, reply: RequestReply<'_>, ctx: &mut Context) -> Step {
        match reply {
            RequestReply::Unchanged => Step::Next,
            RequestReply::Stop { status, headers, body } => self.stop(status, &headers, body).into(),
            RequestReply::Rewrite(rewrite) => match changes(&rewrite, ctx) {
                Err(reason) => self.failed(&invalid(&reason)),
                // The new body replaces the old one once that was read.
                Ok(changes) if changes.body.is_some() && ctx.body.is_none() => Step::ReadBody {
                    limit: BODY_MAX,
                    then: Box::new(move |ctx, _, read| match read {
                        BodyRead::Whole => apply(slot, changes, ctx),
                        BodyRead::TooLarge => self.failed(&too_large("be replaced")),
                    }),
                },
                Ok(changes) => apply(slot, changes, ctx),
            },
        }
    }

    /// Returns the runner's response. A request that is to be stopped never continues: invalid parts are omitted.
    fn stop(&self, status: u16, headers: &[Entry<'_>], body: &[u8]) -> Reply {
        let status = match status {
            0 => 200,
            200..=599 => status,
            other => {
                self.0.log(&format!("the runner responds with the status {other}; the client gets 503"));
                503
            }
        };
        let mut reply = Reply::new(status).because("an external plugin responded");
        for entry in headers {
            match checked(std::slice::from_ref(entry)) {
                Ok(fields) => {
                    for Field { name, value } in fields {
                        reply = reply.header(name, value.unwrap_or_default());
                    }
                }
                Err(reason) => self.0.log(&format!("ignored a field of the runner's response: {reason}")),
            }
        }
        if body.is_empty() { reply } else { reply.text(body) }
    }
}

fn invalid(reason: &str) -> Failure {
    Failure(format!("the runner's reply is invalid: {reason}"))
}

fn too_large(purpose: &str) -> Failure {
    Failure(format!("the request body exceeds {BODY_MAX} bytes and cannot {purpose}"))
}

/// Encodes a request for the runner.
fn message(ctx: &Context, id: u32) -> Message {
    let source = match ctx.client.addr.map(|addr| addr.to_canonical()) {
        Some(IpAddr::V4(addr)) => addr.octets().to_vec(),
        Some(IpAddr::V6(addr)) => addr.octets().to_vec(),
        None => Vec::new(),
    };
    let (fields, arguments) = (fields::of_request(ctx), arguments(ctx));
    let headers: Vec<Entry<'_>> =
        fields.iter().map(|(name, value)| Entry { name, value: Some(&value[..]) }).collect();
    let args: Vec<Entry<'_>> =
        arguments.iter().map(|(name, value)| Entry { name, value: value.as_deref() }).collect();
    request_call(&RequestCall {
        id,
        source: &source,
        method: ctx.request.method_token(),
        path: fields::path(ctx),
        args: &args,
        headers: &headers,
    })
}

/// Checks the changes of a runner.
///
/// # Errors
/// Returns an error message if one of them would break a message. None of them is made then.
fn changes(rewrite: &Rewrite<'_>, ctx: &Context) -> Result<Changes, String> {
    let mut headers = checked(&rewrite.headers)?;
    let is_host = |field: &Field| HeaderId::of(field.name.as_bytes()) == HeaderId::Host;
    let host = headers.iter().rfind(|field| is_host(field)).and_then(|field| field.value.clone());
    if let Some(host) = host.as_deref().filter(|host| !is_authority(host)) {
        return Err(format!("`{}` is not a host", host.escape_ascii()));
    }
    headers.retain(|field| !is_host(field));
    let is_foreign = |field: &&Field| field.value.is_some() && ctx.is_reserved(field.name.as_bytes());
    if let Some(field) = headers.iter().find(is_foreign) {
        return Err(format!("field {} belongs to another plugin of the route", field.name));
    }
    let mut response = checked(&rewrite.resp_headers)?;
    response.retain(|field| !is_kept(&field.name));
    let path = rewrite.path.filter(|path| !path.is_empty());
    let is_moved = path.is_some() || !rewrite.args.is_empty();
    let target = is_moved.then(|| fields::target(ctx, path, &rewrite.args));
    let body = (!rewrite.body.is_empty()).then(|| rewrite.body.to_vec());
    Ok(Changes { target, host, headers, response, body })
}

fn apply(slot: Slot, changes: Changes, ctx: &mut Context) -> Step {
    let Changes { target, host, headers, response, body } = changes;
    if let Some(target) = target {
        ctx.target = target;
    }
    if let Some(host) = host {
        ctx.host = Some(host);
    }
    if body.is_some() {
        // The fields of the old body; the runner may set new ones.
        change_head(&mut ctx.request.headers);
        ctx.body = body;
    }
    for Field { name, value } in headers {
        // Neither another spelling nor a trailer of the client may say something else. The next call of the runner, and
        // scripts, may change it.
        ctx.claim(OwnedField::shared(name.as_str()));
        ctx.request.headers.remove_name(name.as_bytes());
        if let Some(value) = value {
            ctx.request.headers.append(&name, &value);
        }
    }
    if !response.is_empty() {
        ctx.keep(slot, ResponseFields(response));
    }
    Step::Next
}
