//! APISIX's own runner for Java, version 0.4.0, with filters that Maven builds: `make test-servers`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sigma_testkit::{Gateway, Message, Origin, until};

use super::{built, fingerprint};
use crate::{PATIENCE, SIGMA};

/// The folder with the runner and the jar of filters.
fn jars() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/java-runner");
    built("java-runner", &format!("java-runner-{:x}", fingerprint(&project)), |project, draft| {
        let target = format!("-Dbuild.folder={}", draft.display());
        let status =
            Command::new("mvn").current_dir(project).args(["-q", "-B", &target, "clean", "package"]).status();
        assert!(status.expect("Maven builds it").success(), "`mvn package` failed in {}", project.display());
    })
}

fn post(gateway: &Gateway, target: &str) -> Message {
    let request =
        format!("POST {target} HTTP/1.1\r\nHost: h\r\nX-Remove: 1\r\nContent-Length: 4\r\n\r\nbody");
    gateway.connect().unwrap().ask(request).unwrap()
}

#[test]
fn the_java_runner_of_apisix_runs_filters() {
    let origin = Origin::answer(|request| {
        let fields = request.head.fields.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let target = request.head.request_line().unwrap().1;
        let body = format!("{target}\n{}", fields.collect::<String>()).to_lowercase();
        let fields = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", body.len());
        format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}").into_bytes()
    });
    let origin = origin.unwrap();
    let route = |uri: &str, plugin: &str, name: &str, value: &str| {
        json!({
            "uri": uri, "upstream": { "nodes": { origin.address().to_string(): 1 } },
            "plugins": { plugin: { "conf": [{ "name": name, "value": value }] } },
        })
    };
    let jars = jars();
    let filters = format!("-Dloader.path={}", jars.join("filters.jar").display());
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "ext-plugin": {
            "cmd": ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", filters, "-jar", jars.join("runner.jar")],
        },
        "routes": [
            route("/say", "ext-plugin-pre-req", "say", "hello"),
            route("/rewrite", "ext-plugin-post-req", "rewrite", "/new"),
            route("/head", "ext-plugin-post-resp", "head", ""),
            route("/capitals", "ext-plugin-post-resp", "capitals", "Java"),
            route("/fail", "ext-plugin-pre-req", "fail", ""),
            route("/unknown", "ext-plugin-pre-req", "no-such-filter", ""),
        ],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    assert!(until(PATIENCE, || post(&gateway, "/say").status() == 201), "{}", gateway.stderr());
    for _ in 0..20 {
        let response = post(&gateway, "/say");
        assert_eq!((response.status(), &*response.text()), (201, "hello"));
        assert_eq!(response.head.get("x-runner"), Some("Java"));
        let text = post(&gateway, "/rewrite?a=1").text();
        assert!(text.starts_with("/new?a=1&from=%2frewrite\n"), "{text}");
        for field in ["\nx-method: post\n", "\nx-body: body\n", "\nx-client: 127.0.0.1\n"] {
            assert!(text.contains(field), "{text}");
        }
        assert!(!text.contains("x-remove"), "{text}");
        let response = post(&gateway, "/head");
        assert_eq!((response.status(), response.head.get("x-node-type")), (202, Some("text/plain")));
        assert!(response.text().starts_with("/head\n"), "{}", response.text());
        let response = post(&gateway, "/capitals");
        assert_eq!((response.status(), response.head.get("x-runner")), (200, Some("Java")));
        assert!(response.text().starts_with("/CAPITALS\nHOST: H\n"), "{}", response.text());
        assert_eq!(post(&gateway, "/fail").status(), 503);
        // The runner skips filters that it does not have.
        assert!(post(&gateway, "/unknown").text().starts_with("/unknown\n"));
    }
    let log = gateway.stderr();
    assert!(!log.contains("unexpected type"), "{log}");
}
