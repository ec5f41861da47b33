//! Two codecs read the same client and must agree.
//!
//! The other one is the `h2` crate. Both are servers; a conversation is the input of a client, frame by frame, valid
//! and invalid. The comparison covers the requests with their fields, bodies, trailers and ends, the streams that are
//! reset, and whether the connection fails with the same code.
//!
//! Allowed differences, where RFC 9113 leaves a choice or one codec is stricter, are in [`is_open`],
//! [`are_like_failures`], and in the heads of [`conversation`] on which the codecs need not agree.

pub(crate) mod conversation;
mod ours;
mod theirs;

use std::collections::BTreeMap;

use conversation::{Conversation, Step};

/// Names and values, in one order.
pub(crate) type Fields = Vec<(String, String)>;

/// The end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// More may follow
    Open,
    Complete,
    /// The client reset it
    Reset(u32),
    /// The client broke a rule, or the connection failed
    Broken,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Pseudo-fields and fields; equal names in their order of arrival.
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) end: End,
}

/// The result of a codec for a conversation.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: BTreeMap<u32, Message>,
    /// Codes of RST_STREAM, by stream; the first for each.
    pub(crate) resets: BTreeMap<u32, u32>,
    /// Code of the GOAWAY that ended the connection.
    pub(crate) failure: Option<u32>,
    /// Responses to PING.
    pub(crate) pongs: Vec<Vec<u8>>,
    /// Acknowledgements of SETTINGS.
    pub(crate) acknowledged: usize,
}

/// Runs both codecs on the conversation of `choices`.
///
/// Returns an error with the difference if they do not agree.
pub(crate) fn compare(choices: &[u8]) -> Result<(), String> {
    let conversation = Conversation::new(choices);
    let mut ours = ours::Side::new(&conversation);
    let mut theirs = theirs::Side::new(&conversation);
    let mut over = false;
    let mut difference = None;
    for (at, step) in conversation.steps.iter().enumerate() {
        ours.take(step);
        theirs.take(step);
        let (own, other) = (ours.outcome(), theirs.outcome());
        if own.failure.is_none() && other.failure.is_none() {
            continue;
        }
        over = true;
        if !are_like_failures(own.failure, other.failure) && !is_open(at, &conversation, own, other) {
            let (own, other) = (own.failure, other.failure);
            difference = Some(format!("step {at} ends the connection with {own:?} and {other:?}"));
        }
        break;
    }
    ours.read_all();
    theirs.read_all();
    let (ours, theirs) = (ours.outcome(), theirs.outcome());
    match difference.or_else(|| ours.differs(theirs, &conversation, over)) {
        None => Ok(()),
        Some(what) => Err(format!("{what}\n{conversation}\nours: {ours:#?}\ntheirs: {theirs:#?}")),
    }
}

/// The other codec uses PROTOCOL_ERROR for many rules with their own code.
fn are_like_failures(own: Option<u32>, other: Option<u32>) -> bool {
    own == other || (own.is_some() && other == Some(PROTOCOL_ERROR))
}

/// Returns true if RFC 9113 leaves the effect of a step on the connection open. Later steps are not compared then.
fn is_open(at: usize, conversation: &Conversation, ours: &Outcome, theirs: &Outcome) -> bool {
    let Step::Send(bytes) = &conversation.steps[at] else { return false };
    let (kind, stream) = (bytes[3], u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]));
    let begun = || ours.requests.keys().chain(theirs.requests.keys());
    let is_passed_over = begun().all(|id| *id != stream) && begun().any(|id| *id > stream);
    let is_closed = conversation.is_ended(stream, at)
        || (stream != 0 && is_passed_over)
        || conversation.is_refused(stream)
        || ours.resets.contains_key(&stream)
        || theirs.resets.contains_key(&stream);
    // RFC 9113 §5.1: a frame for an ended stream is ignored, or is an error of the stream or the connection. The
    // other codec waits for the rest of a head, unless it is malformed, and ignores promises.
    let is_piece = kind == conversation::HEADERS && bytes[4] & conversation::END_HEADERS == 0;
    is_closed || is_piece || kind == conversation::PUSH_PROMISE
}

const PROTOCOL_ERROR: u32 = 1;

impl Outcome {
    /// Returns the first difference that is not allowed; `over` is set if the connection has ended early.
    fn differs(&self, theirs: &Outcome, conversation: &Conversation, over: bool) -> Option<String> {
        for id in self.requests.keys().chain(theirs.requests.keys()) {
            if conversation.is_matter_of_taste(*id) {
                continue;
            }
            // Bytes for a stream that both reset do not matter.
            let cut = over || (self.resets.contains_key(id) && theirs.resets.contains_key(id));
            match (self.requests.get(id), theirs.requests.get(id)) {
                (Some(own), Some(other)) if own.is_like(other, cut) => {}
                (own, other) => return Some(format!("stream {id}: {own:?} and {other:?}")),
            }
        }
        if over {
            // The remaining steps are not run.
            return None;
        }
        for id in self.resets.keys().chain(theirs.resets.keys()) {
            let (own, other) = (self.resets.get(id), theirs.resets.get(id));
            let free = conversation.is_refused(*id) || conversation.is_matter_of_taste(*id);
            // A stream that ends on both sides with a fault need not be reset.
            let over = other.is_none() && theirs.requests.get(id).is_some_and(|own| own.end == End::Broken);
            if own != other && !free && !over {
                return Some(format!("stream {id} is taken back with {own:?} and {other:?}"));
            }
        }
        (self.pongs != theirs.pongs || self.acknowledged != theirs.acknowledged)
            .then(|| "PING or SETTINGS are answered otherwise".to_owned())
    }
}

impl Message {
    /// Returns true if both agree; for a `cut` message, on the common part.
    fn is_like(&self, other: &Message, cut: bool) -> bool {
        if self.fields != other.fields {
            return false;
        }
        if cut && (self.end != End::Complete || other.end != End::Complete) {
            return true;
        }
        // A stream may be reset before its complete message is read.
        let broken = self.end == End::Broken || matches!(self.end, End::Reset(_));
        if broken && other.end == End::Complete {
            return true;
        }
        // The received part of a truncated body does not matter, and may be dropped.
        let body = broken || self.body == other.body;
        self.end == other.end && self.trailers == other.trailers && body
    }
}

/// Reads all frames that a codec has sent.
fn read_output(output: &mut Vec<u8>, outcome: &mut Outcome) {
    let taken = std::mem::take(output);
    let mut bytes = &taken[..];
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    while bytes.len() >= 9 {
        let length = number(&bytes[..3]) as usize;
        let (kind, flags, stream) = (bytes[3], bytes[4], number(&bytes[5..9]));
        let payload = &bytes[9..9 + length];
        match (kind, flags & 1) {
            (3, _) => {
                outcome.resets.entry(stream).or_insert(number(payload));
            }
            (4, 1) => outcome.acknowledged += 1,
            (6, 1) => outcome.pongs.push(payload.to_vec()),
            (7, _) if number(&payload[4..8]) != 0 => outcome.failure = Some(number(&payload[4..8])),
            _ => {}
        }
        bytes = &bytes[9 + length..];
    }
    assert!(bytes.is_empty(), "half a frame was sent");
}

/// Sorts fields, keeps equal names in order, and joins the pieces of a cookie.
fn in_order(fields: impl Iterator<Item = (String, String)>) -> Fields {
    let mut all: Fields = Vec::new();
    for (name, value) in fields {
        match all.iter_mut().find(|(own, _)| name == "cookie" && *own == name) {
            Some((_, cookie)) => *cookie = format!("{cookie}; {value}"),
            None => all.push((name, value)),
        }
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
