//! The user of a request that a service has allowed: all data that the service could judge, and its grant.

use aws_lc_rs::digest::{Context as Digest, SHA256};
use sigma_http::Headers;
use sigma_plugin::Context;

/// Fields that say how a client wants its response, and by which way the request came, but not who it is from. All
/// others may be credentials.
const NEUTRAL: [&[u8]; 29] = [
    b"accept",
    b"cache-control",
    b"pragma",
    b"connection",
    b"date",
    b"dnt",
    b"expect",
    b"host",
    b"range",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"upgrade-insecure-requests",
    b"user-agent",
    b"referer",
    b"priority",
    b"via",
    b"cdn-loop",
    b"x-request-id",
    b"traceparent",
    b"tracestate",
    b"b3",
    b"x-real-ip",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-port",
];

/// The beginnings of names of further such fields.
const NEUTRAL_STARTS: [&[u8]; 5] = [b"accept-", b"content-", b"if-", b"sec-", b"x-b3-"];

/// A name that is being made.
pub(crate) struct UserDigest(Digest);

impl UserDigest {
    /// Of the client, whose address every service sees.
    pub(crate) fn of(ctx: &Context) -> UserDigest {
        let mut user_digest = UserDigest(Digest::new(&SHA256));
        user_digest.add(ctx.remote_addr().as_bytes());
        user_digest
    }

    /// Adds something that was shown or granted.
    pub(crate) fn add(&mut self, part: &[u8]) {
        self.0.update(part);
        self.0.update(&(part.len() as u64).to_le_bytes());
    }

    /// Adds the fields of a request that may be credentials, and its arguments.
    pub(crate) fn add_request(&mut self, ctx: &Context) {
        for (name, value) in ctx.request.headers.iter().filter(|(name, _)| !is_neutral(name)) {
            self.add(&name.to_ascii_lowercase());
            self.add(value);
        }
        self.add(ctx.request.query().unwrap_or_default());
    }

    /// Adds all fields.
    pub(crate) fn add_fields(&mut self, fields: &Headers) {
        for (name, value) in
            fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(b"X-Forwarded-Method"))
        {
            self.add(&name.to_ascii_lowercase());
            self.add(value);
        }
    }

    /// Says that the request is of this user.
    pub(crate) fn mark(self, plugin: &str, ctx: &mut Context) {
        ctx.mark_personal(plugin, Some(self.0.finish().as_ref()));
    }
}

fn is_neutral(name: &[u8]) -> bool {
    NEUTRAL.iter().any(|known| known.eq_ignore_ascii_case(name))
        || NEUTRAL_STARTS
            .iter()
            .any(|start| name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    fn name(head: &str, granted: &[u8]) -> Vec<u8> {
        let mut case = Case::new(&format!("{head} HTTP/1.1\nHost: h").replace("|", " HTTP/1.1\n").replacen(
            " HTTP/1.1\nHost",
            "\nHost",
            usize::from(head.contains('|')),
        ));
        let mut user_digest = UserDigest::of(&case.ctx);
        user_digest.add_request(&case.ctx);
        user_digest.add(granted);
        user_digest.mark("p", &mut case.ctx);
        case.ctx.personal.names().to_vec()
    }

    #[test]
    fn persons_differ_by_what_may_be_a_credential() {
        let plain = name("GET /", b"");
        assert_eq!(
            plain,
            name("GET /|User-Agent: x\nIf-None-Match: y\nSec-Fetch-Mode: z\nRange: bytes=0-1", b"")
        );
        for other in
            ["GET /|Cookie: u=jack", "GET /|X-Api-Key: k", "GET /|Authorization: Basic x", "GET /?token=t"]
        {
            assert_ne!(plain, name(other, b""), "{other}");
        }
        assert_ne!(name("GET /|Cookie: u=jack", b""), name("GET /|Cookie: u=jill", b""));
        assert_ne!(plain, name("GET /", b"jack"));
    }
}
