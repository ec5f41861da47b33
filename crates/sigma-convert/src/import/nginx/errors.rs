//! `error_page`.

use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::Path;
use super::super::report::Verdict;
use super::converter::Converter;
use super::files::destination;
use super::level::Level;
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
        let mut paths = Vec::new();
        collect_pages(level.directives, &mut paths);
        for path in paths {
            let Some(entry) = destination(&server.entries, path) else { continue };
            let has_fields = entry.level.last("expires").is_some()
                || entry.level.all(&["add_header"]).iter().any(|line| line.args.len() == 2);
            if !has_fields || !Self::is_straight(&entry.level) {
                continue;
            }
            let mut inner = state.clone();
            inner.path = Some(Path::Exact(path.to_owned()));
            inner.location = format!("{path}-error");
            inner.is_internal = true;
            inner.is_error = true;
            let level = Rc::clone(&entry.level);
            self.follow(&level, inner, Phase::Location);
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
        let mut page = json!({"status": codes});
        if let Some(status) = status.filter(|status| *status >= 200) {
            page["response_status"] = status.into();
        }
        if let Some(name) = target.strip_prefix('@') {
            return self.named_page(directive, &format!("@{name}"), page, state);
        }
        let text = self.text(directive, target, state, level);
        if text.starts_with("http://") || text.starts_with("https://") || text.starts_with("${scheme}") {
            page["location"] = text.into();
            if page.get("response_status").is_none() {
                page["response_status"] = 302.into();
            }
            return Some(page);
        }
        // A page of the same status would look for itself without end; the gateway answers with its own body then.
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
        mut page: Value,
        state: &State<'a>,
    ) -> Option<Value> {
        let Some(named) = state.server.named.get(name).cloned() else {
            self.remark(directive, Verdict::NotPossible, format!("there is no location {name}"));
            return None;
        };
        if let Some(answer) = named.own("return") {
            let (status, text) = match answer.arg(0).parse::<u16>() {
                Ok(status) => (status, self.text(answer, answer.arg(1), state, &named)),
                Err(_) => (302, self.text(answer, answer.arg(0), state, &named)),
            };
            page["response_status"] = status.into();
            match status {
                301 | 302 | 303 | 307 | 308 => page["location"] = text.into(),
                _ => page["text"] = text.into(),
            }
            return Some(page);
        }
        let text = "an error page from a named location with a handler is not possible: give it a path of its own, \
                    as a location with `internal`";
        self.remark(directive, Verdict::NotPossible, text);
        None
    }
}

/// Paths of `error_page` with a status of an error.
fn collect_pages<'d>(directives: &'d [Directive], paths: &mut Vec<&'d str>) {
    for directive in directives {
        if directive.name == "error_page" {
            let is_error = !directive.args.iter().any(|arg| arg.starts_with("=2"));
            let path = directive.args.last().map_or("", String::as_str);
            if is_error && path.starts_with('/') && !path.contains('$') && !paths.contains(&path) {
                paths.push(path);
            }
        }
        collect_pages(directive.children(), paths);
    }
}
