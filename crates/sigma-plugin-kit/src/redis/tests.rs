//! Connections against real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::Node;
use sigma_testkit::Redis;

use super::target::Target;
use super::{Policy, Script, SharedConnection};

const ADD: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
static ADD_SCRIPT: Script = Script::new(ADD, || Script::digest_of(ADD));

fn target(further: Value) -> Target {
    let mut conf = json!({
        "policy": "redis", "redis_host": "127.0.0.1", "redis_database": 0, "redis_timeout": 1000, "redis_ssl": false,
        "redis_ssl_verify": false, "redis_keepalive_timeout": 10000
    });
    conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    Policy::deserialize(conf).unwrap().target().unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Adds one to a counter; returns its value, or the error.
async fn add(connection: &SharedConnection) -> Result<u64, String> {
    ADD_SCRIPT.run(connection, b"k", &[1]).await.map_err(|error| error.to_string())
}

#[test]
fn a_server_that_is_silent_is_given_up_in_time() {
    // It accepts, in its backlog, and never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let connection =
        SharedConnection::new(&Arc::new(target(json!({"redis_port": port, "redis_timeout": 100}))));
    run(async { assert!(add(&connection).await.is_err()) });
}

#[test]
fn a_server_that_accepts_and_never_answers_is_not_dialled_for_every_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connection = SharedConnection::new(&Arc::new(target(json!({"redis_port": port}))));
    let dialled = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&dialled);
    // It ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let began = Instant::now();
    run(async {
        for _ in 0..300 {
            assert!(add(&connection).await.is_err());
        }
    });
    // Pauses of 50, 100, 200 … ms: at most so many attempts have room in the time that it took.
    let room = 2 + began.elapsed().as_millis() as usize / 50;
    let dialled = dialled.load(Ordering::Relaxed);
    assert!(dialled <= room.min(150), "{dialled} connections in {:?}", began.elapsed());
}

#[test]
fn settings_without_effect_are_reported() {
    let check = |conf: Value, expected: &[&str]| {
        let told = super::idle_settings(&conf);
        let fields: Vec<&str> = told.iter().map(|problem| problem.pointer.as_str()).collect();
        assert_eq!(fields, expected, "{conf}");
    };
    let redis = |further: Value| {
        let mut conf = json!({"policy": "redis", "redis_host": "h"});
        conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        conf
    };
    check(
        redis(
            json!({"redis_username": "u", "redis_password": "p", "redis_ssl": true, "redis_ssl_verify": true}),
        ),
        &[],
    );
    check(redis(json!({"redis_keepalive_pool": 5})), &["redis_keepalive_pool"]);
    check(redis(json!({"redis_username": "u"})), &["redis_username"]);
    check(redis(json!({"redis_ssl_verify": true})), &["redis_ssl_verify"]);
    check(json!({"redis_keepalive_pool": 5}), &[]);
}

#[test]
fn equal_targets_are_one() {
    let node = Node::default();
    let shared = |port: u16| target(json!({"redis_port": port})).shared(&node);
    let first = shared(1);
    assert!(Arc::ptr_eq(&first, &shared(1)) && !Arc::ptr_eq(&first, &shared(2)));
}

/// Tests with an installed Redis.
mod installed {
    use super::*;

    #[test]
    fn logins_and_databases() {
        let redis = Redis::start(&["--requirepass", "secret"]).unwrap();
        redis.ask(&["-a", "secret", "ACL", "SETUSER", "alice", "on", ">word", "~*", "+@all"]).unwrap();
        let check = |further: Value, expected: Result<u64, &str>| {
            let mut target = target(further.clone());
            if let crate::redis::target::Deployment::Single(place) = &mut target.deployment {
                place.port = redis.port();
            }
            let added = run(async { add(&SharedConnection::new(&Arc::new(target))).await });
            match (added, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected, "{further}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{further}: {error}"),
                (added, _) => panic!("{further}: {added:?}"),
            }
        };
        check(json!({"redis_port": 0, "redis_password": "secret"}), Ok(1));
        check(json!({"redis_port": 0, "redis_password": "secret", "redis_database": 1}), Ok(1));
        check(json!({"redis_port": 0, "redis_password": "secret"}), Ok(2));
        check(json!({"redis_port": 0, "redis_password": "word", "redis_username": "alice"}), Ok(3));
        check(json!({"redis_port": 0, "redis_password": "wrong"}), Err(""));
        check(json!({"redis_port": 0, "redis_password": ""}), Err(""));
        let no_database = json!({"redis_port": 0, "redis_password": "secret", "redis_database": 99});
        check(no_database, Err("failed to change redis db"));
    }

    #[test]
    fn a_lost_connection_is_made_again() {
        let mut redis = Redis::start(&[]).unwrap();
        let port = redis.port();
        let connection = SharedConnection::new(&Arc::new(target(json!({"redis_port": port}))));
        run(async {
            assert_eq!(add(&connection).await, Ok(1));
            assert_eq!(add(&connection).await, Ok(2));
            assert_eq!(redis.ask(&["client", "kill", "type", "normal", "skipme", "yes"]).unwrap(), "1");
            // No test waits for the response of a lost command.
            assert_eq!(add(&connection).await, Ok(3));
            redis.kill().unwrap();
            for _ in 0..20 {
                assert!(add(&connection).await.is_err());
            }
            let redis = Redis::start_on(port, &[]).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            // It answers from a new beginning.
            while add(&connection).await != Ok(1) {
                assert!(Instant::now() < deadline, "the connection does not recover");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(redis.ask(&["get", "k"]).unwrap(), "1");
        });
    }
}
