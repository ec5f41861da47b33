//! Proxies in mode tcp: sessions by SNI or by port.

use serde_json::{Map, Value, json};

use super::acl::Acls;
use super::action;
use super::expr::{Atom, Expr};
use super::parser::Line;
use super::proxy::{Kind, Proxy};
use super::sample::Variables;
use super::{Outcome, Translation};

impl Translation<'_, '_> {
    /// Converts a frontend or listen section in mode tcp.
    pub(super) fn stream(&mut self, proxy: &Proxy) {
        let asks_name = proxy.lines.iter().any(|line| line.words.iter().any(|word| word.contains("ssl_sni")));
        let terminates = proxy
            .lines
            .iter()
            .any(|line| line.word(0) == "bind" && line.words.iter().any(|word| word == "ssl"));
        let ports = self.binds(proxy, Some(if asks_name { "tls" } else { "tcp" }));
        let mut acls = Acls::default();
        let variables = Variables::new();
        let mut plugins = Map::new();
        let mut closed = None;
        for line in &proxy.lines {
            match (line.word(0), line.word(1)) {
                ("acl", name) => match acls.add(name, line.from(2), &variables, self.input.access) {
                    Ok(()) => self.tell(line, Outcome::Done, ""),
                    Err(reason) => self.tell(line, Outcome::Missing, reason),
                },
                ("tcp-request", "inspect-delay") => self.tell(line, Outcome::Done, ""),
                ("tcp-request", _) => self.stream_rule(line, &acls, &mut plugins, &mut closed),
                _ => {}
            }
        }
        let passes = asks_name && !terminates;
        for line in proxy.lines.iter().filter(|line| line.word(0) == "use_backend") {
            let (target, condition) = action::parts(line.from(1));
            let expr = acls.condition(condition, &variables, self.input.access);
            let selectors = expr.ok().and_then(|expr| selectors(&expr));
            match (selectors, target.first()) {
                (Some(selectors), Some(backend)) => {
                    self.tell(line, Outcome::Done, "");
                    for selector in selectors {
                        let selector = Some(&selector);
                        self.session(line, backend, &ports, selector, passes, &plugins, closed.as_deref());
                    }
                }
                _ => {
                    self.tell(
                        line,
                        Outcome::Guard,
                        "Sessions can only be selected by their server name or address: they are closed.",
                    );
                    closed.get_or_insert_with(|| "a condition on sessions has no counterpart".to_owned());
                }
            }
        }
        let default = proxy.last(&["default_backend"]).cloned();
        match default {
            Some(line) => {
                self.tell(&line, Outcome::Done, "");
                self.session(&line, line.word(1), &ports, None, passes, &plugins, closed.as_deref());
            }
            None if proxy.kind == Kind::Listen => {
                self.session(&proxy.head, &proxy.name, &ports, None, passes, &plugins, closed.as_deref());
            }
            None => {}
        }
    }

    /// `tcp-request connection|content accept|reject if …`.
    fn stream_rule(
        &mut self,
        line: &Line,
        acls: &Acls,
        plugins: &mut Map<String, Value>,
        closed: &mut Option<String>,
    ) {
        let (words, condition) = action::parts(line.from(2));
        let expr = acls.condition(condition, &Variables::new(), self.input.access);
        match (words.first().map_or("", String::as_str), expr) {
            ("accept" | "expect-proxy" | "capture" | "set-src", _) => self.tell(line, Outcome::Done, ""),
            ("reject" | "silent-drop", Ok(expr)) => match addresses(&expr) {
                Some((list, networks)) => {
                    plugins.insert("ip-restriction".to_owned(), json!({list: networks}));
                    self.tell(line, Outcome::Done, "");
                }
                None => {
                    self.tell(
                        line,
                        Outcome::Guard,
                        "Sessions can only be refused by their address: they are closed.",
                    );
                    closed.get_or_insert_with(|| "a guard of sessions has no counterpart".to_owned());
                }
            },
            _ => {
                self.tell(line, Outcome::Guard, "The rule has no counterpart for sessions: they are closed.");
                closed.get_or_insert_with(|| "a rule of sessions has no counterpart".to_owned());
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each is one field of the route")]
    fn session(
        &mut self,
        line: &Line,
        backend: &str,
        ports: &[u16],
        selector: Option<&Selector>,
        passes: bool,
        plugins: &Map<String, Value>,
        closed: Option<&str>,
    ) {
        let Some(proxy) =
            self.proxies.iter().find(|it| it.name == backend && it.kind != Kind::Frontend).cloned()
        else {
            self.tell(line, Outcome::Missing, format!("There is no backend `{backend}`."));
            return;
        };
        self.backends.used.insert(proxy.name.clone());
        let id = self.upstream(&proxy);
        for port in ports {
            let mut route = Map::new();
            let number = self.plan.streams.len() + 1;
            route.insert("id".to_owned(), super::super::build::id(&format!("{backend}-{number}")).into());
            route.insert("server_port".to_owned(), (*port).into());
            match selector {
                Some(Selector::Name(name)) => _ = route.insert("sni".to_owned(), name.clone().into()),
                Some(Selector::Address(network)) => {
                    _ = route.insert("remote_addr".to_owned(), network.clone());
                }
                None => {}
            }
            if passes {
                route.insert("tls".to_owned(), "passthrough".into());
            }
            let mut plugins = plugins.clone();
            if let Some(reason) = closed {
                route.insert("desc".to_owned(), format!("closed: {reason}").into());
                plugins.insert("ip-restriction".to_owned(), json!({"blacklist": ["0.0.0.0/0", "::/0"]}));
            }
            if !plugins.is_empty() {
                route.insert("plugins".to_owned(), Value::Object(plugins));
            }
            route.insert("upstream_id".to_owned(), id.clone().into());
            self.plan.streams.push(Value::Object(route));
        }
    }
}

/// A condition of a stream route.
enum Selector {
    /// The server name of the client's handshake.
    Name(String),
    /// The network of the client.
    Address(Value),
}

/// The server names or the networks of a condition that is about nothing else.
fn selectors(expr: &Expr) -> Option<Vec<Selector>> {
    if let Some(names) = names(expr) {
        return Some(names.into_iter().map(Selector::Name).collect());
    }
    match addresses(expr) {
        Some(("blacklist", networks)) => Some(networks.into_iter().map(Selector::Address).collect()),
        _ => None,
    }
}

/// The server names of a condition that is about nothing else.
fn names(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Any(list) => {
            let lists: Option<Vec<Vec<String>>> = list.iter().map(names).collect();
            lists.map(|lists| lists.into_iter().flatten().collect())
        }
        Expr::All(list) => {
            // Tests for a hello of TLS are true for every session with a name.
            let mut found = None;
            for part in list {
                match (part, names(part)) {
                    (_, Some(names)) if found.is_none() => found = Some(names),
                    (Expr::Atom(Atom { lua, .. }), None) if lua.contains("ngx.var.hello") => {}
                    _ => return None,
                }
            }
            found
        }
        Expr::Atom(Atom { vars: Some(vars), .. }) => {
            let (variable, operator) = (vars.get(0)?.as_str()?, vars.get(1)?.as_str()?);
            if !matches!(variable, "ssl_preread_server_name" | "ssl_server_name") {
                return None;
            }
            match (operator, vars.get(2)?) {
                ("==", Value::String(name)) => Some(vec![name.to_ascii_lowercase()]),
                ("in", Value::Array(list)) => {
                    list.iter().map(|it| it.as_str().map(str::to_ascii_lowercase)).collect()
                }
                ("~~" | "~*", Value::String(regex)) => sni_patterns(regex),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Server names of an anchored regular expression that was made of literal texts.
fn sni_patterns(regex: &str) -> Option<Vec<String>> {
    let body = regex.strip_suffix('$')?;
    let (body, is_whole) = match body.strip_prefix('^') {
        Some(body) => (body, true),
        None => (body, false),
    };
    let list = body.strip_prefix("(?:").and_then(|body| body.strip_suffix(')')).unwrap_or(body);
    list.split('|')
        .map(|part| {
            let name = part.replace("\\.", ".").replace("\\-", "-").to_ascii_lowercase();
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
            match (is_plain, is_whole) {
                (true, true) => Some(name),
                (true, false) if name.starts_with('.') => Some(format!("*{name}")),
                _ => None,
            }
        })
        .collect()
}

/// The list of ip-restriction for a refusal: `blacklist` for addresses, `whitelist` for all others.
fn addresses(expr: &Expr) -> Option<(&'static str, Vec<Value>)> {
    let (list, inner) = match expr {
        Expr::Not(inner) => ("whitelist", &**inner),
        other => ("blacklist", other),
    };
    let parts: Vec<&Expr> = match inner {
        Expr::Any(list) => list.iter().collect(),
        other => vec![other],
    };
    let mut networks = Vec::new();
    for part in parts {
        let Expr::Atom(Atom { vars: Some(vars), .. }) = part else { return None };
        if vars.get(0)? != "remote_addr" || vars.get(1)? != "ipmatch" {
            return None;
        }
        networks.extend(vars.get(2)?.as_array()?.iter().cloned());
    }
    Some((list, networks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_patterns() {
        assert_eq!(sni_patterns("^a\\.test$"), Some(vec!["a.test".to_owned()]));
        assert_eq!(
            sni_patterns("(?:\\.a\\.test|\\.b)$"),
            Some(vec!["*.a.test".to_owned(), "*.b".to_owned()])
        );
        assert_eq!(sni_patterns("^a.*$"), None);
    }
}
