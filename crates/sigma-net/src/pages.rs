//! Pages of memory with an owner of their own, mapped and unmapped in one place.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// A mapping, which ends with this value.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    /// Maps private pages: zeroed, and resident after the first access.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn private(bytes: usize) -> io::Result<Pages> {
        Pages::map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps the first `bytes` of a file, for reading. A read returns the content of the file at that moment.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn of_file(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Pages> {
        Pages::map(bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps the first `bytes` of a file that another party writes, for reading and writing.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[cfg(feature = "profiles")]
    pub(crate) fn shared(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Pages> {
        Pages::map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
    }

    #[expect(unsafe_code)]
    fn map(bytes: usize, access: libc::c_int, flags: libc::c_int, file: libc::c_int) -> io::Result<Pages> {
        // SAFETY: a new mapping at an address chosen by the kernel touches no memory in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, bytes })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    #[expect(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: `map` has made this mapping, and borrows of its bytes have ended with the borrow of their owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_mapping_is_an_error() {
        assert!(Pages::private(0).is_err());
        assert!(Pages::private(usize::MAX / 2).is_err());
        let pages = Pages::private(5000).unwrap();
        assert!(pages.start().addr().get().is_multiple_of(4096) && pages.bytes() == 5000);
    }
}
