//! Upstreams that are made of others.

use sigma_testkit::{Gateway, Message, Origin, checksum, free_port, until};

use crate::{PATIENCE, SIGMA};

/// A gateway whose upstream `all` has these members, with these upstreams.
fn gateway(members: &str, upstreams: &[String]) -> Gateway {
    let upstreams: String = upstreams.iter().map(|upstream| format!("  - {{ {upstream} }}\n")).collect();
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nupstreams:\n{upstreams}  - id: all\n    members: [{members}]\nroutes:\n  - id: all\n    uri: \"/*\"\n    upstream_id: all\n"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn upstream(id: &str, port: u16, rest: &str) -> String {
    format!("id: {id}, nodes: {{ \"127.0.0.1:{port}\": 1 }}{rest}")
}

fn ask(gateway: &Gateway, request: &str) -> Message {
    gateway.connect().unwrap().ask(request).unwrap()
}

fn get(gateway: &Gateway) -> (u16, Option<String>) {
    let answer = ask(gateway, "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    (answer.status(), answer.head.get("x-origin").map(str::to_owned))
}

#[test]
fn members_share_by_weight() {
    let (a, b, c) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap(), Origin::echo("c").unwrap());
    let upstreams = [upstream("a", a.port(), ""), upstream("b", b.port(), ""), upstream("c", c.port(), "")];
    let members = "{ upstream_id: a, weight: 3 }, { upstream_id: b }, { upstream_id: c, weight: 0 }, { upstream_id: a2, priority: -1 }";
    let gateway = gateway(members, &[&upstreams[..], &[upstream("a2", c.port(), "")]].concat());
    let mut client = gateway.connect().unwrap();
    for _ in 0..400 {
        assert_eq!(client.get("/").unwrap().status(), 200);
    }
    // Five standard deviations.
    assert!(a.requests().abs_diff(300) <= 45, "{} of 400", a.requests());
    assert_eq!((a.requests() + b.requests(), c.requests()), (400, 0));
}

#[test]
fn a_member_that_cannot_serve_gives_way() {
    let spare = Origin::echo("spare").unwrap();
    // The first rewrites Host, and none of its nodes answers.
    let first = format!(
        "id: first, nodes: {{ \"127.0.0.1:{}\": 1, \"127.0.0.1:{}\": 1 }}, pass_host: rewrite, upstream_host: first.test",
        free_port(),
        free_port()
    );
    let upstreams = [first, "id: empty, nodes: {}".to_owned(), upstream("spare", spare.port(), "")];
    let members =
        "{ upstream_id: first, priority: 2 }, { upstream_id: empty, priority: 1 }, { upstream_id: spare }";
    let gateway = gateway(members, &upstreams);
    for _ in 0..5 {
        assert_eq!(get(&gateway), (200, Some("spare".into())));
    }
    // The first member's changes of the request are undone, and its body goes to the next.
    let body = "b".repeat(5_000);
    let request =
        format!("POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let seen = ask(&gateway, &request).json().unwrap();
    assert_eq!(seen["body_checksum"], checksum(body.as_bytes()));
    let fields = seen["headers"].as_array().unwrap();
    let all = |name: &str| -> Vec<&str> {
        let named = fields.iter().filter(|field| field[0].as_str().unwrap().eq_ignore_ascii_case(name));
        named.map(|field| field[1].as_str().unwrap()).collect()
    };
    assert_eq!((all("host"), all("x-forwarded-for")), (vec!["shop.test"], vec!["127.0.0.1"]));
}

#[test]
fn non_idempotent_requests_are_not_repeated() {
    let closing = Origin::serve(|mut peer| drop(peer.read_request())).unwrap();
    let spare = Origin::echo("spare").unwrap();
    let upstreams = [upstream("first", closing.port(), ", retries: 0"), upstream("spare", spare.port(), "")];
    let gateway = gateway("{ upstream_id: first, priority: 1 }, { upstream_id: spare }", &upstreams);
    assert_eq!(get(&gateway), (200, Some("spare".into())));
    let post = ask(&gateway, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((post.status(), spare.requests()), (502, 1));
}

#[test]
fn members_are_passed_over_while_they_are_out() {
    let down = Origin::answer(|_| b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()).unwrap();
    let broken = Origin::answer(|_| b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()).unwrap();
    let spare = Origin::echo("spare").unwrap();
    let checks = ", checks: { passive: { fail_timeout: 600, unhealthy: { http_failures: 1 } } }";
    let breaker = ", circuit_breaker: { failure_rate_threshold: 50, minimum_number_of_calls: 2, wait_duration_in_open_state: 600 }";
    let upstreams = [
        upstream("down", down.port(), checks),
        upstream("broken", broken.port(), breaker),
        upstream("spare", spare.port(), ""),
    ];
    let members =
        "{ upstream_id: down, priority: 2 }, { upstream_id: broken, priority: 1 }, { upstream_id: spare }";
    let gateway = gateway(members, &upstreams);
    // Checks find the first, the breaker the second; their responses are their own until then.
    assert!(until(PATIENCE, || get(&gateway).0 == 200), "nobody goes on");
    let asked = (down.requests(), broken.requests());
    for _ in 0..10 {
        assert_eq!(get(&gateway), (200, Some("spare".into())));
    }
    assert_eq!((down.requests(), broken.requests()), asked);
}
