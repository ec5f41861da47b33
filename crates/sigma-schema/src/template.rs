//! Texts with variables: `$name`, `${name}`, `${name ?? default}`; `\$` is a dollar sign.

use std::borrow::Cow;

use crate::expr::known::Subject;
use crate::expr::{BodyField, VarName, VarValue, Variables};

/// A text with variables, parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable { name: VarName, default: Option<String> },
}

impl Template {
    /// Parses a template. Every text is valid: a `$` that starts no variable is a literal `$`.
    #[must_use]
    pub fn parse(text: &str) -> Template {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("\\$") {
                literal.push('$');
                rest = after;
            } else if let Some((variable, after)) = rest.strip_prefix('$').and_then(variable) {
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(variable);
                rest = after;
            } else {
                literal.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Template { parts }
    }

    /// Returns the names of the variables, in order of appearance.
    pub fn variables(&self) -> impl Iterator<Item = &VarName> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable { name, .. } => Some(name),
            Part::Literal(_) => None,
        })
    }

    /// Returns why the template can never work: its first variable that no exchange has and that has no default, see
    /// [`VarName::unknown`].
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        self.unknown_of(Subject::Exchange)
    }

    /// Does the same for the variables of `subject`.
    #[must_use]
    pub fn unknown_of(&self, subject: Subject) -> Option<String> {
        self.parts.iter().find_map(|part| match part {
            // Numbers are groups of a pattern, not variables.
            Part::Variable { name: VarName::Other(name), .. }
                if name.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                None
            }
            Part::Variable { name, default: None } => name.unknown_of(subject),
            _ => None,
        })
    }

    /// Does the same as [`Template::unknown`], and also accepts these variables.
    #[must_use]
    pub fn unknown_beside(&self, known: &[&str]) -> Option<String> {
        let is_known = |part: &&Part| match part {
            Part::Variable { name: VarName::Other(name), .. } => known.contains(&name.as_str()),
            _ => false,
        };
        let parts = self.parts.iter().filter(|part| !is_known(part)).cloned().collect();
        Template { parts }.unknown()
    }

    /// Returns the text if it has no variable.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the rendered text. An absent variable without default is empty.
    #[must_use]
    pub fn rendered(&self, variables: &dyn Variables) -> Vec<u8> {
        let mut text = Vec::new();
        self.render(variables, &mut text);
        text
    }

    /// Returns the variable that the text begins with.
    #[must_use]
    pub fn leading_variable(&self) -> Option<&VarName> {
        match self.parts.first()? {
            Part::Variable { name, .. } => Some(name),
            Part::Literal(_) => None,
        }
    }

    /// Renders like [`Template::render`], but `literal` writes the operator's own text and defaults.
    pub fn render_with(
        &self,
        variables: &dyn Variables,
        literal: &dyn Fn(&[u8], &mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => literal(text.as_bytes(), out),
                Part::Variable { name, default } => match variables.get(name) {
                    Some(value) => append(out, &value),
                    None => literal(default.as_deref().unwrap_or_default().as_bytes(), out),
                },
            }
        }
    }

    /// Appends the rendered text to `out`. An absent variable without default is empty. Returns how many variables had
    /// a value or a default: a hash key without any counts as missing.
    pub fn render(&self, variables: &dyn Variables, out: &mut Vec<u8>) -> usize {
        let mut resolved = 0;
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable { name, default } => match variables.get(name) {
                    Some(value) => {
                        resolved += 1;
                        append(out, &value);
                    }
                    None => {
                        resolved += usize::from(default.is_some());
                        out.extend_from_slice(default.as_deref().unwrap_or_default().as_bytes());
                    }
                },
            }
        }
        resolved
    }
}

fn append(out: &mut Vec<u8>, value: &VarValue<'_>) {
    match value {
        VarValue::Text(text) => out.extend_from_slice(text),
        VarValue::Bool(truth) => out.extend_from_slice(if *truth { b"true" } else { b"false" }),
        VarValue::List(items) => {
            let items: Vec<&[u8]> = items.iter().map(Cow::as_ref).collect();
            out.extend_from_slice(&items.join(&b","[..]));
        }
    }
}

/// Parses the variable after a `$`, and returns the rest.
fn variable(text: &str) -> Option<(Part, &str)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if let Some(braced) = text.strip_prefix('{') {
        let (inside, after) = braced.split_once('}')?;
        let (name, default) = match inside.split_once("??") {
            Some((name, default)) => (name.trim(), Some(default.trim().to_owned())),
            None => (inside.trim(), None),
        };
        // Names in braces may contain more characters, for `post_arg.a.b` and `uri_param_:ext`.
        let valid = !name.is_empty()
            && name.chars().all(|c| word(c) || matches!(c, '.' | '-' | ':' | '[' | ']' | '*'));
        return valid.then(|| (Part::Variable { name: VarName::parse(name), default }, after));
    }
    let end = text.find(|c| !word(c)).unwrap_or(text.len());
    // `$post_arg.a.b` continues after a dot if a name follows it.
    let end = match text.strip_prefix(BodyField::PREFIX) {
        Some(path) if end + 1 == BodyField::PREFIX.len() => {
            let path = &path[..path.find(|c| !word(c) && !matches!(c, '.' | '-')).unwrap_or(path.len())];
            let path = path.trim_end_matches('.');
            if path.is_empty() { end } else { BodyField::PREFIX.len() + path.len() }
        }
        _ => end,
    };
    let (name, after) = text.split_at(end);
    (!name.is_empty()).then(|| (Part::Variable { name: VarName::parse(name), default: None }, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Variables for Fixed {
        fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
            match name {
                VarName::Uri => Some(VarValue::text("/a")),
                VarName::Arg(name) if name == "flag" => Some(VarValue::Bool(true)),
                VarName::Arg(name) if name == "x" => Some(VarValue::text("1")),
                _ => None,
            }
        }
    }

    #[test]
    fn templates_render() {
        let check = |template: &str, expected: &str, resolved: usize| {
            let mut out = Vec::new();
            let count = Template::parse(template).render(&Fixed, &mut out);
            assert_eq!((String::from_utf8(out).unwrap().as_str(), count), (expected, resolved), "{template}");
        };
        check("", "", 0);
        check("plain", "plain", 0);
        check("$uri", "/a", 1);
        check("$uri$arg_x!", "/a1!", 2);
        check("${uri}b", "/ab", 1);
        check("$urib", "", 0);
        check("${ arg_none ?? fallback }", "fallback", 1);
        check("${arg_x ?? fallback}", "1", 1);
        check("${arg_none}", "", 0);
        check("\\$uri costs 5$", "$uri costs 5$", 0);
        check("$arg_flag", "true", 1);
        check("$post_arg.a.b.", ".", 0);
        check("$post_arg.a/b", "/b", 0);
        check("${post_arg.a[0].b ?? none}", "none", 1);
        check("$post_arg.", ".", 0);
        check("${unclosed", "${unclosed", 0);
        check("${}", "${}", 0);
        check("é$uri→", "é/a→", 1);
    }
}
