//! The providers: their addresses, and the ways in which they differ from RFC 6749.

use schemars::JsonSchema;
use serde::Deserialize;

/// A provider of logins by OAuth2 without OpenID Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Provider {
    /// GitHub.
    Github,
    /// Sina Weibo.
    Weibo,
    /// WeChat (Weixin), for websites.
    Weixin,
    /// Alibaba's Taobao.
    Taobao,
    /// Another provider that follows RFC 6749; it needs all three URLs.
    Custom,
}

/// The differences of a provider.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) authorize_url: &'static str,
    pub(super) token_url: &'static str,
    pub(super) user_url: &'static str,
    pub(super) scope: &'static str,
    /// The arguments with the id and the secret of the application.
    pub(super) client_id: &'static str,
    pub(super) client_secret: &'static str,
    /// The token is requested by GET, with the arguments in the query.
    pub(super) token_by_get: bool,
    pub(super) user: UserCall,
    /// Members of the user with its id; the first one that exists counts.
    pub(super) ids: &'static [&'static str],
    /// The end of the URL of the login page.
    pub(super) fragment: &'static str,
    /// It verifies a proof key (RFC 7636).
    pub(super) pkce: bool,
}

/// How a user is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserCall {
    /// By a call with the token in `Authorization`.
    Bearer,
    /// By a call with the token, and a member of the token's response, as arguments: the member's name in the
    /// response, and the name of the argument.
    Query(&'static str, &'static str),
    /// The response with the token names the user.
    WithToken,
}

/// RFC 6749 to the letter.
const STANDARD: Style = Style {
    authorize_url: "",
    token_url: "",
    user_url: "",
    scope: "",
    client_id: "client_id",
    client_secret: "client_secret",
    token_by_get: false,
    user: UserCall::Bearer,
    ids: &["id", "sub", "uid"],
    fragment: "",
    pkce: true,
};

impl Provider {
    /// Returns the differences.
    pub(super) fn style(self) -> Style {
        match self {
            Provider::Custom => STANDARD,
            Provider::Github => Style {
                authorize_url: "https://github.com/login/oauth/authorize",
                token_url: "https://github.com/login/oauth/access_token",
                user_url: "https://api.github.com/user",
                scope: "read:user",
                ids: &["id"],
                ..STANDARD
            },
            Provider::Weibo => Style {
                authorize_url: "https://api.weibo.com/oauth2/authorize",
                token_url: "https://api.weibo.com/oauth2/access_token",
                user_url: "https://api.weibo.com/2/users/show.json",
                user: UserCall::Query("uid", "uid"),
                ids: &["idstr", "id"],
                pkce: false,
                ..STANDARD
            },
            Provider::Weixin => Style {
                authorize_url: "https://open.weixin.qq.com/connect/qrconnect",
                token_url: "https://api.weixin.qq.com/sns/oauth2/access_token",
                user_url: "https://api.weixin.qq.com/sns/userinfo",
                scope: "snsapi_login",
                client_id: "appid",
                client_secret: "secret",
                token_by_get: true,
                user: UserCall::Query("openid", "openid"),
                ids: &["unionid", "openid"],
                fragment: "#wechat_redirect",
                pkce: false,
            },
            Provider::Taobao => Style {
                authorize_url: "https://oauth.taobao.com/authorize",
                token_url: "https://oauth.taobao.com/token",
                user: UserCall::WithToken,
                ids: &["taobao_user_id", "taobao_open_uid"],
                pkce: false,
                ..STANDARD
            },
        }
    }
}
