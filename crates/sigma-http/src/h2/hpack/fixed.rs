//! The static table (RFC 7541 appendix A), and field names as numbers.

use crate::HeaderId;

/// A field of the static table; the value is empty if only the name is given.
pub(super) struct Fixed {
    pub(super) name: &'static [u8],
    pub(super) value: &'static [u8],
    pub(super) id: HeaderId,
}

/// The pseudo-fields of a request (RFC 9113 §8.3.1, RFC 8441 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pseudo {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:protocol`
    Protocol,
}

#[rustfmt::skip]
const LIST: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""),
    ("content-length", ""), ("content-location", ""), ("content-range", ""), ("content-type", ""),
    ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
];

/// The number of fields in the static table, whose indices begin with one.
pub(super) const COUNT: usize = LIST.len();

static FIELDS: [Fixed; COUNT] = fields();

/// Returns the field of an index, which begins with one.
pub(super) fn field(index: usize) -> Option<&'static Fixed> {
    FIELDS.get(index.wrapping_sub(1))
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

/// A field name as a number, so that most names are compared and hashed as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u8);

impl Key {
    /// Any name without a number.
    pub(super) const OTHER: Key = Key(0);
    pub(super) const AUTHORITY: Key = Key::fixed(":authority");
    pub(super) const METHOD: Key = Key::fixed(":method");
    pub(super) const PATH: Key = Key::fixed(":path");
    pub(super) const SCHEME: Key = Key::fixed(":scheme");
    pub(super) const STATUS: Key = Key::fixed(":status");
    pub(super) const PROTOCOL: Key = Key(PROTOCOL);
    pub(super) const ACCEPT_ENCODING: Key = Key::fixed("accept-encoding");
    pub(super) const AUTHORIZATION: Key = Key::fixed("authorization");
    pub(super) const COOKIE: Key = Key::fixed("cookie");
    pub(super) const PROXY_AUTHORIZATION: Key = Key::fixed("proxy-authorization");
    pub(super) const SET_COOKIE: Key = Key::fixed("set-cookie");

    const fn fixed(name: &str) -> Key {
        Key(index_of(name))
    }

    /// Returns the number of a regular field's name, in any case; `id` is its [`HeaderId`].
    pub(super) fn of(id: HeaderId, name: &[u8]) -> Key {
        if id != HeaderId::Other {
            return Key(KEY_OF_ID[id as usize]);
        }
        let (Some(first), Some(last)) = (name.first(), name.last()) else { return Key::OTHER };
        let index = UNNAMED[place(name.len(), *first, *last)];
        match field(index.into()) {
            Some(fixed) if fixed.name == name || fixed.name.eq_ignore_ascii_case(name) => Key(index),
            _ => Key::OTHER,
        }
    }

    /// Returns the static index of the name; zero without one.
    pub(super) fn index(self) -> usize {
        if usize::from(self.0) <= COUNT { self.0.into() } else { 0 }
    }

    /// Returns the number itself; zero for names without one.
    pub(super) fn number(self) -> u8 {
        self.0
    }
}

/// After the static table: `:protocol`, then the names of other [`HeaderId`]s.
const PROTOCOL: u8 = COUNT as u8 + 1;
const IDS: u8 = PROTOCOL + 1;

/// The numbers of known names.
static KEY_OF_ID: [u8; HeaderId::IDS.len()] = key_of_id();

const fn key_of_id() -> [u8; HeaderId::IDS.len()] {
    let mut keys = [0; HeaderId::IDS.len()];
    let mut at = 0;
    while at < keys.len() {
        let index = index_of(HeaderId::NAMES[at]);
        keys[at] = if index == 0 { IDS + at as u8 } else { index };
        at += 1;
    }
    keys
}

/// Returns the first index of a name in the static table; zero if it is not there.
const fn index_of(name: &str) -> u8 {
    let mut at = 0;
    while at < COUNT {
        if LIST[at].0.as_bytes().eq_ignore_ascii_case(name.as_bytes()) {
            return at as u8 + 1;
        }
        at += 1;
    }
    0
}

/// Static indices of the regular names without a [`HeaderId`], each at its [`place`].
static UNNAMED: [u8; 64] = unnamed();

/// A perfect hash of these names, independent of case.
const fn place(length: usize, first: u8, last: u8) -> usize {
    (20 * length + 6 * (last & 0x1f) as usize + (first & 0x1f) as usize) % 64
}

const fn unnamed() -> [u8; 64] {
    let mut places = [0; 64];
    let mut at = 0;
    while at < COUNT {
        let name = LIST[at].0.as_bytes();
        if name[0] != b':' && matches!(id_of(LIST[at].0), HeaderId::Other) {
            let place = place(name.len(), name[0], name[name.len() - 1]);
            assert!(places[place] == 0, "two names at one place: choose other factors");
            places[place] = at as u8 + 1;
        }
        at += 1;
    }
    places
}
