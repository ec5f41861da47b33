//! The client's address from proxies: in `X-Forwarded-For`, `Forwarded` (RFC 7239), or a field with one address.

use std::net::IpAddr;

use sigma_http::header::list_items;

/// Characters of an invalid address in a message.
const SHOWN_CHARS: usize = 64;

/// Returns the elements of an `X-Forwarded-For`. Empty ones do not count (RFC 9110 §5.6.1.2).
pub fn forwarded_for(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    list_items(line)
}

/// Returns the `for` parameter of each element of a `Forwarded` (RFC 7239 §4); empty if missing.
pub fn forwarded(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let elements = split_unquoted(line, b',').into_iter().filter(|element| !element.trim_ascii().is_empty());
    elements.map(|element| {
        let pairs = split_unquoted(element, b';').into_iter();
        let mut values = pairs.filter_map(|pair| {
            let at = pair.iter().position(|b| *b == b'=')?;
            let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
            name.eq_ignore_ascii_case(b"for").then_some(value)
        });
        let value = values.next().unwrap_or_default();
        // An address has no escapes.
        value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
    })
}

/// Splits a text at separators outside quotes.
fn split_unquoted(text: &[u8], separator: u8) -> Vec<&[u8]> {
    let (mut parts, mut begin, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if *byte == separator && !quoted => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// Returns the client's element of a chain whose last element the peer added: the last one that is not a trusted
/// proxy, or the first if all are trusted. Returns None for an empty chain.
pub fn first_untrusted<'a>(
    chain: impl DoubleEndedIterator<Item = &'a [u8]>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<&'a [u8]> {
    let mut first = None;
    for element in chain.rev() {
        first = Some(element);
        if !parse(element).is_ok_and(|(addr, _)| is_trusted(addr)) {
            break;
        }
    }
    first
}

/// Parses `1.2.3.4`, `1.2.3.4:80`, `[::1]:80`, `[::1]` or `::1`.
///
/// # Errors
/// Returns an error, with the beginning of the text in one line, if the text is not an address.
pub fn parse(text: &[u8]) -> Result<(IpAddr, Option<u16>), String> {
    let text = String::from_utf8_lossy(text);
    // The text comes from a client: it is escaped for the log and cut to the length of an address.
    let bad = || format!("bad address: {}", text.escape_debug().take(SHOWN_CHARS).collect::<String>());
    let (addr, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (addr, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest.strip_prefix(':') {
                None if rest.is_empty() => (addr, None),
                None => return Err(bad()),
                port => (addr, port),
            }
        }
        None => match text.split_once(':') {
            // More than one colon: an IPv6 address without a port.
            Some((_, rest)) if rest.contains(':') => (&*text, None),
            Some((addr, port)) => (addr, Some(port)),
            None => (&*text, None),
        },
    };
    let addr: IpAddr = addr.parse().map_err(|_| bad())?;
    let port = match port {
        None => None,
        Some(digits) => match digits.parse() {
            Ok(port) if port > 0 => Some(port),
            _ => {
                let shown: String = digits.escape_debug().take(SHOWN_CHARS).collect();
                return Err(format!("bad port: {shown}"));
            }
        },
    };
    Ok((addr, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'a>(elements: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
        elements.map(|element| String::from_utf8_lossy(element).into_owned()).collect()
    }

    #[test]
    fn elements_are_parsed() {
        assert_eq!(texts(forwarded_for(b" 1.1.1.1 ,2.2.2.2:80, ")), ["1.1.1.1", "2.2.2.2:80"]);
        assert_eq!(texts(forwarded_for(b",1.1.1.1,,2.2.2.2")), ["1.1.1.1", "2.2.2.2"]);
        let line = br#"for=1.1.1.1;proto=https,, For="[2001:db8::1]:80";by="a,b;for=9.9.9.9", proto=http"#;
        assert_eq!(texts(forwarded(line)), ["1.1.1.1", "[2001:db8::1]:80", ""]);
    }

    #[test]
    fn a_chain_is_walked_over_trusted_proxies() {
        let check = |chain: &str, expected: Option<&str>| {
            let is_trusted = |addr: IpAddr| addr.to_string().starts_with("10.");
            let elements: Vec<&[u8]> = forwarded_for(chain.as_bytes()).collect();
            let found = first_untrusted(elements.into_iter(), is_trusted);
            assert_eq!(found, expected.map(str::as_bytes), "{chain}");
        };
        check("1.1.1.1, 2.2.2.2, 10.0.0.1", Some("2.2.2.2"));
        check("10.0.0.2, 10.0.0.1", Some("10.0.0.2"));
        check("1.1.1.1, nonsense, 10.0.0.1", Some("nonsense"));
        check("1.1.1.1, , 10.0.0.1", Some("1.1.1.1"));
        let none: [&[u8]; 0] = [];
        assert_eq!(first_untrusted(none.into_iter(), |_| true), None);
    }

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        for (text, expected) in [
            ("1.2.3.4", ("1.2.3.4", None)),
            ("1.2.3.4:80", ("1.2.3.4", Some(80))),
            ("[::1]:80", ("::1", Some(80))),
            ("[::1]", ("::1", None)),
            ("2001:db8::1", ("2001:db8::1", None)),
        ] {
            let (addr, port) = expected;
            assert_eq!(parse(text.as_bytes()), Ok((addr.parse().unwrap(), port)), "{text}");
        }
        for bad in
            ["", "unknown", "_hidden", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:a", "[::1", "[::1]80", "1.2.3"]
        {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let long = parse(&[b'\n'; 1000]).unwrap_err();
        assert!(!long.contains('\n') && long.len() < 100, "{long}");
    }
}
