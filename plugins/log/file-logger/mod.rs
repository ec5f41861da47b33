//! `file-logger`: an entry a line, appended to a file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, FileAccess, FileMember, Node, Phase, PhaseSet,
};
use sigma_schema::described::schema_of;
use sigma_schema::expr::Expr;

use sigma_plugin_kit::condition;
use sigma_plugin_kit::log_entry::{EntryConfig, Formats, Logger, Sink};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Bytes of lines that may wait for the disk; more are dropped.
const PENDING_BYTES: usize = 64 << 20;

/// Entries hold credentials and bodies of clients: readable by owner and group only, like the access
/// log. A file that is there keeps its mode.
const FILE_MODE: u32 = 0o640;

/// Files held open at once; of more, all are closed and opened again when needed.
const OPEN_FILES: usize = 8;

/// `file-logger`.
pub(crate) static FILE_LOGGER: Descriptor = Descriptor {
    name: "file-logger",
    priority: 399,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    build: |build| Ok(Arc::new(logger(build)?)),
    variables: &[
        VariableField::shown("match", VariableForm::Condition),
        VariableField::shown("log_format", VariableForm::LogFormat),
        VariableField::shown("log_format_extra", VariableForm::LogFormat),
        VariableField::shown("include_req_body_expr", VariableForm::Condition),
        VariableField::shown("include_resp_body_expr", VariableForm::Condition),
    ],
    files: &[FileMember { name: "path", access: FileAccess::WriteFile }],
    ..Descriptor::of::<Config>()
};

/// Appends one JSON line per request to a file.
///
/// A missing file is created with mode 0640; a missing folder is not. A separate thread writes whole lines, one by
/// one: a slow disk delays no request. Waiting lines beyond 64 MiB are dropped with a message in the error log.
/// `sigma_access_lines_dropped_total` counts dropped lines and failed writes. Writes to a pipe do not wait for its
/// reader. The signal that reopens the access log (`USR1`) reopens these files too.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// The file; a relative path begins at the gateway's working directory. Required here or in the metadata.
    path: Option<PathBuf>,
    /// Lists of conditions; an entry is written if one list matches.
    #[serde(rename = "match", default, deserialize_with = "conditions")]
    #[schemars(length(max = 20), extend("items" = {"type": "array"}))]
    conditions: Option<Vec<Expr>>,
}

impl Configuration for Config {}

fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Expr>>, D::Error> {
    let rules = Vec::<Value>::deserialize(deserializer)?;
    rules.iter().map(|rule| condition::parse("match", rule)).collect::<Result<_, _>>().map(Some)
}

#[derive(Default, Deserialize, JsonSchema)]
struct Metadata {
    #[serde(flatten)]
    formats: Formats,
    /// The file of instances without a `path`.
    path: Option<PathBuf>,
}

fn logger(build: &Build<'_>) -> Result<Logger<FileSink>, String> {
    let (config, metadata): (Config, Metadata) = (build.config()?, build.metadata_as()?);
    let path = config
        .path
        .or(metadata.path)
        .ok_or(r#"property "path" is not set in either the plugin conf or the metadata"#)?;
    let lines = build.node.part(Lines::default);
    let sink = FileSink { path: path.into(), conditions: config.conditions, lines };
    Ok(Logger::new(config.entry, metadata.formats, sink))
}

struct FileSink {
    path: Arc<Path>,
    /// An entry is written if one of them holds; None for always.
    conditions: Option<Vec<Expr>>,
    lines: Arc<Lines>,
}

impl Sink for FileSink {
    fn wants(&self, ctx: &Context) -> bool {
        self.conditions.as_ref().is_none_or(|all| all.iter().any(|expr| expr.eval(ctx)))
    }

    fn take(&self, entry: Map<String, Value>, _: &Context, env: &Env<'_>) {
        let mut line = Value::Object(entry).to_string().into_bytes();
        line.push(b'\n');
        self.lines.write(&self.path, line, env);
    }
}

/// A line on its way to the writing thread.
struct Line {
    path: Arc<Path>,
    bytes: Vec<u8>,
    /// The node's log generation when it was made.
    generation: u64,
}

/// The lines of all workers, and the thread that writes them; a part of the node.
#[derive(Default)]
struct Lines {
    /// Made with the first line. Held only to copy the sender, see `sender_of`.
    writer: Mutex<Option<Writer>>,
    waiting: Arc<AtomicUsize>,
}

struct Writer {
    /// None ends the thread.
    sender: Sender<Option<Line>>,
    /// Fails when the thread has ended.
    ended: Receiver<()>,
}

/// A worker's own way to the writer, so that workers do not meet at a lock.
struct LocalSender(Sender<Option<Line>>);

impl Lines {
    /// Hands a line over, or drops it. Never waits for the disk.
    fn write(self: &Arc<Lines>, path: &Arc<Path>, bytes: Vec<u8>, env: &Env<'_>) {
        let length = bytes.len();
        if self.waiting.load(Ordering::Relaxed) + length > PENDING_BYTES {
            env.node.lose_lines(1);
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                tracing::error!(left_out, "file-logger: the disk is too slow; lines are dropped");
            }
            return;
        }
        let local = env.local.part(|| LocalSender(self.sender(env)));
        let sender = &local.0;
        self.waiting.fetch_add(length, Ordering::Relaxed);
        let line = Line { path: Arc::clone(path), bytes, generation: env.node.log_generation() };
        if sender.send(Some(line)).is_err() {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            env.node.lose_lines(1);
        }
    }

    /// A sender to the thread, which is started if need be.
    fn sender(self: &Arc<Lines>, env: &Env<'_>) -> Sender<Option<Line>> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = &*writer {
            return writer.sender.clone();
        }
        let (sender, inbox) = channel();
        let (alive, ended) = channel::<()>();
        let (waiting, node) = (Arc::clone(&self.waiting), Arc::clone(env.node));
        let write = move || {
            write_all(&inbox, &waiting, &node);
            drop(alive);
        };
        // The control thread starts it: threads of a worker cannot open files for writing
        // (`process.sandbox`).
        env.node.spawn(async move {
            if let Err(error) = std::thread::Builder::new().name("file-logger".into()).spawn(write) {
                tracing::error!(%error, "file-logger: cannot start its thread; nothing is written");
            }
        });
        *writer = Some(Writer { sender: sender.clone(), ended });
        let lines = Arc::downgrade(self);
        env.node.at_end(async move {
            let Some(lines) = lines.upgrade() else { return };
            let writer = lines.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Writer { sender, ended }) = writer {
                // The lines before it are written first. A thread that has panicked was reported already.
                let _ = sender.send(None);
                let _ = tokio::task::spawn_blocking(move || ended.recv()).await;
            }
        });
        sender
    }
}

/// The writing thread: one unbuffered append per line, so that lines of several processes do not mix.
fn write_all(inbox: &Receiver<Option<Line>>, waiting: &AtomicUsize, node: &Node) {
    let mut files: HashMap<Arc<Path>, Opened> = HashMap::new();
    let mut generation = 0;
    while let Ok(Some(line)) = inbox.recv() {
        if line.generation != generation || (files.len() >= OPEN_FILES && !files.contains_key(&line.path)) {
            generation = line.generation;
            files.clear();
        }
        if let Err((what, error)) = append(&mut files, &line) {
            node.lose_lines(1);
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                let path = line.path.display();
                tracing::error!(left_out, "failed to {what} file: {path}, error info: {error}");
            }
        }
        waiting.fetch_sub(line.bytes.len(), Ordering::Relaxed);
    }
}

/// A file that lines are appended to.
struct Opened {
    file: File,
    /// A write failed and may have left a part of its line: the next one begins on a new line.
    torn: bool,
}

fn open(path: &Path) -> io::Result<Opened> {
    Ok(Opened { file: sigma_observe::own_file::append(path, FILE_MODE)?, torn: false })
}

fn append(files: &mut HashMap<Arc<Path>, Opened>, line: &Line) -> Result<(), (&'static str, io::Error)> {
    if !files.contains_key(&line.path) {
        files.insert(Arc::clone(&line.path), open(&line.path).map_err(|error| ("open", error))?);
    }
    let Some(Opened { file, torn }) = files.get_mut(&line.path) else { return Ok(()) };
    let written = match *torn {
        true => file.write_all(&[b"\n", &line.bytes[..]].concat()),
        false => file.write_all(&line.bytes),
    };
    *torn = written.is_err();
    written.map_err(|error| ("write", error))
}
