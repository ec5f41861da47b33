//! Choosing, sparing and standing in for upstreams, over real sockets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sigma_testkit::{Gateway, Message, Origin, free_port, until};

use crate::{PATIENCE, SIGMA};

/// A gateway with one worker and these resources.
fn gateway(resources: &str) -> Gateway {
    Gateway::start(SIGMA, &format!("workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{resources}\n"))
        .unwrap()
}

fn ask(gateway: &Gateway, head: &str) -> Message {
    gateway.connect().unwrap().ask(format!("{}\r\n\r\n", head.replace('\n', "\r\n"))).unwrap()
}

#[test]
fn traffic_is_split_by_weight_and_condition() {
    let [own, other, third] = ["own", "other", "third"].map(|name| Origin::echo(name).unwrap());
    let gateway = gateway(&format!(
        r#"
upstreams:
  - id: third
    nodes: {{ "127.0.0.1:{}": 1 }}
    pass_host: rewrite
    upstream_host: third.test
routes:
  - id: a
    uri: "/*"
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
    plugins:
      traffic-split:
        rules:
          - match: [ {{ vars: [["http_x-to", "==", "third"]] }} ]
            weighted_upstreams: [ {{ upstream_id: third }} ]
          - match: [ {{ vars: [["http_x-to", "==", "gone"]] }} ]
            weighted_upstreams: [ {{ upstream_id: gone }} ]
          - match: [ {{ vars: [["post_arg_to", "==", "third"]] }} ]
            weighted_upstreams: [ {{ upstream_id: third }} ]
          - weighted_upstreams:
              - upstream:
                  nodes: {{ "127.0.0.1:{}": 1 }}
                  pass_host: node
                weight: 3
              - weight: 1
"#,
        third.port(),
        own.port(),
        other.port()
    ));
    let mut client = gateway.connect().unwrap();
    let mut served = BTreeMap::<String, usize>::new();
    for _ in 0..20 {
        let answer = client.get("/").unwrap();
        *served.entry(answer.head.get("x-origin").unwrap().to_owned()).or_default() += 1;
        if answer.head.get("x-origin") == Some("other") {
            let host = format!("[\"Host\",\"127.0.0.1:{}\"]", other.port());
            assert!(answer.text().contains(&host), "{}", answer.text());
        }
    }
    assert_eq!(served, BTreeMap::from([("other".to_owned(), 15), ("own".to_owned(), 5)]));
    let answer = ask(&gateway, "GET / HTTP/1.1\nHost: h\nX-To: third");
    assert_eq!(answer.head.get("x-origin"), Some("third"));
    assert!(answer.text().contains("[\"Host\",\"third.test\"]"), "{}", answer.text());
    let answer = ask(&gateway, "GET / HTTP/1.1\nHost: h\nX-To: gone");
    let text = "failed to fetch upstream info by upstream id: gone";
    assert_eq!((answer.status(), answer.text().as_str()), (500, text));
    let form = "POST / HTTP/1.1\nHost: h\nContent-Type: application/x-www-form-urlencoded\nContent-Length: 12\n\nx=1&to=third";
    let answer = gateway.connect().unwrap().ask(form.replace('\n', "\r\n")).unwrap();
    assert_eq!(answer.head.get("x-origin"), Some("third"));
    assert_eq!(answer.json().unwrap()["body_bytes"], 12);
}

#[test]
fn a_breaker_opens_and_closes() {
    let origin = Origin::answer(|request| {
        let status = if request.head.line.contains("bad") { 500 } else { 200 };
        format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()
    })
    .unwrap();
    let gateway = gateway(&format!(
        r#"
routes:
  - id: a
    uri: /a
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
    plugins:
      api-breaker:
        break_response_code: 502
        break_response_body: open
        break_response_headers: [ {{ key: X-Breaker, value: "$uri" }} ]
        unhealthy: {{ http_statuses: [500], failures: 2 }}
        healthy: {{ http_statuses: [200], successes: 1 }}
  - id: down
    uri: /down
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
    plugins:
      api-breaker: {{ break_response_code: 599, unhealthy: {{ http_statuses: [502], failures: 1 }} }}
"#,
        origin.port(),
        free_port()
    ));
    let mut client = gateway.connect().unwrap();
    let mut status = |target: &str| client.get(target).unwrap().status();
    assert_eq!([status("/a?bad"), status("/a?bad")], [500, 500]);
    let open = gateway.connect().unwrap().get("/a").unwrap();
    assert_eq!((open.status(), open.text().as_str(), open.head.get("x-breaker")), (502, "open", Some("/a")));
    let requests = origin.requests();
    assert_eq!(status("/a"), 502);
    assert_eq!(origin.requests(), requests, "the origin is to be spared");
    assert!(until(PATIENCE, || status("/a") == 200), "the breaker stays open");
    assert_eq!([status("/a?bad"), status("/a")], [500, 200]);
    assert_eq!([status("/down"), status("/down")], [502, 599]);
}

#[test]
fn faults_are_injected_before_all_else() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&format!(
        r#"
routes:
  - id: a
    uri: "/*"
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
    plugins:
      fault-injection:
        abort:
          http_status: 418
          body: "no $arg_what"
          headers: {{ X-Why: "$uri" }}
          vars: [ [["arg_what", "==", "tea"]] ]
        delay: {{ duration: 0.2, vars: [ [["arg_slow", "==", "1"]] ] }}
"#,
        origin.port()
    ));
    let answer = ask(&gateway, "GET /pot?what=tea HTTP/1.1\nHost: h");
    assert_eq!(
        (answer.status(), answer.text().as_str(), answer.head.get("x-why")),
        (418, "no tea", Some("/pot"))
    );
    assert_eq!(origin.requests(), 0);
    let began = Instant::now();
    assert_eq!(ask(&gateway, "GET /?slow=1 HTTP/1.1\nHost: h").status(), 200);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[test]
fn answers_are_made_up() {
    let gateway = gateway(
        r#"
routes:
  - id: a
    uri: "/a"
    plugins:
      mocking: { response_example: "{\"path\":\"$uri\"}", response_status: 201, response_headers: { X-A: 1 } }
  - id: b
    uri: "/b"
    plugins:
      mocking:
        content_type: text/xml
        with_mock_header: false
        response_schema: { properties: { n: { type: integer, example: 7 } } }
"#,
    );
    let answer = ask(&gateway, "GET /a HTTP/1.1\nHost: h");
    assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"path\":\"/a\"}"));
    assert_eq!(answer.head.get("content-type"), Some("application/json;charset=utf8"));
    assert!(answer.head.get("x-mock-by").unwrap().starts_with("Sigma/"));
    assert_eq!(answer.head.get("x-a"), Some("1"));
    let answer = ask(&gateway, "GET /b HTTP/1.1\nHost: h");
    assert_eq!((answer.text().as_str(), answer.head.get("x-mock-by")), ("<data><n>7</n></data>", None));
}
