//! What a release has, with any file in the place of the program.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::*;
use crate::repository;

fn parts() -> Parts {
    let completions =
        ["sigma.bash", "_sigma", "sigma.fish"].map(|name| (name.to_owned(), b"complete\n".to_vec()));
    Parts {
        binary: b"a program".to_vec(),
        completions: completions.into(),
        sbom: b"{}\n".to_vec(),
        changelog: changelog(&repository().unwrap()).unwrap(),
    }
}

/// A folder of the test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("sigma-package-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn release() -> Release {
    Release {
        version: "1.2.3".to_owned(),
        target: "x86_64-unknown-linux-gnu".to_owned(),
        epoch: 1_700_000_000,
    }
}

#[test]
fn a_tarball_has_all_its_files_and_is_the_same_each_time() {
    let (root, folder) = (repository().unwrap(), Folder::new("tarball"));
    let make = || std::fs::read(tarball(&root, &release(), &parts(), &folder.0).unwrap()).unwrap();
    let first = make();
    assert!(first == make());
    let path = folder.0.join("sigma-1.2.3-x86_64-unknown-linux-gnu.tar.gz");
    let list = text(
        Command::new("tar").args(["--list", "--verbose", "--utc", "--numeric-owner", "--file"]).arg(&path),
    );
    let list = list.unwrap();
    let stem = release().stem();
    let names: Vec<&str> = list.lines().map(|line| line.split_whitespace().last().unwrap()).collect();
    let expected = [
        "",
        "CHANGELOG.md",
        "INSTALL.md",
        "LICENSE",
        "README.md",
        "bin/",
        "bin/sigma",
        "completions/",
        "completions/_sigma",
        "completions/sigma.bash",
        "completions/sigma.fish",
        "sbom.cdx.json",
        "sigma.yaml",
        "systemd/",
        "systemd/sigma.service",
        "systemd/sigma.socket",
    ];
    let mut sorted = names.clone();
    sorted.sort_unstable();
    let mut expected: Vec<String> = expected.iter().map(|name| format!("{stem}/{name}")).collect();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    for line in list.lines() {
        let is_program = line.ends_with("bin/sigma") || line.starts_with('d');
        assert!(line[1..].starts_with(if is_program { "rwxr-xr-x" } else { "rw-r--r--" }), "{line}");
        assert!(line.contains(" 0/0 ") && line.contains("2023-11-14 22:13"), "{line}");
    }
}

#[test]
fn a_debian_package_is_one_and_is_the_same_each_time() {
    let (root, folder) = (repository().unwrap(), Folder::new("debian"));
    let make = || std::fs::read(debian(&root, &release(), &parts(), &folder.0).unwrap()).unwrap();
    let first = make();
    assert!(first == make());
    let path = folder.0.join("sigma_1.2.3_amd64.deb");
    let fields = text(Command::new("dpkg-deb").arg("--field").arg(&path)).unwrap();
    for field in ["Package: sigma", "Version: 1.2.3", "Architecture: amd64"] {
        assert!(fields.lines().any(|line| line == field), "{field}: {fields}");
    }
    assert!(!fields.contains('@') || fields.contains("authors@"), "{fields}");
    let list = text(Command::new("dpkg-deb").arg("--contents").arg(&path)).unwrap();
    for name in ["./usr/bin/sigma", "./etc/sigma/sigma.yaml", "./lib/systemd/system/sigma.service"] {
        assert!(
            list.lines().any(|line| line.ends_with(name) && line.contains("root/root")),
            "{name}: {list}"
        );
    }
    let unpacked = folder.0.join("unpacked");
    text(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&unpacked)).unwrap();
    let packed = unpacked.join("usr/share/doc/sigma/changelog.gz");
    let changes = output(Command::new("gzip").args(["--decompress", "--stdout"]).arg(packed)).unwrap();
    assert!(changes == std::fs::read(root.join("CHANGELOG.md")).unwrap());
    // What an administrator changes is kept.
    let kept = std::fs::read_to_string(root.join("packaging/debian/conffiles")).unwrap();
    assert_eq!(kept, "/etc/sigma/sigma.yaml\n");
}

/// Everything that the file for an image copies is beside it.
#[test]
fn an_image_is_built_from_what_is_there() {
    let root = repository().unwrap();
    let entries = layout::image(&root, &parts(), b"authorities".to_vec()).unwrap();
    let names: BTreeSet<&str> = entries.iter().map(|entry| entry.path.trim_end_matches('/')).collect();
    let recipe = entries.iter().find(|entry| entry.path == "Dockerfile").unwrap();
    let recipe = std::str::from_utf8(&recipe.bytes).unwrap();
    let mut copied = 0;
    for line in recipe.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        let (_, sources) = words.split_last().unwrap();
        for source in sources {
            assert!(names.contains(source), "{source} of `COPY {line}` is not made");
            copied += 1;
        }
    }
    assert!(copied >= 6, "{recipe}");
    // Whoever runs it is the user whom the files belong to.
    assert!(recipe.contains("\nUSER 65532:65532\n"));
    let users = entries.iter().find(|entry| entry.path == "passwd").unwrap();
    assert!(std::str::from_utf8(&users.bytes).unwrap().contains("sigma:x:65532:65532:"));
}

/// The paths of the unit and of the package are the same.
#[test]
fn the_unit_starts_what_is_installed() {
    let root = repository().unwrap();
    let entries = layout::debian(&root, &parts(), "1.2.3", "amd64").unwrap();
    let unit = entries.iter().find(|entry| entry.path == "lib/systemd/system/sigma.service").unwrap();
    let unit = std::str::from_utf8(&unit.bytes).unwrap();
    for key in ["ExecStart=", "ExecReload="] {
        let command = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        for path in command.split_whitespace().filter(|word| word.starts_with('/')) {
            assert!(entries.iter().any(|entry| format!("/{}", entry.path) == path), "{path}");
        }
    }
    let seconds = |key: &str| -> u64 {
        let value = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        value.trim_start_matches('=').parse().unwrap()
    };
    let drain_ms: u64 = sigma_config::settings::Timeouts::default().drain_ms.into();
    assert!(seconds("TimeoutStopSec") * 1000 > drain_ms + 5_000);
}

#[test]
fn the_list_of_crates_is_that_of_what_is_linked() {
    let package = |id: &str, name: &str, source: Value| {
        json!({ "id": id, "name": name, "version": "1.0.0", "source": source, "license": "MIT/Apache-2.0",
            "description": "A\n  crate", "repository": "https://a.test/x" })
    };
    let registry = json!("registry+https://a.test/index");
    let dep = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind, "target": null }] });
    let metadata = json!({
        "packages": [
            package("s", "sigma", Value::Null), package("h", "sigma-http", Value::Null),
            package("a", "a", registry.clone()), package("b", "builder", registry.clone()),
            package("t", "tester", registry.clone()), package("u", "unused", registry),
        ],
        "resolve": { "nodes": [
            { "id": "s", "deps": [dep("h", Value::Null), dep("t", json!("dev"))] },
            { "id": "h", "deps": [dep("a", Value::Null), dep("b", json!("build"))] },
            { "id": "a", "deps": [] }, { "id": "b", "deps": [] }, { "id": "t", "deps": [] }, { "id": "u", "deps": [] },
        ] },
    });
    let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abcd\"\n\n\
                [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"ef\"\n";
    let bytes = sbom::document(&metadata, lock, "1.2.3", 1_700_000_000).unwrap();
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
    assert_eq!(document["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(document["metadata"]["component"]["type"], "application");
    assert_eq!(document["metadata"]["component"]["version"], "1.2.3");
    let components = document["components"].as_array().unwrap();
    let names: Vec<&str> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "sigma-http"]);
    assert_eq!(
        components[0],
        json!({
            "type": "library", "bom-ref": "pkg:cargo/a@1.0.0", "name": "a", "version": "1.0.0",
            "purl": "pkg:cargo/a@1.0.0", "description": "A crate",
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            "hashes": [{ "alg": "SHA-256", "content": "abcd" }],
            "externalReferences": [{ "type": "vcs", "url": "https://a.test/x" }],
        })
    );
    let of = |name: &str| {
        let all = document["dependencies"].as_array().unwrap();
        all.iter().find(|one| one["ref"].as_str().unwrap().contains(name)).unwrap()["dependsOn"].clone()
    };
    assert_eq!(of("/sigma@"), json!(["pkg:cargo/sigma-http@1.0.0?download_url=file://."]));
    assert_eq!(of("/a@"), json!([]));
}

/// The real one: every crate that is linked has a licence, those of a registry have a checksum, and nothing is
/// named that is not there.
#[test]
fn the_list_of_crates_of_this_program_is_whole() {
    let root = repository().unwrap();
    let metadata = cargo_metadata(&root, "x86_64-unknown-linux-gnu").unwrap();
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    let document: Value =
        serde_json::from_slice(&sbom::document(&metadata, &lock, "1.2.3", 0).unwrap()).unwrap();
    let components = document["components"].as_array().unwrap();
    assert!(components.len() > 100, "{}", components.len());
    let mut known: BTreeSet<&str> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(known.len(), components.len());
    for one in components {
        assert!(one["licenses"][0]["expression"].is_string(), "{one}");
        let is_own = one["purl"].as_str().unwrap().contains("download_url");
        assert_eq!(
            one["hashes"][0]["content"].as_str().map_or(0, str::len),
            if is_own { 0 } else { 64 },
            "{one}"
        );
    }
    assert!(known.iter().any(|name| name.starts_with("pkg:cargo/rustls@")));
    assert!(!known.iter().any(|name| name.starts_with("pkg:cargo/proptest@")), "tests are not linked");
    known.insert(document["metadata"]["component"]["bom-ref"].as_str().unwrap());
    for one in document["dependencies"].as_array().unwrap() {
        for name in one["dependsOn"].as_array().unwrap().iter().chain([&one["ref"]]) {
            assert!(known.contains(name.as_str().unwrap()), "{name}");
        }
    }
}

#[test]
fn a_binary_tells_what_it_needs() {
    // This test runs on glibc.
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(elf::interpreter(&own).unwrap().is_some_and(|loader| loader.contains("ld-")));
    assert!(elf::newest_glibc(&own).is_some_and(|version| version >= [2, 28]));
    for wrong in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &own[..100]] {
        assert!(elf::interpreter(wrong).is_err());
        assert_eq!(elf::newest_glibc(wrong), None);
    }
    let mut header = b"\x7fELF\x02\x01".to_vec();
    header.resize(64, 0);
    assert_eq!(elf::interpreter(&header), Ok(None), "no program headers, no loader");
}
