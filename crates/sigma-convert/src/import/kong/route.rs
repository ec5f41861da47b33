//! Services, routes and upstreams of Kong.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::{Decision, Host, Path, Target};
use super::super::nodes::Node;
use super::super::probe::{Probe, borders};
use super::super::report::Verdict;
use super::plugins::Plugins;
use super::{Translation, is_set, list, number};

/// Most pairs of a path and a host of one route: each path becomes a route with all hosts.
const MOST_PAIRS: usize = 500_000;

/// A service as its routes need it.
struct Service {
    upstream: String,
    path: String,
    plugins: Plugins,
    is_enabled: bool,
}

/// A path of a route, with what decides its place.
struct Candidate {
    decision: Decision,
    /// Number of kinds of conditions, number of fields, plain hosts, regular expression and its priority, length.
    rank: (usize, usize, bool, bool, i64, usize),
}

impl Translation<'_, '_> {
    /// Converts services with their routes, and routes without a service.
    pub(super) fn services(&mut self, roots: &[Node], global: &Plugins) {
        let mut candidates = Vec::new();
        let upstreams = list(roots, "upstreams");
        let top = list(roots, "routes");
        let plugins = list(roots, "plugins");
        for node in list(roots, "services") {
            let name = node.text_of("name").unwrap_or_else(|| format!("service-{}", node.place.line));
            let service = self.service(node, &name, &upstreams, &plugins);
            let own = node.get("routes").map(Node::elements).unwrap_or_default();
            let of_top = top
                .iter()
                .copied()
                .filter(|route| reference(route, "service").as_deref() == Some(name.as_str()));
            for route in own.into_iter().chain(of_top) {
                self.route(route, Some(&service), &plugins, global, &mut candidates);
            }
        }
        for route in top.iter().filter(|route| !is_set(route.get("service"))) {
            self.route(route, None, &plugins, global, &mut candidates);
        }
        // The sort is stable: routes of equal rank keep the order of the file, as the older one wins.
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.rank));
        self.plan.decisions.extend(candidates.into_iter().map(|candidate| candidate.decision));
    }

    fn service(&mut self, node: &Node, name: &str, upstreams: &[&Node], plugins: &[&Node]) -> Service {
        let url = node.text_of("url").unwrap_or_default();
        let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
        let (authority, path) = rest
            .split_once('/')
            .map_or((rest, String::new()), |(authority, path)| (authority, format!("/{path}")));
        let protocol = node
            .text_of("protocol")
            .unwrap_or_else(|| if scheme.is_empty() { "http".to_owned() } else { scheme.to_owned() });
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        let host = node.text_of("host").unwrap_or_else(|| host.to_owned());
        let default = if matches!(protocol.as_str(), "https" | "grpcs") { 443.0 } else { 80.0 };
        let port = number(node, "port", port.parse().unwrap_or(default)) as u16;
        let path = node.text_of("path").unwrap_or(path);
        let group = upstreams.iter().find(|it| it.text_of("name").as_deref() == Some(host.as_str()));
        let mut fields = match group {
            Some(group) => self.targets(group),
            None => [("nodes".to_owned(), json!([{"host": host, "port": port, "weight": 1}]))]
                .into_iter()
                .collect(),
        };
        match protocol.as_str() {
            "http" => {}
            "https" | "grpc" | "grpcs" | "tcp" | "tls" => {
                drop(fields.insert("scheme".to_owned(), protocol.clone().into()))
            }
            other => self.tell(
                node.place,
                Verdict::NotPossible,
                format!("Sigma does not support nodes of the protocol `{other}`."),
            ),
        }
        if matches!(protocol.as_str(), "https" | "grpcs" | "tls") {
            let verify = node.get("tls_verify").and_then(Node::boolean).unwrap_or(false);
            fields.insert("tls".to_owned(), json!({"verify": verify}));
            if is_set(node.get("ca_certificates")) || is_set(node.get("client_certificate")) {
                self.tell_guard(
                    node.place,
                    "Write `tls.ca` and `tls.client_cert` of the upstream with the certificates.",
                );
            }
        }
        let seconds = |name: &str| (number(node, name, 60_000.0) / 1000.0).max(0.001);
        fields.insert(
            "timeout".to_owned(),
            json!({"connect": seconds("connect_timeout"), "send": seconds("write_timeout"), "read": seconds("read_timeout")}),
        );
        fields.insert("retries".to_owned(), (number(node, "retries", 5.0) as u64).into());
        let id = build::id(name);
        self.plan.upstreams.push((id.clone(), Value::Object(fields)));
        self.tell(node.place, Verdict::Done, "");
        let own = node.get("plugins").map(Node::elements).unwrap_or_default();
        let of_top = plugins
            .iter()
            .copied()
            .filter(|it| reference(it, "service").as_deref() == Some(name) && it.get("route").is_none());
        let plugins = self.plugins_of(&own.into_iter().chain(of_top).collect::<Vec<_>>());
        let is_enabled = node.get("enabled").and_then(Node::boolean).unwrap_or(true);
        Service { upstream: id, path, plugins, is_enabled }
    }

    /// The nodes, the balance and the checks of an upstream.
    fn targets(&mut self, node: &Node) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut nodes = Vec::new();
        for target in node.get("targets").map(Node::elements).unwrap_or_default() {
            let text = target.text_of("target").unwrap_or_default();
            let (host, port) = text.rsplit_once(':').unwrap_or((&text, "8000"));
            nodes.push(json!({"host": host, "port": port.parse::<u16>().unwrap_or(8000), "weight": number(target, "weight", 100.0) as u64}));
        }
        fields.insert("nodes".to_owned(), Value::Array(nodes));
        match node.text_of("algorithm").as_deref() {
            None | Some("round-robin") => {}
            Some("least-connections") => drop(fields.insert("type".to_owned(), "least_conn".into())),
            Some("latency") => drop(fields.insert("type".to_owned(), "ewma".into())),
            Some("consistent-hashing") => {
                let key = match node.text_of("hash_on").as_deref() {
                    Some("header") => node
                        .text_of("hash_on_header")
                        .and_then(|name| super::super::words::header_variable(&name).ok()),
                    Some("cookie") => node.text_of("hash_on_cookie").map(|name| format!("cookie_{name}")),
                    Some("path") => Some("uri".to_owned()),
                    Some("query_arg") => node.text_of("hash_on_query_arg").map(|name| format!("arg_{name}")),
                    Some("consumer") => Some("consumer_name".to_owned()),
                    _ => Some("remote_addr".to_owned()),
                };
                fields.insert("type".to_owned(), "chash".into());
                fields.insert("key".to_owned(), key.unwrap_or_else(|| "remote_addr".to_owned()).into());
            }
            Some(other) => self.tell(
                node.place,
                Verdict::Differs,
                format!("`{other}` has no counterpart: the upstream uses round robin."),
            ),
        }
        if let Some(host) = node.text_of("host_header") {
            fields.insert("pass_host".to_owned(), "rewrite".into());
            fields.insert("upstream_host".to_owned(), host.into());
        }
        self.checks(node, &mut fields);
        self.tell(node.place, Verdict::Done, "");
        fields
    }

    fn checks(&mut self, node: &Node, fields: &mut Map<String, Value>) {
        let Some(checks) = node.get("healthchecks") else { return };
        let at = |kind: &str, side: &str, name: &str| checks.get(kind)?.get(side)?.get(name)?.number();
        let mut out = Map::new();
        let (healthy, unhealthy) = (
            at("active", "healthy", "interval").unwrap_or(0.0),
            at("active", "unhealthy", "interval").unwrap_or(0.0),
        );
        if healthy > 0.0 || unhealthy > 0.0 {
            let text = |name: &str| checks.get("active").and_then(|node| node.text_of(name));
            let count = |side: &str, name: &str, default: f64| {
                at("active", side, name).filter(|it| *it > 0.0).unwrap_or(default) as u64
            };
            out.insert(
                "active".to_owned(),
                json!({
                    "type": text("type").unwrap_or_else(|| "http".to_owned()),
                    "http_path": text("http_path").unwrap_or_else(|| "/".to_owned()),
                    "healthy": {"interval": healthy.max(1.0) as u64, "successes": count("healthy", "successes", 2.0)},
                    "unhealthy": {"interval": unhealthy.max(1.0) as u64,
                        "http_failures": count("unhealthy", "http_failures", 5.0),
                        "tcp_failures": count("unhealthy", "tcp_failures", 2.0)},
                }),
            );
        }
        if let Some(failures) = at("passive", "unhealthy", "http_failures").filter(|it| *it > 0.0) {
            out.insert("passive".to_owned(), json!({"unhealthy": {"http_failures": failures as u64}}));
        }
        if !out.is_empty() {
            fields.insert("checks".to_owned(), Value::Object(out));
        }
    }

    fn route(
        &mut self,
        node: &Node,
        service: Option<&Service>,
        plugins: &[&Node],
        global: &Plugins,
        candidates: &mut Vec<Candidate>,
    ) {
        let name = node.text_of("name").unwrap_or_else(|| format!("route-{}", node.place.line));
        self.tell(node.place, Verdict::Done, "");
        if service.is_some_and(|service| !service.is_enabled) {
            self.tell(node.place, Verdict::NoEffect, "Its service is switched off.");
            return;
        }
        if is_set(node.get("expression")) {
            self.tell_guard(
                node.place,
                "Expressions of routes are not converted: write hosts, paths and conditions.",
            );
            return;
        }
        let own = node.get("plugins").map(Node::elements).unwrap_or_default();
        let of_top =
            plugins.iter().copied().filter(|it| reference(it, "route").as_deref() == Some(name.as_str()));
        let mut all = self.plugins_of(&own.into_iter().chain(of_top).collect::<Vec<_>>());
        if let Some(service) = service {
            all.inherit(&service.plugins);
        }
        all.inherit(global);
        let mut paths: Vec<String> = node.texts_of("paths");
        if paths.is_empty() {
            paths.push("/".to_owned());
        }
        let has_paths = is_set(node.get("paths"));
        if paths.len().saturating_mul(node.texts_of("hosts").len()) > MOST_PAIRS {
            return candidates.push(self.too_wide(node, name, paths));
        }
        for path in &paths {
            let mut decision =
                Decision::new(node.place, name.clone(), Target::Closed("no service".to_owned()));
            let mut rank = self.conditions(node, &mut decision);
            let (regex, length) = match path.strip_prefix('~') {
                Some(regex) => {
                    let pattern = if regex.starts_with('^') { regex.to_owned() } else { format!("^{regex}") };
                    if regex::Regex::new(&pattern).is_err() {
                        self.tell_guard(
                            node.place,
                            format!("The regular expression `{regex}` is not supported."),
                        );
                        all.closed.get_or_insert_with(|| "a path is not valid".to_owned());
                    }
                    decision.paths = vec![Path::Regex { pattern, ignore_case: false }];
                    (true, 0)
                }
                None => {
                    if has_paths {
                        decision.paths = vec![Path::Prefix(path.clone())];
                    }
                    (false, path.len())
                }
            };
            rank.0 += usize::from(has_paths);
            let priority = number(node, "regex_priority", 0.0) as i64;
            self.target(node, path, service, &all, &mut decision);
            self.probe(&decision, path);
            let rank = (rank.0, rank.1, rank.2, regex, if regex { priority } else { 0 }, length);
            candidates.push(Candidate { decision, rank });
        }
    }

    /// A closed route instead of one with too many pairs of a path and a host.
    fn too_wide(&mut self, node: &Node, name: String, paths: Vec<String>) -> Candidate {
        let text = format!(
            "The route has more than {MOST_PAIRS} pairs of a path and a host: split it. It is closed."
        );
        self.tell_guard(node.place, text);
        let mut decision =
            Decision::new(node.place, name, Target::Closed("too many paths and hosts".to_owned()));
        let rank = self.conditions(node, &mut decision);
        decision.paths = paths.into_iter().filter(|path| !path.starts_with('~')).map(Path::Prefix).collect();
        Candidate { decision, rank: (rank.0 + 1, rank.1, rank.2, false, 0, usize::MAX) }
    }

    /// Hosts, methods, fields and the like; returns the number of kinds, of fields, and whether all hosts are plain.
    fn conditions(&mut self, node: &Node, decision: &mut Decision) -> (usize, usize, bool) {
        let hosts = node.texts_of("hosts");
        let mut kinds = usize::from(!hosts.is_empty());
        let is_plain = !hosts.is_empty() && hosts.iter().all(|host| !host.contains('*'));
        for host in hosts {
            let name = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
            decision.hosts.push(match (name.strip_prefix("*."), name.strip_suffix(".*")) {
                (Some(rest), _) => Host::Suffix(rest.to_owned()),
                (None, Some(rest)) => Host::Prefix(rest.to_owned()),
                (None, None) => Host::Exact(name),
            });
        }
        decision.methods = node.texts_of("methods");
        kinds += usize::from(!decision.methods.is_empty());
        let headers = node.get("headers").map(Node::members).unwrap_or_default();
        kinds += usize::from(!headers.is_empty());
        for (name, values) in headers {
            match super::super::words::header_variable(name) {
                Ok(variable) => {
                    let texts = values.texts();
                    let condition = match texts.first().and_then(|text| text.strip_prefix("~*")) {
                        Some(regex) => json!([variable, "~*", regex]),
                        None => {
                            let any: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
                            json!([variable, "~*", format!("^(?:{})$", any.join("|"))])
                        }
                    };
                    decision.conditions.push(condition);
                }
                Err(reason) => self.tell_guard(values.place, reason),
            }
        }
        let protocols = node.texts_of("protocols");
        let only_tls =
            !protocols.is_empty() && protocols.iter().all(|it| matches!(it.as_str(), "https" | "grpcs"));
        if only_tls {
            decision.fields.insert("only_tls".to_owned(), true.into());
        }
        let snis = node.texts_of("snis");
        if !snis.is_empty() {
            kinds += 1;
            decision.conditions.push(json!(["ssl_server_name", "in", snis]));
        }
        let sources: Vec<String> = node
            .get("sources")
            .map(|list| {
                list.elements()
                    .into_iter()
                    .filter_map(|it| super::super::words::network(&it.text_of("ip")?))
                    .collect()
            })
            .unwrap_or_default();
        if !sources.is_empty() {
            kinds += 1;
            decision.conditions.push(json!(["remote_addr", "ipmatch", sources]));
        }
        (kinds, headers.len(), is_plain)
    }

    /// The target, the new path and the plugins of a decision.
    fn target(
        &mut self,
        node: &Node,
        path: &str,
        service: Option<&Service>,
        plugins: &Plugins,
        decision: &mut Decision,
    ) {
        let only_tls = decision.fields.remove("only_tls").is_some();
        decision.plugins = plugins.fields.clone();
        if let Some(reason) = &plugins.closed {
            decision.target = Target::Closed(reason.clone());
            return;
        }
        let Some(service) = service else {
            if !plugins.responds {
                self.tell(node.place, Verdict::NotPossible, "The route has no service: it returns 503.");
            }
            decision.target = Target::Respond { status: 503, body: None, headers: Vec::new() };
            return;
        };
        if only_tls {
            self.tls_only(node, decision);
        }
        decision.target = Target::Upstream(service.upstream.clone());
        decision.fields.insert("enable_websocket".to_owned(), true.into());
        let strips = node.get("strip_path").and_then(Node::boolean).unwrap_or(true);
        let rewrite = decision.plugins.entry("proxy-rewrite".to_owned()).or_insert_with(|| json!({}));
        if let Some(pair) = new_path(path, &service.path, strips)
            && rewrite.get("uri").is_none()
        {
            rewrite["regex_uri"] = json!(pair);
            rewrite["use_real_request_uri_unsafe"] = true.into();
        }
        if rewrite.as_object().is_some_and(Map::is_empty) {
            decision.plugins.remove("proxy-rewrite");
        }
        // Kong sends the host of the service, unless the route keeps the client's.
        if !node.get("preserve_host").and_then(Node::boolean).unwrap_or(false)
            && let Some((_, fields)) = self.plan.upstreams.iter_mut().find(|(id, _)| *id == service.upstream)
            && fields.get("pass_host").is_none()
        {
            fields["pass_host"] = "node".into();
        }
    }

    /// A route for TLS only: cleartext requests get the status of the route.
    fn tls_only(&mut self, node: &Node, decision: &mut Decision) {
        let status = number(node, "https_redirect_status_code", 426.0) as u16;
        if matches!(status, 301 | 302 | 307 | 308) {
            decision.plugins.insert("redirect".to_owned(), json!({"http_to_https": true}));
            self.tell(node.place, Verdict::Differs, "The redirect to HTTPS is 301 or 308.");
        } else {
            decision.conditions.push(json!(["scheme", "==", "https"]));
            self.tell(node.place, Verdict::Differs, "Requests in cleartext get 404 instead of 426.");
        }
    }

    fn probe(&mut self, decision: &Decision, path: &str) {
        let host = match decision.hosts.first() {
            Some(Host::Exact(name)) => name.clone(),
            Some(Host::Suffix(name)) => format!("a.{name}"),
            _ => String::new(),
        };
        if path.starts_with('~') {
            return;
        }
        for target in std::iter::once(path.to_owned()).chain(borders(path)) {
            let mut probe = Probe::get(decision.name.clone(), host.clone(), target);
            if let Some(method) = decision.methods.first() {
                probe.method.clone_from(method);
            }
            self.probes.push(probe);
        }
    }
}

/// The name that a member refers to: a text, or an object with `name` or `id`.
pub(super) fn reference(node: &Node, name: &str) -> Option<String> {
    let node = node.get(name)?;
    node.text().or_else(|| node.text_of("name")).or_else(|| node.text_of("id"))
}

/// The substitution of the path: the matched part goes, the path of the service comes.
fn new_path(path: &str, service: &str, strips: bool) -> Option<[String; 2]> {
    let service = service.trim_end_matches('/');
    let pattern = match path.strip_prefix('~') {
        Some(regex) => format!("^(?:{})", regex.trim_start_matches('^').trim_end_matches('$')),
        None => format!("^{}", regex::escape(path.trim_end_matches('/'))),
    };
    match (strips, service) {
        (true, service) if path != "/" => {
            Some([format!("{pattern}/?"), format!("{}/", service.replace('$', "$$"))])
        }
        (_, "") => None,
        (_, service) => Some(["^/".to_owned(), format!("{}/", service.replace('$', "$$"))]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_matched_and_gain_the_service() {
        for (path, service, strips, target, expected) in [
            ("/api", "", true, "/api/x?y", "/x?y"),
            ("/api", "/v1", true, "/api", "/v1/"),
            ("/api", "/v1/", true, "/api/x", "/v1/x"),
            ("/", "/v1", true, "/x", "/v1/x"),
            ("/api", "/v1", false, "/api/x", "/v1/api/x"),
            ("~/u/\\d+$", "", true, "/u/12", "/"),
        ] {
            let [pattern, by] = new_path(path, service, strips).expect(path);
            let regex = regex::Regex::new(&pattern).expect(path);
            assert_eq!(regex.replace(target, by.as_str()), expected, "{path} {service}");
        }
        assert_eq!(new_path("/", "", true), None);
    }
}
