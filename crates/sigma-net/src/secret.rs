//! Memory for keys: in separate pages, which are not in core dumps, and wiped on drop.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use rustix::mm::{Advice, madvise};
use zeroize::Zeroize;

use crate::pages::Pages;

/// Secret bytes. They take at least a page: for the few keys that a process holds for its whole life.
///
/// Copies in libraries are separate: rustls and aws-lc hold private keys in the ordinary heap and wipe them on drop.
/// Dumps do not have them because the whole process is not dumpable.
pub struct SecretBytes {
    pages: Pages,
    length: usize,
}

// SAFETY: it owns its memory, and lends it by the usual borrowing rules.
#[expect(unsafe_code)]
unsafe impl Send for SecretBytes {}

// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for SecretBytes {}

impl SecretBytes {
    /// Returns zeroed bytes.
    #[expect(unsafe_code)]
    pub fn zeroed(length: usize) -> SecretBytes {
        let Ok(pages) = Pages::private(length.max(1)) else {
            // As for any other memory of the process.
            handle_alloc_error(Layout::array::<u8>(length).unwrap_or(Layout::new::<u8>()))
        };
        // SAFETY: pages of this mapping; dumps leave them out, and nothing else changes. A system without this advice
        // dumps them.
        let _ = unsafe { madvise(pages.start().as_ptr().cast(), pages.bytes(), Advice::LinuxDontDump) };
        SecretBytes { pages, length }
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
        // SAFETY: this number of bytes is mapped, zeroed at first, and borrowed as long as the slice.
        unsafe { slice::from_raw_parts(self.pages.start().as_ptr(), self.length) }
    }
}

impl DerefMut for SecretBytes {
    #[expect(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.pages.start().as_ptr(), self.length) }
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.zeroize();
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

    /// Returns the flags of the mapping at this address.
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
        // The page may be gone, or have another owner; if it is there, it is dumped again.
        let ordinary = [1_u8; 64];
        assert!(!flags_at(ordinary.as_ptr().addr()).split_whitespace().any(|flag| flag == "dd"));
        assert_ne!(address, 0);
        assert!(SecretBytes::zeroed(0).is_empty());
        let long = SecretBytes::from(&vec![7; 3 * 4096 + 1][..]);
        assert!(long.len() == 3 * 4096 + 1 && long.iter().all(|byte| *byte == 7));
    }
}
