//! Values with the line of each: YAML, JSON and TOML files before their meaning is known.
//!
//! The readers keep scalars as texts, because the languages of other programs give the same text different types.

mod json;
mod reindent;
mod toml;
mod yaml;

use serde_json::{Map, Value};
use sigma_schema::problem::Problem;

pub use json::json;
pub use toml::toml;
pub use yaml::yaml;

/// Maximum nesting of lists and mappings.
pub const MAX_DEPTH: usize = 64;

/// Maximum number of values in one file, copies by aliases included.
pub const MAX_VALUES: usize = 500_000;

/// Maximum number of bytes of one file.
pub const MAX_BYTES: usize = 16 << 20;

/// A value and its line.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// Line in the file, from 1.
    pub line: u32,
    /// The value itself.
    pub content: Content,
}

/// The value of a tree.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// No value.
    Null,
    /// A text, a number or a boolean.
    Scalar {
        /// The text.
        text: String,
        /// Whether it was written in quotes, so that it is a text in any case.
        quoted: bool,
    },
    /// A list.
    List(Vec<Tree>),
    /// A mapping in the order of the file.
    Map(Vec<Member>),
}

/// A member of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The key.
    pub key: String,
    /// Line of the key.
    pub line: u32,
    /// The value.
    pub value: Tree,
}

impl Tree {
    /// Creates an empty mapping.
    #[must_use]
    pub fn map(line: u32) -> Tree {
        Tree { line, content: Content::Map(Vec::new()) }
    }

    /// Creates a text.
    #[must_use]
    pub fn scalar(line: u32, text: impl Into<String>) -> Tree {
        Tree { line, content: Content::Scalar { text: text.into(), quoted: true } }
    }

    /// Returns whether there is no value.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.content == Content::Null
    }

    /// Returns the members of a mapping, and no members of other values.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        match &self.content {
            Content::Map(members) => members,
            _ => &[],
        }
    }

    /// Returns the elements of a list. A scalar or a mapping is a list of itself, an absent value an empty list.
    #[must_use]
    pub fn items(&self) -> &[Tree] {
        match &self.content {
            Content::List(items) => items,
            Content::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }

    /// Returns the value of a member.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Tree> {
        self.members().iter().rev().find(|member| member.key == key).map(|member| &member.value)
    }

    /// Returns the value at a path of members.
    #[must_use]
    pub fn at(&self, path: &[&str]) -> Option<&Tree> {
        path.iter().try_fold(self, |tree, key| tree.get(key))
    }

    /// Returns the text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns the texts of a list of scalars, or of one scalar.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.items().iter().filter_map(|item| item.text().map(str::to_owned)).collect()
    }

    /// Returns a boolean, also one that is written as a text.
    #[must_use]
    pub fn boolean(&self) -> Option<bool> {
        match self.text()?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    /// Returns an integer, also one that is written as a text.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        let text = self.text()?.replace('_', "");
        text.parse().ok().or_else(|| text.parse::<f64>().ok().filter(|n| n.fract() == 0.0).map(|n| n as i64))
    }

    /// Returns a number.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        self.text()?.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// Returns the member with this key, which is added if it is missing. A value that is not a mapping becomes one.
    pub fn entry(&mut self, key: &str, line: u32) -> &mut Tree {
        if !matches!(self.content, Content::Map(_)) {
            self.content = Content::Map(Vec::new());
        }
        let Content::Map(members) = &mut self.content else { unreachable!("it was made a mapping") };
        let found = members.iter().position(|member| member.key == key);
        let index = found.unwrap_or_else(|| {
            let value = Tree { line, content: Content::Null };
            members.push(Member { key: key.to_owned(), line, value });
            members.len() - 1
        });
        &mut members[index].value
    }

    /// Returns the value as JSON: scalars without quotes by the core schema of YAML.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Scalar { text, quoted: true } => Value::String(text.clone()),
            Content::Scalar { text, .. } => {
                sigma_schema::document::yaml_scalar(text).unwrap_or_else(|| Value::String(text.clone()))
            }
            Content::List(items) => Value::Array(items.iter().map(Tree::to_json).collect()),
            Content::Map(members) => {
                let object = members.iter().map(|member| (member.key.clone(), member.value.to_json()));
                Value::Object(object.collect::<Map<_, _>>())
            }
        }
    }
}

/// Returns a syntax error in a line.
fn syntax(line: u32, message: impl Into<String>) -> Problem {
    Problem::new("", "syntax", message).at(Some(line))
}

/// Refuses a file that is too large.
fn bounded(text: &str) -> Result<(), Vec<Problem>> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    let message = format!("the file has {} bytes; the maximum is {MAX_BYTES}", text.len());
    Err(vec![Problem::new("", "too_large", message)])
}

#[cfg(test)]
mod tests;
