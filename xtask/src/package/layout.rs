//! Which files a release has, and where.

use std::path::Path;

use anyhow::Context;
use md5::{Digest as _, Md5};

use super::elf;

/// The file with the texts of the licences of crates.
const NOTICES: &str = "third-party-notices.txt";

/// The files that are made for a release; all others are in the repository.
pub(super) struct Parts {
    pub(super) binary: Vec<u8>,
    /// Names and texts.
    pub(super) completions: Vec<(String, Vec<u8>)>,
    /// The page sigma(1).
    pub(super) manual: Vec<u8>,
    /// The texts of the licences of crates.
    pub(super) notices: Vec<u8>,
    pub(super) sbom: Vec<u8>,
    /// `CHANGELOG.md`.
    pub(super) changelog: Vec<u8>,
}

/// The documents that Debian wants packed.
pub(super) struct Documents {
    pub(super) changelog: Vec<u8>,
    /// Of the package itself.
    pub(super) changes: Vec<u8>,
    pub(super) manual: Vec<u8>,
    pub(super) notices: Vec<u8>,
}

/// A file, or a folder that is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

impl Entry {
    pub(super) fn is_folder(&self) -> bool {
        self.path.ends_with('/')
    }
}

fn file(path: impl Into<String>, mode: u32, bytes: impl Into<Vec<u8>>) -> Entry {
    Entry { path: path.into(), mode, bytes: bytes.into() }
}

/// Files of the repository under other names.
fn copied(root: &Path, names: &[(&str, &str)]) -> anyhow::Result<Vec<Entry>> {
    let copy = |(from, to): &(&str, &str)| {
        let bytes = std::fs::read(root.join(from)).with_context(|| format!("{from} cannot be read"))?;
        Ok(file(*to, 0o644, bytes))
    };
    names.iter().map(copy).collect()
}

/// The tarball, below its folder.
pub(super) fn tarball(root: &Path, parts: &Parts) -> anyhow::Result<Vec<Entry>> {
    let mut all = copied(
        root,
        &[
            ("LICENSE", "LICENSE"),
            ("README.md", "README.md"),
            ("docs/install.md", "INSTALL.md"),
            ("packaging/sigma.service", "systemd/sigma.service"),
            ("packaging/sigma.socket", "systemd/sigma.socket"),
            ("packaging/sigma.yaml", "sigma.yaml"),
        ],
    )?;
    all.push(file("CHANGELOG.md", 0o644, parts.changelog.clone()));
    all.push(file("bin/sigma", 0o755, parts.binary.clone()));
    all.push(file("man/sigma.1", 0o644, parts.manual.clone()));
    all.push(file(NOTICES, 0o644, parts.notices.clone()));
    all.push(file("sbom.cdx.json", 0o644, parts.sbom.clone()));
    for (name, bytes) in &parts.completions {
        all.push(file(format!("completions/{name}"), 0o644, bytes.clone()));
    }
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}

/// The Debian package, the folder of its maintainer's scripts included.
pub(super) fn debian(
    root: &Path,
    parts: &Parts,
    documents: &Documents,
    version: &str,
    architecture: &str,
) -> anyhow::Result<Vec<Entry>> {
    let mut all = copied(
        root,
        &[
            ("packaging/sigma.yaml", "etc/sigma/sigma.yaml"),
            ("packaging/sigma.service", "lib/systemd/system/sigma.service"),
            ("packaging/sigma.socket", "usr/share/doc/sigma/examples/sigma.socket"),
            ("packaging/debian/copyright", "usr/share/doc/sigma/copyright"),
            ("packaging/debian/lintian-overrides", "usr/share/lintian/overrides/sigma"),
            ("README.md", "usr/share/doc/sigma/README.md"),
            ("packaging/debian/conffiles", "DEBIAN/conffiles"),
            ("packaging/debian/postinst", "DEBIAN/postinst"),
            ("packaging/debian/prerm", "DEBIAN/prerm"),
            ("packaging/debian/postrm", "DEBIAN/postrm"),
        ],
    )?;
    for script in all.iter_mut().filter(|entry| entry.path.starts_with("DEBIAN/p")) {
        script.mode = 0o755;
    }
    all.push(file("usr/share/doc/sigma/changelog.gz", 0o644, documents.changelog.clone()));
    all.push(file("usr/share/doc/sigma/changelog.Debian.gz", 0o644, documents.changes.clone()));
    all.push(file(format!("usr/share/doc/sigma/{NOTICES}.gz"), 0o644, documents.notices.clone()));
    all.push(file("usr/share/man/man1/sigma.1.gz", 0o644, documents.manual.clone()));
    all.push(file("usr/bin/sigma", 0o755, parts.binary.clone()));
    all.push(file("usr/share/doc/sigma/sbom.cdx.json", 0o644, parts.sbom.clone()));
    for (name, bytes) in &parts.completions {
        let path = match name.as_str() {
            "sigma.bash" => "usr/share/bash-completion/completions/sigma".to_owned(),
            "sigma.fish" => "usr/share/fish/vendor_completions.d/sigma.fish".to_owned(),
            name => format!("usr/share/zsh/vendor-completions/{name}"),
        };
        all.push(file(path, 0o644, bytes.clone()));
    }
    let control = std::fs::read_to_string(root.join("packaging/debian/control"))?;
    let kib = all.iter().map(|entry| entry.bytes.len().div_ceil(1024)).sum::<usize>();
    let control = control
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &kib.to_string())
        .replace("@DEPENDS@", &depends(&parts.binary));
    all.push(file("DEBIAN/control", 0o644, control));
    all.push(file("DEBIAN/md5sums", 0o644, sums(&all)));
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}

/// By which `dpkg --verify` knows a file that has changed; those that are an administrator's are omitted.
fn sums(entries: &[Entry]) -> String {
    let own = |entry: &&Entry| !entry.path.starts_with("DEBIAN/") && !entry.path.starts_with("etc/");
    let line = |entry: &Entry| {
        let sum = Md5::digest(&entry.bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{sum}  {}\n", entry.path)
    };
    let mut lines: Vec<(&str, String)> =
        entries.iter().filter(own).map(|entry| (&*entry.path, line(entry))).collect();
    lines.sort_unstable();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Returns the dependencies of the package, by the binary.
fn depends(binary: &[u8]) -> String {
    let mut all = vec!["adduser".to_owned(), "init-system-helpers (>= 1.54~)".to_owned()];
    if let Some([major, minor]) = elf::newest_glibc(binary) {
        all.push(format!("libc6 (>= {major}.{minor})"));
        all.push("libgcc-s1".to_owned());
    }
    all.join(", ")
}

/// The folder that an image is built from.
pub(super) fn image(root: &Path, parts: &Parts, authorities: Vec<u8>) -> anyhow::Result<Vec<Entry>> {
    let mut all = copied(
        root,
        &[
            ("LICENSE", "LICENSE"),
            ("packaging/Dockerfile", "Dockerfile"),
            ("packaging/group", "group"),
            ("packaging/passwd", "passwd"),
            ("packaging/sigma.yaml", "sigma.yaml"),
        ],
    )?;
    all.push(file("ca-certificates.crt", 0o644, authorities));
    all.push(file(NOTICES, 0o644, parts.notices.clone()));
    all.push(file("sigma", 0o755, parts.binary.clone()));
    all.push(file("sbom.cdx.json", 0o644, parts.sbom.clone()));
    // The folder for the gateway's state, owned by the user that it runs as.
    all.push(file("state/", 0o755, ""));
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}
