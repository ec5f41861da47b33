//! The files and folders that a configuration names.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sigma_config::Config;
use sigma_plugin::{FileAccess, FileMember, Roster};

use FileAccess::{Execute, ReadFile, ReadFolder, WriteFile, WriteFolder};

/// A file or folder that the gateway is to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    /// The place in the configuration, for messages.
    pub(super) place: String,
    pub(super) path: PathBuf,
    pub(super) access: FileAccess,
    /// A reload changes it; the others are read once, at the start.
    pub(super) is_reloaded: bool,
}

/// Where a full configuration names files, for settings that a reload changes. `*` is any member or item, `**` any
/// number of them.
const RELOADED: &[(&str, FileAccess)] = &[
    ("access_log.path", WriteFile),
    ("geoip.databases.*", ReadFile),
    ("listeners.*.address", WriteFile),
    ("listeners.**.cert", ReadFile),
    ("listeners.**.key", ReadFile),
    ("listeners.**.ocsp", ReadFile),
    ("listeners.**.files.*", ReadFile),
    ("tls.trusted_certificates", ReadFile),
    ("tls.key_passphrase_files.*", ReadFile),
    ("ssls.**.files.*", ReadFile),
    ("ssls.*.cert_file", ReadFile),
    ("ssls.*.key_file", ReadFile),
    ("secrets.*.auth_file", ReadFile),
    ("lua.readable_folders.*", ReadFolder),
];

/// The same for those that are read once.
const AT_START: &[(&str, FileAccess)] = &[
    ("error_log.path", WriteFile),
    ("audit_log.path", WriteFile),
    ("health_file.path", WriteFile),
    ("cache.disk.path", WriteFolder),
    ("history.path", WriteFolder),
    ("plugin_attr.**.disk_path", WriteFolder),
    ("store.path", WriteFolder),
    ("config_sources.kept_file", WriteFile),
    ("config_sources.urls.*.ca", ReadFile),
    ("store.**.ca", ReadFile),
    ("store.**.cert", ReadFile),
    ("store.**.key", ReadFile),
    ("tls.storage", WriteFolder),
    ("acme.storage", WriteFolder),
    ("acme.ca", ReadFile),
    ("acme.dns.hook.command.0", Execute),
    ("ext-plugin.cmd.0", Execute),
    ("ext-plugin.path", WriteFile),
    ("ext-plugin.path_for_test", WriteFile),
    ("wasm.plugins.*.file", ReadFile),
    ("admin.tls.cert", ReadFile),
    ("admin.tls.key", ReadFile),
    ("admin.tls.client_ca", ReadFile),
    ("discovery.**.path", WriteFile),
    ("discovery.**.ca", ReadFile),
    ("discovery.**.token_file", ReadFile),
    ("cloud_identity.gcp.credentials_file", ReadFile),
    ("discovery.docker.certificate", ReadFile),
    ("discovery.docker.key", ReadFile),
    ("discovery.**.resolv_conf", ReadFile),
    ("process.sandbox_read.*", ReadFolder),
    ("process.sandbox_write.*", WriteFolder),
    ("pid_file", WriteFile),
];

/// The folder of the zone that the plugin proxy-cache has where `plugin_attr` names none, as in APISIX.
const DEFAULT_ZONE: &str = "/tmp/disk_cache_one";

/// Values of such members that name no file.
const NO_FILES: [&str; 4] = ["", "off", "stdout", "stderr"];

/// The files that `config` names. Relative paths begin in the folder of the process.
pub(super) fn of(config: &Config, plugins: &Roster) -> Vec<Need> {
    let whole = config.to_value();
    let mut needs = Vec::new();
    for (places, is_reloaded) in [(RELOADED, true), (AT_START, false)] {
        for (place, access) in places {
            let steps: Vec<&str> = place.split('.').collect();
            walk(&whole, &steps, &mut String::new(), &mut |place, value| {
                needs.extend(need(place, value, *access, is_reloaded));
            });
        }
    }
    of_plugins(&whole, plugins, "", &mut needs);
    needs.extend(config.settings.lua.folders().map(|path| Need {
        place: "lua.path".to_owned(),
        path,
        access: ReadFolder,
        is_reloaded: true,
    }));
    let mut unwritten = |place: &str, path: PathBuf| {
        needs.push(Need { place: place.to_owned(), path, access: WriteFolder, is_reloaded: false });
    };
    if config.settings.admin.is_some() && config.settings.store.is_none() {
        unwritten("store.path", sigma_config::store::Store::default().path);
    }
    if whole.pointer("/plugin_attr/proxy-cache/zones").is_none() {
        let mut is_used = false;
        walk(&whole, &["**", "proxy-cache"], &mut String::new(), &mut |_, _| is_used = true);
        if is_used {
            unwritten("plugin_attr.proxy-cache", PathBuf::from(DEFAULT_ZONE));
        }
    }
    needs
}

fn need(place: &str, value: &Value, access: FileAccess, is_reloaded: bool) -> Option<Need> {
    let text = value.as_str().filter(|text| !NO_FILES.contains(text))?;
    // Listeners: the file of a Unix socket, or no file.
    let text = match place.ends_with(".address") {
        true => text.strip_prefix("unix:")?,
        false => text,
    };
    // A bare name of a program is looked up in the folders for programs.
    if access == Execute && !text.contains('/') {
        return None;
    }
    Some(Need { place: place.to_owned(), path: PathBuf::from(text), access, is_reloaded })
}

/// Calls `found` with every value that `steps` lead to, and its place.
fn walk(value: &Value, steps: &[&str], place: &mut String, found: &mut impl FnMut(&str, &Value)) {
    let Some((step, rest)) = steps.split_first() else { return found(place, value) };
    if *step == "**" {
        walk(value, rest, place, found);
    }
    let next = if *step == "**" { steps } else { rest };
    for (name, child) in children(value) {
        if *step == "*" || *step == "**" || *step == name {
            let length = place.len();
            let dot = if place.is_empty() { "" } else { "." };
            place.push_str(&format!("{dot}{name}"));
            walk(child, next, place, found);
            place.truncate(length);
        }
    }
}

/// The members of an object, or the items of an array by their numbers.
fn children(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Object(members) => members.iter().map(|(name, child)| (name.clone(), child)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect(),
        _ => Vec::new(),
    }
}

/// The files that configurations of plugins and plugin metadata name, however deep they are.
fn of_plugins(value: &Value, plugins: &Roster, place: &str, needs: &mut Vec<Need>) {
    for (name, child) in children(value) {
        let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        let id = child.get("id").and_then(Value::as_str).filter(|_| place.starts_with("plugin_metadata."));
        if let Some(kind) = plugins.get(id.unwrap_or(&name)) {
            let member = |FileMember { name, access }: &FileMember| {
                need(&format!("{place}.{name}"), child.get(*name)?, *access, true)
            };
            needs.extend(kind.files().iter().filter_map(member));
        }
        of_plugins(child, plugins, &place, needs);
    }
}

/// The folder of a file; an absolute path.
pub(super) fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sigma_config::ParseOptions;
    use sigma_plugin::{Descriptor, Kind};

    use super::*;

    const WRITER: Descriptor = Descriptor {
        name: "writer",
        files: &[FileMember { name: "path", access: WriteFile }],
        ..Descriptor::BASE
    };

    #[test]
    fn files_of_settings_resources_and_plugins_are_found() {
        let plugins = Roster::new([Arc::new(WRITER) as Arc<dyn Kind>], None);
        let options = ParseOptions { plugins: &plugins, ..ParseOptions::default() };
        let text = r#"
listeners:
  - { address: "unix:/run/g/sigma.sock" }
  - { address: "127.0.0.1:0", tls: { certificates: [{ cert: /c/cert.pem, key: /c/key.pem }] } }
access_log: /var/log/a.log
error_log: { path: stderr }
health_file: { path: "off" }
tls: { storage: "off", trusted_certificates: /t/ca.pem, key_passphrase_files: [/t/pass] }
cache: { disk: { path: /var/cache/g } }
geoip: { databases: [/geo/city.mmdb] }
pid_file: /run/g/pid
process: { sandbox_read: [/srv/keys] }
discovery: { dns: { resolv_conf: /d/resolv.conf } }
ssls:
  - { id: 1, sni: a.test, cert_file: /live/a/fullchain.pem, key_file: /live/a/privkey.pem }
routes:
  - { id: 1, uri: "/etc/passwd", plugins: { writer: { path: /w/lines } }, upstream: "http://127.0.0.1:1" }
"#;
        let checked =
            sigma_config::parse(text, &options).map_err(|problems| format!("{problems:?}")).unwrap();
        let mut found: Vec<(String, String)> = of(&checked.config, &plugins)
            .into_iter()
            .map(|need| (need.place, need.path.display().to_string()))
            .collect();
        found.sort();
        let expected = [
            ("access_log.path", "/var/log/a.log"),
            ("cache.disk.path", "/var/cache/g"),
            ("discovery.dns.resolv_conf", "/d/resolv.conf"),
            ("discovery.last_good.path", "./data/discovery.json"),
            ("geoip.databases.0", "/geo/city.mmdb"),
            ("listeners.0.address", "/run/g/sigma.sock"),
            ("listeners.1.tls.certificates.0.cert", "/c/cert.pem"),
            ("listeners.1.tls.certificates.0.key", "/c/key.pem"),
            ("pid_file", "/run/g/pid"),
            ("process.sandbox_read.0", "/srv/keys"),
            ("routes.0.plugins.writer.path", "/w/lines"),
            ("ssls.0.cert_file", "/live/a/fullchain.pem"),
            ("ssls.0.key_file", "/live/a/privkey.pem"),
            ("tls.key_passphrase_files.0", "/t/pass"),
            ("tls.trusted_certificates", "/t/ca.pem"),
        ];
        let expected: Vec<(String, String)> =
            expected.iter().map(|(place, path)| ((*place).to_owned(), (*path).to_owned())).collect();
        assert_eq!(found, expected);
    }
}
