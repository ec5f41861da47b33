//! One order, from the names to the certificate.

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, RsaKeySize};
use sigma_config::resources::{AcmeChallenge, CertificateKey};
use sigma_net::tls::certificate;
use sigma_net::tls::pem::Pair;
use sigma_proxy::challenges::{Challenges, Expected};

use super::CertificateSpec;
use super::dns::Records;
use super::proofs::Proof;
use super::shared::Shared;

/// Largest chain in bytes, as PEM.
const CHAIN_MAX: usize = 128 << 10;

/// By how many seconds the clocks of an authority and of this machine may differ.
const CLOCKS_DIFFER: i64 = 3_600;

/// The longest text of an authority that is shown.
const TEXT_MAX: usize = 400;

/// A certificate with its key, both in PEM and as handshakes use them.
pub(super) struct Issued {
    pub(super) cert: String,
    pub(super) key: String,
    pub(super) pair: Pair,
}

/// Why there is no certificate.
#[derive(Debug)]
pub(super) struct Refused {
    /// A sentence.
    pub(super) reason: String,
    /// The authority does not know the account.
    pub(super) is_stranger: bool,
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused { reason: shown(&reason), is_stranger: false }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        let kind = match &error {
            Error::Api(problem) => problem.r#type.as_deref(),
            _ => None,
        };
        let is_stranger = kind == Some("urn:ietf:params:acme:error:accountDoesNotExist");
        Refused { reason: shown(&error.to_string()), is_stranger }
    }
}

impl Refused {
    /// Adds the records that the authority has looked for.
    fn for_lack_of_record(self, asked: &[Proof], account: &str) -> Refused {
        let Some(proof) = asked.first() else { return self };
        let name = proof.name.strip_prefix("*.").unwrap_or(&proof.name);
        let reason = format!(
            "{}; the record `_validation-persist.{name}.` needs the value `AUTHORITY; accounturi={account}`, and \
             `; policy=wildcard` for wildcards",
            self.reason
        );
        Refused { reason, ..self }
    }
}

/// The parts that answer an authority's check of a proof.
#[derive(Clone, Copy)]
pub(super) struct Stage<'s> {
    pub(super) challenges: &'s Arc<Challenges>,
    /// The records of this order, where names are proved by those.
    pub(super) records: Option<&'s Records>,
    /// The other gateways, if there may be some.
    pub(super) shared: Option<&'s Shared>,
}

/// Goes through an order. `replaces` is the certificate that the new one is for, if the authority is to know (RFC 9773
/// §5). The responses to challenges are given until this returns or is dropped; records stay.
pub(super) async fn order(
    account: &Account,
    wanted: &CertificateSpec,
    replaces: Option<CertificateIdentifier<'_>>,
    stage: Stage<'_>,
    patience: Duration,
    now: i64,
) -> Result<Issued, Refused> {
    let names: Vec<Identifier> = wanted.names.iter().cloned().map(Identifier::Dns).collect();
    let mut new = NewOrder::new(&names);
    if let Some(replaces) = replaces {
        new = new.replaces(replaces);
    }
    let mut order = account.new_order(&new).await?;
    let asked = proofs(&mut order, wanted).await?;
    let expected = match wanted.challenge {
        // Its records are there already, and hold for every order of the account.
        AcmeChallenge::DnsPersist01 => Vec::new(),
        _ => stage.prove(&asked, patience).await?,
    };
    have_validated(&mut order, wanted.challenge).await?;
    let policy = RetryPolicy::new().timeout(patience);
    let proved = match order.poll_ready(&policy).await {
        Ok(OrderStatus::Ready) => Ok(()),
        // It reports the problem where the names are proved.
        Ok(_) => Err(refusal(&mut order).await),
        Err(error) => Err(error.into()),
    };
    drop(expected);
    if wanted.challenge == AcmeChallenge::DnsPersist01 {
        proved.map_err(|refused| refused.for_lack_of_record(&asked, account.id()))?;
    } else {
        proved?;
    }
    let (key, request) = new_key(wanted).await?;
    order.finalize_csr(&request).await?;
    let cert = order.poll_certificate(&policy).await?;
    let pair = accepted(&cert, &key, &wanted.names, now)?;
    Ok(Issued { cert, key, pair })
}

/// Returns the required proofs: each name that is not proved yet.
async fn proofs(order: &mut Order, wanted: &CertificateSpec) -> Result<Vec<Proof>, Refused> {
    let mut asked = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        if !wanted.names.contains(&name) {
            return Err(
                format!("the authority requires a challenge for `{name}`, which was not ordered").into()
            );
        }
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            other => return Err(format!("the authority reports the status {other:?} for `{name}`").into()),
        }
        let Some(challenge) = authorization.challenge(kind(wanted.challenge)) else {
            let kind = wanted.challenge.as_str();
            return Err(format!("the authority does not offer the challenge `{kind}` for `{name}`").into());
        };
        let (token, answer) = (challenge.token.clone(), challenge.key_authorization());
        let (answer, challenge) = (answer.as_str().to_owned(), wanted.challenge);
        asked.push(Proof { name, token, answer, challenge });
    }
    Ok(asked)
}

/// Has the authority look at the proofs.
async fn have_validated(order: &mut Order, challenge: AcmeChallenge) -> Result<(), Refused> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(kind(challenge))
        {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

impl Stage<'_> {
    /// Has all proofs given from now on.
    async fn prove(self, asked: &[Proof], patience: Duration) -> Result<Vec<Expected>, Refused> {
        if let Some(records) = self.records {
            let of_proof = |proof: &Proof| (proof.name.clone(), proof.record());
            records.place(&asked.iter().map(of_proof).collect::<Vec<_>>()).await?;
            return Ok(Vec::new());
        }
        if let Some(shared) = self.shared {
            // This gateway hears of them as all others do.
            shared.give(asked, patience).await?;
            return Ok(Vec::new());
        }
        let given: Result<Vec<_>, String> = asked.iter().map(|proof| proof.give(self.challenges)).collect();
        Ok(given?.into_iter().flatten().collect())
    }
}

fn kind(challenge: AcmeChallenge) -> ChallengeType {
    match challenge {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Dns01 => ChallengeType::Dns01,
        AcmeChallenge::DnsPersist01 => ChallengeType::Unknown(challenge.as_str().to_owned()),
    }
}

/// Returns an authority's message about the names of an order that it refused.
async fn refusal(order: &mut Order) -> Refused {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { break };
        let name = state.identifier().to_string();
        if let Some(error) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return format!("{name}: {error}").into();
        }
    }
    "the authority refused the order without a reason".to_owned().into()
}

/// A new private key in PEM, and the request for its certificate. RSA keys take a while.
async fn new_key(wanted: &CertificateSpec) -> Result<(String, Vec<u8>), Refused> {
    let (kind, names) = (wanted.key_type, wanted.names.clone());
    let made = tokio::task::spawn_blocking(move || {
        let key = match kind {
            CertificateKey::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            CertificateKey::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            CertificateKey::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
            CertificateKey::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
        }?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key)?.der().to_vec();
        Ok::<_, rcgen::Error>((key.serialize_pem(), request))
    });
    match made.await {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(error)) => Err(format!("cannot generate a key: {error}").into()),
        Err(_) => Err("cannot generate a key".to_owned().into()),
    }
}

/// The certificate, if it is the one that was ordered.
fn accepted(cert: &str, key: &str, names: &[String], now: i64) -> Result<Pair, Refused> {
    let odd =
        |reason: String| Refused::from(format!("the certificate from the authority is invalid: {reason}"));
    if cert.len() > CHAIN_MAX {
        return Err(odd(format!("it exceeds {CHAIN_MAX} bytes")));
    }
    let pair = Pair::parse(cert, key, None).map_err(|error| odd(error.to_string()))?;
    if let Some(name) = names.iter().find(|name| !pair.is_for(name)) {
        return Err(odd(format!("it is not for `{name}`")));
    }
    match pair.chain().first().and_then(certificate::validity) {
        None => Err(odd("it has no validity dates".to_owned())),
        Some(validity) if validity.not_after <= now => Err(odd("it has expired; check the clock".to_owned())),
        Some(validity) if validity.not_before > now + CLOCKS_DIFFER => {
            Err(odd("it is not valid yet; check the clock".to_owned()))
        }
        Some(_) => Ok(pair),
    }
}

/// A text of an authority, as a log and a page can take it.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect();
    if shown.len() < text.len() && text.chars().count() > TEXT_MAX {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str], years: (i32, i32)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn another_certificate_than_the_one_ordered_is_refused() {
        const IN_2025: i64 = 1_740_000_000;
        let names = ["a.test".to_owned(), "b.test".to_owned()];
        let check = |(cert, key): (&str, &str), expected: Option<&str>| {
            let found = accepted(cert, key, &names, IN_2025).err().map(|refused| refused.reason);
            let prefix = "the certificate from the authority is invalid: ";
            assert_eq!(found, expected.map(|reason| format!("{prefix}{reason}")));
        };
        let (cert, key) = certificate(&["b.test", "A.test"], (2024, 2027));
        check((&cert, &key), None);
        let (_, other) = certificate(&["a.test"], (2024, 2027));
        check((&cert, &other), Some("the key does not belong to the certificate"));
        for others in [&["a.test"][..], &["*.test"], &["a.test", "b.test.evil.test"]] {
            let (cert, key) = certificate(others, (2024, 2027));
            let missing = if others.contains(&"a.test") { "b.test" } else { "a.test" };
            check((&cert, &key), Some(&format!("it is not for `{missing}`")));
        }
        let (old, key_of_old) = certificate(&["a.test", "b.test"], (2020, 2021));
        check((&old, &key_of_old), Some("it has expired; check the clock"));
        let (new, key_of_new) = certificate(&["a.test", "b.test"], (2030, 2031));
        check((&new, &key_of_new), Some("it is not valid yet; check the clock"));
        check(("", &key), Some("failed to parse cert: it contains no CERTIFICATE block"));
        check((&"x".repeat(200_000), &key), Some("it exceeds 131072 bytes"));
    }

    #[test]
    fn texts_of_an_authority_are_bounded() {
        assert_eq!(shown("a\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(shown(&"ä".repeat(1_000)).chars().count(), TEXT_MAX + 1);
        assert_eq!(shown("short"), "short");
    }

    #[tokio::test]
    async fn keys_are_of_the_kind_that_was_asked_for() {
        for key_type in [CertificateKey::EcdsaP256, CertificateKey::EcdsaP384, CertificateKey::Rsa2048] {
            let names = vec!["a.test".to_owned()];
            let wanted =
                CertificateSpec { ssl: "1".into(), names, key_type, challenge: AcmeChallenge::Http01 };
            let (key, request) = new_key(&wanted).await.unwrap();
            let algorithm = KeyPair::from_pem(&key).unwrap().algorithm();
            let is_rsa = key_type == CertificateKey::Rsa2048;
            assert_eq!(format!("{algorithm:?}").contains("RSA"), is_rsa, "{algorithm:?}");
            assert!(!request.is_empty());
        }
    }
}
