//! `grpc-transcode`: requests in JSON become calls of gRPC, and the messages that answer them JSON.

mod answer;
mod config;
mod definitions;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod http_rule;
mod input;
mod output;
mod size;
mod status;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use sigma_config::described::schema_of;
use sigma_http::{HeaderId, Method};
use sigma_plugin::record::Source;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    BodyFilter, Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Step, Transform,
};

use self::answer::{Lines, Whole};
use self::config::Config;
use self::definitions::Definition;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::fuzzing::grpc_transcode;
use self::http_rule::Rules;
use self::output::Form;
use super::arguments;
use super::budget::{Budget, Held};
use super::response_body::Encoding;
use crate::json_body::{self, Unread};
use crate::log_throttle::LogThrottle;

/// The plugin.
pub(crate) static GRPC_TRANSCODE: Descriptor = Descriptor {
    name: "grpc-transcode",
    priority: 506,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(GrpcTranscode(Arc::new(Transcoder::new(build)?)))),
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
protos:
  - id: shop
    content: |
      syntax = "proto3";
      package shop;
      import "google/api/annotations.proto";
      service Orders {
        rpc Find(Query) returns (Order) {
          option (google.api.http) = { get: "/v1/orders/{id}" };
        }
      }
      message Query { int64 id = 1; }
      message Order { int64 id = 1; repeated string items = 2; }
routes:
  - uri: /find
    plugins: { grpc-transcode: { proto_id: shop, service: shop.Orders, method: Find } }
    upstream: { scheme: grpc, nodes: { "127.0.0.1:50051": 1 } }
  - uri: /v1/*
    plugins: { grpc-transcode: { proto_id: shop, service: shop.Orders, http_rules: true } }
    upstream: { scheme: grpc, nodes: { "127.0.0.1:50051": 1 } }
```

```console
$ curl -s http://127.0.0.1:9080/find -H 'Content-Type: application/json' -d '{"id": 7}'
{"id":0,"items":[]}
$ curl -s http://127.0.0.1:9080/v1/orders/7
{"id":0,"items":[]}
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/v1/nothing
404
```
"#;

/// What instances of one configuration share.
struct Transcoder {
    config: Config,
    /// What is called; or why nothing can be.
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
    /// The field of the answer that is shown alone.
    field: Option<Box<str>>,
    /// The messages of the answer have no frames, since another plugin says so.
    is_bare: bool,
}

impl Call {
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
        let proto = build.proto(id).ok_or_else(|| format!("there is no proto [{id}]"))?;
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

    /// The call that a request stands for, with its message.
    fn call(&self, service: &Service, ctx: &Context) -> Result<(Call, DynamicMessage), Refusal> {
        let is_bare = ctx.request.headers.find(b"X-Grpc-Web").is_some();
        let uri = String::from_utf8_lossy(&ctx.uri);
        let ruled = service.rules.as_ref().and_then(|rules| rules.find(ctx.request.method_token(), &uri));
        let (call, input) = match ruled {
            Some((rule, captures)) => {
                let body = if rule.takes_body() { self.json(ctx)? } else { Value::Null };
                let input = rule.input(body, self.query(ctx)?, captures);
                let input = input.map_err(|reason| Refusal::new(400, reason))?;
                (Call { method: rule.method.clone(), field: rule.answer.clone(), is_bare }, input)
            }
            None => {
                let unknown = || match service.rules {
                    Some(_) if self.config.method.is_none() => {
                        Refusal::new(404, "no annotation is of this request")
                    }
                    _ => Refusal::new(503, "the service has no such method"),
                };
                let method = service.method.clone().ok_or_else(unknown)?;
                (Call { method, field: None, is_bare }, self.input(ctx)?)
            }
        };
        let message = input::message(&call.method.input(), &input);
        message.map(|message| (call, message)).map_err(|input::Unfit(reason)| {
            tracing::debug!("grpc-transcode: no message can be made: {reason}");
            Refusal::new(400, "no message can be made of the request")
        })
    }

    /// What a message is made of where no annotation says it.
    fn input(&self, ctx: &Context) -> Result<Value, Refusal> {
        let content_type = ctx.request.headers.get(HeaderId::ContentType).unwrap_or_default();
        let is_json = content_type.windows(JSON.len()).any(|part| part.eq_ignore_ascii_case(JSON));
        let method = ctx.request.method;
        if is_json && matches!(method, Method::Post | Method::Put | Method::Patch) {
            match json_body::read(body(ctx), self.config.max_body_values) {
                Ok(object @ Value::Object(_)) => return Ok(object),
                Err(Unread::TooMany) => return Err(Refusal::new(413, "the body has too many values")),
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
                Unread::Invalid(_) => Refusal::new(400, "the body is no JSON"),
            }),
        }
    }

    fn query(&self, ctx: &Context) -> Result<Value, Refusal> {
        self.arguments(ctx.request.query().unwrap_or_default())
    }

    fn arguments(&self, text: &[u8]) -> Result<Value, Refusal> {
        let read = arguments::read(text, self.config.max_body_values);
        read.map_err(|_| Refusal::new(400, "the arguments cannot be read"))
    }

    /// Makes the request the call that it stands for.
    fn transcode(&self, slot: sigma_plugin::Slot, service: &Service, ctx: &mut Context) -> Step {
        if Encoding::of(&ctx.request.headers) != Encoding::Identity {
            return Refusal::new(415, "the body has a content coding").into();
        }
        let (call, message) = match self.call(service, ctx) {
            Ok(made) => made,
            Err(refusal) => return refusal.into(),
        };
        let Some(frame) = framed(&message) else {
            return Refusal::new(413, "the message is longer than a frame may be").into();
        };
        ctx.body = Some(frame);
        ctx.request.set_method("POST");
        ctx.target =
            format!("/{}/{}", call.method.parent_service().full_name(), call.method.name()).into_bytes();
        let headers = &mut ctx.request.headers;
        headers.set(HeaderId::ContentType, b"application/grpc");
        ctx.is_translated = true;
        // What is compressed cannot be read here.
        headers.remove_name(b"grpc-encoding");
        headers.remove_name(b"grpc-accept-encoding");
        if let Some(timeout) = self.config.timeout() {
            headers.replace("grpc-timeout", timeout.as_bytes());
        }
        ctx.keep(slot, call);
        Step::Next
    }
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

/// What becomes of the body of an answer.
enum Showing {
    Messages(Call),
    /// The call failed; the field that says how in detail.
    Failure(Option<Vec<u8>>),
}

impl Plugin for GrpcTranscode {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        if let Err(reason) = &self.0.service {
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                tracing::error!(left_out, "grpc-transcode: proto load error: {reason}");
            }
            return Step::Next;
        }
        // What another request of this exchange became.
        let _ = ctx.take_kept::<_, Call>(self);
        let (transcoder, slot) = (Arc::clone(&self.0), sigma_plugin::Slot::from(self));
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match (read, &transcoder.service) {
            (BodyRead::Whole, Ok(service)) => transcoder.transcode(slot, service, ctx),
            _ => Refusal::new(413, "the body is over max_req_body_size").into(),
        };
        Step::ReadBody { limit: self.0.config.max_req_body_size, then: Box::new(then) }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        // That of a node before, which this answer takes the place of.
        let _ = ctx.take_kept::<_, Showing>(self);
        let Some(call) = ctx.kept::<_, Call>(self).cloned() else { return ResponseStep::Next };
        if ctx.record.source != Source::Upstream || ctx.response.status >= 300 {
            return ResponseStep::Next;
        }
        let head = &mut ctx.response.headers;
        head.remove(HeaderId::ContentLength);
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
struct Bodies(Rc<Held>);
