//! Sites: addresses as listeners and hosts, certificates, error pages.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::decision::{Certificate, Decision, Host, Listener, Path, Plan, Target};
use super::super::probe::{Probe, borders};
use super::super::source::SourceLine;
use super::existing;
use super::matcher::{self, Named};
use super::options::Options;
use super::parse::{Line, Site};
use super::run::Runner;
use super::state::{Branch, glob};

/// The address of a site.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Address {
    pub(super) is_tls: bool,
    /// Whether the scheme or the port was written, so that nothing is redirected.
    is_explicit: bool,
    pub(super) host: String,
    pub(super) port: u16,
    path: String,
}

/// Parses `http://host:80/path`, `:80`, `*.host`.
pub(super) fn address(text: &str, options: &Options) -> Option<Address> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (authority, None),
    };
    let is_plain = scheme == "http" || port == Some(options.http_port);
    // A bare port has no name, so no certificate either.
    let is_tls = !is_plain
        && (scheme == "https" || port == Some(options.https_port) || (!host.is_empty() && !options.is_off));
    let default = if is_tls { options.https_port } else { options.http_port };
    let port = port.unwrap_or(default);
    let host = host.to_ascii_lowercase();
    let host = if host == "*" { String::new() } else { host };
    Some(Address { is_tls, is_explicit: !scheme.is_empty(), host, port, path: path.to_owned() })
}

/// A site with its addresses.
pub(super) struct AddressedSite {
    pub(super) site: Site,
    pub(super) addresses: Vec<Address>,
    place: SourceLine,
    binds: Vec<String>,
    /// The line `tls`.
    tls: Option<Line>,
}

/// Reads the addresses of a site.
pub(super) fn known(runner: &mut Runner<'_>, site: Site, options: &Options) -> Option<AddressedSite> {
    let mut addresses = Vec::new();
    for token in &site.addresses {
        match address(&token.text, options) {
            Some(address) => addresses.push(address),
            None => runner.remarks.gap(token.place, format!("`{}` is not an address of a site.", token.text)),
        }
    }
    let place = site.addresses.first()?.place;
    let line = |name: &str| site.lines.iter().find(|line| line.name() == name).cloned();
    let binds = line("bind").map(|line| line.args()).unwrap_or_else(|| options.binds.clone());
    let tls = line("tls");
    if let Some(tls) = &tls
        && !tls.args().is_empty()
    {
        // With certificates a bare port speaks TLS as well.
        let plain = |address: &Address| address.port == options.http_port;
        addresses.iter_mut().filter(|it| !plain(it)).for_each(|address| address.is_tls = true);
    }
    (!addresses.is_empty()).then_some(AddressedSite { site, addresses, place, binds, tls })
}

/// Listeners, certificates and redirects to HTTPS.
pub(super) fn listen(
    runner: &mut Runner<'_>,
    sites: &[AddressedSite],
    options: &Options,
    plan: &mut Plan,
) -> Vec<Decision> {
    let mut listeners: BTreeMap<(u16, String), bool> = BTreeMap::new();
    let mut redirected: Vec<String> = Vec::new();
    let mut is_automatic = false;
    for known in sites {
        let binds = if known.binds.is_empty() { vec![String::new()] } else { known.binds.clone() };
        for address in &known.addresses {
            for bind in &binds {
                let bind =
                    if bind == "0.0.0.0" || bind == "::" { "" } else { bind.trim_start_matches("tcp/") };
                *listeners.entry((address.port, bind.to_owned())).or_insert(false) |= address.is_tls;
                let has_plain = sites.iter().flat_map(|known| &known.addresses).any(|other| {
                    !other.is_tls && other.port == options.http_port && other.host == address.host
                });
                let redirects = address.is_tls
                    && !address.host.is_empty()
                    && !options.has_no_redirects
                    && address.port == options.https_port
                    && !has_plain;
                if redirects {
                    listeners.entry((options.http_port, bind.to_owned())).or_insert(false);
                    redirected.push(address.host.clone());
                }
            }
        }
        is_automatic |= certificates(runner, known, options, plan);
    }
    for ((port, bind), is_tls) in &listeners {
        let host =
            if bind.contains(':') && !bind.starts_with('[') { format!("[{bind}]") } else { bind.clone() };
        let mut fields = Map::new();
        if *is_tls {
            let tls = if is_automatic { json!({"auto": true}) } else { json!(true) };
            fields.insert("tls".to_owned(), tls);
        }
        plan.listeners.push(Listener { address: format!("{host}:{port}"), port: *port, fields });
    }
    if is_automatic {
        let mut acme = json!({"terms_agreed": true});
        if let Some(email) = &options.email {
            acme["email"] = email.clone().into();
        }
        if let Some(directory) = &options.directory {
            acme["directory"] = directory.clone().into();
        }
        plan.settings.insert("acme".to_owned(), acme);
    }
    redirected.dedup();
    match redirected.is_empty() {
        true => Vec::new(),
        false => {
            let suffix =
                if options.https_port == 443 { String::new() } else { format!(":{}", options.https_port) };
            let to = format!("https://$host{suffix}$request_uri");
            let target = Target::Redirect { status: 308, to };
            let mut decision = Decision::new(sites[0].place, "https-redirect", target);
            decision.ports = vec![options.http_port];
            decision.hosts = redirected.iter().map(|name| host(name)).collect();
            vec![decision]
        }
    }
}

fn host(name: &str) -> Host {
    match name.contains('*') {
        true => Host::Regex(format!("^{}$", glob(name, true))),
        false => Host::Exact(name.to_owned()),
    }
}

/// The certificates of a site; returns whether they are ordered.
fn certificates(runner: &mut Runner<'_>, known: &AddressedSite, options: &Options, plan: &mut Plan) -> bool {
    let names: Vec<String> = known
        .addresses
        .iter()
        .filter(|it| it.is_tls && !it.host.is_empty())
        .map(|it| it.host.clone())
        .collect();
    let has_tls = known.addresses.iter().any(|address| address.is_tls);
    let Some(line) = known.tls.as_ref().filter(|_| has_tls) else {
        if !names.is_empty() && options.is_internal {
            runner.remarks.gap(known.place, "Name a certificate of your own authority in `ssls`.");
            return false;
        }
        return !names.is_empty();
    };
    let place = line.place();
    let mut fields = Map::new();
    for option in line.lines() {
        match option.name() {
            "client_auth" => match client(runner, option) {
                Ok(client) => {
                    fields.insert("client".to_owned(), client);
                }
                Err(reason) => {
                    runner.remarks.closed(option.place(), format!("{reason} Its routes are closed."))
                }
            },
            "protocols" => {
                let protocols: Vec<&str> = match option.arg(0) {
                    Some("tls1.3") => vec!["TLSv1.3"],
                    _ if option.arg(1) == Some("tls1.2") => vec!["TLSv1.2"],
                    _ => vec!["TLSv1.2", "TLSv1.3"],
                };
                fields.insert("ssl_protocols".to_owned(), json!(protocols));
            }
            "ciphers" | "curves" | "alpn" => {
                runner.remarks.differs(option.place(), "Sigma's own list applies: set it at the listener.");
            }
            "on_demand" => runner.remarks.gap(option.place(), "Use `acme.on_demand`."),
            _ => runner.remarks.gap(option.place(), "See `acme` for how certificates are ordered."),
        }
    }
    let args = line.args();
    match args.as_slice() {
        [cert, key] => {
            let names = if names.is_empty() { vec!["*".to_owned()] } else { names };
            let (cert_file, key_file) = (cert.clone(), key.clone());
            plan.certificates.push(Certificate { names, cert_file, key_file, fields });
            false
        }
        [word] if word == "internal" => {
            runner.remarks.gap(place, "Name a certificate of your own authority in `ssls`.");
            false
        }
        _ => {
            if fields.contains_key("client") {
                let text = "Client certificates need an ssl with files; the routes of this site are closed.";
                runner.remarks.closed(place, text);
            }
            !names.is_empty()
        }
    }
}

/// The client certificates of a site.
fn client(runner: &Runner<'_>, option: &Line) -> Result<Value, String> {
    let mut authorities = String::new();
    let mut mode = "require_and_verify";
    for line in option.lines() {
        match line.name() {
            "mode" => mode = line.arg(0).unwrap_or(mode),
            "trusted_ca_cert_file" | "trust_pool" => {
                let block = line.lines().iter().flat_map(|line| line.args());
                let files = line.args().into_iter().filter(|arg| arg != "file").chain(block);
                for file in files {
                    let text = runner
                        .access
                        .read(&file)
                        .map_err(|reason| format!("`{file}` cannot be read: {reason}."))?;
                    authorities.push_str(&text);
                }
            }
            other => return Err(format!("`{other}` of client_auth is not converted.")),
        }
    }
    match (mode, authorities.is_empty()) {
        ("require_and_verify", false) => Ok(json!({"ca": authorities})),
        (_, true) => Err("The authorities of client certificates are unknown.".to_owned()),
        (mode, _) => {
            Err(format!("Sigma either requires client certificates or ignores them; `{mode}` is neither."))
        }
    }
}

/// Whether a site demands client certificates that could not be converted.
fn is_closed(known: &AddressedSite, plan: &Plan) -> bool {
    let asks =
        known.tls.as_ref().is_some_and(|line| line.lines().iter().any(|line| line.name() == "client_auth"));
    let names =
        |certificate: &Certificate| known.addresses.iter().any(|it| certificate.names.contains(&it.host));
    asks && !plan.certificates.iter().any(|it| it.fields.contains_key("client") && names(it))
}

/// The decisions of a site.
pub(super) fn decisions(
    runner: &mut Runner<'_>,
    known: &AddressedSite,
    plan: &Plan,
    probes: &mut Vec<Probe>,
) -> Vec<Decision> {
    let mut out = Vec::new();
    let named = matchers(runner, &known.site.lines);
    let mut internal = Vec::new();
    let pages = error_pages(runner, known, &named, &mut internal);
    // Addresses of one port share decisions.
    let mut groups: Vec<(u16, String, Vec<&Address>)> = Vec::new();
    for address in &known.addresses {
        match groups.iter_mut().find(|(port, path, _)| *port == address.port && *path == address.path) {
            Some((_, _, list)) => list.push(address),
            None => groups.push((address.port, address.path.clone(), vec![address])),
        }
    }
    for (port, path, addresses) in groups {
        let name = addresses[0].host.clone();
        let mut decision = Decision::new(
            known.place,
            if name.is_empty() { format!("port-{port}") } else { name },
            Target::Drop,
        );
        decision.ports = vec![port];
        if addresses.iter().all(|address| !address.host.is_empty()) {
            decision.hosts = addresses.iter().map(|address| host(&address.host)).collect();
        }
        if !path.is_empty() && path != "/*" && path != "/" {
            let pattern = format!("^{}", regex::escape(path.trim_end_matches('*')));
            decision.paths = vec![Path::Regex { pattern, ignore_case: true }];
        }
        for_site(known, port, probes);
        let mut branch = Branch::new(decision);
        if is_closed(known, plan) {
            branch = branch.close("client certificates");
        }
        let mut finished = Vec::new();
        for branch in runner.run(&known.site.lines, &named, vec![branch], true) {
            let empty = Target::Respond { status: 200, body: Some(String::new()), headers: Vec::new() };
            let branch = if branch.is_finished { branch } else { branch.finish(empty) };
            let (tested, after, root) =
                (branch.files.tested.clone(), branch.files.after_test, branch.files.root.clone());
            finished.push(existing::Finished { tested, after, root, decision: branch.complete() });
        }
        for mut decision in existing::join(finished, runner.remarks) {
            if !pages.is_empty() && is_covered(&decision) {
                add_pages(&mut decision, &pages);
            }
            without_empty_body(&mut decision);
            out.push(decision);
        }
    }
    internal.extend(out);
    internal
}

/// An empty text would have a type; Caddy's empty responses have no such field.
fn without_empty_body(decision: &mut Decision) {
    if let Target::Respond { body, .. } = &mut decision.target
        && body.as_deref() == Some("")
    {
        *body = None;
    }
}

/// Adds the pages of a site after the pages of a proxy.
fn add_pages(decision: &mut Decision, pages: &[Value]) {
    let plugin = decision.plugins.entry("error-page".to_owned()).or_insert_with(|| json!({"pages": []}));
    if let Some(list) = plugin.get_mut("pages").and_then(Value::as_array_mut) {
        list.extend(pages.iter().cloned());
    }
}

/// Whether errors of a decision go to the error pages: responses of a line itself do not.
fn is_covered(decision: &Decision) -> bool {
    match &decision.target {
        Target::Respond { body, .. } => body.is_none(),
        Target::Redirect { .. } | Target::Drop | Target::Closed(_) => false,
        Target::Upstream(_) | Target::Files(_) => true,
    }
}

fn matchers(runner: &mut Runner<'_>, lines: &[Line]) -> Named {
    let mut named = Named::new();
    for line in lines.iter().filter(|line| line.name().starts_with('@')) {
        // A matcher that cannot be read has its remark when the lines run.
        let _ = matcher::define(line, &mut named, &mut runner.variables);
    }
    named
}

/// The pages of `handle_errors`, and the internal routes that serve them.
fn error_pages(
    runner: &mut Runner<'_>,
    known: &AddressedSite,
    named: &Named,
    internal: &mut Vec<Decision>,
) -> Vec<Value> {
    let mut pages = Vec::new();
    for line in known.site.lines.iter().filter(|line| line.name() == "handle_errors") {
        let listed: Vec<Value> = line.args().iter().map(|arg| status_word(arg)).collect();
        let mut decision = Decision::new(line.place(), "errors", Target::Drop);
        decision.ports = Vec::new();
        let mut branch = Branch::new(decision);
        branch.files.root = known.site.lines.iter().find(|line| line.name() == "root").and_then(|line| {
            line.args().last().filter(|path| path.starts_with('/') && !path.contains('{')).cloned()
        });
        let branches = runner.run(line.lines(), named, vec![branch], true);
        for branch in branches {
            let statuses = match (statuses(&branch.decision.conditions), listed.is_empty()) {
                (Some(found), true) if found.is_empty() => vec!["4xx".into(), "5xx".into()],
                (Some(found), true) => found,
                (Some(found), false) if found.is_empty() => listed.clone(),
                (Some(found), false) => found,
                (None, _) => {
                    runner
                        .remarks
                        .gap(line.place(), "Error pages depend on the status only: use `error-page`.");
                    continue;
                }
            };
            page(runner, line, known, branch, statuses, &mut pages, internal);
        }
    }
    pages
}

fn status_word(text: &str) -> Value {
    match text.parse::<u16>() {
        Ok(status) => status.into(),
        Err(_) => text.to_ascii_lowercase().into(),
    }
}

/// The statuses that conditions on `status` name; None for other conditions.
fn statuses(conditions: &[Value]) -> Option<Vec<Value>> {
    let mut found = Vec::new();
    for condition in conditions {
        let parts = condition.as_array()?;
        if parts.first().and_then(Value::as_str) != Some("status") {
            return None;
        }
        let operator = parts.get(1).and_then(Value::as_str)?;
        let value = parts.get(2)?;
        let number =
            |value: &Value| value.as_str().and_then(|text| text.parse::<u16>().ok()).map(Value::from);
        match (operator, value) {
            ("==", value) => found.push(number(value)?),
            ("in", Value::Array(list)) => found.extend(list.iter().filter_map(number)),
            (">=", value) if value.as_str() == Some("500") => found.push("5xx".into()),
            (">=", value) if value.as_str() == Some("400") => found.extend(["4xx".into(), "5xx".into()]),
            ("<", value) if value.as_str() == Some("500") => found.retain(|it| it != "5xx"),
            _ => return None,
        }
    }
    Some(found)
}

fn page(
    runner: &mut Runner<'_>,
    line: &Line,
    known: &AddressedSite,
    branch: Branch,
    statuses: Vec<Value>,
    pages: &mut Vec<Value>,
    internal: &mut Vec<Decision>,
) {
    match &branch.decision.target {
        Target::Respond { status, body: Some(text), .. } if branch.is_finished => {
            let mut page = json!({"status": statuses, "text": text});
            if *status != 200 {
                page["response_status"] = (*status).into();
            }
            let set = branch.response.iter().filter_map(|(name, change)| match change {
                super::state::Change::Set(value) | super::state::Change::Add(value) => {
                    Some((name.clone(), Value::from(value.as_str())))
                }
                super::state::Change::Remove => None,
            });
            let headers: serde_json::Map<String, Value> = set.collect();
            if !headers.is_empty() {
                page["headers"] = Value::Object(headers);
            }
            pages.push(page);
        }
        Target::Files(_) | Target::Upstream(_) if branch.is_finished => {
            let name = known.addresses[0].host.clone();
            let path = format!(
                "/.caddy-errors/{}-{}",
                super::super::build::id(&format!("{name}-{}", known.place.line)),
                internal.len() + 1
            );
            let uri = match &branch.target.rewrite {
                super::rewriting::Rewrite::Fixed(text) | super::rewriting::Rewrite::Template(text) => {
                    text.clone()
                }
                _ => "$uri".to_owned(),
            };
            let mut decision = branch.complete();
            decision.conditions.clear();
            decision.paths = vec![Path::Prefix(format!("{path}/"))];
            decision.fields.insert("internal".to_owned(), true.into());
            if let Target::Files(files) = &mut decision.target {
                files.remove("try");
                files.insert("prefix".to_owned(), path.clone().into());
            }
            pages.push(json!({"status": statuses, "uri": format!("{path}{uri}")}));
            internal.push(decision);
        }
        _ => runner.remarks.gap(line.place(), "This error page sends no response: use `error-page`."),
    }
}

/// Requests that fit a site, and some that just miss it.
fn for_site(known: &AddressedSite, port: u16, probes: &mut Vec<Probe>) {
    let host = known.addresses[0].host.replace('*', "a");
    let host = if host.is_empty() { "localhost".to_owned() } else { host };
    let mut targets = vec!["/".to_owned(), "/a/b?c=d".to_owned(), "/A".to_owned()];
    collect(&known.site.lines, &mut targets, 0);
    targets.truncate(200);
    for target in targets {
        probes.push(Probe { port, ..Probe::get(format!("{host}: {target}"), &host, target.clone()) });
    }
    for other in [host.to_uppercase(), format!("not-{host}"), format!("a.{host}")] {
        probes.push(Probe { port, ..Probe::get(format!("host {other}"), other.clone(), "/") });
    }
}

/// Collects targets at the borders of the paths that lines name.
fn collect(lines: &[Line], targets: &mut Vec<String>, depth: usize) {
    for line in lines.iter().filter(|_| depth < 8) {
        for word in
            line.words.iter().skip(1).filter(|word| word.text.starts_with('/') && !word.text.contains('{'))
        {
            let base = word.text.trim_end_matches('*').trim_end_matches('/');
            if !base.is_empty() && !base.contains('*') {
                targets.extend(borders(base));
            }
        }
        collect(line.lines(), targets, depth + 1);
    }
}

/// Sorts sites: the longest host first, names before wildcards.
pub(super) fn sort(sites: &mut [AddressedSite]) {
    sites.sort_by_key(|known| {
        let host = known
            .addresses
            .iter()
            .map(|address| address.host.as_str())
            .max_by_key(|host| host.len())
            .unwrap_or("");
        let path = known.addresses.iter().map(|address| address.path.len()).max().unwrap_or(0);
        (host.is_empty(), host.contains('*'), std::cmp::Reverse(host.len()), std::cmp::Reverse(path))
    });
}

/// Requests that match no site: 200 without a body.
pub(super) fn rest(sites: &[AddressedSite]) -> Vec<Decision> {
    let mut ports: Vec<u16> =
        sites.iter().flat_map(|known| known.addresses.iter().map(|address| address.port)).collect();
    ports.sort_unstable();
    ports.dedup();
    let open = |port: &u16| {
        !sites
            .iter()
            .flat_map(|known| &known.addresses)
            .any(|it| it.port == *port && it.host.is_empty() && it.path.is_empty())
    };
    let ports: Vec<u16> = ports.into_iter().filter(open).collect();
    let Some(first) = sites.first().filter(|_| !ports.is_empty()) else { return Vec::new() };
    let target = Target::Respond { status: 200, body: None, headers: Vec::new() };
    let mut decision = Decision::new(first.place, "no-site", target);
    decision.ports = ports;
    vec![decision]
}
