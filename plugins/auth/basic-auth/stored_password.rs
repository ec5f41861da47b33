//! Hashes of passwords as `htpasswd`, `openssl passwd` and `mkpasswd` write them.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use sha_crypt::{PasswordVerifier, ShaCrypt};

use crate::shared::policy::same_secret;

/// Greatest cost of a bcrypt hash: one check takes about four seconds with it.
const MAX_BCRYPT_COST: u32 = 16;

/// Most rounds of a SHA-crypt hash, for the same reason.
const MAX_ROUNDS: u32 = 2_000_000;

/// The hash of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredPassword {
    /// `$apr1$` of Apache and `$1$` of Unix: 1,000 rounds of MD5.
    Md5 { magic: &'static str, salt: Box<str>, digest: Box<str> },
    /// `$2a$`, `$2b$` and `$2y$`.
    Bcrypt(Box<str>),
    /// `$5$` and `$6$`.
    ShaCrypt(Box<str>),
    /// `{SHA}` and `{SSHA}`: SHA-1 of the password, and of password and salt.
    Sha1 { digest: [u8; 20], salt: Box<[u8]> },
}

impl StoredPassword {
    /// Reads a hash.
    ///
    /// # Errors
    /// Returns an error that names the mistake and the remedy. The text never repeats the hash.
    pub(super) fn parse(text: &str) -> Result<StoredPassword, String> {
        if let Some(encoded) = text.strip_prefix("{SHA}") {
            return Self::sha1(encoded, false);
        }
        if let Some(encoded) = text.strip_prefix("{SSHA}") {
            return Self::sha1(encoded, true);
        }
        let mut parts = text.split('$').skip(1);
        match parts.next() {
            Some("apr1") => Self::md5("$apr1$", &text[6..]),
            Some("1") => Self::md5("$1$", &text[3..]),
            Some("2a" | "2b" | "2y") => Self::bcrypt(text, parts.next()),
            Some("5" | "6") => Self::sha_crypt(text, parts.next()),
            _ => Err("it is not a hash of a known kind (bcrypt, apr1, SHA-crypt, {SHA} or {SSHA}): \
                      write one with `htpasswd -nB NAME`"
                .to_owned()),
        }
    }

    fn sha1(encoded: &str, is_salted: bool) -> Result<StoredPassword, String> {
        let invalid = || "the text after {SHA} or {SSHA} is not the Base64 of such a hash".to_owned();
        let bytes = STANDARD.decode(encoded).map_err(|_| invalid())?;
        let (digest, salt) = bytes.split_first_chunk::<20>().ok_or_else(invalid)?;
        match salt.is_empty() != is_salted {
            true => Ok(StoredPassword::Sha1 { digest: *digest, salt: salt.into() }),
            false => Err(invalid()),
        }
    }

    fn md5(magic: &'static str, rest: &str) -> Result<StoredPassword, String> {
        match rest.split_once('$') {
            Some((salt, digest)) if salt.len() <= 8 && digest.len() == 22 => {
                Ok(StoredPassword::Md5 { magic, salt: salt.into(), digest: digest.into() })
            }
            _ => Err(format!("a {magic} hash has a salt of at most 8 characters and a digest of 22")),
        }
    }

    fn bcrypt(text: &str, cost: Option<&str>) -> Result<StoredPassword, String> {
        let cost = cost.and_then(|cost| cost.parse::<u32>().ok()).unwrap_or_default();
        match (4..=MAX_BCRYPT_COST).contains(&cost) && text.len() == 60 && text.is_ascii() {
            true => Ok(StoredPassword::Bcrypt(text.into())),
            false => Err(format!("a bcrypt hash has 60 characters and a cost of 4 to {MAX_BCRYPT_COST}")),
        }
    }

    fn sha_crypt(text: &str, rounds: Option<&str>) -> Result<StoredPassword, String> {
        let rounds = rounds.and_then(|part| part.strip_prefix("rounds=")).map_or(Ok(5000), str::parse::<u32>);
        let is_right = rounds.is_ok_and(|rounds| (1000..=MAX_ROUNDS).contains(&rounds));
        // The right password is not known here: only the form of the hash can be wrong.
        let form = sha_crypt::PasswordHash::new(text).is_ok();
        match is_right && form {
            true => Ok(StoredPassword::ShaCrypt(text.into())),
            false => Err(format!("a SHA-crypt hash has 1,000 to {MAX_ROUNDS} rounds, a salt and a digest")),
        }
    }

    /// Returns true if a check is too slow for a worker.
    pub(super) fn is_slow(&self) -> bool {
        !matches!(self, StoredPassword::Sha1 { .. })
    }

    /// Returns true if it is the hash of this password.
    pub(super) fn matches(&self, password: &[u8]) -> bool {
        match self {
            StoredPassword::Md5 { magic, salt, digest } => {
                same_secret(md5_crypt(password, magic, salt).as_bytes(), digest.as_bytes())
            }
            StoredPassword::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
            StoredPassword::ShaCrypt(hash) => ShaCrypt::default().verify_password(password, &**hash).is_ok(),
            StoredPassword::Sha1 { digest: known, salt } => {
                let mut text = password.to_vec();
                text.extend_from_slice(salt);
                same_secret(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text).as_ref(), known)
            }
        }
    }
}

/// The digest of the MD5 scheme of crypt(3), in its own form of Base64; Apache's has another magic word.
fn md5_crypt(password: &[u8], magic: &str, salt: &str) -> String {
    let salt = salt.as_bytes();
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut context = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    let mut left = password.len();
    while left > 0 {
        context.update(&inner[..left.min(16)]);
        left = left.saturating_sub(16);
    }
    let mut bits = password.len();
    while bits > 0 {
        match bits & 1 {
            1 => context.update([0]),
            _ => context.update(&password[..1]),
        }
        bits >>= 1;
    }
    let mut digest = context.finalize();
    for round in 0..1000 {
        let mut context = Md5::new();
        let is_odd = round % 2 == 1;
        context.update(if is_odd { password } else { &digest });
        if round % 3 != 0 {
            context.update(salt);
        }
        if round % 7 != 0 {
            context.update(password);
        }
        context.update(if is_odd { &digest[..] } else { password });
        digest = context.finalize();
    }
    in_crypt_letters(&digest)
}

/// Six bits a letter, lowest first, of three bytes each in the order of the scheme.
fn in_crypt_letters(digest: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
    let mut text = String::with_capacity(22);
    let mut push = |mut bits: usize, letters: usize| {
        for _ in 0..letters {
            text.push(char::from(LETTERS[bits % 64]));
            bits /= 64;
        }
    };
    for [high, middle, low] in ORDER {
        push(
            usize::from(digest[high]) << 16 | usize::from(digest[middle]) << 8 | usize::from(digest[low]),
            4,
        );
    }
    push(usize::from(digest[11]), 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of `secret`, as `htpasswd` and `openssl passwd` of Debian write them.
    const OF_SECRET: &[&str] = &[
        "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
        "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1",
        "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
        "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
        "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    ];

    #[test]
    fn hashes_of_common_programs_match() {
        for hash in OF_SECRET {
            let stored = StoredPassword::parse(hash).unwrap();
            assert!(stored.matches(b"secret"), "{hash}");
            for wrong in ["", "Secret", "secret ", "secre"] {
                assert!(!stored.matches(wrong.as_bytes()), "{hash} {wrong}");
            }
        }
    }

    #[test]
    fn salted_sha1_matches() {
        let mut bytes = digest(&SHA1_FOR_LEGACY_USE_ONLY, b"secretpepper").as_ref().to_vec();
        bytes.extend_from_slice(b"pepper");
        let stored = StoredPassword::parse(&format!("{{SSHA}}{}", STANDARD.encode(bytes))).unwrap();
        assert!(stored.matches(b"secret"));
        assert!(!stored.matches(b"secretpepper"));
    }

    #[test]
    fn other_texts_are_refused() {
        let refused = [
            "",
            "secret",
            "{PLAIN}secret",
            "{SHA}",
            "{SHA}####",
            "{SSHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
            "rl4YnZX9JyLkg",
            "$apr1$",
            "$apr1$salttoolong$1234567890123456789012",
            "$1$salt$short",
            "$2y$31$0123456789012345678901234567890123456789012345678901",
            "$2y$05$short",
            "$5$rounds=999999999$salt$x",
            "$6$",
            "$7$salt$x",
            "$",
        ];
        for text in refused {
            let error = StoredPassword::parse(text).unwrap_err();
            assert!(text.len() < 8 || !error.contains(text), "{text}: {error}");
        }
    }
}
