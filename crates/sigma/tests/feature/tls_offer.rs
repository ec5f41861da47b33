//! The offers of a TLS listener: versions and ciphers as a scanner sees them, sessions that can be resumed.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::tls::{Authority, config, openssl, to_origin};
use crate::{PATIENCE, SIGMA};

/// Returns the findings of `sslscan`, an element a line.
fn sslscan(gateway: &Gateway) -> Vec<String> {
    let output = Command::new("sslscan")
        .args(["--xml=-", "--no-colour", "--sni-name=a.test"])
        .arg(format!("127.0.0.1:{}", gateway.address().port().unwrap()))
        .stdin(Stdio::null())
        .output()
        .expect("sslscan is missing; `apt-get install sslscan` brings it, and `make test` does so");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("</ssltest>"), "{text}");
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// The attribute of an element.
fn attribute<'l>(element: &'l str, name: &str) -> &'l str {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{name}: {element}"));
    rest.split('"').next().unwrap()
}

#[test]
fn a_scanner_finds_nothing_weak_in_the_default_offer() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let rsa = root.issue_for("a.test", &rcgen::PKCS_RSA_SHA256).files(dir.path(), "rsa");
    let ecdsa = root.issue("a.test").files(dir.path(), "ecdsa");
    let tls = json!({ "certificates": [ecdsa, rsa] });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
    let found = sslscan(&gateway);
    let elements = |name: &str| -> Vec<&str> {
        let beginning = format!("<{name} ");
        found.iter().map(String::as_str).filter(|line| line.starts_with(&beginning)).collect()
    };
    let all = found.join("\n");
    let offered: Vec<String> = elements("protocol")
        .into_iter()
        .filter(|protocol| attribute(protocol, "enabled") == "1")
        .map(|protocol| format!("{} {}", attribute(protocol, "type"), attribute(protocol, "version")))
        .collect();
    assert_eq!(offered, ["tls 1.2", "tls 1.3"], "{all}");
    let ciphers = elements("cipher");
    for cipher in &ciphers {
        let (name, version) = (attribute(cipher, "cipher"), attribute(cipher, "sslversion"));
        let is_aead = ["-GCM-", "_GCM_", "CHACHA20"].iter().any(|part| name.contains(part));
        // TLS 1.3 has no other key exchange (RFC 8446 §4.2.7).
        let is_forward_secret = version == "TLSv1.3" || name.starts_with("ECDHE-");
        // The scanner's word for the suites of TLS 1.3 is acceptable; those to avoid are weak.
        let is_sound = ["strong", "acceptable"].contains(&attribute(cipher, "strength"));
        assert!(is_aead && is_forward_secret && is_sound, "{cipher}");
    }
    for (version, kind) in [("TLSv1.3", "TLS_"), ("TLSv1.2", "ECDHE-ECDSA-"), ("TLSv1.2", "ECDHE-RSA-")] {
        let offers = |cipher: &&str| {
            attribute(cipher, "sslversion") == version && attribute(cipher, "cipher").starts_with(kind)
        };
        assert!(ciphers.iter().any(offers), "{version} {kind}: {all}");
    }
    assert_eq!(elements("renegotiation").len(), 1, "{all}");
    assert!(elements("renegotiation").iter().all(|found| attribute(found, "supported") == "0"), "{all}");
    assert!(elements("heartbleed").iter().all(|found| attribute(found, "vulnerable") == "0"), "{all}");
    assert_eq!(elements("heartbleed").len(), 2, "{all}");
    for group in elements("group") {
        assert!(attribute(group, "bits").parse::<u32>().unwrap() >= 112, "{group}");
    }
    // A scanner of today can be built without this: compression, and signatures with SHA-1.
    let (ok, output) = openssl(&gateway, &["-tls1_2", "-comp"]);
    assert!(ok && output.contains("Compression: NONE"), "{output}");
    let sha1 = ["-tls1_2", "-cipher", "DEFAULT:@SECLEVEL=0", "-sigalgs", "RSA+SHA1:ECDSA+SHA1"];
    let (ok, output) = openssl(&gateway, &sha1);
    assert!(!ok, "{output}");
}

#[test]
fn an_ssl_narrows_the_versions_for_its_names() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let [all, new, old] = ["all.test", "new.test", "old.test"].map(|name| root.issue(name));
    let ssls = json!([
        all.ssl(json!({ "id": "all", "sni": "all.test" })),
        new.ssl(json!({ "id": "new", "sni": "new.test", "ssl_protocols": ["TLSv1.3"] })),
        old.ssl(json!({ "id": "old", "sni": "old.test", "ssl_protocols": ["TLSv1.2"] })),
    ]);
    let both = config(json!(true), to_origin(&origin), json!({ "ssls": ssls }));
    let narrow = config(json!({ "protocols": ["TLSv1.3"] }), to_origin(&origin), json!({ "ssls": ssls }));
    for (text, name, expected) in [
        (&both, "all.test", [true, true]),
        (&both, "new.test", [false, true]),
        (&both, "old.test", [true, false]),
        // A listener that has less leaves no more to an ssl.
        (&narrow, "all.test", [false, true]),
        (&narrow, "old.test", [false, false]),
    ] {
        let gateway = Gateway::start(SIGMA, text).unwrap();
        let offers = ["-tls1_2", "-tls1_3"].map(|version| openssl(&gateway, &["-servername", name, version]));
        assert_eq!([offers[0].0, offers[1].0], expected, "{name}: {offers:?}");
    }
}

/// Whether OpenSSL continues with the session in `file`.
fn is_resumed(gateway: &Gateway, file: &Path) -> bool {
    let (ok, output) = openssl(gateway, &["-tls1_2", "-sess_in", file.to_str().unwrap()]);
    assert!(ok, "{output}");
    output.contains("Reused, TLSv1.2")
}

#[test]
fn tickets_outlive_reloads_and_end_with_their_key() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
    let session = dir.path().join("session");
    for rotation_s in [3_600, 1] {
        let settings =
            json!({ "tls": { "ticket_rotation_s": rotation_s }, "status": { "address": "{status}" } });
        let text = config(tls.clone(), to_origin(&origin), settings);
        let gateway = Gateway::start(SIGMA, &text).unwrap();
        let (ok, output) = openssl(&gateway, &["-tls1_2", "-sess_out", session.to_str().unwrap()]);
        assert!(ok && output.contains("New, TLSv1.2"), "{output}");
        if rotation_s == 1 {
            assert!(until(PATIENCE, || !is_resumed(&gateway, &session)), "the ticket stays good");
            continue;
        }
        assert!(is_resumed(&gateway, &session));
        gateway.reload().unwrap();
        let reloads =
            || Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().json().unwrap();
        assert!(until(PATIENCE, || reloads()["reloads"] == 1), "{}", reloads());
        assert!(is_resumed(&gateway, &session));
        // Nor does any other process understand it.
        let other = Gateway::start(SIGMA, &text).unwrap();
        assert!(!is_resumed(&other, &session));
    }
}

#[test]
fn ciphers_and_curves_are_those_that_are_named() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let own = root.issue("a.test").files(dir.path(), "own");
    let tls = json!({
        "certificates": [own], "ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256", "curves": "P-384",
    });
    let ssl = root.issue("b.test").ssl(json!({
        "id": "b", "sni": "b.test", "ssl_ciphers": "TLS_CHACHA20_POLY1305_SHA256", "ssl_curves": "X25519:prime256v1",
    }));
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({ "ssls": [ssl] }))).unwrap();
    let check = |options: &[&str], expected: Option<&str>| {
        let (ok, output) = openssl(&gateway, options);
        assert_eq!(ok, expected.is_some(), "{options:?}: {output}");
        assert!(output.contains(expected.unwrap_or_default()), "{options:?}: {output}");
    };
    let (a, b) = ("a.test", "b.test");
    check(&["-servername", a, "-tls1_2"], Some("Cipher is ECDHE-ECDSA-AES256-GCM-SHA384"));
    check(&["-servername", a, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], None);
    // No cipher of TLS 1.3 is named for this one.
    check(
        &["-servername", a, "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        Some("Cipher is TLS_AES_128_GCM_SHA256"),
    );
    check(&["-servername", a, "-groups", "P-384"], Some("Server Temp Key: ECDH, secp384r1"));
    check(&["-servername", a, "-groups", "X25519:P-256"], None);
    check(&["-servername", b], Some("Cipher is TLS_CHACHA20_POLY1305_SHA256"));
    check(&["-servername", b, "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-tls1_3"], None);
    check(
        &["-servername", b, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
        Some("ECDHE-ECDSA-AES128-GCM-SHA256"),
    );
    check(&["-servername", b, "-groups", "P-256"], Some("Server Temp Key: ECDH, prime256v1"));
    check(&["-servername", b, "-groups", "P-384"], None);
    assert!(gateway.stderr().contains("Sigma has ECDHE, not DHE"), "{}", gateway.stderr());
}
