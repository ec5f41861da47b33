//! `cargo xtask package`: makes a release, the same from the same commit.
//!
//! | file | content |
//! |---|---|
//! | `layout` | the lists of files in the tarball, the Debian package and the folder for an image |
//! | `elf` | the needs of a binary on its machine |
//! | `guidance` | optimisation by a profile of the program under load |
//! | `notices` | the texts that the licences of these crates want handed on |
//! | `sbom` | the list of the crates that are linked into the program |
//! | `signing` | the signature of the sums |
//! | `reproduce` | whether two builds are the same |
//!
//! Archives are written by `tar`, `gzip` and `dpkg-deb`, with fixed owners, sorted names and the time of the commit.

mod elf;
mod guidance;
mod layout;
mod notices;
mod reproduce;
mod sbom;
mod signing;
#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, ensure};
use clap::Args;

use guidance::Guidance;
use layout::{Documents, Entry, Parts};

/// Where distributions keep the authorities that the system trusts.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The maintainer of the package.
const MAINTAINER: &str = "The Sigma Authors <authors@sigma.invalid>";

#[derive(Args)]
pub(crate) struct Options {
    /// The target to build for; unset: the target of this machine
    #[arg(long)]
    target: Option<String>,
    /// Packs this binary instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Links the C library statically, which the image needs
    #[arg(long)]
    fully_static: bool,
    /// The folder for the output; unset: target/package
    #[arg(long)]
    out: Option<PathBuf>,
    /// The profile of cargo to build with
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Builds a program that counts first, loads it with the benchmarks, and optimises the release by its counts
    #[arg(long, conflicts_with_all = ["binary", "profile_data", "reproduce"])]
    profile_guided: bool,
    /// Optimises by these counts, which `--profile-guided` leaves in target/profile-guided/sigma.profdata
    #[arg(long, value_name = "FILE", conflicts_with = "binary")]
    profile_data: Option<PathBuf>,
    /// The SSH key that signs the sums; unset: the key in the variable SIGMA_SIGNING_KEY. Without one they
    /// stay unsigned
    #[arg(long)]
    signing_key: Option<PathBuf>,
    /// Builds this package of the commit twice, in two folders, and compares the results; packs nothing
    #[arg(long, value_name = "PACKAGE", num_args = 0..=1, default_missing_value = "sigma", conflicts_with = "binary")]
    reproduce: Option<String>,
}

impl Options {
    /// The given counts, by their absolute path.
    fn profile_data(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(file) = &self.profile_data else { return Ok(None) };
        let found = file.canonicalize().with_context(|| format!("no counts at {}", file.display()))?;
        Ok(Some(found))
    }
}

/// The program, its version and its target.
struct Release {
    version: String,
    target: String,
    /// Seconds since 1970: the time of every file.
    epoch: u64,
}

pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        target: options.target.clone().map_or_else(host, Ok)?,
        epoch: epoch(root)?,
    };
    if let Some(package) = &options.reproduce {
        return reproduce::run(root, &release, options, package);
    }
    let binary = match &options.binary {
        Some(path) => path.clone(),
        None => {
            let counts = match options.profile_guided {
                true => Some(guidance::make(root, &release, &options.profile)?),
                false => options.profile_data()?,
            };
            let how = Build {
                package: "sigma",
                fully_static: options.fully_static,
                profile: &options.profile,
                guidance: counts.as_deref().map_or(Guidance::None, Guidance::Use),
            };
            let binary = build(root, &release, &how)?.join("sigma");
            has_no_lines(&binary)?;
            if let Some(counts) = &counts {
                guidance::check(counts, &binary)?;
            }
            binary
        }
    };
    let out = options.out.clone().unwrap_or_else(|| root.join("target/package"));
    std::fs::create_dir_all(&out)?;
    let mut made = make(root, &release, &binary, &out)?;
    sums(&out, &made)?;
    let of_environment = || std::env::var_os("SIGMA_SIGNING_KEY").map(PathBuf::from);
    match options.signing_key.clone().or_else(of_environment) {
        Some(key) => made.push(signing::sign(&out, &key)?),
        None => println!("SHA256SUMS is not signed: --signing-key names the key of a releaser"),
    }
    made.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

/// Refuses a binary with debug information of the source: it is most of the file, and was to be left out.
fn has_no_lines(binary: &Path) -> anyhow::Result<()> {
    let sections = elf::sections(&std::fs::read(binary)?).map_err(anyhow::Error::msg)?;
    ensure!(
        !sections.iter().any(|name| name == ".debug_info"),
        "{} still has the lines of the source, most of the file: they were to be left out",
        binary.display()
    );
    Ok(())
}

/// Packs a binary.
fn make(root: &Path, release: &Release, binary: &Path, out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let bytes = std::fs::read(binary).with_context(|| format!("{} cannot be read", binary.display()))?;
    is_for(&bytes, &release.target)?;
    let metadata = cargo_metadata(root, &release.target)?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
    let program = Program::of(binary, &release.version)?;
    let parts = Parts {
        sbom: sbom::document(&metadata, &lock, &release.version, release.epoch)?,
        completions: completions(root, &program)?,
        manual: program.prints(root, &["man"])?,
        binary: bytes,
        notices: notices::document(&metadata)?,
        changelog: std::fs::read(root.join("CHANGELOG.md"))?,
    };
    let mut made = vec![
        tarball(root, release, &parts, out)?,
        debian(root, release, &parts, out)?,
        plain(&out.join(format!("{}.sbom.cdx.json", release.stem())), &parts.sbom)?,
    ];
    match elf::interpreter(&parts.binary) {
        Ok(None) => made.push(image(root, release, &parts, out)?),
        Ok(Some(loader)) => {
            println!("no image: the binary needs {loader}; build it with --fully-static");
        }
        Err(reason) => println!("no image: {reason}"),
    }
    Ok(made)
}

impl Release {
    /// The name of the tarball and of the folder in it.
    fn stem(&self) -> String {
        format!("sigma-{}-{}", self.version, self.target)
    }
}

/// Runs a command to its end; returns its output.
fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{name}` cannot be run: install it"))?;
    ensure!(output.status.success(), "`{name}` failed: {}", output.status);
    Ok(output.stdout)
}

fn text(command: &mut Command) -> anyhow::Result<String> {
    Ok(String::from_utf8(output(command)?)?.trim_end().to_owned())
}

fn host() -> anyhow::Result<String> {
    let version = text(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// The time of everything that is made: `SOURCE_DATE_EPOCH`, or the commit's.
fn epoch(root: &Path) -> anyhow::Result<u64> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().context("SOURCE_DATE_EPOCH is not a number of seconds");
    }
    let commit = text(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    commit.parse().context("this is not a commit: set SOURCE_DATE_EPOCH")
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The build of a package.
struct Build<'b> {
    package: &'b str,
    fully_static: bool,
    profile: &'b str,
    guidance: Guidance<'b>,
}

/// Builds a package in a folder of sources; returns the folder of the result.
fn build(root: &Path, release: &Release, how: &Build<'_>) -> anyhow::Result<PathBuf> {
    let target = &*release.target;
    let libraries = text(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    ensure!(Path::new(&libraries).exists(), no_library(target));
    let mut command = cargo();
    command.args(["rustc", "--profile", how.profile, "--locked", "-p", how.package]);
    // WebAssembly is not in the default features: its engine takes minutes to compile.
    let parts =
        if how.package == "sigma" { &["--bin", "sigma", "--features", "wasm"][..] } else { &["--lib"] };
    command.args(parts);
    command.args(["--target", target]);
    // Names of functions stay, for profiles; the lines of the source, most of the file, go. Said to the last step: the
    // `strip` of a profile does not reach a package that has settings of its own in it.
    command.args(["--", "-C", "strip=debuginfo"]);
    command.args(how.guidance.link_flags(how.profile));
    let name = target.replace('-', "_");
    if target == "aarch64-unknown-linux-gnu" && host()? != target {
        // Debian's cross compiler: the package gcc-aarch64-linux-gnu.
        const COMPILER: &str = "aarch64-linux-gnu-gcc";
        let is_there = Command::new(COMPILER).arg("--version").output().is_ok();
        ensure!(
            is_there,
            "there is no compiler of C for {target}: install {COMPILER}, on Debian `apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross`"
        );
        command.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), COMPILER);
        command.env(format!("CC_{name}"), COMPILER);
    }
    same_everywhere(&mut command, root, release, how);
    let status = command.current_dir(root).status().context("cargo cannot be run")?;
    ensure!(status.success(), "the program cannot be built");
    let folder = cargo_metadata(root, target)?["target_directory"].as_str().map(PathBuf::from);
    let folder = folder.context("`cargo metadata` says nothing of `target_directory`")?;
    // The profile `dev` has a folder with another name.
    let profile = if how.profile == "dev" { "debug" } else { how.profile };
    Ok(folder.join(target).join(profile))
}

/// Flags and variables by which the result does not depend on where the sources and the crates are, nor on the time.
fn same_everywhere(command: &mut Command, root: &Path, release: &Release, how: &Build<'_>) {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let crates = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let places = [(Some(root.to_owned()), "."), (crates, "/cargo")];
    let places: Vec<String> =
        places.into_iter().filter_map(|(from, to)| Some(format!("{}={to}", from?.display()))).collect();
    let mut flags: Vec<String> = places.iter().map(|place| format!("--remap-path-prefix={place}")).collect();
    flags.extend(how.guidance.flags());
    if how.fully_static {
        flags.extend(["-C".to_owned(), "target-feature=+crt-static".to_owned()]);
    }
    // A flag is one, whatever spaces a path has.
    command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    // The C sources name themselves in their messages.
    let mut c_flags: Vec<String> = std::env::var("CFLAGS").ok().into_iter().collect();
    let has_space = places.iter().any(|place| place.contains(' '));
    if !has_space {
        c_flags.extend(places.iter().map(|place| format!("-ffile-prefix-map={place}")));
    }
    command.env("CFLAGS", c_flags.join(" "));
    command.env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    // The files of an incremental build have random parts in their names.
    command.env("CARGO_INCREMENTAL", "0");
}

/// Returns the remedy where there is no standard library for a target: by rustup, or with the compiler of
/// Debian.
fn no_library(target: &str) -> String {
    let debian = match architecture(target) {
        Some(name) => format!(
            ", or, with Debian's Rust, `dpkg --add-architecture {name}` and `apt-get install libstd-rust-dev:{name}`"
        ),
        None => String::new(),
    };
    format!("the standard library for {target} is not installed: run `rustup target add {target}`{debian}")
}

/// Debian's name for the architecture of a target.
fn architecture(target: &str) -> Option<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Some("amd64"),
        Some("aarch64") => Some("arm64"),
        _ => None,
    }
}

/// Whether a binary is one for this target, as far as it says: another one is not to be packed under its name.
fn is_for(binary: &[u8], target: &str) -> anyhow::Result<()> {
    let machine = elf::machine(binary).map_err(anyhow::Error::msg)?;
    let expected = match architecture(target) {
        Some("amd64") => elf::X86_64,
        Some("arm64") => elf::AARCH64,
        _ => return Ok(()),
    };
    ensure!(machine == expected, "the binary is for another architecture than {target}: name its --target");
    Ok(())
}

fn cargo_metadata(root: &Path, target: &str) -> anyhow::Result<serde_json::Value> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    Ok(serde_json::from_slice(&output(command.current_dir(root))?)?)
}

/// The program that lists the parts of the package.
enum Program {
    /// The one that is packed.
    Packed(PathBuf),
    /// The same of this machine, since that one does not run here.
    Own,
}

impl Program {
    /// The program in this file, if it runs here.
    ///
    /// # Errors
    /// Returns an error if it runs and is of another version.
    fn of(binary: &Path, version: &str) -> anyhow::Result<Program> {
        let binary = std::path::absolute(binary)?;
        match Command::new(&binary).arg("version").output() {
            Ok(output) if output.status.success() => {
                let said = String::from_utf8_lossy(&output.stdout);
                let expected = format!("sigma {version}");
                ensure!(
                    said.trim() == expected,
                    "the binary says that it is {}, not {expected}",
                    said.trim()
                );
                Ok(Program::Packed(binary))
            }
            _ => Ok(Program::Own),
        }
    }

    fn prints(&self, root: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
        match self {
            Program::Packed(binary) => output(Command::new(binary).args(arguments)),
            Program::Own => {
                let mut command = cargo();
                command.args(["run", "--quiet", "--locked", "-p", "sigma", "--"]).args(arguments);
                output(command.current_dir(root))
            }
        }
    }
}

/// The completions of shells.
fn completions(root: &Path, program: &Program) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let shells = [("bash", "sigma.bash"), ("zsh", "_sigma"), ("fish", "sigma.fish")];
    let complete =
        |(shell, name): (&str, &str)| Ok((name.to_owned(), program.prints(root, &["completions", shell])?));
    shells.into_iter().map(complete).collect()
}

/// A text as Debian wants it packed (its policy, 12.1 and 12.7).
fn packed(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut gzip = Command::new("gzip")
        .args(["--no-name", "--best"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("`gzip` cannot be run: install it")?;
    let mut plain = gzip.stdin.take().context("gzip reads")?;
    // In parallel with reading: neither waits for the other.
    let text = text.to_owned();
    let writes = std::thread::spawn(move || plain.write_all(&text));
    let output = gzip.wait_with_output()?;
    ensure!(output.status.success(), "`gzip` failed: {}", output.status);
    writes.join().map_err(|_| anyhow!("a text cannot be packed"))??;
    Ok(output.stdout)
}

/// Returns the version of the package: the program's, and the first package of it. A version before a release
/// sorts before it.
fn debian_version(version: &str) -> String {
    format!("{}-1", version.replacen('-', "~", 1))
}

/// The list of changes of the package itself, in the form that Debian's tools read.
fn debian_changes(version: &str, epoch: u64) -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &format!("@{epoch}")]).env("LC_ALL", "C");
    Ok(format!(
        "sigma ({}) unstable; urgency=medium\n\n  * Sigma {version}: changelog.gz, next to this file, lists the changes.\n\n -- {MAINTAINER}  {}\n",
        debian_version(version),
        text(&mut date)?
    ))
}

/// Writes entries below a folder, which is made again.
fn stage(folder: &Path, entries: &[Entry], epoch: u64) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    for entry in entries {
        let path = folder.join(&entry.path);
        std::fs::create_dir_all(path.parent().context("an entry has a name")?)?;
        if entry.is_folder() {
            std::fs::create_dir_all(&path)?;
        } else {
            std::fs::write(&path, &entry.bytes)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(entry.mode))?;
        }
    }
    let mut all = vec![folder.to_owned()];
    while let Some(path) = all.pop() {
        if path.is_dir() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
            all.extend(
                std::fs::read_dir(&path)?
                    .map(|entry| Ok(entry?.path()))
                    .collect::<anyhow::Result<Vec<_>>>()?,
            );
        }
        output(Command::new("touch").args(["--date", &format!("@{epoch}")]).arg(&path))?;
    }
    Ok(())
}

/// Makes a tarball of a folder next to it.
fn archive(folder: &Path, to: &Path, epoch: u64) -> anyhow::Result<()> {
    let (parent, name) =
        (folder.parent().context("it is in a folder")?, folder.file_name().unwrap_or_default());
    let mut tar = Command::new("tar")
        .args([
            "--create",
            "--format=ustar",
            "--sort=name",
            "--owner=root:0",
            "--group=root:0",
            "--numeric-owner",
        ])
        .arg(format!("--mtime=@{epoch}"))
        .arg("--directory")
        .arg(parent)
        .arg(name)
        .stdout(Stdio::piped())
        .spawn()
        .context("`tar` cannot be run")?;
    let plain = tar.stdout.take().context("tar writes")?;
    let packed = output(Command::new("gzip").args(["--no-name", "--best"]).stdin(plain))?;
    ensure!(tar.wait()?.success(), "`tar` failed");
    std::fs::write(to, packed)?;
    Ok(())
}

fn tarball(root: &Path, release: &Release, parts: &Parts, out: &Path) -> anyhow::Result<PathBuf> {
    let (folder, to) = (out.join(release.stem()), out.join(format!("{}.tar.gz", release.stem())));
    stage(&folder, &layout::tarball(root, parts)?, release.epoch)?;
    archive(&folder, &to, release.epoch)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(to)
}

fn debian(root: &Path, release: &Release, parts: &Parts, out: &Path) -> anyhow::Result<PathBuf> {
    let architecture = architecture(&release.target)
        .with_context(|| format!("Debian's name for the architecture of {} is not known", release.target))?;
    let version = debian_version(&release.version);
    let documents = Documents {
        changelog: packed(&parts.changelog)?,
        changes: packed(debian_changes(&release.version, release.epoch)?.as_bytes())?,
        manual: packed(&parts.manual)?,
        notices: packed(&parts.notices)?,
    };
    let folder = out.join("debian");
    let to = out.join(format!("sigma_{version}_{architecture}.deb"));
    stage(&folder, &layout::debian(root, parts, &documents, &version, architecture)?, release.epoch)?;
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(&to);
    output(command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    std::fs::remove_dir_all(&folder)?;
    Ok(to)
}

/// The folder that an image is built from, as a tarball.
fn image(root: &Path, release: &Release, parts: &Parts, out: &Path) -> anyhow::Result<PathBuf> {
    let authorities = std::fs::read(AUTHORITIES)
        .with_context(|| format!("{AUTHORITIES} cannot be read: install ca-certificates"))?;
    let folder = out.join(format!("{}-image", release.stem()));
    let to = out.join(format!("{}-image.tar.gz", release.stem()));
    stage(&folder, &layout::image(root, parts, authorities)?, release.epoch)?;
    archive(&folder, &to, release.epoch)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(to)
}

fn plain(to: &Path, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    std::fs::write(to, bytes)?;
    Ok(to.to_owned())
}

/// `SHA256SUMS`, which `sha256sum --check` reads.
fn sums(out: &Path, made: &[PathBuf]) -> anyhow::Result<()> {
    let mut names: Vec<_> = made.iter().filter_map(|path| path.file_name()).collect();
    names.sort();
    let sums = output(Command::new("sha256sum").arg("--").args(names).current_dir(out))?;
    std::fs::write(out.join("SHA256SUMS"), sums)?;
    Ok(())
}
