//! Conditions on variables: parsed once, evaluated per request.
//!
//! `parse` turns JSON into the tree below, `eval` walks it. The value of a variable comes from
//! the caller through [`Variables`]; nothing here knows a request.

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

/// Why a JSON value is no expression. The texts are those of APISIX where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidExpr(pub String);

/// A condition. The empty one is true.
#[derive(Clone, Default)]
pub struct Expr {
    /// As written; what equality and serialisation go by.
    source: Vec<Value>,
    root: Node,
}

impl Expr {
    /// The empty condition.
    pub const ALWAYS: Expr = Expr { source: Vec::new(), root: Node::Group(Logic::And, Vec::new()) };

    /// Reads the JSON form; `[]` is the empty condition.
    pub fn parse(rule: &Value) -> Result<Expr, InvalidExpr> {
        let root = parse::rule(rule)?;
        let source = rule.as_array().cloned().unwrap_or_default();
        Ok(Expr { source, root })
    }

    /// Whether there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// A variable that has a value only once the request body was read, if it is about one.
    #[must_use]
    pub fn needs_body(&self) -> Option<&VarName> {
        self.root.find(&VarName::needs_body)
    }

    /// Whether it depends on when it is asked: a variable in it is a time.
    #[must_use]
    pub fn asks_time(&self) -> bool {
        self.root.find(&VarName::is_time).is_some()
    }

    /// Why the condition can never mean what it says: the first variable in it that no exchange has,
    /// see [`VarName::unknown`].
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        self.wrong(VarName::unknown)
    }

    /// The first reason that `why` has against a variable in it.
    #[must_use]
    pub fn wrong(&self, why: impl Fn(&VarName) -> Option<String>) -> Option<String> {
        why(self.root.find(&|name| why(name).is_some())?)
    }

    /// Whether the condition holds for these variables. Stops at the first operand that decides. It does
    /// not hold where only the place of an address decides, and that is not known: neither
    /// `["geoip_country_code", "==", "XX"]` nor its negation is true of an address that no database has.
    #[must_use]
    pub fn eval(&self, variables: &dyn Variables) -> bool {
        self.root.decide(&Reading::plain(variables)).unwrap_or(false)
    }

    /// Whether the condition holds, for rules that deny: whichever value of a repeated field, argument or cookie the
    /// node takes. It is possible if it holds for one value and not for another.
    #[must_use]
    pub fn certainty(&self, variables: &dyn Variables) -> Certainty {
        let reading = Reading::of_all_values(variables, VarName::is_place);
        match self.root.decide(&reading) {
            Some(true) => Certainty::Certain,
            None if reading.disagrees() => Certainty::Possible,
            Some(false) | None => Certainty::No,
        }
    }

    /// Whether it is certain or possible that the condition holds; see [`Expr::certainty`].
    #[must_use]
    pub fn may_hold(&self, variables: &dyn Variables) -> bool {
        self.certainty(variables) != Certainty::No
    }

    /// As [`Expr::eval`], for guards: None where a variable decides that is absent, whichever it is, or that has
    /// several values of which it holds for some. A comparison with `null` asks for absence, and is decided.
    #[must_use]
    pub fn decide(&self, variables: &dyn Variables) -> Option<bool> {
        self.root.decide(&Reading::of_all_values(variables, |_| true))
    }
}

/// Whether a condition holds for a request that may have several values of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// For none of them.
    No,
    /// For some of them.
    Possible,
    /// For all of them.
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
    /// The first variable of this sort.
    fn find(&self, sort: &dyn Fn(&VarName) -> bool) -> Option<&VarName> {
        match self {
            Node::Group(_, operands) => operands.iter().find_map(|operand| operand.find(sort)),
            Node::Compare(compare) => Some(&compare.variable).filter(|variable| sort(variable)),
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        // All of nothing holds.
        Node::Group(Logic::And, Vec::new())
    }
}

#[derive(Clone)]
struct Compare {
    variable: VarName,
    negated: bool,
    test: Test,
}

/// An operator together with its constant, prepared for evaluation.
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
