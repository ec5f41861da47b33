//! Conditions on variables as fields of configurations.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sigma_schema::expr::Expr;

/// The condition in a field.
///
/// # Errors
/// Returns an error, in APISIX's words, if the value is not a condition.
pub fn parse<E: Error>(field: &str, rule: &Value) -> Result<Expr, E> {
    let wrong = |error| E::custom(format!("failed to validate the '{field}' expression: {error}"));
    Expr::parse(rule).map_err(wrong)
}

/// Reads the condition in a field; for `deserialize_with`, which does not tell the name.
///
/// # Errors
/// Returns an error in the cases in which [`parse`] does.
pub fn read<'de, D: Deserializer<'de>>(field: &str, deserializer: D) -> Result<Expr, D::Error> {
    parse(field, &Value::deserialize(deserializer)?)
}

/// Reads the condition in a field `vars`.
///
/// # Errors
/// Returns an error in the cases in which [`parse`] does.
pub fn vars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    read("vars", deserializer).map(Some)
}
