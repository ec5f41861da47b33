//! Service accounts from files, their signatures, and their tokens.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use base64::engine::general_purpose::STANDARD;

use super::*;

fn pair() -> (RsaKeyPair, String) {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).unwrap();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(der.as_ref())
    );
    (pair, pem)
}

#[test]
fn a_question_for_a_token_is_signed() {
    let (pair, pem) = pair();
    let file = json!({
        "client_email": "me@p.iam", "private_key": pem, "project_id": "p", "token_uri": "https://h/token",
        "entries_uri": "https://h/write", "scopes": ["a", "b"], "type": "service_account"
    });
    let account = Account::parse(file.to_string().as_bytes()).unwrap();
    let assertion = account.assertion(1000).unwrap();
    let (text, signature) = assertion.rsplit_once('.').unwrap();
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref());
    key.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let parts: Vec<Value> = text
        .split('.')
        .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
        .collect();
    let claims =
        json!({"iss": "me@p.iam", "aud": "https://h/token", "scope": "a b", "iat": 1000, "exp": 4600});
    assert_eq!(parts, [json!({"alg": "RS256", "typ": "JWT"}), claims]);
}

#[test]
fn files_have_no_defaults_but_two() {
    let (_, pem) = pair();
    let whole =
        json!({"client_email": "a", "private_key": pem, "project_id": "p", "entries_uri": "http://h"});
    let account = Account::parse(whole.to_string().as_bytes()).unwrap();
    assert_eq!((&*account.scope, account.token.as_str()), (FILE_SCOPE, TOKEN_URI));
    let check = |name: &str, value: Value, expected: &str| {
        let mut file = whole.clone();
        file[name] = value;
        let error = Account::parse(file.to_string().as_bytes()).err().unwrap();
        assert!(error.starts_with(expected), "{error}");
    };
    for name in ["client_email", "private_key", "project_id", "entries_uri"] {
        check(name, Value::Null, &format!("{name}: a string is missing"));
    }
    check("token_uri", json!("h"), "token_uri: `h` is not a URL");
    check("private_key", json!("s3cret"), "private_key: it is not a PEM text");
    assert!(
        Account::parse(b"{\"private_key\": s3cret}").err().is_some_and(|error| !error.contains("s3cret"))
    );
}

#[test]
fn tokens_end_and_errors_repeat_nothing() {
    let check = |status: u16, body: Value, expected: Result<(&str, u64), &str>| {
        let token = granted(status, body.to_string().as_bytes(), 1000);
        let told = token.as_ref().map(|token| (token.field.reveal(), token.end_s)).map_err(|error| &**error);
        assert_eq!(told, expected, "{body}");
    };
    check(200, json!({"access_token": "t", "token_type": "Own", "expires_in": 60}), Ok(("Own t", 1060)));
    check(200, json!({"access_token": "t"}), Ok(("Bearer t", 1000)));
    check(200, json!({"access_token": "t", "expires_in": u64::MAX}), Ok(("Bearer t", 1000 + TOKEN_S)));
    check(200, json!({"access_token": ""}), Err("the response has no access_token"));
    check(200, json!("x"), Err("the response has no access_token"));
    check(400, json!({"error": "invalid_grant"}), Err("status 400, invalid_grant"));
    check(400, json!({"error": "s3cret"}), Err("status 400, no known error"));
}
