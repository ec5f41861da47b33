//! HTTP/1 (RFC 9112): both sides, and their common code.
//!
//! | file | role |
//! |---|---|
//! | `client` | a connection to a node |
//! | `server` | a connection of a client |
//! | `outgoing` | the bytes that wait to be written |

mod client;
mod outgoing;
mod server;

use std::task::{Context, Poll};

use sigma_http::h1::Output;
use sigma_net::Stream;

pub use client::Client;
pub use server::{NoRequest, Server, ServerLimits};

/// Writes `output` to `stream`; ready when it is empty.
///
/// # Errors
/// Returns an error if the operating system refuses the bytes.
pub(crate) fn flush(
    stream: &mut Stream,
    output: &mut Output,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<()>> {
    while !output.is_empty() {
        let written = match output.single() {
            Some(bytes) => stream.poll_write(cx, bytes),
            None => stream.poll_write_vectored(cx, &output.slices()),
        };
        match written {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(n)) => output.advance(n),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    }
    // Bytes in an encrypted stream may still wait for room in its socket.
    stream.poll_flush(cx)
}
