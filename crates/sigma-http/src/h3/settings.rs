//! SETTINGS frames (RFC 9114 §7.2.4).

use super::error::{Broken, ErrorCode};
use super::frame::setting;
use super::varint;

/// The most settings in a frame; a peer has about ten.
const SETTINGS_MAX: usize = 64;

/// The announced settings of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    /// The capacity of its dynamic table.
    pub table_bytes: u64,
    /// Sections that may wait for its dynamic table.
    pub blocked_streams: u64,
    /// The largest field section that it takes.
    pub field_section_bytes: u64,
    /// It supports extended CONNECT.
    pub extended_connect: bool,
    /// It takes datagrams (RFC 9297).
    pub datagrams: bool,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            table_bytes: 0,
            blocked_streams: 0,
            field_section_bytes: varint::MAX,
            extended_connect: false,
            datagrams: false,
        }
    }
}

impl PeerSettings {
    /// Parses the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// Returns the broken rule.
    pub fn parse(payload: &[u8]) -> Result<PeerSettings, Broken> {
        let wrong = |reason| Err(Broken::connection(ErrorCode::SETTINGS_ERROR, reason));
        let mut settings = PeerSettings::default();
        let mut seen = Vec::new();
        let mut rest = payload;
        while !rest.is_empty() {
            let Some((id, value, length)) = pair(rest) else {
                return Err(Broken::connection(ErrorCode::FRAME_ERROR, "SETTINGS end within a setting"));
            };
            rest = &rest[length..];
            if setting::is_of_http2(id) {
                return wrong("a setting of HTTP/2");
            }
            if seen.contains(&id) {
                return wrong("a setting occurs twice");
            }
            if seen.len() == SETTINGS_MAX {
                return Err(Broken::connection(ErrorCode::EXCESSIVE_LOAD, "too many settings"));
            }
            seen.push(id);
            match id {
                setting::QPACK_MAX_TABLE_CAPACITY => settings.table_bytes = value,
                setting::MAX_FIELD_SECTION_SIZE => settings.field_section_bytes = value,
                setting::QPACK_BLOCKED_STREAMS => settings.blocked_streams = value,
                setting::ENABLE_CONNECT_PROTOCOL if value <= 1 => settings.extended_connect = value == 1,
                setting::ENABLE_CONNECT_PROTOCOL => {
                    return wrong("ENABLE_CONNECT_PROTOCOL is not 0 or 1");
                }
                setting::H3_DATAGRAM if value <= 1 => settings.datagrams = value == 1,
                setting::H3_DATAGRAM => return wrong("H3_DATAGRAM is not 0 or 1"),
                // Unknown settings are ignored.
                _ => {}
            }
        }
        Ok(settings)
    }
}

fn pair(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (id, first) = varint::take(bytes)?;
    let (value, second) = varint::take(&bytes[first..])?;
    Some((id, value, first + second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(u64, u64)]) -> Result<PeerSettings, u64> {
        let mut payload = Vec::new();
        pairs.iter().for_each(|(id, value)| {
            varint::put(*id, &mut payload);
            varint::put(*value, &mut payload);
        });
        PeerSettings::parse(&payload).map_err(|broken| broken.code.0)
    }

    #[test]
    fn settings_are_parsed() {
        assert_eq!(parse(&[]), Ok(PeerSettings::default()));
        let expected = PeerSettings {
            table_bytes: 4096,
            blocked_streams: 16,
            field_section_bytes: 1 << 20,
            extended_connect: true,
            datagrams: true,
        };
        assert_eq!(parse(&[(1, 4096), (6, 1 << 20), (7, 16), (8, 1), (0x33, 1), (0x21, 9)]), Ok(expected));
        for id in [0, 2, 3, 4, 5] {
            assert_eq!(parse(&[(id, 1)]), Err(0x109), "{id}");
        }
        assert_eq!(
            (parse(&[(6, 1), (6, 1)]), parse(&[(8, 2)]), parse(&[(0x33, 2)])),
            (Err(0x109), Err(0x109), Err(0x109))
        );
        assert_eq!(parse(&(100..200).map(|id| (id, 0)).collect::<Vec<_>>()), Err(0x107));
        assert_eq!(PeerSettings::parse(&[6]).map_err(|broken| broken.code.0), Err(0x106));
    }
}
