//! Which bytes may stand where in an HTTP/1 message.

const TOKEN: u8 = 1;
const VALUE: u8 = 2;
const TARGET: u8 = 4;
const HOST: u8 = 8;

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
        // RFC 9110 §5.5: visible, space, tab and obs-text.
        if b == b'\t' || (b >= 0x20 && b != 0x7f) {
            class |= VALUE;
        }
        // RFC 3986 allows less, but clients in the field send `|`, `"`, `{` and the like raw.
        // None of those is ambiguous to a parser; space, controls, `#` and non-ASCII are.
        if b > 0x20 && b < 0x7f && b != b'#' {
            class |= TARGET;
        }
        // RFC 3986 §3.2.2 without userinfo; brackets and colon are placed by `is_authority`.
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

/// A non-empty token (RFC 9110 §5.6.2).
#[inline]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Length of the token at the front of `bytes`.
#[inline]
pub(super) fn token_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| CLASSES[usize::from(*b)] & TOKEN == 0).unwrap_or(bytes.len())
}

/// Bytes that a field value may consist of (RFC 9110 §5.5).
#[inline]
pub fn is_value(bytes: &[u8]) -> bool {
    // Folding the classes keeps the loop free of branches, so that it vectorises.
    bytes.iter().fold(VALUE, |seen, b| seen & CLASSES[usize::from(*b)]) != 0
}

/// Bytes that a request target may consist of.
#[inline]
pub fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TARGET)
}

/// At most 65535; empty stands for the default (RFC 3986 §3.2.3).
fn is_port(digits: &[u8]) -> bool {
    let value = digits.iter().try_fold(0u16, |n, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    });
    value.is_some()
}

/// `host`, `host:port`, `[v6]` or `[v6]:port` (RFC 3986 §3.2 without userinfo, which HTTP forbids).
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
        let end = memchr::memchr(b':', bytes).unwrap_or(bytes.len());
        if !all(&bytes[..end], HOST) {
            return false;
        }
        (&bytes[..end], &bytes[end..])
    };
    let port_ok = match rest {
        [] => true,
        [b':', digits @ ..] => is_port(digits),
        _ => false,
    };
    !host.is_empty() && port_ok
}
