//! The messages of the protocol between APISIX and its runners.
//!
//! A frame has the type in one byte, the length of its payload in three (the most significant first), and one
//! FlatBuffers table. Fields have the numbers of the protocol's tables, in their order.

use crate::flat::read::{Invalid, Table};
pub(crate) use crate::flat::write::Entry;
use crate::flat::write::{Buffer, Field, PREFIX_BYTES};

/// The bytes before a payload.
pub(crate) const HEADER_BYTES: usize = PREFIX_BYTES;

/// The largest payload: its length has three bytes.
pub(crate) const PAYLOAD_MAX: usize = (1 << 24) - 1;

/// The most bytes of the names and values in one message of a runner. Several entries may share their bytes, so the
/// length of the message is no limit.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The longest name of a variable.
const VARIABLE_MAX: usize = 256;

/// The types of frames.
pub(crate) mod kind {
    pub(crate) const ERROR: u8 = 0;
    pub(crate) const PREPARE_CONF: u8 = 1;
    pub(crate) const HTTP_REQ_CALL: u8 = 2;
    pub(crate) const EXTRA_INFO: u8 = 3;
    pub(crate) const HTTP_RESP_CALL: u8 = 4;

    /// Returns the name of a type, for messages.
    pub(crate) fn name(kind: u8) -> &'static str {
        match kind {
            ERROR => "RPC_ERROR",
            PREPARE_CONF => "RPC_PREPARE_CONF",
            HTTP_REQ_CALL => "RPC_HTTP_REQ_CALL",
            EXTRA_INFO => "RPC_EXTRA_INFO",
            _ => "RPC_HTTP_RESP_CALL",
        }
    }
}

/// The methods of the protocol, in the order of their numbers.
const METHODS: [&str; 15] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "PATCH",
    "TRACE",
];

/// A message to a runner.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    payload: Buffer,
}

impl Message {
    /// Returns the frame.
    ///
    /// # Errors
    /// Returns an error message if the payload is too long for a frame.
    pub(crate) fn frame(&mut self) -> Result<&[u8], String> {
        let length = self.payload.length();
        if length > PAYLOAD_MAX {
            return Err(format!("the max length of data is {PAYLOAD_MAX} but got {length}"));
        }
        let [_, high, middle, low] = u32::try_from(length).unwrap_or_default().to_be_bytes();
        Ok(self.payload.behind([self.kind, high, middle, low]))
    }

    /// Returns the length of the payload.
    pub(crate) fn length(&self) -> usize {
        self.payload.length()
    }

    /// Sets the token of the configuration in a call.
    pub(crate) fn set_token(&mut self, token: u32) {
        self.payload.set_later(token);
    }
}

/// Reads the bytes before a payload: the type of the frame, and the length of the payload.
pub(crate) fn header(bytes: [u8; HEADER_BYTES]) -> (u8, usize) {
    let [kind, high, middle, low] = bytes;
    (kind, u32::from_be_bytes([0, high, middle, low]) as usize)
}

/// A request, for `HTTPReqCall.Req`.
#[derive(Debug)]
pub(crate) struct RequestCall<'a> {
    pub(crate) id: u32,
    /// Four or sixteen bytes; none for a client without an address.
    pub(crate) source: &'a [u8],
    pub(crate) method: &'a [u8],
    pub(crate) path: &'a [u8],
    pub(crate) args: &'a [Entry<'a>],
    pub(crate) headers: &'a [Entry<'a>],
}

/// Encodes a configuration, for a token. Without `conf` the runner decides.
pub(crate) fn prepare_conf(conf: Option<&[Entry<'_>]>, key: &str) -> Message {
    let conf = conf.map_or(Field::Absent, Field::Entries);
    let payload = Buffer::of(&[conf, Field::Text(key.as_bytes())]);
    Message { kind: kind::PREPARE_CONF, payload }
}

/// Encodes a request.
pub(crate) fn request_call(call: &RequestCall<'_>) -> Message {
    // APISIX sends other methods as GET.
    let known = METHODS.iter().position(|name| name.as_bytes() == call.method);
    let payload = Buffer::of(&[
        Field::Word(call.id),
        if call.source.is_empty() { Field::Absent } else { Field::Bytes(call.source) },
        Field::Byte(known.and_then(|at| u8::try_from(at).ok()).unwrap_or_default()),
        Field::Text(call.path),
        Field::Entries(call.args),
        Field::Entries(call.headers),
        Field::Later,
    ]);
    Message { kind: kind::HTTP_REQ_CALL, payload }
}

/// Encodes the head of a response.
pub(crate) fn response_call(id: u32, status: u16, headers: &[Entry<'_>]) -> Message {
    let payload = Buffer::of(&[Field::Word(id), Field::Short(status), Field::Entries(headers), Field::Later]);
    Message { kind: kind::HTTP_RESP_CALL, payload }
}

/// Encodes the response to a question of the runner; None if its subject is unknown.
pub(crate) fn extra_info(result: Option<&[u8]>) -> Message {
    let payload = Buffer::of(&[result.map_or(Field::Absent, Field::Bytes)]);
    Message { kind: kind::EXTRA_INFO, payload }
}

/// An error that a runner reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    BadRequest,
    Unavailable,
    TokenNotFound,
    Unknown(u8),
}

impl std::fmt::Display for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reported::BadRequest => f.write_str("bad request"),
            Reported::Unavailable => f.write_str("service unavailable"),
            Reported::TokenNotFound => f.write_str("conf token not found"),
            Reported::Unknown(code) => write!(f, "unknown err {code}"),
        }
    }
}

/// A question of a runner during a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InfoRequest {
    /// The value of a variable.
    Variable(Vec<u8>),
    RequestBody,
    ResponseBody,
}

/// The decision of a runner about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestReply<'b> {
    Unchanged,
    Stop { status: u16, headers: Vec<Entry<'b>>, body: &'b [u8] },
    Rewrite(Rewrite<'b>),
}

/// The changes of a runner to a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrite<'b> {
    pub(crate) path: Option<&'b [u8]>,
    pub(crate) headers: Vec<Entry<'b>>,
    pub(crate) args: Vec<Entry<'b>>,
    pub(crate) resp_headers: Vec<Entry<'b>>,
    /// Empty: the body stays.
    pub(crate) body: &'b [u8],
}

/// The changes of a runner to a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResponseReply<'b> {
    /// 0: the status stays.
    pub(crate) status: u16,
    /// Empty: the fields stay.
    pub(crate) headers: Vec<Entry<'b>>,
    /// Empty: the body stays.
    pub(crate) body: &'b [u8],
}

/// Reads an error.
pub(crate) fn reported(payload: &[u8]) -> Result<Reported, Invalid> {
    Ok(match Table::root(payload)?.byte(0)? {
        0 => Reported::BadRequest,
        1 => Reported::Unavailable,
        2 => Reported::TokenNotFound,
        other => Reported::Unknown(other),
    })
}

/// Reads the token of a configuration.
pub(crate) fn token(payload: &[u8]) -> Result<u32, Invalid> {
    Table::root(payload)?.word(0)
}

/// Reads a question.
pub(crate) fn info_request(payload: &[u8]) -> Result<InfoRequest, Invalid> {
    let table = Table::root(payload)?;
    match table.byte(0)? {
        1 => {
            let name = table.table(1)?.ok_or(Invalid)?.bytes(0)?.unwrap_or_default();
            if name.len() > VARIABLE_MAX { Err(Invalid) } else { Ok(InfoRequest::Variable(name.to_vec())) }
        }
        2 => Ok(InfoRequest::RequestBody),
        3 => Ok(InfoRequest::ResponseBody),
        _ => Err(Invalid),
    }
}

/// Reads the decision about a request.
pub(crate) fn request_reply(payload: &[u8]) -> Result<RequestReply<'_>, Invalid> {
    let table = Table::root(payload)?;
    let action = table.table(2);
    match table.byte(1)? {
        0 => Ok(RequestReply::Unchanged),
        1 => {
            let stop = action?.ok_or(Invalid)?;
            let headers = entries(&[stop.tables(1)?])?.remove(0);
            let body = stop.bytes(2)?.unwrap_or_default();
            Ok(RequestReply::Stop { status: stop.short(0)?, headers, body })
        }
        2 => {
            let rewrite = action?.ok_or(Invalid)?;
            let lists = [rewrite.tables(1)?, rewrite.tables(2)?, rewrite.tables(3)?];
            let mut lists = entries(&lists)?.into_iter();
            let mut next = || lists.next().unwrap_or_default();
            let (headers, args, resp_headers) = (next(), next(), next());
            let (path, body) = (rewrite.bytes(0)?, rewrite.bytes(4)?.unwrap_or_default());
            Ok(RequestReply::Rewrite(Rewrite { path, headers, args, resp_headers, body }))
        }
        _ => Err(Invalid),
    }
}

/// Reads the changes to a response.
pub(crate) fn response_reply(payload: &[u8]) -> Result<ResponseReply<'_>, Invalid> {
    let table = Table::root(payload)?;
    let headers = entries(&[table.tables(2)?])?.remove(0);
    Ok(ResponseReply { status: table.short(1)?, headers, body: table.bytes(3)?.unwrap_or_default() })
}

/// Reads lists of entries, within one limit.
fn entries<'b>(lists: &[Vec<Table<'b>>]) -> Result<Vec<Vec<Entry<'b>>>, Invalid> {
    let mut room = ENTRY_BYTES_MAX;
    let mut entry = |table: &Table<'b>| {
        let (name, value) = (table.bytes(0)?.ok_or(Invalid)?, table.bytes(1)?);
        let length = name.len() + value.map_or(0, <[u8]>::len);
        room = room.checked_sub(length).ok_or(Invalid)?;
        Ok(Entry { name, value })
    };
    lists.iter().map(|list| list.iter().map(&mut entry).collect()).collect()
}

/// Every message of a runner is read or refused, and the lengths of its parts are limited.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::*;

    /// Reads bytes as each message.
    ///
    /// # Panics
    /// A limit does not hold.
    pub fn runner_messages(payload: &[u8]) {
        let _ = (reported(payload), token(payload));
        if let Ok(InfoRequest::Variable(name)) = info_request(payload) {
            assert!(name.len() <= VARIABLE_MAX);
        }
        let length = |list: &[Entry<'_>]| -> usize {
            list.iter().map(|entry| entry.name.len() + entry.value.map_or(0, <[u8]>::len)).sum()
        };
        match request_reply(payload) {
            Ok(RequestReply::Stop { headers, body, .. }) => {
                assert!(length(&headers) <= ENTRY_BYTES_MAX && body.len() <= payload.len());
            }
            Ok(RequestReply::Rewrite(rewrite)) => {
                let lists = [&rewrite.headers, &rewrite.args, &rewrite.resp_headers];
                assert!(lists.map(|list| length(list)).iter().sum::<usize>() <= ENTRY_BYTES_MAX);
                assert!(rewrite.body.len() <= payload.len());
            }
            _ => {}
        }
        if let Ok(reply) = response_reply(payload) {
            assert!(length(&reply.headers) <= ENTRY_BYTES_MAX && reply.body.len() <= payload.len());
        }
    }
}

/// The other side of the protocol, for tests.
#[cfg(test)]
pub(crate) mod runner {
    use super::*;

    pub(crate) fn frame(kind: u8, fields: &[Field<'_>]) -> Vec<u8> {
        let mut message = Message { kind, payload: Buffer::of(fields) };
        message.frame().unwrap_or_default().to_vec()
    }

    pub(crate) fn error(code: u8) -> Vec<u8> {
        frame(kind::ERROR, &[Field::Byte(code)])
    }

    pub(crate) fn token(token: u32) -> Vec<u8> {
        frame(kind::PREPARE_CONF, &[Field::Word(token)])
    }

    pub(crate) fn variable(name: &str) -> Vec<u8> {
        frame(kind::EXTRA_INFO, &[Field::Byte(1), Field::Table(&[Field::Text(name.as_bytes())])])
    }

    pub(crate) fn asks_for(info: u8) -> Vec<u8> {
        frame(kind::EXTRA_INFO, &[Field::Byte(info), Field::Table(&[])])
    }

    pub(crate) fn unchanged() -> Vec<u8> {
        frame(kind::HTTP_REQ_CALL, &[Field::Word(233)])
    }

    pub(crate) fn stop(status: u16, headers: &[Entry<'_>], body: &[u8]) -> Vec<u8> {
        let stop = [Field::Short(status), Field::Entries(headers), Field::Bytes(body)];
        frame(kind::HTTP_REQ_CALL, &[Field::Word(1), Field::Byte(1), Field::Table(&stop)])
    }

    pub(crate) fn rewrite(rewrite: &Rewrite<'_>) -> Vec<u8> {
        let fields = [
            rewrite.path.map_or(Field::Absent, Field::Text),
            Field::Entries(&rewrite.headers),
            Field::Entries(&rewrite.args),
            Field::Entries(&rewrite.resp_headers),
            Field::Bytes(rewrite.body),
        ];
        frame(kind::HTTP_REQ_CALL, &[Field::Word(1), Field::Byte(2), Field::Table(&fields)])
    }

    pub(crate) fn response(status: u16, headers: &[Entry<'_>], body: &[u8]) -> Vec<u8> {
        let fields = [Field::Word(1), Field::Short(status), Field::Entries(headers), Field::Bytes(body)];
        frame(kind::HTTP_RESP_CALL, &fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry<'a>(name: &'a str, value: Option<&'a str>) -> Entry<'a> {
        Entry { name: name.as_bytes(), value: value.map(str::as_bytes) }
    }

    fn payload(frame: &[u8]) -> &[u8] {
        let (_, length) = header(frame[..HEADER_BYTES].try_into().unwrap());
        assert_eq!(frame.len(), HEADER_BYTES + length);
        &frame[HEADER_BYTES..]
    }

    #[test]
    fn calls_have_the_fields_of_the_protocol() {
        let (args, headers) = ([entry("a", None)], [entry("host", Some("h")), entry("x", Some("1"))]);
        let call = |method: &'static str| RequestCall {
            id: 5,
            source: &[127, 0, 0, 1],
            method: method.as_bytes(),
            path: b"/p",
            args: &args,
            headers: &headers,
        };
        for (method, number) in [("GET", 0), ("POST", 2), ("PATCH", 13), ("TRACE", 14), ("QUERY", 0)] {
            let mut message = request_call(&call(method));
            message.set_token(9);
            let frame = message.frame().unwrap().to_vec();
            assert_eq!(frame[0], 2);
            let table = Table::root(payload(&frame)).unwrap();
            assert_eq!((table.word(0), table.byte(2), table.word(6)), (Ok(5), Ok(number), Ok(9)), "{method}");
            assert_eq!(table.bytes(1), Ok(Some(&[127, 0, 0, 1][..])));
            assert_eq!(table.bytes(3), Ok(Some(&b"/p"[..])));
            let lists = entries(&[table.tables(4).unwrap(), table.tables(5).unwrap()]).unwrap();
            assert_eq!(lists, [args.to_vec(), headers.to_vec()]);
        }
        let mut message = response_call(6, 200, &headers);
        message.set_token(7);
        let frame = message.frame().unwrap().to_vec();
        let table = Table::root(payload(&frame)).unwrap();
        assert_eq!((frame[0], table.word(0), table.short(1), table.word(3)), (4, Ok(6), Ok(200), Ok(7)));
        let frame = prepare_conf(Some(&[entry("say", Some("{}"))]), "route#1").frame().unwrap().to_vec();
        let table = Table::root(payload(&frame)).unwrap();
        assert_eq!((frame[0], table.bytes(1)), (1, Ok(Some(&b"route#1"[..]))));
        assert_eq!(entries(&[table.tables(0).unwrap()]).unwrap(), [[entry("say", Some("{}"))]]);
        let frame = prepare_conf(None, "k").frame().unwrap().to_vec();
        assert!(Table::root(payload(&frame)).unwrap().tables(0).unwrap().is_empty());
        let told = |result| {
            let frame = extra_info(result).frame().unwrap().to_vec();
            Table::root(payload(&frame)).unwrap().bytes(0).unwrap().map(<[u8]>::to_vec)
        };
        assert_eq!((told(None), told(Some(b"v"))), (None, Some(b"v".to_vec())));
    }

    #[test]
    fn a_frame_has_at_most_24_bits_of_length() {
        let message = |length: usize| extra_info(Some(&vec![0; length])).frame().map(drop);
        assert!(message(PAYLOAD_MAX - 64).is_ok());
        let refused = message(PAYLOAD_MAX).unwrap_err();
        assert!(refused.starts_with("the max length of data is 16777215 but got "), "{refused}");
    }

    #[test]
    fn replies_are_read() {
        let headers = [entry("x", Some("1")), entry("x", None)];
        assert_eq!(request_reply(payload(&runner::unchanged())), Ok(RequestReply::Unchanged));
        let stop = RequestReply::Stop { status: 503, headers: headers.to_vec(), body: b"no" };
        assert_eq!(request_reply(payload(&runner::stop(503, &headers, b"no"))), Ok(stop));
        let changes = || Rewrite {
            path: Some(b"/new"),
            headers: headers.to_vec(),
            args: vec![entry("a", Some("2"))],
            resp_headers: vec![entry("y", Some("3"))],
            body: b"body",
        };
        assert_eq!(
            request_reply(payload(&runner::rewrite(&changes()))),
            Ok(RequestReply::Rewrite(changes()))
        );
        let reply = ResponseReply { status: 0, headers: headers.to_vec(), body: b"" };
        assert_eq!(response_reply(payload(&runner::response(0, &headers, b""))), Ok(reply));
        assert_eq!(token(payload(&runner::token(7))), Ok(7));
        assert_eq!(
            info_request(payload(&runner::variable("uri"))),
            Ok(InfoRequest::Variable(b"uri".to_vec()))
        );
        assert_eq!(info_request(payload(&runner::asks_for(2))), Ok(InfoRequest::RequestBody));
        assert_eq!(info_request(payload(&runner::asks_for(3))), Ok(InfoRequest::ResponseBody));
        for info in [0, 4, 255] {
            assert_eq!(info_request(payload(&runner::asks_for(info))), Err(Invalid));
        }
        let told: Vec<String> =
            (0..4).map(|code| reported(payload(&runner::error(code))).unwrap().to_string()).collect();
        assert_eq!(told, ["bad request", "service unavailable", "conf token not found", "unknown err 3"]);
    }

    #[test]
    fn entries_that_share_their_bytes_are_limited() {
        let value = "v".repeat(ENTRY_BYTES_MAX / 2);
        let (two, three) = (vec![entry("", Some(&value)); 2], vec![entry("", Some(&value)); 3]);
        assert!(response_reply(payload(&runner::response(0, &two, b""))).is_ok());
        assert_eq!(response_reply(payload(&runner::response(0, &three, b""))), Err(Invalid));
        let many = vec![entry("a", None); 1_001];
        assert_eq!(response_reply(payload(&runner::response(0, &many, b""))), Err(Invalid));
        let long = "v".repeat(VARIABLE_MAX + 1);
        assert_eq!(info_request(payload(&runner::variable(&long))), Err(Invalid));
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzzing::runner_messages(&bytes);
        }

        #[test]
        fn a_changed_message_never_panics(at in 4usize..200, to in any::<u8>(), second in 4usize..200) {
            let headers = [entry("x", Some("1")), entry("y", None)];
            for mut frame in [runner::stop(200, &headers, b"b"), runner::response(9, &headers, b"b"),
                runner::variable("uri")]
            {
                for at in [at, second] {
                    if let Some(byte) = frame.get_mut(at) {
                        *byte = to;
                    }
                }
                fuzzing::runner_messages(&frame[HEADER_BYTES..]);
            }
        }
    }
}
