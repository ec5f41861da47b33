//! LDAP version 3 (RFC 4511), as far as authentication needs it: bind, search, StartTLS.
//!
//! It has code of its own, because it is small, and because of malicious directories: every message has a limit, no
//! length is trusted before its bytes are there, and bytes before a handshake are rejected. A filter is sent as a
//! value and never as text, so a client's text cannot become a part of one.
//!
//! | file | question |
//! |---|---|
//! | `ber` | how values become bytes, and back |
//! | `message` | requests and answers |
//! | `name` | how a client's text becomes part of a distinguished name |
//! | `directory` | a directory and the way to connect to it |
//! | `connection` | requests one after the other, on one connection |
//! | `pool` | connections that wait for the next request |

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
pub use directory::{Directory, DirectoryAddress, Security, cleartext, unverified};
pub use message::{Entry, INVALID_CREDENTIALS, NO_SUCH_OBJECT, SIZE_LIMIT_EXCEEDED, SUCCESS, Search};
pub use pool::{Answered, Keeping, ask, keep};
