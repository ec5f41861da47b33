//! HTTP routers as decisions, in the order of their priorities.

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Host, Path, Plan, Target};
use super::super::probe::Probe;
use super::super::source::SourceLine;
use super::super::tree::Tree;
use super::branch::Branch;
use super::entries::EntryPoint;
use super::fields::{field, text, texts};
use super::matching::{Matching, alternatives};
use super::middlewares::{self, Added};
use super::model::{Model, Named};
use super::rule::Rule;
use super::services::{Service, Services};
use super::{probes, tls, traffic};

/// Maximum number of decisions of one router.
const MAX_BRANCHES: usize = 512;

/// A router that was understood.
pub(super) struct Router {
    pub(super) named: Named,
    pub(super) priority: i64,
    pub(super) matches: Vec<Matching>,
    /// Indexes of its entry points.
    pub(super) points: Vec<usize>,
    pub(super) has_tls: bool,
    pub(super) tls_options: Option<String>,
}

/// Decisions with their priorities.
type Ranked = Vec<(i64, Decision)>;

/// Converts the routers.
pub(super) fn convert(
    model: &mut Model<'_>,
    points: &mut [EntryPoint],
    plan: &mut Plan,
    probes: &mut Vec<Probe>,
) {
    let mut routers = Vec::new();
    for named in model.http.routers.clone() {
        routers.extend(understand(model, named, points));
    }
    choose_tls(model, &mut routers, points);
    report_ties(model, &routers);
    let mut services = Services::default();
    let mut added = Added::default();
    let mut ranked: Ranked = Vec::new();
    redirections(model, points, &mut ranked);
    let closed = tls::certificates(model, &routers, points, plan);
    for router in &routers {
        probes::of(router, points, probes);
        let reason =
            closed.iter().find(|(place, _)| *place == router.named.place).map(|(_, reason)| reason.clone());
        decisions(model, router, points, &mut services, &mut added, reason, &mut ranked);
    }
    ranked.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let pages = error_pages(model, &mut services, &added);
    plan.decisions = pages.into_iter().chain(ranked.into_iter().map(|(_, decision)| decision)).collect();
    unused(model, &added);
    plan.upstreams = services.upstreams;
    if !added.variables.is_empty() {
        plan.settings.insert("variables".to_owned(), Value::Object(added.variables));
    }
}

/// Reads a router; one that Traefik refuses has a remark.
fn understand(model: &mut Model<'_>, named: Named, points: &[EntryPoint]) -> Option<Router> {
    let tree = named.tree.clone();
    let known = [
        "entrypoints",
        "middlewares",
        "service",
        "rule",
        "rulesyntax",
        "priority",
        "tls",
        "observability",
        "parentrefs",
    ];
    model.unknown(named.place.file, &tree, &known);
    if let Some(observability) = field(&tree, "observability") {
        model
            .remarks
            .no_effect(named.at(observability), "Logs and metrics are chosen for the whole gateway.");
    }
    let place = named.field(&tree, "rule");
    let old = match text(&tree, "rulesyntax") {
        Some(syntax) => syntax.eq_ignore_ascii_case("v2"),
        None => model.is_old,
    };
    let rule = text(&tree, "rule").unwrap_or_default();
    let found = Rule::parse(rule).and_then(|rule| alternatives(&rule, old));
    let matches = match found {
        Ok(matches) => matches,
        Err(reason) => {
            model
                .remarks
                .gap(place, format!("Traefik does not load this router, so it was not converted: {reason}."));
            return None;
        }
    };
    let names = texts(&tree, "entrypoints");
    let mut chosen = Vec::new();
    for name in &names {
        match points.iter().position(|point| point.name == *name && !point.is_udp) {
            Some(index) => chosen.push(index),
            None => {
                let text = format!("The entry point `{name}` does not exist.");
                model.remarks.gap(named.field(&tree, "entrypoints"), text);
            }
        }
    }
    if names.is_empty() {
        let has_default = points.iter().any(|point| point.is_default);
        let usual = |point: &EntryPoint| {
            !point.is_udp && point.name != "traefik" && (point.is_default || !has_default)
        };
        chosen = (0..points.len()).filter(|index| usual(&points[*index])).collect();
    }
    if chosen.is_empty() {
        return None;
    }
    let tls = field(&tree, "tls");
    let has_tls = tls.is_some_and(|tls| tls.boolean() != Some(false));
    let tls_options = tls.and_then(|tls| text(tls, "options")).map(str::to_owned);
    let priority = field(&tree, "priority").and_then(Tree::integer).filter(|priority| *priority != 0);
    let priority = priority.unwrap_or(rule.len() as i64);
    Some(Router { named, priority, matches, points: chosen, has_tls, tls_options })
}

/// Decides which entry points speak TLS, and which routers are reachable there.
fn choose_tls(model: &mut Model<'_>, routers: &mut [Router], points: &mut [EntryPoint]) {
    let inherits: Vec<bool> = points.iter().map(|point| point.has_tls).collect();
    for router in routers.iter().filter(|router| router.has_tls) {
        let is_named = field(&router.named.tree, "entrypoints").is_some();
        for index in &router.points {
            let point = &mut points[*index];
            point.has_tls |= is_named || router.points.len() == 1 || matches!(point.port, 443 | 8443);
        }
    }
    for router in routers {
        let place = router.named.place;
        let before = router.points.len();
        let fits = |index: &usize| points[*index].has_tls == (router.has_tls || inherits[*index]);
        let kept: Vec<usize> = router.points.iter().copied().filter(|index| fits(index)).collect();
        let is_named = field(&router.named.tree, "entrypoints").is_some();
        if kept.len() < before && (is_named || kept.is_empty()) {
            let text = "A listener either has TLS or not, and this router needs the other: the listener does not serve it.";
            model.remarks.gap(place, text);
        }
        router.has_tls |= kept.iter().any(|index| points[*index].has_tls);
        router.points = kept;
    }
}

/// Reports routers of one priority that can match the same request: Traefik takes one of them by chance.
fn report_ties(model: &mut Model<'_>, routers: &[Router]) {
    for (at, router) in routers.iter().enumerate() {
        let mut others =
            routers[..at].iter().rev().take(200).filter(|other| other.priority == router.priority);
        let tie = others.find(|other| {
            other.points.iter().any(|point| router.points.contains(point))
                && other.matches.iter().any(|one| router.matches.iter().any(|two| overlap(one, two)))
        });
        if let Some(other) = tie {
            let text = format!(
                "It has the same priority as `{}`, and Traefik chooses one of them at random; here that router comes first.",
                other.named.name
            );
            model.remarks.differs(router.named.place, text);
        }
    }
}

fn overlap(one: &Matching, two: &Matching) -> bool {
    let exact = |host: &Host| matches!(host, Host::Exact(_));
    let hosts_differ = !one.hosts.is_empty()
        && !two.hosts.is_empty()
        && one.hosts.iter().chain(&two.hosts).all(exact)
        && !one.hosts.iter().any(|host| two.hosts.contains(host));
    let methods_differ = !one.methods.is_empty()
        && !two.methods.is_empty()
        && !one.methods.iter().any(|method| two.methods.contains(method));
    let paths_meet = one.paths.is_empty()
        || two.paths.is_empty()
        || one.paths.iter().any(|one| two.paths.iter().any(|two| meet(one, two)));
    !hosts_differ && !methods_differ && paths_meet
}

fn meet(one: &Path, two: &Path) -> bool {
    match (one, two) {
        (Path::Exact(one), Path::Exact(two)) => one == two,
        (Path::Exact(path), Path::Prefix(prefix)) | (Path::Prefix(prefix), Path::Exact(path)) => {
            path.starts_with(prefix.as_str())
        }
        (Path::Prefix(one), Path::Prefix(two)) => {
            one.starts_with(two.as_str()) || two.starts_with(one.as_str())
        }
        _ => true,
    }
}

/// The redirects of whole entry points.
fn redirections(model: &mut Model<'_>, points: &[EntryPoint], ranked: &mut Ranked) {
    for point in points {
        let Some(redirect) = &point.redirection else { continue };
        let port = match points.iter().find(|other| other.name == redirect.to) {
            Some(target) => target.port,
            None => match redirect.to.trim_start_matches(':').parse::<u16>() {
                Ok(port) => port,
                Err(_) => {
                    model
                        .remarks
                        .gap(redirect.place, format!("The entry point `{}` does not exist.", redirect.to));
                    continue;
                }
            },
        };
        let default = if redirect.scheme == "https" { 443 } else { 80 };
        let suffix = if port == default { String::new() } else { format!(":{port}") };
        let to = format!("{}://$host{suffix}$request_uri", redirect.scheme);
        let mut decision = Decision::new(redirect.place, format!("{}-redirect", point.name), Target::Drop);
        decision.ports = vec![point.port];
        let branch = Branch::new(decision, point.has_tls);
        for branch in middlewares::moved(branch, redirect.permanent, &to) {
            ranked.push((redirect.priority, branch.complete()));
        }
    }
}

/// The decisions of one router.
fn decisions(
    model: &mut Model<'_>,
    router: &Router,
    points: &[EntryPoint],
    services: &mut Services,
    added: &mut Added,
    closed: Option<String>,
    ranked: &mut Ranked,
) {
    let tree = &router.named.tree;
    let service = text(tree, "service").map(|name| services.of(model, name, router.named.provider));
    let service = service.unwrap_or_else(|| Err("the router has no service".to_owned()));
    // Entry points with the same middlewares share decisions.
    let mut groups: Vec<(&Vec<String>, bool, Vec<u16>)> = Vec::new();
    for point in router.points.iter().map(|index| &points[*index]) {
        let same =
            groups.iter_mut().find(|(names, tls, _)| **names == point.middlewares && *tls == point.has_tls);
        match same {
            Some((_, _, ports)) => ports.push(point.port),
            None => groups.push((&point.middlewares, point.has_tls, vec![point.port])),
        }
    }
    for (before, is_tls, ports) in groups {
        let mut branches: Vec<Branch> = Vec::new();
        for matching in &router.matches {
            let mut decision = Decision::new(router.named.place, &router.named.name, Target::Drop);
            decision.ports = ports.clone();
            decision.hosts = matching.hosts.clone();
            decision.paths = matching.paths.clone();
            decision.methods = matching.methods.clone();
            decision.conditions = matching.conditions.clone();
            branches.push(Branch::new(decision, is_tls));
        }
        if let Some(reason) = &closed {
            branches = branches.into_iter().map(|branch| branch.close(reason.clone())).collect();
        }
        let mut names = before.clone();
        names.extend(texts(tree, "middlewares"));
        if let Ok(Service::Upstream { middlewares, .. }) = &service {
            names.extend(middlewares.iter().cloned());
        }
        branches = middlewares::apply(model, added, branches, &names, &router.named);
        if branches.len() > MAX_BRANCHES {
            let text = "The conditions of its middlewares need too many routes; it is closed.";
            model.remarks.closed(router.named.place, text);
            branches.truncate(1);
            branches = branches.into_iter().map(|branch| branch.close("too many routes")).collect();
        }
        for branch in branches {
            let decision = served(model, &router.named, branch, &service, services);
            ranked.push((router.priority, decision));
        }
    }
}

/// Sends what no middleware answered to the service.
fn served(
    model: &mut Model<'_>,
    router: &Named,
    mut branch: Branch,
    service: &Result<Service, String>,
    services: &mut Services,
) -> Decision {
    if branch.is_finished {
        return branch.complete();
    }
    branch.decision.target = match service {
        Ok(Service::Upstream { id, mirror, .. }) => {
            let id = services.variant(id, &branch.upstream_fields);
            if let Some(mirror) = mirror {
                branch.decision.plugins.insert("proxy-mirror".to_owned(), mirror.clone());
            }
            branch.decision.fields.insert("enable_websocket".to_owned(), true.into());
            Target::Upstream(id)
        }
        Ok(Service::Own(status, body)) => {
            if *status == 404 {
                let text = "Traefik's own API has no counterpart at this route: see `admin` and `control`.";
                model.remarks.gap(router.field(&router.tree, "service"), text);
            }
            let headers = vec![("Content-Type".to_owned(), "text/plain; charset=utf-8".to_owned())];
            Target::Respond { status: *status, body: Some((*body).to_owned()), headers }
        }
        Err(reason) => {
            let place = router.field(&router.tree, "service");
            model.remarks.gap(place, format!("The router answers 503: {reason}."));
            Target::Closed(reason.clone())
        }
    };
    branch.complete()
}

/// Internal routes to the services of error pages.
fn error_pages(model: &mut Model<'_>, services: &mut Services, added: &Added) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for (middleware, service) in &added.pages {
        let path = traffic::page_path(&middleware.name);
        let target = match services.of(model, service, middleware.provider) {
            Ok(Service::Upstream { id, .. }) => Target::Upstream(id),
            Ok(Service::Own(status, body)) => {
                Target::Respond { status, body: Some(body.to_owned()), headers: Vec::new() }
            }
            Err(reason) => {
                model.remarks.gap(middleware.place, format!("The error page is missing: {reason}."));
                continue;
            }
        };
        let mut decision = Decision::new(middleware.place, format!("{}-page", middleware.name), target);
        decision.paths = vec![Path::Prefix(format!("{path}/"))];
        decision.fields.insert("internal".to_owned(), true.into());
        let pair = json!([format!("^{}(/.*)$", regex::escape(&path)), "$1"]);
        decision.plugins = Map::from_iter([("proxy-rewrite".to_owned(), json!({"regex_uri": pair}))]);
        decisions.push(decision);
    }
    decisions
}

/// Says of middlewares that no router uses that they have no effect.
fn unused(model: &mut Model<'_>, added: &Added) {
    let chained = |middleware: &Named| field(&middleware.tree, "chain").is_some();
    let places: Vec<SourceLine> = model
        .http
        .middlewares
        .iter()
        .filter(|middleware| !added.used.contains(&middleware.place) && !chained(middleware))
        .map(|middleware| middleware.place)
        .collect();
    for place in places {
        model.remarks.no_effect(place, "No router uses this middleware.");
    }
}
