//! A request on its way through the lines of a site, as conditions and changes.

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Path, Target};
use super::super::logic::{group, negated};
use super::existing::Tested;
use super::matcher::Condition;
use super::rewriting::{Query, Rewrite};

/// A change of a header field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Set(String),
    Add(String),
    Remove,
}

/// The value of a condition in a branch.
pub(super) enum Truth {
    Always,
    Never,
    If(Value),
}

/// One way of requests through a site.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub(super) decision: Decision,
    pub(super) is_finished: bool,
    pub(super) target: RewrittenRequest,
    pub(super) request: Vec<(String, Change)>,
    pub(super) response: Vec<(String, Change)>,
    /// Whether a change of response fields holds for errors too.
    pub(super) is_for_errors: bool,
    /// Fields that are set with the response, each with the text that errors of the file server lack.
    pub(super) late: Vec<(String, String)>,
    pub(super) files: FileLookup,
}

/// The request line that the next handler gets.
#[derive(Debug, Clone)]
pub(super) struct RewrittenRequest {
    pub(super) rewrite: Rewrite,
    pub(super) query: Query,
    /// Whether a rewrite ran: only the first one does.
    pub(super) is_rewritten: bool,
    pub(super) method: Option<String>,
    pub(super) host: Option<String>,
}

impl RewrittenRequest {
    fn new() -> RewrittenRequest {
        RewrittenRequest {
            rewrite: Rewrite::Prefix { known: String::new(), lead: String::new() },
            query: Query::Kept,
            is_rewritten: false,
            method: None,
            host: None,
        }
    }
}

/// The files of a branch, and the tests for them.
#[derive(Debug, Clone, Default)]
pub(super) struct FileLookup {
    /// The folder of files.
    pub(super) root: Option<String>,
    /// The part of the folder that depends on the request, a text with variables.
    pub(super) below_root: Option<String>,
    /// The candidates of `try_files`.
    pub(super) candidates: Vec<String>,
    /// The test of a file that the branch has passed.
    pub(super) tested: Option<Tested>,
    /// The test of a file whose other requests come here too.
    pub(super) after_test: Option<u32>,
}

impl Branch {
    pub(super) fn new(decision: Decision) -> Branch {
        Branch {
            decision,
            is_finished: false,
            target: RewrittenRequest::new(),
            request: Vec::new(),
            response: Vec::new(),
            is_for_errors: false,
            late: Vec::new(),
            files: FileLookup::default(),
        }
    }

    /// Returns a text with the path as it is here, not the client's.
    pub(super) fn with_path(&self, text: String) -> String {
        match &self.target.rewrite {
            Rewrite::Fixed(path) | Rewrite::Template(path) => text.replace("${uri}", path),
            Rewrite::Prefix { .. } | Rewrite::Regex(_) => text,
        }
    }

    /// Whether the path is another one than the client's.
    pub(super) fn is_changed(&self) -> bool {
        !self.has_own_path() && !matches!(self.target.rewrite, Rewrite::Fixed(_))
    }

    /// Sets a variable of the route.
    pub(super) fn set_variable(&mut self, name: String, text: String) {
        let set = self.decision.fields.entry("set").or_insert_with(|| json!({}));
        set[name] = text.into();
    }

    /// Ends the branch with a target.
    pub(super) fn finish(mut self, target: Target) -> Branch {
        self.decision.target = target;
        self.is_finished = true;
        self
    }

    /// Closes the branch: a guard cannot be converted.
    pub(super) fn close(self, reason: impl Into<String>) -> Branch {
        self.finish(Target::Closed(reason.into()))
    }

    /// Splits the branch: where the condition holds, and the rest. The rest needs no condition, as it comes after.
    pub(super) fn split(mut self, condition: &Condition) -> Result<(Option<Branch>, Option<Branch>), String> {
        let parts = match condition {
            Condition::All(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut holds = self.clone();
        let mut is_certain = true;
        for part in parts {
            if let Some(test) = Tested::of(part) {
                match &holds.files.tested {
                    Some(known) if known.line == test.line && known.is_there == test.is_there => {}
                    Some(known) if known.line == test.line => return Ok((None, Some(self))),
                    _ => {
                        self.test_file(test.line)?;
                        holds.files.tested = Some(test);
                        is_certain = false;
                    }
                }
                continue;
            }
            if holds.take(part) {
                is_certain = false;
                continue;
            }
            match holds.truth(part)? {
                Truth::Always => {}
                Truth::Never => return Ok((None, Some(self))),
                Truth::If(value) => {
                    is_certain = false;
                    holds.decision.conditions.push(value);
                }
            }
        }
        Ok((Some(holds), (!is_certain).then_some(self)))
    }

    /// Starts the only test of a file that a branch may have.
    fn test_file(&mut self, line: u32) -> Result<(), String> {
        let is_first = self.files.tested.is_none() && self.files.after_test.is_none() && self.has_own_path();
        let is_fixed = self.files.below_root.is_none()
            && self.files.root.as_deref().is_some_and(|it| it.starts_with('/'));
        if !is_first || !is_fixed {
            return Err(
                "The matcher `file` needs a fixed folder, the client's path, and no other `file`.".to_owned()
            );
        }
        self.files.after_test = Some(line);
        Ok(())
    }

    /// Takes a condition as the path or method of a decision without one.
    fn take(&mut self, condition: &Condition) -> bool {
        match condition {
            Condition::Methods(methods)
                if self.decision.methods.is_empty() && methods.iter().all(|it| is_known(it)) =>
            {
                self.decision.methods = methods.iter().map(|method| method.to_ascii_uppercase()).collect();
                true
            }
            Condition::Path(_) | Condition::PathRegex(_) if self.decision.paths.is_empty() => {
                self.paths(std::slice::from_ref(condition))
            }
            Condition::Any(parts) if self.decision.paths.is_empty() => self.paths(parts),
            _ => false,
        }
    }

    fn paths(&mut self, parts: &[Condition]) -> bool {
        if !self.has_own_path() {
            return false;
        }
        let paths: Option<Vec<Path>> = parts
            .iter()
            .map(|part| match part {
                Condition::Path(pattern) if pattern != "*" => Some(path(pattern)),
                Condition::PathRegex(pattern) => {
                    Some(Path::Regex { pattern: pattern.clone(), ignore_case: false })
                }
                _ => None,
            })
            .collect();
        match paths {
            Some(paths) if !paths.is_empty() => {
                self.decision.paths = paths;
                true
            }
            _ => false,
        }
    }

    fn has_own_path(&self) -> bool {
        matches!(&self.target.rewrite, Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty())
    }

    /// Returns the value of a condition here.
    pub(super) fn truth(&self, condition: &Condition) -> Result<Truth, String> {
        Ok(match condition {
            Condition::Always => Truth::Always,
            Condition::Variable(value) => Truth::If(value.clone()),
            Condition::Hosts(hosts) => {
                Truth::If(group("OR", hosts.iter().map(|host| host_condition(host)).collect()))
            }
            Condition::Methods(methods) => {
                let methods: Vec<String> = methods.iter().map(|method| method.to_ascii_uppercase()).collect();
                Truth::If(json!(["request_method", "in", methods]))
            }
            Condition::Path(pattern) => self.path_truth(&Pattern::of(pattern))?,
            Condition::PathRegex(pattern) => match &self.target.rewrite {
                Rewrite::Fixed(path) => {
                    match regex::Regex::new(pattern).is_ok_and(|regex| regex.is_match(path)) {
                        true => Truth::Always,
                        false => Truth::Never,
                    }
                }
                _ if self.has_own_path() => Truth::If(json!(["uri", "~~", pattern])),
                _ => return Err("A regular expression cannot see the changed path.".to_owned()),
            },
            Condition::File(_) => return Err("The matcher `file` cannot be an alternative.".to_owned()),
            Condition::All(parts) => self.joined(parts, "AND")?,
            Condition::Any(parts) => self.joined(parts, "OR")?,
            Condition::Not(inner) => match self.truth(inner)? {
                Truth::Always => Truth::Never,
                Truth::Never => Truth::Always,
                Truth::If(value) => Truth::If(negated(value)),
            },
        })
    }

    fn joined(&self, parts: &[Condition], operator: &str) -> Result<Truth, String> {
        let mut values = Vec::new();
        for part in parts {
            match (self.truth(part)?, operator) {
                (Truth::If(value), _) => values.push(value),
                (Truth::Always, "OR") => return Ok(Truth::Always),
                (Truth::Never, "AND") => return Ok(Truth::Never),
                (Truth::Always | Truth::Never, _) => {}
            }
        }
        Ok(match (values.is_empty(), operator) {
            (true, "AND") => Truth::Always,
            (true, _) => Truth::Never,
            (false, _) => Truth::If(group(operator, values)),
        })
    }

    fn path_truth(&self, pattern: &Pattern) -> Result<Truth, String> {
        let certain = |holds: bool| if holds { Truth::Always } else { Truth::Never };
        let of = |regex: String| Truth::If(json!(["uri", "~*", regex]));
        let (known, lead) = match &self.target.rewrite {
            Rewrite::Fixed(path) => return Ok(certain(pattern.matches(path))),
            Rewrite::Template(text) => return pattern.truth_of_template(text),
            Rewrite::Prefix { known, lead } => (regex::escape(known), lead.to_ascii_lowercase()),
            // The end of the path is gone, its beginning stays.
            Rewrite::Regex(pairs) if pairs.len() == 2 && pairs[1].is_empty() && pairs[0].ends_with('$') => {
                (String::new(), String::new())
            }
            _ => return Err("A path cannot be compared after it was changed by a pattern.".to_owned()),
        };
        if known.is_empty() && lead.is_empty() {
            return Ok(match pattern {
                Pattern::Any => Truth::Always,
                pattern => of(pattern.regex()),
            });
        }
        Ok(match pattern {
            Pattern::Any => Truth::Always,
            Pattern::Exact(text) => match text.strip_prefix(lead.as_str()) {
                Some("" | "/") => of(format!("^{known}/?$")),
                Some(rest) => of(format!("^{known}{}$", regex::escape(rest))),
                None => Truth::Never,
            },
            Pattern::Prefix(text) => match text.strip_prefix(lead.as_str()) {
                Some("" | "/") => Truth::Always,
                Some(rest) => of(format!("^{known}{}", regex::escape(rest))),
                None => certain(lead.starts_with(text.as_str())),
            },
            Pattern::Suffix(text) => of(format!("{}$", regex::escape(text))),
            Pattern::Contains(text) if lead.contains(text.as_str()) => Truth::Always,
            Pattern::Contains(text) => of(format!("^{known}.*{}", regex::escape(text))),
            Pattern::Glob(_) => return Err("A pattern cannot be compared with the changed path.".to_owned()),
        })
    }

    /// Removes a prefix of the path, if it is there: `uri strip_prefix`.
    pub(super) fn strip_prefix(mut self, prefix: &str) -> Result<Vec<Branch>, String> {
        let prefix = if prefix.starts_with('/') { prefix.to_owned() } else { format!("/{prefix}") };
        if let Rewrite::Fixed(path) = &self.target.rewrite {
            if let Some(rest) = path.strip_prefix(prefix.as_str()) {
                self.target.rewrite = Rewrite::Fixed(slashed(rest));
            }
            return Ok(vec![self]);
        }
        if let Rewrite::Template(text) = &self.target.rewrite {
            let fixed = text.split('$').next().unwrap_or_default().to_owned();
            return match text.strip_prefix(prefix.as_str()) {
                Some(rest) => {
                    self.target.rewrite = Rewrite::Template(slashed(rest));
                    Ok(vec![self])
                }
                None if prefix.starts_with(&fixed) && fixed.len() < prefix.len() => {
                    Err("A prefix cannot be removed from a path with variables.".to_owned())
                }
                None => Ok(vec![self]),
            };
        }
        let (known, lead) = match &self.target.rewrite {
            Rewrite::Prefix { known, lead } => (known.clone(), lead.clone()),
            _ => return Err("A prefix cannot be removed after a pattern changed the path.".to_owned()),
        };
        if !lead.is_empty() && lead.starts_with(&prefix) {
            let rest = &lead[prefix.len()..];
            let lead = if rest.is_empty() { String::new() } else { slashed(rest) };
            self.target.rewrite = Rewrite::Prefix { known, lead };
            return Ok(vec![self]);
        }
        let Some(rest) = prefix.strip_prefix(lead.as_str()).map(str::to_owned) else { return Ok(vec![self]) };
        let start = format!("{known}{rest}");
        let stripped = Rewrite::Prefix { known: start.clone(), lead: String::new() };
        if self.is_below(&start) {
            self.target.rewrite = stripped;
            return Ok(vec![self]);
        }
        let other = self.clone();
        self.decision.conditions.push(json!(["uri", "~*", format!("^{}", regex::escape(&start))]));
        self.target.rewrite = stripped;
        Ok(vec![self, other])
    }

    /// Whether all paths of the decision begin with a text.
    fn is_below(&self, start: &str) -> bool {
        let pattern = format!("^{}", regex::escape(&start.to_ascii_lowercase()));
        !self.decision.paths.is_empty()
            && self.decision.paths.iter().all(|path| match path {
                Path::Exact(text) | Path::Prefix(text) | Path::Segments(text) => {
                    text.to_ascii_lowercase().starts_with(&start.to_ascii_lowercase())
                }
                Path::Regex { pattern: own, .. } => own.starts_with(&pattern),
            })
    }

    /// Changes the path by the first of some patterns that matches: patterns with their replacements.
    pub(super) fn replace(&mut self, pairs: Vec<String>) -> Result<(), String> {
        match &mut self.target.rewrite {
            Rewrite::Fixed(path) => {
                for pair in pairs.chunks(2) {
                    let [pattern, to] = pair else { continue };
                    let regex =
                        regex::Regex::new(pattern).map_err(|_| "The pattern is invalid.".to_owned())?;
                    if regex.is_match(path) {
                        *path = regex.replace(path, to.as_str()).into_owned();
                        break;
                    }
                }
                Ok(())
            }
            Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty() => {
                self.target.rewrite = Rewrite::Regex(pairs);
                Ok(())
            }
            _ => {
                Err("Sigma can change a path with one pattern only, and this is the second change."
                    .to_owned())
            }
        }
    }

    /// Writes the changes into plugins.
    pub(super) fn complete(mut self) -> Decision {
        let mut rewrite = Map::new();
        if matches!(self.decision.target, Target::Upstream(_)) {
            self.target.rewrite.insert(&self.target.query, &mut rewrite);
            if let Some(method) = &self.target.method {
                rewrite.insert("method".to_owned(), method.clone().into());
            }
            if let Some(host) = &self.target.host {
                rewrite.insert("host".to_owned(), host.clone().into());
            }
            if let Some(mut headers) = rules(&self.request, false) {
                if headers.to_string().contains('$') {
                    headers["keep_empty"] = true.into();
                }
                rewrite.insert("headers".to_owned(), headers);
            }
        }
        if let Some(extra) =
            self.decision.plugins.get_mut("forward-auth").map(|auth| &mut auth["extra_headers"])
            && let Some(extra) = extra.as_object_mut()
        {
            // The service gets the request without the fields for the node.
            for (name, _) in self.request.iter().filter(|(_, change)| *change != Change::Remove) {
                extra.entry(name.clone()).or_insert_with(|| "".into());
            }
        }
        if !rewrite.is_empty() {
            self.decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        }
        if matches!(self.decision.target, Target::Files(_)) && self.is_for_errors {
            for (name, change) in &mut self.response {
                let late = self.late.iter().find(|(other, _)| other == name);
                if let (Change::Set(value), Some((_, text))) = (change, late) {
                    value.clone_from(text);
                }
            }
        }
        if let Some(headers) = rules(&self.response, true) {
            let plugin =
                self.decision.plugins.entry("response-rewrite".to_owned()).or_insert_with(|| json!({}));
            plugin["headers"] = headers;
            // Errors of the file server have no fields that are set with the response.
            let is_late = !self.is_for_errors && plugin.get("vars").is_none();
            match self.decision.target {
                Target::Files(_) if is_late => plugin["vars"] = json!([["status", "<", 400]]),
                // Caddy's own errors neither.
                Target::Upstream(_) if is_late => {
                    plugin["vars"] = json!([["response_source", "==", "upstream"]]);
                }
                _ => {}
            }
        }
        self.decision
    }
}

fn slashed(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    }
}

/// A pattern of a path; case is ignored.
pub(super) enum Pattern {
    Any,
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    Glob(String),
}

impl Pattern {
    pub(super) fn of(text: &str) -> Pattern {
        let text = text.to_ascii_lowercase();
        let inner = text.trim_matches('*').to_owned();
        let stars = text.matches('*').count();
        match (text.starts_with('*'), text.ends_with('*'), stars) {
            (true, _, 1) if inner.is_empty() => Pattern::Any,
            _ if text.contains(['?', '[']) => Pattern::Glob(text),
            (false, false, 0) => Pattern::Exact(text),
            (true, false, 1) => Pattern::Suffix(inner),
            (false, true, 1) => Pattern::Prefix(inner),
            (true, true, 2) => Pattern::Contains(inner),
            _ => Pattern::Glob(text),
        }
    }

    /// Returns whether it matches a path with variables, by the text before the first one.
    fn truth_of_template(&self, text: &str) -> Result<Truth, String> {
        let start = text.split('$').next().unwrap_or_default().to_ascii_lowercase();
        match self {
            Pattern::Any => Ok(Truth::Always),
            Pattern::Prefix(path) if start.starts_with(path.as_str()) => Ok(Truth::Always),
            Pattern::Contains(path) if start.contains(path.as_str()) => Ok(Truth::Always),
            Pattern::Exact(path) | Pattern::Prefix(path) if !path.starts_with(&start) => Ok(Truth::Never),
            _ => Err("A path cannot be compared after it was changed by a pattern.".to_owned()),
        }
    }

    fn regex(&self) -> String {
        match self {
            Pattern::Any => "^/".to_owned(),
            Pattern::Exact(text) => format!("^{}$", regex::escape(text)),
            Pattern::Prefix(text) => format!("^{}", regex::escape(text)),
            Pattern::Suffix(text) => format!("{}$", regex::escape(text)),
            Pattern::Contains(text) => regex::escape(text),
            Pattern::Glob(text) => format!("^{}$", glob(text, false)),
        }
    }

    fn matches(&self, path: &str) -> bool {
        let built = regex::RegexBuilder::new(&self.regex()).case_insensitive(true).build();
        built.is_ok_and(|regex| regex.is_match(path))
    }
}

/// The regular expression of a glob; `*` stays within a segment.
pub(super) fn glob(text: &str, is_host: bool) -> String {
    let segment = if is_host { "[^.]+" } else { "[^/]*" };
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '*' => out.push_str(segment),
            '?' => out.push_str("[^/]"),
            '[' => {
                let class: String = chars.by_ref().take_while(|char| *char != ']').collect();
                out.push_str(&format!("[{}]", class.replace('\\', "\\\\").replace('[', "\\[")));
            }
            char => out.push_str(&regex::escape(&char.to_string())),
        }
    }
    out
}

/// A pattern as a path of a decision.
fn path(text: &str) -> Path {
    let has_letters = text.chars().any(char::is_alphabetic);
    match Pattern::of(text) {
        Pattern::Exact(text) if !has_letters => Path::Exact(text),
        Pattern::Prefix(text) if !has_letters => Path::Prefix(text),
        pattern => Path::Regex { pattern: pattern.regex(), ignore_case: true },
    }
}

/// A host as a condition: `*` is one label.
pub(super) fn host_condition(host: &str) -> Value {
    let host = host.to_ascii_lowercase();
    match host.contains('*') {
        true => json!(["host", "~~", format!("^{}$", glob(&host, true))]),
        false => json!(["host", "==", host]),
    }
}

/// Whether routes can name the method.
fn is_known(method: &str) -> bool {
    let known = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    known.iter().any(|other| other.eq_ignore_ascii_case(method))
}

/// The rules for fields: the last change of a field counts, additions stay.
fn rules(changes: &[(String, Change)], is_response: bool) -> Option<Value> {
    let mut set = Map::new();
    let mut remove: Vec<&str> = Vec::new();
    let mut added: Vec<(&str, &str)> = Vec::new();
    for (name, change) in changes {
        let same = |other: &str| other.eq_ignore_ascii_case(name);
        match change {
            Change::Set(value) => {
                added.retain(|(other, _)| !same(other));
                remove.retain(|other| !same(other));
                let known = set.keys().find(|other| same(other)).cloned();
                set.insert(known.unwrap_or_else(|| name.clone()), value.clone().into());
            }
            Change::Add(value) => added.push((name, value)),
            Change::Remove => {
                added.retain(|(other, _)| !same(other));
                set.retain(|other, _| !same(other));
                remove.push(name);
            }
        }
    }
    let mut rules = Map::new();
    if !set.is_empty() {
        rules.insert("set".to_owned(), Value::Object(set));
    }
    if !remove.is_empty() {
        rules.insert("remove".to_owned(), json!(remove));
    }
    if !added.is_empty() && is_response {
        let lines: Vec<String> = added.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        rules.insert("add".to_owned(), json!(lines));
    } else if !added.is_empty() {
        let fields: Map<String, Value> =
            added.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        rules.insert("add".to_owned(), Value::Object(fields));
    }
    (!rules.is_empty()).then_some(Value::Object(rules))
}
