//! A disk cache folder whose files were damaged while it was closed: the body of the target in `fuzz/`.

use std::sync::{Arc, Mutex};

use sigma_cache::disk_cache::port::FileId;
use sigma_cache::{Draft, Fill, Freshness};
use sigma_http::{BodyLength, Chunk, Frame, Headers, ResponseHead};

use super::disk::{MemoryDisk, Process, ROOMY};

/// Keys, and lengths of their bodies. The last body takes several blocks.
const KEPT: [(&str, usize); 4] = [("a", 5), ("b", 0), ("c", 300), ("d", 140_000)];

/// Input: changes of a folder, of four bytes each: a file, a change, and a position. No change panics; a found
/// response is the stored one, as far as its body reaches; files stay within the limits.
pub(crate) fn cache_folder(input: &[u8]) {
    let disk = MemoryDisk::default();
    let first = Process::start(&disk, 1, ROOMY);
    for (number, (key, length)) in KEPT.iter().enumerate() {
        put(&first, key, &body(number, *length));
    }
    first.threads.work();
    drop(first);
    for change in input.chunks_exact(4).take(32) {
        apply(&disk, [change[0], change[1], change[2], change[3]]);
    }
    let mut second = Process::start(&disk, 2, ROOMY);
    for (number, (key, length)) in KEPT.iter().enumerate() {
        let Some(stored) = second.get(key.as_bytes(), &Headers::default()) else { continue };
        assert_eq!((stored.status, stored.headers.find(b"X-Key")), (200, Some(key.as_bytes())));
        let expected = body(number, *length);
        assert_eq!(stored.body.length(), expected.len() as u64);
        match second.body(&stored) {
            Ok(found) => assert!(found == expected, "{key}: another body"),
            Err(part) => assert!(expected.starts_with(&part), "{key}: a part of another body"),
        }
    }
    second.threads.work();
    (0..3).for_each(|_| second.maintain());
    second.threads.work();
    assert!(second.disk_cache.bytes() <= ROOMY.disk_bytes);
}

fn body(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(31).wrapping_add(seed * 7) % 251) as u8).collect()
}

fn put(process: &Process, key: &str, body: &[u8]) {
    let (mut head, request) = (ResponseHead::default(), Headers::default());
    head.start(200);
    head.headers.append("X-Key", key.as_bytes());
    let draft = Draft {
        zone: &process.zone,
        key: key.as_bytes(),
        head: &head,
        request: &request,
        resource: &[b"h/", key.as_bytes()].concat(),
        varies: true,
        freshness: Freshness {
            born: 500,
            lifetime: 9,
            while_revalidating: 0,
            if_error: 0,
            never_stale: false,
        },
        length: BodyLength::Known(body.len() as u64),
        most: u64::MAX,
        epoch: process.zone.epoch(key.as_bytes()),
        now: process.now,
    };
    if let Ok(mut fill) = Fill::new(draft, None) {
        body.chunks(50_000).for_each(|piece| fill.see(&Frame::Data(Chunk::copy_of(piece))));
        fill.see(&Frame::End);
    }
}

/// Applies one change: of bytes, of the length, of the name, or of a file for another.
fn apply(disk: &MemoryDisk, [file, change, at, value]: [u8; 4]) {
    let mut platter = disk.platter();
    let names: Vec<(FileId, bool)> = platter.files.keys().copied().collect();
    let Some(name) = names.get(usize::from(file) % names.len().max(1)).copied() else { return };
    let Some(content) = platter.files.get(&name).cloned() else { return };
    let mut bytes = match content.lock() {
        Ok(bytes) => bytes,
        Err(_) => return,
    };
    // Near the beginning, where heads are, or anywhere.
    let place = match change & 0x80 {
        0 => usize::from(at),
        _ => usize::from(at) * bytes.len() / 256,
    };
    match change % 8 {
        0 => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= value;
            }
        }
        1 => bytes.truncate(place),
        2 => {
            let length = bytes.len() + usize::from(value);
            bytes.resize(length, at);
        }
        3 => {
            let copy = Arc::new(Mutex::new(bytes.clone()));
            platter.files.insert((FileId(name.0.0 ^ u128::from(value)), at % 2 == 1), copy);
        }
        4 => drop(platter.files.remove(&name)),
        5 => {
            let end = bytes.len().min(place + usize::from(value));
            if let Some(part) = bytes.get_mut(place.min(end)..end) {
                part.fill(at);
            }
        }
        6 => {
            // Another file's content under this name.
            let other = names[usize::from(at) % names.len()];
            if other != name
                && let Some(other) =
                    platter.files.get(&other).and_then(|other| other.lock().ok().map(|o| o.clone()))
            {
                *bytes = other;
            }
        }
        _ => drop(platter.files.insert((FileId(u128::from(value)), false), Arc::default())),
    }
}
