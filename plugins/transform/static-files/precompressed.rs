//! Files with the content of another file in a coding: `page.html.br`.

use std::cmp::Reverse;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use sigma_http::Headers;

use sigma_plugin_kit::coding;

/// A coding that files were compressed with beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
// An unknown value is reported as another text is.
#[schemars(transform = |schema: &mut Schema| drop(schema.remove("type")))]
pub(super) enum Precompressed {
    Br,
    Zstd,
    Gzip,
}

impl Precompressed {
    /// Its name in messages.
    pub(super) fn token(self) -> &'static str {
        match self {
            Precompressed::Br => "br",
            Precompressed::Zstd => "zstd",
            Precompressed::Gzip => "gzip",
        }
    }

    /// Returns the suffix of the file's name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Precompressed::Br => ".br",
            Precompressed::Zstd => ".zst",
            Precompressed::Gzip => ".gz",
        }
    }
}

/// Returns the codings that the client accepts, by descending weight, and of equals the first of `offered`. Codings
/// with less weight than the bare content, if it is named, are omitted.
pub(super) fn accepted(offered: &[Precompressed], request: &Headers) -> Vec<Precompressed> {
    let bare = coding::weight(request, "identity").unwrap_or(0).max(1);
    let weigh = |coding: &Precompressed| coding::weight_or_any(request, coding.token());
    let mut accepted: Vec<_> = offered.iter().copied().filter(|coding| weigh(coding) >= bare).collect();
    accepted.sort_by_key(|coding| Reverse(weigh(coding)));
    accepted
}

#[cfg(test)]
mod tests {
    use super::Precompressed::{Br, Gzip, Zstd};
    use super::*;

    #[test]
    fn the_client_weighs() {
        let check = |accept: &str, expected: &[Precompressed]| {
            let mut request = Headers::default();
            request.append("Accept-Encoding", accept.as_bytes());
            assert_eq!(accepted(&[Br, Zstd, Gzip], &request), expected, "{accept}");
        };
        check("", &[]);
        check("gzip, zstd, br", &[Br, Zstd, Gzip]);
        check("gzip, zstd;q=0.5", &[Gzip, Zstd]);
        check("*", &[Br, Zstd, Gzip]);
        check("*;q=0.1, br;q=0", &[Zstd, Gzip]);
        check("br;q=0.0", &[]);
        check("identity, gzip;q=0.5, br", &[Br]);
        check("identity;q=0, gzip;q=0.5", &[Gzip]);
    }
}
