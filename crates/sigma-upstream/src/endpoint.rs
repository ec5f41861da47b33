//! The nodes of an upstream for the data plane, and the one cell that publishes them.
//!
//! The control side turns configured nodes into [`PlannedNode`]s once, gives each an address (see [`crate::dns`]) and
//! publishes the result as an immutable [`EndpointSet`]. A worker holds its own reference through an [`EndpointView`]
//! and reads one read-mostly number per request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};
use sigma_config::resources::{Node, Scheme};
use sigma_http::Fault;

use crate::hashing::{HashNode, MadeAhead};
use crate::health::{Health, HealthEpoch, HealthRecords};
use crate::identity::{EndpointId, EndpointIds, Lease};
use crate::lock::lock;

/// The address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP
    Tcp(SocketAddr),
    /// Unix domain socket
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(addr) => addr.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One address that requests can be sent to.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The lease of its identity.
    pub lease: Lease,
    /// The configured host: a name, an IP address (IPv6 without brackets) or `unix:/path`.
    pub host: String,
    /// The configured port or the scheme's; 0 for unix sockets.
    pub port: u16,
    /// The address to connect to.
    pub addr: Address,
    /// The Host header for `pass_host: node`: `host[:port unless the scheme's default]`.
    pub host_header: String,
    /// The share of requests within the priority group.
    pub weight: u32,
    /// The priority group; higher groups are used first.
    pub priority: i32,
    /// Its metadata.
    pub metadata: Option<Arc<Map<String, Value>>>,
    /// Its health.
    pub health: Arc<Health>,
    /// It is one of several addresses of its host, and its hash name is the address.
    pub by_address: bool,
    /// The UDP port of HTTP/3 that its name announces by HTTPS records.
    pub quic_port: Option<u16>,
}

impl Endpoint {
    /// Returns its identity in tables of workers.
    #[inline]
    pub fn id(&self) -> EndpointId {
        self.lease.id()
    }

    /// Returns `host:port` with brackets around IPv6, or `unix:/path`: its displayed name.
    pub fn name(&self) -> String {
        node_name(&self.host, self.port, &self.addr)
    }

    /// Returns an endpoint at an address that a client has chosen. Nothing checks it.
    pub fn chosen(addr: SocketAddr, lease: Lease) -> Endpoint {
        Endpoint {
            lease,
            host: addr.ip().to_string(),
            port: addr.port(),
            addr: Address::Tcp(addr),
            host_header: addr.to_string(),
            weight: 1,
            priority: 0,
            metadata: None,
            health: Arc::new(Health::unchecked()),
            by_address: false,
            quic_port: None,
        }
    }

    /// Returns it as a node of a hash table, with this weight.
    pub(crate) fn hash_node(&self, weight: u32) -> HashNode {
        HashNode { id: self.id(), by_address: self.by_address, share: weight }
    }

    /// Returns its name for hashing: the same on every gateway.
    ///
    /// A host with one address keeps its hash position when the address changes; several addresses must not share a
    /// position.
    pub(crate) fn hash_name(&self) -> String {
        if self.by_address { self.addr.to_string() } else { self.name() }
    }

    /// Returns true if it may get requests of its sessions. A node of weight 0, or a draining one, keeps its sessions
    /// and gets no others.
    pub fn keeps_sessions(&self) -> bool {
        self.health.keeps_bound()
    }

    /// Returns a text of its metadata.
    pub fn metadata_text(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.get(key)?.as_str()
    }

    /// Returns true if `other` is the same configured node at another address of its name.
    pub fn is_another_address_of(&self, other: &Endpoint) -> bool {
        self.by_address
            && self.addr != other.addr
            && self.port == other.port
            && self.priority == other.priority
            && self.host == other.host
    }

    /// Returns true if both addresses are of the same family.
    pub fn is_of_family_of(&self, other: &Endpoint) -> bool {
        match (&self.addr, &other.addr) {
            (Address::Tcp(one), Address::Tcp(two)) => one.is_ipv4() == two.is_ipv4(),
            (one, two) => one == two,
        }
    }

    /// Returns true if two endpoints are the same for connecting and balancing.
    fn same(&self, other: &Endpoint) -> bool {
        self.id() == other.id()
            && self.addr == other.addr
            && self.weight == other.weight
            && self.priority == other.priority
            && self.metadata == other.metadata
            && self.by_address == other.by_address
            && self.quic_port == other.quic_port
            && Arc::ptr_eq(&self.health, &other.health)
    }
}

/// Returns `host:port` with brackets around IPv6, or `unix:/path`.
pub(crate) fn node_name(host: &str, port: u16, address: &Address) -> String {
    match address {
        Address::Unix(_) => host.to_owned(),
        Address::Tcp(_) if host.contains(':') => format!("[{host}]:{port}"),
        Address::Tcp(_) => format!("{host}:{port}"),
    }
}

/// The endpoints of one upstream at one moment; immutable.
#[derive(Debug)]
pub struct EndpointSet {
    /// In configured order.
    pub endpoints: Vec<Endpoint>,
    /// Unique in the process and increasing; never 0.
    pub generation: u64,
    /// Changes whenever one of `endpoints` becomes usable or unusable.
    pub health_epoch: Arc<HealthEpoch>,
    /// Hash tables built in advance.
    pub made_ahead: MadeAhead,
    /// The reason for an empty set, if no name of a node has an address.
    pub unresolved: Option<Fault>,
}

impl EndpointSet {
    /// Returns a set with a new generation.
    pub fn new(endpoints: Vec<Endpoint>, health_epoch: Arc<HealthEpoch>) -> EndpointSet {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let generation = NEXT.fetch_add(1, Ordering::Relaxed);
        EndpointSet { endpoints, generation, health_epoch, made_ahead: MadeAhead::None, unresolved: None }
    }

    /// Returns true if `other` is equal for a worker.
    pub fn same(&self, other: &EndpointSet) -> bool {
        Arc::ptr_eq(&self.health_epoch, &other.health_epoch)
            && self.unresolved == other.unresolved
            && self.endpoints.len() == other.endpoints.len()
            && self.endpoints.iter().zip(&other.endpoints).all(|(a, b)| a.same(b))
    }
}

/// The published endpoints of one upstream.
#[derive(Debug)]
pub struct UpstreamCell {
    /// The generation of `current`, stored after it: a reader that sees the number finds at least that set under the
    /// lock.
    generation: AtomicU64,
    current: Mutex<Arc<EndpointSet>>,
}

impl UpstreamCell {
    /// Returns a cell with `set`.
    pub fn new(set: Arc<EndpointSet>) -> UpstreamCell {
        UpstreamCell { generation: AtomicU64::new(set.generation), current: Mutex::new(set) }
    }

    /// Replaces the set (control side). Workers see it at their next [`EndpointView::refresh`].
    pub fn publish(&self, set: Arc<EndpointSet>) {
        let mut current = lock(&self.current);
        let generation = set.generation;
        *current = set;
        self.generation.store(generation, Ordering::Release);
    }

    /// Returns the current set; takes the lock, so only for the control side and for refreshes.
    pub fn load(&self) -> Arc<EndpointSet> {
        Arc::clone(&lock(&self.current))
    }
}

/// A worker's own reference to an upstream's endpoints.
///
/// An exchange clones the inner `Rc` to keep a set for its lifetime: with the shared `Arc`, all workers would write
/// one cache line per request.
#[derive(Debug)]
pub struct EndpointView {
    cell: Arc<UpstreamCell>,
    held: LocalSet,
}

/// An [`EndpointSet`] counted within one worker.
pub type LocalSet = Rc<Arc<EndpointSet>>;

impl EndpointView {
    /// Returns a view of `cell`, with its current set.
    pub fn new(cell: Arc<UpstreamCell>) -> EndpointView {
        let held = Rc::new(cell.load());
        EndpointView { cell, held }
    }

    /// Takes a newer set; returns true if there was one. It costs one load if nothing changed.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        if self.cell.generation.load(Ordering::Acquire) == self.held.generation {
            return false;
        }
        self.held = Rc::new(self.cell.load());
        true
    }

    /// Returns the set of the last refresh.
    #[inline]
    pub fn held(&self) -> &LocalSet {
        &self.held
    }
}

/// The location of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// Known from the configuration
    Fixed(Address),
    /// A name to resolve (lower case, no brackets)
    Name(String),
}

/// A configured node, complete except for the address of a host name.
#[derive(Debug, Clone)]
pub struct PlannedNode {
    /// The upstream's scheme.
    pub scheme: Scheme,
    /// See [`Endpoint`].
    pub host: String,
    /// The configured port or the scheme's; 0 for unix sockets.
    pub port: u16,
    /// See [`Endpoint`].
    pub host_header: String,
    /// See [`Endpoint`].
    pub weight: u32,
    /// See [`Endpoint`].
    pub priority: i32,
    /// See [`Endpoint`].
    pub metadata: Option<Arc<Map<String, Value>>>,
    /// Its location.
    pub location: Location,
}

impl PlannedNode {
    /// Returns the endpoint at `addr`. Its identity is leased from `ids`, its health is kept in `records`.
    pub fn at(&self, addr: Address, ids: &EndpointIds, records: &HealthRecords) -> Endpoint {
        let of_name = match (&self.location, &addr) {
            (Location::Name(_), Address::Tcp(addr)) => Some(addr.ip()),
            _ => None,
        };
        Endpoint {
            lease: ids.lease(self.scheme, &self.host, self.port, of_name),
            host: self.host.clone(),
            port: self.port,
            host_header: self.host_header.clone(),
            weight: self.weight,
            priority: self.priority,
            metadata: self.metadata.clone(),
            health: records.of(&self.host, self.port, &addr),
            by_address: false,
            quic_port: None,
            addr,
        }
    }
}

/// Returns the default port of `scheme`; None for stream schemes.
pub fn default_port(scheme: Scheme) -> Option<u16> {
    match scheme {
        Scheme::Http | Scheme::Grpc => Some(80),
        Scheme::Https | Scheme::Grpcs => Some(443),
        // There is no registered port; PHP's process manager uses this one.
        Scheme::Fcgi => Some(9000),
        Scheme::Tcp | Scheme::Tls | Scheme::Udp | Scheme::Kafka => None,
    }
}

/// Completes configured nodes: port, Host header.
///
/// Nodes with the same host, port and priority are merged; the last weight counts. A node without a port is omitted if
/// the scheme has no default; the configuration check has reported it.
pub fn plan_nodes(scheme: Scheme, nodes: &[Node]) -> Vec<PlannedNode> {
    let mut planned: Vec<PlannedNode> = Vec::with_capacity(nodes.len());
    let mut places: HashMap<(String, u16, i32), usize> = HashMap::with_capacity(nodes.len());
    for node in nodes {
        let (host, location, port) = match locate(&node.host, node.port, scheme) {
            Some(found) => found,
            None => continue,
        };
        match places.entry((host.clone(), port, node.priority)) {
            Entry::Occupied(known) => {
                planned[*known.get()].weight = node.weight;
                continue;
            }
            Entry::Vacant(free) => free.insert(planned.len()),
        };
        planned.push(PlannedNode {
            scheme,
            host_header: host_header(&host, &location, port, scheme),
            port,
            weight: node.weight,
            priority: node.priority,
            metadata: node.metadata.as_deref().map(|metadata| Arc::new(metadata.clone())),
            location,
            host,
        });
    }
    planned
}

fn locate(host: &str, port: Option<u16>, scheme: Scheme) -> Option<(String, Location, u16)> {
    if let Some(path) = host.strip_prefix("unix:") {
        return Some((host.to_owned(), Location::Fixed(Address::Unix(PathBuf::from(path))), 0));
    }
    let port = port.or(default_port(scheme))?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let location = match bare.parse::<IpAddr>() {
        Ok(ip) => Location::Fixed(Address::Tcp(SocketAddr::new(ip, port))),
        Err(_) => Location::Name(bare.to_ascii_lowercase()),
    };
    Some((bare.to_owned(), location, port))
}

fn host_header(host: &str, location: &Location, port: u16, scheme: Scheme) -> String {
    let shown = match location {
        // A path is not a host; HTTP over a unix socket uses the name of the local machine.
        Location::Fixed(Address::Unix(_)) => return "localhost".to_owned(),
        Location::Fixed(Address::Tcp(addr)) if addr.is_ipv6() => format!("[{host}]"),
        _ => host.to_owned(),
    };
    if default_port(scheme) == Some(port) { shown } else { format!("{shown}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: Option<u16>, weight: u32, priority: i32) -> Node {
        Node { host: host.into(), port, weight, priority, metadata: None }
    }

    #[test]
    fn hosts_ports_and_host_headers() {
        let check = |scheme, host: &str, port, want: Option<(&str, u16, &str, bool)>| {
            let got = plan_nodes(scheme, &[node(host, port, 1, 0)]);
            let got = got.first().map(|p| {
                let fixed = matches!(p.location, Location::Fixed(_));
                (p.host.as_str(), p.port, p.host_header.as_str(), fixed)
            });
            assert_eq!(got, want, "{scheme:?} {host} {port:?}");
        };
        check(Scheme::Http, "a.test", None, Some(("a.test", 80, "a.test", false)));
        check(Scheme::Http, "A.test", Some(8080), Some(("A.test", 8080, "A.test:8080", false)));
        check(Scheme::Https, "10.0.0.1", None, Some(("10.0.0.1", 443, "10.0.0.1", true)));
        check(Scheme::Https, "10.0.0.1", Some(80), Some(("10.0.0.1", 80, "10.0.0.1:80", true)));
        check(Scheme::Http, "[::1]", Some(81), Some(("::1", 81, "[::1]:81", true)));
        check(Scheme::Http, "::1", None, Some(("::1", 80, "[::1]", true)));
        check(Scheme::Http, "unix:/s", None, Some(("unix:/s", 0, "localhost", true)));
        check(Scheme::Tcp, "a.test", None, None);
        check(Scheme::Tcp, "a.test", Some(5), Some(("a.test", 5, "a.test:5", false)));
    }

    #[test]
    fn addresses_of_a_name_are_one_node() {
        let named = |host: &str, port, priority, addr: &str| {
            let planned = plan_nodes(Scheme::Http, &[node(host, Some(port), 1, priority)]);
            let addr = Address::Tcp(addr.parse().expect("an address"));
            let endpoint = planned[0].at(addr, &EndpointIds::default(), &HealthRecords::default());
            Endpoint { by_address: true, ..endpoint }
        };
        let v4 = named("a.test", 80, 0, "10.0.0.1:80");
        for (other, is_same_node, is_same_family) in [
            (named("a.test", 80, 0, "[2001:db8::1]:80"), true, false),
            (named("a.test", 80, 0, "10.0.0.2:80"), true, true),
            (named("a.test", 80, 0, "10.0.0.1:80"), false, true),
            (named("a.test", 81, 0, "10.0.0.2:81"), false, true),
            (named("a.test", 80, 1, "10.0.0.2:80"), false, true),
            (named("b.test", 80, 0, "[2001:db8::1]:80"), false, false),
            (Endpoint { by_address: false, ..named("a.test", 80, 0, "10.0.0.2:80") }, false, true),
        ] {
            let got = (other.is_another_address_of(&v4), other.is_of_family_of(&v4));
            assert_eq!(got, (is_same_node, is_same_family), "{} {}", other.name(), other.addr);
        }
    }

    #[test]
    fn same_host_port_and_priority_are_merged() {
        let got = plan_nodes(
            Scheme::Http,
            &[node("a", None, 1, 0), node("b", None, 2, 0), node("a", Some(80), 7, 0), node("a", None, 3, 1)],
        );
        let got: Vec<_> = got.iter().map(|p| (&*p.host, p.weight, p.priority)).collect();
        assert_eq!(got, [("a", 7, 0), ("b", 2, 0), ("a", 3, 1)]);
    }

    #[test]
    fn a_view_follows_its_cell() {
        let epoch = Arc::new(HealthEpoch::default());
        let first = Arc::new(EndpointSet::new(Vec::new(), Arc::clone(&epoch)));
        let cell = Arc::new(UpstreamCell::new(Arc::clone(&first)));
        let mut view = EndpointView::new(Arc::clone(&cell));
        assert!(!view.refresh());
        let second = Arc::new(EndpointSet::new(Vec::new(), epoch));
        assert!(first.same(&second) && first.generation < second.generation);
        cell.publish(Arc::clone(&second));
        assert!(view.refresh());
        assert_eq!(view.held().generation, second.generation);
        assert!(!view.refresh());
    }
}
