//! From the thread that has a line to say to its descriptor: a bounded queue, one writer thread.
//!
//! Nobody but that thread touches the descriptor, whose other end may stand still. A worker fills its
//! buffer of access lines; a full one goes into the queue if there is room, and is dropped and counted
//! if there is not. Written buffers travel back to their worker, so a steady log allocates nothing.
//! Lines of the error log ([`Lines`]) go the same way, each for itself.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::counters::{Counter, WorkerCounters};
use crate::error_lines::{self, Lines};
use crate::line::Line;
use crate::log_output::{LogOutput, Short};

/// Buffers that may wait for their worker to take them back; more are freed.
const RETURNED_BUFFERS: usize = 4;

/// A buffer that grew beyond this many times its usual size is freed rather than used again.
const LARGEST_KEPT: usize = 4;

/// Room for the line that fills a buffer up: most are shorter.
const LINE_BYTES: usize = 4 * 1024;

/// For how long after it was told to end a writer waits for a reader that stands still.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The destination of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to; created with mode 0640, missing parent directories with 0750.
    File(PathBuf),
}

/// Why a log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file or its directory cannot be made.
    #[error("cannot open the log file {path}: {source}; check that its directory can be written")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A FIFO without its reader. To wait for one would keep the gateway from starting.
    #[error(
        "cannot open the log file {path}: it is a FIFO or a socket that nobody reads; start its reader first"
    )]
    NoReader {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no thread.
    #[error("cannot start the log writer thread: {0}; check the limit on processes")]
    Thread(io::Error),
}

/// Whole lines on their way to the writer.
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lines: u64,
    pub(crate) origin: Origin,
}

/// What a block is, and whose.
pub(crate) enum Origin {
    /// Access lines of a worker.
    Access(Sender),
    /// A line of the error log, and how severe it is if it may be watched.
    Error(Option<tracing::Level>),
}

/// The owner of a block.
pub(crate) struct Sender {
    /// The queue to which the buffer returns once it is written.
    home: SyncSender<Vec<u8>>,
    counters: Arc<WorkerCounters>,
}

pub(crate) enum Message {
    Block(Block),
    /// Look at the flags.
    Wake,
    /// Say that all before this was written.
    Written(SyncSender<()>),
}

/// The requests of the control thread to the writer. Flags rather than messages: a full queue cannot lose them.
#[derive(Default)]
struct Requests {
    reopen: AtomicBool,
    /// Since when the writer is to end.
    close: OnceLock<Instant>,
    lines_lost: AtomicU64,
}

impl Requests {
    /// A reader that stands still is waited for no longer.
    fn is_over(&self) -> bool {
        self.close.get().is_some_and(|since| since.elapsed() >= LAST_WAIT)
    }
}

/// The control thread's end of a log: owns the writer thread. Dropping it ends the thread without waiting.
pub struct LogWriter {
    queue: SyncSender<Message>,
    requests: Arc<Requests>,
    finished: Receiver<()>,
}

impl LogWriter {
    /// Opens the target and starts the writer; `queue_blocks` is how many full buffers may wait for it.
    pub fn start(target: LogTarget, queue_blocks: usize) -> Result<LogWriter, LogError> {
        let (queue, incoming) = sync_channel(queue_blocks.max(1));
        let (done, finished) = sync_channel(1);
        let requests = Arc::new(Requests::default());
        let output = LogOutput::open(&target)?;
        let writer = Writer {
            target,
            output,
            incoming,
            requests: requests.clone(),
            failing: false,
            tail: None,
            told_dropped: 0,
        };
        let run = move || {
            writer.run();
            // Nobody listens when the log was dropped rather than closed.
            let _ = done.try_send(());
        };
        thread::Builder::new().name("sigma-log".into()).spawn(run).map_err(LogError::Thread)?;
        Ok(LogWriter { queue, requests, finished })
    }

    /// A worker's end: it hands over a block whenever `buffer_bytes` are full.
    pub fn sink(&self, buffer_bytes: usize, counters: Arc<WorkerCounters>) -> LogSink {
        let (home, returned) = sync_channel(RETURNED_BUFFERS);
        LogSink {
            buffer: Line::default(),
            lines: 0,
            buffer_bytes: buffer_bytes.max(1),
            queue: self.queue.clone(),
            home,
            returned,
            counters,
        }
    }

    /// An end for lines of the error log, which any thread may write to without waiting.
    pub fn lines(&self) -> Lines {
        Lines::new(self.queue.clone())
    }

    /// Opens the file anew by its name, after it was renamed by a log rotation. Does not wait.
    ///
    /// If that fails the old file stays in use and the reason is in the error log.
    pub fn reopen(&self) {
        self.requests.reopen.store(true, Ordering::Release);
        self.wake();
    }

    /// Lines lost in writes that failed; they are in the counters too, with those that were dropped.
    pub fn lines_lost(&self) -> u64 {
        self.requests.lines_lost.load(Ordering::Relaxed)
    }

    /// Waits until what was queued before is written; false if that took longer than `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        let (told, written) = sync_channel(1);
        self.queue.try_send(Message::Written(told)).is_ok() && written.recv_timeout(limit).is_ok()
    }

    /// Writes what is queued and ends the thread; false if that took longer than `limit`.
    ///
    /// Sinks are to be dropped before: what they hand over later is dropped and counted.
    pub fn close(self, limit: Duration) -> bool {
        self.request_close();
        self.finished.recv_timeout(limit).is_ok()
    }

    fn request_close(&self) {
        self.requests.close.get_or_init(Instant::now);
        self.wake();
    }

    /// A full queue needs no wake-up: the writer looks at the flags after every message.
    fn wake(&self) {
        let _ = self.queue.try_send(Message::Wake);
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.request_close();
    }
}

/// A worker's end of a log. Dropping it flushes.
pub struct LogSink {
    buffer: Line,
    lines: u64,
    buffer_bytes: usize,
    queue: SyncSender<Message>,
    home: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
    counters: Arc<WorkerCounters>,
}

impl LogSink {
    /// Appends one line, which `render` writes with its newline. Never waits.
    pub fn line(&mut self, render: impl FnOnce(&mut Line)) {
        if self.lines == 0 {
            self.begin_block();
        }
        render(&mut self.buffer);
        self.lines += 1;
        if self.buffer.len() >= self.buffer_bytes {
            self.flush();
        }
    }

    /// Whether nothing is buffered.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Hands over what is buffered; to be called on a timer as well. Never waits.
    pub fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        let bytes = self.buffer.take();
        let sender = Sender { home: self.home.clone(), counters: Arc::clone(&self.counters) };
        let block = Block { bytes, lines, origin: Origin::Access(sender) };
        if let Err(refused) = self.queue.try_send(Message::Block(block)) {
            self.counters.add(Counter::AccessLinesDropped, lines);
            if let TrySendError::Full(Message::Block(block))
            | TrySendError::Disconnected(Message::Block(block)) = refused
            {
                self.buffer = Line::again(block.bytes);
            }
        }
    }

    /// Makes sure that there is a buffer of ordinary size before a block begins.
    fn begin_block(&mut self) {
        if self.buffer.capacity() == 0 {
            self.buffer = Line::again(self.returned.try_recv().unwrap_or_default());
        }
        // One giant line must not keep its memory for good.
        let usual = self.buffer_bytes + LINE_BYTES;
        if self.buffer.capacity() > LARGEST_KEPT * usual {
            self.buffer = Line::default();
        }
        self.buffer.reserve(usual);
    }
}

impl Drop for LogSink {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The rest of a line.
struct Tail {
    bytes: Vec<u8>,
    owner: Owner,
}

/// Where a lost line is counted.
#[derive(Clone)]
enum Owner {
    Access(Arc<WorkerCounters>),
    Error,
}

impl Origin {
    fn owner(&self) -> Owner {
        match self {
            Origin::Access(sender) => Owner::Access(Arc::clone(&sender.counters)),
            Origin::Error(_) => Owner::Error,
        }
    }
}

/// The writer thread's state.
struct Writer {
    target: LogTarget,
    output: LogOutput,
    incoming: Receiver<Message>,
    requests: Arc<Requests>,
    /// The last write failed; said once, not for every block.
    failing: bool,
    /// The rest of a line in which a write came to its end: it is written before anything else.
    tail: Option<Tail>,
    /// How many dropped lines of the error log it has told of.
    told_dropped: u64,
}

impl Writer {
    fn run(mut self) {
        while let Ok(message) = self.incoming.recv() {
            self.handle(message);
            if self.requests.close.get().is_some() {
                return self.drain();
            }
        }
    }

    fn drain(&mut self) {
        loop {
            match self.incoming.try_recv() {
                Ok(message) => self.handle(message),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return self.end_line(),
            }
        }
    }

    /// Ends the line that a write left unfinished, or gives it up.
    fn end_line(&mut self) {
        if self.write_tail().is_err()
            && let Some(tail) = self.tail.take()
        {
            self.lose(&tail.owner, 1);
        }
    }

    fn lose(&self, owner: &Owner, lines: u64) {
        self.requests.lines_lost.fetch_add(lines, Ordering::Relaxed);
        match owner {
            Owner::Access(counters) => counters.lose_lines(lines),
            Owner::Error => error_lines::count_dropped(lines),
        }
    }

    fn handle(&mut self, message: Message) {
        if self.requests.reopen.swap(false, Ordering::AcqRel) {
            match LogOutput::open(&self.target) {
                Ok(output) => {
                    // Its beginning is in the old file.
                    self.end_line();
                    self.output = output;
                }
                Err(error) => tracing::error!(%error, "log file not reopened, the old one stays in use"),
            }
        }
        let (bytes, lines, origin) = match message {
            Message::Block(Block { bytes, lines, origin }) => (bytes, lines, origin),
            Message::Wake => return,
            Message::Written(told) => {
                // Whoever has asked may have given up.
                let _ = told.try_send(());
                return;
            }
        };
        // Before the write, which may have to wait for a reader.
        if let Origin::Error(Some(level)) = origin {
            error_lines::show(level, &bytes);
        }
        match self.write(&bytes, lines, &origin) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::warn!(
                    lines_lost = self.requests.lines_lost.load(Ordering::Relaxed),
                    "log is written again"
                );
            }
            Ok(()) => {}
            Err(error) => {
                if !self.failing {
                    tracing::error!(%error, target = ?self.target, "log cannot be written, lines are lost");
                }
                self.failing = true;
            }
        }
        let Origin::Access(Sender { home, .. }) = origin else { return self.tell_dropped() };
        // The worker has enough buffers, or is gone.
        let _ = home.try_send(bytes);
    }

    /// Says once that lines of the error log are missing, when it flows again.
    fn tell_dropped(&mut self) {
        let dropped = error_lines::dropped();
        if dropped > self.told_dropped && !self.failing {
            let lines = dropped - self.told_dropped;
            tracing::error!(target: "sigma::log", "{lines} lines of the error log were dropped");
            self.told_dropped = dropped;
        }
    }

    /// Writes a block. Lines that are not written are counted as lost, but for one of which a part is: its
    /// rest is written when that is possible again.
    fn write(&mut self, bytes: &[u8], lines: u64, origin: &Origin) -> io::Result<()> {
        if let Err(error) = self.write_tail() {
            self.lose(&origin.owner(), lines);
            return Err(error);
        }
        let requests = &self.requests;
        let Err(Short { written, error }) = self.output.write_all(bytes, || requests.is_over()) else {
            return Ok(());
        };
        self.cut(bytes, lines, origin, written);
        Err(error)
    }

    /// A write of a block came to its end after `written` bytes.
    fn cut(&mut self, bytes: &[u8], lines: u64, origin: &Origin, written: usize) {
        let (whole, end) = match origin {
            // A line of the error log may have line ends within.
            Origin::Error(_) => (0, bytes.len()),
            Origin::Access(_) => {
                let ends = |part: &[u8]| part.iter().filter(|byte| **byte == b'\n').count() as u64;
                let end = bytes[written..].iter().position(|byte| *byte == b'\n');
                (ends(&bytes[..written]), end.map_or(bytes.len(), |end| written + end + 1))
            }
        };
        let is_torn = written > 0 && (matches!(origin, Origin::Error(_)) || bytes[written - 1] != b'\n');
        if is_torn {
            self.tail = Some(Tail { bytes: bytes[written..end].to_vec(), owner: origin.owner() });
        }
        self.lose(&origin.owner(), lines.saturating_sub(whole + u64::from(is_torn)));
    }

    fn write_tail(&mut self) -> io::Result<()> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        let requests = &self.requests;
        match self.output.write_all(&tail.bytes, || requests.is_over()) {
            Ok(()) => {
                self.tail = None;
                Ok(())
            }
            Err(Short { written, error }) => {
                tail.bytes.drain(..written);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
