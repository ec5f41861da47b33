//! HTTP/3 with clients in Python: aioquic, niquests, and curl with the library that curl_cffi brings along.

use super::http3_ngtcp2::{LENGTH, NAME, gateway, origin};
use super::*;
use crate::h2::noise;
use crate::tls::Authority;

/// Returns a program of the Python packages that `make test-servers` installs.
pub(super) fn installed(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin").join(name);
    assert!(program.exists(), "{} is missing: run `make test-servers`", program.display());
    program
}

/// Runs a script against a gateway; returns its output and the log of the gateway once it has so many lines.
fn run(script: &str, lines: usize) -> (String, String) {
    let authority = Authority::new("authority");
    let origin = origin(noise(LENGTH));
    let gateway = gateway(&authority.issue(NAME), &origin);
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("authority.pem");
    std::fs::write(&trusted, &authority.pem).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/http3-clients").join(script);
    let mut client = Command::new(installed("python"));
    client.arg(script).arg(format!("https://{NAME}:{}", gateway.address().port().unwrap())).arg(&trusted);
    let output = client.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}{}", String::from_utf8_lossy(&output.stderr), gateway.stderr());
    assert!(until(PATIENCE, || gateway.stdout().lines().count() >= lines), "{}", gateway.stdout());
    (text, gateway.stdout())
}

#[test]
fn aioquic_keeps_its_connection_through_changes() {
    let (output, log) = run("with_aioquic.py", 54);
    assert_eq!(output, "many 50\nupload True\nkey update 200\nconnection id 200\nnew address 200\n");
    assert!(log.lines().all(|line| line.starts_with("HTTP/3")), "{log}");
}

#[test]
fn violations_of_quic_end_with_their_error() {
    let (output, _) = run("errors_with_aioquic.py", 0);
    assert_eq!(output, "32 cases\n");
}

#[test]
fn niquests_finds_http3_by_alt_svc() {
    let (output, log) = run("with_niquests.py", 6);
    let later = format!("200 30 {LENGTH}\n").repeat(4);
    assert_eq!(output, format!("200 20 {LENGTH}\n{later}200 30 200000\n"));
    assert_eq!(log.lines().filter(|line| line.starts_with("HTTP/3")).count(), 5, "{log}");
}

#[test]
fn curl_uses_http3_alone() {
    let (output, log) = run("with_curl.py", 6);
    assert_eq!(output, format!("{}200 30 200000\n", format!("200 30 {LENGTH}\n").repeat(5)));
    assert!(log.lines().all(|line| line.starts_with("HTTP/3")), "{log}");
}
