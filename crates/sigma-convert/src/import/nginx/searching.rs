//! The search for the location of a request.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::{Path, Target};
use super::super::report::Verdict;
use super::access::Guarded;
use super::converter::Converter;
use super::level::Level;
use super::locations::{Entry, Kind};
use super::pattern::{StaticMatch, known_match};
use super::rewriting::Phase;
use super::state::{Captures, State};

/// Directives that pass requests on: their locations redirect to the path with a slash.
const PASSES: &[&str] =
    &["proxy_pass", "fastcgi_pass", "grpc_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"];

/// Maximum number of searches of one request, as in nginx.
const MOST_SEARCHES: usize = 10;

impl<'a> Converter<'a> {
    /// Searches the locations of the server for the path of the state.
    pub(super) fn search(&mut self, mut state: State<'a>) {
        state.rewritten.is_moved = false;
        state.rewritten.is_whole = false;
        if state.searches > MOST_SEARCHES {
            let target = Target::Respond { status: 500, body: None, headers: Vec::new() };
            let level = Rc::clone(&state.server.level);
            return self.emit(&state, &level, state.decision(state.server.place, target));
        }
        let server = Rc::clone(&state.server);
        if state.rewritten.uri.is_none() {
            self.slash_redirects(&state);
        }
        for entry in &server.entries {
            if self.enter(entry, &state) {
                return;
            }
        }
        // No location: the server's own root.
        let level = Rc::clone(&server.level);
        self.content(&level, state);
    }

    /// A proxied location `/a/` redirects `/a`, before regular expressions are tried.
    fn slash_redirects(&mut self, state: &State<'a>) {
        let server = Rc::clone(&state.server);
        let known: HashSet<&str> = server
            .entries
            .iter()
            .filter_map(|entry| match &entry.kind {
                Kind::Exact(text) | Kind::Prefix(text) => Some(text.as_str()),
                Kind::Regex(_) | Kind::Unknown(..) => None,
            })
            .collect();
        for entry in &server.entries {
            let Kind::Prefix(text) = &entry.kind else { continue };
            let path = text.trim_end_matches('/');
            let is_proxied = !entry.level.own_all(PASSES).is_empty();
            if !text.ends_with('/') || path.is_empty() || !is_proxied || known.contains(path) {
                continue;
            }
            let mut inner = state.clone();
            inner.path = Some(Path::Exact(path.to_owned()));
            inner.location.text = format!("{path}-slash");
            let to = format!("{text}${{is_args}}${{args}}");
            let mut decision = inner.decision(entry.directive.place, Target::Redirect { status: 301, to });
            let fields = self.response_fields(&entry.level, &inner, &[]);
            if !fields.is_empty() {
                decision.plugins.insert("response-rewrite".to_owned(), Value::Object(fields));
            }
            if let Some(function) = self.expires_function(&entry.level, false, false) {
                let functions = json!({"phase": "header_filter", "functions": [function]});
                decision.plugins.insert("serverless-post-function".to_owned(), functions);
            }
            self.emit(&inner, &entry.level, decision);
        }
    }

    /// Enters a location if the path of the state may match it; returns whether it always does.
    fn enter(&mut self, entry: &Entry<'a>, state: &State<'a>) -> bool {
        let mut inner = state.clone();
        let is_certain = match &state.rewritten.uri {
            None => {
                inner.path = Some(entry.path());
                inner.conditions.extend(entry.conditions("uri"));
                matches!(&entry.kind, Kind::Prefix(text) if text == "/") && entry.within.is_empty()
            }
            Some(text) => match self.enters(entry, text, &mut inner) {
                StaticMatch::No => return false,
                known => known == StaticMatch::Yes,
            },
        };
        inner.location.text = format!("{}{}", state.location.text, label(entry));
        inner.location.is_exact = matches!(entry.kind, Kind::Exact(_));
        inner.location.prefix = match &entry.kind {
            Kind::Exact(text) | Kind::Prefix(text) => Some(text.clone()),
            Kind::Regex(_) | Kind::Unknown(..) => None,
        };
        match &entry.kind {
            Kind::Regex(pattern) if state.rewritten.uri.is_none() => {
                inner.variables.captures = Captures::Route;
                let named = self.variables.named(&Captures::Route, pattern);
                inner.variables.named.extend(named);
            }
            Kind::Regex(pattern) => self.captured(pattern, &state.uri_text(), &mut inner),
            Kind::Unknown(reason, _) => {
                self.unknown_location(entry, reason, &inner);
                return false;
            }
            _ => {}
        }
        let level = Rc::clone(&entry.level);
        if state.rewritten.uri.is_none() && level.own("internal").is_some() {
            self.accelerated(entry, &level);
            // Internal requests get the content, requests of clients 404.
            let mut hidden = inner.clone();
            hidden.is_internal = true;
            self.follow(&level, hidden, Phase::Location);
            let target = Target::Respond { status: 404, body: None, headers: Vec::new() };
            self.finish(entry.directive, &level, &inner, Guarded::default(), target);
            return is_certain;
        }
        self.follow(&level, inner, Phase::Location);
        is_certain
    }

    /// An internal location that no line of the file leads to is for `X-Accel-Redirect`.
    fn accelerated(&mut self, entry: &Entry<'a>, level: &Level<'a>) {
        let (Kind::Exact(text) | Kind::Prefix(text)) = &entry.kind else { return };
        let is_target = self.internal_paths.iter().any(|path| path.starts_with(text.as_str()));
        if let Some(line) = level.own("internal").filter(|_| !is_target) {
            let text =
                "`X-Accel-Redirect` has no effect: clients get the response of the application instead.";
            self.remark(line, Verdict::Differs, text);
        }
    }

    /// Whether a rewritten path matches a location; a condition is added where that depends on the request.
    fn enters(&mut self, entry: &Entry<'a>, text: &str, inner: &mut State<'a>) -> StaticMatch {
        let known = match &entry.kind {
            Kind::Exact(path) if !text.contains('$') => {
                if path == text {
                    StaticMatch::Yes
                } else {
                    StaticMatch::No
                }
            }
            Kind::Exact(path) => starts(text, path, true),
            Kind::Prefix(path) => starts(text, path, false),
            Kind::Regex(pattern) => known_match(pattern, text),
            Kind::Unknown(_, Some(pattern)) => known_match(pattern, text),
            Kind::Unknown(_, None) => StaticMatch::Maybe,
        };
        let around = entry.within.iter().map(|prefix| starts(text, prefix, false)).collect::<Vec<_>>();
        if known == StaticMatch::No || around.contains(&StaticMatch::No) {
            return StaticMatch::No;
        }
        if known == StaticMatch::Yes && !around.contains(&StaticMatch::Maybe) {
            return StaticMatch::Yes;
        }
        let name = self.condition_name(text, inner);
        match &entry.kind {
            Kind::Exact(path) => inner.conditions.push(json!([name, "==", path])),
            Kind::Prefix(path) if path != "/" => {
                inner.conditions.push(json!([name, "~~", format!("^{}", regex::escape(path))]));
            }
            Kind::Regex(pattern) => inner.conditions.push(pattern.condition(&name)),
            _ => {}
        }
        inner.conditions.extend(entry.conditions(&name));
        StaticMatch::Maybe
    }

    /// A location whose expression cannot be translated.
    fn unknown_location(&mut self, entry: &Entry<'a>, reason: &str, state: &State<'a>) {
        if !self.has_guards(&entry.level) {
            let text = format!("{reason}; its requests go to the other locations: write its route by hand");
            return self.remark(entry.directive, Verdict::NotPossible, text);
        }
        let text = format!("{reason}; all paths that could match are closed");
        self.guard(entry.directive, Verdict::NotPossible, text);
        let target = Target::Closed(reason.to_owned());
        self.emit(state, &entry.level, state.decision(entry.directive.place, target));
    }
}

fn label(entry: &Entry<'_>) -> String {
    match &entry.kind {
        Kind::Exact(text) | Kind::Prefix(text) => text.clone(),
        Kind::Regex(pattern) => format!("-{}", pattern.text),
        Kind::Unknown(..) => "-closed".to_owned(),
    }
}

/// Whether a text with variables begins with a path, or is equal to it.
fn starts(text: &str, path: &str, exactly: bool) -> StaticMatch {
    let prefix = text.split('$').next().unwrap_or_default();
    if prefix.len() == text.len() {
        let is_match = if exactly { text == path } else { text.starts_with(path) };
        return if is_match { StaticMatch::Yes } else { StaticMatch::No };
    }
    if prefix.starts_with(path) {
        return if exactly && prefix != path {
            StaticMatch::No
        } else if exactly {
            StaticMatch::Maybe
        } else {
            StaticMatch::Yes
        };
    }
    if path.starts_with(prefix) { StaticMatch::Maybe } else { StaticMatch::No }
}
