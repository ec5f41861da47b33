//! Client certificates.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage, RevocationOptions};

use super::{CertificateDer, ClientCertificate, Inquiring, Inquiry, PROVIDER, Revocation, Unusable, pem};

/// The demands on clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// The handshake rejects a client without a trusted certificate.
    Required,
    /// Every client is accepted; [`Facts::client_certificate`](super::Facts) has the result.
    Optional,
}

/// The trusted clients.
#[derive(Debug)]
pub struct ClientAuth {
    demand: Demand,
    anchors: Vec<TrustAnchor<'static>>,
    subjects: Vec<DistinguishedName>,
    /// The limit of intermediate certificates between the client's own and an authority.
    depth: usize,
    revocation: Option<Revocation>,
    inquiring: Option<Inquiring>,
    /// Identifies these demands; see [`super::resumption`].
    pub(super) fingerprint: [u8; 32],
}

impl ClientAuth {
    /// Trusts clients whose certificate leads, over at most `depth` intermediate ones, to an authority in
    /// `authorities` (PEM).
    ///
    /// # Errors
    /// Returns `failed to validate client_cert: …` if the authorities cannot be used.
    pub fn new(authorities: &str, depth: usize, demand: Demand) -> Result<ClientAuth, Unusable> {
        let failed = |reason: String| Unusable::new(format!("failed to validate client_cert: {reason}"));
        let mut roots = RootCertStore::empty();
        let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        digest.update(&[u8::from(demand == Demand::Required)]);
        digest.update(&depth.to_be_bytes());
        for certificate in pem::parse_chain(authorities).map_err(|error| failed(error.to_string()))? {
            digest.update(&certificate.len().to_be_bytes());
            digest.update(&certificate);
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest.finish().as_ref());
        Ok(ClientAuth {
            demand,
            subjects: roots.subjects(),
            anchors: roots.roots,
            depth,
            revocation: None,
            inquiring: None,
            fingerprint,
        })
    }

    /// Adds lists of revoked certificates.
    #[must_use]
    pub fn checking(mut self, revocation: Revocation) -> ClientAuth {
        self.add_to_fingerprint(&revocation.settings());
        self.revocation = Some(revocation);
        self
    }

    /// Adds inquiries to OCSP responders.
    #[must_use]
    pub fn inquiring(mut self, inquiring: Inquiring) -> ClientAuth {
        self.add_to_fingerprint(&inquiring.settings());
        self.inquiring = Some(inquiring);
        self
    }

    fn add_to_fingerprint(&mut self, settings: &[u8]) {
        let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        digest.update(&self.fingerprint);
        digest.update(settings);
        self.fingerprint.copy_from_slice(digest.finish().as_ref());
    }

    /// Returns the revision of verdicts: a verdict is valid while it stays the same. New revocation lists and new
    /// responses of responders change it.
    pub fn revision(&self) -> u64 {
        let lists = self.revocation.as_ref().map_or(0, |revocation| revocation.lists.revision());
        lists + self.inquiring.as_ref().map_or(0, Inquiring::revision)
    }

    /// Returns true if responders are queried.
    pub(super) fn inquires(&self) -> bool {
        self.inquiring.is_some()
    }

    /// Starts an inquiry about a chain, and waits for its result for a bounded time. There is no inquiry about an
    /// untrusted chain: its author would choose the responder. The returned inquiry keeps the result up to date.
    pub(super) async fn inquire(&self, chain: &[CertificateDer<'_>]) -> Option<Arc<Inquiry>> {
        let (own, others) = chain.split_first()?;
        let inquiring = self.inquiring.as_ref()?;
        self.verify(own, others, UnixTime::now()).ok()?;
        inquiring.inquire(chain).await
    }

    /// The demands on clients.
    pub fn demand(&self) -> Demand {
        self.demand
    }

    /// Judges a chain at the current time.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> ClientCertificate {
        match chain.split_first() {
            None => ClientCertificate::Absent,
            Some((own, others)) => match self.verify(own, others, UnixTime::now()) {
                Ok(()) if self.inquiring.as_ref().is_none_or(|inquiring| inquiring.trusts(chain)) => {
                    ClientCertificate::Verified
                }
                _ => ClientCertificate::Refused,
            },
        }
    }

    fn verify(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let shallow = |path: &webpki::VerifiedPath<'_>| {
            if path.intermediate_certificates().count() > self.depth {
                return Err(webpki::Error::MaximumPathDepthExceeded);
            }
            Ok(())
        };
        let own = EndEntityCert::try_from(own)?;
        let verify = |revocation: Option<RevocationOptions<'_>>| {
            own.verify_for_usage(
                PROVIDER.signature_verification_algorithms.all,
                &self.anchors,
                others,
                now,
                KeyUsage::client_auth(),
                revocation,
                Some(&shallow),
            )
            .map(|_| ())
        };
        match &self.revocation {
            None => verify(None),
            Some(revocation) => revocation.during(verify),
        }
    }
}

/// [`ClientAuth`] within a handshake.
#[derive(Debug)]
pub(super) struct Verifier(pub(super) Arc<ClientAuth>);

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.0.demand == Demand::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.0.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.0.demand == Demand::Required {
            self.0.verify(end_entity, intermediates, now).map_err(certificate_error)?;
        }
        // Otherwise it is judged after the handshake, where the verdict can be stored.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &PROVIDER.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &PROVIDER.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the error whose alert explains the problem to the client.
fn certificate_error(error: webpki::Error) -> Error {
    match error {
        webpki::Error::BadDer | webpki::Error::BadDerTime => CertificateError::BadEncoding.into(),
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet.into(),
        webpki::Error::CertExpired { .. } => CertificateError::Expired.into(),
        webpki::Error::CertRevoked => CertificateError::Revoked.into(),
        webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus.into(),
        webpki::Error::CrlExpired { .. } => CertificateError::ExpiredRevocationList.into(),
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer.into(),
        webpki::Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose.into(),
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
        other => CertificateError::Other(rustls::OtherError(Arc::new(other))).into(),
    }
}
