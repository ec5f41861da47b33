//! The patterns of a route that a request matches.

use sigma_plugin::context::RouteFacts;

/// Which of a route's patterns a path meets. The router does not tell, and most routes have one.
pub(crate) fn matched_uri<'r>(route: &'r RouteFacts, path: &[u8]) -> &'r str {
    longest(&route.uris, |pattern| {
        let end = pattern.find([':', '*', '{']).unwrap_or(pattern.len());
        path.starts_with(&pattern.as_bytes()[..end]) && (end < pattern.len() || end == path.len())
    })
}

/// Which of a route's host patterns a host meets.
pub(crate) fn matched_host<'r>(route: &'r RouteFacts, host: &[u8]) -> &'r str {
    longest(&route.hosts, |pattern| match pattern.strip_prefix('*') {
        Some(suffix) => {
            let at = host.len().checked_sub(suffix.len());
            at.is_some_and(|at| host[at..].eq_ignore_ascii_case(suffix.as_bytes()))
        }
        None => host.eq_ignore_ascii_case(pattern.as_bytes()),
    })
}

/// Returns the only pattern, or the longest that matches; empty if no pattern matches.
fn longest(patterns: &[Box<str>], meets: impl Fn(&str) -> bool) -> &str {
    if let [only] = patterns {
        return only;
    }
    let met = patterns.iter().map(|pattern| &**pattern).filter(|pattern| meets(pattern));
    met.max_by_key(|pattern| pattern.len()).unwrap_or_default()
}
