//! A probe by gRPC's health service (`grpc.health.v1`), over HTTP/2.
//!
//! One call on its own connection needs little of HTTP/2: heads are sent as literals, and received ones are ignored,
//! since the status is in the message.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The largest frame that a peer may send by default.
const FRAME_MAX: usize = 16_384;
/// The number of frames after which a node counts as not responding.
const FRAMES_MAX: usize = 64;

/// The scheme of the call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// Returns true if a node reports that it serves `service`. The node's authority is `authority`.
///
/// # Errors
/// Returns an error if the connection breaks, or is not HTTP/2.
pub(super) async fn ask<S>(stream: &mut S, scheme: Scheme, authority: &str, service: &str) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = PREFACE.to_vec();
    frame(&mut request, SETTINGS, 0, 0, &[]);
    frame(&mut request, HEADERS, END_HEADERS, 1, &head(scheme, authority));
    frame(&mut request, DATA, END_STREAM, 1, &message(service));
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    for _ in 0..FRAMES_MAX {
        let mut start = [0; 9];
        stream.read_exact(&mut start).await?;
        let [a, b, c, kind, flags, stream_id @ ..] = start;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > FRAME_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await?;
        let is_ours = u32::from_be_bytes(stream_id) & 0x7fff_ffff == 1;
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let mut reply = Vec::new();
                let echoed = if kind == PING { &payload[..] } else { &[] };
                frame(&mut reply, kind, ACK, 0, echoed);
                stream.write_all(&reply).await?;
                stream.flush().await?;
            }
            DATA if is_ours => {
                answer.extend_from_slice(data(&payload, flags));
                match serves(&answer) {
                    Some(serves) => return Ok(serves),
                    None if flags & END_STREAM != 0 => return Ok(false),
                    None => {}
                }
            }
            // The end of the call without a message: for example, the service is unknown.
            HEADERS if is_ours && flags & END_STREAM != 0 => return Ok(false),
            RST_STREAM if is_ours => return Ok(false),
            GOAWAY => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    // The payload is far below the limit.
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&[len[1], len[2], len[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Returns the fields of the call (RFC 7541): by their index in the static table, with literal values.
fn head(scheme: Scheme, authority: &str) -> Vec<u8> {
    // `:method: POST`, `:scheme`.
    let mut head = match scheme {
        Scheme::Http => vec![0x83, 0x86],
        Scheme::Https => vec![0x83, 0x87],
    };
    let mut add = |name: &[u8], value: &str| {
        head.extend_from_slice(name);
        text(&mut head, value.as_bytes());
    };
    add(&[0x04], "/grpc.health.v1.Health/Check");
    add(&[0x01], authority);
    add(&[0x0f, 0x10], "application/grpc");
    add(b"\x00\x02te", "trailers");
    head
}

/// Writes a text after its length (RFC 7541 §5.1 and §5.2).
fn text(out: &mut Vec<u8>, text: &[u8]) {
    let mut len = text.len();
    if len < 127 {
        out.push(len as u8);
    } else {
        out.push(127);
        len -= 127;
        while len >= 128 {
            out.push((len % 128) as u8 | 128);
            len /= 128;
        }
        out.push(len as u8);
    }
    out.extend_from_slice(text);
}

/// Returns `HealthCheckRequest { service }` as a gRPC message.
fn message(service: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    if !service.is_empty() {
        fields.push(0x0a);
        let mut len = service.len();
        while len >= 128 {
            fields.push((len % 128) as u8 | 128);
            len /= 128;
        }
        fields.push(len as u8);
        fields.extend_from_slice(service.as_bytes());
    }
    let mut message = vec![0];
    message.extend_from_slice(&u32::try_from(fields.len()).unwrap_or(u32::MAX).to_be_bytes());
    message.extend_from_slice(&fields);
    message
}

/// Returns the data of a frame, without padding.
fn data(payload: &[u8], flags: u8) -> &[u8] {
    if flags & PADDED == 0 {
        return payload;
    }
    let Some((&padding, rest)) = payload.split_first() else { return &[] };
    rest.get(..rest.len().saturating_sub(usize::from(padding))).unwrap_or_default()
}

/// Returns true if `HealthCheckResponse` is SERVING; None if it is incomplete. A compressed message, or one with
/// fields of another type, is not a valid response of this service.
fn serves(answer: &[u8]) -> Option<bool> {
    let (start, fields) = answer.split_at_checked(5)?;
    let len = u32::from_be_bytes([start[1], start[2], start[3], start[4]]) as usize;
    if start[0] != 0 || len > FRAME_MAX {
        return Some(false);
    }
    let fields = fields.get(..len)?;
    Some(matches!(fields, [0x08, 1, ..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a response of these frames: (kind, flags, stream, payload).
    async fn answered(frames: &[(u8, u8, u32, &[u8])]) -> io::Result<bool> {
        let (mut near, mut far) = tokio::io::duplex(65_536);
        let mut bytes = Vec::new();
        for (kind, flags, stream, payload) in frames {
            frame(&mut bytes, *kind, *flags, *stream, payload);
        }
        far.write_all(&bytes).await?;
        far.shutdown().await?;
        ask(&mut near, Scheme::Http, "a", "").await
    }

    const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

    #[tokio::test]
    async fn only_a_serving_node_is_healthy() {
        let settings = (SETTINGS, 0, 0, &[][..]);
        let head = (HEADERS, END_HEADERS, 1, &b"\x88"[..]);
        let data = |payload| (DATA, 0, 1, payload);
        let yes = answered(&[settings, (PING, 0, 0, &[7; 8]), head, data(SERVING)]).await;
        assert!(yes.expect("an answer"));
        let pieces = answered(&[settings, head, data(&SERVING[..3]), data(&SERVING[3..])]).await;
        assert!(pieces.expect("an answer"));
        let padded = [&[2][..], SERVING, &[0, 0]].concat();
        assert!(answered(&[(DATA, PADDED, 1, &padded)]).await.expect("an answer"));
        for frames in [
            &[data(&[0, 0, 0, 0, 2, 8, 2])][..],
            &[data(&[0, 0, 0, 0, 0])],
            &[data(&[1, 0, 0, 0, 2, 8, 1])],
            &[(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")],
            &[(DATA, END_STREAM, 1, &SERVING[..4])],
            &[(RST_STREAM, 0, 1, &[0; 4])],
            &[(GOAWAY, 0, 0, &[0; 8])],
            &[(DATA, PADDED | END_STREAM, 1, &[])],
            &[(DATA, PADDED | END_STREAM, 1, &[255, 1])],
            &[settings; FRAMES_MAX],
        ] {
            assert!(!answered(frames).await.expect("an answer"), "{frames:?}");
        }
        // Another stream's frame, and then the end.
        assert!(answered(&[(DATA, 0, 3, SERVING)]).await.is_err());
        assert!(answered(&[data(&vec![0; FRAME_MAX + 1])]).await.is_err());
    }

    #[test]
    fn the_call_has_the_wire_format() {
        assert_eq!(message(""), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let mut long = Vec::new();
        text(&mut long, &[b'x'; 300]);
        assert_eq!((&long[..3], long.len()), (&[127, 173, 1][..], 303));
        assert_eq!(&head(Scheme::Https, "")[..2], [0x83, 0x87]);
        let head = head(Scheme::Http, "node.test");
        assert!(head.windows(9).any(|part| part == b"node.test"));
    }
}
