//! Conditions on variables: parsed once, evaluated per request.
//!
//! `parse` turns JSON into the tree below; `eval` evaluates it. The caller supplies variables through [`Variables`];
//! this module does not know requests.

mod body_field;
mod eval;
pub mod known;
mod parse;
#[cfg(test)]
mod tests;
mod variable;
mod window;

use std::fmt;

use regex::bytes::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::cidr::CidrSet;
pub use body_field::BodyField;
use eval::Reading;
pub use variable::{VarName, VarValue, Variables};
use window::Windows;
pub use window::unix_seconds;

/// The error for a JSON value that is not an expression. The texts are APISIX's where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidExpr(pub String);

/// A condition. The empty one is true.
#[derive(Clone, Default)]
pub struct Expr {
    /// The condition as written, for equality and serialisation.
    source: Vec<Value>,
    root: Node,
}

impl Expr {
    /// The empty condition.
    pub const ALWAYS: Expr = Expr { source: Vec::new(), root: Node::Group(Logic::And, Vec::new()) };

    /// Parses the JSON form; `[]` is the empty condition.
    pub fn parse(rule: &Value) -> Result<Expr, InvalidExpr> {
        let root = parse::rule(rule)?;
        let source = rule.as_array().cloned().unwrap_or_default();
        Ok(Expr { source, root })
    }

    /// Returns whether the condition is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// Returns a variable of the condition that is absent until the request body is read.
    #[must_use]
    pub fn needs_body(&self) -> Option<&VarName> {
        self.root.find(&VarName::needs_body)
    }

    /// Returns whether the result depends on the current time.
    #[must_use]
    pub fn asks_time(&self) -> bool {
        self.root.find(&VarName::is_time).is_some()
    }

    /// Returns why the condition can never work: its first variable that no exchange has, see [`VarName::unknown`].
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        self.wrong(VarName::unknown)
    }

    /// Returns the first error that `why` reports for a variable of the condition.
    #[must_use]
    pub fn wrong(&self, why: impl Fn(&VarName) -> Option<String>) -> Option<String> {
        why(self.root.find(&|name| why(name).is_some())?)
    }

    /// Returns whether the condition holds for these variables. Stops at the first operand that decides. If only the
    /// unknown location of an address decides, the condition does not hold: for an address missing in the database,
    /// both `["geoip_country_code", "==", "XX"]` and its negation are false.
    #[must_use]
    pub fn eval(&self, variables: &dyn Variables) -> bool {
        self.root.decide(&Reading::plain(variables)).unwrap_or(false)
    }

    /// Returns whether the condition holds, for rules that deny requests. The node may take any value of a repeated
    /// field, argument or cookie. The result is possible if the condition holds for some of the values.
    #[must_use]
    pub fn certainty(&self, variables: &dyn Variables) -> Certainty {
        let reading = Reading::of_all_values(variables, VarName::is_place);
        match self.root.decide(&reading) {
            Some(true) => Certainty::Certain,
            None if reading.disagrees() => Certainty::Possible,
            Some(false) | None => Certainty::No,
        }
    }

    /// Returns whether the condition certainly or possibly holds; see [`Expr::certainty`].
    #[must_use]
    pub fn may_hold(&self, variables: &dyn Variables) -> bool {
        self.certainty(variables) != Certainty::No
    }

    /// Does the same as [`Expr::eval`] for guards. Returns None where an absent variable decides, or one with several
    /// values of which only some match. A comparison with `null` tests for absence and is decided.
    #[must_use]
    pub fn decide(&self, variables: &dyn Variables) -> Option<bool> {
        self.root.decide(&Reading::of_all_values(variables, |_| true))
    }
}

/// Result of a condition for a request that may have several values of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It holds for none of the values.
    No,
    /// It holds for some of the values.
    Possible,
    /// It holds for all values.
    Certain,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expr {}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expr").field(&self.source).finish()
    }
}

impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Expr::parse(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// How the operands of a group are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logic {
    And,
    Or,
    NotAnd,
    NotOr,
}

#[derive(Clone)]
enum Node {
    Group(Logic, Vec<Node>),
    Compare(Compare),
}

impl Node {
    /// Returns the first variable that `sort` accepts.
    fn find(&self, sort: &dyn Fn(&VarName) -> bool) -> Option<&VarName> {
        match self {
            Node::Group(_, operands) => operands.iter().find_map(|operand| operand.find(sort)),
            Node::Compare(compare) => Some(&compare.variable).filter(|variable| sort(variable)),
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        // An empty `and` is true.
        Node::Group(Logic::And, Vec::new())
    }
}

#[derive(Clone)]
struct Compare {
    variable: VarName,
    negated: bool,
    test: Test,
}

/// An operator with its constant, prepared for evaluation.
#[derive(Clone)]
enum Test {
    Equal(Value),
    NotEqual(Value),
    Greater(Option<f64>),
    GreaterOrEqual(Option<f64>),
    Less(Option<f64>),
    LessOrEqual(Option<f64>),
    Matches(Regex),
    In(Vec<Value>),
    Has(Value),
    IpMatch(CidrSet),
    Within(Windows),
}
