//! `log-rotate`: the gateway gives its logs other names by itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use sigma_testkit::{Gateway, Origin, children, until};

use crate::plugins_log_sockets::config;
use crate::{PATIENCE, SIGMA};

/// The names in a folder that end so, in order.
fn names(folder: &Path, end: &str) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name.ends_with(end)).collect();
    names.sort();
    names
}

/// The text of a log file, or of an archive of one.
fn text(path: &Path) -> String {
    if path.extension().is_none_or(|end| end != "gz") {
        return fs::read_to_string(path).unwrap();
    }
    let output = Command::new("tar").arg("-xzOf").arg(path).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// While requests come, files are rotated and compressed again and again: each line is in one of them, once.
#[test]
fn no_line_is_lost_or_doubled() {
    let origin = Origin::echo("a").unwrap();
    let settings = json!({
        "access_log": {"path": "{dir}/access.log", "format": "$uri", "flush_ms": 50},
        "plugin_attr": {"log-rotate": {"max_size": 100, "enable_compression": true}}
    });
    let gateway = Gateway::start(SIGMA, &config(&origin, json!({}), settings)).unwrap();
    let archives = || names(gateway.dir(), "__access.log.tar.gz");
    let mut sent = Vec::new();
    let mut client = gateway.connect().unwrap();
    let has_rotated = until(PATIENCE, || {
        for _ in 0..20 {
            let path = format!("/{}", sent.len());
            assert_eq!(client.get(&path).unwrap().status(), 200);
            sent.push(path);
        }
        archives().len() >= 2
    });
    assert!(has_rotated, "{:?} {}", names(gateway.dir(), ""), gateway.stderr());
    let in_files = || {
        let files = names(gateway.dir(), "access.log").into_iter().chain(archives());
        let texts = files.map(|name| text(&gateway.dir().join(name)));
        let mut lines: Vec<String> =
            texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.sort_by_key(|line| line[1..].parse::<usize>().unwrap());
        lines
    };
    // A file that is about to be an archive may be missing from one look, and be in two places at another one.
    assert!(until(PATIENCE, || in_files() == sent), "{} of {}", in_files().len(), sent.len());
    assert_eq!(names(gateway.dir(), ".part"), [""; 0]);
}

/// A parent and its gateway write to the same error log: both reopen it.
#[test]
fn a_parent_reopens_its_log_too() {
    let origin = Origin::echo("a").unwrap();
    let settings = json!({
        // Its descriptors are looked at.
        "process": {"mode": "supervised", "core_dumps": true},
        "error_log": {"path": "{dir}/error.log"},
        "plugin_attr": {"log-rotate": {"max_size": 1}}
    });
    let gateway = Gateway::start(SIGMA, &config(&origin, json!({}), settings)).unwrap();
    let log = gateway.dir().join("error.log");
    let has_log = |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        targets.any(|target| target == log)
    };
    let both = || {
        let processes = children(gateway.pid());
        processes.len() == 1 && has_log(gateway.pid()) && has_log(processes[0])
    };
    let is_rotated = || !names(gateway.dir(), "__error.log").is_empty();
    assert!(until(PATIENCE, || is_rotated() && both()), "{:?}", names(gateway.dir(), ""));
}

#[test]
fn it_works_where_it_is_named() {
    let told = "log-rotate: `access_log.path` and `error_log.path` are not files: nothing is rotated";
    for (settings, expected) in [
        (json!({"plugins": ["log-rotate"]}), 1),
        (json!({"plugin_attr": {"log-rotate": {}}}), 1),
        (json!({}), 0),
    ] {
        let origin = Origin::echo("a").unwrap();
        let gateway = Gateway::start(SIGMA, &config(&origin, json!({}), settings.clone())).unwrap();
        gateway.await_log("serving");
        assert_eq!(gateway.stderr().matches(told).count(), expected, "{settings}: {}", gateway.stderr());
    }
}
