//! `error_page`.

use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::Path;
use super::super::report::Verdict;
use super::content::HANDLERS;
use super::converter::Converter;
use super::files::destination;
use super::level::Level;
use super::locations::Kind;
use super::parse::Directive;
use super::rewriting::{Phase, REWRITES};
use super::state::State;

impl<'a> Converter<'a> {
    /// Returns the configuration of error-page for a level.
    pub(super) fn error_pages(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Option<Value> {
        let directives = level.all(&["error_page"]);
        let mut pages = Vec::new();
        for directive in directives {
            pages.extend(self.error_page(directive, level, state));
        }
        if pages.is_empty() {
            return None;
        }
        let mut config = json!({"pages": pages});
        let intercepts = ["proxy_intercept_errors", "fastcgi_intercept_errors", "grpc_intercept_errors"];
        if intercepts.iter().any(|name| level.is_on(name)) {
            config["intercept"] = true.into();
        }
        Some(config)
    }

    /// Routes for the pages of errors, which internal requests alone reach: their responses lack the fields that
    /// `add_header` and `expires` add to successes.
    pub(super) fn pages_of_errors(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) {
        let server = Rc::clone(&state.server);
        let mut pages = Pages::default();
        if let Some(parent) = &level.parent {
            parent.own_all(&["error_page"]).into_iter().for_each(|line| pages.add(line));
        }
        pages.collect(level.directives);
        for path in pages.paths {
            let entry = destination(&server.entries, path);
            let page_level = entry.map_or(level, |entry| &entry.level);
            let has_fields = page_level.last("expires").is_some()
                || page_level.all(&["add_header"]).iter().any(|line| line.args.len() == 2);
            let is_file = page_level.handler(HANDLERS).is_none();
            if !(has_fields || is_file) || !Self::is_straight(page_level) {
                continue;
            }
            let mut inner = state.clone();
            inner.path = Some(Path::Exact(path.to_owned()));
            inner.location.text = format!("{path}-error");
            inner.is_internal = true;
            inner.is_error = true;
            if let Some(entry) = entry {
                inner.location.is_exact = matches!(entry.kind, Kind::Exact(_));
                inner.location.prefix = match &entry.kind {
                    Kind::Exact(text) | Kind::Prefix(text) => Some(text.clone()),
                    Kind::Regex(_) | Kind::Unknown(..) => None,
                };
            }
            let level = Rc::clone(page_level);
            self.follow(&level, inner, Phase::Location);
        }
        for (name, key) in pages.named {
            let Some(named) = server.named.get(name).cloned() else { continue };
            if redirect_of(&named, &key).is_some() {
                continue;
            }
            let mut inner = state.clone();
            inner.conditions.push(json!(["internal_name", "==", key]));
            inner.location.text = format!("-{key}");
            inner.is_internal = true;
            inner.is_error = !key.ends_with('=');
            self.follow(&named, inner, Phase::Location);
        }
    }

    fn error_page(
        &mut self,
        directive: &Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
    ) -> Option<Value> {
        let (target, rest) = directive.args.split_last()?;
        let mut status = None;
        let mut codes: Vec<u16> = Vec::new();
        for arg in rest {
            match arg.strip_prefix('=') {
                Some("") => status = Some(0),
                Some(code) => status = code.parse::<u16>().ok(),
                None => codes.extend(arg.parse::<u16>().ok()),
            }
        }
        if codes.is_empty() {
            return None;
        }
        // Of the fields of an error, nginx keeps the question for a login alone.
        let mut page = json!({"status": codes, "keep_fields": ["WWW-Authenticate"]});
        if let Some(status) = status.filter(|status| *status >= 200) {
            page["response_status"] = status.into();
        }
        if let Some(name) = target.strip_prefix('@') {
            return self.named_page(directive, &format!("@{name}"), status, page, state);
        }
        let text = self.text(directive, target, state, level);
        if text.starts_with("http://") || text.starts_with("https://") || text.starts_with("${scheme}") {
            page["location"] = text.into();
            if page.get("response_status").is_none() {
                page["response_status"] = 302.into();
            }
            return Some(page);
        }
        // A page of the same status would look for itself without end; the gateway responds with its own body then.
        if let Some(status) = self.answered(&text, state) {
            return status.map(|location| {
                page["location"] = location.into();
                page
            });
        }
        page["uri"] = text.into();
        if status == Some(0) {
            page["use_page_status"] = true.into();
        }
        Some(page)
    }

    /// A page in a location with nothing but `return`: Some(None) if it is another status without a text.
    fn answered(&mut self, path: &str, state: &State<'a>) -> Option<Option<String>> {
        let server = Rc::clone(&state.server);
        let entry = destination(&server.entries, path)?;
        let answer = entry.level.own("return")?;
        let is_redirect = matches!(answer.arg(0), "301" | "302" | "303" | "307" | "308");
        if !is_redirect || entry.level.own_all(REWRITES).len() != 1 {
            return None;
        }
        let text = self.text(answer, answer.arg(1), state, &entry.level);
        Some(Some(text))
    }

    /// A page of a named location.
    fn named_page(
        &mut self,
        directive: &Directive,
        name: &str,
        status: Option<u16>,
        mut page: Value,
        state: &State<'a>,
    ) -> Option<Value> {
        let Some(named) = state.server.named.get(name).cloned() else {
            self.remark(directive, Verdict::NotPossible, format!("the location {name} does not exist"));
            return None;
        };
        let key = named_key(name, status);
        if let Some((status, target)) = redirect_of(&named, &key) {
            let line = named.own("return").unwrap_or(directive);
            page["response_status"] = status.into();
            page["location"] = self.text(line, target, state, &named).into();
            return Some(page);
        }
        page["named"] = key.into();
        if status == Some(0) {
            page["use_page_status"] = true.into();
        }
        Some(page)
    }
}

/// The name of the internal requests for a named location: responses with their own status have another one.
fn named_key(name: &str, status: Option<u16>) -> String {
    match status {
        Some(status) if status < 400 => format!("{name}="),
        _ => name.to_owned(),
    }
}

/// The status and target of a named location that redirects with its own status, and does nothing else.
fn redirect_of<'a>(named: &Level<'a>, key: &str) -> Option<(u16, &'a str)> {
    let line = named.own("return").filter(|_| named.own_all(REWRITES).len() == 1 && key.ends_with('='))?;
    let (status, target) = match line.arg(0).parse::<u16>() {
        Ok(status) => (status, line.arg(1)),
        Err(_) => (302, line.arg(0)),
    };
    matches!(status, 301 | 302 | 303 | 307 | 308).then_some((status, target))
}

/// The targets of `error_page`.
#[derive(Default)]
struct Pages<'d> {
    /// Paths whose response has the status of an error.
    paths: Vec<&'d str>,
    /// Named locations with the names of their internal requests.
    named: Vec<(&'d str, String)>,
}

impl<'d> Pages<'d> {
    fn collect(&mut self, directives: &'d [Directive]) {
        for directive in directives {
            if directive.name == "error_page" {
                self.add(directive);
            }
            self.collect(directive.children());
        }
    }

    fn add(&mut self, directive: &'d Directive) {
        let Some((target, rest)) = directive.args.split_last() else { return };
        let status = rest.iter().find_map(|arg| arg.strip_prefix('='));
        let status = status.map(|status| status.parse::<u16>().unwrap_or(0));
        if target.starts_with('@') {
            let entry = (target.as_str(), named_key(target, status));
            if !self.named.contains(&entry) {
                self.named.push(entry);
            }
        } else if status.is_none_or(|status| status >= 400)
            && target.starts_with('/')
            && !target.contains('$')
            && !self.paths.contains(&target.as_str())
        {
            self.paths.push(target);
        }
    }
}
