//! Memory for keys: in pages of its own, which are in no core dump, and wiped when it is dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use rustix::mm::{Advice, madvise};
use zeroize::Zeroize;

/// The largest page of the machines that Sigma is built for; smaller ones divide it.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4_096 } else { 65_536 };

/// Secret bytes. They take a page at least: for the few keys that a process holds as long as it runs.
///
/// Copies that a library makes of them are its own: rustls and aws-lc hold private keys in the ordinary heap and wipe them
/// when they are dropped. Dumps do not have them because the process as a whole is not dumpable.
pub struct SecretBytes {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it owns its memory, which it hands out by the usual rules of borrowing.
#[expect(unsafe_code)]
unsafe impl Send for SecretBytes {}

// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for SecretBytes {}

fn layout(length: usize) -> Layout {
    let size = length.max(1).div_ceil(PAGE) * PAGE;
    // The size fits: a slice of that length exists, or is to exist, and keys are short.
    Layout::from_size_align(size, PAGE).unwrap_or(Layout::new::<[u8; PAGE]>())
}

impl SecretBytes {
    /// Zeros.
    #[expect(unsafe_code)]
    pub fn zeroed(length: usize) -> SecretBytes {
        assert!(length <= isize::MAX as usize - PAGE, "no key is that long");
        let layout = layout(length);
        // SAFETY: the size is not zero.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: whole pages, which were allocated; dumps leave them out, and nothing else changes. A system that does not
        // know the advice dumps them.
        let _ = unsafe { madvise(start.as_ptr().cast(), layout.size(), Advice::LinuxDontDump) };
        SecretBytes { start, length }
    }
}

impl From<&[u8]> for SecretBytes {
    fn from(bytes: &[u8]) -> SecretBytes {
        let mut secret = SecretBytes::zeroed(bytes.len());
        secret.copy_from_slice(bytes);
        secret
    }
}

impl Clone for SecretBytes {
    fn clone(&self) -> SecretBytes {
        SecretBytes::from(&**self)
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    #[expect(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: that many bytes are allocated and initialized, and borrowed as long as the slice.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for SecretBytes {
    #[expect(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for SecretBytes {
    #[expect(unsafe_code)]
    fn drop(&mut self) {
        self.zeroize();
        let layout = layout(self.length);
        // SAFETY: whole pages of this allocation, which the allocator is to find as it has given them.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), layout.size(), Advice::LinuxDoDump) };
        // SAFETY: allocated with this layout, and used no more.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that has this address.
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_in = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
                is_in = (start..end).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_in) {
                return flags.to_owned();
            }
        }
        panic!("no mapping has the address");
    }

    #[test]
    fn secrets_are_in_no_dump_and_in_no_message() {
        let secret = SecretBytes::from(&b"key"[..]);
        let copy = secret.clone();
        assert_eq!((&*secret, &*copy), (&b"key"[..], &b"key"[..]));
        assert_eq!(format!("{secret:?}"), "SecretBytes");
        for secret in [&secret, &copy] {
            let flags = flags_at(secret.as_ptr().addr());
            assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
        }
        let address = secret.as_ptr().addr();
        drop(secret);
        drop(copy);
        // The page may be gone, or be another's; it is dumped again if it is there.
        let ordinary = [1_u8; 64];
        assert!(!flags_at(ordinary.as_ptr().addr()).split_whitespace().any(|flag| flag == "dd"));
        assert_ne!(address, 0);
        assert!(SecretBytes::zeroed(0).is_empty());
        let long = SecretBytes::from(&vec![7; 3 * PAGE + 1][..]);
        assert!(long.len() == 3 * PAGE + 1 && long.iter().all(|byte| *byte == 7));
    }
}
