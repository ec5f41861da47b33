//! The sources of certificates, and their additions: stapled OCSP responses, keys in the environment, encrypted keys.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, free_port, until};

use crate::tls::{Authority, admin, ask, config, der, openssl, run, shake, shown, status, to_origin};
use crate::{PATIENCE, SIGMA};

/// Runs the words of `command` in `dir`; `openssl` is the program that they need.
pub(crate) fn sh(dir: &Path, command: &str) {
    let output = Command::new("sh").args(["-ec", command]).current_dir(dir).stdin(Stdio::null()).output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "`{command}` failed; `apt-get install openssl` brings what it needs: {told}"
    );
}

/// A server's certificate, and what its authority says of it as `good.der` and `revoked.der`.
fn material(dir: &Path) {
    let curve = "-pkeyopt ec_paramgen_curve:P-256";
    sh(
        dir,
        &format!(
            "openssl req -x509 -newkey ec {curve} -nodes -days 2 -subj /CN=Root -keyout ca.key -out ca.crt
             openssl req -newkey ec {curve} -nodes -subj /CN=a.test -keyout a.key -out a.csr
             printf 'subjectAltName=DNS:a.test' > a.ext
             openssl x509 -req -in a.csr -CA ca.crt -CAkey ca.key -set_serial 0x1001 -days 2 -extfile a.ext -out a.crt
             printf 'V\\t350101000000Z\\t\\t1001\\tunknown\\t/CN=a.test\\n' > good.txt
             printf 'R\\t350101000000Z\\t200101000000Z\\t1001\\tunknown\\t/CN=a.test\\n' > revoked.txt
             openssl ocsp -issuer ca.crt -cert a.crt -no_nonce -reqout a.req
             for state in good revoked; do
               openssl ocsp -index $state.txt -CA ca.crt -rsigner ca.crt -rkey ca.key -reqin a.req -ndays 2 -respout $state.der
             done"
        ),
    );
}

/// Returns the certificate's staple, for a client that requests it.
pub(crate) fn stapled(gateway: &Gateway) -> String {
    let (ok, output) = openssl(gateway, &["-servername", "a.test", "-status"]);
    assert!(ok, "{output}");
    let said = output.lines().map(str::trim).find_map(|line| line.strip_prefix("Cert Status: "));
    match said {
        Some(said) => said.to_owned(),
        None if output.contains("OCSP response: no response sent") => "nothing".to_owned(),
        None => output,
    }
}

#[test]
fn ocsp_responses_are_stapled_and_replaced_by_a_reload() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    material(dir.path());
    let path = |name: &str| dir.path().join(name);
    let mut files = json!({ "cert": path("a.crt"), "key": path("a.key") });
    let text = |files: &Value| config(json!({ "certificates": [files] }), to_origin(&origin), json!({}));
    let gateway = Gateway::start(SIGMA, &text(&files)).unwrap();
    assert_eq!(stapled(&gateway), "nothing");
    files["ocsp"] = path("a.ocsp").to_str().unwrap().into();
    gateway.rewrite(&text(&files)).unwrap();
    for (response, expected) in [("good.der", "good"), ("revoked.der", "revoked"), ("good.der", "good")] {
        std::fs::copy(path(response), path("a.ocsp")).unwrap();
        gateway.reload().unwrap();
        let settled = until(PATIENCE, || (0..4).all(|_| stapled(&gateway) == expected));
        assert!(settled, "{response}: {}\n{}", stapled(&gateway), gateway.stderr());
    }
    // One that cannot be read stops the reload, not the gateway.
    std::fs::remove_file(path("a.ocsp")).unwrap();
    gateway.reload().unwrap();
    gateway.await_log("a.ocsp");
    assert_eq!(stapled(&gateway), "good");
}

/// A listener and an ssl with encrypted keys. A reload without the passphrase leaves the old pair in force.
#[test]
fn encrypted_keys_are_decrypted_with_passphrases_of_the_settings() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let encrypt = |name: &str, passphrase: &str| {
        sh(
            dir.path(),
            &format!(
                "openssl pkcs8 -topk8 -in {name}.key -out locked -passout 'pass:{passphrase}'; mv locked {name}.key"
            ),
        );
    };
    let [own, other, third] = ["a.test", "b.test", "a.test"].map(|name| root.issue(name));
    let files = own.files(dir.path(), "own");
    encrypt("own", "first");
    other.files(dir.path(), "other");
    encrypt("other", "second word");
    let key = std::fs::read_to_string(dir.path().join("other.key")).unwrap();
    std::fs::write(dir.path().join("passphrases"), "wrong\nfirst\n").unwrap();
    let rest = json!({
        "ssls": [{ "id": "b", "sni": "b.test", "cert": other.cert, "key": key }],
        "tls": { "key_passphrase_files": [dir.path().join("passphrases")], "key_passphrases": ["second word"] },
    });
    let text = config(json!({ "certificates": [files] }), to_origin(&origin), rest);
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    run(async {
        assert_eq!(shown(&gateway, &root, "a.test").await, Ok(der(&own)));
        assert_eq!(shown(&gateway, &root, "b.test").await, Ok(der(&other)));
        third.files(dir.path(), "own");
        encrypt("own", "unknown");
        gateway.reload().unwrap();
        let refused = || gateway.stderr().contains("no passphrase of tls.key_passphrases");
        assert!(until(PATIENCE, refused), "{}", gateway.stderr());
        assert_eq!(shown(&gateway, &root, "a.test").await, Ok(der(&own)));
    });
}

#[test]
fn the_https_listener_of_a_sigma_json_serves() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let files = root.issue("a.test").files(dir.path(), "own");
    let router = |server: &str| {
        json!({
            "id": format!("r-{server}"), "enable": true, "proxy-server-id": server, "route": [{
                "id": "a", "enable": true, "path": "/test/*", "allow-method": [], "consumes": [],
                "produces": [], "proxy-pass-id": "p",
            }],
        })
    };
    let text = json!({
        "proxy-server": {
            "http": { "id": "s1", "port": free_port() },
            "https": {
                "enable": true, "id": "s2", "port": "{port}",
                "ssl": { "type": "pem", "keyPath": files["key"], "certPath": files["cert"] },
            },
        },
        "router": [router("s1"), router("s2")],
        "proxy-pass": [{ "id": "p", "upstream-id": "u" }],
        "upstream": [{
            "id": "u", "discovery": "static-config", "rule-strategy": "round-robin",
            "nodes": [format!("http://127.0.0.1:{}", origin.port())],
        }],
    });
    let text = text.to_string().replace("\"{port}\"", "{port}");
    let gateway = Gateway::start_file(SIGMA, "sigma.json", &text).unwrap();
    run(async {
        let mut stream = shake(&gateway, &root.client(None), "a.test").await.unwrap();
        for (path, expected) in [("/test/x", 200), ("/elsewhere", 404)] {
            assert_eq!(status(&ask(&mut stream, "a.test", path, "").await.unwrap()), expected, "{path}");
        }
    });
}

/// A program that runs the gateway with more in its environment.
pub(crate) fn with_environment(dir: &Path, variables: &[(&str, &str)]) -> PathBuf {
    let exports: String =
        variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let (script, path) = (format!("#!/bin/sh\n{exports}exec '{SIGMA}' \"$@\"\n"), dir.join("sigma"));
    // Written by another process: one that this process has open for writing while another test
    // starts a program could not be run.
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod +x \"$0\"", path.to_str().unwrap()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    path
}

#[test]
fn certificates_and_keys_may_stand_in_the_environment() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let [first, second] = ["a.test", "b.test"].map(|name| root.issue(name));
    let variables = [
        ("A_CERT", first.cert.as_str()),
        ("A_KEY", &first.key),
        ("B_PAIR", &json!({ "cert": second.cert, "key": second.key }).to_string()),
    ];
    let sigma = with_environment(dir.path(), &variables);
    let a = json!({ "id": "a", "sni": "a.test", "cert": "$env://A_CERT", "key": "$env://A_KEY" });
    let b = json!({ "sni": "b.test", "cert": "$env://B_PAIR/cert", "key": "$env://B_PAIR/key" });
    // In the file.
    let text = config(json!(true), to_origin(&origin), json!({ "ssls": [a] }));
    let checked = |program: &Path| {
        let file = dir.path().join("checked.yaml");
        std::fs::write(&file, text.replace("{listen}", "127.0.0.1:9443")).unwrap();
        let output = Command::new(program).arg("check").arg(file).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(checked(&sigma), (true, String::new()));
    let (valid, said) = checked(Path::new(SIGMA));
    assert!(!valid && said.contains("the environment variable `A_CERT` is not set"), "{said}");
    let gateway = Gateway::start(sigma.to_str().unwrap(), &text).unwrap();
    run(async { while shown(&gateway, &root, "a.test").await.as_ref() != Ok(&der(&first)) {} });
    drop(gateway);
    // In the store, where the Admin API shows the references without their values.
    let text = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}", "tls": true }],
        "admin": { "address": "{admin}", "keys": [{ "key": "test-key" }] },
        "store": { "kind": "embedded", "path": "{dir}/data" },
    });
    let gateway = Gateway::start(sigma.to_str().unwrap(), &text.to_string()).unwrap();
    let (code, answer) = admin(&gateway, "PUT", "ssls/b", &b);
    assert_eq!(code, 201, "{answer}");
    run(async { while shown(&gateway, &root, "b.test").await.as_ref() != Ok(&der(&second)) {} });
    // A variable that the environment lacks is reported, without effect on others.
    let none = json!({ "sni": "c.test", "cert": "$env://A_CERT", "key": "$env://SIGMA_TEST_NONE" });
    let (code, answer) = admin(&gateway, "PUT", "ssls/c", &none);
    assert_eq!(code, 201, "{answer}");
    gateway.await_log("SIGMA_TEST_NONE");
    run(async {
        shown(&gateway, &root, "c.test").await.unwrap_err();
        assert_eq!(shown(&gateway, &root, "b.test").await, Ok(der(&second)));
    });
    let (_, listed) = admin(&gateway, "GET", "ssls", &Value::Null);
    for text in [listed, gateway.stderr(), gateway.stdout()] {
        assert!(!text.contains("PRIVATE KEY") && !text.contains(&second.key[40..80]), "{text}");
    }
}
