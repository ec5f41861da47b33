//! The field `Cache-Control` of requests and responses (RFC 9111 §5.2).

use sigma_http::Headers;

/// The largest number of seconds in a directive (RFC 9111 §1.2.2).
pub(crate) const SECONDS_MAX: u32 = 1 << 31;

/// The directives of a message. Directives with field names in their value count as if they had no names, the stricter
/// reading (RFC 9111 §5.2.2.4 and §5.2.2.7).
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
    /// `must-understand`
    pub must_understand: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age`, in seconds, as all below
    pub max_age: Option<u32>,
    /// `s-maxage`
    pub s_maxage: Option<u32>,
    /// `max-stale`; without a value it is the largest number
    pub max_stale: Option<u32>,
    /// `min-fresh`
    pub min_fresh: Option<u32>,
    /// `stale-while-revalidate` (RFC 5861)
    pub stale_while_revalidate: Option<u32>,
    /// `stale-if-error` (RFC 5861)
    pub stale_if_error: Option<u32>,
}

impl Directives {
    /// Parses the directives of a message. Of several with one name the first counts.
    pub fn of(headers: &Headers) -> Directives {
        let mut all = Directives::default();
        for (_, value) in headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control")) {
            items(value).for_each(|item| all.take(item));
        }
        all
    }

    /// Parses the directives for caches like this one alone (RFC 9213), which replace all others. None if they are
    /// missing or invalid.
    pub fn targeted(headers: &Headers) -> Option<Directives> {
        let mut lines = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(TARGETED)).peekable();
        lines.peek()?;
        let mut all = Directives::default();
        let mut is_empty = true;
        for (_, value) in lines {
            for item in items(value) {
                if !is_member(item) {
                    return None;
                }
                // A later one of the same name replaces an earlier one (RFC 8941 §3.2).
                let mut one = Directives::default();
                one.take(without_parameters(item));
                all = one.over(all);
                is_empty = false;
            }
        }
        (!is_empty).then_some(all)
    }

    fn over(self, other: Directives) -> Directives {
        Directives {
            no_store: self.no_store || other.no_store,
            no_cache: self.no_cache || other.no_cache,
            private: self.private || other.private,
            public: self.public || other.public,
            must_revalidate: self.must_revalidate || other.must_revalidate,
            must_understand: self.must_understand || other.must_understand,
            only_if_cached: self.only_if_cached || other.only_if_cached,
            max_age: self.max_age.or(other.max_age),
            s_maxage: self.s_maxage.or(other.s_maxage),
            max_stale: self.max_stale.or(other.max_stale),
            min_fresh: self.min_fresh.or(other.min_fresh),
            stale_while_revalidate: self.stale_while_revalidate.or(other.stale_while_revalidate),
            stale_if_error: self.stale_if_error.or(other.stale_if_error),
        }
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
            b"must-understand" => self.must_understand = true,
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

/// The field for caches of content delivery networks (RFC 9213 §3.1).
const TARGETED: &[u8] = b"CDN-Cache-Control";

/// Returns true for a member of a structured dictionary (RFC 8941 §3.2), as far as directives use it: a key, and a
/// number, a word, a text or nothing.
fn is_member(item: &[u8]) -> bool {
    let item = without_parameters(item);
    let at = item.iter().position(|b| *b == b'=');
    let (key, value) = at.map_or((item, None), |at| (&item[..at], Some(&item[at + 1..])));
    let is_key = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*');
    let starts = matches!(key.first(), Some(b'a'..=b'z' | b'*'));
    starts && key.iter().all(is_key) && value.is_none_or(is_value)
}

fn is_value(value: &[u8]) -> bool {
    match value.first() {
        Some(b'0'..=b'9' | b'-') => {
            let digits = value.strip_prefix(b"-").unwrap_or(value);
            !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_digit)
        }
        Some(b'"') => value.len() > 1 && value.ends_with(b"\""),
        Some(b'?') => matches!(value, b"?0" | b"?1"),
        Some(b'a'..=b'z' | b'A'..=b'Z' | b'*') => {
            value.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(b))
        }
        _ => false,
    }
}

/// Removes the parameters after a semicolon.
fn without_parameters(item: &[u8]) -> &[u8] {
    let mut is_quoted = false;
    let end = item.iter().position(|b| {
        is_quoted ^= *b == b'"';
        *b == b';' && !is_quoted
    });
    item[..end.unwrap_or(item.len())].trim_ascii_end()
}

/// Parses a number of seconds. An invalid number is 0, which makes a response stale (RFC 9111 §4.2.1).
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

/// Removes double quotes around a value.
fn unquoted(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    value.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(value)
}

/// Splits the directives of one line: a comma within double quotes does not separate.
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
        // Text within a value is not a directive.
        let all = of(&["extension=\"no-store, private\", max-age=1, x=\"\\\", no-cache\""]);
        assert_eq!(all, Directives { max_age: Some(1), ..Directives::default() });
        let all = of(&["no-cache=\"set-cookie\", private=\"x, y\""]);
        assert!(all.no_cache && all.private);
        assert_eq!(of(&["max-stale"]).max_stale, Some(SECONDS_MAX));
        assert_eq!(of(&["max-stale=5"]).max_stale, Some(5));
        assert_eq!(of(&[]), Directives::default());
    }

    #[test]
    fn invalid_numbers_mean_stale() {
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
        /// With any field content, a directive that forbids storing is found after it.
        #[test]
        fn nothing_hides_a_directive(noise in "[ -!#-~]{0,40}", digits in "[0-9]{1,30}") {
            let all = of(&[&noise, &format!("max-age={digits}, no-store")]);
            proptest::prop_assert!(all.no_store && all.max_age.is_some());
        }
    }
}
