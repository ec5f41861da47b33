//! The fields of a resource that nobody reads, and all else that its writer should know.

use std::collections::HashSet;

use serde_json::Value;

use super::{checker, invalid, named_plugins, provider_of};
use crate::Problem;
use crate::advice::{self, Surroundings};
use crate::kind::Kind;
use crate::plugins::{PluginSchemas, PluginScope, is_disabled, scope_of};
use crate::problem::member;
use crate::rules::Object;
use crate::settings::UnknownFields;
use crate::wording::Unread;

/// Names that stores and clients add to whatever they keep.
const KEPT_WITH_ALL: [&str; 3] = ["id", "create_time", "update_time"];

/// The fields of a resource, which [`super::check`] accepts otherwise, that nobody reads. Pointers
/// begin in the resource: `plugins.limit-count.rejeted_code`.
fn unread(kind: Kind, id: Option<&str>, value: &Value, plugins: &dyn PluginSchemas) -> Vec<Unread> {
    let id = id.or_else(|| value.get("id")?.as_str()).unwrap_or_default();
    let mut found = match kind {
        // Its fields are the plugin's.
        Kind::PluginMetadata => plugins.unread(id, PluginScope::Metadata, value),
        Kind::Secret => match provider_of(id) {
            Ok(manager) => checker(kind, Some(manager)).unread(value, &KEPT_WITH_ALL),
            Err(_) => Vec::new(),
        },
        kind => checker(kind, None).unread(value, &KEPT_WITH_ALL),
    };
    for (name, conf) in value.as_object().into_iter().flat_map(named_plugins) {
        // A disabled configuration is being prepared, or kept for reference.
        if !is_disabled(conf) {
            let place = member("plugins", name);
            let of_plugin = plugins.unread(name, scope_of(kind, name, plugins), conf);
            found.extend(of_plugin.into_iter().map(|field| field.within(&place)));
        }
    }
    found
}

/// Refuses a resource that has fields which do not exist, all of them in one text.
pub(super) fn refuse_unknown(
    kind: Kind,
    id: Option<&str>,
    value: &Value,
    plugins: &dyn PluginSchemas,
) -> Result<(), String> {
    let unknown = unread(kind, id, value, plugins).into_iter().filter(Unread::is_unknown);
    let sentences: Vec<String> = unknown.map(|field| field.sentence()).collect();
    if sentences.is_empty() { Ok(()) } else { Err(invalid(sentences.join("; "))) }
}

/// The warnings about a resource that [`super::check`] accepts; they stop nothing.
/// Pointers begin in the resource.
pub fn warnings(kind: Kind, id: Option<&str>, value: &Value, around: &Surroundings<'_>) -> Vec<Problem> {
    let plugins = around.plugins;
    let unread = unread(kind, id, value, plugins).into_iter();
    // Fields that are refused are no warnings as well.
    let unread = unread.filter(|field| !field.is_unknown() || around.unknown == UnknownFields::Warn);
    let mut found: Vec<Problem> = unread.map(|field| field.ignored()).collect();
    let empty = Object::new();
    let object = value.as_object().unwrap_or(&empty);
    found.extend(advice::resource(kind, object, around));
    for (name, conf) in named_plugins(object).filter(|(_, conf)| !is_disabled(conf)) {
        let place = member("plugins", name);
        let of_plugin = plugins.warnings(name, scope_of(kind, name, plugins), conf);
        found.extend(of_plugin.into_iter().map(|problem| problem.within(&place)));
    }
    if let (Kind::PluginMetadata, Some(name)) = (kind, id.or_else(|| value.get("id")?.as_str())) {
        found.extend(plugins.warnings(name, PluginScope::Metadata, value));
    }
    // A plugin may have something to say of a field that its schema calls idle already.
    let mut told = HashSet::new();
    found.retain(|problem| told.insert((problem.pointer.clone(), problem.code)));
    found
}
