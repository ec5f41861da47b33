//! Options of sockets that no library has.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, sock_filter, sock_fprog, socklen_t};

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
    pub(crate) fn set(self, socket: &impl AsFd, value: u32) -> io::Result<()> {
        set(socket, self, &c_int::try_from(value).unwrap_or(c_int::MAX))
    }
}

/// Sets an option whose value is a program of classic BPF. The kernel copies the program.
///
/// # Errors
/// Returns the error of the operating system, also for a program that is too long.
pub(crate) fn set_program(
    socket: &impl AsFd,
    option: NumberOption,
    program: &mut [sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, option, &sock_fprog { len, filter: program.as_mut_ptr() })
}

#[expect(unsafe_code)]
fn set<T>(socket: &impl AsFd, option: NumberOption, value: &T) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as socklen_t);
    // SAFETY: the value is passed with its length, and lives until after the call. The kernel only reads it, and the
    // instructions that a `sock_fprog` points to, which `set_program` borrows.
    match unsafe { libc::setsockopt(fd, option.level, option.name, ptr::from_ref(value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
