//! Lists of field names, as Envoy writes them.

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

/// Names of fields that match one of some patterns.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Names {
    /// Patterns, one of which a name has to match.
    #[schemars(length(min = 1, max = 256))]
    patterns: Vec<Pattern>,
}

/// A pattern. Case is ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(deny_unknown_fields)]
enum Pattern {
    /// The whole name.
    Exact(Text),
    /// The beginning of the name.
    Prefix(Text),
    /// The end of the name.
    Suffix(Text),
    /// Any part of the name.
    Contains(Text),
    /// A regular expression that matches the whole name.
    SafeRegex(Whole),
}

/// Text in lower case.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Text(#[schemars(length(min = 1))] String);

impl TryFrom<String> for Text {
    type Error = String;

    fn try_from(text: String) -> Result<Text, String> {
        if text.is_empty() {
            return Err("a pattern is empty".to_owned());
        }
        Ok(Text(text.to_ascii_lowercase()))
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Whole {
    /// A regular expression.
    regex: Expression,
}

#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Expression(#[schemars(with = "String")] Regex);

impl TryFrom<String> for Expression {
    type Error = String;

    fn try_from(text: String) -> Result<Expression, String> {
        let whole = format!("^(?i:{text})$");
        // A lone bracket must not end the group.
        Regex::new(&text).and_then(|_| Regex::new(&whole)).map(Expression).map_err(|error| error.to_string())
    }
}

impl Names {
    /// Returns true if a name, in lower case, matches.
    pub fn contain(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| match pattern {
            Pattern::Exact(Text(text)) => name == text,
            Pattern::Prefix(Text(text)) => name.starts_with(text),
            Pattern::Suffix(Text(text)) => name.ends_with(text),
            Pattern::Contains(Text(text)) => name.contains(text),
            Pattern::SafeRegex(Whole { regex: Expression(regex) }) => regex.is_match(name),
        })
    }
}
