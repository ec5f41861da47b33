//! The messages of Kafka's protocol that a producer needs, in versions that brokers from 0.11 on know.

use bytes::BufMut;

/// Which question a message asks, and in which version.
#[derive(Debug, Clone, Copy)]
pub(super) enum Api {
    Produce,
    Metadata,
    SaslHandshake,
    SaslAuthenticate,
}

impl Api {
    fn key_and_version(self) -> (i16, i16) {
        match self {
            Api::Produce => (0, 3),
            Api::Metadata => (3, 4),
            Api::SaslHandshake => (17, 1),
            Api::SaslAuthenticate => (36, 0),
        }
    }
}

/// What the gateway calls itself; brokers show it in their logs and quotas.
const CLIENT: &str = "sigma";

/// The number of every question: a connection has one at a time.
const CORRELATION: i32 = 1;

fn question(api: Api) -> Vec<u8> {
    let mut out = Vec::new();
    let (key, version) = api.key_and_version();
    out.put_i16(key);
    out.put_i16(version);
    out.put_i32(CORRELATION);
    put_text(&mut out, CLIENT);
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Names are at most 249 bytes, and everything else is shorter than 32 KiB: checked with the configuration.
    out.put_i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
    out.put_slice(&text.as_bytes()[..text.len().min(i16::MAX as usize)]);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    out.put_slice(bytes);
}

/// Asks for the partitions of a topic, which a broker may make if it is not there.
pub(super) fn metadata(topic: &str) -> Vec<u8> {
    let mut out = question(Api::Metadata);
    out.put_i32(1);
    put_text(&mut out, topic);
    out.put_u8(1);
    out
}

/// Asks to log in by a mechanism.
pub(super) fn handshake(mechanism: &str) -> Vec<u8> {
    let mut out = question(Api::SaslHandshake);
    put_text(&mut out, mechanism);
    out
}

/// Sends a message of the mechanism.
pub(super) fn authenticate(message: &[u8]) -> Vec<u8> {
    let mut out = question(Api::SaslAuthenticate);
    put_bytes(&mut out, message);
    out
}

/// Asks to append records to a partition.
pub(super) fn produce(
    (topic, partition): (&str, i32),
    acks: i16,
    timeout_ms: i32,
    records: &[u8],
) -> Vec<u8> {
    let mut out = question(Api::Produce);
    // No transaction.
    out.put_i16(-1);
    out.put_i16(acks);
    out.put_i32(timeout_ms);
    out.put_i32(1);
    put_text(&mut out, topic);
    out.put_i32(1);
    out.put_i32(partition);
    put_bytes(&mut out, records);
    out
}

/// A batch of records in the format of version 2, uncompressed.
pub(super) fn records(key: Option<&[u8]>, values: &[&[u8]], unix_ms: i64) -> Vec<u8> {
    let last = i32::try_from(values.len()).unwrap_or(i32::MAX) - 1;
    let mut body = Vec::new();
    // No compression, times of creation, no transaction.
    body.put_i16(0);
    body.put_i32(last);
    body.put_i64(unix_ms);
    body.put_i64(unix_ms);
    // No producer that is known by a number.
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
    // What follows: the epoch of the leader, the version, the checksum, and the body.
    out.put_i32(i32::try_from(4 + 1 + 4 + body.len()).unwrap_or(i32::MAX));
    out.put_i32(-1);
    out.put_u8(2);
    out.put_u32(crc32c(&body));
    out.put_slice(&body);
    out
}

/// A number of changing length, small ones first whatever their sign.
fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The checksum of Castagnoli (RFC 3720, B.4).
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

/// What a broker says that is no message of its protocol.
const GARBAGE: &str = "the broker's answer cannot be read";

/// An answer, from which values are taken one after the other.
pub(super) struct Answer<'a>(&'a [u8]);

impl<'a> Answer<'a> {
    /// Of a whole message.
    pub(super) fn new(message: &'a [u8]) -> Result<Answer<'a>, String> {
        let mut answer = Answer(message);
        if answer.i32()? == CORRELATION { Ok(answer) } else { Err(GARBAGE.to_owned()) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(GARBAGE)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(GARBAGE)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn i16(&mut self) -> Result<i16, String> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_be_bytes)
    }

    /// Text, or nothing.
    fn text(&mut self) -> Result<&'a str, String> {
        // -1 is nothing.
        let length = usize::try_from(self.i16()?).unwrap_or(0);
        std::str::from_utf8(self.take(length)?).map_err(|_| GARBAGE.to_owned())
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = usize::try_from(self.i32()?).unwrap_or(0);
        self.take(length)
    }

    /// A list; what each item is made of is read by `item`, which takes at least a byte.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let count = self.i32()?;
        (0..count).map(|_| item(self)).collect()
    }

    /// The partitions of a topic, and where they are.
    pub(super) fn partitions(&mut self) -> Result<Topic, String> {
        self.i32()?;
        let brokers = self.list(|of| {
            let broker = (of.i32()?, of.text()?.to_owned(), of.i32()?);
            of.text()?;
            Ok(broker)
        })?;
        self.text()?;
        self.i32()?;
        let mut topics = self.list(|of| {
            let error = of.i16()?;
            of.text()?;
            of.take(1)?;
            let partitions = of.list(|of| {
                of.i16()?;
                let (number, leader) = (of.i32()?, of.i32()?);
                of.list(Answer::i32)?;
                of.list(Answer::i32)?;
                Ok((number, leader))
            })?;
            Ok((error, partitions))
        })?;
        let (error, mut partitions) = topics.pop().ok_or(GARBAGE)?;
        failure(error)?;
        partitions.sort_unstable();
        match partitions.is_empty() {
            true => Err("the topic has no partitions".to_owned()),
            false => Ok(Topic { brokers, partitions }),
        }
    }

    /// What came of records; a code, 0 for success.
    pub(super) fn outcome(&mut self) -> Result<i16, String> {
        let mut topics = self.list(|of| {
            of.text()?;
            of.list(|of| {
                of.i32()?;
                let error = of.i16()?;
                of.take(8 + 8)?;
                Ok(error)
            })
        })?;
        topics.pop().and_then(|mut partitions| partitions.pop()).ok_or_else(|| GARBAGE.to_owned())
    }

    /// Whether the broker knows the mechanism.
    pub(super) fn agreed(&mut self) -> Result<(), String> {
        failure(self.i16()?)
    }

    /// The mechanism's message of the broker.
    pub(super) fn authenticated(&mut self) -> Result<&'a [u8], String> {
        let (error, said) = (self.i16()?, self.text()?);
        failure(error).map_err(|reason| format!("{reason}: {}", shown(said)))?;
        self.bytes()
    }
}

/// A topic's partitions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// Number, host and port.
    pub(super) brokers: Vec<(i32, String, i32)>,
    /// Their numbers, and those of the brokers that lead them; in order, at least one.
    pub(super) partitions: Vec<(i32, i32)>,
}

/// Something that a broker says, for the error log: it must not look like a line of its own.
fn shown(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

/// Codes that say that another attempt may succeed, once the partitions are known again.
pub(super) fn may_pass(code: i16) -> bool {
    matches!(code, 2 | 3 | 5 | 6 | 7 | 8 | 9 | 13 | 19 | 20)
}

/// What a code means, if it is not success.
pub(super) fn failure(code: i16) -> Result<(), String> {
    let name = match code {
        0 => return Ok(()),
        2 => "CORRUPT_MESSAGE",
        3 => "UNKNOWN_TOPIC_OR_PARTITION",
        5 => "LEADER_NOT_AVAILABLE",
        6 => "NOT_LEADER_OR_FOLLOWER",
        7 => "REQUEST_TIMED_OUT",
        8 => "BROKER_NOT_AVAILABLE",
        9 => "REPLICA_NOT_AVAILABLE",
        10 => "MESSAGE_TOO_LARGE",
        13 => "NETWORK_EXCEPTION",
        17 => "INVALID_TOPIC_EXCEPTION",
        18 => "RECORD_LIST_TOO_LARGE",
        19 => "NOT_ENOUGH_REPLICAS",
        20 => "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        21 => "INVALID_REQUIRED_ACKS",
        29 => "TOPIC_AUTHORIZATION_FAILED",
        31 => "CLUSTER_AUTHORIZATION_FAILED",
        33 => "UNSUPPORTED_SASL_MECHANISM",
        34 => "ILLEGAL_SASL_STATE",
        35 => "UNSUPPORTED_VERSION",
        58 => "SASL_AUTHENTICATION_FAILED",
        _ => return Err(format!("the broker answered with error {code}")),
    };
    Err(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
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

    #[test]
    fn partitions_are_read() {
        let mut answer = Vec::new();
        answer.put_i32(CORRELATION);
        answer.put_i32(0);
        answer.put_i32(1);
        answer.put_i32(7);
        put_text(&mut answer, "127.0.0.1");
        answer.put_i32(9092);
        answer.put_i16(-1);
        put_text(&mut answer, "cluster");
        answer.put_i32(7);
        answer.put_i32(1);
        answer.put_i16(0);
        put_text(&mut answer, "logs");
        answer.put_u8(0);
        answer.put_i32(2);
        for number in [1, 0] {
            answer.put_i16(0);
            answer.put_i32(number);
            answer.put_i32(7);
            for _ in 0..2 {
                answer.put_i32(1);
                answer.put_i32(7);
            }
        }
        let topic = Answer::new(&answer).unwrap().partitions().unwrap();
        let brokers = vec![(7, "127.0.0.1".to_owned(), 9092)];
        assert_eq!(topic, Topic { brokers, partitions: vec![(0, 7), (1, 7)] });
        for length in 0..answer.len() {
            let cut = Answer::new(&answer[..length]).and_then(|mut answer| answer.partitions());
            assert!(cut.is_err(), "{length}");
        }
    }

    /// A count that is larger than what follows takes no memory, and no time.
    #[test]
    fn garbage_is_refused() {
        for answer in [
            &[0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, 0, 0][..],
            &[0, 0, 0, 2, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
            &[],
        ] {
            let read = Answer::new(answer).and_then(|mut answer| answer.outcome());
            assert_eq!(read, Err(GARBAGE.to_owned()), "{answer:?}");
        }
    }

    #[test]
    fn what_a_broker_says_forges_no_line() {
        let mut answer = Vec::new();
        answer.put_i32(CORRELATION);
        answer.put_i16(58);
        put_text(&mut answer, "no\nERROR forged");
        let said = Answer::new(&answer).unwrap().authenticated().unwrap_err();
        assert_eq!(said, "SASL_AUTHENTICATION_FAILED: no\\nERROR forged");
    }
}
