//! Access lines on their way to a file: order, rotation, and a writer that is behind.

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

/// Waits until `path` contains `expected`.
fn wait_for(path: &Path, expected: &str) {
    let end = Instant::now() + DEADLINE;
    while read(path) != expected {
        assert!(Instant::now() < end, "{} holds {:?}, not {expected:?}", path.display(), read(path));
        thread::yield_now();
    }
}

/// Returns a sink whose queue has no reader, and the queue.
fn unread_sink(queue_blocks: usize, buffer_bytes: usize) -> (LogSink, Receiver<Message>) {
    let (queue, incoming) = sync_channel(queue_blocks);
    let (_, finished) = sync_channel(1);
    let writer = LogWriter { queue, requests: Arc::default(), finished };
    let sink = writer.sink(buffer_bytes, counters());
    // A drop would wake the writer's thread; the test's queue must stay unchanged.
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

/// Returns the state of a writer thread, without the thread.
fn writer_of(target: &Path) -> (Writer, SyncSender<Message>) {
    let (queue, incoming) = sync_channel(8);
    let target = LogTarget::File(target.into());
    let output = LogOutput::open(&target).unwrap();
    let requests = Arc::new(Requests::default());
    let writer = Writer { target, output, incoming, requests, failing: false, tail: None, told_dropped: 0 };
    (writer, queue)
}

fn block(bytes: &str, counters: &Arc<WorkerCounters>) -> Message {
    let lines = bytes.matches('\n').count() as u64;
    Message::Block(Block {
        bytes: bytes.as_bytes().to_vec(),
        lines,
        origin: Origin::Access(sender(counters)),
    })
}

/// A disk becomes full within a block, at each of its bytes, and has room again later: no line is split, and the
/// missing lines match the counter.
#[test]
fn a_full_disk_splits_no_line() {
    let dir = tempfile::tempdir().unwrap();
    let block_text = "one\ntwo two\n\nfour\n";
    for room in 0..block_text.len() {
        for later in ["", "five\n"] {
            let path = dir.path().join(format!("{room}{}.log", later.len()));
            let (mut writer, _queue) = writer_of(&path);
            let counters = counters();
            // The rest after a write that was cut at `room` bytes.
            writer.output.write_all(&block_text.as_bytes()[..room], || false).unwrap();
            writer.cut(block_text.as_bytes(), 4, &Origin::Access(sender(&counters)), room);
            if !later.is_empty() {
                writer.handle(block(later, &counters));
            }
            writer.end_line();
            let text = read(&path);
            let expected: Vec<&str> = block_text.split_inclusive('\n').collect();
            let mut kept = expected.iter().copied().take_while({
                let mut at = 0;
                move |line| {
                    let begins = at;
                    at += line.len();
                    begins < room
                }
            });
            let whole: String = kept.by_ref().collect::<String>() + later;
            assert_eq!(text, whole, "{room}");
            let written = text.matches('\n').count() as u64 - u64::from(!later.is_empty());
            assert_eq!(counters.get(Counter::AccessLinesDropped), 4 - written, "{room}");
        }
    }
}

/// A line whose rest can never be written counts as lost, once.
#[test]
fn an_unfinished_line_is_counted() {
    let (mut writer, _queue) = writer_of(Path::new("/dev/full"));
    let counters = counters();
    writer.cut(b"one\ntwo\n", 2, &Origin::Access(sender(&counters)), 5);
    assert_eq!((counters.get(Counter::AccessLinesDropped), writer.tail.is_some()), (0, true));
    writer.handle(block("three\n", &counters));
    assert_eq!((counters.get(Counter::AccessLinesDropped), writer.tail.is_some()), (1, true));
    writer.end_line();
    assert_eq!((counters.get(Counter::AccessLinesDropped), writer.tail.is_none()), (2, true));
    assert_eq!(writer.requests.lines_lost.load(Ordering::Relaxed), 2);
}

/// A line of the error log is one line, whatever its bytes.
#[test]
fn a_line_of_the_error_log_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("error.log");
    let (mut writer, _queue) = writer_of(&path);
    writer.output.write_all(b"ERROR a\n b", || false).unwrap();
    writer.cut(b"ERROR a\n b\n c\n", 1, &Origin::Error(None), 10);
    writer.end_line();
    assert_eq!(read(&path), "ERROR a\n b\n c\n");
    assert_eq!(writer.requests.lines_lost.load(Ordering::Relaxed), 0);
}

fn sender(counters: &Arc<WorkerCounters>) -> Sender {
    Sender { home: sync_channel(1).0, counters: Arc::clone(counters) }
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
