//! QUIC (RFC 9000): connections with streams over UDP. The state machine is quinn-proto's; this folder drives it on a
//! worker's sockets. It does not know HTTP.
//!
//! - [`Endpoint`] drives one UDP socket of a worker with all of its connections. An [`Arrival`] is a client before its
//!   handshake.
//! - [`Connection`] and its [`SendStream`]s and [`RecvStream`]s are values of one thread, without locks. Their calls
//!   only change state and queue; the driver sends once in each turn of the worker.
//! - [`QuicKeys`] are the keys of connection ids, resets and tokens. The kernel chooses the
//!   worker of a packet by its id ([`steer`]). An id names its worker, so that a packet that reaches another one is
//!   [forwarded](Neighbours).
//!
//! Every buffer that a peer fills has a limit in [`QuicLimits`]. The address of a peer is the one that the handshake
//! has validated: a migration never changes it.

mod arrival;
mod client;
mod client_session;
mod connection;
mod counts;
mod driver;
mod endpoint;
mod flood;
mod ids;
mod late;
mod limits;
mod neighbours;
mod path;
mod retry;
mod session;
mod socket;
mod state;
pub mod steer;
mod stream;
mod succession;
#[cfg(test)]
mod tests;
mod tokens;
mod unread;

pub use arrival::Arrival;
pub use connection::{Connection, IncomingStream};
pub use counts::EndpointCounts;
pub use endpoint::{Endpoint, EndpointOptions};
pub use ids::{ConnectionOwner, QuicKeys};
pub use limits::QuicLimits;
pub use neighbours::Neighbours;
pub use quinn_proto::{Dir, StreamId};
pub use session::Identities;
pub use steer::Steering;
pub use stream::{RecvError, RecvStream, SendError, SendStream, Stopped};

use quinn_proto::{ConnectionError, VarInt};

/// The reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionLost {
    /// The peer's application closed it, with this code
    Application(u64),
    /// A violation of the protocol, found here or by the peer; the code is sent or received
    Transport(u64),
    /// The peer was silent for too long
    TimedOut,
    /// The peer does not know the connection any more
    Reset,
    /// This side closed it, with this code
    Local(u64),
}

impl std::fmt::Display for ConnectionLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConnectionLost::Application(code) => {
                write!(f, "the peer closed the connection with code {code:#x}")
            }
            ConnectionLost::Transport(code) => write!(f, "the connection broke with QUIC error {code:#x}"),
            ConnectionLost::TimedOut => f.write_str("the peer sent nothing for too long"),
            ConnectionLost::Reset => f.write_str("the peer no longer knows the connection"),
            ConnectionLost::Local(code) => write!(f, "the gateway closed the connection with code {code:#x}"),
        }
    }
}

impl std::error::Error for ConnectionLost {}

impl ConnectionLost {
    fn of(error: &ConnectionError) -> ConnectionLost {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                ConnectionLost::Application(close.error_code.into_inner())
            }
            ConnectionError::ConnectionClosed(close) => {
                ConnectionLost::Transport(u64::from(close.error_code))
            }
            ConnectionError::TransportError(error) => ConnectionLost::Transport(u64::from(error.code)),
            ConnectionError::TimedOut => ConnectionLost::TimedOut,
            ConnectionError::Reset => ConnectionLost::Reset,
            ConnectionError::LocallyClosed => ConnectionLost::Local(0),
            ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => ConnectionLost::Transport(1),
        }
    }
}

/// Returns a code as a variable-length integer; codes are below 2^62.
fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
