//! Sessions over TCP or UDP, and the plugins of stream routes.
//!
//! A plugin takes part in stream routes by [`crate::Descriptor::flow`]: its own schema and instances that implement
//! [`FlowPlugin`]. The rest is as on routes: the same order, `_meta`, secrets and environment of a hook.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use serde_json::{Value, json};
use sigma_http::Chunk;
use sigma_schema::described::schema_of;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::address::{NodeAddr, network_text};
use crate::chain::in_order;
use crate::context::Client;
use crate::descriptor::{Check, parsed};
use crate::pace::{Direction, Pace, Paces};
use crate::record::whole_ms;
use crate::traffic::Traffic;
use crate::variables::{address, number, of_process, open_ms, owned, proxied, seconds, text};
use crate::{Build, Configuration, Entry, Env};

/// An instance of a plugin on stream routes: one configuration, parsed. Hooks run on a worker's thread and must not
/// block it; slow work returns [`FlowStep::Wait`].
pub trait FlowPlugin: Send + Sync {
    /// Runs at the start of the session, before a node is chosen.
    fn preread(&self, _session: &mut Session, _env: &Env<'_>) -> FlowStep {
        FlowStep::Next
    }

    /// Returns a filter of the session's bytes. It is called once for each session over TCP that has a node, after the
    /// hooks of all plugins.
    fn filter(&self, _session: &mut Session) -> Option<Box<dyn FlowFilter>> {
        None
    }

    /// Runs at the end of the session; [`Session::course`] is complete. It also runs for a session that a plugin has
    /// closed.
    fn log(&self, _session: &Session, _env: &Env<'_>) {}
}

/// The result of a hook.
pub enum FlowStep {
    /// Continue with the next plugin.
    Next,
    /// Close the session without a byte; logs and metrics get the status.
    Close(u16),
    /// The hook needs more bytes of the client; it is called again when there are more in [`Session::early`]. If the
    /// client sends no more, or not in time, the session is closed with 503.
    More,
    /// Wait for slow work. The future owns its data and returns the next step. It is dropped when the gateway stops.
    Wait(Pin<Box<dyn Future<Output = FlowStep>>>),
}

/// A filter of the bytes of one session, in both directions. Bytes towards the node pass the filters in the order of their
/// plugins; bytes towards the client pass them in reverse.
pub trait FlowFilter {
    /// Returns true if it accepts more bytes of this direction.
    fn has_room(&self, direction: Direction) -> bool;

    /// Accepts bytes; `is_end` if no more follow. Call it only while it has room.
    fn push(&mut self, direction: Direction, data: &[u8], is_end: bool);

    /// Returns the next bytes that continue, not empty. None at the end of this direction; it is not polled after
    /// that.
    ///
    /// # Errors
    /// Returns an error to end the session.
    fn poll_next(
        &mut self,
        direction: Direction,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, FlowEnd>>;
}

/// The end of a session by a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both sides get the end after the bytes so far
    Closed,
    /// Both sides are reset
    Failed,
}

/// The part of a plugin on stream routes.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    /// The schema of its configuration there.
    pub schema: fn() -> Value,
    /// Rules beyond the schema.
    pub check: Check,
    /// Makes an instance. It must neither block nor access the network.
    pub build: fn(&Build<'_>) -> Result<Arc<dyn FlowPlugin>, String>,
}

impl Flow {
    /// Returns the `Flow` of a plugin whose configuration is `C`, made by `build`.
    pub const fn of<C: Configuration>(build: fn(&Build<'_>) -> Result<Arc<dyn FlowPlugin>, String>) -> Flow {
        Flow { schema: schema_of::<C>, check: |conf| parsed::<C>(conf).map(drop), build }
    }

    /// Returns the `Flow` of a configuration that is also the instance.
    pub const fn itself<P: Configuration + FlowPlugin + 'static>() -> Flow {
        Flow::of::<P>(|build| Ok(Arc::new(build.config::<P>()?)))
    }
}

/// The transport of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Bytes in order
    #[default]
    Tcp,
    /// Datagrams
    Udp,
}

impl Transport {
    /// Returns `TCP` or `UDP`, as nginx shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        }
    }
}

/// The facts about a stream route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlowFacts {
    /// Its identity.
    pub id: Box<str>,
    /// Its name.
    pub name: Option<Box<str>>,
    /// Its service's identity.
    pub service_id: Option<Box<str>>,
    /// Its service's name.
    pub service_name: Option<Box<str>>,
}

/// The client's ClientHello, as far as it is read before TLS begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsHello {
    /// The requested server name, as it was sent.
    pub server_name: Option<Arc<str>>,
    /// The offered protocols above TLS.
    pub alpn: Vec<Vec<u8>>,
}

/// The result of a session.
#[derive(Debug, Clone, Default)]
pub struct SessionResult {
    /// The status as nginx numbers it: 200 for a normal end, 4xx and 5xx for errors.
    pub status: u16,
    /// Milliseconds since it began.
    pub elapsed_ms: f64,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// Bytes from the node.
    pub upstream_received: u64,
    /// Bytes to the node.
    pub upstream_sent: u64,
    /// The attempted nodes, in order.
    pub nodes: Vec<Tried>,
}

/// An attempted node.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Its address.
    pub addr: NodeAddr,
    /// Milliseconds until the connection was established; None if it failed.
    pub connect_ms: Option<f64>,
}

impl SessionResult {
    /// Returns the attempted nodes as logs show them, a list; None without an attempt.
    pub fn shown_nodes(&self) -> Option<Value> {
        let shown = |node: &Tried| json!({ "node": node.addr.to_string(), "connect_time": node.connect_ms.map(whole_ms) });
        let shown: Vec<Value> = self.nodes.iter().map(shown).collect();
        (!shown.is_empty()).then_some(Value::Array(shown))
    }
}

/// The data of one session that hooks read and change.
#[derive(Default)]
pub struct Session {
    /// The client; its `tls` is set if TLS ended at the gateway.
    pub client: Client,
    /// The transport.
    pub transport: Transport,
    /// The listener of the session, with its traffic counters.
    pub traffic: Arc<Traffic>,
    /// The matched route.
    pub route: Arc<FlowFacts>,
    /// The client's ClientHello, if the listener reads it.
    pub asked: Option<TlsHello>,
    /// The first bytes of the client, before a node gets them. They are forwarded unchanged.
    pub early: Chunk,
    /// The key of an upstream that replaces the route's; see [`Build::upstream_key`].
    pub upstream: Option<Box<str>>,
    /// The pace limits; None without a limit. Only for sessions over TCP.
    pub paces: Option<Box<Paces>>,
    /// The result so far.
    pub course: SessionResult,
    held: Vec<(&'static str, Box<[u8]>)>,
    kept: Vec<Box<dyn Any>>,
}

impl Session {
    /// Sets a variable of the plugin.
    pub fn set_variable(&mut self, name: &'static str, value: &[u8]) {
        self.held.retain(|(known, _)| *known != name);
        self.held.push((name, value.into()));
    }

    /// Adds a pace limit for its bytes.
    pub fn slow_down(&mut self, pace: Box<dyn Pace>) {
        self.paces.get_or_insert_default().add(pace);
    }

    /// Keeps a value until the end of the session.
    pub fn keep(&mut self, value: impl Any) {
        self.kept.push(Box::new(value));
    }

    /// Returns all kept values of this type, of all plugins.
    pub fn kept<T: Any>(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().filter_map(|value| value.downcast_ref())
    }

    fn other(&self, name: &str) -> Option<VarValue<'_>> {
        if let Some((_, value)) = self.held.iter().find(|(known, _)| *known == name) {
            return text(value);
        }
        let course = &self.course;
        if let Some(name) = name.strip_prefix("geoip_") {
            return self.client.geography.as_ref()?.fact(self.client.addr?, name).map(VarValue::Text);
        }
        match name {
            "protocol" => text(self.transport.as_str().as_bytes()),
            "status" if course.status != 0 => number(course.status),
            "bytes_received" => number(course.received),
            "bytes_sent" => number(course.sent),
            "session_time" => owned(seconds(course.elapsed_ms)),
            "connection" => number(self.client.connection),
            "connection_time" => owned(seconds(open_ms(&self.client))),
            "realip_remote_port" if self.client.peer_port != 0 => number(self.client.peer_port),
            "upstream_bytes_received" => number(course.upstream_received),
            "upstream_bytes_sent" => number(course.upstream_sent),
            "upstream_attempts" => owned(course.shown_nodes()?.to_string()),
            "upstream_addr" => self.nodes(|node| node.addr.to_string()),
            "upstream_connect_time" => self.nodes(|node| node.connect_ms.map_or("-".into(), seconds)),
            "ssl_preread_server_name" => {
                self.asked.as_ref()?.server_name.as_deref().and_then(|name| text(name.as_bytes()))
            }
            "ssl_preread_alpn_protocols" => owned(self.asked.as_ref()?.alpn.join(&b","[..])),
            "binary_remote_addr" => match self.client.addr? {
                std::net::IpAddr::V4(ip) => owned(ip.octets()),
                std::net::IpAddr::V6(ip) => owned(ip.octets()),
            },
            "remote_network" => owned(network_text(self.client.addr?)),
            name if name.starts_with("proxy_protocol_") => proxied(&self.client, name),
            name => match name.strip_prefix("ssl_") {
                Some(fact) => self.client.tls.as_ref()?.fact(fact).and_then(|value| text(value.as_bytes())),
                None => of_process(name),
            },
        }
    }

    fn nodes(&self, value: impl Fn(&Tried) -> String) -> Option<VarValue<'_>> {
        let all: Vec<String> = self.course.nodes.iter().map(value).collect();
        (!all.is_empty()).then(|| VarValue::Text(Cow::Owned(all.join(", ").into_bytes())))
    }
}

impl Variables for Session {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let (client, route) = (&self.client, &self.route);
        match name {
            VarName::RemoteAddr => address(client.addr),
            VarName::RealipRemoteAddr => address(client.peer),
            VarName::RemotePort if client.port != 0 => number(client.port),
            VarName::ServerAddr => owned(client.local?.ip().to_canonical().to_string()),
            VarName::ServerPort => number(client.local.map_or(0, |addr: SocketAddr| addr.port())),
            VarName::RouteId => text(route.id.as_bytes()),
            VarName::RouteName => text(route.name.as_deref()?.as_bytes()),
            VarName::ServiceId => text(route.service_id.as_deref()?.as_bytes()),
            VarName::ServiceName => text(route.service_name.as_deref()?.as_bytes()),
            VarName::Hostname => of_process("hostname"),
            VarName::Other(name) => self.other(name),
            _ => None,
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("client", &self.client).field("route", &self.route.id).finish()
    }
}

/// Plugins of a stream route that run together, in order.
#[derive(Debug, Default)]
pub struct FlowChain(Box<[Arc<Entry<dyn FlowPlugin>>]>);

impl FlowChain {
    /// Returns the chain of these plugins; of several with one name the last one counts. Disabled ones are omitted.
    pub fn new(entries: impl IntoIterator<Item = Arc<Entry<dyn FlowPlugin>>>) -> FlowChain {
        FlowChain(in_order(entries).into())
    }

    /// Returns the plugins.
    pub fn entries(&self) -> &[Arc<Entry<dyn FlowPlugin>>] {
        &self.0
    }
}
