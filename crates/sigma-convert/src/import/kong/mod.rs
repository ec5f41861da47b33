//! Files of kong.

use sigma_schema::problem::Problem;

use super::Translated;
use super::source::Input;

/// Converts files of kong.
pub(super) fn translate(_input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    Err(vec![Problem::new("", "unsupported", "this format cannot be converted yet")])
}
