//! Lists of revoked certificates (RFC 5280 §5), and the policy for missing and stale lists.
//!
//! The form of a list is checked when it is read, and its signature if the authority is known. The signature of an
//! intermediate authority is verified when a client sends that authority's certificate; a forged list makes no client
//! trusted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptions, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use super::der::{INTEGER, SEQUENCE, after_optional, element_of, time};
use super::signed::Signed;
use super::{CertificateDer, Unusable};

/// A list of revoked certificates.
#[derive(Debug)]
pub struct Crl {
    list: CertRevocationList<'static>,
    /// SHA-256
    digest: [u8; 32],
    this_update: i64,
    next_update: i64,
}

impl Crl {
    /// Parses lists in PEM or DER. A list of one of `authorities` must have its signature.
    ///
    /// # Errors
    /// Returns an error if there is no list, or if one of them cannot be used: it is malformed, unsupported (delta
    /// and indirect lists), or forged.
    pub fn parse(bytes: &[u8], authorities: &[CertificateDer<'_>]) -> Result<Vec<Crl>, Unusable> {
        if bytes.first() == Some(&SEQUENCE) {
            return Ok(vec![Crl::from_der(bytes, authorities)?]);
        }
        let mut lists = Vec::new();
        for der in CertificateRevocationListDer::pem_slice_iter(bytes) {
            let der = der.map_err(|_| Unusable::new("a block of the revocation list is not PEM"))?;
            lists.push(Crl::from_der(&der, authorities)?);
        }
        if lists.is_empty() {
            return Err(Unusable::new("it contains no X509 CRL block"));
        }
        Ok(lists)
    }

    fn from_der(der: &[u8], authorities: &[CertificateDer<'_>]) -> Result<Crl, Unusable> {
        let list = OwnedCertRevocationList::from_der(der)
            .map_err(|error| Unusable::new(format!("the revocation list is invalid: {error}")))?;
        let malformed = || Unusable::new("the revocation list is malformed");
        let (content, _) = element_of(der, SEQUENCE).ok_or_else(malformed)?;
        let (signed, fields, _) = Signed::split(content).ok_or_else(malformed)?;
        let (this_update, next_update) = times(fields).ok_or_else(malformed)?;
        let mut digest = [0; 32];
        digest.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der).as_ref());
        let crl = Crl { list: list.into(), digest, this_update, next_update };
        let is_issuer = |authority: &&CertificateDer<'_>| {
            EndEntityCert::try_from(*authority)
                .is_ok_and(|authority| authority.subject() == crl.list.issuer())
        };
        let mut issuers = authorities.iter().filter(is_issuer).peekable();
        if issuers.peek().is_some() && !issuers.any(|issuer| signed.is_by(issuer)) {
            return Err(Unusable::new("the revocation list is not signed by its issuer"));
        }
        Ok(crl)
    }

    /// Returns the time of the list, in Unix seconds.
    pub fn this_update(&self) -> i64 {
        self.this_update
    }

    /// Returns the time of the next list, in Unix seconds.
    pub fn next_update(&self) -> i64 {
        self.next_update
    }

    /// Returns true if it is the identical list.
    pub fn is_same(&self, other: &Crl) -> bool {
        self.digest == other.digest
    }

    /// Returns true if it covers the same certificates as another list.
    pub fn is_of_the_same(&self, other: &Crl) -> bool {
        self.list.issuer() == other.list.issuer()
            && self.list.issuing_distribution_point() == other.list.issuing_distribution_point()
    }
}

/// Returns the times of a list and of the next one.
fn times(fields: &[u8]) -> Option<(i64, i64)> {
    let (_signature, rest) = element_of(after_optional(fields, INTEGER), SEQUENCE)?;
    let (_issuer, rest) = element_of(rest, SEQUENCE)?;
    let (this_update, rest) = time(rest)?;
    let (next_update, _) = time(rest)?;
    Some((this_update, next_update))
}

/// Lists of revoked certificates in force. Newer ones replace them at any time.
#[derive(Debug, Default)]
pub struct RevocationLists {
    lists: RwLock<Arc<[Arc<Crl>]>>,
    revision: AtomicU64,
}

impl RevocationLists {
    /// Replaces all lists. Of two about the same certificates the newer counts.
    pub fn publish(&self, mut lists: Vec<Arc<Crl>>) {
        // The first match is used.
        lists.sort_by_key(|list| std::cmp::Reverse(list.this_update));
        *self.lists.write().unwrap_or_else(PoisonError::into_inner) = lists.into();
        let next = self.revision.load(Ordering::Acquire) + 1;
        self.revision.store(next, Ordering::Release);
    }

    /// Returns how often lists were published: a verdict is valid while this stays the same.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    fn read(&self) -> Arc<[Arc<Crl>]> {
        Arc::clone(&self.lists.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The certificates of a chain that are looked up in the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// All but the authority's own
    Chain,
    /// The peer's own
    Leaf,
}

/// The policy without a known status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutAnswer {
    /// The peer is rejected.
    Refuse,
    /// The peer is accepted.
    Allow,
}

/// The settings of revocation checks.
#[derive(Debug, Clone)]
pub struct Revocation {
    /// The lists.
    pub lists: Arc<RevocationLists>,
    /// The certificates to look up.
    pub looked: Looked,
    /// The policy for a certificate whose issuer has no list.
    pub when_missing: WithoutAnswer,
    /// The policy for a list past its next update.
    pub when_stale: WithoutAnswer,
}

impl Revocation {
    /// Identifies these settings.
    pub(super) fn settings(&self) -> [u8; 3] {
        [
            u8::from(self.looked == Looked::Chain),
            u8::from(self.when_missing == WithoutAnswer::Refuse),
            u8::from(self.when_stale == WithoutAnswer::Refuse),
        ]
    }

    /// Runs a verification with the lists in force.
    pub(super) fn during<R>(
        &self,
        verify: impl FnOnce(Option<RevocationOptions<'_>>) -> Result<R, webpki::Error>,
    ) -> Result<R, webpki::Error> {
        let lists = self.lists.read();
        let lists: Vec<&CertRevocationList<'_>> = lists.iter().map(|crl| &crl.list).collect();
        let Ok(options) = RevocationOptionsBuilder::new(&lists) else {
            return match self.when_missing {
                WithoutAnswer::Refuse => Err(webpki::Error::UnknownRevocationStatus),
                WithoutAnswer::Allow => verify(None),
            };
        };
        let depth = match self.looked {
            Looked::Chain => RevocationCheckDepth::Chain,
            Looked::Leaf => RevocationCheckDepth::EndEntity,
        };
        let unknown = match self.when_missing {
            WithoutAnswer::Refuse => UnknownStatusPolicy::Deny,
            WithoutAnswer::Allow => UnknownStatusPolicy::Allow,
        };
        let expired = match self.when_stale {
            WithoutAnswer::Refuse => ExpirationPolicy::Enforce,
            WithoutAnswer::Allow => ExpirationPolicy::Ignore,
        };
        let options = options.with_depth(depth).with_status_policy(unknown).with_expiration_policy(expired);
        verify(Some(options.build()))
    }
}

#[cfg(test)]
mod tests;
