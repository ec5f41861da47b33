//! The results of clients' requests.

use std::io;
use std::time::Duration;

/// For what takes a loaded machine a while.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The result of a request.
pub(super) enum Outcome {
    Answered,
    /// The connection has ended, as its protocol says.
    Ended,
}

/// An error if something else was expected.
pub(super) fn expect(holds: bool) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other("another answer was expected")) }
}
