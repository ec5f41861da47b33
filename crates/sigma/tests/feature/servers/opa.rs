//! The real Open Policy Agent, installed by Go the first time: `make test-servers`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use sigma_testkit::{Gateway, Origin, Peer, free_port, until};

use super::built;
use crate::policies::seen;
use crate::{PATIENCE, SIGMA};

const VERSION: &str = "v1.22.2";

const POLICY: &str = r#"
package example

default allow := false

allow if {
    input.request.method == "GET"
    input.request.query.token == "heron"
}

allow if input.consumer.labels.team == "infra"

allow if {
    input.request.method == "POST"
    json.unmarshal(input.request.body).amount < 100
    input.route.labels.kind == "orders"
}

headers := {"X-User": "jack"} if allow

status_code := 302 if not allow

reason := "log in" if not allow
"#;

/// The program, built once into `target/tools`.
fn program() -> PathBuf {
    built("opa", &format!("opa-{VERSION}"), |_, draft| {
        let folder = draft.with_extension("folder");
        let mut install = Command::new("go");
        install.env("CGO_ENABLED", "0").env("GOBIN", &folder);
        let module = format!("github.com/open-policy-agent/opa@{VERSION}");
        let status = install.args(["install", "-trimpath", "-ldflags", "-s -w", &module]).status();
        assert!(status.expect("Go is there").success(), "`go install` failed");
        std::fs::rename(folder.join("opa"), draft).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    })
}

/// An agent that ends with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_agent_decides() {
    let (dir, port, origin) = (tempfile::tempdir().unwrap(), free_port(), Origin::echo("a").unwrap());
    let policy = dir.path().join("p.rego");
    std::fs::write(&policy, POLICY).unwrap();
    let mut run = Command::new(program());
    let address = format!("127.0.0.1:{port}");
    run.args(["run", "--server", "--disable-telemetry", "--addr", &address]).arg(policy);
    let agent = Agent(run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let at = sigma_testkit::Address::Tcp(([127, 0, 0, 1], port).into());
    assert!(until(PATIENCE, || Peer::connect(&at).is_ok()), "the agent does not listen");
    let config = format!(
        r#"
listeners: ["{{listen}}"]
consumers:
  - {{ username: jack, labels: {{ team: infra }}, plugins: {{ key-auth: {{ key: jacks-key }} }} }}
routes:
  - uri: /open
    plugins: {{ opa: {{ host: "http://{address}", policy: example, timeout: 30000, send_headers_upstream: [X-User] }} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /orders
    labels: {{ kind: orders }}
    plugins: {{ opa: {{ host: "http://{address}", policy: example, timeout: 30000, with_route: true, with_body: true }} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /team
    plugins:
      key-auth: {{}}
      opa: {{ host: "http://{address}", policy: example, timeout: 30000, with_consumer: true }}
    upstream: http://127.0.0.1:{origin}
  - uri: /rule
    plugins: {{ opa: {{ host: "http://{address}", policy: example/allow, timeout: 30000 }} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /none
    plugins: {{ opa: {{ host: "http://{address}", policy: nowhere, timeout: 30000 }} }}
    upstream: http://127.0.0.1:{origin}
"#,
        origin = origin.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let ask = |line: &str, rest: &str| {
        gateway.connect().unwrap().ask(format!("{line} HTTP/1.1\r\nHost: h\r\n{rest}")).unwrap()
    };
    let passed = ask("GET /open?token=heron", "X-User: root\r\n\r\n");
    assert_eq!((passed.status(), seen(&passed, "x-user").as_str()), (200, "jack"));
    let refused = ask("GET /open?token=stork", "\r\n");
    assert_eq!((refused.status(), refused.text().as_str()), (302, "log in"));
    assert_eq!(ask("POST /orders", "Content-Length: 13\r\n\r\n{\"amount\":99}").status(), 200);
    assert_eq!(ask("POST /orders", "Content-Length: 14\r\n\r\n{\"amount\":100}").status(), 302);
    assert_eq!(ask("GET /team", "apikey: jacks-key\r\n\r\n").status(), 200);
    // A rule instead of a package, and a package that does not exist.
    assert_eq!((ask("GET /rule", "\r\n").status(), ask("GET /none", "\r\n").status()), (503, 503));
    drop(agent);
    assert_eq!(ask("GET /open?token=heron", "\r\n").status(), 403);
}
