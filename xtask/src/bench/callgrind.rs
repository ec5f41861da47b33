//! Instructions that a gateway executes, counted by valgrind's callgrind.
//!
//! A count does not depend on what else the machine does: repeats agree within a few per mille, so that a
//! change of one per cent is seen where a clock would see nothing. It leaves out the kernel's instructions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::launch::{Launch, Running};

/// A gateway that runs under callgrind.
pub(super) struct Counted {
    pub(super) gateway: Running,
    /// The output file of callgrind, which adds a number for each count.
    file: PathBuf,
    counts: u32,
}

impl Counted {
    /// Starts what `launch` describes, below `work`.
    pub(super) fn start(launch: Launch, work: &Path) -> anyhow::Result<Self> {
        let file = work.join("callgrind.out");
        let tool = ["valgrind", "--tool=callgrind", &format!("--callgrind-out-file={}", file.display())];
        let gateway = launch.behind(&tool).start_listening()?;
        Ok(Self { gateway, file, counts: 0 })
    }

    /// The instructions that the gateway executes while `work` runs.
    pub(super) fn during(&mut self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<u64> {
        self.control("--zero")?;
        work()?;
        self.control("--dump")?;
        self.counts += 1;
        let path = self.file.with_extension(format!("out.{}", self.counts));
        let text = fs::read_to_string(&path)
            .with_context(|| format!("callgrind wrote no {}: does the gateway still run?", path.display()))?;
        total(&text).with_context(|| format!("{} tells no total", path.display()))
    }

    fn control(&self, order: &str) -> anyhow::Result<()> {
        let mut command = Command::new("callgrind_control");
        let output = command.arg(order).arg(self.gateway.process.id().to_string()).output();
        let output = output.context("cannot run callgrind_control: install valgrind")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "callgrind_control {order} failed: {problem}");
        Ok(())
    }
}

/// The instructions of all functions in a file of callgrind.
fn total(text: &str) -> Option<u64> {
    let line = |name: &str| text.lines().rev().find_map(|line| line.strip_prefix(name));
    line("summary: ").or_else(|| line("totals: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn totals_are_read_from_what_callgrind_writes() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(total(text), expected, "{text:?}");
        check("# callgrind format\nevents: Ir\nsummary: 42\n\nfn=(1) main\n1 42\n\ntotals: 41\n", Some(42));
        check("events: Ir\nfn=(1) main\n1 42\ntotals: 42\n", Some(42));
        check("events: Ir\n", None);
    }
}
