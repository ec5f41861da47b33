//! An identity of the gateway towards clients.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::dns_names;
use super::client_auth::{ClientAuth, Verifier};
use super::pem::Pair;
use super::{EarlyOffer, Offer, Resumption, Unusable, Versions, compression};

/// The number of prepared configurations of an identity: two for each of eight listeners with their own options.
const PREPARED_MAX: usize = 16;

/// The side whose cipher order applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The gateway's order, which saves work
    Ours,
    /// The client's order, which fits its hardware
    Clients,
}

/// The parts of a [`ServerIdentity`].
#[derive(Debug)]
pub struct Identity {
    /// The certificates. The requested name decides, then the client's signature schemes, ECDSA and Ed25519 before
    /// RSA, since they cost the gateway a tenth. Clients with another name, or none, get the first.
    pub pairs: Vec<Pair>,
    /// The versions offered with these certificates.
    pub versions: Versions,
    /// Ciphers and groups; the listener's choice fills the gaps.
    pub offer: Offer,
    /// The demands on clients.
    pub client_auth: Option<ClientAuth>,
    /// The way of session resumption.
    pub resumption: Resumption,
}

/// The server that clients see under some names, with its TLS settings.
#[derive(Debug)]
pub struct ServerIdentity {
    certificates: Arc<Choice>,
    versions: Versions,
    offer: Offer,
    client_auth: Option<Arc<ClientAuth>>,
    resumption: Resumption,
    /// One configuration for each kind of listener.
    prepared: RwLock<Vec<(Kind, Arc<ServerConfig>)>>,
}

/// The properties of a listener's configuration, besides the protocols above TLS and the order of ciphers.
type Kind = (Versions, Offer, Option<EarlyOffer>);

impl ServerIdentity {
    /// Returns an identity that is ready for handshakes.
    ///
    /// # Errors
    /// Returns an error if there is no certificate or no version.
    pub fn new(identity: Identity) -> Result<ServerIdentity, Unusable> {
        let Identity { pairs, versions, offer, client_auth, resumption } = identity;
        if pairs.is_empty() {
            return Err(Unusable::new("there is no certificate"));
        }
        let identity = ServerIdentity {
            certificates: Arc::new(Choice::new(pairs)),
            versions,
            offer,
            client_auth: client_auth.map(Arc::new),
            resumption,
            prepared: RwLock::default(),
        };
        let checked = identity.config(versions, &[], Order::Ours, &Offer::default(), None);
        checked.map_err(|error| Unusable::new(error.to_string()))?;
        Ok(identity)
    }

    /// Returns an identity without a certificate: the handshake for one of its names fails. It replaces an unusable
    /// one, so that no other identity matches instead.
    pub fn refusing() -> ServerIdentity {
        ServerIdentity {
            certificates: Arc::new(Choice(Vec::new())),
            versions: Versions::ALL,
            offer: Offer::default(),
            client_auth: None,
            resumption: Resumption::Off,
            prepared: RwLock::default(),
        }
    }

    /// Returns true if it only rejects.
    pub fn refuses(&self) -> bool {
        self.certificates.0.is_empty()
    }

    /// Returns its certificates, with their keys.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.certificates.0.iter().map(|of| of.pair.clone())
    }

    /// Returns its demands on clients.
    pub fn client_auth(&self) -> Option<&ClientAuth> {
        self.client_auth.as_deref()
    }

    /// Returns the offered versions.
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// Returns the configuration for callers with their own TLS streams, with the protocols `alpn`.
    ///
    /// # Errors
    /// Returns an error if there is no certificate.
    pub fn configuration(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, Unusable> {
        if self.refuses() {
            return Err(Unusable::new("there is no certificate"));
        }
        let config = self.config(self.versions, alpn, Order::Ours, &Offer::default(), None);
        config.map_err(|error| Unusable::new(error.to_string()))
    }

    /// Returns the configuration for a listener that allows `versions` and offers `alpn`. Ciphers and groups come from
    /// `offer` where this identity has no choice of its own; `order` decides whose cipher order applies. `early` holds
    /// unless the identity requests client certificates.
    pub(super) fn config(
        &self,
        versions: Versions,
        alpn: &[Vec<u8>],
        order: Order,
        offer: &Offer,
        early: Option<&EarlyOffer>,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let early = early.filter(|_| self.client_auth.is_none()).cloned();
        let kind = (versions, self.offer.over(offer), early);
        let find = |prepared: &[(Kind, Arc<ServerConfig>)]| {
            let fits = |config: &ServerConfig| {
                config.alpn_protocols == alpn && config.ignore_client_order == (order == Order::Ours)
            };
            let found = prepared.iter().find(|(of, config)| *of == kind && fits(config));
            found.map(|(_, config)| Arc::clone(config))
        };
        if let Some(config) = find(&self.prepared.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(config);
        }
        let config = Arc::new(self.build(&kind, alpn, order)?);
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        if prepared.len() == PREPARED_MAX {
            prepared.remove(0);
        }
        prepared.push((kind, Arc::clone(&config)));
        Ok(config)
    }

    fn build(
        &self,
        (versions, offer, early): &Kind,
        alpn: &[Vec<u8>],
        order: Order,
    ) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(offer.provider())
            .with_protocol_versions(versions.supported())?;
        let builder = match &self.client_auth {
            Some(auth) => builder.with_client_cert_verifier(Arc::new(Verifier(Arc::clone(auth)))),
            None => builder.with_no_client_auth(),
        };
        let certificates: Arc<dyn ResolvesServerCert> = Arc::clone(&self.certificates) as _;
        let mut config = builder.with_cert_resolver(certificates);
        config.alpn_protocols = alpn.to_vec();
        config.ignore_client_order = order == Order::Ours;
        let client_auth = self.client_auth.as_ref().map_or([0; 32], |auth| auth.fingerprint);
        match early {
            Some(early) => early.apply(&mut config, client_auth),
            None => self.resumption.apply(&mut config, client_auth),
        }
        compression::apply(&mut config);
        Ok(config)
    }
}

fn unix_seconds() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

/// Certificates to choose from: by name, then by the key types that a client verifies, the preferred first.
#[derive(Debug)]
struct Choice(Vec<Candidate>);

/// A certificate, and its clients.
#[derive(Debug)]
struct Candidate {
    pair: Pair,
    /// The DNS names of the certificate, in lower case.
    names: Box<[String]>,
    /// It has a name of the first certificate: it serves clients whose name no certificate has.
    is_default: bool,
}

impl Choice {
    fn new(pairs: Vec<Pair>) -> Choice {
        let names = |pair: &Pair| -> Box<[String]> {
            let names = pair.chain().first().map(dns_names).unwrap_or_default();
            names.into_iter().map(|name| name.to_ascii_lowercase()).collect()
        };
        let first = pairs.first().map(names).unwrap_or_default();
        let candidate = |(index, pair): (usize, Pair)| {
            let names = names(&pair);
            let is_default = index == 0
                || names.iter().any(|name| first.contains(name))
                || (names.is_empty() && first.is_empty());
            Candidate { pair, names, is_default }
        };
        let mut candidates: Vec<Candidate> = pairs.into_iter().enumerate().map(candidate).collect();
        candidates.sort_by_key(|of| of.pair.key().key.algorithm() == rustls::SignatureAlgorithm::RSA);
        Choice(candidates)
    }

    /// Returns the certificate for a client that requests `name` and verifies `fits`.
    fn choose(&self, name: Option<&str>, fits: impl Fn(&Pair) -> bool) -> Option<&Pair> {
        let preferred = |is_for: &dyn Fn(&Candidate) -> bool| {
            let of_them = || self.0.iter().filter(|of| is_for(of)).map(|of| &of.pair);
            // If none fits, the handshake fails later with the proper alert.
            of_them().find(|pair| fits(pair)).or_else(|| of_them().next())
        };
        let name = name.map(str::to_ascii_lowercase);
        let named = name.as_deref().and_then(|name| {
            let parent = name.split_once('.').map(|(_, parent)| parent);
            let has =
                |of: &Candidate, matches: &dyn Fn(&str) -> bool| of.names.iter().any(|own| matches(own));
            let is_wildcard = |own: &str| own.strip_prefix("*.").is_some_and(|own| Some(own) == parent);
            preferred(&|of| has(of, &|own| own == name)).or_else(|| preferred(&|of| has(of, &is_wildcard)))
        });
        named.or_else(|| preferred(&|of| of.is_default))
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fits = |pair: &Pair| pair.key().key.choose_scheme(schemes).is_some();
        self.choose(hello.server_name(), fits).map(|pair| pair.shown(unix_seconds))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair(names: &[&str]) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let cert = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        Pair::parse(&cert.pem(), &key.serialize_pem(), None).unwrap()
    }

    #[test]
    fn a_certificate_is_chosen_by_name_and_then_by_key_type() {
        let pairs = [
            pair(&["shop.test"]),
            pair(&["*.shop.test", "Blog.test"]),
            pair(&["shop.test", "x.test"]),
            pair(&["pay.shop.test"]),
            pair(&[]),
        ];
        let choice = Choice::new(pairs.to_vec());
        let check = |name: Option<&str>, refused: &[usize], expected: usize| {
            let fits = |pair: &Pair| !refused.iter().any(|index| pairs[*index].is(pair));
            let found = choice.choose(name, fits).unwrap();
            let found = pairs.iter().position(|pair| pair.is(found)).unwrap();
            assert_eq!(found, expected, "{name:?} without {refused:?}");
        };
        check(Some("shop.test"), &[], 0);
        check(Some("SHOP.test"), &[], 0);
        check(Some("blog.test"), &[], 1);
        check(Some("a.shop.test"), &[], 1);
        check(Some("pay.shop.test"), &[], 3);
        check(Some("b.a.shop.test"), &[], 0);
        // A certificate for another name does not replace an unsupported key type.
        check(Some("shop.test"), &[0], 2);
        check(Some("shop.test"), &[0, 2], 0);
        check(Some("pay.shop.test"), &[3], 3);
        // The first serves all other names.
        check(Some("other.test"), &[], 0);
        check(None, &[], 0);
        check(None, &[0], 2);
        let nameless = Choice::new(vec![pair(&[]), pairs[0].clone()]);
        assert!(nameless.choose(Some("shop.test"), |_| true).unwrap().is(&pairs[0]));
        assert!(!nameless.choose(None, |_| true).unwrap().is(&pairs[0]));
    }
}
