//! DNS as a registry: the records of a name are the nodes of a service.

use std::collections::HashMap;
use std::net::IpAddr;

use hickory_resolver::proto::rr::RecordType;
use sigma_config::discovery::DnsRecords;
use sigma_config::resources::Node;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{ADDRESSES_MAX, DnsError, Resolver, Server};
use crate::feed::{Feed, FeedError, NextNodes, backoff};

/// The record type of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Servers,
    Family(RecordType),
    Addresses,
}

/// The result of a step: the nodes, and the time of the next query.
type ServiceNodes = Option<(Vec<Node>, Instant)>;

/// The nodes of a service in DNS.
///
/// An address is a node of weight 1. A server (SRV) is a node for each address of its target; these share its weight,
/// and a lower priority is used first.
#[derive(Debug)]
pub struct DnsService {
    resolver: Resolver,
    host: String,
    /// The port of all nodes; None for the record's or the scheme's.
    port: Option<u16>,
    steps: Vec<Step>,
    /// The step that last found nodes comes first.
    last_first: bool,
    last: Option<Step>,
    /// Addresses of targets: a target that cannot be resolved for a while keeps its own.
    targets: HashMap<String, Vec<IpAddr>>,
    /// The number of failed resolutions in a row.
    failures: u32,
    due: Option<Instant>,
}

impl DnsService {
    /// Returns the service `host`, by the kinds of records in `order`; see
    /// [`DnsDiscovery::order`](sigma_config::discovery::DnsDiscovery::order).
    pub fn new(
        resolver: Resolver,
        host: &str,
        port: Option<u16>,
        order: Option<&[DnsRecords]>,
    ) -> DnsService {
        let step = |kind: &DnsRecords| match kind {
            DnsRecords::Srv => Some(Step::Servers),
            DnsRecords::A => Some(Step::Family(RecordType::A)),
            DnsRecords::Aaaa => Some(Step::Family(RecordType::AAAA)),
            DnsRecords::Last | DnsRecords::Cname => None,
        };
        let steps = match order {
            Some(order) => order.iter().filter_map(step).collect(),
            None => vec![Step::Servers, Step::Addresses],
        };
        DnsService {
            resolver,
            host: host.to_owned(),
            port,
            steps,
            last_first: order.is_some_and(|order| order.contains(&DnsRecords::Last)),
            last: None,
            targets: HashMap::new(),
            failures: 0,
            due: None,
        }
    }

    async fn find(&mut self) -> Result<(Vec<Node>, Instant), DnsError> {
        let mut steps = self.steps.clone();
        if let Some(last) = self.last.filter(|_| self.last_first) {
            steps.retain(|step| *step != last);
            steps.insert(0, last);
        }
        let mut failed = None;
        for step in steps {
            match self.ask(step).await {
                Ok(Some(found)) => {
                    self.last = Some(step);
                    return Ok(found);
                }
                Ok(None) => {}
                // Other record types are not tried until these are known to be gone.
                Err(error) if self.last == Some(step) => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| DnsError::new("the DNS response has no record of the requested types")))
    }

    async fn ask(&mut self, step: Step) -> Result<ServiceNodes, DnsError> {
        let (addresses, until) = match step {
            Step::Servers => match self.resolver.servers(&self.host).await? {
                Some((servers, until)) => return self.resolve_servers(servers, until).await.map(Some),
                None => return Ok(None),
            },
            Step::Family(kind) => match self.resolver.family(&self.host, kind).await? {
                Some(found) => found,
                None => return Ok(None),
            },
            Step::Addresses => {
                let answer = self.resolver.addresses(&self.host).await?;
                let known = self.targets.remove(&self.host).unwrap_or_default();
                let next = succeed(&known, answer.v4, answer.v6);
                self.targets.insert(self.host.clone(), next.clone());
                (next, answer.valid_until)
            }
        };
        let node =
            |ip: IpAddr| Node { host: ip.to_string().into(), port: self.port, weight: 1, ..Node::default() };
        Ok(Some((self.bounded(addresses.into_iter().map(node).collect()), until)))
    }

    async fn resolve_servers(
        &mut self,
        mut servers: Vec<Server>,
        until: Instant,
    ) -> Result<(Vec<Node>, Instant), DnsError> {
        servers.sort_by(|a, b| (a.priority, &a.target, a.port).cmp(&(b.priority, &b.target, b.port)));
        servers.truncate(ADDRESSES_MAX);
        let (targets, failed, until) = self.resolve_targets(&servers, until).await;
        self.targets = targets;
        self.failures = if failed.is_some() { self.failures.saturating_add(1) } else { 0 };
        let found = nodes_of(&servers, &self.targets, self.port);
        match failed {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok((self.bounded(found), until)),
        }
    }

    /// Returns the addresses of the targets, an error if there was one, and the expiry.
    async fn resolve_targets(
        &self,
        servers: &[Server],
        mut until: Instant,
    ) -> (HashMap<String, Vec<IpAddr>>, Option<DnsError>, Instant) {
        let mut queries = JoinSet::new();
        let mut targets: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for server in servers {
            let known = self.targets.get(&server.target).cloned().unwrap_or_default();
            if targets.insert(server.target.clone(), known).is_none() {
                let (resolver, target) = (self.resolver.clone(), server.target.clone());
                queries.spawn(async move {
                    let answer = resolver.addresses(&target).await;
                    (target, answer)
                });
            }
        }
        let mut failed = None;
        while let Some(result) = queries.join_next().await {
            let Ok((target, answer)) = result else { continue };
            match answer {
                Ok(answer) => {
                    until = until.min(answer.valid_until);
                    if let Some(known) = targets.get_mut(&target) {
                        *known = succeed(known, answer.v4, answer.v6);
                    }
                }
                Err(error) => {
                    tracing::warn!(service = self.host, target, %error, "cannot resolve the target of an SRV record");
                    until = until.min(Instant::now() + backoff(self.failures));
                    failed = Some(error);
                }
            }
        }
        (targets, failed, until)
    }

    fn bounded(&self, mut nodes: Vec<Node>) -> Vec<Node> {
        nodes.sort_by(|a, b| (b.priority, &a.host, a.port).cmp(&(a.priority, &b.host, b.port)));
        if nodes.len() > ADDRESSES_MAX {
            let (known, used) = (nodes.len(), ADDRESSES_MAX);
            tracing::warn!(service = self.host, known, used, "a service has too many nodes");
            nodes.truncate(used);
        }
        nodes
    }
}

impl Feed for DnsService {
    fn name(&self) -> String {
        format!("dns {}", self.host)
    }

    fn next(&mut self) -> NextNodes<'_> {
        Box::pin(async {
            if let Some(due) = self.due.take() {
                tokio::time::sleep_until(due).await;
            }
            match self.find().await {
                Ok((nodes, due)) => {
                    self.due = Some(due);
                    Ok(nodes)
                }
                Err(error) => {
                    let lack = Some(error.fault_of_service());
                    Err(FeedError { why: format!("failed to query the DNS server: {error}"), lack })
                }
            }
        })
    }
}

/// Returns the addresses after a new response: an unknown family keeps its addresses.
pub(crate) fn succeed(known: &[IpAddr], v4: Option<Vec<IpAddr>>, v6: Option<Vec<IpAddr>>) -> Vec<IpAddr> {
    let kept = |v4: bool| known.iter().copied().filter(move |ip| ip.is_ipv4() == v4);
    let mut next = v4.unwrap_or_else(|| kept(true).collect());
    next.extend(v6.unwrap_or_else(|| kept(false).collect()));
    next
}

/// Returns a node for each address of each server. The addresses of a target share the server's weight, as whole
/// numbers: all weights are scaled to make each share one.
fn nodes_of(servers: &[Server], targets: &HashMap<String, Vec<IpAddr>>, port: Option<u16>) -> Vec<Node> {
    let addresses = |server: &Server| targets.get(&server.target).map_or(&[][..], Vec::as_slice);
    let counts = servers.iter().map(|server| addresses(server).len() as u64).filter(|count| *count > 0);
    // Counts up to ADDRESSES_MAX may have a multiple beyond any weight; then the shares are rounded.
    let scale = counts.fold(1u64, |scale, count| (scale / gcd(scale, count)).saturating_mul(count));
    let scale = scale.min(u64::from(u32::MAX) / u64::from(u16::MAX));
    let mut nodes = Vec::new();
    for server in servers {
        let addresses = addresses(server);
        let weight = u64::from(server.weight.max(1)) * scale / addresses.len().max(1) as u64;
        nodes.extend(addresses.iter().map(|ip| Node {
            host: ip.to_string().into(),
            port: port.or(Some(server.port).filter(|port| *port > 0)),
            weight: u32::try_from(weight.max(1)).unwrap_or(u32::MAX),
            priority: -i32::from(server.priority),
            ..Node::default()
        }));
    }
    nodes
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use sigma_testkit::Dns;

    use super::*;

    #[test]
    fn weights_are_shared_by_the_addresses_of_a_target() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let targets = HashMap::from([
            ("a.".to_owned(), vec![ip(1), ip(2)]),
            ("b.".to_owned(), vec![ip(3), ip(4), ip(5)]),
        ]);
        let server =
            |target: &str, port, priority, weight| Server { target: target.into(), port, priority, weight };
        let shown = |servers: &[Server], port| {
            let nodes = nodes_of(servers, &targets, port);
            let shown = nodes.iter().map(|n| format!("{}:{:?} {} {}", n.host, n.port, n.weight, n.priority));
            shown.collect::<Vec<_>>()
        };
        let servers = [server("a.", 81, 1, 10), server("b.", 0, 2, 0), server("unresolved.", 83, 1, 5)];
        assert_eq!(
            shown(&servers, None),
            [
                "10.0.0.1:Some(81) 30 -1",
                "10.0.0.2:Some(81) 30 -1",
                "10.0.0.3:None 2 -2",
                "10.0.0.4:None 2 -2",
                "10.0.0.5:None 2 -2",
            ]
        );
        assert!(shown(&servers, Some(9)).iter().all(|node| node.contains(":Some(9) ")));
        assert!(nodes_of(&[server("a.", 1, 65_535, 65_535)], &targets, None)[0].weight >= 32_767);
    }

    #[tokio::test]
    async fn malformed_servers_are_left_out() {
        let dns = Dns::start().unwrap();
        let addresses = [IpAddr::from([127, 0, 0, 9])];
        dns.set_addresses("a.test", &addresses);
        let resolver = Resolver::with_servers(&[dns.address()]).unwrap();
        let nodes = async || {
            let mut service = DnsService::new(resolver.clone(), "web.test", None, None);
            let (nodes, _) = service.find().await?;
            Ok::<_, DnsError>(nodes.iter().map(|node| (node.host.to_string(), node.port)).collect::<Vec<_>>())
        };
        let sound = b"\0\x01\0\x02\x1f\x90\x01a\x04test\0";
        let root = b"\0\x01\0\x02\x1f\x90\0";
        let portless = b"\0\x01\0\x02\0\0\x01a\x04test\0";
        let cut = b"\0\x01\0\x02\x1f";
        // It refers to itself after the question and the record before.
        let circle = b"\0\x01\0\x02\x1f\x90\xc0\x3d";
        dns.set_server_data("web.test", &[cut, circle, root, sound, portless]);
        let host = "127.0.0.9".to_owned();
        // A server without a port gets the scheme's.
        assert_eq!(nodes().await.unwrap(), [(host.clone(), None), (host, Some(8080))]);
    }

    #[test]
    fn an_unknown_family_keeps_its_addresses() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
        let known = [v4, v6];
        assert_eq!(succeed(&known, None, Some(Vec::new())), [v4]);
        assert_eq!(succeed(&known, Some(Vec::new()), None), [v6]);
        assert_eq!(succeed(&known, None, None), known);
    }
}
