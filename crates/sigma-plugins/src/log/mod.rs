//! Access logs that plugins write: what an entry says, and where it goes.

pub(crate) mod entry;
mod file_logger;
mod format;
mod http_logger;
mod http_sender;
mod syslog;

pub(crate) use file_logger::FILE_LOGGER;
pub(crate) use http_logger::HTTP_LOGGER;
pub(crate) use syslog::SYSLOG;

use std::sync::Arc;

use serde_json::{Map, Value};
use sigma_plugin::{Context, Env};

use crate::batch::Processor;

/// Entries that leave as they are, each a JSON text.
impl entry::Sink for Arc<Processor> {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        self.push(Value::Object(entry).to_string().into_bytes(), ctx, env);
    }
}

#[cfg(test)]
mod tests;
