//! Data that browsers keep for the gateway and cannot read: sealed with AES-256-GCM under its own key for each text,
//! and split into cookies.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::system::System;

/// Random bytes from which the key of one text is made.
const SALT_BYTES: usize = 32;

/// Most characters of a cookie's value: browsers take 4,096 bytes with name and attributes.
const CHUNK: usize = 3800;

/// Most cookies of one value. Nodes and proxies before the gateway have limits for a request's head too.
const MOST_CHUNKS: usize = 8;

/// Seals and opens texts. A text that was sealed with another secret, for another provider or purpose does
/// not open.
pub(crate) struct Seal {
    secret: Vec<u8>,
    /// The owner of these texts.
    context: Vec<u8>,
}

impl Seal {
    /// `context` distinguishes those  who share a secret.
    pub(crate) fn new(secret: &str, context: &[&str]) -> Seal {
        let length = |text: &&str| text.len().to_be_bytes();
        let context = context.iter().flat_map(|text| [&length(text)[..], text.as_bytes()].concat());
        Seal { secret: secret.as_bytes().to_vec(), context: context.collect() }
    }

    fn key(&self, salt: &[u8], purpose: &str) -> Option<LessSafeKey> {
        let material = Salt::new(HKDF_SHA256, salt).extract(&self.secret);
        let info = [&self.context[..], purpose.as_bytes()];
        let key: UnboundKey = material.expand(&info, &AES_256_GCM).ok()?.into();
        Some(LessSafeKey::new(key))
    }

    /// Seals a text for a purpose.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if cannot get random bytes.
    pub(crate) fn seal(&self, purpose: &str, text: &[u8], machine: &dyn System) -> Result<Vec<u8>, String> {
        let mut sealed = vec![0; SALT_BYTES];
        machine.fill_random(&mut sealed)?;
        let key = self.key(&sealed, purpose).ok_or("cannot encrypt the session")?;
        let mut text = text.to_vec();
        // The key is of this text alone, so that its nonce is never used twice.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.seal_in_place_append_tag(nonce, Aad::empty(), &mut text)
            .map_err(|_| "cannot encrypt the session")?;
        sealed.append(&mut text);
        Ok(sealed)
    }

    /// Opens a text that was sealed for this purpose.
    pub(crate) fn open(&self, purpose: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (salt, text) = sealed.split_at_checked(SALT_BYTES)?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let length = self.key(salt, purpose)?.open_in_place(nonce, Aad::empty(), &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }
}

/// The name of a part of a value: `session`, `session2` …
fn part(name: &str, number: usize) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}{number}") }
}

/// The only value of a cookie; None if it is missing, or if there are several, of which an attacker may have
/// set one.
pub(crate) fn only_cookie<'h>(headers: &'h Headers, name: &str) -> Option<&'h [u8]> {
    let mut values = cookies(headers).filter(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// All cookies of a request.
pub(crate) fn cookies(headers: &Headers) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = headers.get_all(HeaderId::Cookie).flat_map(|line| line.split(|b| *b == b';'));
    pairs.map(<[u8]>::trim_ascii).filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        Some((&pair[..at], &pair[at + 1..]))
    })
}

/// Returns a sealed text, joined from its parts.
pub(crate) fn joined(headers: &Headers, name: &str) -> Option<Vec<u8>> {
    let mut text = only_cookie(headers, name)?.to_vec();
    for number in 2..=MOST_CHUNKS {
        // A part that is full has another behind it.
        if text.len() < (number - 1) * CHUNK {
            break;
        }
        let Some(more) = only_cookie(headers, &part(name, number)) else { break };
        text.extend_from_slice(more);
    }
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The cookies of a sealed value, each with its value; empty values for those that the client has beyond. None if it
/// is too large.
pub(crate) fn split(name: &str, sealed: &[u8], headers: &Headers) -> Option<Vec<(String, String)>> {
    let text = URL_SAFE_NO_PAD.encode(sealed);
    let mut parts: Vec<(String, String)> = Vec::new();
    for (at, chunk) in text.as_bytes().chunks(CHUNK).enumerate() {
        parts.push((part(name, at + 1), String::from_utf8_lossy(chunk).into_owned()));
    }
    if parts.len() > MOST_CHUNKS {
        return None;
    }
    parts.extend(leftovers(name, parts.len() + 1, headers));
    Some(parts)
}

/// The cookies of a value from this part on that the client has, without a value: to be forgotten.
pub(crate) fn leftovers(name: &str, from: usize, headers: &Headers) -> Vec<(String, String)> {
    let is_there = |name: &String| cookies(headers).any(|(known, _)| known == name.as_bytes());
    let names = (from..=MOST_CHUNKS).map(|number| part(name, number)).filter(is_there);
    names.map(|name| (name, String::new())).collect()
}

/// Takes the cookies of the gateway out of a request: the node has no use for them, and could use them.
pub(crate) fn remove(name: &str, headers: &mut Headers) {
    let names: Vec<String> = (1..=MOST_CHUNKS).map(|number| part(name, number)).collect();
    let logins = format!("{name}_login_");
    let is_own = |known: &[u8]| {
        known.starts_with(logins.as_bytes()) || names.iter().any(|name| name.as_bytes() == known)
    };
    let lines = headers.get_all(HeaderId::Cookie).flat_map(|line| line.split(|b| *b == b';'));
    let pairs: Vec<&[u8]> = lines.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()).collect();
    let name_of = |pair: &[u8]| pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii().to_vec();
    let kept: Vec<&[u8]> = pairs.iter().copied().filter(|pair| !is_own(&name_of(pair))).collect();
    if kept.len() == pairs.len() {
        return;
    }
    match kept.join(&b"; "[..]) {
        kept if kept.is_empty() => headers.remove(HeaderId::Cookie),
        kept => headers.set(HeaderId::Cookie, &kept),
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::system::Host;

    use super::*;

    fn headers(cookie: &str) -> Headers {
        let mut headers = Headers::default();
        headers.append("Cookie", cookie.as_bytes());
        headers
    }

    #[test]
    fn only_who_sealed_a_text_opens_it() {
        let seal = Seal::new("0123456789abcdef", &["https://login.example", "shop"]);
        let sealed = seal.seal("session", b"jack", &Host).unwrap();
        assert_eq!(seal.open("session", &sealed).as_deref(), Some(&b"jack"[..]));
        assert_ne!(sealed, seal.seal("session", b"jack", &Host).unwrap());
        assert!(seal.open("login", &sealed).is_none(), "another purpose");
        let others = [
            Seal::new("0123456789abcdee", &["https://login.example", "shop"]),
            Seal::new("0123456789abcdef", &["https://login.example", "bank"]),
            Seal::new("0123456789abcdef", &["https://login.example/", "shop"]),
            Seal::new("0123456789abcdef", &["https://login.example", "sho", "p"]),
        ];
        assert!(others.iter().all(|other| other.open("session", &sealed).is_none()));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(seal.open("session", &changed).is_none(), "byte {at}");
            assert!(seal.open("session", &sealed[..at]).is_none(), "{at} bytes");
        }
    }

    #[test]
    fn a_large_value_is_split() {
        for length in [0, 1, 2849, 2850, 2851, 6000, 22_000] {
            let value: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let parts = split("s", &value, &Headers::default()).unwrap();
            let line: Vec<String> =
                parts.iter().rev().map(|(name, value)| format!("{name}={value}")).collect();
            let together = joined(&headers(&line.join("; ")), "s");
            assert_eq!(together.unwrap_or_default(), value, "{length}");
            assert!(parts.iter().all(|(_, value)| value.len() <= CHUNK));
        }
        assert!(split("s", &vec![0; 40_000], &Headers::default()).is_none());
        // The surplus parts of a larger value are removed.
        let left = split("s", b"x", &headers("s=a; s2=b; s3=c; s9=d; t2=e")).unwrap();
        assert_eq!(left[1..], [("s2".to_owned(), String::new()), ("s3".to_owned(), String::new())]);
    }

    #[test]
    fn a_cookie_that_is_there_twice_is_nobodys() {
        assert!(joined(&headers("s=YQ"), "s").is_some());
        assert!(joined(&headers("s=YQ; s=YQ"), "s").is_none());
        assert!(joined(&headers("t=YQ"), "s").is_none());
    }

    #[test]
    fn nodes_do_not_get_them() {
        let check = |cookie: &str, expected: Option<&str>| {
            let mut headers = headers(cookie);
            remove("s", &mut headers);
            let left = headers.get(HeaderId::Cookie).map(|line| String::from_utf8_lossy(line).into_owned());
            assert_eq!(left.as_deref(), expected, "{cookie}");
        };
        check("a=b; s=1; s2=2; s_login_ab=3; c=\"d\"", Some("a=b; c=\"d\""));
        check("s=1", None);
        check("a=b;c=d", Some("a=b;c=d"));
    }
}
