//! Services as upstreams.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::source::SourceLine;
use super::super::tree::Tree;
use super::fields::{at, field, is_true, number, seconds, text, texts};
use super::guards::statuses;
use super::model::{Model, Named};

/// Maximum nesting of services.
const MAX_DEPTH: usize = 8;

/// The target of a router.
#[derive(Debug, Clone)]
pub(super) enum Service {
    /// An upstream, and the plugin proxy-mirror.
    Upstream { id: String, mirror: Option<Value>, middlewares: Vec<String> },
    /// A response instead of a service of Traefik itself.
    Own(u16, &'static str),
}

/// The upstreams so far.
#[derive(Debug, Default)]
pub(super) struct Services {
    pub(super) upstreams: Vec<(String, Value)>,
    known: Vec<(SourceLine, Service)>,
}

impl Services {
    /// Returns a router's service.
    pub(super) fn of(
        &mut self,
        model: &mut Model<'_>,
        name: &str,
        provider: &str,
    ) -> Result<Service, String> {
        self.nested(model, name, provider, 0)
    }

    /// Returns an upstream like `id` with other fields.
    pub(super) fn variant(&mut self, id: &str, changes: &[(String, Map<String, Value>)]) -> String {
        if changes.is_empty() {
            return id.to_owned();
        }
        let suffix: Vec<&str> = changes.iter().map(|(name, _)| name.as_str()).collect();
        let name = build::id(&format!("{id}-{}", suffix.join("-")));
        if self.upstreams.iter().any(|(known, _)| *known == name) {
            return name;
        }
        let Some((_, Value::Object(mut fields))) =
            self.upstreams.iter().find(|(known, _)| known == id).cloned()
        else {
            return id.to_owned();
        };
        for (_, change) in changes {
            fields.extend(change.clone());
        }
        self.upstreams.push((name.clone(), Value::Object(fields)));
        name
    }

    fn nested(
        &mut self,
        model: &mut Model<'_>,
        name: &str,
        provider: &str,
        depth: usize,
    ) -> Result<Service, String> {
        if let Some(own) = name.strip_suffix("@internal") {
            return Ok(match own {
                "ping" => Service::Own(200, "OK"),
                "noop" => Service::Own(418, "I'm a teapot"),
                _ => Service::Own(404, "404 page not found\n"),
            });
        }
        let Some(service) = Model::find(&model.http.services, name, provider).cloned() else {
            return Err(format!("the service `{name}` is not in the files"));
        };
        if let Some((_, known)) = self.known.iter().find(|(place, _)| *place == service.place) {
            return Ok(known.clone());
        }
        if depth > MAX_DEPTH {
            return Err(format!("services are nested deeper than {MAX_DEPTH} levels"));
        }
        let made = self.make(model, &service, depth)?;
        self.known.push((service.place, made.clone()));
        Ok(made)
    }

    fn free_id(&self, service: &Named) -> String {
        let id = build::id(&service.name);
        match self.upstreams.iter().any(|(known, _)| *known == id) {
            true => build::id(&format!("{}-{}-{}", service.name, service.provider, service.place.line)),
            false => id,
        }
    }

    fn make(&mut self, model: &mut Model<'_>, service: &Named, depth: usize) -> Result<Service, String> {
        let kinds =
            ["loadbalancer", "weighted", "mirroring", "failover", "highestrandomweight", "middlewares"];
        model.unknown(service.place.file, &service.tree, &kinds);
        let middlewares = texts(&service.tree, "middlewares");
        if let Some(conf) = field(&service.tree, "loadbalancer") {
            let upstream = load_balancer(model, service, conf)?;
            let id = self.free_id(service);
            self.upstreams.push((id.clone(), upstream));
            return Ok(Service::Upstream { id, mirror: None, middlewares });
        }
        if let Some(conf) = field(&service.tree, "weighted") {
            return self.weighted(model, service, conf, depth).map(|id| plain(id, middlewares));
        }
        if let Some(conf) = field(&service.tree, "highestrandomweight") {
            let text = "Requests are spread by weight at random, not by the client's address.";
            model.remarks.differs(service.place, text);
            return self.weighted(model, service, conf, depth).map(|id| plain(id, middlewares));
        }
        if let Some(conf) = field(&service.tree, "failover") {
            return self.failover(model, service, conf, depth).map(|id| plain(id, middlewares));
        }
        match field(&service.tree, "mirroring") {
            Some(conf) => self.mirroring(model, service, conf, depth, middlewares),
            None => Err(format!("the service `{}` has no kind", service.name)),
        }
    }

    /// Returns the upstream of a service that is part of another one.
    fn part(
        &mut self,
        model: &mut Model<'_>,
        of: &Named,
        name: &str,
        depth: usize,
    ) -> Result<String, String> {
        match self.nested(model, name, of.provider, depth + 1)? {
            Service::Upstream { id, mirror, .. } => {
                if mirror.is_some() {
                    model
                        .remarks
                        .gap(of.place, format!("`{name}` mirrors requests only as the service of a router."));
                }
                let is_group = self
                    .upstreams
                    .iter()
                    .any(|(known, value)| *known == id && value.get("members").is_some());
                match is_group {
                    true => Err(format!(
                        "`{name}` consists of other services; write its servers into one service"
                    )),
                    false => Ok(id),
                }
            }
            Service::Own(..) => Err(format!("`{name}` is a service of Traefik itself")),
        }
    }

    fn weighted(
        &mut self,
        model: &mut Model<'_>,
        service: &Named,
        conf: &Tree,
        depth: usize,
    ) -> Result<String, String> {
        let mut members = Vec::new();
        for item in field(conf, "services").map(Tree::items).unwrap_or_default() {
            let name = text(item, "name").ok_or("a service of a weighted service has no name")?;
            let weight = field(item, "weight").and_then(Tree::integer).unwrap_or(1).max(0);
            let id = self.part(model, service, name, depth)?;
            members.push(json!({"upstream_id": id, "weight": weight}));
        }
        let mut fields = json!({"members": members});
        if let Some(cookie) = at(conf, &["sticky", "cookie"]) {
            fields["session_affinity"] = affinity(model, service, cookie);
        }
        let id = self.free_id(service);
        self.upstreams.push((id.clone(), fields));
        Ok(id)
    }

    fn failover(
        &mut self,
        model: &mut Model<'_>,
        service: &Named,
        conf: &Tree,
        depth: usize,
    ) -> Result<String, String> {
        let main = self.part(model, service, text(conf, "service").unwrap_or_default(), depth)?;
        let other = self.part(model, service, text(conf, "fallback").unwrap_or_default(), depth)?;
        let members = json!([{"upstream_id": main, "priority": 1}, {"upstream_id": other, "priority": 0}]);
        let mut fields = json!({"members": members});
        if let Some(errors) = field(conf, "errors") {
            let codes: Vec<Value> = field(errors, "status").map(statuses).unwrap_or_default();
            let codes: Vec<Value> = codes
                .into_iter()
                .flat_map(|code| match code.as_str() {
                    Some("5xx") => [500, 501, 502, 503, 504].map(Value::from).to_vec(),
                    Some(_) => [404, 429].map(Value::from).to_vec(),
                    None => vec![code],
                })
                .collect();
            fields["retries"] = 1.into();
            fields["retry_policy"] =
                json!({"retry_on": ["connect-failure", "reset"], "retriable_status_codes": codes});
            let text = "A failed attempt is repeated once; the second one may reach the same service.";
            model.remarks.differs(service.place, text);
        }
        let id = self.free_id(service);
        self.upstreams.push((id.clone(), fields));
        Ok(id)
    }

    fn mirroring(
        &mut self,
        model: &mut Model<'_>,
        service: &Named,
        conf: &Tree,
        depth: usize,
        middlewares: Vec<String>,
    ) -> Result<Service, String> {
        let name = text(conf, "service").ok_or("a mirrored service has no main service")?;
        let main = self.nested(model, name, service.provider, depth + 1)?;
        let Service::Upstream { id, .. } = main else { return Ok(main) };
        let mut copies = Vec::new();
        for item in field(conf, "mirrors").map(Tree::items).unwrap_or_default() {
            let percent = field(item, "percent").and_then(Tree::integer).unwrap_or(0).clamp(0, 100);
            let name = text(item, "name").unwrap_or_default();
            let url = Model::find(&model.http.services, name, service.provider)
                .and_then(|mirror| at(&mirror.tree, &["loadbalancer", "servers"]))
                .and_then(|servers| servers.items().first())
                .and_then(|server| text(server, "url"))
                .and_then(|url| Server::parse(url).ok());
            match url {
                Some(server) if percent > 0 => {
                    copies.push(
                        json!({"host": server.origin(), "sample_ratio": number(percent as f64 / 100.0)}),
                    );
                }
                Some(_) => {}
                None => model
                    .remarks
                    .gap(service.at(item), format!("`{name}` has no server with a URL to mirror to.")),
            }
        }
        if copies.is_empty() {
            return Ok(Service::Upstream { id, mirror: None, middlewares });
        }
        let mut mirror = copies.remove(0);
        if !copies.is_empty() {
            mirror["mirrors"] = Value::Array(copies);
        }
        if field(conf, "mirrorbody").and_then(Tree::boolean) == Some(false) {
            mirror["max_req_body_size"] = 0.into();
            model
                .remarks
                .differs(service.field(conf, "mirrorbody"), "Requests with a body are not mirrored.");
        } else if let Some(bytes) =
            field(conf, "maxbodysize").and_then(Tree::integer).filter(|bytes| *bytes >= 0)
        {
            mirror["max_req_body_size"] = bytes.into();
        }
        Ok(Service::Upstream { id, mirror: Some(mirror), middlewares })
    }
}

fn plain(id: String, middlewares: Vec<String>) -> Service {
    Service::Upstream { id, mirror: None, middlewares }
}

/// A server of a load balancer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Server {
    pub(super) scheme: String,
    pub(super) host: String,
    pub(super) port: u16,
    has_path: bool,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Server, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("`{url}` is not a URL"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let default = if scheme == "https" { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("`{url}` has no valid port"))?)
            }
            _ => (authority, default),
        };
        if host.is_empty() || host.contains(['{', '$', ' ']) {
            return Err(format!("`{url}` has no valid host"));
        }
        let has_path = path.trim_end_matches('/').len() > 1;
        Ok(Server { scheme: scheme.to_ascii_lowercase(), host: host.to_owned(), port, has_path })
    }

    fn origin(&self) -> String {
        let scheme = if self.scheme == "https" { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

fn load_balancer(model: &mut Model<'_>, service: &Named, conf: &Tree) -> Result<Value, String> {
    let known = [
        "servers",
        "server",
        "sticky",
        "healthcheck",
        "passivehealthcheck",
        "passhostheader",
        "responseforwarding",
        "serverstransport",
        "strategy",
    ];
    model.unknown(service.place.file, conf, &known);
    let mut nodes = Vec::new();
    let mut scheme = None;
    for item in field(conf, "servers").map(Tree::items).unwrap_or_default() {
        let Some(url) = text(item, "url") else { continue };
        let server = Server::parse(url)?;
        if server.has_path {
            let text = "Traefik ignores the path of a server's URL, and so does Sigma.";
            if is_true(item, "preservepath") {
                let text = "Add the path by proxy-rewrite in the routes of this service.";
                model.remarks.gap(service.at(item), text);
            } else {
                model.remarks.no_effect(service.at(item), text);
            }
        }
        let wire = match server.scheme.as_str() {
            "http" => "http",
            "https" => "https",
            "h2c" => "grpc",
            other => return Err(format!("the scheme `{other}` of a server is unknown")),
        };
        if *scheme.get_or_insert(wire) != wire {
            return Err(format!("the servers of `{}` have different schemes", service.name));
        }
        let weight = field(item, "weight").and_then(Tree::integer).unwrap_or(1).max(0);
        nodes.push(json!({"host": server.host, "port": server.port, "weight": weight}));
    }
    let scheme = scheme.unwrap_or("http");
    let mut upstream = json!({"nodes": nodes, "retries": 0});
    upstream["timeout"] = json!({"connect": 30, "send": 600, "read": 600});
    if scheme != "http" {
        upstream["scheme"] = scheme.into();
    }
    if field(conf, "passhostheader").and_then(Tree::boolean) == Some(false) {
        upstream["pass_host"] = "node".into();
    }
    let balance = match text(conf, "strategy").map(str::to_ascii_lowercase).as_deref() {
        Some("p2c") => Some("least_request"),
        Some("leasttime") => Some("peak_ewma"),
        Some("hrw") => {
            upstream["key"] = "remote_addr".into();
            Some("chash")
        }
        _ => None,
    };
    if let Some(balance) = balance {
        upstream["type"] = balance.into();
    }
    transport(model, service, conf, scheme, &mut upstream)?;
    if let Some(cookie) = at(conf, &["sticky", "cookie"]) {
        upstream["session_affinity"] = affinity(model, service, cookie);
    }
    checks(model, service, conf, &mut upstream);
    if let Some(forwarding) = field(conf, "responseforwarding") {
        model.remarks.no_effect(service.at(forwarding), "Responses are forwarded as they arrive.");
    }
    Ok(upstream)
}

fn affinity(model: &mut Model<'_>, service: &Named, cookie: &Tree) -> Value {
    let default = format!("_{}", build::id(&service.name));
    let name = text(cookie, "name").unwrap_or(&default);
    let text_of_remark = match text(cookie, "name") {
        Some(_) => "The cookie has a keyed hash; change `secret` to your own secret.",
        None => {
            "In Traefik, the name of the cookie is a hash, so sessions start again; change `secret` to your own secret."
        }
    };
    model.remarks.differs(SourceLine { file: service.place.file, line: cookie.line }, text_of_remark);
    let mut conf = json!({"name": name, "http_only": is_true(cookie, "httponly")});
    if is_true(cookie, "secure") {
        conf["secure"] = true.into();
    }
    for (source, target) in [("path", "path"), ("domain", "domain")] {
        if let Some(value) = text(cookie, source) {
            conf[target] = value.into();
        }
    }
    if let Some(same) = text(cookie, "samesite").map(str::to_ascii_lowercase)
        && ["lax", "strict", "none"].contains(&same.as_str())
        && (same != "none" || is_true(cookie, "secure"))
    {
        conf["same_site"] = same.into();
    }
    if let Some(age) = field(cookie, "maxage").and_then(Tree::integer).filter(|age| *age > 0) {
        conf["max_age"] = age.into();
    }
    json!({"cookie": conf, "secret": format!("imported-session-secret-of-{}", build::id(&service.name))})
}

fn checks(model: &mut Model<'_>, service: &Named, conf: &Tree, upstream: &mut Value) {
    if let Some(check) = field(conf, "healthcheck") {
        upstream["checks"] = json!({"active": active(model, service, check)});
    }
    if let Some(passive) = field(conf, "passivehealthcheck") {
        let failures = field(passive, "maxfailedattempts").and_then(Tree::integer).unwrap_or(1).clamp(1, 254);
        let window = seconds(passive, "failurewindow").filter(|window| *window > 0.0).unwrap_or(10.0);
        let rules = json!({"http_failures": failures, "tcp_failures": failures, "timeouts": failures,
            "http_statuses": [500, 501, 502, 503, 504]});
        let value = json!({"fail_timeout": number(window), "unhealthy": rules});
        match upstream.get_mut("checks") {
            Some(checks) => checks["passive"] = value,
            None => upstream["checks"] = json!({"passive": value}),
        }
        let text = "A node that failed gets requests again after the window; consecutive failures count.";
        model.remarks.differs(service.at(passive), text);
    }
}

fn active(model: &mut Model<'_>, service: &Named, check: &Tree) -> Value {
    let known = [
        "scheme",
        "mode",
        "path",
        "method",
        "status",
        "port",
        "interval",
        "unhealthyinterval",
        "timeout",
        "hostname",
        "followredirects",
        "headers",
    ];
    model.unknown(service.place.file, check, &known);
    let interval = |name: &str| seconds(check, name).map(|seconds| seconds.ceil().max(1.0) as u64);
    let healthy = interval("interval").unwrap_or(30);
    let unhealthy = interval("unhealthyinterval").unwrap_or(healthy);
    let statuses: Vec<u16> = match field(check, "status").and_then(Tree::integer) {
        Some(status) if status > 0 => vec![u16::try_from(status).unwrap_or(200)],
        _ => (200..400).collect(),
    };
    let failed: Vec<u16> = (200..600).filter(|status| !statuses.contains(status)).collect();
    let kind = match (text(check, "mode"), text(check, "scheme")) {
        (Some("grpc"), _) => "grpc",
        (_, Some("https")) => "https",
        _ => "http",
    };
    let mut active = json!({
        "type": kind, "timeout": number(seconds(check, "timeout").unwrap_or(5.0)),
        "healthy": {"interval": healthy, "successes": 1, "http_statuses": statuses},
        "unhealthy": {"interval": unhealthy, "http_failures": 1, "tcp_failures": 1, "timeouts": 1,
            "http_statuses": failed},
    });
    for (source, target) in [("path", "http_path"), ("method", "http_method"), ("hostname", "host")] {
        if let Some(value) = text(check, source) {
            active[target] = value.into();
        }
    }
    if let Some(port) = field(check, "port").and_then(Tree::integer).filter(|port| (1..65536).contains(port))
    {
        active["port"] = port.into();
    }
    let headers = field(check, "headers").map(Tree::members).unwrap_or_default();
    if !headers.is_empty() {
        let lines = headers.iter().map(|it| format!("{}: {}", it.key, it.value.text().unwrap_or_default()));
        active["req_headers"] = lines.collect();
    }
    if is_true(check, "followredirects") {
        let text = "Probes do not follow redirects: a redirect is a success.";
        model.remarks.differs(service.field(check, "followredirects"), text);
    }
    active
}

/// TLS and timeouts of connections to servers.
fn transport(
    model: &mut Model<'_>,
    service: &Named,
    conf: &Tree,
    scheme: &str,
    upstream: &mut Value,
) -> Result<(), String> {
    let named = match text(conf, "serverstransport") {
        Some(name) => Some(
            Model::find(&model.transports, name, service.provider)
                .map(|transport| (transport.place.file, transport.tree.clone()))
                .ok_or_else(|| format!("the serversTransport `{name}` is not in the files"))?,
        ),
        None => {
            model.statics.iter().find_map(|it| Some((it.file, field(&it.tree, "serverstransport")?.clone())))
        }
    };
    let is_tls = scheme == "https";
    if is_tls {
        upstream["tls"] = json!({"verify": true});
    }
    let Some((file, conf)) = named else { return Ok(()) };
    let place = |tree: &Tree| SourceLine { file, line: tree.line };
    if is_tls && is_true(&conf, "insecureskipverify") {
        upstream["tls"]["verify"] = false.into();
    }
    let roots = texts(&conf, "rootcas");
    if is_tls && !roots.is_empty() {
        upstream["tls"]["ca"] = pem(model, &roots)?.into();
    }
    if is_tls && let Some(pair) = field(&conf, "certificates").and_then(|list| list.items().first()) {
        let (cert, key) = (text(pair, "certfile"), text(pair, "keyfile"));
        let (cert, key) = cert.zip(key).ok_or("a certificate of a serversTransport lacks a file")?;
        upstream["tls"]["client_cert"] = pem(model, &[cert.to_owned()])?.into();
        upstream["tls"]["client_key"] = pem(model, &[key.to_owned()])?.into();
    }
    if is_tls && let Some(name) = field(&conf, "servername") {
        let text = "Sigma verifies the name of the node: use that name in `nodes`.";
        model.remarks.guard_differs(place(name), text);
    }
    for name in ["spiffe", "peercerturi"] {
        if is_tls && field(&conf, name).is_some() {
            return Err(format!("`{name}` of a serversTransport cannot be checked here"));
        }
    }
    if let Some(timeouts) = field(&conf, "forwardingtimeouts") {
        if let Some(connect) = seconds(timeouts, "dialtimeout").filter(|it| *it > 0.0) {
            upstream["timeout"]["connect"] = number(connect);
        }
        if let Some(read) = seconds(timeouts, "responseheadertimeout").filter(|it| *it > 0.0) {
            upstream["timeout"]["read"] = number(read);
            model
                .remarks
                .differs(place(timeouts), "The time between two reads of a response has the same limit.");
        }
        if let Some(idle) = seconds(timeouts, "idleconntimeout") {
            upstream["keepalive_pool"] = json!({"idle_timeout": number(idle)});
        }
    }
    Ok(())
}

/// Returns PEM texts, from files or as they are.
pub(super) fn pem(model: &Model<'_>, sources: &[String]) -> Result<String, String> {
    let mut all = String::new();
    for source in sources {
        match source.contains("-----BEGIN") {
            true => all.push_str(source),
            false => {
                let text = model.access.read(source);
                all.push_str(&text.map_err(|reason| format!("`{source}` cannot be read: {reason}"))?);
            }
        }
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_urls() {
        let server = |scheme: &str, host: &str, port, has_path| {
            Ok(Server { scheme: scheme.to_owned(), host: host.to_owned(), port, has_path })
        };
        assert_eq!(Server::parse("http://a:81/x"), server("http", "a", 81, true));
        assert_eq!(Server::parse("https://[::1]/"), server("https", "[::1]", 443, false));
        assert_eq!(Server::parse("h2c://[::1]:50"), server("h2c", "[::1]", 50, false));
        for url in ["a:80", "http://", "http://a:x", "http://{{env \"A\"}}"] {
            assert!(Server::parse(url).is_err(), "{url}");
        }
    }
}
