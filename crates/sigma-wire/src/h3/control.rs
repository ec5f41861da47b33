//! The unidirectional streams of both sides.

use std::task::{Context, Poll};

use sigma_http::Chunk;
use sigma_http::h3::{Broken, Codec, ErrorCode, UniStream};
use sigma_net::quic::{Dir, RecvError, RecvStream, SendStream, Stopped};

use super::common::Common;

/// Bytes for a peer that gives this side's stream no window. More than that ends the connection.
const WAITING_MAX: usize = 16 * 1024;

/// Bytes that are read from a stream at once.
const READ_BYTES: usize = 16 * 1024;

/// The unidirectional streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// This side's streams: of the connection, the encoder and the decoder.
    own: Vec<SendStream>,
    peer: Vec<(RecvStream, UniStream)>,
}

/// The number of this side's streams.
const OWN: usize = 3;

impl Control {
    /// Reads and writes as far as possible.
    ///
    /// # Errors
    /// Returns the rule that the peer broke.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, common: &Common) -> Result<(), Broken> {
        while let Poll::Ready(Ok(incoming)) = common.connection.poll_accept(cx, Dir::Uni) {
            self.peer.push((incoming.recv, UniStream::default()));
        }
        let mut result = Ok(());
        self.peer.retain_mut(|(recv, stream)| {
            result.is_ok()
                && read(cx, common, recv, stream).unwrap_or_else(|broken| {
                    result = Err(broken);
                    false
                })
        });
        result?;
        common.wake_unblocked();
        common.change_priorities();
        self.write(cx, common)
    }

    /// Writes the output of the codec.
    ///
    /// # Errors
    /// Returns the rule that the peer broke.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, common: &Common) -> Result<(), Broken> {
        while self.own.len() < OWN {
            let Poll::Ready(Ok(mut send)) = common.connection.poll_open_uni(cx) else { break };
            // Control frames go before all responses.
            send.set_priority(i32::MAX);
            self.own.push(send);
        }
        common.drive(|codec| {
            let outputs = codec.outputs();
            let outputs = [&mut outputs.control, &mut outputs.encoder, &mut outputs.decoder];
            for (at, output) in outputs.into_iter().enumerate() {
                if let Some(send) = self.own.get_mut(at) {
                    if let Poll::Ready(Stopped::Code(_)) = send.poll_stopped(cx) {
                        return Err(Codec::closed_critical());
                    }
                    if !output.is_empty() && send.has_room() {
                        send.put(std::mem::take(output));
                    } else if !output.is_empty() {
                        // The window of the stream wakes this task.
                        let _ = send.poll_send(cx, &mut Chunk::empty());
                    }
                }
                if output.len() > WAITING_MAX {
                    return Err(Broken {
                        scope: sigma_http::h3::Scope::Connection,
                        code: ErrorCode::EXCESSIVE_LOAD,
                        reason: "the peer allows no data on the control streams",
                    });
                }
            }
            Ok(())
        })
    }
}

/// Reads a stream of the peer. Returns false at its end.
fn read(
    cx: &mut Context<'_>,
    common: &Common,
    recv: &mut RecvStream,
    stream: &mut UniStream,
) -> Result<bool, Broken> {
    loop {
        match recv.poll_bytes(cx, READ_BYTES) {
            Poll::Pending => return Ok(true),
            Poll::Ready(Ok(Some(bytes))) => {
                if !common.drive(|codec| codec.receive_uni(stream, &bytes))? {
                    recv.stop(ErrorCode::STREAM_CREATION_ERROR.0);
                    return Ok(false);
                }
            }
            Poll::Ready(Ok(None) | Err(RecvError::Reset(_))) => {
                common.drive(|codec| codec.end_uni(stream))?;
                return Ok(false);
            }
            Poll::Ready(Err(RecvError::Stopped | RecvError::Lost(_))) => return Ok(false),
        }
    }
}
