//! The endpoints of one upstream over time.
//!
//! A [`Watch`] belongs to one upstream: it reads nodes from its feed if they are not configured, resolves their
//! names, publishes a new endpoint set after a change, and queries again when the records expire. Every address of a
//! name is a separate endpoint, with the weight and priority of the node: requests are spread over all of them, and a
//! dead one is skipped like any dead node. While a name cannot be resolved, its last addresses stay; while a feed
//! fails, its last list stays.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::resources::{Balance, Node, Scheme};
use sigma_http::{Fault, FaultKind};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::announcements::Announcements;
use crate::balance::made_ahead;
use crate::dns::{ADDRESSES_MAX, DnsError, ResolvedName, Resolver, TTL_MIN, succeed};
use crate::endpoint::{Address, Endpoint, EndpointSet, Location, PlannedNode, UpstreamCell, plan_nodes};
use crate::feed::{Feed, FeedError, RETRY_MIN, backoff};
use crate::health::HealthRecords;
use crate::identity::EndpointIds;

/// The source of an upstream's nodes.
#[derive(Debug)]
pub enum Source<'n> {
    /// The configuration
    Configured(&'n [Node]),
    /// A registry
    Fed(Box<dyn Feed>),
}

/// Keeps the endpoints of one upstream up to date.
#[derive(Debug)]
pub struct Watch {
    resolver: Resolver,
    scheme: Scheme,
    feed: Option<Box<dyn Feed>>,
    /// The number of feed failures since the last list.
    feed_failures: u32,
    /// The fault of requests while the feed has returned no node.
    feed_lack: Option<Fault>,
    nodes: Vec<PlannedNode>,
    ids: Arc<EndpointIds>,
    health: Arc<HealthRecords>,
    names: HashMap<String, Named>,
    balance: Balance,
    /// HTTP/3 of the names, if their HTTPS records are followed.
    announcements: Option<Announcements>,
}

#[derive(Debug)]
struct Named {
    addresses: Vec<IpAddr>,
    due: Instant,
    failures: u32,
    /// The fault of requests while the name has no address.
    lack: Fault,
}

impl Named {
    /// It is due at once.
    fn new() -> Named {
        let lack = Fault::new(FaultKind::DnsTimeout, "the host name of the node is not resolved yet");
        Named { addresses: Vec::new(), due: Instant::now(), failures: 0, lack }
    }
}

type List = Result<Vec<Node>, FeedError>;

/// A running request for a feed's next list.
type PendingList = Pin<Box<dyn Future<Output = (Box<dyn Feed>, List)> + Send>>;

/// Sorts `next` in a stable order: known addresses come first and in their order, also above the limit, so that a
/// response in another order changes nothing.
fn ordered(name: &str, known: &[IpAddr], next: &[IpAddr]) -> Vec<IpAddr> {
    let mut kept: Vec<IpAddr> = known.iter().filter(|ip| next.contains(ip)).copied().collect();
    for ip in next {
        if kept.contains(ip) {
            continue;
        }
        if kept.len() == ADDRESSES_MAX {
            tracing::warn!(name, known = next.len(), used = ADDRESSES_MAX, "a node has too many addresses");
            break;
        }
        kept.push(*ip);
    }
    kept
}

impl Watch {
    /// Returns a watch of the nodes of `source`; it sends no query yet. Endpoints get identities from `ids`, and
    /// their health is kept in `health`.
    pub fn new(
        resolver: Resolver,
        scheme: Scheme,
        source: Source<'_>,
        ids: Arc<EndpointIds>,
        health: Arc<HealthRecords>,
    ) -> Watch {
        let (nodes, feed) = match source {
            Source::Configured(nodes) => (nodes, None),
            Source::Fed(feed) => (&[][..], Some(feed)),
        };
        let (nodes, names, balance) = (plan_nodes(scheme, nodes), HashMap::new(), Balance::default());
        let mut watch = Watch {
            resolver,
            scheme,
            feed,
            feed_failures: 0,
            feed_lack: None,
            nodes,
            ids,
            health,
            names,
            balance,
            announcements: None,
        };
        watch.note_names();
        watch
    }

    /// Sets the balancing of workers, so that its tables are built before they get the endpoints.
    pub fn balanced(self, balance: Balance) -> Watch {
        Watch { balance, ..self }
    }

    /// Follows the HTTPS records of its names.
    pub fn with_https_records(mut self) -> Watch {
        self.announcements = Some(Announcements::default());
        self.follow_announcements();
        self
    }

    /// Returns true if its endpoints may change. If not, [`Watch::run`] has nothing to do.
    pub fn is_needed(&self) -> bool {
        self.feed.is_some() || !self.names.is_empty()
    }

    /// Takes the state of an earlier watch of the same upstream until there is a newer one: names in both keep their
    /// addresses, and a feed that `is_same` keeps its last list.
    pub fn inherit(&mut self, known: &EndpointSet, is_same: bool) {
        if self.feed.is_some() && is_same {
            let node = |endpoint: &Endpoint| Node {
                host: endpoint.host.as_str().into(),
                port: Some(endpoint.port).filter(|port| *port > 0),
                weight: endpoint.weight,
                priority: endpoint.priority,
                metadata: endpoint.metadata.as_deref().map(|metadata| Box::new(metadata.clone())),
            };
            self.take(&known.endpoints.iter().map(node).collect::<Vec<_>>());
        }
        for endpoint in &known.endpoints {
            let Address::Tcp(addr) = &endpoint.addr else { continue };
            if let Some(named) = self.names.get_mut(&endpoint.host.to_ascii_lowercase())
                && !named.addresses.contains(&addr.ip())
            {
                named.addresses.push(addr.ip());
            }
        }
        if let Some(announcements) = &mut self.announcements {
            for endpoint in &known.endpoints {
                if let Some(port) = endpoint.quic_port {
                    announcements.inherit(&endpoint.host.to_ascii_lowercase(), endpoint.port, port);
                }
            }
        }
    }

    /// Returns the current endpoints, which replace the `former` ones. Names that were never resolved are omitted.
    pub fn successor(&self, former: Option<&EndpointSet>) -> EndpointSet {
        made_ahead(self.endpoints(), self.balance, former)
    }

    fn endpoints(&self) -> EndpointSet {
        let mut endpoints = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let quic_port = self.announced(node);
            let mut add = |addr: Address, by_address: bool| {
                endpoints.push(Endpoint { by_address, quic_port, ..node.at(addr, &self.ids, &self.health) });
            };
            match &node.location {
                Location::Fixed(addr) => add(addr.clone(), false),
                Location::Name(name) => {
                    let addresses = self.names.get(name).map_or(&[][..], |named| &named.addresses);
                    let several = addresses.len() > 1;
                    addresses
                        .iter()
                        .for_each(|ip| add(Address::Tcp(SocketAddr::new(*ip, node.port)), several));
                }
            }
        }
        let unresolved = if endpoints.is_empty() { self.lack() } else { None };
        EndpointSet { unresolved, ..EndpointSet::new(endpoints, Arc::clone(self.health.epoch())) }
    }

    /// Returns the UDP port that the name of a node announces.
    fn announced(&self, node: &PlannedNode) -> Option<u16> {
        match &node.location {
            Location::Name(name) => self.announcements.as_ref()?.port(name, node.port),
            Location::Fixed(_) => None,
        }
    }

    /// Returns the fault of the first name without an address, or of the feed without a node.
    fn lack(&self) -> Option<Fault> {
        let lack = |node: &PlannedNode| match &node.location {
            Location::Name(name) => self.names.get(name).map(|named| named.lack),
            Location::Fixed(_) => None,
        };
        self.nodes.iter().find_map(lack).or(self.feed_lack)
    }

    /// Follows the feed, resolves names, and publishes into `cell` until dropped; ends at once if the endpoints
    /// cannot change.
    pub async fn run(mut self, cell: Arc<UpstreamCell>) {
        let mut asked = self.feed.take().map(|feed| ask(feed, self.feed_pause()));
        loop {
            let due = self.names.values().map(|named| named.due).min();
            tokio::select! {
                (feed, list) = next_list(&mut asked), if asked.is_some() => {
                    self.hear(&feed.name(), list);
                    asked = Some(ask(feed, self.feed_pause()));
                    // Names of the list, before it is published without their addresses.
                    self.resolve_due(Instant::now()).await;
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.resolve_due(Instant::now()).await;
                }
                () = changed(&mut self.announcements, &self.resolver), if self.announcements.is_some() => {}
                else => return,
            }
            let (next, current) = (self.endpoints(), cell.load());
            if !next.same(&current) {
                cell.publish(Arc::new(made_ahead(next, self.balance, Some(&current))));
            }
        }
    }

    /// Returns the pause before the next request to the feed.
    fn feed_pause(&self) -> Duration {
        self.feed_failures.checked_sub(1).map_or(Duration::ZERO, backoff)
    }

    fn hear(&mut self, feed: &str, list: List) {
        match list {
            Ok(nodes) => {
                self.feed_failures = 0;
                self.feed_lack = None;
                self.take(&nodes);
            }
            Err(error) => {
                self.feed_failures = self.feed_failures.saturating_add(1);
                self.feed_lack = error.lack;
                tracing::warn!(feed, %error, kept = self.nodes.len(), "cannot get the list of nodes; the last list stays in use");
            }
        }
    }

    fn take(&mut self, nodes: &[Node]) {
        self.nodes = plan_nodes(self.scheme, nodes);
        self.note_names();
    }

    /// Adds new names of nodes and drops old ones.
    fn note_names(&mut self) {
        let mut known = std::mem::take(&mut self.names);
        for node in &self.nodes {
            if let Location::Name(name) = &node.location
                && !self.names.contains_key(name)
            {
                let named = known.remove(name).unwrap_or_else(Named::new);
                self.names.insert(name.clone(), named);
            }
        }
        self.follow_announcements();
    }

    fn follow_announcements(&mut self) {
        let Some(announcements) = &mut self.announcements else { return };
        announcements.follow(self.nodes.iter().filter_map(|node| match &node.location {
            // It is this machine, without a query.
            Location::Name(name) if name == "localhost" => None,
            Location::Name(name) => Some((name.clone(), node.port)),
            Location::Fixed(_) => None,
        }));
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

    fn learn(&mut self, name: &str, answer: Result<ResolvedName, DnsError>, now: Instant) {
        let Some(named) = self.names.get_mut(name) else { return };
        match answer {
            Ok(ResolvedName { v4, v6, valid_until }) => {
                let next = succeed(&named.addresses, v4, v6);
                named.addresses = ordered(name, &named.addresses, &next);
                named.due = valid_until.max(now + TTL_MIN);
                named.failures = 0;
            }
            Err(error) => {
                let kept = &named.addresses;
                tracing::warn!(name, %error, ?kept, "cannot resolve upstream node");
                named.due = now + backoff(named.failures);
                named.failures = named.failures.saturating_add(1);
                named.lack = error.fault();
            }
        }
    }
}

/// Waits until an announcement has changed.
async fn changed(announcements: &mut Option<Announcements>, resolver: &Resolver) {
    match announcements {
        Some(announcements) => announcements.changed(resolver).await,
        None => std::future::pending().await,
    }
}

fn ask(mut feed: Box<dyn Feed>, pause: Duration) -> PendingList {
    Box::pin(async move {
        tokio::time::sleep(pause).await;
        let list = feed.next().await;
        (feed, list)
    })
}

/// Returns the result of a running feed request; never without one.
async fn next_list(asked: &mut Option<PendingList>) -> (Box<dyn Feed>, List) {
    match asked {
        Some(asked) => asked.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Queries the feeds of all `watches` and resolves their names, for at most `timeout`, so that a first snapshot has
/// addresses. The calling thread continues with its other tasks meanwhile.
///
/// Late results are left to [`Watch::run`], which queries again at once.
pub async fn resolve_initial(watches: &mut [Watch], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    first_lists(watches, deadline).await;
    let names: HashSet<String> = watches.iter().flat_map(|w| w.names.keys().cloned()).collect();
    let Some(resolver) = watches.iter().find(|w| !w.names.is_empty()).map(|w| w.resolver.clone()) else {
        return;
    };
    let answers = resolve_all(&resolver, names, deadline).await;
    let now = Instant::now();
    for watch in watches {
        for (name, answer) in &answers {
            watch.learn(name, answer.clone(), now);
        }
    }
}

async fn first_lists(watches: &mut [Watch], deadline: Instant) {
    let mut asked = JoinSet::new();
    for (at, watch) in watches.iter_mut().enumerate() {
        if let Some(mut feed) = watch.feed.take() {
            asked.spawn(async move {
                let list = tokio::time::timeout_at(deadline, feed.next()).await.ok();
                (at, feed, list)
            });
        }
    }
    while let Some(result) = asked.join_next().await {
        let (at, feed, list) = match result {
            Ok(told) => told,
            Err(error) => {
                tracing::error!(%error, "a feed of nodes ended; its upstream has no nodes until it is written again");
                continue;
            }
        };
        match list {
            Some(list) => watches[at].hear(&feed.name(), list),
            None => tracing::warn!(feed = feed.name(), "no list of nodes of a service yet"),
        }
        watches[at].feed = Some(feed);
    }
}

type Answers = Vec<(String, Result<ResolvedName, DnsError>)>;

async fn resolve_all(resolver: &Resolver, names: HashSet<String>, deadline: Instant) -> Answers {
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
    if tokio::time::timeout_at(deadline, collect).await.is_err() {
        tracing::warn!("some upstream nodes are not resolved yet");
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::DnsService;
    use crate::endpoint::EndpointView;
    use crate::feed::NextNodes;
    use sigma_testkit::{Dns, RecordKind, ServiceRecord};
    use tokio::sync::mpsc;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn resolver(dns: &Dns) -> Resolver {
        Resolver::with_servers(&[dns.address()]).expect("resolver")
    }

    fn watch(resolver: Resolver, source: Source<'_>) -> Watch {
        Watch::new(resolver, Scheme::Http, source, Arc::default(), Arc::default())
    }

    fn nodes(hosts: &[&str]) -> Vec<Node> {
        let node = |host: &&str| Node { host: (*host).into(), weight: 3, ..Node::default() };
        hosts.iter().map(node).collect()
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

    /// Waits for queries after which the earlier ones have been applied.
    async fn asked_again(dns: &Dns) {
        let start = dns.asked();
        let come = async {
            while dns.asked() < start + 4 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), come).await.expect("queries");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn addresses_follow_the_records() {
        let dns = Dns::start().expect("a name server");
        let set = |addresses: &[&str]| {
            dns.set_addresses("a.sigma.test", &addresses.iter().map(|text| ip(text)).collect::<Vec<_>>());
        };
        set(&["127.0.0.7"]);
        let configured = nodes(&["a.sigma.test.", "10.1.1.1", "localhost"]);
        let mut watches = [watch(resolver(&dns), Source::Configured(&configured))];
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        let [watch] = watches;
        let first = watch.endpoints();
        assert_eq!(shown(&first), ["127.0.0.7:80", "10.1.1.1:80", "127.0.0.1:80"]);

        let cell = Arc::new(UpstreamCell::new(Arc::new(first)));
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        // Every record is an endpoint; the existing one keeps its position.
        set(&["127.0.0.8", "127.0.0.7"]);
        wait_for(&cell, &["127.0.0.7:80", "127.0.0.8:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        let before = cell.load();
        assert!(before.endpoints.iter().all(|e| e.weight == 3));
        // A new one is a separate endpoint, with its own health.
        set(&["127.0.0.9", "127.0.0.8"]);
        wait_for(&cell, &["127.0.0.8:80", "127.0.0.9:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        let after = cell.load();
        assert_eq!(after.endpoints[0].id(), before.endpoints[1].id());
        assert!(Arc::ptr_eq(&after.endpoints[0].health, &before.endpoints[1].health));
        assert!(before.endpoints.iter().all(|e| e.id() != after.endpoints[1].id()));
        assert!(!Arc::ptr_eq(&after.endpoints[1].health, &before.endpoints[0].health));
        // A name that fails keeps its last good addresses.
        set(&[]);
        asked_again(&dns).await;
        wait_for(&cell, &["127.0.0.8:80", "127.0.0.9:80", "10.1.1.1:80", "127.0.0.1:80"]).await;
        running.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_name_without_address_is_left_out_until_it_has_one() {
        let dns = Dns::start().expect("a name server");
        let configured = nodes(&["a.sigma.test.", "10.1.1.1"]);
        let mut watches = [watch(resolver(&dns), Source::Configured(&configured))];
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        let [watch] = watches;
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.endpoints())));
        assert_eq!(shown(&cell.load()), ["10.1.1.1:80"]);
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        dns.set_addresses("a.sigma.test", &[ip("127.0.0.7")]);
        wait_for(&cell, &["127.0.0.7:80", "10.1.1.1:80"]).await;
        running.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_set_without_endpoints_has_the_fault_of_its_names() {
        let dns = Dns::start().expect("a name server");
        let configured = nodes(&["a.sigma.test."]);
        let mut watches = [watch(resolver(&dns), Source::Configured(&configured))];
        let lack = |watches: &[Watch]| watches[0].endpoints().unresolved.map(|fault| fault.kind);
        assert_eq!(lack(&watches), Some(FaultKind::DnsTimeout), "it was not asked for yet");
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        assert_eq!(lack(&watches), Some(FaultKind::DnsError));
        dns.set_addresses("a.sigma.test", &[ip("127.0.0.7")]);
        let (cell, [watch]) = (Arc::new(UpstreamCell::new(Arc::new(watches[0].endpoints()))), watches);
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        wait_for(&cell, &["127.0.0.7:80"]).await;
        assert_eq!(cell.load().unresolved, None);
        running.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn both_families_count_and_neither_waits_for_long() {
        let dns = Dns::start().expect("a name server");
        let resolver = resolver(&dns);
        dns.set_addresses("six.sigma.test", &[ip("2001:db8::1")]);
        let six = resolver.addresses("six.sigma.test.").await.expect("an address");
        // Alone it counts without a route: the connection error is clear.
        assert_eq!((six.v4, six.v6), (Some(Vec::new()), Some(vec![ip("2001:db8::1")])));
        if std::net::UdpSocket::bind("[::1]:0").is_ok() {
            dns.set_addresses("both.sigma.test", &[ip("127.0.0.7"), ip("::1")]);
            let both = resolver.addresses("both.sigma.test.").await.expect("addresses");
            assert_eq!((both.v4, both.v6), (Some(vec![ip("127.0.0.7")]), Some(vec![ip("::1")])));
        }
        let alone = resolver.clone().without_ipv6();
        assert!(alone.addresses("six.sigma.test.").await.is_err(), "switched off, it has none");
        // A server that never responds for IPv6 leaves that open, and delays no family for long.
        dns.set_addresses("four.sigma.test", &[ip("127.0.0.7")]);
        let nobody = resolver.addresses("none.sigma.test.").await.expect_err("no address");
        assert_eq!(nobody.fault().kind, FaultKind::DnsError);
        dns.silence(&[RecordKind::Aaaa]);
        let four = resolver.addresses("four.sigma.test.").await.expect("an address");
        assert_eq!((four.v4, four.v6), (Some(vec![ip("127.0.0.7")]), None));
        dns.silence(&[RecordKind::A, RecordKind::Aaaa]);
        let late = resolver.addresses("none.sigma.test.").await.expect_err("no answer");
        assert_eq!(late.fault().kind, FaultKind::DnsTimeout);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_service_is_its_servers_or_its_addresses() {
        let dns = Dns::start().expect("a name server");
        let service = DnsService::new(resolver(&dns), "web.sigma.test.", None, None);
        let mut watches = [watch(resolver(&dns), Source::Fed(Box::new(service)))];
        dns.set_addresses("web.sigma.test", &[ip("127.0.0.5"), ip("127.0.0.4")]);
        resolve_initial(&mut watches, Duration::from_secs(10)).await;
        let [watch] = watches;
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.endpoints())));
        assert_eq!(shown(&cell.load()), ["127.0.0.4:80", "127.0.0.5:80"]);
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        dns.set_addresses("a.sigma.test", &[ip("127.0.0.1"), ip("127.0.0.2")]);
        dns.set_addresses("b.sigma.test", &[ip("127.0.0.3")]);
        let server = |priority, weight, port, target| ServiceRecord { priority, weight, port, target };
        dns.set_servers(
            "web.sigma.test",
            &[server(20, 5, 82, "b.sigma.test"), server(10, 4, 81, "a.sigma.test")],
        );
        let want = ["127.0.0.1:81", "127.0.0.2:81", "127.0.0.3:82"];
        wait_for(&cell, &want).await;
        let set = cell.load();
        let of = |e: &crate::endpoint::Endpoint| (e.weight, e.priority);
        assert_eq!(set.endpoints.iter().map(of).collect::<Vec<_>>(), [(4, -10), (4, -10), (10, -20)]);
        // A target that is gone for a while keeps its addresses, and so does a service without records.
        dns.set_addresses("a.sigma.test", &[]);
        asked_again(&dns).await;
        assert_eq!(shown(&cell.load()), want);
        dns.silence(&[RecordKind::A, RecordKind::Aaaa, RecordKind::Srv]);
        dns.set_servers("web.sigma.test", &[]);
        asked_again(&dns).await;
        assert_eq!(shown(&cell.load()), want);
        running.abort();
    }

    /// A feed with the test's lists.
    #[derive(Debug)]
    struct Scripted(mpsc::UnboundedReceiver<List>);

    impl Feed for Scripted {
        fn name(&self) -> String {
            "scripted".to_owned()
        }

        fn next(&mut self) -> NextNodes<'_> {
            Box::pin(async {
                match self.0.recv().await {
                    Some(list) => list,
                    None => std::future::pending().await,
                }
            })
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn lists_bring_names_and_the_last_good_one_stays() {
        let dns = Dns::start().expect("a name server");
        dns.set_addresses("a.sigma.test", &[ip("127.0.0.7")]);
        dns.set_addresses("b.sigma.test", &[ip("127.0.0.8")]);
        let (tell, lists) = mpsc::unbounded_channel();
        let watch = watch(resolver(&dns), Source::Fed(Box::new(Scripted(lists))));
        assert!(watch.is_needed());
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.endpoints())));
        let running = tokio::spawn(watch.run(Arc::clone(&cell)));
        let tell = |list: List| tell.send(list).expect("a feed");
        tell(Ok(nodes(&["a.sigma.test.", "10.1.1.1"])));
        wait_for(&cell, &["127.0.0.7:80", "10.1.1.1:80"]).await;
        tell(Err(FeedError::new("away")));
        tell(Ok(nodes(&["10.1.1.1", "b.sigma.test."])));
        wait_for(&cell, &["10.1.1.1:80", "127.0.0.8:80"]).await;
        tell(Ok(Vec::new()));
        wait_for(&cell, &[]).await;
        running.abort();
    }

    #[test]
    fn a_new_watch_takes_the_state_of_the_former() {
        let of = |source| watch(Resolver::with_servers(&[]).expect("resolver"), source);
        let configured = nodes(&["a.sigma.test", "10.1.1.1"]);
        let mut former = of(Source::Configured(&configured));
        let answer = |text| ResolvedName { v4: Some(vec![ip(text)]), v6: None, valid_until: Instant::now() };
        former.learn("a.sigma.test", Ok(answer("127.0.0.7")), Instant::now());
        let changed = nodes(&["10.2.2.2", "A.sigma.test"]);
        let mut next = of(Source::Configured(&changed));
        next.inherit(&former.endpoints(), false);
        assert_eq!(shown(&next.endpoints()), ["10.2.2.2:80", "127.0.0.7:80"]);

        for (is_same, want) in [(true, &["10.2.2.2:80", "127.0.0.7:80"][..]), (false, &[])] {
            let (_tell, lists) = mpsc::unbounded_channel();
            let mut fed = of(Source::Fed(Box::new(Scripted(lists))));
            fed.inherit(&next.endpoints(), is_same);
            assert_eq!(shown(&fed.endpoints()), want);
        }
    }

    #[test]
    fn addresses_keep_their_order_and_are_bounded() {
        let ip = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let ips = |list: &[usize]| list.iter().map(|n| ip(*n)).collect::<Vec<_>>();
        let check = |known: &[usize], answer: &[usize], want: &[usize]| {
            assert_eq!(ordered("n", &ips(known), &ips(answer)), ips(want));
        };
        check(&[], &[2, 1, 2], &[2, 1]);
        check(&[2, 1], &[1], &[1]);
        check(&[1], &[3, 1, 4], &[1, 3, 4]);
        let many: Vec<usize> = (0..ADDRESSES_MAX + 50).collect();
        let turned: Vec<usize> = many.iter().rev().copied().collect();
        check(&[], &many, &many[..ADDRESSES_MAX]);
        check(&many[..ADDRESSES_MAX], &turned, &many[..ADDRESSES_MAX]);
    }
}
