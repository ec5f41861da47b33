//! The test runner with fake test programs, whose tests do what their names say.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs `cargo xtask test` on the fake packages.
fn run(packages: &str, arguments: &[&str]) -> Output {
    let cargo = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runner/cargo");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("test").args(arguments).env("CARGO", cargo).env("FAKE_PACKAGES", packages);
    command.output().unwrap()
}

/// Checks the exit status, and that the log has these texts in this order.
fn check(packages: &str, arguments: &[&str], succeeds: bool, expected: &[&str]) -> String {
    let output = run(packages, arguments);
    let log = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), succeeds, "{log}");
    let mut rest = log.as_str();
    for text in expected {
        let Some((_, after)) = rest.split_once(text) else { panic!("no `{text}` in the rest of:\n{log}") };
        rest = after;
    }
    log
}

#[test]
fn a_failure_is_printed_whole_and_again_at_the_end() {
    let expected = [
        "FAILED steady::c::fails",
        "a log\nthread panicked at",
        "alone: cargo test --locked -p steady --lib -- --exact c::fails",
        "time of each program",
        "slowest tests",
        "3 passed, 1 failed",
        "FAILED steady::c::fails\n  thread panicked at src/lib.rs:1:1:\n  bad luck\n",
    ];
    check("steady", &[], false, &expected);
}

#[test]
fn names_are_selected() {
    check("steady", &["--skip", "fails", "--skip", "d::"], true, &["2 passed, 0 failed"]);
    check(
        "steady hang",
        &["--filter", "steady::d::", "--filter", "b::prints"],
        true,
        &["2 passed, 0 failed"],
    );
    check("steady", &["--filter", "nothing"], false, &["no test has such a name"]);
}

#[test]
fn a_crash_fails_the_running_tests_and_the_others_go_on() {
    let expected = [
        "FAILED crash::b::waits",
        "free(): invalid pointer",
        "FAILED crash::c::aborts",
        "SIGABRT",
        "FAILED crash::d::crashes",
        "SIGSEGV",
        "FAILED crash::f::exits",
        "ended with exit status: 0",
        "3 passed, 4 failed",
    ];
    let log = check("crash steady", &["--skip", "steady::c"], false, &["6 passed, 4 failed"]);
    assert!(log.contains("steady"), "{log}");
    check("crash", &[], false, &expected);
}

#[test]
fn a_hang_ends_with_the_processes_of_the_program() {
    let expected = [
        "hang takes too long and is killed; running:",
        "s: hang::b::hangs",
        "child ",
        "sleep 600",
        "no result after 1 s",
        "2 passed, 1 failed",
        "FAILED hang::b::hangs\n  no result after 1 s",
    ];
    let log = check("hang", &["--timeout", "1"], false, &expected);
    let child = log.split_once("child ").unwrap().1.split_whitespace().next().unwrap();
    let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
    assert!(!command.contains("sleep"), "{command}");
}
