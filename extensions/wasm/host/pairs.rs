//! Lists of names and values in the module's memory.

use crate::state::Pairs;

/// The most pairs of a list: more than any head has.
const PAIRS_MAX: u32 = 1024;

/// The most bytes of a list.
const PAIRS_BYTES: usize = 1 << 20;

/// Writes a list: the number of pairs, the lengths of each, and each name and value with a NUL.
pub(crate) fn encode<'p>(pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or_default().to_le_bytes();
    let mut out = number(pairs.clone().count()).to_vec();
    for (name, value) in pairs.clone() {
        out.extend_from_slice(&number(name.len()));
        out.extend_from_slice(&number(value.len()));
    }
    for (name, value) in pairs {
        for text in [name, value] {
            out.extend_from_slice(text);
            out.push(0);
        }
    }
    out
}

/// Reads a list. None if the key is damaged or too long.
pub(crate) fn decode(bytes: &[u8]) -> Option<Pairs> {
    // Some SDKs write an empty list as nothing, or as one zero.
    if bytes.is_empty() || bytes == [0] {
        return Some(Pairs::new());
    }
    if bytes.len() > PAIRS_BYTES {
        return None;
    }
    let (count, mut rest) = number(bytes)?;
    if count > PAIRS_MAX {
        return None;
    }
    let mut lengths = Vec::new();
    for _ in 0..count {
        let (name, after) = number(rest)?;
        let (value, after) = number(after)?;
        lengths.push((name as usize, value as usize));
        rest = after;
    }
    let mut text = |length: usize| {
        let (taken, after) = rest.split_at_checked(length)?;
        rest = after.strip_prefix(&[0])?;
        Some(taken.to_vec())
    };
    lengths.into_iter().map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_the_way_through_a_module() {
        let check = |pairs: &[(&str, &str)]| {
            let bytes = encode(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
            let expected: Pairs = pairs
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect();
            assert_eq!(decode(&bytes), Some(expected), "{pairs:?}");
        };
        check(&[]);
        check(&[("a", "1")]);
        check(&[(":path", "/x?y"), ("", ""), ("a", "")]);
    }

    #[test]
    fn damaged_lists_are_refused() {
        assert_eq!(decode(&[]), Some(vec![]));
        assert_eq!(decode(&[0]), Some(vec![]));
        let whole = encode([(&b"name"[..], &b"value"[..])].into_iter());
        for end in 2..whole.len() {
            assert_eq!(decode(&whole[..end]), None, "{end}");
        }
        assert_eq!(decode(&[0xff; 64]), None);
        // A length beyond the end, and a missing NUL.
        assert_eq!(decode(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, b'a', 0, 0]), None);
        assert_eq!(decode(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 0]), None);
    }
}
