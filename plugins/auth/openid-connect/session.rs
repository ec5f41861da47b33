//! Sessions of logged-in users.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::Config;
use super::questions::Tokens;
use super::session_config::SessionConfig;
use crate::shared::seal::Seal;

/// The data of a logged-in user. Times are seconds since 1970.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Session {
    /// It is random, and no client can choose it.
    pub(super) id: String,
    /// When the user logged in.
    pub(super) began: u64,
    /// When the session was last renewed.
    pub(super) renewed: u64,
    /// When it was last seen, give or take.
    pub(super) used: u64,
    /// The provider's id of the user.
    pub(super) sub: String,
    /// The provider's own name of the session.
    pub(super) sid: Option<String>,
    /// The claims of the ID token.
    pub(super) id_claims: Option<Map<String, Value>>,
    pub(super) id_token: Option<String>,
    pub(super) user: Option<Map<String, Value>>,
    pub(super) access_token: Option<String>,
    /// When the access token ends.
    pub(super) access_ends: Option<u64>,
    pub(super) refresh_token: Option<String>,
    /// Whether a request was accepted by it.
    #[serde(default)]
    pub(super) has_served: bool,
}

/// How sessions are known, and for how long.
pub(super) struct Sessions {
    pub(super) config: SessionConfig,
    pub(super) seal: Arc<Seal>,
    /// A context that separates these sessions from others.
    context: Vec<u8>,
}

/// A session whose use was noted less than this many seconds ago is not noted again.
const NOTED_S: u64 = 60;

impl Sessions {
    pub(super) fn new(config: &SessionConfig, context: &[&str]) -> Sessions {
        let context: Vec<&str> = context.iter().copied().chain([&*config.cookie_name]).collect();
        Sessions {
            context: context.join("\n").into_bytes(),
            seal: Arc::new(Seal::new(config.secret.reveal(), &context)),
            config: config.clone(),
        }
    }

    /// Under which name the end of the sessions is kept whose ID token had this claim.
    pub(super) fn end_of(&self, claim: &str, value: &str) -> String {
        let text = [&self.context[..], claim.as_bytes(), value.as_bytes()].join(&0);
        let digest = digest(&SHA256, &text);
        digest.as_ref().iter().take(16).fold("end:".to_owned(), |name, byte| format!("{name}{byte:02x}"))
    }

    /// Under which names the end of a session may be kept.
    pub(super) fn ends_of(&self, session: &Session) -> Vec<String> {
        let by_session = session.sid.as_ref().map(|sid| self.end_of("sid", sid));
        by_session.into_iter().chain([self.end_of("sub", &session.sub)]).collect()
    }

    /// Whether a session has ended at this second.
    pub(super) fn is_over(&self, session: &Session, now: u64) -> bool {
        let over = |since: u64, limit: u64| limit > 0 && now.saturating_sub(since) >= limit;
        let config = &self.config;
        over(session.used, config.idling_timeout)
            || over(session.renewed, config.rolling_timeout)
            || over(session.began, config.absolute_s())
    }

    /// Notes that a session is in use; false if that was noted not long ago.
    pub(super) fn note_use(&self, session: &mut Session, now: u64) -> bool {
        let config = &self.config;
        let soon = if config.idling_timeout > 0 { NOTED_S.min(config.idling_timeout / 4) } else { NOTED_S };
        let is_old = config.rolling_timeout > 0
            && now.saturating_sub(session.renewed) >= config.rolling_timeout / 4 * 3;
        if is_old {
            session.renewed = now;
        }
        let is_due = is_old || now.saturating_sub(session.used) >= soon;
        if is_due {
            session.used = now;
        }
        is_due
    }

    /// Returns the seconds that a session has left if it is not used; None for no end.
    pub(super) fn seconds_left(&self, session: &Session, now: u64) -> Option<u64> {
        let left = |since: u64, limit: u64| (limit > 0).then(|| (since + limit).saturating_sub(now).max(1));
        let config = &self.config;
        let ends = [
            left(session.used, config.idling_timeout),
            left(session.renewed, config.rolling_timeout),
            left(session.began, config.absolute_s()),
        ];
        ends.into_iter().flatten().min()
    }
}

impl Session {
    /// Returns the part of it that is stored.
    pub(super) fn reduced(mut self, config: &Config) -> Session {
        if let Some(contents) = config.session_contents {
            let keeps_access = contents.access_token || config.required_scopes.is_some();
            self.id_claims = self.id_claims.filter(|_| contents.id_token);
            self.id_token = self.id_token.filter(|_| contents.enc_id_token || config.set_raw_id_token_header);
            self.user = self.user.filter(|_| contents.user);
            self.access_token = self.access_token.filter(|_| keeps_access);
            self.access_ends = self.access_ends.filter(|_| keeps_access);
            self.refresh_token = self.refresh_token.filter(|_| keeps_access);
        }
        self
    }

    /// Takes new tokens.
    pub(super) fn take(&mut self, tokens: Tokens, config: &Config, now: u64) {
        let lives = tokens.expires_in.unwrap_or(config.access_token_expires_in);
        self.access_ends = Some(now.saturating_add(lives));
        self.access_token = Some(tokens.access_token);
        if let Some(refresh_token) = tokens.refresh_token {
            self.refresh_token = Some(refresh_token);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sessions(more: Value) -> Sessions {
        let mut conf = json!({
            "secret": "0123456789abcdef", "cookie_name": "s", "cookie_path": "/", "cookie_http_only": true,
            "cookie_same_site": "Lax", "idling_timeout": 100, "rolling_timeout": 1000,
            "absolute_timeout": 5000, "storage": "cookie",
        });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Sessions::new(&serde_json::from_value(conf).unwrap(), &[])
    }

    fn session(began: u64) -> Session {
        Session {
            id: "a".to_owned(),
            began,
            renewed: began,
            used: began,
            sub: "jack".to_owned(),
            sid: None,
            id_claims: None,
            id_token: None,
            user: None,
            access_token: None,
            access_ends: None,
            refresh_token: None,
            has_served: false,
        }
    }

    #[test]
    fn a_session_that_is_not_used_ends() {
        let sessions = sessions(json!({}));
        let session = session(1_000_000);
        assert!(!sessions.is_over(&session, 1_000_099));
        assert!(sessions.is_over(&session, 1_000_100));
        // A clock that was set back ends nothing.
        assert!(!sessions.is_over(&session, 999_000));
        assert_eq!(sessions.seconds_left(&session, 1_000_030), Some(70));
    }

    /// A session in use lasts until its absolute end, if all pauses are shorter than its idle time-out.
    #[test]
    fn a_session_that_is_used_lasts_until_its_end() {
        for pause in [1, 24, 25, 26, 60, 74] {
            let sessions = sessions(json!({}));
            let (mut session, mut now, mut noted) = (session(1_000_000), 1_000_000, 0);
            while !sessions.is_over(&session, now) {
                noted += u64::from(sessions.note_use(&mut session, now));
                assert!(sessions.seconds_left(&session, now).unwrap() > 0);
                now += pause;
            }
            assert!((1_005_000..1_005_000 + pause).contains(&now), "{pause}: {now}");
            assert!(noted <= 5000 / 25 + 1, "{pause}: a cookie with {noted} answers");
        }
    }

    #[test]
    fn the_former_name_of_the_absolute_end_counts_where_the_new_one_is_left_out() {
        let check = |more: Value, expected: u64| assert_eq!(sessions(more).config.absolute_s(), expected);
        check(json!({}), 5000);
        check(json!({"cookie": {"lifetime": 7}}), 5000);
        check(json!({"absolute_timeout": null, "cookie": {"lifetime": 7}}), 7);
        check(json!({"absolute_timeout": null, "cookie": {}}), 86_400);
    }

    #[test]
    fn nothing_ends_a_session_without_limits() {
        let sessions = sessions(json!({"idling_timeout": 0, "rolling_timeout": 0, "absolute_timeout": 0}));
        assert!(!sessions.is_over(&session(1), u64::MAX));
        assert_eq!(sessions.seconds_left(&session(1), 5), None);
    }
}
