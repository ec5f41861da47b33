//! The token in a field of credentials.

const SCHEME: &[u8] = b"bearer";

/// The part behind the scheme `Bearer`; None without the scheme. Its name has no case, and one or more spaces follow it
/// (RFC 9110 §11.4).
pub(crate) fn after_bearer(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = credentials.split_at_checked(SCHEME.len())?;
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    (scheme.eq_ignore_ascii_case(SCHEME) && spaces > 0).then(|| &rest[spaces..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes() {
        let check = |credentials: &str, expected: Option<&str>| {
            assert_eq!(after_bearer(credentials.as_bytes()), expected.map(str::as_bytes), "{credentials:?}");
        };
        for credentials in ["Bearer a", "bearer a", "BEARER a", "Bearer   a"] {
            check(credentials, Some("a"));
        }
        check("Bearer ", Some(""));
        for credentials in ["", "a", "Bearer", "Bearera", "Bearer\ta", "Basic a", " Bearer a"] {
            check(credentials, None);
        }
    }
}
