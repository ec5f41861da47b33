//! The allowed bytes in each part of an HTTP/1 message.

use crate::swar::{find_control, is_visible_without_hash};

const TOKEN: u8 = 1;
const HOST: u8 = 2;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0usize;
    while byte < 256 {
        let b = byte as u8;
        let alnum = b.is_ascii_alphanumeric();
        let mut class = 0;
        // RFC 9110 §5.6.2
        if alnum
            || matches!(
                b,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            )
        {
            class |= TOKEN;
        }
        // RFC 3986 §3.2.2 without userinfo; `is_authority` checks brackets and colons.
        if alnum
            || matches!(
                b,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b','
                    | b';'
                    | b'='
                    | b'%'
            )
        {
            class |= HOST;
        }
        table[byte] = class;
        byte += 1;
    }
    table
}

#[inline]
fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|b| CLASSES[usize::from(*b)] & class != 0)
}

/// Returns true for a non-empty token (RFC 9110 §5.6.2).
#[inline]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Returns the length of the token at the front of `bytes`.
#[inline]
pub(super) fn token_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| CLASSES[usize::from(*b)] & TOKEN == 0).unwrap_or(bytes.len())
}

/// Returns true if a field value may have these bytes: visible, space, tab and obs-text (RFC 9110 §5.5).
#[inline]
pub fn is_value(bytes: &[u8]) -> bool {
    find_control(bytes, 0) == bytes.len()
}

/// Returns true if a request target may have these bytes.
///
/// RFC 3986 allows fewer, but clients in the field send `|`, `"`, `{` and the like raw. These are unambiguous to
/// parsers; space, controls, `#` and non-ASCII are not.
#[inline]
pub fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && is_visible_without_hash(bytes)
}

/// Checks a port: at most 65535; empty for the default (RFC 3986 §3.2.3).
fn is_port(digits: &[u8]) -> bool {
    // A value over 65535 stays over it.
    let value = digits.iter().try_fold(0u32, |n, digit| {
        digit.is_ascii_digit().then(|| (n * 10 + u32::from(digit - b'0')).min(u32::from(u16::MAX) + 1))
    });
    value.is_some_and(|value| value <= u32::from(u16::MAX))
}

/// Checks `host`, `host:port`, `[v6]` or `[v6]:port` (RFC 3986 §3.2 without userinfo, which HTTP forbids).
pub fn is_authority(bytes: &[u8]) -> bool {
    let (host, rest) = if bytes.first() == Some(&b'[') {
        let Some(close) = memchr::memchr(b']', bytes) else { return false };
        let inner = &bytes[1..close];
        let v6 = !inner.is_empty() && inner.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
        if !v6 {
            return false;
        }
        (&bytes[..=close], &bytes[close + 1..])
    } else {
        let end = bytes.iter().position(|b| CLASSES[usize::from(*b)] & HOST == 0).unwrap_or(bytes.len());
        bytes.split_at(end)
    };
    let port_ok = match rest {
        [] => true,
        [b':', digits @ ..] => is_port(digits),
        _ => false,
    };
    !host.is_empty() && port_ok
}
