//! How a session ends.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_plugin::{Context, Env, Reply, Step};

use super::Party;
use super::config::Config;
use super::session::{Session, Sessions};
use crate::shared::tokens::{Address, Metadata};

/// For browsers that request an image: one transparent pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

impl Sessions {
    /// Whether a request ends its session.
    pub(super) fn is_logout(&self, config: &Config, ctx: &Context) -> bool {
        ctx.request_uri() == config.logout_path.as_bytes()
    }
}

impl Party {
    /// Ends the session, here and at the provider.
    pub(super) fn log_out(self: &Arc<Self>, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.with_metadata(false, ctx, env, |party, metadata, ctx, env| {
            let (Some(metadata), Some(sessions)) = (metadata, &party.sessions) else {
                return Reply::new(503).because("the provider is unreachable").into();
            };
            let ending = Arc::clone(party);
            party.store.read(sessions, ctx, env, move |read, ctx, env| match read {
                Ok(session) => ending.end(session, &metadata, ctx, env),
                Err(()) => Reply::new(500).because("cannot read sessions").into(),
            })
        })
    }

    fn end(
        self: &Arc<Self>,
        session: Option<Session>,
        metadata: &Arc<Metadata>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(sessions) = &self.sessions else { return Step::status(500) };
        if let Some(session) = session.as_ref().filter(|_| self.config.revoke_tokens_on_logout) {
            self.revoke(session, metadata, env);
        }
        let hint = session.as_ref().and_then(|session| session.id_token.clone());
        let (party, metadata) = (Arc::clone(self), Arc::clone(metadata));
        self.store.forget(sessions, session.as_ref(), ctx, env, move |forgotten, ctx, _| match forgotten {
            Ok(cookies) => {
                let reply = party.farewell(hint.as_deref(), &metadata, ctx);
                cookies.into_iter().fold(reply, |reply, cookie| reply.header("Set-Cookie", cookie)).into()
            }
            Err(()) => Reply::new(500).because("cannot delete the session").into(),
        })
    }

    /// Revokes tokens on the control thread: the browser need not wait for that.
    fn revoke(&self, session: &Session, metadata: &Metadata, env: &Env<'_>) {
        let Some(endpoint) = metadata.revocation_endpoint.clone() else { return };
        let (client, provider) = (self.client.clone(), Arc::clone(&self.provider));
        let tokens = [
            (session.refresh_token.clone(), "refresh_token"),
            (session.access_token.clone(), "access_token"),
        ];
        env.node.spawn(async move {
            for (token, kind) in tokens {
                if let Some(token) = token {
                    client.revoke(&provider, &endpoint, &token, kind).await;
                }
            }
        });
    }

    fn farewell(&self, hint: Option<&str>, metadata: &Metadata, ctx: &Context) -> Reply {
        let after = self.config.post_logout_redirect_uri.as_deref();
        let accepts = ctx.request.headers.find(b"Accept").unwrap_or_default();
        let location = match (&metadata.end_session_endpoint, after) {
            (Some(endpoint), _) => Some(self.end_session(endpoint, hint)),
            (None, after) => after.map(str::to_owned),
        };
        let reply = match location {
            // Told by an image of the provider's page.
            _ if accepts.starts_with(b"image/png") => Reply::new(200)
                .header("Content-Type", "image/png")
                .text(STANDARD.decode(PIXEL).unwrap_or_default()),
            Some(location) => Reply::new(302).header("Location", location),
            None => Reply::new(200)
                .header("Content-Type", "text/html")
                .text("<html><body>Logged Out</body></html>"),
        };
        reply.header("Cache-Control", "no-cache, no-store, max-age=0")
    }

    /// Where the provider ends its own session (OpenID Connect RP-Initiated Logout 1.0).
    fn end_session(&self, endpoint: &Address, hint: Option<&str>) -> String {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(hint.map(|hint| ("id_token_hint", hint)));
        if hint.is_none() {
            pairs.push(("client_id", &self.config.client_id));
        }
        pairs.extend(
            self.config.post_logout_redirect_uri.as_deref().map(|uri| ("post_logout_redirect_uri", uri)),
        );
        endpoint.with_arguments(&pairs)
    }
}
