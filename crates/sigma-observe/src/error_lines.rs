//! Lines of the error log on their way from any thread to the writer.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use tracing::Level;

use crate::log_buffer::{Block, Message, Origin};

/// The longest line; the rest is cut. A request head may be 100 times as long, and a thousand lines may wait in the
/// queue.
const LINE_BYTES: usize = 8 * 1024;

/// One count, as a process has one error log.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Returns the lines of the error log that were dropped or lost since the start.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

pub(crate) fn count_dropped(lines: u64) {
    DROPPED.fetch_add(lines, Ordering::Relaxed);
}

/// The watcher of the lines, besides the log: one in a process, like the log.
static WATCHER: OnceLock<Box<Watcher>> = OnceLock::new();

/// The lowest severity for the watcher, by [`rank`]; 0 for none.
static WANTED: AtomicU8 = AtomicU8::new(0);

/// Gets a line, without its end, on the log's thread, or by [`relay`]. It must not wait.
type Watcher = dyn Fn(Level, &[u8]) + Send + Sync;

thread_local! {
    static IS_UNWATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Hides the lines of this thread from the watcher: they are about the watcher's own work and would cause an endless
/// loop.
pub fn unwatch_thread() {
    IS_UNWATCHED.set(true);
}

/// Sets the watcher for the lines selected by [`want`]; only the first call counts.
pub fn watch(watcher: impl Fn(Level, &[u8]) + Send + Sync + 'static) {
    WATCHER.get_or_init(|| Box::new(watcher));
}

/// Sets the lowest severity of lines for the watcher; None for no lines.
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

/// Passes a line of another process's log, without its end, to the watcher if it is selected. This process's log does
/// not get it.
pub fn relay(level: Level, line: &[u8]) {
    show(level, line);
}

/// Passes a line to the watcher if it is selected. Runs on the log's thread.
pub(crate) fn show(level: Level, line: &[u8]) {
    let Some(watcher) = WATCHER.get().filter(|_| rank(level) <= WANTED.load(Ordering::Relaxed)) else {
        return;
    };
    let before = IS_UNWATCHED.replace(true);
    watcher(level, line.strip_suffix(b"\n").unwrap_or(line));
    IS_UNWATCHED.set(before);
}

/// Writes lines to the error log. Lines without room are dropped and counted; callers never wait.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Message>,
    level: Level,
}

impl Lines {
    pub(crate) fn new(queue: SyncSender<Message>) -> Lines {
        Lines { queue, level: Level::ERROR }
    }

    /// Returns a writer for lines of this level.
    pub fn at(&self, level: Level) -> Lines {
        Lines { level, ..self.clone() }
    }
}

impl io::Write for Lines {
    /// Writes `line` as one line, escaped. It never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Also for the last lines of a thread at its end.
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

/// Returns the line with its end, within its limit. It may contain bytes of a peer: control characters are escaped
/// and further lines of a text are indented, so that a peer cannot forge a line.
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
        // Not inside a character.
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
    fn a_line_is_one_line_and_bounded() {
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
