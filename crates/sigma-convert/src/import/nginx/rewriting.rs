//! The rewrite module: follows `set`, `if`, `rewrite`, `return` and `break`, and searches for locations.

use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::{Path, Target};
use super::super::report::Verdict;
use super::access::refuses;
use super::conditions::{as_map, words};
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::pattern::{Pattern, StaticMatch, known_match};
use super::state::{Captures, State};
use super::texts::{self, Piece, pieces};

/// Directives of the rewrite module.
pub(super) const REWRITES: &[&str] = &["set", "if", "rewrite", "return", "break"];

/// Maximum number of decisions of one configuration.
const MOST_DECISIONS: usize = 50_000;

/// The phase after the rewrite directives.
#[derive(Clone)]
pub(super) enum Phase {
    /// The search for a location.
    Server,
    /// The content of a location.
    Location,
}

/// A directive with its level.
type Instruction<'a> = (&'a Directive, Rc<Level<'a>>);

/// The directives that are left, with the level that counts after them. A copy is cheap: there is one for each branch.
#[derive(Clone)]
pub(super) struct Program<'a> {
    /// The directives of blocks that were entered, the next one last.
    entered: Vec<Instruction<'a>>,
    /// The directives of the level, of which the first `at` are done.
    all: Rc<Vec<Instruction<'a>>>,
    at: usize,
    level: Rc<Level<'a>>,
    phase: Phase,
}

impl<'a> Program<'a> {
    fn next(&mut self) -> Option<Instruction<'a>> {
        self.entered.pop().or_else(|| {
            let found = self.all.get(self.at).cloned();
            self.at += 1;
            found
        })
    }

    fn clear(&mut self) {
        self.entered.clear();
        self.at = self.all.len();
    }
}

/// A condition of `if`.
enum Condition {
    Known(bool),
    /// A condition in the syntax of `vars`, and the groups that it sets.
    Holds(Value, Option<Captures>),
    /// A file is missing.
    Missing,
    /// Another test of a file.
    File,
    /// A condition that holds for more requests, and the reason.
    Wider(Value, String),
    Unknown(String),
}

impl<'a> Converter<'a> {
    /// Follows the rewrite directives of a level, then its phase.
    pub(super) fn follow(&mut self, level: &Rc<Level<'a>>, state: State<'a>, phase: Phase) {
        let all: Vec<Instruction<'a>> =
            level.own_all(REWRITES).into_iter().map(|directive| (directive, Rc::clone(level))).collect();
        let all = Rc::new(all);
        self.run(Program { entered: Vec::new(), all, at: 0, level: Rc::clone(level), phase }, state);
    }

    pub(super) fn run(&mut self, mut program: Program<'a>, mut state: State<'a>) {
        if self.plan.decisions.len() > MOST_DECISIONS {
            self.is_too_large = true;
            return;
        }
        while let Some((directive, level)) = program.next() {
            match directive.name.as_str() {
                "set" => self.set(directive, &level, &mut state),
                "break" => break,
                "return" => return self.respond(directive, &program.level, &state),
                "rewrite" => match self.rewrite(directive, &level, &mut state, &program) {
                    Step::Next => {}
                    Step::Stop => {
                        program.clear();
                        state.rewritten.is_moved = false;
                    }
                    Step::Search => {
                        program.clear();
                        state.rewritten.is_moved = true;
                    }
                    Step::Over => return,
                },
                _ => match self.branch(directive, &level, &mut state, &program) {
                    Some(inner) => program = inner,
                    None => continue,
                },
            }
        }
        match program.phase {
            Phase::Server => self.search(state),
            Phase::Location if state.rewritten.is_moved && state.files.tried.is_some() => {
                self.after_named(state)
            }
            Phase::Location if state.rewritten.is_moved => {
                state.searches += 1;
                self.search(state);
            }
            Phase::Location => self.content(&program.level, state),
        }
    }

    fn set(&mut self, directive: &'a Directive, level: &Rc<Level<'a>>, state: &mut State<'a>) {
        let text = self.text(directive, directive.arg(1), state, level);
        let name = directive.arg(0).trim_start_matches('$').to_owned();
        match texts::doubtful(&mut self.variables, directive.arg(1), state, level) {
            Some(_) => _ = state.variables.doubtful.insert(name.clone()),
            None => _ = state.variables.doubtful.remove(&name),
        }
        state.variables.sets.insert(name, text);
    }

    /// Handles a `rewrite`: the match is followed at once, the rest continues.
    fn rewrite(
        &mut self,
        directive: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
        program: &Program<'a>,
    ) -> Step {
        let (pattern, exception) = match Pattern::new(directive.arg(0), false) {
            Ok(pattern) => (pattern, None),
            Err(reason) => match Pattern::with_exception(directive.arg(0)) {
                Some((pattern, exception)) => (pattern, Some(exception)),
                None => {
                    let text = format!("{reason}; write the rewrite by hand");
                    self.remark(directive, Verdict::NotPossible, text);
                    return Step::Next;
                }
            },
        };
        let subject = state.uri_text();
        match known_match(&pattern, &subject) {
            StaticMatch::No => Step::Next,
            StaticMatch::Yes if exception.is_none() => {
                self.captured(&pattern, &subject, state);
                self.rewritten(directive, level, state)
            }
            StaticMatch::Yes | StaticMatch::Maybe => {
                let mut inner = state.clone();
                if let Some(exception) = &exception {
                    let name = self.condition_name(&subject, state);
                    inner.conditions.push(exception.exclusion(&name));
                }
                let is_always = exception.is_none() && is_always(&pattern.text);
                self.matched(&pattern, &subject, &mut inner);
                let mut rest = program.clone();
                match self.rewritten(directive, level, &mut inner) {
                    Step::Next => {}
                    Step::Over => return if is_always { Step::Over } else { Step::Next },
                    step => {
                        inner.rewritten.is_moved = matches!(step, Step::Search);
                        rest.clear();
                    }
                }
                self.run(rest, inner);
                if is_always { Step::Over } else { Step::Next }
            }
        }
    }

    /// Adds the condition that a text matches, and sets the groups: as the path of the route where that is free.
    pub(super) fn matched(&mut self, pattern: &Pattern, subject: &str, state: &mut State<'a>) {
        if subject == "${uri}" && state.path.is_none() {
            let text = pattern.text.clone();
            state.path = Some(Path::Regex { pattern: text, ignore_case: pattern.ignore_case });
            let named = self.variables.named(&Captures::Route, pattern);
            state.variables.named.extend(named);
            state.variables.captures = Captures::Route;
            return;
        }
        if !is_always(&pattern.text) {
            let name = self.condition_name(subject, state);
            state.conditions.push(pattern.condition(&name));
        }
        self.captured(pattern, subject, state);
    }

    /// Returns the name of a variable with this text for a condition of a route.
    pub(super) fn condition_name(&mut self, text: &str, state: &State<'a>) -> String {
        let text = self.without_route_groups(text, state);
        self.variables.name_of(&text)
    }

    /// Replaces groups of the route's path, which its own conditions cannot read, by variables.
    fn without_route_groups(&mut self, text: &str, state: &State<'a>) -> String {
        let Some(Path::Regex { pattern, ignore_case }) = &state.path else { return text.to_owned() };
        let mut made = String::new();
        for piece in pieces(text) {
            match piece {
                Piece::Text(text) => made.push_str(text),
                Piece::Variable(name) => {
                    let group = name.strip_prefix("uri_param_").unwrap_or(name);
                    let is_group = group != name || name.bytes().all(|byte| byte.is_ascii_digit());
                    let pattern = is_group.then(|| Pattern::new(pattern, *ignore_case).ok()).flatten();
                    match pattern {
                        Some(pattern) => {
                            let number = group.parse().ok().or_else(|| pattern.group(group)).unwrap_or(0);
                            let captures = Captures::Of { subject: "${uri}".to_owned(), pattern };
                            made.push_str(&self.variables.group(&captures, number));
                        }
                        None => made.push_str(&format!("${{{name}}}")),
                    }
                }
            }
        }
        made
    }

    /// Sets the groups of a match.
    pub(super) fn captured(&mut self, pattern: &Pattern, subject: &str, state: &mut State<'a>) {
        let captures = match subject.contains('$') {
            false => Captures::Fixed(pattern.groups(subject).unwrap_or_default()),
            true => {
                Captures::Of { subject: self.without_route_groups(subject, state), pattern: pattern.clone() }
            }
        };
        let named = self.variables.named(&captures, pattern);
        state.variables.named.extend(named);
        state.variables.captures = captures;
    }

    /// Applies the replacement of a `rewrite` whose expression has matched.
    fn rewritten(&mut self, directive: &'a Directive, level: &Rc<Level<'a>>, state: &mut State<'a>) -> Step {
        let source = directive.arg(1);
        let (source, keeps_query) = match source.strip_suffix('?') {
            Some(source) => (source, false),
            None => (source, true),
        };
        let (path, query) = match source.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (source, None),
        };
        let path = self.text(directive, path, state, level);
        let query = query.map(|query| self.text(directive, query, state, level));
        let args = self.joined_args(query, keeps_query, state);
        let flag = directive.arg(2);
        let is_absolute =
            ["http://", "https://", "$scheme"].iter().any(|start| directive.arg(1).starts_with(start));
        if is_absolute || matches!(flag, "redirect" | "permanent") {
            let query = match &args {
                None => "${is_args}${args}".to_owned(),
                Some(args) if args.is_empty() => String::new(),
                Some(args) => format!("?{args}"),
            };
            let status = if flag == "permanent" { 301 } else { 302 };
            let to = self.absolute(format!("{path}{query}"), level, state);
            self.redirect(directive, level, state, Target::Redirect { status, to });
            return Step::Over;
        }
        state.rewritten.uri = Some(if path.starts_with('/') { path } else { format!("/{path}") });
        state.rewritten.args = args;
        state.rewritten.is_moved = true;
        state.rewritten.is_whole = true;
        match flag {
            "last" => Step::Search,
            "break" => Step::Stop,
            _ => Step::Next,
        }
    }

    /// Emits a redirect. Values are encoded, so that `&` has to be a text: with arguments, there is another route.
    fn redirect(&mut self, directive: &Directive, level: &Rc<Level<'a>>, state: &State<'a>, target: Target) {
        let more = self.more_args();
        let Target::Redirect { status, to } = target else { return };
        if to.contains(&more) {
            let mut inner = state.clone();
            inner.conditions.push(json!(["args", "~~", "."]));
            let to = to.replace(&more, "&${args}");
            let mut decision = inner.decision(directive.place, Target::Redirect { status, to });
            inner.after_files(&mut decision);
            self.emit(&inner, level, decision);
        }
        let to = to.replace(&more, "");
        let mut decision = state.decision(directive.place, Target::Redirect { status, to });
        state.after_files(&mut decision);
        self.emit(state, level, decision);
    }

    /// With `server_name_in_redirect`, a path becomes an address of the server.
    pub(super) fn absolute(&self, to: String, level: &Level<'a>, state: &State<'a>) -> String {
        let is_relative = to.starts_with('/') && level.text("absolute_redirect") != Some("off");
        if !level.is_on("server_name_in_redirect") || state.server.name.is_empty() {
            return match is_relative && level.text("port_in_redirect") == Some("off") {
                true => format!("${{scheme}}://${{host}}{to}"),
                false => to,
            };
        }
        if !is_relative {
            return to;
        }
        let port = state.server.ports.first().filter(|port| !matches!(port, 0 | 80 | 443));
        let port = port.filter(|_| level.text("port_in_redirect") != Some("off"));
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("${{scheme}}://{}{port}{to}", state.server.name)
    }

    /// The query after a rewrite: its own arguments, then the request's. None: the client's alone.
    pub(super) fn joined_args(
        &mut self,
        own: Option<String>,
        keeps_query: bool,
        state: &State<'a>,
    ) -> Option<String> {
        match (own, keeps_query, &state.rewritten.args) {
            (None, true, args) => args.clone(),
            (own, false, _) => Some(own.unwrap_or_default()),
            (Some(own), true, None) => Some(format!("{own}{}", self.more_args())),
            (Some(own), true, Some(args)) if args.is_empty() => Some(own),
            (Some(own), true, Some(args)) => Some(format!("{own}&{args}")),
        }
    }

    /// The client's arguments with `&` before them, or an empty text.
    pub(super) fn more_args(&mut self) -> String {
        let more = json!({"map": "${args}", "regex": [{"match": "^$", "value": ""}], "default": "&${args}"});
        self.variables.made('a', more)
    }

    /// Handles an `if`. Returns the program to continue with if the condition is known to hold.
    fn branch(
        &mut self,
        directive: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
        program: &Program<'a>,
    ) -> Option<Program<'a>> {
        let inner_level = Level::of(directive.children(), Some(level), true);
        let mut inner = program.clone();
        let children = inner_level.own_all(REWRITES).into_iter().rev();
        inner.entered.extend(children.map(|child| (child, Rc::clone(&inner_level))));
        if directive.children().iter().any(|child| !REWRITES.contains(&child.name.as_str())) {
            inner.level = Rc::clone(&inner_level);
        }
        match self.condition(directive, level, state) {
            Condition::Known(false) => None,
            Condition::Known(true) => Some(inner),
            Condition::Holds(condition, captures) => {
                if self.conditional_sets(directive, &condition, captures.as_ref(), level, state) {
                    return None;
                }
                let mut then = state.clone();
                then.conditions.push(condition);
                if let Some(captures) = captures {
                    if let Captures::Of { pattern, .. } = &captures {
                        let named = self.variables.named(&captures, pattern);
                        then.variables.named.extend(named);
                    }
                    then.variables.captures = captures;
                }
                self.run(inner, then);
                None
            }
            // Its files were tried before.
            Condition::Missing if state.files.tried.is_some() => Some(inner),
            Condition::Missing => {
                self.missing(directive, &inner_level, state, program);
                None
            }
            Condition::File => {
                self.file_test(directive, level, state);
                None
            }
            Condition::Wider(condition, reason) if refuses(directive) => {
                let text =
                    format!("{reason}; more requests are refused: all that match without this condition.");
                self.guard(directive, Verdict::Differs, text);
                let mut then = state.clone();
                then.conditions.push(condition);
                self.run(inner, then);
                None
            }
            Condition::Wider(_, reason) | Condition::Unknown(reason) => {
                self.unknown_condition(directive, &reason, level, state);
                None
            }
        }
    }

    /// An `if` with nothing but `set`: its variables depend on the condition, and no request is split off.
    fn conditional_sets(
        &mut self,
        directive: &'a Directive,
        condition: &Value,
        captures: Option<&Captures>,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
    ) -> bool {
        let only_sets = directive.children().iter().all(|child| child.name == "set");
        let Some((variable, entry)) = as_map(condition, captures).filter(|_| only_sets) else { return false };
        let mut inner = state.clone();
        if let Some(captures) = captures {
            inner.variables.captures = captures.clone();
        }
        // Later directives read the groups of the last match.
        if let (Some(captures), true) = (captures, matches!(state.variables.captures, Captures::None)) {
            state.variables.captures = captures.clone();
        }
        for child in directive.children() {
            let value = self.text(child, child.arg(1), &inner, level);
            let name = child.arg(0).trim_start_matches('$').to_owned();
            let before = state.variables.sets.get(&name).cloned().unwrap_or_default();
            let (mut yes, mut no) = (value.clone(), before);
            if entry.is_negated {
                std::mem::swap(&mut yes, &mut no);
            }
            let mut regex = json!({"match": entry.pattern, "value": yes});
            if entry.ignore_case {
                regex["ignore_case"] = true.into();
            }
            let map = json!({"map": format!("${{{variable}}}"), "regex": [regex], "default": no});
            let text = self.variables.made('s', map);
            inner.variables.sets.insert(name.clone(), value);
            state.variables.sets.insert(name, text);
        }
        true
    }

    fn condition(&mut self, directive: &'a Directive, level: &Rc<Level<'a>>, state: &State<'a>) -> Condition {
        let words = words(directive);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // A pattern may have `$` at its end.
        let read: Vec<&str> = match words.as_slice() {
            [variable, operator, _] if operator.contains('~') => vec![*variable],
            [variable, _, value] => vec![*variable, *value],
            [variable] => vec![*variable],
            _ => Vec::new(),
        };
        let mut doubtful =
            read.iter().filter_map(|word| texts::doubtful(&mut self.variables, word, state, level));
        if let Some(name) = doubtful.next() {
            return Condition::Unknown(format!("the variable ${name} has no counterpart"));
        }
        match words.as_slice() {
            [variable] if variable.starts_with('$') => {
                let text = self.text(directive, variable, state, level);
                if !text.contains('$') {
                    return Condition::Known(!text.is_empty() && text != "0");
                }
                Condition::Holds(json!([self.condition_name(&text, state), "~~", TRUE]), None)
            }
            [variable, operator, value] if variable.starts_with('$') => {
                let text = self.text(directive, variable, state, level);
                let value = match operator.contains('~') {
                    true => (*value).to_owned(),
                    false => self.text(directive, value, state, level),
                };
                let text = self.without_route_groups(&text, state);
                self.comparison(&text, operator, &value)
            }
            [test, path] if test.trim_start_matches('!').starts_with('-') => {
                let is_file = path.contains("$request_filename") || path.contains("$document_root");
                match *test {
                    "!-e" | "!-f" if is_file => Condition::Missing,
                    _ => Condition::File,
                }
            }
            _ => Condition::Unknown("the condition has an unknown form".to_owned()),
        }
    }

    fn comparison(&mut self, text: &str, operator: &str, value: &str) -> Condition {
        if matches!(operator, "=" | "!=") {
            if value.contains('$') {
                return Condition::Unknown("a comparison of two variables is not possible".to_owned());
            }
            if !text.contains('$') {
                return Condition::Known((text == value) == (operator == "="));
            }
            let name = self.variables.name_of(text);
            let condition = match (operator, value) {
                ("=", "") => json!(["OR", [name, "==", null], [name, "==", ""]]),
                (_, "") => json!([name, "~~", "."]),
                ("=", value) => json!([name, "==", value]),
                (_, value) => json!([name, "~=", value]),
            };
            return Condition::Holds(condition, None);
        }
        let is_negated = operator.starts_with('!');
        let pattern = match Pattern::new(value, operator.ends_with('*')) {
            Ok(pattern) => pattern,
            Err(reason) => {
                let wider = super::locations::superset(value, operator.ends_with('*'));
                return match wider.filter(|_| !is_negated && text.contains('$')) {
                    Some(pattern) => {
                        Condition::Wider(pattern.condition(&self.variables.name_of(text)), reason)
                    }
                    None => Condition::Unknown(reason),
                };
            }
        };
        if !text.contains('$') {
            return Condition::Known(pattern.is_match(text) != is_negated);
        }
        let name = self.variables.name_of(text);
        let mut condition = pattern.condition(&name);
        if is_negated {
            condition = json!([condition[0], "!", condition[1], condition[2]]);
            return Condition::Holds(condition, None);
        }
        if pattern.is_match("") {
            condition = json!(["OR", [name, "==", null], condition]);
        }
        Condition::Holds(condition, Some(Captures::Of { subject: text.to_owned(), pattern }))
    }
}

/// Whether an expression matches every path.
fn is_always(text: &str) -> bool {
    matches!(
        text,
        "^" | "^/"
            | "^/(.*)"
            | "^/(.*)$"
            | "^(.*)"
            | "^(.*)$"
            | "(.*)"
            | "(.*)$"
            | "^/?(.*)$"
            | "^/.*$"
            | "^.*$"
            | "^.*"
            | ".*"
    )
}

/// The next step after a `rewrite`.
enum Step {
    Next,
    /// No further rewrite directives.
    Stop,
    /// Another search.
    Search,
    /// The request has its decision.
    Over,
}

/// An expression for values that are neither empty nor `0`.
const TRUE: &str = "^(?:[^0]|0.)";
