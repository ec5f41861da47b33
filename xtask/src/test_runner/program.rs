//! The test programs that cargo compiles.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Options;

/// A test program.
pub(super) struct Program {
    pub(super) package: String,
    /// `lib`, `main`, or the name of a program in a `tests/` folder.
    pub(super) target: String,
    pub(super) path: PathBuf,
    /// The folder of the package, where its tests run.
    pub(super) folder: PathBuf,
}

impl Program {
    /// Returns the first part of the full names of its tests.
    pub(super) fn name(&self) -> String {
        match self.target.as_str() {
            "lib" => self.package.clone(),
            target => format!("{}::{target}", self.package),
        }
    }

    pub(super) fn full_name(&self, test: &str) -> String {
        format!("{}::{test}", self.name())
    }

    /// Returns the command that runs one test alone.
    pub(super) fn alone(&self, test: &str) -> String {
        let target = match self.target.as_str() {
            "lib" => "--lib".to_owned(),
            "main" => "--bins".to_owned(),
            target => format!("--test {target}"),
        };
        format!("cargo test --locked -p {} {target} -- --exact {test}", self.package)
    }

    /// Returns a command that runs the program. The process is killed when the calling thread ends, and the processes
    /// that it starts are in its process group.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.path).process_group(0);
        command.current_dir(&self.folder).stdin(Stdio::null());
        // As cargo sets them.
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        command
    }

    fn of_message(message: &Value) -> Option<Program> {
        let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
        let target = match message["target"]["kind"][0].as_str()? {
            "test" => message["target"]["name"].as_str()?,
            "bin" => "main",
            _ => "lib",
        };
        Some(Program {
            package: package_name(message["package_id"].as_str()?)?.to_owned(),
            target: target.to_owned(),
            path: path.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }
}

/// Returns the name in the id of a package: `path+file:///folder/name#0.1.0`, or `…/folder#name@0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, version) = id.rsplit_once('#')?;
    version.split_once('@').map(|(name, _)| name).or_else(|| path.rsplit('/').next())
}

/// Compiles the test programs.
pub(super) fn compile(root: &Path, options: &Options) -> anyhow::Result<Vec<Program>> {
    let mut command = cargo(root);
    command.args(["test", "--workspace", "--locked", "--no-run", "--message-format=json"]);
    if let Some(target) = &options.target {
        command.args(["--test", target]);
    }
    if let Some(without) = &options.without {
        let all = targets(root)?;
        ensure!(all.contains(without), "no folder `tests/` has a program `{without}`");
        command.args(["--lib", "--bins"]);
        all.iter().filter(|target| *target != without).for_each(|target| {
            command.args(["--test", target]);
        });
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let rendered = messages.iter().filter_map(|message| message["message"]["rendered"].as_str());
        rendered.for_each(|text| eprint!("{text}"));
    }
    ensure!(output.status.success(), "the tests do not compile");
    Ok(messages.iter().filter_map(Program::of_message).collect())
}

/// Returns the names of the programs in all `tests/` folders.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = cargo(root).args(["metadata", "--no-deps", "--format-version=1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    Ok(tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_by_their_folder_or_by_themselves() {
        assert_eq!(package_name("path+file:///src/crates/sigma-net#0.1.0"), Some("sigma-net"));
        assert_eq!(
            package_name("path+file:///src/plugins/auth#sigma-plugins-auth@0.1.0"),
            Some("sigma-plugins-auth")
        );
        assert_eq!(package_name("sigma"), None);
    }
}
