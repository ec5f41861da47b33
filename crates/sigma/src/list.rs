//! The gateways that run on this machine.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::output::printed;

/// A running gateway.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    pid: u32,
    /// Its command line, without the program.
    words: Vec<String>,
}

/// Prints the gateways that this user can see: each with its process and its command line. The gateways of a
/// supervised one are not listed, only their parent, which gets the orders.
pub(crate) fn execute() -> Result<ExitCode> {
    let found = running(Path::new("/proc")).context("cannot read /proc")?;
    let line = |running: &Running| format!("{}\t{}\n", running.pid, running.words.join(" "));
    let text: String = match found.is_empty() {
        true => "no gateway is running\n".to_owned(),
        false => found.iter().map(line).collect(),
    };
    Ok(printed(text.as_bytes()))
}

/// Finds the processes of this program that run a gateway, in the order of their ids.
fn running(proc: &Path) -> std::io::Result<Vec<Running>> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end meanwhile.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        if let Some(words) = gateway(&line).filter(|_| pid != own) {
            found.push((Running { pid, words }, parent(&entry.path())));
        }
    }
    found.sort_by_key(|(running, _)| running.pid);
    let pids: Vec<u32> = found.iter().map(|(running, _)| running.pid).collect();
    let is_child = |parent: &Option<u32>| parent.is_some_and(|parent| pids.contains(&parent));
    Ok(found.into_iter().filter(|(_, parent)| !is_child(parent)).map(|(running, _)| running).collect())
}

/// Returns the words of a command line after the program, if it runs a gateway.
fn gateway(line: &[u8]) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_terminator('\0');
    let program = Path::new(words.next()?).file_name()?.to_str()?.to_owned();
    // Control characters must not reach the terminal.
    let shown = |word: &str| word.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let words: Vec<String> = words.map(shown).collect();
    let runs = ["run", "serve", "proxy", "start", "bare", "-c"];
    let is_run = words.first().is_none_or(|first| runs.contains(&first.as_str()));
    (matches!(&*program, "sigma" | "niubix") && is_run).then_some(words)
}

/// Returns the parent of a process.
fn parent(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_listed_without_their_children() {
        let dir = tempfile::tempdir().unwrap();
        let put = |pid: u32, line: &str, parent: u32| {
            let process = dir.path().join(pid.to_string());
            fs::create_dir(&process).unwrap();
            fs::write(process.join("cmdline"), line.replace(' ', "\0") + "\0").unwrap();
            fs::write(process.join("status"), format!("Name:\tsigma\nPPid:\t{parent}\n")).unwrap();
        };
        put(12, "/usr/bin/sigma run -c /etc/sigma.yaml", 1);
        put(13, "/usr/bin/sigma run -c /etc/sigma.yaml", 12);
        put(7, "sigma", 1);
        put(8, "sigma check a.yaml", 1);
        put(9, "bash run", 1);
        fs::create_dir(dir.path().join("self")).unwrap();
        let words = |text: &str| text.split_terminator(' ').map(str::to_owned).collect();
        let expected = [
            Running { pid: 7, words: words("") },
            Running { pid: 12, words: words("run -c /etc/sigma.yaml") },
        ];
        assert_eq!(running(dir.path()).unwrap(), expected);
    }
}
