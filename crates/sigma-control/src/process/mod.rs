//! The life of the process: start, signals, reload, stop.

pub(crate) mod examine;
pub(crate) mod start;
pub(crate) mod supervisor;
mod usage;
