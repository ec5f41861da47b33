//! One way to present the gateway to clients.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::client_auth::{ClientAuth, Verifier};
use super::pem::Pair;
use super::{Offer, Resumption, Unusable, Versions};

/// How many prepared configurations an identity keeps: two for each of eight listeners with options of
/// their own.
const PREPARED_MAX: usize = 16;

/// Whose order of ciphers decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The gateway's, which spares it work.
    Ours,
    /// The client's, which knows its hardware.
    Clients,
}

/// The parts of a [`ServerIdentity`].
#[derive(Debug)]
pub struct Identity {
    /// Certificates for the same names; the client's signature schemes decide, ECDSA and Ed25519
    /// before RSA, since they cost the gateway a tenth.
    pub pairs: Vec<Pair>,
    /// Versions offered with these certificates.
    pub versions: Versions,
    /// Ciphers and groups; what it does not choose is the listener's choice.
    pub offer: Offer,
    /// The demands on clients.
    pub client_auth: Option<ClientAuth>,
    /// How sessions are resumed.
    pub resumption: Resumption,
}

/// The server that clients see under some names, and its TLS settings.
#[derive(Debug)]
pub struct ServerIdentity {
    certificates: Arc<Choice>,
    versions: Versions,
    offer: Offer,
    client_auth: Option<Arc<ClientAuth>>,
    resumption: Resumption,
    /// One configuration for each kind of listener that needed one.
    prepared: RwLock<Vec<(Kind, Arc<ServerConfig>)>>,
}

/// What the configuration of a listener differs in, beside the protocols above TLS and the order of ciphers.
type Kind = (Versions, Offer);

impl ServerIdentity {
    /// An identity that is ready for handshakes.
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
        let checked = identity.config(versions, &[], Order::Ours, &Offer::default());
        checked.map_err(|error| Unusable::new(error.to_string()))?;
        Ok(identity)
    }

    /// An identity that nobody is shown: whoever asks for one of its names is refused the handshake.
    /// It holds the place of one that cannot be used, so that no other one is shown instead.
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

    /// Whether it only refuses.
    pub fn refuses(&self) -> bool {
        self.certificates.0.is_empty()
    }

    /// The certificates that it shows, with their keys.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.certificates.0.iter().cloned()
    }

    /// Its demands on clients.
    pub fn client_auth(&self) -> Option<&ClientAuth> {
        self.client_auth.as_deref()
    }

    /// Versions it offers.
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// The configuration for who speaks TLS over streams of its own, and offers `alpn` above it.
    ///
    /// # Errors
    /// Returns an error if there is no certificate.
    pub fn configuration(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, Unusable> {
        if self.refuses() {
            return Err(Unusable::new("there is no certificate"));
        }
        let config = self.config(self.versions, alpn, Order::Ours, &Offer::default());
        config.map_err(|error| Unusable::new(error.to_string()))
    }

    /// The configuration for a listener that allows `versions` and offers `alpn`, with the ciphers and groups of
    /// `offer` where this has no choice of its own, and for clients whose order of ciphers counts as `order`
    /// says.
    pub(super) fn config(
        &self,
        versions: Versions,
        alpn: &[Vec<u8>],
        order: Order,
        offer: &Offer,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let kind = (versions, self.offer.over(offer));
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
        (versions, offer): &Kind,
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
        self.resumption.apply(&mut config, client_auth);
        Ok(config)
    }
}

fn unix_seconds() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

/// Certificates to choose from, the preferred first.
#[derive(Debug)]
struct Choice(Vec<Pair>);

impl Choice {
    fn new(mut pairs: Vec<Pair>) -> Choice {
        pairs.sort_by_key(|pair| pair.key().key.algorithm() == rustls::SignatureAlgorithm::RSA);
        Choice(pairs)
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fitting = self.0.iter().find(|pair| pair.key().key.choose_scheme(schemes).is_some());
        // With none that fits, the handshake fails further on with the alert that says why.
        fitting.or(self.0.first()).map(|pair| pair.shown(unix_seconds))
    }
}
