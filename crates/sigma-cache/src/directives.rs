//! The field `Cache-Control` of requests and answers (RFC 9111 §5.2).

use sigma_http::Headers;

/// The largest number of seconds that a directive may say (RFC 9111 §1.2.2).
pub(crate) const SECONDS_MAX: u32 = 1 << 31;

/// What the directives of a message come to. Those with field names in their value count as if they had none, which
/// is the stricter reading (RFC 9111 §5.2.2.4 and §5.2.2.7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Directives {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache`
    pub no_cache: bool,
    /// `private`
    pub private: bool,
    /// `public`
    pub public: bool,
    /// `must-revalidate` or `proxy-revalidate`
    pub must_revalidate: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age`, in seconds, as all that follow
    pub max_age: Option<u32>,
    /// `s-maxage`
    pub s_maxage: Option<u32>,
    /// `max-stale`; without a value it is as large as can be
    pub max_stale: Option<u32>,
    /// `min-fresh`
    pub min_fresh: Option<u32>,
    /// `stale-while-revalidate` (RFC 5861)
    pub stale_while_revalidate: Option<u32>,
    /// `stale-if-error` (RFC 5861)
    pub stale_if_error: Option<u32>,
}

impl Directives {
    /// Those of a message. Of several of one name the first one counts.
    pub fn of(headers: &Headers) -> Directives {
        let mut all = Directives::default();
        for (_, value) in headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control")) {
            items(value).for_each(|item| all.take(item));
        }
        all
    }

    fn take(&mut self, item: &[u8]) {
        let at = item.iter().position(|b| *b == b'=');
        let (name, value) = at.map_or((item, None), |at| (&item[..at], Some(unquoted(&item[at + 1..]))));
        let first = |place: &mut Option<u32>, missing: u32| {
            place.get_or_insert(value.map_or(missing, seconds));
        };
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" | b"proxy-revalidate" => self.must_revalidate = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => first(&mut self.max_age, 0),
            b"s-maxage" => first(&mut self.s_maxage, 0),
            b"max-stale" => first(&mut self.max_stale, SECONDS_MAX),
            b"min-fresh" => first(&mut self.min_fresh, 0),
            b"stale-while-revalidate" => first(&mut self.stale_while_revalidate, 0),
            b"stale-if-error" => first(&mut self.stale_if_error, 0),
            _ => {}
        }
    }
}

/// A number of seconds. What is none is 0, which makes an answer stale (RFC 9111 §4.2.1).
pub(crate) fn seconds(text: &[u8]) -> u32 {
    let text = text.trim_ascii();
    if text.is_empty() || text.iter().any(|b| !b.is_ascii_digit()) {
        return 0;
    }
    let number = text.iter().try_fold(0u32, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u32::from(digit - b'0')).filter(|sum| *sum < SECONDS_MAX)
    });
    number.unwrap_or(SECONDS_MAX)
}

/// The value within double quotes, if it stands in some.
fn unquoted(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    value.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(value)
}

/// The directives of one line: a comma within double quotes parts nothing.
fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = value.split(move |b| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match b {
            _ if was_escaped => {}
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' => return !is_quoted,
            _ => {}
        }
        false
    });
    parts.map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Directives {
        let mut headers = Headers::default();
        lines.iter().for_each(|line| headers.append("Cache-Control", line.as_bytes()));
        Directives::of(&headers)
    }

    #[test]
    fn names_and_values_in_all_their_forms() {
        let all = of(&["Max-Age=60, public", "s-maxage=\"70\" , NO-TRANSFORM"]);
        assert_eq!((all.max_age, all.s_maxage, all.public, all.private), (Some(60), Some(70), true, false));
        // What stands in a value is no directive.
        let all = of(&["extension=\"no-store, private\", max-age=1, x=\"\\\", no-cache\""]);
        assert_eq!(all, Directives { max_age: Some(1), ..Directives::default() });
        let all = of(&["no-cache=\"set-cookie\", private=\"x, y\""]);
        assert!(all.no_cache && all.private);
        assert_eq!(of(&["max-stale"]).max_stale, Some(SECONDS_MAX));
        assert_eq!(of(&["max-stale=5"]).max_stale, Some(5));
        assert_eq!(of(&[]), Directives::default());
    }

    #[test]
    fn what_is_no_number_is_stale() {
        for (text, expected) in [
            ("max-age=5", 5),
            ("max-age=0005", 5),
            ("max-age=-5", 0),
            ("max-age=5.0", 0),
            ("max-age='5'", 0),
            ("max-age=", 0),
            ("max-age", 0),
            ("max-age=a5", 0),
            ("max-age=2147483647", 2_147_483_647),
            ("max-age=2147483648", SECONDS_MAX),
            ("max-age=99999999999999999999", SECONDS_MAX),
            ("max-age=7, max-age=9", 7),
        ] {
            assert_eq!(of(&[text]).max_age, Some(expected), "{text}");
        }
    }

    proptest::proptest! {
        /// Whatever a field says, what forbids keeping is found behind it.
        #[test]
        fn nothing_hides_a_directive(noise in "[ -!#-~]{0,40}", digits in "[0-9]{1,30}") {
            let all = of(&[&noise, &format!("max-age={digits}, no-store")]);
            proptest::prop_assert!(all.no_store && all.max_age.is_some());
        }
    }
}
