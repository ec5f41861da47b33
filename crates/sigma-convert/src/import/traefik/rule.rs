//! The language of router rules: matchers, `&&`, `||`, `!` and parentheses.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum nesting of parentheses and negations.
const MAX_DEPTH: usize = 64;

/// Maximum length of a rule in bytes.
const MAX_BYTES: usize = 64 << 10;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    /// All must hold.
    And(Vec<Rule>),
    /// One must hold.
    Or(Vec<Rule>),
    /// A matcher.
    Matcher {
        /// Its name in lower case.
        name: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Whether it is negated.
        not: bool,
    },
}

impl Rule {
    /// Parses a rule; negations are moved to the matchers.
    pub(super) fn parse(text: &str) -> Result<Rule, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("the rule has more than {MAX_BYTES} bytes"));
        }
        let mut parser = Parser { chars: text.chars().peekable(), depth: 0 };
        let rule = parser.or(false)?;
        parser.space();
        match parser.chars.peek() {
            None => Ok(rule),
            Some(char) => Err(format!("`{char}` is not expected")),
        }
    }
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    depth: usize,
}

impl Parser<'_> {
    fn space(&mut self) {
        while self.chars.next_if(|char| char.is_whitespace()).is_some() {}
    }

    fn operator(&mut self, char: char) -> Result<bool, String> {
        self.space();
        if self.chars.next_if_eq(&char).is_none() {
            return Ok(false);
        }
        match self.chars.next_if_eq(&char) {
            Some(_) => Ok(true),
            None => Err(format!("`{char}{char}` is expected")),
        }
    }

    fn or(&mut self, not: bool) -> Result<Rule, String> {
        let mut rules = vec![self.and(not)?];
        while self.operator('|')? {
            rules.push(self.and(not)?);
        }
        Ok(group(rules, !not))
    }

    fn and(&mut self, not: bool) -> Result<Rule, String> {
        let mut rules = vec![self.term(not)?];
        while self.operator('&')? {
            rules.push(self.term(not)?);
        }
        Ok(group(rules, not))
    }

    fn term(&mut self, not: bool) -> Result<Rule, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("the rule is nested deeper than {MAX_DEPTH} levels"));
        }
        self.space();
        let rule = match self.chars.peek() {
            Some('!') => {
                self.chars.next();
                self.term(!not)?
            }
            Some('(') => {
                self.chars.next();
                let rule = self.or(not)?;
                self.close()?;
                rule
            }
            _ => self.matcher(not)?,
        };
        self.depth -= 1;
        Ok(rule)
    }

    fn close(&mut self) -> Result<(), String> {
        self.space();
        match self.chars.next() {
            Some(')') => Ok(()),
            _ => Err("`)` is missing".to_owned()),
        }
    }

    fn matcher(&mut self, not: bool) -> Result<Rule, String> {
        let mut name = String::new();
        while let Some(char) = self.chars.next_if(|char| char.is_ascii_alphanumeric()) {
            name.push(char.to_ascii_lowercase());
        }
        self.space();
        if name.is_empty() || self.chars.next_if_eq(&'(').is_none() {
            return Err("a matcher such as Host(`a.example`) is expected".to_owned());
        }
        let mut arguments = Vec::new();
        loop {
            self.space();
            if self.chars.next_if_eq(&')').is_some() {
                return Ok(Rule::Matcher { name, arguments, not });
            }
            arguments.push(self.text()?);
            self.space();
            if self.chars.next_if_eq(&',').is_none() && self.chars.peek() != Some(&')') {
                return Err("`,` or `)` is expected after an argument".to_owned());
            }
        }
    }

    /// A text in backticks, or in double quotes with the escapes of Go.
    fn text(&mut self) -> Result<String, String> {
        let mut text = String::new();
        match self.chars.next() {
            Some('`') => loop {
                match self.chars.next() {
                    Some('`') => return Ok(text),
                    Some(char) => text.push(char),
                    None => return Err("a string is not closed".to_owned()),
                }
            },
            Some('"') => loop {
                match self.chars.next() {
                    Some('"') => return Ok(text),
                    Some('\\') => match self.chars.next() {
                        Some('n') => text.push('\n'),
                        Some('t') => text.push('\t'),
                        Some(char @ ('"' | '\\' | '\'')) => text.push(char),
                        _ => return Err("a text has an unknown escape".to_owned()),
                    },
                    Some(char) => text.push(char),
                    None => return Err("a string is not closed".to_owned()),
                }
            },
            _ => Err("a text in backticks is expected".to_owned()),
        }
    }
}

/// Joins rules; negation turns one kind of group into the other.
fn group(mut rules: Vec<Rule>, is_or: bool) -> Rule {
    if rules.len() == 1 {
        return rules.remove(0);
    }
    match is_or {
        true => Rule::Or(rules),
        false => Rule::And(rules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(name: &str, argument: &str, not: bool) -> Rule {
        Rule::Matcher { name: name.to_owned(), arguments: vec![argument.to_owned()], not }
    }

    #[test]
    fn operators_bind_as_in_go() {
        let rule = Rule::parse("Host(`a`) || Host(`b`) && !(Path(`/x`) || METHOD(\"GET\"))").unwrap();
        let expected = Rule::Or(vec![
            matcher("host", "a", false),
            Rule::And(vec![
                matcher("host", "b", false),
                Rule::And(vec![matcher("path", "/x", true), matcher("method", "GET", true)]),
            ]),
        ]);
        assert_eq!(rule, expected);
        assert_eq!(Rule::parse("!!Path(`/`)").unwrap(), matcher("path", "/", false));
    }

    #[test]
    fn invalid_rules_are_refused() {
        for text in
            ["", "Host", "Host(`a`", "Host(a)", "Host(`a`) & Path(`/`)", "(Host(`a`)", "Host(`a`))", "!"]
        {
            assert!(Rule::parse(text).is_err(), "{text}");
        }
        assert!(Rule::parse(&"(".repeat(10_000)).is_err());
    }
}
