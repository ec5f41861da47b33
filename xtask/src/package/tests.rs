//! The content of a release, with any file instead of the program.

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
        manual: b".TH sigma 1\n".to_vec(),
        notices: b"notices\n".to_vec(),
        sbom: b"{}\n".to_vec(),
        changelog: std::fs::read(repository().unwrap().join("CHANGELOG.md")).unwrap(),
    }
}

/// The Debian package's entries.
fn debian_entries() -> Vec<Entry> {
    let [changelog, changes, manual, notices] = [b"log", b"new", b"man", b"all"].map(|text| text.to_vec());
    let documents = Documents { changelog, changes, manual, notices };
    layout::debian(&repository().unwrap(), &parts(), &documents, "1.2.3-1", "amd64").unwrap()
}

/// A folder of the test's own, which goes with it.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Folder {
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
        "man/",
        "man/sigma.1",
        "sbom.cdx.json",
        "sigma.yaml",
        "systemd/",
        "systemd/sigma.service",
        "systemd/sigma.socket",
        "third-party-notices.txt",
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
    let path = folder.0.join("sigma_1.2.3-1_amd64.deb");
    let fields = text(Command::new("dpkg-deb").arg("--field").arg(&path)).unwrap();
    for field in ["Package: sigma", "Version: 1.2.3-1", "Architecture: amd64"] {
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
    let plain = |name: &str| {
        let bytes = std::fs::read(unpacked.join(name)).unwrap();
        // RFC 1952, 2.3.1: no name and no time of the machine, packed as well as can be.
        assert_eq!(bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3], "{name}");
        output(Command::new("gzip").args(["--decompress", "--stdout"]).arg(unpacked.join(name))).unwrap()
    };
    assert!(plain("usr/share/doc/sigma/changelog.gz") == parts().changelog);
    assert!(plain("usr/share/man/man1/sigma.1.gz") == parts().manual);
    assert!(plain("usr/share/doc/sigma/third-party-notices.txt.gz") == parts().notices);
    assert_eq!(
        String::from_utf8(plain("usr/share/doc/sigma/changelog.Debian.gz")).unwrap(),
        "sigma (1.2.3-1) unstable; urgency=medium\n\n  * Sigma 1.2.3: changelog.gz, next to this file, lists the changes.\n\n \
         -- The Sigma Authors <authors@sigma.invalid>  Tue, 14 Nov 2023 22:13:20 +0000\n"
    );
    // `dpkg --verify` finds each file as it was packed.
    let control = folder.0.join("control");
    text(Command::new("dpkg-deb").arg("--control").arg(&path).arg(&control)).unwrap();
    let sums = control.join("md5sums");
    text(Command::new("md5sum").args(["--check", "--quiet", "--strict"]).arg(&sums).current_dir(&unpacked))
        .unwrap();
    let sums = std::fs::read_to_string(sums).unwrap();
    assert_eq!(sums.lines().count(), list.lines().filter(|line| !line.ends_with('/')).count() - 1, "{sums}");
    assert!(!sums.contains("etc/"), "{sums}");
    // Changes of an administrator are kept.
    let kept = std::fs::read_to_string(root.join("packaging/debian/conffiles")).unwrap();
    assert_eq!(kept, "/etc/sigma/sigma.yaml\n");
}

/// Everything that the file for an image copies is next to it.
#[test]
fn an_image_is_built_from_its_folder() {
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
    // It runs as the user whom the files belong to.
    assert!(recipe.contains("\nUSER 65532:65532\n"));
    let users = entries.iter().find(|entry| entry.path == "passwd").unwrap();
    assert!(std::str::from_utf8(&users.bytes).unwrap().contains("sigma:x:65532:65532:"));
}

/// The paths of the unit and of the package are the same.
#[test]
fn the_unit_starts_the_installed_program() {
    let entries = debian_entries();
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
fn the_list_of_crates_has_the_linked_ones() {
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

/// The real one: every linked crate has a licence, crates of a registry have a checksum, and every named
/// crate exists.
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

/// A shared text occurs once; a crate without a text is named with its licence.
#[test]
fn the_licences_of_crates_are_handed_on() {
    let folder = Folder::new("notices");
    let package = |name: &str, files: &[(&str, &str)]| {
        let place = folder.0.join(name);
        std::fs::create_dir_all(place.join("LICENSES")).unwrap();
        files.iter().for_each(|(file, text)| std::fs::write(place.join(file), text).unwrap());
        let source = (name != "sigma").then_some("registry+https://a.test/index");
        json!({ "id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT",
            "manifest_path": place.join("Cargo.toml") })
    };
    let linked = |ids: &[&str]| -> Vec<Value> {
        ids.iter().map(|id| json!({ "pkg": id, "dep_kinds": [{ "kind": null, "target": null }] })).collect()
    };
    let metadata = json!({
        "packages": [
            package("sigma", &[("LICENSE", "own")]),
            package("b", &[("LICENSE-MIT", "MIT of b\r\n\r\nfree\n\n"), ("license-apache", "Apache\n"), ("readme", "no")]),
            package("a", &[("COPYING", "Apache"), ("NOTICE", "Notice of a")]),
            package("c", &[]),
            package("tool", &[("LICENSE", "of a tool")]),
        ],
        "resolve": { "nodes": [
            { "id": "sigma", "deps": linked(&["a", "b", "c"]) }, { "id": "a", "deps": [] }, { "id": "b", "deps": [] },
            { "id": "c", "deps": [] }, { "id": "tool", "deps": [] },
        ] },
    });
    let line = "-".repeat(78);
    let expected = format!(
        "The crates that are linked into Sigma, and the texts that their licences want handed on.\n\n\
         {line}\na 1.0.0\n\nNotice of a\n\n{line}\na 1.0.0, b 1.0.0\n\nApache\n\n{line}\nb 1.0.0\n\nMIT of b\n\nfree\n\n\
         {line}\nWithout a text of their own:\n\nc 1.0.0: MIT\n"
    );
    assert_eq!(String::from_utf8(notices::document(&metadata).unwrap()).unwrap(), expected);
}

#[test]
fn a_binary_names_its_needs() {
    // This test runs on glibc.
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(elf::interpreter(&own).unwrap().is_some_and(|loader| loader.contains("ld-")));
    assert!(elf::newest_glibc(&own).is_some_and(|version| version >= [2, 28]));
    let sections = elf::sections(&own).unwrap();
    assert!([".text", ".rodata", ".interp"].iter().all(|name| sections.iter().any(|one| one == name)));
    for wrong in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &own[..100]] {
        assert!(elf::interpreter(wrong).is_err() && (wrong.len() > 20 || elf::machine(wrong).is_err()));
        assert_eq!(elf::newest_glibc(wrong), None);
        assert!(elf::sections(wrong).is_err());
    }
    let mut header = b"\x7fELF\x02\x01".to_vec();
    header.resize(64, 0);
    assert_eq!(elf::interpreter(&header), Ok(None), "no program headers, no loader");
    assert_eq!(elf::sections(&header), Ok(Vec::new()));
    header[60] = 1;
    assert!(elf::sections(&header).is_err(), "a table that is not there");
    header[60] = 0;
    header[18] = 183;
    assert!(is_for(&header, "aarch64-unknown-linux-gnu").is_ok());
    let wrong = is_for(&header, "x86_64-unknown-linux-gnu").unwrap_err().to_string();
    assert_eq!(
        wrong,
        "the binary is for another architecture than x86_64-unknown-linux-gnu: name its --target"
    );
}

/// The maintainer's scripts name no program by its path: who finds it is the PATH.
#[test]
fn scripts_of_the_package_are_shell_and_name_no_paths_of_programs() {
    let entries = debian_entries();
    let scripts: Vec<&Entry> = entries.iter().filter(|entry| entry.path.starts_with("DEBIAN/p")).collect();
    assert_eq!(scripts.len(), 3);
    for script in scripts {
        let text = std::str::from_utf8(&script.bytes).unwrap();
        assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{}", script.path);
        assert_eq!(script.mode, 0o755);
        let checked = Command::new("sh").args(["-n", "-c", text]).output().unwrap();
        assert!(checked.status.success(), "{}: {}", script.path, String::from_utf8_lossy(&checked.stderr));
        let programs =
            text.split_whitespace().filter(|word| word.contains("/bin/") || word.contains("/sbin/"));
        // The interpreter, and the shell of a user without a login.
        let others: Vec<&str> =
            programs.filter(|word| !matches!(*word, "#!/bin/sh" | "/usr/sbin/nologin")).collect();
        assert!(others.is_empty(), "{}: {others:?}", script.path);
    }
}

#[test]
fn a_version_before_a_release_sorts_before_it() {
    for (version, expected) in [("1.2.3", "1.2.3-1"), ("1.3.0-rc.1", "1.3.0~rc.1-1")] {
        assert_eq!(debian_version(version), expected);
    }
    let order = ["--compare-versions", "1.3.0~rc.1-1", "lt", "1.3.0-1"];
    assert!(Command::new("dpkg").args(order).status().unwrap().success());
}

/// A program that runs here names its own version; one that does not, such as a program for another machine,
/// leaves that to this machine's.
#[test]
fn a_program_that_runs_names_its_version() {
    use std::os::unix::fs::PermissionsExt as _;
    let (root, folder) = (repository().unwrap(), Folder::new("program"));
    let program = folder.0.join("sigma");
    std::fs::write(&program, "#!/bin/sh\ncase $1 in version) echo sigma 1.2.3;; *) echo $*;; esac\n")
        .unwrap();
    assert!(matches!(Program::of(&program, "1.2.3"), Ok(Program::Own)), "it may not be run");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let packed = Program::of(&program, "1.2.3").unwrap();
    assert_eq!(packed.prints(&root, &["man"]).unwrap(), b"man\n");
    let names: Vec<String> = completions(&root, &packed).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["sigma.bash", "_sigma", "sigma.fish"]);
    let wrong = Program::of(&program, "1.2.4").err().unwrap().to_string();
    assert_eq!(wrong, "the binary says that it is sigma 1.2.3, not sigma 1.2.4");
}

#[test]
fn a_missing_target_has_a_remedy() {
    for (target, expected) in [
        (
            "aarch64-unknown-linux-gnu",
            "the standard library for aarch64-unknown-linux-gnu is not installed: run `rustup target add aarch64-unknown-linux-gnu`, or, with Debian's Rust, `dpkg --add-architecture arm64` and `apt-get install libstd-rust-dev:arm64`",
        ),
        (
            "riscv64gc-unknown-linux-gnu",
            "the standard library for riscv64gc-unknown-linux-gnu is not installed: run `rustup target add riscv64gc-unknown-linux-gnu`",
        ),
    ] {
        assert_eq!(no_library(target), expected);
    }
}
