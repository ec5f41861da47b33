//! Requests to wolf, and its responses.

use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::Method;
use sigma_plugin::Context;
use sigma_plugin::outbound::{Call, ServiceResponse};

use super::{Owner, Token};
use crate::shared::answers;
use crate::shared::form::escaped;

/// A request to wolf.
pub(super) struct WolfRequest<'q> {
    /// Path and query below the server's URL.
    pub(super) target: String,
    pub(super) token: Option<&'q Token>,
    /// Sent by POST if there is one.
    pub(super) body: Option<Vec<u8>>,
    pub(super) timeout_ms: u64,
}

impl WolfRequest<'_> {
    /// The call to the server that the owner names.
    pub(super) fn call(self, owner: &Owner, ctx: &Context) -> Call {
        let server = &owner.config().server;
        let mut call = server.get(&owner.upstream(), ctx, self.timeout_ms);
        call.target = format!("{}{}", server.target.trim_end_matches('/'), self.target).into_bytes();
        if let Some(token) = self.token {
            call.headers.append("x-rbac-token", token.secret.as_bytes());
        }
        call.headers.append("Content-Type", b"application/json; charset=utf-8");
        if let Some(body) = self.body {
            call.method = Method::Post;
            call.body = Some(body);
        }
        call
    }
}

/// Wolf's JSON response, with `D` for the requested data.
#[derive(Deserialize)]
pub(super) struct WolfResponse<D> {
    ok: Option<bool>,
    reason: Option<String>,
    pub(super) data: Option<D>,
}

impl<D> WolfResponse<D> {
    /// Whether wolf says that all is well.
    pub(super) fn is_granted(&self) -> bool {
        self.ok == Some(true)
    }
}

/// The user, wherever wolf tells it.
#[derive(Deserialize)]
struct WithUser {
    #[serde(rename = "userInfo")]
    user: Option<User>,
}

impl WolfResponse<WithUser> {
    fn user(&self) -> Option<&User> {
        self.data.as_ref()?.user.as_ref()
    }
}

/// A user of wolf's.
#[derive(Deserialize)]
pub(super) struct User {
    id: Option<UserId>,
    username: Option<String>,
    nickname: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum UserId {
    Number(i64),
    Text(String),
}

impl User {
    /// Id, name and nickname as values of fields, the last one escaped; all None without an id.
    pub(super) fn values(&self) -> [Option<Vec<u8>>; 3] {
        let id = match &self.id {
            None => return [None, None, None],
            Some(UserId::Number(id)) => id.to_string(),
            Some(UserId::Text(id)) => id.clone(),
        };
        let nickname = match &self.nickname {
            Some(nickname) => Some(escaped(nickname.as_bytes()).into_bytes()),
            None => self.username.clone().map(String::into_bytes),
        };
        [Some(id.into_bytes()), self.username.clone().map(String::into_bytes), nickname]
    }

    /// Whether no value would tear a message apart.
    fn is_sound(&self) -> bool {
        let clean = |value: &Vec<u8>| !value.iter().any(|byte| *byte < 0x20 || *byte == 0x7f);
        self.values().iter().flatten().all(clean)
    }
}

/// Wolf's decision on a request.
pub(super) struct Verdict {
    status: u16,
    reason: Option<String>,
    pub(super) user: Option<User>,
}

impl Verdict {
    /// Parses a response.
    ///
    /// # Errors
    /// Returns an error, which the client sees, if it has no decision.
    pub(super) fn of(answer: ServiceResponse) -> Result<Verdict, String> {
        let ServiceResponse { status, body, .. } = answer;
        if status >= 500 || (status != 200 && status < 400) {
            return Err(format!("status:{status}"));
        }
        let said = answers::read::<WolfResponse<WithUser>>(&body);
        let is_sound = |said: &WolfResponse<WithUser>| said.user().is_none_or(User::is_sound);
        match said.filter(is_sound) {
            Some(said) => {
                let status = if status == 200 && !said.is_granted() { 403 } else { status };
                let WolfResponse { reason, data, .. } = said;
                Ok(Verdict { status, reason, user: data.and_then(|data| data.user) })
            }
            None => {
                // Without a decision the request is not allowed.
                let status = if status == 200 { 500 } else { status };
                let reason = Some("check permission failed! parse response json failed!".to_owned());
                Ok(Verdict { status, reason, user: None })
            }
        }
    }

    /// Status and body for a client whose request does not pass; None if it does.
    pub(super) fn refusal(self) -> Option<(u16, Map<String, Value>)> {
        if self.status == 200 {
            return None;
        }
        let mut body = Map::new();
        let (username, nickname) = self
            .user
            .filter(|user| user.id.is_some())
            .map_or((None, None), |user| (user.username, user.nickname));
        for (name, value) in [("message", self.reason), ("username", username), ("nickname", nickname)] {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.into());
            }
        }
        Some((self.status, body))
    }
}
