//! A stored response.

use std::sync::Arc;

use sigma_http::header::list_items;
use sigma_http::{Headers, ResponseHead};

use crate::body::Body;
use crate::freshness::{Freshness, date};
use crate::label::{Label, normal_value};
use crate::mark::Mark;

/// The memory of an entry besides its bytes.
const OVERHEAD_BYTES: u64 = 256;

/// A stored response, which may be reused for matching requests.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its status.
    pub status: u16,
    /// Its fields, without connection fields.
    pub headers: Headers,
    /// Its body.
    pub body: Body,
    /// Its freshness.
    pub freshness: Freshness,
    /// The properties by which it is found and purged.
    pub label: Arc<Label>,
    /// Its date, from its own fields; of several matches the newest one is used.
    pub(crate) date: u64,
    /// Its place on a disk, if it has one.
    pub(crate) mark: Option<Arc<Mark>>,
}

impl Stored {
    /// Returns a stored response to a request with these fields, for a resource. None if no request ever matches:
    /// `Vary: *`. `varies` is true if that field counts.
    pub fn new(
        head: &ResponseHead,
        freshness: Freshness,
        request: &Headers,
        resource: &[u8],
        varies: bool,
    ) -> Option<Stored> {
        let mut headers = Headers::default();
        headers.copy_from(&head.headers);
        let mut names: Vec<Box<[u8]>> = Vec::new();
        for value in values(&headers, b"vary").filter(|_| varies) {
            names.extend(list_items(value).map(|name| name.to_ascii_lowercase().into_boxed_slice()));
        }
        if names.iter().any(|name| **name == *b"*") {
            return None;
        }
        names.sort();
        names.dedup();
        let varied = names.into_iter().map(|name| {
            let value = normal_value(request, &name);
            (name, value)
        });
        let varied = varied.collect();
        let date = headers.find(b"Date").and_then(date).unwrap_or(freshness.born);
        let (tags, body) = (tags(&headers), Body::of(b""));
        let label = Arc::new(Label { resource: resource.into(), tags, varied });
        Some(Stored { status: head.status, headers, body, freshness, label, date, mark: None })
    }

    /// Returns the same with another body.
    pub(crate) fn with_body(&self, body: Body) -> Stored {
        Stored { body, ..self.clone() }
    }

    /// Returns true if it matches a request with these fields (RFC 9111 §4.1).
    pub fn fits(&self, request: &Headers) -> bool {
        self.label.fits(request)
    }

    /// Returns true if it replaces another response under the same key.
    pub(crate) fn replaces(&self, other: &Stored) -> bool {
        self.label.replaces(&other.label)
    }

    /// Returns true if its disk copy is not purged, or if it has no disk copy.
    pub fn is_kept(&self) -> bool {
        self.mark.as_ref().is_none_or(|mark| !mark.is_gone())
    }

    /// Records a use.
    pub fn touch(&self, now: u64) {
        if let Some(mark) = &self.mark {
            mark.touch(now);
        }
    }

    /// Returns it after a revalidation (RFC 9111 §4.3.4). If the 304 has the tag of another version, this one does
    /// not become fresher.
    pub fn refreshed(&self, said: &Headers, freshness: Freshness) -> Stored {
        let mut fresh = self.clone();
        if is_other_version(self.headers.find(b"ETag"), said.find(b"ETag")) {
            return fresh;
        }
        // Fields about the body stay: a 304 has no body. So does the tag, as the 304 may have its weak form.
        let stays = |name: &[u8]| OF_THE_BODY.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
        let updates: Vec<(&[u8], &[u8])> = said.iter().filter(|(name, _)| !stays(name)).collect();
        // The age fields of the old response do not apply.
        for name in [&b"Age"[..], b"Date"].into_iter().chain(updates.iter().map(|(name, _)| *name)) {
            fresh.headers.remove_name(name);
        }
        for (name, value) in updates {
            fresh.headers.append_parts(name, &[value]);
        }
        fresh.date = fresh.headers.find(b"Date").and_then(date).unwrap_or(freshness.born);
        fresh.freshness = freshness;
        fresh
    }

    /// Returns its date.
    pub(crate) fn date(&self) -> u64 {
        self.date
    }

    /// Returns its approximate memory in bytes.
    pub(crate) fn weight(&self) -> u64 {
        OVERHEAD_BYTES + self.headers.memory() as u64 + self.body.held() + self.label.weight()
    }
}

/// Fields of a response that a 304 does not change.
const OF_THE_BODY: [&str; 7] = [
    "Content-Encoding",
    "Content-Type",
    "Content-Range",
    "Content-Length",
    "Content-MD5",
    "Content-Digest",
    "ETag",
];

/// Returns true if two tags prove that two versions differ.
fn is_other_version(one: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    fn opaque(tag: &[u8]) -> &[u8] {
        tag.strip_prefix(b"W/").unwrap_or(tag)
    }
    matches!((one, other), (Some(one), Some(other)) if opaque(one) != opaque(other))
}

/// Fields with the tags of a response, as used by Fastly, Cloudflare and Varnish.
pub const TAG_FIELDS: [&str; 3] = ["Surrogate-Key", "Cache-Tag", "xkey"];

/// The limit of tags of one response: further ones are ignored.
const TAGS_MAX: usize = 256;

fn values<'h>(headers: &'h Headers, name: &'static [u8]) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn tags(headers: &Headers) -> Box<[Box<[u8]>]> {
    let values = TAG_FIELDS.iter().flat_map(|field| values(headers, field.as_bytes()));
    let tags = values.flat_map(|value| value.split(|b| matches!(b, b' ' | b'\t' | b',')));
    tags.filter(|tag| !tag.is_empty()).take(TAGS_MAX).map(Box::from).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
        headers
    }

    pub(crate) fn stored(fields: &[(&str, &str)], request: &[(&str, &str)]) -> Option<Stored> {
        let mut head = ResponseHead::default();
        head.start(200);
        head.headers = headers(fields);
        let freshness =
            Freshness { born: 0, lifetime: 10, while_revalidating: 0, if_error: 0, never_stale: false };
        let mut stored = Stored::new(&head, freshness, &headers(request), b"h/a", true)?;
        stored.body = Body::of(b"body");
        Some(stored)
    }

    #[test]
    fn matching_requests() {
        let one = stored(
            &[("Vary", "Accept-Language, Origin"), ("vary", "origin")],
            &[("accept-language", "de,  en")],
        );
        let one = one.unwrap();
        let check = |request: &[(&str, &str)], expected: bool| {
            assert_eq!(one.fits(&headers(request)), expected, "{request:?}");
        };
        check(&[("Accept-Language", "de, en")], true);
        check(&[("Accept-Language", "de"), ("Accept-Language", "en")], true);
        check(&[("Accept-Language", "de,en"), ("Cookie", "a=b")], true);
        check(&[("Accept-Language", "EN,de")], true);
        check(&[("Accept-Language", "en; q=0.5, de")], false);
        check(&[("Accept-Language", "de, en"), ("Origin", "")], false);
        check(&[], false);
        assert!(stored(&[("Vary", "Accept, *")], &[]).is_none());
        assert!(stored(&[], &[]).unwrap().fits(&headers(&[("Anything", "goes")])));
    }

    #[test]
    fn tags_in_all_their_fields() {
        let one =
            stored(&[("surrogate-key", "a b  c"), ("Cache-Tag", "d, e"), ("xkey", "f"), ("X", "g")], &[]);
        let one = one.unwrap();
        let tags: Vec<&[u8]> = one.label.tags.iter().map(|tag| &**tag).collect();
        assert_eq!(tags, [b"a", b"b", b"c", b"d", b"e", b"f"]);
        let many = (0..1000).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(stored(&[("xkey", &many)], &[]).unwrap().label.tags.len(), TAGS_MAX);
    }

    #[test]
    fn a_304_updates_fields() {
        let old = stored(
            &[
                ("Age", "5"),
                ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("ETag", "\"a\""),
                ("Content-Type", "text/plain"),
                ("X-Old", "1"),
                ("X-Both", "1"),
            ],
            &[],
        )
        .unwrap();
        let said = headers(&[
            ("X-Both", "2"),
            ("x-both", "3"),
            ("Content-Type", "text/html"),
            ("Content-Length", "0"),
            ("Content-MD5", "x"),
            ("ETag", "W/\"a\""),
        ]);
        let fresh = old.refreshed(&said, Freshness { born: 100, ..old.freshness });
        assert_eq!(fresh.headers.find(b"Content-Type"), Some(&b"text/plain"[..]));
        assert_eq!(fresh.headers.find(b"X-Old"), Some(&b"1"[..]));
        assert_eq!(fresh.headers.find(b"ETag"), Some(&b"\"a\""[..]));
        for gone in [&b"Content-Length"[..], b"Content-MD5", b"Age", b"Date"] {
            assert_eq!(fresh.headers.find(gone), None);
        }
        let both: Vec<&[u8]> = fresh
            .headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"x-both"))
            .map(|(_, value)| value)
            .collect();
        assert_eq!((both, fresh.freshness.born), (vec![&b"2"[..], b"3"], 100));
    }

    #[test]
    fn a_304_of_another_version_changes_nothing() {
        let old = stored(&[("ETag", "\"a\""), ("X-Both", "1")], &[]).unwrap();
        let said = headers(&[("ETag", "\"b\""), ("X-Both", "2")]);
        let same = old.refreshed(&said, Freshness { born: 100, ..old.freshness });
        assert_eq!((same.headers.find(b"X-Both"), same.freshness), (Some(&b"1"[..]), old.freshness));
        // Without a tag the 304 can only mean this version.
        let old = stored(&[("X-Both", "1")], &[]).unwrap();
        let fresh = old.refreshed(&said, Freshness { born: 100, ..old.freshness });
        assert_eq!((fresh.headers.find(b"X-Both"), fresh.freshness.born), (Some(&b"2"[..]), 100));
    }
}
