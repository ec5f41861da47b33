//! Single resources: no value panics, and one that the Admin API would accept can be read from a store.
//!
//! The first byte chooses the kind, the rest is JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_schema::plugins::NoPlugins;
use sigma_config::settings::UnknownFields;
use sigma_config::stored;

fuzz_target!(|input: &[u8]| {
    let Some((choice, text)) = input.split_first() else { return };
    let kind = Kind::ALL[usize::from(*choice) % Kind::ALL.len()];
    let Ok(value) = serde_json::from_slice(text) else { return };
    let id = match kind {
        Kind::Credential => "jack/credentials/c1",
        Kind::Secret => ["vault/1", "aws/1", "gcp/1"][text.len() % 3],
        _ => "jack",
    };
    let key = ResourceKey::new(kind, id);
    let read = stored::read(&key, &value, &NoPlugins, UnknownFields::Refuse);
    if stored::check(kind, Some(id), &value, &NoPlugins, UnknownFields::Refuse).is_ok() {
        assert!(read.is_ok(), "accepted, but not read: {read:?}");
    }
    for reference in stored::references(kind, &value) {
        assert!(!reference.message_prefix.is_empty());
    }
    if let Ok(resource) = read {
        assert_eq!((resource.kind(), resource.key()), (kind, key));
    }
});
