//! Compares answers to copies with the responses to the requests.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use sigma_http::{BodyLength, Chunk, Headers};
use sigma_plugin::{Context, Pieces, Transform};

use super::config::Compare;
use sigma_plugin_kit::tallies::Event;

/// How a response to a copy compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// As the other.
    Same,
    /// With another status.
    Status,
    /// With the status, and other header fields.
    Headers,
    /// With another body alone.
    Body,
}

impl Event for Comparison {
    const METRIC: &'static str = "mirror_comparisons_total";
    const HELP: &'static str =
        "Responses to mirrored requests, compared with the responses to the original requests";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("outcome", "same")],
        &[("outcome", "status")],
        &[("outcome", "headers")],
        &[("outcome", "body")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}

/// A digest that identifies a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    bytes: u64,
    hash: u64,
}

/// A body of which a digest is taken.
#[derive(Default)]
pub(super) struct Digester {
    bytes: u64,
    hasher: DefaultHasher,
}

impl Digester {
    fn see(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        self.hasher.write(data);
    }

    fn digest(&self) -> Digest {
        Digest { bytes: self.bytes, hash: self.hasher.finish() }
    }

    /// That of a body in memory.
    pub(super) fn of(body: &[u8]) -> Digest {
        let mut digester = Digester::default();
        digester.see(body);
        digester.digest()
    }
}

/// The parts of a response that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ComparedResponse {
    pub(super) status: u16,
    /// The values of each field, in the order in which the fields are configured.
    fields: Vec<Vec<Vec<u8>>>,
    pub(super) body: Option<Digest>,
}

impl ComparedResponse {
    /// That of a response, the body to follow.
    pub(super) fn of(compare: &Compare, status: u16, headers: &Headers) -> ComparedResponse {
        let values = |name: &String| {
            let fields = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
            fields.map(|(_, value)| value.to_vec()).collect()
        };
        ComparedResponse { status, fields: compare.headers.iter().map(values).collect(), body: None }
    }

    /// How `copy` differs from it, and in words, which tell no value of a field.
    pub(super) fn compared(&self, compare: &Compare, copy: &ComparedResponse) -> (Comparison, String) {
        if compare.status && self.status != copy.status {
            return (Comparison::Status, format!("status {}, here {}", self.status, copy.status));
        }
        let fields = self.fields.iter().zip(&copy.fields).zip(&compare.headers);
        let other: Vec<&str> =
            fields.filter(|((one, other), _)| one != other).map(|(_, name)| name.as_str()).collect();
        if !other.is_empty() {
            return (Comparison::Headers, format!("header fields {}", other.join(", ")));
        }
        match (self.body, copy.body) {
            (Some(one), Some(other)) if compare.body && one != other => {
                let words = format!("a body of {} bytes, here of {}", one.bytes, other.bytes);
                (Comparison::Body, words)
            }
            _ => (Comparison::Same, String::new()),
        }
    }
}

/// Takes the digest of a body that passes.
pub(super) struct Digesting {
    pub(super) digester: Digester,
    /// Where it goes when the body has ended.
    pub(super) digest: Rc<Cell<Option<Digest>>>,
}

impl Transform for Digesting {
    fn length(&self, length: BodyLength) -> BodyLength {
        if length.is_empty() {
            // Nothing will be seen of it.
            self.digest.set(Some(self.digester.digest()));
        }
        length
    }

    fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
        self.digester.see(&data);
        out.piece(data);
    }

    fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, _out: &mut Pieces) {
        self.digest.set(Some(self.digester.digest()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared() {
        let compare = Compare { status: true, headers: vec!["X-A".to_owned()], body: true };
        let seen = |status, field: &str, body: &str| {
            let mut headers = Headers::default();
            headers.append("x-a", field.as_bytes());
            headers.append("X-B", body.as_bytes());
            ComparedResponse {
                body: Some(Digester::of(body.as_bytes())),
                ..ComparedResponse::of(&compare, status, &headers)
            }
        };
        let check = |copy: ComparedResponse, expected: Comparison, words: &str| {
            let got = seen(200, "1", "hello").compared(&compare, &copy);
            assert_eq!(got, (expected, words.to_owned()), "{copy:?}");
        };
        check(seen(200, "1", "hello"), Comparison::Same, "");
        check(seen(500, "2", "x"), Comparison::Status, "status 200, here 500");
        check(seen(200, "2", "x"), Comparison::Headers, "header fields X-A");
        check(seen(200, "1", "hallo"), Comparison::Body, "a body of 5 bytes, here of 5");
        let lax = Compare { status: false, headers: Vec::new(), body: false };
        let none = |status| ComparedResponse::of(&lax, status, &Headers::default());
        assert_eq!(none(200).compared(&lax, &none(500)).0, Comparison::Same);
    }
}
