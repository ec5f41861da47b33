//! Guards of access: addresses, passwords, questions to a service, limits.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::report::Verdict;
use super::addresses::Addresses;
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::state::State;
use super::{table, texts};

/// Directives that guard access.
pub(super) const GUARDS: &[&str] = &[
    "allow",
    "deny",
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "limit_req",
    "limit_conn",
    "satisfy",
    "limit_except",
    "secure_link",
    "access_by_lua_block",
    "access_by_lua_file",
    "rewrite_by_lua_block",
    "rewrite_by_lua_file",
    "access_by_lua",
    "auth_digest",
    "auth_pam",
    "auth_ldap",
    "modsecurity",
    "auth_gss",
];

/// Guards without a counterpart: their routes are closed.
const CLOSED: &[&str] = &[
    "auth_jwt",
    "secure_link",
    "secure_link_secret",
    "access_by_lua_block",
    "access_by_lua_file",
    "rewrite_by_lua_block",
    "rewrite_by_lua_file",
    "access_by_lua",
    "auth_digest",
    "auth_pam",
    "auth_ldap",
    "auth_gss",
    "auth_spnego",
    "js_access",
    "perl_access",
    "modsecurity",
];

/// Parts of the names of directives of unknown modules that guard access.
const GUARDING: &[&str] = &[
    "auth",
    "access",
    "jwt",
    "oidc",
    "openid",
    "saml",
    "waf",
    "naxsi",
    "secrules",
    "testcookie",
    "captcha",
    "deny",
    "acl",
    "firewall",
    "protect",
];

/// Ends of the names of directives that only configure a guard.
const CONFIGURING: &[&str] =
    &["_file", "_zone", "_log", "_path", "_timeout", "_size", "_level", "_delay", "_cache"];

/// Returns true if a directive without a conversion guards access, by its name.
fn guards_by_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    !table::is_known(name)
        && GUARDING.iter().any(|part| lower.contains(part))
        && !CONFIGURING.iter().any(|end| lower.ends_with(end))
}

/// The guards of a location, or the reason for which it is closed.
#[derive(Default)]
pub(super) struct Guarded {
    pub(super) plugins: Map<String, Value>,
    pub(super) closed: Option<String>,
    /// Whether no address is allowed.
    pub(super) refuses_all: bool,
    /// Fields that only a service of authorization may set.
    pub(super) service_fields: Vec<String>,
    /// Networks whose clients need no service of authorization.
    pub(super) exempt: Vec<String>,
}

impl Guarded {
    /// Returns the guards without the logins.
    pub(super) fn without_logins(&self) -> Guarded {
        let logins = ["basic-auth", "forward-auth"];
        let is_kept = |name: &&String| !logins.contains(&name.as_str());
        let kept = self.plugins.iter().filter(|(name, _)| is_kept(name));
        Guarded {
            plugins: kept.map(|(name, plugin)| (name.clone(), plugin.clone())).collect(),
            closed: self.closed.clone(),
            ..Guarded::default()
        }
    }
}

/// Fields that `forward-auth` adds to the call, and nginx does not. An empty text removes one.
const OWN_FIELDS: [&str; 3] = ["X-Forwarded-Method", "X-Forwarded-Normal-Path", "X-Forwarded-Uri"];

impl<'a> Converter<'a> {
    /// Returns the guards of a level.
    pub(super) fn guards(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Guarded {
        let mut guarded = Guarded::default();
        for name in CLOSED {
            let Some(directive) = level.last(name).filter(|directive| directive.arg(0) != "off") else {
                continue;
            };
            self.guard(directive, Verdict::NotPossible, "it has no counterpart; its routes are closed");
            guarded.closed = Some(directive.source());
        }
        for directive in level.all_names().into_iter().filter(|name| guards_by_name(name)) {
            let Some(directive) = level.last(directive).filter(|directive| directive.arg(0) != "off") else {
                continue;
            };
            let text = "this directive is unknown and may guard access; its routes are closed";
            self.guard(directive, Verdict::NotPossible, text);
            guarded.closed = Some(directive.source());
        }
        let addresses = self.addresses(level, &mut guarded);
        self.passwords(level, &mut guarded);
        self.service(level, state, &mut guarded);
        self.combine(level, addresses, &mut guarded);
        self.rates(level, state, &mut guarded);
        self.connections(level, state, &mut guarded);
        guarded
    }

    fn addresses(&mut self, level: &Rc<Level<'a>>, guarded: &mut Guarded) -> Option<Addresses> {
        let rules = level.all(&["allow", "deny"]);
        if rules.is_empty() {
            return None;
        }
        let mut addresses = Addresses::default();
        for rule in rules {
            if rule.arg(0) == "unix:" {
                self.remark(
                    rule,
                    Verdict::Differs,
                    "A client on a Unix socket has no address and matches no list.",
                );
            } else if !addresses.add(rule.name == "allow", rule.arg(0)) {
                self.guard(rule, Verdict::NotPossible, "the address is invalid; the routes are closed");
                guarded.closed = Some(rule.source());
            }
        }
        Some(addresses)
    }

    /// `auth_basic` with its file.
    fn passwords(&mut self, level: &Rc<Level<'a>>, guarded: &mut Guarded) {
        let Some(realm) = level.last("auth_basic").filter(|directive| directive.arg(0) != "off") else {
            return;
        };
        if realm.arg(0).contains('$') {
            self.guard(
                realm,
                Verdict::NotPossible,
                "a realm with variables is not possible; the routes are closed",
            );
            guarded.closed = Some(realm.source());
            return;
        }
        let Some(file) = level.last("auth_basic_user_file").filter(|file| !file.arg(0).contains('$')) else {
            self.guard(
                realm,
                Verdict::NotPossible,
                "the file of users is not a fixed path; the routes are closed",
            );
            guarded.closed = Some(realm.source());
            return;
        };
        let path = self.resolved(file.arg(0));
        let mut plugin = json!({"realm": realm.arg(0)});
        match self.access.read(&path).map(|text| self.users(file, &text)) {
            Ok(Some(users)) => plugin["users"] = json!(users),
            Ok(None) => plugin["auth_file"] = path.into(),
            Err(error) => {
                let text =
                    format!("The file cannot be read here ({error}): Sigma does not start without it.");
                self.remark(file, Verdict::Differs, text);
                plugin["auth_file"] = path.into();
            }
        }
        guarded.plugins.insert("basic-auth".to_owned(), plugin);
    }

    /// Returns the users of a file with entries that the gateway does not read itself; None: it can read the file.
    fn users(&mut self, file: &Directive, text: &str) -> Option<Vec<String>> {
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let hash = |line: &str| {
            line.split_once(':').map(|(_, rest)| rest.split(':').next().unwrap_or("").to_owned())
        };
        let is_known = |hash: &str| {
            ["$apr1$", "$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "{SHA}", "{SSHA}"]
                .iter()
                .any(|start| hash.starts_with(start))
        };
        if lines().all(|line| hash(line).is_some_and(|hash| is_known(&hash))) {
            return None;
        }
        let mut users = Vec::new();
        let mut left_out = Vec::new();
        for line in lines() {
            let Some((name, _)) = line.split_once(':') else { continue };
            let Some(hash) = hash(line) else { continue };
            match hash.strip_prefix("{PLAIN}") {
                _ if is_known(&hash) => users.push(format!("{name}:{hash}")),
                Some(password) => users.push(format!("{name}:{}", super::hashes::salted(name, password))),
                None => left_out.push(name.to_owned()),
            }
        }
        let text =
            "Its users are copied with hashes of their plain passwords: changes of the file have no effect.";
        self.remark(file, Verdict::Differs, text);
        if !left_out.is_empty() {
            let text = format!("users with a hash of `crypt` cannot log in: {}", left_out.join(", "));
            self.remark(file, Verdict::Differs, text);
        }
        Some(users)
    }

    /// `satisfy any` and `all`.
    fn combine(&mut self, level: &Rc<Level<'a>>, addresses: Option<Addresses>, guarded: &mut Guarded) {
        let is_any = level.text("satisfy") == Some("any");
        let has_both = ["basic-auth", "forward-auth"].iter().all(|name| guarded.plugins.contains_key(*name));
        if is_any && has_both {
            if let Some(directive) = level.last("satisfy") {
                let text = "one of two logins is not possible; the routes are closed";
                self.guard(directive, Verdict::NotPossible, text);
                guarded.closed = Some("satisfy any with two logins".to_owned());
            }
            return;
        }
        let Some(addresses) = addresses else { return };
        let logins: Vec<String> = guarded
            .plugins
            .keys()
            .filter(|name| matches!(name.as_str(), "basic-auth" | "forward-auth"))
            .cloned()
            .collect();
        if is_any && !logins.is_empty() {
            if guarded.plugins.contains_key("forward-auth") {
                guarded.exempt = addresses.allowed();
                return;
            }
            if let Some(plugin) = guarded.plugins.get_mut("basic-auth") {
                plugin["exempt_addresses"] = json!(addresses.allowed());
            }
            return;
        }
        guarded.refuses_all = addresses.allowed().is_empty();
        if let Some(plugin) = addresses.plugin() {
            guarded.plugins.insert("ip-restriction".to_owned(), plugin);
        }
    }

    /// `auth_request`: the location that it names is a call of a service.
    fn service(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, guarded: &mut Guarded) {
        let Some(directive) = level.last("auth_request").filter(|directive| directive.arg(0) != "off") else {
            return;
        };
        match self.service_call(directive, level, state) {
            Ok((plugin, fields)) => {
                guarded.plugins.insert("forward-auth".to_owned(), plugin);
                guarded.service_fields = fields;
            }
            Err(reason) => {
                self.guard(directive, Verdict::NotPossible, format!("{reason}; the routes are closed"));
                guarded.closed = Some(directive.source());
            }
        }
    }

    fn service_call(
        &mut self,
        directive: &Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
    ) -> Result<(Value, Vec<String>), String> {
        let path = directive.arg(0).split('?').next().unwrap_or_default();
        let server = Rc::clone(&state.server);
        let entry = server.entries.iter().find(|entry| match &entry.kind {
            super::locations::Kind::Exact(text) => text == path,
            super::locations::Kind::Prefix(text) => path.starts_with(text.as_str()) && text != "/",
            _ => false,
        });
        let entry = entry.ok_or("the service has no location of its own")?;
        let pass =
            entry.level.handler(&["proxy_pass"]).ok_or("the location of the service has no proxy_pass")?;
        let mut inner = state.clone();
        for set in entry.level.own_all(&["set"]) {
            let text = self.text(set, set.arg(1), &inner, &entry.level);
            inner.variables.sets.insert(set.arg(0).trim_start_matches('$').to_owned(), text);
        }
        let mut uri = self.text(pass, pass.arg(0), &inner, &entry.level);
        if uri.contains('$') {
            return Err("the address of the service has variables".to_owned());
        }
        let rest = uri.split_once("://").map_or("", |(_, rest)| rest).to_owned();
        let authority = rest.split('/').next().unwrap_or_default().to_owned();
        if let Some(group) = self.blocks.groups.get(&authority) {
            let node = group.first_node().ok_or("its upstream has no node")?;
            uri = uri.replacen(&authority, &node, 1);
        }
        if !rest.contains('/') {
            uri.push_str(path);
        }
        let mut extra = self.service_headers(&entry.level, &inner);
        let answers: Vec<&Directive> = level.all(&["auth_request_set"]);
        let fields: Vec<String> = answers
            .iter()
            .filter_map(|answer| answer.arg(1).strip_prefix("$upstream_http_"))
            .map(field_name)
            .collect();
        let mut plugin = json!({
            "uri": uri,
            "request_headers": ["*"],
            "client_headers": ["WWW-Authenticate"],
            "status_on_error": 500,
        });
        let host = entry
            .level
            .all(&["proxy_set_header"])
            .into_iter()
            .find(|line| line.arg(0).eq_ignore_ascii_case("host"));
        if let Some(host) = host.filter(|host| host.arg(1) != "$proxy_host") {
            plugin["host"] = self.text(host, host.arg(1), &inner, &entry.level).into();
        }
        for name in OWN_FIELDS {
            if !extra.keys().any(|known| known.eq_ignore_ascii_case(name)) {
                extra.insert(name.to_owned(), "".into());
            }
        }
        plugin["extra_headers"] = Value::Object(extra);
        if !fields.is_empty() {
            plugin["upstream_headers"] = json!(fields);
        }
        if uri.starts_with("https://") && !entry.level.is_on("proxy_ssl_verify") {
            plugin["ssl_verify"] = false.into();
        }
        Ok((plugin, fields))
    }

    /// The fields that the location of a service sets.
    fn service_headers(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Map<String, Value> {
        let mut extra = Map::new();
        for directive in level.all(&["proxy_set_header"]) {
            let (name, value) = (directive.arg(0), directive.arg(1));
            let lower = name.to_ascii_lowercase();
            if !matches!(lower.as_str(), "connection" | "content-length" | "host" | "transfer-encoding") {
                let text = self.text(directive, value, state, level);
                extra.insert(name.to_owned(), text.into());
            }
        }
        extra
    }

    fn rates(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, guarded: &mut Guarded) {
        let limits = level.all(&["limit_req"]);
        for (at, limit) in limits.iter().enumerate() {
            if at > 0 {
                let text = "a second limit on one location is not possible; the routes are closed";
                self.guard(limit, Verdict::NotPossible, text);
                guarded.closed = Some(limit.source());
                return;
            }
            match self.rate(limit, level, state) {
                Ok(plugin) => _ = guarded.plugins.insert("limit-req".to_owned(), plugin),
                Err(reason) => {
                    self.guard(limit, Verdict::NotPossible, format!("{reason}; the routes are closed"));
                    guarded.closed = Some(limit.source());
                }
            }
        }
    }

    fn rate(&mut self, limit: &Directive, level: &Rc<Level<'a>>, state: &State<'a>) -> Result<Value, String> {
        let zone = option(limit, "zone").ok_or("it names no zone")?.to_owned();
        let definition = *self.blocks.zones.get(&zone).ok_or("its zone is not defined")?;
        let rate = option(definition, "rate").ok_or("its zone has no rate")?;
        let per_second = rate
            .strip_suffix("r/s")
            .and_then(|number| number.parse::<f64>().ok())
            .or_else(|| {
                rate.strip_suffix("r/m").and_then(|number| number.parse::<f64>().ok()).map(|rate| rate / 60.0)
            })
            .filter(|rate| *rate > 0.0)
            .ok_or("its rate is invalid")?;
        let burst: u64 =
            option(limit, "burst").unwrap_or("0").parse().map_err(|_| "its burst is not a number")?;
        self.check_key(definition, state, level)?;
        let status: u16 = level.text("limit_req_status").unwrap_or("503").parse().unwrap_or(503);
        let mut plugin = json!({"rate": per_second, "burst": burst, "rejected_code": status, "zone": zone});
        self.keyed(definition, state, level, &mut plugin);
        if limit.args.iter().any(|arg| arg == "nodelay") {
            plugin["nodelay"] = true.into();
        }
        if let Some(delay) = option(limit, "delay").filter(|delay| *delay != "0") {
            self.remark(
                limit,
                Verdict::Differs,
                format!("The first {delay} requests over the rate are delayed too."),
            );
        }
        if level.is_on("limit_req_dry_run") {
            plugin["dry_run"] = true.into();
        }
        Ok(plugin)
    }

    /// Checks that the key of a zone is known: an empty key limits no client.
    fn check_key(
        &mut self,
        definition: &Directive,
        state: &State<'a>,
        level: &Rc<Level<'a>>,
    ) -> Result<(), String> {
        match texts::doubtful(&mut self.variables, definition.arg(0), state, level) {
            Some(name) => Err(format!("the variable ${name} of its zone has no counterpart")),
            None => Ok(()),
        }
    }

    /// The key of a zone; requests with an empty key are not counted.
    fn keyed(
        &mut self,
        definition: &Directive,
        state: &State<'a>,
        level: &Rc<Level<'a>>,
        plugin: &mut Value,
    ) {
        let key = self.text(definition, definition.arg(0), state, level);
        if key == "${binary_remote_addr}" || key == "${remote_addr}" {
            plugin["key"] = "remote_addr".into();
            return;
        }
        plugin["key"] = key.clone().into();
        plugin["key_type"] = "var_combination".into();
        let is_never_empty =
            ["${server_name}", "${host}", "${remote_addr}", "${uri}"].iter().any(|it| key.contains(it));
        if !is_never_empty && key.contains('$') {
            let name = self.variables.name_of(&key);
            plugin["_meta"] = json!({"filter": [[name, "~~", "."]]});
        }
    }

    fn connections(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, guarded: &mut Guarded) {
        let limits = level.all(&["limit_conn"]);
        let Some(limit) = limits.first() else { return };
        if limits.len() > 1 {
            let text = "a second limit of connections on one location is not possible; the routes are closed";
            self.guard(limits[1], Verdict::NotPossible, text);
            guarded.closed = Some(limits[1].source());
            return;
        }
        let definition = self.blocks.zones.get(limit.arg(0)).copied();
        let number = limit.arg(1).parse::<u64>().ok().filter(|number| *number > 0);
        let (Some(definition), Some(number)) = (definition, number) else {
            self.guard(limit, Verdict::NotPossible, "its zone or number is invalid; the routes are closed");
            guarded.closed = Some(limit.source());
            return;
        };
        if let Err(reason) = self.check_key(definition, state, level) {
            self.guard(limit, Verdict::NotPossible, format!("{reason}; the routes are closed"));
            guarded.closed = Some(limit.source());
            return;
        }
        let status: u16 = level.text("limit_conn_status").unwrap_or("503").parse().unwrap_or(503);
        let mut plugin = json!({
            "conn": number, "burst": 0, "default_conn_delay": 0.1, "rejected_code": status, "zone": limit.arg(0),
        });
        self.keyed(definition, state, level, &mut plugin);
        if level.is_on("limit_conn_dry_run") {
            plugin["dry_run"] = true.into();
        }
        guarded.plugins.insert("limit-conn".to_owned(), plugin);
    }

    /// Returns a path relative to the folder of the main file.
    pub(super) fn resolved(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{}{path}", self.base) }
    }
}

impl<'a> Converter<'a> {
    /// A test of a file that is no `try_files`. A file that an operator writes for a time is no guard of access.
    pub(super) fn file_test(
        &mut self,
        directive: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
    ) {
        let words = super::conditions::words(directive);
        let is_fixed = words.get(1).is_some_and(|path| {
            let path = path.trim_start_matches("$document_root").trim_start_matches("$realpath_root");
            !path.is_empty() && !path.contains('$')
        });
        let mut children = directive.children().iter();
        if is_fixed && children.all(|child| child.name == "return" && child.arg(0).starts_with('5')) {
            let text = "the file is not looked for: for maintenance, put a route with `respond: { status: 503 }` \
                        before the others";
            return self.remark(directive, Verdict::NotPossible, text);
        }
        let reason = "file tests are supported only as `try_files`";
        self.unknown_condition(directive, reason, level, state);
    }

    /// A condition without a counterpart: where it refuses requests, all of them are refused.
    pub(super) fn unknown_condition(
        &mut self,
        directive: &'a Directive,
        reason: &str,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
    ) {
        let sets = directive.children().iter().filter(|child| child.name == "set");
        state.variables.doubtful.extend(sets.map(|set| set.arg(0).trim_start_matches('$').to_owned()));
        if refuses(directive) {
            let text = format!("{reason}; the routes after it are closed");
            self.guard(directive, Verdict::NotPossible, text);
            let target = Target::Closed(format!("{} {}", directive.source(), reason));
            self.emit(state, level, state.decision(directive.place, target));
        } else {
            self.remark(directive, Verdict::NotPossible, format!("{reason}; the block was not converted"));
        }
    }
}

/// Whether a block may refuse requests.
pub(super) fn refuses(directive: &Directive) -> bool {
    directive.children().iter().any(|child| {
        // A temporary redirect may lead to a login.
        let is_refusal =
            child.arg(0).starts_with(['4', '5']) || matches!(child.arg(0), "302" | "303" | "307");
        GUARDS.contains(&child.name.as_str()) || child.name == "return" && is_refusal
    })
}

/// Returns the value of an option `name=value`.
pub(super) fn option<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    directive.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
}

/// The name of a field of a variable such as `$http_x_user`.
pub(super) fn field_name(variable: &str) -> String {
    let words = variable.split('_').map(|word| {
        let mut chars = word.chars();
        let first = chars.next().map(|char| char.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    });
    words.collect::<Vec<_>>().join("-")
}
