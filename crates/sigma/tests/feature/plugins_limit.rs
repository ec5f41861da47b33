//! Limits, over real sockets: in one gateway, and shared by several through Redis.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sigma_testkit::{Gateway, Origin, Peer, Redis, until};

use crate::{PATIENCE, SIGMA, nodes};

/// A gateway with one route for everything, which has these plugins.
fn limited(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::start(SIGMA, &config(origin, plugins)).unwrap()
}

fn config(origin: &Origin, plugins: &str) -> String {
    format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n  - id: all\n    uri: \"/*\"\n    plugins:\n{plugins}\n    upstream:\n      nodes: {}\n",
        nodes(&[origin])
    )
}

fn status(gateway: &Gateway, target: &str) -> u16 {
    gateway.connect().unwrap().get(target).unwrap().status()
}

/// Sends so many requests from each of four threads to these gateways in turn; how many responses had status 200.
fn passed(gateways: &[&Gateway], requests: usize) -> usize {
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let passed = &passed;
            scope.spawn(move || {
                let mut client = gateways[thread % gateways.len()].connect().unwrap();
                for _ in 0..requests {
                    let status = client.get("/").unwrap().status();
                    assert!(matches!(status, 200 | 503), "{status}");
                    passed.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn a_local_count_is_one_for_all_workers() {
    let origin = Origin::echo("a").unwrap();
    for window_type in ["fixed", "sliding"] {
        let plugins = format!(
            "      limit-count: {{ count: 50, time_window: 1000000, window_type: {window_type}, rejected_msg: enough }}"
        );
        let gateway = limited(&origin, &plugins);
        let answer = gateway.connect().unwrap().get("/").unwrap();
        assert_eq!(answer.head.get("x-ratelimit-limit"), Some("50"));
        assert_eq!(answer.head.get("x-ratelimit-remaining"), Some("49"));
        assert!(answer.head.get("x-ratelimit-reset").is_some());
        assert_eq!(passed(&[&gateway], 25), 49, "{window_type}");
        let refused = gateway.connect().unwrap().get("/").unwrap();
        assert_eq!((refused.status(), refused.text().as_str()), (503, "{\"error_msg\":\"enough\"}\n"));
        assert_eq!(refused.head.get("x-ratelimit-remaining"), Some("0"));
    }
}

fn redis_count(redis: &Redis, further: &str) -> String {
    format!(
        "      limit-count: {{ count: 100, time_window: 1000000, policy: redis, redis_host: 127.0.0.1, redis_port: {}{further} }}",
        redis.port()
    )
}

#[test]
fn two_gateways_share_a_count() {
    let (origin, redis) = (Origin::echo("a").unwrap(), Redis::start(&[]).unwrap());
    for window_type in ["fixed", "sliding"] {
        let plugins = redis_count(&redis, &format!(", window_type: {window_type}"));
        let (one, two) = (limited(&origin, &plugins), limited(&origin, &plugins));
        assert_eq!(passed(&[&one, &two], 40), 100, "{window_type}");
    }
}

#[test]
fn two_gateways_share_a_cluster() {
    let (origin, cluster) = (Origin::echo("a").unwrap(), Redis::cluster().unwrap());
    let plugins = format!(
        "      limit-count:\n        count: 60\n        time_window: 1000000\n        policy: redis-cluster\n        redis_cluster_name: c\n        redis_cluster_nodes: [\"127.0.0.1:{}\"]",
        cluster[0].port()
    );
    let (one, two) = (limited(&origin, &plugins), limited(&origin, &plugins));
    assert_eq!(passed(&[&one, &two], 25), 60);
}

/// Each limit through Redis, so wide that no request has ended it; and what its keys begin with.
fn wide(redis: &Redis) -> [(String, &'static str); 3] {
    let store = format!("policy: redis, redis_host: 127.0.0.1, redis_port: {}", redis.port());
    [
        (redis_count(redis, ""), "plugin-limit-count:v1:*"),
        (
            format!(
                "      limit-conn: {{ conn: 100, burst: 0, default_conn_delay: 1, key: remote_addr, {store} }}"
            ),
            "limit_conn:*",
        ),
        (
            format!(
                "      limit-req: {{ rate: 100, burst: 100000, nodelay: true, key: remote_addr, {store} }}"
            ),
            "limit_req:*",
        ),
    ]
}

#[test]
fn redis_may_go_and_come_back() {
    for limit in 0..3 {
        for (further, without) in [("", 500), (", allow_degradation: true", 200)] {
            redis_goes_and_comes_back(limit, further, without);
        }
    }
}

fn redis_goes_and_comes_back(limit: usize, further: &str, without: u16) {
    // Places at limit-conn are seen in Redis only as long as they are taken.
    let (mut redis, origin) = (Redis::start(&[]).unwrap(), holding());
    let (plugins, keys) = wide(&redis)[limit].clone();
    let plugins = plugins.replace(" }", &format!("{further} }}"));
    let gateway = limited(&origin, &plugins);
    assert_eq!(status(&gateway, "/"), 200, "{plugins}");
    redis.kill().unwrap();
    for _ in 0..5 {
        let answer = gateway.connect().unwrap().get("/").unwrap();
        assert_eq!(answer.status(), without, "{plugins}");
        let is_count = without == 500 && limit == 0;
        assert_eq!(answer.text() == "{\"error_msg\":\"failed to limit count\"}\n", is_count, "{plugins}");
    }
    let redis = Redis::start_on(redis.port(), &[]).unwrap();
    assert!(until(PATIENCE, || status(&gateway, "/") == 200), "{plugins}");
    let mut held = Vec::new();
    let counted = || {
        held.push(gateway.connect().unwrap());
        let sent = held.last_mut().map(|client| client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(matches!(sent, Some(Ok(()))));
        !redis.ask(&["keys", keys]).unwrap().is_empty()
    };
    assert!(until(PATIENCE, counted), "Redis is back and not used: {plugins}");
}

#[test]
fn redis_over_tls() {
    let (origin, folder) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let port = sigma_testkit::free_port();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let arguments = [
        "--tls-port",
        &port.to_string(),
        "--port",
        "0",
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &text(&certificate),
        "--tls-key-file",
        &text(&key),
        "--tls-ca-cert-file",
        &text(&certificate),
    ];
    let redis = Redis::start_on(port, &arguments).unwrap();
    let check = |further: &str, expected: u16| {
        let gateway = limited(&origin, &redis_count(&redis, further));
        assert_eq!(status(&gateway, "/"), expected, "{further}");
    };
    check(", redis_ssl: true", 200);
    // This certificate is not trusted.
    check(", redis_ssl: true, redis_ssl_verify: true", 500);
    check("", 500);
}

#[test]
fn requests_within_the_burst_wait() {
    let (origin, redis) = (Origin::echo("a").unwrap(), Redis::start(&[]).unwrap());
    let through_redis = format!(", policy: redis, redis_host: 127.0.0.1, redis_port: {}", redis.port());
    for policy in ["", through_redis.as_str()] {
        let plugin = |further: &str| {
            format!(
                "      limit-req: {{ rate: 5, burst: 2, key: remote_addr, rejected_code: 429{further}{policy} }}"
            )
        };
        let gateway = limited(&origin, &plugin(""));
        let began = Instant::now();
        assert_eq!([status(&gateway, "/"), status(&gateway, "/")], [200, 200]);
        assert!(began.elapsed() >= Duration::from_millis(190), "{policy}: {:?}", began.elapsed());
        let gateway = limited(&origin, &plugin(", nodelay: true"));
        let mut client = gateway.connect().unwrap();
        let began = Instant::now();
        let statuses = (0..60).map(|_| client.get("/").unwrap().status()).collect::<Vec<_>>();
        let passed = statuses.iter().filter(|status| **status == 200).count();
        let most = 3 + (began.elapsed().as_secs_f64() * 5.0).ceil() as usize;
        assert_eq!(statuses[..3], [200, 200, 200], "{policy}");
        assert!(passed <= most, "{policy}: {passed} of at most {most} in {:?}", began.elapsed());
    }
}

/// An origin that never responds `/held`, and all else at once.
fn holding() -> Origin {
    Origin::serve(|mut peer| {
        while let Ok(request) = peer.read_request() {
            if request.head.line.contains("/held") {
                // However it ends, this connection has served its purpose.
                let _ = peer.read_to_close();
                return;
            }
            if peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    })
    .unwrap()
}

#[test]
fn places_are_given_back_when_requests_end() {
    let redis = Redis::start(&[]).unwrap();
    let through_redis = format!(", policy: redis, redis_host: 127.0.0.1, redis_port: {}", redis.port());
    for policy in ["", through_redis.as_str()] {
        let origin = holding();
        let plugins = format!(
            "      limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr, rejected_code: 429{policy} }}"
        );
        let gateway = limited(&origin, &plugins);
        // Redis hears of the end of a request a little after the client.
        let is_free = || until(PATIENCE, || status(&gateway, "/") == 200);
        for _ in 0..5 {
            assert!(is_free(), "a place was not given back after an answer: {policy}");
            let held = || {
                let mut client = gateway.connect().unwrap();
                client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
                // A refusal comes at once; a held request reaches the origin, which stays silent.
                let refused = until(Duration::from_millis(200), || !client.is_idle());
                (!refused).then_some(client)
            };
            let mut client = None;
            assert!(
                until(PATIENCE, || {
                    client = held();
                    client.is_some()
                }),
                "{policy}"
            );
            assert_eq!([status(&gateway, "/"), status(&gateway, "/")], [429, 429], "{policy}");
            drop(client);
        }
        assert!(is_free(), "a place was not given back after the client had left: {policy}");
        let empty = || redis.ask(&["keys", "limit_conn:*"]).unwrap().is_empty();
        assert!(until(PATIENCE, empty), "{}", redis.ask(&["keys", "*"]).unwrap());
    }
}

/// Sends so many requests that are held, from each of four threads, to these gateways in turn.
fn hold(gateways: &[&Gateway], requests: usize) -> Vec<Peer> {
    let one = |thread: usize| {
        let send = |_| {
            let mut client = gateways[thread % gateways.len()].connect().unwrap();
            client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            client
        };
        (0..requests).map(send).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// With four threads that want more places than there are, exactly those that there are get taken:
/// in one gateway with two workers, and in two gateways that share them.
#[test]
fn no_more_places_are_taken_than_there_are() {
    const PLACES: usize = 10;
    let (origin, redis) = (holding(), Redis::start(&[]).unwrap());
    let plugin = |policy: &str| {
        format!(
            "      limit-conn: {{ conn: {PLACES}, burst: 0, default_conn_delay: 0.1, key: remote_addr, rejected_code: 429{policy} }}"
        )
    };
    let check = |gateways: &[&Gateway], policy: &str| {
        let mut clients = hold(gateways, PLACES);
        let mut answered = vec![false; clients.len()];
        let mut refused = || {
            // Read bytes stay with the client: it is silent at the next check.
            answered.iter_mut().zip(&mut clients).for_each(|(seen, client)| *seen |= !client.is_idle());
            answered.iter().filter(|seen| **seen).count()
        };
        assert!(until(PATIENCE, || refused() >= 3 * PLACES), "{} of {policy} refused", refused());
        // A client without a response has a slot, and the origin has its request.
        assert!(until(PATIENCE, || origin.connections() >= PLACES), "{policy}");
        assert_eq!(refused(), 3 * PLACES, "{policy}");
        for gateway in gateways {
            assert_eq!(status(gateway, "/"), 429, "{policy}");
        }
        drop(clients);
        for gateway in gateways {
            assert!(until(PATIENCE, || status(gateway, "/") == 200), "{policy}");
        }
    };
    let local = limited(&origin, &plugin(""));
    check(&[&local], "local");
    let shared = plugin(&format!(", policy: redis, redis_host: 127.0.0.1, redis_port: {}", redis.port()));
    let (one, two) = (limited(&origin, &shared), limited(&origin, &shared));
    check(&[&one, &two], "redis");
    let empty = || redis.ask(&["keys", "limit_conn:*"]).unwrap().is_empty();
    assert!(until(PATIENCE, empty), "{}", redis.ask(&["keys", "*"]).unwrap());
}

#[test]
fn two_gateways_share_places_in_a_cluster() {
    let (origin, cluster) = (holding(), Redis::cluster().unwrap());
    let plugins = format!(
        "      limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr, policy: redis-cluster, \
         redis_cluster_name: c, redis_cluster_nodes: [\"127.0.0.1:{}\"] }}",
        cluster[0].port()
    );
    let (one, two) = (limited(&origin, &plugins), limited(&origin, &plugins));
    let held = hold(&[&one], 1);
    assert!(until(PATIENCE, || origin.connections() == 1));
    assert_eq!(status(&two, "/"), 503);
    drop(held);
    assert!(until(PATIENCE, || status(&two, "/") == 200));
}
