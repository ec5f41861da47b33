//! AWS Signature Version 4: the canonical form of a request, and its signature.

use aws_lc_rs::{digest, hmac};
use sigma_plugin::hex;
use sigma_plugin::variables::percent_decoded;
use sigma_schema::Confidential;

/// The credentials and scope of a signature.
pub struct Account<'a> {
    /// The id of the access key.
    pub access_key_id: &'a str,
    /// The secret of the access key.
    pub secret_access_key: &'a Confidential,
    /// The region of the service.
    pub region: &'a str,
    /// The name of the service in signatures.
    pub service: &'a str,
}

/// The form of paths in the signatures of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    /// Without `.` and `..`, and encoded once more: all services but S3.
    Normal,
    /// Unchanged: names of objects may contain anything.
    AsTheyAre,
    /// Without `.` and `..`, encoded once, as the test vectors have it.
    #[cfg(test)]
    NormalOnce,
}

/// A request as its signer sees it.
pub struct Request<'r> {
    /// The method.
    pub method: &'r [u8],
    /// Path and query as they are sent.
    pub target: &'r [u8],
    /// The treatment of the path.
    pub paths: Paths,
    /// The fields that are signed, names in small letters.
    pub fields: Vec<(String, Vec<u8>)>,
    /// The SHA-256 of the body in hexadecimal, or its replacement.
    pub payload: &'r str,
}

/// The replacement for the digest of a body that is not signed.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Returns the SHA-256 of some bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex::text(digest::digest(&digest::SHA256, bytes).as_ref())
}

impl Account<'_> {
    /// Returns the value of `Authorization` for a request that is signed at this time, as [`crate::utc::compact`]
    /// writes it.
    pub fn authorization(&self, request: &Request<'_>, time: &str) -> String {
        let date = &time[..8];
        let scope = format!("{date}/{}/{}/aws4_request", self.region, self.service);
        let (canonical, signed) = request.canonical();
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", sha256(&canonical));
        let signature = hex::text(hmac::sign(&self.key(date), text.as_bytes()).as_ref());
        let id = self.access_key_id;
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={signed}, Signature={signature}")
    }

    fn key(&self, date: &str) -> hmac::Key {
        let first = [b"AWS4", self.secret_access_key.reveal().as_bytes()].concat();
        let parts = [date, self.region, self.service, "aws4_request"];
        parts.iter().fold(hmac::Key::new(hmac::HMAC_SHA256, &first), |key, part| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
        })
    }
}

impl Request<'_> {
    /// Returns the canonical request, and the names of the signed fields.
    fn canonical(&self) -> (Vec<u8>, String) {
        let (path, query) = match self.target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&self.target[..at], &self.target[at + 1..]),
            None => (self.target, &[][..]),
        };
        let mut fields: Vec<(&str, Vec<u8>)> = Vec::new();
        let mut names: Vec<&str> = self.fields.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let values = self.fields.iter().filter(|(known, _)| known == name);
            let values: Vec<Vec<u8>> = values.map(|(_, value)| squeezed(value)).collect();
            fields.push((name, values.join(&b',')));
        }
        let signed = fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let mut text = Vec::new();
        for part in
            [self.method, canonical_path(path, self.paths).as_bytes(), canonical_query(query).as_bytes()]
        {
            text.extend_from_slice(part);
            text.push(b'\n');
        }
        for (name, value) in fields {
            text.extend_from_slice(&[name.as_bytes(), b":", &value, b"\n"].concat());
        }
        text.extend_from_slice(format!("\n{signed}\n{}", self.payload).as_bytes());
        (text, signed)
    }
}

/// Returns a value without space around it, and with one space for several.
fn squeezed(value: &[u8]) -> Vec<u8> {
    let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ')
}

/// Returns a text with everything but unreserved characters encoded, and slashes kept on request.
pub fn encoded(text: &[u8], keeps_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte))
            }
            b'/' if keeps_slashes => out.push('/'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn canonical_path(path: &[u8], paths: Paths) -> String {
    match paths {
        Paths::Normal => encoded(&normal(path), true),
        Paths::AsTheyAre => encoded(&percent_decoded(path), true),
        #[cfg(test)]
        Paths::NormalOnce => encoded(&percent_decoded(&normal(path)), true),
    }
}

/// Returns a path without empty segments, `.` and `..` (RFC 3986 §5.2.4).
fn normal(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let segments = || path.split(|byte| *byte == b'/');
    for segment in segments() {
        match segment {
            b"" | b"." => {}
            b".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_folder = segments().next_back().is_some_and(|last| matches!(last, b"" | b"." | b".."));
    let end: &[u8] = if is_folder && !kept.is_empty() { b"/" } else { b"" };
    [b"/", &kept.join(&b'/')[..], end].concat()
}

/// Returns the arguments of a query in signed form: encoded again, in the order of their names and values.
pub fn canonical_query(query: &[u8]) -> String {
    let pairs = query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| {
            let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let value = pair.get(end + 1..).unwrap_or_default();
            (encoded(&percent_decoded(&pair[..end]), false), encoded(&percent_decoded(value), false))
        })
        .collect();
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The vectors that AWS publishes with its SDKs; without those that fold lines or leave out sent fields.
    const VECTORS: &str = include_str!("sigv4_vectors.json");

    fn secret(text: &str) -> Confidential {
        serde_json::from_value(text.into()).unwrap()
    }

    #[test]
    fn the_vectors_of_aws() {
        let vectors: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
        assert!(vectors.len() > 30);
        for vector in vectors {
            let text = |name: &str| vector[name].as_str().unwrap_or_default();
            let mut fields: Vec<(String, Vec<u8>)> = vector["fields"]
                .as_array()
                .unwrap()
                .iter()
                .map(|field| (field[0].as_str().unwrap().to_lowercase(), field[1].as_str().unwrap().into()))
                .collect();
            fields.push(("x-amz-date".into(), b"20150830T123600Z".to_vec()));
            if vector["token"].is_string() {
                fields.push(("x-amz-security-token".into(), text("token").into()));
            }
            let digest = sha256(text("body").as_bytes());
            if vector["sign_body"] == true {
                fields.push(("x-amz-content-sha256".into(), digest.clone().into()));
            }
            let request = Request {
                method: text("method").as_bytes(),
                target: text("target").as_bytes(),
                paths: if vector["normalize"] == true { Paths::NormalOnce } else { Paths::AsTheyAre },
                fields,
                payload: &digest,
            };
            let account = Account {
                access_key_id: "AKIDEXAMPLE",
                secret_access_key: &secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
                region: "us-east-1",
                service: "service",
            };
            let value = account.authorization(&request, "20150830T123600Z");
            let canonical = String::from_utf8(request.canonical().0).unwrap();
            assert!(
                value.ends_with(&format!("Signature={}", text("signature"))),
                "{}: {canonical}",
                text("name")
            );
        }
    }

    #[test]
    fn paths_that_were_encoded() {
        let check = |path: &str, paths, expected: &str| {
            assert_eq!(canonical_path(path.as_bytes(), paths), expected, "{path}");
        };
        check(
            "/test/@connections/JBDvjfGEIAMCERw%3D",
            Paths::Normal,
            "/test/%40connections/JBDvjfGEIAMCERw%253D",
        );
        check("/a%20b/../c/", Paths::Normal, "/c/");
        check("/a%20b", Paths::AsTheyAre, "/a%20b");
        check("/a//b/../%41@", Paths::AsTheyAre, "/a//b/../A%40");
        check("", Paths::Normal, "/");
    }
}
