//! Frontends in mode http: rules in order become decisions.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::{Decision, Host, Path, Target};
use super::acl::{Acls, Unreadable};
use super::action;
use super::effects::{Effects, PathRule};
use super::expr::{Expr, Subject};
use super::parser::Line;
use super::proxy::Proxy;
use super::sample::{self, Variables};
use super::{Outcome, Translation};

/// Maximum number of conditional changes of the path on one route; each doubles the decisions.
const MOST_SPLITS: usize = 5;

/// Maximum depth of backends within one another.
const MOST_DECISIONS: usize = 50_000;

/// The state of a frontend or backend whose rules are read.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub acls: Acls,
    pub variables: Variables,
    /// Keys tracked by index: the variable, the condition and the table.
    pub tracked: HashMap<u8, Tracked>,
    pub effects: Effects,
    /// Conditions of the frontend that lead here.
    pub base: Vec<Expr>,
    pub ports: Vec<u16>,
    pub name: String,
}

/// A key of a stick table.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub key: Option<String>,
    pub condition: Expr,
    pub table: String,
}

impl Translation<'_, '_> {
    /// Reads a frontend with these ports.
    pub(super) fn frontend(&mut self, proxy: &Proxy, ports: Vec<u16>) {
        let mut scope = Scope { ports, name: proxy.name.clone(), ..Scope::default() };
        self.rules(proxy, &mut scope);
        for line in proxy.lines.iter().filter(|line| line.word(0) == "use_backend") {
            self.use_backend(line, &scope);
        }
        let default = proxy.last(&["default_backend"]).cloned();
        match default {
            Some(line) => {
                self.tell(&line, Outcome::Done, "");
                for (rest, name, below, of) in std::mem::take(&mut self.shares) {
                    self.shared(
                        &line,
                        &scope,
                        rest,
                        [(name.as_str(), below), (line.word(1), of.saturating_sub(below))],
                    );
                }
                self.backend(line.word(1), &line, scope);
            }
            None if proxy.lines.iter().any(|line| matches!(line.word(0), "server" | "server-template")) => {
                self.servers(proxy, &proxy.head, scope);
            }
            None => {
                let target = Target::Respond { status: 503, body: None, headers: Vec::new() };
                self.decide(&proxy.head, &scope, Expr::True, target);
            }
        }
    }

    /// A decision for backends that share requests by weight.
    fn shared(&mut self, line: &Line, scope: &Scope, condition: Expr, shares: [(&str, u64); 2]) {
        let mut members = Vec::new();
        for (name, weight) in shares {
            let Some(proxy) = self.proxies.iter().find(|it| it.name == name).cloned() else { continue };
            if proxy.lines.iter().any(|line| line.word(0) == "http-request") {
                self.tell(line, Outcome::Differs, "Rules of backends that share requests are not converted.");
            }
            self.backends.used.insert(proxy.name.clone());
            members.push(json!({"upstream_id": self.upstream(&proxy), "weight": weight}));
        }
        let id = build::id(&format!("share-{}-{}", shares[0].0, shares[1].0));
        if !self.plan.upstreams.iter().any(|(known, _)| *known == id) {
            self.plan.upstreams.push((id.clone(), json!({"members": members})));
        }
        self.decide(line, scope, condition, Target::Upstream(id));
    }

    /// Reads the rules of a proxy: conditions first, then requests, redirects and responses.
    fn rules(&mut self, proxy: &Proxy, scope: &mut Scope) {
        self.proxy_effects(proxy, scope);
        for line in &proxy.lines {
            match line.word(0) {
                "acl" => {
                    let words = line.from(2).to_vec();
                    match scope.acls.add(line.word(1), &words, &scope.variables, self.input.access) {
                        // A later line may set its variable.
                        Err(reason) if !reason.starts_with(sample::UNSET) => {
                            self.tell(line, Outcome::Missing, reason);
                        }
                        _ => self.tell(line, Outcome::Done, ""),
                    }
                }
                "monitor-uri" => {
                    let expr = super::acl::exact_path(line.word(1));
                    let text = "<html><body><h1>200 OK</h1>\nService ready.\n</body></html>\n";
                    let headers = vec![
                        ("Content-Type".to_owned(), "text/html".to_owned()),
                        ("Cache-Control".to_owned(), "no-cache".to_owned()),
                    ];
                    let target = Target::Respond { status: 200, body: Some(text.to_owned()), headers };
                    self.tell(line, Outcome::Done, "");
                    self.decide(line, scope, expr, target);
                }
                "tcp-request" if matches!(line.word(1), "connection" | "session") => {
                    self.rule(line, 2, scope)
                }
                "tcp-request" if line.word(1) == "content" => self.rule(line, 2, scope),
                "http-request" => self.rule(line, 1, scope),
                "filter" if line.word(1) == "spoe" => self.agent(line, scope),
                _ => {}
            }
        }
        for line in proxy.lines.iter().filter(|line| line.word(0) == "redirect") {
            self.redirect(line, line.from(1).to_vec(), scope);
        }
        for line in
            proxy.lines.iter().filter(|line| matches!(line.word(0), "http-response" | "http-after-response"))
        {
            self.response_rule(line, scope);
        }
    }

    /// A redirect: the words after `redirect`.
    pub(super) fn redirect(&mut self, line: &Line, words: Vec<String>, scope: &mut Scope) {
        let (action, condition) = action::parts(&words);
        let expr = scope.acls.condition(condition, &scope.variables, self.input.access);
        let target = action::redirect(action, &scope.variables);
        let computed =
            target.as_ref().err().and_then(|_| action::computed_redirect(action, &scope.variables).ok());
        match (expr, target) {
            (Ok(expr), Ok((target, remark))) => {
                match remark {
                    Some(text) => self.tell(line, Outcome::Differs, text),
                    None => self.tell(line, Outcome::Done, ""),
                }
                self.decide(line, scope, expr, target);
            }
            (Ok(expr), Err(_)) if computed.is_some() => {
                self.tell(line, Outcome::Done, "");
                self.reply(line, scope, expr, computed.unwrap_or_default());
            }
            // A temporary redirect may lead to a login.
            (Err(unread), _) if !words.iter().any(|word| matches!(word.as_str(), "301" | "308")) => {
                self.close_within(line, scope, *unread.wider, &unread.reason);
            }
            (Err(Unreadable { reason, .. }), _) | (_, Err(reason)) => {
                self.tell(line, Outcome::Missing, reason);
            }
        }
    }

    /// A decision whose response Lua makes.
    pub(super) fn reply(&mut self, line: &Line, scope: &Scope, condition: Expr, code: String) {
        let mut inner = scope.clone();
        inner.effects.reply = Some(code);
        let target = Target::Respond { status: 500, body: None, headers: Vec::new() };
        self.decide(line, &inner, condition, target);
    }

    /// Closes the routes that an agent of SPOE sees: many of them guard, as firewalls do.
    pub(super) fn agent(&mut self, line: &Line, scope: &mut Scope) {
        self.close(line, scope, "SPOE agents have no counterpart and may guard access.");
    }

    fn use_backend(&mut self, line: &Line, scope: &Scope) {
        let (target, condition) = action::parts(line.from(1));
        let name = target.first().cloned().unwrap_or_default();
        let expr = match scope.acls.condition(condition, &scope.variables, self.input.access) {
            Ok(expr) => expr,
            Err(Unreadable { reason, wider }) => {
                // Requests that it would take must not reach later rules.
                let concerned = concerned(&wider);
                self.tell(line, Outcome::Guard, format!("{reason} {concerned} are closed."));
                return self.decide(line, scope, *wider, Target::Closed(reason));
            }
        };
        if super::acl::reads_path(&expr) && !scope.effects.paths.is_empty() {
            self.tell(line, Outcome::Differs, super::rules::PATH_BEFORE);
        }
        if name.contains("%[") {
            self.mapped(line, &name, expr, scope);
            return;
        }
        if let Expr::Atom(atom) = &expr
            && let Subject::NoServers(main) = &atom.subject
        {
            self.tell(
                line,
                Outcome::Differs,
                "The backend takes over while no server of the other one is usable.",
            );
            self.backends.failover.insert(main.clone(), name);
            return;
        }
        if let Some((below, of, rest)) = random(&expr) {
            self.tell(
                line,
                Outcome::Differs,
                "Requests are distributed by weighted round robin, not at random.",
            );
            self.shares.push((rest, name, below, of));
            return;
        }
        self.tell(line, Outcome::Done, "");
        let mut inner = scope.clone();
        inner.base.push(expr);
        self.backend(&name, line, inner);
    }

    /// `use_backend %[…,map(FILE,default)]`: a decision for each entry.
    fn mapped(&mut self, line: &Line, name: &str, expr: Expr, scope: &Scope) {
        match super::map::read(name, &scope.variables, self.input.access) {
            Ok(entries) => {
                self.tell(line, Outcome::Done, "");
                for entry in entries {
                    let mut inner = scope.clone();
                    inner.base.push(expr.clone());
                    inner.base.push(entry.condition);
                    self.backend(&entry.value, line, inner);
                }
            }
            Err(reason) => {
                self.tell(line, Outcome::Guard, format!("{reason} Later routes are closed."));
                let mut closed = scope.clone();
                closed.effects.closed = Some(reason);
                self.decide(line, &closed, expr, Target::Drop);
            }
        }
    }

    /// The rules of a backend, and its servers.
    fn backend(&mut self, name: &str, line: &Line, mut scope: Scope) {
        let Some(proxy) = self
            .proxies
            .iter()
            .find(|proxy| proxy.name == name && proxy.kind != super::proxy::Kind::Frontend)
            .cloned()
        else {
            let target = Target::Respond { status: 503, body: None, headers: Vec::new() };
            self.tell(
                line,
                Outcome::Missing,
                format!("The backend `{name}` does not exist: its route returns 503."),
            );
            self.decide(line, &scope, Expr::True, target);
            return;
        };
        if self.plan.decisions.len() > MOST_DECISIONS {
            return;
        }
        self.backends.used.insert(proxy.name.clone());
        scope.name = format!("{}-{}", scope.name, proxy.name);
        // Names of conditions belong to one proxy; tracked keys stay.
        scope.acls = Acls::default();
        scope.effects.skipped.clear();
        self.rules(&proxy, &mut scope);
        self.servers(&proxy, line, scope);
    }

    /// `use-server`: decisions for requests that get one server.
    fn chosen_servers(&mut self, proxy: &Proxy, scope: &Scope) {
        for line in proxy.lines.iter().filter(|line| line.word(0) == "use-server") {
            let (words, condition) = action::parts(line.from(1));
            let name = words.first().map_or("", String::as_str);
            let own = proxy.only(name);
            let expr = scope.acls.condition(condition, &scope.variables, self.input.access);
            match (expr, own) {
                (Ok(expr), Some(own)) => {
                    let text = "The server gets these requests although its checks fail.";
                    self.tell(line, Outcome::Differs, text);
                    let target = Target::Upstream(self.upstream(&own));
                    self.decide(line, scope, expr, target);
                }
                (Err(unread), _) => self.tell(line, Outcome::Missing, unread.reason),
                (_, None) => self.tell(line, Outcome::Missing, format!("There is no server `{name}`.")),
            }
        }
    }

    /// The decision for the servers of a proxy.
    fn servers(&mut self, proxy: &Proxy, line: &Line, scope: Scope) {
        self.chosen_servers(proxy, &scope);
        let has_servers = proxy.lines.iter().any(|line| matches!(line.word(0), "server" | "server-template"));
        let target = if has_servers {
            Target::Upstream(self.upstream(proxy))
        } else {
            Target::Respond { status: 503, body: None, headers: Vec::new() }
        };
        self.decide(line, &scope, Expr::True, target);
    }

    /// Adds the decisions of a target: one, or more where the path changes under conditions.
    pub(super) fn decide(&mut self, line: &Line, scope: &Scope, condition: Expr, target: Target) {
        let mut list = scope.base.clone();
        list.push(scope.effects.guarded(condition));
        let condition = Expr::all(list);
        if condition == Expr::False {
            return;
        }
        let is_proxied = matches!(target, Target::Upstream(_));
        let rules: &[PathRule] = if is_proxied { &scope.effects.paths } else { &[] };
        let conditional = rules.iter().filter(|rule| rule.condition != Expr::True).count();
        if conditional > MOST_SPLITS {
            self.tell(line, Outcome::Missing, "Too many conditions change the path; the route returns 503.");
            self.emit(
                line,
                scope,
                condition,
                Target::Closed("too many conditions change the path".to_owned()),
                &[],
            );
            return;
        }
        self.split(line, scope, condition, &target, rules, Vec::new());
    }

    /// A decision for each way through the rules that change the path.
    fn split(
        &mut self,
        line: &Line,
        scope: &Scope,
        condition: Expr,
        target: &Target,
        rules: &[PathRule],
        applied: Vec<Map<String, Value>>,
    ) {
        let Some((rule, rest)) = rules.split_first() else {
            self.emit(line, scope, condition, target.clone(), &applied);
            return;
        };
        let mut with = applied.clone();
        with.push(rule.fields.clone());
        if rule.condition == Expr::True {
            self.split(line, scope, condition, target, rest, with);
            return;
        }
        let both = Expr::all(vec![condition.clone(), rule.condition.clone()]);
        if both != Expr::False {
            self.split(line, scope, both, target, rest, with);
        }
        self.split(line, scope, condition, target, rest, applied);
    }

    fn emit(
        &mut self,
        line: &Line,
        scope: &Scope,
        mut condition: Expr,
        target: Target,
        paths: &[Map<String, Value>],
    ) {
        let mut decision = Decision::new(line.place, scope.name.clone(), target);
        decision.ports.clone_from(&scope.ports);
        if let Some(reason) = &scope.effects.closed {
            decision.target = Target::Closed(reason.clone());
        }
        let is_state = |subject: &Subject| {
            matches!(
                subject,
                Subject::Above { .. }
                    | Subject::Credentials(_)
                    | Subject::NoServers(_)
                    | Subject::Random { .. }
                    | Subject::Response
            )
        };
        if condition.has(is_state) {
            let reason = "The condition asks for a counter, a login or a state that only guards can use.";
            condition = condition.without(&is_state);
            let concerned = concerned(&condition);
            self.tell(line, Outcome::Guard, format!("{reason} {concerned} are closed."));
            decision.target = Target::Closed(reason.to_owned());
        }
        place_conditions(condition, &mut decision);
        let is_proxied = matches!(decision.target, Target::Upstream(_));
        match scope.effects.plugins(paths, is_proxied) {
            Ok(plugins) => decision.plugins = plugins,
            Err(reason) => {
                self.tell(line, Outcome::Guard, reason.clone());
                decision.target = Target::Closed(reason);
            }
        }
        if is_proxied {
            decision.fields.insert("enable_websocket".to_owned(), true.into());
            for (name, value) in &scope.effects.fields {
                decision.fields.insert(name.clone(), value.clone());
            }
        }
        self.plan.decisions.push(decision);
    }

    /// The id of the upstream of a backend, with the one that takes over.
    pub(super) fn upstream(&mut self, proxy: &Proxy) -> String {
        if let Some(id) = self.backends.upstreams.get(&proxy.name) {
            return id.clone();
        }
        let made = super::server::upstream(proxy, self.input.access);
        for note in made.remarks {
            let outcome = if note.guards { Outcome::Guard } else { Outcome::Differs };
            self.tell(&note.line, outcome, note.text);
        }
        let id = build::id(&proxy.name);
        self.backends.upstreams.insert(proxy.name.clone(), id.clone());
        self.plan.upstreams.push((id.clone(), Value::Object(made.fields)));
        if let Some(other) = self.backends.failover.get(&proxy.name).cloned()
            && let Some(backup) = self.proxies.iter().find(|it| it.name == other).cloned()
        {
            let backup = self.upstream(&backup);
            let group = format!("{id}-group");
            let members = json!({"members": [{"upstream_id": id, "priority": 1}, {"upstream_id": backup}]});
            self.plan.upstreams.push((group.clone(), members));
            self.backends.upstreams.insert(proxy.name.clone(), group.clone());
            return group;
        }
        id
    }
}

/// The routes that a guard without a counterpart closes.
pub(super) fn concerned(wider: &Expr) -> &'static str {
    match wider {
        Expr::True => "Later routes",
        _ => "Requests with the other conditions of the line",
    }
}

/// A random share: its size, of how many, and the other conditions.
fn random(expr: &Expr) -> Option<(u64, u64, Expr)> {
    let conjuncts = expr.clone().conjuncts();
    let at = conjuncts
        .iter()
        .position(|it| matches!(it, Expr::Atom(atom) if matches!(atom.subject, Subject::Random { .. })))?;
    let Expr::Atom(atom) = &conjuncts[at] else { return None };
    let Subject::Random { below, of } = atom.subject else { return None };
    let rest =
        conjuncts.iter().enumerate().filter(|(place, _)| *place != at).map(|(_, it)| it.clone()).collect();
    Some((below, of, Expr::all(rest)))
}

/// Puts conditions where the router finds them: paths and hosts by tree, others as `vars`, the rest as Lua.
pub(super) fn place_conditions(condition: Expr, decision: &mut Decision) {
    let mut lua = Vec::new();
    for expr in condition.conjuncts() {
        let mut is_said = false;
        if let Some(paths) = paths_of(&expr)
            && decision.paths.is_empty()
        {
            decision.paths = paths;
            is_said = true;
        }
        if let Some(hosts) = hosts_of(&expr)
            && decision.hosts.is_empty()
        {
            // The tree narrows the search; the condition also compares the port.
            decision.hosts = hosts.into_iter().map(Host::Exact).collect();
        }
        match expr.vars() {
            _ if is_said => {}
            Some(vars) => decision.conditions.push(vars),
            None => lua.push(expr.lua()),
        }
    }
    if !lua.is_empty() {
        let code = super::lua::condition(&lua.join(" and "));
        decision.fields.insert("filter_func".to_owned(), code.into());
    }
}

/// The paths of a condition, if it is about nothing else.
fn paths_of(expr: &Expr) -> Option<Vec<Path>> {
    match expr {
        Expr::Atom(atom) => match &atom.subject {
            Subject::Paths(paths) => Some(paths.clone()),
            _ => None,
        },
        Expr::Any(list) => {
            let lists: Option<Vec<Vec<Path>>> = list.iter().map(paths_of).collect();
            lists.map(|lists| lists.into_iter().flatten().collect())
        }
        _ => None,
    }
}

fn hosts_of(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Atom(atom) => match &atom.subject {
            Subject::Hosts(hosts) => Some(hosts.clone()),
            _ => None,
        },
        Expr::Any(list) => {
            let lists: Option<Vec<Vec<String>>> = list.iter().map(hosts_of).collect();
            lists.map(|lists| lists.into_iter().flatten().collect())
        }
        _ => None,
    }
}
