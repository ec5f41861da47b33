//! The way of log lines from a thread to the descriptor: a bounded queue, and one writer thread.
//!
//! Only that thread uses the descriptor, whose other end may stall. A worker fills its buffer of access lines; a full
//! one goes into the queue if there is room; otherwise it is dropped and counted. Written buffers go back to their
//! worker, so a steady log allocates nothing. Lines of the error log ([`Lines`]) go the same way, one by one.

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

/// The number of buffers that may wait for their worker; others are freed.
const RETURNED_BUFFERS: usize = 4;

/// A buffer that grew beyond this multiple of its usual size is freed instead of reused.
const LARGEST_KEPT: usize = 4;

/// Room for the line that completes a buffer: most are shorter.
const LINE_BYTES: usize = 4 * 1024;

/// How long a writer at its end waits for a stalled reader.
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

/// The reason why a log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file or its directory cannot be made
    #[error("cannot open the log file {path}: {source}; check that the gateway may write to its folder")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A FIFO without its reader. To wait for one would prevent the start of the gateway.
    #[error(
        "cannot open the log file {path}: it is a FIFO or a socket without a reader; start its reader first"
    )]
    NoReader {
        /// The file.
        path: PathBuf,
    },
    /// The system has no thread
    #[error("cannot start the log writer thread: {0}; check the limit on processes")]
    Thread(io::Error),
}

/// Whole lines on their way to the writer.
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lines: u64,
    pub(crate) origin: Origin,
}

/// The type and owner of a block.
pub(crate) enum Origin {
    /// Access lines of a worker
    Access(Sender),
    /// A line of the error log, with its severity if a watcher may get it
    Error(Option<tracing::Level>),
}

/// The owner of a block.
pub(crate) struct Sender {
    /// The queue to which the buffer returns after writing.
    home: SyncSender<Vec<u8>>,
    counters: Arc<WorkerCounters>,
}

pub(crate) enum Message {
    Block(Block),
    /// Check the flags.
    Wake,
    /// Report that everything before this is written.
    Written(SyncSender<()>),
}

/// The requests of the control thread to the writer. Flags instead of messages: a full queue cannot lose them.
#[derive(Default)]
struct Requests {
    reopen: AtomicBool,
    /// The time at which the writer was asked to end.
    close: OnceLock<Instant>,
    lines_lost: AtomicU64,
}

impl Requests {
    /// Returns true if the wait for a stalled reader has ended.
    fn is_over(&self) -> bool {
        self.close.get().is_some_and(|since| since.elapsed() >= LAST_WAIT)
    }
}

/// The control thread's end of a log: it owns the writer thread. A drop ends the thread without waiting.
pub struct LogWriter {
    queue: SyncSender<Message>,
    requests: Arc<Requests>,
    finished: Receiver<()>,
}

impl LogWriter {
    /// Opens the target and starts the writer; `queue_blocks` is the number of full buffers that may wait for it.
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
            // There is no receiver if the log was dropped instead of closed.
            let _ = done.try_send(());
        };
        thread::Builder::new().name("sigma-log".into()).spawn(run).map_err(LogError::Thread)?;
        Ok(LogWriter { queue, requests, finished })
    }

    /// Returns a worker's end: it queues a block for each `buffer_bytes`.
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

    /// Returns an end for lines of the error log, which any thread may write to without waiting.
    pub fn lines(&self) -> Lines {
        Lines::new(self.queue.clone())
    }

    /// Reopens the file by its name, after a log rotation has renamed it. It does not wait.
    ///
    /// On failure the old file stays in use and the error log has the reason.
    pub fn reopen(&self) {
        self.requests.reopen.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns the lines lost in failed writes; the counters have them too, together with dropped lines.
    pub fn lines_lost(&self) -> u64 {
        self.requests.lines_lost.load(Ordering::Relaxed)
    }

    /// Waits until everything queued before is written; returns false if that took longer than `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        let (told, written) = sync_channel(1);
        self.queue.try_send(Message::Written(told)).is_ok() && written.recv_timeout(limit).is_ok()
    }

    /// Writes the queue and ends the thread; returns false if that took longer than `limit`.
    ///
    /// Drop sinks before: their later lines are dropped and counted.
    pub fn close(self, limit: Duration) -> bool {
        self.request_close();
        self.finished.recv_timeout(limit).is_ok()
    }

    fn request_close(&self) {
        self.requests.close.get_or_init(Instant::now);
        self.wake();
    }

    /// A full queue needs no wake-up: the writer checks the flags after every message.
    fn wake(&self) {
        let _ = self.queue.try_send(Message::Wake);
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.request_close();
    }
}

/// A worker's end of a log. A drop flushes it.
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
    /// Appends one line, which `render` writes with its newline. It never waits.
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

    /// Returns true if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Queues the buffer; also call it on a timer. It never waits.
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

    /// Ensures a buffer of ordinary size at the start of a block.
    fn begin_block(&mut self) {
        if self.buffer.capacity() == 0 {
            self.buffer = Line::again(self.returned.try_recv().unwrap_or_default());
        }
        // One giant line must not keep its memory forever.
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

/// The counter of a lost line.
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
    /// The last write failed; logged once, not for every block.
    failing: bool,
    /// The rest of a line after a cut write: it is written before all other bytes.
    tail: Option<Tail>,
    /// The dropped lines of the error log that it has reported.
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

    /// Completes the line that a write has cut, or gives it up.
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
                Err(error) => {
                    tracing::error!(%error, "cannot reopen the log file; the old file stays in use")
                }
            }
        }
        let (bytes, lines, origin) = match message {
            Message::Block(Block { bytes, lines, origin }) => (bytes, lines, origin),
            Message::Wake => return,
            Message::Written(told) => {
                // The requester may have given up.
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
                    "the log is written again"
                );
            }
            Ok(()) => {}
            Err(error) => {
                if !self.failing {
                    tracing::error!(%error, target = ?self.target, "cannot write the log; lines are lost");
                }
                self.failing = true;
            }
        }
        let Origin::Access(Sender { home, .. }) = origin else { return self.tell_dropped() };
        // The worker has enough buffers, or is gone.
        let _ = home.try_send(bytes);
    }

    /// Reports once, when the log works again, that lines of the error log are missing.
    fn tell_dropped(&mut self) {
        let dropped = error_lines::dropped();
        if dropped > self.told_dropped && !self.failing {
            let lines = dropped - self.told_dropped;
            tracing::error!(target: "sigma::log", "{lines} lines of the error log were dropped");
            self.told_dropped = dropped;
        }
    }

    /// Writes a block. Unwritten lines count as lost, except one that is partly written: its rest is written later.
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

    /// Handles a write of a block that was cut after `written` bytes.
    fn cut(&mut self, bytes: &[u8], lines: u64, origin: &Origin, written: usize) {
        let (whole, end) = match origin {
            // A line of the error log may contain line ends.
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
