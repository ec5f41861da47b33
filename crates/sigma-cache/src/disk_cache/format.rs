//! The file of one response.
//!
//! A file has a front with version and name, two slots for the head, and the body in blocks. The newest valid head
//! counts, so that a head can be rewritten without a moment without one. Everything has checksums, which include the
//! name and the position: data of another file or an older one is detected.

use std::sync::Arc;

use sigma_http::Headers;
use sigma_http::h1::bytes::is_value;
use sigma_http::is_token;

use super::port::FileId;
use crate::body::{Body, PIECE_BYTES};
use crate::freshness::Freshness;
use crate::label::{Label, Varied};
use crate::stored::Stored;

/// The magic number of a cache file; the last four bytes are the version.
const MAGIC: [u8; 12] = *b"SigmaKept001";

/// The magic number, the name, the size of a head slot, and the checksum of all that.
pub(crate) const FRONT_BYTES: usize = 12 + 16 + 4 + 4;

/// Before a head: checksum, length, and its serial number.
const BEFORE_HEAD: usize = 4 + 4 + 8;

/// Spare room of a head for a rewrite, and the unit of its slot size.
const HEAD_ROOM: usize = 256;
const PLACE_UNIT: usize = 256;

/// The limit of a head with its key: heads of nodes have a lower limit.
const HEAD_MAX: usize = 512 << 10;

/// The limit of a body: positions in a file are computed from it.
const BODY_MAX: u64 = 1 << 48;

/// The checksum after each block.
const SUM_BYTES: usize = 4;
const BLOCK_STEP: u64 = (PIECE_BYTES + SUM_BYTES) as u64;

/// The least disk space of a file, and the unit of rounding.
const DISK_UNIT: u64 = 4096;

/// The layout of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) id: FileId,
    /// The size of a head slot.
    place: u32,
}

/// A head with its serial number.
#[derive(Debug)]
pub(crate) struct Head<'h> {
    pub(crate) serial: u64,
    pub(crate) text: &'h [u8],
}

impl Layout {
    /// Returns a layout for a head of this size; None if it is too large.
    pub(crate) fn of(id: FileId, head_bytes: usize) -> Option<Layout> {
        let place = (BEFORE_HEAD + head_bytes + HEAD_ROOM).next_multiple_of(PLACE_UNIT);
        (head_bytes <= HEAD_MAX).then_some(Layout { id, place: u32::try_from(place).ok()? })
    }

    /// Parses the front of the file with this name.
    pub(crate) fn read(id: FileId, front: &[u8]) -> Option<Layout> {
        let front = front.get(..FRONT_BYTES)?;
        let place = u32::from_le_bytes(front[28..32].try_into().ok()?);
        let layout = Layout { id, place };
        let most = BEFORE_HEAD + HEAD_MAX + HEAD_ROOM + PLACE_UNIT;
        (layout.front() == *front && place as usize >= BEFORE_HEAD && place as usize <= most)
            .then_some(layout)
    }

    fn front(&self) -> [u8; FRONT_BYTES] {
        let mut front = [0; FRONT_BYTES];
        front[..12].copy_from_slice(&MAGIC);
        front[12..28].copy_from_slice(&self.id.0.to_le_bytes());
        front[28..32].copy_from_slice(&self.place.to_le_bytes());
        let sum = crc32fast::hash(&front[..32]);
        front[32..].copy_from_slice(&sum.to_le_bytes());
        front
    }

    /// Returns the position of the body, which is the size of all before it.
    pub(crate) fn body_at(&self) -> usize {
        FRONT_BYTES + 2 * self.place as usize
    }

    /// Returns everything before the body, with the first head.
    pub(crate) fn beginning(&self, head: &[u8]) -> Vec<u8> {
        let mut bytes = self.front().to_vec();
        bytes.extend_from_slice(&self.place_of(1, head));
        bytes.resize(self.body_at(), 0);
        bytes
    }

    /// Returns a slot with a head and its serial number; longer than a slot if the head does not fit.
    fn place_of(&self, serial: u64, head: &[u8]) -> Vec<u8> {
        let mut place = vec![0; 4];
        place.extend_from_slice(&(head.len() as u32).to_le_bytes());
        place.extend_from_slice(&serial.to_le_bytes());
        place.extend_from_slice(head);
        let sum = self.head_sum(&place[4..]);
        place[..4].copy_from_slice(&sum.to_le_bytes());
        place
    }

    /// Returns the position and bytes to replace the head with the serial number `serial`; None if the new one does
    /// not fit.
    pub(crate) fn renewal(&self, serial: u64, head: &[u8]) -> Option<(u64, Vec<u8>)> {
        let next = serial.wrapping_add(1);
        let place = self.place_of(next, head);
        // The first one is in the first slot.
        let number = next.wrapping_sub(1) % 2;
        (place.len() <= self.place as usize)
            .then(|| (FRONT_BYTES as u64 + number * u64::from(self.place), place))
    }

    /// Returns the newest valid head in the part before the body.
    pub(crate) fn head<'h>(&self, beginning: &'h [u8]) -> Option<Head<'h>> {
        let places = beginning.get(FRONT_BYTES..self.body_at())?.chunks(self.place as usize);
        places.filter_map(|place| self.head_in(place)).max_by_key(|head| head.serial)
    }

    fn head_in<'h>(&self, place: &'h [u8]) -> Option<Head<'h>> {
        let number = |at: usize| place.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let (sum, length) = (number(0)?, number(4)? as usize);
        let serial = u64::from_le_bytes(place.get(8..16)?.try_into().ok()?);
        let end = BEFORE_HEAD.checked_add(length).filter(|end| *end <= place.len())?;
        let is_whole = serial > 0 && self.head_sum(&place[4..end]) == sum;
        is_whole.then(|| Head { serial, text: &place[BEFORE_HEAD..end] })
    }

    fn head_sum(&self, bytes: &[u8]) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.id.0.to_le_bytes());
        sum.update(bytes);
        sum.finalize()
    }

    /// Returns the position of a body block.
    pub(crate) fn block_at(&self, number: u64) -> u64 {
        self.body_at() as u64 + number * BLOCK_STEP
    }

    /// Appends a block in its file format: its bytes, and their checksum.
    pub(crate) fn write_block(&self, number: u64, block: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(block);
        out.extend_from_slice(&self.block_sum(number, block).to_le_bytes());
    }

    /// Returns the bytes of a block that was read; None if the checksum is wrong.
    pub(crate) fn read_block<'b>(&self, number: u64, block: &'b [u8]) -> Option<&'b [u8]> {
        let (bytes, sum) = block.split_at_checked(block.len().checked_sub(SUM_BYTES)?)?;
        (self.block_sum(number, bytes).to_le_bytes() == *sum).then_some(bytes)
    }

    fn block_sum(&self, number: u64, bytes: &[u8]) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.id.0.to_le_bytes());
        sum.update(&number.to_le_bytes());
        sum.update(bytes);
        sum.finalize()
    }

    /// Returns the disk space of a file with a body of this size.
    pub(crate) fn size(&self, body: u64) -> u64 {
        let sums = body.div_ceil(PIECE_BYTES as u64) * SUM_BYTES as u64;
        (self.body_at() as u64)
            .saturating_add(body)
            .saturating_add(sums)
            .checked_next_multiple_of(DISK_UNIT)
            .unwrap_or(u64::MAX)
    }
}

/// Returns the size of a block in the file, for a body of `length`.
pub(crate) fn block_bytes(length: u64, number: u64) -> usize {
    let before = number.saturating_mul(PIECE_BYTES as u64);
    length.saturating_sub(before).min(PIECE_BYTES as u64) as usize + SUM_BYTES
}

/// Encodes a head.
pub(crate) fn encode(key: &[u8], stored: &Stored, body_length: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let Freshness { born, lifetime, while_revalidating, if_error, never_stale } = stored.freshness;
    out.extend_from_slice(&body_length.to_le_bytes());
    out.extend_from_slice(&born.to_le_bytes());
    out.extend_from_slice(&stored.date().to_le_bytes());
    for number in [lifetime, while_revalidating, if_error] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(never_stale.into());
    out.extend_from_slice(&stored.status.to_le_bytes());
    text(&mut out, key);
    text(&mut out, &stored.label.resource);
    count(&mut out, stored.label.tags.len());
    stored.label.tags.iter().for_each(|tag| text(&mut out, tag));
    count(&mut out, stored.label.varied.len());
    for (name, value) in &stored.label.varied {
        text(&mut out, name);
        out.push(value.is_some().into());
        text(&mut out, value.as_deref().unwrap_or_default());
    }
    count(&mut out, stored.headers.len());
    for (name, value) in stored.headers.iter() {
        text(&mut out, name);
        text(&mut out, value);
    }
    out
}

fn count(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// A decoded head.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: Arc<[u8]>,
    /// Without its body.
    pub(crate) stored: Stored,
    pub(crate) body_length: u64,
}

/// Decodes a head; None if it is invalid.
pub(crate) fn decode(head: &[u8]) -> Option<Read> {
    let mut rest = Rest(head);
    let (body_length, born, date) = (rest.long()?, rest.long()?, rest.long()?);
    let (lifetime, while_revalidating, if_error) = (rest.number()?, rest.number()?, rest.number()?);
    let never_stale = rest.flag()?;
    let status = u16::from_le_bytes(rest.take(2)?.try_into().ok()?);
    let key = Arc::from(rest.text()?);
    let resource = Box::from(rest.text()?);
    let tags = (0..rest.number()?).map(|_| rest.text().map(Box::from)).collect::<Option<_>>()?;
    let varied = (0..rest.number()?).map(|_| rest.varied()).collect::<Option<_>>()?;
    let mut headers = Headers::default();
    for _ in 0..rest.number()? {
        let (name, value) = (rest.text()?, rest.text()?);
        if !is_token(name) || !is_value(value) {
            return None;
        }
        headers.append_parts(name, &[value]);
    }
    if !rest.0.is_empty() || !(200..600).contains(&status) || body_length > BODY_MAX {
        return None;
    }
    let label = Arc::new(Label { resource, tags, varied });
    let freshness = Freshness { born, lifetime, while_revalidating, if_error, never_stale };
    let stored = Stored { status, headers, body: Body::of(b""), freshness, label, date, mark: None };
    Some(Read { key, stored, body_length })
}

/// The undecoded rest of a head.
struct Rest<'h>(&'h [u8]);

impl<'h> Rest<'h> {
    fn take(&mut self, bytes: usize) -> Option<&'h [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn long(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take(1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'h [u8]> {
        let length = self.number()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn varied(&mut self) -> Option<Varied> {
        let (name, has_value, value) = (self.text()?, self.flag()?, self.text()?);
        (has_value || value.is_empty()).then(|| (name.into(), has_value.then(|| value.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::tests::{headers, stored};

    #[test]
    fn a_written_file_is_read_back() {
        let fields = [("Vary", "A, B"), ("Cache-Tag", "x y"), ("ETag", "\"1\""), ("X", "")];
        let one = stored(&fields, &[("A", "1")]).unwrap();
        let head = encode(b"the key", &one, 70_000);
        let layout = Layout::of(FileId(7), head.len()).unwrap();
        let beginning = layout.beginning(&head);
        assert_eq!(Layout::read(FileId(7), &beginning), Some(layout));
        assert_eq!(Layout::read(FileId(8), &beginning), None);
        let found = layout.head(&beginning).unwrap();
        assert_eq!((found.serial, found.text), (1, &head[..]));
        let Read { key, stored, body_length } = decode(found.text).unwrap();
        assert_eq!(
            (&*key, body_length, stored.freshness, stored.date()),
            (&b"the key"[..], 70_000, one.freshness, one.date())
        );
        assert_eq!(stored.label, one.label);
        assert!(stored.fits(&headers(&[("a", "1")])) && !stored.fits(&headers(&[("a", "1"), ("b", "")])));
        assert!(stored.headers.iter().eq(one.headers.iter()));
    }

    #[test]
    fn a_head_is_rewritten_next_to_the_old_one() {
        let layout = Layout::of(FileId(7), 3).unwrap();
        let mut file = layout.beginning(b"one");
        for (serial, head) in [(1, &b"two"[..]), (2, b"three"), (3, b"four")] {
            let (at, bytes) = layout.renewal(serial, head).unwrap();
            // The process died in the middle of the write.
            let mut torn = file.clone();
            torn[at as usize..][..bytes.len() / 2].copy_from_slice(&bytes[..bytes.len() / 2]);
            assert_eq!(layout.head(&torn).unwrap().serial, serial);
            file[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            let found = layout.head(&file).unwrap();
            assert_eq!((found.serial, found.text), (serial + 1, head));
        }
        assert!(layout.renewal(4, &[b'x'; 2 * HEAD_ROOM]).is_none());
    }

    /// Every changed bit of a file is detected.
    #[test]
    fn every_bit_counts() {
        let one = stored(&[("Cache-Tag", "x")], &[]).unwrap();
        let head = encode(b"k", &one, 5);
        let layout = Layout::of(FileId(7), head.len()).unwrap();
        let mut file = layout.beginning(&head);
        layout.write_block(0, b"hello", &mut file);
        let read = |file: &[u8]| -> Option<(Vec<u8>, Vec<u8>)> {
            let layout = Layout::read(FileId(7), file)?;
            let head = layout.head(file)?.text.to_vec();
            let block = file.get(layout.block_at(0) as usize..)?;
            Some((head, layout.read_block(0, block)?.to_vec()))
        };
        let whole = read(&file).unwrap();
        assert_eq!(whole, (head.clone(), b"hello".to_vec()));
        for bit in 0..file.len() * 8 {
            let mut other = file.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&other).is_none_or(|read| read == whole), "bit {bit}");
        }
        (0..file.len()).for_each(|end| assert!(read(&file[..end]).is_none(), "{end} bytes"));
        let mut block = Vec::new();
        layout.write_block(1, b"hello", &mut block);
        assert!(layout.read_block(0, &block).is_none(), "it is another one's place");
    }

    #[test]
    fn sizes_match_the_files() {
        let layout = Layout::of(FileId(7), 100).unwrap();
        for (length, blocks) in [(0, 0), (1, 1), (PIECE_BYTES as u64, 1), (PIECE_BYTES as u64 + 1, 2)] {
            let bytes: usize = (0..blocks).map(|number| block_bytes(length, number)).sum();
            assert_eq!(layout.size(length), (layout.body_at() + bytes).next_multiple_of(4096) as u64);
        }
        assert!(Layout::of(FileId(7), HEAD_MAX + 1).is_none());
        assert!(layout.size(u64::MAX - (1 << 40)) > 1 << 60);
    }
}
