//! The responses to an authority's check that a name belongs to this gateway (RFC 8555 §8).

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde::{Deserialize, Serialize};
use sigma_config::resources::AcmeChallenge;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{Identity, Offer, Resumption, ServerIdentity, Versions};
use sigma_proxy::challenges::{Challenges, Expected};

/// A proof that an authority requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof {
    pub(super) name: String,
    pub(super) token: String,
    /// The token with the account's thumbprint: the key authorization. It is no secret.
    pub(super) answer: String,
    pub(super) challenge: AcmeChallenge,
}

impl Proof {
    /// Has it given from now on, over HTTP or in a handshake; None where a record proves the name.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it cannot be given.
    pub(super) fn give(&self, challenges: &Challenges) -> Result<Option<Expected>, String> {
        match self.challenge {
            AcmeChallenge::Http01 => {
                let expected = challenges.expect(&self.token, &self.answer);
                expected.map(Some).ok_or_else(|| "the authority's token is invalid".to_owned())
            }
            AcmeChallenge::TlsAlpn01 => {
                let shown = identity(&self.name, digest(&SHA256, self.answer.as_bytes()).as_ref())?;
                Ok(Some(challenges.show(&self.name, shown)))
            }
            AcmeChallenge::Dns01 | AcmeChallenge::DnsPersist01 => Ok(None),
        }
    }

    /// The value of the record that proves the name (RFC 8555 §8.4).
    pub(super) fn record(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, self.answer.as_bytes()))
    }
}

/// Returns the certificate that proves a name to an authority in a handshake (RFC 8737 §3): other clients
/// would not trust it.
fn identity(name: &str, digest: &[u8]) -> Result<ServerIdentity, String> {
    let made = || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        Ok::<_, rcgen::Error>((params.self_signed(&key)?.der().clone(), key.serialize_pem()))
    };
    let (cert, key) = made().map_err(|error| format!("cannot make a challenge response: {error}"))?;
    let pair = Pair::proof(cert, &key).map_err(|error| error.to_string())?;
    let identity = Identity {
        pairs: vec![pair],
        versions: Versions::ALL,
        offer: Offer::default(),
        client_auth: None,
        resumption: Resumption::Off,
    };
    ServerIdentity::new(identity).map_err(|error| error.to_string())
}
