//! Capsules (RFC 9297 §3): typed messages on a tunnel, the same in all HTTP versions.

use crate::h3::varint;

/// A datagram.
pub const DATAGRAM: u64 = 0x00;

/// The context of UDP payloads (RFC 9298 §4).
const UDP_PAYLOAD: u64 = 0;

/// The largest value of a DATAGRAM capsule: a context id, and the largest UDP payload (RFC 9298 §5).
pub const DATAGRAM_BYTES: usize = varint::BYTES_MAX + 65_527;

/// The reason for the end of a stream of capsules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCapsule {
    /// A datagram is larger than any of UDP
    TooLarge,
    /// A datagram has no context
    NoContext,
}

/// The progress of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Before type and length.
    Header,
    /// This many bytes of a datagram are missing.
    Datagram(usize),
    /// This many bytes of an unknown capsule follow, which are skipped (RFC 9297 §3.2).
    Skip(u64),
}

/// Reads the capsules of a peer. It holds at most one incomplete datagram.
#[derive(Debug)]
pub struct CapsuleReader {
    progress: Progress,
    held: Vec<u8>,
}

impl Default for CapsuleReader {
    fn default() -> Self {
        CapsuleReader { progress: Progress::Header, held: Vec::new() }
    }
}

impl CapsuleReader {
    /// Returns the bytes of an incomplete capsule.
    pub fn held_bytes(&self) -> usize {
        self.held.capacity()
    }

    /// Returns true if the next byte begins a capsule.
    pub fn is_between(&self) -> bool {
        self.progress == Progress::Header && self.held.is_empty()
    }

    /// Reads all of `bytes`; the value of each complete datagram goes to `take`.
    ///
    /// # Errors
    /// Returns an error if a datagram is too large; nothing after it can be read.
    pub fn read(&mut self, mut bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), BadCapsule> {
        loop {
            match self.progress {
                Progress::Header => {
                    let Some(length) = self.read_header(&mut bytes) else { return Ok(()) };
                    self.progress = match length {
                        (DATAGRAM, length) => match usize::try_from(length) {
                            Ok(length) if length <= DATAGRAM_BYTES => Progress::Datagram(length),
                            _ => return Err(BadCapsule::TooLarge),
                        },
                        (_, length) => Progress::Skip(length),
                    };
                }
                Progress::Datagram(missing) if self.held.is_empty() && bytes.len() >= missing => {
                    // The usual case: all of it is here.
                    let (datagram, rest) = bytes.split_at(missing);
                    take(datagram);
                    (bytes, self.progress) = (rest, Progress::Header);
                }
                Progress::Datagram(missing) => {
                    let (part, rest) = bytes.split_at(missing.min(bytes.len()));
                    self.held.extend_from_slice(part);
                    bytes = rest;
                    if part.len() < missing {
                        self.progress = Progress::Datagram(missing - part.len());
                        return Ok(());
                    }
                    take(&self.held);
                    (self.held, self.progress) = (Vec::new(), Progress::Header);
                }
                Progress::Skip(left) => {
                    let skipped = left.min(bytes.len() as u64);
                    bytes = &bytes[skipped as usize..];
                    if skipped < left {
                        self.progress = Progress::Skip(left - skipped);
                        return Ok(());
                    }
                    self.progress = Progress::Header;
                }
            }
        }
    }

    /// Reads type and length; None if they are incomplete.
    fn read_header(&mut self, bytes: &mut &[u8]) -> Option<(u64, u64)> {
        if self.held.is_empty()
            && let Some((kind, length, used)) = header(bytes)
        {
            *bytes = &bytes[used..];
            return Some((kind, length));
        }
        while let Some((first, rest)) = bytes.split_first() {
            self.held.push(*first);
            *bytes = rest;
            if let Some((kind, length, _)) = header(&self.held) {
                self.held = Vec::new();
                return Some((kind, length));
            }
        }
        None
    }
}

/// The bounds of capsules in a stream that is forwarded.
#[derive(Debug, Default)]
pub struct CapsuleBounds {
    /// The beginning of type and length.
    header: Vec<u8>,
    /// Bytes of the current capsule that are missing.
    left: u64,
}

impl CapsuleBounds {
    /// Returns true if the next byte begins a capsule.
    pub fn is_between(&self) -> bool {
        self.left == 0 && self.header.is_empty()
    }

    /// Follows bytes of the stream.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len() as u64);
                self.left -= passed;
                bytes = &bytes[passed as usize..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let Some((_, length, _)) = header(&self.header) {
                self.left = length;
                self.header = Vec::new();
            }
        }
    }
}

/// Returns type and length of a capsule, and the bytes of both; None if they are incomplete.
fn header(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, first) = varint::take(bytes)?;
    let (length, second) = varint::take(&bytes[first..])?;
    Some((kind, length, first + second))
}

/// Returns the values of DATAGRAM capsules; None if `bytes` have anything else.
pub fn whole_datagrams(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut rest, mut values) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (kind, length, used) = header(rest)?;
        let (value, after) = rest[used..].split_at_checked(usize::try_from(length).ok()?)?;
        values.push(value);
        rest = after;
        if kind != DATAGRAM {
            return None;
        }
    }
    Some(values)
}

/// Appends a DATAGRAM capsule with this value.
pub fn put_datagram(value: &[u8], out: &mut Vec<u8>) {
    varint::put(DATAGRAM, out);
    varint::put(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Appends a DATAGRAM capsule with a UDP payload (RFC 9298 §5).
pub fn put_udp(payload: &[u8], out: &mut Vec<u8>) {
    varint::put(DATAGRAM, out);
    varint::put(payload.len() as u64 + 1, out);
    varint::put(UDP_PAYLOAD, out);
    out.extend_from_slice(payload);
}

/// Returns the UDP payload of a datagram; None if it has another context, and is dropped.
///
/// # Errors
/// Returns an error if it has no context.
pub fn udp_payload(datagram: &[u8]) -> Result<Option<&[u8]>, BadCapsule> {
    let (context, used) = varint::take(datagram).ok_or(BadCapsule::NoContext)?;
    Ok((context == UDP_PAYLOAD).then(|| &datagram[used..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_pieces(bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, BadCapsule> {
        let (mut reader, mut found) = (CapsuleReader::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            reader.read(piece, |datagram| found.push(datagram.to_vec()))?;
        }
        assert!(reader.is_between() && reader.held_bytes() == 0);
        Ok(found)
    }

    #[test]
    fn capsules_are_read_in_any_pieces() {
        let mut bytes = Vec::new();
        put_udp(b"one", &mut bytes);
        // An unknown type is skipped.
        varint::put(0x1234, &mut bytes);
        varint::put(70, &mut bytes);
        bytes.extend_from_slice(&[9; 70]);
        put_datagram(b"", &mut bytes);
        put_udp(&[7; 3_000], &mut bytes);
        let expected = vec![b"\0one".to_vec(), Vec::new(), [&[0][..], &[7; 3_000]].concat()];
        for piece in [1, 2, 3, 64, 5_000] {
            assert_eq!(read_in_pieces(&bytes, piece).unwrap(), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn bounds_are_followed_in_any_pieces() {
        let (mut bytes, mut bounds) = (Vec::new(), CapsuleBounds::default());
        put_datagram(&[1; 100], &mut bytes);
        varint::put(0x1234, &mut bytes);
        varint::put(2, &mut bytes);
        bytes.extend_from_slice(b"ab");
        let ends: Vec<usize> = (1..=bytes.len())
            .filter(|at| {
                bounds.pass(&bytes[at - 1..*at]);
                bounds.is_between()
            })
            .collect();
        assert_eq!(ends, [103, bytes.len()]);
        bounds.pass(&bytes);
        assert!(bounds.is_between());
    }

    #[test]
    fn only_whole_datagrams_are_taken_apart() {
        let mut bytes = Vec::new();
        put_datagram(b"one", &mut bytes);
        put_datagram(b"", &mut bytes);
        assert_eq!(whole_datagrams(&bytes), Some(vec![&b"one"[..], &b""[..]]));
        assert_eq!(whole_datagrams(&bytes[..4]), None);
        bytes.extend_from_slice(&[7, 0]);
        assert_eq!(whole_datagrams(&bytes), None);
    }

    #[test]
    fn payloads_have_the_context_zero() {
        assert_eq!(udp_payload(b"\0abc"), Ok(Some(&b"abc"[..])));
        assert_eq!(udp_payload(b"\0"), Ok(Some(&b""[..])));
        assert_eq!(udp_payload(b"\x02abc"), Ok(None));
        assert_eq!(udp_payload(b""), Err(BadCapsule::NoContext));
        assert_eq!(udp_payload(b"\x40"), Err(BadCapsule::NoContext));
    }

    #[test]
    fn a_datagram_beyond_udp_is_refused_before_its_bytes() {
        let mut header = Vec::new();
        varint::put(DATAGRAM, &mut header);
        varint::put(DATAGRAM_BYTES as u64 + 1, &mut header);
        assert_eq!(CapsuleReader::default().read(&header, |_| {}), Err(BadCapsule::TooLarge));
    }
}
