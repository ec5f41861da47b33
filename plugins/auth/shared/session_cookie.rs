//! Sessions that browsers keep in a cookie: sealed, fit for one purpose alone, and with an end that the gateway
//! sees to.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sigma_plugin::{Context, Env, Reply};

use super::seal::{Seal, joined, leftovers, remove, split};

/// Attributes of session cookies: no page reads them, and no form of another site sends them.
const ATTRIBUTES: &str = "Path=/; HttpOnly; SameSite=Lax";

/// As [`ATTRIBUTES`], for those that forms of other sites have to send. Browsers take them over TLS alone.
const ACROSS_SITES: &str = "Path=/; HttpOnly; SameSite=None; Secure";

/// The cookie of one purpose.
pub(crate) struct SessionCookie {
    name: String,
    attributes: &'static str,
    /// The first one seals; all of them open.
    seals: Vec<Seal>,
}

/// What is sealed.
#[derive(Serialize, Deserialize)]
struct SealedSession<T> {
    /// The second since 1970 from which on it is nothing.
    until: u64,
    value: T,
}

impl SessionCookie {
    /// The cookie of this name. Values that were sealed with an older secret are read as well. `context` distinguishes
    /// those  who share a secret.
    pub(crate) fn new<'s>(
        name: String,
        secret: &'s str,
        older: impl IntoIterator<Item = &'s str>,
        context: &[&str],
    ) -> SessionCookie {
        let seals = std::iter::once(secret).chain(older).map(|secret| Seal::new(secret, context)).collect();
        SessionCookie { name, attributes: ATTRIBUTES, seals }
    }

    /// The same, sent by browsers with forms of other sites too.
    pub(crate) fn across_sites(self) -> SessionCookie {
        SessionCookie { attributes: ACROSS_SITES, ..self }
    }

    /// The session of a request; None if it has no valid one.
    pub(crate) fn read<T: DeserializeOwned>(&self, ctx: &Context, env: &Env<'_>) -> Option<T> {
        let sealed = joined(&ctx.request.headers, &self.name)?;
        let text = self.seals.iter().find_map(|seal| seal.open(&self.name, &sealed))?;
        let kept: SealedSession<T> = serde_json::from_slice(&text).ok()?;
        (env.unix_time().as_secs() < kept.until).then_some(kept.value)
    }

    /// Returns values of `Set-Cookie` that begin a session of so many seconds, instead of the request's.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it is too large, or cannot get random bytes.
    pub(crate) fn begin<T: Serialize>(
        &self,
        value: T,
        lives_s: u64,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Result<Vec<String>, String> {
        let until = env.unix_time().as_secs().saturating_add(lives_s);
        let text = serde_json::to_vec(&SealedSession { until, value }).map_err(|error| error.to_string())?;
        let seal = self.seals.first().ok_or("no secret is configured")?;
        let sealed = seal.seal(&self.name, &text, env.machine)?;
        let parts =
            split(&self.name, &sealed, &ctx.request.headers).ok_or("the session is too large for cookies")?;
        Ok(parts.iter().map(|(name, value)| self.field(name, value, ctx)).collect())
    }

    /// Takes the cookie out of a request that goes to a node, which has no use for it and could use it.
    pub(crate) fn hide(&self, ctx: &mut Context) {
        remove(&self.name, &mut ctx.request.headers);
    }

    /// Values of `Set-Cookie` that end the session of a request, if it has one.
    pub(crate) fn end(&self, ctx: &Context) -> Vec<String> {
        let parts = leftovers(&self.name, 1, &ctx.request.headers);
        parts.iter().map(|(name, value)| self.field(name, value, ctx)).collect()
    }

    /// A cookie; one without a value is to be forgotten.
    fn field(&self, name: &str, value: &str, ctx: &Context) -> String {
        let attributes = self.attributes;
        let is_due = ctx.client.tls.is_some() && !attributes.ends_with("Secure");
        let secure = if is_due { "; Secure" } else { "" };
        let ends = if value.is_empty() { "; Max-Age=0" } else { "" };
        format!("{name}={value}; {attributes}{secure}{ends}")
    }
}

/// A reply with cookies.
pub(crate) fn with_cookies(reply: Reply, cookies: Vec<String>) -> Reply {
    cookies.into_iter().fold(reply, |reply, cookie| reply.header("Set-Cookie", cookie))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use sigma_plugin::system::{Host, System};
    use sigma_plugin::{Consumers, Local, Node};

    use super::*;
    use crate::testing::Case;

    /// A machine whose time is known.
    #[derive(Debug)]
    struct At(u64);

    impl System for At {
        fn now(&self) -> SystemTime {
            UNIX_EPOCH + Duration::from_secs(self.0)
        }

        fn uptime(&self) -> Duration {
            Duration::ZERO
        }

        fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
            Host.fill_random(bytes)
        }
    }

    fn cookie(secret: &str, older: &[&str], context: &str) -> SessionCookie {
        SessionCookie::new("s".to_owned(), secret, older.iter().copied(), &[context])
    }

    /// The session of a request with these cookies at a second.
    fn read(by: &SessionCookie, cookies: &[String], second: u64) -> Option<String> {
        let pairs: Vec<&str> = cookies.iter().filter_map(|field| field.split(';').next()).collect();
        let case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nCookie: {}", pairs.join("; ")));
        with_env(second, |env| by.read(&case.ctx, env))
    }

    fn with_env<R>(second: u64, run: impl FnOnce(&Env<'_>) -> R) -> R {
        let (node, local, consumers) =
            (Arc::new(Node::default()), Rc::new(Local::default()), Consumers::default());
        let machine = At(second);
        run(&Env { machine: &machine, ..Env::new(&node, &local, &consumers) })
    }

    #[test]
    fn sessions_end_and_are_of_one_secret() {
        let case = Case::new("GET / HTTP/1.1\nHost: h");
        let of = |by: &SessionCookie, text: &str| {
            with_env(1000, |env| by.begin(text.to_owned(), 900, &case.ctx, env)).unwrap()
        };
        let (new, old) = (cookie("secret-2", &["secret-1"], "a"), cookie("secret-1", &[], "a"));
        let kept = of(&new, "jack");
        assert!(kept[0].ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{kept:?}");
        assert_eq!(read(&new, &kept, 1899).as_deref(), Some("jack"));
        assert_eq!(read(&new, &kept, 1900), None);
        assert_eq!(read(&old, &kept, 1000), None);
        assert_eq!(read(&new, &of(&old, "jill"), 1000).as_deref(), Some("jill"), "an older secret");
        assert_eq!(read(&cookie("secret-2", &[], "b"), &kept, 1000), None, "another purpose");
        let long = "x".repeat(10_000);
        let parts = of(&new, &long);
        assert!(parts.len() > 1);
        assert_eq!(read(&new, &parts, 1000), Some(long));
        assert_eq!(read(&new, &parts[..1], 1000), None);
        assert!(with_env(0, |env| new.begin("x".repeat(100_000), 900, &case.ctx, env)).is_err());
    }

    #[test]
    fn expired_sessions_are_forgotten() {
        let case = Case::new("GET / HTTP/1.1\nHost: h\nCookie: s=a; s2=b; t=c");
        let ended = [
            "s=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0",
            "s2=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0",
        ];
        assert_eq!(cookie("secret", &[], "a").end(&case.ctx), ended);
        let across = cookie("secret", &[], "a").across_sites().end(&case.ctx);
        assert_eq!(across[0], "s=; Path=/; HttpOnly; SameSite=None; Secure; Max-Age=0");
        let case = Case::new("GET / HTTP/1.1\nHost: h");
        assert!(cookie("secret", &[], "a").end(&case.ctx).is_empty());
    }
}
