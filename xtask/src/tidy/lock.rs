//! The lock files: a build needs only Rust, a C compiler and make.

use super::{Finding, Repository, read};

const RULE: &str = "build tools";

/// Packages that run, or link to, a program or library which has to be installed first.
const NEEDY: &[(&str, &str)] = &[
    ("prost-build", "protoc"),
    ("tonic-build", "protoc"),
    ("protobuf-codegen", "protoc"),
    ("bindgen", "libclang"),
    ("openssl-sys", "the headers of OpenSSL"),
];

/// Checks that the trees of the gateway and of the fuzz targets do not contain any of them.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in ["Cargo.lock", "fuzz/Cargo.lock"] {
        findings.extend(needy(path, &read(&repository.root, path)?));
    }
    Ok(findings)
}

fn needy(path: &str, lock: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in lock.lines().enumerate() {
        let name = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"'));
        if let Some((name, needs)) = NEEDY.iter().find(|(needy, _)| Some(*needy) == name) {
            let remedy = format!(
                "{name} needs {needs} on the machine that builds: take a dependency without it, or write by hand \
                 the little that is used"
            );
            findings.push(Finding::at(RULE, path, number, remedy));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::needy;

    #[test]
    fn a_package_that_needs_a_tool_is_found() {
        let lock = "[[package]]\nname = \"prost\"\nversion = \"1\"\n\n[[package]]\nname = \"prost-build\"\n";
        let findings = needy("Cargo.lock", lock);
        let places: Vec<String> = findings.into_iter().map(|finding| finding.place).collect();
        assert_eq!(places, ["Cargo.lock:6"]);
    }
}
