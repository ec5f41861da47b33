//! Addresses of nodes that are configured by name.
//!
//! A [`Watch`] belongs to one upstream: it resolves the names among its nodes, publishes a new
//! endpoint set when the addresses change, and asks again when the records expire. Every address of
//! a name is an endpoint of its own, with the weight and priority of the node: requests are spread
//! over all of them, and one that is dead is passed over like any dead node. While a name cannot be
//! resolved its last addresses stay.
//!
//! `/etc/hosts` and the system's resolver configuration are read once, when the [`Resolver`] is
//! made. IPv4 is preferred; IPv6 is asked for if there is no IPv4 address: many machines have
//! addresses of a family that leads nowhere.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;
use tokio::task::JoinSet;

use crate::endpoint::{Address, EndpointSet, Location, PlannedNode, UpstreamCell};
use crate::health::HealthRecords;
use crate::identity::EndpointIds;

/// Records are asked for again no sooner, even if their TTL is 0.
pub const TTL_MIN: Duration = Duration::from_secs(1);

/// Records are asked for again no later, however long their TTL is.
pub const TTL_MAX: Duration = Duration::from_secs(3600);

/// A failed query is repeated after this long, then twice as long, up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Longest pause between failed queries.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Timeout of one query (APISIX's default).
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Most addresses of one name that are used. A service with more of them should be a registry's;
/// without a limit whoever answers for a name could fill the memory with endpoints.
pub const ADDRESSES_MAX: usize = 256;

/// Why a name has no address.
#[derive(Debug, Clone)]
pub struct DnsError(String);

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DnsError {}

/// Addresses of a name and until when they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// When to ask again.
    pub valid_until: Instant,
}

/// Asks name servers. Cheap to clone; clones share a cache.
#[derive(Clone)]
pub struct Resolver {
    inner: TokioResolver,
    config: ResolverConfig,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("servers", &self.config.name_servers()).finish()
    }
}

impl Resolver {
    /// A resolver by the system's configuration.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn from_system() -> Result<Resolver, DnsError> {
        let (config, options) = read_system_conf().map_err(|error| {
            DnsError(format!("the system's resolver configuration (/etc/resolv.conf): {error}"))
        })?;
        Resolver::build(config, options)
    }

    /// A resolver that asks these servers.
    ///
    /// # Errors
    /// The resolver cannot be built.
    pub fn with_servers(servers: &[SocketAddr]) -> Result<Resolver, DnsError> {
        let server = |addr: &SocketAddr| {
            let on_port = |mut connection: ConnectionConfig| {
                connection.port = addr.port();
                connection
            };
            let connections = vec![on_port(ConnectionConfig::udp()), on_port(ConnectionConfig::tcp())];
            NameServerConfig::new(addr.ip(), true, connections)
        };
        let servers = servers.iter().map(server).collect();
        Resolver::build(ResolverConfig::from_name_servers(servers), ResolverOpts::default())
    }

    fn build(config: ResolverConfig, mut options: ResolverOpts) -> Result<Resolver, DnsError> {
        options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
        options.timeout = options.timeout.min(QUERY_TIMEOUT);
        options.positive_min_ttl = Some(TTL_MIN);
        options.positive_max_ttl = Some(TTL_MAX);
        // A name that is missing now may be about to appear; the backoff of a watch decides.
        options.negative_min_ttl = Some(Duration::ZERO);
        options.negative_max_ttl = Some(Duration::ZERO);
        let provider = TokioRuntimeProvider::default();
        let inner = TokioResolver::builder_with_config(config.clone(), provider)
            .with_options(options)
            .build()
            .map_err(|error| DnsError(error.to_string()))?;
        Ok(Resolver { inner, config })
    }

    /// The addresses of `name`. `localhost` and IP addresses are answered without a query.
    ///
    /// # Errors
    /// The query failed or there is no address.
    pub async fn addresses(&self, name: &str) -> Result<Answer, DnsError> {
        let known = match name {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            _ => name.parse().ok(),
        };
        if let Some(ip) = known {
            return Ok(Answer { addresses: vec![ip], valid_until: Instant::now() + TTL_MAX });
        }
        let lookup = self.inner.lookup_ip(name).await;
        let lookup = lookup.map_err(|error| DnsError(error.to_string()))?;
        let addresses: Vec<IpAddr> = lookup.iter().collect();
        if addresses.is_empty() {
            return Err(DnsError("no address record".to_owned()));
        }
        // Entries of the hosts file come without a useful TTL, so both bounds are applied here too.
        let now = Instant::now();
        let valid_until = lookup.valid_until().clamp(now + TTL_MIN, now + TTL_MAX);
        Ok(Answer { addresses, valid_until })
    }
}

/// Keeps the addresses of one upstream's nodes.
#[derive(Debug)]
pub struct Watch {
    resolver: Resolver,
    nodes: Vec<PlannedNode>,
    ids: Arc<EndpointIds>,
    health: Arc<HealthRecords>,
    names: HashMap<String, Named>,
}

#[derive(Debug, Clone)]
struct Named {
    addresses: Vec<IpAddr>,
    due: Instant,
    failures: u32,
}

/// The addresses of a name after another answer: those that were there before come first and in
/// their order, also where there are too many, so that an answer in another order changes nothing.
fn succeed(name: &str, known: &[IpAddr], answer: &[IpAddr]) -> Vec<IpAddr> {
    let mut next: Vec<IpAddr> = known.iter().filter(|ip| answer.contains(ip)).copied().collect();
    for ip in answer {
        if next.contains(ip) {
            continue;
        }
        if next.len() == ADDRESSES_MAX {
            tracing::warn!(name, known = answer.len(), used = ADDRESSES_MAX, "a node has too many addresses");
            break;
        }
        next.push(*ip);
    }
    next
}

impl Watch {
    /// A watch of `nodes`, whose endpoints get identities from `ids`; nothing is resolved yet.
    pub fn new(
        resolver: Resolver,
        nodes: Vec<PlannedNode>,
        ids: Arc<EndpointIds>,
        health: Arc<HealthRecords>,
    ) -> Watch {
        let named = Named { addresses: Vec::new(), due: Instant::now(), failures: 0 };
        let names = nodes.iter().filter_map(|node| match &node.location {
            Location::Name(name) => Some((name.clone(), named.clone())),
            Location::Fixed(_) => None,
        });
        let names = names.collect();
        Watch { resolver, nodes, ids, health, names }
    }

    /// Whether any node has to be resolved. Without one, [`Watch::run`] has nothing to do.
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// The endpoints by what is known now. Names that were never resolved are left out.
    pub fn endpoints(&self) -> EndpointSet {
        let mut endpoints = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            match &node.location {
                Location::Fixed(addr) => endpoints.push(node.at(addr.clone(), &self.ids, &self.health)),
                Location::Name(name) => {
                    let addresses = self.names.get(name).into_iter().flat_map(|named| &named.addresses);
                    endpoints.extend(addresses.map(|ip| {
                        node.at(Address::Tcp(SocketAddr::new(*ip, node.port)), &self.ids, &self.health)
                    }));
                }
            }
        }
        EndpointSet::new(endpoints, Arc::clone(self.health.epoch()))
    }

    /// Resolves and publishes into `cell` until dropped; ends at once if no node is a name.
    pub async fn run(mut self, cell: Arc<UpstreamCell>) {
        while let Some(due) = self.names.values().map(|named| named.due).min() {
            tokio::time::sleep_until(due.into()).await;
            self.resolve_due(Instant::now()).await;
            let next = self.endpoints();
            if !next.same(&cell.load()) {
                cell.publish(Arc::new(next));
            }
        }
    }

    async fn resolve_due(&mut self, now: Instant) {
        let due = self.names.iter().filter(|(_, named)| named.due <= now);
        let mut queries = JoinSet::new();
        for (name, _) in due {
            let (resolver, name) = (self.resolver.clone(), name.clone());
            queries.spawn(async move {
                let answer = resolver.addresses(&name).await;
                (name, answer)
            });
        }
        while let Some(result) = queries.join_next().await {
            if let Ok((name, answer)) = result {
                self.learn(&name, answer, Instant::now());
            }
        }
        // A query that ended without a result (its task panicked) must not make a busy loop.
        for named in self.names.values_mut().filter(|named| named.due <= now) {
            named.due = now + RETRY_MIN;
        }
    }

    fn learn(&mut self, name: &str, answer: Result<Answer, DnsError>, now: Instant) {
        let Some(named) = self.names.get_mut(name) else { return };
        match answer {
            Ok(answer) => {
                named.addresses = succeed(name, &named.addresses, &answer.addresses);
                named.due = answer.valid_until.max(now + TTL_MIN);
                named.failures = 0;
            }
            Err(error) => {
                let kept = &named.addresses;
                tracing::warn!(name, %error, ?kept, "cannot resolve upstream node");
                named.due = now + backoff(named.failures);
                named.failures = named.failures.saturating_add(1);
            }
        }
    }
}

/// Resolves the names of all `watches`, waiting no longer than `timeout`, so that a first
/// snapshot has addresses. The calling thread goes on with its other tasks meanwhile.
///
/// What is not resolved in time is left to [`Watch::run`], which asks again at once.
pub async fn resolve_initial(watches: &mut [Watch], timeout: Duration) {
    let names: HashSet<String> = watches.iter().flat_map(|w| w.names.keys().cloned()).collect();
    let Some(resolver) = watches.iter().find(|w| w.has_names()).map(|w| w.resolver.clone()) else {
        return;
    };
    let answers = resolve_all(&resolver, names, timeout).await;
    let now = Instant::now();
    for watch in watches {
        for (name, answer) in &answers {
            watch.learn(name, answer.clone(), now);
        }
    }
}

type Answers = Vec<(String, Result<Answer, DnsError>)>;

async fn resolve_all(resolver: &Resolver, names: HashSet<String>, timeout: Duration) -> Answers {
    let mut queries = JoinSet::new();
    for name in names {
        let resolver = resolver.clone();
        queries.spawn(async move {
            let answer = resolver.addresses(&name).await;
            (name, answer)
        });
    }
    let mut answers = Vec::new();
    let collect = async {
        while let Some(result) = queries.join_next().await {
            answers.extend(result);
        }
    };
    if tokio::time::timeout(timeout, collect).await.is_err() {
        tracing::warn!(?timeout, "some upstream nodes are not resolved yet");
    }
    answers
}

fn backoff(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{EndpointView, plan_nodes};
    use sigma_config::resources::{Node, Scheme};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::UdpSocket;

    /// Answers every A query with `records` and TTL 1, and AAAA queries with nothing; counts.
    async fn name_server(records: Arc<Mutex<Vec<Ipv4Addr>>>) -> (SocketAddr, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let addr = socket.local_addr().expect("address");
        tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((_, client)) = socket.recv_from(&mut query).await {
                let records = records.lock().expect("lock").clone();
                let reply = reply(&query, &records);
                let _ = socket.send_to(&reply, client).await;
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        (addr, asked)
    }

    fn reply(query: &[u8], records: &[Ipv4Addr]) -> Vec<u8> {
        let name_end = 12 + query[12..].iter().position(|&b| b == 0).expect("root label");
        let question_end = name_end + 5;
        let is_a = query[name_end + 1..name_end + 3] == [0, 1];
        let records = if is_a { records } else { &[] };
        // Response, recursion desired and available; NXDOMAIN if there is nothing at all.
        let code = if is_a && records.is_empty() { 0x83 } else { 0x80 };
        let mut out = vec![query[0], query[1], 0x81, code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0];
        out.extend_from_slice(&query[12..question_end]);
        for ip in records {
            out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            out.extend_from_slice(&ip.octets());
        }
        out
    }

    fn watch(resolver: Resolver, hosts: &[&str]) -> Watch {
        let node = |host: &&str| Node { host: (*host).into(), weight: 3, ..Node::default() };
        let nodes: Vec<Node> = hosts.iter().map(node).collect();
        let ids = Arc::new(EndpointIds::default());
        let nodes = plan_nodes(Scheme::Http, &nodes);
        Watch::new(resolver, nodes, ids, Arc::default())
    }

    fn shown(set: &EndpointSet) -> Vec<String> {
        set.endpoints.iter().map(|e| e.addr.to_string()).collect()
    }

    async fn wait_for(cell: &Arc<UpstreamCell>, want: &[&str]) {
        let mut view = EndpointView::new(Arc::clone(cell));
        let arrived = async {
            while shown(view.held()) != want {
                view.refresh();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let arrived = tokio::time::timeout(Duration::from_secs(20), arrived).await;
        assert!(arrived.is_ok(), "want {want:?}, have {:?}", shown(&cell.load()));
    }

    /// Waits for two queries: the answer to the first has then been taken in.
    async fn two_more(asked: &AtomicUsize) {
        let start = asked.load(Ordering::SeqCst);
        let come = async {
            while asked.load(Ordering::SeqCst) < start + 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), come).await.expect("queries");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn addresses_follow_the_records() {
        let records = Arc::new(Mutex::new(vec![Ipv4Addr::new(127, 0, 0, 7)]));
        let (server, asked) = name_server(Arc::clone(&records)).await;
        let resolver = Resolver::with_servers(&[server]).expect("resolver");
        let mut watches = [watch(resolver, &["a.sigma.test.", "10.1.1.1", "localhost"])];
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        let [watch] = watches;
        let first = watch.endpoints();
        assert_eq!(shown(&first), ["127.0.0.7:80", "10.1.1.1:80", "127.0.0.1:80"]);

        let cell = Arc::new(UpstreamCell::new(Arc::new(first)));
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        // Every record is an endpoint; the one that was there keeps its place.
        *records.lock().expect("lock") = vec![Ipv4Addr::new(127, 0, 0, 8), Ipv4Addr::new(127, 0, 0, 7)];
        wait_for(&cell, &["127.0.0.7:80", "127.0.0.8:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        let before = cell.load();
        assert!(before.endpoints.iter().all(|e| e.weight == 3));
        // One that comes is an endpoint of its own, with a health of its own.
        *records.lock().expect("lock") = vec![Ipv4Addr::new(127, 0, 0, 9), Ipv4Addr::new(127, 0, 0, 8)];
        wait_for(&cell, &["127.0.0.8:80", "127.0.0.9:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        let after = cell.load();
        assert_eq!(after.endpoints[0].id(), before.endpoints[1].id());
        assert!(Arc::ptr_eq(&after.endpoints[0].health, &before.endpoints[1].health));
        assert!(before.endpoints.iter().all(|e| e.id() != after.endpoints[1].id()));
        assert!(!Arc::ptr_eq(&after.endpoints[1].health, &before.endpoints[0].health));
        // A name that fails keeps its last good addresses.
        records.lock().expect("lock").clear();
        two_more(&asked).await;
        wait_for(&cell, &["127.0.0.8:80", "127.0.0.9:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        running.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_name_without_address_is_left_out_until_it_has_one() {
        let records = Arc::new(Mutex::new(Vec::new()));
        let (server, _) = name_server(Arc::clone(&records)).await;
        let resolver = Resolver::with_servers(&[server]).expect("resolver");
        let mut watches = [watch(resolver, &["a.sigma.test.", "10.1.1.1"])];
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        let [watch] = watches;
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.endpoints())));
        assert_eq!(shown(&cell.load()), ["10.1.1.1:80"]);
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        records.lock().expect("lock").push(Ipv4Addr::new(127, 0, 0, 7));
        wait_for(&cell, &["127.0.0.7:80", "10.1.1.1:80"]).await;
        running.abort();
    }

    #[test]
    fn addresses_keep_their_order_and_are_bounded() {
        let ip = |n: usize| IpAddr::V4(Ipv4Addr::new(10, 0, (n >> 8) as u8, n as u8));
        let ips = |list: &[usize]| list.iter().map(|n| ip(*n)).collect::<Vec<_>>();
        let check = |known: &[usize], answer: &[usize], want: &[usize]| {
            assert_eq!(succeed("n", &ips(known), &ips(answer)), ips(want));
        };
        check(&[], &[2, 1, 2], &[2, 1]);
        check(&[2, 1], &[1], &[1]);
        check(&[1], &[3, 1, 4], &[1, 3, 4]);
        let many: Vec<usize> = (0..ADDRESSES_MAX + 50).collect();
        let turned: Vec<usize> = many.iter().rev().copied().collect();
        check(&[], &many, &many[..ADDRESSES_MAX]);
        check(&many[..ADDRESSES_MAX], &turned, &many[..ADDRESSES_MAX]);
    }

    #[test]
    fn pauses_between_failures_grow() {
        let pauses: Vec<u64> = (0..7).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }
}
