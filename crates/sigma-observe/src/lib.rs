//! Access lines and counters, which a worker emits without waiting.
//!
//! The emit path neither blocks nor locks. An access line is rendered into the worker's own buffer. Full buffers go
//! to one writer thread through a bounded queue, which drops and counts instead of waiting. Lines of the error log go
//! the same way, one by one. Counters belong to one worker each and are merged on reading.

pub mod access;
pub mod counters;
pub mod date;
pub mod error_lines;
mod escape;
pub mod field;
pub mod figures;
pub mod line;
pub mod log_buffer;
mod log_output;
pub mod moment;
pub mod own_file;
pub mod throttle;

pub use access::{AccessFormat, Entry, FormatError};
pub use counters::{Counter, Totals, WorkerCounters, merge};
pub use date::Clock;
pub use field::Field;
pub use log_buffer::{LogError, LogSink, LogTarget, LogWriter};
