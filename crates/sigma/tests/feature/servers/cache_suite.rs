//! The public suite of caches (`http-cache-tests`), installed by npm the first time: `make test-servers`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sigma_testkit::{Address, Gateway, Peer, free_port, until};

use super::npm_package;
use crate::{PATIENCE, SIGMA};

const VERSION: &str = "0.4.5";

/// Tests that passed when `docs/cache-storage.md` was written, of conformance and of optimal behaviour. It
/// explains why the others do not.
const PASSED: [usize; 2] = [139, 77];

fn node(suite: &Path, script: &[&str], settings: &[(&str, String)]) -> Command {
    let mut node = Command::new("node");
    node.current_dir(suite).arg("--no-warnings").args(script);
    for (name, value) in settings {
        // npm passes its settings on to scripts.
        node.env(format!("npm_config_{name}"), value).env(format!("npm_package_config_{name}"), value);
    }
    node
}

/// The origin of the suite, which ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Which kind each test is of.
fn kinds(suite: &Path) -> BTreeMap<String, String> {
    let script = "import('./tests/index.mjs').then(({ default: suites }) => console.log(JSON.stringify(\
        Object.fromEntries(suites.flatMap(({ tests }) => tests.map(({ id, kind }) => [id, kind || 'required']))))))";
    let output = node(suite, &["-e", script], &[]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn as_many_tests_pass_as_the_document_says() {
    let suite = npm_package("http-cache-tests", VERSION);
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let pid_file = dir.path().join("pid").to_string_lossy().into_owned();
    let settings = [("protocol", "http".to_owned()), ("port", port.to_string()), ("pidfile", pid_file)];
    let mut server = node(&suite, &["server/server.mjs"], &settings);
    let _server = Server(server.stdout(Stdio::null()).spawn().expect("Node is there"));
    let address = Address::Tcp(([127, 0, 0, 1], port).into());
    assert!(until(PATIENCE, || Peer::connect(&address).is_ok()));
    let gateway = Gateway::start(
        SIGMA,
        &format!(
            "workers: 1\nlisteners: [\"{{listen}}\"]\nroutes:\n  - uri: /*\n    cache: {{ heuristic: true, \
             request_directives: true }}\n    upstream: {{ nodes: {{ \"127.0.0.1:{port}\": 1 }}, retries: 0 }}\n"
        ),
    );
    let gateway = gateway.unwrap();
    let base = [("base", format!("http://{}", gateway.address())), ("id", String::new())];
    let output = node(&suite, &["cli.mjs"], &base).output().unwrap();
    let results: BTreeMap<String, Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let kinds = kinds(&suite);
    for (kind, least) in ["required", "optimal"].into_iter().zip(PASSED) {
        let of_kind = || results.iter().filter(|(id, _)| kinds.get(*id).is_some_and(|known| known == kind));
        let failed: Vec<_> = of_kind().filter(|(_, result)| **result != Value::Bool(true)).collect();
        let passed = of_kind().count() - failed.len();
        assert!(passed >= least, "{kind}: {passed} of {}, failed: {failed:#?}", of_kind().count());
    }
}
