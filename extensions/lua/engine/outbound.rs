//! Connections of scripts to hosts that no configuration names.
//!
//! Names are resolved on the control thread. Each resolved address is checked each time, so a name that changes its
//! address does not lead into a network that is not allowed.

use std::cell::{Cell, OnceCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust, is_server_name};
use sigma_plugin::{Local, Node};
use sigma_plugin_kit::tallies::{Event, Tally, counted};
use sigma_schema::cidr::{Cidr, CidrSet};
use tokio::sync::{OnceCell as AsyncCell, oneshot};

/// Networks for special use (RFC 6890 and its registries): this machine, private and link-local networks, groups, and
/// forms of IPv6 that lead to addresses of IPv4. `allowed_networks` opens them.
const SPECIAL: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// The most name lookups of one worker at a time: each may hold a thread for as long as the resolver waits.
const LOOKUPS: usize = 32;

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
    special: CidrSet,
    allowed: CidrSet,
    /// Open sockets.
    open: Rc<Cell<usize>>,
    most: usize,
    lookups: Arc<()>,
    verified: AsyncCell<ClientTls>,
    unverified: OnceCell<ClientTls>,
    tally: OnceCell<Tally<SocketEvent>>,
}

/// A place among the sockets of a worker.
struct Seat(Rc<Cell<usize>>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
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
    pub(crate) fn new(allowed: CidrSet, most: usize) -> Outbound {
        let special = SPECIAL.iter().filter_map(|network| network.parse::<Cidr>().ok()).collect();
        Outbound {
            special,
            allowed,
            open: Rc::default(),
            most,
            lookups: Arc::default(),
            verified: AsyncCell::new(),
            unverified: OnceCell::new(),
            tally: OnceCell::new(),
        }
    }

    /// Whether there is no place for another socket.
    pub(crate) fn is_full(&self) -> bool {
        self.open.get() >= self.most
    }

    /// Whether scripts may connect to an address.
    fn is_allowed(&self, ip: IpAddr) -> bool {
        self.allowed.contains(ip) || !self.special.contains(ip)
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
        self.open.set(self.open.get() + 1);
        let seat = Seat(Rc::clone(&self.open));
        let mut reason = "host not found".to_owned();
        for address in self.addresses(worker.node, host, port).await? {
            let ip = address.ip().to_canonical();
            if !self.is_allowed(ip) {
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
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let unknown = || format!("{host} could not be resolved (3: Host not found)");
        if !is_server_name(host) {
            return Err(unknown());
        }
        if Arc::strong_count(&self.lookups) > LOOKUPS {
            return Err(format!("{host} could not be resolved (too many lookups at a time)"));
        }
        let (found, result) = oneshot::channel();
        let (name, place) = (host.to_owned(), Arc::clone(&self.lookups));
        // A lookup blocks a thread, so it is no work for a worker.
        node.spawn(async move {
            let addresses = tokio::net::lookup_host((name.as_str(), port)).await;
            // The script may have gone.
            let _ = found.send(addresses.map(Iterator::collect::<Vec<_>>).unwrap_or_default());
            drop(place);
        });
        match result.await {
            Ok(addresses) if !addresses.is_empty() => Ok(addresses),
            _ => Err(unknown()),
        }
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
    result.await.unwrap_or_else(|_| Err("the trusted authorities cannot be read".to_owned()))
}

/// An error of a socket as nginx writes it: the system's text in small letters.
pub(crate) fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    text.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_networks_need_a_setting() {
        assert!(SPECIAL.iter().all(|network| network.parse::<Cidr>().is_ok()));
        let closed = Outbound::new(CidrSet::EMPTY, 1);
        let open = Outbound::new(["127.0.0.0/8".parse().unwrap()].into_iter().collect(), 1);
        for (address, is_closed, is_open) in [
            ("127.0.0.1", false, true),
            ("::ffff:127.0.0.1", false, true),
            ("10.1.2.3", false, false),
            ("169.254.169.254", false, false),
            ("192.168.0.1", false, false),
            ("100.64.0.1", false, false),
            ("0.0.0.0", false, false),
            ("255.255.255.255", false, false),
            ("::1", false, false),
            ("::", false, false),
            ("::127.0.0.1", false, false),
            ("fe80::1", false, false),
            ("fd00::1", false, false),
            ("64:ff9b::7f00:1", false, false),
            ("2002:7f00:1::", false, false),
            ("::ffff:10.0.0.1", false, false),
            ("8.8.8.8", true, true),
            ("172.32.0.1", true, true),
            ("2606:4700::1", true, true),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(
                (closed.is_allowed(address), open.is_allowed(address)),
                (is_closed, is_open),
                "{address}"
            );
        }
    }
}
