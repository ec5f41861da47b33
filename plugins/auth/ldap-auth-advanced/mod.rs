//! `ldap-auth-advanced`: a user whom a directory finds, and whose password it takes.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::HeaderId;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Step,
};
use sigma_schema::Confidential;
use sigma_schema::Problem;

use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::ldap::{
    self, Answered, Connection, Directory, DirectoryAddress, Entry, Failure, INVALID_CREDENTIALS, Keeping,
    NO_SUCH_OBJECT, SIZE_LIMIT_EXCEEDED, SUCCESS, Search, Security,
};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// The name of the plugin.
const NAME: &str = "ldap-auth-advanced";

/// Recognises a user whom a directory finds by an attribute.
pub(crate) static LDAP_AUTH_ADVANCED: Descriptor = Descriptor {
    name: NAME,
    priority: 2541,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("user_dn")),
    warnings: Some(|_, conf| warnings(conf)),
    owned_fields: Some(|_| vec![OwnedField::sole(GROUPS)]),
    build: |build| Ok(Arc::new(LdapAuthAdvanced::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// A name, or an OID: a number has no leading zero, and an OID two numbers at least (RFC 4512 §1.4). Options follow.
const ATTRIBUTE: &str = r"^([A-Za-z][A-Za-z0-9-]*|(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+)(;[A-Za-z0-9-]+)*$";

/// Authenticates users at an LDAP directory: searches the user by an attribute and checks the password.
///
/// The plugin searches below `base_dn` for the entry whose `attribute` is the client's name; there must be exactly
/// one. The plugin binds as `bind_dn`, or anonymously. It then binds as this entry with the client's password. The
/// client's name is sent as a value and is never part of a filter. An empty password is refused, because directories
/// treat it as an anonymous bind. Credentials are read from `Proxy-Authorization`, else from `Authorization`, and
/// stay in the request. If the directory is unreachable, the response is 500.
///
/// With `group_base_dn` the groups of a user are searched as well. The node gets their names in
/// `X-Authenticated-Groups`, and never gets this field from a client.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Host and port of the directory, without a scheme. Default port: 389, or 636 with `use_ldaps`.
    #[schemars(length(min = 1, max = 256))]
    ldap_uri: DirectoryAddress,
    /// Base DN of the users.
    #[schemars(length(min = 1, max = 4096))]
    base_dn: String,
    /// The attribute with the user's name: a name or OID, with options.
    #[schemars(
        length(max = 256),
        regex(pattern = ATTRIBUTE),
        extend("default" = "cn")
    )]
    attribute: String,
    /// DN for searches. Default: anonymous.
    #[schemars(length(min = 1, max = 4096))]
    bind_dn: Option<String>,
    /// The password of `bind_dn`.
    #[schemars(length(min = 1, max = 4096))]
    ldap_password: Option<Confidential>,
    /// Whether TLS encrypts the connection from its first byte (LDAPS).
    #[schemars(extend("default" = false))]
    use_ldaps: bool,
    /// Whether StartTLS encrypts the connection at its beginning.
    #[schemars(extend("default" = false))]
    use_starttls: bool,
    /// Whether the directory's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Timeout in milliseconds for all requests about one user.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 10_000))]
    timeout: u64,
    /// Whether connections are kept alive.
    #[schemars(extend("default" = true))]
    keepalive: bool,
    /// Idle timeout of a connection in milliseconds.
    #[schemars(range(min = 1000), extend("default" = 60_000))]
    keepalive_timeout: u64,
    /// Maximum idle connections of each worker.
    #[schemars(range(min = 1), extend("default" = 5))]
    keepalive_pool_size: usize,
    /// Name of the connection pool; connections to one directory in different pools are separate.
    #[schemars(length(min = 1, max = 256))]
    keepalive_pool_name: Option<String>,
    /// Maximum entries that a search for a user returns; exactly one must match.
    #[schemars(range(min = 2, max = 2_147_483_647), extend("default" = 2))]
    size_limit: u32,
    /// Maximum time of a search at the directory, in seconds; 0: no limit.
    #[schemars(range(min = 0, max = 2_147_483_647), extend("default" = 5))]
    time_limit: u32,
    /// Whether a consumer is required: its `user_dn` must be the DN of the entry.
    #[schemars(extend("default" = true))]
    consumer_required: bool,
    /// The first word of the credentials.
    #[schemars(extend("default" = "ldap"))]
    header_type: HeaderType,
    /// The realm of the challenge in `WWW-Authenticate`.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[ !#-\[\]-~]+$"), extend("default" = "ldap"))]
    realm: String,
    /// Base DN of groups; without it groups are not searched.
    #[schemars(length(min = 1, max = 4096))]
    group_base_dn: Option<String>,
    /// The attribute of a group with the DNs of its members.
    #[schemars(
        length(max = 256),
        regex(pattern = ATTRIBUTE),
        extend("default" = "member")
    )]
    #[schemars(extend("own_default" = true))]
    group_member_attribute: String,
    /// The attribute of a group with its name.
    #[schemars(
        length(max = 256),
        regex(pattern = ATTRIBUTE),
        extend("default" = "cn")
    )]
    #[schemars(extend("own_default" = true))]
    group_name_attribute: String,
    /// Required groups: a user outside all of them gets 403.
    #[schemars(length(min = 1), inner(length(min = 1, max = 256)))]
    groups_required: Option<Vec<String>>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let wrong = if self.use_ldaps && self.use_starttls {
            "use_ldaps and use_starttls are mutually exclusive"
        } else if self.bind_dn.is_some() && self.ldap_password.is_none() {
            "ldap_password is required when bind_dn is set"
        } else if self.groups_required.is_some() && self.group_base_dn.is_none() {
            "group_base_dn is required when groups_required is set"
        } else {
            return Ok(());
        };
        Err(wrong.to_owned())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum HeaderType {
    Ldap,
    Basic,
}

impl HeaderType {
    fn word(self) -> &'static str {
        match self {
            HeaderType::Ldap => "ldap",
            HeaderType::Basic => "Basic",
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The DN of the user's entry, byte for byte as the directory returns it. It must be unique among consumers.
    #[serde(rename = "user_dn")]
    #[schemars(length(min = 1, max = 4096))]
    _user_dn: String,
}

impl Configuration for Consumer {}

fn warnings(conf: &Value) -> Vec<Problem> {
    let is = |field: &str, value: bool| conf.get(field) == Some(&Value::Bool(value));
    let encrypted = is("use_ldaps", true) || is("use_starttls", true);
    match (conf.get("ldap_uri").is_some(), encrypted, is("ssl_verify", false)) {
        (true, false, _) => ldap::cleartext(conf, "use_ldaps").into_iter().collect(),
        (true, true, true) => vec![ldap::unverified("ssl_verify")],
        _ => Vec::new(),
    }
}

/// The field that names the user's groups to the node.
const GROUPS: &str = "X-Authenticated-Groups";

/// Most bytes of the field with the groups; nodes take no more than this in one line.
const GROUPS_BYTES: usize = 8 << 10;

/// The identity of a user, as a directory sees it.
enum Verdict {
    /// The user of this entry, who is in these groups.
    Known { name: String, groups: Vec<String> },
    /// Unknown user, for this reason.
    Unknown(&'static str),
    /// The directory fails, for this reason.
    Broken(String),
}

/// The remaining checks wait for the directory, and share this.
struct LdapAuthAdvanced(Arc<Shared>);

struct Shared {
    config: Config,
    directory: Arc<Directory>,
}

impl LdapAuthAdvanced {
    fn new(build: &Build<'_>) -> Result<LdapAuthAdvanced, String> {
        let config: Config = build.config()?;
        if config.ldap_password.as_ref().is_some_and(|password| password.reveal().is_empty()) {
            return Err(
                "ldap_password: it is empty, which a directory treats as an anonymous login".to_owned()
            );
        }
        let (port, security) = match (config.use_ldaps, config.use_starttls) {
            (true, _) => (636, Security::Tls),
            (_, true) => (389, Security::StartTls),
            _ => (389, Security::Cleartext),
        };
        let pool = config.keepalive_pool_name.as_deref().unwrap_or(NAME);
        let directory = Directory::new(&config.ldap_uri, port, security, config.ssl_verify, pool)?;
        Ok(LdapAuthAdvanced(Arc::new(Shared { config, directory: Arc::new(directory) })))
    }
}

impl Shared {
    /// Asks on one connection who has this name and password.
    async fn judge(
        &self,
        connection: &mut Connection,
        user: &str,
        password: &[u8],
    ) -> Result<Verdict, Failure> {
        let config = &self.config;
        // An idle connection may be bound as another user.
        let searcher = config.bind_dn.as_deref().unwrap_or_default();
        let secret = config.ldap_password.as_ref().filter(|_| config.bind_dn.is_some());
        let secret = secret.map_or("", Confidential::reveal);
        match connection.bind(searcher, secret.as_bytes()).await? {
            SUCCESS => {}
            code => {
                return Ok(Verdict::Broken(format!("the directory refused the search account with {code}")));
            }
        }
        let search = Search {
            base: &config.base_dn,
            attribute: &config.attribute,
            value: user.as_bytes(),
            size_limit: config.size_limit,
            time_limit: config.time_limit,
            wanted: None,
        };
        let (code, mut found) = connection.search(&search).await?;
        let name = match (code, found.pop(), found.len()) {
            (SUCCESS, Some(entry), 0) => entry.name,
            (SUCCESS, None, _) => return Ok(Verdict::Unknown("no entry with this name")),
            (SUCCESS | SIZE_LIMIT_EXCEEDED, ..) => {
                return Ok(Verdict::Unknown("several entries with this name"));
            }
            (code, ..) => return Ok(Verdict::Broken(format!("a search failed with {code}"))),
        };
        if name.is_empty() {
            return Ok(Verdict::Broken("an entry without a name was found".to_owned()));
        }
        let groups = match self.groups(connection, &name).await? {
            Ok(groups) => groups,
            Err(broken) => return Ok(Verdict::Broken(broken)),
        };
        Ok(match connection.bind(&name, password).await? {
            SUCCESS => Verdict::Known { name, groups },
            INVALID_CREDENTIALS => Verdict::Unknown("the password is wrong"),
            code => Verdict::Broken(format!("the directory refused a bind with {code}")),
        })
    }

    /// The groups that have this entry as a member.
    async fn groups(
        &self,
        connection: &mut Connection,
        name: &str,
    ) -> Result<Result<Vec<String>, String>, Failure> {
        let config = &self.config;
        let Some(base) = &config.group_base_dn else { return Ok(Ok(Vec::new())) };
        let search = Search {
            base,
            attribute: &config.group_member_attribute,
            value: name.as_bytes(),
            size_limit: 0,
            time_limit: config.time_limit,
            wanted: Some(&config.group_name_attribute),
        };
        let (code, found) = connection.search(&search).await?;
        match code {
            SUCCESS | NO_SUCH_OBJECT => {}
            code => return Ok(Err(format!("a search for groups failed with {code}"))),
        }
        let names = found.into_iter().filter_map(|Entry { values, .. }| values.into_iter().next());
        let mut names: Vec<String> = names.filter_map(|name| String::from_utf8(name).ok()).collect();
        names.sort_unstable();
        Ok(Ok(names))
    }

    fn settle(&self, answered: Answered<Verdict>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (name, groups) = match answered {
            Ok((Verdict::Known { name, groups }, connection)) => {
                let Config { keepalive, keepalive_pool_size, keepalive_timeout, .. } = self.config;
                if keepalive {
                    let keeping = Keeping { connections: keepalive_pool_size, idle_ms: keepalive_timeout };
                    ldap::keep(&self.directory, connection, keeping, env.local, env.now_ms);
                }
                (name, groups)
            }
            Ok((Verdict::Unknown(reason), _)) => return self.challenge(reason),
            Ok((Verdict::Broken(reason), _)) | Err(Failure(reason)) => return self.fail(&reason, ctx),
        };
        if let Some(required) = &self.config.groups_required
            && !groups.iter().any(|group| required.contains(group))
        {
            let reply =
                Reply::new(403).json(&json!({"message": "The user is in none of the required groups"}));
            return reply.because("the user is in none of the required groups").into();
        }
        if let Some(identity) = env.consumers.find(NAME, &name) {
            ctx.attach(identity);
        } else if self.config.consumer_required {
            return self.challenge("no consumer has this user_dn");
        }
        ctx.mark_personal(NAME, Some(name.as_bytes()));
        match field_of(&groups) {
            Some(field) if field.is_empty() => {}
            Some(field) => ctx.request.headers.append(GROUPS, field.as_bytes()),
            None => return self.fail("a user is in so many groups that no field holds their names", ctx),
        }
        Step::Next
    }

    fn challenge(&self, reason: &'static str) -> Step {
        static REFUSED: LogThrottle = LogThrottle::new();
        if let Some(left_out) = REFUSED.due() {
            tracing::info!(plugin = NAME, reason, left_out, "the request is not authenticated");
        }
        let challenge = format!("{} realm=\"{}\"", self.config.header_type.word(), self.config.realm);
        let reply = Reply::new(401).header("WWW-Authenticate", challenge.as_bytes());
        reply.json(&json!({"message": "Authorization required"})).because(reason).into()
    }

    fn fail(&self, reason: &str, ctx: &Context) -> Step {
        static UNDECIDED: LogThrottle = LogThrottle::new();
        let directory = DecisionService { plugin: NAME, url: self.directory.to_string() };
        directory.report(reason, ctx, &UNDECIDED);
        Reply::new(500).because("the directory fails").into()
    }

    /// The name and password of a request.
    fn credentials(&self, ctx: &Context) -> Option<(String, Vec<u8>)> {
        let fields = [HeaderId::ProxyAuthorization, HeaderId::Authorization];
        let word = self.config.header_type.word();
        fields.into_iter().find_map(|id| credentials(ctx.request.headers.get(id)?, word))
    }
}

/// Reads `<word> base64(user:password)`.
fn credentials(value: &[u8], word: &str) -> Option<(String, Vec<u8>)> {
    let (first, rest) = value.split_at_checked(word.len())?;
    if !first.eq_ignore_ascii_case(word.as_bytes()) || rest.first() != Some(&b' ') {
        return None;
    }
    let decoded = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (user, password) = (&decoded[..colon], &decoded[colon + 1..]);
    let user = std::str::from_utf8(user).ok().filter(|user| !user.is_empty())?;
    // A directory takes an empty password for an anonymous bind, and reports success (RFC 4513 §5.1.2).
    (!password.is_empty()).then(|| (user.to_owned(), password.to_vec()))
}

/// Names of groups as a list. One with a comma would be read as two, and is omitted. None if there are too many.
fn field_of(groups: &[String]) -> Option<String> {
    let is_one = |name: &&str| !name.is_empty() && !name.chars().any(|c| c == ',' || c.is_control());
    let field = groups.iter().map(String::as_str).filter(is_one).collect::<Vec<_>>().join(", ");
    (field.len() <= GROUPS_BYTES).then_some(field)
}

impl Plugin for LdapAuthAdvanced {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let shared = &self.0;
        let Some((user, password)) = shared.credentials(ctx) else {
            return shared.challenge("no name and password");
        };
        let asked = Arc::clone(shared);
        let question =
            async move |connection: &mut Connection| asked.judge(connection, &user, &password).await;
        let timeout = Duration::from_millis(shared.config.timeout);
        let asking = ldap::ask(Arc::clone(&shared.directory), env.local, env.now_ms, timeout, question);
        let shared = Arc::clone(shared);
        Step::wait(asking, move |answered, ctx, env| shared.settle(answered, ctx, env))
    }
}

#[cfg(test)]
mod tests {
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, entry, field, refusal, refusal_in, summary, warned};

    #[test]
    fn names_and_passwords() {
        let check = |value: &str, expected: Option<(&str, &str)>| {
            let found = credentials(value.as_bytes(), "ldap");
            let found =
                found.as_ref().map(|(user, password)| (&**user, std::str::from_utf8(password).unwrap()));
            assert_eq!(found, expected, "{value}");
        };
        let ldap = |text: &str| format!("LDAP {}", STANDARD.encode(text));
        check(&ldap("jack:p:w "), Some(("jack", "p:w ")));
        check(&ldap("jack:"), None);
        check(&ldap(":pw"), None);
        check(&ldap("jack"), None);
        check(&format!("x {}", ldap("a:b")), None);
        check("Basic YTpi", None);
        check("ldap YTpi", Some(("a", "b")));
        check("ldapYTpi", None);
        check("ldap /zpi", None);
        check("ldap $", None);
        check("", None);
    }

    #[test]
    fn groups_as_a_field() {
        let check = |groups: &[&str], expected: Option<&str>| {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            assert_eq!(field_of(&groups).as_deref(), expected);
        };
        check(&[], Some(""));
        check(&["a", "b c"], Some("a, b c"));
        check(&["a, admins", "b", "", "c\nX: y"], Some("b"));
        check(&["x".repeat(9000).as_str()], None);
    }

    #[test]
    fn configurations() {
        let check = |more: Value, expected: &str| {
            let mut conf = json!({"ldap_uri": "a", "base_dn": "dc=b"});
            conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let said = refusal(NAME, &conf);
            assert!(
                if expected.is_empty() { said.is_empty() } else { said.contains(expected) },
                "{conf}: {said}"
            );
        };
        check(json!({}), "");
        check(
            json!({"use_ldaps": true, "use_starttls": true}),
            "use_ldaps and use_starttls are mutually exclusive",
        );
        check(json!({"bind_dn": "cn=x"}), "ldap_password is required when bind_dn is set");
        check(json!({"bind_dn": "cn=x", "ldap_password": "pw"}), "");
        check(json!({"groups_required": ["a"]}), "group_base_dn is required when groups_required is set");
        check(json!({"attribute": "2.5.4.3;lang-de"}), "");
        for good in ["cn", "1.2", "0.9.2342.19200300.100.1.1", "2.5.4.0", "a-1;x;lang-de", "C"] {
            check(json!({ "attribute": good }), "");
        }
        for bad in
            ["1", "0", "01.2", "1.02", "1.", ".1", "1..2", "1.2.", "cn;", ";binary", "cn=*)(x", "a_b", ""]
        {
            for field in ["attribute", "group_member_attribute", "group_name_attribute"] {
                check(json!({ field: bad }), "failed to match pattern");
            }
        }
        check(json!({"size_limit": 1}), "expected 1 to be at least 2");
        check(json!({"timeout": 0}), "expected 0 to be at least 1");
        check(json!({"header_type": "digest"}), "matches none of the enum values");
        check(json!({"keepalive_timeout": 1}), "expected 1 to be at least 1000");
        assert_eq!(refusal_in(NAME, PluginScope::Consumer, &json!({})), "property \"user_dn\" is required");
        let told = |conf: Value| warned(NAME, PluginScope::Http, &conf);
        assert_eq!(told(json!({"ldap_uri": "a", "base_dn": "b"})), ["use_ldaps"]);
        assert!(told(json!({"ldap_uri": "127.0.0.1:389", "base_dn": "b"})).is_empty());
        assert!(told(json!({"ldap_uri": "a", "base_dn": "b", "use_starttls": true})).is_empty());
        let unverified = json!({"ldap_uri": "a", "base_dn": "b", "use_starttls": true, "ssl_verify": false});
        assert_eq!(told(unverified), ["ssl_verify"]);
    }

    #[test]
    fn nobody_answers() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let conf =
            json!({"ldap_uri": format!("127.0.0.1:{port}"), "base_dn": "dc=b", "consumer_required": false});
        let entry = entry(NAME, conf).unwrap();
        let mut case =
            Case::new("GET / HTTP/1.1\nHost: h\nAuthorization: ldap YTpi\nX-Authenticated-Groups: admins");
        assert_eq!(summary(case.run(&entry, Phase::Rewrite).as_ref()), "500");
        assert_eq!(case.sent(GROUPS), None);
        case.request("GET / HTTP/1.1\nHost: h\nAuthorization: Basic YTpi");
        let reply = case.run(&entry, Phase::Rewrite).unwrap();
        assert_eq!(summary(Some(&reply)), "401 {\"message\":\"Authorization required\"}");
        assert_eq!(field(&reply, "www-authenticate").as_deref(), Some("ldap realm=\"ldap\""));
    }
}
