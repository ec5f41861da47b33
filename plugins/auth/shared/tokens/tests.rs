//! Keys of issuers, and what those who attack them send.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_plugin::{Consumers, Env, Local};
use sigma_testkit::Origin;

use super::algorithm::Algorithm;
use super::key_set::{KeySet, MatchingKeys};
use super::signing::{Signer, hs256, set_of};
use super::source::{Ages, KeySource, Lookup, SourceSettings};
use super::token::Token;
use crate::testing::Beside;
use sigma_plugin_kit::web::{Address, Proxy, Web, WebSettings};

const ALL: [Algorithm; 10] = Algorithm::PUBLIC;

/// Whether a set has signed a token, or why it has not.
fn verdict(set: &str, token: &str, allowed: &[Algorithm]) -> &'static str {
    let set = KeySet::parse(set.as_bytes().to_vec()).unwrap();
    let token = Token::parse(token.as_bytes().to_vec()).unwrap();
    match set.find(&token, allowed) {
        Err(reason) => reason,
        Ok(MatchingKeys::None) => "no key",
        Ok(MatchingKeys::Keys(keys)) if keys.iter().any(|key| key.verify(&token).is_ok()) => "good",
        Ok(MatchingKeys::Keys(_)) => "signature mismatch",
    }
}

#[test]
fn keys_of_every_kind_verify() {
    let names = ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"];
    let signers: Vec<Signer> = names.iter().map(|name| Signer::new(name, name)).collect();
    let set = set_of(&signers.iter().map(|signer| &signer.jwk).collect::<Vec<_>>());
    for (signer, name) in signers.iter().zip(names) {
        let token = signer.token(&json!({"sub": "jack"}));
        assert_eq!(verdict(&set, &token, &ALL), "good", "{name}");
        // The operator chooses the algorithms.
        assert_eq!(verdict(&set, &token, &[Algorithm::Rs512]), "algorithm mismatch", "{name}");
        let alone = signer.jwk_with(&json!({"use": "sig", "key_ops": ["verify"], "alg": name}));
        assert_eq!(verdict(&set_of(&[&alone]), &token, &ALL), "good", "{name}");
        // Changed claims, the signature of another.
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let other = signer.token(&json!({"sub": "root"}));
        let forged = format!("{}.{signature}", other.rsplit_once('.').unwrap().0);
        assert_eq!(verdict(&set, &forged, &ALL), "signature mismatch", "{name}");
        assert_eq!(verdict(&set, &format!("{signed}."), &ALL), "signature mismatch", "{name}");
    }
}

#[test]
fn insecure_keys_are_left_out() {
    let signer = Signer::new("k", "ES256");
    let token = signer.token(&json!({}));
    let check = |more: Value, expected: &str| {
        assert_eq!(verdict(&set_of(&[&signer.jwk_with(&more)]), &token, &ALL), expected, "{more}");
    };
    check(json!({}), "good");
    check(json!({"use": "enc"}), "no key");
    check(json!({"use": 1}), "no key");
    check(json!({"key_ops": ["sign"]}), "no key");
    check(json!({"key_ops": "verify"}), "no key");
    check(json!({"alg": "ES384"}), "no key");
    check(json!({"alg": "none"}), "no key");
    check(json!({"alg": 7}), "no key");
    check(json!({"kty": "RSA"}), "no key");
    check(json!({"crv": "P-384"}), "no key");
    check(json!({"crv": "secp256k1"}), "no key");
    // Not on the curve, too short, not base64url.
    check(json!({"x": "AAAA"}), "no key");
    check(json!({"x": "A".repeat(43)}), "no key");
    check(json!({"x": "!"}), "no key");
    // A private key that was published.
    check(json!({"d": "AAAA"}), "no key");
    let short = json!({"kty": "RSA", "kid": "k", "e": "AQAB", "n": "-".repeat(171)});
    let named = signer.token_with(&json!({"alg": "RS256", "kid": "k"}), &json!({}));
    assert_eq!(verdict(&set_of(&[&short]), &named, &ALL), "no key");
}

#[test]
fn a_secret_is_never_published() {
    let secret = json!({"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"});
    let signer = Signer::new("k", "RS256");
    let set = set_of(&[&secret, &signer.jwk]);
    let header = json!({"alg": "HS256", "kid": "k"});
    // The secret of the set; and any public data of the public key (RFC 8725 §2.1).
    let n = signer.jwk["n"].as_str().unwrap();
    for known in [&b"secret"[..], n.as_bytes(), signer.jwk.to_string().as_bytes(), set.as_bytes(), b""] {
        assert_eq!(verdict(&set, &hs256(known, &header, &json!({})), &ALL), "algorithm mismatch");
        let disguised = hs256(known, &json!({"alg": "RS256", "kid": "k"}), &json!({}));
        assert_eq!(verdict(&set, &disguised, &ALL), "signature mismatch");
    }
}

#[test]
fn a_token_does_not_choose_who_verifies_it() {
    let (honest, evil) = (Signer::new("k", "ES256"), Signer::new("k", "ES256"));
    let set = set_of(&[&honest.jwk]);
    let check = |header: Value, expected: &str| {
        assert_eq!(verdict(&set, &evil.token_with(&header, &json!({})), &ALL), expected, "{header}");
    };
    for alg in ["none", "None", "NONE", "", "es256", "ES256 ", "HS256"] {
        check(json!({"alg": alg, "kid": "k"}), "algorithm mismatch");
    }
    check(json!({"kid": "k"}), "algorithm mismatch");
    check(json!({"alg": ["ES256"], "kid": "k"}), "algorithm mismatch");
    // Keys in the token are not used, and their URLs are not fetched.
    check(json!({"alg": "ES256", "kid": "k", "jwk": evil.jwk}), "signature mismatch");
    check(json!({"alg": "ES256", "kid": "k", "jku": "https://evil.example/keys"}), "signature mismatch");
    check(
        json!({"alg": "ES256", "kid": "k", "x5u": "https://evil.example/c", "x5c": ["AA"]}),
        "signature mismatch",
    );
    check(
        json!({"alg": "ES256", "kid": "k", "crit": ["b64"], "b64": false}),
        "the header has critical members",
    );
    // Names are compared, and nothing else is done with them.
    for kid in ["../../dev/null", "k' OR '1'='1", "K", "k\u{0}", ""] {
        check(json!({"alg": "ES256", "kid": kid}), "no key");
    }
    for kid in [json!(1), json!(["k"]), json!({"k": 1}), json!(null)] {
        check(json!({"alg": "ES256", "kid": kid}), "'kid' is not a string");
    }
}

#[test]
fn without_names_a_few_keys_are_tried() {
    let (one, other, third) =
        (Signer::new("1", "ES256"), Signer::new("2", "ES256"), Signer::new("3", "EdDSA"));
    let nameless = one.token_with(&json!({"alg": "ES256"}), &json!({}));
    assert_eq!(verdict(&set_of(&[&one.jwk, &third.jwk]), &nameless, &ALL), "good");
    assert_eq!(verdict(&set_of(&[&other.jwk, &one.jwk]), &nameless, &ALL), "good");
    assert_eq!(verdict(&set_of(&[&other.jwk, &other.jwk]), &nameless, &ALL), "signature mismatch");
    let many = [&one.jwk, &other.jwk, &other.jwk, &other.jwk, &other.jwk];
    assert_eq!(
        verdict(&set_of(&many), &nameless, &ALL),
        "the token has no 'kid', but the issuer has several keys"
    );
    // Keys without a name may have a name that the set does not have.
    let unnamed = |signer: &Signer| {
        let mut jwk = signer.jwk.clone();
        jwk.as_object_mut().unwrap().remove("kid");
        jwk
    };
    let token = one.token(&json!({}));
    assert_eq!(verdict(&set_of(&[&unnamed(&other), &unnamed(&one)]), &token, &ALL), "good");
    assert_eq!(verdict(&set_of(&[&other.jwk, &unnamed(&one)]), &token, &ALL), "good");
    assert_eq!(verdict(&set_of(&[&other.jwk, &unnamed(&third)]), &token, &ALL), "no key");
    let named_wrongly = other.jwk_with(&json!({"kid": "1"}));
    assert_eq!(verdict(&set_of(&[&named_wrongly, &unnamed(&one)]), &token, &ALL), "signature mismatch");
    // One name for two keys, as while one is replaced.
    let twin = other.jwk_with(&json!({"kid": "1"}));
    assert_eq!(verdict(&set_of(&[&twin, &one.jwk]), &one.token(&json!({})), &ALL), "good");
}

#[test]
fn invalid_sets_are_refused() {
    let signer = Signer::new("k", "ES256");
    let many = vec![&signer.jwk; 101];
    for (text, fault) in [
        ("".to_owned(), "it is not a JSON object"),
        ("[]".to_owned(), "it is not a JSON object"),
        (r#"{"keys":[],"keys":[]}"#.to_owned(), "it is not a JSON object"),
        ("{}".to_owned(), "it has no list `keys`"),
        (r#"{"keys":{}}"#.to_owned(), "it has no list `keys`"),
        (set_of(&many), "it has 101 keys; the maximum is 100"),
    ] {
        assert_eq!(KeySet::parse(text.into_bytes()).err().as_deref(), Some(fault));
    }
    // Keys of a future kind do no harm.
    assert!(KeySet::parse(br#"{"keys":[1,{},{"kty":"new"}],"more":1}"#.to_vec()).unwrap().is_empty());
}

/// A worker that asks a source for its opinion.
struct Worker {
    beside: Beside,
    local: Rc<Local>,
    /// Where it waits.
    runtime: tokio::runtime::Runtime,
}

impl Worker {
    fn new() -> Worker {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Worker { beside: Beside::new(), local: Rc::new(Local::new(0, 1)), runtime }
    }

    fn ask(&self, source: &Arc<KeySource>, token: &str) -> &'static str {
        let token = Token::parse(token.as_bytes().to_vec()).unwrap();
        let consumers = Consumers::default();
        let env = Env::new(&self.beside.node, &self.local, &consumers);
        let told = |lookup| match lookup {
            Lookup::Verified => "good",
            Lookup::Refused(reason) | Lookup::Unavailable(reason) => reason,
            Lookup::Waits(_) => panic!("it waits again"),
        };
        match source.verify(&token, &ALL, &env, false) {
            Lookup::Waits(fetched) => {
                self.runtime.block_on(fetched);
                told(source.verify(&token, &ALL, &env, true))
            }
            other => told(other),
        }
    }
}

/// Returns an issuer whose set is in the cell; and the number of its requests.
fn issuer(set: &Arc<Mutex<Vec<u8>>>) -> (Origin, Arc<AtomicUsize>) {
    let (set, asked) = (Arc::clone(set), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&asked);
    let origin = Origin::answer(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        set.lock().unwrap().clone()
    });
    (origin.unwrap(), asked)
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn settings(port: u16, max_age: Duration, cooldown: Duration) -> SourceSettings {
    SourceSettings {
        address: Address::try_from(format!("http://127.0.0.1:{port}/keys")).unwrap(),
        web: WebSettings::new(Duration::from_secs(20), true),
        ages: Ages { max_age, stale_if_error: HOUR, cooldown },
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const NO_KEY: &str = "the issuer has no such key";
const AWAY: &str = "the keys of the issuer are unavailable";

#[test]
fn keys_are_fetched_once_and_rotate() {
    let (old, new) = (Signer::new("old", "RS256"), Signer::new("new", "RS256"));
    let set = Arc::new(Mutex::new(ok(&set_of(&[&old.jwk]))));
    let (origin, asked) = issuer(&set);
    let worker = Worker::new();
    let source = KeySource::of(settings(origin.port(), HOUR, Duration::ZERO), &worker.beside.node);
    let asked = || asked.load(Ordering::Relaxed);
    let [old_token, new_token] = [&old, &new].map(|signer| signer.token(&json!({"sub": "jack"})));
    for _ in 0..3 {
        assert_eq!(worker.ask(&source, &old_token), "good");
    }
    assert_eq!(asked(), 1);
    // A name that is not known leads to one more question.
    assert_eq!(worker.ask(&source, &new_token), NO_KEY);
    assert_eq!(asked(), 2);
    *set.lock().unwrap() = ok(&set_of(&[&new.jwk]));
    assert_eq!(worker.ask(&source, &new_token), "good");
    assert_eq!(asked(), 3);
    // Tokens of the old key are refused now, also cached ones.
    assert_eq!(worker.ask(&source, &old_token), NO_KEY);
    // Equal settings are one source.
    assert!(Arc::ptr_eq(
        &source,
        &KeySource::of(settings(origin.port(), HOUR, Duration::ZERO), &worker.beside.node)
    ));
}

#[test]
fn a_flood_of_unknown_names_asks_once() {
    let signer = Signer::new("k", "ES256");
    let set = Arc::new(Mutex::new(ok(&set_of(&[&signer.jwk]))));
    let (origin, asked) = issuer(&set);
    let worker = Worker::new();
    let source = KeySource::of(settings(origin.port(), HOUR, HOUR), &worker.beside.node);
    assert_eq!(worker.ask(&source, &signer.token(&json!({}))), "good");
    for number in 0..100 {
        let token = signer.token_with(&json!({"alg": "ES256", "kid": number.to_string()}), &json!({}));
        assert_eq!(worker.ask(&source, &token), NO_KEY);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_crowd_waits_for_one_fetch() {
    let signer = Signer::new("k", "ES256");
    let set = Arc::new(Mutex::new(ok(&set_of(&[&signer.jwk]))));
    let (origin, asked) = issuer(&set);
    let worker = Worker::new();
    let source = KeySource::of(settings(origin.port(), HOUR, Duration::ZERO), &worker.beside.node);
    let token = Token::parse(signer.token(&json!({})).into_bytes()).unwrap();
    let consumers = Consumers::default();
    let env = Env::new(&worker.beside.node, &worker.local, &consumers);
    let waiting: Vec<_> = (0..50)
        .map(|_| match source.verify(&token, &ALL, &env, false) {
            Lookup::Waits(fetched) => fetched,
            _ => panic!("there are no keys yet"),
        })
        .collect();
    for fetched in waiting {
        worker.runtime.block_on(fetched);
        assert!(matches!(source.verify(&token, &ALL, &env, true), Lookup::Verified));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn old_keys_are_used_while_the_issuer_is_away() {
    let signer = Signer::new("k", "ES256");
    let set = Arc::new(Mutex::new(ok(&set_of(&[&signer.jwk]))));
    let (origin, asked) = issuer(&set);
    let worker = Worker::new();
    let of = |stale_if_error| {
        let mut settings = settings(origin.port(), Duration::ZERO, Duration::ZERO);
        settings.ages.stale_if_error = stale_if_error;
        KeySource::of(settings, &worker.beside.node)
    };
    let (kept, dropped) = (of(HOUR), of(Duration::ZERO));
    let token = signer.token(&json!({}));
    assert_eq!(worker.ask(&kept, &token), "good");
    *set.lock().unwrap() = b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".to_vec();
    let before = asked.load(Ordering::Relaxed);
    let is_asked_again = || {
        assert_eq!(worker.ask(&kept, &token), "good");
        asked.load(Ordering::Relaxed) > before
    };
    assert!(sigma_testkit::until(Duration::from_secs(20), is_asked_again), "nobody asks for newer keys");
    assert_eq!(worker.ask(&dropped, &token), AWAY);
}

#[test]
fn invalid_answers_are_refused() {
    let signer = Signer::new("k", "ES256");
    let good = set_of(&[&signer.jwk]);
    let (elsewhere, _) = issuer(&Arc::new(Mutex::new(ok(&good))));
    let large = format!("{}{}", " ".repeat(300 << 10), good);
    let moved = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{}/keys\r\nContent-Length: 0\r\n\r\n",
        elsewhere.port()
    );
    let broken = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{\"keys\":[]}".to_vec();
    for answer in [
        ok(&large),
        moved.into_bytes(),
        broken,
        ok("<html>"),
        ok("{\"keys\":1}"),
        b"nonsense\r\n\r\n".to_vec(),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
        let origin = Origin::answer(move |_| answer.clone()).unwrap();
        let worker = Worker::new();
        let mut settings = settings(origin.port(), HOUR, HOUR);
        // The end of an endless answer is not awaited.
        settings.web.timeout = Duration::from_millis(500);
        let source = KeySource::of(settings, &worker.beside.node);
        assert_eq!(worker.ask(&source, &signer.token(&json!({}))), AWAY, "{shown}");
    }
    assert_eq!(elsewhere.requests(), 0, "a redirect was followed");
}

#[test]
fn an_issuer_is_reached_through_proxies() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let proxy = Origin::answer(move |message| {
        let line = message.head.request_line().map(|(method, target)| format!("{method} {target}"));
        let shown = message.head.get("proxy-authorization").map(str::to_owned);
        seen.lock().unwrap().push((line.unwrap(), shown));
        ok("{}")
    });
    let proxy = proxy.unwrap();
    let address = Address::try_from(format!("http://127.0.0.1:{}", proxy.port())).unwrap();
    let through = |is_for_tls| Proxy {
        address: address.clone(),
        is_for_tls,
        authorization: Some("Basic c2VjcmV0".into()),
        except: Some("direct.test".to_owned()),
    };
    let web = Web::new(WebSettings {
        proxies: vec![through(false), through(true)],
        ..WebSettings::new(Duration::from_secs(20), true)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let get = |url: &str| runtime.block_on(web.get(&Address::try_from(url.to_owned()).unwrap()));
    assert_eq!(get("http://login.test/keys"), Ok(b"{}".to_vec()));
    assert!(get("https://login.test/keys").is_err(), "the proxy is not a provider");
    assert!(get("http://direct.test:1/").is_err(), "the host name has no address");
    let asked = asked.lock().unwrap();
    let shown = || Some("Basic c2VjcmV0".to_owned());
    let expected =
        [("GET http://login.test/keys".to_owned(), shown()), ("CONNECT login.test:443".to_owned(), shown())];
    assert_eq!(*asked, expected);
}
