//! Models of Casbin, and the decisions that they come to.

use super::matcher::{Facts, Form, Matcher, Names, Pattern, Value};
use super::policy::{Line, Policy, Roles};

/// A model with its policy, ready to decide.
#[derive(Debug)]
pub(super) struct Enforcer {
    rules: Vec<Rule>,
    roles: Vec<Roles>,
    matcher: Matcher,
    effect: Effect,
}

/// A line of the policy.
#[derive(Debug)]
struct Rule {
    values: Vec<String>,
    denies: bool,
    patterns: Vec<((Form, Value), Pattern)>,
}

/// The result of the lines that match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// One allows it.
    SomeAllows,
    /// None denies it.
    NoneDenies,
    /// One allows it and none denies it.
    SomeAllowsNoneDenies,
    /// The first one says so.
    First,
}

impl Effect {
    fn parse(text: &str) -> Option<Effect> {
        let bare: String = text.split_whitespace().collect();
        Some(match &*bare {
            "some(where(p.eft==allow))" => Effect::SomeAllows,
            "!some(where(p.eft==deny))" => Effect::NoneDenies,
            "some(where(p.eft==allow))&&!some(where(p.eft==deny))" => Effect::SomeAllowsNoneDenies,
            "priority(p.eft)||deny" => Effect::First,
            _ => return None,
        })
    }
}

/// The definitions of a model: sections with names, each with its text.
struct Sections(Vec<(String, String, String)>);

impl Sections {
    fn parse(text: &str) -> Result<Sections, String> {
        let (mut found, mut section) = (Vec::new(), None);
        let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
        for line in joined.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = Some(name.trim().to_owned());
            } else if let (Some(section), Some((name, value))) = (&section, line.split_once('=')) {
                found.push((section.clone(), name.trim().to_owned(), value.trim().to_owned()));
            } else {
                return Err(format!("the model: `{line}` is not in the form `name = value`"));
            }
        }
        Ok(Sections(found))
    }

    /// Takes out the only definition of a section, which has this name.
    fn only(&mut self, section: &str, name: &str) -> Result<String, String> {
        let found = self.all(section);
        match <[(String, String); 1]>::try_from(found) {
            Ok([(own, text)]) if own == name => Ok(text),
            Ok([(own, _)]) => Err(format!("the model: [{section}] has `{own}`; only `{name}` is supported")),
            Err(found) if found.is_empty() => Err(format!("the model has no [{section}]")),
            Err(_) => {
                Err(format!("the model: [{section}] has several definitions; only `{name}` is supported"))
            }
        }
    }

    /// Takes out all definitions of a section.
    fn all(&mut self, section: &str) -> Vec<(String, String)> {
        let all = std::mem::take(&mut self.0);
        let (found, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|(own, ..)| own == section);
        self.0 = left;
        found.into_iter().map(|(_, name, text)| (name, text)).collect()
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).collect()
}

impl Enforcer {
    /// Reads both.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if something is not understood.
    pub(super) fn new(model: &str, policy: &str) -> Result<Enforcer, String> {
        let mut sections = Sections::parse(model)?;
        let mut policy = Policy::parse(policy).map_err(|error| format!("the policy: {error}"))?;
        let request = list(&sections.only("request_definition", "r")?);
        if request.len() != 3 {
            let count = request.len();
            return Err(format!("the model: `r` has {count} values; it needs three: user, path and method"));
        }
        let mut names =
            Names { request, line: list(&sections.only("policy_definition", "p")?), roles: Vec::new() };
        let effect = sections.only("policy_effect", "e")?;
        let effect = Effect::parse(&effect)
            .ok_or_else(|| format!("the model: the effect `{effect}` is not supported"))?;
        let mut roles = Vec::new();
        for (name, text) in sections.all("role_definition") {
            let count = list(&text).len();
            if !(2..=3).contains(&count) {
                return Err(format!(
                    "the model: `{name}` has {count} values; a role has 2, or 3 with a domain"
                ));
            }
            let lines = policy.take(&name, count).map_err(|error| format!("the policy: {error}"))?;
            roles.push(Roles::new(&lines).map_err(|error| format!("the policy: {error}"))?);
            names.roles.push((name, count));
        }
        let matcher = sections.only("matchers", "m")?;
        let matcher =
            Matcher::parse(&matcher, &names).map_err(|error| format!("the model: the matcher: {error}"))?;
        if let Some((section, ..)) = sections.0.first() {
            return Err(format!("the model: unknown section [{section}]"));
        }
        let lines = policy.take("p", names.line.len()).map_err(|error| format!("the policy: {error}"))?;
        policy.is_used_up().map_err(|error| format!("the policy: {error}"))?;
        let effect_at = names.line.iter().position(|name| name == "eft");
        let rule = |line: Line| Rule::new(line, effect_at, &matcher);
        let rules = lines.into_iter().map(rule).collect::<Result<_, _>>();
        Ok(Enforcer { rules: rules.map_err(|error| format!("the policy: {error}"))?, roles, matcher, effect })
    }

    /// Whether a user may do something with a path.
    pub(super) fn allows(&self, request: [&str; 3]) -> bool {
        let about = self.rules.iter().filter(|rule| {
            let (line, patterns) = (&rule.values, &rule.patterns);
            self.matcher.holds(&Facts { request: &request, line, roles: &self.roles, patterns })
        });
        let mut denials = about.map(|rule| rule.denies);
        match self.effect {
            Effect::SomeAllows => denials.any(|denies| !denies),
            Effect::NoneDenies => !denials.any(|denies| denies),
            Effect::First => denials.next() == Some(false),
            Effect::SomeAllowsNoneDenies => {
                let mut some = false;
                denials.all(|denies| {
                    some |= !denies;
                    !denies
                }) && some
            }
        }
    }
}

impl Rule {
    fn new(line: Line, effect_at: Option<usize>, matcher: &Matcher) -> Result<Rule, String> {
        let Line { number, values } = line;
        let denies = match effect_at.and_then(|at| values.get(at)).map(String::as_str) {
            None | Some("allow") => false,
            Some("deny") => true,
            Some(other) => {
                return Err(format!("line {number}: the effect `{other}` is not allow or deny"));
            }
        };
        let mut patterns: Vec<((Form, Value), Pattern)> = Vec::new();
        for (form, value) in matcher.patterns() {
            let text = match value {
                Value::Line(at) => values.get(*at).map(String::as_str).unwrap_or_default(),
                Value::Text(text) => text,
                // The matcher does not use it.
                Value::Request(_) => continue,
            };
            let pattern = form.pattern(text).map_err(|error| format!("line {number}: {error}"))?;
            patterns.push(((form, value.clone()), pattern));
        }
        Ok(Rule { values, denies, patterns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(line: &str, effect: &str, matcher: &str) -> String {
        format!(
            "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = {line}\n\
             [role_definition]\ng = _, _, _\n[policy_effect]\ne = {effect}\n[matchers]\nm = {matcher}\n"
        )
    }

    #[test]
    fn effects_decide() {
        let policy = "p, a, allow\np, b, deny\np, c, allow\np, c, deny\np, d, deny\np, d, allow";
        for (effect, allowed) in [
            ("some(where (p.eft == allow))", "acd"),
            ("!some(where (p.eft == deny))", "ax"),
            ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", "a"),
            ("priority(p.eft) || deny", "ac"),
        ] {
            let enforcer = Enforcer::new(&model("sub, eft", effect, "r.sub == p.sub"), policy).unwrap();
            let found: String = ["a", "b", "c", "d", "x"]
                .into_iter()
                .filter(|user| enforcer.allows([user, "/", "GET"]))
                .collect();
            assert_eq!(found, allowed, "{effect}");
        }
    }

    #[test]
    fn roles_have_domains() {
        let matcher = "g(r.sub, p.sub, p.dom) && \\\n keyMatch2(r.obj, p.obj)";
        let model = model("sub, dom, obj", "some(where (p.eft == allow))", matcher);
        let policy = "p, admin, shop, /shop/:id\np, admin, bank, /bank/:id\ng, alice, admin, shop";
        let enforcer = Enforcer::new(&model, policy).unwrap();
        assert!(enforcer.allows(["alice", "/shop/1", "GET"]));
        assert!(!enforcer.allows(["alice", "/bank/1", "GET"]));
        assert!(!enforcer.allows(["bob", "/shop/1", "GET"]));
    }

    #[test]
    fn unsupported_models_are_refused() {
        let allow = "some(where (p.eft == allow))";
        let fine = model("sub, obj, act", allow, "r.sub == p.sub");
        let check = |model: &str, policy: &str, expected: &str| {
            let error = Enforcer::new(model, policy).map(drop).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        assert!(Enforcer::new(&fine, "").is_ok_and(|enforcer| !enforcer.allows(["a", "/", "GET"])));
        check(&fine, "p, a, b, c\nq, a", "the policy: line 2: the model has no `q`");
        check(&fine, "g, a, b", "the policy: line 1: `g` has 3 values in the model, but 2 here");
        check(&model("sub, eft", allow, "r.sub == p.sub"), "p, a, maybe", "`maybe` is not allow or deny");
        check(&model("sub", "max(p.eft)", "r.sub == p.sub"), "", "the effect `max(p.eft)` is not supported");
        check(&model("sub", allow, "regexMatch(r.sub, p.sub)"), "p, (", "the policy: line 1: `(`");
        check(&fine.replace("act\n[policy_d", "act, x\n[policy_d"), "", "`r` has 4");
        check(&fine.replace("m = ", "m2 = "), "", "[matchers] has `m2`; only `m` is supported");
        check(&format!("{fine}[constraints]\nc = x"), "", "unknown section [constraints]");
        check("r = a", "", "`r = a` is not in the form `name = value`");
        check(&fine.replace("_, _, _", "_"), "", "`g` has 1 values");
    }
}
