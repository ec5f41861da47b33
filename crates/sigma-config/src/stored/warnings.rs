//! Warnings about a resource: fields without effect, and others.

use std::collections::HashSet;

use serde_json::Value;

use super::{Subject, invalid};
use crate::Config;
use crate::advice::{self, Surroundings};
use crate::plugins::{is_disabled, scope_of};
use crate::resources::kind::{Kind, ResourceKey};
use crate::rules::Object;
use crate::settings::UnknownFields;
use sigma_schema::Problem;
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_schema::problem::member;
use sigma_schema::validation::Unread;

/// Names that stores and clients add to every resource.
pub(super) const KEPT_WITH_ALL: [&str; 3] = ["id", "create_time", "update_time"];

/// Returns the fields without effect of a resource. Pointers begin in the resource: `plugins.limit-count.rejeted_code`.
/// Plugins that are `refused` as a whole are skipped.
fn unread(subject: &Subject<'_>, refused: &[Problem]) -> Vec<Unread> {
    let (kind, plugins) = (subject.kind, subject.plugins);
    let mut found = match kind {
        // Its fields are the plugin's.
        Kind::PluginMetadata => {
            plugins.unread(subject.id().unwrap_or_default(), PluginScope::Metadata, subject.value)
        }
        _ => {
            subject.checker().map(|checker| checker.unread(subject.value, &KEPT_WITH_ALL)).unwrap_or_default()
        }
    };
    for (name, conf) in subject.plugins() {
        let place = member("plugins", name);
        let is_whole =
            |problem: &Problem| problem.pointer == place && matches!(problem.code, "unknown_plugin" | "type");
        // A disabled configuration is in preparation, or kept for reference.
        if !is_disabled(conf) && !refused.iter().any(is_whole) {
            let of_plugin = plugins.unread(name, scope_of(kind, name, plugins), conf);
            found.extend(of_plugin.into_iter().map(|field| field.within(&place)));
        }
    }
    found
}

/// Returns the unknown fields of a resource; plugins that are `refused` are skipped.
pub(super) fn unknown(subject: &Subject<'_>, refused: &[Problem]) -> Vec<Unread> {
    let mut unread = unread(subject, refused);
    unread.retain(Unread::is_unknown);
    unread
}

/// Refuses a resource with unknown fields; one text has all of them.
pub(super) fn refuse_unknown(subject: &Subject<'_>) -> Result<(), String> {
    let sentences: Vec<String> = unknown(subject, &[]).iter().map(Unread::sentence).collect();
    if sentences.is_empty() { Ok(()) } else { Err(invalid(sentences.join("; "))) }
}

/// The code of a plugin's warning that it trusts any peer. It does not apply with the setting `trusted_addresses`.
pub const TRUSTS_ANY_PEER: &str = "trusts_any_peer";

/// Returns the warnings about a resource that [`super::check`] accepts. Pointers begin in the resource.
pub fn warnings(kind: Kind, id: Option<&str>, value: &Value, around: &Surroundings<'_>) -> Vec<Problem> {
    let plugins = around.plugins;
    let subject = Subject { kind, id, value, plugins, is_of_file: false };
    let unread = unread(&subject, &[]).into_iter();
    // Refused fields are not also warnings.
    let unread = unread.filter(|field| !field.is_unknown() || around.unknown == UnknownFields::Warn);
    let mut found: Vec<Problem> = unread.map(|field| field.ignored()).collect();
    let empty = Object::new();
    let object = value.as_object().unwrap_or(&empty);
    found.extend(advice::resource(kind, object, around));
    for (name, conf) in subject.plugins().filter(|(_, conf)| !is_disabled(conf)) {
        let place = member("plugins", name);
        let of_plugin = plugins.warnings(name, scope_of(kind, name, plugins), conf);
        let of_plugin = of_plugin.into_iter().filter(|problem| {
            // The setting replaces the list that the plugin lacks.
            !around.trusts_proxies || problem.code != TRUSTS_ANY_PEER
        });
        found.extend(of_plugin.map(|problem| problem.within(&place)));
    }
    if let (Kind::PluginMetadata, Some(name)) = (kind, subject.id()) {
        found.extend(plugins.warnings(name, PluginScope::Metadata, value));
    }
    // A plugin may also warn about a field that its schema already reports.
    let mut told = HashSet::new();
    found.retain(|problem| told.insert((problem.pointer.clone(), problem.code)));
    found
}

/// Returns the warnings that come from the resources of a configuration together. Pointers begin with the key of a
/// resource, or with a setting.
pub fn warnings_together(config: &Config, plugins: &dyn PluginSchemas) -> Vec<Problem> {
    advice::whole(&config.settings, &config.resources, plugins)
}

/// Returns the warnings of [`warnings_together`] that concern a change: about the changed resources, and about others if
/// `before` does not have them.
pub fn warnings_of_change(
    changed: &HashSet<ResourceKey>,
    before: &Config,
    after: &Config,
    plugins: &dyn PluginSchemas,
) -> Vec<Problem> {
    let keys: HashSet<String> = changed.iter().map(ToString::to_string).collect();
    let is_changed = |problem: &Problem| {
        let ends = problem.pointer.match_indices('.').map(|(at, _)| at).chain([problem.pointer.len()]);
        ends.into_iter().any(|end| keys.contains(&problem.pointer[..end]))
    };
    let (mut found, others): (Vec<_>, Vec<_>) =
        warnings_together(after, plugins).into_iter().partition(is_changed);
    if !others.is_empty() {
        let known: HashSet<String> =
            warnings_together(before, plugins).iter().map(ToString::to_string).collect();
        found.extend(others.into_iter().filter(|problem| !known.contains(&problem.to_string())));
    }
    found
}
