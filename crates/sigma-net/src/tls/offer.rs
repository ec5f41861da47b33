//! Ciphers and groups for key exchange, as narrowed by an operator.

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::ALL_KX_GROUPS;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};

use super::facts::cipher_name;
use super::{PROVIDER, Unusable};

/// OpenSSL ciphers with forward secrecy and AEAD that are not offered: they use finite-field key exchange.
const PASSED_OVER: [&str; 3] =
    ["DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES256-GCM-SHA384", "DHE-RSA-CHACHA20-POLY1305"];

/// Groups with their OpenSSL names; the first name is the usual one.
const GROUPS: [(rustls::NamedGroup, &[&str]); 5] = [
    (rustls::NamedGroup::X25519MLKEM768, &["X25519MLKEM768"]),
    (rustls::NamedGroup::secp256r1MLKEM768, &["SecP256r1MLKEM768"]),
    (rustls::NamedGroup::X25519, &["X25519"]),
    (rustls::NamedGroup::secp256r1, &["P-256", "prime256v1", "secp256r1"]),
    (rustls::NamedGroup::secp384r1, &["P-384", "secp384r1"]),
];

/// A choice of ciphers and groups. Without a choice the defaults are offered.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    ciphers: Option<Arc<[SupportedCipherSuite]>>,
    groups: Option<Arc<[&'static dyn SupportedKxGroup]>>,
}

impl PartialEq for Offer {
    fn eq(&self, other: &Offer) -> bool {
        let names = |groups: &Option<Arc<[&'static dyn SupportedKxGroup]>>| {
            groups.as_ref().map(|groups| groups.iter().map(|group| group.name()).collect::<Vec<_>>())
        };
        self.ciphers == other.ciphers && names(&self.groups) == names(&other.groups)
    }
}

impl Offer {
    /// Limits the ciphers to these, by their OpenSSL or IANA names, joined by `:`, the preferred first. A TLS version
    /// without a named cipher keeps all of its own. Ignored names are returned too, for a warning.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, or if no cipher is left.
    pub fn with_ciphers(mut self, text: &str) -> Result<(Offer, Vec<String>), Unusable> {
        let (mut named, mut passed_over) = (Vec::new(), Vec::new());
        for name in text.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
            let is_named = |suite: &&SupportedCipherSuite| {
                cipher_name(suite.suite()) == name || suite.suite().as_str() == Some(name)
            };
            match PROVIDER.cipher_suites.iter().find(is_named) {
                Some(suite) if named.contains(suite) => {}
                Some(suite) => named.push(*suite),
                None if PASSED_OVER.contains(&name) => passed_over.push(name.to_owned()),
                None => return Err(unknown("cipher", name, &ciphers())),
            }
        }
        let is_13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
        let (has_13, has_12) = (named.iter().any(is_13), named.iter().any(|suite| !is_13(suite)));
        if !has_12 && (!passed_over.is_empty() || !has_13) {
            return Err(Unusable::new(format!("no supported cipher is left; use {}", ciphers().join(", "))));
        }
        let others = PROVIDER.cipher_suites.iter().filter(|suite| match is_13(suite) {
            true => !has_13,
            false => !has_12,
        });
        named.extend(others.copied());
        self.ciphers = Some(named.into());
        Ok((self, passed_over))
    }

    /// Limits the groups to these, by their OpenSSL names, joined by `:`, the preferred first.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, or the list is empty.
    pub fn with_groups(mut self, text: &str) -> Result<Offer, Unusable> {
        let usual: Vec<&str> = GROUPS.iter().map(|(_, names)| names[0]).collect();
        let mut chosen: Vec<&'static dyn SupportedKxGroup> = Vec::new();
        for name in text.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
            let known =
                GROUPS.iter().find(|(_, names)| names.iter().any(|known| known.eq_ignore_ascii_case(name)));
            let group = known.and_then(|(id, _)| ALL_KX_GROUPS.iter().find(|group| group.name() == *id));
            let group = group.ok_or_else(|| unknown("curve", name, &usual))?;
            if !chosen.iter().any(|other| other.name() == group.name()) {
                chosen.push(*group);
            }
        }
        if chosen.is_empty() {
            return Err(Unusable::new(format!("the list has no curve; use {}", usual.join(", "))));
        }
        self.groups = Some(chosen.into());
        Ok(self)
    }

    /// Combines this choice with `other`, which fills the gaps.
    pub(super) fn over(&self, other: &Offer) -> Offer {
        Offer {
            ciphers: self.ciphers.clone().or_else(|| other.ciphers.clone()),
            groups: self.groups.clone().or_else(|| other.groups.clone()),
        }
    }

    /// Returns the cryptography of the offer.
    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        if self.ciphers.is_none() && self.groups.is_none() {
            return Arc::clone(&PROVIDER);
        }
        let mut provider = CryptoProvider::clone(&PROVIDER);
        if let Some(ciphers) = &self.ciphers {
            provider.cipher_suites = ciphers.to_vec();
        }
        if let Some(groups) = &self.groups {
            provider.kx_groups = groups.to_vec();
        }
        Arc::new(provider)
    }
}

/// Returns the names of all offered ciphers.
fn ciphers() -> Vec<&'static str> {
    PROVIDER.cipher_suites.iter().map(|suite| cipher_name(suite.suite())).collect()
}

fn unknown(what: &str, name: &str, known: &[&str]) -> Unusable {
    Unusable::new(format!("unknown {what} {name:?}; use {}, joined by `:`", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_are_chosen_by_name_for_each_version() {
        let check = |text: &str, expected: Result<(&str, usize), &str>| {
            let made = Offer::default().with_ciphers(text).map_err(|error| error.to_string());
            match (made, expected) {
                (Ok((offer, passed_over)), Ok((names, count))) => {
                    let suites = offer.ciphers.unwrap();
                    let found: Vec<_> = suites.iter().map(|suite| cipher_name(suite.suite())).collect();
                    assert_eq!((found.join(" "), passed_over.len()), (names.to_owned(), count), "{text}");
                }
                (Err(said), Err(part)) => assert!(said.contains(part), "{text}: {said}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        };
        let all_13 = "TLS_AES_128_GCM_SHA256 TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256";
        let one = "ECDHE-RSA-AES256-GCM-SHA384";
        check(one, Ok((&format!("{one} {all_13}"), 0)));
        check("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", Ok((&format!("{one} {all_13}"), 0)));
        check(
            &format!("{one}:{one}::TLS_AES_256_GCM_SHA384"),
            Ok((&format!("{one} TLS_AES_256_GCM_SHA384"), 0)),
        );
        check(&format!("{one}:DHE-RSA-AES128-GCM-SHA256"), Ok((&format!("{one} {all_13}"), 1)));
        check("DHE-RSA-AES128-GCM-SHA256", Err("no supported cipher is left"));
        check("DHE-RSA-AES128-GCM-SHA256:TLS_AES_128_GCM_SHA256", Err("no supported cipher is left"));
        check("", Err("no supported cipher is left"));
        check("AES128-SHA", Err("unknown cipher \"AES128-SHA\"; use TLS_AES_128_GCM_SHA256"));
        for bad in ["HIGH:!aNULL", "ecdhe-rsa-aes256-gcm-sha384", "ALL", "@SECLEVEL=0"] {
            check(bad, Err("unknown cipher"));
        }
        let only_13 = Offer::default().with_ciphers("TLS_CHACHA20_POLY1305_SHA256").unwrap().0;
        assert_eq!(only_13.ciphers.unwrap().iter().filter(|suite| suite.tls13().is_some()).count(), 1);
    }

    #[test]
    fn groups_are_chosen_by_any_of_their_names() {
        let check = |text: &str, expected: Result<&[rustls::NamedGroup], &str>| {
            let made = Offer::default().with_groups(text).map_err(|error| error.to_string());
            match (made, expected) {
                (Ok(offer), Ok(groups)) => {
                    let found: Vec<_> = offer.groups.unwrap().iter().map(|group| group.name()).collect();
                    assert_eq!(found, groups, "{text}");
                }
                (Err(said), Err(part)) => assert!(said.contains(part), "{text}: {said}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        };
        use rustls::NamedGroup::{X25519, X25519MLKEM768, secp256r1, secp384r1};
        check("X25519MLKEM768:x25519", Ok(&[X25519MLKEM768, X25519]));
        check("prime256v1:P-256:secp384r1", Ok(&[secp256r1, secp384r1]));
        check(
            "P-521",
            Err("unknown curve \"P-521\"; use X25519MLKEM768, SecP256r1MLKEM768, X25519, P-256, P-384"),
        );
        check("auto", Err("unknown curve"));
        check(":", Err("no curve"));
        // Every name belongs to an existing group.
        for (_, names) in GROUPS {
            names.iter().for_each(|name| assert!(Offer::default().with_groups(name).is_ok(), "{name}"));
        }
    }

    #[test]
    fn one_offer_overrides_another_by_its_parts() {
        let ciphers = Offer::default().with_ciphers("TLS_AES_128_GCM_SHA256").unwrap().0;
        let groups = Offer::default().with_groups("X25519").unwrap();
        let both = ciphers.over(&groups);
        assert!(both == groups.over(&ciphers) && both != ciphers && both != groups);
        assert_eq!(both.provider().kx_groups.len(), 1);
        assert!(Arc::ptr_eq(&Offer::default().provider(), &PROVIDER));
    }
}
