//! Access logs that plugins write: what an entry says, and where it goes.

pub(crate) mod entry;
mod file_logger;
mod format;
mod http_logger;
mod syslog;

pub(crate) use file_logger::FILE_LOGGER;
pub(crate) use http_logger::HTTP_LOGGER;
pub(crate) use syslog::SYSLOG;

#[cfg(test)]
mod tests;
