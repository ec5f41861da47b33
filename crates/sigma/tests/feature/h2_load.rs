//! Many connections of many streams, as a load generator opens them: every request gets a response.

use std::process::Command;

use sigma_testkit::{Gateway, Origin, allow_open_files};

use crate::{SIGMA, catch_all, in_front_of};

/// Responses by itself, so that the connections alone are tried.
const ANSWERING: &str = "workers: 2\nlisteners:\n  - address: \"{listen}\"\nroutes:\n  - uri: \"/*\"\n    plugins:\n      mocking: { response_example: \"hello\" }\n";

/// Runs h2load for `requests` on so many `connections` with so many `streams` at a time.
fn load(gateway: &Gateway, connections: u32, streams: u32, requests: u32) {
    let url = format!("http://127.0.0.1:{}/", gateway.address().port().unwrap());
    let [c, m, n] = [("-c", connections), ("-m", streams), ("-n", requests)].map(|(o, n)| format!("{o}{n}"));
    let output = Command::new("h2load").args([&c, &m, &n, &url]).output();
    let output = output.expect("h2load is installed with the package nghttp2-client");
    let text = String::from_utf8_lossy(&output.stdout);
    let counts = text.lines().find_map(|line| line.strip_prefix("requests: ")).unwrap_or_default();
    let count = |name: &str| {
        let part = counts.split(", ").find_map(|part| part.strip_suffix(name));
        part.and_then(|number| number.trim().parse::<u32>().ok())
    };
    let all = (count(" succeeded"), count(" failed"), count(" errored"));
    assert_eq!(all, (Some(requests), Some(0), Some(0)), "{connections} x {streams}:\n{text}");
}

#[test]
fn every_request_is_answered() {
    let gateway = Gateway::start(SIGMA, ANSWERING).unwrap();
    for (connections, streams, requests) in [(1, 1, 200), (1, 100, 2_000), (30, 10, 2_000), (500, 1, 1_500)] {
        load(&gateway, connections, streams, requests);
    }
}

#[test]
fn every_request_reaches_a_node_of_http1() {
    allow_open_files(4096).unwrap();
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    for (connections, streams, requests) in [(1, 100, 1_000), (20, 5, 1_000)] {
        load(&gateway, connections, streams, requests);
    }
}

/// The codec is at both ends of the second hop.
#[test]
fn every_request_reaches_a_node_of_http2() {
    let node = Gateway::start(SIGMA, ANSWERING).unwrap();
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", node.address().port().unwrap());
    let gateway = Gateway::start(SIGMA, &catch_all("", &nodes, "      scheme: grpc\n")).unwrap();
    for (connections, streams, requests) in [(1, 1, 200), (1, 100, 2_000), (50, 20, 2_000)] {
        load(&gateway, connections, streams, requests);
    }
}
