//! `kill -9` of a process that writes: no write that it acknowledged is lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod store_support;

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use sigma_control::store::embedded::Embedded;
use sigma_control::store::{Store, StoreError};
use store_support::{always, put};

/// Names the directory to the process that is going to be killed.
const CHILD_DIR: &str = "SIGMA_TEST_STORE_DIR";

/// Names the directory to the process whose disk becomes full.
const FULL_DIR: &str = "SIGMA_TEST_FULL_DIR";

/// Writes without end and says so; only when it was started by the test below.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let store = Arc::new(Embedded::open(Path::new(&dir)).unwrap());
    let round = store.next_id().await.unwrap();
    let writers: Vec<_> =
        (0..16).map(|writer| tokio::spawn(write(Arc::clone(&store), round, writer))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn write(store: Arc<Embedded>, round: u64, writer: u32) {
    for number in 0.. {
        let key = format!("routes/{round}-{writer}-{number}");
        let revision = store.commit(always([put(&key, "{\"uri\":\"/\"}")])).await.unwrap();
        writeln!(std::io::stdout().lock(), "acknowledged {key} {revision}").unwrap();
    }
}

#[tokio::test]
async fn no_acknowledged_write_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let parse = |line: String| {
            let (_, rest) = line.split_once("acknowledged ")?;
            let (key, revision) = rest.split_once(' ')?;
            Some((key.to_owned(), revision.parse::<u64>().ok()?))
        };
        acknowledged.extend(lines.by_ref().filter_map(parse).take(250 * round));
        if round == 1 {
            let second = Embedded::open(dir.path()).unwrap_err();
            assert!(
                matches!(&second, StoreError::Unavailable(text) if text.contains("another process")),
                "{second}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Its output between the last line that was read and its end.
        acknowledged.extend(lines.filter_map(parse));
        let store = Embedded::open(dir.path()).unwrap();
        let newest = store.load().await.unwrap().revision;
        for (key, revision) in &acknowledged {
            let record = store.get(key).await.unwrap();
            assert!(record.is_some_and(|record| record.modified == *revision), "{key} is lost");
            assert!(newest >= *revision);
        }
    }
    assert!(acknowledged.len() >= 2500);
}

/// Fills a disk of three megabytes; only when it was started by the test below.
#[tokio::test]
async fn child_on_a_full_disk() {
    let Some(dir) = std::env::var_os(FULL_DIR) else { return };
    let store = Embedded::open(Path::new(&dir)).unwrap();
    let value = format!("{{\"desc\":\"{}\"}}", "x".repeat(50_000));
    let mut written = 0;
    let error = loop {
        match store.commit(always([put(&format!("routes/{written}"), &value)])).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the disk is never full");
    };
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("check the disk")), "{error}");
    assert!(store.status().lost.is_some());
    let count = async || store.list("routes/").await.unwrap().len();
    assert_eq!(count().await, written);
    // Room again: the same store continues, and nothing is missing.
    let none = rustix::process::Rlimit { current: None, maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, none).unwrap();
    store.commit(always([put("services/1", "{}")])).await.unwrap();
    assert_eq!((store.status().lost, count().await), (None, written));
    drop(store);
    let store = Embedded::open(Path::new(&dir)).unwrap();
    assert_eq!(store.list("").await.unwrap().len(), written + 1);
    writeln!(std::io::stdout().lock(), "survived {written}").unwrap();
}

#[test]
fn a_full_disk_loses_nothing_and_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    // A limit on the size of a file simulates a full disk; its signal must not end the process.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -S -f 6000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["child_on_a_full_disk", "--exact", "--nocapture"])
        .env(FULL_DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("survived"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Many writes at once share an fsync: a thousand of them take no thousand times as long as one.
#[tokio::test]
async fn concurrent_writes_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(dir.path()).unwrap());
    let began = std::time::Instant::now();
    for number in 0..20 {
        store.commit(always([put(&format!("services/{number}"), "{}")])).await.unwrap();
    }
    let one = began.elapsed() / 20;
    let began = std::time::Instant::now();
    let writes = (0..1000).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.commit(always([put(&format!("routes/{number}"), "{}")])).await })
    });
    let mut revisions = Vec::new();
    for write in writes.collect::<Vec<_>>() {
        revisions.push(write.await.unwrap().unwrap());
    }
    let thousand = began.elapsed();
    assert!(revisions.is_sorted_by(|a, b| a < b));
    assert!(thousand < one * 500, "one took {one:?}, a thousand took {thousand:?}");
}
