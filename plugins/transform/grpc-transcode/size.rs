//! How much memory a message will take, before it takes any.

use prost_reflect::prost::encoding::{WireType, decode_key, decode_varint};
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

/// Most messages nested in each other. The decoder has the same limit, but for those that are packed into an `Any`.
const MOST_LEVELS: usize = 100;

const ANY: &str = "google.protobuf.Any";

/// Whether a message has at most `most` values, no more than [`MOST_LEVELS`] deep. It is looked at without being
/// held, once from its beginning to its end; one that is malformed has as many as show before.
pub(super) fn fits(desc: &MessageDescriptor, bytes: &[u8], most: usize) -> bool {
    let mut walk = Walk { pool: desc.parent_pool(), left: most };
    walk.message(Some(desc), bytes, 0).is_some()
}

struct Walk<'p> {
    pool: &'p DescriptorPool,
    left: usize,
}

impl Walk<'_> {
    /// None if there are too many. A type that is not known may hold anything.
    fn message(&mut self, desc: Option<&MessageDescriptor>, mut bytes: &[u8], level: usize) -> Option<()> {
        if level > MOST_LEVELS {
            return None;
        }
        let is_any = desc.is_some_and(|desc| desc.full_name() == ANY);
        let (mut packed, mut packed_type) = (&[][..], None);
        // The types of the groups that are open, the innermost last.
        let mut groups = vec![desc.cloned()];
        while !bytes.is_empty() {
            let Ok((number, wire)) = decode_key(&mut bytes) else { return Some(()) };
            self.take(1)?;
            let field = groups.last().and_then(|desc| desc.as_ref()).and_then(|desc| desc.get_field(number));
            match wire {
                WireType::Varint => drop(decode_varint(&mut bytes)),
                WireType::SixtyFourBit => bytes = bytes.get(8..).unwrap_or_default(),
                WireType::ThirtyTwoBit => bytes = bytes.get(4..).unwrap_or_default(),
                WireType::StartGroup => {
                    let of = field.and_then(|field| field.kind().as_message().cloned());
                    groups.push(of);
                    if level + groups.len() > MOST_LEVELS {
                        return None;
                    }
                }
                WireType::EndGroup => {
                    if groups.len() > 1 {
                        groups.pop();
                    }
                }
                WireType::LengthDelimited => {
                    let content = delimited(&mut bytes)?;
                    match (is_any && groups.len() == 1, number) {
                        (true, 1) => packed_type = std::str::from_utf8(content).ok(),
                        (true, 2) => packed = content,
                        _ => self.content(field.map(|field| field.kind()), content, level)?,
                    }
                }
            }
        }
        let packed_type = packed_type.and_then(|url| url.rsplit('/').next());
        match packed_type.and_then(|name| self.pool.get_message_by_name(name)) {
            Some(desc) => self.message(Some(&desc), packed, level + 1),
            None => Some(()),
        }
    }

    /// Counts the content of a length-delimited field: a message, a list of numbers, or one value that has
    /// been counted.
    fn content(&mut self, kind: Option<Kind>, content: &[u8], level: usize) -> Option<()> {
        match kind {
            Some(Kind::Message(desc)) => self.message(Some(&desc), content, level + 1),
            None | Some(Kind::String | Kind::Bytes) => Some(()),
            Some(Kind::Double | Kind::Fixed64 | Kind::Sfixed64) => self.take(content.len() / 8),
            Some(Kind::Float | Kind::Fixed32 | Kind::Sfixed32) => self.take(content.len() / 4),
            // The last byte of each number is the one without the highest bit.
            Some(_) => self.take(content.iter().filter(|byte| **byte < 0x80).count()),
        }
    }

    fn take(&mut self, values: usize) -> Option<()> {
        self.left = self.left.checked_sub(values)?;
        Some(())
    }
}

/// The bytes behind a length, as many of them as there are.
fn delimited<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = decode_varint(bytes).ok()?;
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
    let (content, rest) = bytes.split_at(length);
    *bytes = rest;
    Some(content)
}
