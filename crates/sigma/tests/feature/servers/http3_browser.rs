//! HTTP/3 in real browsers. Firefox finds it by `Alt-Svc`. Chromium follows `Alt-Svc` only with a certificate of a
//! public authority, so an option forces it to use HTTP/3 for the page.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sigma_testkit::{Gateway, Origin, until};

use super::Running;
use super::browser::Browser;
use crate::tls::{Authority, Issued};
use crate::{PATIENCE, SIGMA};

/// The SHA-256 hash of a certificate's public key, in base64, as Chromium takes it.
fn key_hash(certificate: &str) -> String {
    let openssl = |words: &[&str], input: &[u8]| {
        let mut command = Command::new("openssl");
        let piped = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?}");
        output.stdout
    };
    let key = openssl(&["x509", "-noout", "-pubkey"], certificate.as_bytes());
    let key = openssl(&["pkey", "-pubin", "-outform", "der"], &key);
    STANDARD.encode(openssl(&["dgst", "-sha256", "-binary"], &key))
}

/// A gateway with HTTP/3 for `localhost`, in front of an origin with a page.
fn gateway(issued: &Issued, origin: &Origin) -> Gateway {
    let config = json!({
        "workers": 2,
        "error_log": { "level": "info" },
        "listeners": [{ "address": "{listen}", "tls": true, "http3": true }],
        "ssls": [issued.ssl(json!({ "id": "page", "sni": "localhost" }))],
        "access_log": { "path": "stdout", "format": "$server_protocol $request_uri $status", "flush_ms": 1 },
        "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } } }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

/// A page with a script, which may be empty.
fn page(script: &'static str) -> Origin {
    Origin::answer(move |request| {
        let body = match request.head.request_line().map_or("", |(_, target)| target) {
            "/post" => request.text(),
            _ => format!("<!doctype html><title>a page</title><p>hello<script>{script}</script>"),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.into_bytes(), body.into_bytes()].concat()
    })
    .unwrap()
}

#[test]
fn chromium_loads_a_page_over_http3() {
    let (issued, origin) = (Authority::new("authority").issue("localhost"), page(""));
    let gateway = gateway(&issued, &origin);
    let port = gateway.address().port().unwrap();
    let trusted = format!("--ignore-certificate-errors-spki-list={}", key_hash(&issued.cert));
    let forced = format!("--origin-to-force-quic-on=localhost:{port}");
    let browser = Browser::start_with(&[&trusted, &forced, "--host-resolver-rules=MAP localhost 127.0.0.1"]);
    browser.go(&format!("https://localhost:{port}/"));
    assert_eq!(browser.eval("return document.title;"), json!("a page"), "{}", gateway.stderr());
    let protocol = "return performance.getEntriesByType('navigation')[0].nextHopProtocol;";
    assert_eq!(browser.eval(protocol), json!("h3"), "{}", gateway.stdout());
    // An upload, and many requests at a time.
    let post = "const text = 'x'.repeat(300000); \
        return fetch('/post', { method: 'POST', body: text }).then((r) => r.text()).then((got) => got === text);";
    assert_eq!(browser.eval(post), json!(true));
    let many = "return Promise.all([...Array(50).keys()].map((n) => fetch('/many/' + n).then((r) => r.status))) \
        .then((all) => all.filter((status) => status === 200).length);";
    assert_eq!(browser.eval(many), json!(50));
    let logged = until(PATIENCE, || {
        let log = gateway.stdout();
        log.lines().filter(|line| line.starts_with("HTTP/3") && line.contains("/many/")).count() == 50
    });
    assert!(logged, "{}", gateway.stdout());
}

/// The settings of a profile that trusts authorities of its own for HTTP/3, and queries no other server.
const SETTINGS: &str = r#"
user_pref("network.http.http3.disable_when_third_party_roots_found", false);
user_pref("app.update.enabled", false);
user_pref("browser.safebrowsing.downloads.remote.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("extensions.update.enabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "data:,#remote-settings-dummy/v1");
"#;

/// Sends requests until they use HTTP/3, then an upload and many requests at a time. The last path has the results.
const SCRIPT: &str = "(async () => {
    const ask = async (path, options) => {
        const text = await fetch(path, options).then((response) => response.text());
        for (;;) {
            const entry = performance.getEntriesByName(location.origin + path)[0];
            if (entry) return [text, entry.nextHopProtocol];
            await new Promise((next) => setTimeout(next, 1));
        }
    };
    for (let n = 0; (await ask('/try/' + n))[1] !== 'h3'; n++);
    const text = 'x'.repeat(300000);
    const [got, protocol] = await ask('/post', { method: 'POST', body: text });
    await Promise.all([...Array(50).keys()].map((n) => fetch('/many/' + n)));
    await fetch('/done/' + (got === text) + '/' + protocol);
})();";

/// Starts Firefox with a page in a new profile, which trusts an authority.
fn firefox(page: &str, authority: &Authority, folder: &Path) -> Running {
    let profile = folder.join("profile");
    std::fs::create_dir(&profile).unwrap();
    std::fs::write(profile.join("user.js"), SETTINGS).unwrap();
    let trusted = folder.join("authority.pem");
    std::fs::write(&trusted, &authority.pem).unwrap();
    let database = format!("sql:{}", profile.display());
    let certutil = |words: &[&str]| {
        let output = Command::new("certutil").args(["-d", &database]).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    certutil(&["-N", "--empty-password"]);
    certutil(&["-A", "-n", "authority", "-t", "C,,", "-i", &trusted.display().to_string()]);
    let mut command = Command::new("firefox-esr");
    command.args(["--headless", "--no-remote", "--profile"]).arg(&profile).arg(page).env("HOME", folder);
    Running::start(&mut command, &folder.join("log"))
}

#[test]
fn firefox_finds_http3_by_alt_svc() {
    let (authority, origin) = (Authority::new("authority"), page(SCRIPT));
    let gateway = gateway(&authority.issue("localhost"), &origin);
    let page = format!("https://localhost:{}/page", gateway.address().port().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let _browser = firefox(&page, &authority, folder.path());
    let is_done = || gateway.stdout().lines().any(|line| line == "HTTP/3.0 /done/true/h3 200");
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(until(PATIENCE, is_done), "{}{}{}", gateway.stdout(), gateway.stderr(), log());
    let shown = gateway.stdout();
    assert!(shown.contains("HTTP/2.0 /page 200"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("HTTP/3.0 /many/")).count(), 50, "{shown}");
}
