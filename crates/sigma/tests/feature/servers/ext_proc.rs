//! A processor with the types of `go-control-plane` and Go's own gRPC, built by Go the first time:
//! `make test-servers`.

use std::process::{Child, Command, Stdio};

use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use super::built;
use crate::policies::seen;
use crate::{PATIENCE, SIGMA};

/// A processor that ends with the test.
struct Processor(Child);

impl Drop for Processor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Processor {
    fn start(port: u16) -> Processor {
        let program = built("ext-proc", "ext-proc-1.40.0", |folder, draft| {
            let mut build = Command::new("go");
            build.current_dir(folder).env("CGO_ENABLED", "0").args(["build", "-trimpath", "-o"]);
            assert!(build.arg(draft).arg(".").status().expect("Go is there").success(), "`go build` failed");
        });
        let mut run = Command::new(program);
        run.arg(format!("127.0.0.1:{port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let processor = Processor(run.spawn().unwrap());
        let at = Address::Tcp(([127, 0, 0, 1], port).into());
        assert!(until(PATIENCE, || Peer::connect(&at).is_ok()), "the processor does not listen");
        processor
    }
}

#[test]
fn a_processor_of_go_control_plane_changes_messages() {
    let (port, origin) = (free_port(), Origin::echo("a").unwrap());
    let processor = Processor::start(port);
    let mut config = "listeners: [\"{listen}\"]\nroutes:\n".to_owned();
    for (path, mode) in [("none", "NONE"), ("buffered", "BUFFERED"), ("streamed", "STREAMED")] {
        config += &format!(
            "  - uri: /{path}\n    plugins: {{ ext-proc: {{ grpc_service: {{ uri: \"http://127.0.0.1:{port}\" }}, message_timeout: 30000, processing_mode: {{ request_body_mode: {mode} }} }} }}\n    upstream: http://127.0.0.1:{}\n",
            origin.port()
        );
    }
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let ask = |line: &str, rest: &str| {
        gateway.connect().unwrap().ask(format!("{line} HTTP/1.1\r\nHost: h\r\n{rest}")).unwrap()
    };
    for (path, bytes) in [("/none", 4), ("/buffered", 5), ("/streamed", 6)] {
        let answer = ask(&format!("POST {path}"), "Content-Length: 4\r\n\r\nbody");
        assert_eq!((answer.status(), answer.head.get("x-back")), (200, Some("2")), "{path}");
        assert_eq!(seen(&answer, "x-new"), "1", "{path}");
        assert_eq!(answer.json().unwrap()["body_bytes"], bytes, "{path}");
    }
    let refused = ask("GET /none", "X-Refuse: 1\r\n\r\n");
    assert_eq!((refused.status(), refused.text().as_str()), (403, "refused"));
    drop(processor);
    assert_eq!(ask("GET /none", "\r\n").status(), 500, "it is away");
}
