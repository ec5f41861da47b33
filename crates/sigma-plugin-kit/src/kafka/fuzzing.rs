//! Properties of any answers of brokers.

use super::records;
use super::wire::BrokerResponse;

/// Most bytes of records that are read at once.
const ROOM: usize = 64 << 10;

/// A response to a request for records is read or rejected, and the records are in order, fit in the room, and end at
/// the announced offset. The first byte says from which offset on.
pub fn kafka_fetch(input: &[u8]) {
    let Some((from, input)) = input.split_first() else { return };
    let from = i64::from(*from);
    let fetched = BrokerResponse::new(input).and_then(|mut answer| answer.fetched());
    let answered = fetched.ok().and_then(Result::ok).map(<[u8]>::to_vec);
    // Also batches alone, and with a valid checksum, so that the rest is read.
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
    let _ = BrokerResponse::new(input).and_then(|mut answer| answer.offset());
    let _ = BrokerResponse::new(input).and_then(|mut answer| answer.partitions());
}
