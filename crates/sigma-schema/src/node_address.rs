//! Addresses of nodes: `host[:port]`, `[v6]:port`, `unix:/path`.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// APISIX's text.
const UNBRACKETED: &str = "invalid configuration: IPv6 address must be enclosed with '[' and ']'";

/// Splits an IPv6 address without brackets from the port after its last colon, as APISIX reads `::1:1980`.
pub fn split_bare(text: &str) -> Option<(Ipv6Addr, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some((host.parse().ok()?, port))
}

/// Returns host and port of a list node. The host may contain the port if there is no separate port.
pub fn split_node(host: &str, port: Option<u16>) -> Result<(Cow<'_, str>, Option<u16>), String> {
    // In a list an IPv6 address without brackets is refused, as in APISIX.
    if port.is_some() || host.matches(':').count() > 1 && !host.starts_with('[') {
        return check_host(host).map(|()| (Cow::Borrowed(host), port));
    }
    split_address(host)
}

/// Splits `host[:port]`, `[v6]:port` or `unix:/path`. Brackets stay part of the host. An IPv6 address with a port but
/// without brackets gets brackets.
pub fn split_address(text: &str) -> Result<(Cow<'_, str>, Option<u16>), String> {
    if text.starts_with("unix:") {
        return match text.strip_prefix("unix:/") {
            Some(path) if !path.is_empty() => Ok((text.into(), None)),
            _ => Err(format!("`{text}` has no absolute path; write unix:/path")),
        };
    }
    if let Some((address, port)) = split_bare(text) {
        return Ok((format!("[{address}]").into(), Some(port)));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or_else(|| format!("`{text}` lacks the closing `]`"))? + 2;
            (&text[..end], &text[end..])
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if !host.starts_with('[') && port.matches(':').count() > 1 {
        return Err(UNBRACKETED.to_owned());
    }
    check_host(host)?;
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host.into(), None)),
        None => Err(format!("`{text}` has text after `]` that is not a port")),
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                Ok((host.into(), Some(port)))
            }
            _ => Err(format!("invalid port {digits}")),
        },
    }
}

/// Checks the host of a node: a name, an IPv4 address, or an IPv6 address in brackets.
pub fn check_host(host: &str) -> Result<(), String> {
    if let Some(path) = host.strip_prefix("unix:") {
        return match path.len() > 1 && path.starts_with('/') {
            true => Ok(()),
            false => Err(format!("`{host}` has no absolute path; write unix:/path")),
        };
    }
    if let Some(inside) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match inside.parse::<Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("`{host}` is not an IPv6 address")),
        };
    }
    if host.contains(':') {
        return Err(UNBRACKETED.to_owned());
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    match !host.is_empty() && host.len() <= 253 && host.bytes().all(allowed) {
        true => Ok(()),
        false => Err(format!("`{host}` is not a host name or address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split() {
        let check = |text: &str, expected: Option<(&str, Option<u16>)>| {
            let split = split_address(text).ok();
            assert_eq!(split.as_ref().map(|(host, port)| (&**host, *port)), expected, "{text}");
        };
        check("127.0.0.1:80", Some(("127.0.0.1", Some(80))));
        check("example.com", Some(("example.com", None)));
        check("[::1]:8080", Some(("[::1]", Some(8080))));
        check("[::1]", Some(("[::1]", None)));
        check("::1:1980", Some(("[::1]", Some(1980))));
        check("2001:db8::1:80", Some(("[2001:db8::1]", Some(80))));
        check("unix:/run/app.sock", Some(("unix:/run/app.sock", None)));
        for bad in [
            "", ":80", "a:0", "a:65536", "a:+1", "a:x", "a:", "::1", "[::1", "[x]:1", "[::1]80", "unix:",
            "unix:/", "unix:a", "a b",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn nodes_of_a_list_are_split() {
        let check = |host: &str, port: Option<u16>, expected: Option<(&str, Option<u16>)>| {
            let split = split_node(host, port).ok();
            assert_eq!(split.as_ref().map(|(host, port)| (&**host, *port)), expected, "{host} {port:?}");
        };
        check("127.0.0.1:1980", None, Some(("127.0.0.1", Some(1980))));
        check("[::1]:80", None, Some(("[::1]", Some(80))));
        check("a", Some(80), Some(("a", Some(80))));
        check("unix:/run/a", None, Some(("unix:/run/a", None)));
        check("127.0.0.1:1980", Some(80), None);
        check("::1", None, None);
        check("::1:1980", None, None);
        check("a:0", None, None);
    }
}
