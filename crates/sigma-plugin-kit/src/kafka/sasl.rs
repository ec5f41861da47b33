//! The authentication of a client: PLAIN (RFC 4616), and SCRAM (RFC 5802, RFC 7677).

use std::num::NonZeroU32;

use aws_lc_rs::{digest, hmac, pbkdf2, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_schema::Confidential;

/// The rounds that a broker may request: less is weak (RFC 7677, §4), and more would block the control thread.
const ROUNDS: std::ops::RangeInclusive<u32> = 4096..=100_000;

/// The gateway's credentials for a broker.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Sasl {
    /// `PLAIN` sends the password itself; the other mechanisms only prove its knowledge.
    #[schemars(extend("default" = "PLAIN"))]
    pub mechanism: Mechanism,
    /// The user.
    user: String,
    /// The user's password.
    password: Confidential,
}

/// A mechanism of SASL that brokers offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Mechanism {
    /// `PLAIN` (RFC 4616).
    #[serde(rename = "PLAIN")]
    Plain,
    /// `SCRAM-SHA-256` (RFC 7677).
    #[serde(rename = "SCRAM-SHA-256")]
    Sha256,
    /// `SCRAM-SHA-512`.
    #[serde(rename = "SCRAM-SHA-512")]
    Sha512,
}

impl Mechanism {
    /// Returns the registered name.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Sha256 => "SCRAM-SHA-256",
            Mechanism::Sha512 => "SCRAM-SHA-512",
        }
    }
}

impl Sasl {
    /// Returns credentials.
    pub fn new(mechanism: Mechanism, user: String, password: Confidential) -> Sasl {
        Sasl { mechanism, user, password }
    }

    /// Returns true if it sends the password as it is.
    pub fn is_plain(&self) -> bool {
        self.mechanism == Mechanism::Plain
    }

    /// Begins the conversation. None for a mechanism with one message, which is [`Sasl::plain`].
    pub fn scram(&self) -> Result<Option<Scram<'_>>, String> {
        let mut random = [0; 18];
        rand::fill(&mut random).map_err(|_| "cannot get random bytes".to_owned())?;
        Ok(self.scram_with(STANDARD.encode(random)))
    }

    fn scram_with(&self, nonce: String) -> Option<Scram<'_>> {
        let hash = match self.mechanism {
            Mechanism::Plain => return None,
            Mechanism::Sha256 => {
                Hash { rounds: pbkdf2::PBKDF2_HMAC_SHA256, hmac: hmac::HMAC_SHA256, digest: &digest::SHA256 }
            }
            Mechanism::Sha512 => {
                Hash { rounds: pbkdf2::PBKDF2_HMAC_SHA512, hmac: hmac::HMAC_SHA512, digest: &digest::SHA512 }
            }
        };
        // These characters would end the name.
        let user = self.user.replace('=', "=3D").replace(',', "=2C");
        let first = format!("n={user},r={nonce}");
        Some(Scram { password: self.password.reveal(), hash, nonce, first })
    }

    /// Returns the message of PLAIN.
    pub fn plain(&self) -> Vec<u8> {
        format!("\0{}\0{}", self.user, self.password.reveal()).into_bytes()
    }

    /// Checks that it can be used.
    pub fn check(&self) -> Result<(), String> {
        match self.user.contains('\0') || self.password.reveal().contains('\0') {
            true => Err("sasl_config: user and password may not contain a NUL byte".to_owned()),
            false => Ok(()),
        }
    }
}

struct Hash {
    rounds: pbkdf2::Algorithm,
    hmac: hmac::Algorithm,
    digest: &'static digest::Algorithm,
}

/// A conversation by SCRAM, without channel binding.
pub struct Scram<'s> {
    password: &'s str,
    hash: Hash,
    nonce: String,
    /// The first message without its head.
    first: String,
}

/// The last message, and the expected answer of the broker.
pub struct Proof {
    /// The client's final message.
    pub message: Vec<u8>,
    answer: Vec<u8>,
}

impl Scram<'_> {
    /// Returns the first message.
    pub fn first(&self) -> Vec<u8> {
        format!("n,,{}", self.first).into_bytes()
    }

    /// Proves the knowledge of the password to the broker, which sent `challenge`.
    pub fn prove(&self, challenge: &[u8]) -> Result<Proof, String> {
        let wrong = |what: &str| format!("the broker's challenge has no valid {what}");
        let challenge = std::str::from_utf8(challenge).map_err(|_| wrong("text"))?;
        let value = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name));
        let nonce =
            value("r=").filter(|nonce| nonce.len() > self.nonce.len() && nonce.starts_with(&self.nonce));
        let nonce = nonce.ok_or_else(|| wrong("nonce"))?;
        let salt = value("s=").and_then(|salt| STANDARD.decode(salt).ok()).ok_or_else(|| wrong("salt"))?;
        let rounds = value("i=").and_then(|count| count.parse().ok()).filter(|count| ROUNDS.contains(count));
        let rounds = rounds.and_then(NonZeroU32::new).ok_or_else(|| wrong("number of iterations"))?;

        let mut salted = vec![0; self.hash.digest.output_len()];
        pbkdf2::derive(self.hash.rounds, rounds, &salt, self.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(self.hash.hmac, key), text);
        let client = sign(&salted, b"Client Key");
        let stored = digest::digest(self.hash.digest, client.as_ref());
        // `biws` is `n,,`: no channel binding.
        let last = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{last}", self.first);
        let signature = sign(stored.as_ref(), all.as_bytes());
        let proof: Vec<u8> =
            client.as_ref().iter().zip(signature.as_ref()).map(|(key, mask)| key ^ mask).collect();
        let server = sign(sign(&salted, b"Server Key").as_ref(), all.as_bytes());
        Ok(Proof {
            message: format!("{last},p={}", STANDARD.encode(proof)).into_bytes(),
            answer: format!("v={}", STANDARD.encode(server)).into_bytes(),
        })
    }
}

impl Proof {
    /// Checks that the broker knows the password, too.
    pub fn verify(&self, answer: &[u8]) -> Result<(), String> {
        let first = answer.split(|byte| *byte == b',').next().unwrap_or_default();
        match aws_lc_rs::constant_time::verify_slices_are_equal(first, &self.answer) {
            Ok(()) => Ok(()),
            Err(_) => Err("the broker does not know the password".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sasl(mechanism: &str, user: &str, password: &str) -> Sasl {
        serde_json::from_value(json!({ "mechanism": mechanism, "user": user, "password": password })).unwrap()
    }

    /// Checks the example of RFC 7677, §3.
    #[test]
    fn the_example_of_the_standard() {
        let sasl = sasl("SCRAM-SHA-256", "user", "pencil");
        let scram = sasl.scram_with("rOprNGfwEbeRWgbNEkqO".to_owned()).unwrap();
        assert_eq!(scram.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge =
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let proof = scram.prove(challenge).unwrap();
        let expected = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
            p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(String::from_utf8(proof.message.clone()).unwrap(), expected);
        assert_eq!(proof.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert!(proof.verify(b"v=AAAA").is_err() && proof.verify(b"").is_err());
    }

    #[test]
    fn a_broker_cannot_ask_for_any_number_of_rounds() {
        let sasl = sasl("SCRAM-SHA-512", "a,b=c", "p");
        let scram = sasl.scram_with("abc".to_owned()).unwrap();
        assert_eq!(scram.first(), b"n,,n=a=2Cb=3Dc,r=abc");
        assert!(scram.prove(b"r=abcd,s=AAAA,i=4096").is_ok());
        for challenge in [
            "r=abc,s=AAAA,i=4096",
            "r=xyz,s=AAAA,i=4096",
            "r=abcd,s=?,i=4096",
            "r=abcd,s=AAAA,i=4095",
            "r=abcd,s=AAAA,i=100001",
            "r=abcd,s=AAAA",
            "",
        ] {
            assert!(scram.prove(challenge.as_bytes()).is_err(), "{challenge}");
        }
        assert!(scram.prove(&[0xff]).is_err());
    }

    #[test]
    fn plain_is_one_message() {
        let sasl = sasl("PLAIN", "u", "p");
        assert!(sasl.scram().unwrap().is_none());
        assert_eq!(sasl.plain(), b"\0u\0p");
        assert!(!format!("{sasl:?}").contains("\"p\""));
    }
}
