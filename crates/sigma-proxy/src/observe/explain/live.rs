//! The treatment that a request would get from the current snapshot: its route and why no other, its plugins, and
//! its upstream. Nothing is sent, counted or run, and no worker takes part.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::resources::{self, PassHost};
use sigma_http::{Fault, FaultKind, HeaderId, RequestHead};
use sigma_net::Peer;
use sigma_observe::date::Clock;
use sigma_plugin::context::{Client, Tls};
use sigma_plugin::resource::AnyResource;
use sigma_plugin::{Consumer, Context, Entry, Identity, Phase, Resource, RunPolicy};

use super::parsed;
use crate::attempt::attempts::NO_NODE;
use crate::attempt::judge::out_of_service;
use crate::edge::connection::Origin;
use crate::exchange::{Viewed, accept};
use crate::route::{Outcome, Params, RouteInput, Unserved};
use crate::snapshot::{Route, Snapshot, Target, Upstream, number_of};

/// A hypothetical request.
#[derive(Debug, Clone, Default)]
pub struct ExplainedRequest {
    /// Its method.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// `Host`.
    pub host: String,
    /// Its other fields.
    pub fields: Vec<(String, String)>,
    /// The client's address; 127.0.0.1 by default.
    pub client: Option<SocketAddr>,
    /// The name of the listener that receives it.
    pub listener: Option<String>,
    /// Whether it comes over TLS.
    pub is_over_tls: bool,
    /// The consumer that sends it, if it is known.
    pub consumer: Option<String>,
    /// The most routes to list.
    pub routes: usize,
}

/// The result for one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Considered {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Why the route does not match. None if it matches.
    pub reason: Option<String>,
}

/// A plugin that applies to a request.
#[derive(Debug, Clone)]
pub struct Met {
    /// Its name.
    pub name: String,
    /// The resource that it is configured in, such as `services/1`.
    pub source: String,
    /// The resources whose plugin of this name it replaces.
    pub instead_of: Vec<String>,
    /// Whether it is in a global rule.
    pub is_global: bool,
    /// Its priority: a higher number runs first.
    pub priority: i32,
    /// The phases in which it runs.
    pub phases: Vec<Phase>,
    /// Why it does not run at all.
    pub left_out: Option<&'static str>,
    /// The result of `_meta.filter` for this request. None without a filter.
    pub filter: Option<bool>,
    /// Its configuration, with its secrets.
    pub conf: Arc<Value>,
    /// Its effect on the request, secrets included. None if that is not known.
    pub would: Option<Value>,
    entry: Option<Arc<Entry>>,
}

/// The treatment of a request.
#[derive(Debug, Clone, Default)]
pub struct Explained {
    /// The path that routes are compared with.
    pub path: String,
    /// The routes that come closest, the matched one first.
    pub considered: Vec<Considered>,
    /// The number of further routes, whose paths are different.
    pub others: usize,
    /// The number of routes that do not match for another reason, and did not fit in here.
    pub unlisted: usize,
    /// The matched route.
    pub route: Option<Arc<resources::Route>>,
    /// Its service.
    pub service: Option<Arc<resources::Service>>,
    /// Why the gateway itself responds, if it does, plugins aside.
    pub refused: Option<&'static str>,
    /// The plugins in the order in which they run within each phase, global rules first; those that do not run
    /// come last.
    pub plugins: Vec<Met>,
    /// The upstream.
    pub upstream: Option<Arc<Upstream>>,
    /// Why no node of the upstream gets the request now. None if one does.
    pub unavailable: Option<Fault>,
    /// The request that a node gets.
    pub sent: SentRequest,
}

/// The changes of a request on its way to a node.
#[derive(Debug, Clone, Default)]
pub struct SentRequest {
    /// The path and the query, if the route rewrites them.
    pub rewritten: Option<String>,
    /// The method, if a plugin changes it.
    pub method: Option<String>,
    /// `Host` for any chosen node. None if each node has its own.
    pub host: Option<String>,
    /// The fields that describe the client: name and value of each.
    pub forwarded: Vec<(&'static str, String)>,
}

impl Met {
    /// Whether it runs for this request.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.left_out.is_none() && self.filter != Some(false)
    }
}

impl Explained {
    /// The names of the plugins that run before a node is queried, and so may respond themselves.
    pub fn may_be_refused_by(&self) -> impl Iterator<Item = &str> {
        let before = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy];
        let may = move |one: &&Met| one.runs() && before.iter().any(|phase| one.phases.contains(phase));
        self.plugins.iter().filter(may).map(|one| one.name.as_str())
    }
}

/// Explains a request; The snapshot was compiled from `config`. Time is linear in the number of routes.
///
/// # Errors
/// Returns an error, which is the broken rule, if the request breaks one.
pub fn explain_live(
    snapshot: &Snapshot,
    config: &Config,
    question: &ExplainedRequest,
) -> Result<Explained, &'static str> {
    let mut text = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", question.method, question.target, question.host);
    for (name, value) in &question.fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut head = parsed(&text, question.fields.len() + 1)?;
    accept(&mut head, snapshot)?;
    let client = question.client.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = number_of(&snapshot.listener_names, question.listener.as_deref());
    let origin = Origin { listener, ..Origin::new(Peer::Ip(client), None, 0, &Clock::new(0)) };
    let tls = Tls {
        server_name: Some(question.host.split(':').next().unwrap_or_default().to_owned()),
        protocol: "TLSv1.3",
        client_verify: "NONE".into(),
        ..Tls::default()
    };
    let tls = question.is_over_tls.then_some(&tls);
    let viewed = Viewed::of(&head, snapshot, origin, tls)?;
    let mut explained = Explained { path: viewed.path(), ..Explained::default() };
    let found = match snapshot.router.find(&viewed.request(), &mut Params::new()) {
        Outcome::Route(number) => Some(number),
        _ => None,
    };
    consider(snapshot, &viewed, found, question.routes, &mut explained);
    let route = found.and_then(|number| snapshot.route(number));
    let resources = route.map(|route| &route.facts.resources);
    explained.route = resources.and_then(|of| of.route.as_ref()?.share());
    explained.service = resources.and_then(|of| of.service.as_ref()?.share());
    let consumer = question.consumer.as_deref().and_then(|name| snapshot.consumers.get(name));
    explained.refused = refusal(snapshot, route, consumer.map(|consumer| &**consumer));
    plugins(snapshot, config, route, consumer, &viewed, &mut explained.plugins);
    lead(snapshot, route, &viewed, &mut explained);
    let mut ctx = context(&head, &viewed, snapshot, route, consumer);
    ctx.client = Client { tls: tls.cloned().map(Rc::new), ..origin.client() };
    if let Some(told) = viewed.forwarded_address() {
        (ctx.client.addr, ctx.client.port) = (Some(told.addr), told.port);
    }
    foresee(ctx, &mut explained);
    explained.sent.forwarded = forwarded(snapshot, &viewed, client, question);
    Ok(explained)
}

/// A resource of a matched route.
fn resource<T: AnyResource>(of: &Option<Resource>) -> Option<&T> {
    of.as_ref()?.get()
}

/// Says of routes why they do not serve the request: of those first whose paths fit.
fn consider(
    snapshot: &Snapshot,
    viewed: &Viewed<'_>,
    found: Option<u32>,
    room: usize,
    explained: &mut Explained,
) {
    let numbering =
        |name: &str| Some(number_of(&snapshot.listener_names, Some(name))).filter(|number| *number > 0);
    let (mut first, mut near) = (None, Vec::new());
    for (number, route) in snapshot.routes.iter() {
        let of = &route.facts.resources;
        let Some(source) = of.route.as_ref().and_then(Resource::get::<resources::Route>) else { continue };
        let considered = |reason| Considered {
            id: source.id.to_string(),
            name: source.name.as_deref().map(str::to_owned),
            reason,
        };
        if found == Some(number) {
            first = Some(considered(None));
            continue;
        }
        let input = RouteInput::of(source, of.service.as_ref().and_then(Resource::get), numbering);
        match snapshot.router.unserved(&input, &viewed.request()) {
            Some(Unserved::Path(_)) => explained.others += 1,
            _ if near.len() >= room => explained.unlisted += 1,
            Some(Unserved::Other(reason)) => near.push(considered(Some(reason))),
            None => near.push(considered(Some(match &first {
                Some(Considered { id, .. }) => format!("route {id} comes first"),
                None => "another route comes first".to_owned(),
            }))),
        }
    }
    explained.considered = first.into_iter().chain(near).collect();
}

fn refusal(snapshot: &Snapshot, route: Option<&Route>, consumer: Option<&Consumer>) -> Option<&'static str> {
    if snapshot.closed {
        return Some("503: a global rule is quarantined");
    }
    let Some(route) = route else { return Some("404: no route matches this request") };
    if consumer.is_some_and(|consumer| consumer.closed || consumer.group_missing) {
        return Some("503: the consumer or its group is quarantined or missing");
    }
    match route.target {
        Target::Upstream(number) if snapshot.upstream(number).is_some() => None,
        Target::Upstream(_) => Some("503: the upstream of the route does not exist"),
        Target::NoService => Some("404: the service of the route does not exist"),
        Target::NoPluginConfig => Some("503: the plugin config of the route does not exist"),
        Target::NoUpstream => Some("503: the route has no upstream; only a plugin can respond"),
        Target::Closed => Some("503: the route, or a resource that provides its plugins, is quarantined"),
    }
}

/// The plugins of a resource, by name.
type Written<'c> = (String, &'c resources::Plugins);

fn plugins(
    snapshot: &Snapshot,
    config: &Config,
    route: Option<&Route>,
    consumer: Option<&Arc<Consumer>>,
    viewed: &Viewed<'_>,
    met: &mut Vec<Met>,
) {
    let rules = config.resources.global_rules.iter();
    let rules: Vec<Written<'_>> =
        rules.map(|rule| (format!("global_rules/{}", rule.id), &rule.plugins)).collect();
    let route_chain = route.map(|route| &*route.chain);
    let stands_back = |entry: &Entry| {
        entry.kind.run_policy() == RunPolicy::PreferRoute
            && route_chain.is_some_and(|chain| chain.get(entry.name()).is_some())
    };
    let mut idle = Vec::new();
    for entry in snapshot.global.entries() {
        let mut one = running(entry, &rules, true, viewed);
        if stands_back(entry) {
            one.left_out = Some("the route has this plugin too, and takes precedence");
            idle.push(one);
        } else {
            met.push(one);
        }
    }
    idle.extend(disabled(&rules, met, true));
    if let Some(route) = route {
        // The last one counts.
        let of = &route.facts.resources;
        let mut levels: Vec<Written<'_>> = Vec::new();
        levels.extend(
            resource(&of.service)
                .map(|one: &resources::Service| (format!("services/{}", one.id), &one.plugins)),
        );
        levels.extend(
            resource(&of.plugin_config)
                .map(|one: &resources::PluginConfig| (format!("plugin_configs/{}", one.id), &one.plugins)),
        );
        levels.extend(
            resource(&of.route).map(|one: &resources::Route| (format!("routes/{}", one.id), &one.plugins)),
        );
        let group = consumer.and_then(|consumer| consumer.group_id.as_deref());
        let group = group.and_then(|id| config.resources.consumer_groups.get(id));
        levels.extend(group.iter().map(|one| (format!("consumer_groups/{}", one.id), &one.plugins)));
        let own = consumer.and_then(|consumer| resource::<resources::Consumer>(&consumer.resource));
        levels.extend(own.iter().map(|one| (format!("consumers/{}", one.username), &one.plugins)));
        let merged = consumer.map(|consumer| route.chain.overridden_by(&consumer.entries));
        let chain = merged.as_ref().unwrap_or(&route.chain);
        let first = met.len();
        met.extend(chain.entries().iter().map(|entry| running(entry, &levels, false, viewed)));
        let identifies = |name: &str| own.is_some_and(|own| own.plugins.contains_key(name));
        let left = disabled(&levels, &met[first..], false);
        // A plugin that only identifies a consumer does not run for the request.
        idle.extend(
            left.into_iter().filter(|one| !identifies(&one.name) || one.source.starts_with("routes/")),
        );
    }
    met.append(&mut idle);
}

fn running(entry: &Arc<Entry>, levels: &[Written<'_>], is_global: bool, viewed: &Viewed<'_>) -> Met {
    let mut sources: Vec<String> = levels
        .iter()
        .filter(|(_, plugins)| plugins.contains_key(entry.name()))
        .map(|(source, _)| source.clone())
        .collect();
    let source = sources.pop().unwrap_or_default();
    let phases = entry.kind.phases();
    Met {
        name: entry.name().to_owned(),
        source,
        instead_of: sources,
        is_global,
        priority: entry.meta.priority.unwrap_or(entry.kind.priority()),
        phases: Phase::ALL.into_iter().filter(|phase| phases.contains(*phase)).collect(),
        left_out: None,
        filter: (!entry.meta.filter.is_empty()).then(|| entry.meta.filter.may_hold(&viewed.request())),
        conf: Arc::clone(&entry.conf),
        would: None,
        entry: Some(Arc::clone(entry)),
    }
}

/// Returns the configured plugins that do not run.
fn disabled(levels: &[Written<'_>], running: &[Met], is_global: bool) -> Vec<Met> {
    let mut last: BTreeMap<&str, (&str, &Arc<Value>)> = BTreeMap::new();
    for (source, plugins) in levels {
        last.extend(plugins.iter().map(|(name, conf)| (&**name, (source.as_str(), conf))));
    }
    let idle = last.into_iter().filter(|(name, _)| !running.iter().any(|met| met.name == *name));
    idle.map(|(name, (source, conf))| {
        let is_off = conf.pointer("/_meta/disable") == Some(&Value::Bool(true));
        Met {
            name: name.to_owned(),
            source: source.to_owned(),
            instead_of: Vec::new(),
            is_global,
            priority: 0,
            phases: Vec::new(),
            left_out: Some(if is_off {
                "_meta.disable"
            } else {
                "it is unknown, not enabled, or not for requests"
            }),
            filter: None,
            conf: Arc::clone(conf),
            would: None,
            entry: None,
        }
    })
    .collect()
}

/// Finds the upstream of the request, and the request that a node gets.
fn lead(snapshot: &Snapshot, route: Option<&Route>, viewed: &Viewed<'_>, explained: &mut Explained) {
    let Some(route) = route else { return };
    explained.sent.rewritten = route.rewrite().map(|rewrite| viewed.rewritten(rewrite));
    let Target::Upstream(number) = route.target else { return };
    let Some(upstream) = snapshot.upstream(number) else { return };
    explained.sent.host = match upstream.host.pass {
        PassHost::Node => None,
        PassHost::Rewrite => Some(upstream.host.rewritten.to_string()),
        PassHost::Pass => Some(viewed.authority()),
    };
    explained.unavailable = unavailable(upstream);
    explained.upstream = Some(Arc::clone(upstream));
}

/// Returns the fault of every request to an upstream none of whose nodes is in service. A group of upstreams has
/// its nodes elsewhere.
fn unavailable(upstream: &Upstream) -> Option<Fault> {
    if upstream.member_keys().next().is_some() {
        return None;
    }
    let set = upstream.cell.load();
    if set.endpoints.is_empty() {
        return Some(set.unresolved.unwrap_or(Fault::new(FaultKind::NoNode, NO_NODE)));
    }
    let is_out = !set.endpoints.iter().any(|node| node.health.standing().is_in_service());
    is_out.then(|| Fault::new(FaultKind::NodesExhausted, out_of_service(&set.endpoints)))
}

/// Returns the request as plugins would see it.
fn context(
    head: &RequestHead,
    viewed: &Viewed<'_>,
    snapshot: &Snapshot,
    route: Option<&Route>,
    consumer: Option<&Arc<Consumer>>,
) -> Context {
    let mut ctx = Context::default();
    (ctx.request, ctx.uri) = (head.clone(), viewed.normal().to_vec());
    let mut params = Params::new();
    let _ = snapshot.router.find(&viewed.request(), &mut params);
    for (name, range) in params.iter() {
        ctx.params.push(name, &viewed.matched()[range]);
    }
    ctx.route = route.map(|route| Arc::clone(&route.facts));
    ctx.definitions = route.and_then(Route::definitions).or(snapshot.definitions.as_ref()).cloned();
    if let Some(rewrite) = route.and_then(Route::rewrite) {
        ctx.target = viewed.rewritten(rewrite).into_bytes();
    }
    if let Some(consumer) = consumer {
        let identity = Identity { consumer: Arc::clone(consumer), credential: None, data: Arc::new(()) };
        ctx.attach(&Arc::new(identity));
    }
    ctx
}

/// Asks the plugins that would run for their effect, each in its first phase, and returns the resulting request.
/// A plugin that would respond itself does not know that: the later ones are asked all the same.
fn foresee(mut ctx: Context, explained: &mut Explained) {
    let method = ctx.request.method_token().to_vec();
    for phase in [Phase::Rewrite, Phase::Access] {
        for met in &mut explained.plugins {
            let is_first = met.phases.iter().find(|phase| matches!(phase, Phase::Rewrite | Phase::Access));
            let runs = met.left_out.is_none() && met.filter != Some(false) && is_first == Some(&phase);
            if let Some(entry) = met.entry.as_ref().filter(|_| runs) {
                met.would = entry.plugin.foresee(&mut ctx);
            }
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    explained.sent.rewritten =
        Some(&ctx.target).filter(|target| !target.is_empty()).map(|target| text(target));
    explained.sent.method = (ctx.request.method_token() != method).then(|| text(ctx.request.method_token()));
    if let (Some(host), Some(PassHost::Pass)) =
        (ctx.host, explained.upstream.as_ref().map(|one| one.host.pass))
    {
        explained.sent.host = Some(text(&host));
    }
}

/// Returns the fields that describe the client to nodes, unless a trusted client sends them itself.
fn forwarded(
    snapshot: &Snapshot,
    viewed: &Viewed<'_>,
    peer: SocketAddr,
    question: &ExplainedRequest,
) -> Vec<(&'static str, String)> {
    let (head, client) = (viewed.head(), viewed.forwarded_address().map_or(peer.ip(), |told| told.addr));
    let is_trusted = snapshot.trusted().contains(peer.ip());
    let told = |id| {
        let value = head.headers.get(id).filter(|_| is_trusted);
        value.map(|value| String::from_utf8_lossy(value).into_owned()).filter(|value| !value.is_empty())
    };
    let scheme = if question.is_over_tls { "https" } else { "http" };
    let [peer, client] = [peer.ip(), client].map(|addr| addr.to_canonical().to_string());
    let keeps_chain = is_trusted || snapshot.trusted().is_empty();
    let chain = head.headers.get(HeaderId::XForwardedFor).filter(|value| keeps_chain && !value.is_empty());
    let chain =
        chain.map_or_else(|| client.clone(), |before| format!("{}, {peer}", String::from_utf8_lossy(before)));
    vec![
        ("X-Forwarded-For", chain),
        ("X-Real-IP", client),
        ("X-Forwarded-Proto", told(HeaderId::XForwardedProto).unwrap_or_else(|| scheme.to_owned())),
        ("X-Forwarded-Host", told(HeaderId::XForwardedHost).unwrap_or_else(|| question.host.clone())),
    ]
}
