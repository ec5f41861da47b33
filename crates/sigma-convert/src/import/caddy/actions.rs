//! Lines that change requests and responses: paths, fields, redirects, responses, compression.

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::source::SourceLine;
use super::matcher;
use super::rewriting::{Query, QueryRules, Rewrite};
use super::run::{Item, Runner};
use super::state::{Branch, Change};

impl Runner<'_> {
    pub(super) fn root(&mut self, item: &Item, branch: &mut Branch) {
        let Some(path) = item.args.last() else { return };
        if let Some(at) = path.find('{') {
            let (fixed, rest) = path.split_at(path[..at].rfind('/').map_or(0, |slash| slash));
            let text = self.text(item.place(), rest);
            if !fixed.starts_with('/') || text.is_empty() {
                let text = "The folder depends on the request: write one site for each folder.";
                self.remarks.gap(item.place(), text);
                return;
            }
            branch.files.root = Some(fixed.to_owned());
            branch.files.below_root = Some(text);
            return;
        }
        branch.files.below_root = None;
        branch.files.root = Some(match path.starts_with('/') {
            true => path.clone(),
            false => format!("{}{}", self.folder, path.trim_start_matches("./")),
        });
    }

    pub(super) fn headers(&mut self, item: &Item, branch: &mut Branch, is_response: bool) {
        let mut rows: Vec<(SourceLine, Vec<String>)> = Vec::new();
        if !item.args.is_empty() {
            rows.push((item.place(), item.args.clone()));
        }
        for line in item.line.lines() {
            rows.push((line.place(), line.words.iter().map(|token| token.text.clone()).collect()));
        }
        // Removals and defaults are applied with the response, and the whole line with them.
        let is_late = rows.iter().any(|(_, row)| row[0].starts_with(['-', '?', '>']) || row[0] == "defer");
        branch.is_for_errors |= is_response && !is_late;
        for (place, row) in rows {
            if matches!(row[0].as_str(), "defer" | "match") {
                self.remarks.done(place);
                continue;
            }
            if let Some((name, change)) = self.change(place, &row) {
                if let (true, true, Change::Set(value)) = (is_response, is_late, &change) {
                    let own = format!("late_{}_{}", branch.late.len() + 1, place.line);
                    let late = json!({"map": "$status", "regex": [{"match": "^[45]", "value": ""}], "default": value});
                    self.variables.own.insert(own.clone(), late);
                    branch.late.push((name.clone(), format!("$var_{own}")));
                }
                let list = if is_response { &mut branch.response } else { &mut branch.request };
                match name.eq_ignore_ascii_case("host") && !is_response {
                    true => {
                        if let Change::Set(value) = change {
                            branch.target.host = Some(value);
                        }
                    }
                    false => list.push((name, change)),
                }
            }
        }
    }

    /// Reads `+Field value`, `-Field`, `Field value`, `Field pattern replacement`.
    pub(super) fn change(&mut self, place: SourceLine, row: &[String]) -> Option<(String, Change)> {
        let field = row.first()?;
        let name = field.trim_start_matches(['+', '-', '?', '>']).trim_end_matches(':').to_owned();
        if row.len() > 2 {
            let text = "Replacements inside a field are done for Location and Cookie only.";
            self.remarks.gap(place, text);
            return None;
        }
        if field.starts_with('-') {
            if name.contains('*') {
                self.remarks.gap(place, "Name the fields to remove one by one.");
                return None;
            }
            return Some((name, Change::Remove));
        }
        let mut value = self.text(place, row.get(1).map_or("", String::as_str));
        if field.starts_with('?') {
            // A field of the response stays.
            let sent = format!("${{sent_http_{}}}", name.to_ascii_lowercase().replace('-', "_"));
            let own = format!("default_{}_{}", name.to_ascii_lowercase().replace('-', "_"), place.line);
            let map = json!({"map": sent, "regex": [{"match": ".", "value": sent}], "default": value});
            self.variables.own.insert(own.clone(), map);
            value = format!("$var_{own}");
        }
        Some(match (field.starts_with('+'), value.is_empty()) {
            (true, _) => (name, Change::Add(value)),
            (false, true) => (name, Change::Remove),
            (false, false) => (name, Change::Set(value)),
        })
    }

    pub(super) fn rewrite(&mut self, item: &Item, mut branch: Branch) -> Vec<Branch> {
        // Only the first rewrite that fits runs.
        if branch.target.is_rewritten {
            return vec![branch];
        }
        let target = item.args.last().cloned().unwrap_or_default();
        branch.target.is_rewritten = true;
        self.set_target(item.place(), &target, &mut branch);
        vec![branch]
    }

    /// Sets path and query of a rewrite's target.
    pub(super) fn set_target(&mut self, place: SourceLine, target: &str, branch: &mut Branch) {
        let (path, query) = match target.split_once('?') {
            // In `{?query}` the mark is part of a name.
            Some((path, _)) if path.ends_with('{') => (target, None),
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let path = path.replace("{?query}", "");
        let lead = CLIENT_PATHS.iter().find_map(|end| path.strip_suffix(end));
        if let (Some(lead), Rewrite::Prefix { known, lead: before }) = (lead, &branch.target.rewrite)
            && lead.starts_with('/')
            && !lead.contains('{')
            && !(known.is_empty() && before.is_empty())
        {
            let lead = format!("{}{before}", lead.trim_end_matches('/'));
            branch.target.rewrite = Rewrite::Prefix { known: known.clone(), lead };
            return self.set_query(place, query, branch);
        }
        match path.as_str() {
            "" | "{path}" | "{http.request.uri.path}" | "{uri}" => {}
            path => {
                let text = self.text(place, path);
                let is_own =
                    branch.target.rewrite == Rewrite::Prefix { known: String::new(), lead: String::new() };
                if text.contains('$') && !is_own {
                    self.remarks.differs(place, "The variables have the client's path, not the changed one.");
                }
                let text = match text.chars().next() {
                    Some('$') => self.variables.rooted(place.line, &text),
                    Some('/') => text,
                    _ => format!("/{text}"),
                };
                branch.target.rewrite = match text.contains('$') {
                    true => Rewrite::Template(text),
                    false => Rewrite::Fixed(text),
                };
            }
        }
        self.set_query(place, query, branch);
    }

    /// Sets the query of a rewrite's target.
    fn set_query(&mut self, place: SourceLine, query: Option<&str>, branch: &mut Branch) {
        let Some(query) = query else { return };
        let rest = query.strip_prefix("{query}").or_else(|| query.strip_prefix("{http.request.uri.query}"));
        match rest {
            Some("") => {}
            Some(added) => {
                let mut arguments = Vec::new();
                for pair in added.split('&').filter(|pair| !pair.is_empty()) {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    arguments.push((name.to_owned(), self.text(place, value)));
                }
                branch.target.query = Query::Changed(QueryRules { add: arguments, ..QueryRules::default() });
            }
            None => {
                if query.contains("{path}") || query.contains("{uri}") {
                    self.remarks.differs(place, "Slashes of a path in the query are not encoded.");
                }
                self.variables.define_rest();
                branch.target.query = Query::Text(self.text(place, query));
            }
        }
    }

    pub(super) fn uri(&mut self, item: &Item, branch: Branch) -> Vec<Branch> {
        let args: Vec<&str> = item.args.iter().map(String::as_str).collect();
        match args.as_slice() {
            ["strip_prefix", prefix] => {
                let prefix = (*prefix).to_owned();
                match branch.clone().strip_prefix(&prefix) {
                    Ok(branches) => branches,
                    Err(_) => {
                        let mut branch = branch;
                        let start = regex::escape(&prefix);
                        let slash = if prefix.starts_with('/') { "" } else { "/" };
                        let pairs = [
                            format!("(?i)^{slash}{start}(/.*)$"),
                            "$1".to_owned(),
                            format!("(?i)^{slash}{start}(.*)$"),
                            "/$1".to_owned(),
                        ];
                        self.chained(item, &mut branch, &pairs);
                        vec![branch]
                    }
                }
            }
            ["strip_suffix", suffix] => {
                let pattern = format!("(?i){}$", regex::escape(suffix));
                self.changed(item, branch, pattern, String::new())
            }
            ["replace", find, replacement, ..] => {
                let text = "Sigma replaces up to four matches in the path, and none in the query.";
                self.remarks.differs(item.place(), text);
                let replacement = self.text(item.place(), replacement).replace('$', "$$");
                let pairs = repeated(&regex::escape(find), &replacement);
                self.replaced(item, branch, pairs)
            }
            ["path_regexp", find, replacement] => match matcher::regex(find) {
                Ok(pattern) if pattern.starts_with("/{") && pattern.ends_with("/") || pattern == "/{2,}" => {
                    self.remarks.done(item.place());
                    vec![branch]
                }
                Ok(pattern) => {
                    let text = "Sigma replaces only the first match in the path.";
                    self.remarks.differs(item.place(), text);
                    self.changed(item, branch, pattern, (*replacement).to_owned())
                }
                Err(reason) => {
                    self.remarks.gap(item.place(), reason);
                    vec![branch]
                }
            },
            ["query", ..] => self.query(item, branch),
            _ => {
                self.remarks.gap(item.place(), "This change of the URI is not converted.");
                vec![branch]
            }
        }
    }

    pub(super) fn changed(
        &mut self,
        item: &Item,
        branch: Branch,
        pattern: String,
        replacement: String,
    ) -> Vec<Branch> {
        self.replaced(item, branch, vec![pattern, replacement])
    }

    /// Changes the path by the first of some patterns that matches; after another change, by a variable.
    fn replaced(&mut self, item: &Item, mut branch: Branch, pairs: Vec<String>) -> Vec<Branch> {
        if branch.is_changed() {
            self.chained(item, &mut branch, &pairs);
            return vec![branch];
        }
        self.or_gap(item, branch, |mut branch| {
            branch.replace(pairs)?;
            Ok(vec![branch])
        })
    }

    /// Makes the path a variable: the path before, changed by the first of some patterns that matches.
    pub(super) fn chained(&mut self, item: &Item, branch: &mut Branch, pairs: &[String]) {
        let source = match branch.target.rewrite.patterns() {
            Some(before) => self.variables.chain(item.place().line, "${uri}", &before),
            None => match &branch.target.rewrite {
                Rewrite::Fixed(text) => text.clone(),
                Rewrite::Template(text) => self.variables.unrooted(text).replace("${request_uri}", "${uri}"),
                Rewrite::Prefix { .. } | Rewrite::Regex(_) => "${uri}".to_owned(),
            },
        };
        let changed = self.variables.chain(item.place().line, &source, pairs);
        branch.target.rewrite = Rewrite::Template(self.variables.rooted(item.place().line, &changed));
    }

    pub(super) fn query(&mut self, item: &Item, mut branch: Branch) -> Vec<Branch> {
        let mut rules = QueryRules::default();
        let mut rows: Vec<Vec<String>> = vec![item.args[1..].to_vec()];
        rows.extend(
            item.line.lines().iter().map(|line| line.words.iter().map(|word| word.text.clone()).collect()),
        );
        for row in rows.iter().filter(|row| !row.is_empty()) {
            match row.as_slice() {
                [name] if name.starts_with('-') => rules.remove.push(name[1..].to_owned()),
                [name, value] if name.starts_with('+') => {
                    rules.add.push((name[1..].to_owned(), self.text(item.place(), value)));
                }
                [name, value] => match name.split_once('>') {
                    Some((from, "")) => rules.rename.push((from.to_owned(), value.clone())),
                    _ => rules.set.push((name.clone(), self.text(item.place(), value))),
                },
                [name] if name.contains('>') => {
                    let (from, to) = name.split_once('>').unwrap_or_default();
                    rules.rename.push((from.to_owned(), to.to_owned()));
                }
                _ => self
                    .remarks
                    .gap(item.place(), "Use `args` of proxy-rewrite for this change of the query."),
            }
        }
        match &branch.target.query {
            Query::Kept => branch.target.query = Query::Changed(rules),
            _ => self.remarks.gap(item.place(), "This is the second change of the query; it has no effect."),
        }
        vec![branch]
    }

    pub(super) fn redirect(&mut self, item: &Item, branch: Branch) -> Branch {
        let place = item.place();
        let to = item.args.first().cloned().unwrap_or_default();
        let to = branch.with_path(self.text(place, &to));
        let status = match item.args.get(1).map(String::as_str) {
            None | Some("temporary") => 302,
            Some("permanent") => 301,
            Some("html") => {
                let body = format!(
                    "<!DOCTYPE html>\n<html>\n\t<head>\n\t\t<title>Redirecting...</title>\n\t\t<script>window.location.replace(\"{to}\");</script>\n\t\t<meta http-equiv=\"refresh\" content=\"0; URL='{to}'\">\n\t</head>\n\t<body>Redirecting to <a href=\"{to}\">{to}</a>...</body>\n</html>\n"
                );
                let headers = vec![("Content-Type".to_owned(), "text/html; charset=utf-8".to_owned())];
                return branch.finish(Target::Respond { status: 200, body: Some(body), headers });
            }
            Some(code) => code.parse().unwrap_or(302),
        };
        branch.finish(Target::Redirect { status, to })
    }

    pub(super) fn respond(&mut self, item: &Item, branch: Branch) -> Branch {
        let place = item.place();
        let quoted = item.line.words.last().is_some_and(|token| token.quoted);
        let (mut status, mut body) = (None, None);
        match item.args.as_slice() {
            [] => {}
            [one] if !quoted && one.len() == 3 && one.parse::<u16>().is_ok() => status = one.parse().ok(),
            [one] => body = Some(one.clone()),
            [text, code, ..] => {
                body = Some(text.clone());
                status = code.parse().ok();
            }
        }
        let mut close = false;
        for line in item.line.lines() {
            match line.name() {
                "body" => body = line.arg(0).map(str::to_owned),
                "close" => close = true,
                _ => self.remarks.gap(line.place(), "This option of `respond` is not converted."),
            }
        }
        let body = branch.with_path(self.text(place, &body.unwrap_or_default()));
        let looks_like_json =
            serde_json::from_str::<Value>(&body).is_ok_and(|value| value.is_object() || value.is_array());
        let mut headers = Vec::new();
        let has_type = branch.response.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if !body.is_empty() && !has_type {
            let kind = if looks_like_json { "application/json" } else { "text/plain; charset=utf-8" };
            headers.push(("Content-Type".to_owned(), kind.to_owned()));
        }
        if close {
            headers.push(("Connection".to_owned(), "close".to_owned()));
            headers.pop();
            self.remarks.no_effect(place, "The connection stays open for the next request.");
        }
        branch.finish(Target::Respond { status: status.unwrap_or(200), body: Some(body), headers })
    }

    pub(super) fn encode(&mut self, item: &Item, branch: &mut Branch) {
        let mut codings: Vec<String> = item.args.clone();
        let mut minimum = 512;
        let mut types = json!(TYPES);
        for line in item.line.lines() {
            match line.name() {
                "gzip" | "zstd" | "br" => codings.push(line.name().to_owned()),
                "minimum_length" => minimum = line.arg(0).and_then(|arg| arg.parse().ok()).unwrap_or(512),
                "match" => {
                    let header = line.lines().iter().find(|line| line.name() == "header");
                    let listed: Vec<String> =
                        header.map(|line| line.args()[1..].to_vec()).unwrap_or_default();
                    match listed.is_empty() || listed.iter().any(|kind| kind.contains('*')) {
                        true => self.remarks.differs(line.place(), "Name the types to compress without `*`."),
                        false => types = json!(listed),
                    }
                }
                _ => self.remarks.no_effect(line.place(), "Sigma's own compression level applies."),
            }
        }
        if codings.is_empty() {
            codings = vec!["zstd".to_owned(), "gzip".to_owned()];
        }
        for (coding, plugin) in [("gzip", "gzip"), ("br", "brotli"), ("zstd", "zstd")] {
            if codings.iter().any(|other| other == coding) {
                let conf = json!({"types": types, "min_length": minimum, "vary": true});
                branch.decision.plugins.insert(plugin.to_owned(), conf);
            }
        }
    }

    /// `map {source} {target…} { input output }` and `vars name value`.
    /// `vars name value`, or a block of them: variables of the route.
    pub(super) fn vars(&mut self, item: &Item, branch: &mut Branch) {
        let mut rows: Vec<Vec<String>> = vec![item.args.clone()];
        rows.extend(
            item.line.lines().iter().map(|line| line.words.iter().map(|word| word.text.clone()).collect()),
        );
        for row in rows {
            let [name, value] = row.as_slice() else { continue };
            let text = branch.with_path(self.text(item.place(), value));
            let own = super::text::set_name(name);
            self.variables.own.entry(own.clone()).or_insert_with(|| json!({"value": ""}));
            branch.set_variable(own, text);
        }
    }

    pub(super) fn map(&mut self, item: &Item) {
        let place = item.place();
        let args = item.line.args();
        let Some((source, targets)) = args.split_first() else { return };
        let source = self.text(place, source);
        for (at, target) in targets.iter().enumerate() {
            let name = target.trim_matches(['{', '}']).replace(['.', '-'], "_");
            let mut map = json!({"map": source, "default": ""});
            let (mut exact, mut regexes) = (Map::new(), Vec::new());
            for line in item.line.lines() {
                let text = line.arg(at).unwrap_or("-");
                // `${1}` is a group of the input, and no placeholder.
                let is_group = line.name().starts_with('~') && text.contains("${");
                let value = match is_group {
                    true => text.to_owned(),
                    false => self.text(line.place(), text),
                };
                if value == "-" {
                    continue;
                }
                match line.name() {
                    "default" => map["default"] = value.into(),
                    input => match input.strip_prefix('~') {
                        Some(pattern) => {
                            regexes.push(json!({"match": pattern, "value": value.replace("\\$", "$")}))
                        }
                        None => {
                            exact.insert(input.to_owned(), value.into());
                        }
                    },
                }
            }
            map["exact"] = Value::Object(exact);
            map["regex"] = Value::Array(regexes);
            self.variables.own.insert(name, map);
        }
    }
}

/// Placeholders of the path as it is at this point.
const CLIENT_PATHS: [&str; 4] = ["{path}", "{uri}", "{http.request.uri.path}", "{http.request.uri}"];

/// Patterns that replace four, three, two matches or one; the first pattern that fits is used.
fn repeated(find: &str, replacement: &str) -> Vec<String> {
    let mut pairs = Vec::new();
    for count in (1..=4).rev() {
        let pattern = format!("^(.*?){}$", vec![format!("{find}(.*{})", "?"); count].join(""));
        let to: String = (2..=count + 1).map(|group| format!("{replacement}${{{group}}}")).collect();
        // The last group takes the rest.
        let pattern = pattern.replacen("?)$", ")$", 1);
        pairs.extend([pattern, format!("${{1}}{to}")]);
    }
    pairs
}

/// Types that Caddy compresses.
const TYPES: [&str; 30] = [
    "text/html",
    "text/plain",
    "text/css",
    "text/xml",
    "text/javascript",
    "text/csv",
    "text/markdown",
    "text/calendar",
    "text/x-component",
    "text/cache-manifest",
    "text/vtt",
    "application/atom+xml",
    "application/geo+json",
    "application/graphql+json",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/rss+xml",
    "application/vnd.api+json",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-javascript",
    "application/xhtml+xml",
    "application/xml",
    "font/ttf",
    "font/otf",
    "image/svg+xml",
    "image/x-icon",
    "image/vnd.microsoft.icon",
];
