//! Request methods.

/// A request method. Matching needs the ten methods that routes can name; the token itself stays in the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Method {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// PATCH
    Patch,
    /// OPTIONS
    Options,
    /// CONNECT
    Connect,
    /// TRACE
    Trace,
    /// PURGE, of caches
    Purge,
    /// Any other token
    Other,
}

impl Method {
    /// Every method that a route can name.
    pub const KNOWN: [Method; 10] = [
        Method::Get,
        Method::Head,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Options,
        Method::Connect,
        Method::Trace,
        Method::Purge,
    ];

    /// Classifies a method token. Methods are case-sensitive (RFC 9110 §9.1).
    pub fn parse(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"PATCH" => Method::Patch,
            b"OPTIONS" => Method::Options,
            b"CONNECT" => Method::Connect,
            b"TRACE" => Method::Trace,
            b"PURGE" => Method::Purge,
            _ => Method::Other,
        }
    }

    /// Returns true if an unknown token becomes a known method in upper case. Some servers convert it, so that a rule
    /// on the method would miss the method that the node serves.
    pub fn is_miscased(token: &[u8]) -> bool {
        Method::KNOWN.iter().any(|known| known.as_str().as_bytes().eq_ignore_ascii_case(token))
    }

    /// Returns the token of a known method; empty for [`Method::Other`].
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Purge => "PURGE",
            Method::Other => "",
        }
    }

    /// Returns true if repeating the request has the same intended effect as sending it once (RFC 9110 §9.2.2).
    pub fn is_idempotent(self) -> bool {
        matches!(
            self,
            Method::Get
                | Method::Head
                | Method::Put
                | Method::Delete
                | Method::Options
                | Method::Trace
                | Method::Purge
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn miscased_known_methods_are_detected() {
        for known in Method::KNOWN {
            let small = known.as_str().to_ascii_lowercase();
            let mixed = format!("{}{}", &known.as_str()[..1], &small[1..]);
            assert!([small, mixed].iter().all(|token| Method::is_miscased(token.as_bytes())), "{known:?}");
        }
        for other in ["", "BREW", "get2", "ge", "M-SEARCH"] {
            assert!(!Method::is_miscased(other.as_bytes()), "{other}");
        }
    }
}
