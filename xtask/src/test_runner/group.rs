//! The process group of a test program, which has the gateways that the tests start, except those in the background.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process_group};

/// Lines of a process's log that are shown.
const LINES: usize = 30;

/// Ends every process of a group; does nothing if none is left.
pub(super) fn kill(group: u32) {
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Returns the command lines of the children in a group, with the end of each log file on stderr.
pub(super) fn describe_children(group: u32) -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == group || group_of(&path) != Some(group) {
            continue;
        }
        let command = fs::read(path.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let _ = writeln!(text, "process {pid}: {command}");
        // A pipe is one of the test's, which reads it.
        let log = fs::read_link(path.join("fd/2")).ok().filter(|log| log.is_file());
        let log = log.and_then(|log| fs::read(log).ok()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// Returns the process group in `stat`: the third field after the name, which is in parentheses.
fn group_of(process: &Path) -> Option<u32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}
