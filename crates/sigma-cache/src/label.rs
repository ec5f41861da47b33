//! The properties by which a stored response is found and purged.

use sigma_http::Headers;
use sigma_http::header::list_items;

/// The limit of responses under one key; the oldest is removed (`docs/plugins/proxy-cache.md`).
pub(crate) const VARIANTS_MAX: usize = 64;

/// A request field by its name, and its value.
pub(crate) type Varied = (Box<[u8]>, Option<Box<[u8]>>);

/// The properties by which a response is found and purged, besides its key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Its resource: the host, and path with query.
    pub resource: Box<[u8]>,
    /// The tags set by its node, for purges.
    pub tags: Box<[Box<[u8]>]>,
    /// The request fields that it depends on, in lower case and in order, with their values.
    pub(crate) varied: Box<[Varied]>,
}

impl Label {
    /// Returns true if its response fits a request with these fields (RFC 9111 §4.1).
    pub(crate) fn fits(&self, request: &Headers) -> bool {
        self.varied.iter().all(|(name, value)| normal_value(request, name) == *value)
    }

    /// Returns true if its response replaces another one under the same key. A response that depends on other fields
    /// does: the right one of the two would be ambiguous.
    pub(crate) fn replaces(&self, other: &Label) -> bool {
        self.varied == other.varied
            || !self.varied.iter().map(|(name, _)| name).eq(other.varied.iter().map(|(name, _)| name))
    }

    /// Returns its approximate memory in bytes.
    pub(crate) fn weight(&self) -> u64 {
        let varied = self.varied.iter();
        let varied: usize =
            varied.map(|(name, value)| name.len() + value.as_deref().map_or(0, <[u8]>::len)).sum();
        let tags: usize = self.tags.iter().map(|tag| tag.len() + size_of::<Box<[u8]>>()).sum();
        (varied + tags + self.resource.len()) as u64
    }
}

/// Fields whose items may come in any order and case (RFC 9110 §12.5): browsers differ here.
const UNORDERED: [&[u8]; 4] = [b"accept", b"accept-charset", b"accept-encoding", b"accept-language"];

/// Returns the value of a request field, without differences of white space and lines; None without the field.
pub(crate) fn normal_value(request: &Headers, name: &[u8]) -> Option<Box<[u8]>> {
    let mut lines = request.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).peekable();
    lines.peek()?;
    let mut items: Vec<&[u8]> = lines.flat_map(|(_, value)| list_items(value)).collect();
    if !UNORDERED.contains(&name) {
        return Some(items.join(&b","[..]).into());
    }
    let mut items: Vec<Vec<u8>> = items.drain(..).map(without_space).collect();
    items.sort();
    Some(items.join(&b","[..]).into())
}

/// Returns an item in lower case, without white space.
fn without_space(item: &[u8]) -> Vec<u8> {
    item.iter().filter(|b| !matches!(b, b' ' | b'\t')).map(u8::to_ascii_lowercase).collect()
}
