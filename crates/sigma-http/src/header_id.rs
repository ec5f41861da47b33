//! Names of fields that the gateway itself uses.

macro_rules! header_ids {
    ($($name:ident $text:literal;)*) => {
        /// Field names that the gateway itself uses; all others are [`HeaderId::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum HeaderId {
            $(#[doc = $text] $name,)*
            /// A name without a meaning for the gateway.
            Other,
        }

        impl HeaderId {
            pub(crate) const NAMES: &[&str] = &[$($text,)*];
            /// Each name as a line begins with it.
            const LINE_STARTS: &[&str] = &[$(concat!($text, ": "),)*];
            pub(crate) const IDS: &[HeaderId] = &[$(HeaderId::$name,)*];
        }
    };
}

header_ids! {
    Host "Host";
    Connection "Connection";
    ContentLength "Content-Length";
    TransferEncoding "Transfer-Encoding";
    Te "TE";
    Trailer "Trailer";
    Upgrade "Upgrade";
    KeepAlive "Keep-Alive";
    ProxyConnection "Proxy-Connection";
    ProxyAuthenticate "Proxy-Authenticate";
    ProxyAuthorization "Proxy-Authorization";
    Expect "Expect";
    XRealIp "X-Real-IP";
    XForwardedFor "X-Forwarded-For";
    XForwardedProto "X-Forwarded-Proto";
    XForwardedHost "X-Forwarded-Host";
    XForwardedPort "X-Forwarded-Port";
    XForwardedClientCert "X-Forwarded-Client-Cert";
    ClientCert "Client-Cert";
    ClientCertChain "Client-Cert-Chain";
    Forwarded "Forwarded";
    ContentType "Content-Type";
    Accept "Accept";
    AcceptEncoding "Accept-Encoding";
    Authorization "Authorization";
    Cookie "Cookie";
    UserAgent "User-Agent";
    Referer "Referer";
    Server "Server";
    Date "Date";
    Location "Location";
    Allow "Allow";
    Via "Via";
    CdnLoop "CDN-Loop";
    MaxForwards "Max-Forwards";
    Traceparent "traceparent";
    Tracestate "tracestate";
    Baggage "baggage";
    Proxy "Proxy";
}

impl HeaderId {
    /// Classifies a field name, in any case.
    #[inline]
    pub fn of(name: &[u8]) -> HeaderId {
        let [.., before_last, _] = name else { return HeaderId::Other };
        let slot = slot(name.len(), name[0], *before_last);
        // An empty slot has the length 0.
        let known = &KNOWN[slot];
        if known.len as usize == name.len() && known.words.are_of(name) { known.id } else { HeaderId::Other }
    }

    /// Returns the name in its usual spelling; empty for [`HeaderId::Other`].
    pub fn name(self) -> &'static str {
        HeaderId::NAMES.get(self as usize).copied().unwrap_or("")
    }

    /// Returns the name, and the separator before the value.
    pub(crate) fn line_start(self) -> &'static str {
        HeaderId::LINE_STARTS.get(self as usize).copied().unwrap_or(LINE_COLON)
    }

    pub(crate) const fn bit(self) -> u64 {
        1 << (self as u8)
    }
}

/// The properties of a field name that are found in one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameTraits {
    pub(crate) id: HeaderId,
    /// The name has a character that some servers take for `-`, which no known one has.
    pub(crate) is_varied: bool,
    /// The bit of a name without an id; see [`mark`]. 0 for a known name.
    pub(crate) mark: u64,
}

impl NameTraits {
    /// Returns the traits of a known name.
    #[inline]
    pub(crate) fn known(id: HeaderId) -> NameTraits {
        NameTraits { id, is_varied: false, mark: 0 }
    }

    /// Returns the traits of any name.
    pub(crate) fn of(name: &[u8]) -> NameTraits {
        match HeaderId::of(name) {
            HeaderId::Other => NameTraits::other(name),
            id => NameTraits::known(id),
        }
    }

    /// Returns the traits of a name without an id.
    #[inline]
    pub(crate) fn other(name: &[u8]) -> NameTraits {
        NameTraits { id: HeaderId::Other, is_varied: is_varied(name), mark: mark(name) }
    }
}

/// Returns one of 64 bits, the same for a name in any case. A list that has no name with this bit does not have the
/// name.
#[inline]
pub(crate) fn mark(name: &[u8]) -> u64 {
    let slot = match name {
        [first, .., before_last, _] => slot(name.len(), *first, *before_last),
        _ => name.len(),
    };
    1 << (slot % 64)
}

/// Returns true if a name has a character that some servers read as `-`.
pub(crate) fn is_varied(name: &[u8]) -> bool {
    // Without a way out in the middle, so that several bytes are compared at a time.
    let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() | (*byte == b'-');
    !name.iter().fold(true, |usual, byte| usual & is_usual(byte))
}

/// A set of known names.
#[derive(Debug, Clone, Copy)]
pub struct HeaderIds(u64);

impl HeaderIds {
    /// Returns the set of `ids`.
    pub const fn of(ids: &[HeaderId]) -> HeaderIds {
        let (mut bits, mut at) = (0, 0);
        while at < ids.len() {
            bits |= ids[at].bit() & ALL_KNOWN;
            at += 1;
        }
        HeaderIds(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn contains(self, id: HeaderId) -> bool {
        self.0 & id.bit() != 0
    }
}

/// The separator of name and value.
pub(crate) const LINE_COLON: &str = ": ";

/// The bits of all known names.
pub(crate) const ALL_KNOWN: u64 = HeaderId::Other.bit() - 1;

const SLOTS: usize = 128;

/// A perfect hash of the known names, by length and two letters, independent of case.
const fn slot(len: usize, first: u8, before_last: u8) -> usize {
    (len + (first & 0x1f) as usize * 41 + (before_last & 0x1f) as usize * 5) % SLOTS
}

/// A known name.
#[derive(Clone, Copy)]
struct KnownHeader {
    words: Words,
    len: u8,
    id: HeaderId,
}

/// The text of a known name, for a comparison of eight bytes at a time.
#[derive(Clone, Copy)]
struct Words {
    /// In lower case.
    lower: [u64; 3],
    /// The case bit of each letter: a letter is the same with and without it, and no other byte becomes the compared
    /// letter by it.
    case: [u64; 3],
}

impl Words {
    /// Returns true if they match `name`, which has their length.
    #[inline]
    fn are_of(&self, name: &[u8]) -> bool {
        let words = words(name);
        let differing = |n: usize| (words[n] | self.case[n]) ^ self.lower[n];
        differing(0) | differing(1) | differing(2) == 0
    }
}

/// Returns the bytes of a name as numbers; numbers of names from 4 bytes on may overlap. Some bytes are omitted for a
/// name that is longer than any known one.
#[inline]
const fn words(name: &[u8]) -> [u64; 3] {
    if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        return match name.first_chunk::<16>() {
            Some(both) => [first, (u128::from_le_bytes(*both) >> 64) as u64, last],
            None => [first, last, 0],
        };
    }
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return [u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32, 0, 0];
    }
    let mut word = 0;
    let mut at = 0;
    while at < name.len() {
        word = word << 8 | name[at] as u64;
        at += 1;
    }
    [word, 0, 0]
}

/// Known names by their slot; built at compile time.
static KNOWN: [KnownHeader; SLOTS] = build_known();

const fn build_known() -> [KnownHeader; SLOTS] {
    let none = Words { lower: [0; 3], case: [0; 3] };
    let mut table = [KnownHeader { words: none, len: 0, id: HeaderId::Other }; SLOTS];
    let mut i = 0;
    while i < HeaderId::NAMES.len() {
        let name = HeaderId::NAMES[i].as_bytes();
        let len = name.len();
        let (mut lower, mut case) = ([0; 24], [0; 24]);
        let mut at = 0;
        while at < len {
            lower[at] = name[at].to_ascii_lowercase();
            case[at] = if name[at].is_ascii_alphabetic() { 0x20 } else { 0 };
            at += 1;
        }
        let place = &mut table[slot(len, name[0], name[len - 2])];
        assert!(place.len == 0, "two known names have the same slot: choose another factor");
        let (lower, case) = (words(lower.split_at(len).0), words(case.split_at(len).0));
        *place = KnownHeader { words: Words { lower, case }, len: len as u8, id: HeaderId::IDS[i] };
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for id in HeaderId::IDS {
            assert_eq!(HeaderId::of(id.name().to_ascii_uppercase().as_bytes()), *id);
            assert_eq!(HeaderId::of(id.name().to_ascii_lowercase().as_bytes()), *id);
        }
        for name in ["X-Other", "", "T", "X-Forwarded-Fort", "X-A-Name-Longer-Than-Any-Known-One"] {
            assert_eq!(HeaderId::of(name.as_bytes()), HeaderId::Other, "{name}");
        }
    }

    /// A byte that differs by the case bit, or by any other bit, makes another name, unless both are letters.
    #[test]
    fn no_other_name_matches_a_known_one() {
        for id in HeaderId::IDS {
            let name = id.name().as_bytes();
            for (at, byte) in (0..name.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut other = name.to_vec();
                other[at] = byte;
                let known = HeaderId::IDS.iter().find(|id| id.name().as_bytes().eq_ignore_ascii_case(&other));
                let expected = known.copied().unwrap_or(HeaderId::Other);
                assert_eq!(HeaderId::of(&other), expected, "{}", other.escape_ascii());
            }
        }
    }
}
