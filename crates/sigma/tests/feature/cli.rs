//! `sigma check`, and starts that must fail.

use std::fs;
use std::process::{Command, Output, Stdio};

use sigma_testkit::until;

use crate::{PATIENCE, SIGMA};

fn sigma(args: &[&str], name: &str, text: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), text).unwrap();
    let mut command = Command::new(SIGMA);
    command.args(args).arg(name).current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A gateway that runs where it should have refused would never end by itself.
    if !until(PATIENCE, || child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const GOOD: &str = "routes:\n  - id: r\n    uri: /a\n    upstream:\n      nodes: { \"127.0.0.1:1\": 1 }\n";

#[test]
fn a_good_file_checks() {
    let output = sigma(&["check"], "a.yaml", GOOD);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn every_problem_is_named_with_its_place() {
    fn check(text: &str, words: &[&str]) {
        let output = sigma(&["check"], "a.yaml", text);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}\n{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is missing for\n{text}\n{said}");
        }
    }
    check("routes:\n  - uri: /a\n    upstrem: {}\n", &["upstrem", "upstream", "routes"]);
    check("limits:\n  request_headers: many\n", &["request_headers"]);
    check("routes:\n  - id: r\n    uri: /a\n    upstream_id: nowhere\n", &["nowhere"]);
    check("listeners:\n  - address: \"here\"\n", &["address", "here"]);
    check("routes:\n  - uri: /a\n    priority: x\n  - uri: /b\n    status: 7\n", &["priority", "status"]);
    check("routes: [\n", &["line"]);
}

#[test]
fn a_missing_file_is_named() {
    let output = Command::new(SIGMA).args(["check", "does-not-exist.yaml"]).output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("does-not-exist.yaml"), "{}", said(&output));
}

#[test]
fn run_refuses_a_bad_file() {
    let output = sigma(&["run", "-c"], "a.yaml", "routes:\n  - uri: /a\n    upstrem: {}\n");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("upstrem"), "{}", said(&output));
}

#[test]
fn run_names_an_address_that_it_cannot_bind() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output =
        sigma(&["run", "-c"], "a.yaml", &format!("listeners:\n  - address: \"127.0.0.1:{port}\"\n{GOOD}"));
    assert!(!output.status.success());
    assert!(said(&output).contains(&port.to_string()), "{}", said(&output));
}

#[test]
fn version_and_help_answer() {
    for (flag, word) in [("--version", env!("CARGO_PKG_VERSION")), ("--help", "check")] {
        let output = Command::new(SIGMA).arg(flag).output().unwrap();
        assert!(output.status.success() && said(&output).contains(word), "{flag}: {}", said(&output));
    }
}
