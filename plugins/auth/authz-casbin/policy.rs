//! Policies of Casbin: lines with what may be done, and who has which roles.

use std::collections::{HashMap, HashSet};

/// Most pairs of who has a role, over all steps between them: a chain of a thousand roles makes half a
/// million.
const PAIRS_MAX: usize = 1_000_000;

/// The lines of a policy, by the names that they begin with.
#[derive(Debug, Default)]
pub(super) struct Policy {
    lines: HashMap<String, Vec<Line>>,
}

/// A line, with its number from 1.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) values: Vec<String>,
}

impl Policy {
    /// Reads lines of values with commas between them; `"` around a value that has commas, `""` for a quote in it.
    /// Empty lines and those that begin with `#` mean nothing.
    ///
    /// # Errors
    /// Returns an error, which names the line, if a quote is not closed.
    pub(super) fn parse(text: &str) -> Result<Policy, String> {
        let mut policy = Policy::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut values = values(line).ok_or_else(|| format!("line {number}: a quote is not closed"))?;
            let name = values.remove(0);
            policy.lines.entry(name).or_default().push(Line { number, values });
        }
        Ok(policy)
    }

    /// Takes out the lines that begin with `name` and have so many values.
    ///
    /// # Errors
    /// Returns an error, which names the line, if one has more or fewer.
    pub(super) fn take(&mut self, name: &str, count: usize) -> Result<Vec<Line>, String> {
        let lines = self.lines.remove(name).unwrap_or_default();
        match lines.iter().find(|line| line.values.len() != count) {
            None => Ok(lines),
            Some(Line { number, values }) => Err(format!(
                "line {number}: `{name}` has {count} values in the model, but {} here",
                values.len()
            )),
        }
    }

    /// Makes sure that nothing is left: an ignored line may be one that denies.
    ///
    /// # Errors
    /// Returns an error, which names the line, if there is one.
    pub(super) fn is_used_up(&self) -> Result<(), String> {
        match self.lines.iter().next() {
            None => Ok(()),
            Some((name, lines)) => {
                let number = lines.first().map_or(0, |line| line.number);
                Err(format!("line {number}: the model has no `{name}`"))
            }
        }
    }
}

/// At least one; None if a quote is not closed.
fn values(line: &str) -> Option<Vec<String>> {
    let (mut values, mut value, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                value.push('"');
                chars.next();
            }
            '"' if quoted || value.trim().is_empty() => quoted = !quoted,
            ',' if !quoted => values.push(std::mem::take(&mut value).trim().to_owned()),
            other => value.push(other),
        }
    }
    values.push(value.trim().to_owned());
    (!quoted).then_some(values)
}

/// Roles of users, by domain.
#[derive(Debug, Default)]
pub(super) struct Roles(HashMap<String, HashMap<String, HashSet<String>>>);

impl Roles {
    /// Of lines with a name, its role, and a domain if there are any. A role may have roles.
    ///
    /// # Errors
    /// Returns an error if too many have roles over too many steps.
    pub(super) fn new(lines: &[Line]) -> Result<Roles, String> {
        let mut direct: HashMap<&str, HashMap<&str, Vec<&str>>> = HashMap::new();
        for Line { values, .. } in lines {
            let [name, role, domain @ ..] = &values[..] else { continue };
            let domain = direct.entry(domain.first().map_or("", String::as_str)).or_default();
            domain.entry(name).or_default().push(role);
        }
        let (mut roles, mut pairs) = (Roles::default(), 0);
        for (domain, direct) in direct {
            let within = roles.0.entry(domain.to_owned()).or_default();
            for name in direct.keys() {
                let (mut all, mut next) = (HashSet::new(), vec![*name]);
                while let Some(one) = next.pop() {
                    for role in direct.get(one).into_iter().flatten() {
                        if all.insert((*role).to_owned()) {
                            next.push(role);
                        }
                    }
                }
                pairs += all.len();
                if pairs > PAIRS_MAX {
                    return Err(format!(
                        "more than {PAIRS_MAX} pairs of names and roles: make the chains shorter"
                    ));
                }
                within.insert((*name).to_owned(), all);
            }
        }
        Ok(roles)
    }

    /// Whether a name has a role, or is it.
    pub(super) fn has(&self, name: &str, role: &str, domain: &str) -> bool {
        let roles = || self.0.get(domain)?.get(name);
        name == role || roles().is_some_and(|roles| roles.contains(role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text =
            "# who may what\np, alice , \"/a, b\", GET\r\n\n  p,\"\",\"say \"\"x\"\"\", y\"z\ng, bob, admin";
        let mut policy = Policy::parse(text).expect("a policy");
        let lines = policy.take("p", 3).expect("three each");
        let values: Vec<&[String]> = lines.iter().map(|line| &line.values[..]).collect();
        assert_eq!(values, [["alice", "/a, b", "GET"], ["", "say \"x\"", "y\"z"]]);
        assert_eq!(lines[1].number, 4);
        assert_eq!(policy.is_used_up().unwrap_err(), "line 5: the model has no `g`");
        assert!(
            policy.take("g", 3).unwrap_err().contains("line 5: `g` has 3 values in the model, but 2 here")
        );
        assert!(Policy::parse("p, \"a").unwrap_err().contains("line 1"));
    }

    #[test]
    fn roles_have_roles() {
        let mut policy = Policy::parse("g, a, b\ng, b, c\ng, c, a\ng, x, y").expect("a policy");
        let roles = Roles::new(&policy.take("g", 2).expect("two each")).expect("roles");
        for (name, role, expected) in
            [("a", "c", true), ("c", "b", true), ("a", "a", true), ("a", "y", false), ("y", "x", false)]
        {
            assert_eq!(roles.has(name, role, ""), expected, "{name} {role}");
        }
        let mut policy = Policy::parse("g, a, b, one\ng, b, c, two").expect("a policy");
        let roles = Roles::new(&policy.take("g", 3).expect("three each")).expect("roles");
        assert!(roles.has("a", "b", "one") && !roles.has("a", "b", "two") && !roles.has("a", "c", "one"));
    }
}
