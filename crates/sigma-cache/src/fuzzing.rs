//! Properties of the fields of any response: a function for the target in `fuzz/`, which panics on a violation.

use sigma_http::{BodyLength, Headers, ResponseHead};
use sigma_plugin::cache::{CacheRule, Lifetime};

use crate::directives::Directives;
use crate::disk_cache::format::{Layout, Read, decode, encode};
use crate::disk_cache::port::FileId;
use crate::freshness::ExchangeTimes;
use crate::rules::{Answered, may_keep, may_use};
use crate::slices::{Version, slice};
use crate::stored::Stored;

const NOW: u64 = 1_700_000_000;

/// Input: the status as one byte (and 200), the fields of a response, a zero byte, the fields of its request. No
/// input panics; a forbidden response is not stored; a stored one fits its request, also after a refresh.
pub fn cache_fields(input: &[u8]) {
    let Some((status, rest)) = input.split_first() else { return };
    let mut sides = rest.splitn(2, |b| *b == 0);
    let [answer, request] = [sides.next(), sides.next()].map(|side| fields(side.unwrap_or_default()));
    let mut head = ResponseHead::default();
    head.start(200 + u16::from(*status));
    head.headers.copy_from(&answer);
    for (number, slice_bytes) in [(0, 5), (1, 5), (u64::MAX / 5, 5), (u64::MAX, u64::MAX)] {
        let length = BodyLength::Known(slice_bytes);
        let Some(version) = Version::of_slice(&head, length, number, slice_bytes) else { continue };
        let (start, length) = slice(number, slice_bytes, version.total).expect("it has the slice that it is");
        assert!(length == slice_bytes && start.checked_add(length).is_some_and(|end| end <= version.total));
    }
    let wishes = Directives::of(&request);
    for rule in rules() {
        let times = ExchangeTimes { requested: NOW - 3, received: NOW };
        let answered =
            Answered { head: &head, request: &request, is_isolated: false, is_unnamed: false, times };
        let Some(freshness) = may_keep(&rule, answered) else { continue };
        assert!(!says(&answer, b"private") || rule.ignores.cache_control || targets(&answer));
        assert!(freshness.born <= NOW && (freshness.is_fresh(NOW) || rule.revalidates));
        for now in [0, NOW, NOW + u64::from(freshness.lifetime), u64::MAX] {
            may_use(&rule, &freshness, &wishes, now);
            assert!(!freshness.never_stale || !freshness.may_wait(now));
        }
        let Some(stored) = Stored::new(&head, freshness, &request, b"h/", true) else { continue };
        assert!(stored.fits(&request));
        let fresh = stored.refreshed(&answer, freshness);
        assert!(fresh.fits(&request) && fresh.body.length() == stored.body.length());
    }
}

/// Input: the head of a response on a disk, then a byte 255 and a cache file. No input panics; a parsed head is
/// written unchanged; reads stay within the file.
pub fn cache_file(input: &[u8]) {
    if let Some((255, file)) = input.split_first() {
        let id =
            FileId(u128::from_le_bytes(std::array::from_fn(|at| file.get(12 + at).copied().unwrap_or(0))));
        let Some(layout) = Layout::read(id, file) else { return };
        if let Some(head) = layout.head(file) {
            assert!(head.text.len() < file.len());
            decode(head.text);
        }
        layout.read_block(0, file.get(layout.body_at()..).unwrap_or_default());
        return;
    }
    if let Some(Read { key, stored, body_length }) = decode(input) {
        assert!(encode(&key, &stored, body_length) == input);
        let Some(layout) = Layout::of(FileId(1), input.len()) else { return };
        let beginning = layout.beginning(input);
        assert!(layout.head(&beginning).is_some_and(|head| head.text == input));
    }
}

fn rules() -> [CacheRule; 3] {
    let known = Lifetime::Known { otherwise: vec![(Some(404), 9)], guesses: true };
    let own = CacheRule { lifetime: known, heeds_requests: true, revalidates: true, ..CacheRule::default() };
    let mut deaf = CacheRule { lifetime: Lifetime::StatedOr(10), ..CacheRule::default() };
    deaf.ignores.cache_control = true;
    [own, CacheRule::default(), deaf]
}

/// Parses lines of `name: value`; other lines are ignored.
fn fields(text: &[u8]) -> Headers {
    let mut fields = Headers::default();
    for line in text.split(|b| *b == b'\n') {
        let Some(at) = line.iter().position(|b| *b == b':') else { continue };
        let (name, value) = (&line[..at], line[at + 1..].trim_ascii());
        let is_name = sigma_http::is_token(name) && name.len() < 100;
        if is_name && !value.iter().any(|b| *b < b' ' || *b == 0x7f) {
            fields.append_parts(name, &[value]);
        }
    }
    fields
}

/// Returns true if a directive is alone in `Cache-Control`, where no quotation changes its meaning.
fn says(fields: &Headers, directive: &[u8]) -> bool {
    let mut lines = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control"));
    lines.any(|(_, value)| {
        let mut items = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        !value.contains(&b'"') && items.any(|item| item.eq_ignore_ascii_case(directive))
    })
}

/// Returns true if directives for caches like this one may replace all others.
fn targets(fields: &Headers) -> bool {
    fields.find(b"CDN-Cache-Control").is_some()
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_holds_for_the_seeds() {
        sigma_testkit::for_inputs_of("cache_fields", super::cache_fields);
        sigma_testkit::for_inputs_of("cache_file", super::cache_file);
    }
}
