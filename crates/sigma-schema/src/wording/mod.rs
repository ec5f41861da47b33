//! JSON schemas whose failures are worded as APISIX words them.
//!
//! Clients of the Admin API compare error texts, and those are the texts of the Lua `jsonschema`
//! library: validation stops at the first failure and the causes of nested failures are joined from
//! left to right. The schema draft is the part of drafts 4 to 7 that the library knows.
//!
//! Three habits of that library are kept on purpose, because configurations depend on them:
//! * an empty object and an empty array are the same value, so either satisfies both types;
//! * a default takes effect while the value is validated, so that a later `if` or `oneOf` of the same
//!   object sees it, and it satisfies `required`;
//! * a reference to a secret is accepted in place of any text.
//!
//! Its properties come in no defined order; here the order is that of the schema, so that the same
//! document always gets the same answer.
//!
//! Numbers: an integer is a number without a fraction, so `1.0` is one. Integers of up to 64 bits are
//! compared exactly; beyond that, and next to a number with a fraction, as double precision. In texts
//! all are shown with 14 significant digits, as Lua shows them: `1e+15`.
//!
//! [`compile`] turns JSON into the nodes of [`node`], [`walk`] applies them to a value, until the first
//! failure or for all of them, each with its remedy from [`remedy`]; [`strict`] finds what nobody reads.
//! What is different where a value does not come from an operator is in [`stranger`], and where a schema is one of
//! OpenAPI in [`dialect`] and [`open_api`].

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
mod remedy;
mod stranger;
mod strict;
#[cfg(test)]
pub mod tests;
mod text;
mod unevaluated;
mod walk;

use std::borrow::Cow;

use serde_json::Value;

use crate::problem::Problem;
use corrected::Corrected;
use stranger::Stranger;
use walk::{Place, Walk};

#[cfg(test)]
pub use compile::INERT;
pub use compile::percent_decoded;
pub use dialect::{Dialect, Sender};
pub use plain::unfolded;
pub use strict::{Unread, Why};

/// A JSON schema, compiled once and then applied to any number of values.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<node::Node>,
    root: node::NodeId,
}

/// Texts of failures that do not say what is wrong with the value.
const ABOUT_SCHEMAS: [&str; 5] = [
    "then clause did not match",
    "else clause did not match",
    "matches none of the enum values",
    "value should match only one schema, but matches none",
    "value wasn't supposed to match schema",
];
const BOTH: &str = "value should match only one schema, but matches both";

impl Schema {
    /// Reads a schema. The error names the place as a JSON pointer: a keyword with a value of the
    /// wrong kind, a `$ref` that leads nowhere or only back to itself, or a pattern that cannot be
    /// matched in linear time.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, pcre::Pattern::compile)
    }

    /// As [`Schema::compile`], for a schema that stands in this program: its patterns are compiled when they are first
    /// needed. There are hundreds, of which a start needs a few, and clients may wait for it. A test compiles the whole
    /// schema.
    ///
    /// # Errors
    /// Returns what [`Schema::compile`] does, but for patterns.
    pub fn of_program(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, |source| Ok(pcre::Pattern::of_program(source)))
    }

    /// Whether `value` satisfies the schema, or the text of the first failure.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.filled(value).map(drop)
    }

    /// As [`Schema::check`]. Where the text is about the schema alone, the field that is meant follows it in brackets, and
    /// what it may be.
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

    /// Every failure of `value`, each with its place, its text without what only names the place, and
    /// its remedy. There is none exactly if [`Schema::check`] succeeds, and its text ends with the first.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        Walk::problems(&self.nodes, self.root, value, &Place::ROOT, false)
    }

    /// The mistakes of `value` for the writer of a file, each once, with its place and its remedy; none exactly if
    /// [`Schema::check`] succeeds. What follows from a field whose name is wrong is no mistake of its own. `also` are
    /// names that are known in the outermost object besides those of the schema.
    #[must_use]
    pub fn mistakes(&self, value: &Value, also: &[&str]) -> Vec<Problem> {
        let find = |value: &Value| Walk::problems(&self.nodes, self.root, value, &Place::ROOT, true);
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
        // A field that is not refused for its name alone, but for what is lacking therefore.
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

    /// The fields of `value`, which the schema accepts, that nobody reads; `also` are names that are
    /// known in the outermost object besides those of the schema.
    #[must_use]
    pub fn unread(&self, value: &Value, also: &[&str]) -> Vec<Unread> {
        strict::unread(self, value, also)
    }

    /// `value` with the defaults of the schema: owned if there were any to add. A default is added
    /// only where the object around it is present; of `anyOf`, `oneOf` and `if` only what matches
    /// adds any.
    pub fn filled<'v>(&self, value: &'v Value) -> Result<Cow<'v, Value>, String> {
        let mut filled = Cow::Borrowed(value);
        Walk::new(&self.nodes).node(self.root, &mut filled, &Place::ROOT)?;
        Ok(filled)
    }

    /// As [`Schema::filled`], for a value that somebody sends whom nobody trusts: `$secret://…` is a text
    /// like others, `{}` is no array and `[]` no object, and the work has an end. A value that takes more
    /// than `most_steps`, or more schemas within schemas than can be applied, is refused whatever the
    /// schema makes of failures.
    pub fn filled_of_stranger<'v>(
        &self,
        value: &'v Value,
        most_steps: u64,
    ) -> Result<Cow<'v, Value>, String> {
        filled_of_stranger(&self.nodes, self.root, value, most_steps)
    }

    /// [`Schema::filled`] in place. A value that the schema refuses stays as it is.
    pub fn fill_defaults(&self, value: &mut Value) {
        if let Ok(Cow::Owned(filled)) = self.filled(value) {
            *value = filled;
        }
    }
}

/// The schemas of one document, such as one of OpenAPI. What several of them refer to is there once.
#[derive(Debug)]
pub struct Schemas(Vec<node::Node>);

/// One of the [`Schemas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaId(node::NodeId);

impl Schemas {
    /// Whether `value`, of somebody whom nobody trusts, satisfies one of the schemas, or the text of the first
    /// failure. See [`Schema::filled_of_stranger`].
    ///
    /// # Errors
    /// Returns an error if it does not, or takes more than `most_steps`.
    pub fn check_of_stranger(&self, id: SchemaId, value: &Value, most_steps: u64) -> Result<(), String> {
        filled_of_stranger(&self.0, id.0, value, most_steps).map(drop)
    }
}

/// Reads [`Schemas`] out of a document.
pub struct Reading<'d>(compile::Compiler<'d>);

impl<'d> Reading<'d> {
    /// Begins with nothing of `document`.
    #[must_use]
    pub fn new(document: &'d Value, dialect: Dialect) -> Reading<'d> {
        Reading(compile::Compiler::new(document, dialect))
    }

    /// Adds the schema at a JSON pointer of the document.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn schema(&mut self, pointer: &str) -> Result<SchemaId, String> {
        self.0.at(pointer).map(SchemaId)
    }

    /// All that were added, with what they refer to.
    ///
    /// # Errors
    /// As [`Schema::compile`].
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
    let stranger = Stranger::new(most_steps);
    let mut filled = Cow::Borrowed(value);
    let outcome = Walk::of_stranger(nodes, &stranger).node(root, &mut filled, &Place::ROOT);
    if stranger.is_exhausted() {
        return Err("the value takes too many steps to validate".to_owned());
    }
    outcome.map_err(stranger::cut)?;
    Ok(filled)
}

/// Whether `text` stands for a value that is looked up later: `$secret://…`, or `$env://…` in any
/// case.
#[must_use]
pub fn is_secret_reference(text: &str) -> bool {
    const ENV: &str = "$env://";
    text.starts_with("$secret://") || text.get(..ENV.len()).is_some_and(|head| head.eq_ignore_ascii_case(ENV))
}
