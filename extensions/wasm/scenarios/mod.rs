//! Tests with modules in the text format.

mod bodies;
mod calls;
mod handlers;
mod heads;
mod hostile;
mod loading;
mod real;
mod sessions;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

use serde_json::{Value, json};
use sigma_http::{Chunk, Fault, Frame, Headers};
use sigma_plugin::outbound::{
    Call, CallError, Calling, MessageStream, Metadata, Outbound, ServiceResponse, StreamCall, StreamError,
};
use sigma_plugin::{BodyFilter, Consumers, Context, Entry, Env, Local, Node, Reply, ResponseStep};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::testing::{Case, Given, roster, spawning};

/// The beginning of each module: functions of the host, memory, and an allocator that never frees.
const PRELUDE: &str = r#"
    (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
    (import "env" "proxy_get_header_map_value" (func $get_field (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_get_header_map_pairs" (func $get_fields (param i32 i32 i32) (result i32)))
    (import "env" "proxy_set_header_map_pairs" (func $set_fields (param i32 i32 i32) (result i32)))
    (import "env" "proxy_add_header_map_value" (func $add_field (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_replace_header_map_value" (func $set_field (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_remove_header_map_value" (func $remove_field (param i32 i32 i32) (result i32)))
    (import "env" "proxy_get_buffer_bytes" (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_get_property" (func $get_property (param i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
    (import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
    (import "env" "proxy_set_tick_period_milliseconds" (func $set_tick (param i32) (result i32)))
    (import "env" "proxy_get_shared_data" (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
    (import "env" "proxy_http_call"
        (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_grpc_call"
        (func $grpc (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_register_shared_queue" (func $register (param i32 i32 i32) (result i32)))
    (import "env" "proxy_enqueue_shared_queue" (func $enqueue (param i32 i32 i32) (result i32)))
    (import "env" "proxy_done" (func $done (result i32)))
    (import "env" "proxy_grpc_stream"
        (func $grpc_stream (param i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_grpc_send" (func $grpc_send (param i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_grpc_cancel" (func $grpc_cancel (param i32) (result i32)))
    (import "env" "proxy_grpc_close" (func $grpc_close (param i32) (result i32)))
    (import "env" "proxy_get_status" (func $get_status (param i32 i32 i32) (result i32)))
    (import "env" "proxy_call_foreign_function"
        (func $foreign (param i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_send_local_response"
        (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 2)
    (global $heap (mut i32) (i32.const 65536))
    (func $allocate (export "proxy_on_memory_allocate") (param $size i32) (result i32)
        (global.get $heap)
        (global.set $heap (i32.add (global.get $heap) (local.get $size))))
    (func (export "proxy_on_context_create") (param i32 i32))
    ;; The value that the host has returned: its pointer is at 8, its length at 12.
    (func $value (result i32) (i32.load (i32.const 8)))
    (func $length (result i32) (i32.load (i32.const 12)))
"#;

/// Returns a module with the newest ABI.
fn module(body: &str) -> Vec<u8> {
    let text = format!("(module {PRELUDE} (func (export \"proxy_abi_version_0_2_1\")) {body})");
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a data segment; texts begin at 1024.
fn text_at(at: usize, text: &str) -> String {
    let bytes: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    format!("(data (i32.const {at}) \"{bytes}\")")
}

/// Services that answer from a list.
#[derive(Default, Clone)]
struct Services(Rc<Listed>);

#[derive(Default)]
struct Listed {
    answers: RefCell<VecDeque<Result<ServiceResponse, CallError>>>,
    calls: RefCell<Vec<Call>>,
    /// Messages of services with gRPC.
    messages: RefCell<VecDeque<Vec<u8>>>,
    /// Methods and messages of calls by gRPC.
    streams: RefCell<Vec<String>>,
    /// Services with gRPC return each message, with metadata before and after them.
    echoes: Cell<bool>,
}

/// A call by gRPC.
struct Stream {
    services: Services,
    method: String,
    has_answered: bool,
    /// Messages that are returned, of a service that does so.
    echoed: VecDeque<Vec<u8>>,
    is_finished: bool,
}

impl MessageStream for Stream {
    fn poll_sent(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }

    fn send(&mut self, message: &[u8]) {
        let called = format!("{} {}", self.method, message.escape_ascii());
        self.services.0.streams.borrow_mut().push(called);
        self.echoed.push_back(message.to_vec());
    }

    fn finish(&mut self) {
        self.is_finished = true;
    }

    fn metadata(&self) -> Metadata {
        let fields = |name: &str| {
            let mut headers = Headers::default();
            headers.append(name, b"1");
            headers.append("grpc-status", b"7");
            headers.append("grpc-message", b"bye");
            Some(headers)
        };
        let echoes = self.services.0.echoes.get();
        Metadata {
            initial: fields("X-Head").filter(|_| echoes),
            trailing: fields("X-Trail").filter(|_| echoes && self.is_finished && self.echoed.is_empty()),
        }
    }

    fn poll_message(&mut self, _: &mut task::Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
        if self.services.0.echoes.get() {
            return match self.echoed.pop_front() {
                Some(message) => Poll::Ready(Ok(Some(message))),
                None if self.is_finished => Poll::Ready(Ok(None)),
                None => Poll::Pending,
            };
        }
        if std::mem::replace(&mut self.has_answered, true) {
            return Poll::Ready(Ok(None));
        }
        Poll::Ready(Ok(self.services.0.messages.borrow_mut().pop_front()))
    }
}

impl Outbound for Services {
    fn call(&self, call: Call) -> Calling {
        self.0.calls.borrow_mut().push(call);
        let answer = self.0.answers.borrow_mut().pop_front();
        let answer = answer.unwrap_or_else(|| Err(CallError("no answer".to_owned())));
        Box::pin(async move {
            tokio::task::yield_now().await;
            answer
        })
    }

    fn open_stream(&self, call: StreamCall) -> Box<dyn MessageStream> {
        Box::new(Stream {
            services: self.clone(),
            method: call.target.into(),
            has_answered: false,
            echoed: VecDeque::new(),
            is_finished: false,
        })
    }

    fn kept(&self) -> Rc<dyn Outbound> {
        Rc::new(self.clone())
    }
}

/// A worker without sockets.
struct World {
    node: Arc<Node>,
    local: Rc<Local>,
    consumers: Consumers,
    services: Services,
    runtime: Runtime,
    tasks: LocalSet,
    folder: tempfile::TempDir,
}

/// The end of a body.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    Whole(String),
    /// It was cut, with the status of the reply that replaces it
    Cut(u16),
}

impl World {
    /// Returns a world with small limits, and these settings.
    fn new(settings: &Value) -> World {
        let mut attributes = json!({"instances": 8, "memory_mib": 1, "call_ms": 30, "start_ms": 200,
            "pause_ms": 300, "body_bytes": 64, "calls": 2, "tick_ms": 1});
        attributes.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let node = Node::new(spawning(runtime.handle()), json!({ "wasm": attributes }), String::new());
        World {
            node: Arc::new(node),
            local: Rc::new(Local::new(0, 1)),
            consumers: Consumers::default(),
            services: Services::default(),
            runtime,
            tasks: LocalSet::new(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns an instance of the plugin for a module.
    fn entry(&self, module: &[u8], conf: Value) -> Result<Entry, String> {
        let path = self.folder.path().join("filter.wasm");
        std::fs::write(&path, module).unwrap();
        let mut conf = conf;
        conf["file"] = json!(path);
        let (roster, shared) = (roster(), Arc::new(conf.clone()));
        let scope = sigma_schema::plugins::PluginScope::Http;
        sigma_schema::plugins::PluginSchemas::check(&roster, "wasm", scope, &conf)
            .map_err(|refusal| refusal.to_string())?;
        roster.build("wasm", &shared, conf, "/apisix/routes/1", &|_: &str| None, &self.node)
    }

    /// Returns the plugin for a module that is accepted.
    fn plugin(&self, body: &str, conf: Value) -> Entry {
        self.entry(&module(body), conf).unwrap()
    }

    fn env(&self) -> Env<'_> {
        let outbound: &dyn Outbound = &self.services;
        Env { outbound, ..Env::new(&self.node, &self.local, &self.consumers) }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(self.tasks.run_until(future))
    }

    /// Returns a request; lines end with `\n`.
    fn request(&self, head: &str) -> Context {
        let mut case = Case::new(head);
        case.ctx.has_request_body = case.ctx.request.headers.has(sigma_http::HeaderId::ContentLength);
        std::mem::take(&mut case.ctx)
    }

    /// Runs the request phase; returns the reply, or None to continue.
    fn access(&self, entry: &Entry, ctx: &mut Context, body: &[u8]) -> Option<Reply> {
        let env = self.env();
        let body = body.to_vec();
        self.run(async {
            let step = entry.plugin.access(ctx, &env);
            step.settled(ctx, &env, body).await.unwrap()
        })
    }

    /// Runs the header filter; returns the reply that replaces the response.
    fn respond(
        &self,
        entry: &Entry,
        ctx: &mut Context,
        status: u16,
        fields: &[(&str, &str)],
    ) -> Option<Reply> {
        ctx.response.start(status);
        for (name, value) in fields {
            ctx.response.headers.append(name, value.as_bytes());
        }
        ctx.has_response_body = true;
        let env = self.env();
        self.run(async {
            let mut step = entry.plugin.header_filter(ctx, &env);
            loop {
                step = match step {
                    ResponseStep::Next => return None,
                    ResponseStep::Replace(reply) => return Some(*reply),
                    ResponseStep::Wait(future) => future.await(ctx, &env),
                    _ => panic!("another step"),
                }
            }
        })
    }

    fn body_filter(&self, entry: &Entry, ctx: &mut Context) -> Option<Box<dyn BodyFilter>> {
        let env = self.env();
        self.run(async { entry.plugin.body_filter(ctx, &env) })
    }

    fn request_filter(&self, entry: &Entry, ctx: &mut Context) -> Option<Box<dyn BodyFilter>> {
        let env = self.env();
        self.run(async { entry.plugin.request_filter(ctx, &env) })
    }

    /// Sends pieces through a filter; trailers are names and values.
    fn filtered(
        &self,
        filter: &mut dyn BodyFilter,
        ctx: &mut Context,
        pieces: &[&str],
        trailers: &[(&str, &str)],
    ) -> (Body, Vec<String>) {
        let mut frames: VecDeque<Frame> =
            pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece.as_bytes()))).collect();
        if !trailers.is_empty() {
            let mut fields = Headers::default();
            trailers.iter().for_each(|(name, value)| fields.append(name, value.as_bytes()));
            frames.push_back(Frame::Trailers(Box::new(fields)));
        }
        let mut source = Given(frames);
        let mut out = String::new();
        self.run(async {
            loop {
                let frame: Result<Frame, Fault> =
                    std::future::poll_fn(|task| filter.poll_frame(&mut source, ctx, task)).await;
                match frame {
                    Ok(Frame::Data(data)) => out += std::str::from_utf8(&data).unwrap(),
                    Ok(Frame::End) => return (Body::Whole(out), Vec::new()),
                    Ok(Frame::Trailers(trailers)) => {
                        let text = |(name, value): (&[u8], &[u8])| {
                            format!("{}: {}", name.escape_ascii(), value.escape_ascii())
                        };
                        return (Body::Whole(out), trailers.iter().map(text).collect());
                    }
                    Err(_) => {
                        let status = ctx.instead.as_ref().map_or(0, |reply| reply.status);
                        return (Body::Cut(status), Vec::new());
                    }
                }
            }
        })
    }

    fn log(&self, entry: &Entry, ctx: &mut Context) {
        let env = self.env();
        self.run(async { entry.plugin.log(ctx, &env) });
    }

    /// Waits until a condition holds.
    fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        self.run(async {
            for _ in 0..5000 {
                if holds() {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            panic!("{what}");
        });
    }

    /// Returns the number of these events.
    fn events(&self, event: &str) -> u64 {
        let families = self.node.part(sigma_plugin_kit::tallies::Families::default).all();
        let family = families.iter().find(|(name, _)| *name == "wasm_events_total");
        let all = family.map(|(_, family)| family.all()).unwrap_or_default();
        all.iter()
            .filter(|(labels, _)| labels.iter().any(|(_, value)| **value == *event))
            .map(|(_, count)| count)
            .sum()
    }
}

/// Status and body of a reply; 0 without one.
fn status(reply: Option<&Reply>) -> u16 {
    reply.map_or(0, |reply| reply.status)
}

/// Returns a field of the request.
fn sent(ctx: &Context, name: &str) -> Option<String> {
    ctx.request.headers.find(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
}
