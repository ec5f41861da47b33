//! The messages of Kafka's protocol for a producer and a reader, in versions that brokers from 0.11 to 4 support.

use bytes::BufMut;

/// The kind of a request, and its version.
#[derive(Debug, Clone, Copy)]
pub enum Api {
    /// Writes records.
    Produce,
    /// Reads records.
    Fetch,
    /// Finds the first and the last offset of partitions.
    ListOffsets,
    /// Describes brokers, topics and partitions.
    Metadata,
    /// Chooses a mechanism of SASL.
    SaslHandshake,
    /// Carries a message of SASL.
    SaslAuthenticate,
}

impl Api {
    fn key_and_version(self) -> (i16, i16) {
        match self {
            Api::Produce => (0, 3),
            Api::Fetch => (1, 4),
            Api::ListOffsets => (2, 1),
            Api::Metadata => (3, 4),
            Api::SaslHandshake => (17, 1),
            Api::SaslAuthenticate => (36, 0),
        }
    }
}

/// The client id of the gateway; brokers show it in their logs and quotas.
const CLIENT: &str = "sigma";

/// The number of every request: a connection has one at a time.
const CORRELATION: i32 = 1;

fn request_head(api: Api) -> Vec<u8> {
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

/// Requests the partitions of a topic, which a broker may create if it is missing and `absent` allows it.
pub fn metadata(topic: &str, absent: Absent) -> Vec<u8> {
    let mut out = request_head(Api::Metadata);
    out.put_i32(1);
    put_text(&mut out, topic);
    out.put_u8((absent == Absent::Made).into());
    out
}

/// The treatment of a missing topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// It is created, if the brokers do that.
    Made,
    /// It stays missing.
    Missing,
}

/// Asks to log in by a mechanism.
pub fn handshake(mechanism: &str) -> Vec<u8> {
    let mut out = request_head(Api::SaslHandshake);
    put_text(&mut out, mechanism);
    out
}

/// Sends a message of the mechanism.
pub fn authenticate(message: &[u8]) -> Vec<u8> {
    let mut out = request_head(Api::SaslAuthenticate);
    put_bytes(&mut out, message);
    out
}

/// A partition of a topic.
#[derive(Debug, Clone, Copy)]
pub struct TopicPartition<'t> {
    /// The name of the topic.
    pub topic: &'t str,
    /// The number of the partition.
    pub partition: i32,
}

impl TopicPartition<'_> {
    /// Writes it as the only one of a request.
    fn put(self, out: &mut Vec<u8>) {
        out.put_i32(1);
        put_text(out, self.topic);
        out.put_i32(1);
        out.put_i32(self.partition);
    }
}

/// Asks to append records to a partition.
pub fn produce(to: TopicPartition<'_>, acks: i16, timeout_ms: i32, records: &[u8]) -> Vec<u8> {
    let mut out = request_head(Api::Produce);
    // No transaction.
    out.put_i16(-1);
    out.put_i16(acks);
    out.put_i32(timeout_ms);
    to.put(&mut out);
    put_bytes(&mut out, records);
    out
}

/// The sender is a client, and not another broker.
const NO_REPLICA: i32 = -1;

/// Requests the first offset at or after a time: milliseconds since 1970, -1 for the next offset to be written, -2 for
/// the first existing one.
pub fn list_offsets(of: TopicPartition<'_>, timestamp: i64) -> Vec<u8> {
    let mut out = request_head(Api::ListOffsets);
    out.put_i32(NO_REPLICA);
    of.put(&mut out);
    out.put_i64(timestamp);
    out
}

/// How long a broker may wait for records, and how many bytes of them it may send; one batch in any case.
#[derive(Debug, Clone, Copy)]
pub struct FetchBounds {
    /// Milliseconds that the broker may wait for records.
    pub wait_ms: i32,
    /// Bytes that the response may have.
    pub bytes: i32,
}

/// Requests records from an offset on, committed or not.
pub fn fetch(from: TopicPartition<'_>, offset: i64, wish: FetchBounds) -> Vec<u8> {
    let mut out = request_head(Api::Fetch);
    out.put_i32(NO_REPLICA);
    out.put_i32(wish.wait_ms);
    // The broker waits for records if it has no record yet.
    out.put_i32(1);
    out.put_i32(wish.bytes);
    out.put_u8(0);
    from.put(&mut out);
    out.put_i64(offset);
    out.put_i32(wish.bytes);
    out
}

/// The error for bytes that are not a message of the protocol.
const GARBAGE: &str = "the broker's response is malformed";

/// A response, from which values are read one after the other.
pub struct BrokerResponse<'a>(&'a [u8]);

impl<'a> BrokerResponse<'a> {
    /// Reads a whole message.
    pub fn new(message: &'a [u8]) -> Result<BrokerResponse<'a>, String> {
        let mut answer = BrokerResponse(message);
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

    fn i64(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a text, which may be null.
    fn text(&mut self) -> Result<&'a str, String> {
        // -1 is null.
        let length = usize::try_from(self.i16()?).unwrap_or(0);
        std::str::from_utf8(self.take(length)?).map_err(|_| GARBAGE.to_owned())
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = usize::try_from(self.i32()?).unwrap_or(0);
        self.take(length)
    }

    /// Reads a list; `item` reads each item, which has at least a byte.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let count = self.i32()?;
        (0..count).map(|_| item(self)).collect()
    }

    /// Reads the partitions of a topic, and their places.
    pub fn partitions(&mut self) -> Result<Topic, String> {
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
                of.list(BrokerResponse::i32)?;
                of.list(BrokerResponse::i32)?;
                Ok((number, leader))
            })?;
            Ok((error, partitions))
        })?;
        let (error, mut partitions) = topics.pop().ok_or(GARBAGE)?;
        partitions.sort_unstable();
        Ok(Topic { error, brokers, partitions })
    }

    /// Reads the only item of a list, in the only item of a list around it.
    fn only<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let mut topics = self.list(|of| {
            of.text()?;
            of.list(&mut item)
        })?;
        topics.pop().and_then(|mut partitions| partitions.pop()).ok_or_else(|| GARBAGE.to_owned())
    }

    /// Reads the requested offset, or an error code.
    pub fn offset(&mut self) -> Result<Result<i64, i16>, String> {
        self.only(|of| {
            of.i32()?;
            let (error, _, offset) = (of.i16()?, of.i64()?, of.i64()?);
            Ok(if error == 0 { Ok(offset) } else { Err(error) })
        })
    }

    /// Reads the requested records, in batches of which the last may be cut off, or an error code.
    pub fn fetched(&mut self) -> Result<Result<&'a [u8], i16>, String> {
        // How long the broker delayed the response.
        self.i32()?;
        self.only(|of| {
            of.i32()?;
            let error = of.i16()?;
            // The replicated and the committed offset.
            of.take(8 + 8)?;
            of.list(|of| of.take(8 + 8).map(drop))?;
            let records = of.bytes()?;
            Ok(if error == 0 { Ok(records) } else { Err(error) })
        })
    }

    /// Reads the result of appended records; a code, 0 for success.
    pub fn outcome(&mut self) -> Result<i16, String> {
        self.only(|of| {
            of.i32()?;
            let error = of.i16()?;
            of.take(8 + 8)?;
            Ok(error)
        })
    }

    /// Checks that the broker supports the mechanism.
    pub fn agreed(&mut self) -> Result<(), String> {
        failure(self.i16()?)
    }

    /// Reads the broker's message of the mechanism.
    pub fn authenticated(&mut self) -> Result<&'a [u8], String> {
        let (error, said) = (self.i16()?, self.text()?);
        failure(error).map_err(|reason| format!("{reason}: {}", shown(said)))?;
        self.bytes()
    }
}

/// A topic's partitions.
#[derive(Debug, PartialEq, Eq)]
pub struct Topic {
    /// The error code; 0 for none.
    pub error: i16,
    /// Number, host and port.
    pub brokers: Vec<(i32, String, i32)>,
    /// Their numbers, and the numbers of the brokers that lead them; in order.
    pub partitions: Vec<(i32, i32)>,
}

/// Returns a text of a broker for the error log, in which it must not look like its own line.
fn shown(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

/// Returns true for codes after which another attempt may succeed, once the partitions are known again.
pub fn may_pass(code: i16) -> bool {
    matches!(code, 2 | 3 | 5 | 6 | 7 | 8 | 9 | 13 | 19 | 20 | 56 | 74 | 75 | 78)
}

/// Returns an error for a code other than success.
pub fn failure(code: i16) -> Result<(), String> {
    let name = match code {
        0 => return Ok(()),
        1 => "OFFSET_OUT_OF_RANGE",
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
        42 => "INVALID_REQUEST",
        43 => "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        56 => "KAFKA_STORAGE_ERROR",
        58 => "SASL_AUTHENTICATION_FAILED",
        74 => "FENCED_LEADER_EPOCH",
        75 => "UNKNOWN_LEADER_EPOCH",
        76 => "UNSUPPORTED_COMPRESSION_TYPE",
        78 => "OFFSET_NOT_AVAILABLE",
        _ => return Err(format!("the broker returned error {code}")),
    };
    Err(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let topic = BrokerResponse::new(&answer).unwrap().partitions().unwrap();
        let brokers = vec![(7, "127.0.0.1".to_owned(), 9092)];
        assert_eq!(topic, Topic { error: 0, brokers, partitions: vec![(0, 7), (1, 7)] });
        for length in 0..answer.len() {
            let cut = BrokerResponse::new(&answer[..length]).and_then(|mut answer| answer.partitions());
            assert!(cut.is_err(), "{length}");
        }
    }

    #[test]
    fn offsets_and_records_are_read() {
        let around = |inner: &dyn Fn(&mut Vec<u8>), held_back: bool| {
            let mut answer = CORRELATION.to_be_bytes().to_vec();
            if held_back {
                answer.put_i32(0);
            }
            answer.put_i32(1);
            put_text(&mut answer, "logs");
            answer.put_i32(1);
            answer.put_i32(3);
            inner(&mut answer);
            answer
        };
        let offset = |error: i16| {
            around(
                &|answer| {
                    answer.put_i16(error);
                    answer.put_i64(-1);
                    answer.put_i64(42);
                },
                false,
            )
        };
        let fetched = |error: i16, aborted: i32| {
            around(
                &|answer| {
                    answer.put_i16(error);
                    answer.put_slice(&[0; 16]);
                    answer.put_i32(aborted);
                    answer.put_slice(&[0; 16].repeat(aborted.max(0) as usize));
                    put_bytes(answer, b"batches");
                },
                true,
            )
        };
        assert_eq!(BrokerResponse::new(&offset(0)).unwrap().offset(), Ok(Ok(42)));
        assert_eq!(BrokerResponse::new(&offset(6)).unwrap().offset(), Ok(Err(6)));
        for aborted in [-1, 0, 2] {
            let answer = fetched(0, aborted);
            assert_eq!(BrokerResponse::new(&answer).unwrap().fetched(), Ok(Ok(&b"batches"[..])), "{aborted}");
            for length in 0..answer.len() {
                let cut =
                    BrokerResponse::new(&answer[..length]).and_then(|mut answer| answer.fetched().map(drop));
                assert!(cut.is_err(), "{length}");
            }
        }
        assert_eq!(BrokerResponse::new(&fetched(1, 0)).unwrap().fetched(), Ok(Err(1)));
        assert_eq!(failure(1), Err("OFFSET_OUT_OF_RANGE".to_owned()));
    }

    #[test]
    fn requests_follow_the_protocol() {
        let head =
            |key: u8, version: u8| [0, key, 0, version, 0, 0, 0, 1, 0, 5, b's', b'i', b'g', b'm', b'a'];
        let place = [0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 2];
        let last = (-1_i64).to_be_bytes();
        let expected = [&head(2, 1)[..], &[0xff; 4], &place, &last].concat();
        let partition = TopicPartition { topic: "t", partition: 2 };
        assert_eq!(list_offsets(partition, -1), expected);
        let wish = [&100_i32.to_be_bytes()[..], &1_i32.to_be_bytes(), &4096_i32.to_be_bytes(), &[0]].concat();
        let expected =
            [&head(1, 4)[..], &[0xff; 4], &wish, &place, &7_i64.to_be_bytes(), &4096_i32.to_be_bytes()];
        assert_eq!(fetch(partition, 7, FetchBounds { wait_ms: 100, bytes: 4096 }), expected.concat());
        let topic = [&head(3, 4)[..], &[0, 0, 0, 1, 0, 1, b't']].concat();
        assert_eq!(metadata("t", Absent::Made), [&topic[..], &[1]].concat());
        assert_eq!(metadata("t", Absent::Missing), [&topic[..], &[0]].concat());
    }

    /// A count that is larger than the rest takes no memory, and no time.
    #[test]
    fn garbage_is_refused() {
        for answer in [
            &[0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, 0, 0][..],
            &[0, 0, 0, 2, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
            &[],
        ] {
            let read = BrokerResponse::new(answer).and_then(|mut answer| answer.outcome());
            assert_eq!(read, Err(GARBAGE.to_owned()), "{answer:?}");
        }
    }

    #[test]
    fn a_text_of_a_broker_forges_no_line() {
        let mut answer = Vec::new();
        answer.put_i32(CORRELATION);
        answer.put_i16(58);
        put_text(&mut answer, "no\nERROR forged");
        let said = BrokerResponse::new(&answer).unwrap().authenticated().unwrap_err();
        assert_eq!(said, "SASL_AUTHENTICATION_FAILED: no\\nERROR forged");
    }
}
