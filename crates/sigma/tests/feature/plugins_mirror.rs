//! `proxy-mirror` over real sockets: the content of copies, that requests never wait for them, and their
//! counters.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use sigma_testkit::{Gateway, Message, Origin, until};

use crate::{PATIENCE, SIGMA};

const METRICS: &str = "  - uri: /metrics\n    plugins: { public-api: { uri: /apisix/prometheus/metrics } }\n";

/// A gateway with one worker, whose routes all go to `origin` through these plugins.
fn gateway(origin: &Origin, settings: &str, plugins: &str) -> Gateway {
    Gateway::start(
        SIGMA,
        &format!(
            "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n{METRICS}  - uri: /*\n    \
             plugins: {{ {plugins} }}\n    upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n\
             global_rules: [{{ id: m, plugins: {{ prometheus: {{}} }} }}]\n",
            origin.port()
        ),
    )
    .unwrap()
}

/// An origin that reports each request, and answers it so.
fn telling(answer: &'static str) -> (Origin, Receiver<Message>) {
    let (tell, told) = mpsc::channel();
    let origin = Origin::answer(move |request| {
        let _ = tell.send(request.clone());
        answer.as_bytes().to_vec()
    });
    (origin.unwrap(), told)
}

fn ask(gateway: &Gateway, request: &str) -> Message {
    gateway.connect().unwrap().ask(request.replace('\n', "\r\n")).unwrap()
}

/// Waits for a line of the metrics to end so.
fn counted(gateway: &Gateway, line: &str) {
    let page = || gateway.connect().unwrap().get("/metrics").unwrap().text();
    assert!(until(PATIENCE, || page().contains(line)), "{line}\n{}\n{}", page(), gateway.stderr());
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn copies_have_the_content_of_the_nodes_request() {
    let (origin, _at_node) = telling(OK);
    let (one, at_one) = telling("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
    let (other, at_other) = telling(OK);
    let plugins = format!(
        "proxy-mirror: {{ host: \"http://127.0.0.1:{}\", headers: {{ X-Mirror: \"of $host\" }}, \
         mirrors: [{{ host: \"http://127.0.0.1:{}\", path: /p, path_concat_mode: prefix }}] }}, \
         key-auth: {{ hide_credentials: true }}, proxy-rewrite: {{ headers: {{ set: {{ X-Set: late }} }} }}",
        one.port(),
        other.port()
    );
    let settings = "consumers: [{ username: jack, plugins: { key-auth: { key: secret } } }]";
    let gateway = gateway(&origin, settings, &plugins);
    let answer =
        ask(&gateway, "POST /a%20b?c=d&apikey=secret HTTP/1.1\nHost: h.test\nContent-Length: 5\n\nhello");
    assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
    for (told, line) in [(at_one, "POST /a%20b?c=d HTTP/1.1"), (at_other, "POST /p/a%20b?c=d HTTP/1.1")] {
        let copy = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!((copy.head.line.as_str(), copy.text().as_str()), (line, "hello"));
        for (name, value) in [
            ("host", "h.test"),
            ("x-mirror", "of h.test"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-consumer-username", "jack"),
            ("x-set", "late"),
            ("content-length", "5"),
        ] {
            assert_eq!(copy.head.get(name), Some(value), "{name}");
        }
    }
    // A refused request has no copy: the next copy is of the next request.
    assert_eq!(ask(&gateway, "GET /refused HTTP/1.1\nHost: h\n\n").status(), 401);
    counted(&gateway, "outcome=\"answered\"} 2");
}

#[test]
fn a_mirror_that_hangs_delays_no_request() {
    let (origin, _at_node) = telling(OK);
    // It does not accept connections.
    let silent = Origin::scripted().unwrap();
    let settings = "plugin_attr: { proxy-mirror: { copies: { worker_running: 1, worker_waiting: 1, worker_bytes: 8 } } }";
    let plugins =
        format!("proxy-mirror: {{ host: \"http://127.0.0.1:{}\", max_req_body_size: 6 }}", silent.port());
    let gateway = gateway(&origin, settings, &plugins);
    for _ in 0..4 {
        assert_eq!(ask(&gateway, "GET / HTTP/1.1\nHost: h\n\n").status(), 200);
    }
    counted(&gateway, "outcome=\"no_room\"} 2");
    let answer = ask(&gateway, "POST / HTTP/1.1\nHost: h\nContent-Length: 7\n\n1234567");
    assert_eq!(answer.status(), 200);
    counted(&gateway, "outcome=\"too_large\"} 1");
}

#[test]
fn answers_are_compared() {
    let (origin, _at_node) = telling(OK);
    let (other, _at_other) = telling("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nkey");
    let gone = sigma_testkit::free_port();
    let plugins = format!(
        "proxy-mirror: {{ host: \"http://127.0.0.1:{}\", compare: {{}}, \
         mirrors: [{{ host: \"http://127.0.0.1:{}\" }}, {{ host: \"http://127.0.0.1:{gone}\" }}] }}",
        other.port(),
        origin.port()
    );
    let gateway = gateway(&origin, "", &plugins);
    assert_eq!(ask(&gateway, "GET / HTTP/1.1\nHost: h\n\n").text(), "ok");
    counted(&gateway, "outcome=\"body\"} 1");
    counted(&gateway, "outcome=\"same\"} 1");
    counted(&gateway, "outcome=\"failed\"} 1");
    let told = "a body of 2 bytes, here of 3";
    assert!(until(Duration::from_secs(10), || gateway.stderr().contains(told)), "{}", gateway.stderr());
}
