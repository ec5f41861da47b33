//! JSON schemas whose failures have APISIX's words.
//!
//! Clients of the Admin API compare error texts. They are the texts of the Lua library `jsonschema`: validation stops
//! at the first failure, and the causes of nested failures are joined from left to right. The schema language is the
//! part of drafts 4 to 7 that the library supports.
//!
//! Three properties of that library are kept, because configurations depend on them:
//! * an empty object and an empty array are the same value, so either satisfies both types;
//! * a default takes effect while the value is validated, so that a later `if` or `oneOf` of the same
//!   object sees it, and it satisfies `required`;
//! * a reference to a secret is accepted instead of any text.
//!
//! The library reads properties in no defined order. Here they have the order of the schema, so that the same document
//! always gets the same response.
//!
//! Numbers: an integer is a number without a fraction, so `1.0` is an integer. Integers of up to 64 bits are compared
//! exactly, other numbers as double precision. Texts show 14 significant digits, as Lua does: `1e+15`.
//!
//! [`compile`] turns JSON into the nodes of [`node`], [`walk`] applies them to a value, until the first
//! failure or for all of them, each with its remedy from [`remedy`]; [`strict`] finds
//! unread fields. [`untrusted`] has the limits for values of clients, [`dialect`] and [`open_api`] the differences of
//! OpenAPI schemas.

mod combinations;
mod compile;
mod corrected;
mod dialect;
mod equality;
mod examples;
mod format;
mod node;
mod number;
mod open_api;
pub mod pcre;
mod place;
mod plain;
mod range;
mod remedy;
mod strict;
#[cfg(test)]
mod tests;
mod text;
mod unevaluated;
mod untrusted;
mod walk;

use std::borrow::Cow;

use serde_json::Value;

use crate::problem::Problem;
use corrected::Corrected;
use untrusted::StepBudget;
use walk::{ValuePosition, Walk};

pub use compile::INERT;
pub use dialect::{Dialect, Sender};
pub use plain::unfolded;
pub use strict::{Unread, Why};
pub use text::percent_decoded;

/// A JSON schema, compiled once and then applied to any number of values.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<node::Node>,
    root: node::NodeId,
}

/// Failure texts that do not describe the fault of the value.
const ABOUT_SCHEMAS: [&str; 5] = [
    "then clause did not match",
    "else clause did not match",
    "matches none of the enum values",
    "value should match only one schema, but matches none",
    "value wasn't supposed to match schema",
];
const BOTH: &str = "value should match only one schema, but matches both";

impl Schema {
    /// Compiles a schema. The error has a JSON pointer to a keyword with a value of the wrong type, a `$ref` that leads
    /// nowhere or to itself, or a pattern that cannot be matched in linear time.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, pcre::Pattern::compile)
    }

    /// Does the same as [`Schema::compile`] for a schema of the program itself, whose patterns are compiled on first
    /// use. A start needs only a few of the hundreds of patterns, and clients may wait for it. A test compiles the
    /// whole schema.
    ///
    /// # Errors
    /// Returns the errors of [`Schema::compile`], except errors of patterns.
    pub fn of_program(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, |source| Ok(pcre::Pattern::of_program(source)))
    }

    /// Checks that `value` satisfies the schema. Returns the text of the first failure.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.filled(value).map(drop)
    }

    /// Does the same as [`Schema::check`]. Where the text is only about the schema, the field and its allowed values
    /// follow in brackets.
    ///
    /// # Errors
    /// Returns an error if the value does not satisfy the schema.
    pub fn check_explained(&self, value: &Value) -> Result<(), String> {
        let Err(text) = self.check(value) else { return Ok(()) };
        if !ABOUT_SCHEMAS.iter().any(|end| text.ends_with(end)) && !text.contains(BOTH) {
            return Err(text);
        }
        let problems = self.problems(value);
        let is_meant = |problem: &&Problem| problem.hint.is_some() && text.ends_with(&problem.message);
        let meant = problems.iter().find(is_meant).or(problems.iter().find(|problem| problem.hint.is_some()));
        let Some(Problem { pointer, hint: Some(hint), .. }) = meant else { return Err(text) };
        Err(match pointer.is_empty() || hint.contains(&format!("`{pointer}`")) {
            true => format!("{text} ({hint})"),
            false => format!("{text} ({pointer}: {hint})"),
        })
    }

    /// Returns every failure of `value`: place, text without a prefix for the place, and remedy. The list is empty
    /// exactly if [`Schema::check`] succeeds. The text of its error ends with the first of these texts.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        Walk::problems(&self.nodes, self.root, value, &ValuePosition::ROOT, false)
    }

    /// Returns the mistakes of `value` in words for the writer of a file, each once, with place and remedy. The list is
    /// empty exactly if [`Schema::check`] succeeds. Consequences of a misspelt field name are omitted. `also` are
    /// further names that are known in the outermost object.
    #[must_use]
    pub fn mistakes(&self, value: &Value, also: &[&str]) -> Vec<Problem> {
        let find = |value: &Value| Walk::problems(&self.nodes, self.root, value, &ValuePosition::ROOT, true);
        let found = find(value);
        if found.is_empty() {
            return found;
        }
        let unread = self.unread(value, also);
        let Some(corrected) = Corrected::new(value, &unread) else { return plain::joined(found) };
        let is_unknown = |problem: &Problem| problem.code == "unknown_key";
        let others: Vec<Problem> = find(&corrected.value)
            .into_iter()
            .filter(|problem| !is_unknown(problem) && corrected.is_written(problem))
            .collect();
        // A misspelt field that is accepted, while the field it was meant for is missing.
        let (unknown, consequences): (Vec<Problem>, Vec<Problem>) = found.into_iter().partition(is_unknown);
        let is_blamed = |field: &&Unread| {
            let is_told = unknown.iter().any(|problem| problem.pointer == field.pointer());
            let lacks = |problem: &Problem| problem.pointer == field.object && !others.contains(problem);
            !is_told && consequences.iter().any(lacks)
        };
        let blamed = corrected.fields.iter().filter(is_blamed).map(Unread::refused).collect::<Vec<_>>();
        let all = blamed.into_iter().chain(unknown).chain(others).collect();
        plain::joined(all)
    }

    /// Returns the fields without effect in a `value` that the schema accepts. `also` are further names that are known
    /// in the outermost object.
    #[must_use]
    pub fn unread(&self, value: &Value, also: &[&str]) -> Vec<Unread> {
        strict::unread(self, value, also)
    }

    /// Returns `value` with the defaults of the schema; owned if any was added. A default is added only if the object
    /// around it is present. Of `anyOf`, `oneOf` and `if` only matching branches add defaults.
    pub fn filled<'v>(&self, value: &'v Value) -> Result<Cow<'v, Value>, String> {
        let mut filled = Cow::Borrowed(value);
        Walk::new(&self.nodes).node(self.root, &mut filled, &ValuePosition::ROOT)?;
        Ok(filled)
    }

    /// Does the same as [`Schema::filled`] for an untrusted value: `$secret://…` is a plain text, `{}` is not an array,
    /// `[]` is not an object, and the work is limited. A value that needs more than `most_steps`, or too deeply nested
    /// schemas, is refused even if the schema would ignore the failure.
    pub fn filled_of_stranger<'v>(
        &self,
        value: &'v Value,
        most_steps: u64,
    ) -> Result<Cow<'v, Value>, String> {
        filled_of_stranger(&self.nodes, self.root, value, most_steps)
    }

    /// Does the same as [`Schema::filled`] in place. A value that the schema refuses is not changed.
    pub fn fill_defaults(&self, value: &mut Value) {
        if let Ok(Cow::Owned(filled)) = self.filled(value) {
            *value = filled;
        }
    }
}

/// The schemas of one document, such as an OpenAPI document. A shared schema is stored once.
#[derive(Debug)]
pub struct Schemas(Vec<node::Node>);

/// The id of one of the [`Schemas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaId(node::NodeId);

impl Schemas {
    /// Checks that an untrusted `value` satisfies one of the schemas. Returns the text of the first failure. See
    /// [`Schema::filled_of_stranger`].
    ///
    /// # Errors
    /// Returns an error if the value does not satisfy the schema, or takes more than `most_steps`.
    pub fn check_of_stranger(&self, id: SchemaId, value: &Value, most_steps: u64) -> Result<(), String> {
        filled_of_stranger(&self.0, id.0, value, most_steps).map(drop)
    }
}

/// A builder of [`Schemas`] from a document.
pub struct Reading<'d>(compile::Compiler<'d>);

impl<'d> Reading<'d> {
    /// Creates a builder without schemas.
    #[must_use]
    pub fn new(document: &'d Value, dialect: Dialect) -> Reading<'d> {
        Reading(compile::Compiler::new(document, dialect))
    }

    /// Adds the schema at a JSON pointer of the document.
    ///
    /// # Errors
    /// Returns the errors of [`Schema::compile`].
    pub fn schema(&mut self, pointer: &str) -> Result<SchemaId, String> {
        self.0.at(pointer).map(SchemaId)
    }

    /// Returns all added schemas, with those that they refer to.
    ///
    /// # Errors
    /// Returns the errors of [`Schema::compile`].
    pub fn finish(self) -> Result<Schemas, String> {
        self.0.finish().map(Schemas)
    }
}

fn filled_of_stranger<'v>(
    nodes: &[node::Node],
    root: node::NodeId,
    value: &'v Value,
    most_steps: u64,
) -> Result<Cow<'v, Value>, String> {
    let step_budget = StepBudget::new(most_steps);
    let mut filled = Cow::Borrowed(value);
    let outcome = Walk::of_untrusted(nodes, &step_budget).node(root, &mut filled, &ValuePosition::ROOT);
    if step_budget.is_exhausted() {
        return Err("the value takes too many steps to validate".to_owned());
    }
    outcome.map_err(untrusted::cut)?;
    Ok(filled)
}

/// Returns whether `text` is a reference that is resolved later: `$secret://…`, or `$env://…` in any case.
#[must_use]
pub fn is_secret_reference(text: &str) -> bool {
    const ENV: &str = "$env://";
    text.starts_with("$secret://") || text.get(..ENV.len()).is_some_and(|head| head.eq_ignore_ascii_case(ENV))
}
