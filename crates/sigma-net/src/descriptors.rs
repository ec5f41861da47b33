//! Descriptors that pass from one program to the next, and descriptors to wait for.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The first that is not a standard stream.
const FIRST: RawFd = 3;

/// Takes a descriptor that the parent program has left open. Programs started by this process do not get it.
///
/// Call it once for each number, before any code opens descriptors with that number.
///
/// # Errors
/// Returns an error if there is no such descriptor, or if descriptors 0 to 2 are the standard streams.
#[expect(unsafe_code)]
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number < FIRST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "descriptors 0 to 2 are the standard streams",
        ));
    }
    // SAFETY: a negative number was rejected above, and the borrow ends before any code could close it.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // Descriptors of this process close on exec; so this one belongs to the process itself.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is open and has no owner in this process, whose own descriptors close on exec.
    let adopted = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&adopted, FdFlags::CLOEXEC)?;
    Ok(adopted)
}

/// Leaves a descriptor open in the programs that this process starts from now on, under the same number.
///
/// # Errors
/// Returns the error of the operating system.
pub fn leave_open(descriptor: impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}

/// Closes a descriptor in the programs that this process starts from now on; reverts [`leave_open`].
///
/// # Errors
/// Returns the error of the operating system.
pub fn close_on_exec(descriptor: impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfd(descriptor, FdFlags::CLOEXEC)?)
}

/// Registers a descriptor with the runtime of the calling thread, for readiness events.
///
/// # Errors
/// Returns the error of the operating system.
#[expect(unsafe_code)]
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the owner names the same descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// Returns true if any process has the file open for writing. The file belongs to this user and is open for reading.
/// The kernel knows that for every process; `/proc` shows the descriptors of only a few.
///
/// # Errors
/// Returns an error if the file system has no leases, or if the file belongs to another user.
pub fn is_open_for_writing(file: &File) -> io::Result<bool> {
    // A broken lease sends this signal, which is ignored by default; the default signal of a lease ends the process.
    lease(file, F_SETSIG, libc::SIGURG)?;
    match lease(file, libc::F_SETLEASE, F_RDLCK) {
        Ok(()) => lease(file, libc::F_SETLEASE, F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

/// From `fcntl.h`, the same on every machine.
const F_SETSIG: libc::c_int = 10;
const F_RDLCK: libc::c_int = 0;
const F_UNLCK: libc::c_int = 2;

#[expect(unsafe_code)]
fn lease(file: &File, command: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: both commands take a number; the descriptor is open while it is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use sigma_testkit::{DEADLINE, until};

    use super::*;

    #[test]
    fn only_inherited_descriptors_are_adopted() {
        assert!(adopt(-1).is_err() && adopt(0).is_err() && adopt(2).is_err());
        assert!(adopt(1 << 20).is_err(), "there is none");
        let own = File::open("/dev/null").unwrap();
        assert!(adopt(own.as_raw_fd()).is_err(), "it has an owner");
        leave_open(&own).unwrap();
        let number = own.into_raw_fd();
        let adopted = adopt(number).unwrap();
        assert_eq!(adopted.as_raw_fd(), number);
        assert!(fcntl_getfd(&adopted).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn an_open_writer_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let written = File::options().append(true).create(true).open(&path).unwrap();
        let read = File::open(&path).unwrap();
        assert!(is_open_for_writing(&read).unwrap());
        drop(written);
        // A process started by another test has copies for a moment.
        let is_free = || until(DEADLINE, || !is_open_for_writing(&read).unwrap());
        assert!(is_free());
        let mut other = {
            // The command has a copy of the descriptor until it is dropped.
            let mut command = std::process::Command::new("sleep");
            command.arg("60").stdout(File::options().append(true).open(&path).unwrap()).spawn().unwrap()
        };
        assert!(is_open_for_writing(&read).unwrap(), "by another process");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(is_free());
        File::options().append(true).open(&path).unwrap();
    }
}
