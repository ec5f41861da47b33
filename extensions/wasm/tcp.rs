//! Sessions over TCP: a module is a filter of their bytes.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use sigma_buffer::held::{self, CountedBytes};
use sigma_plugin::context::Client;
use sigma_plugin::flow::{Transport, Tried};
use sigma_plugin::pace::Direction as Way;
use sigma_plugin::record::Attempt;
use sigma_plugin::{Build, Context, Env, FlowEnd, FlowFilter, FlowPlugin, FlowStep, Session};
use sigma_plugin_kit::tallies::counted;
use tokio::time::Sleep;

use crate::config::StreamConfig;
use crate::current::{Hook, Parts};
use crate::events::Event;
use crate::instance::{Aborted, Instance};
use crate::instances::{Instances, NotStarted, obtain};
use crate::outline::Abi;
use crate::stream::{Direction, Effect, Stream};
use crate::usage::{ModuleReference, Shared, services, vm_use};
use crate::vm_data::VmParts;

/// The status of a session that the gateway closes since its module has failed.
const FAILED: u16 = 503;

/// The status of a session that its module closes before a node is chosen.
const CLOSED: u16 = 403;

/// The peer of a connection that ends: the gateway, or the other side.
const LOCAL: u32 = 1;
const REMOTE: u32 = 2;

/// An instance of the plugin on stream routes.
pub(crate) struct TcpPlugin {
    shared: Arc<Shared>,
}

/// The session in its instance, from the first callback on. The plugin finds it by its own address.
struct Opened {
    plugin: usize,
    stream: Rc<RefCell<Option<Rc<Stream>>>>,
}

/// Makes an instance of the plugin `wasm` for stream routes.
///
/// # Errors
/// Returns an error message if the module cannot be used.
pub(crate) fn build(build: &Build<'_>) -> Result<Arc<dyn FlowPlugin>, String> {
    let config: StreamConfig = build.config()?;
    let bytes = |text: &Option<crate::config::Text>| text.as_ref().map(crate::config::Text::bytes);
    let parts = VmParts {
        vm_id: config.vm_id.as_str().into(),
        root_id: config.root_id.as_str().into(),
        configuration: bytes(&config.conf).unwrap_or_default(),
        vm_configuration: bytes(&config.vm_conf).unwrap_or_default(),
        env: config.env.clone(),
        services: services(build, &config.upstreams),
    };
    let name = config.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let sha256 = config.sha256.as_deref();
    let vm_use = vm_use(build, ModuleReference { name: &name, file: &config.file, sha256, parts })?;
    if vm_use.vm.code.abi == Abi::HttpHandler {
        return Err(format!(
            "{}: a module of http-wasm handles requests, not streams",
            config.file.display()
        ));
    }
    let shared = Shared {
        vm_use,
        fail_open: config.fail_open,
        allow_on_headers_stop_iteration: false,
        is_apisix: false,
        counted: counted(build.node, build.resource),
    };
    Ok(Arc::new(TcpPlugin { shared: Arc::new(shared) }))
}

impl FlowPlugin for TcpPlugin {
    fn preread(&self, session: &mut Session, env: &Env<'_>) -> FlowStep {
        if session.transport == Transport::Udp {
            tracing::error!("wasm {}: modules can filter TCP sessions only", self.shared.vm_use.vm.name);
            return FlowStep::Close(FAILED);
        }
        let place = Rc::default();
        let stream = Rc::clone(&place);
        session.keep(Opened { plugin: std::ptr::from_ref(self).addr(), stream });
        let opening = Opening { plugin: Arc::clone(&self.shared), client: session.client.clone(), place };
        if let Some(instance) = env.local.part(Instances::default).ready(&self.shared.vm_use.vm) {
            return opening.open(&instance);
        }
        let (vm, worker) = (Arc::clone(&self.shared.vm_use.vm), self.shared.worker(env));
        let limit = Duration::from_millis(vm.settings.start_wait_ms);
        let tally = self.shared.counted.tally(env.local);
        FlowStep::Wait(Box::pin(async move {
            match tokio::time::timeout(limit, obtain(vm, worker)).await.unwrap_or(Err(NotStarted)) {
                Ok(instance) => opening.open(&instance),
                Err(NotStarted) if opening.plugin.fail_open => {
                    tally.count(Event::FailedOpen);
                    FlowStep::Next
                }
                Err(NotStarted) => FlowStep::Close(FAILED),
            }
        }))
    }

    fn filter(&self, session: &mut Session) -> Option<Box<dyn FlowFilter>> {
        let own = std::ptr::from_ref(self).addr();
        let opened = session.kept::<Opened>().find(|opened| opened.plugin == own)?;
        let stream = opened.stream.take()?;
        let mut ctx = Box::new(of_client(session.client.clone()));
        ctx.record.attempts.extend(session.course.nodes.iter().map(attempt));
        Some(Box::new(Filter { stream, ctx, to_node: Side::default(), to_client: Side::default() }))
    }
}

/// Returns an exchange that knows its client only: properties of the connection are read from it.
fn of_client(client: Client) -> Context {
    let mut ctx = Context::default();
    ctx.client = client;
    ctx
}

/// Returns the attempt of a session, for properties of the node.
fn attempt(tried: &Tried) -> Attempt {
    Attempt {
        addr: tried.addr.clone(),
        host: String::new(),
        began: None,
        status: 0,
        reused: false,
        version: None,
        linked_ms: None,
        carried: None,
        connect_ms: tried.connect_ms,
        sent_ms: None,
        header_ms: None,
        response_ms: None,
    }
}

/// A session before the first callback.
struct Opening {
    plugin: Arc<Shared>,
    client: Client,
    place: Rc<RefCell<Option<Rc<Stream>>>>,
}

impl Opening {
    /// Makes the context of the session, and tells the module.
    fn open(self, instance: &Rc<Instance>) -> FlowStep {
        let mut ctx = of_client(self.client.clone());
        let opened = Stream::open(instance, &self.plugin, Hook::NewConnection, &mut ctx);
        let Ok(stream) = opened else { return self.failed(instance) };
        let Some(callback) = &instance.exports.new_connection else { return self.enter(stream) };
        let effect = stream.callback(Hook::NewConnection, &mut ctx, &mut Parts::default(), |store, _| {
            callback.call(store, stream.id())
        });
        self.follow(stream, effect)
    }

    fn follow(self, stream: Rc<Stream>, effect: Result<Effect, Aborted>) -> FlowStep {
        match effect {
            Ok(Effect::Continue) => self.enter(stream),
            Ok(Effect::Reply(_) | Effect::Close) => FlowStep::Close(CLOSED),
            Err(Aborted) => {
                stream.abort();
                self.failed(&stream.instance)
            }
            Ok(Effect::Pause) => FlowStep::Wait(Box::pin(async move {
                if !stream.event(Direction::Request).await {
                    return self.failed(&stream.instance);
                }
                let mut ctx = of_client(self.client.clone());
                let effect = stream.resume(Hook::NewConnection, &mut ctx, &mut Parts::default());
                self.follow(stream, effect)
            })),
        }
    }

    fn enter(self, stream: Rc<Stream>) -> FlowStep {
        self.place.replace(Some(stream));
        FlowStep::Next
    }

    fn failed(&self, instance: &Instance) -> FlowStep {
        if self.plugin.fail_open {
            instance.count(Event::FailedOpen);
            return FlowStep::Next;
        }
        FlowStep::Close(FAILED)
    }
}

/// One direction of a session.
#[derive(Default)]
struct Side {
    /// Bytes that the module has not let continue.
    held: Vec<u8>,
    /// Memory of `held`.
    counted: CountedBytes,
    /// The worker has no memory for its bytes.
    is_refused: bool,
    /// No more bytes follow.
    is_end: bool,
    /// The module has not seen all of it.
    is_new: bool,
    /// The end has gone on.
    has_ended: bool,
    /// The longest pause, while there is one.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Side {
    /// Holds these bytes.
    fn hold(&mut self, bytes: Vec<u8>) {
        self.counted.set(bytes.capacity());
        self.held = bytes;
    }

    /// Returns the held bytes.
    fn release(&mut self) -> Vec<u8> {
        self.counted.set(0);
        std::mem::take(&mut self.held)
    }
}

/// The bytes of a session on their way through the module.
struct Filter {
    stream: Rc<Stream>,
    ctx: Box<Context>,
    to_node: Side,
    to_client: Side,
}

impl Filter {
    fn side(&mut self, way: Way) -> &mut Side {
        match way {
            Way::ToNode => &mut self.to_node,
            Way::ToClient => &mut self.to_client,
        }
    }

    /// Runs the callback of new bytes.
    fn run(&mut self, way: Way) -> Result<Effect, Aborted> {
        let stream = Rc::clone(&self.stream);
        let exports = &stream.instance.exports;
        let (hook, callback) = match way {
            Way::ToNode => (Hook::DownstreamData, &exports.downstream_data),
            Way::ToClient => (Hook::UpstreamData, &exports.upstream_data),
        };
        let side = self.side(way);
        side.is_new = false;
        let is_end = side.is_end;
        let Some(callback) = callback else { return Ok(Effect::Continue) };
        let mut parts = Parts { body: std::mem::take(&mut side.held), ..Parts::default() };
        let size = u32::try_from(parts.body.len()).unwrap_or(u32::MAX);
        let effect = stream.callback(hook, &mut self.ctx, &mut parts, |store, _| {
            callback.call(store, (stream.id(), size, is_end.into()))
        });
        self.side(way).hold(parts.body);
        effect
    }

    /// Returns the effect of an event during a pause.
    fn poll_pause(&mut self, way: Way, task: &mut task::Context<'_>) -> Poll<Result<Effect, Aborted>> {
        let (direction, hook) = match way {
            Way::ToNode => (Direction::Request, Hook::DownstreamData),
            Way::ToClient => (Direction::Response, Hook::UpstreamData),
        };
        let stream = Rc::clone(&self.stream);
        if stream.poll_event(direction, task).is_ready() {
            let mut parts = Parts { body: std::mem::take(&mut self.side(way).held), ..Parts::default() };
            let effect = stream.resume(hook, &mut self.ctx, &mut parts);
            self.side(way).hold(parts.body);
            return Poll::Ready(effect);
        }
        let Some(pause) = &mut self.side(way).pause else { return Poll::Pending };
        task::ready!(pause.as_mut().poll(task));
        stream.note_long_pause();
        Poll::Ready(Err(Aborted))
    }

    /// Goes on without the module, or ends the session.
    fn fail(&mut self) -> Result<(), FlowEnd> {
        self.stream.abort();
        if !self.stream.plugin.fail_open {
            return Err(FlowEnd::Failed);
        }
        self.stream.instance.count(Event::FailedOpen);
        Ok(())
    }
}

impl FlowFilter for Filter {
    fn has_room(&self, way: Way) -> bool {
        let limit = self.stream.instance.vm.settings.body_bytes;
        let side = match way {
            Way::ToNode => &self.to_node,
            Way::ToClient => &self.to_client,
        };
        !side.is_end && !side.is_new && side.held.len() < limit
    }

    fn push(&mut self, way: Way, data: &[u8], is_end: bool) {
        let side = self.side(way);
        if data.len() > held::body_room() {
            held::refused();
            side.is_refused = true;
            return;
        }
        let mut bytes = std::mem::take(&mut side.held);
        bytes.extend_from_slice(data);
        side.hold(bytes);
        side.is_end |= is_end;
        side.is_new = true;
    }

    fn poll_next(
        &mut self,
        way: Way,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, FlowEnd>> {
        loop {
            let is_over = self.stream.is_over();
            let side = self.side(way);
            if side.is_refused {
                return Poll::Ready(Err(FlowEnd::Failed));
            }
            let effect = match side.is_new {
                _ if is_over => Ok(Effect::Continue),
                true => self.run(way),
                false if side.pause.is_some() => task::ready!(self.poll_pause(way, task)),
                false => Ok(Effect::Continue),
            };
            let limit = Duration::from_millis(self.stream.instance.vm.settings.pause_ms);
            match effect {
                Ok(Effect::Continue) => {
                    let side = self.side(way);
                    (side.pause, side.is_new) = (None, false);
                    let bytes = side.release();
                    if !bytes.is_empty() {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                    if !side.is_end || side.has_ended {
                        return Poll::Pending;
                    }
                    side.has_ended = true;
                    return Poll::Ready(Ok(None));
                }
                Ok(Effect::Pause) => {
                    let pause = &mut self.side(way).pause;
                    pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                }
                Ok(Effect::Reply(_) | Effect::Close) => return Poll::Ready(Err(FlowEnd::Closed)),
                Err(Aborted) => self.fail()?,
            }
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if !self.stream.is_over() {
            let peer = |side: &Side| if side.is_end { REMOTE } else { LOCAL };
            let (client, node) = (peer(&self.to_node), peer(&self.to_client));
            self.stream.close(&mut self.ctx, client, node);
            self.stream.end(&mut self.ctx);
        }
    }
}
