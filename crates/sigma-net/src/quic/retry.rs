//! The integrity tag of Retry packets (RFC 9001 §5.8).

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// The key and the nonce that the RFC fixes: the tag protects from accidents, not from attackers.
const KEY: [u8; 16] =
    [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];
const NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

/// Returns the tag of a Retry packet in response to an Initial with the destination `id`.
pub(super) fn tag(id: &[u8], packet: &[u8]) -> [u8; 16] {
    // An id has at most 20 bytes.
    let length = u8::try_from(id.len()).unwrap_or(u8::MAX);
    let pseudo = [&[length], id, packet].concat();
    let sealed = UnboundKey::new(&AES_128_GCM, &KEY).and_then(|key| {
        let nonce = Nonce::assume_unique_for_key(NONCE);
        LessSafeKey::new(key).seal_in_place_separate_tag(nonce, Aad::from(pseudo), &mut [])
    });
    // The key has its length and the packet is short; a wrong tag would only make the client drop the packet.
    sealed.ok().and_then(|tag| tag.as_ref().try_into().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9001 §A.4
    #[test]
    fn the_example_of_the_rfc() {
        let packet = [
            0xff, 0, 0, 0, 1, 0, 8, 0xf0, 0x67, 0xa5, 0x50, 0x2a, 0x42, 0x62, 0xb5, 0x74, 0x6f, 0x6b, 0x65,
            0x6e,
        ];
        let expected =
            [0x04, 0xa2, 0x65, 0xba, 0x2e, 0xff, 0x4d, 0x82, 0x90, 0x58, 0xfb, 0x3f, 0x0f, 0x24, 0x96, 0xba];
        assert_eq!(tag(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08], &packet), expected);
    }
}
