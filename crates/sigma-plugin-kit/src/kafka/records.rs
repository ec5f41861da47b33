//! Batches of records (version 2 of their format), as they are appended and as they are fetched.

use bytes::BufMut;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::inflate::{self, Failure};

/// The bytes of a batch up to the length in it, that length included.
const LENGTH_END: usize = 8 + 4;

/// The position of the checksum in a batch; the bytes after it are the checked ones.
const CHECKSUM: std::ops::Range<usize> = 17..21;

/// The format that is read and written.
const VERSION: u8 = 2;

/// The memory of a record in addition to its key and its value.
const RECORD_BYTES: usize = 100;

/// The largest window of zstd that is accepted; producers use a smaller one by default.
const ZSTD_WINDOW_BITS: u32 = 23;

/// Returns a batch of records in the format of version 2, uncompressed.
pub fn records(key: Option<&[u8]>, values: &[&[u8]], unix_ms: i64) -> Vec<u8> {
    let last = i32::try_from(values.len()).unwrap_or(i32::MAX) - 1;
    let mut body = Vec::new();
    // No compression, times of creation, no transaction.
    body.put_i16(0);
    body.put_i32(last);
    body.put_i64(unix_ms);
    body.put_i64(unix_ms);
    // No producer id.
    body.put_i64(-1);
    body.put_i16(-1);
    body.put_i32(-1);
    body.put_i32(last + 1);
    for (at, value) in values.iter().enumerate() {
        let mut record = vec![0];
        put_varint(&mut record, 0);
        put_varint(&mut record, at as i64);
        match key {
            Some(key) => {
                put_varint(&mut record, key.len() as i64);
                record.put_slice(key);
            }
            None => put_varint(&mut record, -1),
        }
        put_varint(&mut record, value.len() as i64);
        record.put_slice(value);
        // No headers.
        put_varint(&mut record, 0);
        put_varint(&mut body, record.len() as i64);
        body.put_slice(&record);
    }
    let mut out = Vec::new();
    out.put_i64(0);
    // The remaining length: the epoch of the leader, the version, the checksum, and the body.
    out.put_i32(i32::try_from(4 + 1 + 4 + body.len()).unwrap_or(i32::MAX));
    out.put_i32(-1);
    out.put_u8(2);
    out.put_u32(crc32c(&body));
    out.put_slice(&body);
    out
}

/// Writes a number of variable length, in which small absolute values are short.
fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Returns the checksum of Castagnoli (RFC 3720, B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut sum, mut bit) = (byte as u32, 0);
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
                bit += 1;
            }
            table[byte] = sum;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum: u32, byte| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

/// A record that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'r> {
    /// The position in the partition.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// The key. None without one.
    pub key: Option<&'r [u8]>,
    /// The value; None for a tombstone.
    pub value: Option<&'r [u8]>,
}

/// The progress of reading batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The offset to continue from: after all batches seen, including those that are not for readers.
    pub next: i64,
    /// Records that were returned.
    pub records: usize,
}

/// Passes on the records of `batches` from the offset `from` on, until they end or would take more than `room` bytes.
/// Control records of brokers and transactions are skipped. The last batch may be cut off, as brokers send it.
///
/// # Errors
/// Returns an error, which is a sentence, if something cannot be read before the first record.
pub fn read(
    mut batches: &[u8],
    from: i64,
    room: usize,
    mut give: impl FnMut(Record<'_>),
) -> Result<Reached, String> {
    let mut reached = Reached { next: from, records: 0 };
    let (mut left, mut is_first) = (room, true);
    while !batches.is_empty() {
        let found = match first(batches) {
            // The reader gets the records before it, and asks again from there.
            Err(_) if reached.records > 0 => break,
            found => found?,
        };
        let Some((batch, rest)) = found else {
            return if is_first { Err("the first batch is truncated".to_owned()) } else { Ok(reached) };
        };
        let before = reached.records;
        match batch.read(&mut reached, &mut left, room, &mut give) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if before > 0 => break,
            Err(reason) => return Err(reason),
        }
        (batches, is_first) = (rest, false);
    }
    Ok(reached)
}

/// Returns the first batch and the rest. None if it is cut off.
fn first(bytes: &[u8]) -> Result<Option<(Batch<'_>, &[u8])>, String> {
    let Some((head, _)) = bytes.split_at_checked(LENGTH_END) else { return Ok(None) };
    let mut head = Fields(head);
    let (base, length) = (head.i64()?, head.i32()?);
    let Some(end) = usize::try_from(length).ok().and_then(|length| length.checked_add(LENGTH_END)) else {
        return Err(DAMAGED.to_owned());
    };
    let Some((batch, rest)) = bytes.split_at_checked(end) else { return Ok(None) };
    match batch.get(CHECKSUM.start - 1) {
        Some(&VERSION) => {}
        Some(older) => {
            return Err(format!("a batch has format version {older}; only version 2 is supported"));
        }
        None => return Err(DAMAGED.to_owned()),
    }
    let mut fields = Fields(batch.get(CHECKSUM).ok_or(DAMAGED)?);
    let (sum, covered) = (fields.i32()? as u32, batch.get(CHECKSUM.end..).ok_or(DAMAGED)?);
    if sum != crc32c(covered) {
        return Err("a batch is damaged: its checksum does not match".to_owned());
    }
    Batch::new(base, covered).map(|batch| Some((batch, rest)))
}

/// Makes the checksum of a first batch valid, if there is one.
#[cfg(any(test, feature = "fuzzing"))]
pub fn seal(batches: &mut [u8]) {
    let length = batches.get(8..LENGTH_END).and_then(|length| length.first_chunk());
    let length = length.and_then(|length| usize::try_from(i32::from_be_bytes(*length)).ok());
    let covered = length.and_then(|length| batches.get(CHECKSUM.end..LENGTH_END.saturating_add(length)));
    if let Some(sum) = covered.map(crc32c) {
        batches[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The error for bytes that are not a valid batch.
const DAMAGED: &str = "a batch is malformed";

/// A batch whose checksum is right.
struct Batch<'b> {
    base: i64,
    attributes: i16,
    last: i64,
    first_ms: i64,
    last_ms: i64,
    count: i32,
    /// The records, compressed as `attributes` say.
    records: &'b [u8],
}

impl<'b> Batch<'b> {
    fn new(base: i64, covered: &'b [u8]) -> Result<Batch<'b>, String> {
        let mut fields = Fields(covered);
        let attributes = fields.i16()?;
        let last = base.checked_add(fields.i32()?.into()).filter(|last| *last >= base).ok_or(DAMAGED)?;
        let (first_ms, last_ms) = (fields.i64()?, fields.i64()?);
        // The producer.
        fields.take(8 + 2 + 4)?;
        let count = fields.i32()?;
        if base < 0 || last == i64::MAX || count < 0 {
            return Err(DAMAGED.to_owned());
        }
        Ok(Batch { base, attributes, last, first_ms, last_ms, count, records: fields.0 })
    }

    /// Passes on its records; returns false if there was no room for all.
    fn read(
        &self,
        reached: &mut Reached,
        left: &mut usize,
        room: usize,
        give: &mut impl FnMut(Record<'_>),
    ) -> Result<bool, String> {
        const BY_BROKER: i16 = 0x08;
        const CONTROL: i16 = 0x20;
        let is_wanted = self.attributes & CONTROL == 0 && self.last >= reached.next;
        if is_wanted {
            let plain = self.decompressed(room)?;
            let mut fields = Fields(plain.as_deref().unwrap_or(self.records));
            for _ in 0..self.count {
                let mut record = self.record(&mut fields)?;
                if record.offset < reached.next {
                    continue;
                }
                if self.attributes & BY_BROKER != 0 {
                    record.timestamp = self.last_ms;
                }
                let bytes = [record.key, record.value].map(|part| part.map_or(0, <[u8]>::len));
                let bytes = RECORD_BYTES + bytes.iter().sum::<usize>();
                if bytes > *left {
                    let alone =
                        format!("a message is longer than {} bytes", room.saturating_sub(RECORD_BYTES));
                    return if reached.records > 0 { Ok(false) } else { Err(alone) };
                }
                *left -= bytes;
                (reached.next, reached.records) = (record.offset + 1, reached.records + 1);
                give(record);
            }
            if !fields.0.is_empty() {
                return Err(DAMAGED.to_owned());
            }
        }
        reached.next = reached.next.max(self.last + 1);
        Ok(true)
    }

    /// Returns the next record.
    fn record<'f>(&self, fields: &mut Fields<'f>) -> Result<Record<'f>, String> {
        let length = fields.varint()?;
        let mut record = Fields(fields.take(usize::try_from(length).map_err(|_| DAMAGED)?)?);
        // Attributes, which are unused.
        record.take(1)?;
        let timestamp = self.first_ms.wrapping_add(record.varint()?);
        let offset = self.base.checked_add(record.varint()?).ok_or(DAMAGED)?;
        if !(self.base..=self.last).contains(&offset) {
            return Err(DAMAGED.to_owned());
        }
        let (key, value) = (record.part()?, record.part()?);
        // Headers are not used here.
        Ok(Record { offset, timestamp, key, value })
    }

    /// Returns the decompressed records, if they are compressed; at most `room` bytes.
    fn decompressed(&self, room: usize) -> Result<Option<Vec<u8>>, String> {
        match self.attributes & 0x07 {
            0 => Ok(None),
            1 => gunzipped(self.records, room).map(Some),
            4 => unzstd(self.records, room).map(Some),
            other => {
                let name = match other {
                    2 => "snappy",
                    3 => "lz4",
                    _ => "an unknown method",
                };
                Err(format!("a batch is compressed with {name}; only gzip and zstd are supported"))
            }
        }
    }
}

fn too_long(room: usize) -> String {
    format!("a compressed batch exceeds {room} bytes, or its compression ratio is too high")
}

fn gunzipped(compressed: &[u8], room: usize) -> Result<Vec<u8>, String> {
    let decoder = flate2::read::GzDecoder::new(compressed);
    inflate::decoded(decoder, compressed.len(), room).map_err(|failure| match failure {
        Failure::TooLong => too_long(room),
        Failure::Broken => DAMAGED.to_owned(),
    })
}

fn unzstd(compressed: &[u8], room: usize) -> Result<Vec<u8>, String> {
    let mut context = DCtx::create();
    context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_BITS)).map_err(|_| DAMAGED)?;
    let (mut plain, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let mut source = InBuffer::around(compressed);
    loop {
        let mut target = OutBuffer::around(&mut piece[..]);
        let left = context.decompress_stream(&mut target, &mut source).map_err(|_| DAMAGED)?;
        let made = target.pos();
        plain.extend_from_slice(&piece[..made]);
        if plain.len() > inflate::most(compressed.len(), room) {
            return Err(too_long(room));
        }
        if left == 0 && source.pos == compressed.len() {
            return Ok(plain);
        }
        if made == 0 && source.pos == compressed.len() {
            return Err(DAMAGED.to_owned());
        }
    }
}

/// Bytes from which values are read one after the other.
struct Fields<'f>(&'f [u8]);

impl<'f> Fields<'f> {
    fn take(&mut self, length: usize) -> Result<&'f [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DAMAGED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DAMAGED)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn i16(&mut self) -> Result<i16, String> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a number of variable length; at most ten bytes.
    fn varint(&mut self) -> Result<i64, String> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok((number >> 1) as i64 ^ -((number & 1) as i64));
            }
        }
        Err(DAMAGED.to_owned())
    }

    /// Reads bytes with their length in front, which is -1 for none.
    fn part(&mut self) -> Result<Option<&'f [u8]>, String> {
        match self.varint()? {
            -1 => Ok(None),
            length => self.take(usize::try_from(length).map_err(|_| DAMAGED)?).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn numbers_are_as_long_as_they_are_large() {
        let check = |number: i64, expected: &[u8]| {
            let mut out = Vec::new();
            put_varint(&mut out, number);
            assert_eq!(out, expected, "{number}");
        };
        check(0, &[0]);
        check(-1, &[1]);
        check(63, &[126]);
        check(64, &[0x80, 1]);
        check(300, &[0xd8, 4]);
    }

    #[test]
    fn a_batch_of_records() {
        let batch = records(Some(b"k"), &[b"a", b"bc"], 7);
        assert_eq!(batch.len(), 8 + 4 + i32::from_be_bytes(batch[8..12].try_into().unwrap()) as usize);
        assert_eq!(batch[16], 2, "the version");
        assert_eq!(u32::from_be_bytes(batch[17..21].try_into().unwrap()), crc32c(&batch[21..]));
        let first = [18, 0, 0, 0, 2, b'k', 2, b'a', 0];
        let records = &batch[61..];
        assert_eq!(records[..1], [16 /* eight bytes */]);
        assert_eq!(records[1..9], first[1..]);
        assert_eq!(records[9..], [18, 0, 0, 2, 2, b'k', 4, b'b', b'c', 0]);
    }

    type Owned = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>);

    fn all(batches: &[u8], from: i64, room: usize) -> (Vec<Owned>, Result<Reached, String>) {
        let mut given = Vec::new();
        let reached = read(batches, from, room, |record| {
            let own = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
            given.push((record.offset, record.timestamp, own(record.key), own(record.value)));
        });
        (given, reached)
    }

    /// Returns a batch at an offset, with other attributes, its records changed by `change`.
    fn batch_with(
        base: i64,
        attributes: u8,
        values: &[&[u8]],
        change: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Vec<u8> {
        let plain = records(Some(b"k"), values, 1000);
        let mut batch = plain[..61].to_vec();
        batch.extend(change(&plain[61..]));
        batch[..8].copy_from_slice(&base.to_be_bytes());
        let length = (batch.len() - LENGTH_END) as i32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[22] = attributes;
        sealed(batch)
    }

    fn sealed(mut batch: Vec<u8>) -> Vec<u8> {
        seal(&mut batch);
        batch
    }

    fn batch(base: i64, values: &[&[u8]]) -> Vec<u8> {
        batch_with(base, 0, values, <[u8]>::to_vec)
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, plain).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        zstd_safe::compress(&mut out, plain, 3).unwrap();
        out
    }

    const ROOM: usize = 10_000;

    #[test]
    fn produced_records_are_read() {
        let log = [batch(5, &[b"a", b"bc"]), batch(9, &[b"d"])].concat();
        let record = |offset, value: &[u8]| (offset, 1000, Some(b"k".to_vec()), Some(value.to_vec()));
        let (given, reached) = all(&log, 6, ROOM);
        assert_eq!(given, [record(6, b"bc"), record(9, b"d")]);
        assert_eq!(reached, Ok(Reached { next: 10, records: 2 }));
        // The last batch may be cut off, and gives no records; the first one may not.
        for cut in 1..batch(9, &[b"d"]).len() {
            let (given, reached) = all(&log[..log.len() - cut], 5, ROOM);
            assert_eq!(given, [record(5, b"a"), record(6, b"bc")], "{cut}");
            assert_eq!(reached, Ok(Reached { next: 7, records: 2 }));
        }
        assert_eq!(all(&log[..20], 5, ROOM).1, Err("the first batch is truncated".to_owned()));
        assert_eq!(all(b"", 5, ROOM), (vec![], Ok(Reached { next: 5, records: 0 })));
    }

    #[test]
    fn compressed_batches_are_read() {
        for (method, compress) in [(1, gzip as fn(&[u8]) -> Vec<u8>), (4, zstd)] {
            let values = [&b"first"[..], &[b'x'; 3000]];
            let log = batch_with(7, method, &values, compress);
            let (given, reached) = all(&log, 0, ROOM);
            assert_eq!(given.len(), 2, "{method}: {reached:?}");
            assert_eq!(given[1].3.as_deref(), Some(&[b'x'; 3000][..]));
            let error = all(&log, 0, 2000).1.unwrap_err();
            assert_eq!(error, too_long(2000), "{method}");
            let cut = batch_with(7, method, &values, |plain| compress(plain)[..20].to_vec());
            assert_eq!(all(&cut, 0, ROOM).1, Err(DAMAGED.to_owned()), "{method}");
            let noise = batch_with(7, method, &values, |_| b"noise".to_vec());
            assert_eq!(all(&noise, 0, ROOM).1, Err(DAMAGED.to_owned()), "{method}");
        }
        for (method, name) in [(2, "snappy"), (3, "lz4"), (5, "an unknown method")] {
            let told = format!("a batch is compressed with {name}; only gzip and zstd are supported");
            let log = batch_with(0, method, &[b"a"], <[u8]>::to_vec);
            assert_eq!(all(&log, 0, ROOM).1, Err(told.clone()));
            // The records before a bad batch are read; the error comes when it is the first one.
            let log = [batch(0, &[b"a"]), batch_with(1, method, &[b"b"], <[u8]>::to_vec)].concat();
            assert_eq!(all(&log, 0, ROOM).1, Ok(Reached { next: 1, records: 1 }));
            assert_eq!(all(&log, 1, ROOM).1, Err(told));
        }
    }

    #[test]
    fn control_records_are_skipped() {
        const CONTROL: u8 = 0x20;
        const BY_BROKER: u8 = 0x08;
        let control = batch_with(3, CONTROL, &[b"commit"], <[u8]>::to_vec);
        assert_eq!(all(&control, 3, ROOM), (vec![], Ok(Reached { next: 4, records: 0 })));
        // Compaction has taken all of it.
        let mut empty = batch_with(3, 0, &[b"a", b"b"], |_| Vec::new());
        empty[57..61].copy_from_slice(&0_i32.to_be_bytes());
        assert_eq!(all(&sealed(empty), 3, ROOM), (vec![], Ok(Reached { next: 5, records: 0 })));
        let mut by_broker = batch_with(3, BY_BROKER, &[b"a"], <[u8]>::to_vec);
        by_broker[35..43].copy_from_slice(&2000_i64.to_be_bytes());
        assert_eq!(all(&sealed(by_broker), 3, ROOM).0[0].1, 2000);
    }

    #[test]
    fn records_have_room() {
        let log = [batch(0, &[b"aaaa", b"bbbb"]), batch(2, &[b"cccc"])].concat();
        let each = RECORD_BYTES + 5;
        assert_eq!(all(&log, 0, each).1, Ok(Reached { next: 1, records: 1 }));
        assert_eq!(all(&log, 0, 2 * each).1, Ok(Reached { next: 2, records: 2 }));
        assert_eq!(all(&log, 0, 3 * each).1, Ok(Reached { next: 3, records: 3 }));
        assert_eq!(all(&log, 0, each - 1).1, Err("a message is longer than 4 bytes".to_owned()));
    }

    #[test]
    fn damage_is_reported() {
        let log = batch(0, &[b"a"]);
        for at in 21..log.len() {
            let mut damaged = log.clone();
            damaged[at] ^= 1;
            let told = "a batch is damaged: its checksum does not match".to_owned();
            assert_eq!(all(&damaged, 0, ROOM), (vec![], Err(told)), "{at}");
        }
        let check = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
            let mut damaged = log.clone();
            change(&mut damaged);
            assert_eq!(all(&sealed(damaged), 0, ROOM).1, Err(expected.to_owned()));
        };
        check(&|log| log[16] = 1, "a batch has format version 1; only version 2 is supported");
        check(&|log| log[8..12].copy_from_slice(&(-1_i32).to_be_bytes()), DAMAGED);
        check(&|log| log[..8].copy_from_slice(&i64::MAX.to_be_bytes()), DAMAGED);
        check(&|log| log[..8].copy_from_slice(&(-1_i64).to_be_bytes()), DAMAGED);
        check(&|log| log[23..27].copy_from_slice(&(-1_i32).to_be_bytes()), DAMAGED);
        check(&|log| log[57..61].copy_from_slice(&(-1_i32).to_be_bytes()), DAMAGED);
        check(&|log| log[57..61].copy_from_slice(&i32::MAX.to_be_bytes()), DAMAGED);
        check(&|log| log[57..61].copy_from_slice(&0_i32.to_be_bytes()), DAMAGED);
        check(&|log| log[61] = 0xff, DAMAGED);
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for number in [0, -1, 1, 63, 64, -65, 300, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_varint(&mut out, number);
            assert_eq!(Fields(&out).varint(), Ok(number));
            assert!(Fields(&out[..out.len() - 1]).varint().is_err());
        }
        assert!(Fields(&[0xff; 11]).varint().is_err());
    }
}
