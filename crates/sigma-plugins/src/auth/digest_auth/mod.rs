//! `digest-auth`: name and password, of which only a digest is sent (RFC 7616).

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use md5::{Digest as _, Md5};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_config::Problem;
use sigma_config::resources::Confidential;
use sigma_http::HeaderId;
use sigma_plugin::counter::Shared;
use sigma_plugin::machine::Machine;
use sigma_plugin::variables::percent_decoded;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step,
};

use super::policy::{AuthPolicy, Refusal, Scheme, authorization, same_secret};
use crate::limit::process_ms;

/// Recognises a consumer by a digest of name and password.
pub(crate) static DIGEST_AUTH: Descriptor = Descriptor {
    name: "digest-auth",
    priority: 2525,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("username")),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(DigestAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - { username: jack, plugins: { digest-auth: { username: jack, password: jacks-password } } }
routes:
  - uri: /*
    plugins:
      digest-auth: { realm: orders }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -s --digest -u jack:jacks-password http://127.0.0.1:9080/orders
…
    "x-consumer-username": "jack",
…
$ curl -s --digest -u jack:other http://127.0.0.1:9080/orders
{"message":"Invalid user authorization"}
```
"#;

/// Recognises a consumer by name and password, of which the client sends a digest: HTTP Digest authentication
/// (RFC 7616).
///
/// The quality of protection is `auth`: method and URI are part of the digest, the body is not. A nonce is the
/// time and a MAC over it, so that no gateway has to remember those that it has given out; one that is too old
/// is answered with another and `stale=true`. How often a nonce was used (`nc`) is remembered, so a request
/// cannot be repeated to the same gateway. Session keys and hashed user names are not offered.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Digests that are offered, the preferred first. MD5 can be broken; it is for clients that know nothing
    /// else.
    #[schemars(length(min = 1), extend("uniqueItems" = true, "default" = ["SHA-256"]))]
    algorithms: Vec<Algorithm>,
    /// Seconds for which a nonce may be used.
    #[schemars(range(min = 1, max = 86_400), extend("default" = 300))]
    nonce_lifetime: u64,
    /// What nonces are made with. Gateways that have the same secret take each other's nonces, and a request
    /// can then be repeated once to each of them. Without one a gateway makes up its own when it starts.
    #[schemars(length(min = 16))]
    nonce_secret: Option<Confidential>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for Config {}

impl Scheme for Config {
    const PLUGIN: &str = "digest-auth";
    const NAME: &str = "Digest";
    const REALM: &str = "digest";
}

/// Digests by their names in the registry of RFC 7616.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
enum Algorithm {
    #[serde(rename = "SHA-256")]
    Sha256,
    #[serde(rename = "SHA-512-256")]
    Sha512Of256,
    #[serde(rename = "MD5")]
    Md5,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "SHA-256",
            Algorithm::Sha512Of256 => "SHA-512-256",
            Algorithm::Md5 => "MD5",
        }
    }

    /// The digest of these parts with colons between them, in hexadecimal.
    fn of(self, parts: &[&[u8]]) -> Vec<u8> {
        let text = parts.join(&b':');
        let bytes = match self {
            Algorithm::Sha256 => digest::digest(&digest::SHA256, &text).as_ref().to_vec(),
            Algorithm::Sha512Of256 => digest::digest(&digest::SHA512_256, &text).as_ref().to_vec(),
            Algorithm::Md5 => Md5::digest(&text).to_vec(),
        };
        bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The name; no two consumers have the same one.
    #[schemars(length(min = 1))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: Confidential,
}

impl Configuration for Consumer {}

fn warnings(conf: &Value) -> Vec<Problem> {
    let names = conf.get("algorithms").and_then(Value::as_array);
    match names.is_some_and(|names| names.iter().any(|name| name == "MD5")) {
        true => {
            let message = "passwords can be found from digests of MD5 by whoever sees them";
            vec![Problem::new("algorithms", "weak", message).hint("leave MD5 out once no client needs it")]
        }
        false => Vec::new(),
    }
}

/// What every instance of this process has in common.
struct Common {
    /// The key of nonces where the configuration has none.
    key: hmac::Key,
    /// How often nonces were used.
    uses: Shared<Uses>,
}

/// The uses of one nonce: a client may have several requests under way, which overtake one another.
#[derive(Debug, Default)]
struct Uses {
    /// The highest number so far.
    highest: u32,
    /// Which of the 64 numbers up to it were used, the highest in the lowest bit.
    used: u64,
}

impl Uses {
    /// Whether this number is used for the first time; it is used up then. One that is far behind may have
    /// been used.
    fn is_first(&mut self, number: u32) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.used = self.used.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let bit = 1u64.checked_shl(behind).unwrap_or(0);
        let is_first = bit != 0 && self.used & bit == 0;
        self.used |= bit;
        is_first
    }
}

struct DigestAuth {
    config: Config,
    key: hmac::Key,
    common: Arc<Common>,
}

/// Why a client has to answer another challenge.
enum Failure {
    /// Name and password are right, and the nonce is none to be used any more.
    Stale,
    Refused(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

const fn invalid_header(detail: &'static str) -> Refusal {
    Refusal { message: "Invalid authorization in request", detail }
}

const fn invalid_user(detail: &'static str) -> Refusal {
    Refusal { message: "Invalid user authorization", detail }
}

/// Bytes of a nonce: the second it was made in, something random, and a MAC over both.
const TIME_BYTES: usize = 8;
const RANDOM_BYTES: usize = 8;
const MAC_BYTES: usize = 16;

impl DigestAuth {
    fn new(build: &Build<'_>) -> Result<DigestAuth, String> {
        let config: Config = build.config()?;
        let mut random = [0; 32];
        sigma_plugin::machine::Host.fill_random(&mut random)?;
        let common = || Common { key: hmac::Key::new(hmac::HMAC_SHA256, &random), uses: Shared::default() };
        let common = build.node.part(common);
        let key = match &config.nonce_secret {
            Some(secret) if secret.reveal().is_empty() => {
                return Err("nonce_secret: it is empty, and everybody could make nonces".to_owned());
            }
            Some(secret) => hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes()),
            None => common.key.clone(),
        };
        Ok(DigestAuth { config, key, common })
    }

    fn mac(&self, said: &[u8]) -> hmac::Tag {
        hmac::sign(&self.key, &[b"digest-auth\n", self.config.policy.realm.as_bytes(), b"\n", said].concat())
    }

    /// A nonce of this second. None if the system has no random bytes.
    fn nonce(&self, env: &Env<'_>) -> Option<String> {
        let mut nonce = [0; TIME_BYTES + RANDOM_BYTES + MAC_BYTES];
        nonce[..TIME_BYTES].copy_from_slice(&env.unix_time().as_secs().to_be_bytes());
        env.machine.fill_random(&mut nonce[TIME_BYTES..TIME_BYTES + RANDOM_BYTES]).ok()?;
        let mac = self.mac(&nonce[..TIME_BYTES + RANDOM_BYTES]);
        nonce[TIME_BYTES + RANDOM_BYTES..].copy_from_slice(&mac.as_ref()[..MAC_BYTES]);
        Some(URL_SAFE_NO_PAD.encode(nonce))
    }

    /// The milliseconds for which a nonce may still be used. None if a gateway without its key made it, or if
    /// it is too old.
    fn left_ms(&self, nonce: &[u8], env: &Env<'_>) -> Option<u64> {
        let bytes = URL_SAFE_NO_PAD.decode(nonce).ok()?;
        let (said, mac) = bytes.split_at_checked(TIME_BYTES + RANDOM_BYTES)?;
        if !same_secret(&self.mac(said).as_ref()[..MAC_BYTES], mac) {
            return None;
        }
        let made = said[..TIME_BYTES].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let now = env.unix_time().as_secs();
        // The clocks of gateways that share a key differ a little.
        let age = now.saturating_sub(made);
        let is_of_now = made.saturating_sub(now) <= self.config.nonce_lifetime;
        let left = self.config.nonce_lifetime.checked_sub(age).filter(|left| *left > 0 && is_of_now)?;
        Some(left.saturating_mul(1000))
    }

    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Failure> {
        let value = authorization(ctx).ok_or(Refusal::plain("Missing authorization in request"))?;
        let answer = Answer::parse(value).map_err(invalid_header)?;
        if answer.realm != self.config.policy.realm.as_bytes() {
            return Err(invalid_header("the realm is another one").into());
        }
        let allowed = self
            .config
            .algorithms
            .iter()
            .find(|known| known.name().as_bytes().eq_ignore_ascii_case(&answer.algorithm));
        let algorithm = *allowed.ok_or(invalid_header("the algorithm is not offered"))?;
        // The digest is of this method and this URI, so it must not be taken for another request.
        if answer.uri != ctx.request.path_and_query() {
            return Err(invalid_header("the uri is not that of the request").into());
        }
        let identity = self.config.policy.find(env, &answer.username, "failed to find user: invalid user");
        let identity = identity.map_err(invalid_user)?;
        let consumer = identity.data::<Consumer>().ok_or(invalid_user("the consumer has no password"))?;
        let expected = answer.expected(algorithm, ctx.request.method_token(), consumer);
        if !same_secret(&expected, &answer.response.to_ascii_lowercase()) {
            return Err(invalid_user("the digest is wrong").into());
        }
        let left_ms = self.left_ms(&answer.nonce, env).ok_or(Failure::Stale)?;
        let now_ms = process_ms();
        let is_first = self.common.uses.with(&answer.nonce, now_ms, |slot| {
            slot.expires_ms = slot.expires_ms.min(now_ms.saturating_add(left_ms));
            slot.value.is_first(answer.count)
        });
        if is_first { Ok(identity) } else { Err(Failure::Stale) }
    }

    /// Puts the whole challenge of RFC 7616 in place of the short one.
    fn challenged(&self, step: Step, is_stale: bool, env: &Env<'_>) -> Step {
        let Step::Reply(mut reply) = step else { return step };
        const CHALLENGE: &str = "WWW-Authenticate";
        reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(CHALLENGE));
        let Some(nonce) = self.nonce(env) else { return Step::status(500) };
        let realm = &self.config.policy.realm;
        let stale = if is_stale { ", stale=true" } else { "" };
        let challenges = self.config.algorithms.iter().map(|algorithm| {
            let name = algorithm.name();
            format!("Digest realm=\"{realm}\", qop=\"auth\", algorithm={name}, nonce=\"{nonce}\", charset=UTF-8{stale}")
        });
        let reply = challenges.fold(*reply, |reply, challenge| reply.header(CHALLENGE, challenge.as_bytes()));
        reply.into()
    }
}

impl Plugin for DigestAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let found = self.authenticate(ctx, env);
        if self.config.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
        }
        let is_stale = matches!(found, Err(Failure::Stale));
        let found = found.map_err(|failure| match failure {
            Failure::Stale => invalid_user("the nonce is stale or was used before"),
            Failure::Refused(refusal) => refusal,
        });
        let step = self.config.policy.conclude(ctx, env, found);
        self.challenged(step, is_stale, env)
    }
}

/// What a client answers to a challenge.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) username: Vec<u8>,
    pub(super) realm: Vec<u8>,
    pub(super) nonce: Vec<u8>,
    pub(super) uri: Vec<u8>,
    pub(super) response: Vec<u8>,
    pub(super) algorithm: Vec<u8>,
    pub(super) cnonce: Vec<u8>,
    /// As it is written.
    pub(super) nc: Vec<u8>,
    count: u32,
}

/// Most bytes of a nonce that a client sends: ours are shorter.
const NONCE_BYTES: usize = 128;

impl Answer {
    /// Reads a value of `Authorization` (RFC 7616 §3.4).
    pub(super) fn parse(value: &[u8]) -> Result<Answer, &'static str> {
        const SCHEME: &[u8] = b"Digest ";
        let rest =
            value.split_at_checked(SCHEME.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let (_, rest) = rest.ok_or("the scheme is not Digest")?;
        let params = params(rest).ok_or("the parameters cannot be read, or one stands twice")?;
        let find =
            |name: &str| params.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let need = |name: &str| find(name).ok_or("a parameter is missing");
        if find("qop").as_deref() != Some(b"auth") {
            return Err("qop is not auth");
        }
        if find("userhash").is_some_and(|flag| !flag.eq_ignore_ascii_case(b"false")) {
            return Err("hashed user names are not offered");
        }
        let username = match (find("username"), find("username*")) {
            (Some(name), None) => name,
            (None, Some(name)) => extended(&name).ok_or("username* is not in UTF-8")?,
            _ => return Err("there is not one username"),
        };
        let nc = need("nc")?;
        let is_count = nc.len() == 8 && nc.iter().all(u8::is_ascii_hexdigit);
        let count = std::str::from_utf8(&nc).ok().filter(|_| is_count);
        let count = count.and_then(|digits| u32::from_str_radix(digits, 16).ok()).filter(|count| *count > 0);
        let nonce = need("nonce")?;
        if nonce.len() > NONCE_BYTES {
            return Err("the nonce is too long");
        }
        Ok(Answer {
            username,
            realm: need("realm")?,
            nonce,
            uri: need("uri")?,
            response: need("response")?,
            // RFC 7616 §3.3: it is MD5 unless it is said.
            algorithm: find("algorithm").unwrap_or_else(|| b"MD5".to_vec()),
            cnonce: need("cnonce")?,
            count: count.ok_or("nc is no number of eight digits")?,
            nc,
        })
    }

    /// The response of somebody who knows the password (RFC 7616 §3.4.1).
    fn expected(&self, algorithm: Algorithm, method: &[u8], consumer: &Consumer) -> Vec<u8> {
        let password = consumer.password.reveal().as_bytes();
        let a1 = algorithm.of(&[consumer.username.as_bytes(), &self.realm, password]);
        let a2 = algorithm.of(&[method, &self.uri]);
        algorithm.of(&[&a1, &self.nonce, &self.nc, &self.cnonce, b"auth", &a2])
    }
}

/// The value of an extended parameter in UTF-8 (RFC 8187 §3.2).
fn extended(value: &[u8]) -> Option<Vec<u8>> {
    const CHARSET: &[u8] = b"utf-8'";
    let (charset, rest) = value.split_at_checked(CHARSET.len())?;
    if !charset.eq_ignore_ascii_case(CHARSET) {
        return None;
    }
    let at = rest.iter().position(|byte| *byte == b'\'')?;
    Some(percent_decoded(&rest[at + 1..]).into_owned())
}

/// Parameters by their names in small letters (RFC 9110 §11.2). None if it is no list of them, or if one stands
/// twice.
fn params(mut rest: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let mut params: Vec<(String, Vec<u8>)> = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(params);
        }
        let end = rest.iter().position(|byte| !is_token(byte))?;
        let name = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        rest = rest[end..].trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
        let value = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, after) = unquoted(quoted)?;
                rest = after;
                value
            }
            None => {
                let end = rest.iter().position(|byte| !is_token(byte)).unwrap_or(rest.len());
                let (value, after) = rest.split_at(end);
                rest = after;
                value.to_vec()
            }
        };
        if name.is_empty() || params.iter().any(|(known, _)| *known == name) {
            return None;
        }
        params.push((name, value));
        rest = rest.trim_ascii_start();
        match rest.split_first() {
            None => return Some(params),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// What stands before the closing quote, and what follows it.
fn unquoted(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match *bytes.next()? {
            b'"' => return Some((value, bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_plugin::Entry;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    const MUFASA: &str = r#"Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm=ALGORITHM, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", qop=auth, response="RESPONSE", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#;

    /// RFC 7616 §3.9.1.
    #[test]
    fn the_example_of_the_rfc() {
        let consumer = json!({"username": "Mufasa", "password": "Circle of Life"});
        let consumer = Consumer::deserialize(consumer).unwrap();
        for (algorithm, response) in [
            (Algorithm::Md5, "8ca523f5e9506fed4657c9700eebdbec"),
            (Algorithm::Sha256, "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ] {
            let value = MUFASA.replace("ALGORITHM", algorithm.name()).replace("RESPONSE", response);
            let answer = Answer::parse(value.as_bytes()).unwrap();
            assert_eq!(answer.algorithm, algorithm.name().as_bytes());
            assert_eq!(answer.expected(algorithm, b"GET", &consumer), answer.response);
        }
    }

    #[test]
    fn answers_that_are_none() {
        let good = MUFASA.replace("ALGORITHM", "MD5").replace("RESPONSE", "x");
        let check = |from: &str, to: &str, expected: Result<(), &str>| {
            let value = good.replace(from, to);
            assert_eq!(Answer::parse(value.as_bytes()).map(drop), expected, "{value}");
        };
        check("", "", Ok(()));
        check("Digest ", "dIGEST ", Ok(()));
        check("qop=auth", "qop=\"auth\"", Ok(()));
        check("\"Mufasa\"", "\"Muf\\\"asa\"", Ok(()));
        check("username=\"Mufasa\"", "username*=UTF-8''J%c3%a4s%C3%B8n", Ok(()));
        const UNREADABLE: Result<(), &str> = Err("the parameters cannot be read, or one stands twice");
        check("Digest ", "Basic ", Err("the scheme is not Digest"));
        check("qop=auth,", "", Err("qop is not auth"));
        check("qop=auth", "qop=auth-int", Err("qop is not auth"));
        check("qop=auth", "qop=auth, userhash=true", Err("hashed user names are not offered"));
        check("username=", "user=", Err("there is not one username"));
        check("username=\"Mufasa\"", "username=\"a\", username*=UTF-8''b", Err("there is not one username"));
        check("username=\"Mufasa\"", "username*=latin1''b", Err("username* is not in UTF-8"));
        check("qop=auth", "qop=auth, username=\"root\"", UNREADABLE);
        check("qop=auth", "qop=auth, QOP=auth", UNREADABLE);
        check("qop=auth", "qop=auth realm=x", UNREADABLE);
        check("qop=auth", "qop", UNREADABLE);
        check("Sdc", "Sdc", Ok(()));
        check("tdS\"", "tdS", UNREADABLE);
        check("cnonce=", "nonsense=", Err("a parameter is missing"));
        check("response=", "nonsense=", Err("a parameter is missing"));
        for count in ["0", "00000000", "0000000g", "+0000001", "000000001", "\"\""] {
            check("00000001", count, Err("nc is no number of eight digits"));
        }
        check("7ypf", &"7".repeat(200), Err("the nonce is too long"));
    }

    #[test]
    fn numbers_are_used_once() {
        let mut uses = Uses::default();
        let mut check = |number: u32, expected: bool| assert_eq!(uses.is_first(number), expected, "{number}");
        check(1, true);
        check(1, false);
        check(4, true);
        check(2, true);
        check(2, false);
        check(3, true);
        check(4, false);
        check(100, true);
        check(36, false);
        check(37, true);
        check(37, false);
        check(u32::MAX, true);
        check(u32::MAX, false);
        check(100, false);
        check(u32::MAX - 63, true);
    }

    /// The parameters of a challenge that a client answers with.
    fn nonce_of(case: &mut Case, entry: &Entry) -> String {
        case.request("GET /a?b HTTP/1.1\nHost: h");
        let reply = case.run(entry, Phase::Rewrite).unwrap();
        assert_eq!(summary(Some(&reply)), "401 {\"message\":\"Missing authorization in request\"}");
        challenge(&reply).split("nonce=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    }

    fn challenge(reply: &sigma_plugin::Reply) -> String {
        crate::testing::field(reply, "www-authenticate").unwrap()
    }

    fn header(nonce: &str, nc: u32, uri: &str, (user, password): (&str, &str)) -> String {
        let hash = |text: String| Algorithm::Sha256.of(&[text.as_bytes()]);
        let hash = |text: String| String::from_utf8(hash(text)).unwrap();
        let (a1, a2) = (hash(format!("{user}:digest:{password}")), hash(format!("GET:{uri}")));
        let response = hash(format!("{a1}:{nonce}:{nc:08x}:c:auth:{a2}"));
        format!(
            "Digest username=\"{user}\", realm=\"digest\", nonce=\"{nonce}\", uri=\"{uri}\", algorithm=SHA-256, \
            qop=auth, nc={nc:08x}, cnonce=\"c\", response=\"{response}\""
        )
    }

    const JACK: (&str, &str) = ("jack", "jacks-password");

    /// A world that knows jack; what the plugin says of an answer to a challenge, and the status.
    fn world() -> Case {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.consumer("jack", "digest-auth", &json!({"username": JACK.0, "password": JACK.1}));
        case
    }

    fn told(case: &mut Case, entry: &Entry, line: &str, value: &str) -> String {
        case.request(&format!("{line} HTTP/1.1\nHost: h\nAuthorization: {value}"));
        match case.run(entry, Phase::Rewrite) {
            None => case.sent("x-consumer-username").unwrap(),
            Some(reply) => {
                let stale = if challenge(&reply).contains("stale=true") { " stale" } else { "" };
                format!("{}{stale}", reply.status)
            }
        }
    }

    #[test]
    fn attacks_on_an_answer() {
        let mut case = world();
        let entry = entry("digest-auth", json!({"hide_credentials": true})).unwrap();
        let nonce = nonce_of(&mut case, &entry);
        let mut check = |line: &str, value: &str, expected: &str| {
            assert_eq!(told(&mut case, &entry, line, value), expected, "{line} {value}");
        };
        let first = header(&nonce, 1, "/a?b", JACK);
        // For another method or URI, and with another password.
        check("POST /a?b", &first, "401");
        check("GET /a?c", &first, "401");
        check("GET /a?c", &first.replace("/a?b", "/a?c"), "401");
        check("GET /a?b", &header(&nonce, 1, "/a?b", ("jack", "other")), "401");
        check("GET /a?b", &header(&nonce, 1, "/a?b", ("jill", JACK.1)), "401");
        check("GET /a?b", &first.replace("realm=\"digest\"", "realm=\"other\""), "401");
        // The digest that the client chooses.
        check("GET /a?b", &first.replace("SHA-256", "MD5"), "401");
        check("GET /a?b", &first.replace("algorithm=SHA-256, ", ""), "401");
        check("GET /a?b", &first.replace("SHA-256", "SHA-256-sess"), "401");
        check("GET /a?b", "Basic amFjazpqYWNrcy1wYXNzd29yZA==", "401");
        // None of them has used the number up; now it is, and the next ones are not.
        check("GET /a?b", &first, "jack");
        check("GET /a?b", &first, "401 stale");
        check("GET /a?b", &header(&nonce, 3, "/a?b", JACK), "jack");
        check("GET /a?b", &header(&nonce, 2, "/a?b", JACK), "jack");
        check("GET /a?b", &header(&nonce, 2, "/a?b", JACK), "401 stale");
        // Nonces that nobody gave out; only who knows the password is told that it is the nonce.
        let forged = nonce.replace(&nonce[..4], "AAAA");
        check("GET /a?b", &header(&forged, 1, "/a?b", JACK), "401 stale");
        check("GET /a?b", &header(&forged, 1, "/a?b", ("jack", "other")), "401");
        check("GET /a?b", &header("x", 1, "/a?b", JACK), "401 stale");
        check("GET /a?b", &header("", 1, "/a?b", JACK), "401 stale");
    }

    #[test]
    fn nonces_of_others_and_of_other_times() {
        let mut case = world();
        let instance = |conf: Value| entry("digest-auth", conf).unwrap();
        let shared = json!({"nonce_secret": "sixteen letters!"});
        let gateways = [instance(shared.clone()), instance(shared), instance(json!({}))];
        let nonce = nonce_of(&mut case, &gateways[0]);
        let value = header(&nonce, 1, "/a?b", JACK);
        let seen = gateways.each_ref().map(|gateway| told(&mut case, gateway, "GET /a?b", &value));
        assert_eq!(seen, ["jack", "jack", "401 stale"]);
        // One that is older than it may become.
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"sixteen letters!");
        let mut made = |age: i64| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            let said = [&now.saturating_add_signed(-age).to_be_bytes()[..], &[7; RANDOM_BYTES]].concat();
            let mac = hmac::sign(&key, &[b"digest-auth\ndigest\n", &said[..]].concat());
            let nonce = URL_SAFE_NO_PAD.encode([&said[..], &mac.as_ref()[..MAC_BYTES]].concat());
            told(&mut case, &gateways[0], "GET /a?b", &header(&nonce, 1, "/a?b", JACK))
        };
        assert_eq!([made(0), made(200), made(400), made(-1000)], ["jack", "jack", "401 stale", "401 stale"]);
    }

    #[test]
    fn challenges() {
        let mut case = world();
        let conf =
            json!({"algorithms": ["SHA-512-256", "MD5"], "realm": "r", "anonymous_consumer": "nobody"});
        let entry_ = entry("digest-auth", conf).unwrap();
        case.request("GET / HTTP/1.1\nHost: h");
        let reply = case.run(&entry_, Phase::Rewrite).unwrap();
        assert_eq!(summary(Some(&reply)), "401 {\"message\":\"Invalid user authorization\"}");
        let offered: Vec<String> =
            reply.headers.iter().map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect();
        assert_eq!(offered.len(), 2, "{offered:?}");
        assert!(offered[0].starts_with("Digest realm=\"r\", qop=\"auth\", algorithm=SHA-512-256, nonce=\""));
        assert!(offered[1].contains("algorithm=MD5") && offered[1].ends_with("charset=UTF-8"), "{offered:?}");
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| {
            let said = refusal("digest-auth", &conf);
            assert!(
                if expected.is_empty() { said.is_empty() } else { said.contains(expected) },
                "{conf}: {said}"
            );
        };
        check(json!({}), "");
        check(json!({"algorithms": []}), "expect array to have at least 1 items");
        check(json!({"algorithms": ["SHA-1"]}), "matches none of the enum values");
        check(json!({"algorithms": ["MD5", "MD5"]}), "expected unique items");
        check(json!({"nonce_lifetime": 0}), "expected 0 to be at least 1");
        check(json!({"nonce_secret": "short"}), "string too short");
        let told = |conf: Value| {
            crate::testing::warned("digest-auth", sigma_config::plugins::PluginScope::Http, &conf)
        };
        assert_eq!(told(json!({"algorithms": ["MD5"]})), ["algorithms"]);
        assert!(told(json!({})).is_empty());
    }
}
