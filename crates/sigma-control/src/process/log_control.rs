//! The error log, as the process tells it what to do.

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// Returns an error if the filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Opens the file anew, after it was renamed.
    fn reopen(&self);
    /// Tells whoever asked for a reload or an upgrade how it went.
    fn carried_out(&mut self, result: &Result<(), String>);
}

/// The target of the few lines of the life of the process: started, reloaded, stopping. They are said at
/// the default level too.
pub const LIFE: &str = "sigma::life";
