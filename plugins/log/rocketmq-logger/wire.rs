//! The commands of RocketMQ's remoting protocol that a producer needs, with headers in JSON.
//!
//! A command is its length, the length of its header with a byte for the form of that in front, the header
//! and a body. The length of the whole is left to who sends it.

use std::collections::{BTreeMap, HashMap};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BufMut;
use serde::Deserialize;
use serde_json::json;
use sigma_schema::Confidential;

/// Which question a command asks.
#[derive(Debug, Clone, Copy)]
enum Request {
    /// Where a topic is (`GET_ROUTEINFO_BY_TOPIC`).
    Route = 105,
    /// To take a message (`SEND_MESSAGE_V2`, whose fields have short names).
    Send = 310,
}

/// The number of every question: a connection has one at a time.
const OPAQUE: i64 = 1;

/// The version that the gateway speaks as: 4.1. Servers write standard JSON to later ones only, and to those that
/// request it.
const VERSION: i64 = 317;

/// Servers in their usual configuration make topics like this one when a message for them comes.
pub(super) const TEMPLATE_TOPIC: &str = "TBW102";

/// The queues that such a topic is to have.
const TEMPLATE_QUEUES: u32 = 4;

/// That a broker takes messages for a queue.
const WRITABLE: i64 = 2;

/// The number of the broker that accepts messages, among the brokers of one name.
const MASTER: &str = "0";

/// How the gateway proves who it is.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) access_key: String,
    pub(super) secret_key: Confidential,
}

impl Login {
    /// Over the values of the fields, in the order of their names, and the body.
    fn signature(&self, fields: &BTreeMap<&str, String>, body: &[u8]) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret_key.reveal().as_bytes());
        let mut context = hmac::Context::with_key(&key);
        fields.values().for_each(|value| context.update(value.as_bytes()));
        context.update(body);
        STANDARD.encode(context.sign())
    }
}

fn command(
    request: Request,
    mut fields: BTreeMap<&str, String>,
    body: &[u8],
    login: Option<&Login>,
) -> Vec<u8> {
    if let Some(login) = login {
        fields.insert("AccessKey", login.access_key.clone());
        let signature = login.signature(&fields, body);
        fields.insert("Signature", signature);
    }
    let header = json!({
        "code": request as i64,
        "language": "OTHER",
        "version": VERSION,
        "opaque": OPAQUE,
        "flag": 0,
        "extFields": fields,
        "serializeTypeCurrentRPC": "JSON",
    });
    let header = header.to_string();
    let mut out = Vec::with_capacity(4 + header.len() + body.len());
    // The first byte is the form of the header, 0 for JSON. Names and keys are a few KiB at most: checked with
    // the configuration.
    out.put_u32(u32::try_from(header.len()).unwrap_or(u32::MAX) & 0x00ff_ffff);
    out.put_slice(header.as_bytes());
    out.put_slice(body);
    out
}

/// Asks a name server where a topic is.
pub(super) fn route(topic: &str, login: Option<&Login>) -> Vec<u8> {
    let fields = [("topic", topic.to_owned()), ("acceptStandardJsonOnly", "true".to_owned())];
    command(Request::Route, fields.into(), &[], login)
}

/// The fields of each message.
pub(super) struct Envelope<'m> {
    pub(super) group: &'m str,
    pub(super) topic: &'m str,
    pub(super) key: Option<&'m str>,
    pub(super) tag: Option<&'m str>,
}

impl Envelope<'_> {
    /// Names and values, each with a character behind it that is in neither.
    fn properties(&self) -> String {
        let known = [("KEYS", self.key), ("TAGS", self.tag), ("WAIT", Some("true"))];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
    }
}

/// Asks a broker to take a message for one of its queues.
pub(super) fn send(
    envelope: &Envelope<'_>,
    queue: u32,
    unix_ms: u128,
    body: &[u8],
    login: Option<&Login>,
) -> Vec<u8> {
    let fields = [
        ("a", envelope.group.to_owned()),
        ("b", envelope.topic.to_owned()),
        ("c", TEMPLATE_TOPIC.to_owned()),
        ("d", TEMPLATE_QUEUES.to_string()),
        ("e", queue.to_string()),
        // Neither compressed, nor part of a transaction.
        ("f", "0".to_owned()),
        ("g", unix_ms.to_string()),
        ("h", "0".to_owned()),
        ("i", envelope.properties()),
        // Not consumed before, not of a unit, and one message.
        ("j", "0".to_owned()),
        ("k", "false".to_owned()),
        ("m", "false".to_owned()),
    ];
    command(Request::Send, fields.into(), body, login)
}

/// The error for a response that is not a command of the protocol.
const GARBAGE: &str = "the response of the server is malformed";

/// A response.
#[derive(Debug)]
pub(super) struct RocketmqResponse<'a> {
    code: i64,
    remark: String,
    body: &'a [u8],
}

#[derive(Deserialize)]
struct Header {
    code: i64,
    flag: i64,
    opaque: i64,
    remark: Option<String>,
}

/// The response says no.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    code: i64,
    pub(super) reason: String,
}

impl Refused {
    /// Whether another attempt, at another broker perhaps, may succeed: as clients of the project have it.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self.code, 1 | 2 | 14 | 16 | 17)
    }

    /// Whether the topic is unknown.
    pub(super) fn is_unknown_topic(&self) -> bool {
        self.code == 17
    }
}

impl<'a> RocketmqResponse<'a> {
    /// Of a whole command.
    pub(super) fn new(message: &'a [u8]) -> Result<RocketmqResponse<'a>, String> {
        let (form_and_length, rest) = message.split_first_chunk().ok_or(GARBAGE)?;
        let form_and_length = u32::from_be_bytes(*form_and_length);
        // Longer than the command is also a header in another form than JSON.
        let (header, body) = rest.split_at_checked(form_and_length as usize).ok_or(GARBAGE)?;
        let header: Header = serde_json::from_slice(header).map_err(|_| GARBAGE)?;
        let is_answer = header.flag & 1 == 1 && header.opaque == OPAQUE;
        let remark = header.remark.unwrap_or_default();
        if is_answer {
            Ok(RocketmqResponse { code: header.code, remark, body })
        } else {
            Err(GARBAGE.to_owned())
        }
    }

    fn refused(&self) -> Refused {
        let name = match self.code {
            1 => "SYSTEM_ERROR",
            2 => "SYSTEM_BUSY",
            3 => "REQUEST_CODE_NOT_SUPPORTED",
            13 => "MESSAGE_ILLEGAL",
            14 => "SERVICE_NOT_AVAILABLE",
            15 => "VERSION_NOT_SUPPORTED",
            16 => "NO_PERMISSION",
            17 => "TOPIC_NOT_EXIST",
            _ => "",
        };
        let code = self.code;
        let name = if name.is_empty() { format!("error {code}") } else { name.to_owned() };
        let remark: String = self.remark.chars().take(LONGEST_REMARK).collect();
        Refused { code, reason: format!("{name}: {}", remark.escape_debug()) }
    }

    /// Whether a broker has the message. One that could not write it to its disk or to another broker in time
    /// has it all the same: sent again it would be there twice.
    pub(super) fn taken(&self) -> Result<(), Refused> {
        match self.code {
            0 | 10 | 11 | 12 => Ok(()),
            _ => Err(self.refused()),
        }
    }

    /// Where the topic is.
    pub(super) fn route(&self) -> Result<Result<Route, String>, Refused> {
        match self.code {
            0 => Ok(Route::read(self.body)),
            _ => Err(self.refused()),
        }
    }
}

/// Most characters of a server's error text.
const LONGEST_REMARK: usize = 300;

/// Where a topic is: its queues that take messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Route(Vec<Share>);

/// The queues of a topic that one broker has.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    /// Where it is, as it says.
    address: String,
    /// How many, numbered from 0.
    queues: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouteData {
    #[serde(default)]
    queue_datas: Vec<QueueData>,
    #[serde(default)]
    broker_datas: Vec<BrokerData>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueueData {
    broker_name: String,
    write_queue_nums: u32,
    perm: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BrokerData {
    broker_name: String,
    broker_addrs: HashMap<String, String>,
}

impl Route {
    fn read(body: &[u8]) -> Result<Route, String> {
        let data: RouteData = serde_json::from_slice(&quoted(body)).map_err(|_| GARBAGE)?;
        let mut masters: HashMap<&str, &String> = HashMap::new();
        for broker in &data.broker_datas {
            if let Some(address) = broker.broker_addrs.get(MASTER) {
                masters.insert(&broker.broker_name, address);
            }
        }
        let share = |queues: &QueueData| {
            let takes = queues.perm & WRITABLE != 0 && queues.write_queue_nums > 0;
            let address = masters.get(&*queues.broker_name).filter(|_| takes)?;
            Some(Share { address: (*address).clone(), queues: queues.write_queue_nums })
        };
        let shares: Vec<Share> = data.queue_datas.iter().filter_map(share).collect();
        match shares.is_empty() {
            true => Err("no broker accepts messages of the topic".to_owned()),
            false => Ok(Route(shares)),
        }
    }

    /// As it will be for a topic that is made after this one.
    pub(super) fn into_template(mut self) -> Route {
        self.0.iter_mut().for_each(|share| share.queues = share.queues.min(TEMPLATE_QUEUES));
        self
    }

    /// The queue whose turn it is, and the address of its broker. Brokers take turns, and their queues do.
    pub(super) fn queue(&self, turn: u32) -> (&str, u32) {
        let count = self.0.len() as u32;
        let share = &self.0[(turn % count) as usize];
        (&share.address, turn / count % share.queues)
    }
}

/// JSON in which numbers that are names of members are strings: name servers before 4.9.4 write the numbers of
/// brokers as they are.
fn quoted(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 16);
    let (mut rest, mut in_text) = (body, false);
    while let [byte, after @ ..] = rest {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !in_text && digits > 0 {
            let (number, after) = rest.split_at(digits);
            let quote: &[u8] = if after.first() == Some(&b':') { b"\"" } else { b"" };
            out.extend([quote, number, quote].concat());
            rest = after;
            continue;
        }
        out.push(*byte);
        rest = after;
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                if let [escaped, after @ ..] = rest {
                    out.push(*escaped);
                    rest = after;
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn answer(header: &Value, body: &[u8]) -> Vec<u8> {
        let header = header.to_string();
        [&(header.len() as u32).to_be_bytes()[..], header.as_bytes(), body].concat()
    }

    fn header_of(command: &[u8]) -> (Value, &[u8]) {
        let (length, rest) = command.split_first_chunk().unwrap();
        let (header, body) = rest.split_at(u32::from_be_bytes(*length) as usize);
        (serde_json::from_slice(header).unwrap(), body)
    }

    #[test]
    fn a_message_and_its_signature() {
        let login = Login { access_key: "RocketMQ".to_owned(), secret_key: "12345678".into() };
        let envelope = Envelope { group: "g", topic: "t", key: Some("k"), tag: None };
        let sent = send(&envelope, 3, 7, b"body", Some(&login));
        let (header, body) = header_of(&sent);
        assert_eq!(body, b"body");
        assert_eq!(header["code"], 310);
        let fields = &header["extFields"];
        assert_eq!(fields["i"], "KEYS\u{1}k\u{2}WAIT\u{1}true\u{2}");
        assert_eq!((&fields["e"], &fields["AccessKey"]), (&json!("3"), &json!("RocketMQ")));
        // `RocketMQ`, the other values in order, and the body; by `openssl dgst -sha1 -hmac 12345678`.
        assert_eq!(fields["Signature"], "HpVY0IuIZLF6EIScVyr2QlNCVoE=");
        let unsigned = send(&envelope, 3, 7, b"body", None);
        assert_eq!(header_of(&unsigned).0["extFields"].get("Signature"), None);
    }

    #[test]
    fn answers_are_read() {
        let check = |header: Value, expected: Result<(), &str>| {
            let message = answer(&header, b"");
            let taken = RocketmqResponse::new(&message).unwrap().taken();
            assert_eq!(taken.map_err(|refused| refused.reason), expected.map_err(str::to_owned), "{header}");
        };
        check(json!({ "code": 0, "flag": 1, "opaque": 1 }), Ok(()));
        check(json!({ "code": 10, "flag": 1, "opaque": 1, "remark": null }), Ok(()));
        check(
            json!({ "code": 1, "flag": 1, "opaque": 1, "remark": "no\nERROR forged" }),
            Err("SYSTEM_ERROR: no\\nERROR forged"),
        );
        check(json!({ "code": 208, "flag": 1, "opaque": 1 }), Err("error 208: "));
    }

    #[test]
    fn garbage_is_refused() {
        let good = answer(&json!({ "code": 0, "flag": 1, "opaque": 1 }), b"");
        for length in 0..good.len() {
            assert_eq!(RocketmqResponse::new(&good[..length]).unwrap_err(), GARBAGE, "{length}");
        }
        // A question, the response to another one, and a header in the servers' own form.
        for header in [
            json!({ "code": 0, "flag": 0, "opaque": 1 }),
            json!({ "code": 0, "flag": 1, "opaque": 2 }),
            json!([]),
        ] {
            assert_eq!(RocketmqResponse::new(&answer(&header, b"")).unwrap_err(), GARBAGE, "{header}");
        }
        let mut other_form = good.clone();
        other_form[0] = 1;
        assert_eq!(RocketmqResponse::new(&other_form).unwrap_err(), GARBAGE);
    }

    #[test]
    fn queues_take_turns() {
        // As name servers before 4.9.4 write it.
        let body = br#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:1",1:"127.0.0.1:2"},"brokerName":"a"},
            {"brokerAddrs":{"0":"127.0.0.1:3"},"brokerName":"b \"{0:"},{"brokerAddrs":{1:"127.0.0.1:4"},"brokerName":"c"}],
            "queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":9,"writeQueueNums":2},
            {"brokerName":"b \"{0:","perm":2,"writeQueueNums":1},{"brokerName":"c","perm":6,"writeQueueNums":1},
            {"brokerName":"a","perm":4,"writeQueueNums":5},{"brokerName":"none","perm":6,"writeQueueNums":5}]}"#;
        let route = Route::read(body).unwrap();
        let turns: Vec<_> = (0..5).map(|turn| route.queue(turn)).collect();
        let (a, b) = ("127.0.0.1:1", "127.0.0.1:3");
        assert_eq!(turns, [(a, 0), (b, 0), (a, 1), (b, 0), (a, 0)]);
        route.queue(u32::MAX);
        for (body, expected) in [
            (&b"{}"[..], "no broker accepts messages of the topic"),
            (b"", GARBAGE),
            (b"{\"queueDatas\":[{\"brokerName\":\"a\",\"perm\":6,\"writeQueueNums\":-1}]}", GARBAGE),
        ] {
            assert_eq!(Route::read(body).unwrap_err(), expected);
        }
        let many = br#"{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"a"}],
            "queueDatas":[{"brokerName":"a","perm":6,"writeQueueNums":4294967295}]}"#;
        let route = Route::read(many).unwrap().into_template();
        assert_eq!(route.queue(u32::MAX), ("a:1", 3));
    }
}
