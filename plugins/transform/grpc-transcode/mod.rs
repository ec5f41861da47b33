//! `grpc-transcode`: requests in JSON become calls of gRPC, and the messages that answer them JSON.

mod config;
mod definitions;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod http_rule;
mod input;
mod output;
mod response;
mod size;
mod status;
mod stream;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use sigma_config::resources::Proto;
use sigma_http::{HeaderId, Method};
use sigma_plugin::record::Source;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    BodyFilter, Build, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, ResponseStep, Slot,
    Step, Transform,
};
use sigma_schema::described::schema_of;
use sigma_schema::proto::http_rule::HttpRule;

use self::config::Config;
use self::definitions::Definition;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::fuzzing::grpc_transcode;
use self::http_rule::{Captures, Rules};
use self::output::Form;
use self::response::{Lines, Whole};
use self::stream::{Bound, Messages};
use crate::shared::arguments;
use sigma_plugin_kit::budget::{Budget, WorkerBytes};
use sigma_plugin_kit::changed_body::{change_head, replace_request_body};
use sigma_plugin_kit::json_body::{self, Unread};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::response_body::Encoding;

/// The plugin.
pub(crate) static GRPC_TRANSCODE: Descriptor = Descriptor {
    name: "grpc-transcode",
    priority: 506,
    example: include_str!("example.md"),
    owned_fields: Some(|_| vec![OwnedField::shared("grpc-timeout")]),
    phases: PhaseSet::of(&[Phase::Access, Phase::RequestFilter, Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(GrpcTranscode(Arc::new(Transcoder::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// State that the instances of one configuration share.
struct Transcoder {
    config: Config,
    /// The service; or the reason why it is missing.
    service: Result<Service, String>,
    form: Form,
    budget: Budget,
}

/// A service of a definition.
struct Service {
    /// Keeps the definition for those who name it later.
    _definition: Arc<Definition>,
    pool: DescriptorPool,
    method: Option<MethodDescriptor>,
    rules: Option<Rules>,
}

/// A call that a request became.
#[derive(Clone)]
struct Call {
    method: MethodDescriptor,
    /// The field of the response that is shown alone.
    field: Option<Box<str>>,
    /// The messages of the response have no frames, since another plugin says so.
    is_bare: bool,
}

impl Call {
    fn of(found: &Found, ctx: &Context) -> Call {
        Call {
            method: found.method.clone(),
            field: found.rule.as_ref().and_then(|(rule, _)| rule.answer.clone()),
            is_bare: ctx.request.headers.find(b"X-Grpc-Web").is_some(),
        }
    }

    fn output(&self) -> MessageDescriptor {
        self.method.output()
    }
}

impl Transcoder {
    fn new(build: &Build<'_>) -> Result<Transcoder, String> {
        let config: Config = build.config()?;
        let service = Transcoder::service(build, &config);
        if let Err(reason) = &service {
            tracing::error!("grpc-transcode at {}: proto load error: {reason}", build.resource);
        }
        Ok(Transcoder { form: config.form(), service, budget: Budget::of(build)?, config })
    }

    fn service(build: &Build<'_>, config: &Config) -> Result<Service, String> {
        let id = &config.proto_id;
        let proto = build.proto(id).and_then(|proto| proto.share::<Proto>());
        let proto = proto.ok_or_else(|| format!("there is no proto [{id}]"))?;
        let definition = definitions::definition(build.node, &proto);
        let pool = Result::clone(&definition)?;
        let service = pool.get_service_by_name(&config.service);
        let wanted = config.method.as_deref();
        let method = service
            .as_ref()
            .and_then(|service| service.methods().find(|method| Some(method.name()) == wanted));
        let rules = service.filter(|_| config.http_rules).map(|service| Rules::of(&service)).transpose()?;
        Ok(Service { _definition: definition, pool, method, rules })
    }

    /// Returns the method for a request.
    fn find(&self, service: &Service, ctx: &Context) -> Result<Found, Refusal> {
        let uri = String::from_utf8_lossy(&ctx.uri);
        let ruled = service.rules.as_ref().and_then(|rules| rules.find(ctx.request.method_token(), &uri));
        if let Some((rule, captures)) = ruled {
            return Ok(Found { method: rule.method.clone(), rule: Some((rule, captures)) });
        }
        let unknown = || match service.rules {
            Some(_) if self.config.method.is_none() => {
                Refusal::new(404, "no annotation matches this request")
            }
            _ => Refusal::new(503, "the service has no such method"),
        };
        service.method.clone().map(|method| Found { method, rule: None }).ok_or_else(unknown)
    }

    /// Returns the message for a request.
    fn message(&self, found: Found, ctx: &Context) -> Result<DynamicMessage, Refusal> {
        let input = match found.rule {
            Some((rule, captures)) => {
                let body = if http_rule::takes_body(&rule) { self.json(ctx)? } else { Value::Null };
                let input = http_rule::input(&rule, body, self.query(ctx)?, captures);
                input.map_err(|reason| Refusal::new(400, reason))?
            }
            None => self.input(ctx)?,
        };
        input::message(&found.method.input(), &input).map_err(|input::Unfit(reason)| {
            tracing::debug!("grpc-transcode: cannot create a message: {reason}");
            Refusal::new(400, "cannot convert the request to a message")
        })
    }

    /// Whether a request is a stream of messages.
    fn is_stream(found: &Found, ctx: &Context) -> bool {
        found.method.is_client_streaming()
            && match &found.rule {
                Some((rule, _)) => http_rule::takes_body(rule),
                None => {
                    let is_of = |media_type: &&[u8]| is_of_type(ctx, media_type);
                    STREAMED.iter().any(is_of) && takes_object(ctx.request.method)
                }
            }
    }

    /// Returns the input of a message without annotations.
    fn input(&self, ctx: &Context) -> Result<Value, Refusal> {
        let method = ctx.request.method;
        if is_of_type(ctx, JSON) && takes_object(method) {
            match json_body::read(body(ctx), self.config.max_body_values) {
                Ok(object @ Value::Object(_)) => return Ok(object),
                Err(Unread::TooMany) => return Err(Refusal::new(413, "the body has too many values")),
                // The service would get a message that the client never meant. Forms pass, as in APISIX.
                _ if body(ctx).trim_ascii_start().starts_with(b"{") => {
                    return Err(Refusal::new(400, "the body is not JSON"));
                }
                _ => {}
            }
        }
        match method {
            Method::Post => self.arguments(body(ctx)),
            _ => self.query(ctx),
        }
    }

    fn json(&self, ctx: &Context) -> Result<Value, Refusal> {
        match body(ctx) {
            [] => Ok(Value::Null),
            body => json_body::read(body, self.config.max_body_values).map_err(|unread| match unread {
                Unread::TooMany => Refusal::new(413, "the body has too many values"),
                Unread::Invalid(_) => Refusal::new(400, "the body is not JSON"),
            }),
        }
    }

    fn query(&self, ctx: &Context) -> Result<Value, Refusal> {
        self.arguments(ctx.request.query().unwrap_or_default())
    }

    fn arguments(&self, text: &[u8]) -> Result<Value, Refusal> {
        let read = arguments::read(text, self.config.max_body_values);
        read.map_err(|_| Refusal::new(400, "the arguments are malformed"))
    }

    /// Turns the request into its call, once its body was read.
    fn transcode(&self, slot: Slot, found: Found, ctx: &mut Context) -> Step {
        let call = Call::of(&found, ctx);
        let message = match self.message(found, ctx) {
            Ok(made) => made,
            Err(refusal) => return refusal.into(),
        };
        let Some(frame) = framed(&message) else {
            return Refusal::new(413, "the message exceeds the maximum length").into();
        };
        replace_request_body(ctx, frame);
        self.address(slot, call, ctx);
        Step::Next
    }

    /// Makes the request a call whose messages are made while its body passes.
    fn stream(&self, slot: Slot, found: Found, ctx: &mut Context) -> Step {
        let query = match found.rule.is_some().then(|| self.query(ctx)).transpose() {
            Ok(query) => query.unwrap_or_default(),
            Err(refusal) => return refusal.into(),
        };
        let call = Call::of(&found, ctx);
        let (rule, captures) = found.rule.unzip();
        let bound = Bound { query, captures: captures.unwrap_or_default() };
        ctx.keep(slot, Streamed { input: found.method.input(), rule, bound });
        self.address(slot, call, ctx);
        Step::Next
    }

    /// Turns the head of the request into the head of a call.
    fn address(&self, slot: Slot, call: Call, ctx: &mut Context) {
        ctx.request.set_method("POST");
        ctx.target =
            format!("/{}/{}", call.method.parent_service().full_name(), call.method.name()).into_bytes();
        let headers = &mut ctx.request.headers;
        headers.set(HeaderId::ContentType, b"application/grpc");
        ctx.is_translated = true;
        // Compressed messages cannot be read here.
        headers.remove_name(b"grpc-encoding");
        headers.remove_name(b"grpc-accept-encoding");
        if let Some(timeout) = self.config.timeout() {
            headers.replace("grpc-timeout", timeout.as_bytes());
        }
        ctx.keep(slot, call);
    }
}

/// The method for a request, and its annotation, with the fields in the path.
struct Found {
    method: MethodDescriptor,
    rule: Option<(Arc<HttpRule>, Captures)>,
}

/// The parts for the messages of a streaming request.
struct Streamed {
    input: MessageDescriptor,
    rule: Option<Arc<HttpRule>>,
    bound: Bound,
}

/// Media types of bodies that may be a stream.
const STREAMED: [&[u8]; 5] =
    [JSON, b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/json-seq"];

/// Whether the type of a request's body is this one, or says so somewhere.
fn is_of_type(ctx: &Context, media_type: &[u8]) -> bool {
    let content_type = ctx.request.headers.get(HeaderId::ContentType).unwrap_or_default();
    content_type.windows(media_type.len()).any(|part| part.eq_ignore_ascii_case(media_type))
}

/// Whether the body of a request may be an object.
fn takes_object(method: Method) -> bool {
    matches!(method, Method::Post | Method::Put | Method::Patch)
}

const JSON: &[u8] = b"application/json";

fn body(ctx: &Context) -> &[u8] {
    ctx.body.as_deref().unwrap_or_default()
}

/// Bytes before a message: whether it is compressed, and its length.
const FRAME_HEAD_BYTES: usize = 5;

/// A message in its frame; None if it is too long for one.
fn framed(message: &DynamicMessage) -> Option<Vec<u8>> {
    let length = u32::try_from(message.encoded_len()).ok()?;
    let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + message.encoded_len());
    frame.push(0);
    frame.extend_from_slice(&length.to_be_bytes());
    // A vector grows as it has to.
    message.encode(&mut frame).ok()?;
    Some(frame)
}

/// A request that becomes no call.
struct Refusal {
    status: u16,
    reason: &'static str,
}

impl Refusal {
    fn new(status: u16, reason: &'static str) -> Refusal {
        Refusal { status, reason }
    }
}

impl From<Refusal> for Step {
    fn from(Refusal { status, reason }: Refusal) -> Step {
        sigma_plugin::Reply::new(status).because(reason).into()
    }
}

struct GrpcTranscode(Arc<Transcoder>);

/// The handling of the body of a response.
enum Showing {
    Messages(Call),
    /// The call failed; the field that says how in detail.
    Failure(Option<Vec<u8>>),
}

impl Plugin for GrpcTranscode {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let service = match &self.0.service {
            Ok(service) => service,
            Err(reason) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, "grpc-transcode: proto load error: {reason}");
                }
                // The node might serve the request as it is.
                return Refusal::new(503, "grpc-transcode has no proto").into();
            }
        };
        // The call of an earlier request of this exchange.
        let _ = ctx.take_kept::<_, Call>(self);
        if Encoding::of(&ctx.request.headers) != Encoding::Identity {
            return Refusal::new(415, "the body has a content coding").into();
        }
        let found = match self.0.find(service, ctx) {
            Ok(found) => found,
            Err(refusal) => return refusal.into(),
        };
        let (transcoder, slot) = (Arc::clone(&self.0), Slot::from(self));
        if Transcoder::is_stream(&found, ctx) {
            return transcoder.stream(slot, found, ctx);
        }
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => transcoder.transcode(slot, found, ctx),
            BodyRead::TooLarge => Refusal::new(413, "the body exceeds max_req_body_size").into(),
        };
        Step::ReadBody { limit: self.0.config.max_req_body_size, then: Box::new(then) }
    }

    fn request_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Streamed { input, rule, bound } = ctx.take_kept(self)?;
        let share = self.0.budget.share(Rc::clone(&env.local.part(Bodies::default).0));
        Some(Messages::new(Arc::clone(&self.0), input, rule, bound, share).filter())
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        // The state of an earlier node's response, which this response replaces.
        let _ = ctx.take_kept::<_, Showing>(self);
        let Some(call) = ctx.kept::<_, Call>(self).cloned() else { return ResponseStep::Next };
        if ctx.record.source != Source::Upstream || ctx.response.status >= 300 {
            return ResponseStep::Next;
        }
        let head = &mut ctx.response.headers;
        change_head(head);
        let status = head.find(status::STATUS).filter(|status| *status != b"0").map(<[u8]>::to_vec);
        let is_stream = call.method.is_server_streaming() && status.is_none();
        let media_type: &[u8] = if is_stream { b"application/x-ndjson" } else { JSON };
        head.set(HeaderId::ContentType, media_type);
        let showing = match status {
            Some(code) => {
                let details = head.find(status::DETAILS).map(<[u8]>::to_vec);
                ctx.response.status = status::http(&code);
                self.0.config.show_status_in_body.then_some(Showing::Failure(details))
            }
            None => Some(Showing::Messages(call)),
        };
        if let Some(showing) = showing {
            ctx.keep(self, showing);
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let service = self.0.service.as_ref().ok()?;
        match ctx.take_kept(self)? {
            Showing::Failure(details) => {
                let body = details.map(|details| self.0.failure(&service.pool, &details));
                Some(status::Body(body.unwrap_or_default()).filter())
            }
            Showing::Messages(call) => {
                let share = self.0.budget.share(Rc::clone(&env.local.part(Bodies::default).0));
                let transcoder = Arc::clone(&self.0);
                Some(match call.method.is_server_streaming() {
                    true => Lines::new(transcoder, call, share).filter(),
                    false => Whole::new(transcoder, call, share).filter(),
                })
            }
        }
    }
}

/// The bodies that one worker holds back.
#[derive(Default)]
struct Bodies(Rc<WorkerBytes>);
