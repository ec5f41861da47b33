//! LDAP version 3 (RFC 4511), as far as it takes to find out who somebody is: bind, search, StartTLS.
//!
//! Of our own, because it is small, and because of what a directory that lies may do: every message has a
//! limit, no length is believed before its bytes are there, and bytes before a handshake are refused. A filter
//! is sent as a value and never as text, so nothing that a client says can be part of one.
//!
//! | file | question |
//! |---|---|
//! | `ber` | how values become bytes, and back |
//! | `message` | what is asked, and what is answered |
//! | `name` | how a client's text becomes part of a distinguished name |
//! | `directory` | which directory is asked, and how a connection to it is made |
//! | `connection` | one question after the other, on one connection |
//! | `pool` | connections that wait for the next question |

mod ber;
mod connection;
mod directory;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod message;
pub mod name;
mod pool;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Failure};
pub use directory::{Directory, Place, Security, cleartext, unverified};
pub use message::{Entry, INVALID_CREDENTIALS, NO_SUCH_OBJECT, SIZE_LIMIT_EXCEEDED, SUCCESS, Search};
pub use pool::{Answered, Keeping, ask, keep};
