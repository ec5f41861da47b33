//! Files of this machine in resources of a store. The author of such a resource is often not the operator of the
//! machine, and must not read or write its files: only folders that the file of the configuration names are allowed.
//!
//! Without a sandbox, a profile or such folders, resources may name files as in Apache APISIX, except files that clients
//! would get.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use sigma_schema::plugins::{NamedFile, PluginSchemas};
use sigma_schema::problem::member;

use crate::resources::kind::Kind;
use crate::resources::reference::is_reference;
use crate::settings::Settings;
use crate::settings::process::Sandbox;

/// The field of a secret manager's configuration that names a file.
const SECRET_FILE: NamedFile<'static> = NamedFile { name: "auth_file", is_written: false, is_served: false };

/// The files and folders that resources of a store may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedFiles {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    /// Files that no client gets may be anywhere.
    is_open: bool,
}

impl AllowedFiles {
    /// Returns the files and folders that the settings of the process name.
    pub fn of(settings: &Settings) -> AllowedFiles {
        let process = &settings.process;
        let absolute = |paths: &[PathBuf]| paths.iter().filter_map(|path| absolute(path)).collect();
        let names_folders = !(process.sandbox_read.is_empty() && process.sandbox_write.is_empty());
        AllowedFiles {
            read: absolute(&process.sandbox_read),
            write: absolute(&process.sandbox_write),
            is_open: process.sandbox == Sandbox::Off && settings.profile.is_none() && !names_folders,
        }
    }

    /// Refuses a resource that names another file.
    ///
    /// # Errors
    /// Returns an error message, which does not show the path.
    pub fn check(
        &self,
        kind: Kind,
        id: Option<&str>,
        value: &Value,
        plugins: &dyn PluginSchemas,
    ) -> Result<(), String> {
        match kind {
            Kind::Secret => self.check_member(value, SECRET_FILE, ""),
            Kind::PluginMetadata => {
                let id = id.or_else(|| value.get("id")?.as_str());
                id.map_or(Ok(()), |name| self.check_plugin(name, value, plugins, ""))
            }
            _ => self.check_inner(value, plugins, ""),
        }
    }

    /// Checks the configurations of plugins in a value, however deep they are.
    fn check_inner(&self, value: &Value, plugins: &dyn PluginSchemas, place: &str) -> Result<(), String> {
        match value {
            Value::Object(members) => members.iter().try_for_each(|(name, child)| {
                let place = member(place, name);
                self.check_plugin(name, child, plugins, &place)?;
                self.check_inner(child, plugins, &place)
            }),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(number, item)| {
                self.check_inner(item, plugins, &member(place, &number.to_string()))
            }),
            _ => Ok(()),
        }
    }

    fn check_plugin(
        &self,
        name: &str,
        conf: &Value,
        plugins: &dyn PluginSchemas,
        place: &str,
    ) -> Result<(), String> {
        let mut files = plugins.files(name).into_iter();
        files.try_for_each(|file| self.check_member(conf, file, place))
    }

    fn check_member(&self, conf: &Value, file: NamedFile<'_>, place: &str) -> Result<(), String> {
        let NamedFile { name, is_written, is_served } = file;
        let text = conf.get(name).and_then(Value::as_str);
        if self.is_open && !is_served || text.is_none_or(|text| self.allow(text, is_written)) {
            return Ok(());
        }
        let place = member(place, name);
        let setting = if is_written { "process.sandbox_write" } else { "process.sandbox_read" };
        Err(format!(
            "`{place}` names a file of the gateway's machine; a resource of a store or followed document may do so only within the folders of `{setting}` in the configuration file"
        ))
    }

    fn allow(&self, text: &str, is_written: bool) -> bool {
        // A reference is resolved later, to any path.
        if is_reference(text) {
            return false;
        }
        let Some(path) = absolute(Path::new(text)) else { return false };
        let read = self.read.iter().filter(|_| !is_written);
        self.write.iter().chain(read).any(|folder| path.starts_with(folder))
    }
}

/// Returns a path from the root, as the process would open it; None if it has a part that leads up.
fn absolute(path: &Path) -> Option<PathBuf> {
    let is_simple = |part: Component<'_>| !matches!(part, Component::ParentDir);
    if !path.components().all(is_simple) {
        return None;
    }
    std::path::absolute(path).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::{PluginRefusal, PluginScope};

    use super::*;
    use crate::settings::process::Process;
    use crate::settings::profile::Profile;

    struct Writer;

    impl PluginSchemas for Writer {
        fn names(&self) -> Vec<&str> {
            vec!["reader", "writer"]
        }

        fn schema(&self, _: &str, _: PluginScope) -> Option<&Value> {
            None
        }

        fn is_auth(&self, _: &str) -> bool {
            false
        }

        fn check(&self, _: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
            Ok(())
        }

        fn unique_attribute(&self, _: &str) -> Option<&str> {
            None
        }

        fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
            Vec::new()
        }

        fn files(&self, name: &str) -> Vec<NamedFile<'_>> {
            match name {
                "reader" => vec![NamedFile { name: "root", is_written: false, is_served: true }],
                "writer" => vec![NamedFile { name: "path", is_written: true, is_served: false }],
                _ => Vec::new(),
            }
        }
    }

    fn allowed() -> AllowedFiles {
        let process = Process {
            sandbox_read: vec!["/srv/pages".into(), "own".into()],
            sandbox_write: vec!["/var/log/g/".into()],
            ..Process::default()
        };
        AllowedFiles::of(&Settings { process, ..Settings::default() })
    }

    fn refusal(kind: Kind, id: Option<&str>, value: &Value) -> String {
        allowed().check(kind, id, value, &Writer).err().unwrap_or_default()
    }

    #[test]
    fn stores_name_files_in_allowed_folders_only() {
        let check = |plugin: &str, field: &str, path: &str, expected: bool| {
            let value = json!({"plugins": {plugin: {field: path}}});
            let refusal = refusal(Kind::Route, Some("1"), &value);
            assert_eq!(refusal.is_empty(), expected, "{path}: {refusal}");
            let place = format!("`plugins.{plugin}.{field}` names a file");
            assert!(expected || refusal.starts_with(&place) && !refusal.contains(path), "{refusal}");
        };
        for (path, is_read, is_written) in [
            ("/srv/pages", true, false),
            ("/srv/pages/a/b", true, false),
            ("/srv//pages/./a", true, false),
            ("/srv/pages2", false, false),
            ("/srv", false, false),
            ("/srv/pages/../../etc/shadow", false, false),
            ("own/a", true, false),
            ("./own/a", true, false),
            ("other/a", false, false),
            ("../own/a", false, false),
            ("/var/log/g/a.log", true, true),
            ("/etc/shadow", false, false),
            ("/", false, false),
            ("$env://HOME", false, false),
            ("$secret://vault/1/a/b", false, false),
        ] {
            check("reader", "root", path, is_read);
            check("writer", "path", path, is_written);
        }
    }

    #[test]
    fn without_a_sandbox_only_served_files_are_restricted() {
        let check =
            |process: &Process, profile: Option<Profile>, plugin: &str, field: &str, expected: bool| {
                let value = json!({"plugins": {plugin: {field: "/srv/other"}}});
                let settings = Settings { process: process.clone(), profile, ..Settings::default() };
                let checked = AllowedFiles::of(&settings).check(Kind::Route, Some("1"), &value, &Writer);
                assert_eq!(checked.is_ok(), expected, "{process:?} {profile:?} {plugin}");
            };
        let plain = Process::default();
        let sandboxed = Process { sandbox: Sandbox::Landlock, ..Process::default() };
        let listed = Process { sandbox_read: vec!["/srv/pages".into()], ..Process::default() };
        check(&plain, None, "writer", "path", true);
        check(&plain, None, "reader", "root", false);
        check(&plain, Some(Profile::Edge), "writer", "path", false);
        check(&sandboxed, None, "writer", "path", false);
        check(&listed, None, "writer", "path", false);
    }

    #[test]
    fn files_are_found_in_all_places() {
        let check = |kind: Kind, id: &str, value: Value, expected: &str| {
            let refusal = refusal(kind, Some(id), &value);
            assert!(refusal.starts_with(&format!("`{expected}` names")), "{value}: {refusal}");
        };
        let writer = json!({"path": "/etc/a"});
        check(Kind::GlobalRule, "1", json!({"plugins": {"writer": writer}}), "plugins.writer.path");
        check(Kind::PluginMetadata, "writer", writer.clone(), "path");
        let nested = json!({"plugins": {"multi": {"all": [{"writer": writer}]}}});
        check(Kind::Service, "1", nested, "plugins.multi.all.0.writer.path");
        check(Kind::Secret, "gcp/1", json!({"auth_file": "/etc/a"}), "auth_file");
        // Other members of these names are no files.
        assert_eq!(refusal(Kind::Route, None, &json!({"path": "/etc/a", "plugins": {"other": writer}})), "");
        assert_eq!(refusal(Kind::PluginMetadata, Some("other"), &writer), "");
    }
}
