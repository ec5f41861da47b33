//! Lists of users: the plugin basic-auth.

use serde_json::{Map, Value, json};

use super::parser::{Line, Section};

/// The fields of basic-auth for the users of a list, or for the users of some of its groups.
///
/// # Errors
/// Returns a sentence if a password has no form that the plugin accepts.
pub(super) fn fields(section: &Section, groups: &[&str]) -> Result<Map<String, Value>, String> {
    let mut users = Vec::new();
    for line in section.lines.iter().filter(|line| line.word(0) == "user") {
        let name = line.word(1);
        if !(groups.is_empty() || is_member(section, line, groups)) {
            continue;
        }
        match line.word(2) {
            "insecure-password" => {
                users.push(format!("{name}:{{SHA}}{}", base64(&sha1(line.word(3).as_bytes()))))
            }
            "password" if ["$1$", "$5$", "$6$", "$2"].iter().any(|kind| line.word(3).starts_with(kind)) => {
                users.push(format!("{name}:{}", line.word(3)));
            }
            "password" => {
                return Err(format!(
                    "The hash of the password of `{name}` is not supported: make a new one with SHA-512."
                ));
            }
            _ => return Err(format!("`{name}` has no password.")),
        }
    }
    if users.is_empty() {
        return Err(format!("The list `{}` has no such user.", section.name));
    }
    let mut fields = Map::new();
    fields.insert("users".to_owned(), json!(users));
    Ok(fields)
}

/// Whether a user is in one of the groups, by the line of the user or by the lines of the groups.
fn is_member(section: &Section, user: &Line, groups: &[&str]) -> bool {
    let listed = |line: &Line, word: &str, name: &str| {
        let at = line.words.iter().position(|known| known == word);
        let list = at.and_then(|at| line.words.get(at + 1)).map_or("", String::as_str);
        list.split(',').any(|known| known == name)
    };
    groups.iter().any(|group| {
        let mut lines = section.lines.iter().filter(|line| line.word(0) == "group" && line.word(1) == *group);
        listed(user, "groups", group) || lines.any(|line| listed(line, "users", user.word(1)))
    })
}

/// SHA-1 (FIPS 180-4), the only hash that has a form in files of passwords without a salt.
fn sha1(text: &[u8]) -> [u8; 20] {
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut padded = text.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mut words = [0u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..80 {
            words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, word) in words.iter().enumerate() {
            let (mix, constant) = match at {
                0..20 => (b & c | !b & d, 0x5a82_7999),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6u32),
            };
            let next =
                a.rotate_left(5).wrapping_add(mix).wrapping_add(e).wrapping_add(constant).wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(part);
        }
    }
    let mut out = [0; 20];
    for (bytes, word) in out.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hashed() {
        assert_eq!(base64(&sha1(b"password")), "W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
        assert_eq!(base64(&sha1(b"")), "2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
        assert_eq!(base64(&sha1(&[b'a'; 64])), "AJi6gktcFkJ716ESKlpEKiXsZE0=");
    }
}
