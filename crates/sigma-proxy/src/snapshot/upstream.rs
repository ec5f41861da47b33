//! Upstreams, compiled.

use std::sync::Arc;

use sigma_config::resources::{self, Balance, HashOn, PassHost, Scheme};
use sigma_http::Headers;
use sigma_schema::Problem;
use sigma_schema::expr::known::Subject;
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;
use sigma_upstream::balance::{Rules, ask_for};
use sigma_upstream::dial::Http3Use;
use sigma_upstream::endpoint::{Endpoint, UpstreamCell};
use sigma_upstream::health::plan::Plan;
use sigma_upstream::pool::PoolLimits;

use super::Timeouts;
use super::affinity::Affinity;
use super::destinations::Destinations;
use crate::attempt::fastcgi::FastCgi;
use crate::attempt::guards::{Guards, Limit};
use crate::attempt::retry::RetryPolicy;
use crate::attempt::time_limit::TimeLimit;
use crate::compile::EndpointSource;
use crate::compile::node_tls::{NodeTls, Requests};

/// The source of the key of consistent hashing.
#[derive(Debug, Clone)]
pub(crate) enum HashKey {
    /// A variable; headers and cookies are variables too.
    Variable(VarName),
    /// A template of variables.
    Template(Template),
}

/// An upstream that is a part of another one.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) key: Box<str>,
    pub(crate) weight: u32,
    pub(crate) priority: i32,
}

impl From<&resources::UpstreamMember> for Member {
    fn from(config: &resources::UpstreamMember) -> Member {
        let key = format!("upstreams/{}", config.upstream_id).into();
        Member { key, weight: config.weight, priority: config.priority }
    }
}

/// The metadata that a request asks for: a text with variables for each key.
type Criteria = Box<[(Box<str>, Template)]>;

/// A compiled upstream. Kept as it is over a reload that does not change its configuration.
#[derive(Debug)]
pub struct Upstream {
    /// `upstreams/1`, or `routes/1` for an inline one; unique and stable.
    pub key: String,
    /// The resource that it was compiled from.
    pub config: Arc<resources::Upstream>,
    /// Its endpoints.
    pub cell: Arc<UpstreamCell>,
    /// Its health checks, and outlier detection.
    pub checks: Option<Arc<Plan>>,
    /// The upstreams that it is made of; empty if it has nodes.
    pub(crate) members: Box<[Member]>,
    pub(crate) selection: NodeSelection,
    pub(crate) transport: NodeTransport,
    pub(crate) retry: RetryRules,
    pub(crate) deadline: Option<Box<TimeLimit>>,
    pub(crate) guards: Option<Box<Guards>>,
    /// It has guards, or members, or is not for requests.
    pub(crate) is_guarded: bool,
    pub(crate) host: HostRule,
    /// The destinations of clients that are its nodes.
    pub(crate) destinations: Option<Box<Destinations>>,
}

/// The rules that choose a node for a request.
#[derive(Debug)]
pub(crate) struct NodeSelection {
    pub(crate) balancing: Rules,
    pub(crate) hash_key: Option<HashKey>,
    pub(crate) affinity: Option<Box<Affinity>>,
    /// The metadata that a request asks for, by key.
    pub(crate) criteria: Option<Criteria>,
}

impl NodeSelection {
    /// Compiles the rules of the upstream under `key`, without session affinity.
    fn compile(key: &str, config: &resources::Upstream, zone: Option<&str>) -> NodeSelection {
        NodeSelection {
            balancing: Rules::new(config, zone),
            criteria: config.subsets.as_deref().map(criteria),
            hash_key: hash_key(key, config),
            affinity: None,
        }
    }

    /// Returns the hash key of these variables. `address` is the client's, and used if the key is empty. None if
    /// hashing does not choose the node.
    pub(crate) fn key_of(
        &self,
        variables: &dyn Variables,
        address: impl FnOnce() -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        let key = match self.hash_key.as_ref()? {
            HashKey::Variable(name) => match variables.get(name) {
                Some(VarValue::Text(text)) => Some(text.into_owned()),
                _ => None,
            },
            HashKey::Template(template) => {
                let mut text = Vec::new();
                (template.render(variables, &mut text) > 0).then_some(text)
            }
        };
        Some(key.unwrap_or_else(address))
    }

    /// Returns the metadata that the node must have for these variables.
    pub(crate) fn subset_of(&self, variables: &dyn Variables) -> Option<Box<[u8]>> {
        let (mut wanted, mut value) = (Vec::new(), Vec::new());
        for (key, template) in self.criteria.as_deref()? {
            value.clear();
            let rendered = template.render(variables, &mut value);
            if rendered > 0 || template.literal().is_some() {
                ask_for(&mut wanted, key, &value);
            }
        }
        Some(wanted.into_boxed_slice())
    }
}

/// The connections to nodes.
#[derive(Debug)]
pub(crate) struct NodeTransport {
    pub(crate) timeouts: Timeouts,
    pub(crate) pool: PoolLimits,
    pub(crate) tls: Option<Arc<NodeTls>>,
    /// The variables for nodes that speak FastCGI.
    pub(crate) fastcgi: Option<Box<FastCgi>>,
}

impl NodeTransport {
    fn compile(config: &resources::Upstream, tls: Option<Arc<NodeTls>>) -> NodeTransport {
        let pool = config.keepalive_pool.as_deref().copied().unwrap_or_default();
        NodeTransport {
            timeouts: config.timeout.as_deref().copied().unwrap_or_default().into(),
            pool: PoolLimits {
                size: pool.size as usize,
                idle_timeout_ms: (pool.idle_timeout * 1000.0) as u64,
                burst_ms: 0,
                requests: pool.requests,
            },
            tls,
            fastcgi: (config.scheme == Scheme::Fcgi)
                .then(|| Box::new(FastCgi::new(config.fastcgi.as_deref().unwrap_or(&Default::default())))),
        }
    }
}

/// The rules for further attempts.
#[derive(Debug)]
pub(crate) struct RetryRules {
    pub(crate) retries: Option<u32>,
    pub(crate) timeout_ms: u64,
    pub(crate) policy: Option<Box<RetryPolicy>>,
}

impl RetryRules {
    fn compile(config: &resources::Upstream) -> RetryRules {
        RetryRules {
            retries: config.retries,
            timeout_ms: (config.retry_timeout * 1000.0) as u64,
            policy: config.retry_policy.as_deref().map(|policy| Box::new(policy.into())),
        }
    }
}

/// The `Host` of requests to nodes.
#[derive(Debug)]
pub(crate) struct HostRule {
    pub(crate) pass: PassHost,
    /// The name that replaces the client's.
    pub(crate) rewritten: Box<str>,
}

impl Upstream {
    /// The TLS settings towards its nodes; None in cleartext.
    pub(crate) fn over_tls(&self) -> Option<&Requests> {
        self.transport.tls.as_ref()?.requests.as_ref()
    }

    /// Returns the announcement of HTTP/3 in a response of a node, if announcements count. An empty one ends an
    /// earlier one.
    pub(crate) fn announced_alternative(&self, headers: &Headers) -> Option<Box<[u8]>> {
        let http3 = self.over_tls()?.http3.as_ref()?;
        if http3.when != Http3Use::Announced {
            return None;
        }
        headers.find(b"alt-svc").map(Box::from)
    }

    /// Returns true if it is the upstream of this configuration on a gateway in this zone.
    pub(crate) fn is_of(&self, config: &resources::Upstream, zone: Option<&str>) -> bool {
        *self.config == *config
            && (config.zone_aware.is_none() || self.selection.balancing == Rules::new(config, zone))
    }

    /// Returns the state of its circuit breaker. None without one.
    pub fn breaker(&self) -> Option<&'static str> {
        Some(self.guards.as_ref()?.breaker.as_ref()?.breaker.state_name())
    }

    /// Returns when nodes are reached over HTTP/3; None for never.
    pub fn http3(&self) -> Option<&'static str> {
        Some(match self.over_tls()?.http3.as_ref()?.when {
            Http3Use::Only => "only",
            Http3Use::First => "first",
            Http3Use::Announced | Http3Use::Recorded => "announced",
        })
    }

    /// How many requests it has now, and how many it may have; None if they are not counted.
    pub fn in_flight(&self) -> Option<(u32, u32)> {
        let way = self.guards.as_ref()?.limit.as_ref()?.to_upstream()?;
        Some((way.gate.inside(), way.bounds.inside))
    }

    /// The same of a node.
    pub fn in_flight_of(&self, node: &Endpoint) -> Option<(u32, u32)> {
        let way = self.guards.as_ref()?.limit.as_ref()?.to_node(node)?;
        Some((way.gate.inside(), way.bounds.inside))
    }

    /// `Host` of a request that goes to a node, if each node has its own.
    pub fn host_of<'n>(&self, node: &'n Endpoint) -> Option<&'n str> {
        (self.host.pass == PassHost::Node).then_some(&node.host_header)
    }

    /// The keys of the upstreams that it is made of.
    pub fn member_keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| &*member.key)
    }

    /// How its nodes are spoken to, in the words of configurations.
    pub(crate) fn scheme_name(&self) -> &'static str {
        match self.config.scheme {
            Scheme::Https => "https",
            Scheme::Grpc => "grpc",
            Scheme::Grpcs => "grpcs",
            Scheme::Fcgi => "fcgi",
            Scheme::Kafka => "kafka",
            _ => "http",
        }
    }

    /// Compiles the upstream that is found under `key`. The gateway is in this `zone`. It has no guards and no session affinity yet.
    ///
    /// # Errors
    /// Returns an error if there is a problem that the check of the configuration could not see.
    pub(crate) fn compile(
        key: &str,
        config: &Arc<resources::Upstream>,
        tls: Option<Arc<NodeTls>>,
        zone: Option<&str>,
        source: &mut dyn EndpointSource,
    ) -> Result<Upstream, Problem> {
        let (cell, checks) =
            source.endpoints(key, config, tls.as_ref().and_then(|tls| tls.probes.as_ref()))?;
        Ok(Upstream {
            key: key.to_owned(),
            cell,
            checks,
            members: config.members.iter().map(Member::from).collect(),
            selection: NodeSelection::compile(key, config, zone),
            transport: NodeTransport::compile(config, tls),
            retry: RetryRules::compile(config),
            deadline: config.deadline.as_deref().map(|deadline| Box::new(deadline.into())),
            guards: None,
            is_guarded: false,
            host: HostRule {
                pass: config.pass_host,
                rewritten: config.upstream_host.clone().unwrap_or_default(),
            },
            destinations: config.original_destination.as_deref().map(|destinations| {
                Box::new(Destinations::new(destinations, config.scheme, source.identities()))
            }),
            config: Arc::clone(config),
        })
    }
}

impl Upstream {
    /// Adds its guards and its session affinity, which keep the knowledge of an earlier compilation.
    pub(crate) fn succeeding(mut self, before: Option<&Upstream>) -> Upstream {
        let guards = Guards::of(&self.config, before.and_then(|before| before.guards.as_deref()));
        self.selection.affinity =
            Affinity::of(&self.config, before.and_then(|before| before.selection.affinity.as_deref()));
        let is_guarded = guards.is_some() || !self.members.is_empty() || !self.is_for_requests();
        Upstream { guards, is_guarded, ..self }
    }

    /// Returns true if its nodes accept requests, and not only bytes.
    pub(crate) fn is_for_requests(&self) -> bool {
        matches!(
            self.config.scheme,
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs | Scheme::Fcgi
        )
    }

    /// Returns the limit of requests per node.
    pub(crate) fn node_limit(&self) -> Option<&Limit> {
        self.guards.as_ref()?.limit.as_ref().filter(|limit| limit.is_per_node())
    }
}

fn criteria(config: &resources::Subsets) -> Criteria {
    config.criteria.iter().map(|(key, text)| (key.clone(), Template::parse(text))).collect()
}

/// The value by which hashing chooses a node (APISIX: `hash_on`, `key`).
fn hash_key(upstream: &str, config: &resources::Upstream) -> Option<HashKey> {
    if !matches!(config.balance, Balance::Chash | Balance::Maglev | Balance::Rendezvous) {
        return None;
    }
    let name = config.key.as_deref().unwrap_or("remote_addr");
    let key = match config.hash_on {
        HashOn::Vars => HashKey::Variable(VarName::parse(name)),
        HashOn::Header => HashKey::Variable(VarName::parse(&format!("http_{name}"))),
        HashOn::Cookie => HashKey::Variable(VarName::parse(&format!("cookie_{name}"))),
        HashOn::Consumer => HashKey::Variable(VarName::ConsumerName),
        HashOn::VarsCombinations => HashKey::Template(Template::parse(name)),
    };
    let subject = match config.scheme {
        Scheme::Tcp | Scheme::Tls | Scheme::Udp => Subject::Session,
        _ => Subject::Exchange,
    };
    let unknown = match &key {
        HashKey::Variable(name) => name.unknown_of(subject),
        HashKey::Template(template) => template.unknown_of(subject),
    };
    if let Some(reason) = unknown {
        tracing::warn!(upstream, "key: {reason}; using the client's address instead");
    }
    Some(key)
}
