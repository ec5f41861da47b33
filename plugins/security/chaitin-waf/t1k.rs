//! T1K, the protocol of SafeLine's detectors: messages of tagged frames, one message there and one back.
//!
//! A frame is a tag, the length of its data in four bytes (the least significant first), and the data. The
//! tag's upper bits say whether the frame is the first or the last of its message.

/// Bytes before the data of a frame.
const PREFIX: usize = 5;

/// A frame is the first of its message.
const FIRST: u8 = 0x40;

/// A frame is the last of its message.
const LAST: u8 = 0x80;

/// The kinds of frames, below the bits of their places.
mod tag {
    /// The first frame; in a response: whether the request passes.
    pub(super) const HEAD: u8 = 0x01;
    /// The body; of a response: the status for the client.
    pub(super) const BODY: u8 = 0x02;
    /// Facts about the request.
    pub(super) const EXTRA: u8 = 0x03;
    /// The protocol's version.
    pub(super) const VERSION: u8 = 0x20;
    /// Fields for the client.
    pub(super) const HEADERS: u8 = 0x23;
    /// A comment of HTML with the event's id.
    pub(super) const COMMENT: u8 = 0x24;
    /// The bits that are these.
    pub(super) const MASK: u8 = 0x3f;
}

/// The protocol's version for a detector.
const PROTO: &[u8] = b"Proto:2\n";

/// Most fields for a client in one response.
const FIELDS_MAX: usize = 64;

/// Most characters of an event's id.
const EVENT_MAX: usize = 128;

/// A question to a detector: the head of a request, the beginning of its body, and facts about it.
pub(crate) fn detection_request(head: &[u8], body: Option<&[u8]>, facts: &[u8]) -> Vec<u8> {
    let lengths = head.len() + body.map_or(0, <[u8]>::len) + PROTO.len() + facts.len();
    let mut out = Vec::with_capacity(lengths + 4 * PREFIX);
    frame(tag::HEAD | FIRST, head, &mut out);
    if let Some(body) = body {
        frame(tag::BODY, body, &mut out);
    }
    frame(tag::VERSION, PROTO, &mut out);
    frame(tag::EXTRA | LAST, facts, &mut out);
    out
}

fn frame(tag: u8, data: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    // The content of a frame is far below 4 GiB: a head, and a body up to its limit.
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(data);
}

/// The frames of a message, as far as they have come whole; then whether the last one was among them.
struct Frames<'m> {
    rest: &'m [u8],
    is_first: bool,
    is_over: bool,
}

impl<'m> Frames<'m> {
    fn new(message: &'m [u8]) -> Frames<'m> {
        Frames { rest: message, is_first: true, is_over: false }
    }

    /// The next frame: its kind and its data. None if it is missing or incomplete.
    fn next(&mut self) -> Result<Option<(u8, &'m [u8])>, &'static str> {
        let Some((&[tag, ref length @ ..], rest)) = self.rest.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        if self.is_over {
            return Ok(None);
        }
        if (tag & FIRST != 0) != self.is_first {
            return Err("its frames are out of order");
        }
        let length = u32::from_le_bytes(*length) as usize;
        let Some((data, rest)) = rest.split_at_checked(length) else { return Ok(None) };
        (self.rest, self.is_first, self.is_over) = (rest, false, tag & LAST != 0);
        Ok(Some((tag & tag::MASK, data)))
    }
}

/// Returns how many of the received bytes the response has; None if there is more to come.
///
/// # Errors
/// Returns an error, which is a sentence without any text of the response, if it is invalid.
pub(crate) fn end(received: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut frames = Frames::new(received);
    while frames.next()?.is_some() {}
    Ok(frames.is_over.then(|| received.len() - frames.rest.len()))
}

/// A detector's verdict on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The status for a request that is an attack; None if it is not an attack.
    pub(crate) refused: Option<u16>,
    /// The detector's name of the event; empty if it has no name.
    pub(crate) event_id: String,
    /// Fields for the client's response.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

/// Reads a response that has come whole.
///
/// # Errors
/// Returns an error, which is a sentence without anything of the response's, if it decides nothing.
pub(crate) fn verdict(answer: &[u8]) -> Result<Verdict, &'static str> {
    let mut frames = Frames::new(answer);
    let (mut action, mut status, mut event_id, mut fields) = (None, None, String::new(), Vec::new());
    while let Some((kind, data)) = frames.next()? {
        match kind {
            tag::HEAD if action.is_some() => return Err("it contains two decisions"),
            tag::HEAD => action = Some(data),
            tag::BODY => status = Some(data),
            tag::HEADERS => read_fields(data, &mut fields)?,
            tag::COMMENT => event_id = event_of(data),
            // Detectors may say more than is known here.
            _ => {}
        }
    }
    if !frames.is_over || !frames.rest.is_empty() {
        return Err("it is not exactly one message");
    }
    let refused = match action {
        Some(b".") => None,
        Some(b"?") => Some(status.and_then(status_of).unwrap_or(403)),
        Some(_) => return Err("its decision is unknown"),
        None => return Err("it has no decision"),
    };
    Ok(Verdict { refused, event_id, fields })
}

/// The status that the detector wants a refusal to have. A status that would look like a response of the node is
/// ignored.
fn status_of(text: &[u8]) -> Option<u16> {
    let status = str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    status.filter(|status| (300..=599).contains(status))
}

/// Lines of `name:value`.
fn read_fields(lines: &[u8], fields: &mut Vec<(String, Vec<u8>)>) -> Result<(), &'static str> {
    for line in lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':').ok_or("it has a field without a name")?;
        let (name, value) = line.split_at(colon);
        let name = str::from_utf8(name).map_err(|_| "it has a field whose name is not UTF-8")?;
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if fields.len() >= FIELDS_MAX {
            return Err("it has too many fields");
        }
        fields.push((name.to_owned(), value.to_vec()));
    }
    Ok(())
}

/// The id in `<!-- event_id: ID -->`; empty if it is missing.
fn event_of(comment: &[u8]) -> String {
    const NAME: &[u8] = b"event_id:";
    let Some(at) = comment.windows(NAME.len()).position(|window| window == NAME) else {
        return String::new();
    };
    let id = comment.get(at + NAME.len()..).unwrap_or_default().trim_ascii_start();
    let id = id.iter().take(EVENT_MAX).take_while(|byte| byte.is_ascii_alphanumeric());
    id.map(|byte| char::from(*byte)).collect()
}

/// Invariants of every response.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::{end, verdict};

    /// A response ends where it ends however it is cut into reads, and only a whole one decides.
    ///
    /// # Panics
    /// It does not hold.
    pub fn t1k(bytes: &[u8]) {
        let whole = end(bytes);
        for cut in 0..bytes.len() {
            match end(&bytes[..cut]) {
                // Not enough yet: the rest decides.
                Ok(None) => {}
                early => {
                    assert_eq!(early, whole, "cut at {cut}");
                    break;
                }
            }
        }
        if let Ok(Some(length)) = whole {
            assert!(length <= bytes.len());
        }
        if let Ok(verdict) = verdict(bytes) {
            assert_eq!(whole, Ok(Some(bytes.len())), "what decides is one whole message");
            assert!(verdict.refused.is_none_or(|status| (300..600).contains(&status)));
            assert!(verdict.event_id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As detectors answer a request that they let pass.
    const PASSES: &[u8] = b"\xc1\x01\x00\x00\x00.";

    /// A response to an attack: the decision, a status, fields for the client, and a name for the event.
    const REFUSES: &[u8] = b"\x41\x01\x00\x00\x00?\x02\x03\x00\x00\x00405\
        \x23\x13\x00\x00\x00Set-Cookie:sl=1; \n\n\
        \xa4\x45\x00\x00\x00<!-- event_id: b3c6ce574dc24f09a01f634a39dca83b TYPE: A -->          ";

    fn message(frames: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        frames.iter().for_each(|(tag, data)| frame(*tag, data, &mut out));
        out
    }

    fn passes() -> Verdict {
        Verdict { refused: None, event_id: String::new(), fields: Vec::new() }
    }

    #[test]
    fn answers_of_detectors() {
        assert_eq!(end(PASSES), Ok(Some(PASSES.len())));
        assert_eq!(verdict(PASSES), Ok(passes()));
        assert_eq!(end(REFUSES), Ok(Some(REFUSES.len())));
        let refused = Verdict {
            refused: Some(405),
            event_id: "b3c6ce574dc24f09a01f634a39dca83b".to_owned(),
            fields: vec![("Set-Cookie".to_owned(), b"sl=1;".to_vec())],
        };
        assert_eq!(verdict(REFUSES), Ok(refused));
    }

    #[test]
    fn questions_to_detectors() {
        let whole = detection_request(b"GET / HTTP/1.1\r\n\r\n", Some(b"ab"), b"UUID:1\n");
        let expected = b"\x41\x12\x00\x00\x00GET / HTTP/1.1\r\n\r\n\x02\x02\x00\x00\x00ab\
            \x20\x08\x00\x00\x00Proto:2\n\x83\x07\x00\x00\x00UUID:1\n";
        assert_eq!(whole, expected);
        let bodiless = detection_request(b"GET", None, b"");
        assert_eq!(bodiless, b"\x41\x03\x00\x00\x00GET\x20\x08\x00\x00\x00Proto:2\n\x83\x00\x00\x00\x00");
        assert_eq!(end(&bodiless), Ok(Some(bodiless.len())));
    }

    #[test]
    fn answers_that_decide_nothing() {
        let check = |frames: &[(u8, &[u8])], reason| assert_eq!(verdict(&message(frames)), Err(reason));
        check(&[], "it is not exactly one message");
        check(&[(0x41, b".")], "it is not exactly one message");
        check(&[(0xc1, b"."), (0xc1, b".")], "it is not exactly one message");
        check(&[(0xc2, b"403")], "it has no decision");
        check(&[(0xc1, b"")], "its decision is unknown");
        check(&[(0xc1, b"..")], "its decision is unknown");
        check(&[(0x41, b"."), (0x81, b"?")], "it contains two decisions");
        check(&[(0x81, b".")], "its frames are out of order");
        check(&[(0x41, b"."), (0xc2, b"403")], "its frames are out of order");
        check(&[(0x41, b"?"), (0xa3, b"a field")], "it has a field without a name");
        check(&[(0x41, b"?"), (0xa3, b"\xff:a")], "it has a field whose name is not UTF-8");
        check(&[(0x41, b"?"), (0xa3, &b"a:b\n".repeat(FIELDS_MAX + 1))], "it has too many fields");
        assert_eq!(end(b"\x01"), Ok(None));
        assert_eq!(end(b"\x01\0\0\0\0"), Err("its frames are out of order"));
        assert_eq!(
            end(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            Ok(None),
            "a frame of 1.3 GB, which has a limit"
        );
    }

    #[test]
    fn refusals_are_read() {
        let check = |status: &[u8], expected| {
            let answer = message(&[(0x41, b"?"), (0x82, status)]);
            assert_eq!(verdict(&answer).unwrap().refused, Some(expected), "{status:?}");
        };
        check(b"405", 405);
        check(b" 503\n", 503);
        // Not one that looks like a response of the node.
        for status in [&b""[..], b"200", b"101", b"600", b"-1", b"99999", b"no", b"\xff"] {
            check(status, 403);
        }
        assert_eq!(verdict(&message(&[(0xc1, b"?")])).unwrap().refused, Some(403));
        // An unknown frame is ignored.
        assert_eq!(verdict(&message(&[(0x41, b"."), (0xbf, b"x")])), Ok(passes()));
    }

    #[test]
    fn ids_of_events() {
        let check =
            |comment: &str, expected: &str| assert_eq!(event_of(comment.as_bytes()), expected, "{comment}");
        check("<!-- event_id: a1 -->", "a1");
        check("event_id:a1", "a1");
        check("event_id: a\"b", "a");
        check("event_id: ", "");
        check("id: a1", "");
        check(&format!("event_id: {}", "a".repeat(EVENT_MAX + 1)), &"a".repeat(EVENT_MAX));
    }

    proptest! {
        #[test]
        fn a_message_ends_where_it_ends(
            parts in prop::collection::vec((0u8..=tag::MASK, prop::collection::vec(any::<u8>(), 0..40)), 1..8),
            behind in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let last = parts.len() - 1;
            let mut whole = Vec::new();
            for (at, (kind, data)) in parts.iter().enumerate() {
                let place = if at == 0 { FIRST } else { 0 } | if at == last { LAST } else { 0 };
                frame(kind | place, data, &mut whole);
            }
            let length = whole.len();
            for cut in 0..length {
                prop_assert_eq!(end(&whole[..cut]), Ok(None));
                prop_assert!(verdict(&whole[..cut]).is_err());
            }
            whole.extend_from_slice(&behind);
            prop_assert_eq!(end(&whole), Ok(Some(length)));
            prop_assert!(behind.is_empty() || verdict(&whole).is_err());
        }

        #[test]
        fn any_answer_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(length)) = end(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            if verdict(&bytes).is_ok() {
                prop_assert_eq!(end(&bytes), Ok(Some(bytes.len())));
            }
        }
    }
}
