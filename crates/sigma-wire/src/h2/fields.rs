//! Fields between the codec's map and the message model.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use sigma_http::{HeaderId, Headers};

/// Names and values of a map, as [`sigma_http::parts`] takes them.
pub(super) fn fields(map: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    map.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// The fields that `keep` admits, without those that have no place in this version
/// (RFC 9113 §8.2.2).
pub(super) fn field_map(headers: &Headers, keep: impl Fn(HeaderId) -> bool) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(headers.len());
    // One piece of memory for all values instead of one each.
    let values: Vec<u8> = headers.iter().flat_map(|(_, value)| value.iter().copied()).collect();
    let values = Bytes::from(values);
    let mut at = 0;
    for (name, value) in headers.iter() {
        let range = at..at + value.len();
        at = range.end;
        let id = HeaderId::of(name);
        let of_connection = matches!(
            id,
            HeaderId::Connection
                | HeaderId::KeepAlive
                | HeaderId::ProxyConnection
                | HeaderId::TransferEncoding
                | HeaderId::Upgrade
                | HeaderId::Te
        );
        if of_connection || !keep(id) {
            continue;
        }
        // The parsers admit nothing that these refuse, and values of our own are plain text; a
        // field that is neither is better left out than the whole message.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(values.slice(range)))
        {
            map.append(name, value);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_connection_stays_behind() {
        let mut headers = Headers::default();
        for (name, value) in [
            ("Host", "h"),
            ("Connection", "close"),
            ("Keep-Alive", "5"),
            ("Proxy-Connection", "x"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("TE", "trailers"),
            ("X-A", "1"),
            ("x-a", "2"),
        ] {
            headers.append(name, value.as_bytes());
        }
        let map = field_map(&headers, |id| id != HeaderId::Host);
        let got: Vec<(&[u8], &[u8])> = fields(&map).collect();
        assert_eq!(got, [(&b"x-a"[..], &b"1"[..]), (b"x-a", b"2")]);
    }
}
