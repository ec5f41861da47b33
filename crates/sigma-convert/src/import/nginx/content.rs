//! The content of a location: its handler with the plugins around it.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Path, Target};
use super::super::report::Verdict;
use super::access::Guarded;
use super::converter::Converter;
use super::level::{Level, size};
use super::parse::Directive;
use super::rewriting::REWRITES;
use super::state::State;
use super::upstreams::seconds;

/// Directives that make the content of a location.
pub(super) const HANDLERS: &[&str] = &[
    "proxy_pass",
    "fastcgi_pass",
    "grpc_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "stub_status",
    "content_by_lua_block",
    "content_by_lua_file",
    "content_by_lua",
    "empty_gif",
    "mp4",
    "flv",
    "dav_methods",
    "js_content",
    "perl",
    "api",
    "random_index",
];

/// The media types of nginx without a block `types`.
pub(super) const BUILT_IN: &[(&str, &str)] =
    &[("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

/// Nesting of named locations.
const MOST_DEPTH: usize = 8;

impl<'a> Converter<'a> {
    /// Makes the decisions for the content of a level.
    pub(super) fn content(&mut self, level: &Rc<Level<'a>>, state: State<'a>) {
        if let Some(limit) = level.own("limit_except") {
            self.other_methods(limit, level, &state);
        }
        let mut guarded = self.guards(level, &state);
        if let Some(tried) = &state.files.tried {
            tried.guards.iter().for_each(|(name, plugin)| {
                guarded.plugins.entry(name).or_insert_with(|| plugin.clone());
            });
        }
        if let Some(reason) = guarded.closed.clone() {
            let place = level.directives.first().map_or(state.server.place, |directive| directive.place);
            let decision = state.decision(place, Target::Closed(reason));
            return self.emit(&state, level, decision);
        }
        if !guarded.exempt.is_empty() {
            let mut inner = state.clone();
            inner.conditions.push(json!(["remote_addr", "ipmatch", guarded.exempt]));
            inner.location.text.push_str("-allowed");
            // No service has set these variables, and no client may.
            inner
                .variables
                .sets
                .extend(self.variables.answers.keys().map(|name| (name.clone(), String::new())));
            self.guarded_content(level, inner, guarded.without_logins());
        }
        if guarded.refuses_all {
            let rule = level.last("deny").unwrap_or(state.server.directive);
            let target = Target::Respond { status: 403, body: None, headers: Vec::new() };
            let guarded = Guarded::default();
            return self.finish(rule, level, &state, guarded, target);
        }
        self.guarded_content(level, state, guarded);
    }

    /// Makes the decisions for the content of a level behind these guards.
    fn guarded_content(&mut self, level: &Rc<Level<'a>>, mut state: State<'a>, guarded: Guarded) {
        if let Some(tried) = state.files.tried.take() {
            let again = level.handler(&["try_files"]).filter(|_| state.files.missing.is_none());
            if let Some(line) = again {
                let text = "files are tried once; the files of this line are not looked for";
                self.remark(line, Verdict::NotPossible, text);
            }
            let mut files = tried.files.clone();
            return match level.handler(HANDLERS) {
                Some(handler) => self.handled(handler, level, &state, guarded, Some(files)),
                None => {
                    files.insert("fallback".to_owned(), self.file_of_named(level, &state, tried.line));
                    self.finish(tried.line, level, &state, guarded, Target::Files(files));
                }
            };
        }
        if level.handler(&["try_files"]).is_some() || state.files.missing.is_some() {
            return self.try_files(level, state, guarded);
        }
        match level.handler(HANDLERS) {
            Some(handler) => self.handled(handler, level, &state, guarded, None),
            None => self.files(level, &state, guarded),
        }
    }

    /// The file of a named location without a handler.
    fn file_of_named(&mut self, level: &Level<'a>, state: &State<'a>, line: &Directive) -> Value {
        let of_files = state.files.files_of.as_deref().and_then(|level| level.text("root"));
        let is_same = of_files.is_some() && of_files == level.text("root");
        match &state.rewritten.uri {
            Some(uri) if is_same && !uri.contains('$') => json!({"file": uri}),
            None if is_same => json!({"status": 404}),
            _ => {
                let text = "the files of the named location are not looked for; their paths return 404";
                self.remark(line, Verdict::NotPossible, text);
                json!({"status": 404})
            }
        }
    }

    /// `limit_except`: the other methods have the guards of its block.
    fn other_methods(&mut self, limit: &'a Directive, level: &Rc<Level<'a>>, state: &State<'a>) {
        let mut methods: Vec<String> = limit.args.iter().map(|method| method.to_ascii_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".to_owned());
        }
        let inner = Level::of(limit.children(), Some(level), true);
        let mut other = state.clone();
        other.conditions.push(json!(["request_method", "!", "in", methods]));
        other.location.text.push_str("-other-methods");
        self.content(&inner, other);
    }

    /// Makes the decision of a handler. `files` is the configuration of static-files that runs before it.
    pub(super) fn handled(
        &mut self,
        handler: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        guarded: Guarded,
        files: Option<Map<String, Value>>,
    ) {
        match handler.name.as_str() {
            "proxy_pass" => self.proxy(handler, level, state, guarded, files),
            "grpc_pass" => self.proxy(handler, level, state, guarded, files),
            "fastcgi_pass" => self.fastcgi(handler, level, state, guarded, files),
            "stub_status" => {
                let text = "Sigma has its own status page: `status: { address: 127.0.0.1:9092 }`; this path returns 404.";
                self.remark(handler, Verdict::Differs, text);
                let target = Target::Respond { status: 404, body: None, headers: Vec::new() };
                self.finish(handler, level, state, guarded, target);
            }
            "empty_gif" => {
                let text = "serve the picture from a file; this path returns 204";
                self.remark(handler, Verdict::NotPossible, text);
                let target = Target::Respond { status: 204, body: None, headers: Vec::new() };
                self.finish(handler, level, state, guarded, target);
            }
            _ => {
                let text = "this handler has no counterpart; the route returns 503";
                self.remark(handler, Verdict::NotPossible, text);
                let decision = state.decision(handler.place, Target::Closed(handler.source()));
                self.emit(state, level, decision);
            }
        }
    }

    /// Emits a decision whose response is made here: with the guards, the fields and the error pages of its level.
    pub(super) fn finish(
        &mut self,
        directive: &Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        guarded: Guarded,
        target: Target,
    ) {
        let mut decision = state.decision(directive.place, target);
        decision.plugins = guarded.plugins;
        state.after_files(&mut decision);
        self.around(level, state, &mut decision, &[]);
        self.emit(state, level, decision);
    }

    /// Adds what every location has: fields of responses, compression, error pages, limits of rates and bodies.
    pub(super) fn around(
        &mut self,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        decision: &mut Decision,
        hidden: &[String],
    ) {
        let mut rewrite = self.response_fields(level, state, hidden);
        self.locations_and_cookies(level, state, &mut rewrite);
        self.substitutions(level, &mut rewrite);
        let files_of =
            state.files.files_of.clone().filter(|own| !std::ptr::eq(own.directives, level.directives));
        let files_of = files_of.filter(|_| decision.plugins.contains_key("static-files"));
        if let Some(own) = &files_of {
            let fields = self.response_fields(own, state, &[]);
            self.beside(fields, &mut rewrite);
        }
        let has_other_route = is_answered_elsewhere(decision);
        if !rewrite.is_empty() {
            if has_other_route {
                rewrite.insert("vars".to_owned(), json!([["other_route", "~=", "1"]]));
            }
            decision.plugins.insert("response-rewrite".to_owned(), Value::Object(rewrite));
        }
        let expiring = files_of.as_deref().filter(|own| own.last("expires").is_some());
        let is_of_files = expiring.is_some() && level.last("expires").is_none();
        let expiring = if is_of_files { expiring.unwrap_or(level) } else { level };
        let expires = self.expires_function(expiring, has_other_route, is_of_files);
        let mut functions: Vec<String> = expires.filter(|_| !state.is_error).into_iter().collect();
        if matches!(decision.target, Target::Upstream(_)) {
            functions.extend(super::media::charset_function(level));
        }
        if !functions.is_empty() {
            let functions = json!({"phase": "header_filter", "functions": functions});
            decision.plugins.insert("serverless-post-function".to_owned(), functions);
        }
        if level.is_on("gzip") {
            decision.plugins.insert("gzip".to_owned(), gzip(level));
        }
        let is_text = matches!(&decision.target, Target::Respond { body: Some(_), .. } | Target::Drop);
        if !is_text && let Some(pages) = self.error_pages(level, state) {
            let has_named = pages["pages"]
                .as_array()
                .is_some_and(|pages| pages.iter().any(|it| it.get("named").is_some()));
            if has_named && matches!(decision.target, Target::Upstream(_)) {
                // The location gets the body of the request again.
                decision.plugins.insert("proxy-control".to_owned(), json!({"request_buffering": true}));
            }
            decision.plugins.insert("error-page".to_owned(), pages);
        }
        if let Some(rate) = level.text("limit_rate").and_then(size).filter(|rate| *rate > 0) {
            let after = level.text("limit_rate_after").and_then(size).unwrap_or(0);
            let rule = json!({"rate": rate, "burst": after, "direction": "response"});
            decision.plugins.insert("limit-bandwidth".to_owned(), json!({"rules": [rule]}));
        }
        let limit = level.text("client_max_body_size").and_then(size).unwrap_or(1 << 20);
        if self.common_body_limit != Some(limit) && limit > 0 {
            decision.plugins.insert("client-control".to_owned(), json!({"max_body_size": limit}));
        }
    }

    /// `return`.
    pub(super) fn respond(&mut self, directive: &'a Directive, level: &Rc<Level<'a>>, state: &State<'a>) {
        let first = directive.arg(0);
        let (status, source) = match first.parse::<u16>() {
            Ok(status) => (status, (directive.args.len() > 1).then(|| directive.arg(1))),
            Err(_) => (302, Some(first)),
        };
        let text = source.map(|source| self.text(directive, source, state, level));
        let target = match (status, text) {
            (444, _) => Target::Drop,
            (301 | 302 | 303 | 307 | 308, Some(to)) => {
                Target::Redirect { status, to: self.absolute(to, level, state) }
            }
            (status, body) => {
                let headers = match &body {
                    Some(_) => vec![("Content-Type".to_owned(), self.content_type(level, state))],
                    None => Vec::new(),
                };
                Target::Respond { status: status.max(200), body, headers }
            }
        };
        let mut decision = state.decision(directive.place, target);
        state.after_files(&mut decision);
        // The rewrite phase is before all guards: they do not apply.
        self.around(level, state, &mut decision, &[]);
        decision.plugins.remove("client-control");
        self.emit(state, level, decision);
    }

    /// The media type of a text: by the extension of an exact location, else `default_type`.
    fn content_type(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> String {
        if let Some(kind) = self.type_by_path(level, state) {
            return kind;
        }
        let extension = state
            .location
            .prefix
            .as_deref()
            .filter(|_| state.location.is_exact)
            .and_then(|path| path.rsplit('/').next()?.rsplit_once('.').map(|(_, extension)| extension));
        let types = level.all(&["types"]);
        let listed = extension.and_then(|extension| {
            let mut entries = types.iter().flat_map(|types| types.children());
            entries
                .find(|entry| entry.args.iter().any(|arg| arg == extension))
                .map(|entry| entry.name.clone())
        });
        let kind = listed.unwrap_or_else(|| level.text("default_type").unwrap_or("text/plain").to_owned());
        match level.text("charset").filter(|charset| *charset != "off" && kind.starts_with("text/")) {
            Some(charset) => format!("{kind}; charset={charset}"),
            None => kind,
        }
    }

    /// The media type by the extension of the path, where an expression names extensions.
    fn type_by_path(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Option<String> {
        let Some(Path::Regex { pattern, .. }) =
            state.path.as_ref().filter(|_| state.location.prefix.is_none())
        else {
            return None;
        };
        let blocks = level.all(&["types"]);
        let listed = blocks.iter().flat_map(|types| types.children());
        let mut types: Vec<(String, String)> =
            listed.flat_map(|entry| entry.args.iter().map(|arg| (arg.clone(), entry.name.clone()))).collect();
        if blocks.is_empty() {
            types = BUILT_IN.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect();
        }
        let lower = pattern.to_ascii_lowercase();
        let entries: Vec<Value> = types
            .iter()
            .filter(|(name, _)| lower.contains(name.as_str()))
            .map(|(name, kind)| json!({"match": format!("\\.{name}$"), "ignore_case": true, "value": kind}))
            .collect();
        if entries.is_empty() {
            return None;
        }
        let default = level.text("default_type").unwrap_or("text/plain");
        Some(self.variables.made('m', json!({"map": "${uri}", "regex": entries, "default": default})))
    }

    /// The timeouts of a location, if it sets any.
    pub(super) fn timeouts(level: &Level<'a>, family: &str) -> Option<Value> {
        let read =
            |name: &str| level.text(&format!("{family}_{name}_timeout")).and_then(super::level::milliseconds);
        let (connect, send, read) = (read("connect"), read("send"), read("read"));
        if connect.is_none() && send.is_none() && read.is_none() {
            return None;
        }
        let value = |time: Option<u64>| seconds(time.unwrap_or(60_000).max(1));
        Some(json!({"connect": value(connect), "send": value(send), "read": value(read)}))
    }

    /// The level of a named location, if following it is no circle.
    pub(super) fn named(&mut self, name: &str, state: &State<'a>) -> Option<Rc<Level<'a>>> {
        if self.depth > MOST_DEPTH {
            return None;
        }
        state.server.named.get(name).cloned()
    }

    /// Whether a level has nothing but `set` among its rewrite directives.
    pub(super) fn is_straight(level: &Level<'a>) -> bool {
        level.own_all(REWRITES).iter().all(|directive| directive.name == "set")
    }
}

/// Whether another route may make the response, with its own fields.
fn is_answered_elsewhere(decision: &Decision) -> bool {
    let files = match &decision.target {
        Target::Files(files) => Some(files),
        _ => decision.plugins.get("static-files").and_then(Value::as_object),
    };
    files.is_some_and(|files| {
        let has_uri = files.get("fallback").is_some_and(|fallback| fallback.get("uri").is_some());
        has_uri || files.contains_key("route_index") || files.contains_key("folder_fallback")
    })
}

fn gzip(level: &Level<'_>) -> Value {
    let mut types = vec!["text/html".to_owned()];
    for directive in level.all(&["gzip_types"]) {
        types.extend(directive.args.iter().filter(|arg| *arg != "text/html").cloned());
    }
    let mut config = match types.iter().any(|kind| kind == "*") {
        true => json!({"types": "*"}),
        false => json!({"types": types}),
    };
    if let Some(length) = level.text("gzip_min_length").and_then(size).filter(|length| *length > 0) {
        config["min_length"] = length.into();
    }
    if let Some(level) = level.text("gzip_comp_level").and_then(|text| text.parse::<u64>().ok()) {
        config["comp_level"] = level.clamp(1, 9).into();
    }
    if level.is_on("gzip_vary") {
        config["vary"] = true.into();
    }
    if level.text("gzip_http_version") == Some("1.0") {
        config["http_version"] = 1.into();
    }
    config
}
