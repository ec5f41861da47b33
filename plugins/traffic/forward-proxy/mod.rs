//! `forward-proxy`: tunnels to hosts that clients name.

mod target;
mod tunnel;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_net::datagram::DatagramSocket;
use sigma_net::{Deadline, Stream};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Node, Phase, PhaseSet, Plugin, Reply, Step, Takeover,
};
use sigma_schema::cidr::CidrSet;

use sigma_plugin_kit::destinations::{Lookups, Reachable, Unresolved};
use sigma_plugin_kit::networks::Networks;
use sigma_plugin_kit::tallies::{Counted, counted};
use target::{Carries, Destination, Hosts, asked};
use tunnel::{ByteTunnel, Bytes, DatagramTunnel, Meter, Seats, Tunnels};

/// The plugin.
pub(crate) static FORWARD_PROXY: Descriptor = Descriptor {
    name: "forward-proxy",
    priority: 485,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(Arc::new(ForwardProxy::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Opens tunnels to hosts that clients name: over TCP by CONNECT, and over UDP by CONNECT-UDP (RFC 9298, MASQUE).
///
/// Sigma's own. The route must allow the tunnel in `upgrade_protocols`: `connect` for CONNECT, `connect-udp` for
/// CONNECT-UDP. Over HTTP/2 and HTTP/3 both are streams; over HTTP/1.1 CONNECT-UDP is an upgrade. The path of
/// CONNECT-UDP ends with `/HOST/PORT/`. The host of a CONNECT is its target: `host` of a route selects by it.
///
/// Nothing is reachable unless it is listed. Addresses for special use (private networks, this machine, link-local,
/// documentation) and addresses of this machine are refused, also if a name resolves to them, unless
/// `allowed_networks` contains them. Plugins that authenticate protect the route; in a CONNECT they read
/// `Proxy-Authorization` instead of `Authorization`, and their 401 becomes 407. `limit-conn` and `limit-bandwidth` hold
/// for tunnels; `timeouts.tunnel_idle_ms` ends idle ones. The plugin responds to every request on its route.
///
/// Statuses: 400 for an invalid target, 403 for one that is not allowed, 502 if it has no address or refuses, 503 over
/// a limit, 504 after `connect_timeout`.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Config {
    /// Hosts that clients may reach: names, `*.NAME` for all names below one, IP addresses, or `*` for all.
    #[schemars(length(min = 1, max = 1000))]
    hosts: Vec<String>,
    /// Ports that clients may reach.
    #[schemars(length(min = 1, max = 100), inner(range(min = 1)), extend("default" = [443]))]
    ports: Vec<u16>,
    /// Networks for special use that clients may reach all the same.
    allowed_networks: Option<Networks>,
    /// Seconds for the lookup of the name and the connection.
    #[schemars(range(min = 1, max = 60), extend("default" = 5))]
    connect_timeout: u32,
    /// Tunnels of a worker at a time, over all instances of the plugin.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 1000))]
    max_tunnels: u32,
    /// Bytes of a tunnel in both directions together, after which it is closed. Default: no limit.
    #[schemars(range(min = 1))]
    max_bytes: Option<u64>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        Hosts::new(&self.hosts).map(|_| ())
    }
}

/// The rules of an instance.
struct Rules {
    hosts: Hosts,
    ports: Box<[u16]>,
    reachable: Reachable,
    connect_ms: u64,
    max_tunnels: usize,
    max_bytes: Option<u64>,
}

/// An instance.
struct ForwardProxy {
    rules: Arc<Rules>,
    tunnels: Counted<Tunnels>,
    bytes: Counted<Bytes>,
}

/// The reason why a tunnel is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    NoTarget,
    Refused,
    OverLimit,
    Unresolved,
    TimedOut,
    Unreachable,
}

impl Failed {
    fn reply(self) -> Reply {
        let (status, reason) = match self {
            Failed::NoTarget => (400, "the request has no target for a tunnel"),
            Failed::Refused => (403, "the target of a tunnel is not allowed"),
            Failed::OverLimit => (503, "the worker has reached its limit of tunnels"),
            Failed::Unresolved => (502, "the target of a tunnel has no address"),
            Failed::TimedOut => (504, "the target of a tunnel did not respond in time"),
            Failed::Unreachable => (502, "the target of a tunnel is unreachable"),
        };
        Reply::new(status).because(reason)
    }

    fn event(self) -> Tunnels {
        match self {
            Failed::NoTarget | Failed::Refused => Tunnels::Refused,
            Failed::OverLimit => Tunnels::OverLimit,
            Failed::Unresolved | Failed::TimedOut | Failed::Unreachable => Tunnels::Failed,
        }
    }
}

/// The connection to a target.
enum Opened {
    Bytes(Stream),
    Datagrams(DatagramSocket),
}

impl ForwardProxy {
    fn new(build: &Build<'_>) -> Result<ForwardProxy, String> {
        let config = build.config::<Config>()?;
        let allowed = config.allowed_networks.map_or(CidrSet::EMPTY, Networks::into_set);
        let rules = Rules {
            hosts: Hosts::new(&config.hosts)?,
            ports: config.ports.into(),
            reachable: Reachable::new(allowed),
            connect_ms: u64::from(config.connect_timeout) * 1_000,
            max_tunnels: config.max_tunnels as usize,
            max_bytes: config.max_bytes,
        };
        let (tunnels, bytes) = (counted(build.node, build.resource), counted(build.node, build.resource));
        Ok(ForwardProxy { rules: Arc::new(rules), tunnels, bytes })
    }

    /// Returns the destination of a request that may be connected to.
    fn admit(&self, ctx: &Context) -> Result<(Destination, Carries), Failed> {
        let carries = asked(&ctx.request).ok_or(Failed::NoTarget)?;
        let destination = Destination::of(&ctx.request, carries).ok_or(Failed::NoTarget)?;
        let is_allowed =
            self.rules.ports.contains(&destination.port) && self.rules.hosts.contain(&destination.host);
        if is_allowed { Ok((destination, carries)) } else { Err(Failed::Refused) }
    }
}

impl Plugin for ForwardProxy {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let tunnels = self.tunnels.tally(env.local);
        let refuse = |failed: Failed| -> Step {
            tunnels.count(failed.event());
            failed.reply().into()
        };
        let (destination, carries) = match self.admit(ctx) {
            Ok(admitted) => admitted,
            Err(failed) => return refuse(failed),
        };
        let seats = env.local.part(Seats::new);
        let Some(seat) = seats.take(self.rules.max_tunnels) else { return refuse(Failed::OverLimit) };
        let own = ctx.client.local;
        let connecting = connect(
            Arc::clone(&self.rules),
            Arc::clone(env.node),
            seats.lookups.clone(),
            destination,
            carries,
            own,
        );
        let meter = Meter::new(self.bytes.tally(env.local), self.rules.max_bytes);
        let tunnels = tunnels.clone();
        Step::wait(connecting, move |opened, _, _| {
            let opened = match opened {
                Ok(opened) => opened,
                Err(failed) => {
                    tunnels.count(failed.event());
                    return failed.reply().into();
                }
            };
            tunnels.count(Tunnels::Opened);
            let held = tunnel::OpenTunnel { _seat: seat, tunnels };
            let (reply, peer): (Reply, Box<dyn Takeover>) = match opened {
                Opened::Bytes(stream) => (Reply::new(200), Box::new(ByteTunnel::new(stream, meter, held))),
                Opened::Datagrams(socket) => {
                    let reply = Reply::new(101).header("Capsule-Protocol", *b"?1");
                    (reply, Box::new(DatagramTunnel::new(socket, Rc::clone(&seats.batch), meter, held)))
                }
            };
            Step::Takeover(Box::new(reply), peer)
        })
    }
}

/// Connects to a destination. `own` is the address at which the client reached the gateway: a tunnel to it would be a
/// loop.
async fn connect(
    rules: Arc<Rules>,
    node: Arc<Node>,
    lookups: Lookups,
    destination: Destination,
    carries: Carries,
    own: Option<SocketAddr>,
) -> Result<Opened, Failed> {
    let deadline = Deadline::new();
    deadline.set(rules.connect_ms);
    let connecting = async {
        let found = lookups.addresses(&node, &destination.host, destination.port).await;
        let addresses = found.map_err(|unresolved| match unresolved {
            Unresolved::Unknown => Failed::Unresolved,
            Unresolved::Busy => Failed::OverLimit,
        })?;
        let mut failed = Failed::Unresolved;
        for addr in addresses {
            let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
            if !rules.reachable.contains(addr.ip()) || own == Some(addr) {
                failed = Failed::Refused;
                continue;
            }
            match opened(addr, carries).await {
                // Its own address leads to this machine.
                Ok((_, Some(local))) if local.ip() == addr.ip() && !rules.reachable.allows(addr.ip()) => {
                    failed = Failed::Refused;
                }
                Ok((opened, _)) => return Ok(opened),
                Err(error) => {
                    tracing::debug!(%addr, %error, "cannot open a tunnel");
                    failed = Failed::Unreachable;
                }
            }
        }
        Err(failed)
    };
    deadline.bound(connecting).await.unwrap_or(Err(Failed::TimedOut))
}

/// Connects to an address; returns the local address of the connection as well.
async fn opened(addr: SocketAddr, carries: Carries) -> std::io::Result<(Opened, Option<SocketAddr>)> {
    match carries {
        Carries::Bytes => {
            let stream = Stream::dial_tcp(addr).await?;
            let local = stream.local_addr();
            Ok((Opened::Bytes(stream), local))
        }
        Carries::Datagrams => {
            let socket = DatagramSocket::connect(addr)?;
            let local = socket.local_addr();
            Ok((Opened::Datagrams(socket), local))
        }
    }
}
