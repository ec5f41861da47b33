//! Responses on a disk: found again after a restart, complete or not at all after any failure of disk or process, and
//! gone after a purge.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

mod disk;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::{MemoryDisk, Process, ROOMY};
use sigma_cache::disk_cache::Bounds;
use sigma_cache::disk_cache::port::Trouble;
use sigma_cache::{Draft, Fill, Freshness, Purge};
use sigma_http::{BodyLength, Chunk, Frame, Headers, ResponseHead};

const LARGE: usize = 3 << 20;

fn headers(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::default();
    fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
    headers
}

fn body(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(31).wrapping_add(seed * 7) % 251) as u8).collect()
}

/// A response, without its body.
struct Answer<'a> {
    key: &'a [u8],
    fields: &'a [(&'a str, &'a str)],
    request: &'a [(&'a str, &'a str)],
    is_length_known: bool,
}

impl Answer<'_> {
    fn of(key: &str) -> Answer<'_> {
        Answer { key: key.as_bytes(), fields: &[("ETag", "\"1\"")], request: &[], is_length_known: true }
    }

    /// Starts to store it.
    fn begin(&self, process: &Process, length: usize) -> Option<Fill> {
        let mut head = ResponseHead::default();
        head.start(200);
        head.headers = headers(self.fields);
        let known = BodyLength::Known(length as u64);
        let draft = Draft {
            zone: &process.zone,
            key: self.key,
            head: &head,
            request: &headers(self.request),
            resource: &[b"h/", self.key].concat(),
            varies: true,
            freshness: Freshness {
                born: 500,
                lifetime: 9,
                while_revalidating: 0,
                if_error: 0,
                never_stale: false,
            },
            length: if self.is_length_known { known } else { BodyLength::Streamed },
            most: u64::MAX,
            epoch: process.zone.epoch(self.key),
            now: process.now,
        };
        Fill::new(draft, None).ok()
    }

    fn put(&self, process: &Process, body: &[u8]) {
        if let Some(mut fill) = self.begin(process, body.len()) {
            body.chunks(50_000).for_each(|piece| fill.see(&Frame::Data(Chunk::copy_of(piece))));
            fill.see(&Frame::End);
        }
    }
}

fn kept(process: &Process, key: &str) -> Option<Vec<u8>> {
    let stored = process.get(key.as_bytes(), &Headers::default())?;
    Some(process.body(&stored).expect("it is whole"))
}

#[test]
fn a_restart_forgets_nothing() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    Answer::of("small").put(&first, b"hello");
    Answer::of("empty").put(&first, b"");
    Answer::of("large").put(&first, &body(1, LARGE));
    Answer { is_length_known: false, ..Answer::of("unknown") }.put(&first, &body(2, LARGE + 1));
    for language in ["de", "en"] {
        let (fields, request) = ([("Vary", "L"), ("X", language)], [("L", language)]);
        Answer { fields: &fields, request: &request, ..Answer::of("varied") }
            .put(&first, language.as_bytes());
    }
    // A truncated one is not stored.
    Answer::of("broken").begin(&first, LARGE).unwrap().see(&Frame::Data(Chunk::copy_of(b"x")));
    first.threads.work();
    let taken: usize = disk.contents().iter().map(|content| content.lock().unwrap().len()).sum();
    assert!(
        first.disk_cache.bytes() as usize >= taken && first.disk_cache.bytes() as usize <= taken + 7 * 4096
    );
    assert_eq!((first.disk_cache.entries(), disk.platter().files.len()), (6, 6));

    let second = Process::start(&disk, 2, ROOMY);
    assert_eq!((second.disk_cache.entries(), second.disk_cache.bytes()), (6, first.disk_cache.bytes()));
    assert_eq!(kept(&second, "small").as_deref(), Some(&b"hello"[..]));
    assert_eq!(kept(&second, "empty").as_deref(), Some(&b""[..]));
    assert!(kept(&second, "large").unwrap() == body(1, LARGE));
    assert!(kept(&second, "unknown").unwrap() == body(2, LARGE + 1));
    assert_eq!(kept(&second, "broken"), None);
    let varied = |language: &str| {
        let stored = second.get(b"varied", &headers(&[("l", language)]))?;
        assert_eq!(stored.headers.find(b"X"), Some(language.as_bytes()));
        second.body(&stored).ok()
    };
    assert_eq!(
        (varied("de"), varied("en"), varied("fr")),
        (Some(b"de".to_vec()), Some(b"en".to_vec()), None)
    );
    let large = second.get(b"large", &Headers::default()).unwrap();
    assert_eq!(
        (large.status, large.freshness.born, large.headers.find(b"ETag")),
        (200, 500, Some(&b"\"1\""[..]))
    );
    for (start, length) in
        [(0, 1), (65_535, 2), (65_536, 65_536), (LARGE as u64 - 1, 1), (100_000, 1_000_000)]
    {
        let part = second.part(&large, start, length).unwrap();
        assert!(part == body(1, LARGE)[start as usize..(start + length) as usize], "{start} {length}");
    }
    // A small one is in memory from then on, a large one is not.
    assert!(second.zone.find(b"small", &Headers::default()).is_some());
    assert!(second.zone.find(b"large", &Headers::default()).is_none());
    assert_eq!(second.threads.troubles(), []);
}

/// A process may die at any moment: each found response is complete, and was stored before.
#[test]
fn a_process_that_dies_leaves_no_torn_file() {
    let act = |process: &Process| {
        Answer::of("a").put(process, &body(1, 100_000));
        process.threads.work();
        Answer::of("large").put(process, &body(2, 1 << 20 | 77));
        Answer::of("b").put(process, &body(3, 10));
        process.threads.work();
        // A node revalidates it.
        if let Some(stored) = process.get(b"a", &Headers::default()) {
            let freshness = Freshness { born: 700, ..stored.freshness };
            let renewed = stored.refreshed(&headers(&[("X-New", "1")]), freshness);
            process.zone.insert(b"a", renewed, process.zone.epoch(b"a"), process.now);
        }
        process.threads.work();
        Answer::of("b").put(process, &body(4, 20));
        process.threads.work();
        process.zone.purge(b"large");
        process.threads.work();
    };
    let whole = MemoryDisk::default();
    let process = Process::begin(&whole, 1, ROOMY, 1 << 20, &[]);
    whole.platter().steps_left = Some(10_000);
    act(&process);
    let steps = 10_000 - whole.platter().steps_left.unwrap();
    assert!((20..1_000).contains(&steps), "{steps}");
    for dies_at in 1..=steps {
        let disk = MemoryDisk::default();
        let process = Process::begin(&disk, 1, ROOMY, 1 << 20, &[]);
        disk.platter().steps_left = Some(dies_at);
        act(&process);
        disk.platter().steps_left = None;
        let next = Process::start(&disk, 2, ROOMY);
        let check = |key: &str, versions: &[Vec<u8>]| {
            let found = kept(&next, key);
            assert!(found.is_none_or(|found| versions.contains(&found)), "{key} at {dies_at}");
        };
        check("a", &[body(1, 100_000)]);
        check("b", &[body(3, 10), body(4, 20)]);
        check("large", &[body(2, 1 << 20 | 77)]);
        if let Some(stored) = next.get(b"a", &Headers::default()) {
            let is_new = stored.headers.find(b"X-New").is_some();
            assert_eq!(
                stored.freshness.born,
                if is_new { 700 } else { 500 },
                "head and life are of one version"
            );
        }
        assert_eq!(next.threads.troubles(), [], "at {dies_at}");
        assert!(disk.platter().files.keys().all(|(_, is_draft)| !is_draft), "at {dies_at}");
    }
    let next = Process::start(&whole, 2, ROOMY);
    let renewed = next.get(b"a", &Headers::default()).unwrap();
    assert_eq!((renewed.freshness.born, renewed.headers.find(b"X-New")), (700, Some(&b"1"[..])));
    assert_eq!((kept(&next, "b"), kept(&next, "large")), (Some(body(4, 20)), None));
}

/// A changed byte anywhere is detected, and its response is removed; no client gets it.
#[test]
fn corrupt_responses_are_not_sent() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    Answer::of("k").put(&first, &body(1, 700));
    first.threads.work();
    let good = disk.contents()[0].lock().unwrap().clone();
    let name = *disk.platter().files.keys().next().unwrap();
    for at in 0..good.len() {
        for is_known in [false, true] {
            let disk = MemoryDisk::default();
            disk.platter().files.insert(name, Arc::new(std::sync::Mutex::new(good.clone())));
            let spoil = || disk.contents()[0].lock().unwrap()[at] ^= 0x10;
            if !is_known {
                spoil();
            }
            let next = Process::start(&disk, 2, ROOMY);
            if is_known {
                spoil();
            }
            let found = next.get(b"k", &Headers::default()).map(|stored| next.body(&stored).unwrap());
            assert!(found.as_ref().is_none_or(|found| *found == body(1, 700)), "byte {at}");
            next.threads.work();
            if found.is_none() {
                assert!(next.threads.troubles().contains(&Trouble::Corrupt), "byte {at}");
                assert_eq!((disk.platter().files.len(), next.disk_cache.bytes()), (0, 0), "byte {at}");
            }
        }
    }
    // In the middle of a large one.
    let disk = MemoryDisk::default();
    let process = Process::start(&disk, 1, ROOMY);
    Answer::of("k").put(&process, &body(1, LARGE));
    process.threads.work();
    let stored = process.get(b"k", &Headers::default()).unwrap();
    disk.contents()[0].lock().unwrap()[2 << 20] ^= 1;
    let part = process.body(&stored).unwrap_err();
    assert!(part.len() >= 1 << 20 && part.len() <= 2 << 20 && body(1, LARGE).starts_with(&part));
    process.threads.work();
    assert_eq!(process.threads.troubles(), [Trouble::Corrupt]);
    assert!(process.get(b"k", &Headers::default()).is_none() && disk.platter().files.is_empty());
    assert_eq!(process.disk_cache.counts().corrupt.load(Ordering::Relaxed), 1);
}

#[test]
fn foreign_changes_of_the_folder_are_detected() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    Answer::of("a").put(&first, b"a");
    Answer::of("b").put(&first, b"b");
    first.threads.work();
    let next = Process::start(&disk, 2, ROOMY);
    // The file of one response was replaced by another one's.
    let contents = disk.contents();
    let copy = contents[0].lock().unwrap().clone();
    contents[1].lock().unwrap().clone_from(&copy);
    let found = [kept(&next, "a"), kept(&next, "b")];
    assert_eq!(found.iter().flatten().count(), 1, "{found:?}");
    // And the other one was removed.
    let last = Process::start(&disk, 3, ROOMY);
    disk.platter().files.clear();
    assert_eq!((kept(&last, "a"), kept(&last, "b")), (None, None));
}

/// A disk that is full, fails or hangs costs no client its response.
#[test]
fn without_the_disk_it_continues() {
    let disk = MemoryDisk::default();
    let mut process = Process::start(&disk, 1, ROOMY);
    disk.platter().capacity = 10_000;
    Answer::of("a").put(&process, &body(1, 20_000));
    process.threads.work();
    assert_eq!(process.threads.troubles(), [Trouble::Write]);
    assert_eq!((kept(&process, "a"), process.disk_cache.bytes()), (Some(body(1, 20_000)), 0));
    assert!(disk.platter().files.is_empty(), "nothing of it is left");
    // For a while nothing is written.
    disk.platter().capacity = 0;
    Answer::of("b").put(&process, b"b");
    process.threads.work();
    assert!(disk.platter().files.is_empty() && kept(&process, "b").is_some());
    process.now += 10;
    Answer::of("c").put(&process, b"c");
    process.threads.work();
    assert_eq!(disk.platter().files.len(), 1);
    // A large one has no place then, and is still forwarded.
    disk.platter().capacity = 100_000;
    Answer::of("large").put(&process, &body(1, LARGE));
    process.threads.work();
    assert_eq!((process.threads.troubles(), kept(&process, "large")), (vec![Trouble::Write], None));
    assert_eq!(disk.platter().files.len(), 1);
    process.now += 10;
    // All threads are busy.
    process.threads.take_at_most(0);
    Answer::of("d").put(&process, b"d");
    assert_eq!(process.threads.troubles(), [Trouble::Slow]);
    assert!(kept(&process, "d").is_some());
    let next = Process::start(&disk, 2, ROOMY);
    next.threads.take_at_most(0);
    assert!(next.zone.fetch(b"c", &Headers::default(), next.now).is_none());
    next.threads.take_at_most(9);
    next.zone.fetch(b"c", &Headers::default(), next.now).unwrap().give_up(next.now);
    assert!(next.zone.fetch(b"c", &Headers::default(), next.now + 4).is_none(), "it is slow");
    next.threads.work();
    disk.platter().fails = Some(std::io::ErrorKind::Other);
    assert!(next.zone.fetch(b"c", &Headers::default(), next.now + 5).is_some());
    next.threads.work();
    disk.platter().fails = None;
    let mut next = next;
    next.now += 5;
    assert_eq!(
        kept(&next, "c").as_deref(),
        Some(&b"c"[..]),
        "an error of the disk says nothing of the answer"
    );
}

#[test]
fn disk_use_is_bounded() {
    let disk = MemoryDisk::default();
    let bounds = Bounds { disk_bytes: 100 << 10, table_bytes: 16 << 20, inactive_s: 100 };
    let mut process = Process::begin(&disk, 1, bounds, 64 << 10, &[]);
    process.look_through();
    for n in 0..100 {
        process.now += 1;
        Answer::of(&format!("k{n}")).put(&process, &body(n, 3_000));
        // One of them is requested again and again.
        assert!(process.get(b"k0", &Headers::default()).is_some(), "at {n}");
        process.zone.find(b"k0", &Headers::default()).iter().for_each(|stored| stored.touch(process.now));
        process.threads.work();
        let bytes: usize = disk.contents().iter().map(|content| content.lock().unwrap().len()).sum();
        assert!(bytes <= 100 << 10 && process.disk_cache.bytes() <= 100 << 10, "{bytes}");
    }
    let left = process.disk_cache.entries();
    assert!((20..=25).contains(&left) && disk.platter().files.len() as u64 == left, "{left}");
    assert!(process.disk_cache.counts().evicted.load(Ordering::Relaxed) >= 70);
    // All are unused, except one.
    process.now += 60;
    process.get(b"k0", &Headers::default()).unwrap().touch(process.now);
    process.now += 60;
    process.maintain();
    assert_eq!((process.disk_cache.entries(), disk.platter().files.len()), (1, 1));
    // The next process has less room.
    for n in 0..20 {
        Answer::of(&format!("k{n}")).put(&process, &body(n, 3_000));
    }
    process.threads.work();
    let next = Process::start(&disk, 2, Bounds { disk_bytes: 20 << 10, ..bounds });
    assert!(
        next.disk_cache.bytes() <= 20 << 10 && next.disk_cache.entries() == disk.platter().files.len() as u64
    );
    let table = Process::start(&disk, 3, Bounds { table_bytes: 1_000, ..bounds });
    assert!((2..=3).contains(&table.disk_cache.entries()), "{}", table.disk_cache.entries());
    // One that is larger than half of it is not stored.
    Answer::of("large").put(&next, &body(1, 60 << 10));
    next.threads.work();
    assert!(!disk.contents().iter().any(|content| content.lock().unwrap().len() > 50 << 10));
}

/// After an erasure, matching responses are gone everywhere: from files, drafts, and later processes.
#[test]
fn purged_responses_are_gone_from_the_disk() {
    let orders = [
        Purge { resources: [b"h/a"[..].into()].into(), ..Purge::default() },
        Purge { prefixes: vec![b"h/a"[..].into()], ..Purge::default() },
        Purge { tags: [b"red"[..].into()].into(), ..Purge::default() },
        Purge { keys: vec![b"a"[..].into()], ..Purge::default() },
        Purge::everything(),
    ];
    let red = Answer { fields: &[("Cache-Tag", "red")], ..Answer::of("a") };
    for order in &orders {
        let zones = sigma_cache::Zones::default();
        let disk = MemoryDisk::default();
        let process = Process::start(&disk, 1, ROOMY);
        let disk_cache = Arc::clone(&process.disk_cache);
        zones.make_disk_caches_by(move |_, _, _| Arc::clone(&disk_cache));
        let place = sigma_plugin::cache::CacheDisk {
            path: "/".into(),
            levels: vec![1],
            bytes: 1 << 30,
            inactive_s: 9,
        };
        let mut process = process;
        process.zone = zones.zone("z", 4 << 20, Some(&place));
        for (length, works) in [(10, true), (10, false), (LARGE, true), (LARGE, false)] {
            red.put(&process, &body(1, length));
            Answer::of("b").put(&process, b"b");
            if works {
                process.threads.work();
            }
            // It is still arriving, unless it is being written already.
            let mut coming = red.begin(&process, LARGE);
            assert_eq!(coming.is_some(), works);
            let half = Frame::Data(Chunk::copy_of(&body(1, LARGE / 2)));
            coming.iter_mut().for_each(|coming| coming.see(&half));
            process.threads.work_once();
            let (count, erasure) = zones.purge(order);
            assert!(count > 0, "{order:?} {length} {works}");
            coming.iter_mut().for_each(|coming| coming.see(&half));
            coming.iter_mut().for_each(|coming| coming.see(&Frame::End));
            assert_eq!(kept(&process, "a"), None, "{order:?} {length} {works}");
            process.threads.work();
            let mut done = std::pin::pin!(erasure.done());
            let mut task = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(done.as_mut().poll(&mut task).is_ready(), "{order:?} {length} {works}");
            let next = Process::start(&disk, 2, ROOMY);
            assert_eq!(kept(&next, "a"), None, "{order:?} {length} {works}");
            assert_eq!(kept(&next, "b").is_some(), !order.all, "{order:?} {length} {works}");
        }
    }
}

#[test]
fn an_erasure_is_not_done_before_the_file_is_gone() {
    let disk = MemoryDisk::default();
    let process = Process::start(&disk, 1, ROOMY);
    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    for is_written in [true, false] {
        Answer::of("a").put(&process, b"a");
        if is_written {
            process.threads.work();
        }
        let (was_kept, erasure) = process.zone.erase(b"a");
        let mut done = std::pin::pin!(erasure.done());
        assert!(was_kept && done.as_mut().poll(&mut task).is_pending());
        process.threads.work();
        assert!(done.as_mut().poll(&mut task).is_ready() && disk.platter().files.is_empty());
    }
    let (was_kept, erasure) = process.zone.erase(b"a");
    assert!(!was_kept && std::pin::pin!(erasure.done()).as_mut().poll(&mut task).is_ready());
}

/// Responses found by the scan are not used after a purge, or if a newer one is known.
#[test]
fn late_found_responses_are_checked() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    for key in ["order", "before", "key", "newer", "good"] {
        let tags: &[_] = if key == "order" { &[("Cache-Tag", "red")] } else { &[] };
        Answer { fields: tags, ..Answer::of(key) }.put(&first, b"old");
    }
    first.threads.work();
    let before = Purge { resources: [b"h/before"[..].into()].into(), ..Purge::default() };
    let mut next = Process::begin(&disk, 2, ROOMY, 16 << 20, &[before]);
    // The scan has found nothing yet.
    assert_eq!(kept(&next, "good"), None);
    let red = Purge { tags: [b"red"[..].into()].into(), ..Purge::default() };
    let zones = sigma_cache::Zones::default();
    let disk_cache = Arc::clone(&next.disk_cache);
    zones.make_disk_caches_by(move |_, _, _| Arc::clone(&disk_cache));
    let place =
        sigma_plugin::cache::CacheDisk { path: "/".into(), levels: vec![1], bytes: 1 << 30, inactive_s: 9 };
    next.zone = zones.zone("z", 16 << 20, Some(&place));
    zones.purge(&red);
    next.zone.purge(b"key");
    Answer::of("newer").put(&next, b"new");
    next.look_through();
    next.threads.work();
    for key in ["order", "before", "key"] {
        assert_eq!(kept(&next, key), None, "{key}");
    }
    assert_eq!(kept(&next, "newer").as_deref(), Some(&b"new"[..]));
    assert_eq!(kept(&next, "good").as_deref(), Some(&b"old"[..]));
    assert_eq!(disk.platter().files.len(), 2);
    // After too many orders nothing is used.
    let mut last = Process::begin(&disk, 3, ROOMY, 16 << 20, &vec![red; 1_001]);
    last.look_through();
    assert_eq!((last.disk_cache.entries(), disk.platter().files.len()), (0, 0));
}

/// A concurrent request gets a response that is being written, and does not write it again.
#[test]
fn one_request_writes_a_large_response() {
    let disk = MemoryDisk::default();
    let process = Process::start(&disk, 1, ROOMY);
    let mut first = Answer::of("k").begin(&process, LARGE).unwrap();
    first.see(&Frame::Data(Chunk::copy_of(&body(1, LARGE))));
    assert!(Answer::of("k").begin(&process, LARGE).is_none());
    first.see(&Frame::End);
    process.threads.work();
    assert!(kept(&process, "k").unwrap() == body(1, LARGE));
    // A small one replaces one that is arriving.
    let mut second = Answer::of("k").begin(&process, LARGE).unwrap();
    Answer::of("k").put(&process, b"small");
    second.see(&Frame::Data(Chunk::copy_of(&body(2, LARGE))));
    second.see(&Frame::End);
    process.threads.work();
    let next = Process::start(&disk, 2, ROOMY);
    assert_eq!(kept(&next, "k").as_deref(), Some(&b"small"[..]));
}

/// A response that was being read when a newer one completed does not come back into memory.
#[test]
fn a_response_replaced_during_a_read_stays_replaced() {
    for is_written_before in [true, false] {
        let disk = MemoryDisk::default();
        let first = Process::start(&disk, 1, ROOMY);
        Answer::of("k").put(&first, b"old");
        first.threads.work();
        let process = Process::start(&disk, 2, ROOMY);
        let mut newer = Answer::of("k").begin(&process, LARGE).unwrap();
        newer.see(&Frame::Data(Chunk::copy_of(&body(1, LARGE))));
        let mut fetch = process.zone.fetch(b"k", &Headers::default(), process.now).unwrap();
        process.threads.work();
        newer.see(&Frame::End);
        if is_written_before {
            process.threads.work();
        }
        let mut task = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::Pin::new(&mut fetch).poll(&mut task).is_ready());
        process.threads.work();
        assert!(kept(&process, "k").unwrap() == body(1, LARGE), "{is_written_before}");
    }
}

/// If a folder cannot be listed for a moment, no file is skipped that a later process would find; an unreadable file
/// is removed.
#[test]
fn a_folder_that_cannot_be_scanned_is_scanned_again() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    Answer::of("k").put(&first, b"old");
    first.threads.work();
    let mut next = Process::begin(&disk, 2, ROOMY, 16 << 20, &[]);
    disk.platter().fails = Some(std::io::ErrorKind::Other);
    (0..5).for_each(|_| next.maintain());
    assert!(!next.disk_cache.is_known() && next.threads.troubles() == [Trouble::Read; 5]);
    disk.platter().fails = None;
    next.look_through();
    assert_eq!(kept(&next, "k").as_deref(), Some(&b"old"[..]));
    disk.platter().unreadable = true;
    let mut last = Process::begin(&disk, 3, ROOMY, 16 << 20, &[]);
    last.look_through();
    assert_eq!((last.threads.troubles(), disk.platter().files.len()), (vec![Trouble::Read], 0));
}

/// A process that hands its folder over writes nothing there any more, and clients still get running responses.
#[test]
fn a_folder_is_handed_to_another_process() {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    Answer::of("large").put(&first, &body(1, LARGE));
    first.threads.work();
    let stored = first.get(b"large", &Headers::default()).unwrap();
    Answer::of("a").put(&first, b"a");
    first.zone.purge(b"large");
    first.disk_cache.close();
    Answer::of("b").put(&first, b"b");
    first.threads.work();
    let next = Process::start(&disk, 2, ROOMY);
    assert_eq!((kept(&next, "a").is_some(), kept(&next, "b"), kept(&next, "large")), (true, None, None));
    assert!(first.body(&stored).unwrap() == body(1, LARGE));
    assert!(first.zone.fetch(b"a", &Headers::default(), first.now).is_none());
    assert!(kept(&first, "b").is_some(), "memory is its own");
}

/// One that was closed before it had its folder does not take it from the next process.
#[test]
fn a_closed_disk_cache_is_not_opened() {
    let disk = MemoryDisk::default();
    let process = Process::begin(&disk, 1, ROOMY, 4 << 20, &[]);
    process.disk_cache.close();
    process.threads.work();
    process.disk_cache.open(Arc::new(disk.clone()), 1, &[]);
    assert!(process.disk_cache.is_left() && !process.disk_cache.is_open());
    Answer::of("k").put(&process, b"in memory");
    process.threads.work();
    assert_eq!((kept(&process, "k").is_some(), disk.platter().files.len()), (true, 0));
}
