//! The lines of a site in the order in which Caddy runs them.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::remarks::Remarks;
use super::super::source::{Files, Place};
use super::matcher::{self, Condition, Named};
use super::parse::Line;
use super::proxy::Upstreams;
use super::state::{Branch, Change, Pattern, Query, Rewrite};
use super::text::Variables;
use super::{files, guards, proxy};

/// Maximum number of decisions of one site.
const MAX_BRANCHES: usize = 1000;

/// Maximum nesting of handlers.
const MAX_DEPTH: usize = 24;

/// The order of directives.
const ORDER: [&str; 38] = [
    "tracing",
    "map",
    "vars",
    "fs",
    "root",
    "log_append",
    "skip_log",
    "log_skip",
    "log_name",
    "header",
    "copy_response_headers",
    "request_body",
    "redir",
    "method",
    "rewrite",
    "uri",
    "try_files",
    "basicauth",
    "basic_auth",
    "forward_auth",
    "request_header",
    "encode",
    "push",
    "intercept",
    "templates",
    "invoke",
    "handle",
    "handle_path",
    "route",
    "abort",
    "error",
    "copy_response",
    "respond",
    "metrics",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
    "acme_server",
];

/// The converter of the lines of sites.
pub(super) struct Runner<'a> {
    pub(super) remarks: &'a mut Remarks,
    pub(super) access: &'a dyn Files,
    pub(super) variables: Variables,
    pub(super) upstreams: Upstreams,
    pub(super) routes: HashMap<String, Vec<Line>>,
    /// Statuses of the response matchers of the current proxy.
    pub(super) response_matchers: HashMap<String, Vec<Value>>,
    /// Changes of the order by the option `order`.
    pub(super) order: Vec<String>,
    /// The folder of the configuration.
    pub(super) folder: String,
    depth: usize,
}

/// A line with its matcher.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) line: Line,
    pub(super) condition: Condition,
    /// The words after the matcher.
    pub(super) args: Vec<String>,
}

impl Item {
    pub(super) fn place(&self) -> Place {
        self.line.place()
    }
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        remarks: &'a mut Remarks,
        access: &'a dyn Files,
        routes: HashMap<String, Vec<Line>>,
        folder: String,
    ) -> Runner<'a> {
        let order = ORDER.iter().map(|name| (*name).to_owned()).collect();
        let (variables, upstreams) = (Variables::default(), Upstreams::default());
        let response_matchers = HashMap::new();
        Runner { remarks, access, variables, upstreams, routes, response_matchers, order, folder, depth: 0 }
    }

    /// Runs lines. Each branch is replaced in its place, so the first match still wins.
    pub(super) fn run(
        &mut self,
        lines: &[Line],
        named: &Named,
        branches: Vec<Branch>,
        is_sorted: bool,
    ) -> Vec<Branch> {
        self.depth += 1;
        let mut branches = branches;
        if self.depth > MAX_DEPTH {
            branches = map(branches, |branch| vec![branch.close("handlers are nested too deeply")]);
        } else {
            let mut named = named.clone();
            for line in lines.iter().filter(|line| line.name().starts_with('@')) {
                if let Err(reason) = matcher::define(line, &mut named, &mut self.variables) {
                    let text = format!("{reason}. Lines with this matcher are closed.");
                    self.remarks.closed(line.place(), text);
                }
            }
            let mut items: Vec<Item> = lines
                .iter()
                .filter(|line| !line.name().starts_with('@'))
                .map(|line| self.item(line, &named))
                .collect();
            if is_sorted {
                self.sort(&mut items);
            }
            branches = self.items(&items, &named, branches);
        }
        self.depth -= 1;
        branches
    }

    /// Reads the matcher of a line.
    fn item(&mut self, line: &Line, named: &Named) -> Item {
        let first = line.words.get(1).filter(|token| !token.quoted);
        let first = first.map(|token| token.text.as_str()).unwrap_or_default();
        let takes = !matches!(line.name(), "invoke" | "map" | "tracing" | "log_name" | "log_append");
        let condition = match first {
            _ if !takes => None,
            "*" => Some(Condition::Always),
            path if path.starts_with('/') && line.name() != "root" => Some(Condition::Path(path.to_owned())),
            path if path.starts_with('/') && line.words.len() > 2 => Some(Condition::Path(path.to_owned())),
            name if name.starts_with('@') => Some(named.get(&name[1..]).cloned().unwrap_or_else(|| {
                // A matcher that could not be read closes its lines: it is none of the known conditions.
                Condition::Any(Vec::new())
            })),
            _ => None,
        };
        let skip = if condition.is_some() { 2 } else { 1 };
        let args = line.words.iter().skip(skip).map(|token| token.text.clone()).collect();
        Item { line: line.clone(), condition: condition.unwrap_or(Condition::Always), args }
    }

    fn sort(&self, items: &mut [Item]) {
        // Directives of extensions may guard the site, so they come first.
        let position = |item: &Item| {
            let name = if item.line.name() == "handle_path" { "handle" } else { item.line.name() };
            self.order.iter().position(|known| known == name).map_or(0, |index| index + 1)
        };
        let is_less = |one: &Item, two: &Item| {
            let paths = (one.condition.only_path(), two.condition.only_path());
            if let (Some(first), Some(second)) = paths {
                let (short, other) = (first.trim_end_matches('*'), second.trim_end_matches('*'));
                return match (short == other, short.len() == other.len()) {
                    (true, _) => first.len() < second.len(),
                    (false, true) => short < other,
                    (false, false) => short.len() > other.len(),
                };
            }
            let is_any = |item: &Item| item.condition != Condition::Always;
            is_any(one) && !is_any(two)
        };
        items.sort_by_key(position);
        // Caddy's comparison is no total order, so the lines of one name are sorted by insertion, as they are few.
        for at in 1..items.len() {
            let mut index = at;
            while index > 0 && position(&items[index]) == position(&items[index - 1]) {
                let reversed = matches!(items[index].line.name(), "vars" | "root");
                let (low, high) = if reversed { (index - 1, index) } else { (index, index - 1) };
                if !is_less(&items[low], &items[high]) {
                    break;
                }
                items.swap(index, index - 1);
                index -= 1;
            }
        }
    }

    fn items(&mut self, items: &[Item], named: &Named, branches: Vec<Branch>) -> Vec<Branch> {
        let mut branches = branches;
        let mut at = 0;
        while at < items.len() {
            let is_group = |item: &Item| matches!(item.line.name(), "handle" | "handle_path");
            let end = at + items[at..].iter().take_while(|item| is_group(item)).count();
            if end > at {
                // At most one of the blocks of a group runs.
                let group = &items[at..end];
                branches = map(branches, |branch| self.group(group, named, branch));
                at = end;
            } else {
                let item = &items[at];
                branches = map(branches, |branch| self.one(item, named, branch));
                at += 1;
            }
            if branches.len() > MAX_BRANCHES {
                let text = format!(
                    "The conditions of this site need more than {MAX_BRANCHES} routes; the rest is closed."
                );
                self.remarks.closed(items[at - 1].place(), text);
                branches.truncate(MAX_BRANCHES);
                return map(branches, |branch| vec![branch.close("too many routes")]);
            }
        }
        branches
    }

    fn group(&mut self, group: &[Item], named: &Named, branch: Branch) -> Vec<Branch> {
        let mut out = Vec::new();
        let mut rest = Some(branch);
        for item in group {
            let Some(branch) = rest.take() else { break };
            let (taken, other) = self.split(item, branch);
            rest = other;
            let Some(mut taken) = taken.filter(|taken| !self.kept_finished(taken, &mut out)) else {
                continue;
            };
            // Changes of the path inside are not seen outside, but no line outside runs after most blocks.
            let was_rewritten = std::mem::take(&mut taken.is_rewritten);
            let inner = match item.line.name() {
                "handle_path" => self.strip(item, taken),
                _ => vec![taken],
            };
            let mut done = self.run(item.line.lines(), named, inner, true);
            done.iter_mut().for_each(|branch| branch.is_rewritten |= was_rewritten);
            out.extend(done);
        }
        out.extend(rest);
        out
    }

    /// Takes a branch that the split closed.
    fn kept_finished(&self, branch: &Branch, out: &mut Vec<Branch>) -> bool {
        if branch.is_finished {
            out.push(branch.clone());
        }
        branch.is_finished
    }

    fn strip(&mut self, item: &Item, branch: Branch) -> Vec<Branch> {
        let Some(Pattern::Prefix(_) | Pattern::Exact(_)) = item.condition.only_path().map(Pattern::of) else {
            self.remarks.gap(item.place(), "handle_path needs one path that ends in `/*`.");
            return vec![branch];
        };
        let path = item.condition.only_path().unwrap_or_default();
        let prefix = path.trim_end_matches('*').trim_end_matches('/').to_owned();
        self.or_gap(item, branch, |branch| branch.strip_prefix(&prefix))
    }

    /// Splits a branch by a matcher; one that cannot be understood closes it.
    pub(super) fn split(&mut self, item: &Item, branch: Branch) -> (Option<Branch>, Option<Branch>) {
        if item.condition == Condition::Any(Vec::new()) {
            return (Some(branch.close("a matcher that cannot be converted")), None);
        }
        let kept = branch.clone();
        branch.split(&item.condition).unwrap_or_else(|reason| {
            self.remarks.closed(item.place(), format!("{reason} The route is closed."));
            (Some(kept.close(reason)), None)
        })
    }

    /// Changes a branch, or leaves a remark.
    pub(super) fn or_gap(
        &mut self,
        item: &Item,
        branch: Branch,
        change: impl FnOnce(Branch) -> Result<Vec<Branch>, String>,
    ) -> Vec<Branch> {
        let kept = branch.clone();
        change(branch).unwrap_or_else(|reason| {
            self.remarks.gap(item.place(), reason);
            vec![kept]
        })
    }

    /// Runs one line on one branch.
    fn one(&mut self, item: &Item, named: &Named, branch: Branch) -> Vec<Branch> {
        if self.is_inert(item) {
            return vec![branch];
        }
        let (taken, rest) = self.split(item, branch);
        let mut out = Vec::new();
        if let Some(taken) = taken {
            match taken.is_finished {
                true => out.push(taken),
                false => out.extend(self.apply(item, named, taken)),
            }
        }
        out.extend(rest);
        out
    }

    /// Lines that change no response.
    fn is_inert(&mut self, item: &Item) -> bool {
        let place = item.place();
        match item.line.name() {
            "bind" | "tls" | "handle_errors" => {}
            "log" | "skip_log" | "log_skip" | "log_name" | "log_append" => {
                let text = "Logs are set for the whole gateway: see `access_log`.";
                self.remarks.differs(place, text);
            }
            "tracing" => self.remarks.gap(place, "Use the plugin opentelemetry."),
            "push" => self.remarks.no_effect(place, "Browsers have dropped HTTP/2 push."),
            "copy_response" | "copy_response_headers" => {}
            _ => return false,
        }
        true
    }

    fn apply(&mut self, item: &Item, named: &Named, mut branch: Branch) -> Vec<Branch> {
        match item.line.name() {
            "root" => {
                self.root(item, &mut branch);
                vec![branch]
            }
            "header" => {
                self.headers(item, &mut branch, true);
                vec![branch]
            }
            "request_header" => {
                self.headers(item, &mut branch, false);
                vec![branch]
            }
            "method" => {
                branch.method = item.args.first().map(|method| method.to_ascii_uppercase());
                vec![branch]
            }
            "rewrite" => self.rewrite(item, branch),
            "uri" => self.uri(item, branch),
            "try_files" => {
                branch.candidates.clone_from(&item.args);
                vec![branch]
            }
            "redir" => vec![self.redirect(item, branch)],
            "respond" => vec![self.respond(item, branch)],
            "error" => {
                let status = item.args.iter().find_map(|arg| arg.parse::<u16>().ok()).unwrap_or(500);
                vec![branch.finish(Target::Respond { status, body: None, headers: Vec::new() })]
            }
            "abort" => vec![branch.finish(Target::Drop)],
            "route" => self.run(item.line.lines(), named, vec![branch], false),
            "handle" | "handle_path" => self.run(item.line.lines(), named, vec![branch], true),
            "invoke" => match item.line.arg(0).and_then(|name| self.routes.get(name).cloned()) {
                Some(lines) => self.run(&lines, named, vec![branch], true),
                None => {
                    self.remarks
                        .closed(item.place(), "There is no named route of this name; the route is closed.");
                    vec![branch.close("a named route is missing")]
                }
            },
            "encode" => {
                self.encode(item, &mut branch);
                vec![branch]
            }
            "basic_auth" | "basicauth" | "forward_auth" | "request_body" | "rate_limit" => {
                guards::apply(self, item, branch)
            }
            "reverse_proxy" => {
                self.response_matchers = proxy::matchers(item.line.lines()).into_iter().collect();
                proxy::reverse_proxy(self, item, branch)
            }
            "php_fastcgi" => proxy::php_fastcgi(self, item, branch),
            "file_server" => files::file_server(self, item, branch),
            "vars" | "map" => {
                self.map(item);
                vec![branch]
            }
            "metrics" => {
                vec![branch.finish(Target::Respond { status: 404, body: None, headers: Vec::new() })]
            }
            "templates" | "intercept" | "fs" | "acme_server" => {
                self.remarks.gap(item.place(), format!("`{}` has no counterpart.", item.line.name()));
                vec![branch]
            }
            other => {
                let text = format!(
                    "`{other}` is not a directive of Caddy itself and may guard the site: it is closed."
                );
                self.remarks.closed(item.place(), text);
                vec![branch.close(format!("the directive {other}"))]
            }
        }
    }

    /// Returns a text with variables; a placeholder without a counterpart has a remark.
    pub(super) fn text(&mut self, place: Place, text: &str) -> String {
        self.variables.text(text).unwrap_or_else(|name| {
            self.remarks.gap(place, format!("The placeholder {name} has no counterpart; it is empty."));
            String::new()
        })
    }

    fn root(&mut self, item: &Item, branch: &mut Branch) {
        let Some(path) = item.args.last() else { return };
        if path.contains('{') {
            let text = "The folder depends on the request: write one site for each folder.";
            self.remarks.gap(item.place(), text);
            return;
        }
        branch.root = Some(match path.starts_with('/') {
            true => path.clone(),
            false => format!("{}{}", self.folder, path.trim_start_matches("./")),
        });
    }

    fn headers(&mut self, item: &Item, branch: &mut Branch, is_response: bool) {
        let mut rows: Vec<(Place, Vec<String>)> = Vec::new();
        if !item.args.is_empty() {
            rows.push((item.place(), item.args.clone()));
        }
        for line in item.line.lines() {
            rows.push((line.place(), line.words.iter().map(|token| token.text.clone()).collect()));
        }
        for (place, row) in rows {
            if matches!(row[0].as_str(), "defer" | "match") {
                self.remarks.done(place);
                continue;
            }
            if let Some((name, change)) = self.change(place, &row) {
                let list = if is_response { &mut branch.response } else { &mut branch.request };
                match name.eq_ignore_ascii_case("host") && !is_response {
                    true => {
                        if let Change::Set(value) = change {
                            branch.host = Some(value);
                        }
                    }
                    false => list.push((name, change)),
                }
            }
        }
    }

    /// Reads `+Field value`, `-Field`, `Field value`, `Field pattern replacement`.
    pub(super) fn change(&mut self, place: Place, row: &[String]) -> Option<(String, Change)> {
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
        let value = self.text(place, row.get(1).map_or("", String::as_str));
        if field.starts_with('?') {
            self.remarks.differs(place, "The field is set, also where the response has one.");
        }
        Some(match (field.starts_with('+'), value.is_empty()) {
            (true, _) => (name, Change::Add(value)),
            (false, true) => (name, Change::Remove),
            (false, false) => (name, Change::Set(value)),
        })
    }

    fn rewrite(&mut self, item: &Item, mut branch: Branch) -> Vec<Branch> {
        // Only the first rewrite that fits runs.
        if branch.is_rewritten {
            return vec![branch];
        }
        let target = item.args.last().cloned().unwrap_or_default();
        branch.is_rewritten = true;
        self.set_target(item.place(), &target, &mut branch);
        vec![branch]
    }

    /// Sets path and query of a rewrite's target.
    pub(super) fn set_target(&mut self, place: Place, target: &str, branch: &mut Branch) {
        let (path, query) = match target.split_once('?') {
            // In `{?query}` the mark is part of a name.
            Some((path, _)) if path.ends_with('{') => (target, None),
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let path = path.replace("{?query}", "");
        match path.as_str() {
            "" | "{path}" | "{http.request.uri.path}" | "{uri}" => {}
            path => {
                let text = self.text(place, path);
                let is_own = branch.rewrite == Rewrite::Prefix { known: String::new(), lead: String::new() };
                if text.contains('$') && !is_own {
                    self.remarks.differs(place, "The variables have the client's path, not the changed one.");
                }
                let text =
                    if text.starts_with('/') || text.starts_with('$') { text } else { format!("/{text}") };
                branch.rewrite = match text.contains('$') {
                    true => Rewrite::Template(text),
                    false => Rewrite::Fixed(text),
                };
            }
        }
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
                branch.query = Query::Added(arguments);
            }
            None => branch.query = Query::Text(self.text(place, query)),
        }
    }

    fn uri(&mut self, item: &Item, branch: Branch) -> Vec<Branch> {
        let args: Vec<&str> = item.args.iter().map(String::as_str).collect();
        match args.as_slice() {
            ["strip_prefix", prefix] => {
                let prefix = (*prefix).to_owned();
                self.or_gap(item, branch, |branch| branch.strip_prefix(&prefix))
            }
            ["strip_suffix", suffix] => {
                let pattern = format!("(?i){}$", regex::escape(suffix));
                self.changed(item, branch, pattern, String::new())
            }
            ["replace", find, replacement, ..] => {
                self.remarks.differs(
                    item.place(),
                    "The first match in the path is replaced, not those in the query.",
                );
                let replacement = self.text(item.place(), replacement);
                self.changed(item, branch, regex::escape(find), replacement.replace('$', "$$"))
            }
            ["path_regexp", find, replacement] => match matcher::regex(find) {
                Ok(pattern) if pattern.starts_with("/{") && pattern.ends_with("/") || pattern == "/{2,}" => {
                    self.remarks.done(item.place());
                    vec![branch]
                }
                Ok(pattern) => {
                    let text = "The first match in the path is replaced.";
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

    fn changed(&mut self, item: &Item, branch: Branch, pattern: String, replacement: String) -> Vec<Branch> {
        self.or_gap(item, branch, |mut branch| {
            branch.replace(pattern, replacement)?;
            Ok(vec![branch])
        })
    }

    fn query(&mut self, item: &Item, mut branch: Branch) -> Vec<Branch> {
        let mut added = Vec::new();
        let mut rows: Vec<Vec<String>> = vec![item.args[1..].to_vec()];
        rows.extend(
            item.line.lines().iter().map(|line| line.words.iter().map(|word| word.text.clone()).collect()),
        );
        for row in rows.iter().filter(|row| !row.is_empty()) {
            match (row[0].strip_prefix('+'), row.get(1)) {
                (Some(name), Some(value)) => added.push((name.to_owned(), self.text(item.place(), value))),
                _ => self
                    .remarks
                    .gap(item.place(), "Use `args` of proxy-rewrite for this change of the query."),
            }
        }
        if !added.is_empty() {
            branch.query = Query::Added(added);
        }
        vec![branch]
    }

    fn redirect(&mut self, item: &Item, branch: Branch) -> Branch {
        let place = item.place();
        let to = item.args.first().cloned().unwrap_or_default();
        let to = self.text(place, &to);
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
        let body = self.text(place, &body.unwrap_or_default());
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

    fn encode(&mut self, item: &Item, branch: &mut Branch) {
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
                _ => self.remarks.no_effect(line.place(), "The level of compression is Sigma's."),
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
    fn map(&mut self, item: &Item) {
        let place = item.place();
        if item.line.name() == "vars" {
            self.remarks.gap(place, "Variables of lines are not converted: use `variables` or `set`.");
            return;
        }
        let args = item.line.args();
        let Some((source, targets)) = args.split_first() else { return };
        let source = self.text(place, source);
        for (at, target) in targets.iter().enumerate() {
            let name = target.trim_matches(['{', '}']).replace(['.', '-'], "_");
            let mut map = json!({"map": source, "default": ""});
            let (mut exact, mut regexes) = (Map::new(), Vec::new());
            for line in item.line.lines() {
                let value = self.text(line.place(), line.arg(at).unwrap_or("-"));
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

/// Replaces each branch that goes on, in its place.
pub(super) fn map(branches: Vec<Branch>, mut change: impl FnMut(Branch) -> Vec<Branch>) -> Vec<Branch> {
    let mut out = Vec::with_capacity(branches.len());
    for branch in branches {
        match branch.is_finished {
            true => out.push(branch),
            false => out.extend(change(branch)),
        }
    }
    out
}
