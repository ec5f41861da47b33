//! Private keys with a passphrase: PKCS #8 with PBES2 (RFC 8018), as OpenSSL writes them.

use std::fs;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::der::{self, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE};

/// Largest number of rounds of the key derivation: some seconds of CPU time, and a hundred times OpenSSL's default
/// of its newest versions.
const ROUNDS_MAX: u32 = 10_000_000;

/// Largest file of passphrases.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The label of an encrypted key in PEM (RFC 7468 §11).
const LABEL: &str = "ENCRYPTED PRIVATE KEY";

/// Passphrases of private keys, which are tried in turn. Files are read for each encrypted key, so that a key and its
/// passphrase can be replaced together.
#[derive(Debug, Clone, Default)]
pub struct KeyPassphrases(Arc<Source>);

#[derive(Default)]
struct Source {
    texts: Vec<Zeroizing<String>>,
    files: Vec<PathBuf>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("files", &self.files).finish_non_exhaustive()
    }
}

impl KeyPassphrases {
    /// Returns the passphrases of `texts`, and those in the lines of `files`.
    pub fn new(texts: impl IntoIterator<Item = String>, files: Vec<PathBuf>) -> KeyPassphrases {
        KeyPassphrases(Arc::new(Source { texts: texts.into_iter().map(Zeroizing::new).collect(), files }))
    }

    /// Returns true if no passphrase is known.
    fn is_empty(&self) -> bool {
        self.0.texts.is_empty() && self.0.files.is_empty()
    }

    /// Returns all passphrases. A file that cannot be read counts as empty, if another one has the right passphrase;
    /// its error is returned too.
    fn read(&self) -> (Vec<Zeroizing<String>>, Option<String>) {
        let mut all = self.0.texts.clone();
        let mut failure = None;
        for path in &self.0.files {
            let mut text = Zeroizing::new(String::new());
            let file = fs::File::open(path).map(|file| file.take(FILE_BYTES_MAX));
            match file.and_then(|mut file| file.read_to_string(&mut text)) {
                Ok(_) => all.extend(text.lines().map(|line| Zeroizing::new(line.to_owned()))),
                Err(error) => failure = Some(format!("cannot read {}: {error}", path.display())),
            }
        }
        (all, failure)
    }
}

/// The reason why an encrypted key cannot be used.
pub(super) enum Locked {
    /// It is in a form without support.
    Unsupported(&'static str),
    /// There are no passphrases.
    NoPassphrase,
    /// None of the passphrases fits; the error of a file of them.
    Wrong(Option<String>),
}

/// Returns true if a text has an encrypted key in the form that can be decrypted.
pub(super) fn is_pkcs8(text: &str) -> bool {
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
}

/// Decrypts the key of a text. `use_key` returns a key of plain bytes, if they are one: bytes that a wrong passphrase
/// has decrypted are not.
pub(super) fn unlock<K>(
    text: &str,
    passphrases: &KeyPassphrases,
    use_key: impl Fn(PrivatePkcs8KeyDer<'static>) -> Option<K>,
) -> Result<K, Locked> {
    if passphrases.is_empty() {
        return Err(Locked::NoPassphrase);
    }
    // The reader of PEM knows the label of a key without a passphrase only.
    let relabelled = text.replace(LABEL, "PRIVATE KEY");
    let container = PrivatePkcs8KeyDer::from_pem_slice(relabelled.as_bytes())
        .map_err(|_| Locked::Unsupported("it is not PEM"))?;
    let sealed = Sealed::parse(container.secret_pkcs8_der())?;
    let (all, failure) = passphrases.read();
    for passphrase in all {
        if let Some(plain) = sealed.open(passphrase.as_bytes())
            && let Some(key) = use_key(PrivatePkcs8KeyDer::from(plain))
        {
            return Ok(key);
        }
    }
    Err(Locked::Wrong(failure))
}

/// `EncryptedPrivateKeyInfo` with the parameters of PBES2.
struct Sealed<'d> {
    salt: &'d [u8],
    rounds: NonZeroU32,
    digest: pbkdf2::Algorithm,
    cipher: &'static Algorithm,
    key_bytes: usize,
    iv: [u8; 16],
    data: &'d [u8],
}

const DAMAGED: Locked = Locked::Unsupported("the key is damaged");
const OTHER: Locked =
    Locked::Unsupported("its encryption is not supported; use PBES2 with PBKDF2 and AES-CBC");

/// 1.2.840.113549.1.5.13
const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
/// 1.2.840.113549.1.5.12
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
/// 1.2.840.113549.2, under which the digests are.
const DIGESTS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02];
/// 2.16.840.1.101.3.4.1, under which the ciphers of AES are.
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];

impl<'d> Sealed<'d> {
    fn parse(der: &'d [u8]) -> Result<Sealed<'d>, Locked> {
        let mut outer = Reader(der).inside(SEQUENCE)?;
        let mut scheme = outer.inside(SEQUENCE)?;
        let data = outer.take(OCTET_STRING)?;
        if scheme.take(OBJECT_IDENTIFIER)? != PBES2 {
            return Err(OTHER);
        }
        let mut parameters = scheme.inside(SEQUENCE)?;
        let mut derivation = parameters.inside(SEQUENCE)?;
        let mut encryption = parameters.inside(SEQUENCE)?;
        if derivation.take(OBJECT_IDENTIFIER)? != PBKDF2 {
            return Err(OTHER);
        }
        let mut derivation = derivation.inside(SEQUENCE)?;
        let salt = derivation.take(OCTET_STRING)?;
        let rounds = number(derivation.take(INTEGER)?).filter(|rounds| *rounds <= ROUNDS_MAX);
        let rounds = rounds
            .and_then(NonZeroU32::new)
            .ok_or(Locked::Unsupported("its PBKDF2 iteration count is too high"))?;
        if derivation.next_is(INTEGER) {
            derivation.take(INTEGER)?;
        }
        let digest = match derivation.next_is(SEQUENCE) {
            // The default of RFC 8018.
            false => pbkdf2::PBKDF2_HMAC_SHA1,
            true => digest(derivation.inside(SEQUENCE)?.take(OBJECT_IDENTIFIER)?)?,
        };
        let (cipher, key_bytes) = match encryption.take(OBJECT_IDENTIFIER)?.strip_prefix(AES) {
            Some([2]) => (&AES_128, 16),
            Some([22]) => (&AES_192, 24),
            Some([42]) => (&AES_256, 32),
            _ => return Err(OTHER),
        };
        let iv = encryption.take(OCTET_STRING)?.try_into().map_err(|_| DAMAGED)?;
        Ok(Sealed { salt, rounds, digest, cipher, key_bytes, iv, data })
    }

    /// Returns the decrypted bytes; None if the passphrase is surely wrong.
    fn open(&self, passphrase: &[u8]) -> Option<Vec<u8>> {
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..self.key_bytes];
        pbkdf2::derive(self.digest, self.rounds, self.salt, passphrase, key);
        let key = UnboundCipherKey::new(self.cipher, key).ok()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut bytes = Zeroizing::new(self.data.to_vec());
        let context = DecryptionContext::Iv128(FixedLength::from(self.iv));
        key.decrypt(&mut bytes, context).ok().map(|plain| plain.to_vec())
    }
}

fn digest(id: &[u8]) -> Result<pbkdf2::Algorithm, Locked> {
    match id.strip_prefix(DIGESTS) {
        Some([7]) => Ok(pbkdf2::PBKDF2_HMAC_SHA1),
        Some([9]) => Ok(pbkdf2::PBKDF2_HMAC_SHA256),
        Some([10]) => Ok(pbkdf2::PBKDF2_HMAC_SHA384),
        Some([11]) => Ok(pbkdf2::PBKDF2_HMAC_SHA512),
        _ => Err(OTHER),
    }
}

/// Returns an unsigned number of up to 31 bits.
fn number(content: &[u8]) -> Option<u32> {
    let fits = content.len() <= 4 && content.first().is_some_and(|first| *first < 0x80);
    fits.then(|| content.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// The elements of DER that are left.
struct Reader<'d>(&'d [u8]);

impl<'d> Reader<'d> {
    fn next_is(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// Returns the content of the next element.
    fn take(&mut self, tag: u8) -> Result<&'d [u8], Locked> {
        let (content, rest) = der::element_of(self.0, tag).ok_or(DAMAGED)?;
        self.0 = rest;
        Ok(content)
    }

    fn inside(&mut self, tag: u8) -> Result<Reader<'d>, Locked> {
        self.take(tag).map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `openssl pkcs8 -topk8` with the passphrase `secret`: the default, then other ciphers and digests.
    const DEFAULT: &str = "MIHrMFYGCSqGSIb3DQEFDTBJMCgGCSqGSIb3DQEFDDAbBAjVYRLp+5xezAIBZDAMBggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQNB4oGDTYwIOwPrvmVP7U7gSBkPOFRqVu/sKM2Hvw1X2hKtVFAzY2q1qo/fwq2c1I6E+Llt2cjQ39SF7fqtd/IVHKn8UtlVI0wOO18Ziqh0hI5qWdFEA95jsjuEAuz1qsES9u4TkX8ex2s/geRAqwJwCaf8PkZd/GxAOj2aICWsuroUj4hTmXREjSHiQ3cj8URpsQYLsrPzXoM/hLmY2v7H8yUA==";
    const AES_128_SHA1: &str = "MIHdMEgGCSqGSIb3DQEFDTA7MBoGCSqGSIb3DQEFDDANBAjQUIxbLM0PhAIBZDAdBglghkgBZQMEAQIEEAFWJ+EfcKUmcjlKa8LItSAEgZAhgNbeImxv+M39UutucNTohvAjw0SlYKslrK23EQiCh5V+UyD/GokDOnQ1GirPI5Xr+Maf6Go33Ma4L9MlIXyZOocsBLUIJX6J4FzksZ9aT8u1eXArmBcRQgJu9FKL5Ta4/7jJWLZzdK3Yi0TDjAxZhL/LCbarBHEU5ezdDpncLtuxlItIePWXPrTxLqzLjKo=";
    const AES_192_SHA512: &str = "MIHrMFYGCSqGSIb3DQEFDTBJMCgGCSqGSIb3DQEFDDAbBAiKo54gP2+bCQIBZDAMBggqhkiG9w0CCwUAMB0GCWCGSAFlAwQBFgQQIL3/dPK3Ite+Uj4WeySNNgSBkFLsVqsaPsRYZDNY9aX4cZA9l/HOB0y1yckqPD0i/4RCuiPS0Cp7dnYVnNTXe/BPI2HNe7BUX6AmqizDKeKW8UEXNaixyVl9HfxywOYzBzdFwy9Q7c3ZyeWc+J4sOAtm89sBQQChJJLBuIkVYD1HQ41t0lJA3lzDdAIyb+rxG7Um3jQsAMIW6pD0jHPoubtqBQ==";
    /// The same key by scrypt, and by triple DES.
    const SCRYPT: &str = "MIHkME8GCSqGSIb3DQEFDTBCMCEGCSsGAQQB2kcECzAUBAj2k8NfO3l8MgICQAACAQgCAQEwHQYJYIZIAWUDBAEqBBAGuUTO5rraNVns3eTLuxclBIGQanmRKTVmUIr3KhFnrPy35RxfIsDt6G3rqc4Bqoo2gwXry5bEW/SBSacRAvE6YXURnJpYrhNsAW7POii/yw+stImwnPF4DvFzswfd5Y/jZx2EpYl/aauwlPZY5zrxziURTFWcdP4booWv+8VS7vN6sZ0csz4+7fiU1rE/F+qfakUR6VZLC/yI73aqtdjrp/jX";
    const TRIPLE_DES: &str = "MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAigxKKt0ugKtQICCAAwDAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIowAtVknIbHIEgZALGsZmS0ag3JSqP5eq8Dep1l8DOvfZ+BB11QIEJ2Kdu55y5feruxADeHrvABAMQiusGsTdKDfUVrLJWd/k7JrXMH3XXCxgekumPKtUK2zNZUVLRIJ6RpWjN7ZAL8VipzWppkGTpNn07dx1uNT1XTQHDdpA4qB6gy/nPXVRz5QIGLNFraYzeQPPWenyQKP2N4s=";
    /// The first bytes of the plain key.
    const PLAIN: &[u8] = &[0x30, 0x81, 0x87, 0x02, 0x01, 0x00];

    fn block(body: &str) -> String {
        format!("-----BEGIN {LABEL}-----\n{body}\n-----END {LABEL}-----\n")
    }

    fn open(text: &str, passphrases: &KeyPassphrases) -> Result<Vec<u8>, Locked> {
        let plain = |key: PrivatePkcs8KeyDer<'static>| key.secret_pkcs8_der().to_vec();
        unlock(text, passphrases, |key| Some(plain(key)).filter(|der| der.starts_with(PLAIN)))
    }

    fn texts(all: &[&str]) -> KeyPassphrases {
        KeyPassphrases::new(all.iter().map(|text| (*text).to_owned()), Vec::new())
    }

    #[test]
    fn keys_of_openssl_are_decrypted() {
        for body in [DEFAULT, AES_128_SHA1, AES_192_SHA512] {
            assert!(open(&block(body), &texts(&["other", "secret"])).is_ok(), "{body}");
            assert!(matches!(open(&block(body), &texts(&["other", ""])), Err(Locked::Wrong(None))), "{body}");
            assert!(matches!(open(&block(body), &texts(&[])), Err(Locked::NoPassphrase)), "{body}");
        }
        for body in [SCRYPT, TRIPLE_DES, "AAAA", "MAMCAQE=", "%"] {
            assert!(matches!(open(&block(body), &texts(&["secret"])), Err(Locked::Unsupported(_))), "{body}");
        }
    }

    #[test]
    fn files_are_read_for_each_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passphrases");
        let passphrases = KeyPassphrases::new([], vec![file.clone()]);
        let text = block(DEFAULT);
        assert!(
            matches!(open(&text, &passphrases), Err(Locked::Wrong(Some(error))) if error.contains("passphrases"))
        );
        fs::write(&file, "first\nsecret\n").unwrap();
        assert!(open(&text, &passphrases).is_ok());
        fs::write(&file, "first\n").unwrap();
        assert!(matches!(open(&text, &passphrases), Err(Locked::Wrong(None))));
        assert!(!format!("{:?}", texts(&["secret"])).contains("secret"));
    }

    /// Lengths and rounds of a forged container cost neither memory nor minutes.
    #[test]
    fn damaged_containers_are_refused() {
        let relabelled = block(DEFAULT).replace(LABEL, "PRIVATE KEY");
        let whole = PrivatePkcs8KeyDer::from_pem_slice(relabelled.as_bytes()).unwrap();
        let der = whole.secret_pkcs8_der();
        for cut in 0..der.len() {
            assert!(Sealed::parse(&der[..cut]).is_err(), "{cut}");
        }
        for place in 0..120 {
            for value in [0, 0x7f, 0x80, 0x84, 0x88, 0xff] {
                let mut other = der.to_vec();
                other[place] = value;
                // Some of these are valid; none of them panics.
                let _ = Sealed::parse(&other).is_ok();
            }
        }
        assert_eq!([number(&[]), number(&[0x80]), number(&[1; 5])], [None; 3]);
        assert_eq!([number(&[0x7f]), number(&[1, 0])], [Some(127), Some(256)]);
    }
}
