//! Certificates of clients that were revoked.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use serde_json::{Value, json};
use sigma_net::tls::ClientTls;
use sigma_testkit::{Gateway, Origin, until};

use crate::tls::{Authority, Issued, ask, config, run, shake, status, to_origin};
use crate::{PATIENCE, SIGMA};

/// An authority that may sign lists, and revokes by serial numbers.
pub(crate) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

pub(crate) fn client(authority: &Authority, serial: u64) -> Issued {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
    params.serial_number = Some(serial.into());
    Issued { cert: params.signed_by(&key, &authority.issuer).unwrap().pem(), key: key.serialize_pem() }
}

/// A list that is good from 2020 on, for the given years, in PEM.
pub(crate) fn list(authority: &Authority, day: u8, until: i32, revoked: &[u64]) -> String {
    let one = |serial: &u64| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, day),
        next_update: rcgen::date_time_ymd(until, 1, 1),
        crl_number: SerialNumber::from(u64::from(day)),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(one).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&authority.issuer).unwrap().pem().unwrap()
}

/// A gateway that asks clients for a certificate of `ca`, looked up as `crl` says.
fn gateway(root: &Authority, ca: &Authority, origin: &Origin, crl: Value) -> Gateway {
    let ssl = root.issue("a.test").ssl(json!({
        "id": "1", "sni": "a.test", "client": { "ca": ca.pem, "crl": crl },
    }));
    let text = config(json!({ "alpn": ["http/1.1"] }), to_origin(origin), json!({ "ssls": [ssl] }));
    Gateway::start(SIGMA, &text).unwrap()
}

/// Whether a client gets a response over its own connection. In TLS 1.3 it learns only then that it was refused.
pub(crate) async fn is_served(gateway: &Gateway, client: &ClientTls) -> bool {
    match shake(gateway, client, "a.test").await {
        Ok(mut stream) => {
            ask(&mut stream, "a.test", "/", "").await.is_ok_and(|answer| status(&answer) == 200)
        }
        Err(_) => false,
    }
}

pub(crate) async fn served_in_the_end(gateway: &Gateway, client: &ClientTls, expected: bool) {
    while is_served(gateway, client).await != expected {}
}

#[test]
fn revoked_clients_are_denied_and_disconnected() {
    let (root, ca, origin) = (Authority::new("Root"), authority("Clients"), Origin::echo("a").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clients.crl");
    let (one, two) = (root.client(Some(&client(&ca, 1))), root.client(Some(&client(&ca, 2))));
    let gateway = gateway(&root, &ca, &origin, json!({ "files": [file] }));
    run(async {
        // Without a list the revocation is unknown.
        assert!(!is_served(&gateway, &one).await);
        std::fs::write(&file, list(&ca, 2, 2090, &[])).unwrap();
        served_in_the_end(&gateway, &one, true).await;
        assert!(is_served(&gateway, &two).await);
        let mut open = shake(&gateway, &two, "a.test").await.unwrap();
        assert_eq!(status(&ask(&mut open, "a.test", "/", "").await.unwrap()), 200);
        std::fs::write(&file, list(&ca, 3, 2090, &[2])).unwrap();
        served_in_the_end(&gateway, &two, false).await;
        assert!(is_served(&gateway, &one).await);
        // An open connection is judged again, and a session is not resumed.
        assert_eq!(status(&ask(&mut open, "a.test", "/", "").await.unwrap()), 400);
        // A list that cannot be used, is forged or is older does not replace it.
        let forged = list(&authority("Clients"), 4, 2090, &[]);
        for (text, said) in [
            ("-----BEGIN X509 CRL-----\n", "cannot get a new revocation list"),
            (&*forged, "not signed by its issuer"),
            (&*list(&ca, 2, 2090, &[]), "older than the previous one"),
        ] {
            std::fs::write(&file, text).unwrap();
            gateway.await_log(said);
            assert!(is_served(&gateway, &one).await && !is_served(&gateway, &two).await, "{said}");
        }
        std::fs::remove_file(&file).unwrap();
        gateway.await_log("cannot read the file: No such file");
        assert!(is_served(&gateway, &one).await && !is_served(&gateway, &two).await);
        // One that is past its time keeps everybody out.
        std::fs::write(&file, list(&ca, 5, 2021, &[])).unwrap();
        served_in_the_end(&gateway, &one, false).await;
    });
    gateway.await_log("has expired");
}

/// A server of one document, which the test changes; None ends connections without a response.
fn serve(document: &Arc<Mutex<Option<String>>>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, document) = (listener.local_addr().unwrap().port(), Arc::clone(document));
    // It ends with the process of the tests.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            if let Some(text) = document.lock().unwrap().as_deref() {
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
                let _ = stream.write_all((head + text).as_bytes());
            }
        }
    });
    port
}

#[test]
fn lists_are_fetched_and_a_liar_changes_nothing() {
    let (root, ca, origin) = (Authority::new("Root"), authority("Clients"), Origin::echo("a").unwrap());
    let (one, two) = (root.client(Some(&client(&ca, 1))), root.client(Some(&client(&ca, 2))));
    let document = Arc::new(Mutex::new(Some(list(&ca, 2, 2090, &[2]))));
    let url = format!("http://user:geheim@127.0.0.1:{}/clients.crl", serve(&document));
    let crl = json!({ "urls": [url], "interval": 1, "max_bytes": 4096, "when_missing": "allow" });
    let gateway = gateway(&root, &ca, &origin, crl);
    run(async {
        served_in_the_end(&gateway, &two, false).await;
        assert!(is_served(&gateway, &one).await);
        let foreign = list(&authority("Others"), 9, 2090, &[]);
        for (text, said) in [
            (Some(list(&ca, 1, 2090, &[])), "older than the previous one"),
            (Some(foreign), "the list of another authority than before"),
            (Some("x".repeat(5_000)), "larger than `max_bytes`, 4096"),
            (None, "cannot request the URL"),
        ] {
            *document.lock().unwrap() = text;
            gateway.await_log(said);
            assert!(is_served(&gateway, &one).await && !is_served(&gateway, &two).await, "{said}");
        }
        *document.lock().unwrap() = Some(list(&ca, 3, 2090, &[1]));
        served_in_the_end(&gateway, &one, false).await;
        assert!(is_served(&gateway, &two).await);
    });
    let log = gateway.stderr();
    assert!(!log.contains("geheim") && log.contains("is available again"), "{log}");
}

#[test]
fn lists_that_were_fetched_outlive_a_restart() {
    let (root, ca, origin) = (Authority::new("Root"), authority("Clients"), Origin::echo("a").unwrap());
    let (one, two) = (root.client(Some(&client(&ca, 1))), root.client(Some(&client(&ca, 2))));
    let document = Arc::new(Mutex::new(Some(list(&ca, 2, 2090, &[2]))));
    let crl =
        json!({ "urls": [format!("http://127.0.0.1:{}/clients.crl", serve(&document))], "interval": 1 });
    let ssl = root.issue("a.test").ssl(json!({
        "id": "1", "sni": "a.test", "client": { "ca": ca.pem, "crl": crl },
    }));
    let rest = json!({ "ssls": [ssl], "tls": { "storage": "{dir}/tls" } });
    let text = config(json!({ "alpn": ["http/1.1"] }), to_origin(&origin), rest);
    let mut gateway = Gateway::start(SIGMA, &text).unwrap();
    run(async { served_in_the_end(&gateway, &one, true).await });
    let folder = gateway.dir().join("tls");
    let is_kept = |path: std::path::PathBuf| path.extension().is_none_or(|draft| draft != "new");
    let kept = || {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.filter(|entry| is_kept(entry.path())).count() == 1
    };
    assert!(until(PATIENCE, kept), "{}", gateway.stderr());
    gateway.kill().unwrap();
    // An attacker may respond with a recording: it is the older one.
    *document.lock().unwrap() = Some(list(&ca, 1, 2090, &[]));
    gateway.start_again().unwrap();
    run(async {
        assert!(is_served(&gateway, &one).await && !is_served(&gateway, &two).await);
        gateway.await_log("older than the previous one");
        assert!(is_served(&gateway, &one).await && !is_served(&gateway, &two).await);
    });
    // A kept list is believed no more than one that is fetched.
    gateway.kill().unwrap();
    *document.lock().unwrap() = None;
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, list(&authority("Clients"), 9, 2090, &[])).unwrap();
    gateway.start_again().unwrap();
    run(async { assert!(!is_served(&gateway, &one).await) });
    assert!(gateway.stderr().contains("not signed by its issuer"), "{}", gateway.stderr());
}
