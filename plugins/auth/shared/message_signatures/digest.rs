//! `Content-Digest` (RFC 9530): the digest of a body.

use aws_lc_rs::digest::{self, SHA256, SHA512};

use super::structured::{Bare, Dictionary, Item, Member};
use crate::shared::policy::same_secret;

/// Whether a body is the one that the field speaks of: it has one of the digests that are not broken
/// (SHA-256, SHA-512), and none that is wrong. Other algorithms prove nothing.
pub(crate) fn matches(field: &[u8], body: &[u8]) -> bool {
    let Some(digests) = Dictionary::parse(field) else { return false };
    let mut proven = false;
    for (name, member) in &digests.0 {
        let algorithm = match &**name {
            "sha-256" => &SHA256,
            "sha-512" => &SHA512,
            _ => continue,
        };
        let Member::Item(Item { value: Bare::Bytes(said), .. }) = member else { return false };
        if !same_secret(digest::digest(algorithm, body).as_ref(), said) {
            return false;
        }
        proven = true;
    }
    proven
}

/// The field for a body.
pub(crate) fn of(body: &[u8]) -> String {
    let value = Bare::Bytes(digest::digest(&SHA256, body).as_ref().to_vec());
    Dictionary(vec![("sha-256".to_owned(), Member::Item(Item { value, params: Vec::new() }))]).write()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_bodies() {
        const BODY: &[u8] = br#"{"hello": "world"}"#;
        const SHA_256: &str = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
        const SHA_512: &str = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:";
        let check =
            |field: &str, expected: bool| assert_eq!(matches(field.as_bytes(), BODY), expected, "{field}");
        check(SHA_256, true);
        check(SHA_512, true);
        check(&format!("{SHA_256}, {SHA_512}"), true);
        check(&format!("md5=:AAAA:, {SHA_256}"), true);
        check("md5=:AAAA:", false);
        check("", false);
        check("sha-256=:AAAA:", false);
        check("sha-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE", false);
        // One that is right does not excuse one that is wrong, nor does the last of two count.
        check(&format!("{SHA_256}, sha-512=:AAAA:"), false);
        check(&format!("sha-256=:AAAA:, {SHA_256}"), false);
        assert_eq!(of(BODY), SHA_256);
    }
}
