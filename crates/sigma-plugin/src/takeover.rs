//! Taking over a connection: the plugin is the other side of a tunnel, in the place of a node.

use std::io;
use std::task::{Context, Poll};

use sigma_http::Chunk;

/// Talks to a client whose connection a plugin has taken over; see [`crate::Step::Takeover`]. Both
/// directions go on side by side, as fast as the one who takes; it is dropped when the tunnel ends.
pub trait Takeover {
    /// The next bytes for the client, not empty; None ends the tunnel once they have left. Not asked
    /// while the client has yet to take earlier ones.
    ///
    /// # Errors
    /// Returns an error if the tunnel breaks off.
    fn poll_next(&mut self, task: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>>;

    /// Whether it takes bytes of the client now. As long as it does not, the client is not read.
    ///
    /// # Errors
    /// Returns an error if it takes no more bytes; the tunnel ends.
    fn poll_ready(&mut self, _task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Bytes of the client; only after [`Takeover::poll_ready`] was ready.
    fn take(&mut self, data: Chunk);
}
