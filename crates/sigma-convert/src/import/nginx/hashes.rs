//! Hashes for plain passwords of a file of users.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// Returns a password as `{SSHA}`. The salt is made of the name, so that the same file gives the same document.
pub(super) fn salted(name: &str, password: &str) -> String {
    let salt = Sha1::digest(format!("sigma import {name}"));
    let salt = &salt[..8];
    let mut hash = Sha1::new();
    hash.update(password.as_bytes());
    hash.update(salt);
    let mut bytes = hash.finalize().to_vec();
    bytes.extend_from_slice(salt);
    format!("{{SSHA}}{}", STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salted_hashes_differ_by_name() {
        assert!(salted("a", "x").starts_with("{SSHA}"));
        assert_ne!(salted("a", "x"), salted("b", "x"));
        assert_eq!(salted("a", "x"), salted("a", "x"));
    }
}
