//! Stream routes: real clients and servers of other protocols than HTTP. The rules of sessions are in the simulation of
//! `sigma-control`.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Redis, until};

use crate::docs::{block, paste, text_of};
use crate::{PATIENCE, SIGMA};

/// An origin that sends its name, then sends back its input, and ends when the client does.
pub(crate) fn parrot(name: &str) -> Origin {
    let greeting = format!("{name}\r\n");
    Origin::serve(move |mut peer| {
        let mut bytes = greeting.clone().into_bytes();
        let _ = peer.send(&bytes);
        bytes = peer.read_to_close().unwrap_or_default();
        let _ = peer.send(&bytes);
    })
    .unwrap()
}

/// A configuration with one listener for streams.
pub(crate) fn config(listener: Value, rest: Value) -> String {
    let mut listener = listener;
    listener["address"] = "{listen}".into();
    let mut whole = json!({ "workers": 2, "listeners": [listener], "status": { "address": "{status}" } });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

fn tcp(routes: Value) -> String {
    config(json!({ "stream": "tcp" }), json!({ "stream_routes": routes }))
}

pub(crate) fn upstream(ports: &[u16]) -> Value {
    let nodes: serde_json::Map<String, Value> =
        ports.iter().map(|port| (format!("127.0.0.1:{port}"), json!(1))).collect();
    json!({ "scheme": "tcp", "nodes": nodes })
}

/// A session's greeting, and the response to `sent`.
pub(crate) fn talk(gateway: &Gateway, sent: &str) -> (String, String) {
    let mut peer = gateway.connect().unwrap();
    let greeting = peer.read_line().unwrap();
    peer.send(sent).unwrap();
    peer.half_close().unwrap();
    (greeting.trim_end().to_owned(), String::from_utf8(peer.read_to_close().unwrap()).unwrap())
}

/// How long a session is given to end; a test asks again until then.
const END: Duration = Duration::from_secs(2);

/// The session ends without a byte.
pub(crate) fn is_closed(gateway: &Gateway) -> bool {
    gateway.connect().unwrap().with_deadline(END).read_to_close().is_ok_and(|bytes| bytes.is_empty())
}

/// A broker of MQTT.
struct Mosquitto(std::process::Child);

impl Mosquitto {
    fn start(port: u16, dir: &std::path::Path) -> Mosquitto {
        let config = dir.join("mosquitto.conf");
        std::fs::write(&config, format!("listener {port} 127.0.0.1\nallow_anonymous true\n")).unwrap();
        let installed = std::path::Path::new("/usr/sbin/mosquitto");
        let program = if installed.exists() { installed } else { std::path::Path::new("mosquitto") };
        let child = Command::new(program).arg("-c").arg(config).stderr(Stdio::null()).spawn().unwrap();
        let broker = Mosquitto(child);
        assert!(until(PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()));
        broker
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // It has ended by itself, or does now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn real_clients_of_mqtt_meet_at_their_broker() {
    let (port, dir) = (sigma_testkit::free_port(), tempfile::tempdir().unwrap());
    let _broker = Mosquitto::start(port, dir.path());
    // The levels of MQTT 3.1.1 and 5; a client of another one is not let through.
    for (level, version) in [(4, "mqttv311"), (5, "mqttv5")] {
        let plugins = json!({ "mqtt-proxy": { "protocol_name": "MQTT", "protocol_level": level } });
        let routes = json!([{ "plugins": plugins, "upstream": upstream(&[port]) }]);
        let gateway = Gateway::start(SIGMA, &tcp(routes)).unwrap();
        let to = gateway.address().port().unwrap().to_string();
        let client = |program: &str, version: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(["-h", "127.0.0.1", "-p", &to, "-V", version, "-t", "hall/1", "-q", "1"]);
            command.args(arguments).stderr(Stdio::null());
            command
        };
        // A retained message of the broker is there for later subscribers.
        let publish = |version| client("mosquitto_pub", version, &["-i", "sensor", "-r", "-m", "warm"]);
        assert!(publish(version).status().unwrap().success(), "{version}");
        let seen =
            client("mosquitto_sub", version, &["-i", "reader", "-C", "1", "-W", "30"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), "warm\n", "{version}");
        let other = if level == 4 { "mqttv5" } else { "mqttv311" };
        assert!(!publish(other).status().unwrap().success(), "{other} over a route of {version}");
    }
}

#[test]
fn a_real_client_of_redis_goes_through() {
    let redis = Redis::start(&[]).unwrap();
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream(&[redis.port()]) }]))).unwrap();
    let cli = |arguments: &[&str]| {
        let port = gateway.address().port().unwrap().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(cli(&["set", "k", "v"]), "OK\n");
    assert_eq!(cli(&["get", "k"]), "v\n");
}

#[test]
fn a_database_as_the_page_says() {
    let (redis, dir) = (Redis::start(&[]).unwrap(), tempfile::tempdir().unwrap());
    let ports = [("6379", redis.port()), ("6380", sigma_testkit::free_port())];
    let put =
        |text: String| ports.iter().fold(text, |text, (port, free)| text.replace(port, &free.to_string()));
    let config = put(block("docs/streams.md", "yaml", "limit-conn"));
    std::fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let output = paste(dir.path(), &put(block("docs/streams.md", "sh", "redis-cli")), &[]);
    assert!(text_of(&output).contains("PONG"), "{}", text_of(&output));
}
