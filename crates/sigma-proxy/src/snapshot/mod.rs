//! One configuration, compiled: everything a worker needs, immutable, behind one pointer.
//!
//! Routes and upstreams have numbers that stay theirs over generations. A generation that differs
//! little from the one before shares nearly all of its memory with it; see [`crate::compile`].

mod affinity;
mod destinations;
pub(crate) mod edge;
pub(crate) mod flows;
mod learnt;
mod presented;
pub(crate) mod slots;
mod upstream;

use std::sync::Arc;

use regex::bytes::Regex;
use rpds::HashTrieMapSync;
use sigma_config::Config;
use sigma_config::resources::{self, PriorityClass};
use sigma_config::settings::{ListenPlace, Settings};
use sigma_http::{HeaderId, HeaderIds};
use sigma_observe::access::AccessFormat;
use sigma_plugin::cache::CacheOrder;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::geography::Geography;
use sigma_plugin::{Bridge, Chain, Consumers, OwnedField, OwnedFields, Residents};
use sigma_schema::cidr::CidrSet;
use sigma_schema::defined::Definitions;

use sigma_upstream::dial::DialLimits;

use crate::attempt::retry::RetryPolicy;
use crate::attempt::time_limit::TimeLimit;
use crate::compile::Sessions;
use crate::compile::route_inputs;
use crate::edge::challenges::Challenges;
use crate::route::normalize::UriOptions;
use crate::route::{Explanation, Request, Router};
use edge::{ListenerOptions, ServerCertificates};
use flows::FlowRouter;
use slots::Slots;

pub(crate) use affinity::{Affinity, Session};
pub(crate) use destinations::{ChosenNodes, Destinations};
pub use presented::{Presented, Side};
pub(crate) use upstream::Member;
pub use upstream::Upstream;

/// A compiled configuration. A request holds on to the one it began with.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The store's revision that it shows; 0 for a file.
    pub revision: u64,
    /// The settings it was compiled from.
    pub settings: Arc<Settings>,
    /// The limits of connections to nodes, from the settings.
    pub(crate) dial_limits: Arc<DialLimits>,
    pub(crate) router: Router,
    pub(crate) uri_options: UriOptions,
    pub(crate) routes: Slots<Route>,
    pub(crate) upstreams: Slots<Upstream>,
    /// Numbers of upstreams that are found by their keys while a request is served.
    pub(crate) upstream_numbers: HashTrieMapSync<Box<str>, u32>,
    /// Plugins of the global rules.
    pub(crate) global: Arc<Chain>,
    /// A global rule cannot be served: nothing is, since nothing may go past it.
    pub(crate) closed: bool,
    pub(crate) consumers: Consumers,
    pub(crate) access_format: Option<Arc<AccessFormat>>,
    /// The access lines of sessions.
    pub(crate) stream_format: Option<Arc<AccessFormat>>,
    /// The stream routes.
    pub(crate) flows: Arc<FlowRouter>,
    /// Names that routes and listeners share; the number is the position + 1, 0 is "no name".
    pub(crate) listener_names: Arc<[String]>,
    /// The smallest port of the listeners with TLS, where redirects lead.
    pub(crate) https_port: Option<u16>,
    /// The options of the listeners whose connections are more than plain bytes.
    pub(crate) listeners: Arc<[Arc<ListenerOptions>]>,
    /// The certificates that clients are shown over TLS.
    pub(crate) certificates: Arc<ServerCertificates>,
    /// The responses to authorities that check a name. None without ordered certificates.
    pub(crate) challenges: Option<Arc<Challenges>>,
    /// How their sessions are resumed; passes to the next generation.
    pub(crate) sessions: Option<Arc<Sessions>>,
    /// Where addresses are, if databases are named.
    pub(crate) geography: Option<Geography>,
    /// The variables that the settings define.
    pub(crate) definitions: Option<Arc<Definitions>>,
    /// The parts of plugins that exist once per process.
    pub residents: Arc<Residents>,
    /// The bridges of plugins to nodes that do not speak HTTP.
    pub(crate) bridges: Arc<[Bridge]>,
    /// The fields that only trusted peers may send.
    pub(crate) untrusted: Arc<Untrusted>,
}

/// The fields that only trusted peers may send.
#[derive(Debug)]
pub(crate) struct Untrusted {
    /// The known ones: a request without them costs one comparison.
    pub(crate) known: HeaderIds,
    /// All, with their other spellings.
    pub(crate) all: OwnedFields,
    /// The same for trailers. The gateway's own plugins may set them.
    pub(crate) in_trailers: Arc<OwnedFields>,
    /// There are others than `known`.
    pub(crate) has_others: bool,
}

impl Untrusted {
    pub(crate) fn new(settings: &Settings) -> Untrusted {
        let names = || settings.untrusted_fields.iter();
        let ids: Vec<HeaderId> = names().map(|name| HeaderId::of(name.as_bytes())).collect();
        Untrusted {
            known: HeaderIds::of(&ids),
            all: OwnedFields::new(names().map(OwnedField::sole)),
            in_trailers: Arc::new(OwnedFields::new(names().map(OwnedField::shared))),
            // A known name without a hyphen has no other spelling.
            has_others: names()
                .any(|name| HeaderId::of(name.as_bytes()) == HeaderId::Other || name.contains('-')),
        }
    }
}

/// A compiled route.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) facts: Arc<RouteFacts>,
    pub(crate) target: Target,
    pub(crate) websocket: bool,
    /// The class that decides which requests are rejected first under pressure.
    pub(crate) priority_class: PriorityClass,
    /// The parts that few routes have.
    pub(crate) rare: Option<Box<Rare>>,
    /// The plugins of the route, its plugin config and its service.
    pub(crate) chain: Arc<Chain>,
    /// The global rules' plugins, where some of them yield to the route's.
    pub(crate) global: Option<Arc<Chain>>,
}

/// The parts of a route that few have: without them it is one pointer larger.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Other protocols that a connection may change to.
    pub(crate) upgrades: Box<[Box<str>]>,
    /// Replaces the upstream's.
    pub(crate) timeouts: Option<Timeouts>,
    /// Replaces the upstream's.
    pub(crate) retry_policy: Option<RetryPolicy>,
    /// Replaces the upstream's.
    pub(crate) deadline: Option<TimeLimit>,
    pub(crate) rewrite: Option<Rewrite>,
    pub(crate) cache: Option<Box<CacheOrder>>,
    /// The variables of the route and of the settings; None if the route sets none.
    pub(crate) definitions: Option<Arc<Definitions>>,
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.upgrades.is_empty()
            && self.timeouts.is_none()
            && self.retry_policy.is_none()
            && self.deadline.is_none()
            && self.rewrite.is_none()
            && self.cache.is_none()
            && self.definitions.is_none()
    }

    /// As a route keeps them.
    pub(crate) fn kept(self) -> Option<Box<Rare>> {
        (!self.is_empty()).then(|| Box::new(self))
    }
}

impl Route {
    pub(crate) fn upgrades(&self) -> &[Box<str>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.upgrades)
    }

    pub(crate) fn timeouts(&self) -> Option<&Timeouts> {
        self.rare.as_ref()?.timeouts.as_ref()
    }

    pub(crate) fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.rare.as_ref()?.retry_policy.as_ref()
    }

    pub(crate) fn deadline(&self) -> Option<&TimeLimit> {
        self.rare.as_ref()?.deadline.as_ref()
    }

    pub(crate) fn cache(&self) -> Option<&CacheOrder> {
        self.rare.as_ref()?.cache.as_deref()
    }

    pub(crate) fn definitions(&self) -> Option<&Arc<Definitions>> {
        self.rare.as_ref()?.definitions.as_ref()
    }

    pub(crate) fn rewrite(&self) -> Option<&Rewrite> {
        self.rare.as_ref()?.rewrite.as_ref()
    }
}

/// The destination of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The upstream with this number, if there is one.
    Upstream(u32),
    /// It names a service that does not exist.
    NoService,
    /// It names a plugin config that does not exist.
    NoPluginConfig,
    /// It has no upstream.
    NoUpstream,
    /// It, or a resource that it takes plugins from, cannot be served as it was written.
    Closed,
}

impl Target {
    /// Returns true if guards of the route are missing, so that none of its plugins may respond or choose an
    /// upstream.
    pub(crate) fn is_unguarded(self) -> bool {
        matches!(self, Target::NoService | Target::NoPluginConfig | Target::Closed)
    }
}

/// A regular expression on the path, with its replacement.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) regex: Regex,
    pub(crate) replacement: Vec<u8>,
}

/// Timeouts towards an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Timeouts {
    pub(crate) connect_ms: u64,
    pub(crate) send_ms: u64,
    pub(crate) read_ms: u64,
}

impl From<resources::Timeout> for Timeouts {
    fn from(timeout: resources::Timeout) -> Timeouts {
        let ms = |seconds: f64| (seconds * 1000.0).ceil().max(1.0) as u64;
        Timeouts { connect_ms: ms(timeout.connect), send_ms: ms(timeout.send), read_ms: ms(timeout.read) }
    }
}

impl Snapshot {
    /// Its upstreams.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.iter().map(|(_, upstream)| upstream)
    }

    /// How many routes it has.
    pub fn route_count(&self) -> usize {
        self.routes.iter().count()
    }

    /// The route with this number.
    #[inline]
    pub(crate) fn route(&self, number: u32) -> Option<&Route> {
        self.routes.get(number).map(|route| &**route)
    }

    /// The upstream with this number.
    #[inline]
    pub(crate) fn upstream(&self, number: u32) -> Option<&Arc<Upstream>> {
        self.upstreams.get(number)
    }

    /// Returns true if the upstream with this number needs more than a direct attempt: it has guards, or members, or
    /// is not for requests.
    #[inline]
    pub(crate) fn is_guarded(&self, number: u32) -> bool {
        self.upstream(number).is_some_and(|upstream| upstream.is_guarded)
    }

    /// The number of the upstream with this key. One within a route or service, which few plugins call, is not in the
    /// table.
    pub(crate) fn upstream_number(&self, key: &str) -> Option<u32> {
        let is_private = key.starts_with("services/") || key.starts_with("routes/");
        let search =
            || self.upstreams.iter().find(|(_, upstream)| upstream.key == key).map(|(number, _)| number);
        self.upstream_numbers.get(key).copied().or_else(|| if is_private { search() } else { None })
    }

    /// The number that routes know a listener's name by.
    pub(crate) fn listener_number(&self, name: Option<&str>) -> u16 {
        number_of(&self.listener_names, name)
    }

    /// The options of the listener at this place; None if its connections are plain.
    pub(crate) fn listener(&self, place: &ListenPlace) -> Option<&Arc<ListenerOptions>> {
        self.listeners.iter().find(|listener| listener.place == *place)
    }

    pub(crate) fn trusted(&self) -> &CidrSet {
        &self.settings.trusted_addresses
    }

    /// Explains why each route of its configuration does or does not match a request.
    pub fn explain<Q: Request + ?Sized>(&self, config: &Config, request: &Q) -> Vec<(String, Explanation)> {
        let routes: Vec<&Arc<resources::Route>> = config.resources.routes.iter().collect();
        let explanations = self.router.explain(route_inputs(config, &self.listener_names), request);
        let id = |at: u32| routes.get(at as usize).map_or_else(String::new, |route| route.id.to_string());
        explanations.into_iter().map(|explanation| (id(explanation.route), explanation)).collect()
    }
}

/// The number of a listener's name; 0 if no listener has it.
pub(crate) fn number_of(names: &[String], name: Option<&str>) -> u16 {
    let position = name.and_then(|name| names.iter().position(|known| known == name));
    position.map_or(0, |at| u16::try_from(at + 1).unwrap_or(0))
}
