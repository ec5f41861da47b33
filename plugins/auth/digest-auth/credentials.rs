//! A client's response to a challenge, and the expected answer.

use aws_lc_rs::digest;
use md5::{Digest as _, Md5};
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::variables::percent_decoded;

/// Digests by their names in the registry of RFC 7616. The algorithms with `-sess` bind the client's hash of
/// its password to one nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum Algorithm {
    #[serde(rename = "SHA-256")]
    Sha256,
    #[serde(rename = "SHA-256-sess")]
    Sha256Session,
    #[serde(rename = "SHA-512-256")]
    Sha512Of256,
    #[serde(rename = "SHA-512-256-sess")]
    Sha512Of256Session,
    #[serde(rename = "MD5")]
    Md5,
    #[serde(rename = "MD5-sess")]
    Md5Session,
}

/// The functions behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hash {
    Sha256,
    Sha512Of256,
    Md5,
}

impl Algorithm {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "SHA-256",
            Algorithm::Sha256Session => "SHA-256-sess",
            Algorithm::Sha512Of256 => "SHA-512-256",
            Algorithm::Sha512Of256Session => "SHA-512-256-sess",
            Algorithm::Md5 => "MD5",
            Algorithm::Md5Session => "MD5-sess",
        }
    }

    /// Its function.
    pub(super) fn hash(self) -> Hash {
        match self {
            Algorithm::Sha256 | Algorithm::Sha256Session => Hash::Sha256,
            Algorithm::Sha512Of256 | Algorithm::Sha512Of256Session => Hash::Sha512Of256,
            Algorithm::Md5 | Algorithm::Md5Session => Hash::Md5,
        }
    }

    fn is_of_session(self) -> bool {
        matches!(self, Algorithm::Sha256Session | Algorithm::Sha512Of256Session | Algorithm::Md5Session)
    }
}

impl Hash {
    /// The digest of these parts with colons between them, in hexadecimal.
    pub(super) fn of(self, parts: &[&[u8]]) -> Vec<u8> {
        let text = parts.join(&b':');
        let bytes = match self {
            Hash::Sha256 => digest::digest(&digest::SHA256, &text).as_ref().to_vec(),
            Hash::Sha512Of256 => digest::digest(&digest::SHA512_256, &text).as_ref().to_vec(),
            Hash::Md5 => Md5::digest(&text).to_vec(),
        };
        bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }
}

/// The input of a digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Qop {
    /// Method and URI.
    #[default]
    Auth,
    /// Method, URI and body.
    AuthInt,
}

impl Qop {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Qop::Auth => "auth",
            Qop::AuthInt => "auth-int",
        }
    }
}

/// A client's response to a challenge.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DigestCredentials {
    pub(crate) username: Vec<u8>,
    pub(crate) realm: Vec<u8>,
    pub(crate) nonce: Vec<u8>,
    pub(crate) uri: Vec<u8>,
    pub(crate) response: Vec<u8>,
    pub(crate) algorithm: Vec<u8>,
    pub(crate) cnonce: Vec<u8>,
    /// As it is written.
    pub(crate) nc: Vec<u8>,
    pub(super) count: u32,
    pub(crate) qop: Qop,
    /// Whether the name is a digest of name and realm.
    pub(crate) is_hashed: bool,
}

/// Most bytes of a nonce that a client sends: ours are shorter.
const NONCE_BYTES: usize = 128;

impl DigestCredentials {
    /// Reads a value of `Authorization` (RFC 7616 §3.4).
    pub(crate) fn parse(value: &[u8]) -> Result<DigestCredentials, &'static str> {
        const SCHEME: &[u8] = b"Digest ";
        let rest =
            value.split_at_checked(SCHEME.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let (_, rest) = rest.ok_or("the scheme is not Digest")?;
        let params = params(rest).ok_or("the parameters cannot be parsed, or one appears twice")?;
        let find =
            |name: &str| params.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let need = |name: &str| find(name).ok_or("a parameter is missing");
        let qop = match find("qop").as_deref() {
            Some(b"auth") => Qop::Auth,
            Some(b"auth-int") => Qop::AuthInt,
            _ => return Err("qop is not auth or auth-int"),
        };
        let is_hashed = match find("userhash") {
            Some(flag) if flag.eq_ignore_ascii_case(b"true") => true,
            Some(flag) if !flag.eq_ignore_ascii_case(b"false") => {
                return Err("userhash is not true or false");
            }
            _ => false,
        };
        let username = match (find("username"), find("username*")) {
            (Some(name), None) => name,
            (None, Some(_)) if is_hashed => return Err("username* is not a digest"),
            (None, Some(name)) => extended(&name).ok_or("username* is not in UTF-8")?,
            _ => return Err("username must occur once"),
        };
        let nc = need("nc")?;
        let is_count = nc.len() == 8 && nc.iter().all(u8::is_ascii_hexdigit);
        let count = std::str::from_utf8(&nc).ok().filter(|_| is_count);
        let count = count.and_then(|digits| u32::from_str_radix(digits, 16).ok()).filter(|count| *count > 0);
        let nonce = need("nonce")?;
        if nonce.len() > NONCE_BYTES {
            return Err("the nonce is too long");
        }
        Ok(DigestCredentials {
            username,
            realm: need("realm")?,
            nonce,
            uri: need("uri")?,
            response: need("response")?,
            // RFC 7616 §3.3: it is MD5 unless it is said.
            algorithm: find("algorithm").unwrap_or_else(|| b"MD5".to_vec()),
            cnonce: need("cnonce")?,
            count: count.ok_or("nc is not a number of eight digits")?,
            nc,
            qop,
            is_hashed,
        })
    }

    /// Returns the response of a client with this name and the password (RFC 7616 §3.4.1), to a request with
    /// this method and body.
    ///
    /// The nonces of a session, the gateway's and the client's, are the request's: clients keep both while
    /// they may, and a nonce that is used again begins a session.
    pub(super) fn expected(
        &self,
        algorithm: Algorithm,
        name: &[u8],
        password: &[u8],
        method: &[u8],
        body: &[u8],
    ) -> Vec<u8> {
        let hash = algorithm.hash();
        let own = hash.of(&[name, &self.realm, password]);
        let a1 = if algorithm.is_of_session() { hash.of(&[&own, &self.nonce, &self.cnonce]) } else { own };
        let a2 = match self.qop {
            Qop::Auth => hash.of(&[method, &self.uri]),
            Qop::AuthInt => hash.of(&[method, &self.uri, &hash.of(&[body])]),
        };
        hash.of(&[&a1, &self.nonce, &self.nc, &self.cnonce, self.qop.name().as_bytes(), &a2])
    }
}

/// The value of an extended parameter in UTF-8 (RFC 8187 §3.2).
fn extended(value: &[u8]) -> Option<Vec<u8>> {
    const CHARSET: &[u8] = b"utf-8'";
    let (charset, rest) = value.split_at_checked(CHARSET.len())?;
    if !charset.eq_ignore_ascii_case(CHARSET) {
        return None;
    }
    let at = rest.iter().position(|byte| *byte == b'\'')?;
    Some(percent_decoded(&rest[at + 1..]).into_owned())
}

/// Parameters by their names in small letters (RFC 9110 §11.2). None if it is not a list of them, or if one
/// appears twice.
fn params(mut rest: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let mut params: Vec<(String, Vec<u8>)> = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(params);
        }
        let end = rest.iter().position(|byte| !is_token(byte))?;
        let name = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        rest = rest[end..].trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
        let value = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, after) = unquoted(quoted)?;
                rest = after;
                value
            }
            None => {
                let end = rest.iter().position(|byte| !is_token(byte)).unwrap_or(rest.len());
                let (value, after) = rest.split_at(end);
                rest = after;
                value.to_vec()
            }
        };
        if name.is_empty() || params.iter().any(|(known, _)| *known == name) {
            return None;
        }
        params.push((name, value));
        rest = rest.trim_ascii_start();
        match rest.split_first() {
            None => return Some(params),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// Returns the text before the closing quote, and the rest.
fn unquoted(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match *bytes.next()? {
            b'"' => return Some((value, bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(byte),
        }
    }
}
