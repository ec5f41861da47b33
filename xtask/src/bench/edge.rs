//! The protocols of gateways towards their clients and the origin in one trial.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::launch::Workplace;

/// A version of HTTP. Without TLS, HTTP/2 is spoken by prior knowledge (RFC 9113 §3.3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Its name in the handshake of TLS (RFC 7301).
    pub(super) fn alpn(self) -> &'static str {
        match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

/// Both sides of a gateway; every contender of a trial is given the same.
pub(super) struct Edge {
    pub(super) clients: Protocol,
    /// Clients come over TLS 1.3 and are shown this; sessions are never resumed.
    pub(super) certificate: Option<Certificate>,
    /// Clients come over HTTP/3 as well, on the UDP port of the same number; wants a certificate.
    pub(super) http3: bool,
    /// The origin is always reached in cleartext.
    pub(super) origin: Protocol,
    /// Idle connections to the origin that a gateway keeps at least, where its own default is lower: as many as
    /// requests are open at a time, so that no gateway is measured at connecting.
    pub(super) pool: u32,
}

impl Edge {
    /// HTTP/1.1 in cleartext on both sides.
    pub(super) const PLAIN: Self =
        Self { clients: Protocol::Http1, certificate: None, http3: false, origin: Protocol::Http1, pool: 0 };

    /// The scheme of the URL that clients ask for.
    pub(super) fn scheme(&self) -> &'static str {
        if self.certificate.is_some() { "https" } else { "http" }
    }
}

/// A self-signed ECDSA certificate over P-256 and its key, as files. With RSA a handshake would hardly be more than
/// its signature, and the comparison one of big-number arithmetic.
pub(super) struct Certificate {
    pub(super) chain: String,
    pub(super) key: String,
    /// Certificate and key in one file, as HAProxy wants them.
    pub(super) both: String,
}

impl Certificate {
    /// Makes one below `work` with the program `openssl`.
    pub(super) fn make(work: &Path) -> anyhow::Result<Self> {
        let place = Workplace::new(work, "certificate")?;
        let file = |name: &str| place.folder.join(name).display().to_string();
        let (chain, key) = (file("server.crt"), file("server.key"));
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
            .args(["-days", "30", "-subj", "/CN=bench.local"])
            .args(["-addext", "subjectAltName=DNS:bench.local,IP:127.0.0.1"])
            .args(["-keyout", &key, "-out", &chain])
            .output()
            .context("cannot run openssl: install it")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "openssl made no certificate: {problem}");
        let read =
            |path: &str| std::fs::read_to_string(path).with_context(|| format!("openssl wrote no {path}"));
        let both = place.write("server.pem", &format!("{}{}", read(&chain)?, read(&key)?))?;
        Ok(Self { chain, key, both })
    }
}
