//! Clients, and those who attack them.

use serde_json::json;
use sigma_plugin::Entry;

use super::credentials::Hash;
use super::*;
use crate::testing::{Case, entry, refusal, summary};

const MUFASA: &str = r#"Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm=ALGORITHM, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", qop=auth, response="RESPONSE", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#;

/// RFC 7616 §3.9.1.
#[test]
fn the_example_of_the_rfc() {
    for (algorithm, response) in [
        (Algorithm::Md5, "8ca523f5e9506fed4657c9700eebdbec"),
        (Algorithm::Sha256, "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ] {
        let value = MUFASA.replace("ALGORITHM", algorithm.name()).replace("RESPONSE", response);
        let answer = DigestCredentials::parse(value.as_bytes()).unwrap();
        assert_eq!(answer.algorithm, algorithm.name().as_bytes());
        let expected = answer.expected(algorithm, b"Mufasa", b"Circle of Life", b"GET", b"");
        assert_eq!(expected, answer.response);
    }
}

#[test]
fn invalid_answers_are_refused() {
    let good = MUFASA.replace("ALGORITHM", "MD5").replace("RESPONSE", "x");
    let check = |from: &str, to: &str, expected: Result<(), &str>| {
        let value = good.replace(from, to);
        assert_eq!(DigestCredentials::parse(value.as_bytes()).map(drop), expected, "{value}");
    };
    check("", "", Ok(()));
    check("Digest ", "dIGEST ", Ok(()));
    check("qop=auth", "qop=\"auth\"", Ok(()));
    check("\"Mufasa\"", "\"Muf\\\"asa\"", Ok(()));
    check("username=\"Mufasa\"", "username*=UTF-8''J%c3%a4s%C3%B8n", Ok(()));
    const UNREADABLE: Result<(), &str> = Err("the parameters cannot be parsed, or one appears twice");
    check("Digest ", "Basic ", Err("the scheme is not Digest"));
    check("qop=auth,", "", Err("qop is not auth or auth-int"));
    check("qop=auth", "qop=auth-conf", Err("qop is not auth or auth-int"));
    check("qop=auth", "qop=auth-int", Ok(()));
    check("qop=auth", "qop=auth, userhash=true", Ok(()));
    check("qop=auth", "qop=auth, userhash=maybe", Err("userhash is not true or false"));
    check("username=\"Mufasa\"", "userhash=true, username*=UTF-8''J", Err("username* is not a digest"));
    check("username=", "user=", Err("username must occur once"));
    check("username=\"Mufasa\"", "username=\"a\", username*=UTF-8''b", Err("username must occur once"));
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
        check("00000001", count, Err("nc is not a number of eight digits"));
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

/// The parameters of a challenge that a client responds with.
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
    let hash = |text: String| Hash::Sha256.of(&[text.as_bytes()]);
    let hash = |text: String| String::from_utf8(hash(text)).unwrap();
    let (a1, a2) = (hash(format!("{user}:digest:{password}")), hash(format!("GET:{uri}")));
    let response = hash(format!("{a1}:{nonce}:{nc:08x}:c:auth:{a2}"));
    format!(
        "Digest username=\"{user}\", realm=\"digest\", nonce=\"{nonce}\", uri=\"{uri}\", algorithm=SHA-256, \
        qop=auth, nc={nc:08x}, cnonce=\"c\", response=\"{response}\""
    )
}

const JACK: (&str, &str) = ("jack", "jacks-password");

/// A gateway with the consumer jack; the plugin's verdict on a response to a challenge, and the status.
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
    // Made-up nonces; only a client with the password learns that the nonce is the problem.
    let forged = sigma_testkit::damaged(&nonce, 2);
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
    let conf = json!({"algorithms": ["SHA-512-256", "MD5"], "realm": "r", "anonymous_consumer": "nobody"});
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
    check(json!({"algorithms": ["SHA-512-256-sess"], "qop": ["auth-int", "auth"], "userhash": true}), "");
    check(json!({"qop": []}), "expect array to have at least 1 items");
    check(json!({"qop": ["auth-conf"]}), "matches none of the enum values");
    check(json!({"max_req_body_size": 0}), "expected 0 to be at least 1");
    check(json!({"nonce_lifetime": 0}), "expected 0 to be at least 1");
    check(json!({"nonce_secret": "short"}), "string too short");
    let told =
        |conf: Value| crate::testing::warned("digest-auth", sigma_schema::plugins::PluginScope::Http, &conf);
    assert_eq!(told(json!({"algorithms": ["MD5"]})), ["algorithms"]);
    assert_eq!(told(json!({"algorithms": ["MD5-sess"]})), ["algorithms"]);
    assert!(told(json!({})).is_empty());
}

/// RFC 7616 §3.9.2: a name that is sent as a digest, and one in UTF-8.
#[test]
fn the_second_example_of_the_rfc() {
    let name = "J\u{e4}s\u{f8}n Doe".as_bytes();
    let hashed = Hash::Sha512Of256.of(&[name, b"api@example.org"]);
    assert_eq!(hashed, b"793263caabb707a56211940d90411ea4a575adeccb7e360aeb624ed06ece9b0b");
}

/// A response with everything that a client may choose.
struct Chosen<'c> {
    algorithm: &'c str,
    qop: &'c str,
    name: String,
    more: &'c str,
}

impl Chosen<'_> {
    fn header(&self, nonce: &str, nc: u32, body: &str) -> String {
        let hash = |text: String| String::from_utf8(Hash::Sha256.of(&[text.as_bytes()])).unwrap();
        let mut a1 = hash(format!("{}:digest:{}", JACK.0, JACK.1));
        if self.algorithm.ends_with("-sess") {
            a1 = hash(format!("{a1}:{nonce}:c"));
        }
        let a2 = match self.qop {
            "auth-int" => hash(format!("POST:/a:{}", hash(body.to_owned()))),
            _ => hash("POST:/a".to_owned()),
        };
        let response = hash(format!("{a1}:{nonce}:{nc:08x}:c:{}:{a2}", self.qop));
        format!(
            "Digest username=\"{}\", realm=\"digest\", nonce=\"{nonce}\", uri=\"/a\", algorithm={}, qop={}, \
            nc={nc:08x}, cnonce=\"c\", response=\"{response}\"{}",
            self.name, self.algorithm, self.qop, self.more
        )
    }
}

#[test]
fn sessions_bodies_and_hashed_names() {
    let mut case = world();
    let entry = entry(
        "digest-auth",
        json!({"algorithms": ["SHA-256-sess", "SHA-256"], "qop": ["auth-int", "auth"], "userhash": true,
            "max_req_body_size": 8}),
    );
    let entry = entry.unwrap();
    let nonce = nonce_of(&mut case, &entry);
    let mut nc = 0;
    let mut check = |chosen: Chosen<'_>, signed: &str, sent: &str, expected: &str| {
        nc += 1;
        let value = chosen.header(&nonce, nc, signed);
        case.body = sent.as_bytes().to_vec();
        let fields =
            format!("POST /a HTTP/1.1\nHost: h\nContent-Length: {}\nAuthorization: {value}", sent.len());
        case.request(&fields);
        let told = match case.run(&entry, Phase::Rewrite) {
            None => case.sent("x-consumer-username").unwrap(),
            Some(reply) => reply.status.to_string(),
        };
        assert_eq!(told, expected, "{value} {sent}");
    };
    let chosen = |algorithm, qop| Chosen { algorithm, qop, name: JACK.0.to_owned(), more: "" };
    for algorithm in ["SHA-256", "SHA-256-sess"] {
        check(chosen(algorithm, "auth"), "", "body", "jack");
        check(chosen(algorithm, "auth-int"), "body", "body", "jack");
        check(chosen(algorithm, "auth-int"), "", "", "jack");
        check(chosen(algorithm, "auth-int"), "body", "lie", "401");
        check(chosen(algorithm, "auth-int"), "body", "", "401");
    }
    check(chosen("SHA-256", "auth-int"), "nine bytes", "nine bytes", "413");
    let hashed = |name: &str, more| Chosen {
        name: String::from_utf8(Hash::Sha256.of(&[name.as_bytes(), b"digest"])).unwrap(),
        more,
        ..chosen("SHA-256", "auth")
    };
    check(hashed("jack", ", userhash=true"), "", "", "jack");
    check(hashed("jack", ", userhash=false"), "", "", "401");
    check(hashed("jill", ", userhash=true"), "", "", "401");
    let plain = Chosen { more: ", userhash=true", ..chosen("SHA-256", "auth") };
    check(plain, "", "", "401");
}

#[test]
fn algorithms_that_are_not_offered_are_refused() {
    let mut case = world();
    let entry = entry("digest-auth", json!({})).unwrap();
    let nonce = nonce_of(&mut case, &entry);
    for (algorithm, qop, more) in
        [("SHA-256-sess", "auth", ""), ("SHA-256", "auth-int", ""), ("SHA-256", "auth", ", userhash=true")]
    {
        let chosen = Chosen { algorithm, qop, name: JACK.0.to_owned(), more };
        assert_eq!(
            told(&mut case, &entry, "POST /a", &chosen.header(&nonce, 1, "")),
            "401",
            "{algorithm} {qop}"
        );
    }
}
