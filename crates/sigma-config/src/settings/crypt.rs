//! Encryption of secret fields at rest, as APISIX does it, so that both can share a store.
//!
//! AES in CBC mode, PKCS#7 padding (RFC 5652 §6.3), the key itself as the initialisation vector (its first half for
//! AES-256), base64 around it. The same text always has the same ciphertext, and changes are not detected. This only
//! hides secrets from readers of a store.

use std::fmt;

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use aes::{Aes128, Aes256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::plugins::scope_of;
use crate::resources::kind::Kind;
use crate::resources::reference::is_reference;
use crate::settings::DataEncryption;
use sigma_schema::confidential::MASK;
use sigma_schema::plugins::{PluginSchemas, PluginScope};

pub use crate::settings::public_keyring::DEFAULT_KEYRING;

/// Size of a block and of the initialisation vector in bytes.
const BLOCK_BYTES: usize = 16;

/// The error for an invalid key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key of `data_encryption.keyring` has {0} bytes; write 16 (AES-128) or 32 (AES-256)")]
pub struct InvalidKey(usize);

#[derive(Clone)]
enum Key {
    Aes128([u8; 16]),
    Aes256([u8; 32]),
}

impl Key {
    fn parse(text: &str) -> Result<Key, InvalidKey> {
        let bytes = text.as_bytes();
        let invalid = |_| InvalidKey(bytes.len());
        match bytes.len() {
            16 => bytes.try_into().map(Key::Aes128).map_err(invalid),
            _ => bytes.try_into().map(Key::Aes256).map_err(invalid),
        }
    }

    fn encrypt(&self, text: &[u8]) -> Vec<u8> {
        match self {
            Key::Aes128(key) => {
                cbc::Encryptor::<Aes128>::new(key.into(), key.into()).encrypt_padded_vec::<Pkcs7>(text)
            }
            Key::Aes256(key) => cbc::Encryptor::<Aes256>::new(key.into(), &vector(key).into())
                .encrypt_padded_vec::<Pkcs7>(text),
        }
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        match self {
            Key::Aes128(key) => {
                cbc::Decryptor::<Aes128>::new(key.into(), key.into()).decrypt_padded_vec::<Pkcs7>(cipher).ok()
            }
            Key::Aes256(key) => cbc::Decryptor::<Aes256>::new(key.into(), &vector(key).into())
                .decrypt_padded_vec::<Pkcs7>(cipher)
                .ok(),
        }
    }
}

fn vector(key: &[u8; 32]) -> [u8; BLOCK_BYTES] {
    let mut vector = [0; BLOCK_BYTES];
    vector.copy_from_slice(&key[..BLOCK_BYTES]);
    vector
}

/// The keys: the first one encrypts, all are tried for decryption.
#[derive(Clone)]
pub struct Keyring {
    keys: Vec<Key>,
    coverage: Coverage,
}

/// The fields that are encrypted in the store. All fields are decrypted when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coverage {
    All,
    PrivateKeys,
}

/// Without `enable`, only private keys are encrypted.
impl TryFrom<&DataEncryption> for Keyring {
    type Error = InvalidKey;

    fn try_from(settings: &DataEncryption) -> Result<Keyring, InvalidKey> {
        let coverage = if settings.enable { Coverage::All } else { Coverage::PrivateKeys };
        Ok(Keyring { coverage, ..Keyring::new(&settings.keyring)? })
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}

impl Keyring {
    /// Creates a keyring of keys of 16 or 32 bytes. An empty keyring changes nothing.
    ///
    /// # Errors
    /// Returns an error if a key has another length.
    pub fn new(keys: &[String]) -> Result<Keyring, InvalidKey> {
        let keys = keys.iter().map(|key| Key::parse(key)).collect::<Result<_, _>>()?;
        Ok(Keyring { keys, coverage: Coverage::All })
    }

    /// Returns the keys themselves, from which keys for other purposes are derived.
    pub fn secrets(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| match key {
            Key::Aes128(key) => &key[..],
            Key::Aes256(key) => &key[..],
        })
    }

    /// Returns the ciphertext of `text` in base64.
    #[must_use]
    pub fn encrypt(&self, text: &str) -> Option<String> {
        Some(STANDARD.encode(self.keys.first()?.encrypt(text.as_bytes())))
    }

    /// Returns the text of a ciphertext, or None if no key matches.
    #[must_use]
    pub fn decrypt(&self, cipher: &str) -> Option<String> {
        let cipher = STANDARD.decode(cipher).ok()?;
        // A wrong key usually breaks the padding; otherwise it breaks UTF-8.
        self.keys.iter().find_map(|key| String::from_utf8(key.decrypt(&cipher)?).ok())
    }

    /// Encrypts the secret fields of a resource in place: fields of its plugins, the session secret, and private keys.
    /// Private keys that are already encrypted are not changed.
    pub fn encrypt_resource(&self, kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) {
        let mut encrypt = |text: &mut String, what: Field| {
            // Empty texts and references need no encryption.
            let plain = match what {
                Field::Secret => self.coverage == Coverage::All && !text.is_empty() && !is_reference(text),
                Field::PrivateKey => text.starts_with("---"),
            };
            if plain && let Some(cipher) = self.encrypt(text) {
                *text = cipher;
            }
        };
        secret_fields(kind, value, plugins, &mut encrypt);
    }

    /// Decrypts the secret fields of a resource in place. A field that no key decrypts is not changed: its writer did
    /// not encrypt it. Returns the number of such fields.
    pub fn decrypt_resource(&self, kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) -> usize {
        let mut left = 0;
        let mut decrypt = |text: &mut String, what: Field| {
            if text.is_empty() || is_reference(text) || (what == Field::PrivateKey && text.starts_with("---"))
            {
                return;
            }
            match self.decrypt(text) {
                Some(plain) => *text = plain,
                None => left += 1,
            }
        };
        secret_fields(kind, value, plugins, &mut decrypt);
        left
    }
}

/// Masks all secrets of a resource: secret fields of its plugins, the session secret, private keys at any place, and
/// credentials of secret managers. References are not masked, because they reveal nothing.
pub fn mask_resource(kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) {
    all_secrets(kind, value, plugins, &mut |text| {
        if !text.is_empty() && !is_reference(text) {
            MASK.clone_into(text);
        }
    });
    mask_private_keys(value);
}

/// Returns whether a secret of a resource is the mask itself: a masked response was sent back, and the mask would
/// become a public secret. `value` is not changed.
pub fn is_masked(kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) -> bool {
    let mut found = false;
    all_secrets(kind, value, plugins, &mut |text| found |= text == MASK);
    found
}

/// Calls `each` with every secret field, including credentials of secret managers.
fn all_secrets(
    kind: Kind,
    value: &mut Value,
    plugins: &dyn PluginSchemas,
    each: &mut dyn FnMut(&mut String),
) {
    secret_fields(kind, value, plugins, &mut |text, _| each(text));
    if kind == Kind::Secret {
        for path in MANAGER_SECRETS {
            texts(value, path, each);
        }
    }
}

/// The credentials of secret managers.
const MANAGER_SECRETS: [&[&str]; 4] =
    [&["token"], &["secret_access_key"], &["session_token"], &["auth_config", "private_key"]];

/// The recursion is as deep as the value, which its reader has bounded.
fn mask_private_keys(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("PRIVATE KEY-----") => MASK.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(mask_private_keys),
        Value::Object(map) => map.values_mut().for_each(mask_private_keys),
        _ => {}
    }
}

/// The kind of a secret field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Secret,
    PrivateKey,
}

/// Calls `each` with every secret field of a resource.
fn secret_fields(
    kind: Kind,
    value: &mut Value,
    plugins: &dyn PluginSchemas,
    each: &mut dyn FnMut(&mut String, Field),
) {
    if kind == Kind::Ssl {
        for name in ["key", "keys"] {
            texts(value, &[name], &mut |text| each(text, Field::PrivateKey));
        }
    }
    let upstream = match kind {
        Kind::Upstream => Some(&mut *value),
        Kind::Route | Kind::Service | Kind::StreamRoute => value.get_mut("upstream"),
        _ => None,
    };
    if let Some(upstream) = upstream {
        texts(upstream, &["tls", "client_key"], &mut |text| each(text, Field::PrivateKey));
        texts(upstream, &["session_affinity", "secret"], &mut |text| each(text, Field::Secret));
    }
    if kind == Kind::PluginMetadata {
        let name = value.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        for path in plugins.secret_fields(&name, PluginScope::Metadata) {
            let path: Vec<&str> = path.split('.').collect();
            texts(value, &path, &mut |text| each(text, Field::Secret));
        }
        return;
    }
    for (name, conf) in value.get_mut("plugins").and_then(Value::as_object_mut).into_iter().flatten() {
        secrets_of_plugin(name, scope_of(kind, name, plugins), conf, plugins, each);
    }
}

/// Calls `each` with the secret fields of a plugin's configuration and of its inner plugins. The recursion is no deeper
/// than the value.
fn secrets_of_plugin(
    name: &str,
    scope: PluginScope,
    conf: &mut Value,
    plugins: &dyn PluginSchemas,
    each: &mut dyn FnMut(&mut String, Field),
) {
    for path in plugins.secret_fields(name, scope) {
        let path: Vec<&str> = path.split('.').collect();
        texts(conf, &path, &mut |text| each(text, Field::Secret));
    }
    for (pointer, child) in plugins.children(name, scope, conf) {
        if let Some(conf) = conf.pointer_mut(&pointer).filter(|_| !pointer.is_empty()) {
            secrets_of_plugin(&child, PluginScope::Http, conf, plugins, each);
        }
    }
}

/// Calls `each` with the text at `path`, or with the texts of the list or object there.
fn texts(value: &mut Value, path: &[&str], each: &mut dyn FnMut(&mut String)) {
    match (value, path) {
        (Value::String(text), []) => each(text),
        (Value::Array(items), path) => items.iter_mut().for_each(|item| texts(item, path, each)),
        (Value::Object(map), []) => map.values_mut().for_each(|value| {
            // One level, for example the headers of a request; deeper fields have their own paths.
            if let Value::String(text) = value {
                each(text);
            }
        }),
        (Value::Object(map), [first, rest @ ..]) => {
            if let Some(value) = map.get_mut(*first) {
                texts(value, rest, each);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stored::tests::TestPlugins;

    fn keyring(keys: &[&str]) -> Keyring {
        Keyring::new(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn ciphertexts_are_compatible_with_apisix() {
        // openssl enc -aes-128-cbc -K <hex of the key> -iv <the same> | base64
        let ring = keyring(&DEFAULT_KEYRING);
        assert_eq!(ring.encrypt("bar").as_deref(), Some("+kOEVUuRc5rC5ZwvvAMLwg=="));
        assert_eq!(ring.decrypt("+kOEVUuRc5rC5ZwvvAMLwg==").as_deref(), Some("bar"));
    }

    #[test]
    fn every_key_decrypts_and_the_first_encrypts() {
        let long = "0123456789abcdef0123456789abcdef";
        let old = keyring(&[DEFAULT_KEYRING[1]]);
        let new = keyring(&[long, DEFAULT_KEYRING[1]]);
        let written = old.encrypt("secret").unwrap();
        assert_eq!(new.decrypt(&written).as_deref(), Some("secret"));
        assert_ne!(new.encrypt("secret").as_ref(), Some(&written));
        assert_eq!(new.decrypt(&new.encrypt("secret").unwrap()).as_deref(), Some("secret"));
        assert_eq!(old.decrypt("not base64"), None);
        assert_eq!(Keyring::new(&["short".to_owned()]).err(), Some(InvalidKey(5)));
        assert_eq!(format!("{new:?}"), "Keyring(2 keys)");
    }

    #[test]
    fn secrets_are_masked() {
        let check = |kind: Kind, plain: Value, expected: Value| {
            let mut value = plain;
            assert!(!is_masked(kind, &mut value, &TestPlugins));
            mask_resource(kind, &mut value, &TestPlugins);
            assert_eq!(value, expected);
            // A reference is shown, and a mask at another place is not a secret.
            let shown = value.to_string();
            let is_secret = shown.contains("***") && !shown.contains("\"x\"");
            assert_eq!(is_masked(kind, &mut value, &TestPlugins), is_secret, "{shown}");
        };
        let plugins = |key: &str| json!({ "plugins": { "key-auth": { "key": key }, "cors": { "a": "b" } } });
        check(Kind::Consumer, plugins("k"), plugins("***"));
        check(Kind::Consumer, plugins("$env://K"), plugins("$env://K"));
        check(
            Kind::Ssl,
            json!({ "key": "a", "keys": ["b"], "cert": "c" }),
            json!({ "key": "***", "keys": ["***"], "cert": "c" }),
        );
        check(
            Kind::Route,
            json!({ "upstream": { "tls": { "client_key": "cipher" } } }),
            json!({ "upstream": { "tls": { "client_key": "***" } } }),
        );
        let sessions =
            |secret: &str| json!({ "session_affinity": { "secret": secret, "on_gone": "reject" } });
        check(Kind::Upstream, sessions("s"), sessions("***"));
        check(Kind::Service, json!({ "upstream": sessions("s") }), json!({ "upstream": sessions("***") }));
        let pem = "-----BEGIN EC PRIVATE KEY-----\n";
        check(
            Kind::Route,
            json!({ "plugins": { "x": [{ "y": pem }] } }),
            json!({ "plugins": { "x": [{ "y": "***" }] } }),
        );
        check(
            Kind::Secret,
            json!({ "token": "t", "uri": "u", "auth_config": { "private_key": "p", "client_email": "e" } }),
            json!({ "token": "***", "uri": "u", "auth_config": { "private_key": "***", "client_email": "e" } }),
        );
    }

    #[test]
    fn secret_fields_are_encrypted_and_come_back() {
        let ring = keyring(&DEFAULT_KEYRING);
        let check = |kind: Kind, plain: Value, hidden: &[&str]| {
            let mut value = plain.clone();
            ring.encrypt_resource(kind, &mut value, &TestPlugins);
            for pointer in hidden {
                assert_ne!(value.pointer(pointer), plain.pointer(pointer), "{pointer}");
            }
            let mut again = value.clone();
            if kind == Kind::Ssl {
                ring.encrypt_resource(kind, &mut again, &TestPlugins);
                assert_eq!(again, value, "private keys are not encrypted twice");
            }
            assert_eq!(ring.decrypt_resource(kind, &mut value, &TestPlugins), 0);
            assert_eq!(value, plain);
        };
        let plugins = json!({ "plugins": { "key-auth": { "key": "k" }, "cors": { "a": "b" } } });
        check(Kind::Consumer, plugins, &["/plugins/key-auth/key"]);
        check(Kind::Consumer, json!({ "plugins": { "key-auth": { "key": "$env://K" } } }), &[]);
        check(Kind::Ssl, json!({ "key": "---a", "keys": ["---b"], "cert": "c" }), &["/key", "/keys/0"]);
        check(Kind::Upstream, json!({ "tls": { "client_key": "---a" } }), &["/tls/client_key"]);
        check(
            Kind::Route,
            json!({ "upstream": { "tls": { "client_key": "---a" } } }),
            &["/upstream/tls/client_key"],
        );
        let sessions = json!({ "session_affinity": { "secret": "s", "cookie": { "name": "c" } } });
        check(Kind::Upstream, sessions.clone(), &["/session_affinity/secret"]);
        for kind in [Kind::Route, Kind::Service] {
            check(kind, json!({ "upstream": sessions }), &["/upstream/session_affinity/secret"]);
        }
        let keys_only = DataEncryption { enable: false, ..DataEncryption::default() };
        let keys_only = Keyring::try_from(&keys_only).unwrap();
        let mut written = json!({ "plugins": { "key-auth": { "key": "k" } } });
        keys_only.encrypt_resource(Kind::Consumer, &mut written, &TestPlugins);
        assert_eq!(written.pointer("/plugins/key-auth/key"), Some(&json!("k")));
        let mut foreign = json!({ "plugins": { "key-auth": { "key": "plain text" } } });
        assert_eq!(ring.decrypt_resource(Kind::Consumer, &mut foreign, &TestPlugins), 1);
        assert_eq!(foreign.pointer("/plugins/key-auth/key"), Some(&json!("plain text")));
    }
}
