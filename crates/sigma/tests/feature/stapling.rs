//! OCSP responses: fetched from OpenSSL as a responder, stapled, and kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::docs::block;
use crate::tls::{config, to_origin};
use crate::tls_material::{sh, stapled};
use crate::{PATIENCE, SIGMA};

/// A responder by HTTP, whose answers OpenSSL makes.
pub(crate) struct Responder {
    pub(crate) port: u16,
    manner: Arc<Mutex<Manner>>,
    asked: Arc<AtomicUsize>,
}

/// How it responds.
#[derive(Clone)]
pub(crate) struct Manner {
    /// The index of issued certificates; None: it is away.
    pub(crate) index: Option<&'static str>,
    /// Who signs.
    pub(crate) signer: &'static str,
    /// How many bytes follow the response that do not belong to it.
    pub(crate) excess: usize,
    /// It does not respond yet.
    pub(crate) holds: bool,
}

impl Responder {
    /// For certificates of `ca.crt` in `dir`.
    pub(crate) fn start(dir: &Path) -> Responder {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let manner =
            Arc::new(Mutex::new(Manner { index: Some("good.txt"), signer: "ca", excess: 0, holds: false }));
        let asked = Arc::<AtomicUsize>::default();
        let (dir, own, count) = (dir.to_owned(), Arc::clone(&manner), Arc::clone(&asked));
        // It ends with the process of the tests.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                count.fetch_add(1, Ordering::AcqRel);
                until(PATIENCE, || !own.lock().unwrap().holds);
                let manner = own.lock().unwrap().clone();
                // The client may be gone.
                let _ = answer(stream, &dir, number, &manner);
            }
        });
        Responder { port, manner, asked }
    }

    /// How often it was queried.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked() > 0
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.manner.lock().unwrap());
    }
}

fn answer(mut stream: TcpStream, dir: &Path, number: usize, manner: &Manner) -> std::io::Result<()> {
    let Some(index) = manner.index else { return Ok(()) };
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut line) = (String::new(), String::new());
    while reader.read_line(&mut line)? > 2 {
        head.push_str(&line.to_ascii_lowercase());
        line.clear();
    }
    if head.is_empty() {
        // A connection has only checked whether the port is free.
        return Ok(());
    }
    assert!(head.starts_with("post /ocsp") && head.contains("application/ocsp-request"), "{head}");
    let length = head.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let [question, said] = ["req", "resp"].map(|kind| dir.join(format!("{number}.{kind}")));
    std::fs::write(&question, body)?;
    let signer = |kind: &str| dir.join(format!("{}.{kind}", manner.signer));
    let made = Command::new("openssl")
        .args(["ocsp", "-ndays", "2", "-index"])
        .arg(dir.join(index))
        .arg("-CA")
        .arg(dir.join("ca.crt"))
        .arg("-rsigner")
        .arg(signer("crt"))
        .arg("-rkey")
        .arg(signer("key"))
        .arg("-reqin")
        .arg(question)
        .arg("-respout")
        .arg(&said)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    assert!(made.success());
    let mut der = std::fs::read(said)?;
    der.resize(der.len() + manner.excess, 0);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", der.len());
    stream.write_all(&[head.as_bytes(), &der].concat())
}

/// An authority, its delegate, another authority, and a certificate for a.test that names the responder; with
/// an index of good certificates, and one in which the certificate was revoked.
pub(crate) fn material(dir: &Path, port: u16) {
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    sh(
        dir,
        &format!(
            "for name in ca other; do
               openssl req -x509 {curve} -days 20 -subj /CN=Root -keyout $name.key -out $name.crt
             done
             printf 'extendedKeyUsage=OCSPSigning' > delegate.ext
             printf 'subjectAltName=DNS:a.test\nauthorityInfoAccess=OCSP;URI:http://127.0.0.1:{port}/ocsp\n' > a.ext
             (cat a.ext; printf 'tlsfeature=status_request\n') > must.ext
             serial=4096
             for name in delegate a must; do
               serial=$((serial + 1))
               openssl req {curve} -subj /CN=$name -keyout $name.key -out $name.csr
               openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -set_serial $serial -days 10 \
                 -extfile $name.ext -out $name.crt
               printf 'V\\t350101000000Z\\t\\t%X\\tunknown\\t/CN=%s\\n' $serial $name >> good.txt
               printf 'R\\t350101000000Z\\t200101000000Z\\t%X\\tunknown\\t/CN=%s\\n' $serial $name >> revoked.txt
             done
             cat a.crt ca.crt > a.chain
             cat must.crt ca.crt > must.chain"
        ),
    );
}

/// The ssl of a certificate.
fn ssl(dir: &Path, name: &str, more: Value) -> Value {
    let read = |kind: &str| std::fs::read_to_string(dir.join(format!("{name}.{kind}"))).unwrap();
    let mut ssl = json!({ "id": name, "sni": "a.test", "cert": read("chain"), "key": read("key") });
    ssl.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ssl
}

fn gateway(ssls: Value, origin: &Origin, tls: Value) -> Gateway {
    let mut settings = json!({ "storage": "{dir}/tls", "ocsp_stapling": { "retry_s": 1, "retry_max_s": 1 } });
    settings.as_object_mut().unwrap().extend(tls.as_object().unwrap().clone());
    let rest = json!({ "ssls": ssls, "tls": settings });
    Gateway::start(SIGMA, &config(json!(true), to_origin(origin), rest)).unwrap()
}

fn told(gateway: &Gateway, said: &str) {
    gateway.await_log(said);
}

fn becomes(gateway: &Gateway, expected: &str) {
    assert!(until(PATIENCE, || stapled(gateway) == expected), "{expected}: {}", gateway.stderr());
}

fn kept(gateway: &Gateway) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(gateway.dir().join("tls"));
    entries.map(|entries| entries.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
}

#[test]
fn a_responders_answer_is_stapled_and_outlives_both() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let responder = Responder::start(dir.path());
    material(dir.path(), responder.port);
    let ssls = json!([ssl(dir.path(), "a", json!({ "ocsp_stapling": { "enabled": true } }))]);
    let mut gateway = gateway(ssls, &origin, json!({}));
    becomes(&gateway, "good");
    assert!(until(PATIENCE, || kept(&gateway).len() == 1));
    // A restart needs no responder.
    responder.set(|manner| manner.index = None);
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert_eq!(stapled(&gateway), "good");
    told(&gateway, "cannot get a new OCSP response");
    assert_eq!(stapled(&gateway), "good");
    // Others cannot sign a response, nor a response for too much.
    responder.set(|manner| (manner.index, manner.signer) = (Some("revoked.txt"), "other"));
    told(&gateway, "is not signed by the issuer");
    responder.set(|manner| (manner.signer, manner.excess) = ("ca", 1 << 20));
    told(&gateway, "larger than `max_bytes`");
    assert_eq!(stapled(&gateway), "good");
    // A revoked certificate loses its good staple.
    responder.set(|manner| manner.excess = 0);
    becomes(&gateway, "nothing");
    told(&gateway, "this certificate is revoked");
    gateway.kill().unwrap();
    responder.set(|manner| manner.index = None);
    gateway.start_again().unwrap();
    assert_eq!(stapled(&gateway), "nothing");
    // A file that is damaged, or foreign, counts as missing.
    gateway.kill().unwrap();
    std::fs::write(&kept(&gateway)[0], b"damaged").unwrap();
    gateway.start_again().unwrap();
    assert_eq!(stapled(&gateway), "nothing");
    responder.set(|manner| (manner.index, manner.signer) = (Some("good.txt"), "delegate"));
    becomes(&gateway, "good");
}

#[test]
fn an_answer_is_stapled_only_where_it_is_wanted() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let responder = Responder::start(dir.path());
    material(dir.path(), responder.port);
    responder.set(|manner| (manner.index, manner.signer) = (Some("revoked.txt"), "other"));
    let wish = json!({ "ocsp_stapling": { "enabled": true, "skip_verify": true } });
    let gateway = gateway(json!([ssl(dir.path(), "a", wish)]), &origin, json!({ "storage": "off" }));
    becomes(&gateway, "revoked");
    assert!(kept(&gateway).is_empty());
}

#[test]
fn a_missing_required_staple_is_reported() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let responder = Responder::start(dir.path());
    material(dir.path(), responder.port);
    responder.set(|manner| manner.index = None);
    let must = |wish: Value| json!([ssl(dir.path(), "must", wish)]);
    let without = gateway(must(json!({})), &origin, json!({}));
    told(&without, "this certificate requires stapling");
    drop(without);
    let by_settings = json!({ "ocsp_stapling": { "enabled": true, "retry_s": 1, "retry_max_s": 1 } });
    let with = gateway(must(json!({})), &origin, by_settings.clone());
    told(&with, "cannot staple this certificate, which requires stapling");
    responder.set(|manner| manner.index = Some("good.txt"));
    becomes(&with, "good");
    told(&with, "this certificate is stapled again");
    // The setting of the ssl itself counts.
    let off = gateway(must(json!({ "ocsp_stapling": { "enabled": false } })), &origin, by_settings);
    told(&off, "this certificate requires stapling");
    assert_eq!(stapled(&off), "nothing");
}

#[test]
fn it_is_switched_on_as_the_page_says() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let responder = Responder::start(dir.path());
    material(dir.path(), responder.port);
    let text = block("docs/tls-certificates.md", "yaml", "storage: ./data/tls").replace(":443", "{listen}");
    for (kind, name) in [("chain", "rsa.crt"), ("key", "rsa.key")] {
        std::fs::copy(dir.path().join(format!("a.{kind}")), dir.path().join(name)).unwrap();
    }
    let text = text.replace("/etc/sigma", &dir.path().display().to_string()).replace("./data", "{dir}/data");
    let route = format!("routes: [{{ uri: /*, upstream: \"http://127.0.0.1:{}\" }}]", origin.port());
    let gateway = Gateway::start(SIGMA, &format!("{text}\n{route}\n")).unwrap();
    becomes(&gateway, "good");
    assert!(gateway.dir().join("data/tls").is_dir());
}
