//! The examples of RFC 9421 (appendix B), and attacks on signed requests.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_plugin::{Entry, Phase};

use crate::testing::{Case, entry, merged, summary};

const SECRET: &str =
    "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==";
const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=
-----END PUBLIC KEY-----";
const ECC_P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lf
w0EkjqF7xB4FivAxzic30tMM4GF+hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==
-----END PUBLIC KEY-----";
const RSA_PSS: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAr4tmm3r20Wd/PbqvP1s2
+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2GXHbPfvMs8ct+Lh1GH45x28Rw3Ry53mm+
oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7OyrFAHq
gDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUAAN5W
Utzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ7A8Lzo0KSyZYoA485mqcO0GVAdVw9lq4
aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oyc6XI
2wIDAQAB
-----END PUBLIC KEY-----";
const RSA: &str = "-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAhAKYdtoeoy8zcAcR874L8cnZxKzAGwd7v36APp7Pv6Q2jdsPBRrw
WEBnez6d0UDKDwGbc6nxfEXAy5mbhgajzrw3MOEt8uA5txSKobBpKDeBLOsdJKFq
MGmXCQvEG7YemcxDTRPxAleIAgYYRjTSd/QBwVW9OwNFhekro3RtlinV0a75jfZg
kne/YiktSvLG34lw2zqXBDTC5NHROUqGTlML4PlNZS5Ri2U4aCNx2rUPRcKIlE0P
uKxI4T+HIaFpv8+rdV6eUgOrB2xeI1dSFFn/nnv5OoZJEIB+VmuKn3DCUcCZSFlQ
PSXSfBDiUGhwOw76WuSSsf1D4b/vLoJ10wIDAQAB
-----END RSA PUBLIC KEY-----";

/// A world that knows the keys of the RFC. Its shared secret is binary there and a text here.
fn world() -> Case {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let secret = json!({"key_id": "test-shared-secret", "secret_key": "s3cret"});
    case.consumer("secret", "hmac-auth", &secret);
    for (key_id, pem, algorithm) in [
        ("test-key-ed25519", ED25519, "ed25519"),
        ("test-key-ecc-p256", ECC_P256, "ecdsa-p256-sha256"),
        ("test-key-rsa-pss", RSA_PSS, "rsa-pss-sha512"),
        ("test-key-rsa", RSA, "rsa-v1_5-sha256"),
    ] {
        let conf =
            json!({"key_id": key_id, "secret_key": "s3cret", "public_key": pem, "algorithm": algorithm});
        case.consumer(key_id, "hmac-auth", &conf);
    }
    case
}

/// An instance that takes signatures of any age.
fn instance(rules: &Value, more: &Value) -> Entry {
    entry("hmac-auth", merged(json!({"clock_skew": 4_000_000_000u64, "message_signatures": rules}), more))
        .unwrap()
}

/// Whom a request is from, or the status that it gets.
fn from(case: &mut Case, rules: &Value, more: &Value, request: &str) -> String {
    seen_by(&instance(rules, more), case, request)
}

fn seen_by(entry: &Entry, case: &mut Case, request: &str) -> String {
    case.request(request);
    match case.run(entry, Phase::Rewrite) {
        Some(reply) => summary(Some(&reply)).split(' ').next().unwrap_or_default().to_owned(),
        None => case.sent("x-consumer-username").unwrap_or_default(),
    }
}

/// The request of the RFC (appendix B.2), with these fields besides.
fn example(fields: &str) -> String {
    format!(
        "POST /foo?param=Value&Pet=dog HTTP/1.1\nHost: example.com\nX-Forwarded-Proto: https\n\
        Date: Tue, 20 Apr 2021 02:07:55 GMT\nContent-Type: application/json\n\
        Content-Digest: sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:\n\
        Content-Length: 18\n{fields}"
    )
}

const BODY: &[u8] = br#"{"hello": "world"}"#;

#[test]
fn the_examples_of_the_rfc() {
    let mut case = world();
    case.body = BODY.to_vec();
    let mut check = |components: &[&str], input: &str, signature: &str, expected: &str| {
        let (label, _) = input.split_once('=').unwrap();
        let fields = format!("Signature-Input: {input}\nSignature: {label}=:{signature}:");
        let rules = json!({"components": components});
        assert_eq!(from(&mut case, &rules, &json!({}), &example(&fields)), expected, "{input}");
        // Nothing of it can be changed.
        let other = fields
            .replace("created=1618884473", "created=1618884474")
            .replace("created=1618884475", "created=1");
        assert_eq!(from(&mut case, &rules, &json!({}), &example(&other)), "401", "{input}");
    };
    check(
        &[],
        r#"sig-b21=();created=1618884473;keyid="test-key-rsa-pss";nonce="b3k2pp5k7z-50gnwp.yemd""#,
        "d2pmTvmbncD3xQm8E9ZV2828BjQWGgiwAaw5bAkgibUopemLJcWDy/lkbbHAve4cRAtx31Iq786U7it++wgGxbtRxf8Udx7zFZsckzXaJMkA7ChG52eSkFxykJeNqsrWH5S+oxNFlD4dzVuwe8DhTSja8xxbR/Z2cOGdCbzR72rgFWhzx2VjBqJzsPLMIQKhO4DGezXehhWwE56YCE+O6c0mKZsfxVrogUvA4HELjVKWmAvtl6UnCh8jYzuVG5WSb/QEVPnP5TmcAnLH1g+s++v6d4s8m0gCw1fV5/SITLq9mhho8K3+7EPYTU8IU1bLhdxO5Nyt8C8ssinQ98Xw9Q==",
        "test-key-rsa-pss",
    );
    check(
        &["@authority", "\"@query-param\";name=\"Pet\""],
        r#"sig-b22=("@authority" "content-digest" "@query-param";name="Pet");created=1618884473;keyid="test-key-rsa-pss";tag="header-example""#,
        "LjbtqUbfmvjj5C5kr1Ugj4PmLYvx9wVjZvD9GsTT4F7GrcQEdJzgI9qHxICagShLRiLMlAJjtq6N4CDfKtjvuJyE5qH7KT8UCMkSowOB4+ECxCmT8rtAmj/0PIXxi0A0nxKyB09RNrCQibbUjsLS/2YyFYXEu4TRJQzRw1rLEuEfY17SARYhpTlaqwZVtR8NV7+4UKkjqpcAoFqWFQh62s7Cl+H2fjBSpqfZUJcsIk4N6wiKYd4je2U/lankenQ99PZfB4jY3I5rSV2DSBVkSFsURIjYErOs0tFTQosMTAoxk//0RoKUqiYY8Bh0aaUEb0rQl3/XaVe4bXTugEjHSw==",
        "test-key-rsa-pss",
    );
    check(
        &["@method", "@path", "@query", "@authority", "content-digest"],
        r#"sig-b23=("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-rsa-pss""#,
        "bbN8oArOxYoyylQQUU6QYwrTuaxLwjAC9fbY2F6SVWvh0yBiMIRGOnMYwZ/5MR6fb0Kh1rIRASVxFkeGt683+qRpRRU5p2voTp768ZrCUb38K0fUxN0O0iC59DzYx8DFll5GmydPxSmme9v6ULbMFkl+V5B1TP/yPViV7KsLNmvKiLJH1pFkh/aYA2HXXZzNBXmIkoQoLd7YfW91kE9o/CCoC1xMy7JA1ipwvKvfrs65ldmlu9bpG6A9BmzhuzF8Eim5f8ui9eH8LZH896+QIF61ka39VBrohr9iyMUJpvRX2Zbhl5ZJzSRxpJyoEZAFL2FUo5fTIztsDZKEgM4cUA==",
        "test-key-rsa-pss",
    );
    check(
        &["date", "@method", "@path"],
        r#"sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519""#,
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
        "test-key-ed25519",
    );
    // Section 4.3.
    check(
        &["@method", "@path"],
        r#"sig1=("@method" "@authority" "@path" "content-digest" "content-type" "content-length");created=1618884475;keyid="test-key-ecc-p256""#,
        "X5spyd6CFnAG5QnDyHfqoSNICd+BUP4LYMz2Q0JXlb//4Ijpzp+kve2w4NIyqeAuM7jTDX+sNalzA8ESSaHD3A==",
        "test-key-ecc-p256",
    );
    // A signature without the method is not enough by default.
    let fields = "Signature-Input: sig-b21=();created=1618884473;keyid=\"test-key-rsa-pss\"\nSignature: sig-b21=:AAAA:";
    assert_eq!(from(&mut case, &json!({}), &json!({}), &example(fields)), "401");
}

/// B.2.5, whose secret is no text: the text that is signed, and the signature.
#[test]
fn the_shared_secret_of_the_rfc() {
    use super::base::{Subject, signature_base};
    use super::structured::{Dictionary, Member};
    use sigma_plugin_kit::key_pair::Verifier;
    let case = Case::new(&example(""));
    let subject = Subject {
        method: b"POST",
        scheme: "https",
        authority: b"Example.COM:443",
        target: b"/foo?param=Value&Pet=dog",
        headers: &case.ctx.request.headers,
    };
    let input = br#"x=("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret""#;
    let input = Dictionary::parse(input).unwrap();
    let Some(Member::List(signed)) = input.get("x") else { panic!("a list") };
    let base = signature_base(&subject, signed).unwrap();
    let secret = STANDARD.decode(SECRET).unwrap();
    let signature = STANDARD.decode("pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=").unwrap();
    assert!(Verifier::Secret(&secret).holds(&base, &signature), "{}", String::from_utf8_lossy(&base));
}

/// The text that is signed, for components written as in the RFC.
fn lines(target: &str, fields: &str, components: &str) -> Result<String, &'static str> {
    use super::base::{Subject, signature_base};
    use super::structured::{Dictionary, Member};
    let case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
    let subject = Subject {
        method: b"GET",
        scheme: "http",
        authority: b"Www.Example.com:80",
        target: target.as_bytes(),
        headers: &case.ctx.request.headers,
    };
    let input = Dictionary::parse(format!("x=({components})").as_bytes()).unwrap();
    let Some(Member::List(signed)) = input.get("x") else { panic!("a list") };
    let base = String::from_utf8(signature_base(&subject, signed)?).unwrap();
    let (lines, _) = base.split_once("\n\"@signature-params\"").unwrap();
    Ok(lines.to_owned())
}

/// Mostly the examples of RFC 9421 §2.
#[test]
fn components() {
    let check = |target: &str, fields: &str, components: &str, expected: &str| {
        assert_eq!(lines(target, fields, components).as_deref(), Ok(expected), "{target} {fields}");
    };
    check("/a?b", "", "\"@method\"", "\"@method\": GET");
    check("/a?b", "", "\"@authority\"", "\"@authority\": www.example.com");
    check("/a?b", "", "\"@target-uri\"", "\"@target-uri\": http://www.example.com/a?b");
    check("/a%20?b=%20", "", "\"@path\" \"@query\"", "\"@path\": /a%20\n\"@query\": ?b=%20");
    check("/a", "", "\"@query\"", "\"@query\": ?");
    check("/a?", "", "\"@query\" \"@scheme\"", "\"@query\": ?\n\"@scheme\": http");
    check("/a?x=1", "", "\"@request-target\"", "\"@request-target\": /a?x=1");
    let query = "/p?var=this%20is%20a%20big%0Amultiline%20value&bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something&e";
    let param = |name: &str| format!("\"@query-param\";name=\"{name}\"");
    for (name, value) in [
        ("var", "this%20is%20a%20big%0Amultiline%20value"),
        ("bar", "with%20plus%20whitespace"),
        ("fa%C3%A7ade%22%3A%20", "something"),
        ("e", ""),
    ] {
        check(query, "", &param(name), &format!("{}: {value}", param(name)));
    }
    check("/", "X-A:   one \nx-a: two", "\"x-a\"", "\"x-a\": one, two");
    check("/", "X-A:", "\"x-a\"", "\"x-a\": ");
    check(
        "/",
        "X-A: value, with, lots\nX-A: of, commas",
        "\"x-a\";bs",
        "\"x-a\";bs: :dmFsdWUsIHdpdGgsIGxvdHM=:, :b2YsIGNvbW1hcw==:",
    );
    check(
        "/",
        "X-A: value, with, lots, of, commas",
        "\"x-a\";bs",
        "\"x-a\";bs: :dmFsdWUsIHdpdGgsIGxvdHMsIG9mLCBjb21tYXM=:",
    );
    check(
        "/",
        "Example-Dict:  a=1,    b=2;x=1;y=2,   c=(a   b   c), d",
        "\"example-dict\";key=\"c\" \"example-dict\";key=\"d\"",
        "\"example-dict\";key=\"c\": (a b c)\n\"example-dict\";key=\"d\": ?1",
    );
    check("/", "Priority: u=1,i", "\"priority\";sf", "\"priority\";sf: u=1, i");
}

#[test]
fn line_feeds_cannot_be_signed() {
    let check = |components: &str, expected: &str| {
        let fields = "X-A: one\nX-D: a=1, a=2\nX-Bad: \"";
        assert_eq!(lines("/p?a=1&a=2&%61b=3&ab=4", fields, components), Err(expected), "{components}");
    };
    check("\"x-b\"", "a signed field is not in the request");
    check("\"x-a\" \"x-a\"", "a component is signed twice");
    check("\"x-d\";sf;key=\"a\" \"x-d\";key=\"a\";sf", "`sf` needs a field that is a dictionary");
    check("\"@method\" \"@method\"", "a component is signed twice");
    check("\"X-A\"", "it is not the name of a field in small letters");
    check("\"x-a: y\"", "it is not the name of a field in small letters");
    check("\"@status\"", "only responses have this component");
    check("\"@signature-params\"", "it is unknown");
    check("\"@method\";req", "it has no parameters");
    check("\"x-a\";tr", "a parameter is unknown, or excludes another");
    check("\"x-a\";req", "a parameter is unknown, or excludes another");
    check("\"x-a\";bs;key=\"a\"", "a parameter is unknown, or excludes another");
    check("x-a", "it is not a string");
    check("1", "it is not a string");
    check("\"@query-param\"", "it needs the parameter `name` and no other");
    check("\"@query-param\";name=1", "`name` is not a string");
    check("\"@query-param\";name=\"a\"", "a signed query parameter is repeated");
    check("\"@query-param\";name=\"ab\"", "a signed query parameter is repeated");
    check("\"@query-param\";name=\"c\"", "a signed query parameter is not in the request");
    check("\"x-d\";key=\"a\"", "a signed field is not a dictionary");
    check("\"x-bad\";key=\"a\"", "a signed field is not a dictionary");
    check("\"x-a\";key=\"a\"", "a signed field has no such key");
}

/// `Signature-Input` and `Signature` by the shared secret, of a request to `/a?b` of `h`, for these lines.
fn signed(components: &str, lines: &str, params: &str) -> String {
    let input = format!("({components}){params}");
    let base = format!("{lines}\n\"@signature-params\": {input}");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"s3cret"), base.trim_start().as_bytes());
    format!("Signature-Input: s={input}\nSignature: s=:{}:", STANDARD.encode(signature))
}

const TARGET: &str = "\"@method\" \"@target-uri\"";
const TARGET_LINES: &str = "\"@method\": GET\n\"@target-uri\": http://h/a?b";

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn attacks_on_a_signed_request() {
    let mut case = world();
    let mut check = |rules: Value, head: &str, fields: &str, expected: &str| {
        let request = format!("{head} HTTP/1.1\nHost: h\n{fields}");
        assert_eq!(from(&mut case, &rules, &json!({}), &request), expected, "{request}");
    };
    const KEY: &str = ";created=1618884473;keyid=\"test-shared-secret\"";
    let good = signed(TARGET, TARGET_LINES, KEY);
    let plain = || json!({});
    check(plain(), "GET /a?b", &good, "secret");
    check(plain(), "GET /a?b", &good.replace("Signature-Input", "SIGNATURE-INPUT"), "secret");
    // Another request with the same signature.
    check(plain(), "POST /a?b", &good, "401");
    check(plain(), "GET /a?c", &good, "401");
    check(plain(), "GET /a", &good, "401");
    check(plain(), "GET /%61?b", &good, "401");
    check(
        plain(),
        "GET /a?b",
        &good.replace("Signature-Input", "X-Forwarded-Proto: https\nSignature-Input"),
        "401",
    );
    // No signature, half of one, or another text instead.
    check(plain(), "GET /a?b", "", "401");
    let (input, signature) = good.split_once('\n').unwrap();
    check(plain(), "GET /a?b", input, "401");
    check(plain(), "GET /a?b", signature, "401");
    check(
        plain(),
        "GET /a?b",
        &good.replace("Signature: s=:", "Signature: s=\"").replace(":\n", "\"\n"),
        "401",
    );
    // The signature of another label, and labels that stand twice, in one line or in two.
    check(plain(), "GET /a?b", &good.replace("Signature: s=", "Signature: t="), "401");
    check(
        plain(),
        "GET /a?b",
        &format!("{good}\nSignature-Input: s=();created=1;keyid=\"test-shared-secret\""),
        "401",
    );
    check(plain(), "GET /a?b", &format!("{good}\nSignature: s=:AAAA:"), "401");
    check(plain(), "GET /a?b", &good.replace("Signature: ", "Signature: s=:AAAA:, "), "401");
    // Several signatures: which one counts is not the client's choice.
    let two = format!("{good}\nSignature-Input: t=();created=1;keyid=\"x\"");
    check(plain(), "GET /a?b", &two, "401");
    check(json!({"label": "s"}), "GET /a?b", &two, "secret");
    check(json!({"label": "t"}), "GET /a?b", &two, "401");
    let tagged = signed(TARGET, TARGET_LINES, &format!("{KEY};tag=\"app\""));
    check(
        json!({"tag": "app"}),
        "GET /a?b",
        &format!("{tagged}\nSignature-Input: t=();created=1;keyid=\"x\""),
        "secret",
    );
    check(json!({"tag": "other"}), "GET /a?b", &tagged, "401");
    check(json!({"tag": "app"}), "GET /a?b", &good, "401");
    // Missing components, or parts of the required ones.
    check(plain(), "GET /a?b", &signed("\"@method\"", "\"@method\": GET", KEY), "401");
    let path = signed("\"@method\" \"@path\"", "\"@method\": GET\n\"@path\": /a", KEY);
    check(plain(), "GET /a?b", &path, "401");
    check(json!({"components": ["@method", "@path"]}), "GET /a?b", &path, "secret");
    check(json!({"components": ["x-a"]}), "GET /a?b", &format!("X-A: 1\n{good}"), "401");
    let dict = signed("\"x-a\";key=\"k\"", "\"x-a\";key=\"k\": 1", KEY);
    check(json!({"components": ["x-a"]}), "GET /a?b", &format!("X-A: k=1, l=2\n{dict}"), "401");
    check(
        json!({"components": ["\"x-a\";key=\"k\""]}),
        "GET /a?b",
        &format!("X-A: k=1, l=2\n{dict}"),
        "secret",
    );
    check(
        json!({"components": ["\"x-a\";key=\"k\""]}),
        "GET /a?b",
        &format!("X-A: k=1\nX-A: k=1\n{dict}"),
        "401",
    );
    // The algorithm that the message chooses.
    check(
        plain(),
        "GET /a?b",
        &signed(TARGET, TARGET_LINES, &format!("{KEY};alg=\"hmac-sha256\"")),
        "secret",
    );
    for alg in ["\"none\"", "\"hmac-sha1\"", "\"ed25519\"", "hmac-sha256", "\"\""] {
        check(plain(), "GET /a?b", &signed(TARGET, TARGET_LINES, &format!("{KEY};alg={alg}")), "401");
    }
    // A consumer with a public key: neither that key nor the secret makes an HMAC.
    let confused =
        signed(TARGET, TARGET_LINES, ";created=1618884473;keyid=\"test-key-ed25519\";alg=\"hmac-sha256\"");
    check(plain(), "GET /a?b", &confused, "401");
    check(plain(), "GET /a?b", &confused.replace(";alg=\"hmac-sha256\"", ""), "401");
    // An unknown key, and parameters of other types.
    for params in [
        ";created=1618884473",
        ";created=1618884473;keyid=\"\"",
        ";created=1618884473;keyid=\"nobody\"",
        ";created=1618884473;keyid=test-shared-secret",
        ";keyid=\"test-shared-secret\"",
        ";created=\"1618884473\";keyid=\"test-shared-secret\"",
        ";created=1618884473;expires=1;keyid=\"test-shared-secret\"",
        ";created=1618884473;expires=x;keyid=\"test-shared-secret\"",
        ";created=999999999999999;keyid=\"test-shared-secret\"",
    ] {
        check(plain(), "GET /a?b", &signed(TARGET, TARGET_LINES, params), "401");
    }
}

#[test]
fn time_and_nonces() {
    let mut case = world();
    let any = instance(&json!({}), &json!({"clock_skew": 300}));
    let once = instance(&json!({"require_nonce": true}), &json!({"clock_skew": 300}));
    let mut check = |entry: &Entry, params: String, expected: &str| {
        let fields = signed(TARGET, TARGET_LINES, &format!("{params};keyid=\"test-shared-secret\""));
        let request = format!("GET /a?b HTTP/1.1\nHost: h\n{fields}");
        assert_eq!(seen_by(entry, &mut case, &request), expected, "{params}");
    };
    let now = now();
    check(&any, format!(";created={now}"), "secret");
    check(&any, format!(";created={now}"), "secret");
    check(&any, format!(";created={}", now - 400), "401");
    check(&any, format!(";created={}", now + 400), "401");
    check(&any, format!(";created={now};expires={}", now + 60), "secret");
    check(&any, format!(";created={};expires={}", now - 100, now - 50), "401");
    check(&once, format!(";created={now};nonce=\"a\""), "secret");
    check(&once, format!(";created={now};nonce=\"a\""), "401");
    check(&once, format!(";created={};nonce=\"a\"", now + 1), "401");
    check(&once, format!(";created={now};nonce=\"b\""), "secret");
    check(&once, format!(";created={now}"), "401");
    check(&once, format!(";created={now};nonce=\"\""), "401");
    check(&once, format!(";created={now};nonce=\"{}\"", "x".repeat(300)), "401");
}

#[test]
fn bodies() {
    let mut case = world();
    let rules = json!({"require_nonce": true});
    let any = instance(&rules, &json!({}));
    let validating = instance(&rules, &json!({"validate_request_body": true, "max_req_body_size": 5}));
    let mut check = |entry: &Entry, body: &str, digest: Option<&str>, sent: &str, expected: &str| {
        const KEY: &str = ";created=1618884473;keyid=\"test-shared-secret\";nonce=\"n\"";
        case.body = body.as_bytes().to_vec();
        let length = body.len();
        let mut components = TARGET.to_owned();
        let mut lines = TARGET_LINES.to_owned();
        if let Some(digest) = digest {
            components.push_str(" \"content-digest\"");
            lines.push_str(&format!("\n\"content-digest\": {digest}"));
        }
        let fields = signed(&components, &lines, KEY);
        let request = format!("GET /a?b HTTP/1.1\nHost: h\nContent-Length: {length}\n{sent}{fields}");
        assert_eq!(seen_by(entry, &mut case, &request), expected, "{body} {sent}");
    };
    const HELLO: &str = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
    let sent = &format!("Content-Digest: {HELLO}\n");
    check(&any, "hullo", Some(HELLO), sent, "401");
    check(&validating, "hello!", Some(HELLO), sent, "413");
    check(&validating, "hello", None, sent, "401");
    // None of them has used the nonce up.
    check(&validating, "hello", Some(HELLO), sent, "secret");
    check(&validating, "hello", Some(HELLO), sent, "401");
    let mut case = world();
    let mut check = |more: Value, body: &str, expected: &str| {
        case.body = body.as_bytes().to_vec();
        let fields = signed(TARGET, TARGET_LINES, ";created=1618884473;keyid=\"test-shared-secret\"");
        let request = format!("GET /a?b HTTP/1.1\nHost: h\nContent-Length: {}\n{fields}", body.len());
        assert_eq!(from(&mut case, &json!({}), &more, &request), expected, "{body}");
    };
    let validated = || json!({"validate_request_body": true, "max_req_body_size": 5});
    check(validated(), "", "secret");
    check(validated(), "x", "401");
    check(json!({}), "x", "secret");
}

#[test]
fn two_schemes_side_by_side() {
    let mut case = world();
    let fields = signed(TARGET, TARGET_LINES, ";created=1618884473;keyid=\"test-shared-secret\"");
    let head = "GET /a?b HTTP/1.1\nHost: h\nDate: Tue, 15 Nov 1994 08:12:31 GMT\n";
    let text = "test-shared-secret\nGET /a?b\ndate: Tue, 15 Nov 1994 08:12:31 GMT\n";
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"s3cret"), text.as_bytes());
    let authorization = format!(
        "Authorization: Signature keyId=\"test-shared-secret\",algorithm=\"hmac-sha256\",headers=\"@request-target date\",signature=\"{}\"",
        STANDARD.encode(mac)
    );
    let mut check = |rules: Value, fields: &str, expected: &str| {
        let hidden = json!({"hide_credentials": true});
        assert_eq!(
            from(&mut case, &rules, &hidden, &format!("{head}{fields}")),
            expected,
            "{rules} {fields}"
        );
        let names = ["authorization", "signature", "signature-input"];
        assert!(names.iter().all(|name| case.sent(name).is_none()), "{fields}");
    };
    let either = || json!({"accept_authorization": true});
    check(json!({}), &fields, "secret");
    check(either(), &fields, "secret");
    check(either(), &authorization, "secret");
    check(json!({}), &authorization, "401");
    // A client that sends a message signature needs a valid one.
    check(either(), &format!("{authorization}\nSignature: s=:AAAA:"), "401");
}
