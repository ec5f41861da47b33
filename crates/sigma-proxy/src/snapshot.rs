//! One configuration, compiled: everything a worker needs, immutable, behind one pointer.

use std::collections::HashMap;
use std::sync::Arc;

use regex::bytes::Regex;
use sigma_config::cidr::CidrSet;
use sigma_config::expr::VarName;
use sigma_config::resources::{self, Balance, HashOn, PassHost};
use sigma_config::settings::Settings;
use sigma_config::template::Template;
use sigma_config::{Config, Problem};
use sigma_observe::access::AccessFormat;
use sigma_upstream::endpoint::UpstreamCell;
use sigma_upstream::health::plan::Plan;
use sigma_upstream::pool::PoolLimits;

use crate::route::normalize::UriOptions;
use crate::route::{Explanation, Request, RouteInput, Router};

/// A compiled configuration. A request holds on to the one it began with.
#[derive(Debug)]
pub struct Snapshot {
    /// The settings it was compiled from.
    pub settings: Settings,
    pub(crate) router: Router,
    pub(crate) uri_options: UriOptions,
    pub(crate) routes: Vec<Route>,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    /// Number of an upstream by its key.
    pub(crate) upstream_numbers: HashMap<String, u32>,
    pub(crate) access_format: Option<AccessFormat>,
    /// Names that routes and listeners share; the number is the position + 1, 0 is "no name".
    listener_names: Vec<String>,
    config: Config,
}

/// A compiled route.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) service_id: Option<String>,
    pub(crate) target: Target,
    pub(crate) websocket: bool,
    /// Replaces the upstream's.
    pub(crate) timeouts: Option<Timeouts>,
    pub(crate) rewrite: Option<Rewrite>,
}

/// Where a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The upstream with this number.
    Upstream(u32),
    /// It names a service that does not exist.
    NoService,
    /// It has no upstream.
    NoUpstream,
}

/// A regular expression on the path, with its replacement.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) regex: Regex,
    pub(crate) replacement: Vec<u8>,
}

/// Timeouts towards an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Where the key of consistent hashing comes from.
#[derive(Debug, Clone)]
pub(crate) enum HashKey {
    /// A variable; headers and cookies are variables too.
    Variable(VarName),
    /// A template of variables.
    Template(Template),
}

/// A compiled upstream. Kept as it is over a reload that does not change its configuration.
#[derive(Debug)]
pub struct Upstream {
    /// `upstreams/1`, or `routes/1` for an inline one; unique and stable.
    pub key: String,
    /// What it was compiled from.
    pub config: resources::Upstream,
    /// Its endpoints.
    pub cell: Arc<UpstreamCell>,
    /// Its health checks.
    pub checks: Option<Arc<Plan>>,
    pub(crate) balance: Balance,
    pub(crate) hash_key: Option<HashKey>,
    pub(crate) timeouts: Timeouts,
    pub(crate) pool: PoolLimits,
    pub(crate) retries: Option<u32>,
    pub(crate) retry_timeout_ms: u64,
    pub(crate) pass_host: PassHost,
    pub(crate) upstream_host: String,
}

/// Makes the endpoints of upstreams; lives on the control side, where names are resolved.
pub trait EndpointSource {
    /// The cell and the checks of the upstream with this key.
    ///
    /// # Errors
    /// What the configuration check could not see.
    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem>;
}

impl Upstream {
    fn compile(
        key: &str,
        config: &resources::Upstream,
        source: &mut dyn EndpointSource,
    ) -> Result<Upstream, Problem> {
        let (cell, checks) = source.endpoints(key, config)?;
        let pool = config.keepalive_pool.unwrap_or_default();
        Ok(Upstream {
            key: key.to_owned(),
            cell,
            checks,
            balance: config.balance,
            hash_key: hash_key(config),
            timeouts: config.timeout.unwrap_or_default().into(),
            pool: PoolLimits {
                size: pool.size as usize,
                idle_timeout_ms: (pool.idle_timeout * 1000.0) as u64,
                requests: pool.requests,
            },
            retries: config.retries,
            retry_timeout_ms: (config.retry_timeout * 1000.0) as u64,
            pass_host: config.pass_host,
            upstream_host: config.upstream_host.clone().unwrap_or_default(),
            config: config.clone(),
        })
    }
}

/// upstreams.md §2.2
fn hash_key(config: &resources::Upstream) -> Option<HashKey> {
    if config.balance != Balance::Chash {
        return None;
    }
    let name = config.key.as_deref().unwrap_or("remote_addr");
    Some(match config.hash_on {
        HashOn::Vars => HashKey::Variable(VarName::parse(name)),
        HashOn::Header => HashKey::Variable(VarName::parse(&format!("http_{name}"))),
        HashOn::Cookie => HashKey::Variable(VarName::parse(&format!("cookie_{name}"))),
        HashOn::Consumer => HashKey::Variable(VarName::ConsumerName),
        HashOn::VarsCombinations => HashKey::Template(Template::parse(name)),
    })
}

impl Snapshot {
    /// Compiles a checked configuration. Upstreams whose configuration is the same as in
    /// `previous` are taken over with all their state.
    ///
    /// # Errors
    /// All problems that the check of the document could not see.
    pub fn compile(
        config: Config,
        previous: Option<&Snapshot>,
        source: &mut dyn EndpointSource,
    ) -> Result<Snapshot, Vec<Problem>> {
        let mut compiler = Compiler::new(previous, source);
        let mut problems = Vec::new();
        let routes: Vec<Route> = {
            let services: HashMap<&str, &resources::Service> =
                config.resources.services.iter().map(|s| (s.id.as_str(), s)).collect();
            compiler.shared(&config.resources, &mut problems);
            config
                .resources
                .routes
                .iter()
                .map(|route| compiler.route(route, &services, &mut problems))
                .collect()
        };
        let (upstreams, upstream_numbers) = (compiler.upstreams, compiler.numbers);
        let access_format = access_format(&config.settings, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let listener_names = listener_names(&config.settings);
        let router = Router::compile(config.settings.router.http, &route_inputs(&config, &listener_names));
        let uri_options = UriOptions::from(&config.settings.router);
        let settings = config.settings.clone();
        Ok(Snapshot {
            settings,
            router,
            uri_options,
            routes,
            upstreams,
            upstream_numbers,
            access_format,
            listener_names,
            config,
        })
    }

    /// The configuration it was compiled from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its upstreams.
    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// The number that routes know a listener's name by.
    pub(crate) fn listener_number(&self, name: Option<&str>) -> u16 {
        number_of(&self.listener_names, name)
    }

    pub(crate) fn trusted(&self) -> &CidrSet {
        &self.settings.trusted_addresses
    }

    /// Why each route does or does not serve a request.
    pub fn explain<Q: Request + ?Sized>(&self, request: &Q) -> Vec<(String, Explanation)> {
        let explanations = self.router.explain(&route_inputs(&self.config, &self.listener_names), request);
        let id = |route: u32| self.routes.get(route as usize).map_or_else(String::new, |r| r.id.clone());
        explanations.into_iter().map(|explanation| (id(explanation.route), explanation)).collect()
    }
}

fn number_of(names: &[String], name: Option<&str>) -> u16 {
    let position = name.and_then(|name| names.iter().position(|known| known == name));
    position.map_or(0, |at| u16::try_from(at + 1).unwrap_or(0))
}

fn listener_names(settings: &Settings) -> Vec<String> {
    let mut names: Vec<String> = settings.listeners.iter().filter_map(|l| l.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn access_format(settings: &Settings, problems: &mut Vec<Problem>) -> Option<AccessFormat> {
    if settings.access_log.path == "off" {
        return None;
    }
    AccessFormat::compile(&settings.access_log.format)
        .map_err(|error| problems.push(Problem::new("access_log.format", "format", error.to_string())))
        .ok()
}

fn route_inputs<'c>(config: &'c Config, listener_names: &[String]) -> Vec<RouteInput<'c>> {
    let services: HashMap<&str, &resources::Service> =
        config.resources.services.iter().map(|s| (s.id.as_str(), s)).collect();
    let input = |route: &'c resources::Route| {
        let service = route.service_id.as_ref().and_then(|id| services.get(id.as_str()).copied());
        RouteInput::of(route, service, |name| Some(number_of(listener_names, Some(name))).filter(|n| *n > 0))
    };
    config.resources.routes.iter().map(input).collect()
}

struct Compiler<'a> {
    previous: Option<&'a Snapshot>,
    source: &'a mut dyn EndpointSource,
    upstreams: Vec<Arc<Upstream>>,
    numbers: HashMap<String, u32>,
}

impl<'a> Compiler<'a> {
    fn new(previous: Option<&'a Snapshot>, source: &'a mut dyn EndpointSource) -> Compiler<'a> {
        Compiler { previous, source, upstreams: Vec::new(), numbers: HashMap::new() }
    }

    /// Upstreams that have a name of their own.
    fn shared(&mut self, resources: &resources::Resources, problems: &mut Vec<Problem>) {
        for upstream in &resources.upstreams {
            self.upstream(format!("upstreams/{}", upstream.id), upstream, problems);
        }
    }

    fn upstream(
        &mut self,
        key: String,
        config: &resources::Upstream,
        problems: &mut Vec<Problem>,
    ) -> Option<u32> {
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let known = self.previous.and_then(|p| Some(&p.upstreams[*p.upstream_numbers.get(&key)? as usize]));
        let upstream = match known {
            Some(same) if same.config == *config => Arc::clone(same),
            _ => match Upstream::compile(&key, config, self.source) {
                Ok(upstream) => Arc::new(upstream),
                Err(problem) => {
                    problems.push(problem);
                    return None;
                }
            },
        };
        let number = u32::try_from(self.upstreams.len()).ok()?;
        self.upstreams.push(upstream);
        self.numbers.insert(key, number);
        Some(number)
    }

    fn route(
        &mut self,
        route: &resources::Route,
        services: &HashMap<&str, &resources::Service>,
        problems: &mut Vec<Problem>,
    ) -> Route {
        let service = route.service_id.as_ref().map(|id| services.get(id.as_str()).copied());
        let websocket = route.enable_websocket.or(service.flatten().and_then(|s| s.enable_websocket));
        Route {
            id: route.id.to_string(),
            name: route.name.clone(),
            service_id: route.service_id.as_ref().map(ToString::to_string),
            target: self.target(route, service, problems),
            websocket: websocket.unwrap_or(false),
            timeouts: route.timeout.map(Timeouts::from),
            rewrite: route.rewrite.as_ref().and_then(|rewrite| compile_rewrite(route, rewrite, problems)),
        }
    }

    /// resources.md §14: the route's upstream replaces the service's; a reference wins over an
    /// inline one.
    fn target(
        &mut self,
        route: &resources::Route,
        service: Option<Option<&resources::Service>>,
        problems: &mut Vec<Problem>,
    ) -> Target {
        let by_id = |compiler: &Self, id: &sigma_config::id::Id| {
            compiler
                .numbers
                .get(&format!("upstreams/{id}"))
                .map_or(Target::NoUpstream, |n| Target::Upstream(*n))
        };
        if let Some(id) = &route.upstream_id {
            return by_id(self, id);
        }
        if let Some(inline) = &route.upstream {
            let number = self.upstream(format!("routes/{}", route.id), inline, problems);
            return number.map_or(Target::NoUpstream, Target::Upstream);
        }
        match service {
            Some(None) => Target::NoService,
            None => Target::NoUpstream,
            Some(Some(service)) => match (&service.upstream_id, &service.upstream) {
                (Some(id), _) => by_id(self, id),
                (None, Some(inline)) => {
                    let number = self.upstream(format!("services/{}", service.id), inline, problems);
                    number.map_or(Target::NoUpstream, Target::Upstream)
                }
                (None, None) => Target::NoUpstream,
            },
        }
    }
}

fn compile_rewrite(
    route: &resources::Route,
    rewrite: &resources::PathRewrite,
    problems: &mut Vec<Problem>,
) -> Option<Rewrite> {
    match Regex::new(&rewrite.regex) {
        Ok(regex) => Some(Rewrite { regex, replacement: rewrite.replacement.clone().into_bytes() }),
        Err(error) => {
            let place = format!("routes/{}.rewrite.regex", route.id);
            problems.push(Problem::new(place, "regex", error.to_string()));
            None
        }
    }
}
