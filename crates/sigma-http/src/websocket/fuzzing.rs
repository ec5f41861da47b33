//! Properties of WebSocket frames: a function for the target in `fuzz/`, which panics on a violation.

use super::messages::{Kind, Reader, Violation, WebsocketMessage};
use super::{Follower, Sender};

/// All messages, and the reason for the end.
type All = (Vec<WebsocketMessage>, Option<Violation>);

/// Input: a byte for the longest message, a byte for the size of pieces, and the bytes of a client. The result does
/// not depend on the pieces and equals the result of a second reader. A follower does not lose its place, and no
/// message exceeds its limit.
pub fn websocket(input: &[u8]) {
    let [limit, piece, frames @ ..] = input else { return };
    let (limit, piece) = (usize::from(*limit), usize::from(*piece).max(1));
    let expected = whole(limit, frames);
    for piece in [1, piece, frames.len().max(1)] {
        assert_eq!(in_pieces(limit, frames, piece), expected, "in pieces of {piece}");
    }
    for said in &expected.0 {
        match said {
            WebsocketMessage::Message(kind, bytes) => {
                assert!(bytes.len() <= limit);
                assert!(*kind == Kind::Binary || str::from_utf8(bytes).is_ok());
            }
            WebsocketMessage::Ping(bytes) | WebsocketMessage::Pong(bytes) => assert!(bytes.len() <= 125),
            WebsocketMessage::Close(_) => {}
        }
    }
    follows(frames, piece, expected.1.is_none());
}

fn in_pieces(limit: usize, frames: &[u8], piece: usize) -> All {
    let (mut reader, mut all) = (Reader::new(limit), Vec::new());
    for mut piece in frames.chunks(piece) {
        while !piece.is_empty() {
            match reader.read(piece) {
                Ok((taken, said)) => {
                    assert!(
                        taken > 0 && (said.is_some() || taken == piece.len()),
                        "it stops behind a whole message"
                    );
                    piece = &piece[taken..];
                    all.extend(said);
                }
                Err(violation) => return (all, Some(violation)),
            }
        }
    }
    (all, None)
}

/// A follower reaches the same positions in any pieces, and loses its place only where a reader fails too.
fn follows(frames: &[u8], piece: usize, is_read: bool) {
    let mut followers = [1, piece].map(|piece| {
        let mut follower = Follower::new(Sender::Client);
        frames.chunks(piece).for_each(|piece| follower.pass(piece));
        follower
    });
    let [first, second] = &mut followers;
    let places = |follower: &Follower| (follower.is_between(), follower.is_lost(), follower.is_closed());
    assert_eq!(places(first), places(second));
    assert!(!is_read || !first.is_lost(), "frames that are read are frames to a follower");
}

/// Parses the frames by RFC 6455 §5.2 at once, from a slice with all of them.
fn whole(limit: usize, mut rest: &[u8]) -> All {
    let (mut all, mut message): (Vec<WebsocketMessage>, Option<(Kind, Vec<u8>)>) = (Vec::new(), None);
    loop {
        let held = message.as_ref().map_or(0, |(_, bytes)| bytes.len());
        let frame = match frame(rest, limit - held, message.is_some()) {
            Ok(Some(frame)) => frame,
            Ok(None) => return (all, None),
            Err(violation) => return (all, Some(violation)),
        };
        rest = frame.rest;
        match next_message(&frame, &mut message) {
            Ok(said) => all.extend(said),
            Err(violation) => return (all, Some(violation)),
        }
    }
}

struct Frame<'f> {
    first: u8,
    payload: Vec<u8>,
    rest: &'f [u8],
}

/// Returns the next frame; None if it is incomplete.
fn frame(bytes: &[u8], room: usize, is_within: bool) -> Result<Option<Frame<'_>>, Violation> {
    let [first, second, ..] = *bytes else { return Ok(None) };
    if second < 0x80 {
        return Err(Violation::Protocol);
    }
    let (number, head) = match second & 0x7f {
        126 => (bytes.get(2..4), 4),
        127 => (bytes.get(2..10), 10),
        _ => (Some(&bytes[1..2]), 2),
    };
    let (Some(number), Some(mask)) = (number, bytes.get(head..head + 4)) else { return Ok(None) };
    let length = match head {
        2 => u64::from(second & 0x7f),
        _ => number.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    let is_control = first & 0x08 != 0;
    let is_known = match first & 0x0f {
        0 => is_within,
        1 | 2 => !is_within,
        8..=10 => first & 0x80 != 0 && length <= 125,
        _ => false,
    };
    let is_shortest = match head {
        2 => true,
        4 => length > 125,
        _ => length > 65_535,
    };
    if !is_known || first & 0x70 != 0 || length > u64::MAX / 2 || !is_shortest {
        return Err(Violation::Protocol);
    }
    if !is_control && length > room as u64 {
        return Err(Violation::TooLong);
    }
    let body = &bytes[head + 4..];
    let Some(payload) = usize::try_from(length).ok().and_then(|length| body.get(..length)) else {
        return Ok(None);
    };
    let rest = &body[payload.len()..];
    let payload = payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect();
    Ok(Some(Frame { first, payload, rest }))
}

fn next_message(
    frame: &Frame<'_>,
    message: &mut Option<(Kind, Vec<u8>)>,
) -> Result<Option<WebsocketMessage>, Violation> {
    let payload = frame.payload.clone();
    match frame.first & 0x0f {
        8 => return close(&payload).map(Some),
        9 => return Ok(Some(WebsocketMessage::Ping(payload))),
        10 => return Ok(Some(WebsocketMessage::Pong(payload))),
        1 => *message = Some((Kind::Text, payload)),
        2 => *message = Some((Kind::Binary, payload)),
        _ => {
            if let Some((_, bytes)) = message {
                bytes.extend(payload);
            }
        }
    }
    if frame.first & 0x80 == 0 {
        return Ok(None);
    }
    match message.take() {
        Some((Kind::Text, bytes)) if str::from_utf8(&bytes).is_err() => Err(Violation::Text),
        message => Ok(message.map(|(kind, bytes)| WebsocketMessage::Message(kind, bytes))),
    }
}

fn close(payload: &[u8]) -> Result<WebsocketMessage, Violation> {
    let code = match payload {
        [] => return Ok(WebsocketMessage::Close(None)),
        [_] => return Err(Violation::Protocol),
        [high, low, ..] => u16::from(*high) << 8 | u16::from(*low),
    };
    let is_sent = (1000..5000).contains(&code) && !matches!(code, 1004..=1006 | 1015..=2999);
    if !is_sent {
        return Err(Violation::Protocol);
    }
    str::from_utf8(&payload[2..]).map_err(|_| Violation::Text)?;
    Ok(WebsocketMessage::Close(Some(code)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_holds_for_the_seeds() {
        sigma_testkit::for_inputs_of("websocket", super::websocket);
    }
}
