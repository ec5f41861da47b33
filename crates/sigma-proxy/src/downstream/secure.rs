//! What a connection's TLS session means for its requests.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_http::{Fault, FaultKind};
use sigma_net::Stream;
use sigma_net::tls::{CertificateDer, ClientCertificate, Facts, ServerIdentity, certificate};
use sigma_plugin::context::Tls;

use crate::snapshot::edge::Shown;

/// Characters in a line of PEM (RFC 7468 §2).
const PEM_LINE: usize = 64;

/// The TLS session of a connection; one for all of its requests.
#[derive(Debug)]
pub(crate) struct Secure {
    /// What plugins and logs see of it.
    pub(crate) tls: Rc<Tls>,
    facts: Facts,
}

impl Secure {
    /// The session of `stream`, if it is encrypted.
    pub(crate) fn of(stream: &Stream) -> Option<Rc<Secure>> {
        let facts = stream.tls()?.clone();
        Some(Rc::new(Secure { tls: Rc::new(shown(&facts)), facts }))
    }

    /// Whether the client may ask `host` for `path`, as far as its certificate goes (APISIX: mTLS).
    /// Rules in force now apply, whatever those of the handshake were.
    pub(crate) fn judge(&self, rules: &Shown, host: &str, path: &str) -> Result<(), Fault> {
        let refused = |reason| Err(Fault::new(FaultKind::BadRequest, reason));
        let asked = rules.certificates.choose(self.facts.server_name.as_deref());
        if let Some(identity) = asked
            && !self.is_trusted(identity)
            && !rules.exempts(identity, path)
        {
            return refused("client certificate verification is not passed");
        }
        // Otherwise whoever may talk to one name could reach what another one protects.
        match rules.certificates.find(host) {
            Some(named) if protects(named) && !self.asked_for(asked, named, host) => {
                refused("the host is not the server name that the client certificate was shown to")
            }
            _ => Ok(()),
        }
    }

    fn asked_for(
        &self,
        asked: Option<&Arc<ServerIdentity>>,
        named: &Arc<ServerIdentity>,
        host: &str,
    ) -> bool {
        match &self.facts.server_name {
            Some(name) => name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(host),
            None => asked.is_some_and(|asked| Arc::ptr_eq(asked, named)),
        }
    }

    /// Whether the client showed a certificate that `identity` trusts, or needs none.
    fn is_trusted(&self, identity: &Arc<ServerIdentity>) -> bool {
        let Some(auth) = identity.client_auth() else { return !identity.refuses() };
        let verdict = match &self.facts.identity {
            Some(shaken) if Arc::ptr_eq(shaken, identity) => self.facts.client_certificate,
            // It has changed since the handshake.
            _ => auth.judge(&self.facts.peer_chain),
        };
        verdict == ClientCertificate::Verified
    }
}

/// Whether an identity may be reached by its own name only.
fn protects(identity: &ServerIdentity) -> bool {
    identity.client_auth().is_some() || identity.refuses()
}

fn shown(facts: &Facts) -> Tls {
    let own = facts.peer_chain.first();
    Tls {
        server_name: facts.server_name.as_deref().map(str::to_owned),
        protocol: facts.version.as_str(),
        cipher: facts.cipher.to_owned(),
        client_verify: facts.client_certificate.as_str().to_owned(),
        client_subject: own.and_then(certificate::subject),
        client_issuer: own.and_then(certificate::issuer),
        client_serial: own.and_then(certificate::serial),
        client_fingerprint: own.map(certificate::fingerprint),
        client_cert: own.map(pem),
    }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut text = String::with_capacity(encoded.len() + encoded.len() / PEM_LINE + 64);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: every place is one between characters.
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
        rest = more;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
