//! `ldap-auth`: name and password, which a directory knows.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::HeaderId;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Problem;

use crate::shared::policy::{AuthPolicy, Cause, Refusal, Scheme, authorization};
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::ldap::{
    self, Answered, Directory, DirectoryAddress, INVALID_CREDENTIALS, Keeping, SUCCESS, Security,
};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Recognises a consumer by a name and password that a directory takes.
pub(crate) static LDAP_AUTH: Descriptor = Descriptor {
    name: "ldap-auth",
    priority: 2540,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("user_dn")),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(LdapAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authenticates consumers by name and password at an LDAP directory.
///
/// The plugin binds as `<uid>=<name>,<base_dn>` with the client's password. The client's name stays the value of one
/// attribute (RFC 4514). An empty password is refused, because directories treat it as an anonymous bind. White space
/// in name and password is ignored, and text after a second colon is dropped, as in APISIX. Each worker keeps its
/// connections for a minute. If a directory does not respond within ten seconds, the login fails.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Base DN of the users.
    base_dn: String,
    /// Host and port of the directory, without a scheme. Default port: 389, also with TLS.
    ldap_uri: DirectoryAddress,
    /// Whether TLS encrypts the connection from its first byte (LDAPS).
    #[schemars(extend("default" = false))]
    use_tls: bool,
    /// Whether the directory's certificate is verified.
    #[schemars(extend("default" = false))]
    tls_verify: bool,
    /// The attribute with the user's name.
    #[schemars(extend("default" = "cn"))]
    uid: String,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for Config {}

impl Scheme for Config {
    const PLUGIN: &str = "ldap-auth";
    const NAME: &str = "Basic";
    const REALM: &str = "ldap";
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The DN of the user's entry, with escaped special characters; it must be unique among consumers.
    #[serde(rename = "user_dn")]
    user_dn: String,
}

impl Configuration for Consumer {
    fn check(&self) -> Result<(), String> {
        match self.user_dn.is_empty() {
            true => {
                Err("property \"user_dn\" validation failed: string too short, expected at least 1, got 0"
                    .into())
            }
            false => Ok(()),
        }
    }
}

fn warnings(conf: &Value) -> Vec<Problem> {
    let is_on = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    match (conf.get("ldap_uri").is_some(), is_on("use_tls"), is_on("tls_verify")) {
        (true, false, _) => ldap::cleartext(conf, "use_tls").into_iter().collect(),
        (true, true, false) => vec![ldap::unverified("tls_verify")],
        _ => Vec::new(),
    }
}

/// Milliseconds for a bind, with everything that it takes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The connections that a worker keeps.
const KEEPING: Keeping = Keeping { connections: 5, idle_ms: 60_000 };

const INVALID_USER: &str = "Invalid user authorization";

const fn invalid_user(detail: &'static str) -> Refusal {
    Refusal::new(INVALID_USER, detail)
}

/// The remaining checks wait for the directory, and share this.
struct LdapAuth(Arc<Shared>);

struct Shared {
    config: Config,
    directory: Arc<Directory>,
}

/// The credentials of a client.
#[derive(Debug, PartialEq)]
struct Credentials {
    user: String,
    password: Vec<u8>,
}

impl Credentials {
    /// Reads a value of `Authorization`. As in APISIX the scheme may stand anywhere in it.
    fn parse(value: Option<&[u8]>) -> Result<Credentials, Refusal> {
        const SCHEME: &[u8] = b"basic";
        let invalid = |detail| Refusal::new("Invalid authorization in request", detail);
        let value = value.ok_or(Refusal::absent("Missing authorization in request"))?;
        let mut windows = value.windows(SCHEME.len() + 1);
        let is_scheme = |w: &[u8]| {
            w[..SCHEME.len()].eq_ignore_ascii_case(SCHEME) && w[SCHEME.len()].is_ascii_whitespace()
        };
        let at = windows
            .position(is_scheme)
            .ok_or(invalid("Invalid authorization header format").with(Cause::Absent))?;
        let encoded = value[at + SCHEME.len() + 1..].trim_ascii();
        let decoded =
            STANDARD.decode(encoded).map_err(|_| invalid("Failed to decode authentication header"))?;
        let mut parts = decoded.split(|byte| *byte == b':').map(|part| {
            part.iter()
                .copied()
                .filter(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b)
                .collect::<Vec<_>>()
        });
        let (Some(user), Some(password)) = (parts.next(), parts.next()) else {
            return Err(invalid("Split authorization err: invalid decoded data"));
        };
        let user = String::from_utf8(user).map_err(|_| invalid_user("the user name is not text"))?;
        match (user.is_empty(), password.is_empty()) {
            (true, _) => Err(invalid_user("the user name is empty")),
            // A directory takes it for an anonymous bind, and reports success (RFC 4513 §5.1.2).
            (_, true) => Err(invalid_user("the password is empty")),
            _ => Ok(Credentials { user, password }),
        }
    }
}

impl LdapAuth {
    fn new(build: &Build<'_>) -> Result<LdapAuth, String> {
        const PORT: u16 = 389;
        let config: Config = build.config()?;
        let security = if config.use_tls { Security::Tls } else { Security::Cleartext };
        let directory = Directory::new(&config.ldap_uri, PORT, security, config.tls_verify, "ldap-auth")?;
        Ok(LdapAuth(Arc::new(Shared { config, directory: Arc::new(directory) })))
    }
}

impl Shared {
    /// Returns the step for a directory's response.
    fn settle(&self, user_dn: &str, answered: Answered<u32>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let outcome = match answered {
            Ok((SUCCESS, connection)) => {
                ldap::keep(&self.directory, connection, KEEPING, env.local, env.now_ms);
                self.config.policy.find(env, user_dn.as_bytes(), "no consumer has this user_dn").map_err(
                    |detail| match detail {
                        "Missing related consumer" => Refusal::plain(detail),
                        detail => invalid_user(detail),
                    },
                )
            }
            Ok((INVALID_CREDENTIALS, _)) => {
                Err(invalid_user("the directory refused the user name or password"))
            }
            Ok((code, _)) => {
                self.complain(&format!("the directory refused a bind with {code}"), ctx);
                Err(invalid_user("the directory did not bind the user"))
            }
            Err(failure) => {
                self.complain(&failure.0, ctx);
                Err(invalid_user("the directory did not respond").with(Cause::Unjudged))
            }
        };
        self.end(ctx, env, outcome)
    }

    fn complain(&self, error: &str, ctx: &Context) {
        static UNDECIDED: LogThrottle = LogThrottle::new();
        let directory = DecisionService { plugin: "ldap-auth", url: self.directory.to_string() };
        directory.report(error, ctx, &UNDECIDED);
    }

    fn end(&self, ctx: &mut Context, env: &Env<'_>, outcome: Result<&Arc<Identity>, Refusal>) -> Step {
        if self.config.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
        }
        self.config.policy.conclude(ctx, env, outcome)
    }
}

impl Plugin for LdapAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let shared = &self.0;
        let Credentials { user, password } = match Credentials::parse(authorization(ctx)) {
            Ok(credentials) => credentials,
            Err(refusal) => return shared.end(ctx, env, Err(refusal)),
        };
        let Config { uid, base_dn, .. } = &shared.config;
        let user_dn: Arc<str> = format!("{uid}={},{base_dn}", ldap::name::escaped(&user)).into();
        let name = Arc::clone(&user_dn);
        let bind = async move |connection: &mut ldap::Connection| connection.bind(&name, &password).await;
        let asking = ldap::ask(Arc::clone(&shared.directory), env.local, env.now_ms, TIMEOUT, bind);
        let shared = Arc::clone(shared);
        Step::wait(asking, move |answered, ctx, env| shared.settle(&user_dn, answered, ctx, env))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, entry, refusal, refusal_in, summary, warned};

    #[test]
    fn credentials() {
        let check = |value: &str, expected: Result<(&str, &str), &str>| {
            let found = Credentials::parse(Some(value.as_bytes()));
            let found = found.as_ref().map(|c| (&*c.user, std::str::from_utf8(&c.password).unwrap()));
            assert_eq!(found.map_err(|refusal| refusal.message), expected, "{value}");
        };
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        check(&basic("jack:pw"), Ok(("jack", "pw")));
        check(&basic("ja ck : p\tw\n"), Ok(("jack", "pw")));
        check(&basic("jack:pw:more"), Ok(("jack", "pw")));
        check(&format!("x bASIC {}", STANDARD.encode("a:b")), Ok(("a", "b")));
        const INVALID: &str = "Invalid authorization in request";
        for wrong in ["", "Basic", "Bearer x", "Basic a$", &basic("jack")] {
            check(wrong, Err(INVALID));
        }
        // A bind without a password succeeds for everybody.
        for nobody in ["jack:", "jack: ", "jack::pw", ":pw", " :pw"] {
            check(&basic(nobody), Err(INVALID_USER));
        }
        let binary = format!("Basic {}", STANDARD.encode(b"\xff:pw"));
        check(&binary, Err(INVALID_USER));
        assert_eq!(Credentials::parse(None).unwrap_err().message, "Missing authorization in request");
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_eq!(refusal("ldap-auth", &conf), expected, "{conf}");
        check(json!({"ldap_uri": "a", "base_dn": "dc=b"}), "");
        check(json!({"ldap_uri": "a"}), "property \"base_dn\" is required");
        check(json!({"base_dn": "dc=b"}), "property \"ldap_uri\" is required");
        let scheme = refusal("ldap-auth", &json!({"ldap_uri": "ldap://a", "base_dn": "dc=b"}));
        assert!(scheme.contains("write the host and port alone, without `ldap://`"), "{scheme}");
        let consumer = |conf: Value| refusal_in("ldap-auth", PluginScope::Consumer, &conf);
        assert_eq!(consumer(json!({})), "property \"user_dn\" is required");
        assert_ne!(consumer(json!({"user_dn": ""})), "");
        let told = |conf: Value| warned("ldap-auth", PluginScope::Http, &conf);
        assert_eq!(told(json!({"ldap_uri": "a", "base_dn": "b"})), ["use_tls"]);
        assert!(told(json!({"ldap_uri": "[::1]:389", "base_dn": "b"})).is_empty());
        assert_eq!(told(json!({"ldap_uri": "a", "base_dn": "b", "use_tls": true})), ["tls_verify"]);
        let verified = json!({"ldap_uri": "a", "base_dn": "b", "use_tls": true, "tls_verify": true});
        assert!(told(verified).is_empty());
    }

    #[test]
    fn nobody_answers() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let conf =
            json!({"ldap_uri": format!("127.0.0.1:{port}"), "base_dn": "dc=b", "hide_credentials": true});
        let entry = entry("ldap-auth", conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAuthorization: Basic YTpi");
        case.consumer("jack", "ldap-auth", &json!({"user_dn": "cn=a,dc=b"}));
        let reply = case.run(&entry, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "401 {\"message\":\"Invalid user authorization\"}");
    }
}
