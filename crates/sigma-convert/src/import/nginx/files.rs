//! Static files: `root`, `alias`, `index`, `autoindex` and `try_files`.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::report::Verdict;
use super::access::Guarded;
use super::content::HANDLERS;
use super::converter::Converter;
use super::level::Level;
use super::locations::{Entry, Kind};
use super::parse::Directive;
use super::pattern::{Pattern, StaticMatch};
use super::rewriting::Phase;
use super::state::{Missing, MissingEnd, State, Tried};

/// Directives that do not change the response to a file that was found.
const PLAIN: &[&str] =
    &["root", "index", "try_files", "access_log", "log_not_found", "location", "autoindex", "include"];

/// The folder `html` of nginx's packages.
const DEFAULT_ROOT: &str = "/usr/share/nginx/html";

impl<'a> Converter<'a> {
    /// A location without a handler serves files.
    pub(super) fn files(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, guarded: Guarded) {
        let directive = level.own("alias").or_else(|| level.last("root"));
        match self.folder(level, state, &[]) {
            Some(files) => {
                let place = state.server.level.directives.first().or(directive);
                let Some(place) = directive.or(place) else { return };
                self.served(place, Served { files, guarded }, level, state);
            }
            None => {
                let mut decision = state.decision(
                    directive.map_or(state.server.place, |directive| directive.place),
                    Target::Respond { status: 404, body: None, headers: Vec::new() },
                );
                if let Some(directive) = directive {
                    let text = "The folder is not an absolute path: its files are not found.";
                    self.remark(directive, Verdict::Differs, text);
                }
                decision.plugins = guarded.plugins;
                self.around(level, state, &mut decision, &[]);
                self.emit(state, level, decision);
            }
        }
    }

    /// A route that serves files. Where another location runs an index file, its upstream is the route's.
    fn served(&mut self, line: &'a Directive, served: Served, level: &Rc<Level<'a>>, state: &State<'a>) {
        let Served { files, guarded } = served;
        let index = files.get("pass_index").and_then(|list| list[0].as_str()).map(|name| format!("/{name}"));
        let server = Rc::clone(&state.server);
        let entry = index.and_then(|path| destination(&server.entries, &path));
        let handler = entry.and_then(|entry| entry.level.handler(HANDLERS));
        match (entry, handler.filter(|handler| handler.name == "fastcgi_pass")) {
            (Some(entry), Some(handler)) if Self::is_straight(&entry.level) => {
                let mut inner = state.clone();
                inner.files.files_of = Some(Rc::clone(level));
                self.handled(handler, &entry.level, &inner, guarded, Some(files));
            }
            _ => {
                self.finish(line, level, state, guarded, Target::Files(files));
            }
        }
    }

    /// The configuration of static-files for a level; `tried` are paths in nginx's syntax.
    fn folder(
        &mut self,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        tried: &[String],
    ) -> Option<Map<String, Value>> {
        let mut files = Map::new();
        let alias = level.handler(&["alias"]).or_else(|| level.own("alias"));
        // A folder is served for a path without `try_files` alone.
        let is_plain = tried.is_empty();
        let tried = if is_plain { &["$uri".to_owned()] } else { tried };
        let has_folder = is_plain || tried.iter().any(|text| text == "$uri/");
        let texts: Vec<String> =
            tried.iter().map(|text| self.tried_text(text, has_folder, level, state)).collect();
        match alias {
            Some(alias) => {
                let folder = self.text(alias, alias.arg(0), state, level);
                self.alias(&folder, state, &mut files)?;
                if !is_plain && state.location.prefix.is_some() {
                    files.insert("try".to_owned(), json!(texts));
                }
            }
            None => {
                let text = match level.last("root") {
                    Some(root) => self.text(root, root.arg(0), state, level),
                    None if is_plain => return None,
                    // nginx's own folder.
                    None => DEFAULT_ROOT.to_owned(),
                };
                let text = if text == "html" { DEFAULT_ROOT.to_owned() } else { text };
                let (folder, rest) = fixed_folder(&text)?;
                files.insert("root".to_owned(), folder.into());
                if !rest.is_empty() || !is_plain || state.rewritten.uri.is_some() {
                    let texts: Vec<String> = texts.iter().map(|text| format!("{rest}{text}")).collect();
                    files.insert("try".to_owned(), json!(texts));
                }
            }
        }
        let indexes = self.index(level, state);
        files.insert("index".to_owned(), json!(indexes.served));
        if !indexes.passed.is_empty() {
            files.insert("pass_index".to_owned(), json!(indexes.passed));
        }
        if !indexes.routed.is_empty() {
            files.insert("route_index".to_owned(), json!(indexes.routed));
        }
        if let Some(target) = indexes.last {
            files.insert("folder_fallback".to_owned(), target.into());
        }
        super::media::settings(level, self.is_part, &mut files);
        Some(files)
    }

    fn tried_text(
        &mut self,
        source: &str,
        has_folder: bool,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
    ) -> String {
        if let Some(rest) = source.strip_prefix("$fastcgi_script_name") {
            return format!("{}{rest}", self.script_name(level, state));
        }
        let directive = Directive {
            name: "try_files".to_owned(),
            args: vec![source.to_owned()],
            place: state.server.place,
            block: None,
            raw: None,
        };
        let text = self.text(&directive, source, state, level);
        if text == "${uri}" && !has_folder {
            // A file is looked for, never a folder.
            let folder = json!({"match": "/$", "value": "/.not-a-file"});
            let map = json!({"map": "${uri}", "regex": [folder], "default": "${uri}"});
            return self.variables.made('f', map);
        }
        if text.starts_with('/') || text.starts_with('$') { text } else { format!("/{text}") }
    }

    /// The name of the script in the path, before `fastcgi_split_path_info` has its effect in the gateway.
    fn script_name(&mut self, level: &Level<'a>, state: &State<'a>) -> String {
        let subject = state.uri_text();
        let split = level.text("fastcgi_split_path_info").map(|text| Pattern::new(text, false));
        let Some(Ok(pattern)) = split else { return subject };
        let script = json!({"match": pattern.text, "value": "${1}"});
        self.variables.made('n', json!({"map": subject, "regex": [script], "default": subject}))
    }

    /// `alias` replaces the text of the location.
    fn alias(&mut self, folder: &str, state: &State<'a>, files: &mut Map<String, Value>) -> Option<()> {
        match (&state.location.prefix, state.location.is_exact) {
            (Some(_), true) => {
                let (root, name) = folder.rsplit_once('/')?;
                files.insert("root".to_owned(), if root.is_empty() { "/" } else { root }.into());
                files.insert("try".to_owned(), json!([format!("/{name}")]));
            }
            (Some(prefix), false) => {
                let (fixed, rest) = fixed_folder(folder)?;
                if !rest.is_empty() {
                    return None;
                }
                files.insert("root".to_owned(), fixed.into());
                files.insert("prefix".to_owned(), prefix.trim_end_matches('/').into());
            }
            (None, _) => {
                let (root, rest) = fixed_folder(folder)?;
                files.insert("root".to_owned(), root.into());
                let rest = if rest.is_empty() { "/".to_owned() } else { rest };
                files.insert("try".to_owned(), json!([rest]));
            }
        }
        Some(())
    }

    /// The index files of a level by their handlers.
    fn index(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Indexes {
        let directive = level.last("index");
        let names = directive.map_or(vec!["index.html".to_owned()], |directive| directive.args.clone());
        let mut found = Indexes::default();
        for name in names {
            if let (true, Some(directive)) = (name.contains(['/', '$']), directive) {
                if name.starts_with('/') {
                    found.last = Some(self.text(directive, &name, state, level));
                } else {
                    let text = format!("the index `{name}` was not converted: write file names");
                    self.remark(directive, Verdict::NotPossible, text);
                }
                continue;
            }
            // An exact path without a slash at its end is no folder.
            let is_folder = !state.location.is_exact
                || state.location.prefix.as_deref().is_some_and(|path| path.ends_with('/'));
            let folder = state.location.prefix.as_deref();
            let folder = folder.and_then(|prefix| prefix.rsplit_once('/')).map_or("", |(folder, _)| folder);
            let entry = destination(&state.server.entries, &format!("{folder}/{name}"));
            let handler = entry.and_then(|entry| entry.level.handler(HANDLERS));
            match (entry, handler) {
                (Some(entry), Some(handler)) => match entry.kind {
                    Kind::Prefix(_) => found.served.push(name),
                    // It is never served as a text.
                    _ if handler.name == "fastcgi_pass" && Self::is_straight(&entry.level) => {
                        found.passed.push(name);
                    }
                    _ => found.routed.push(name),
                },
                (Some(entry), None) if is_folder && !self.is_same_content(&entry.level, level) => {
                    found.routed.push(name);
                }
                _ => found.served.push(name),
            }
        }
        found
    }

    /// `try_files`, or the end of `if (!-e $request_filename)`.
    pub(super) fn try_files(&mut self, level: &Rc<Level<'a>>, mut state: State<'a>, guarded: Guarded) {
        let directive = level.handler(&["try_files"]);
        let missing = state.files.missing.take();
        let handler = level.handler(HANDLERS);
        let (tried, last) = match (directive, &missing) {
            (Some(directive), _) => {
                let Some((last, tried)) = directive.args.split_last() else { return };
                (tried.to_vec(), last.clone())
            }
            (None, Some(missing)) => (missing.tried.clone(), missing.last()),
            (None, None) => return,
        };
        let Some(mut files) = self.folder(level, &state, &tried) else {
            let place = directive.map_or(state.server.place, |directive| directive.place);
            if let Some(directive) = directive {
                let text = "the folder is not an absolute path; the route returns 503: write `root` with an absolute path";
                self.remark(directive, Verdict::NotPossible, text);
            }
            let decision =
                state.decision(place, Target::Closed("the folder is not an absolute path".to_owned()));
            return self.emit(&state, level, decision);
        };
        if let Some(MissingEnd::Handler(inner)) = missing.as_ref().map(|missing| &missing.end) {
            let inner = Rc::clone(inner);
            files.insert("fallback".to_owned(), json!({"pass": ""}));
            let Some(handler) = inner.handler(HANDLERS) else { return };
            return self.handled(handler, &inner, &state, guarded, Some(files));
        }
        match handler {
            // The handler serves the files that exist.
            Some(_) => files.insert("pass_found".to_owned(), true.into()),
            None => files.insert("strict_methods".to_owned(), true.into()),
        };
        let end = End { files, last, missing, directive, handler };
        self.fallback(end, level, &state, guarded);
    }

    /// The last argument of `try_files`.
    fn fallback(&mut self, end: End<'a>, level: &Rc<Level<'a>>, state: &State<'a>, guarded: Guarded) {
        let End { mut files, last, missing, directive, handler } = end;
        let place = directive.or_else(|| level.last("root"));
        let Some(line) = place else { return };
        if let Some(code) = last.strip_prefix('=').and_then(|code| code.parse::<u16>().ok()) {
            files.insert("fallback".to_owned(), json!({"status": code}));
            if let Some(handler) = handler {
                return self.handled(handler, level, state, guarded, Some(files));
            }
            return self.served(line, Served { files, guarded }, level, state);
        }
        if last.starts_with('@') {
            return self.named_fallback(&last, Files { files, line, guarded }, level, state);
        }
        let (path, query) = match missing.as_ref().map(|missing| &missing.end) {
            Some(MissingEnd::Path(path, args)) => {
                let query = args.as_ref().map_or("${is_args}${args}".to_owned(), |args| format!("?{args}"));
                (path.clone(), query)
            }
            _ => {
                let (path, query) = last.split_once('?').unwrap_or((&last, ""));
                let path = self.text(line, path, state, level);
                // `/index.php$is_args$args` has its query in the variables.
                let path = path.strip_suffix("${is_args}${args}").unwrap_or(&path).to_owned();
                if path.contains("${real_request_uri}") {
                    // It brings its query.
                    return self.path_fallback(
                        Fallback { path, query: String::new(), files, line, guarded },
                        level,
                        state,
                    );
                }
                let query = self.text(line, query, state, level);
                (path, if query.is_empty() { "${is_args}${args}".to_owned() } else { format!("?{query}") })
            }
        };
        self.path_fallback(Fallback { path, query, files, line, guarded }, level, state);
    }

    /// The client's arguments after others, where each value would be encoded.
    fn plain_args(&mut self, query: &str) -> String {
        let more = self.more_args();
        query.replace(&more, "&${args}")
    }

    /// An internal request for another path.
    fn path_fallback(&mut self, fallback: Fallback<'a>, level: &Rc<Level<'a>>, state: &State<'a>) {
        let Fallback { path, query, mut files, line, guarded } = fallback;
        let query = self.plain_args(&query);
        let server = Rc::clone(&state.server);
        let entry = destination(&server.entries, &path);
        let handler = entry.and_then(|entry| entry.level.handler(HANDLERS));
        match (entry, handler) {
            (Some(entry), Some(handler)) if Self::is_straight(&entry.level) => {
                files.insert("fallback".to_owned(), json!({"pass": format!("{path}{query}")}));
                let mut inner = state.clone();
                inner.location.prefix = None;
                if !files.contains_key("pass_found") && inner.files.files_of.is_none() {
                    inner.files.files_of = Some(Rc::clone(level));
                }
                let guarded = self.with_guards_of(&entry.level, &inner, guarded);
                self.handled(handler, &entry.level, &inner, guarded, Some(files));
            }
            (Some(entry), None) if self.is_same_content(&entry.level, level) && !path.contains('$') => {
                // The folder of an `alias` is below its location.
                let prefix = files.get("prefix").and_then(Value::as_str).unwrap_or_default().to_owned();
                let below = path.strip_prefix(&prefix).filter(|rest| rest.starts_with('/'));
                let file = below.unwrap_or(&path).to_owned();
                files.insert("fallback".to_owned(), json!({"file": file}));
                self.served(line, Served { files, guarded }, level, state);
            }
            (None, _) if !path.contains('$') => {
                files.insert("fallback".to_owned(), json!({"file": path}));
                self.served(line, Served { files, guarded }, level, state);
            }
            _ => {
                files.insert("fallback".to_owned(), json!({"uri": format!("{path}{query}")}));
                self.served(line, Served { files, guarded }, level, state);
            }
        }
    }

    /// A named location takes over the request as it is.
    fn named_fallback(&mut self, name: &str, found: Files<'a>, level: &Rc<Level<'a>>, state: &State<'a>) {
        let Files { mut files, line, guarded } = found;
        let Some(named) = self.named(name, state) else {
            let text = format!("the location {name} does not exist; the route returns 503");
            self.remark(line, Verdict::NotPossible, text);
            let decision =
                state.decision(line.place, Target::Closed(format!("the location {name} does not exist")));
            return self.emit(state, level, decision);
        };
        files.insert("fallback".to_owned(), json!({"pass": ""}));
        let mut inner = state.clone();
        inner.location.prefix = None;
        inner.files.files_of = Some(Rc::clone(level));
        inner.files.tried = Some(Rc::new(Tried { files, guards: guarded.plugins, line }));
        self.depth += 1;
        self.follow(&named, inner, Phase::Location);
        self.depth -= 1;
    }

    /// A rewrite of a named location has led to another path.
    pub(super) fn after_named(&mut self, mut state: State<'a>) {
        let Some(tried) = state.files.tried.take() else { return };
        let path = state.rewritten.uri.take().unwrap_or_else(|| "${uri}".to_owned());
        let query = match state.rewritten.args.take() {
            None => "${is_args}${args}".to_owned(),
            Some(args) if args.is_empty() => String::new(),
            Some(args) => format!("?{args}"),
        };
        let level = state.files.files_of.clone().unwrap_or_else(|| Rc::clone(&state.server.level));
        let guarded = Guarded { plugins: tried.guards.clone(), ..Guarded::default() };
        let fallback = Fallback { path, query, files: tried.files.clone(), line: tried.line, guarded };
        self.path_fallback(fallback, &level, &state);
    }

    /// Adds the guards of the level that a request continues to.
    fn with_guards_of(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, mut guarded: Guarded) -> Guarded {
        let other = self.guards(level, state);
        for (name, plugin) in other.plugins {
            guarded.plugins.entry(name).or_insert(plugin);
        }
        guarded.closed = guarded.closed.or(other.closed);
        guarded
    }

    /// Whether a file has the same response in both levels: none has anything of its own but what finds files.
    fn is_same_content(&self, one: &Level<'a>, other: &Level<'a>) -> bool {
        let is_alike = |name: &str| one.text(name) == other.text(name);
        let is_plain = |level: &Level<'a>| {
            level.directives.iter().all(|directive| PLAIN.contains(&directive.name.as_str()))
        };
        let is_within = std::ptr::eq(one.directives, other.directives);
        let has_alias = one.own("alias").is_some() || other.own("alias").is_some();
        is_within || !has_alias && is_alike("root") && is_plain(one) && is_plain(other)
    }
}

/// Index files by their handlers.
#[derive(Default)]
struct Indexes {
    /// Served by the location itself.
    served: Vec<String>,
    /// Run by the handler of another location.
    passed: Vec<String>,
    /// Served by another location, with its own fields.
    routed: Vec<String>,
    /// The path that nginx takes for a folder without an index.
    last: Option<String>,
}

/// A configuration of static-files with the guards before it.
struct Served {
    files: Map<String, Value>,
    guarded: Guarded,
}

/// The parts that the last argument of `try_files` decides about.
struct End<'a> {
    files: Map<String, Value>,
    last: String,
    missing: Option<Missing<'a>>,
    directive: Option<&'a Directive>,
    handler: Option<&'a Directive>,
}

impl Missing<'_> {
    /// The last argument of the `try_files` with the same effect.
    fn last(&self) -> String {
        match &self.end {
            MissingEnd::Path(path, _) => path.clone(),
            MissingEnd::Status(status) => format!("={status}"),
            MissingEnd::Handler(_) => "=404".to_owned(),
        }
    }
}

struct Fallback<'a> {
    path: String,
    query: String,
    files: Map<String, Value>,
    line: &'a Directive,
    guarded: Guarded,
}

struct Files<'a> {
    files: Map<String, Value>,
    line: &'a Directive,
    guarded: Guarded,
}

/// The location of a path whose variables do not decide it.
pub(super) fn destination<'e, 'a>(entries: &'e [Entry<'a>], path: &str) -> Option<&'e Entry<'a>> {
    let literal = path.split('$').next().unwrap_or_default();
    let is_fixed = literal.len() == path.len();
    entries.iter().find(|entry| {
        let is_within = entry.within.iter().all(|prefix| literal.starts_with(prefix.as_str()));
        let is_match = match &entry.kind {
            Kind::Exact(text) => is_fixed && text == path,
            Kind::Prefix(text) => literal.starts_with(text.as_str()),
            Kind::Regex(pattern) => super::pattern::known_match(pattern, path) == StaticMatch::Yes,
            Kind::Unknown(..) => false,
        };
        is_within && is_match
    })
}

/// Splits a folder at its first variable: a fixed folder and the rest of the text.
fn fixed_folder(text: &str) -> Option<(String, String)> {
    if !text.starts_with('/') {
        return None;
    }
    let fixed = text.split('$').next().unwrap_or_default();
    if fixed.len() == text.len() {
        let folder = text.trim_end_matches('/');
        return Some((if folder.is_empty() { "/" } else { folder }.to_owned(), String::new()));
    }
    let at = fixed.rfind('/')?;
    let folder = if at == 0 { "/" } else { &text[..at] };
    Some((folder.to_owned(), text[at..].trim_end_matches('/').to_owned()))
}
