//! The static table (RFC 9204, appendix A), and the search for names in it.

use crate::HeaderId;

/// A field of the static table; the value is empty if only the name is given.
pub(super) struct Fixed {
    pub(super) name: &'static [u8],
    pub(super) value: &'static [u8],
    pub(super) id: HeaderId,
}

#[rustfmt::skip]
const LIST: [(&str, &str); 99] = [
    (":authority", ""), (":path", "/"), ("age", "0"), ("content-disposition", ""), ("content-length", "0"),
    ("cookie", ""), ("date", ""), ("etag", ""), ("if-modified-since", ""), ("if-none-match", ""),
    ("last-modified", ""), ("link", ""), ("location", ""), ("referer", ""), ("set-cookie", ""),
    (":method", "CONNECT"), (":method", "DELETE"), (":method", "GET"), (":method", "HEAD"),
    (":method", "OPTIONS"), (":method", "POST"), (":method", "PUT"), (":scheme", "http"), (":scheme", "https"),
    (":status", "103"), (":status", "200"), (":status", "304"), (":status", "404"), (":status", "503"),
    ("accept", "*/*"), ("accept", "application/dns-message"), ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"), ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"), ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"), ("cache-control", "max-age=2592000"), ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"), ("cache-control", "no-store"), ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"), ("content-encoding", "gzip"), ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"), ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"), ("content-type", "image/gif"),
    ("content-type", "image/jpeg"), ("content-type", "image/png"), ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"), ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"), ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"), ("vary", "accept-encoding"),
    ("vary", "origin"), ("x-content-type-options", "nosniff"), ("x-xss-protection", "1; mode=block"),
    (":status", "100"), (":status", "204"), (":status", "206"), (":status", "302"), (":status", "400"),
    (":status", "403"), (":status", "421"), (":status", "425"), (":status", "500"), ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"), ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"), ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"), ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"), ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"), ("access-control-request-method", "post"), ("alt-svc", "clear"),
    ("authorization", ""), ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"), ("expect-ct", ""), ("forwarded", ""), ("if-range", ""), ("origin", ""),
    ("purpose", "prefetch"), ("server", ""), ("timing-allow-origin", "*"), ("upgrade-insecure-requests", "1"),
    ("user-agent", ""), ("x-forwarded-for", ""), ("x-frame-options", "deny"), ("x-frame-options", "sameorigin"),
];

/// The number of fields in the static table.
const COUNT: usize = LIST.len();

static FIELDS: [Fixed; COUNT] = fields();

/// Returns the field of an index.
pub(super) fn field(index: usize) -> Option<&'static Fixed> {
    FIELDS.get(index)
}

const fn fields() -> [Fixed; COUNT] {
    let mut fields = [const { Fixed { name: b"", value: b"", id: HeaderId::Other } }; COUNT];
    let mut at = 0;
    while at < COUNT {
        let (name, value) = LIST[at];
        fields[at] = Fixed { name: name.as_bytes(), value: value.as_bytes(), id: id_of(name) };
        at += 1;
    }
    fields
}

/// [`HeaderId::of`] at compile time.
const fn id_of(name: &str) -> HeaderId {
    let mut at = 0;
    while at < HeaderId::IDS.len() {
        if HeaderId::NAMES[at].as_bytes().eq_ignore_ascii_case(name.as_bytes()) {
            return HeaderId::IDS[at];
        }
        at += 1;
    }
    HeaderId::Other
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableMatch {
    /// The index of the whole field
    Field(usize),
    /// An index of its name
    Name(usize),
    /// Not even the name
    Nothing,
}

/// Finds a field, whose name may have any case.
pub(super) fn find(name: &[u8], value: &[u8]) -> TableMatch {
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return TableMatch::Nothing };
    let mut found = TableMatch::Nothing;
    let mut next = FIRST[place(name.len(), *first, *last)];
    while let Some(fixed) = FIELDS.get(usize::from(next)) {
        if fixed.name.len() == name.len() && fixed.name.eq_ignore_ascii_case(name) {
            if fixed.value == value {
                return TableMatch::Field(next.into());
            }
            if found == TableMatch::Nothing {
                found = TableMatch::Name(next.into());
            }
        }
        next = AFTER[usize::from(next)];
    }
    found
}

const PLACES: usize = 256;

/// The end of a chain.
const NONE: u8 = u8::MAX;

/// The first index with a hash.
static FIRST: [u8; PLACES] = chains().0;

/// The next index with the same hash.
static AFTER: [u8; COUNT] = chains().1;

/// A hash of names, independent of case.
const fn place(length: usize, first: u8, last: u8) -> usize {
    (17 * length + 5 * (last & 0x1f) as usize + (first & 0x1f) as usize) % PLACES
}

const fn chains() -> ([u8; PLACES], [u8; COUNT]) {
    let (mut firsts, mut after) = ([NONE; PLACES], [NONE; COUNT]);
    let mut at = COUNT;
    while at > 0 {
        at -= 1;
        let name = LIST[at].0.as_bytes();
        let place = place(name.len(), name[0], name[name.len() - 1]);
        after[at] = firsts[place];
        firsts[place] = at as u8;
    }
    (firsts, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_name_is_found() {
        for (index, fixed) in FIELDS.iter().enumerate() {
            assert_eq!(find(fixed.name, fixed.value), TableMatch::Field(index));
            let upper = fixed.name.to_ascii_uppercase();
            let TableMatch::Name(found) = find(&upper, b"no such value") else { panic!("{index}") };
            assert_eq!(FIELDS[found].name, fixed.name);
            assert!(found <= index);
        }
        assert_eq!((find(b"x-other", b""), find(b"", b"")), (TableMatch::Nothing, TableMatch::Nothing));
    }
}
