//! Texts and fields that depend on the request.

use serde_json::Value;
use sigma_config::template::Template;
use sigma_plugin::Context;

use crate::rewrite::fields::{frames, is_name};

/// A header field whose value may hold variables.
pub(super) struct Field {
    name: String,
    value: Template,
}

impl Field {
    pub(super) fn new(name: &str, value: &Value) -> Field {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Field { name: name.to_owned(), value: Template::parse(&text) }
    }

    /// The fields of a checked object of strings and numbers; those that frame the answer are left
    /// to the gateway.
    pub(super) fn all(fields: &serde_json::Map<String, Value>) -> Vec<Field> {
        let fields = fields.iter().filter(|(name, _)| !frames(name));
        fields.map(|(name, value)| Field::new(name, value)).collect()
    }

    /// Name and value for this request.
    pub(super) fn of(&self, ctx: &Context) -> (String, Vec<u8>) {
        (self.name.clone(), rendered(&self.value, ctx))
    }
}

/// Refuses what is no name of a field: it would tear the answer apart.
///
/// # Errors
/// One of the names is none.
pub(super) fn check_names<'n>(mut names: impl Iterator<Item = &'n str>) -> Result<(), String> {
    match names.find(|name| !is_name(name)) {
        Some(name) => Err(format!("`{name}` is no name of a header field")),
        None => Ok(()),
    }
}

/// The text of a template; absent variables are empty.
pub(super) fn rendered(template: &Template, ctx: &Context) -> Vec<u8> {
    let mut text = Vec::new();
    template.render(ctx, &mut text);
    text
}
