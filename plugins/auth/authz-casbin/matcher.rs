//! Matchers of Casbin: whether a line of the policy is about a request.

use std::net::IpAddr;

use regex::Regex;
use sigma_schema::cidr::Cidr;

use super::policy::Roles;

/// A matcher.
#[derive(Debug)]
pub(super) enum Matcher {
    All(Vec<Matcher>),
    Any(Vec<Matcher>),
    Not(Box<Matcher>),
    Equal(Value, Value),
    /// A role definition by number, who has the role, the role, and the domain if there is one.
    HasRole(usize, Value, Value, Option<Value>),
    /// A value against patterns.
    Fits(Form, Value, Value),
}

/// A value in a matcher.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Of the request, by place.
    Request(usize),
    /// Of the policy's line, by place.
    Line(usize),
    Text(String),
}

/// The forms of patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// `*` matches the rest.
    Key,
    /// `:name` for a segment, `/*` for the rest.
    Key2,
    /// `{name}` for a segment, `/*` for the rest.
    Key3,
    Regex,
    /// An address or a network.
    Ip,
}

/// A pattern, ready to be used.
#[derive(Debug)]
pub(super) enum Pattern {
    Start(String),
    Exactly(String),
    Regex(Regex),
    Network(Cidr),
}

impl Form {
    fn named(name: &str) -> Option<Form> {
        Some(match name {
            "keyMatch" => Form::Key,
            "keyMatch2" => Form::Key2,
            "keyMatch3" => Form::Key3,
            "regexMatch" => Form::Regex,
            "ipMatch" => Form::Ip,
            _ => return None,
        })
    }

    /// A pattern of this form.
    ///
    /// # Errors
    /// Returns an error, which names it, if it is not a pattern.
    pub(super) fn pattern(self, text: &str) -> Result<Pattern, String> {
        let anchored = |segment: &str| {
            let names = match self {
                Form::Key2 => r":[^/]+",
                _ => r"\{[^/]+?\}",
            };
            let names = Regex::new(names).map_err(|error| error.to_string())?;
            // All but the names and the stars is literal.
            let mut whole = String::from("^");
            let mut from = 0;
            for name in names.find_iter(text) {
                whole.push_str(&literal(&text[from..name.start()]));
                whole.push_str(segment);
                from = name.end();
            }
            whole.push_str(&literal(&text[from..]));
            whole.push('$');
            Regex::new(&whole).map_err(|error| error.to_string())
        };
        let pattern = match self {
            Form::Key => Ok(match text.split_once('*') {
                Some((start, _)) => Pattern::Start(start.to_owned()),
                None => Pattern::Exactly(text.to_owned()),
            }),
            Form::Key2 | Form::Key3 => anchored("[^/]+").map(Pattern::Regex),
            Form::Regex => Regex::new(text).map(Pattern::Regex).map_err(|error| error.to_string()),
            Form::Ip => {
                text.parse().map(Pattern::Network).map_err(|_| "not an address or a network".to_owned())
            }
        };
        pattern.map_err(|reason| format!("`{text}`: {reason}"))
    }
}

/// Returns a part of a path as a regular expression, in which `/*` matches the rest.
fn literal(text: &str) -> String {
    regex::escape(text).replace(r"/\*", "/.*")
}

impl Pattern {
    pub(super) fn fits(&self, value: &str) -> bool {
        match self {
            Pattern::Start(start) => value.starts_with(start.as_str()),
            Pattern::Exactly(text) => value == text,
            Pattern::Regex(regex) => regex.is_match(value),
            Pattern::Network(network) => {
                value.parse::<IpAddr>().is_ok_and(|address| network.contains(address))
            }
        }
    }
}

/// The names that a matcher may use.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Of the request's values, of a line's.
    pub(super) request: Vec<String>,
    pub(super) line: Vec<String>,
    /// Of role definitions, with how many values they have.
    pub(super) roles: Vec<(String, usize)>,
}

impl Matcher {
    /// Reads a matcher.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it cannot be parsed.
    pub(super) fn parse(text: &str, names: &Names) -> Result<Matcher, String> {
        let mut reader = Reader { rest: text, names, depth: 0 };
        let matcher = reader.any()?;
        match reader.rest.trim_start() {
            "" => Ok(matcher),
            rest => Err(format!("`{rest}` is not understood")),
        }
    }

    /// Whether it holds for a request and a line. `patterns` are the patterns of the line and of the matcher
    /// itself.
    pub(super) fn holds(&self, facts: &Facts<'_>) -> bool {
        match self {
            Matcher::All(all) => all.iter().all(|one| one.holds(facts)),
            Matcher::Any(any) => any.iter().any(|one| one.holds(facts)),
            Matcher::Not(one) => !one.holds(facts),
            Matcher::Equal(a, b) => facts.of(a) == facts.of(b),
            Matcher::HasRole(number, name, role, domain) => {
                let domain = domain.as_ref().map_or("", |domain| facts.of(domain));
                facts
                    .roles
                    .get(*number)
                    .is_some_and(|roles| roles.has(facts.of(name), facts.of(role), domain))
            }
            Matcher::Fits(form, value, pattern) => {
                facts.pattern(*form, pattern).is_some_and(|pattern| pattern.fits(facts.of(value)))
            }
        }
    }

    /// Every form with the value that its patterns come from.
    pub(super) fn patterns(&self) -> Vec<(Form, &Value)> {
        match self {
            Matcher::All(list) | Matcher::Any(list) => list.iter().flat_map(Matcher::patterns).collect(),
            Matcher::Not(one) => one.patterns(),
            Matcher::Fits(form, _, pattern) => vec![(*form, pattern)],
            Matcher::Equal(..) | Matcher::HasRole(..) => Vec::new(),
        }
    }
}

/// The input of a matcher.
pub(super) struct Facts<'f> {
    pub(super) request: &'f [&'f str],
    pub(super) line: &'f [String],
    pub(super) roles: &'f [Roles],
    /// The patterns of the line, by form and value.
    pub(super) patterns: &'f [((Form, Value), Pattern)],
}

impl Facts<'_> {
    fn of<'v>(&'v self, value: &'v Value) -> &'v str {
        match value {
            Value::Request(at) => self.request.get(*at).copied().unwrap_or_default(),
            Value::Line(at) => self.line.get(*at).map(String::as_str).unwrap_or_default(),
            Value::Text(text) => text,
        }
    }

    fn pattern(&self, form: Form, value: &Value) -> Option<&Pattern> {
        self.patterns.iter().find(|((of, from), _)| *of == form && from == value).map(|(_, pattern)| pattern)
    }
}

/// How deep parentheses may be nested.
const DEPTH_MAX: usize = 32;

struct Reader<'r> {
    rest: &'r str,
    names: &'r Names,
    depth: usize,
}

impl<'r> Reader<'r> {
    fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        match self.take(sign) {
            true => Ok(()),
            false => Err(format!("`{sign}` is missing before `{}`", self.rest.trim_start())),
        }
    }

    fn any(&mut self) -> Result<Matcher, String> {
        let mut any = vec![self.all()?];
        while self.take("||") {
            any.push(self.all()?);
        }
        Ok(Matcher::Any(any))
    }

    fn all(&mut self) -> Result<Matcher, String> {
        let mut all = vec![self.one()?];
        while self.take("&&") {
            all.push(self.one()?);
        }
        Ok(Matcher::All(all))
    }

    fn one(&mut self) -> Result<Matcher, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("it is nested too deeply".to_owned());
        }
        let matcher = if self.take("!") {
            Matcher::Not(Box::new(self.one()?))
        } else if self.take("(") {
            let inner = self.any()?;
            self.expect(")")?;
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(matcher)
    }

    fn comparison(&mut self) -> Result<Matcher, String> {
        let start = self.rest.trim_start();
        let word = self.word();
        if !word.is_empty() && self.take("(") {
            return self.call(word);
        }
        self.rest = start;
        let left = self.value()?;
        if self.take("==") {
            return Ok(Matcher::Equal(left, self.value()?));
        }
        self.expect("!=")?;
        Ok(Matcher::Not(Box::new(Matcher::Equal(left, self.value()?))))
    }

    fn call(&mut self, function: &str) -> Result<Matcher, String> {
        let mut values = vec![self.value()?];
        while self.take(",") {
            values.push(self.value()?);
        }
        self.expect(")")?;
        if let Some(number) = self.names.roles.iter().position(|(name, _)| name == function) {
            let count = self.names.roles[number].1;
            if values.len() != count {
                return Err(format!(
                    "`{function}` has {count} values in the model, but {} here",
                    values.len()
                ));
            }
            let mut values = values.into_iter();
            return match (values.next(), values.next(), values.next()) {
                (Some(name), Some(role), domain) => Ok(Matcher::HasRole(number, name, role, domain)),
                _ => Err(format!("`{function}` needs a name and a role")),
            };
        }
        let form = Form::named(function).ok_or_else(|| format!("unknown function `{function}`"))?;
        match <[Value; 2]>::try_from(values) {
            // A client must not write patterns.
            Ok([_, Value::Request(_)]) => Err(format!(
                "the second argument of `{function}` is the pattern, and it may not come from the request"
            )),
            Ok([value, pattern]) => Ok(Matcher::Fits(form, value, pattern)),
            Err(_) => Err(format!("`{function}` needs a value and a pattern")),
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        for quote in ["\"", "'"] {
            if self.take(quote) {
                let (text, rest) = self.rest.split_once(quote).ok_or("a quote is not closed")?;
                self.rest = rest;
                return Ok(Value::Text(text.to_owned()));
            }
        }
        let word = self.word();
        let place = |names: &[String], name: &str| names.iter().position(|known| known == name);
        let value = match word.split_once('.') {
            Some(("r", name)) => place(&self.names.request, name).map(Value::Request),
            Some(("p", name)) => place(&self.names.line, name).map(Value::Line),
            _ => None,
        };
        value.ok_or_else(|| match word {
            "" => format!("a value is missing before `{}`", self.rest.trim_start()),
            _ => format!("`{word}` is not understood: write r.name, p.name or a text in quotes"),
        })
    }

    fn word(&mut self) -> &'r str {
        let rest = self.rest.trim_start();
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '.';
        let end = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let sides = list(&["sub", "obj", "act"]);
        Names { request: sides, line: list(&["sub", "obj", "act"]), roles: vec![("g".to_owned(), 2)] }
    }

    #[test]
    fn patterns_fit() {
        for (form, pattern, value, expected) in [
            (Form::Key, "/a/*", "/a/b/c", true),
            (Form::Key, "/a/*", "/a/", true),
            (Form::Key, "/a/*", "/a", false),
            (Form::Key, "/a", "/a", true),
            (Form::Key, "/a", "/ab", false),
            (Form::Key, "*", "", true),
            (Form::Key2, "/a/:id", "/a/1", true),
            (Form::Key2, "/a/:id", "/a/", false),
            (Form::Key2, "/a/:id", "/a/1/2", false),
            (Form::Key2, "/a/:id/x/*", "/a/1/x/y/z", true),
            (Form::Key2, "/a.b", "/axb", false),
            (Form::Key2, "/a", "/a/b", false),
            (Form::Key3, "/a/{id}", "/a/1", true),
            (Form::Key3, "/a/{id}", "/a/1/2", false),
            (Form::Key3, "/a/{id}/*", "/a/1/2", true),
            (Form::Regex, "^(GET|POST)$", "GET", true),
            (Form::Regex, "^(GET|POST)$", "GETS", false),
            (Form::Ip, "10.0.0.0/8", "10.1.2.3", true),
            (Form::Ip, "10.0.0.0/8", "11.1.2.3", false),
            (Form::Ip, "10.0.0.1", "nonsense", false),
        ] {
            assert_eq!(
                form.pattern(pattern).expect("a pattern").fits(value),
                expected,
                "{form:?} {pattern} {value}"
            );
        }
        assert!(Form::Regex.pattern("(").is_err() && Form::Ip.pattern("x").is_err());
    }

    #[test]
    fn matchers_hold() {
        let check = |text: &str, expected: bool| {
            let matcher = Matcher::parse(text, &names()).unwrap_or_else(|error| panic!("{text}: {error}"));
            let line = ["admin", "/a/*", "GET"].map(str::to_owned);
            let patterns: Vec<((Form, Value), Pattern)> = matcher
                .patterns()
                .into_iter()
                .map(|(form, value)| {
                    let text = match value {
                        Value::Line(at) => line[*at].as_str(),
                        Value::Text(text) => text,
                        Value::Request(_) => panic!("no pattern"),
                    };
                    ((form, value.clone()), form.pattern(text).expect("a pattern"))
                })
                .collect();
            let mut policy = super::super::policy::Policy::parse("g, alice, admin").expect("a policy");
            let roles = [Roles::new(&policy.take("g", 2).expect("roles")).expect("roles")];
            let facts =
                Facts { request: &["alice", "/a/b", "GET"], line: &line, roles: &roles, patterns: &patterns };
            assert_eq!(matcher.holds(&facts), expected, "{text}");
        };
        check("g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act", true);
        check("r.sub == p.sub", false);
        check("r.sub == p.sub || r.sub == \"alice\"", true);
        check("r.act == 'POST' || r.act == 'GET' && r.sub == 'x'", false);
        check("(r.act == 'POST' || r.act == 'GET') && !(r.sub == 'x')", true);
        check("r.act != p.act", false);
        check("!!keyMatch2(r.obj, '/a/:x')&&regexMatch(r.act,\"^G\")", true);
    }

    #[test]
    fn unsupported_matchers_are_refused() {
        let deep = format!("{}r.sub == p.sub{}", "(".repeat(40), ")".repeat(40));
        for (text, expected) in [
            ("", "a value is missing"),
            ("r.sub", "`!=` is missing"),
            ("r.sub == p.sub extra", "`extra` is not understood"),
            ("r.sub == p.owner", "`p.owner` is not understood"),
            ("r.sub == p.sub &", "`&` is not understood"),
            ("eval(p.sub)", "unknown function `eval`"),
            ("g(r.sub)", "`g` has 2 values"),
            ("keyMatch(p.obj, r.obj)", "it may not come from the request"),
            ("keyMatch(r.obj)", "needs a value and a pattern"),
            ("r.sub == 'x", "a quote is not closed"),
            ("(r.sub == p.sub", "`)` is missing"),
            (&deep, "nested too deeply"),
        ] {
            let error = Matcher::parse(text, &names()).map(drop).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
