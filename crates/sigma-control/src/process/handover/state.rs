//! The state of a process, as it passes to the next: JSON in a file in memory, which may be of any length.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sigma_upstream::health::StoredHealth;

/// A longer file is not valid.
const FILE_MAX: u64 = 256 << 20;

/// The state of a process. The next one may have another version: it ignores unknown parts, and does without
/// missing ones.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The counters, by the names under which they are shown.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Exchanges that failed, by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// The health of nodes.
    pub(crate) health: StoredHealth,
    /// Keys of session tickets, the newest first.
    pub(crate) ticket_keys: Vec<Vec<u8>>,
    /// The age of the newest.
    pub(crate) ticket_age_ms: u64,
    /// The state of plugins, by the names of their parts.
    pub(crate) legacies: BTreeMap<String, Value>,
    /// The pid file, which the next process may have elsewhere.
    pub(crate) pid_file: Option<PathBuf>,
    /// How long the process has run; times that plugins leave are of this clock.
    pub(crate) uptime_ms: u64,
}

impl State {
    /// A file in memory that holds it. Only these two processes can read it.
    pub(super) fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("sigma-state", MemfdFlags::CLOEXEC)?);
        let mut writer = io::BufWriter::new(&mut file);
        serde_json::to_writer(&mut writer, self)?;
        writer.flush()?;
        drop(writer);
        Ok(file.into())
    }

    /// Reads the state from the file. If it cannot be read, nothing is known, and the log says so.
    pub(super) fn from_file(file: OwnedFd) -> State {
        let read = || {
            let mut file = File::from(file);
            file.rewind()?;
            serde_json::from_reader(io::BufReader::new(file.take(FILE_MAX))).map_err(io::Error::from)
        };
        read().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the state of the previous process; this one starts without it");
            State::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_passes_through_a_file() {
        let mut state = State { ticket_keys: vec![vec![1; 48]], ticket_age_ms: 5, ..State::default() };
        state.counters.insert("requests".to_owned(), u64::MAX);
        let read = State::from_file(state.to_file().unwrap());
        assert_eq!(read.counters, state.counters);
        assert_eq!((read.ticket_keys, read.ticket_age_ms), (state.ticket_keys, 5));
    }

    #[test]
    fn another_version_and_garbage_are_no_trouble() {
        let of = |text: &str| {
            let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
            file.write_all(text.as_bytes()).unwrap();
            State::from_file(file.into())
        };
        assert_eq!(of(r#"{"counters":{"requests":3},"of_the_future":[1]}"#).counters["requests"], 3);
        assert!(of(r#"{"counters":7}"#).counters.is_empty());
        assert!(of("").counters.is_empty() && of("\u{0}").counters.is_empty());
    }
}
