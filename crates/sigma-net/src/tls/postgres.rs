//! How sessions of PostgreSQL begin: a request for TLS in cleartext, and a response of one byte
//! (PostgreSQL 17 §53.2.10).
//!
//! Before TLS begins, an attacker on the path can add bytes, which would count as sent by the peer within TLS
//! (CVE-2021-23214, CVE-2021-23222). So bytes behind a request or its response are refused.

use std::future::poll_fn;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::HandshakeError;
use super::buffer::Buffer;
use super::session::RECORD_BYTES;
use crate::stream::Stream;

/// The request for TLS (§53.7): its length, and the code 80877103.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

/// The codes of the messages that a session may begin with.
const SSL_CODE: u32 = 80_877_103;
const GSSENC_CODE: u32 = 80_877_104;
const CANCEL_CODE: u32 = 80_877_102;

/// Longest message with which a server lets a session begin in cleartext.
const STARTUP_BYTES: u32 = 10_000;

/// The first message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// SSLRequest.
    Tls,
    /// GSSENCRequest, which requests another kind of encryption.
    Gss,
    /// A session or a cancellation without encryption.
    Cleartext,
    /// The beginning of one of these.
    Unclear,
    /// Anything else, such as TLS.
    Other,
}

/// Looks for the first message of a client of PostgreSQL. TLS begins with the byte 22, these with 0.
fn opening(bytes: &[u8]) -> Opening {
    if bytes.first().is_some_and(|first| *first != 0) {
        return Opening::Other;
    }
    let Some(&[a, b, c, d, e, f, g, h]) = bytes.first_chunk() else { return Opening::Unclear };
    match (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])) {
        (8, SSL_CODE) => Opening::Tls,
        (8, GSSENC_CODE) => Opening::Gss,
        (16, CANCEL_CODE) => Opening::Cleartext,
        // Versions 2 and 3 of the protocol.
        (8..=STARTUP_BYTES, code) if matches!(code >> 16, 2 | 3) => Opening::Cleartext,
        _ => Opening::Other,
    }
}

/// Responds to the requests of a client up to the first bytes of TLS, which are left in `input`. Returns whether the
/// client has requested TLS; one that begins with TLS, or with another protocol, has not.
///
/// # Errors
/// Returns an error if the client begins in cleartext, or does not wait for the response.
pub(super) async fn respond(socket: &mut Stream, input: &mut Buffer) -> Result<bool, HandshakeError> {
    let mut was_declined = false;
    loop {
        match opening(input.filled()) {
            Opening::Other => return Ok(false),
            Opening::Unclear => fill(socket, input).await?,
            Opening::Tls => {
                reply(socket, input, *b"S").await?;
                return Ok(true);
            }
            Opening::Gss if !was_declined => {
                reply(socket, input, *b"N").await?;
                was_declined = true;
            }
            Opening::Gss => return Err(HandshakeError::Cleartext(None)),
            Opening::Cleartext => {
                socket.send_now(&refusal());
                return Err(HandshakeError::Cleartext(None));
            }
        }
    }
}

async fn reply(socket: &mut Stream, input: &mut Buffer, byte: [u8; 1]) -> Result<(), HandshakeError> {
    if input.len() > SSL_REQUEST.len() {
        return Err(HandshakeError::Premature);
    }
    expect_silence(socket).await?;
    input.advance(SSL_REQUEST.len());
    socket.write_all(&byte).await?;
    Ok(socket.flush().await?)
}

async fn fill(socket: &mut Stream, input: &mut Buffer) -> Result<(), HandshakeError> {
    let read = poll_fn(|cx| {
        let read = socket.poll_read(cx, input.spare(RECORD_BYTES));
        if read.is_pending() {
            // A client that says nothing yet holds no memory.
            input.rest();
        }
        read
    });
    match read.await? {
        0 => Err(HandshakeError::Closed),
        n => {
            input.grow(n);
            Ok(())
        }
    }
}

/// Refuses bytes that have come already.
async fn expect_silence(socket: &mut Stream) -> Result<(), HandshakeError> {
    let mut byte = [0];
    let mut read = poll_fn(|cx| Poll::Ready(socket.poll_read(cx, &mut byte))).await;
    if read.is_pending() && !socket.is_silent() {
        // The event loop does not know of them yet.
        read = Poll::Ready(poll_fn(|cx| socket.poll_read(cx, &mut byte)).await);
    }
    match read {
        Poll::Pending => Ok(()),
        Poll::Ready(Ok(0)) => Err(HandshakeError::Closed),
        Poll::Ready(Ok(_)) => Err(HandshakeError::Premature),
        Poll::Ready(Err(error)) => Err(error.into()),
    }
}

/// An ErrorResponse for clients that do not ask for TLS.
fn refusal() -> Vec<u8> {
    // Severity twice, the code of a session that is not authorized, the text; each ends with a zero.
    const FIELDS: &[u8] =
        b"SFATAL\0VFATAL\0C28000\0Mthis port takes TLS only; use sslmode=require or a stricter mode\0\0";
    let length = FIELDS.len() as u32 + 4;
    [&b"E"[..], &length.to_be_bytes(), FIELDS].concat()
}

/// Asks the server at the other end of `socket` for TLS. When it returns, the server waits for a ClientHello.
///
/// # Errors
/// Returns an error if the server declines, or responds in another way than PostgreSQL does.
pub async fn request_tls(socket: &mut Stream) -> Result<(), HandshakeError> {
    socket.write_all(&SSL_REQUEST).await?;
    socket.flush().await?;
    let mut byte = [0];
    // No more than one byte: the next one belongs to TLS.
    let read = socket.read(&mut byte).await?;
    match byte {
        _ if read == 0 => Err(HandshakeError::Closed),
        [b'S'] => expect_silence(socket).await,
        [b'N'] => Err(HandshakeError::Declined),
        _ => Err(HandshakeError::OtherProtocol),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    const GSSENC_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x30];

    #[test]
    fn the_first_bytes_tell_the_messages_apart() {
        assert_eq!(SSL_REQUEST[4..], SSL_CODE.to_be_bytes());
        assert_eq!(GSSENC_REQUEST[4..], GSSENC_CODE.to_be_bytes());
        let version_3 = [&[0, 0, 0, 40, 0, 3, 0, 0][..], b"user\0postgres\0"].concat();
        let cases: &[(&[u8], Opening)] = &[
            (b"", Opening::Unclear),
            (&SSL_REQUEST[..1], Opening::Unclear),
            (&SSL_REQUEST[..7], Opening::Unclear),
            (&SSL_REQUEST, Opening::Tls),
            (&GSSENC_REQUEST, Opening::Gss),
            (&[0, 0, 0, 16, 0x04, 0xD2, 0x16, 0x2E, 0, 0, 0, 1], Opening::Cleartext),
            (&version_3, Opening::Cleartext),
            // The same code with another length is no request.
            (&[0, 0, 0, 9, 0x04, 0xD2, 0x16, 0x2F], Opening::Other),
            (&[0, 0, 0, 8, 0, 0, 0, 1], Opening::Other),
            (&[0xFF, 0, 0, 8], Opening::Other),
            (&[22, 3, 1, 2, 0], Opening::Other),
            (b"GET / HTTP/1.1\r\n", Opening::Other),
        ];
        for (bytes, expected) in cases {
            assert_eq!(opening(bytes), *expected, "{bytes:?}");
        }
    }

    /// The outcome of `respond` for a client that sends each piece and reads as many bytes, those bytes with all that
    /// come later, and the bytes that are left to TLS.
    async fn responses(pieces: &[(&[u8], usize)]) -> (String, Vec<u8>, Vec<u8>) {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let (mut near, mut input) = (Stream::Unix(near), Buffer::default());
        let mut got = Vec::new();
        let client = async {
            for (piece, replies) in pieces {
                far.write_all(piece).await.expect("write");
                for _ in 0..*replies {
                    got.push(far.read_u8().await.expect("a reply"));
                }
            }
        };
        let (outcome, ()) = tokio::join!(respond(&mut near, &mut input), client);
        drop(near);
        far.read_to_end(&mut got).await.expect("read");
        let outcome = match outcome {
            Ok(asked) => asked.to_string(),
            Err(error) => format!("{error:?}"),
        };
        (outcome, got, input.filled().to_vec())
    }

    #[tokio::test]
    async fn requests_are_answered_and_nothing_may_follow_them() {
        let hello = &[22, 3, 1][..];
        let stuffed = [&SSL_REQUEST[..], b"Q"].concat();
        let both = [GSSENC_REQUEST, SSL_REQUEST].concat();
        let (ssl, gss) = (&SSL_REQUEST[..], &GSSENC_REQUEST[..]);
        type Case<'c> = (&'c [(&'c [u8], usize)], &'c str, &'c [u8], &'c [u8]);
        let cases: &[Case<'_>] = &[
            (&[(hello, 0)], "false", b"", hello),
            (&[(b"GET /", 0)], "false", b"", b"GET /"),
            (&[(ssl, 1)], "true", b"S", b""),
            (&[(&ssl[..1], 0), (&ssl[1..5], 0), (&ssl[5..], 1)], "true", b"S", b""),
            (&[(gss, 1), (ssl, 1)], "true", b"NS", b""),
            (&[(gss, 1), (hello, 0)], "false", b"N", hello),
            (&[(gss, 1), (gss, 0)], "Cleartext(None)", b"N", gss),
            (&[(&stuffed, 0)], "Premature", b"", &stuffed),
            (&[(&both, 0)], "Premature", b"", &both),
        ];
        for (pieces, outcome, got, left) in cases {
            let seen = responses(pieces).await;
            assert_eq!(seen, ((*outcome).to_owned(), got.to_vec(), left.to_vec()), "{pieces:?}");
        }
        let (outcome, got, _) = responses(&[(&[0, 0, 0, 8, 0, 3, 0, 0], 0)]).await;
        assert_eq!(outcome, "Cleartext(None)");
        assert_eq!(
            (got[0], u32::from_be_bytes([got[1], got[2], got[3], got[4]])),
            (b'E', got.len() as u32 - 1)
        );
        assert!(got.ends_with(b"stricter mode\0\0"));
    }

    #[tokio::test]
    async fn a_server_has_to_agree_and_then_to_wait() {
        for (response, expected) in [
            (&b"S"[..], None),
            (b"N", Some("Declined")),
            (b"E\0\0\0\x09SFATAL\0", Some("OtherProtocol")),
            (b"SZ", Some("Premature")),
            (b"", Some("Closed")),
        ] {
            let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
            let mut near = Stream::Unix(near);
            let server = async {
                let mut request = [0; 8];
                far.read_exact(&mut request).await.expect("the request");
                assert_eq!(request, SSL_REQUEST);
                far.write_all(response).await.expect("write");
                // An open connection says nothing more.
                (!response.is_empty()).then_some(far)
            };
            let (outcome, _far) = tokio::join!(request_tls(&mut near), server);
            assert_eq!(outcome.err().map(|error| format!("{error:?}")).as_deref(), expected, "{response:?}");
        }
    }
}
