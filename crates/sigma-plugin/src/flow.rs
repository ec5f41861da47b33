//! Sessions over TCP or UDP, and what plugins of stream routes do with them.
//!
//! A plugin takes part in stream routes by [`crate::Descriptor::flow`]: a schema of its own and instances
//! that implement [`FlowPlugin`]. The rest is as on routes: the same order, `_meta`, secrets and world
//! around a hook.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_config::described::schema_of;
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::Chunk;

use crate::address::{NodeAddr, network_text};
use crate::chain::in_order;
use crate::context::Client;
use crate::descriptor::{Check, parsed};
use crate::pace::{Pace, Paces};
use crate::record::whole_ms;
use crate::traffic::Traffic;
use crate::variables::{address, number, of_process, open_ms, owned, proxied, seconds, text};
use crate::{Build, Configuration, Entry, Env};

/// An instance of a plugin on stream routes: one configuration, parsed. Hooks run on a worker's thread
/// and must not block it; what takes time answers [`FlowStep::Wait`].
pub trait FlowPlugin: Send + Sync {
    /// The session has begun, and no node was chosen yet.
    fn preread(&self, _session: &mut Session, _env: &Env<'_>) -> FlowStep {
        FlowStep::Next
    }

    /// The session is over; [`Session::course`] is complete. Also for one that a plugin has ended.
    fn log(&self, _session: &Session, _env: &Env<'_>) {}
}

/// The answer of a hook.
pub enum FlowStep {
    /// The next plugin, please.
    Next,
    /// The session ends here, without a byte; the status says why to logs and metrics.
    Close(u16),
    /// What the client has sent does not suffice; the hook is called again when there is more in
    /// [`Session::early`]. A client that sends no more, or not in time, is closed with 503.
    More,
    /// Something takes time. The future owns what it needs, and gives back what to do then. It is dropped
    /// when the gateway stops.
    Wait(Pin<Box<dyn Future<Output = FlowStep>>>),
}

/// How a plugin takes part in stream routes.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    /// The schema of its configuration there.
    pub schema: fn() -> Value,
    /// Rules beyond the schema.
    pub check: Check,
    /// Makes an instance. Must neither block nor reach out.
    pub build: fn(&Build<'_>) -> Result<Arc<dyn FlowPlugin>, String>,
}

impl Flow {
    /// That of a plugin whose configuration is `C`, made by `build`.
    pub const fn of<C: Configuration>(build: fn(&Build<'_>) -> Result<Arc<dyn FlowPlugin>, String>) -> Flow {
        Flow { schema: schema_of::<C>, check: |conf| parsed::<C>(conf).map(drop), build }
    }

    /// The same for a configuration that is the instance itself.
    pub const fn itself<P: Configuration + FlowPlugin + 'static>() -> Flow {
        Flow::of::<P>(|build| Ok(Arc::new(build.config::<P>()?)))
    }
}

/// What carries a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Bytes in order.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    /// `TCP` or `UDP`, as nginx shows it.
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

/// The client's first message of TLS, as far as it is read before TLS begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The name that it asks for, as it was sent.
    pub server_name: Option<Arc<str>>,
    /// The protocols above TLS that it offers.
    pub alpn: Vec<Vec<u8>>,
}

/// What came of a session.
#[derive(Debug, Clone, Default)]
pub struct Course {
    /// As nginx numbers it: 200 for one that ended by itself, 4xx and 5xx for one that did not.
    pub status: u16,
    /// Milliseconds since it began.
    pub elapsed_ms: f64,
    /// Bytes that the client sent.
    pub received: u64,
    /// Bytes that the client was sent.
    pub sent: u64,
    /// Bytes that the node sent.
    pub upstream_received: u64,
    /// Bytes that the node was sent.
    pub upstream_sent: u64,
    /// The nodes that were tried, in order.
    pub nodes: Vec<Tried>,
}

/// A node that was tried.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Its address.
    pub addr: NodeAddr,
    /// Milliseconds until the connection stood; None if it did not.
    pub connect_ms: Option<f64>,
}

impl Course {
    /// The nodes that were tried as logs show them, a list; None if there were none.
    pub fn shown_nodes(&self) -> Option<Value> {
        let shown = |node: &Tried| json!({ "node": node.addr.to_string(), "connect_time": node.connect_ms.map(whole_ms) });
        let shown: Vec<Value> = self.nodes.iter().map(shown).collect();
        (!shown.is_empty()).then_some(Value::Array(shown))
    }
}

/// The data of one session that hooks see and change.
#[derive(Default)]
pub struct Session {
    /// Who it is with; its `tls` is there where TLS ended at the gateway.
    pub client: Client,
    /// What carries it.
    pub transport: Transport,
    /// The listener that it came through, with what passes there.
    pub traffic: Arc<Traffic>,
    /// The route that serves it.
    pub route: Arc<FlowFacts>,
    /// The client's first message of TLS, if the listener reads it.
    pub asked: Option<Asked>,
    /// The bytes that the client has sent and no node has yet. They flow on unchanged.
    pub early: Chunk,
    /// The key of an upstream in the place of the route's; see [`Build::upstream_key`].
    pub upstream: Option<Box<str>>,
    /// What slows it down; None if nothing does. Only of sessions over TCP.
    pub paces: Option<Box<Paces>>,
    /// What came of it so far.
    pub course: Course,
    held: Vec<(&'static str, Box<[u8]>)>,
    kept: Vec<Box<dyn Any>>,
}

impl Session {
    /// Sets a variable of the plugin's own.
    pub fn set_variable(&mut self, name: &'static str, value: &[u8]) {
        self.held.retain(|(known, _)| *known != name);
        self.held.push((name, value.into()));
    }

    /// From now on its bytes wait for `pace` as well.
    pub fn slow_down(&mut self, pace: Box<dyn Pace>) {
        self.paces.get_or_insert_default().add(pace);
    }

    /// Keeps a value until the session is over, however it ends.
    pub fn keep(&mut self, value: impl Any) {
        self.kept.push(Box::new(value));
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
    /// The chain of these plugins; of several with one name the last one counts. Disabled ones are left
    /// out.
    pub fn new(entries: impl IntoIterator<Item = Arc<Entry<dyn FlowPlugin>>>) -> FlowChain {
        FlowChain(in_order(entries).into())
    }

    /// The plugins.
    pub fn entries(&self) -> &[Arc<Entry<dyn FlowPlugin>>] {
        &self.0
    }
}
