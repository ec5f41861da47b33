//! The lines of a site in the order in which Caddy runs them.

use std::collections::HashMap;

use serde_json::Value;

use super::super::decision::Target;
use super::super::remarks::Remarks;
use super::super::source::{Files, SourceLine};
use super::matcher::{self, Condition, Named};
use super::parse::Line;
use super::proxy::Upstreams;
use super::state::{Branch, Pattern};
use super::text::Variables;
use super::{files, guards, php, proxy, responses};

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
    pub(super) fn place(&self) -> SourceLine {
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

    /// Runs lines. The order of the branches stays, so the first match still wins.
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
                // A matcher that could not be read closes its lines: its condition is unknown.
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
            let was_rewritten = std::mem::take(&mut taken.target.is_rewritten);
            let before = self.matched(item);
            let inner = match item.line.name() {
                "handle_path" => self.strip(item, taken),
                _ => vec![taken],
            };
            let mut done = self.run(item.line.lines(), named, inner, true);
            done.iter_mut().for_each(|branch| branch.target.is_rewritten |= was_rewritten);
            self.variables.last = before;
            out.extend(done);
        }
        out.extend(rest);
        out
    }

    /// Remembers the expression of the line's matcher for `{re.1}`; returns the one before.
    fn matched(&mut self, item: &Item) -> Option<usize> {
        let before = self.variables.last;
        let number = matcher::expression(&item.condition).and_then(|text| self.variables.number_of(text));
        self.variables.last = number.or(before);
        before
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
        if item.condition == Condition::Always {
            return (Some(branch), None);
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
                false => {
                    let before = self.matched(item);
                    out.extend(self.apply(item, named, taken));
                    self.variables.last = before;
                }
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
            "root" | "header" | "request_header" | "method" | "try_files" | "encode" | "vars" | "map" => {
                self.set(item, &mut branch);
                vec![branch]
            }
            "rewrite" => self.rewrite(item, branch),
            "uri" => self.uri(item, branch),
            "redir" => vec![self.redirect(item, branch)],
            "respond" => vec![self.respond(item, branch)],
            "error" => {
                let status = item.args.iter().find_map(|arg| arg.parse::<u16>().ok()).unwrap_or(500);
                // Fields that are set with the response are lost.
                let late = std::mem::take(&mut branch.late);
                branch.response.retain(|(name, change)| {
                    !matches!(change, super::state::Change::Remove)
                        && !late.iter().any(|(other, _)| other == name)
                });
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
            "basic_auth" | "basicauth" | "forward_auth" | "request_body" | "rate_limit" => {
                guards::apply(self, item, branch)
            }
            "reverse_proxy" => {
                self.response_matchers = responses::matchers(item.line.lines()).into_iter().collect();
                proxy::reverse_proxy(self, item, branch)
            }
            "php_fastcgi" => php::php_fastcgi(self, item, branch),
            "file_server" => files::file_server(self, item, branch),
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

    /// Changes a branch that continues in any case.
    fn set(&mut self, item: &Item, branch: &mut Branch) {
        match item.line.name() {
            "root" => self.root(item, branch),
            "header" => self.headers(item, branch, true),
            "request_header" => self.headers(item, branch, false),
            "method" => branch.target.method = item.args.first().map(|method| method.to_ascii_uppercase()),
            "try_files" => branch.files.candidates.clone_from(&item.args),
            "encode" => self.encode(item, branch),
            "vars" => self.vars(item, branch),
            _ => self.map(item),
        }
    }

    /// Returns a text with variables; a placeholder without a counterpart has a remark.
    pub(super) fn text(&mut self, place: SourceLine, text: &str) -> String {
        let (text, unknown) = self.variables.text(text);
        for name in unknown {
            self.remarks.gap(place, format!("The placeholder {name} has no counterpart; it is empty."));
        }
        text
    }
}

/// Replaces each branch that continues. The order of the branches stays.
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
