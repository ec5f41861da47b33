//! Plugins that set request fields declare them, so that clients cannot send them in any spelling.

use super::Finding;
use super::source::Source;

const RULE: &str = "plugins declare the request fields that they set";

/// The calls that set a field of the request.
const SETS: [&str; 7] =
    ["append(", "append_known(", "append_parts(", "add(", "replace(", "set(", "set_sound("];

/// The type of a declared field.
const DECLARED: &str = "OwnedField";

/// Files that set fields without a declaration, with the reason.
const HARMLESS: &[(&str, &str)] = &[
    ("plugins/auth/shared/code_login/mod.rs", "dingtalk-auth and feishu-auth declare the field"),
    ("plugins/security/oas-validator/fuzzing.rs", "it makes requests for the fuzzer"),
    ("plugins/log/data-mask/mod.rs", "it masks values in the copy for the logs"),
    ("plugins/transform/decompress/mod.rs", "it narrows Accept-Encoding, which names no user"),
    ("plugins/transform/grpc-web/mod.rs", "it sets the media type of the translated body"),
];

/// Checks the files of plugins and extensions.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let of_plugins = || {
        let all = sources.iter();
        all.filter(|source| source.path.starts_with("plugins/") || source.path.starts_with("extensions/"))
    };
    let declares = |source: &Source| source.code.iter().any(|line| line.contains(DECLARED));
    let mut findings = Vec::new();
    let mut needed = vec![false; HARMLESS.len()];
    for source in of_plugins() {
        let Some(line) = setting(source) else { continue };
        if let Some(known) = HARMLESS.iter().position(|known| known.0 == source.path) {
            needed[known] = true;
            continue;
        }
        // A plugin may be a folder; files of a group belong to different plugins.
        let folder = folder(&source.path);
        let in_folder = |other: &&Source| folder.is_some_and(|folder| other.path.starts_with(folder));
        if !declares(source) && !of_plugins().filter(in_folder).any(declares) {
            let remedy = format!(
                "declare the field as an {DECLARED} of the plugin, or add the file to HARMLESS in owned.rs with the reason"
            );
            findings.push(Finding::at(RULE, &source.path, line, remedy));
        }
    }
    for ((path, _), _) in HARMLESS.iter().zip(needed).filter(|(_, needed)| !needed) {
        findings.push(Finding::new(
            RULE,
            *path,
            "it sets no request field: remove it from HARMLESS in owned.rs",
        ));
    }
    findings
}

/// The folder of a plugin that has one, with a slash at its end.
fn folder(path: &str) -> Option<&str> {
    let end = path.match_indices('/').nth(2)?.0;
    Some(&path[..=end])
}

/// The first line before the tests that sets a field of the request.
fn setting(source: &Source) -> Option<usize> {
    if source.is_test {
        return None;
    }
    let lines = &source.code[..source.tests_from];
    lines.iter().enumerate().find_map(|(number, line)| {
        // The formatter may put the call on the next line.
        let next = lines.get(number + 1).map_or("", |next| next.trim_start());
        let (_, rest) = line.split_once("request.headers")?;
        let call = if rest.trim().is_empty() { next } else { rest };
        let call = call.strip_prefix('.')?;
        SETS.iter().any(|set| call.starts_with(set)).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_set_are_declared() {
        let check = |files: &[(&str, &str)], expected: usize| {
            let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
            let findings = check(&sources);
            let of_files = findings
                .iter()
                .filter(|finding| files.iter().any(|(path, _)| finding.place.starts_with(path)));
            assert_eq!(of_files.count(), expected, "{findings:?}");
        };
        let sets = "fn a() { ctx.request.headers.append(\"X-User\", b\"a\"); }";
        check(&[("plugins/auth/a.rs", sets)], 1);
        check(
            &[("plugins/auth/a.rs", "fn a() {\n    ctx.request.headers\n        .replace(NAME, b\"a\");\n}")],
            1,
        );
        check(&[("plugins/auth/a.rs", sets), ("plugins/auth/b.rs", "use OwnedField;")], 1);
        check(&[("plugins/auth/a/mod.rs", sets), ("plugins/auth/a/b.rs", "use OwnedField;")], 0);
        check(&[("plugins/auth/a.rs", "fn a() { ctx.request.headers.remove_name(b\"a\"); }")], 0);
        check(&[("crates/sigma-proxy/src/a.rs", sets)], 0);
        check(&[("plugins/log/data-mask/mod.rs", "fn a() {}")], 1);
    }
}
