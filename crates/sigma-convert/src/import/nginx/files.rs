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
use super::pattern::Known;
use super::state::State;

/// Extensions that Sigma knows; a file with a list of its own may not have them.
const COMMON: &[&str] = &[
    "html",
    "htm",
    "css",
    "js",
    "mjs",
    "json",
    "xml",
    "txt",
    "csv",
    "md",
    "svg",
    "png",
    "jpg",
    "jpeg",
    "gif",
    "webp",
    "avif",
    "ico",
    "pdf",
    "zip",
    "gz",
    "mp3",
    "mp4",
    "webm",
    "woff",
    "woff2",
    "ttf",
    "otf",
    "wasm",
    "map",
    "webmanifest",
];

/// The folder `html` of nginx's packages.
const DEFAULT_ROOT: &str = "/usr/share/nginx/html";

/// Number of types above which a list is taken as the stock file, whose types are Sigma's own.
const STOCK_TYPES: usize = 40;

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
                    let text = "The folder is no absolute path: its files are not found.";
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
                self.handled(handler, &entry.level, state, guarded, Some(files));
            }
            _ => {
                let state = State { serves_files: true, ..state.clone() };
                self.finish(line, level, &state, guarded, Target::Files(files));
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
                if !is_plain && state.prefix.is_some() {
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
                if !rest.is_empty() || !is_plain || state.uri.is_some() {
                    let texts: Vec<String> = texts.iter().map(|text| format!("{rest}{text}")).collect();
                    files.insert("try".to_owned(), json!(texts));
                }
            }
        }
        let (index, passed) = self.index(level, state);
        files.insert("index".to_owned(), json!(index));
        if !passed.is_empty() {
            files.insert("pass_index".to_owned(), json!(passed));
        }
        files.insert("hidden".to_owned(), true.into());
        if level.text("disable_symlinks").is_none_or(|text| text == "off") {
            files.insert("symlinks".to_owned(), "follow".into());
        }
        let charset = level.text("charset").filter(|charset| *charset != "off").unwrap_or_default();
        files.insert("charset".to_owned(), charset.into());
        if let Some(types) = types(level) {
            files.insert("types".to_owned(), types);
        }
        if level.is_on("autoindex") {
            files.insert("listing".to_owned(), true.into());
        }
        if level.is_on("gzip_static") {
            files.insert("precompressed".to_owned(), json!(["gzip"]));
        }
        Some(files)
    }

    fn tried_text(
        &mut self,
        source: &str,
        has_folder: bool,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
    ) -> String {
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

    /// `alias` replaces the text of the location.
    fn alias(&mut self, folder: &str, state: &State<'a>, files: &mut Map<String, Value>) -> Option<()> {
        match (&state.prefix, state.is_exact) {
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

    /// Index files that are served, and those that another handler runs: they are never served as a text.
    fn index(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> (Vec<String>, Vec<String>) {
        let names: Vec<String> = level
            .last("index")
            .map_or(vec!["index.html".to_owned()], |directive| directive.args.clone())
            .into_iter()
            .filter(|name| !name.contains(['/', '$']))
            .collect();
        let is_file = |name: &String| {
            let entry = destination(&state.server.entries, &format!("/{name}"));
            entry.is_none_or(|entry| {
                entry.level.handler(HANDLERS).is_none() || matches!(entry.kind, Kind::Prefix(_))
            })
        };
        names.into_iter().partition(is_file)
    }

    /// `try_files`, or the end of `if (!-e $request_filename)`.
    pub(super) fn try_files(&mut self, level: &Rc<Level<'a>>, mut state: State<'a>, guarded: Guarded) {
        let directive = level.handler(&["try_files"]);
        let missing = state.missing.take();
        let handler = level.handler(HANDLERS);
        if let Some(handler) = handler.filter(|handler| handler.name == "fastcgi_pass") {
            if let Some(directive) = directive {
                let text = "The application itself answers 404 for a script that is missing.";
                self.remark(directive, Verdict::Differs, text);
            }
            return self.handled(handler, level, &state, guarded, None);
        }
        let (tried, last) = match (directive, &missing) {
            (Some(directive), _) => {
                let Some((last, tried)) = directive.args.split_last() else { return };
                (tried.to_vec(), last.clone())
            }
            (None, Some((path, _))) => (vec!["$uri".to_owned(), "$uri/".to_owned()], path.clone()),
            (None, None) => return,
        };
        let Some(files) = self.folder(level, &state, &tried) else {
            let place = directive.map_or(state.server.place, |directive| directive.place);
            if let Some(directive) = directive {
                let text =
                    "the folder is no absolute path; the route answers 503: write `root` with a full path";
                self.remark(directive, Verdict::NotPossible, text);
            }
            let decision = state.decision(place, Target::Closed("the folder is no absolute path".to_owned()));
            return self.emit(&state, level, decision);
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
            if let Some(handler) = handler {
                // nginx passes existing files to the handler, and answers the status for missing ones.
                let text = "The handler answers for missing files too.";
                self.remark(line, Verdict::Differs, text);
                return self.handled(handler, level, state, guarded, None);
            }
            files.insert("fallback".to_owned(), json!({"status": code}));
            return self.served(line, Served { files, guarded }, level, state);
        }
        if last.starts_with('@') {
            return self.named_fallback(&last, Files { files, line, guarded }, level, state);
        }
        let (path, query) = match &missing {
            Some((path, args)) => {
                let query = args.as_ref().map_or("${is_args}${args}".to_owned(), |args| format!("?{args}"));
                (path.clone(), query)
            }
            None => {
                let (path, query) = last.split_once('?').unwrap_or((&last, ""));
                let path = self.text(line, path, state, level);
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
                inner.prefix = None;
                let guarded = self.with_guards_of(&entry.level, &inner, guarded);
                self.handled(handler, &entry.level, &inner, guarded, Some(files));
            }
            (Some(entry), None) if self.is_same_folder(&entry.level, level) && !path.contains('$') => {
                files.insert("fallback".to_owned(), json!({"file": path}));
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
            let text = format!("there is no location {name}; the route answers 503");
            self.remark(line, Verdict::NotPossible, text);
            let decision = state.decision(line.place, Target::Closed(format!("there is no location {name}")));
            return self.emit(state, level, decision);
        };
        let mut inner = state.clone();
        inner.prefix = None;
        for set in named.own_all(&["set"]) {
            let text = self.text(set, set.arg(1), &inner, &named);
            inner.sets.insert(set.arg(0).trim_start_matches('$').to_owned(), text);
        }
        let guarded = self.with_guards_of(&named, &inner, guarded);
        if let Some(reason) = guarded.closed.clone() {
            let decision = inner.decision(line.place, Target::Closed(reason));
            return self.emit(&inner, &named, decision);
        }
        let rewrites = named.own_all(&["rewrite", "if"]);
        if let (Some(answer), true) = (named.own("return"), rewrites.is_empty()) {
            let before = self.plan.decisions.len();
            self.respond(answer, &named, &inner);
            if let Some(decision) = self.plan.decisions.get_mut(before) {
                files.insert("fallback".to_owned(), json!({"pass": ""}));
                decision.plugins.insert("static-files".to_owned(), Value::Object(files));
                decision.plugins.extend(guarded.plugins);
            }
            return;
        }
        if let Some((path, query)) = self.single_rewrite(&named, &mut inner) {
            return self.path_fallback(Fallback { path, query, files, line, guarded }, &named, &inner);
        }
        if !rewrites.is_empty() {
            let text = format!("the conditions of {name} are left out");
            self.remark(line, Verdict::NotPossible, text);
        }
        files.insert("fallback".to_owned(), json!({"pass": ""}));
        match named.handler(HANDLERS) {
            Some(handler) => self.handled(handler, &named, &inner, guarded, Some(files)),
            None => self.finish(line, &named, &inner, guarded, Target::Files(files)),
        }
    }

    /// A named location with one rewrite, such as `rewrite ^/(.*)$ /index.php?q=$1 last;`.
    fn single_rewrite(&mut self, named: &Rc<Level<'a>>, state: &mut State<'a>) -> Option<(String, String)> {
        let rewrites = named.own_all(&["rewrite", "if", "return"]);
        let [rewrite] = rewrites.as_slice() else { return None };
        if rewrite.name != "rewrite" || named.handler(HANDLERS).is_some() {
            return None;
        }
        let pattern = super::pattern::Pattern::new(rewrite.arg(0), false).ok()?;
        let subject = state.uri_text();
        state.captures = super::state::Captures::Of { subject, pattern };
        let source = rewrite.arg(1);
        let keeps_query = !source.ends_with('?');
        let (path, query) =
            source.trim_end_matches('?').split_once('?').unwrap_or((source.trim_end_matches('?'), ""));
        let path = self.text(rewrite, path, state, named);
        let query = (!query.is_empty()).then(|| self.text(rewrite, query, state, named));
        let tail = match self.joined_args(query, keeps_query, state) {
            None => "${is_args}${args}".to_owned(),
            Some(args) if args.is_empty() => String::new(),
            Some(args) => format!("?{args}"),
        };
        Some((path, tail))
    }

    /// Adds the guards of the level that a request goes on to.
    fn with_guards_of(&mut self, level: &Rc<Level<'a>>, state: &State<'a>, mut guarded: Guarded) -> Guarded {
        let other = self.guards(level, state);
        for (name, plugin) in other.plugins {
            guarded.plugins.entry(name).or_insert(plugin);
        }
        guarded.closed = guarded.closed.or(other.closed);
        guarded
    }

    fn is_same_folder(&self, one: &Level<'a>, other: &Level<'a>) -> bool {
        one.own("alias").is_none() && other.own("alias").is_none() && one.text("root") == other.text("root")
    }
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
    missing: Option<(String, Option<String>)>,
    directive: Option<&'a Directive>,
    handler: Option<&'a Directive>,
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
            Kind::Regex(pattern) => super::pattern::known_match(pattern, path) == Known::Yes,
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

/// Media types by extension, if the file lists its own.
fn types(level: &Level<'_>) -> Option<Value> {
    let blocks = level.all(&["types"]);
    let entries: Vec<&Directive> = blocks.iter().flat_map(|block| block.children()).collect();
    if blocks.is_empty() || entries.len() >= STOCK_TYPES {
        return None;
    }
    let mut types = Map::new();
    for entry in &entries {
        for extension in &entry.args {
            types.insert(extension.clone(), entry.name.clone().into());
        }
    }
    if let Some(charset) = level.text("charset").filter(|charset| *charset != "off") {
        for value in types.values_mut() {
            // nginx's own `charset_types`.
            let kind = value.as_str().unwrap_or_default();
            if matches!(
                kind,
                "text/html" | "text/xml" | "text/plain" | "application/javascript" | "application/rss+xml"
            ) {
                *value = format!("{kind}; charset={charset}").into();
            }
        }
    }
    let rest = level.text("default_type").unwrap_or("text/plain");
    for extension in COMMON {
        types.entry(*extension).or_insert_with(|| rest.into());
    }
    Some(Value::Object(types))
}
