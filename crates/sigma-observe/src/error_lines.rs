//! Lines of the error log on their way to its writer, from whichever thread has something to say.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use tracing::Level;

use crate::log_buffer::{Block, Message, Origin};

/// Longest line; the rest is cut. A request's head may be 100 times as long, and a thousand of them
/// wait in the queue.
const LINE_BYTES: usize = 8 * 1024;

/// There is one error log in a process, so there is one count.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Lines of the error log that were dropped or lost since the start.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

pub(crate) fn count_dropped(lines: u64) {
    DROPPED.fetch_add(lines, Ordering::Relaxed);
}

/// Who is shown the lines, besides the log: one in a process, as the log is.
static WATCHER: OnceLock<Box<Watcher>> = OnceLock::new();

/// How severe a line is that the watcher wants to see, by [`rank`]; 0 if it wants none.
static WANTED: AtomicU8 = AtomicU8::new(0);

/// Is shown a line, without its end, on the thread of the log, or by [`relay`]. Must not wait.
type Watcher = dyn Fn(Level, &[u8]) + Send + Sync;

thread_local! {
    static IS_UNWATCHED: Cell<bool> = const { Cell::new(false) };
}

/// From here on the watcher is not shown what this thread says: it is about the watcher's own work, and would go
/// round for ever.
pub fn unwatch_thread() {
    IS_UNWATCHED.set(true);
}

/// Has `watcher` shown the lines that [`want`] says; for good, the first time that it is called.
pub fn watch(watcher: impl Fn(Level, &[u8]) + Send + Sync + 'static) {
    WATCHER.get_or_init(|| Box::new(watcher));
}

/// The watcher is shown lines that are at least as severe; none, if there is no level.
pub fn want(level: Option<Level>) {
    WANTED.store(level.map_or(0, rank), Ordering::Relaxed);
}

fn rank(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Shows the watcher a line of another process's log, without its end, if it wants it. The log of this one does not
/// have it.
pub fn relay(level: Level, line: &[u8]) {
    show(level, line);
}

/// Shows the watcher a line, if it wants it. On the thread of the log.
pub(crate) fn show(level: Level, line: &[u8]) {
    let Some(watcher) = WATCHER.get().filter(|_| rank(level) <= WANTED.load(Ordering::Relaxed)) else {
        return;
    };
    let before = IS_UNWATCHED.replace(true);
    watcher(level, line.strip_suffix(b"\n").unwrap_or(line));
    IS_UNWATCHED.set(before);
}

/// Takes lines for the error log. Lines that find no room are dropped and counted; nobody waits.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Message>,
    level: Level,
}

impl Lines {
    pub(crate) fn new(queue: SyncSender<Message>) -> Lines {
        Lines { queue, level: Level::ERROR }
    }

    /// The same for lines of this level.
    pub fn at(&self, level: Level) -> Lines {
        Lines { level, ..self.clone() }
    }
}

impl io::Write for Lines {
    /// Takes `line` as one line with all that it needs. Never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A thread that ends says the last it has to say.
        let is_unwatched = IS_UNWATCHED.try_with(Cell::get).unwrap_or(true);
        let origin = Origin::Error((!is_unwatched).then_some(self.level));
        let block = Block { bytes: one_line(line), lines: 1, origin };
        if self.queue.try_send(Message::Block(block)).is_err() {
            count_dropped(1);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line with its end, in bounds. It may hold bytes that a peer sent: control characters are escaped, and
/// a text of several lines is indented, so that nobody can forge a line.
fn one_line(line: &[u8]) -> Vec<u8> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let kept = &text[..text.len().min(LINE_BYTES)];
    let mut out = Vec::with_capacity(kept.len() + 1);
    for &byte in kept {
        match byte {
            b'\n' => out.extend_from_slice(b"\n    "),
            b'\t' => out.push(byte),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    if kept.len() < text.len() {
        // Not in the middle of a character.
        while out.last().is_some_and(|byte| !byte.is_ascii()) {
            out.pop();
        }
        out.extend_from_slice(" [cut]".as_bytes());
    }
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_not_endless() {
        fn check(line: &str, expected: &str) {
            assert_eq!(String::from_utf8(one_line(line.as_bytes())).unwrap(), expected, "{line:?}");
        }
        check("", "\n");
        check("a\n", "a\n");
        check("a\tb", "a\tb\n");
        check("a\nERROR forged\n", "a\n    ERROR forged\n");
        check("a\r\x1b[2J\x7f", "a\\x0d\\x1b[2J\\x7f\n");
        check("\u{e4}", "\u{e4}\n");
        let long = "\u{e4}".repeat(LINE_BYTES);
        check(&format!("x{long}"), "x [cut]\n");
        assert_eq!(one_line(&vec![b'a'; 2 * LINE_BYTES]).len(), LINE_BYTES + " [cut]\n".len());
    }
}
