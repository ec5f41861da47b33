//! Helpers for tests of plugins: a gateway without sockets, and a request to run through it. Each group of plugins includes
//! this file as a module of its tests, and brings its plugins as `crate::ROSTER`.

#![allow(dead_code, reason = "no group uses all of it")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

use serde_json::Value;
use sigma_config::resources::Proto;
use sigma_http::h1::{HeadLimits, parse_request};
use sigma_http::{Chunk, Fault, Frame, HeaderId};
use sigma_plugin::roster::Lookup;
use sigma_plugin::{
    BodyFilter, Configuration, Consumer, Consumers, Context, Entry, Env, FlowPlugin, FlowStep, Frames,
    Identity, Kind, Local, Node, Phase, Reply, Resource, ResponseStep, Roster, Session,
};
use sigma_schema::described::{schema_of, take_confidential};
use sigma_schema::id::Id;
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_schema::validation::Schema;

/// Returns pseudo-random numbers below a given bound, of a seed: the same ones in every run.
pub(crate) fn seeded(seed: u64) -> impl FnMut(u64) -> u64 {
    // The seed's bits are spread, and are never all zero, from which nothing else would come.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// The roster of all plugins, enabled.
pub(crate) fn roster() -> Roster {
    let kinds = crate::ROSTER.iter().map(|descriptor| Arc::new(**descriptor) as Arc<dyn Kind>);
    Roster::new(kinds, None)
}

/// An instance of a plugin whose configuration was checked as the gateway does.
pub(crate) fn entry(name: &str, conf: Value) -> Result<Entry, String> {
    entry_with(name, conf, None)
}

/// As [`entry`], with plugin metadata.
pub(crate) fn entry_with(name: &str, conf: Value, metadata: Option<Value>) -> Result<Entry, String> {
    let roster = roster();
    roster.check(name, PluginScope::Http, &conf).map_err(|refusal| refusal.to_string())?;
    let (conf, metadata) = (Arc::new(conf), metadata.map(Arc::new));
    let resolved = Value::clone(&conf);
    roster.build(
        name,
        &conf,
        resolved,
        "/apisix/routes/1",
        &|_: &str| metadata.clone(),
        &Arc::new(Node::default()),
    )
}

/// Returns an instance as [`entry`], next to a Protocol Buffers definition with the id 1.
pub(crate) fn entry_beside_proto(name: &str, conf: Value, definition: &str) -> Result<Entry, String> {
    /// The one resource that there is.
    struct Only(Arc<Proto>);

    impl Lookup for Only {
        fn metadata(&self, _: &str) -> Option<Arc<Value>> {
            None
        }

        fn proto(&self, id: &Id) -> Option<Resource> {
            (id.as_str() == "1").then(|| Resource::new(Arc::clone(&self.0)))
        }
    }

    let roster = roster();
    roster.check(name, PluginScope::Http, &conf).map_err(|refusal| refusal.to_string())?;
    let proto = serde_json::json!({"id": "1", "content": definition});
    let only = Only(Arc::new(serde_json::from_value(proto).map_err(|error| error.to_string())?));
    let node = Arc::new(Node::default());
    roster.build(name, &Arc::new(conf.clone()), conf, "/apisix/routes/1", &only, &node)
}

/// As [`entry`], for a stream route.
pub(crate) fn flow_entry(name: &str, conf: Value) -> Result<Entry<dyn FlowPlugin>, String> {
    let roster = roster();
    roster.check(name, PluginScope::Stream, &conf).map_err(|refusal| refusal.to_string())?;
    let (conf, resource) = (Arc::new(conf), "/apisix/stream_routes/1");
    roster.build_flow(name, &conf, Value::clone(&conf), resource, &|_: &str| None, &Arc::new(Node::default()))
}

/// A configuration as its plugin has it, defaults filled in.
pub(crate) fn config_of<C: Configuration>(mut conf: Value) -> C {
    let mut schema = schema_of::<C>();
    take_confidential(&mut schema);
    let schema = Schema::compile(&schema).unwrap();
    schema.check(&conf).unwrap();
    schema.fill_defaults(&mut conf);
    let config: C = serde_json::from_value(conf).unwrap();
    config.check().unwrap();
    config
}

/// The world around sessions.
pub(crate) struct FlowCase {
    node: Arc<Node>,
    local: Rc<Local>,
    consumers: Consumers,
}

impl Default for FlowCase {
    fn default() -> Self {
        let (node, local) = (Arc::new(Node::default()), Rc::new(Local::new(0, 1)));
        FlowCase { node, local, consumers: Consumers::default() }
    }
}

impl FlowCase {
    /// Returns a plugin's step for a new session.
    pub(crate) fn preread(&self, entry: &Entry<dyn FlowPlugin>, session: &mut Session) -> FlowStep {
        entry.plugin.preread(session, &Env::new(&self.node, &self.local, &self.consumers))
    }
}

/// Why a configuration of a route is refused; empty if it is not.
pub(crate) fn refusal(name: &str, conf: &Value) -> String {
    refusal_in(name, PluginScope::Http, conf)
}

/// As [`refusal`], for a place other than a route.
pub(crate) fn refusal_in(name: &str, scope: PluginScope, conf: &Value) -> String {
    roster()
        .check(name, scope, conf)
        .map_or_else(|refusal| in_apisix_words(&refusal.to_string()), |()| String::new())
}

/// As [`refusal`], with the explanation that follows the words of APISIX.
pub(crate) fn explained_refusal(name: &str, conf: &Value) -> String {
    let checked = roster().check(name, PluginScope::Http, conf);
    checked.map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

/// A reason without the explanation that follows it in brackets.
fn in_apisix_words(reason: &str) -> String {
    let ends = ["did not match", "the enum values", "matches none", "to match schema", "and 2", "and 3"];
    let explained = ends.iter().find_map(|end| reason.find(&format!("{end} (")).map(|at| at + end.len()));
    reason[..explained.unwrap_or(reason.len())].to_owned()
}

/// Asserts that a configuration of a route is refused with this text in the reason; an empty one: that it is taken.
pub(crate) fn assert_refusal(name: &str, conf: &Value, expected: &str) {
    assert_reason(&refusal(name, conf), conf, expected);
}

/// As [`assert_refusal`], of a reason that is known.
pub(crate) fn assert_reason(reason: &str, conf: &Value, expected: &str) {
    assert!(reason.contains(expected) && reason.is_empty() == expected.is_empty(), "{conf}: {reason}");
}

/// An object with the members of another, which win.
pub(crate) fn merged(mut base: Value, more: &Value) -> Value {
    let members = more.as_object().expect("an object").clone();
    base.as_object_mut().expect("an object").extend(members);
    base
}

/// Returns the pointers of a plugin's warnings about a valid configuration.
pub(crate) fn warned(name: &str, scope: PluginScope, conf: &Value) -> Vec<String> {
    assert_eq!(refusal_in(name, scope, conf), "", "{conf}");
    roster().warnings(name, scope, conf).into_iter().map(|problem| problem.pointer).collect()
}

/// One request, and the world around it.
pub(crate) struct Case {
    pub(crate) node: Arc<Node>,
    pub(crate) local: Rc<Local>,
    pub(crate) consumers: Consumers,
    pub(crate) now_ms: u64,
    pub(crate) ctx: Context,
    /// The body that the client sends.
    pub(crate) body: Vec<u8>,
}

impl Case {
    /// A request from 127.0.0.1 with this head; lines end with `\n` and the last one may be bare.
    pub(crate) fn new(head: &str) -> Case {
        let mut case = Case {
            node: Arc::new(Node::default()),
            local: Rc::new(Local::new(0, 1)),
            consumers: Consumers::default(),
            now_ms: 0,
            ctx: Context::default(),
            body: Vec::new(),
        };
        case.request(head);
        case
    }

    /// Another request in the same world.
    pub(crate) fn request(&mut self, head: &str) {
        let text = format!("{}\r\n\r\n", head.trim_end().replace('\n', "\r\n"));
        let limits = HeadLimits {
            line_bytes: 1 << 16,
            head_bytes: 1 << 18,
            fields: 1000,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        let end = parse_request(text.as_bytes(), &limits, &mut self.ctx.request).unwrap();
        assert_eq!(end, Some(text.len()), "{head}");
        self.ctx.begin();
        self.ctx.request.headers.mark_received();
        let path = self.ctx.request.raw_path().to_vec();
        self.ctx.uri = sigma_plugin::variables::percent_decoded(&path).into_owned();
        self.ctx.client.addr = Some(std::net::Ipv4Addr::LOCALHOST.into());
        self.ctx.client.peer = self.ctx.client.addr;
    }

    /// Adds a consumer that `plugin` recognises by `conf`.
    pub(crate) fn consumer(&mut self, name: &str, plugin: &'static str, conf: &Value) {
        let consumer = Consumer { name: name.into(), custom_id: Some("c1".into()), ..Consumer::default() };
        self.identity(consumer, None, plugin, conf);
    }

    /// Adds a consumer, recognised by `conf` or by a credential that holds it.
    pub(crate) fn identity(
        &mut self,
        consumer: Consumer,
        credential: Option<&str>,
        plugin: &'static str,
        conf: &Value,
    ) {
        let (key, data) = roster().identity(plugin, conf).unwrap().unwrap();
        let consumer = Arc::new(consumer);
        self.consumers.put(Arc::clone(&consumer));
        let identity = Identity { consumer, credential: credential.map(Box::from), data };
        self.consumers.put_identity(plugin, &key, Arc::new(identity));
    }

    /// The request is from this consumer, which has these labels.
    pub(crate) fn known(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        self.ctx.attach_anonymous(&Arc::new(Consumer { name: name.into(), labels, ..Consumer::default() }));
    }

    /// Runs one hook to its end, with the request's body if it requests it; a reply, or None to continue.
    pub(crate) fn run(&mut self, entry: &Entry, phase: Phase) -> Option<Reply> {
        let env = Env { now_ms: self.now_ms, ..Env::new(&self.node, &self.local, &self.consumers) };
        let ctx = &mut self.ctx;
        // As the gateway does before the first plugin of a chain.
        entry.owned.clear(&mut ctx.request.headers);
        let added: Vec<Vec<u8>> = added(ctx);
        let step = match phase {
            Phase::Rewrite => entry.plugin.rewrite(ctx, &env),
            Phase::Access => entry.plugin.access(ctx, &env),
            _ => entry.plugin.before_proxy(ctx, &env),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reply = runtime.block_on(step.settled(ctx, &env, self.body.clone())).unwrap();
        for name in self::added(ctx).iter().filter(|name| !added.contains(name)) {
            let is_declared =
                entry.owned.covers(name) || ctx.owned.iter().any(|claimed| claimed.covers(name));
            assert!(is_declared, "{} does not declare {}", entry.name(), name.escape_ascii());
        }
        reply
    }

    /// Returns the header filter's step for the response in the context.
    pub(crate) fn response_step(&mut self, entry: &Entry) -> ResponseStep {
        let env = Env { now_ms: self.now_ms, ..Env::new(&self.node, &self.local, &self.consumers) };
        entry.plugin.header_filter(&mut self.ctx, &env)
    }

    /// Runs a header filter that changes the head and no more.
    pub(crate) fn header_filter(&mut self, entry: &Entry) {
        match self.response_step(entry) {
            ResponseStep::Next => {}
            _ => panic!("the plugin does more than change the head"),
        }
    }

    /// The filter that a plugin puts before the response's body, if it does.
    pub(crate) fn body_filter(&mut self, entry: &Entry) -> Option<Box<dyn BodyFilter>> {
        let env = Env { now_ms: self.now_ms, ..Env::new(&self.node, &self.local, &self.consumers) };
        entry.plugin.body_filter(&mut self.ctx, &env)
    }

    /// Runs the log hook.
    pub(crate) fn foresee(&mut self, entry: &Entry) -> Option<Value> {
        entry.plugin.foresee(&mut self.ctx)
    }

    pub(crate) fn log(&mut self, entry: &Entry) {
        let env = Env { now_ms: self.now_ms, ..Env::new(&self.node, &self.local, &self.consumers) };
        entry.plugin.log(&mut self.ctx, &env);
    }

    /// The response of a node: a status, and fields, one a line.
    pub(crate) fn respond(&mut self, status: u16, fields: &str) {
        self.ctx.response.start(status);
        for (name, value) in fields.lines().filter_map(|field| field.split_once(':')) {
            self.ctx.response.headers.append(name, value.trim().as_bytes());
        }
        self.ctx.record.status = status;
    }

    /// Sends the response through header and body filter, its body in these pieces.
    pub(crate) fn filter(&mut self, entry: &Entry, pieces: &[&[u8]]) -> Vec<u8> {
        self.header_filter(entry);
        let Some(mut filter) = self.body_filter(entry) else { return pieces.concat() };
        let frames = pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece)));
        let mut source = Given(frames.collect());
        let (mut task, mut out) = (task::Context::from_waker(task::Waker::noop()), Vec::new());
        loop {
            match filter.poll_frame(&mut source, &mut self.ctx, &mut task) {
                Poll::Ready(Ok(Frame::Data(data))) => out.extend_from_slice(&data),
                Poll::Ready(Ok(_)) => return out,
                other => panic!("the filter neither goes on nor ends: {other:?}"),
            }
        }
    }

    /// Returns a field of the request in its present form.
    pub(crate) fn sent(&self, name: &str) -> Option<String> {
        self.ctx.request.headers.find(name.as_bytes()).map(text)
    }

    /// All values of a field of the response, as a list.
    pub(crate) fn answered(&self, name: &str) -> String {
        let fields = self.ctx.response.headers.iter();
        let values = fields.filter(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
        values.map(|(_, value)| text(value)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the target of the request to the node.
    pub(crate) fn target(&self) -> String {
        text(self.ctx.outgoing_target())
    }
}

/// The names of fields that plugins have added, but for those that the gateway knows and cleans itself.
fn added(ctx: &Context) -> Vec<Vec<u8>> {
    let added = ctx.request.headers.added();
    added.filter(|(id, _)| *id == HeaderId::Other).map(|(_, name)| name.to_vec()).collect()
}

/// Gives these frames, and then the end.
pub(crate) struct Given(pub(crate) VecDeque<Frame>);

impl Frames for Given {
    fn poll_frame(&mut self, _: &mut Context, _: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        Poll::Ready(Ok(self.0.pop_front().unwrap_or(Frame::End)))
    }
}

/// Status and body of a reply; `passed` without a reply.
pub(crate) fn summary(reply: Option<&Reply>) -> String {
    let Some(reply) = reply else { return "passed".to_owned() };
    let body = reply.body.as_deref().map(text).unwrap_or_default();
    format!("{} {}", reply.status, body.trim_end()).trim_end().to_owned()
}

/// A field of a reply.
pub(crate) fn field(reply: &Reply, name: &str) -> Option<String> {
    reply.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| text(value))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A node's background work on a test's runtime.
pub(crate) fn spawning(runtime: &tokio::runtime::Handle) -> impl Fn(sigma_plugin::env::Work) + use<> {
    let runtime = runtime.clone();
    move |work| drop(runtime.spawn(work))
}

/// A node whose background work continues, on its own thread.
pub(crate) struct Beside {
    pub(crate) node: Arc<Node>,
    /// Ends the thread.
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Beside {
    pub(crate) fn new() -> Beside {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_end, end) = tokio::sync::oneshot::channel::<()>();
        let node = Arc::new(Node::new(spawning(runtime.handle()), Value::Null, String::new()));
        std::thread::spawn(move || runtime.block_on(end));
        Beside { node, _end }
    }
}
