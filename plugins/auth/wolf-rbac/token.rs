//! The token that clients send.

use std::borrow::Cow;

use sigma_plugin::Context;
use sigma_plugin::variables::cookie;

use crate::shared::policy::{authorization, only_argument};

/// The beginning of a token of the gateway.
const VERSION: &str = "V1";

/// A token of wolf's, and the application that it is for.
pub(super) struct Token {
    pub(super) appid: String,
    /// Wolf's own token; valid in a header field.
    pub(super) secret: String,
}

impl Token {
    /// The token of a request.
    ///
    /// # Errors
    /// Returns an error, which the client sees, if the token is missing or invalid.
    pub(super) fn of(ctx: &Context) -> Result<Token, &'static str> {
        let headers = &ctx.request.headers;
        let sent = only_argument(ctx, "rbac_token")
            .map(Cow::Owned)
            .or_else(|| authorization(ctx).map(Cow::Borrowed))
            .or_else(|| headers.find(b"X-Rbac-Token").map(Cow::Borrowed))
            .or_else(|| cookie(headers, "x-rbac-token").map(Cow::Borrowed));
        let sent = sent.ok_or("Missing rbac token in request")?;
        Token::parse(&sent).ok_or("invalid rbac token: parse failed")
    }

    fn parse(text: &[u8]) -> Option<Token> {
        let text = std::str::from_utf8(text).ok()?;
        let (version, rest) = text.split_once('#')?;
        let (appid, secret) = rest.split_once('#')?;
        let is_sound = version == VERSION && !appid.is_empty() && is_secret(secret);
        is_sound.then(|| Token { appid: appid.to_owned(), secret: secret.to_owned() })
    }

    /// The text of a token that wolf has given out; None if it could not be sent back.
    pub(super) fn written(appid: &str, secret: &str) -> Option<String> {
        is_secret(secret).then(|| format!("{VERSION}#{appid}#{secret}"))
    }
}

/// Whether a field can be made of it.
fn is_secret(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_three_parts() {
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let token = Token::parse(text.as_bytes());
            let got = token.as_ref().map(|token| (&*token.appid, &*token.secret));
            assert_eq!(got, expected, "{text}");
        };
        check("V1#shop#a.b-c", Some(("shop", "a.b-c")));
        check("V1#shop#a#b", Some(("shop", "a#b")));
        for wrong in [
            "",
            "V1",
            "V1#shop",
            "V1#shop#",
            "V1##a",
            "v1#shop#a",
            "V2#shop#a",
            "V1#shop#a b",
            "V1#shop#a\nb",
            "V1#shop#ü",
        ] {
            check(wrong, None);
        }
        assert_eq!(Token::written("shop", "a").as_deref(), Some("V1#shop#a"));
        assert_eq!(Token::written("shop", "a\r\nX: y"), None);
    }
}
