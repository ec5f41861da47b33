//! Fields of Envoy's messages: `snake_case` or `camelCase`, durations, texts from files.

use super::super::source::Files;
use super::super::tree::{Member, Tree};

/// Returns a member by its name in `snake_case`.
pub(super) fn member<'t>(tree: &'t Tree, name: &str) -> Option<&'t Member> {
    tree.members().iter().rev().find(|member| same(&member.key, name))
}

/// Whether a key is a name in one of the two writings.
pub(super) fn same(key: &str, name: &str) -> bool {
    key == name || {
        let squeezed = name.bytes().filter(|byte| *byte != b'_');
        !key.contains('_')
            && name.contains('_')
            && key.bytes().map(|byte| byte.to_ascii_lowercase()).eq(squeezed)
    }
}

/// Returns the value of a field.
pub(super) fn field<'t>(tree: &'t Tree, name: &str) -> Option<&'t Tree> {
    member(tree, name).map(|member| &member.value).filter(|value| !value.is_null())
}

/// Returns the value at a path of fields.
pub(super) fn at<'t>(tree: &'t Tree, path: &[&str]) -> Option<&'t Tree> {
    path.iter().try_fold(tree, |tree, name| field(tree, name))
}

/// Returns the elements of a list.
pub(super) fn items<'t>(tree: &'t Tree, name: &str) -> &'t [Tree] {
    field(tree, name).map(Tree::items).unwrap_or_default()
}

/// Returns the text of a field.
pub(super) fn text<'t>(tree: &'t Tree, name: &str) -> Option<&'t str> {
    field(tree, name).and_then(Tree::text)
}

/// Returns whether a field is true.
pub(super) fn is_true(tree: &Tree, name: &str) -> bool {
    field(tree, name).is_some_and(|value| value.boolean() == Some(true) || is_wrapped_true(value))
}

/// A `BoolValue` may be written as a message.
fn is_wrapped_true(value: &Tree) -> bool {
    value.get("value").and_then(Tree::boolean) == Some(true)
}

/// Returns an integer.
pub(super) fn integer(tree: &Tree, name: &str) -> Option<i64> {
    let value = field(tree, name)?;
    value.integer().or_else(|| value.get("value").and_then(Tree::integer))
}

/// Returns a duration in seconds: `1.5s`, or a message with `seconds` and `nanos`.
pub(super) fn seconds(tree: &Tree, name: &str) -> Option<f64> {
    let value = field(tree, name)?;
    match value.text() {
        Some(text) => text
            .strip_suffix('s')
            .unwrap_or(text)
            .parse()
            .ok()
            .filter(|it: &f64| it.is_finite() && *it >= 0.0),
        None => {
            let part = |name: &str| value.get(name).and_then(Tree::number).unwrap_or(0.0);
            Some(part("seconds") + part("nanos") / 1e9)
        }
    }
}

/// Returns a number of seconds as JSON, whole where it can be.
pub(super) fn number(seconds: f64) -> serde_json::Value {
    match seconds.fract() == 0.0 && seconds < 1e9 {
        true => (seconds as u64).into(),
        false => serde_json::json!(seconds),
    }
}

/// Returns the text of a data source: inline, or of a file.
pub(super) fn data(source: &Tree, access: &dyn Files) -> Result<String, String> {
    if let Some(text) = text(source, "inline_string") {
        return Ok(text.to_owned());
    }
    if let Some(name) = text(source, "environment_variable") {
        return access.variable(name).ok_or_else(|| format!("the environment variable `{name}` is not set"));
    }
    match text(source, "filename") {
        Some(path) => access.read(path).map_err(|reason| format!("`{path}` cannot be read: {reason}")),
        None => Err("only an inline string or a file can be a source here".to_owned()),
    }
}

/// Returns the last part of a type's name: `HttpConnectionManager`.
pub(super) fn kind(tree: &Tree) -> &str {
    let name = text(tree, "@type").unwrap_or_default();
    name.rsplit(['.', '/']).next().unwrap_or(name)
}
