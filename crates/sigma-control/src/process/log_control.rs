//! The error log, as the process tells it what to do.

use std::os::fd::BorrowedFd;

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// Returns an error if the filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Reopens the file, after it was renamed.
    fn reopen(&self);
    /// Reports the result of a reload or an upgrade to the caller: a note on the changes, or the problem.
    fn carried_out(&mut self, result: Result<&str, &str>);
    /// Returns the descriptor of that report, for the program that replaces this one in the same process;
    /// None without a report.
    fn outcome(&self) -> Option<BorrowedFd<'_>>;
    /// Waits a moment until earlier lines are written.
    fn flush(&self);
}

/// The target of the few lines of the life of the process: started, reloaded, stopping. They are said at
/// the default level too.
pub const LIFE: &str = "sigma::life";
