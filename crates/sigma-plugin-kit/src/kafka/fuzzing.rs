//! What must hold of answers of brokers, whatever they send.

use super::records;
use super::wire::Answer;

/// Most bytes of records that are read at once.
const ROOM: usize = 64 << 10;

/// An answer to a question for records: it is read or refused, and what is given out is in order, has room, and ends
/// where it is said to end. The first byte says from which offset on.
pub fn kafka_fetch(input: &[u8]) {
    let Some((from, input)) = input.split_first() else { return };
    let from = i64::from(*from);
    let fetched = Answer::new(input).and_then(|mut answer| answer.fetched());
    let answered = fetched.ok().and_then(Result::ok).map(<[u8]>::to_vec);
    // Batches alone, too, and with a checksum that lets what is behind it be read.
    let mut sealed = input.to_vec();
    records::seal(&mut sealed);
    for batches in [answered.as_deref(), Some(input), Some(&sealed)].into_iter().flatten() {
        let (mut next, mut bytes, mut count) = (from, 0, 0);
        let reached = records::read(batches, from, ROOM, |record| {
            assert!(record.offset >= next, "{} after {next}", record.offset);
            next = record.offset + 1;
            bytes += [record.key, record.value].map(|part| part.map_or(0, <[u8]>::len)).iter().sum::<usize>();
            count += 1;
        });
        assert!(bytes <= ROOM);
        if let Ok(reached) = reached {
            assert!(reached.records == count && reached.next >= next);
        }
    }
    let _ = Answer::new(input).and_then(|mut answer| answer.offset());
    let _ = Answer::new(input).and_then(|mut answer| answer.partitions());
}
