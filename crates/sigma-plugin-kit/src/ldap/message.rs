//! Messages of LDAP (RFC 4511 §4).

use super::ber::{
    BOOLEAN, ENUMERATED, INTEGER, OCTETS, SEQUENCE, SET, element, expect, first, number, value,
};

/// Result codes (RFC 4511 §A.1) that are used here.
pub const SUCCESS: u32 = 0;
/// More entries than were requested.
pub const SIZE_LIMIT_EXCEEDED: u32 = 4;
/// There is no entry of this name.
pub const NO_SUCH_OBJECT: u32 = 32;
/// The name or the password is wrong.
pub const INVALID_CREDENTIALS: u32 = 49;

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
/// `[0]` of simple authentication, and of the name of an extended request.
const CONTEXT_0: u8 = 0x80;
/// `[3]` of a filter: an attribute that has a value.
const EQUALITY: u8 = 0xa3;

const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

fn message(id: u32, operation: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[&number(INTEGER, id)[..], operation].concat())
}

/// Writes simple authentication as `name`; both empty for an anonymous bind.
pub(super) fn bind(id: u32, name: &[u8], password: &[u8]) -> Vec<u8> {
    let parts = [number(INTEGER, 3), element(OCTETS, name), element(CONTEXT_0, password)];
    message(id, &element(BIND_REQUEST, &parts.concat()))
}

/// Requests TLS on this connection (RFC 4511 §4.14).
pub(super) fn start_tls(id: u32) -> Vec<u8> {
    message(id, &element(EXTENDED_REQUEST, &element(CONTEXT_0, START_TLS)))
}

/// The search for entries below `base` whose `attribute` has this value.
#[derive(Debug, Clone, Copy)]
pub struct Search<'s> {
    /// The distinguished name below which entries are searched.
    pub base: &'s str,
    /// The attribute that is compared.
    pub attribute: &'s str,
    /// The value that the attribute must have.
    pub value: &'s [u8],
    /// Most entries; 0 for as many as the directory gives.
    pub size_limit: u32,
    /// Seconds that the directory may take; 0 for no limit.
    pub time_limit: u32,
    /// The attribute whose values are wanted, if any.
    pub wanted: Option<&'s str>,
}

impl Search<'_> {
    pub(super) fn request(&self, id: u32) -> Vec<u8> {
        const WHOLE_SUBTREE: u32 = 2;
        const DEREFERENCE_ALWAYS: u32 = 3;
        /// The name for no attribute at all (RFC 4511 §4.5.1.8).
        const NOTHING: &str = "1.1";
        let filter = [element(OCTETS, self.attribute.as_bytes()), element(OCTETS, self.value)];
        let parts = [
            element(OCTETS, self.base.as_bytes()),
            number(ENUMERATED, WHOLE_SUBTREE),
            number(ENUMERATED, DEREFERENCE_ALWAYS),
            number(INTEGER, self.size_limit),
            number(INTEGER, self.time_limit),
            element(BOOLEAN, &[0]),
            element(EQUALITY, &filter.concat()),
            element(SEQUENCE, &element(OCTETS, self.wanted.unwrap_or(NOTHING).as_bytes())),
        ];
        message(id, &element(SEARCH_REQUEST, &parts.concat()))
    }
}

/// An entry that was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its distinguished name.
    pub name: String,
    /// The values of the attribute that was wanted.
    pub values: Vec<Vec<u8>>,
}

/// A response of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DirectoryResponse {
    /// The result of a bind.
    Bound(u32),
    /// The result of a search; entries came before it.
    Searched(u32),
    /// The result of an extended request.
    Extended(u32),
    Found(Entry),
    /// A reference to another directory; it is not followed.
    Elsewhere,
}

/// Reads a message, which has this many bytes: the number of its request, and the response. None if it is not a
/// response to a request.
pub(super) fn read(bytes: &[u8]) -> Option<(u32, DirectoryResponse)> {
    let (contents, _) = expect(bytes, SEQUENCE)?;
    let (id, rest) = expect(contents, INTEGER)?;
    let (tag, operation, _) = first(rest)?;
    let code = || expect(operation, ENUMERATED).and_then(|(code, _)| value(code));
    let answer = match tag {
        BIND_RESPONSE => DirectoryResponse::Bound(code()?),
        SEARCH_DONE => DirectoryResponse::Searched(code()?),
        EXTENDED_RESPONSE => DirectoryResponse::Extended(code()?),
        SEARCH_ENTRY => DirectoryResponse::Found(entry(operation)?),
        SEARCH_REFERENCE => DirectoryResponse::Elsewhere,
        _ => return None,
    };
    Some((value(id)?, answer))
}

fn entry(operation: &[u8]) -> Option<Entry> {
    let (name, rest) = expect(operation, OCTETS)?;
    let (mut attributes, _) = expect(rest, SEQUENCE)?;
    let mut values = Vec::new();
    // One attribute was requested, so all values are of it.
    while !attributes.is_empty() {
        let (attribute, rest) = expect(attributes, SEQUENCE)?;
        attributes = rest;
        let (_, set) = expect(attribute, OCTETS)?;
        let (mut set, _) = expect(set, SET)?;
        while !set.is_empty() {
            let (value, rest) = expect(set, OCTETS)?;
            set = rest;
            values.push(value.to_vec());
        }
    }
    Some(Entry { name: String::from_utf8(name.to_vec()).ok()?, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_others_write_them() {
        // As ldapsearch and ldapwhoami of OpenLDAP sent them.
        let bytes = bind(1, b"cn=a,dc=b", b"pw");
        assert_eq!(bytes, b"\x30\x17\x02\x01\x01\x60\x12\x02\x01\x03\x04\x09cn=a,dc=b\x80\x02pw");
        let search = Search {
            base: "dc=b",
            attribute: "cn",
            value: b"*)(",
            size_limit: 2,
            time_limit: 5,
            wanted: None,
        };
        assert_eq!(
            search.request(2),
            b"\x30\x2c\x02\x01\x02\x63\x27\x04\x04dc=b\x0a\x01\x02\x0a\x01\x03\x02\x01\x02\x02\x01\x05\x01\x01\x00\
            \xa3\x09\x04\x02cn\x04\x03*)(\x30\x05\x04\x031.1"
        );
        assert_eq!(start_tls(1), b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037");
    }

    #[test]
    fn answers_are_read() {
        let check = |bytes: &[u8], expected| assert_eq!(read(bytes), expected, "{bytes:?}");
        check(
            b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x31\x04\x00\x04\x00",
            Some((1, DirectoryResponse::Bound(49))),
        );
        check(
            b"\x30\x0c\x02\x01\x02\x65\x07\x0a\x01\x04\x04\x00\x04\x00",
            Some((2, DirectoryResponse::Searched(4))),
        );
        check(
            b"\x30\x0c\x02\x01\x02\x78\x07\x0a\x01\x00\x04\x00\x04\x00",
            Some((2, DirectoryResponse::Extended(0))),
        );
        let values = element(SET, &[element(OCTETS, b"one"), element(OCTETS, b"two")].concat());
        let attribute = element(SEQUENCE, &[element(OCTETS, b"cn"), values].concat());
        let found = [element(OCTETS, b"cn=a"), element(SEQUENCE, &attribute)].concat();
        let found = message(3, &element(SEARCH_ENTRY, &found));
        let entry = Entry { name: "cn=a".into(), values: vec![b"one".to_vec(), b"two".to_vec()] };
        check(&found, Some((3, DirectoryResponse::Found(entry))));
        for end in 0..found.len() {
            check(&found[..end], None);
        }
        check(b"\x30\x0c\x02\x01\x01\x6f\x07\x0a\x01\x31\x04\x00\x04\x00", None);
        check(b"\x30\x09\x02\x01\x01\x61\x04\x0a\x00\x04\x00", None);
        check(&message(1, &element(SEARCH_ENTRY, b"\x04\x01\xff\x30\x00")), None);
    }
}
