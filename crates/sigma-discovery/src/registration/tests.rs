//! Registrations in scripted registries on real sockets, and their schedule with a paused clock.

use std::sync::mpsc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::scripted::Scripted;

fn discovery(server: &Scripted) -> Discovery {
    let address = server.address();
    let value = json!({
        "consul": {"servers": [address], "token": "hush"},
        "eureka": {"host": [address.base().replace("http://", "http://u:hush@")]},
        "nacos": {"host": [address.base().replace("http://", "http://u:hush@")]},
    });
    serde_json::from_value(value).expect("settings")
}

fn settings(more: Value) -> Registration {
    let mut value = json!({
        "registries": ["consul", "eureka", "nacos"], "name": "gate-way", "address": "10.0.0.1", "port": 9080,
        "metadata": {"zone": "z1"}
    });
    value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(value).expect("settings")
}

/// Returns method, target and body of the next request.
fn asked(server: &Scripted) -> (String, String, Value) {
    let message = server.question();
    let (method, target) = message.head.request_line().expect("a request");
    let body = serde_json::from_slice(&message.body).unwrap_or_default();
    (method.to_owned(), target.to_owned(), body)
}

fn ok(server: &Scripted, body: &str) {
    server.answer("200 OK", "", body);
}

const EVERY: Duration = Duration::from_secs(10);

#[tokio::test]
async fn consul_has_a_check_by_heartbeats() {
    let server = Scripted::start();
    let (discovery, settings) = (discovery(&server), settings(json!({"tags": ["edge"]})));
    let servers = discovery.consul.as_ref().expect("settings");
    let mut registrar = consul::ConsulRegistrar::new(servers, &settings, EVERY, &Env::of(1, 1));
    ok(&server, "");
    assert_eq!(registrar.register().await, Ok(()));
    let (method, target, body) = asked(&server);
    let id = "10.0.0.1:gate-way:9080";
    assert_eq!((&*method, &*target), ("PUT", "/v1/agent/service/register?replace-existing-checks=true"));
    let check = json!({"TTL": "30s", "Status": "passing", "DeregisterCriticalServiceAfter": "10m"});
    let expected = json!({
        "ID": id, "Name": "gate-way", "Address": "10.0.0.1", "Port": 9080, "Tags": ["edge"],
        "Meta": {"zone": "z1"}, "Check": check
    });
    assert_eq!(body, expected);
    for (status, text, expected) in [
        ("200 OK", "", Ok(true)),
        ("404 Not Found", "Unknown check ID", Ok(false)),
        ("500 Internal Server Error", "CheckID has unknown check", Ok(false)),
        ("500 Internal Server Error", "no leader", Err(())),
        ("403 Forbidden", "Permission denied", Err(())),
    ] {
        server.answer(status, "", text);
        assert_eq!(registrar.renew().await.map_err(drop), expected, "{status} {text}");
        let asked = server.asked("x-consul-token");
        assert_eq!(asked.0, "/v1/agent/check/pass/service:10.0.0.1%3Agate-way%3A9080");
        assert_eq!(asked.1.as_deref(), Some("hush"));
    }
    server.answer("400 Bad Request", "", "Invalid \nservice");
    let trouble = registrar.register().await.expect_err("a problem").0;
    assert!(trouble.ends_with("responded with status 400: Invalid  service"), "{trouble}");
    server.question();
    ok(&server, "");
    assert_eq!(registrar.remove().await, Ok(()));
    assert_eq!(asked(&server).1, "/v1/agent/service/deregister/10.0.0.1%3Agate-way%3A9080");
}

#[tokio::test]
async fn consul_may_check_a_url() {
    let server = Scripted::start();
    let (discovery, settings) =
        (discovery(&server), settings(json!({"health_url": "http://h/status/ready"})));
    let servers = discovery.consul.as_ref().expect("settings");
    let mut registrar = consul::ConsulRegistrar::new(servers, &settings, EVERY, &Env::of(1, 1));
    ok(&server, "");
    assert_eq!(registrar.register().await, Ok(()));
    let check = asked(&server).2["Check"].take();
    assert_eq!((&check["HTTP"], &check["Interval"]), (&json!("http://h/status/ready"), &json!("10s")));
    server.answer("404 Not Found", "", "unknown service");
    assert_eq!(registrar.renew().await, Ok(false));
    let (method, target, _) = asked(&server);
    assert_eq!((&*method, &*target), ("GET", "/v1/agent/service/10.0.0.1%3Agate-way%3A9080"));
}

#[tokio::test]
async fn eureka_gets_leases() {
    let server = Scripted::start();
    let (discovery, settings) =
        (discovery(&server), settings(json!({"secure": true, "health_url": "http://h/ready"})));
    let servers = discovery.eureka.as_ref().expect("settings");
    let mut registrar = eureka::EurekaRegistrar::new(servers, &settings, EVERY, &Env::of(1, 1));
    server.answer("204 No Content", "", "");
    assert_eq!(registrar.register().await, Ok(()));
    let message = server.question();
    assert_eq!(message.head.request_line().expect("a request"), ("POST", "/eureka/apps/GATE-WAY"));
    assert!(message.head.get("authorization").is_some_and(|text| text.starts_with("Basic ")));
    let body: Value = serde_json::from_slice(&message.body).expect("JSON");
    let instance = &body["instance"];
    for (pointer, expected) in [
        ("/instanceId", json!("10.0.0.1:gate-way:9080")),
        ("/app", json!("GATE-WAY")),
        ("/ipAddr", json!("10.0.0.1")),
        ("/status", json!("UP")),
        ("/port/@enabled", json!("false")),
        ("/securePort", json!({"$": 9080, "@enabled": "true"})),
        ("/vipAddress", json!("gate-way")),
        ("/leaseInfo", json!({"renewalIntervalInSecs": 10, "durationInSecs": 30})),
        ("/metadata", json!({"zone": "z1"})),
        ("/healthCheckUrl", json!("http://h/ready")),
        ("/homePageUrl", json!("https://10.0.0.1:9080/")),
    ] {
        assert_eq!(instance.pointer(pointer), Some(&expected), "{pointer}");
    }
    for (status, expected) in [
        ("200 OK", Ok(true)),
        ("404 Not Found", Ok(false)),
        ("401 Unauthorized", Err(())),
        ("503 Service Unavailable", Err(())),
    ] {
        server.answer(status, "", "");
        assert_eq!(registrar.renew().await.map_err(drop), expected, "{status}");
        let (method, target, _) = asked(&server);
        let renewal = "/eureka/apps/GATE-WAY/10.0.0.1%3Agate-way%3A9080?status=UP";
        assert_eq!((&*method, &*target), ("PUT", renewal));
    }
    ok(&server, "");
    assert_eq!(registrar.remove().await, Ok(()));
    let (method, target, _) = asked(&server);
    assert_eq!((&*method, &*target), ("DELETE", "/eureka/apps/GATE-WAY/10.0.0.1%3Agate-way%3A9080"));
}

#[tokio::test]
async fn nacos_gets_beats_after_a_login() {
    let server = Scripted::start();
    let (discovery, settings) =
        (discovery(&server), settings(json!({"nacos": {"namespace": "n", "weight": 2}})));
    let servers = discovery.nacos.as_ref().expect("settings");
    let mut registrar = nacos::NacosRegistrar::new(servers, &settings, EVERY, &Env::of(1, 1));
    ok(&server, r#"{"accessToken": "t", "tokenTtl": 18000}"#);
    ok(&server, "ok");
    assert_eq!(registrar.register().await, Ok(()));
    assert_eq!(asked(&server).1, "/nacos/v1/auth/login");
    let (method, target, _) = asked(&server);
    let named = "serviceName=DEFAULT_GROUP%40%40gate-way&groupName=DEFAULT_GROUP&namespaceId=n&clusterName=DEFAULT&ip=10.0.0.1&port=9080&ephemeral=true";
    assert!(
        method == "POST" && target.starts_with(&format!("/nacos/v1/ns/instance?{named}&weight=2&")),
        "{target}"
    );
    assert!(target.contains("%22zone%22%3A%22z1%22") && target.ends_with("&accessToken=t"), "{target}");
    assert!(target.contains("preserved.heart.beat.timeout%22%3A%2230000"), "{target}");
    for (status, text, expected) in [
        ("200 OK", r#"{"clientBeatInterval": 5000, "code": 10200, "lightBeatEnabled": true}"#, Ok(true)),
        ("200 OK", r#"{"code": 20404}"#, Ok(false)),
        ("200 OK", "no", Err(())),
        ("500 Internal Server Error", "down", Err(())),
    ] {
        server.answer(status, "", text);
        assert_eq!(registrar.renew().await.map_err(drop), expected, "{text}");
        let (method, target, _) = asked(&server);
        assert!(
            method == "PUT" && target.starts_with(&format!("/nacos/v1/ns/instance/beat?{named}&beat=%7B")),
            "{target}"
        );
    }
    ok(&server, "ok");
    assert_eq!(registrar.remove().await, Ok(()));
    let (method, target, _) = asked(&server);
    assert!(method == "DELETE" && target.starts_with(&format!("/nacos/v1/ns/instance?{named}")), "{target}");
}

/// A registrar of a test: it reports its calls with their times, and returns these results.
struct Recorder {
    calls: mpsc::Sender<(&'static str, Duration)>,
    results: std::vec::IntoIter<Result<bool, Trouble>>,
    began: Instant,
}

impl Recorder {
    async fn result(&mut self, call: &'static str) -> Result<bool, Trouble> {
        self.calls.send((call, self.began.elapsed())).expect("a test");
        match self.results.next() {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

impl Registrar for Recorder {
    async fn register(&mut self) -> Result<(), Trouble> {
        self.result("register").await.map(drop)
    }

    async fn renew(&mut self) -> Result<bool, Trouble> {
        self.result("renew").await
    }

    async fn remove(&mut self) -> Result<(), Trouble> {
        self.result("remove").await.map(drop)
    }
}

/// Lets this time of the paused clock pass, while all tasks run.
async fn pass(seconds: u64) {
    let forever = std::future::pending::<()>();
    assert!(tokio::time::timeout(Duration::from_secs(seconds), forever).await.is_err());
}

fn failure() -> Result<bool, Trouble> {
    Err(Trouble("away".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn heartbeats_follow_the_schedule() {
    let (calls, told) = mpsc::channel();
    let results = [failure(), failure(), Ok(true), Ok(true), failure(), Ok(true), Ok(false), Ok(true)];
    let registrar = Recorder { calls, results: Vec::from(results).into_iter(), began: Instant::now() };
    let mut registration = SelfRegistration {
        is_leaving: watch::Sender::new(false),
        tasks: Mutex::default(),
        states: Vec::new(),
    };
    registration.spawn("test", registrar, EVERY);
    // The last heartbeat gets no response.
    pass(60).await;
    let report = registration.report().remove(0);
    assert!(report.is_registered && report.problem.is_none(), "{report:?}");
    assert_eq!((report.registrations, report.failures), (2, 3));
    registration.leave().await;
    assert!(!registration.report()[0].is_registered);
    let calls: Vec<(&str, Duration)> = told.try_iter().collect();
    let names: Vec<&str> = calls.iter().map(|(name, _)| *name).collect();
    let expected = [
        "register", "register", "register", "renew", "renew", "renew", "renew", "register", "renew", "remove",
    ];
    assert_eq!(names, expected);
    let pauses: Vec<Duration> = calls.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    for (index, (least, most)) in [
        (500, 1000),
        (1000, 2000),
        (10_000, 10_001),
        (10_000, 10_001),
        (500, 1000),
        (10_000, 10_001),
        (100, 101),
        (10_000, 10_001),
    ]
    .into_iter()
    .enumerate()
    {
        let pause = pauses[index].as_millis();
        assert!((least..=most).contains(&pause), "{index}: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_bounded_and_a_successor_keeps_the_registration() {
    for results in [vec![], vec![Ok(true)]] {
        let (calls, told) = mpsc::channel();
        let registrar = Recorder { calls, results: results.into_iter(), began: Instant::now() };
        let mut registration = SelfRegistration {
            is_leaving: watch::Sender::new(false),
            tasks: Mutex::default(),
            states: Vec::new(),
        };
        registration.spawn("test", registrar, EVERY);
        pass(1).await;
        let began = Instant::now();
        registration.leave().await;
        assert!(began.elapsed() <= LEAVING + Duration::from_secs(1));
        // It may be registered, even without a response.
        assert_eq!(told.try_iter().last().map(|(name, _)| name), Some("remove"));
    }
    let (calls, told) = mpsc::channel();
    let registrar = Recorder { calls, results: vec![Ok(true)].into_iter(), began: Instant::now() };
    let mut registration = SelfRegistration {
        is_leaving: watch::Sender::new(false),
        tasks: Mutex::default(),
        states: Vec::new(),
    };
    registration.spawn("test", registrar, EVERY);
    pass(1).await;
    registration.fall_silent();
    registration.leave().await;
    pass(60).await;
    assert_eq!(told.try_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["register"]);
}
