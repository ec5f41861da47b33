//! Bytes in a file in memory (memfd_create(2)), which the kernel sends to plain sockets without a copy.
//!
//! The file is sealed after it was written: its bytes never change, also while the kernel still sends them after their
//! owner has dropped them.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::pages::Pages;

/// The limit of files of the process, each of which takes a descriptor and a mapping. Without one, the owner of bytes
/// keeps them in ordinary memory.
const FILES_MAX: usize = 512;

static FILES: AtomicUsize = AtomicUsize::new(0);

/// The right to one more file.
#[derive(Debug)]
struct Permit;

impl Permit {
    fn take() -> Option<Permit> {
        let free = |count: usize| (count < FILES_MAX).then_some(count + 1);
        FILES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Immutable bytes in a file in memory.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    pages: Pages,
    _permit: Permit,
}

impl SharedFile {
    /// Returns a file with the bytes of all `parts`. None if they are empty, there are too many files, or the system
    /// does not give one: a sandbox forbids them, or no descriptor is free.
    pub fn of<'p>(parts: impl Iterator<Item = &'p [u8]>) -> Option<SharedFile> {
        let permit = Permit::take()?;
        SharedFile::written(parts, permit).ok()
    }

    fn written<'p>(parts: impl Iterator<Item = &'p [u8]>, permit: Permit) -> io::Result<SharedFile> {
        let file = memfd_create("sigma-body", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        crate::limits::leave_reserve(&file)?;
        let mut len = 0;
        for part in parts {
            let mut left = part;
            while !left.is_empty() {
                match rustix::io::write(&file, left) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => left = &left[n..],
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            len += part.len();
        }
        let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let pages = Pages::of_file(file.as_fd(), len.get())?;
        Ok(SharedFile { file, pages, _permit: permit })
    }

    /// Returns the file, whose offset means nothing.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRef<[u8]> for SharedFile {
    #[expect(unsafe_code)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has this number of bytes and lives as long as `self`. The seals keep everybody, this process
        // included, from changing the bytes and from cutting the file.
        unsafe { std::slice::from_raw_parts(self.pages.start().as_ptr(), self.pages.bytes()) }
    }
}

// SAFETY: the mapping is read-only and its bytes never change, so any thread may read and end it.
#[expect(unsafe_code)]
unsafe impl Send for SharedFile {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for SharedFile {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_and_sealed() {
        let parts = [vec![1; 70_000], vec![2; 5]];
        let shared = SharedFile::of(parts.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(shared.as_ref(), parts.concat());
        assert!(rustix::io::pwrite(shared.file(), b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(shared.file(), 1).is_err());
        assert!(SharedFile::of(std::iter::empty()).is_none());
    }

    #[test]
    fn the_number_of_files_is_limited() {
        let files: Vec<_> =
            (0..FILES_MAX + 9).map_while(|_| SharedFile::of([&b"a"[..]].into_iter())).collect();
        assert!(files.len() <= FILES_MAX && !files.is_empty(), "{}", files.len());
        drop(files);
        assert!(SharedFile::of([&b"a"[..]].into_iter()).is_some());
    }
}
