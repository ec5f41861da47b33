//! Session affinity of clients: by a cookie with the node of a session, by names that nodes give their sessions, or
//! by the client's address.

use std::net::IpAddr;

use sigma_config::resources::{self, AffinityCookie, CrossSite};
use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_plugin::variables::cookie;
use sigma_upstream::balance::Token;

use super::learnt::{Learnt, Named};

/// Digits of a token in a cookie.
const DIGITS: usize = 32;

/// The identification of a request's session.
#[derive(Debug)]
pub(crate) enum Affinity {
    /// By a cookie that the gateway makes.
    Made(NodeCookie),
    /// By names that nodes give their sessions, or by the client's address.
    Learnt(Learnt),
}

/// The session that a request is of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Session {
    /// The node that it is on, if that is known.
    pub(crate) node: Option<Token>,
    /// The name of the session in the request, if nodes give names.
    named: Option<Named>,
}

impl Affinity {
    /// Returns the rule of an upstream, with the sessions of an earlier compilation. None without a rule.
    pub(crate) fn of(config: &resources::Upstream, before: Option<&Affinity>) -> Option<Box<Affinity>> {
        if let Some(rule) = config.session_affinity.as_deref() {
            return Some(Box::new(Affinity::Made(NodeCookie::compile(&rule.cookie))));
        }
        let before = before.and_then(|before| match before {
            Affinity::Learnt(learnt) => Some(learnt),
            Affinity::Made(_) => None,
        });
        let rule = config.stick_table.as_deref()?;
        Some(Box::new(Affinity::Learnt(Learnt::compile(rule, before))))
    }

    /// Returns true if it needs variables of a request.
    pub(crate) fn asks_variables(&self) -> bool {
        matches!(self, Affinity::Learnt(learnt) if learnt.asks_variables())
    }

    /// Returns the session of a request.
    pub(crate) fn session(&self, ctx: &Context) -> Session {
        match self {
            Affinity::Made(cookie) => Session { node: cookie.session(&ctx.request.headers), named: None },
            Affinity::Learnt(learnt) => {
                let named = learnt.named(ctx);
                Session { node: named.and_then(|named| named.node), named }
            }
        }
    }

    /// Returns the session of a stream route for a client with this address, if sessions are identified by it.
    pub(crate) fn session_of_client(&self, addr: Option<IpAddr>) -> Option<Session> {
        match self {
            Affinity::Made(_) => None,
            Affinity::Learnt(learnt) => {
                let named = learnt.named_by_address(addr)?;
                Some(Session { node: named.node, named: Some(named) })
            }
        }
    }

    /// Notes that the node with the token `given` has accepted a session of a stream route. `serves` is as in
    /// [`Affinity::answered`].
    pub(crate) fn taken(&self, session: Session, given: Token, serves: impl Fn(Token) -> bool) {
        if let Affinity::Learnt(learnt) = self
            && let Some(named) = session.named
        {
            learnt.keep(named, given, serves);
        }
    }

    /// Notes that the node with the token `given` responds to a request of this session. `serves` reports whether a
    /// node still serves its sessions.
    pub(crate) fn answered(
        &self,
        session: Session,
        given: Token,
        answer: &mut Headers,
        serves: impl Fn(Token) -> bool,
    ) {
        match self {
            Affinity::Made(cookie) if session.node != Some(given) => {
                answer.append("Set-Cookie", cookie.field(given).as_bytes());
            }
            Affinity::Made(_) => {}
            Affinity::Learnt(learnt) => learnt.learn(session.named, given, answer, serves),
        }
    }
}

/// The cookie of an upstream, compiled.
#[derive(Debug)]
pub(crate) struct NodeCookie {
    name: Box<str>,
    /// From the first `;` on.
    attributes: Box<str>,
}

impl NodeCookie {
    fn compile(config: &AffinityCookie) -> NodeCookie {
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
        NodeCookie { name: config.name.clone(), attributes: attributes.into_boxed_str() }
    }

    /// Returns the node of the request's session. An invalid token is ignored.
    fn session(&self, request: &Headers) -> Option<Token> {
        let text = cookie(request, &self.name)?;
        let digits = text.len() == DIGITS && text.iter().all(u8::is_ascii_hexdigit);
        let text = str::from_utf8(text).ok().filter(|_| digits)?;
        Token::from_str_radix(text, 16).ok()
    }

    /// Returns the field of a response that names the session's node for the client.
    fn field(&self, token: Token) -> String {
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
        let affinity = NodeCookie::compile(&config(r#"{"name": "node"}"#));
        let field = affinity.field(0xab);
        assert_eq!(field, format!("node={}ab; Path=/; HttpOnly", "0".repeat(30)));
        let all = r#"{"name": "n", "path": "/shop", "domain": "a.test", "max_age": 60, "http_only": false,
            "secure": true, "same_site": "none"}"#;
        let field = NodeCookie::compile(&config(all)).field(1);
        assert!(
            field.ends_with("1; Path=/shop; Domain=a.test; Max-Age=60; Secure; SameSite=None"),
            "{field}"
        );
    }

    #[test]
    fn invalid_tokens_are_no_session() {
        let affinity = NodeCookie::compile(&config(r#"{"name": "node"}"#));
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
