//! Comparisons of counters, logins and other fetches that have no variable.

use serde_json::json;

use super::expr::{Atom, Expr, Subject};
use super::value::Sample;

/// Comparisons of fetches that have no value here. `by_lua` compares a count that only Lua can compute.
///
/// # Errors
/// Returns a sentence if the comparison has no counterpart.
pub(super) fn compare(
    sample: &Sample,
    subject: &Subject,
    is_found: bool,
    patterns: &[String],
    by_lua: impl FnOnce() -> Result<Expr, String>,
) -> Result<Expr, String> {
    let operator = patterns.first().map_or("", String::as_str);
    let number = patterns.get(1).or(patterns.first()).and_then(|text| text.parse::<u64>().ok());
    let of = |subject: Subject| Expr::Atom(Atom { vars: None, lua: "false".to_owned(), subject });
    match subject {
        Subject::Credentials(list) => {
            // The patterns are groups.
            let words: Vec<&str> =
                std::iter::once(list.as_str()).chain(patterns.iter().map(String::as_str)).collect();
            Ok(of(Subject::Credentials(words.join(" "))))
        }
        Subject::Above { counter, index, table, .. } => {
            let limit = match (operator, number) {
                ("gt", Some(number)) => number,
                ("ge", Some(number)) if number > 0 => number - 1,
                _ => return Err("Counters can only be compared with `gt` and `ge`.".to_owned()),
            };
            let (counter, table) = (counter.clone(), table.clone());
            Ok(of(Subject::Above { counter, index: *index, table, number: limit }))
        }
        Subject::NoServers(name) => match (operator, number) {
            ("lt", Some(1)) | ("le" | "eq", Some(0)) | ("0", _) => Ok(of(Subject::NoServers(name.clone()))),
            ("gt", Some(0)) | ("ge", Some(1)) => Ok(of(Subject::NoServers(name.clone())).not()),
            _ => Err("The number of servers can only be compared with 0.".to_owned()),
        },
        Subject::Random { of: all, .. } => match (operator, number) {
            ("lt", Some(below)) => Ok(of(Subject::Random { below, of: *all })),
            ("le", Some(below)) => Ok(of(Subject::Random { below: below + 1, of: *all })),
            ("ge", Some(below)) => Ok(of(Subject::Random { below, of: *all }).not()),
            ("gt", Some(below)) => Ok(of(Subject::Random { below: below + 1, of: *all }).not()),
            _ => Err("A random number can only be compared with `lt`, `le`, `gt` or `ge`.".to_owned()),
        },
        _ => {
            // The count of a header: present or not.
            let Some(variable) = &sample.variable else {
                return Err("The fetch has no counterpart.".to_owned());
            };
            let expr = Expr::Atom(Atom {
                vars: Some(json!([variable, "~=", null])),
                lua: format!("(ngx.var.{variable} ~= nil)"),
                subject: Subject::Other,
            });
            match (operator, number) {
                ("gt", Some(0)) | ("ge", Some(1)) => Ok(expr),
                ("eq", Some(0)) | ("lt", Some(1)) | ("0", _) => Ok(expr.not()),
                _ if is_found || patterns.is_empty() => Ok(expr),
                _ => by_lua(),
            }
        }
    }
}
