//! The error log, as the process tells it what to do.

use std::os::fd::BorrowedFd;

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// Returns an error if the filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Opens the file anew, after it was renamed.
    fn reopen(&self);
    /// Tells the caller of a reload or an upgrade how it went: a note on what was done, or the problem.
    fn carried_out(&mut self, result: Result<&str, &str>);
    /// Where it tells that, for the program that takes the place of this one in the same process; None if it tells it
    /// nowhere.
    fn outcome(&self) -> Option<BorrowedFd<'_>>;
    /// Waits a moment until what was said is written.
    fn flush(&self);
}

/// The target of the few lines of the life of the process: started, reloaded, stopping. They are said at
/// the default level too.
pub const LIFE: &str = "sigma::life";
