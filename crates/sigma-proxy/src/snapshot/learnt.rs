//! Sessions that nodes name in their responses, and requests name again (HAProxy: `stick store-response` and `stick
//! match`), or that are identified by their client's address (`stick on src`).

use std::net::IpAddr;
use std::sync::Arc;

use sigma_config::resources;
use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_plugin::system::{Host, System};
use sigma_plugin::variables::cookie;
use sigma_schema::template::Template;
use sigma_upstream::balance::{SessionHash, StickTable, Token};

/// The rule of an upstream, compiled.
#[derive(Debug)]
pub(crate) struct Learnt {
    named_by: NamedBy,
    /// Where requests name their session; empty: as answers do.
    matches: Box<[Template]>,
    /// Shared by the workers, and by later compilations of the same upstream.
    table: Arc<StickTable>,
}

#[derive(Debug)]
enum NamedBy {
    Cookie(Box<str>),
    Header(Box<str>),
    /// By the client's address: all requests and sessions of one are on one node.
    Address,
}

/// The session that a request names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    session: SessionHash,
    /// Its node, if it is known.
    pub(crate) node: Option<Token>,
}

fn now_s() -> u64 {
    Host.uptime().as_secs()
}

impl Learnt {
    /// With the sessions of an earlier compilation.
    pub(crate) fn compile(config: &resources::StickTable, before: Option<&Learnt>) -> Learnt {
        let named_by = match (&config.cookie, &config.header) {
            (Some(name), _) => NamedBy::Cookie(name.clone()),
            (None, Some(name)) => NamedBy::Header(name.clone()),
            (None, None) => NamedBy::Address,
        };
        let (size, expire_s) = (config.size as usize, config.expire.into());
        let table = match before.map(|before| &before.table) {
            Some(table) if table.is_of(size, expire_s) => Arc::clone(table),
            Some(table) => Arc::new(table.resized(size, expire_s, now_s())),
            None => Arc::new(StickTable::new(size, expire_s)),
        };
        Learnt { named_by, matches: config.matches.iter().map(|text| Template::parse(text)).collect(), table }
    }

    /// Whether requests name their session by variables.
    pub(crate) fn asks_variables(&self) -> bool {
        !self.matches.is_empty() || matches!(self.named_by, NamedBy::Address)
    }

    /// The session of a client with this address, if that distinguishes them.
    pub(crate) fn named_by_address(&self, addr: Option<IpAddr>) -> Option<Named> {
        match (&self.named_by, addr?) {
            (NamedBy::Address, IpAddr::V4(addr)) => Some(self.look_up(&addr.octets())),
            (NamedBy::Address, IpAddr::V6(addr)) => Some(self.look_up(&addr.octets())),
            _ => None,
        }
    }

    fn look_up(&self, name: &[u8]) -> Named {
        let session = self.table.hash(name);
        Named { session, node: self.table.find(session, now_s()) }
    }

    /// The session that a request names, if it names one.
    pub(crate) fn named(&self, ctx: &Context) -> Option<Named> {
        let named = |name: &[u8]| self.look_up(name);
        if self.matches.is_empty() {
            let headers = &ctx.request.headers;
            let name = match &self.named_by {
                NamedBy::Cookie(name) => cookie(headers, name),
                NamedBy::Header(name) => headers.find(name.as_bytes()),
                NamedBy::Address => return self.named_by_address(ctx.client.addr),
            };
            return name.filter(|name| !name.is_empty()).map(named);
        }
        let mut text = Vec::new();
        self.matches.iter().find_map(|template| {
            text.clear();
            (template.render(ctx, &mut text) > 0 && !text.is_empty()).then(|| named(&text))
        })
    }

    /// Learns from a response of the node with this token; `serves` reports whether a node still serves its sessions.
    ///
    /// A name that the request invented is not learnt, and a known session moves only when its node is gone: a client
    /// that can make a node send a name, or fail, moves no other session.
    pub(crate) fn learn(
        &self,
        named: Option<Named>,
        node: Token,
        answer: &Headers,
        serves: impl Fn(Token) -> bool,
    ) {
        if matches!(self.named_by, NamedBy::Address) {
            named.into_iter().for_each(|named| self.keep(named, node, &serves));
            return;
        }
        let told = self.session_name(answer).map(|name| self.table.hash(name));
        if let Some(session) = told.filter(|told| named.is_none_or(|named| named.session != *told))
            && self.table.find(session, now_s()).is_none_or(|before| before != node && !serves(before))
        {
            self.table.store(session, node, now_s());
        }
        // Another node continues with the session.
        if let Some(Named { session, node: Some(before) }) = named
            && before != node
            && !serves(before)
        {
            self.table.store(session, node, now_s());
        }
    }

    /// The session continues at the node with this token, unless another one has it and still serves its sessions.
    pub(crate) fn keep(&self, named: Named, node: Token, serves: impl Fn(Token) -> bool) {
        if self.table.find(named.session, now_s()).is_none_or(|before| before != node && !serves(before)) {
            self.table.store(named.session, node, now_s());
        }
    }

    /// The name of the session in a response.
    fn session_name<'a>(&self, answer: &'a Headers) -> Option<&'a [u8]> {
        let name = match &self.named_by {
            NamedBy::Header(name) => answer.find(name.as_bytes()),
            NamedBy::Cookie(name) => {
                let fields = answer.iter().filter(|(field, _)| field.eq_ignore_ascii_case(b"set-cookie"));
                fields.filter_map(|(_, text)| set_by(text, name)).last()
            }
            NamedBy::Address => None,
        };
        name.filter(|name| !name.is_empty())
    }
}

/// The value that a Set-Cookie field gives the cookie of this name.
fn set_by<'t>(field: &'t [u8], name: &str) -> Option<&'t [u8]> {
    let pair = field.split(|b| *b == b';').next()?;
    let at = pair.iter().position(|b| *b == b'=')?;
    (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(fields: &str) -> Learnt {
        Learnt::compile(&serde_json::from_str(fields).expect("a stick table"), None)
    }

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
        headers
    }

    fn asking(fields: &[(&str, &str)]) -> Context {
        let mut ctx = Context::default();
        ctx.request.headers = headers(fields);
        ctx
    }

    #[test]
    fn answers_name_sessions_by_cookies_and_headers() {
        let (cookie, header) = (learnt(r#"{"cookie": "SID"}"#), learnt(r#"{"header": "Mcp-Session-Id"}"#));
        let check = |learnt: &Learnt, fields: &[(&str, &str)], want: Option<&str>| {
            assert_eq!(learnt.session_name(&headers(fields)), want.map(str::as_bytes), "{fields:?}");
        };
        check(&cookie, &[("Set-Cookie", "SID=a.b; Path=/; HttpOnly")], Some("a.b"));
        check(&cookie, &[("Set-Cookie", "a=b"), ("set-cookie", " SID = c ")], Some("c"));
        check(&cookie, &[("Set-Cookie", "SID=a"), ("Set-Cookie", "SID=b")], Some("b"));
        check(&cookie, &[("Set-Cookie", "SID=; Max-Age=0")], None);
        check(&cookie, &[("Set-Cookie", "sid=a"), ("Set-Cookie", "a; SID=b"), ("Cookie", "SID=a")], None);
        check(&header, &[("mcp-session-id", "x")], Some("x"));
        check(&header, &[("mcp-session-id", "")], None);
    }

    #[test]
    fn only_names_that_nodes_make_are_learnt() {
        let learnt = learnt(r#"{"header": "sid"}"#);
        let node = |name: &str| learnt.named(&asking(&[("SID", name)])).and_then(|named| named.node);
        let gone = std::cell::Cell::new(0);
        let answer = |request: &str, node: Token, answer: &str| {
            let named = learnt.named(&asking(&[("sid", request)]));
            learnt.learn(named, node, &headers(&[("Sid", answer)]), |node| node != gone.get());
        };
        // A node sends back a name that the client invented.
        answer("forged", 1, "forged");
        assert_eq!(node("forged"), None);
        answer("", 1, "a");
        assert_eq!(node("a"), Some(1));
        // Another node names the same session, or answers for it after a retry.
        answer("", 2, "a");
        answer("a", 2, "a");
        assert_eq!(node("a"), Some(1));
        // An invented name is replaced by the node's own.
        answer("forged", 2, "b");
        assert_eq!((node("forged"), node("b")), (None, Some(2)));
        // Its node is gone, and another one continues: the session moves, with or without a name in the response.
        gone.set(1);
        answer("a", 3, "a");
        assert_eq!(node("a"), Some(3));
        gone.set(2);
        answer("b", 3, "");
        assert_eq!(node("b"), Some(3));
        gone.set(3);
        answer("", 4, "a");
        assert_eq!(node("a"), Some(4));
    }

    #[test]
    fn a_client_stays_where_it_was_taken_until_that_is_gone() {
        let learnt = learnt(r#"{"address": true}"#);
        let of = |addr: &str| learnt.named_by_address(addr.parse().ok()).expect("told by its address");
        let taken = |addr: &str, node: Token, gone: Token| learnt.keep(of(addr), node, |node| node != gone);
        taken("192.0.2.1", 1, 0);
        assert_eq!([of("192.0.2.1").node, of("192.0.2.2").node, of("::1").node], [Some(1), None, None]);
        // Two that began at once: the first one has decided.
        taken("192.0.2.1", 2, 0);
        assert_eq!(of("192.0.2.1").node, Some(1));
        taken("192.0.2.1", 2, 1);
        assert_eq!(of("192.0.2.1").node, Some(2));
        assert!(learnt.named_by_address(None).is_none(), "a process on this machine has none");
        // Requests do the same, regardless of the response.
        let mut ctx = Context::default();
        ctx.client.addr = "192.0.2.9".parse().ok();
        learnt.learn(learnt.named(&ctx), 3, &headers(&[("Set-Cookie", "a=b")]), |_| true);
        assert_eq!(learnt.named(&ctx).and_then(|named| named.node), Some(3));
        assert!(learnt.asks_variables());
    }

    #[test]
    fn requests_name_sessions_where_the_rule_says() {
        let table = learnt(r#"{"cookie": "sid", "match": ["$http_x_sid", "s-$cookie_other"]}"#);
        let named = |fields: &[(&str, &str)]| table.named(&asking(fields)).map(|named| named.session);
        assert_eq!(named(&[("X-Sid", "a"), ("Cookie", "other=b")]), Some(table.table.hash(b"a")));
        assert_eq!(named(&[("X-Sid", ""), ("Cookie", "other=b")]), Some(table.table.hash(b"s-b")));
        assert_eq!(named(&[("Cookie", "sid=a")]), None);
    }
}
