//! Connections in cleartext that other machines can read. Connections to this machine need no warning.

use std::net::IpAddr;

/// Returns true if connections to a host leave this machine: it is neither `localhost` nor a loopback address. An IPv6
/// address may have brackets.
pub fn is_remote(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    !host.eq_ignore_ascii_case("localhost") && !host.parse::<IpAddr>().is_ok_and(is_loopback)
}

/// Returns true if a URL is `http` to another machine. A text without a scheme is `host:port`, optionally with a path.
pub fn is_exposed(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let host = match place.split_once(']') {
        Some((address, _)) => address,
        None => place.split(':').next().unwrap_or_default(),
    };
    scheme.eq_ignore_ascii_case("http") && is_remote(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_no_network() {
        let check = |host: &str, expected: bool| assert_eq!(is_remote(host), expected, "{host}");
        check("localhost", false);
        check("LocalHost", false);
        check("127.0.0.1", false);
        check("127.8.0.1", false);
        check("::1", false);
        check("[::1]", false);
        check("::ffff:127.0.0.1", false);
        check("10.0.0.1", true);
        check("0.0.0.0", true);
        check("localhost.example", true);
        check("127.0.0.1.example", true);
        check("2001:db8::1", true);
    }

    #[test]
    fn cleartext_to_other_machines_is_exposed() {
        let check = |url: &str, expected: bool| assert_eq!(is_exposed(url), expected, "{url}");
        check("http://a.example/path", true);
        check("HTTP://a.example", true);
        check("https://a.example", false);
        check("http://127.0.0.1:9000/a:b", false);
        check("http://localhost?a=http://b", false);
        check("http://user:word@[::1]:80/", false);
        check("http://127.0.0.1@a.example/", true);
        check("http://[2001:db8::1]", true);
        check("127.0.0.1:4318", false);
        check("a.example:4318", true);
    }
}
