//! The TLS session of a connection, and the requests that it allows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind};
use sigma_net::Stream;
use sigma_net::tls::{
    CertificateDer, ClientAuth, ClientCertificate, EarlyHandshake, Facts, ServerIdentity, certificate,
};
use sigma_plugin::client_chain::{ClientChain, escaped, pem};
use sigma_plugin::context::Tls;

use crate::snapshot::edge::ServerCertificates;

/// The TLS session of a connection; one for all of its requests.
#[derive(Debug)]
pub(crate) struct TlsSession {
    /// The facts for plugins and logs.
    pub(crate) tls: Rc<Tls>,
    facts: Facts,
    /// The last verdict about the client's certificate, and its revision.
    judged: Cell<(u64, ClientCertificate)>,
    /// The same, by the identity that has replaced the handshake's.
    judged_later: RefCell<Option<(Arc<ServerIdentity>, u64, ClientCertificate)>>,
}

impl TlsSession {
    /// Returns the session of `stream`, if it is encrypted.
    pub(crate) fn of(stream: &Stream) -> Option<TlsSession> {
        stream.tls().cloned().map(TlsSession::from_facts)
    }

    /// Returns the session with these facts.
    pub(crate) fn from_facts(facts: Facts) -> TlsSession {
        let judged = Cell::new((facts.revision, facts.client_certificate));
        let judged_later = RefCell::default();
        TlsSession { tls: Rc::new(shown(&facts)), facts, judged, judged_later }
    }

    /// Returns the name that the client requested; empty without one.
    pub(crate) fn name(&self) -> &str {
        self.facts.server_name.as_deref().unwrap_or_default()
    }

    /// Returns the handshake, if early data came before its end.
    pub(crate) fn early(&self) -> Option<&Arc<EarlyHandshake>> {
        self.facts.early.as_ref()
    }

    /// Returns true if a client certificate was requested.
    pub(crate) fn asks(&self) -> bool {
        self.facts.identity.as_ref().is_some_and(|identity| identity.client_auth().is_some())
    }

    /// Returns true if the client of a session without requests is still acceptable under the current rules.
    pub(crate) fn admits(&self, certificates: &ServerCertificates) -> bool {
        let shown = certificates.by_name.choose(self.facts.server_name.as_deref());
        shown.or(self.facts.identity.as_ref()).is_none_or(|identity| self.is_trusted(identity))
    }

    /// Returns an error unless the client's certificate allows requests to `host` for `path` (APISIX: mTLS). The
    /// current rules apply, not those at the handshake.
    pub(crate) fn judge(
        &self,
        certificates: &ServerCertificates,
        host: &str,
        path: &str,
    ) -> Result<(), Fault> {
        let shown = certificates.by_name.choose(self.facts.server_name.as_deref());
        if let Some(identity) = shown
            && !self.passes(certificates, identity, path)
        {
            let reason = "client certificate verification is not passed";
            return Err(Fault::new(FaultKind::BadRequest, reason));
        }
        // Otherwise a client of one name could reach another, protected name.
        if self.covers(certificates, shown, host)
            && certificates.by_name.guard(host).is_none_or(|guard| self.passes(certificates, guard, path))
        {
            return Ok(());
        }
        Err(Fault::new(FaultKind::Misdirected, "the TLS session of the client is not for this host"))
    }

    /// Returns true if a request for `host` belongs to this session (RFC 9110 §7.4): it is the name that the client
    /// requested, or one of the same identity. Without a name it may be any host without demands.
    fn covers(
        &self,
        certificates: &ServerCertificates,
        shown: Option<&Arc<ServerIdentity>>,
        host: &str,
    ) -> bool {
        let guarded = certificates.by_name.guard(host).is_some_and(|guard| protects(guard));
        let of_host = certificates.by_name.find(host);
        let same = matches!((shown, of_host), (Some(a), Some(b)) if Arc::ptr_eq(a, b));
        match &self.facts.server_name {
            Some(name) if same_name(name, host) => true,
            // Several names may share an identity, but not if each has a guard.
            Some(_) => same && !guarded,
            None => same || !guarded,
        }
    }

    /// Returns true if the client meets the demands of `identity`, or requests a `path` without demands.
    fn passes(&self, certificates: &ServerCertificates, identity: &Arc<ServerIdentity>, path: &str) -> bool {
        self.is_trusted(identity) || certificates.exempts(identity, path)
    }

    /// Returns true if `identity` trusts the client's certificate, or needs none.
    fn is_trusted(&self, identity: &Arc<ServerIdentity>) -> bool {
        let Some(auth) = identity.client_auth() else { return !identity.refuses() };
        let verdict = match &self.facts.identity {
            Some(shaken) if Arc::ptr_eq(shaken, identity) => self.verdict(auth),
            // It has changed since the handshake.
            _ => self.later_verdict(identity, auth),
        };
        verdict == ClientCertificate::Verified
    }
}

impl TlsSession {
    /// Returns the current status of the client's certificate: it may have been revoked since the handshake.
    fn verdict(&self, auth: &ClientAuth) -> ClientCertificate {
        let (revision, verdict) = self.judged.get();
        let now = auth.revision();
        if revision == now {
            return verdict;
        }
        let verdict = auth.judge(&self.facts.peer_chain);
        self.judged.set((now, verdict));
        verdict
    }

    /// Returns the same, for an identity that is newer than the handshake.
    fn later_verdict(&self, identity: &Arc<ServerIdentity>, auth: &ClientAuth) -> ClientCertificate {
        let (now, known) = (auth.revision(), &mut *self.judged_later.borrow_mut());
        match known {
            Some((judged_by, revision, verdict)) if *revision == now && Arc::ptr_eq(judged_by, identity) => {
                *verdict
            }
            _ => {
                let verdict = auth.judge(&self.facts.peer_chain);
                *known = Some((Arc::clone(identity), now, verdict));
                verdict
            }
        }
    }
}

/// Returns true if an identity may be reached only by its own name.
fn protects(identity: &ServerIdentity) -> bool {
    identity.client_auth().is_some() || identity.refuses()
}

fn same_name(name: &str, host: &str) -> bool {
    let (name, host) = (name.strip_suffix('.').unwrap_or(name), host.strip_suffix('.').unwrap_or(host));
    name.eq_ignore_ascii_case(host)
}

fn shown(facts: &Facts) -> Tls {
    let own = facts.peer_chain.first();
    let client_cert = own.map(|own| pem(own));
    Tls {
        server_name: facts.server_name.as_deref().map(str::to_owned),
        ja4: facts.ja4.as_deref().map(str::to_owned),
        protocol: facts.version.as_str(),
        cipher: facts.cipher.to_owned(),
        key_exchange: facts.key_exchange,
        alpn: facts.alpn.as_deref().map(|name| String::from_utf8_lossy(name).into_owned()),
        is_resumed: facts.is_resumed,
        client_verify: facts.client_certificate.as_str().to_owned(),
        client_subject: own.and_then(certificate::subject),
        client_issuer: own.and_then(certificate::issuer),
        client_serial: own.and_then(certificate::serial),
        client_fingerprint: own.map(certificate::fingerprint),
        client_escaped_cert: client_cert.as_deref().map(escaped),
        client_cert,
        client_chain: own.map(|own| Box::new(chain(own, facts))),
    }
}

fn chain(own: &CertificateDer<'_>, facts: &Facts) -> ClientChain {
    // Several certificates under one name all belong to the same gateway.
    let gateway = facts.identity.as_ref().and_then(|identity| identity.pairs().next());
    let gateway_uris = gateway.and_then(|pair| pair.chain().first().map(certificate::uris));
    ClientChain {
        certificates: facts.peer_chain.iter().map(|one| Box::from(&**one)).collect(),
        uris: certificate::uris(own),
        dns_names: certificate::dns_names(own),
        gateway_uris: gateway_uris.unwrap_or_default(),
    }
}
