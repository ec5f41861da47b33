//! Connections of scripts to hosts that no configuration names.

use std::cell::{Cell, OnceCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust};
use sigma_plugin::script_counts::OpenSockets;
use sigma_plugin::{Local, Node};
use sigma_plugin_kit::destinations::{Lookups, Reachable, Unresolved};
use sigma_plugin_kit::tallies::{Event, Tally, counted};
use sigma_schema::cidr::CidrSet;
use tokio::sync::{OnceCell as AsyncCell, oneshot};

/// Counted events of scripts' sockets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketEvent {
    Opened,
    /// The address is in a network that is not allowed.
    Refused,
    /// The worker has no socket left for scripts.
    OverLimit,
}

impl Event for SocketEvent {
    const METRIC: &'static str = "lua_sockets_total";
    const HELP: &'static str = "Connections that Lua scripts opened or tried to open.";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] =
        &[&[("result", "opened")], &[("result", "refused")], &[("result", "over_limit")]];

    fn number(self) -> usize {
        self as usize
    }
}

/// The connections of the scripts of one worker.
pub(crate) struct Outbound {
    reachable: Reachable,
    open: Rc<Open>,
    most: usize,
    lookups: Lookups,
    verified: AsyncCell<ClientTls>,
    unverified: OnceCell<ClientTls>,
    tally: OnceCell<Tally<SocketEvent>>,
}

/// The number of open sockets.
struct Open {
    number: Cell<usize>,
    /// The same for metrics.
    shown: Arc<OpenSockets>,
}

impl Open {
    fn set(&self, number: usize) {
        self.number.set(number);
        self.shown.set(number);
    }
}

/// A place among the sockets of a worker.
struct Seat(Rc<Open>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.number.get().saturating_sub(1));
    }
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// How often it came from a pool.
    pub(crate) reuses: u32,
    /// The name that its certificate was verified for; None without TLS or verification.
    pub(crate) verified: Option<Box<str>>,
    _seat: Seat,
}

impl Connection {
    /// Whether it is open, and the peer has sent nothing that was not read.
    pub(crate) fn is_quiet(&mut self) -> bool {
        // A server of TLS may have sent tickets, which are no bytes for scripts.
        if self.stream.tls().is_some() { self.stream.is_quiet() } else { self.stream.is_quiet_now() }
    }
}

/// The worker that connects.
pub(crate) struct Worker<'a> {
    pub(crate) node: &'a Node,
    pub(crate) local: &'a Local,
}

impl Outbound {
    pub(crate) fn new(allowed: CidrSet, most: usize, shown: Arc<OpenSockets>) -> Outbound {
        Outbound {
            reachable: Reachable::new(allowed),
            open: Rc::new(Open { number: Cell::new(0), shown }),
            most,
            lookups: Lookups::default(),
            verified: AsyncCell::new(),
            unverified: OnceCell::new(),
            tally: OnceCell::new(),
        }
    }

    /// Whether there is no place for another socket.
    pub(crate) fn is_full(&self) -> bool {
        self.open.number.get() >= self.most
    }

    fn count(&self, worker: &Worker<'_>, event: SocketEvent) {
        let made = || counted::<SocketEvent>(worker.node, "scripts").tally(worker.local);
        self.tally.get_or_init(made).count(event);
    }

    /// Opens a connection to the first address that accepts it.
    ///
    /// # Errors
    /// Returns an error for the script.
    pub(crate) async fn connect(
        &self,
        worker: Worker<'_>,
        host: &str,
        port: u16,
    ) -> Result<Connection, String> {
        if self.is_full() {
            self.count(&worker, SocketEvent::OverLimit);
            return Err(format!("scripts of a worker may have {} sockets at most", self.most));
        }
        self.open.set(self.open.number.get() + 1);
        let seat = Seat(Rc::clone(&self.open));
        let mut reason = "host not found".to_owned();
        for address in self.addresses(worker.node, host, port).await? {
            let ip = address.ip().to_canonical();
            if !self.reachable.contains(ip) {
                self.count(&worker, SocketEvent::Refused);
                reason = format!("scripts may not connect to {ip}; see the setting allowed_networks");
                continue;
            }
            match Stream::dial_tcp(SocketAddr::new(ip, port)).await {
                Ok(stream) => {
                    self.count(&worker, SocketEvent::Opened);
                    return Ok(Connection { stream, reuses: 0, verified: None, _seat: seat });
                }
                Err(error) => reason = text_of(&error),
            }
        }
        Err(reason)
    }

    /// The addresses of a host.
    async fn addresses(&self, node: &Node, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let found = self.lookups.addresses(node, host, port).await;
        found.map_err(|unresolved| match unresolved {
            Unresolved::Unknown => format!("{host} could not be resolved (3: Host not found)"),
            Unresolved::Busy => format!("{host} could not be resolved (too many lookups at a time)"),
        })
    }

    /// Encrypts a connection. With `verify` the server's certificate must be valid for the name.
    ///
    /// # Errors
    /// Returns an error for the script; the connection is closed.
    pub(crate) async fn encrypt(
        &self,
        node: &Node,
        connection: Connection,
        name: &str,
        verify: bool,
    ) -> Result<Connection, String> {
        let tls = if verify {
            self.verified.get_or_try_init(|| verifying(node)).await?
        } else {
            self.unverified()?
        };
        let Connection { stream, reuses, _seat, .. } = connection;
        let stream = tls.shake(stream, name).await.map_err(|error| error.to_string())?;
        Ok(Connection { stream, reuses, verified: verify.then(|| name.into()), _seat })
    }

    fn unverified(&self) -> Result<&ClientTls, String> {
        if let Some(tls) = self.unverified.get() {
            return Ok(tls);
        }
        let tls = ClientTls::new(ClientSettings::default()).map_err(|error| error.to_string())?;
        Ok(self.unverified.get_or_init(|| tls))
    }
}

/// TLS with the authorities of the system, which are read on the control thread.
async fn verifying(node: &Node) -> Result<ClientTls, String> {
    let (found, result) = oneshot::channel();
    node.spawn(async move {
        let made = Authorities::system().and_then(|authorities| {
            ClientTls::new(ClientSettings {
                trust: Trust::Authorities(authorities),
                ..ClientSettings::default()
            })
        });
        // The script may have gone.
        let _ = found.send(made.map_err(|error| error.to_string()));
    });
    result.await.unwrap_or_else(|_| Err("cannot read the trusted authorities".to_owned()))
}

/// An error of a socket as nginx writes it: the system's text in small letters.
pub(crate) fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    text.to_ascii_lowercase()
}
