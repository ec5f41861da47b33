//! The life of the process: start, signals, reload, upgrade, stop.

pub mod daemon;
mod documents;
pub(crate) mod examine;
pub(crate) mod handover;
pub(crate) mod log_control;
pub(crate) mod parent;
pub(crate) mod pid_file;
mod process_history;
mod program;
pub(crate) mod rights;
pub(crate) mod sandbox;
pub(crate) mod start;
pub(crate) mod supervisor;
mod systemd;
mod upgrade;
mod usage;
mod watch_over;
