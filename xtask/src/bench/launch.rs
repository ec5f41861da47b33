//! From a configuration to a gateway that responds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::contender::Programs;
use super::process::{GATEWAY_CORE, Pinned, await_answer, await_listening};

/// Compiling 100,000 routes may take a while; everything else answers within milliseconds.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The folder of one gateway's configuration and log.
pub(super) struct Workplace {
    pub(super) folder: PathBuf,
}

impl Workplace {
    /// The folder of the gateway called `label` below `work`.
    pub(super) fn new(work: &Path, label: &str) -> anyhow::Result<Self> {
        let folder = work.join(label.replace([' ', ','], "-"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Writes a file and gives its path.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// A gateway that is configured and not yet started.
pub(super) struct Launch {
    pub(super) label: String,
    pub(super) command: Vec<String>,
    pub(super) log: PathBuf,
    pub(super) port: u16,
}

impl Launch {
    /// Sigma with the configuration `text`, which listens on `port`.
    ///
    /// A configuration that this build does not take is refused here with the first of its problems, before
    /// anything is measured.
    pub(super) fn sigma(
        programs: &Programs,
        work: &Path,
        label: &str,
        port: u16,
        text: &str,
    ) -> anyhow::Result<Self> {
        let program =
            programs.sigma.as_ref().context("this suite measures Sigma: leave --without-sigma out")?;
        let place = Workplace::new(work, &format!("Sigma {label}"))?;
        let file = place.write("sigma.yaml", text)?;
        let checked = Command::new(program).args(["check", &file]).output()?;
        if !checked.status.success() {
            let problems = String::from_utf8_lossy(&checked.stderr);
            let first = problems.lines().next().unwrap_or("without a reason");
            bail!("Sigma refuses the configuration of `{label}`: {first}");
        }
        let command = vec![program.display().to_string(), "run".into(), "-c".into(), file];
        Ok(Self { label: format!("Sigma, {label}"), command, log: place.folder.join("log"), port })
    }

    /// The same with the command `tool` in front.
    pub(super) fn behind(mut self, tool: &[&str]) -> Self {
        self.command.splice(..0, tool.iter().map(|&word| word.to_owned()));
        self
    }

    /// Starts the gateway; gives the time until its first response as well.
    pub(super) fn start(&self) -> anyhow::Result<(Running, Duration)> {
        self.start_with_fields("")
    }

    /// Starts a gateway whose route requests these fields, each with its line end.
    pub(super) fn start_with_fields(&self, fields: &str) -> anyhow::Result<(Running, Duration)> {
        let begin = Instant::now();
        let mut process = self.start_process()?;
        await_answer(&mut process, self.port, fields, START_LIMIT)
            .with_context(|| format!("{} does not answer: read {}", self.label, self.log.display()))?;
        let elapsed = begin.elapsed();
        Ok((Running { process, port: self.port }, elapsed))
    }

    /// Starts the gateway and waits until it accepts connections, of any protocol.
    pub(super) fn start_listening(&self) -> anyhow::Result<Running> {
        let mut process = self.start_process()?;
        await_listening(&mut process, self.port, START_LIMIT)
            .with_context(|| format!("{} does not start: read {}", self.label, self.log.display()))?;
        Ok(Running { process, port: self.port })
    }

    /// Starts the gateway and waits for nothing.
    pub(super) fn start_process(&self) -> anyhow::Result<Pinned> {
        Pinned::start(GATEWAY_CORE, &self.command, &self.log)
    }
}

/// A gateway or origin that runs, and the loopback port it listens on. Dropping it ends the process.
pub(super) struct Running {
    pub(super) process: Pinned,
    pub(super) port: u16,
}
