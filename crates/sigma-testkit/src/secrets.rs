//! Secrets of configurations, which no log may hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Fields whose values are secrets.
const FIELDS: [&str; 14] = [
    "access_key",
    "api_key",
    "apikey",
    "client_key",
    "client_secret",
    "hmac_secret",
    "key",
    "password",
    "private_key",
    "secret",
    "secret_access_key",
    "secret_key",
    "session_secret",
    "token",
];

/// A shorter value may be its own word.
const LEAST: usize = 12;

/// Prefixes of variables that a client fills.
const VARIABLES: [&str; 3] = ["http_", "arg_", "cookie_"];

/// A longer file is read up to here.
const LOG_BYTES: usize = 32 << 20;

/// The secrets in all configurations of this process, for any gateway.
static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn named() -> MutexGuard<'static, BTreeSet<String>> {
    // A set is whole after each insertion.
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the secrets in a configuration or a resource, in YAML or JSON.
pub(crate) fn note(text: &str) {
    let found = secrets_in(text);
    if !found.is_empty() {
        named().extend(found);
    }
}

fn secrets_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(':') {
        let (before, after) =
            (text[..at].trim_end_matches(['"', '\'']), text[at + 1..].trim_start_matches(' '));
        let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |end| end + 1);
        if !FIELDS.contains(&&before[start..]) {
            continue;
        }
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
        let value = match quote {
            Some(quote) => after[1..].split(quote).next(),
            None => after.split([',', '}', ']', '\n', ' ']).next(),
        };
        // A reference is no secret, and a missing or filled-in value is not known here.
        let is_reference = |value: &str| value.starts_with(['$', '{', '/', '|', '*', '-']);
        // The `key` of a limit names a variable.
        let is_variable = |value: &str| VARIABLES.iter().any(|prefix| value.starts_with(prefix));
        let is_secret = |value: &&str| value.len() >= LEAST && !is_reference(value) && !is_variable(value);
        found.extend(value.filter(is_secret).map(str::to_owned));
    }
    // Of a private key a line is enough.
    for key in text.split("PRIVATE KEY-----").skip(1).step_by(2) {
        let lines = key.split(['\n', ' ', '\\']).map(|line| line.trim_start_matches('n').trim());
        found.extend(lines.filter(|line| line.len() >= 60).take(1).map(str::to_owned));
    }
    found
}

/// Returns the logs in the folder of a gateway that contain secrets, each with the first of them.
pub(crate) fn leaked(dir: &Path) -> Vec<(PathBuf, String)> {
    let is_log = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        matches!(&*name, "stdout" | "stderr") || name.contains(".log")
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs: Vec<_> = entries.filter(|path| path.is_file() && is_log(path)).collect();
    let named = named().clone();
    let held = |log: PathBuf| {
        let mut text = fs::read(&log).unwrap_or_default();
        text.truncate(LOG_BYTES);
        let text = String::from_utf8_lossy(&text).into_owned();
        let secret = named.iter().find(|secret| text.contains(secret.as_str()))?;
        Some((log, secret.clone()))
    };
    logs.into_iter().filter_map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_configurations_are_found() {
        let check = |text: &str, expected: &[&str]| assert_eq!(secrets_in(text), expected, "{text}");
        check(
            "plugins: { jwt-auth: { key: jack, secret: a-secret-of-32-bytes } }",
            &["a-secret-of-32-bytes"],
        );
        check(r#"{"client_secret": "0123456789ab", "x": 1}"#, &["0123456789ab"]);
        check("password: 'correct horse battery'\n", &["correct horse battery"]);
        check("secret: $env://A_LONG_NAME\nkey: \"$secret://vault/1/a\"\nsecret: short", &[]);
        check("cache_key: 0123456789abcdef", &[]);
        let line = "M".repeat(64);
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{line}\nxx\n-----END PRIVATE KEY-----\n");
        check(&pem, &[&line]);
        check(&serde_json::json!({ "key": pem }).to_string(), &[&line]);
    }

    #[test]
    fn a_log_that_contains_one_is_found() {
        let dir = tempfile::tempdir().unwrap();
        note("secret: only-for-this-test-0");
        fs::write(dir.path().join("stderr"), "what is known: nothing").unwrap();
        fs::write(dir.path().join("sigma.yaml"), "secret: only-for-this-test-0").unwrap();
        assert!(leaked(dir.path()).is_empty());
        let log = dir.path().join("access.log");
        fs::write(&log, "GET /?only-for-this-test-0").unwrap();
        assert_eq!(leaked(dir.path()), [(log, "only-for-this-test-0".to_owned())]);
    }
}
