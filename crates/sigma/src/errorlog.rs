//! The error log: where it goes, and changing its level while the process runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use sigma_config::settings::ErrorLog;
use sigma_control::LogControl;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// A file that can be opened anew; stderr without one.
#[derive(Debug, Clone)]
struct Output {
    path: Option<PathBuf>,
    file: Option<Arc<Mutex<File>>>,
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.file {
            Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Output;

    fn make_writer(&self) -> Output {
        self.clone()
    }
}

/// The running error log.
pub(crate) struct Control {
    output: Output,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Starts the error log of this process.
pub(crate) fn start(config: &ErrorLog) -> Result<Control> {
    let path = (config.path != "stderr").then(|| PathBuf::from(&config.path));
    let file = match &path {
        Some(path) => {
            let file = open(path).with_context(|| format!("cannot open the error log {}", path.display()))?;
            Some(Arc::new(Mutex::new(file)))
        }
        None => None,
    };
    let output = Output { path, file };
    let filter =
        EnvFilter::try_new(&config.level).with_context(|| format!("error_log.level `{}`", config.level))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_ansi(false).with_target(false).with_writer(output.clone());
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Ok(Control { output, filter: handle })
}

impl LogControl for Control {
    fn set_level(&self, filter: &str) -> Result<(), String> {
        let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        self.filter.reload(filter).map_err(|error| error.to_string())
    }

    fn reopen(&self) {
        let (Some(path), Some(file)) = (&self.output.path, &self.output.file) else { return };
        match open(path) {
            Ok(new) => *file.lock().unwrap_or_else(PoisonError::into_inner) = new,
            Err(error) => tracing::error!(path = %path.display(), %error, "cannot open the error log anew"),
        }
    }
}
