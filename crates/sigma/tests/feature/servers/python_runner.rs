//! The runner for Python of `contrib`, installed by pip as users install it: `make test-servers`.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA};

fn run(command: &mut Command) {
    let output = command.output().expect("Python is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

#[test]
fn pip_installs_the_runner_for_python() {
    let folder = tempfile::tempdir().unwrap();
    let environment = folder.path().join("environment");
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    // A copy: pip builds in the folder.
    let source = folder.path().join("python-runner");
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/python-runner");
    run(Command::new("cp").arg("-r").arg(&contrib).arg(&source));
    run(Command::new(environment.join("bin/pip")).args(["install", "--quiet"]).arg(&source));
    std::fs::remove_dir_all(&source).unwrap();
    let origin = Origin::echo("a").unwrap();
    let plugins = contrib.join("plugins");
    let config = json!({
        "listeners": [{ "address": "{listen}" }],
        "ext-plugin": { "cmd": [environment.join("bin/sigma-python-runner"), plugins] },
        "routes": [{
            "uri": "/*", "upstream": { "nodes": { origin.address().to_string(): 1 } },
            "plugins": { "ext-plugin-pre-req": { "conf": [{ "name": "say", "value": "{\"body\": \"hello\"}" }] } },
        }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut client = gateway.connect().unwrap();
    assert!(until(PATIENCE, || client.get("/").unwrap().status() == 200), "{}", gateway.stderr());
    assert_eq!(client.get("/").unwrap().text(), "hello");
}
