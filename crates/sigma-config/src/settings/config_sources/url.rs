//! Settings of a document at a URL.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sigma_schema::{Confidential, Problem};

use crate::settings::discovery::RegistryAddress;

/// The beginning of a public key of Ed25519 in the form SubjectPublicKeyInfo (RFC 8410).
const KEY_INFO: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A document at a URL. The gateway requests it at intervals, with the `ETag` and `Last-Modified` of the last response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentUrl {
    /// `https://…`. `http://…` needs a loopback address, `sha256` or `public_key`. User and password before the host
    /// are sent as basic authentication. Redirects are refused.
    pub url: SourceUrl,
    /// Milliseconds between requests; up to a tenth is added at random.
    #[serde(default = "interval_ms")]
    #[schemars(range(min = 100))]
    pub interval_ms: u32,
    /// Timeout of one request in milliseconds.
    #[serde(default = "timeout_ms")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
    /// The bearer token of requests.
    #[serde(default)]
    pub token: Confidential,
    /// PEM file with the authorities that may sign the server's certificate; unset: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The only accepted document: the SHA-256 of its bytes, as 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// URL on the same server with the SHA-256 of the document, as `sha256sum` writes it. It finds incomplete documents,
    /// and is no protection against the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256_url: Option<SourceUrl>,
    /// Public key of Ed25519: documents without its signature are refused. PEM, or base64 of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// URL on the same server with the signature of the document, in base64 or as 64 bytes; unset: the URL with `.sig`
    /// after its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature_url: Option<SourceUrl>,
}

impl DocumentUrl {
    /// Returns the URL of the signature, if one is required.
    #[must_use]
    pub fn signature(&self) -> Option<SourceUrl> {
        self.public_key.as_ref()?;
        Some(self.signature_url.clone().unwrap_or_else(|| self.url.with_extension(".sig")))
    }
}

/// An `http` or `https` URL. Logs do not show its user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceUrl {
    text: Box<str>,
    address: RegistryAddress,
    target: Box<str>,
}

impl SourceUrl {
    /// Returns the server.
    #[must_use]
    pub fn address(&self) -> &RegistryAddress {
        &self.address
    }

    /// Returns path and query.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the URL with `extension` at the end of its path.
    #[must_use]
    pub fn with_extension(&self, extension: &str) -> SourceUrl {
        let with = |text: &str| match text.split_once('?') {
            Some((path, query)) => format!("{path}{extension}?{query}").into(),
            None => format!("{text}{extension}").into(),
        };
        SourceUrl { text: with(&self.text), address: self.address.clone(), target: with(&self.target) }
    }

    /// Returns whether the server is on this machine.
    fn is_loopback(&self) -> bool {
        let host = self.address.base().split_once("://").map_or("", |(_, place)| place);
        let host = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((host, _)) => host,
            None => host.split(':').next().unwrap_or_default(),
        };
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    fn is_encrypted(&self) -> bool {
        self.address.base().starts_with("https://")
    }
}

impl FromStr for SourceUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceUrl, String> {
        // The text is not shown, because it may contain a password.
        let wrong = || "a URL is https://host/path or http://host/path in visible ASCII".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('#') {
            return Err(wrong());
        }
        let (server, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let address = format!("{scheme}://{server}").parse().map_err(|_| wrong())?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(SourceUrl { text: text.into(), address, target: format!("{slash}{target}").into() })
    }
}

/// As logs show it.
impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}{path}", self.address.base())
    }
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for SourceUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SourceUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for SourceUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SourceUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^https?://[^/?#]", "maxLength": 2048 })
    }
}

/// Returns the bytes of a public key: of PEM, of base64 of the 32 bytes, or of base64 of the form that PEM has.
#[must_use]
pub fn public_key(text: &str) -> Option<[u8; 32]> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    let bytes = BASE64_STANDARD.decode(lines.collect::<String>()).ok()?;
    bytes.strip_prefix(&KEY_INFO).unwrap_or(&bytes).try_into().ok()
}

/// Returns the problems of one URL.
pub(super) fn breaches(url: &Map<String, Value>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut breach = |place: &str, message: String, hint: &str| {
        found.push(Problem::new(place, "conflict", message).hint(hint));
    };
    let text = |name: &str| url.get(name).and_then(Value::as_str);
    let parsed = |name: &'static str| text(name).map(str::parse::<SourceUrl>);
    for name in ["url", "sha256_url", "signature_url"] {
        if let Some(Err(message)) = parsed(name) {
            breach(name, message, "write for example https://config.example.com/gateway.yaml");
        }
    }
    let Some(Ok(document)) = parsed("url") else { return found };
    let is_verified = text("sha256").is_some() || text("public_key").is_some();
    if !document.is_encrypted() && !document.is_loopback() && !is_verified {
        let message = format!("`{document}` is neither encrypted nor verified");
        breach("url", message, "write https://, or set `public_key` or `sha256`");
    }
    for name in ["sha256_url", "signature_url"] {
        if let Some(Ok(sidecar)) = parsed(name)
            && sidecar.address() != document.address()
        {
            let message = format!("`{sidecar}` is on another server than the document");
            breach(name, message, "name the server of `url`, with the same user");
        }
    }
    if text("sha256").is_some_and(|sum| sum.len() != 64 || !sum.bytes().all(|b| b.is_ascii_hexdigit())) {
        let message = "`sha256` is not 64 hexadecimal digits".to_owned();
        breach("sha256", message, "`sha256sum FILE` prints them");
    }
    if text("sha256").is_some() && text("sha256_url").is_some() {
        let message = "`sha256` and `sha256_url` exclude each other".to_owned();
        breach("sha256_url", message, "keep one of them");
    }
    if text("public_key").is_some_and(|key| public_key(key).is_none()) {
        let message = "`public_key` is not a public key of Ed25519".to_owned();
        breach("public_key", message, "`openssl pkey -in KEY -pubout` prints it as PEM");
    }
    if text("signature_url").is_some() && text("public_key").is_none() {
        let message = "`signature_url` needs `public_key`".to_owned();
        breach("signature_url", message, "set `public_key`, or remove it");
    }
    if document.address().user().is_some() && text("token").is_some_and(|token| !token.is_empty()) {
        let message = "`token` and a user in `url` exclude each other".to_owned();
        breach("token", message, "keep one of them");
    }
    if text("ca").is_some() && !document.is_encrypted() {
        let message = format!("`{document}` is not https, so `ca` has no effect");
        breach("ca", message, "write https:// in `url`, or remove `ca`");
    }
    found
}

fn interval_ms() -> u32 {
    30_000
}

fn timeout_ms() -> u32 {
    10_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_url_has_a_server_and_a_target() {
        let check = |text: &str, want: Option<(&str, &str, &str)>| {
            let read = text.parse::<SourceUrl>();
            let shown = read.as_ref().ok().map(ToString::to_string);
            let got = read.as_ref().ok().map(|url| (url.address().base(), url.target()));
            assert_eq!(got, want.map(|(base, target, _)| (base, target)), "{text}");
            assert_eq!(shown.as_deref(), want.map(|(_, _, shown)| shown), "{text}");
        };
        check("https://h/a/b.yaml", Some(("https://h", "/a/b.yaml", "https://h/a/b.yaml")));
        check("https://u:p@h:1/a?b=c", Some(("https://h:1", "/a?b=c", "https://h:1/a")));
        check("http://h?b", Some(("http://h", "/?b", "http://h/")));
        check("https://h", Some(("https://h", "/", "https://h/")));
        for wrong in ["", "h/a", "ftp://h/a", "https:///a", "https://h/a b", "https://h/a#b", "https://u@h/a"]
        {
            check(wrong, None);
        }
        let url: SourceUrl = "https://u:hush@h/a.yaml?v=1".parse().expect("a URL");
        assert_eq!(url.with_extension(".sig").target(), "/a.yaml.sig?v=1");
        assert_eq!(serde_json::to_value(&url).expect("a text"), "https://u:hush@h/a.yaml?v=1");
        assert_eq!(format!("{url:?}"), "\"https://h/a.yaml\"");
    }

    #[test]
    fn a_public_key_has_three_forms() {
        let (raw, info) = ([7_u8; 32], [&KEY_INFO[..], &[7; 32]].concat());
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(&info)
        );
        for text in [BASE64_STANDARD.encode(raw), BASE64_STANDARD.encode(&info), pem] {
            assert_eq!(public_key(&text), Some(raw), "{text}");
        }
        for text in ["", "x", &BASE64_STANDARD.encode([7_u8; 31]), &BASE64_STANDARD.encode([7_u8; 44])] {
            assert_eq!(public_key(text), None, "{text}");
        }
    }

    #[test]
    fn unsafe_urls_are_refused() {
        let check = |more: Value, expected: &[&str]| {
            let mut url = json!({"url": "https://h/c.yaml"});
            url.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let found = breaches(url.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            assert_eq!(places, expected, "{url}: {found:?}");
        };
        let (key, sum) = (BASE64_STANDARD.encode([7_u8; 32]), "0".repeat(64));
        check(json!({}), &[]);
        for loopback in
            ["http://127.0.0.1:80/c", "http://[::1]:80/c", "http://localhost/c", "http://127.9.9.9/c"]
        {
            check(json!({"url": loopback}), &[]);
        }
        for remote in ["http://h/c", "http://127.0.0.1.test/c", "http://10.0.0.1/c", "http://[::2]/c"] {
            check(json!({"url": remote}), &["url"]);
            check(json!({"url": remote, "sha256_url": remote}), &["url"]);
            check(json!({"url": remote, "public_key": key}), &[]);
            check(json!({"url": remote, "sha256": sum}), &[]);
        }
        check(json!({"sha256": "12"}), &["sha256"]);
        check(json!({"sha256": sum, "sha256_url": "https://h/c.sha256"}), &["sha256_url"]);
        check(json!({"sha256_url": "https://other/c"}), &["sha256_url"]);
        check(json!({"public_key": "AAAA"}), &["public_key"]);
        check(json!({"signature_url": "https://h/s"}), &["signature_url"]);
        check(json!({"url": "https://u:p@h/c", "token": "t"}), &["token"]);
        check(json!({"url": "http://127.0.0.1/c", "ca": "/ca.pem"}), &["ca"]);
        check(json!({"url": "nonsense"}), &["url"]);
    }
}
