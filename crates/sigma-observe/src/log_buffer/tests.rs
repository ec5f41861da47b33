//! Access lines on their way to a file: order, rotation, and what happens when the writer is behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use super::*;
use crate::line::{MARGIN, Put};

const DEADLINE: Duration = Duration::from_secs(10);

fn counters() -> Arc<WorkerCounters> {
    Arc::new(WorkerCounters::default())
}

fn put(sink: &mut LogSink, line: &str) {
    sink.line(|out| {
        out.put(line.as_bytes());
        out.push(b'\n');
    });
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Waits until `path` holds `expected`.
fn wait_for(path: &Path, expected: &str) {
    let end = Instant::now() + DEADLINE;
    while read(path) != expected {
        assert!(Instant::now() < end, "{} holds {:?}, not {expected:?}", path.display(), read(path));
        thread::yield_now();
    }
}

/// A sink whose queue nobody reads, and the queue.
fn unread_sink(queue_blocks: usize, buffer_bytes: usize) -> (LogSink, Receiver<Message>) {
    let (queue, incoming) = sync_channel(queue_blocks);
    let (_, finished) = sync_channel(1);
    let writer = LogWriter { queue, requests: Arc::default(), finished };
    let sink = writer.sink(buffer_bytes, counters());
    // Dropping a writer wakes its thread; a queue made for the test is to stay as it is.
    std::mem::forget(writer);
    (sink, incoming)
}

#[test]
fn lines_of_all_workers_arrive_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs/deep/access.log");
    let writer = LogWriter::start(LogTarget::File(path.clone()), 64).unwrap();
    thread::scope(|scope| {
        for worker in 0..3 {
            let mut sink = writer.sink(100, counters());
            scope.spawn(move || {
                for n in 0..50 {
                    put(&mut sink, &format!("worker {worker} line {n}"));
                    sink.flush();
                    thread::yield_now();
                }
                assert!(sink.counters.get(Counter::AccessLinesDropped) <= 50);
            });
        }
    });
    assert!(writer.close(DEADLINE));
    let text = read(&path);
    assert!(!text.is_empty());
    assert!(text.lines().all(|l| l.starts_with("worker ") && l.contains(" line ")), "{text}");
    for worker in 0..3 {
        let prefix = format!("worker {worker} line ");
        let numbers: Vec<u32> =
            text.lines().filter_map(|l| l.strip_prefix(&prefix)).map(|n| n.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0);
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o027, 0);
}

#[test]
fn a_full_buffer_leaves_by_itself_and_dropping_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let writer = LogWriter::start(LogTarget::File(path.clone()), 8).unwrap();
    let mut sink = writer.sink(8, counters());
    put(&mut sink, "one");
    assert_eq!(sink.buffer.as_bytes(), b"one\n");
    put(&mut sink, "two");
    assert!(sink.buffer.is_empty());
    wait_for(&path, "one\ntwo\n");
    put(&mut sink, "three");
    drop(sink);
    assert!(writer.close(DEADLINE));
    assert_eq!(read(&path), "one\ntwo\nthree\n");
}

#[test]
fn a_full_queue_drops_and_counts() {
    let (mut sink, incoming) = unread_sink(1, 8);
    for line in ["one", "two", "three", "four", "five"] {
        put(&mut sink, line);
    }
    // "one two" waits in the queue, "three four" found it full, "five" is still buffered.
    assert_eq!(sink.counters.get(Counter::AccessLinesDropped), 2);
    assert_eq!(sink.buffer.as_bytes(), b"five\n");
    drop(incoming);
    sink.flush();
    assert_eq!(sink.counters.get(Counter::AccessLinesDropped), 3);
}

#[test]
fn buffers_come_back_unless_they_grew() {
    let (mut sink, incoming) = unread_sink(4, 64);
    let usual = 64 + LINE_BYTES;
    for (capacity, kept) in
        [(usual + MARGIN, true), (usual * LARGEST_KEPT, true), (usual * LARGEST_KEPT + 1, false)]
    {
        sink.home.send(Vec::with_capacity(capacity)).unwrap();
        put(&mut sink, "x");
        assert_eq!(sink.buffer.capacity() == capacity, kept, "{capacity}");
        sink.flush();
        assert!(matches!(incoming.try_recv(), Ok(Message::Block(b)) if b.lines == 1 && b.bytes == b"x\n"));
    }
}

#[test]
fn reopening_follows_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, rotated) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let writer = LogWriter::start(LogTarget::File(path.clone()), 8).unwrap();
    let mut sink = writer.sink(1, counters());
    put(&mut sink, "before");
    wait_for(&path, "before\n");
    std::fs::rename(&path, &rotated).unwrap();
    put(&mut sink, "between");
    wait_for(&rotated, "before\nbetween\n");
    writer.reopen();
    put(&mut sink, "after");
    wait_for(&path, "after\n");
    assert_eq!(read(&rotated), "before\nbetween\n");
    drop(sink);
    assert!(writer.close(DEADLINE));
}

#[test]
fn a_failed_reopen_keeps_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("logs/access.log"), dir.path().join("moved.log"));
    let writer = LogWriter::start(LogTarget::File(path.clone()), 8).unwrap();
    let mut sink = writer.sink(1, counters());
    std::fs::rename(&path, &moved).unwrap();
    std::fs::create_dir(&path).unwrap();
    writer.reopen();
    put(&mut sink, "still here");
    wait_for(&moved, "still here\n");
    assert_eq!(writer.lines_lost(), 0);
    drop(sink);
    assert!(writer.close(DEADLINE));
}

#[test]
fn failed_writes_are_counted() {
    let writer = LogWriter::start(LogTarget::File("/dev/full".into()), 8).unwrap();
    let counters = counters();
    let mut sink = writer.sink(1, Arc::clone(&counters));
    put(&mut sink, "lost");
    put(&mut sink, "lost");
    let end = Instant::now() + DEADLINE;
    while writer.lines_lost() < 2 {
        assert!(Instant::now() < end, "{} lines lost", writer.lines_lost());
        thread::yield_now();
    }
    drop(sink);
    assert!(writer.close(DEADLINE));
    assert_eq!(counters.get(Counter::AccessLinesDropped), 2);
    assert_eq!(crate::counters::merge(&[counters]).get(Counter::AccessLinesDropped), 2);
}

#[test]
fn an_unusable_path_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = LogWriter::start(LogTarget::File(dir.path().into()), 8) else {
        panic!("a directory was opened as a log");
    };
    let text = error.to_string();
    assert!(text.contains(&dir.path().display().to_string()) && text.contains("check"), "{text}");
}
