//! Folders of plugins: code, tests, example, promised schema and wire cases of a plugin are in a folder with its name.

use super::circles::{place, used};
use super::source::Source;
use super::{Finding, Repository};

const RULE: &str = "a plugin is a folder";

/// The folder of a group for code that several of its plugins use.
const SHARED: &str = "shared";

/// Files of a group that belong to no plugin.
const OF_GROUP: [&str; 4] = ["Cargo.toml", "fuzzing.rs", "lib.rs", "tests.rs"];

/// The file with the wire cases of a plugin.
const CASES: &str = "wire.case";

/// Plugins without a wire case, each with the reason and the tests in `crates/sigma/tests` instead.
const WITHOUT_CASE: &[(&str, &str)] = &[
    ("datadog", "the agent gets datagrams; see feature/tracing/metrics.rs"),
    ("dubbo-proxy", "the node speaks Dubbo; see feature/dubbo.rs"),
    ("error-log-logger", "it sends log lines of the process; see feature/plugins_log_errors.rs"),
    ("ext-plugin-post-req", "the runner is a process; see feature/plugins_runner.rs"),
    ("ext-plugin-post-resp", "the runner is a process; see feature/plugins_runner.rs"),
    ("ext-plugin-pre-req", "the runner is a process; see feature/plugins_runner.rs"),
    ("file-logger", "it writes a file; see feature/plugins_log.rs"),
    ("google-cloud-logging", "it needs a service account with a private key; see feature/log_shippers.rs"),
    ("http-dubbo", "the node speaks Dubbo; see feature/dubbo.rs"),
    ("kafka-logger", "the server speaks Kafka; see feature/plugins_log_kafka.rs"),
    ("log-rotate", "it renames files; see feature/log_rotation.rs"),
    ("mqtt-proxy", "it serves stream routes; see feature/stream_plugins.rs"),
    ("rocketmq-logger", "the server speaks RocketMQ; see feature/plugins_log_rocketmq.rs"),
    ("server-info", "its page is in the Control API; see feature/cluster.rs"),
    ("sls-logger", "the server gets lines over TLS; see feature/plugins_log_sockets.rs"),
    ("statsd", "the agent gets datagrams; see feature/tracing/metrics.rs"),
    ("syslog", "the server gets lines over TCP or UDP; see feature/plugins_log_sockets.rs"),
    ("tcp-logger", "the server gets lines over TCP; see feature/plugins_log_sockets.rs"),
    ("udp-logger", "the server gets datagrams; see feature/plugins_log_sockets.rs"),
    ("wasm", "it needs a module, and an engine that the tests leave out; see feature/plugins_wasm.rs"),
];

/// A plugin of a roster.
struct Listed {
    group: String,
    name: String,
}

impl Listed {
    /// The folder of the plugin, without a slash at its end. A crate in `extensions` that has the name of its plugin is the
    /// plugin's folder.
    fn folder(&self, paths: &[String]) -> String {
        let Listed { group, name } = self;
        let crate_folder = format!("extensions/{group}/");
        match paths.iter().any(|path| path.starts_with(&crate_folder)) {
            true if group == name => format!("extensions/{group}"),
            true => format!("extensions/{group}/{name}"),
            false => format!("plugins/{group}/{name}"),
        }
    }

    /// The module of the plugin.
    fn module(&self) -> String {
        self.name.replace('-', "_")
    }
}

/// Checks the plugins of all rosters, and the folders of all groups.
pub(super) fn check(repository: &Repository) -> Vec<Finding> {
    let wasm = sigma_wasm::ROSTER.iter().map(|plugin| ("wasm".to_owned(), plugin.name.to_owned()));
    let others =
        sigma_plugins::kinds().into_iter().map(|kind| (kind.group().to_owned(), kind.name().to_owned()));
    let listed: Vec<Listed> = others.chain(wasm).map(|(group, name)| Listed { group, name }).collect();
    let mut findings = missing(&listed, &repository.paths, WITHOUT_CASE);
    findings.extend(unlisted(&listed, &repository.paths));
    findings.extend(repository.sources.iter().flat_map(|source| imports(&listed, source)));
    findings
}

/// Returns the files that plugins lack, and exceptions that are needed no longer.
fn missing(listed: &[Listed], paths: &[String], without_case: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for plugin in listed {
        let folder = plugin.folder(paths);
        let has = |file: &str| paths.binary_search(&format!("{folder}/{file}")).is_ok();
        let code = folder.starts_with("plugins/").then_some(("mod.rs", "its code"));
        let data = [("example.md", "its example"), ("schema.json", "its promised schema")];
        for (file, content) in code.into_iter().chain(data).filter(|(file, _)| !has(file)) {
            let remedy = format!("the plugin {} needs {file} there, with {content}", plugin.name);
            findings.push(Finding::new(RULE, &folder, remedy));
        }
        let is_excepted = without_case.iter().any(|(name, _)| *name == plugin.name);
        let remedy = match (has(CASES), is_excepted) {
            (false, false) => format!(
                "the plugin {} needs {CASES} there, or a line with the reason in WITHOUT_CASE of plugin_folders.rs",
                plugin.name
            ),
            (true, true) => format!("{CASES} exists: remove {} from WITHOUT_CASE", plugin.name),
            _ => continue,
        };
        findings.push(Finding::new(RULE, &folder, remedy));
    }
    findings
}

/// Returns the entries of groups that are no plugin's.
fn unlisted(listed: &[Listed], paths: &[String]) -> Vec<Finding> {
    let mut entries: Vec<(&str, &str)> = paths.iter().filter_map(|path| entry(path)).collect();
    entries.dedup();
    let is_known = |group: &str, entry: &str| {
        OF_GROUP.contains(&entry)
            || entry == SHARED
            || listed.iter().any(|plugin| plugin.group == group && plugin.name == entry)
    };
    let unknown = entries.into_iter().filter(|(group, entry)| !is_known(group, entry));
    let finding = |(group, entry): (&str, &str)| {
        let remedy = format!(
            "no plugin of the roster has this name: move code of one plugin into its folder, and code of several into \
             plugins/{group}/{SHARED}"
        );
        Finding::new(RULE, format!("plugins/{group}/{entry}"), remedy)
    };
    unknown.map(finding).collect()
}

/// The group of a file, and the entry of the group that has it.
fn entry(path: &str) -> Option<(&str, &str)> {
    let (group, rest) = path.strip_prefix("plugins/")?.split_once('/')?;
    Some((group, rest.split('/').next()?))
}

/// Returns a finding for each other plugin that a file of a plugin, or of the shared code, names.
fn imports(listed: &[Listed], source: &Source) -> Vec<Finding> {
    let Some((group, own)) = entry(&source.path) else { return Vec::new() };
    if OF_GROUP.contains(&own) {
        return Vec::new();
    }
    let module = place(&source.path["plugins/".len() + group.len() + 1..]);
    let tests = [&module[..], &["tests".to_owned()]].concat();
    let (code, test_code) = source.code.split_at(source.tests_from);
    let mut named = used(&code.join("\n"), &module, |_| false);
    named.extend(used(&test_code.join("\n"), &tests, |_| false));
    let others = listed.iter().filter(|plugin| plugin.group == group && plugin.name != own);
    let finding = |plugin: &Listed| {
        let remedy = format!(
            "it names the plugin {}: move the code that both need into plugins/{group}/{SHARED}",
            plugin.name
        );
        Finding::new(RULE, &source.path, remedy)
    };
    others
        .filter(|plugin| named.iter().any(|path| path.first() == Some(&plugin.module())))
        .map(finding)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<Listed> {
        [("auth", "acl"), ("auth", "key-auth"), ("lua", "exit"), ("wasm", "wasm")]
            .map(|(group, name)| Listed { group: group.to_owned(), name: name.to_owned() })
            .into()
    }

    fn complete() -> Vec<String> {
        let mut paths = vec!["extensions/lua/lib.rs".to_owned(), "extensions/wasm/lib.rs".to_owned()];
        let folders = ["plugins/auth/acl", "plugins/auth/key-auth", "extensions/lua/exit", "extensions/wasm"];
        for folder in folders {
            let files = ["example.md", "mod.rs", "schema.json", "wire.case"];
            paths.extend(files.map(|file| format!("{folder}/{file}")));
        }
        paths.sort();
        paths
    }

    #[test]
    fn a_plugin_has_all_files_in_its_folder() {
        let check = |without: &str, excepted: &[(&str, &str)], expected: &[&str]| {
            let paths: Vec<String> = complete().into_iter().filter(|path| path != without).collect();
            let findings = missing(&listed(), &paths, excepted);
            let places: Vec<&str> = findings.iter().map(|finding| finding.place.as_str()).collect();
            assert_eq!(places, expected, "{without}");
        };
        check("", &[], &[]);
        check("plugins/auth/acl/mod.rs", &[], &["plugins/auth/acl"]);
        check("plugins/auth/key-auth/schema.json", &[], &["plugins/auth/key-auth"]);
        check("extensions/lua/exit/example.md", &[], &["extensions/lua/exit"]);
        check("extensions/lua/exit/mod.rs", &[], &[]);
        check("extensions/wasm/wire.case", &[], &["extensions/wasm"]);
        check("extensions/wasm/wire.case", &[("wasm", "a reason")], &[]);
        check("", &[("acl", "a reason")], &["plugins/auth/acl"]);
    }

    #[test]
    fn a_group_has_only_plugins_and_shared_code() {
        let check = |more: &str, expected: &[&str]| {
            let paths = [complete(), vec![more.to_owned()]].concat();
            let findings = unlisted(&listed(), &paths);
            let places: Vec<&str> = findings.iter().map(|finding| finding.place.as_str()).collect();
            assert_eq!(places, expected, "{more}");
        };
        check("plugins/auth/lib.rs", &[]);
        check("plugins/auth/shared/form.rs", &[]);
        check("plugins/testing.rs", &[]);
        check("extensions/lua/core/mod.rs", &[]);
        check("plugins/auth/form.rs", &["plugins/auth/form.rs"]);
        check("plugins/auth/key_auth/mod.rs", &["plugins/auth/key_auth"]);
        check("plugins/log/acl/mod.rs", &["plugins/log/acl"]);
    }

    #[test]
    fn plugins_do_not_name_each_other() {
        let check = |path: &str, code: &str, expected: usize| {
            let findings = imports(&listed(), &Source::new(path, code));
            assert_eq!(findings.len(), expected, "{path}: {code}");
        };
        check("plugins/auth/acl/mod.rs", "use crate::key_auth::Key;", 1);
        check("plugins/auth/acl/mod.rs", "use super::{key_auth, shared::form};", 1);
        check("plugins/auth/acl/rules.rs", "fn a() { super::super::key_auth::b() }", 1);
        check("plugins/auth/shared/form.rs", "use crate::acl;", 1);
        check("plugins/auth/acl/mod.rs", "#[cfg(test)]\nmod tests {\n  use crate::key_auth::Key;\n}", 1);
        check("plugins/auth/acl/mod.rs", "#[cfg(test)]\nmod tests {\n  use super::key_auth;\n}", 0);
        check("plugins/auth/acl/mod.rs", "use crate::shared::form;\nuse super::acl::rules;", 0);
        check("plugins/auth/acl/mod.rs", "const OTHER: &str = \"key-auth\"; // crate::key_auth::Key", 0);
        check("plugins/auth/lib.rs", "use crate::acl::ACL;", 0);
        check("plugins/log/lago/mod.rs", "use crate::acl::ACL;", 0);
    }
}
