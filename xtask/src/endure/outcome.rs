//! What becomes of what clients ask.

use std::io;
use std::time::Duration;

/// For what takes a loaded machine a while.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// What becomes of a question.
pub(super) enum Outcome {
    Answered,
    /// The connection is over, as its protocol says.
    Ended,
}

/// An error if something else was expected.
pub(super) fn expect(holds: bool) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other("another answer was expected")) }
}
