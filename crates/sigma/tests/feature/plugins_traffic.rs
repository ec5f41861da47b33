//! The choice of upstreams, over real sockets.

use std::collections::BTreeMap;

use sigma_testkit::{Gateway, Message, Origin};

use crate::SIGMA;

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
