//! Session affinity towards clients: the cookie that names the node of a session.

use sigma_config::resources::{AffinityCookie, CrossSite};
use sigma_http::Headers;
use sigma_plugin::variables::cookie;
use sigma_upstream::balance::Token;

/// Digits of a token in a cookie.
const DIGITS: usize = 32;

/// The cookie of an upstream, compiled.
#[derive(Debug)]
pub(crate) struct Affinity {
    name: Box<str>,
    /// From the first `;` on.
    attributes: Box<str>,
}

impl Affinity {
    pub(crate) fn compile(config: &AffinityCookie) -> Affinity {
        let mut attributes = format!("; Path={}", config.path);
        if let Some(domain) = &config.domain {
            attributes.push_str(&format!("; Domain={domain}"));
        }
        if let Some(max_age) = config.max_age {
            attributes.push_str(&format!("; Max-Age={max_age}"));
        }
        if config.http_only {
            attributes.push_str("; HttpOnly");
        }
        if config.secure {
            attributes.push_str("; Secure");
        }
        attributes.push_str(match config.same_site {
            None => "",
            Some(CrossSite::Lax) => "; SameSite=Lax",
            Some(CrossSite::Strict) => "; SameSite=Strict",
            Some(CrossSite::None) => "; SameSite=None",
        });
        Affinity { name: config.name.clone(), attributes: attributes.into_boxed_str() }
    }

    /// The node that a request says its session is on. What is no token says nothing.
    pub(crate) fn session(&self, request: &Headers) -> Option<Token> {
        let text = cookie(request, &self.name)?;
        let digits = text.len() == DIGITS && text.iter().all(u8::is_ascii_hexdigit);
        let text = str::from_utf8(text).ok().filter(|_| digits)?;
        Token::from_str_radix(text, 16).ok()
    }

    /// The field of an answer that tells the client the node of its session.
    pub(crate) fn field(&self, token: Token) -> String {
        format!("{}={token:0DIGITS$x}{}", self.name, self.attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fields: &str) -> AffinityCookie {
        serde_json::from_str(fields).unwrap()
    }

    #[test]
    fn cookies_are_written_and_read() {
        let affinity = Affinity::compile(&config(r#"{"name": "node"}"#));
        let field = affinity.field(0xab);
        assert_eq!(field, format!("node={}ab; Path=/; HttpOnly", "0".repeat(30)));
        let all = r#"{"name": "n", "path": "/shop", "domain": "a.test", "max_age": 60, "http_only": false,
            "secure": true, "same_site": "none"}"#;
        let field = Affinity::compile(&config(all)).field(1);
        assert!(
            field.ends_with("1; Path=/shop; Domain=a.test; Max-Age=60; Secure; SameSite=None"),
            "{field}"
        );
    }

    #[test]
    fn what_is_no_token_is_no_session() {
        let affinity = Affinity::compile(&config(r#"{"name": "node"}"#));
        let check = |cookie: &str, want| {
            let mut headers = Headers::default();
            headers.append("Cookie", cookie.as_bytes());
            assert_eq!(affinity.session(&headers), want, "{cookie}");
        };
        let ones = "1".repeat(32);
        check(&format!("a=b; node={ones}; c=d"), Token::from_str_radix(&ones, 16).ok());
        check(&format!("node={ones}1"), None);
        check(&format!("node=+{}", &ones[1..]), None);
        check(&format!("NODE={ones}"), None);
        check("node=10.0.0.1:80", None);
        check("node=", None);
        check("", None);
    }
}
