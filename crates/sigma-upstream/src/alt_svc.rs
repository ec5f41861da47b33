//! Announcements of HTTP/3 by nodes: the field `Alt-Svc` (RFC 7838 §3).

/// The time for which an announcement counts that states none.
const DEFAULT_AGE_S: u64 = 86_400;

/// An announcement of HTTP/3 on the announcing host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The UDP port.
    pub(crate) port: u16,
    /// Seconds for which it counts.
    pub(crate) age_s: u64,
}

/// Returns the first announcement of HTTP/3 for the host `name` itself. Another host is never used: the node's address
/// comes from the configuration. None for `clear` as well: a field replaces all earlier ones.
pub(crate) fn parse(value: &[u8], name: &str) -> Option<Announcement> {
    let text = std::str::from_utf8(value).ok()?;
    split(text, ',').find_map(|entry| announcement(entry, name))
}

fn announcement(entry: &str, name: &str) -> Option<Announcement> {
    let mut parts = split(entry, ';');
    let authority = parts.next()?.trim().strip_prefix("h3=")?.strip_prefix('"')?.strip_suffix('"')?;
    let (host, port) = authority.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if !(host.is_empty() || host.eq_ignore_ascii_case(name)) {
        return None;
    }
    let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|port| is_number && *port > 0)?;
    let age = parts.find_map(|parameter| parameter.trim().strip_prefix("ma="));
    // An invalid age makes the whole announcement doubtful.
    let age_s = age.map_or(Some(DEFAULT_AGE_S), |age| age.trim_matches('"').parse().ok())?;
    (age_s > 0).then_some(Announcement { port, age_s })
}

/// Splits a text at `separator` outside of quotes.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |c| {
        is_quoted ^= c == '"';
        c == separator && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http3_on_the_same_host_counts() {
        let check = |value: &str, expected: Option<(u16, u64)>| {
            let expected = expected.map(|(port, age_s)| Announcement { port, age_s });
            assert_eq!(parse(value.as_bytes(), "a.test"), expected, "{value}");
        };
        check("h3=\":443\"; ma=3600", Some((443, 3600)));
        check("h3=\":443\"", Some((443, 86_400)));
        check("h2=\":444\", h3-29=\":445\", h3=\":446\";persist=1;ma=5", Some((446, 5)));
        check("h3=\"A.test:8443\" ; ma=\"7\"", Some((8443, 7)));
        check("h3=\"b.test:443\"; ma=3600, h3=\":1\"; ma=2", Some((1, 2)));
        check("h2=\"a,b:1\", h3=\":9\"; x=\"a;b\"; ma=3", Some((9, 3)));
        for none in [
            "",
            "clear",
            "h3",
            "h3=:443",
            "h3=\"443\"",
            "h3=\":\"",
            "h3=\":+1\"",
            "h3=\":0\"",
            "h3=\":65536\"",
            "h3=\":443\"; ma=0",
            "h3=\":443\"; ma=soon",
            "h3-29=\":443\"",
            "H3=\":443\"",
            "h3=\"b.test:443\"",
            "h3=\"",
        ] {
            check(none, None);
        }
        assert_eq!(parse(b"h3=\"[::1]:7\"", "::1").map(|found| found.port), Some(7));
        assert_eq!(parse(b"h3=\":7\"\xff", "a.test"), None);
    }
}
