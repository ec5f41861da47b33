//! What a kept answer is found and forgotten by.

use sigma_http::Headers;
use sigma_http::header::list_items;

/// The most answers under one key; the oldest goes (`docs/plugins/proxy-cache.md`).
pub(crate) const VARIANTS_MAX: usize = 64;

/// A field of a request by its name, and the value that it had.
pub(crate) type Varied = (Box<[u8]>, Option<Box<[u8]>>);

/// What an answer is found and forgotten by, beside its key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// What it was asked for: the host, and path with query.
    pub resource: Box<[u8]>,
    /// The names that its node gave it, to forget it by.
    pub tags: Box<[Box<[u8]>]>,
    /// The fields of the request that it depends on, in small letters and in order, with the value that each had.
    pub(crate) varied: Box<[Varied]>,
}

impl Label {
    /// Whether its answer is one to a request with these fields (RFC 9111 §4.1).
    pub(crate) fn fits(&self, request: &Headers) -> bool {
        self.varied.iter().all(|(name, value)| normal_value(request, name) == *value)
    }

    /// Whether its answer takes the place of another one under the same key. One that depends on other fields does: which
    /// of the two is meant could not be told.
    pub(crate) fn replaces(&self, other: &Label) -> bool {
        self.varied == other.varied
            || !self.varied.iter().map(|(name, _)| name).eq(other.varied.iter().map(|(name, _)| name))
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn weight(&self) -> u64 {
        let varied = self.varied.iter();
        let varied: usize =
            varied.map(|(name, value)| name.len() + value.as_deref().map_or(0, <[u8]>::len)).sum();
        let tags: usize = self.tags.iter().map(|tag| tag.len() + size_of::<Box<[u8]>>()).sum();
        (varied + tags + self.resource.len()) as u64
    }
}

/// Fields whose items may come in any order and in any case (RFC 9110 §12.5): browsers differ in it.
const UNORDERED: [&[u8]; 4] = [b"accept", b"accept-charset", b"accept-encoding", b"accept-language"];

/// The value of a field of a request, whatever white space and lines it stands in; None without it.
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

/// An item in small letters, without the white space in it.
fn without_space(item: &[u8]) -> Vec<u8> {
    item.iter().filter(|b| !matches!(b, b' ' | b'\t')).map(u8::to_ascii_lowercase).collect()
}
