//! `proxy_pass`, `grpc_pass` and `fastcgi_pass`.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::report::Verdict;
use super::access::Guarded;
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::state::State;
use super::texts;
use super::upstreams::UpstreamSpec;

/// The parts of a target.
struct Split<'t> {
    scheme: &'t str,
    authority: &'t str,
    path: Option<&'t str>,
}

impl<'a> Converter<'a> {
    /// `proxy_pass` and `grpc_pass`.
    pub(super) fn proxy(
        &mut self,
        handler: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        guarded: Guarded,
        files: Option<Map<String, Value>>,
    ) {
        let is_grpc = handler.name == "grpc_pass";
        let mut target = self.text(handler, handler.arg(0), state, level);
        if is_grpc && !target.contains("://") {
            target = format!("grpc://{target}");
        }
        let has_variables = handler.arg(0).contains('$');
        let parts = split(&target);
        let Some(parts) = parts else {
            return self.unknown_target(handler, level, state);
        };
        if parts.authority.contains('$') || parts.scheme.contains('$') {
            let whole = format!("{}://{}", parts.scheme, parts.authority);
            let path = parts.path.map(str::to_owned);
            return self.by_variable(Variable { whole, path, handler, files }, level, state, guarded);
        }
        let path = parts.path.map(str::to_owned);
        let fixed = format!("{}://{}", parts.scheme, parts.authority);
        self.fixed_target(Fixed { fixed, path, handler, files, has_variables }, level, state, guarded);
    }

    /// A target whose scheme and authority are known.
    fn fixed_target(&mut self, fixed: Fixed<'a>, level: &Rc<Level<'a>>, state: &State<'a>, guarded: Guarded) {
        let Fixed { fixed, path, handler, files, has_variables } = fixed;
        let Some(Split { scheme, authority, .. }) = split(&fixed) else { return };
        let family = if handler.name == "grpc_pass" { "grpc" } else { "proxy" };
        if let Some(reason) = self.lost_authority(level, scheme, family) {
            let decision = state.decision(handler.place, Target::Closed(reason));
            return self.emit(state, level, decision);
        }
        let id = self.upstream(UpstreamSpec { scheme, authority, family, fields: Map::new() }, level);
        let mut decision = state.decision(handler.place, Target::Upstream(id));
        decision.plugins = guarded.plugins;
        let (set, is_upgrade) = self.request_fields(level, state, family, authority);
        if is_upgrade {
            decision.fields.insert("enable_websocket".to_owned(), true.into());
        }
        let mut rewrite = self.target_path(path.as_deref(), has_variables, state);
        self.pass_lists(level, family, &mut rewrite);
        self.answers(level, &mut decision.plugins, &guarded.service_fields);
        self.request_body(level, state, family, &mut decision.plugins);
        self.copies(level, state, &mut decision.plugins);
        let headers = rewrite.entry("headers").or_insert_with(|| json!({}));
        headers["set"] = Value::Object(set);
        if let Some(method) = level.text(&format!("{family}_method")).filter(|method| !method.contains('$')) {
            rewrite.insert("method".to_owned(), method.to_ascii_uppercase().into());
        }
        decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        if let Some(files) = files {
            decision.plugins.insert("static-files".to_owned(), Value::Object(files));
        }
        if let Some(timeouts) = Self::timeouts(level, family) {
            decision.fields.insert("timeout".to_owned(), timeouts);
        }
        let mut hidden = hidden(level, family);
        if let Some(cache) = self.cache(level, state, family) {
            decision.fields.insert("cache".to_owned(), cache);
            hidden.push("Age".to_owned());
        }
        self.around(level, state, &mut decision, &hidden);
        self.default_redirect(handler, level, state, &mut decision.plugins);
        self.emit(state, level, decision);
    }

    /// Nodes are verified against authorities that cannot be read: the route is closed.
    fn lost_authority(&mut self, level: &Level<'a>, scheme: &str, family: &str) -> Option<String> {
        let file = level.last(&format!("{family}_ssl_trusted_certificate"))?;
        let is_verified = matches!(scheme, "https" | "grpcs") && level.is_on(&format!("{family}_ssl_verify"));
        let error = self.access.read(&self.resolved(file.arg(0))).err().filter(|_| is_verified)?;
        let text = format!("cannot read the file ({error}); the routes to these nodes are closed");
        self.guard(file, Verdict::NotPossible, text);
        Some(format!("{} cannot be read", file.arg(0)))
    }

    pub(super) fn unknown_target(&mut self, handler: &Directive, level: &Rc<Level<'a>>, state: &State<'a>) {
        let text = "the target is invalid; the route returns 503: write its upstream by hand";
        self.remark(handler, Verdict::NotPossible, text);
        let decision = state.decision(handler.place, Target::Closed(handler.source()));
        self.emit(state, level, decision);
    }

    /// A target that a `map` chooses: a decision for each value.
    fn by_variable(
        &mut self,
        variable: Variable<'a>,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        guarded: Guarded,
    ) {
        let Variable { whole, path, handler, files } = variable;
        let names: Vec<String> = texts::pieces(&whole)
            .into_iter()
            .filter_map(|piece| match piece {
                texts::Piece::Variable(name) => Some(name.to_owned()),
                texts::Piece::Text(_) => None,
            })
            .collect();
        let values = match names.as_slice() {
            [name] => name.strip_prefix("var_").and_then(|name| self.blocks.map_values.get(name).cloned()),
            _ => None,
        };
        let Some(values) = values else {
            let text = "the target depends on the request; the route returns 503: write an upstream for each target, with `vars`, or use service discovery";
            self.remark(handler, Verdict::NotPossible, text);
            let decision = state.decision(handler.place, Target::Closed(handler.source()));
            return self.emit(state, level, decision);
        };
        let name = &names[0];
        for value in values {
            let fixed = whole.replace(&format!("${{{name}}}"), &value);
            let mut inner = state.clone();
            inner.conditions.push(json!([name, "==", value]));
            if value.is_empty() || split(&fixed).is_none() {
                let target = Target::Respond { status: 500, body: None, headers: Vec::new() };
                let decision = inner.decision(handler.place, target);
                self.emit(&inner, level, decision);
                continue;
            }
            inner.location.text.push_str(&format!("-{value}"));
            let guarded = Guarded {
                plugins: guarded.plugins.clone(),
                service_fields: guarded.service_fields.clone(),
                ..Guarded::default()
            };
            self.fixed_target(
                Fixed { fixed, path: path.clone(), handler, files: files.clone(), has_variables: true },
                level,
                &inner,
                guarded,
            );
        }
    }

    /// The path that the node gets, as fields of proxy-rewrite.
    pub(super) fn target_path(
        &mut self,
        path: Option<&str>,
        has_variables: bool,
        state: &State<'a>,
    ) -> Map<String, Value> {
        let mut rewrite = Map::new();
        match (path, &state.rewritten.uri) {
            (Some(path), _) if has_variables => {
                let own = path.strip_suffix("${is_args}${args}").unwrap_or(path);
                if own != "${real_request_uri}" {
                    rewrite.insert("uri".to_owned(), path.into());
                    if own == path && !path.contains("${real_request_uri}") {
                        rewrite.insert("args".to_owned(), json!({"pass": []}));
                    }
                }
            }
            (path, Some(uri)) => {
                let (query, drops) = self.own_query(state);
                let uri = self.replaced_prefix(path, uri, state);
                rewrite.insert("uri".to_owned(), format!("{uri}{query}").into());
                if drops {
                    rewrite.insert("args".to_owned(), json!({"pass": []}));
                }
            }
            (Some(path), None) => match &state.location.prefix {
                Some(_) if state.location.is_exact => _ = rewrite.insert("uri".to_owned(), path.into()),
                Some(prefix) => {
                    let pattern = format!("^{}(.*)$", regex::escape(prefix));
                    rewrite.insert("regex_uri".to_owned(), json!([pattern, format!("{path}$1")]));
                }
                None => {}
            },
            (None, None) => {}
        }
        rewrite
    }

    /// The path of a rewrite that led to this location, with the location's text replaced by the path of `proxy_pass`.
    /// A rewrite within the location makes the whole path.
    fn replaced_prefix(&mut self, path: Option<&str>, uri: &str, state: &State<'a>) -> String {
        let (Some(path), Some(prefix), false) = (path, &state.location.prefix, state.rewritten.is_whole)
        else {
            return uri.to_owned();
        };
        if state.location.is_exact {
            return path.to_owned();
        }
        if let Some(rest) = uri.strip_prefix(prefix.as_str()) {
            return format!("{path}{rest}");
        }
        let entry =
            json!({"match": format!("^{}(.*)$", regex::escape(prefix)), "value": format!("{path}${{1}}")});
        self.variables.made('p', json!({"map": uri, "regex": [entry], "default": uri}))
    }

    /// The arguments that a rewrite adds before the client's, and whether the client's are dropped.
    fn own_query(&mut self, state: &State<'a>) -> (String, bool) {
        let Some(args) = &state.rewritten.args else { return (String::new(), false) };
        let more = self.more_args();
        match args.strip_suffix(&more) {
            Some(own) => (format!("?{own}"), false),
            None if args == "${args}" => (String::new(), false),
            None if args.is_empty() => (String::new(), true),
            None => (format!("?{args}"), true),
        }
    }

    /// `proxy_pass_request_headers off` and `proxy_pass_request_body off`.
    fn pass_lists(&mut self, level: &Level<'a>, family: &str, rewrite: &mut Map<String, Value>) {
        if let Some(directive) =
            level.last(&format!("{family}_pass_request_headers")).filter(|it| it.arg(0) == "off")
        {
            self.remark(directive, Verdict::Differs, "Fields that frame the message are still forwarded.");
            rewrite.insert("headers".to_owned(), json!({"pass": []}));
        }
    }

    /// `proxy_pass_request_body off` and `proxy_set_body`.
    fn request_body(
        &mut self,
        level: &Level<'a>,
        state: &State<'a>,
        family: &str,
        plugins: &mut Map<String, Value>,
    ) {
        let line = level.last(&format!("{family}_set_body"));
        let is_dropped = level.text(&format!("{family}_pass_request_body")) == Some("off");
        if line.is_none() && !is_dropped {
            return;
        }
        // A call of a service of authorization has no body anyway.
        let text = line.map(|line| self.text(line, line.arg(0), state, level)).unwrap_or_default();
        let function = format!(
            "return function(conf, ctx)\n  ngx.req.read_body()\n  ngx.req.set_body_data({})\nend\n",
            lua_value(&text)
        );
        let plugin = plugins
            .entry("serverless-pre-function")
            .or_insert_with(|| json!({"phase": "access", "functions": [], "_meta": {"priority": 1000}}));
        if let Some(functions) = plugin["functions"].as_array_mut() {
            functions.push(function.into());
        }
    }

    /// `mirror`: copies for the node of an internal location.
    fn copies(&mut self, level: &Level<'a>, state: &State<'a>, plugins: &mut Map<String, Value>) {
        let mut mirrors: Vec<Value> = Vec::new();
        for line in level.all(&["mirror"]).into_iter().filter(|line| line.arg(0) != "off") {
            match self.copy(line, state) {
                Some(mirror) => {
                    let text = "The copy has the path, the fields and the Host that the node gets.";
                    self.remark(line, Verdict::Differs, text);
                    mirrors.push(mirror);
                }
                None => {
                    let text = "use the plugin proxy-mirror with the address of the copy";
                    self.remark(line, Verdict::NotPossible, text);
                }
            }
        }
        if mirrors.is_empty() {
            return;
        }
        let mut plugin = mirrors.remove(0);
        if !mirrors.is_empty() {
            plugin["mirrors"] = json!(mirrors);
        }
        plugins.insert("proxy-mirror".to_owned(), plugin);
    }

    /// The target of a copy: a host, with the client's path or another one.
    fn copy(&mut self, line: &Directive, state: &State<'a>) -> Option<Value> {
        let entry = super::files::destination(&state.server.entries, line.arg(0))?;
        let level = Rc::clone(&entry.level);
        let pass = level.handler(&["proxy_pass"])?;
        let target = self.text(pass, pass.arg(0), state, &level);
        let Split { scheme, authority, path } = split(&target)?;
        let host = match self.blocks.groups.get(authority) {
            Some(group) => group.first_node()?,
            None => authority.to_owned(),
        };
        if host.contains('$') || host.starts_with("unix:") {
            return None;
        }
        let mut mirror = json!({"host": format!("{scheme}://{host}")});
        let path = path.unwrap_or(line.arg(0));
        let own = ["${real_request_uri}", "${uri}${is_args}${args}", "${uri}"];
        match own.iter().find_map(|own| path.strip_suffix(own)) {
            Some("") => {}
            Some(prefix) if !prefix.contains('$') => {
                mirror["path"] = prefix.into();
                mirror["path_concat_mode"] = "prefix".into();
            }
            None if !path.contains(['$', '?']) => mirror["path"] = path.into(),
            _ => return None,
        }
        Some(mirror)
    }

    /// Moves fields of the service of authorization to the names that the node expects.
    fn answers(&mut self, level: &Level<'a>, plugins: &mut Map<String, Value>, service_fields: &[String]) {
        if service_fields.is_empty() {
            return;
        }
        let mut lines = String::new();
        for directive in level.all(&["proxy_set_header"]) {
            let Some(name) = directive.arg(1).strip_prefix('$') else { continue };
            let Some(field) = self.variables.answers.get(name) else { continue };
            let to = directive.arg(0);
            // The client's own field never stays.
            if field.eq_ignore_ascii_case(to) {
                continue;
            }
            lines.push_str(&format!(
                "  core.request.set_header(ctx, {}, core.request.header(ctx, {}))\n",
                quoted(to),
                quoted(field),
            ));
        }
        for field in service_fields {
            let is_kept =
                level.all(&["proxy_set_header"]).iter().any(|line| line.arg(0).eq_ignore_ascii_case(field));
            if !is_kept && !lines.is_empty() {
                lines.push_str(&format!("  core.request.set_header(ctx, {}, nil)\n", quoted(field)));
            }
        }
        if !lines.is_empty() {
            let function =
                format!("local core = require(\"apisix.core\")\nreturn function(conf, ctx)\n{lines}end\n");
            let functions = json!({"phase": "access", "functions": [function]});
            plugins.insert("serverless-pre-function".to_owned(), functions);
            // It runs after the call: the last one of its phase.
            if let Some(plugin) = plugins.get_mut("serverless-pre-function") {
                plugin["_meta"] = json!({"priority": 1000});
            }
        }
    }

    /// Without `proxy_redirect`, the address of the target is replaced in Location.
    fn default_redirect(
        &mut self,
        handler: &Directive,
        level: &Level<'a>,
        state: &State<'a>,
        plugins: &mut Map<String, Value>,
    ) {
        let rules = level.all(&["proxy_redirect"]);
        let is_default = rules.is_empty() || rules.iter().any(|rule| rule.arg(0) == "default");
        if !is_default || handler.name != "proxy_pass" || handler.arg(0).contains('$') {
            return;
        }
        let url = handler.arg(0);
        let has_path = split(url).is_some_and(|parts| parts.path.is_some());
        let rule = match (&state.location.prefix, has_path) {
            (Some(prefix), true) => json!({"from": url, "to": prefix}),
            (_, false) => json!({"from": format!("{url}/"), "to": "/"}),
            (None, true) => return,
        };
        let plugin = plugins.entry("response-rewrite").or_insert_with(|| json!({}));
        match plugin.get_mut("location").and_then(Value::as_array_mut) {
            Some(list) => list.push(rule),
            None => plugin["location"] = json!([rule]),
        }
    }

    /// `proxy_redirect` and `proxy_cookie_…`.
    pub(super) fn locations_and_cookies(
        &mut self,
        level: &Level<'a>,
        state: &State<'a>,
        rewrite: &mut Map<String, Value>,
    ) {
        let mut locations = Vec::new();
        for rule in level.all(&["proxy_redirect"]).into_iter().filter(|rule| rule.args.len() == 2) {
            locations.push(self.replacement(rule, state, level));
        }
        if !locations.is_empty() {
            rewrite.insert("location".to_owned(), json!(locations));
        }
        let mut cookies = Map::new();
        for (name, key) in [("proxy_cookie_path", "path"), ("proxy_cookie_domain", "domain")] {
            let rules: Vec<Value> = level
                .all(&[name])
                .into_iter()
                .filter(|rule| rule.args.len() == 2)
                .map(|rule| self.replacement(rule, state, level))
                .collect();
            if !rules.is_empty() {
                cookies.insert(key.to_owned(), json!(rules));
            }
        }
        let mut flags: Vec<Value> =
            level.all(&["proxy_cookie_flags"]).into_iter().filter_map(cookie_flags).collect();
        // `proxy_cookie_path / "/; HttpOnly; Secure"` adds attributes.
        for rule in cookies.get_mut("path").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some((path, rest)) = rule["to"].as_str().and_then(|to| to.split_once(';')) else { continue };
            let added: Vec<&str> = rest.split(';').map(str::trim).collect();
            flags.push(added_flags(&added));
            rule["to"] = path.trim().to_owned().into();
        }
        if !flags.is_empty() {
            cookies.insert("flags".to_owned(), json!(flags));
        }
        if !cookies.is_empty() {
            rewrite.insert("cookies".to_owned(), Value::Object(cookies));
        }
    }

    /// A rule of `proxy_redirect` or `proxy_cookie_…`. Groups in the new text are of its own expression.
    fn replacement(&mut self, rule: &Directive, state: &State<'a>, level: &Level<'a>) -> Value {
        let from = rule.arg(0);
        let Some(regex) = from.strip_prefix("~*").or_else(|| from.strip_prefix('~')) else {
            let from = self.text(rule, from, state, level);
            return json!({"from": from, "to": self.text(rule, rule.arg(1), state, level)});
        };
        let mut to = String::new();
        for piece in texts::pieces(rule.arg(1)) {
            match piece {
                texts::Piece::Text(text) => to.push_str(text),
                texts::Piece::Variable(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                    to.push_str(&format!("${{{name}}}"));
                }
                texts::Piece::Variable(name) => {
                    to.push_str(&self.text(rule, &format!("${{{name}}}"), state, level));
                }
            }
        }
        // nginx replaces the whole text.
        json!({"regex": format!("^.*?(?:{regex}).*$"), "to": to})
    }

    /// `sub_filter`.
    pub(super) fn substitutions(&mut self, level: &Level<'a>, rewrite: &mut Map<String, Value>) {
        let filters = level.all(&["sub_filter"]);
        let scope = if level.text("sub_filter_once") == Some("off") { "global" } else { "once" };
        let filters: Vec<Value> = filters
            .into_iter()
            .filter(|filter| !filter.arg(1).contains('$'))
            .map(|filter| {
                let regex = regex::escape(filter.arg(0));
                json!({"regex": regex, "replace": filter.arg(1), "scope": scope, "options": "ijo"})
            })
            .collect();
        if filters.is_empty() {
            return;
        }
        rewrite.insert("filters".to_owned(), json!(filters));
        let listed = level.all(&["sub_filter_types"]);
        let mut types: Vec<&str> = vec!["text/html"];
        types.extend(listed.iter().flat_map(|line| &line.args).map(String::as_str));
        if !types.contains(&"*") {
            rewrite.insert("filter_types".to_owned(), json!(types));
        }
    }
}

/// A target with variables, in parts.
struct Variable<'a> {
    whole: String,
    path: Option<String>,
    handler: &'a Directive,
    files: Option<Map<String, Value>>,
}

/// A target whose scheme and authority are known.
struct Fixed<'a> {
    fixed: String,
    path: Option<String>,
    handler: &'a Directive,
    files: Option<Map<String, Value>>,
    /// Whether the whole target has variables.
    has_variables: bool,
}

fn split(target: &str) -> Option<Split<'_>> {
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.contains('$') && !matches!(scheme, "http" | "https" | "grpc" | "grpcs") {
        return None;
    }
    if let Some(socket) = rest.strip_prefix("unix:") {
        let (path, uri) = socket.split_once(':').map_or((socket, None), |(path, uri)| (path, Some(uri)));
        let authority = &rest[..5 + path.len()];
        return Some(Split { scheme, authority, path: uri.filter(|uri| !uri.is_empty()) });
    }
    let at = path_start(rest);
    let (authority, path) = (&rest[..at], &rest[at..]);
    if authority.is_empty() {
        return None;
    }
    Some(Split { scheme, authority, path: (!path.is_empty()).then_some(path) })
}

/// Where the authority ends: at a slash, or at a variable that is a whole path.
fn path_start(rest: &str) -> usize {
    let slash = rest.find(['/', '?']).unwrap_or(rest.len());
    ["${uri}", "${real_request_uri}", "${is_args}", "${1}", "${var_c"]
        .iter()
        .filter_map(|name| rest.find(name).filter(|at| *at > 0))
        .chain([slash])
        .min()
        .unwrap_or(rest.len())
}

/// Fields of nodes that clients do not get.
pub(super) fn hidden(level: &Level<'_>, family: &str) -> Vec<String> {
    let passed = level.all(&[format!("{family}_pass_header").as_str()]);
    let is_passed = |name: &str| passed.iter().any(|directive| directive.arg(0).eq_ignore_ascii_case(name));
    let listed = level.all(&[format!("{family}_hide_header").as_str()]);
    listed.iter().map(|directive| directive.arg(0).to_owned()).filter(|name| !is_passed(name)).collect()
}

fn cookie_flags(directive: &Directive) -> Option<Value> {
    let cookie = directive.arg(0);
    let is_all = matches!(cookie, "~" | "~.*" | "~*.*" | "~.");
    if cookie.starts_with('~') && !is_all {
        return None;
    }
    let listed: Vec<&str> = directive.args.iter().skip(1).map(String::as_str).collect();
    let mut flags = added_flags(&listed);
    if !is_all {
        flags["cookie"] = cookie.into();
    }
    Some(flags)
}

/// The flags of cookies by their words.
fn added_flags(listed: &[&str]) -> Value {
    let mut flags = Map::new();
    for flag in listed {
        match flag.to_ascii_lowercase().as_str() {
            "secure" => _ = flags.insert("secure".to_owned(), true.into()),
            "nosecure" => _ = flags.insert("secure".to_owned(), false.into()),
            "httponly" => _ = flags.insert("http_only".to_owned(), true.into()),
            "nohttponly" => _ = flags.insert("http_only".to_owned(), false.into()),
            "samesite=strict" => _ = flags.insert("same_site".to_owned(), "strict".into()),
            "samesite=lax" => _ = flags.insert("same_site".to_owned(), "lax".into()),
            "samesite=none" => _ = flags.insert("same_site".to_owned(), "none".into()),
            "nosamesite" => _ = flags.insert("same_site".to_owned(), "off".into()),
            _ => {}
        }
    }
    Value::Object(flags)
}

/// A text with variables as an expression of Lua.
fn lua_value(text: &str) -> String {
    let parts = texts::pieces(text).into_iter().map(|piece| match piece {
        texts::Piece::Text(text) => super::super::words::lua_text(text),
        texts::Piece::Variable(name) => format!("(ctx.var[{}] or \"\")", quoted(name)),
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" .. ") }
}

/// A text in Lua's quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
