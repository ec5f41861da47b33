//! DNS queries: addresses of nodes with configured names, and services.
//!
//! Every address of a name counts, of both families. Both are queried at the same time; a response of one family waits
//! only briefly for the other, since some name servers never respond for IPv6 (in the spirit of RFC 8305). An IPv6
//! address without a route from this machine is omitted if there is another address. IPv6 can be switched off.
//!
//! `/etc/hosts` and the system's resolver configuration are read once, when the [`Resolver`] is made.

mod https;
mod lenient;
#[cfg(feature = "simulation")]
pub mod scripted;
mod service;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::Resolver as Inner;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::{parse_resolv_conf, read_system_conf};
use sigma_http::{Fault, FaultKind};
use sigma_schema::cidr::{CidrSet, is_of_one_host};
use tokio::time::Instant;

pub(crate) use https::Http3Record;
use lenient::Lenient;
pub use service::DnsService;
pub(crate) use service::succeed;

/// The shortest time until records are queried again, even if their TTL is 0.
pub const TTL_MIN: Duration = Duration::from_secs(1);

/// The longest time until records are queried again, for any TTL.
pub const TTL_MAX: Duration = Duration::from_secs(3600);

/// Timeout of one query (APISIX's default).
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the addresses of one family wait for the other family. Later ones are missing until the next query; a
/// longer wait would delay every start.
const FAMILY_WAIT: Duration = Duration::from_millis(500);

/// The limit of addresses of one name, and of nodes of one service. A larger service should use a registry; without a
/// limit, a name server could fill the memory with endpoints.
pub const ADDRESSES_MAX: usize = 256;

/// The reason why a name has no records.
#[derive(Debug, Clone)]
pub struct DnsError {
    why: String,
    /// No name server has responded.
    is_timeout: bool,
}

impl DnsError {
    pub(super) fn new(why: impl Into<String>) -> DnsError {
        DnsError { why: why.into(), is_timeout: false }
    }

    /// Returns the fault of an exchange that needs the name.
    pub(crate) fn fault(&self) -> Fault {
        match self.is_timeout {
            true => {
                Fault::new(FaultKind::DnsTimeout, "no name server responds for the host name of the node")
            }
            false => Fault::new(FaultKind::DnsError, "the host name of the node has no address"),
        }
    }

    /// As [`fault`](Self::fault), for a name whose records are the nodes.
    fn fault_of_service(&self) -> Fault {
        match self.is_timeout {
            true => Fault::new(FaultKind::DnsTimeout, "no name server responds for the name of the service"),
            false => Fault::new(FaultKind::DnsError, "the name of the service has no SRV or address record"),
        }
    }
}

impl From<NetError> for DnsError {
    fn from(error: NetError) -> DnsError {
        DnsError { why: error.to_string(), is_timeout: matches!(error, NetError::Timeout) }
    }
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for DnsError {}

/// The addresses of a name and their expiry. At least one family has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedName {
    /// Empty: there is no address. None: unknown.
    pub v4: Option<Vec<IpAddr>>,
    /// As `v4`.
    pub v6: Option<Vec<IpAddr>>,
    /// The time of the next query.
    pub valid_until: Instant,
}

/// Records of one kind: None if the name lacks this kind.
type Records<T> = Result<Option<(Vec<T>, Instant)>, DnsError>;

/// A record of a service (RFC 2782).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    target: String,
    port: u16,
    priority: u16,
    weight: u16,
}

/// Returns the name servers of the system.
///
/// # Errors
/// Returns an error if its configuration cannot be read.
pub fn system_servers() -> Result<Vec<SocketAddr>, DnsError> {
    let (config, _) = system_configuration()?;
    let address = |server: &NameServerConfig| {
        let port = server.connections.first().map(|connection| connection.port)?;
        Some(SocketAddr::new(server.ip, port))
    };
    Ok(config.name_servers().iter().filter_map(address).collect())
}

fn system_configuration() -> Result<(ResolverConfig, ResolverOpts), DnsError> {
    read_system_conf().map_err(|error| {
        DnsError::new(format!("the system's resolver configuration (/etc/resolv.conf): {error}"))
    })
}

/// The times of a resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The shortest time until records are queried again.
    pub ttl_min: Duration,
    /// The longest time until records are queried again.
    pub ttl_max: Duration,
    /// Timeout of one query.
    pub query: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times { ttl_min: TTL_MIN, ttl_max: TTL_MAX, query: QUERY_TIMEOUT }
    }
}

/// A DNS client. Cheap to clone; clones share a cache.
#[derive(Clone)]
pub struct Resolver {
    inner: Inner<Lenient>,
    config: ResolverConfig,
    options: ResolverOpts,
    times: Times,
    asks_ipv6: bool,
    /// Addresses that are rejected in every response.
    refused: Arc<CidrSet>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("servers", &self.config.name_servers()).finish()
    }
}

impl Resolver {
    /// Returns a resolver with the system's configuration.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be read.
    pub fn from_system() -> Result<Resolver, DnsError> {
        let (config, options) = system_configuration()?;
        Resolver::build(config, options, Times::default())
    }

    /// Returns a resolver with a text in the form of `/etc/resolv.conf`.
    ///
    /// # Errors
    /// Returns an error if the text names no server.
    pub fn with_conf(text: &[u8]) -> Result<Resolver, DnsError> {
        let (config, options) = parse_resolv_conf(text).map_err(|error| DnsError::new(error.to_string()))?;
        Resolver::build(config, options, Times::default())
    }

    /// Returns a resolver with these servers.
    ///
    /// # Errors
    /// Returns an error if the resolver cannot be built.
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
        let config = ResolverConfig::from_name_servers(servers);
        Resolver::build(config, ResolverOpts::default(), Times::default())
    }

    /// Returns a resolver with other times and an empty cache.
    ///
    /// # Errors
    /// Returns an error if the resolver cannot be built.
    pub fn timed(self, times: Times) -> Result<Resolver, DnsError> {
        let built = Resolver::build(self.config, self.options, times)?;
        Ok(Resolver { asks_ipv6: self.asks_ipv6, refused: self.refused, ..built })
    }

    fn build(config: ResolverConfig, system: ResolverOpts, times: Times) -> Result<Resolver, DnsError> {
        let mut options = system.clone();
        // A shorter timeout of the system holds, unless the settings differ from the default.
        options.timeout = match times.query == QUERY_TIMEOUT {
            true => system.timeout.min(QUERY_TIMEOUT),
            false => times.query,
        };
        options.positive_min_ttl = Some(times.ttl_min);
        options.positive_max_ttl = Some(times.ttl_max);
        // A missing name may appear soon; the backoff of a watch decides.
        options.negative_min_ttl = Some(Duration::ZERO);
        options.negative_max_ttl = Some(Duration::ZERO);
        let inner = Inner::builder_with_config(config.clone(), Lenient::default())
            .with_options(options)
            .build()
            .map_err(|error| DnsError::new(error.to_string()))?;
        Ok(Resolver { inner, config, options: system, times, asks_ipv6: true, refused: Arc::default() })
    }

    /// Disables IPv6 addresses.
    #[must_use]
    pub fn without_ipv6(self) -> Resolver {
        Resolver { asks_ipv6: false, ..self }
    }

    /// Rejects addresses in these networks.
    #[must_use]
    pub fn refusing(self, networks: &CidrSet) -> Resolver {
        Resolver { refused: Arc::new(networks.clone()), ..self }
    }

    /// Returns the addresses of `name`. `localhost` and IP addresses need no query.
    ///
    /// # Errors
    /// Returns an error if there is no address or no server responded.
    pub async fn addresses(&self, name: &str) -> Result<ResolvedName, DnsError> {
        let known = match name {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            _ => name.parse().ok(),
        };
        if let Some(ip) = known {
            if self.refused.contains(ip) {
                return Err(DnsError::new(format!("{ip} is in a refused network")));
            }
            let (v4, v6) = if ip.is_ipv4() { (vec![ip], Vec::new()) } else { (Vec::new(), vec![ip]) };
            return Ok(ResolvedName {
                v4: Some(v4),
                v6: Some(v6),
                valid_until: Instant::now() + self.times.ttl_max,
            });
        }
        let (v4, v6) = self.both_families(name).await;
        let valid = |family: &Option<Records<IpAddr>>| match family {
            Some(Ok(Some((_, until)))) => Some(*until),
            _ => None,
        };
        let Some(valid_until) = valid(&v4).into_iter().chain(valid(&v6)).min() else {
            let told = [v4, v6].into_iter().flatten().find_map(Result::err);
            return Err(told.unwrap_or_else(|| DnsError::new("no address record")));
        };
        let addresses = |family: Option<Records<IpAddr>>| {
            family?.ok().map(|found| found.map_or_else(Vec::new, |(addresses, _)| addresses))
        };
        let (v4, v6) = (addresses(v4), addresses(v6));
        let alone = v4.as_ref().is_none_or(Vec::is_empty);
        let v6 = v6.map(|addresses| if alone { addresses } else { routed(addresses) });
        Ok(ResolvedName { v4, v6, valid_until })
    }

    /// Queries both families; None is the family that the other did not wait for.
    async fn both_families(&self, name: &str) -> (Option<Records<IpAddr>>, Option<Records<IpAddr>>) {
        if !self.asks_ipv6 {
            return (Some(self.family(name, RecordType::A).await), Some(Ok(None)));
        }
        let mut v4 = pin!(self.family(name, RecordType::A));
        let mut v6 = pin!(self.family(name, RecordType::AAAA));
        let wait = |first: &Records<IpAddr>| match first {
            Ok(Some(_)) => FAMILY_WAIT,
            // This family alone gives no result. The queries of the other have their own timeouts.
            _ => self.times.ttl_max,
        };
        tokio::select! {
            first = &mut v4 => {
                let second = tokio::time::timeout(wait(&first), v6).await.ok();
                (Some(first), second)
            }
            first = &mut v6 => {
                let second = tokio::time::timeout(wait(&first), v4).await.ok();
                (second, Some(first))
            }
        }
    }

    async fn family(&self, name: &str, kind: RecordType) -> Records<IpAddr> {
        let is_usable = |ip: &IpAddr| is_of_one_host(*ip) && !self.refused.contains(*ip);
        self.records(name, kind, |data| data.ip_addr().filter(is_usable)).await
    }

    /// Returns the servers of a service. A server without a target (RFC 2782: `.`) does not count; next to other
    /// servers it is logged.
    async fn servers(&self, name: &str) -> Records<Server> {
        let server = |data: &RData| match data {
            RData::SRV(srv) if srv.target.is_root() => Some(None),
            RData::SRV(srv) => Some(Some(Server {
                target: srv.target.to_string(),
                port: srv.port,
                priority: srv.priority,
                weight: srv.weight,
            })),
            _ => None,
        };
        let Some((found, until)) = self.records(name, RecordType::SRV, server).await? else {
            return Ok(None);
        };
        let known = found.len();
        let servers: Vec<Server> = found.into_iter().flatten().collect();
        let left_out = known - servers.len();
        if left_out > 0 && !servers.is_empty() {
            tracing::warn!(service = name, left_out, "ignored SRV records without a target");
        }
        Ok((!servers.is_empty()).then_some((servers, until)))
    }

    async fn records<T>(
        &self,
        name: &str,
        kind: RecordType,
        read: impl Fn(&RData) -> Option<T>,
    ) -> Records<T> {
        #[cfg(feature = "simulation")]
        if let Some(scripted) = scripted::records(name, kind) {
            let found: Vec<T> = scripted?.iter().filter_map(read).collect();
            let valid_until = Instant::now() + self.times.ttl_min;
            return Ok((!found.is_empty()).then_some((found, valid_until)));
        }
        let lookup: Lookup = match self.inner.lookup(name, kind).await {
            Ok(lookup) => lookup,
            Err(error) if error.is_no_records_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The resolver checks the owners of address records only.
        let owners = owners(&lookup);
        let is_of_name = |record: &&Record| kind != RecordType::SRV || owners.contains(&&record.name);
        let answers = lookup.answers().iter().filter(is_of_name);
        let found: Vec<T> = answers.filter_map(|record| read(&record.data)).collect();
        // Entries of the hosts file have no useful TTL, so both bounds apply here too.
        let now = Instant::now();
        let Times { ttl_min, ttl_max, .. } = self.times;
        let valid_until =
            Instant::from_std(lookup.valid_until()).clamp(now + ttl_min, now + ttl_max.max(ttl_min));
        Ok((!found.is_empty()).then_some((found, valid_until)))
    }
}

/// Returns the queried name and its aliases.
fn owners(lookup: &Lookup) -> Vec<&Name> {
    let mut owners = vec![lookup.query().name()];
    // Each round finds one alias or more, in any order of the records.
    loop {
        let known = owners.len();
        for record in lookup.answers() {
            if let RData::CNAME(alias) = &record.data
                && owners.contains(&&record.name)
                && !owners.contains(&&alias.0)
            {
                owners.push(&alias.0);
            }
        }
        if owners.len() == known {
            return owners;
        }
    }
}

/// Returns the addresses that this machine has a route to.
fn routed(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    // Without a socket of the family there is no route either. To connect one sends nothing.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok();
    addresses.retain(|ip| {
        let leads = |socket: &UdpSocket| socket.connect((*ip, 53)).is_ok();
        socket.as_ref().is_some_and(leads)
    });
    addresses
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::Query;
    use hickory_resolver::proto::rr::rdata::CNAME;
    use sigma_testkit::Dns;

    use super::*;

    #[test]
    fn aliases_are_owners_of_records() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let alias = |of: &str, to: &str| Record::from_rdata(name(of), 60, RData::CNAME(CNAME(name(to))));
        let answers = [alias("b.", "c."), alias("x.", "y."), alias("A.", "b."), alias("c.", "a.")];
        let lookup = Lookup::new_with_max_ttl(Query::query(name("a."), RecordType::SRV), answers);
        assert_eq!(owners(&lookup), [&name("a."), &name("b."), &name("c.")]);
    }

    #[tokio::test]
    async fn addresses_that_are_no_host_are_left_out() {
        let dns = Dns::start().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let sound = ip("127.0.0.9");
        let others = ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "::ffff:0.0.0.0"].map(ip);
        dns.set_addresses("mixed.test", &[&others[..], &[sound]].concat());
        dns.set_addresses("none.test", &others);
        let resolver = Resolver::with_servers(&[dns.address()]).unwrap();
        assert_eq!(resolver.addresses("mixed.test").await.unwrap().v4, Some(vec![sound]));
        assert!(resolver.addresses("none.test").await.is_err());
    }
}
