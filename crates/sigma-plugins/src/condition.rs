//! Conditions on variables as fields of configurations.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sigma_config::expr::Expr;

/// Reads the condition in a field. For `deserialize_with`, which does not tell the name.
///
/// # Errors
/// Returns APISIX's text if it is none.
pub(crate) fn read<'de, D: Deserializer<'de>>(field: &str, deserializer: D) -> Result<Expr, D::Error> {
    let wrong = |error| D::Error::custom(format!("failed to validate the '{field}' expression: {error}"));
    Expr::parse(&Value::deserialize(deserializer)?).map_err(wrong)
}

/// Reads the condition in a field `vars`.
///
/// # Errors
/// As [`read`].
pub(crate) fn vars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    read("vars", deserializer).map(Some)
}
