//! The configuration of sessions.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_schema::Confidential;

use sigma_plugin_kit::redis::{Encryption, ServerAddress, Target, single_server};

/// The sessions of logged-in users.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct SessionConfig {
    /// Secret that encrypts sessions; gateways with the same secret accept each other's sessions.
    #[schemars(length(min = 16))]
    pub(super) secret: Confidential,
    /// The name of the cookie. A large cookie is split: `session`, `session2` …
    #[schemars(regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$"), extend("default" = "session", "own_default" = true))]
    pub(super) cookie_name: String,
    /// `Path` of the cookie.
    #[schemars(regex(pattern = r"^/[!-:<-~]*$"), extend("default" = "/", "own_default" = true))]
    pub(super) cookie_path: String,
    /// `Domain` of the cookie; default: only the host that set it.
    #[schemars(regex(pattern = r"^[A-Za-z0-9.-]+$"))]
    pub(super) cookie_domain: Option<String>,
    /// `Secure` of the cookie; default: set if the request came over TLS.
    pub(super) cookie_secure: Option<bool>,
    /// `HttpOnly` of the cookie: scripts cannot read it.
    #[schemars(extend("default" = true, "own_default" = true))]
    pub(super) cookie_http_only: bool,
    /// `SameSite` of the cookie. With `Strict` users who follow a link from another site must log in.
    #[schemars(extend("default" = "Lax", "own_default" = true))]
    pub(super) cookie_same_site: SameSite,
    /// Idle timeout of a session in seconds; 0: none.
    #[schemars(extend("default" = 900, "own_default" = true))]
    pub(super) idling_timeout: u64,
    /// Seconds from the last renewal to the end of a session; 0: no end. Requests renew the session in time.
    #[schemars(extend("default" = 3600, "own_default" = true))]
    pub(super) rolling_timeout: u64,
    /// Maximum lifetime of a session in seconds; 0 for no limit. Default: one day.
    absolute_timeout: Option<u64>,
    /// APISIX's former form of `absolute_timeout`.
    cookie: Option<CookieConfig>,
    /// Storage of sessions: in the cookie itself, or in Redis.
    #[schemars(extend("default" = "cookie"))]
    pub(super) storage: Storage,
    /// The Redis server for sessions.
    pub(super) redis: Option<RedisConfig>,
}

/// APISIX's former form of `absolute_timeout`.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct CookieConfig {
    /// Lifetime of a session in seconds, if `absolute_timeout` is unset.
    lifetime: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum SameSite {
    Strict,
    Lax,
    None,
    /// The browser decides.
    Default,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Storage {
    Cookie,
    Redis,
}

/// The Redis server for sessions.
#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct RedisConfig {
    /// Host of the Redis server.
    #[schemars(length(min = 2), extend("default" = "127.0.0.1"))]
    host: String,
    /// Port of the Redis server.
    #[schemars(range(min = 1), extend("default" = 6379))]
    port: u16,
    /// User; without it the default user.
    #[schemars(length(min = 1))]
    username: Option<String>,
    /// Password; empty for no password.
    password: Option<Confidential>,
    /// Number of the database.
    #[schemars(range(min = 0), extend("default" = 0))]
    database: i64,
    /// Prefix of the keys of sessions.
    #[schemars(extend("default" = "sessions"))]
    pub(super) prefix: String,
    /// Whether the connection is encrypted.
    #[schemars(extend("default" = false))]
    ssl: bool,
    /// Whether the server's certificate must be valid.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Connect timeout in milliseconds.
    #[schemars(range(min = 1), extend("default" = 1000))]
    connect_timeout: u64,
    /// Send timeout in milliseconds. The longer one of this and `read_timeout` limits a command with its reply.
    #[schemars(range(min = 1), extend("default" = 1000))]
    send_timeout: u64,
    /// Timeout in milliseconds for a response.
    #[schemars(range(min = 1), extend("default" = 1000))]
    read_timeout: u64,
    /// Idle time in milliseconds after which a connection is replaced.
    #[schemars(range(min = 1000), extend("default" = 10000))]
    keepalive_timeout: u64,
}

impl SessionConfig {
    /// Seconds after which a session ends, whatever happens; 0 for never.
    pub(super) fn absolute_s(&self) -> u64 {
        let former = self.cookie.as_ref().and_then(|cookie| cookie.lifetime);
        self.absolute_timeout.or(former).unwrap_or(86_400)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match (self.storage, &self.redis) {
            (Storage::Redis, None) => Err("session: property \"redis\" is required".to_owned()),
            (Storage::Cookie, Some(_)) => {
                Err("session: `redis` has no effect while `storage` is cookie; set it to redis".to_owned())
            }
            _ if self.cookie_same_site == SameSite::None && self.cookie_secure == Some(false) => {
                Err("session: browsers accept cookies with `cookie_same_site: None` over TLS only; set `cookie_secure` to true"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl RedisConfig {
    /// Returns the target of a connection.
    pub(super) fn target(&self) -> Target {
        let place = ServerAddress { host: self.host.clone(), port: self.port };
        let ms = Duration::from_millis;
        let encryption = Encryption::of(self.ssl, self.ssl_verify);
        Target {
            connect_timeout: ms(self.connect_timeout),
            answer_timeout: ms(self.send_timeout.max(self.read_timeout)),
            idle_timeout: ms(self.keepalive_timeout),
            database: self.database,
            ..single_server(place, self.username.clone(), self.password.clone(), encryption)
        }
    }
}
