//! Encryption of stored secrets, and masking for readers.
//!
//! Secrets of plugins are encrypted in the store and shown in cleartext to callers that may write them. Private keys
//! never leave: answers hold their ciphertext, or nothing. Read-only callers see neither.

use serde_json::Value;
use sigma_config::crypt::{Keyring, is_masked, mask_resource};
use sigma_config::kind::Kind;
use sigma_config::settings::AdminRole;
use sigma_schema::confidential::MASK;
use sigma_schema::plugins::PluginSchemas;

/// Where private keys of clients stand in upstreams and in what holds one.
const CLIENT_KEYS: [&str; 2] = ["/tls/client_key", "/upstream/tls/client_key"];

/// Encrypts before a write.
pub(crate) fn seal(keyring: &Keyring, kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) {
    keyring.encrypt_resource(kind, value, plugins);
}

/// Decrypts all, for checks and patches.
pub(crate) fn open(keyring: &Keyring, kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) {
    keyring.decrypt_resource(kind, value, plugins);
}

/// Decrypts private keys that a client read from a response and sends back.
pub(crate) fn open_private_keys(keyring: &Keyring, kind: Kind, value: &mut Value) {
    let open = |place: Option<&mut Value>| {
        let Some(Value::String(text)) = place else { return };
        if !text.starts_with("---")
            && let Some(plain) = keyring.decrypt(text)
        {
            *text = plain;
        }
    };
    match kind {
        Kind::Ssl => {
            open(value.get_mut("key"));
            let keys = value.get_mut("keys").and_then(Value::as_array_mut);
            keys.into_iter().flatten().for_each(|key| open(Some(key)));
        }
        _ => CLIENT_KEYS.into_iter().for_each(|pointer| open(value.pointer_mut(pointer))),
    }
}

/// Refuses a masked value that is sent back: its secrets would be publicly known.
pub(crate) fn refuse_masks(kind: Kind, value: &mut Value, plugins: &dyn PluginSchemas) -> Result<(), String> {
    if is_masked(kind, value, plugins) {
        return Err(format!(
            "the value contains {MASK}, the mask of a secret: keys with the role viewer get masked secrets, so read the value with a key of the role admin"
        ));
    }
    Ok(())
}

/// Makes of a stored resource what may leave and be sent back: private keys as ciphertext. To a
/// viewer every secret is masked.
pub(crate) fn dump(
    keyring: &Keyring,
    kind: Kind,
    value: &mut Value,
    plugins: &dyn PluginSchemas,
    reader: AdminRole,
) {
    if reader == AdminRole::Viewer {
        return mask_resource(kind, value, plugins);
    }
    if kind == Kind::Ssl {
        return acknowledge(kind, value);
    }
    let sealed = CLIENT_KEYS.map(|pointer| value.pointer(pointer).cloned());
    keyring.decrypt_resource(kind, value, plugins);
    for (pointer, sealed) in CLIENT_KEYS.into_iter().zip(sealed) {
        let Some(sealed) = sealed else { continue };
        let tls = pointer.strip_suffix("/client_key").and_then(|tls| value.pointer_mut(tls));
        let Some(tls) = tls.and_then(Value::as_object_mut) else { continue };
        if is_open(&sealed) {
            tls.shift_remove("client_key");
        } else {
            tls.insert("client_key".into(), sealed);
        }
    }
}

/// Makes of a stored resource what its reader may see of it alone: no certificate's key, not even
/// encrypted.
pub(crate) fn show(
    keyring: &Keyring,
    kind: Kind,
    value: &mut Value,
    plugins: &dyn PluginSchemas,
    reader: AdminRole,
) {
    dump(keyring, kind, value, plugins, reader);
    if let (Kind::Ssl, Some(object)) = (kind, value.as_object_mut()) {
        object.shift_remove("key");
        object.shift_remove("keys");
    }
}

/// Turns a stored resource into the response for a writer: ciphertexts as they are stored.
pub(crate) fn acknowledge(kind: Kind, value: &mut Value) {
    let hide = |object: Option<&mut Value>, name: &str| {
        let Some(object) = object.and_then(Value::as_object_mut) else { return };
        if object.get(name).is_some_and(is_open) {
            object.shift_remove(name);
        }
    };
    match kind {
        Kind::Ssl => {
            hide(Some(value), "key");
            hide(Some(value), "keys");
        }
        Kind::Upstream => hide(value.get_mut("tls"), "client_key"),
        _ => hide(value.pointer_mut("/upstream/tls"), "client_key"),
    }
}

/// Whether it is a private key that no keyring encrypted, or a list with one.
fn is_open(value: &Value) -> bool {
    match value {
        Value::String(text) => text.starts_with("---"),
        Value::Array(list) => list.iter().any(is_open),
        _ => false,
    }
}
