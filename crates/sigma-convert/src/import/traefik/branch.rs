//! A router on its way through its middlewares: decisions that split where a middleware has a condition.

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Path, Target};

/// One alternative of a router.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    /// Conditions, plugins and, when a middleware responds, the target.
    pub(super) decision: Decision,
    /// Whether a middleware responds.
    pub(super) is_finished: bool,
    /// Whether its listeners speak TLS.
    pub(super) is_tls: bool,
    /// The path that the next middleware sees.
    pub(super) rewrite: Rewrite,
    /// Prefixes that the client's path is known to have.
    known: Vec<String>,
    /// Changes of request fields; without a value a field is removed.
    pub(super) request_fields: Vec<(String, Option<String>)>,
    /// The new Host.
    pub(super) host: Option<String>,
    /// Changes of response fields.
    pub(super) response_fields: Vec<(String, Option<String>)>,
    /// Response fields to append, as `Name: value`.
    pub(super) response_additions: Vec<String>,
    /// Fields that differ from the service's upstream, with the middleware that brings them.
    pub(super) upstream_fields: Vec<(String, Map<String, Value>)>,
}

/// The new path of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rewrite {
    /// `lead` and the rest of the client's path after `known`.
    Prefix { known: String, lead: String },
    /// This path.
    Fixed(String),
    /// The first match of a pattern in the client's path is replaced.
    Regex { pattern: String, template: String },
}

/// Whether a path begins with a prefix.
enum Begins {
    Always,
    Never,
    /// Only if the client's path begins with this.
    If(String),
}

impl Branch {
    pub(super) fn new(decision: Decision, is_tls: bool) -> Branch {
        Branch {
            decision,
            is_finished: false,
            is_tls,
            rewrite: Rewrite::Prefix { known: String::new(), lead: String::new() },
            known: Vec::new(),
            request_fields: Vec::new(),
            host: None,
            response_fields: Vec::new(),
            response_additions: Vec::new(),
            upstream_fields: Vec::new(),
        }
    }

    /// Ends the branch with a response.
    pub(super) fn finish(mut self, target: Target) -> Branch {
        self.decision.target = target;
        self.is_finished = true;
        self
    }

    /// Closes the branch: a guard cannot be converted.
    pub(super) fn close(self, reason: impl Into<String>) -> Branch {
        self.finish(Target::Closed(reason.into()))
    }

    /// Splits the branch by a condition: where it holds, and where it does not. The second one needs no condition, as
    /// its decisions come after the decisions of the first, which take all requests of the condition.
    pub(super) fn split(self, condition: Value) -> (Branch, Branch) {
        let other = self.clone();
        let mut holds = self;
        holds.decision.conditions.push(condition);
        (holds, other)
    }

    /// Sets or removes a request field; the last change counts.
    pub(super) fn request_field(&mut self, name: &str, value: Option<String>) {
        self.request_fields.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.request_fields.push((name.to_owned(), value));
    }

    /// Sets or removes a response field. Responses pass the middlewares backwards, so the first change counts.
    pub(super) fn response_field(&mut self, name: &str, value: Option<String>) {
        if !self.response_fields.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            self.response_fields.push((name.to_owned(), value));
        }
    }

    /// Whether the path that middlewares see is the client's.
    pub(super) fn has_own_path(&self) -> bool {
        matches!(&self.rewrite, Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty())
    }

    /// Removes the first of the prefixes that the path has.
    pub(super) fn strip_prefixes(
        mut self,
        prefixes: &[String],
        force_slash: bool,
    ) -> Result<Vec<Branch>, String> {
        let mut branches = Vec::new();
        for prefix in prefixes.iter().map(|prefix| prefix.trim()).filter(|prefix| !prefix.is_empty()) {
            match self.begins(prefix)? {
                Begins::Never => {}
                Begins::Always => {
                    self.strip(prefix, force_slash);
                    branches.push(self);
                    return Ok(branches);
                }
                Begins::If(start) => {
                    let (mut taken, other) =
                        self.split(json!(["uri", "~~", format!("^{}", regex::escape(&start))]));
                    taken.known.push(start);
                    taken.strip(prefix, force_slash);
                    branches.push(taken);
                    self = other;
                }
            }
        }
        branches.push(self);
        Ok(branches)
    }

    fn begins(&self, prefix: &str) -> Result<Begins, String> {
        let (known, lead) = match &self.rewrite {
            Rewrite::Prefix { known, lead } => (known, lead),
            Rewrite::Fixed(path) if path.starts_with(prefix) => return Ok(Begins::Always),
            Rewrite::Fixed(_) => return Ok(Begins::Never),
            Rewrite::Regex { template, .. } => {
                let fixed = template.split("${").next().unwrap_or_default();
                return match (fixed.starts_with(prefix), prefix.starts_with(fixed)) {
                    (true, _) => Ok(Begins::Always),
                    (false, false) => Ok(Begins::Never),
                    (false, true) => {
                        Err("This prefix depends on the match of a regular expression.".to_owned())
                    }
                };
            }
        };
        if !lead.is_empty() && lead.starts_with(prefix) {
            return Ok(Begins::Always);
        }
        let Some(rest) = prefix.strip_prefix(lead.as_str()) else { return Ok(Begins::Never) };
        let start = format!("{known}{rest}");
        if self.known.iter().any(|known| known.starts_with(&start)) {
            return Ok(Begins::Always);
        }
        let paths = &self.decision.paths;
        let text = |path: &Path| match path {
            Path::Exact(text) | Path::Prefix(text) | Path::Segments(text) => Some(text.clone()),
            Path::Regex { .. } => None,
        };
        let texts: Option<Vec<String>> = paths.iter().map(text).collect();
        Ok(match texts {
            Some(texts) if texts.is_empty() => Begins::If(start),
            Some(texts) if texts.iter().all(|text| text.starts_with(&start)) => Begins::Always,
            Some(texts) if !texts.iter().any(|text| text.starts_with(&start) || start.starts_with(text)) => {
                Begins::Never
            }
            _ => Begins::If(start),
        })
    }

    fn strip(&mut self, prefix: &str, force_slash: bool) {
        self.request_field("X-Forwarded-Prefix", Some(prefix.to_owned()));
        self.rewrite = match std::mem::replace(&mut self.rewrite, Rewrite::Fixed(String::new())) {
            Rewrite::Fixed(path) => Rewrite::Fixed(slashed(&path[prefix.len()..])),
            Rewrite::Prefix { known, lead } if lead.starts_with(prefix) && !lead.is_empty() => {
                let lead = &lead[prefix.len()..];
                Rewrite::Prefix { known, lead: if lead.is_empty() { String::new() } else { slashed(lead) } }
            }
            Rewrite::Prefix { known, lead } => {
                let rest = prefix.strip_prefix(lead.as_str()).unwrap_or_default();
                Rewrite::Prefix { known: format!("{known}{rest}"), lead: String::new() }
            }
            Rewrite::Regex { pattern, template } => {
                let template = slashed(template.strip_prefix(prefix).unwrap_or(&template));
                Rewrite::Regex { pattern, template }
            }
        };
        // A path is never empty on the wire, so a forced slash shows only before a further prefix.
        let _ = force_slash;
    }

    /// Puts a prefix before the path.
    pub(super) fn add_prefix(&mut self, prefix: &str) {
        let prefix = slashed(prefix);
        match &mut self.rewrite {
            Rewrite::Prefix { lead, .. } => *lead = format!("{prefix}{lead}"),
            Rewrite::Fixed(path) => *path = format!("{prefix}{path}"),
            Rewrite::Regex { template, .. } => *template = format!("{prefix}{template}"),
        }
    }

    /// Replaces the path.
    pub(super) fn replace_path(&mut self, path: &str) {
        self.request_field("X-Replaced-Path", Some("$uri".to_owned()));
        self.rewrite = Rewrite::Fixed(path.to_owned());
    }

    /// Replaces the matches of a pattern in the path; requests without a match go on unchanged.
    pub(super) fn replace_regex(self, pattern: &str, template: &str) -> Result<Vec<Branch>, String> {
        if !self.has_own_path() {
            return Err("The path cannot be changed by a regular expression after another change.".to_owned());
        }
        let (mut taken, other) = self.split(json!(["uri", "~~", pattern]));
        taken.request_field("X-Replaced-Path", Some("$uri".to_owned()));
        taken.rewrite = Rewrite::Regex { pattern: pattern.to_owned(), template: groups(template) };
        Ok(vec![taken, other])
    }

    /// Removes the text that the first matching pattern finds at the beginning of the path.
    pub(super) fn strip_regexes(mut self, patterns: &[String]) -> Result<Vec<Branch>, String> {
        if !self.has_own_path() {
            return Err("A prefix cannot be found by a regular expression after another change of the path."
                .to_owned());
        }
        let mut branches = Vec::new();
        for pattern in patterns {
            let count = regex::Regex::new(pattern).map_or(1, |regex| regex.captures_len());
            let whole = format!("^({})/?(.*)$", pattern.strip_prefix('^').unwrap_or(pattern));
            let (mut taken, other) = self.split(json!(["uri", "~~", format!("^(?:{pattern})")]));
            taken.request_field("X-Forwarded-Prefix", Some("$1".to_owned()));
            taken.rewrite = Rewrite::Regex { pattern: whole, template: format!("/${{{}}}", count + 1) };
            branches.push(taken);
            self = other;
        }
        branches.push(self);
        Ok(branches)
    }

    /// Writes the changes of path and fields into plugins.
    pub(super) fn complete(mut self) -> Decision {
        let mut rewrite = Map::new();
        if !self.is_finished {
            if let Some(pairs) = self.rewrite.pairs() {
                rewrite.insert("regex_uri".to_owned(), json!(pairs));
                if !matches!(self.rewrite, Rewrite::Regex { .. } | Rewrite::Fixed(_)) {
                    rewrite.insert("keep_escapes".to_owned(), true.into());
                }
            }
            if let Some(host) = &self.host {
                rewrite.insert("host".to_owned(), host.clone().into());
            }
            if let Some(headers) = rules(&self.request_fields, &[]) {
                rewrite.insert("headers".to_owned(), headers);
            }
        }
        if !rewrite.is_empty() {
            self.decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        }
        if let Some(headers) = rules(&self.response_fields, &self.response_additions) {
            self.decision.plugins.insert("response-rewrite".to_owned(), json!({"headers": headers}));
        }
        self.decision
    }
}

impl Rewrite {
    /// Patterns and replacements of proxy-rewrite.
    fn pairs(&self) -> Option<Vec<String>> {
        match self {
            Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty() => None,
            Rewrite::Prefix { known, lead } if known.is_empty() => {
                Some(vec!["^(.*)$".to_owned(), format!("{}$1", literal(lead))])
            }
            Rewrite::Prefix { known, lead } => {
                let known = regex::escape(known);
                let whole = if lead.is_empty() { "/" } else { lead };
                let lead = literal(lead);
                Some(vec![
                    format!("^{known}$"),
                    literal(whole),
                    format!("^{known}/?(.*)$"),
                    format!("{lead}/$1"),
                ])
            }
            Rewrite::Fixed(path) => Some(vec!["^.*$".to_owned(), literal(path)]),
            Rewrite::Regex { pattern, template } => Some(vec![pattern.clone(), template.clone()]),
        }
    }
}

/// A text without references to groups.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn slashed(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    }
}

/// Writes the groups of Go's templates as `${1}`: in Go, `$1x` names a group `1x`, which is empty.
pub(super) fn groups(template: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push_str("$$");
            rest = after;
            continue;
        }
        let (name, after) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, after)) => (name, after),
            None => rest.split_at(
                rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).unwrap_or(rest.len()),
            ),
        };
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            out.push_str(&format!("${{{name}}}"));
        } else if name.is_empty() {
            out.push_str("$$");
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The rules for fields of proxy-rewrite and response-rewrite.
fn rules(changes: &[(String, Option<String>)], additions: &[String]) -> Option<Value> {
    let mut set = Map::new();
    let mut remove = Vec::new();
    for (name, value) in changes {
        match value {
            Some(value) => {
                set.insert(name.clone(), value.clone().into());
            }
            None => remove.push(name.clone()),
        }
    }
    let mut rules = Map::new();
    if !set.is_empty() {
        rules.insert("set".to_owned(), Value::Object(set));
    }
    if !remove.is_empty() {
        rules.insert("remove".to_owned(), json!(remove));
    }
    if !additions.is_empty() {
        rules.insert("add".to_owned(), json!(additions));
    }
    (!rules.is_empty()).then_some(Value::Object(rules))
}

#[cfg(test)]
mod tests {
    use super::super::super::source::SourceLine;
    use super::*;

    fn branch(path: Path) -> Branch {
        let mut decision = Decision::new(SourceLine::default(), "r", Target::Drop);
        decision.paths = vec![path];
        Branch::new(decision, false)
    }

    fn prefix(path: &str) -> Branch {
        branch(Path::Prefix(path.to_owned()))
    }

    fn pairs(branch: &Branch) -> Vec<String> {
        branch.rewrite.pairs().unwrap_or_default()
    }

    #[test]
    fn known_prefixes_need_no_condition() {
        let list = ["/x".to_owned(), "/strip".to_owned()];
        let mut found = prefix("/strip").strip_prefixes(&list, false).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(pairs(&found[0]), ["^/strip$", "/", "^/strip/?(.*)$", "/$1"]);
        found[0].add_prefix("/base");
        assert_eq!(pairs(&found[0]), ["^/strip$", "/base", "^/strip/?(.*)$", "/base/$1"]);
        let again = found.remove(0).strip_prefixes(&["/base/a".to_owned()], false).unwrap();
        assert_eq!(again.len(), 2);
        assert_eq!(again[0].decision.conditions, [json!(["uri", "~~", "^/strip/a"])]);
        assert_eq!(again[1].decision.conditions, [] as [Value; 0]);
    }

    #[test]
    fn prefixes_that_a_middleware_added_are_removed() {
        let mut added = prefix("/twisted");
        added.add_prefix("/base");
        let found = added.strip_prefixes(&["/base/twisted".to_owned()], false).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(pairs(&found[0]), ["^/twisted$", "/", "^/twisted/?(.*)$", "/$1"]);
    }

    #[test]
    fn regular_expressions_split() {
        let found = prefix("/v").strip_regexes(&["^/v([0-9]+)".to_owned()]).unwrap();
        assert_eq!(pairs(&found[0]), ["^(/v([0-9]+))/?(.*)$", "/${3}"]);
        assert_eq!(groups("/u/$2/${1}x$$-$a"), "/u/${2}/${1}x$$-");
    }
}
