//! Options of sockets that no library has.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, socklen_t};

/// An option whose value is a number: its level and its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberOption {
    /// The protocol that has the option.
    pub(crate) level: c_int,
    /// The number of the option.
    pub(crate) name: c_int,
}

impl NumberOption {
    /// Sets the option.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[expect(unsafe_code)]
    pub(crate) fn set(self, socket: &impl AsFd, value: u32) -> io::Result<()> {
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<c_int>() as socklen_t);
        // SAFETY: the value is an int with its length, and lives until after the call, which only reads it.
        match unsafe { libc::setsockopt(fd, self.level, self.name, ptr::from_ref(&value).cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
