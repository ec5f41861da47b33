//! Blocks `server`: addresses, names, certificates, and their order.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::super::decision::{Certificate, Host, Listener};
use super::super::report::Verdict;
use super::converter::Converter;
use super::level::Level;
use super::locations;
use super::parse::Directive;
use super::pattern::Pattern;
use super::rewriting::Phase;
use super::state::{Captures, FileSteps, KnownVariables, MatchedLocation, RewrittenTarget, Server, State};

/// Ciphers that Sigma has, by their OpenSSL names.
const CIPHERS: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// A line `listen`.
struct Listen<'a> {
    directive: &'a Directive,
    address: String,
    port: u16,
    is_tls: bool,
    is_default: bool,
    has_proxy_protocol: bool,
}

/// A block with its lines `listen` and `server_name`.
struct Block<'a> {
    level: Rc<Level<'a>>,
    directive: &'a Directive,
    listens: Vec<Listen<'a>>,
    names: Vec<Name>,
}

/// A name with its rank: lower ranks are looked up first.
#[derive(Clone)]
struct Name {
    rank: (u8, i64),
    host: Host,
    pattern: Option<Pattern>,
}

/// Hosts of one server that stand together in the list.
struct Run {
    server: usize,
    names: Vec<Name>,
    ports: Vec<u16>,
}

impl<'a> Converter<'a> {
    /// Converts the servers of a block `http`.
    pub(super) fn servers(&mut self, http: &Rc<Level<'a>>) {
        let blocks: Vec<Block<'a>> =
            http.own_all(&["server"]).into_iter().map(|directive| self.block(directive, http)).collect();
        self.listeners(&blocks);
        let servers: Vec<Rc<Server<'a>>> = blocks.iter().map(|block| self.server(block)).collect();
        for run in runs(&blocks) {
            self.run_of(&blocks, &servers, run);
        }
    }

    fn block(&mut self, directive: &'a Directive, http: &Rc<Level<'a>>) -> Block<'a> {
        let level = Level::of(directive.children(), Some(http), false);
        let mut listens = Vec::new();
        for listen in level.own_all(&["listen"]) {
            if listen.args.iter().any(|arg| arg == "quic") {
                self.remark(
                    listen,
                    Verdict::NotPossible,
                    "HTTP/3 is not converted: set `http3: true` at the listener",
                );
                continue;
            }
            match read_listen(listen) {
                Some(listen) => listens.push(listen),
                None => {
                    self.remark(listen, Verdict::NotPossible, "the address is invalid and was not converted")
                }
            }
        }
        if listens.is_empty() && level.own("listen").is_none() {
            listens.push(Listen {
                directive,
                address: "0.0.0.0:80".to_owned(),
                port: 80,
                is_tls: false,
                is_default: false,
                has_proxy_protocol: false,
            });
        }
        let mut names = Vec::new();
        for line in level.own_all(&["server_name"]) {
            for (at, text) in line.args.iter().enumerate() {
                self.name(line, text, i64::try_from(at).unwrap_or(0), &mut names);
            }
        }
        Block { level, directive, listens, names }
    }

    fn name(&mut self, line: &Directive, text: &str, at: i64, names: &mut Vec<Name>) {
        let lower = text.to_ascii_lowercase();
        let length = |text: &str| -i64::try_from(text.len()).unwrap_or(0);
        let mut push = |rank, host| names.push(Name { rank, host, pattern: None });
        if let Some(expression) = text.strip_prefix('~') {
            match Pattern::new(expression, true) {
                Ok(pattern) => {
                    let order =
                        i64::from(line.place.file) * 1_000_000_000 + i64::from(line.place.line) * 1000 + at;
                    names.push(Name {
                        rank: (3, order),
                        host: Host::Regex(pattern.text.clone()),
                        pattern: Some(pattern),
                    });
                }
                Err(reason) => {
                    let text = format!("{reason}; requests with such a host go to the default server");
                    self.remark(line, Verdict::NotPossible, text);
                }
            }
        } else if lower == "_" {
        } else if lower.is_empty() || lower == "\"\"" {
            push((0, 0), Host::Exact(String::new()));
        } else if let Some(rest) = lower.strip_prefix("*.") {
            push((1, length(rest)), Host::Suffix(rest.to_owned()));
        } else if let Some(rest) = lower.strip_prefix('.') {
            push((0, 0), Host::Exact(rest.to_owned()));
            push((1, length(rest)), Host::Suffix(rest.to_owned()));
        } else if let Some(rest) = lower.strip_suffix(".*") {
            push((2, length(rest)), Host::Prefix(rest.to_owned()));
        } else {
            let name = lower.replace("$hostname", &self.access.variable("HOSTNAME").unwrap_or_default());
            push((0, 0), Host::Exact(name));
        }
    }

    fn server(&mut self, block: &Block<'a>) -> Rc<Server<'a>> {
        let (entries, named) = locations::list(&block.level);
        let first = block.level.own("server_name").map_or("", |line| line.arg(0));
        let name = if first.starts_with('~') { first } else { first.trim_start_matches('.') };
        let mut ports: Vec<u16> = block.listens.iter().map(|listen| listen.port).collect();
        ports.sort_unstable();
        ports.dedup();
        let closed = self.unread_includes(&block.level).or_else(|| self.client_certificates(block).err());
        Rc::new(Server {
            level: Rc::clone(&block.level),
            place: block.directive.place,
            directive: block.directive,
            name: name.to_owned(),
            ports,
            entries,
            named,
            closed,
        })
    }

    /// Files that a server includes and that cannot be read may have guards: the server is closed.
    fn unread_includes(&mut self, level: &Rc<Level<'a>>) -> Option<String> {
        let mut found = None;
        let mut stack: Vec<&Directive> = level.directives.iter().collect();
        if let Some(parent) = &level.parent {
            stack.extend(parent.directives.iter().filter(|directive| directive.block.is_none()));
        }
        while let Some(directive) = stack.pop() {
            if directive.name == "include"
                && directive.raw.is_none()
                && !super::table::is_stock(directive.arg(0))
            {
                let text = "cannot read the file: the servers that include it are closed until it exists";
                self.guard(directive, Verdict::NotPossible, text);
                found = Some(format!("{} cannot be read", directive.arg(0)));
            }
            stack.extend(directive.children());
        }
        found
    }

    /// Follows the requests for some names of a server.
    fn run_of(&mut self, blocks: &[Block<'a>], servers: &[Rc<Server<'a>>], run: Run) {
        let server = Rc::new(Server {
            level: Rc::clone(&servers[run.server].level),
            place: servers[run.server].place,
            directive: servers[run.server].directive,
            name: servers[run.server].name.clone(),
            ports: run.ports,
            entries: servers[run.server].entries.clone(),
            named: servers[run.server].named.clone(),
            closed: servers[run.server].closed.clone(),
        });
        // Groups of a name are of one expression alone.
        let (regexes, plain): (Vec<Name>, Vec<Name>) =
            run.names.into_iter().partition(|name| name.pattern.is_some());
        let mut parts: Vec<(Vec<Host>, Option<Pattern>)> = Vec::new();
        // Requests without a host have the name of the server as `$host`.
        let is_missing = |host: &Host| *host == Host::Exact(String::new());
        let hosts: Vec<Host> = plain.into_iter().map(|name| name.host).collect();
        let (missing, hosts): (Vec<Host>, Vec<Host>) = hosts.into_iter().partition(is_missing);
        if !missing.is_empty() {
            parts.push((missing, None));
        }
        if !hosts.is_empty() || (regexes.is_empty() && parts.is_empty()) {
            parts.push((hosts, None));
        }
        parts.extend(regexes.into_iter().map(|name| (vec![name.host], name.pattern)));
        for (hosts, pattern) in parts {
            let mut state = self.first_state(&server, hosts);
            if let Some(pattern) = pattern {
                let captures = Captures::Of { subject: "${host}".to_owned(), pattern: pattern.clone() };
                let named = self.variables.named(&captures, &pattern);
                state.variables.named.extend(named);
                state.variables.captures = captures;
            }
            let level = Rc::clone(&blocks[run.server].level);
            self.pages_of_errors(&level, &state);
            self.follow(&level, state, Phase::Server);
        }
    }

    fn first_state(&mut self, server: &Rc<Server<'a>>, hosts: Vec<Host>) -> State<'a> {
        let mut conditions = Vec::new();
        let mut sets = BTreeMap::new();
        let mut hosts = hosts;
        if hosts.contains(&Host::Exact(String::new())) {
            sets.insert("host".to_owned(), server.name.clone());
            let missing = json!(["OR", ["http_host", "==", null], ["http_host", "==", ""]]);
            hosts.retain(|host| *host != Host::Exact(String::new()));
            let mut any = vec![json!("OR"), missing[1].clone(), missing[2].clone()];
            any.extend(hosts.iter().map(super::super::build::host_condition));
            conditions.push(Value::Array(any));
            hosts.clear();
        }
        State {
            server: Rc::clone(server),
            hosts,
            path: None,
            conditions,
            rewritten: RewrittenTarget::default(),
            variables: KnownVariables { sets, ..KnownVariables::default() },
            searches: 0,
            location: MatchedLocation::default(),
            files: FileSteps::default(),
            is_internal: false,
            is_error: false,
        }
    }

    /// Listeners with the certificates of their default servers.
    fn listeners(&mut self, blocks: &[Block<'a>]) {
        let mut addresses: Vec<&str> = Vec::new();
        for block in blocks {
            for listen in &block.listens {
                if addresses.contains(&listen.address.as_str()) {
                    continue;
                }
                addresses.push(&listen.address);
                let mut all =
                    blocks.iter().flat_map(|block| block.listens.iter().map(move |listen| (block, listen)));
                let is_same = |other: &Listen<'_>| other.address == listen.address;
                let is_tls =
                    all.clone().any(|(_, other)| is_same(other) && other.is_tls) || block.level.is_on("ssl");
                let default = all.clone().find(|(_, other)| is_same(other) && other.is_default);
                let default =
                    default.or_else(|| all.find(|(_, other)| is_same(other))).map(|(block, _)| block);
                let mut fields = Map::new();
                if is_tls {
                    fields.insert("tls".to_owned(), self.tls(default.unwrap_or(block)));
                }
                if listen.has_proxy_protocol {
                    fields.insert(
                        "proxy_protocol".to_owned(),
                        self.proxy_protocol(listen.directive, &block.level),
                    );
                }
                if let Some(backlog) =
                    super::access::option(listen.directive, "backlog").and_then(|it| it.parse::<u32>().ok())
                {
                    fields.insert("backlog".to_owned(), backlog.into());
                }
                let address = listen.address.clone();
                self.plan.listeners.push(Listener { address, port: listen.port, fields });
            }
        }
        for block in blocks.iter().filter(|block| block.listens.iter().any(|listen| listen.is_tls)) {
            self.certificate(block);
        }
    }

    /// The peers that send the PROXY protocol.
    fn proxy_protocol(&mut self, listen: &Directive, level: &Rc<Level<'a>>) -> Value {
        let trusted: Vec<&str> = level.all(&["set_real_ip_from"]).iter().map(|line| line.arg(0)).collect();
        if trusted.is_empty() {
            let text =
                "Any peer may send a PROXY header, as in nginx: list the addresses of your load balancers.";
            self.remark(listen, Verdict::Differs, text);
            return json!({"trusted": ["0.0.0.0/0", "::/0"]});
        }
        json!({"trusted": trusted})
    }

    fn tls(&mut self, block: &Block<'a>) -> Value {
        let level = &block.level;
        let mut tls = Map::new();
        let certificates = pairs(level);
        if !certificates.is_empty() {
            let list: Vec<Value> = certificates
                .iter()
                .map(|(cert, key)| json!({"cert": self.resolved(cert), "key": self.resolved(key)}))
                .collect();
            tls.insert("certificates".to_owned(), json!(list));
        }
        if let Some(directive) = level.last("ssl_protocols") {
            let known: Vec<&String> = directive
                .args
                .iter()
                .filter(|version| matches!(version.as_str(), "TLSv1.2" | "TLSv1.3"))
                .collect();
            if known.len() < directive.args.len() && !known.is_empty() {
                self.remark(directive, Verdict::Differs, "Sigma does not support versions before TLS 1.2.");
            }
            if known.len() == 1 {
                tls.insert("protocols".to_owned(), json!(known));
            }
        }
        let ciphers: Vec<&str> = level
            .text("ssl_ciphers")
            .map(|text| text.split(':').filter(|name| CIPHERS.contains(name)).collect())
            .unwrap_or_default();
        if !ciphers.is_empty() && ciphers.len() < CIPHERS.len() {
            tls.insert("ciphers".to_owned(), ciphers.join(":").into());
        }
        match tls.is_empty() {
            true => Value::Bool(true),
            false => Value::Object(tls),
        }
    }

    fn certificate(&mut self, block: &Block<'a>) {
        let mut names: Vec<String> = Vec::new();
        for name in &block.names {
            match &name.host {
                Host::Exact(name) if name.contains('.') => names.push(name.clone()),
                Host::Suffix(name) => names.push(format!("*.{name}")),
                Host::Exact(name) if !name.is_empty() => names.push(name.clone()),
                _ => {}
            }
        }
        names.sort_unstable();
        names.dedup();
        let pairs = pairs(&block.level);
        let Some((cert, key)) = pairs.first().filter(|_| !names.is_empty()) else { return };
        if cert.contains('$') || cert.starts_with("data:") {
            if let Some(line) = block.level.last("ssl_certificate") {
                self.remark(
                    line,
                    Verdict::NotPossible,
                    "a variable as a certificate is not supported: write its path",
                );
            }
            return;
        }
        let mut fields = Map::new();
        if let Ok(Some(client)) = self.client_certificates(block) {
            fields.insert("client".to_owned(), client);
        }
        if block.level.is_on("ssl_stapling") {
            fields.insert("ocsp_stapling".to_owned(), json!({"enabled": true}));
        }
        let taken: Vec<&String> = self.plan.certificates.iter().flat_map(|known| &known.names).collect();
        let names: Vec<String> = names.into_iter().filter(|name| !taken.contains(&name)).collect();
        if names.is_empty() {
            return;
        }
        let (cert_file, key_file) = (self.resolved(cert), self.resolved(key));
        self.plan.certificates.push(Certificate { names, cert_file, key_file, fields });
    }

    /// `ssl_verify_client`: Err closes the server.
    fn client_certificates(&mut self, block: &Block<'a>) -> Result<Option<Value>, String> {
        let level = &block.level;
        let Some(directive) = level.last("ssl_verify_client").filter(|directive| directive.arg(0) != "off")
        else {
            return Ok(None);
        };
        if !block.listens.iter().any(|listen| listen.is_tls) {
            return Ok(None);
        }
        if directive.arg(0) != "on" {
            let text = "optional client certificates are not supported; the server is closed: require them for separate host names";
            self.guard(directive, Verdict::NotPossible, text);
            return Err(directive.source());
        }
        let file = level.last("ssl_client_certificate").or_else(|| level.last("ssl_trusted_certificate"));
        let Some(file) = file else { return Err(directive.source()) };
        let names = block.names.iter().any(|name| {
            matches!(&name.host, Host::Exact(name) if !name.is_empty())
                || matches!(name.host, Host::Suffix(_))
        });
        match self.access.read(&self.resolved(file.arg(0))) {
            Ok(ca) if names => {
                let mut client = json!({"ca": ca});
                if let Some(depth) = level.text("ssl_verify_depth").and_then(|text| text.parse::<u32>().ok())
                {
                    client["depth"] = depth.into();
                }
                if let Some(list) = level.text("ssl_crl") {
                    client["crl"] = json!({"files": [self.resolved(list)]});
                }
                Ok(Some(client))
            }
            Ok(_) => {
                let text = "client certificates need server names; the server is closed";
                self.guard(directive, Verdict::NotPossible, text);
                Err(directive.source())
            }
            Err(error) => {
                let text = format!("cannot read the CA file ({error}); the server is closed");
                self.guard(file, Verdict::NotPossible, text);
                Err(directive.source())
            }
        }
    }
}

/// Certificates with their keys, in order.
fn pairs<'a>(level: &Level<'a>) -> Vec<(&'a str, &'a str)> {
    let certificates = level.all(&["ssl_certificate"]);
    let keys = level.all(&["ssl_certificate_key"]);
    certificates.iter().zip(keys).map(|(cert, key)| (cert.arg(0), key.arg(0))).collect()
}

fn read_listen(directive: &Directive) -> Option<Listen<'_>> {
    let first = directive.arg(0);
    let has = |word: &str| directive.args.iter().skip(1).any(|arg| arg == word);
    let (address, port) = if let Some(path) = first.strip_prefix("unix:") {
        (format!("unix:{path}"), 0)
    } else if let Ok(port) = first.parse::<u16>() {
        (format!("0.0.0.0:{port}"), port)
    } else {
        let (host, port) = match first.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse::<u16>().ok()?),
            _ => (first, 80),
        };
        let host = match host {
            "*" | "" => "0.0.0.0",
            "localhost" => "127.0.0.1",
            host => host,
        };
        let is_both = host == "[::]" && has("ipv6only=off");
        (if is_both { format!(":{port}") } else { format!("{host}:{port}") }, port)
    };
    let is_address = address.starts_with("unix:")
        || address.starts_with(':')
        || address.parse::<std::net::SocketAddr>().is_ok()
        || address.contains(|char: char| char.is_ascii_alphabetic());
    is_address.then_some(Listen {
        directive,
        address,
        port,
        is_tls: has("ssl"),
        is_default: has("default_server") || has("default"),
        has_proxy_protocol: has("proxy_protocol"),
    })
}

/// The order in which names are looked up: all names of a server stand at their first place, unless a name of another
/// server between them matches the same host.
fn runs(blocks: &[Block<'_>]) -> Vec<Run> {
    let mut entries: Vec<(&Name, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(at, block)| block.names.iter().map(move |name| (name, at)))
        .collect();
    entries.sort_by_key(|(name, at)| (name.rank, *at));
    let ports = |at: usize| -> Vec<u16> {
        let mut ports: Vec<u16> = blocks[at].listens.iter().map(|listen| listen.port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    let mut runs: Vec<(usize, Run)> = Vec::new();
    for (position, (name, server)) in entries.iter().enumerate() {
        let last = runs.iter().rposition(|(_, run)| run.server == *server);
        let is_free = last.is_some_and(|at| {
            let first = runs[at].0;
            entries[first..position].iter().all(|(other, owner)| owner == server || !overlaps(other, name))
        });
        match last.filter(|_| is_free) {
            Some(at) => runs[at].1.names.push((*name).clone()),
            None => {
                let run = Run { server: *server, names: vec![(*name).clone()], ports: ports(*server) };
                runs.push((position, run));
            }
        }
    }
    let mut runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
    let all: Vec<u16> = {
        let mut all: Vec<u16> = (0..blocks.len()).flat_map(ports).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let mut defaults: BTreeMap<usize, Vec<u16>> = BTreeMap::new();
    for port in all {
        let listens = |block: &Block<'_>, only_default: bool| {
            block.listens.iter().any(|listen| listen.port == port && (listen.is_default || !only_default))
        };
        let default = blocks.iter().position(|block| listens(block, true));
        if let Some(at) = default.or_else(|| blocks.iter().position(|block| listens(block, false))) {
            defaults.entry(at).or_default().push(port);
        }
    }
    // Names of a default server need no routes of their own, unless another server's name could take their requests.
    runs.retain(|run| {
        let is_default = defaults.get(&run.server).is_some_and(|ports| *ports == run.ports);
        let has_groups = run.names.iter().any(|name| name.pattern.is_some());
        !is_default
            || has_groups
            || entries.iter().any(|(other, owner)| {
                *owner != run.server
                    && run.names.iter().any(|name| other.rank > name.rank && overlaps(other, name))
            })
    });
    runs.extend(defaults.into_iter().map(|(server, ports)| Run { server, names: Vec::new(), ports }));
    runs
}

/// Whether two names may match the same host.
fn overlaps(one: &Name, other: &Name) -> bool {
    match (&one.host, &other.host) {
        (Host::Exact(a), Host::Exact(b)) => a == b,
        (Host::Exact(exact), Host::Suffix(suffix)) | (Host::Suffix(suffix), Host::Exact(exact)) => {
            exact.ends_with(&format!(".{suffix}"))
        }
        (Host::Exact(exact), Host::Prefix(prefix)) | (Host::Prefix(prefix), Host::Exact(exact)) => {
            exact.starts_with(&format!("{prefix}."))
        }
        (Host::Exact(exact), Host::Regex(_)) => other.pattern.as_ref().is_none_or(|it| it.is_match(exact)),
        (Host::Regex(_), Host::Exact(exact)) => one.pattern.as_ref().is_none_or(|it| it.is_match(exact)),
        (Host::Suffix(a), Host::Suffix(b)) => {
            a == b || a.ends_with(&format!(".{b}")) || b.ends_with(&format!(".{a}"))
        }
        _ => true,
    }
}
