//! Programs of others in Go: h2spec for HTTP/2, gRPC's own interop client and server, and an authority that
//! issues certificates. Built once into `target/tools`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use serde_json::json;
use sigma_testkit::{Address, Gateway, Origin, Socket, free_port, until};

use crate::tls::{Authority, config};
use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

pub(crate) mod acme;
mod http3_node;
mod transcode;

const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";
const INTEROP_CLIENT: &str = "google.golang.org/grpc/interop/client@v1.85.0";
const INTEROP_SERVER: &str = "google.golang.org/grpc/interop/server@v1.85.0";

/// The only case of h2spec that fails on a port which speaks HTTP/1 too: an invalid preface is a request there, and
/// gets 400.
const NO_PREFACE: &str = "Sends invalid connection preface";

/// The program built from a Go package; the packages of a name share nothing but the folder.
fn tool(package: &str, name: &str) -> PathBuf {
    // Two builds at a time would write the same files.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target = Path::new(SIGMA).ancestors().nth(2).unwrap().join("tools");
    let built = target.join(name);
    if built.exists() {
        return built;
    }
    let bin = target.join(format!("{name}.new"));
    std::fs::create_dir_all(&bin).unwrap();
    let status = Command::new("go")
        .args(["install", package])
        .env("GOBIN", &bin)
        .env("GOFLAGS", "-mod=mod")
        .status()
        .expect("the conformance suites are built with Go: install version 1.21 or newer");
    assert!(
        status.success(),
        "`go install {package}` failed; it takes Go 1.21 or newer, which fetches a newer one if it has to"
    );
    let made = std::fs::read_dir(&bin).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(made, &built).unwrap();
    std::fs::remove_dir(&bin).unwrap();
    built
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &Path, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Runs h2spec with `flags`; its cases fail that contain `excepted`, and no others.
fn h2spec(gateway: &Gateway, flags: &[&str], excepted: Option<&str>) {
    let port = gateway.address().port().unwrap().to_string();
    let args = [&["-h", "127.0.0.1", "-p", &port, "-o", "5"], flags].concat();
    let (_, output) = run(&tool(H2SPEC, "h2spec"), &args);
    let mut failed = output.lines().filter(|line| line.contains('×'));
    let unexpected = failed.any(|line| excepted.is_none_or(|excepted| !line.contains(excepted)));
    assert!(!unexpected && output.contains("145 tests"), "{output}");
}

#[test]
fn h2spec_in_clear_text() {
    let origin = Origin::echo("a").unwrap();
    h2spec(&in_front_of(&origin, ""), &[], Some(NO_PREFACE));
}

#[test]
fn h2spec_over_tls() {
    let origin = Origin::echo("a").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls =
        format!("    tls:\n      certificates: [{{ cert: {}, key: {} }}]\n", cert.display(), key.display());
    let config = catch_all(&tls, &nodes(&[&origin]), "");
    h2spec(&Gateway::start(SIGMA, &config).unwrap(), &["-t", "-k"], None);
}

/// gRPC's interop server.
fn interop_server(flags: &[&str]) -> (Running, u16) {
    let server = tool(INTEROP_SERVER, "interop-server");
    let port = free_port();
    let port_flags = ["-port", &port.to_string()];
    let child = Command::new(server).args(port_flags).args(flags).stderr(Stdio::null()).spawn();
    let running = Running(child.unwrap());
    let address = Address::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    assert!(until(PATIENCE, || Socket::connect(&address, PATIENCE).is_ok()), "the server does not listen");
    (running, port)
}

/// Runs the cases of gRPC's interop client.
fn interop(gateway: &Gateway, flags: &[&str]) {
    let client = tool(INTEROP_CLIENT, "interop-client");
    let port = gateway.address().port().unwrap().to_string();
    let mut failed = Vec::new();
    for case in [
        "empty_unary",
        "large_unary",
        "client_streaming",
        "server_streaming",
        "ping_pong",
        "empty_stream",
        "timeout_on_sleeping_server",
        "cancel_after_begin",
        "cancel_after_first_response",
        "status_code_and_message",
        "special_status_message",
        "custom_metadata",
        "unimplemented_method",
        "unimplemented_service",
    ] {
        let args = ["-server_host", "127.0.0.1", "-server_port", &port, "-test_case", case];
        if let (false, output) = run(&client, &[&args, flags].concat()) {
            failed.push(format!("{case}:\n{output}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn grpc_interop_in_clear_text() {
    let (_server, port) = interop_server(&[]);
    let nodes = format!("{{ \"127.0.0.1:{port}\": 1 }}");
    let gateway = Gateway::start(SIGMA, &catch_all("", &nodes, "      scheme: grpc\n")).unwrap();
    interop(&gateway, &[]);
}

/// With the names that both certificates are for, verified on both ways.
#[test]
fn grpc_interop_over_tls() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let own = root.issue("a.test").files(dir.path(), "own");
    root.issue("node.test").files(dir.path(), "node");
    std::fs::write(path("ca.pem"), &root.pem).unwrap();
    let (cert, key) = (path("node.crt"), path("node.key"));
    let (_server, port) = interop_server(&["-use_tls", "-tls_cert_file", &cert, "-tls_key_file", &key]);
    let upstream = json!({
        "scheme": "grpcs",
        "nodes": { format!("127.0.0.1:{port}"): 1 },
        "pass_host": "rewrite",
        "upstream_host": "node.test",
        "tls": { "verify": true, "ca": root.pem },
    });
    let whole = config(json!({ "certificates": [own] }), upstream, json!({}));
    let gateway = Gateway::start(SIGMA, &whole).unwrap();
    let ca = path("ca.pem");
    interop(&gateway, &["-use_tls", "-use_test_ca", "-ca_file", &ca, "-server_host_override", "a.test"]);
}
