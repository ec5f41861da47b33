//! Plugins that ship entries over HTTP: the input of their servers, and the handling of refused entries.

use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA};

/// A gateway with one route to `origin` and this plugin on it.
fn gateway(origin: &Origin, plugin: &str, conf: &Value, metadata: &Value) -> Gateway {
    let mut all = json!([]);
    if !metadata.is_null() {
        all = json!([metadata]);
        all[0]["id"] = plugin.into();
    }
    let config = json!({
        "workers": 2,
        "listeners": [{"address": "{listen}"}],
        "status": {"address": "{status}"},
        "plugin_metadata": all,
        "routes": [{
            "id": "r", "uri": "/*", "plugins": {plugin: conf},
            "upstream": {"nodes": {origin.address().to_string(): 1}}
        }]
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

/// How many entries were lost.
fn lost(gateway: &Gateway) -> u64 {
    let mut status = Peer::connect(&gateway.status_address()).unwrap().with_deadline(PATIENCE);
    let text = status.get("/status/counters").unwrap().text();
    let line = text.lines().find_map(|line| line.strip_prefix("sigma_access_lines_dropped_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The error log says this, if not at once.
fn tells(gateway: &Gateway, text: &str) {
    let told = || gateway.stderr().contains(text);
    assert!(until(PATIENCE, told), "{text}: {}", gateway.stderr());
}

/// A server of logs, and the requests that it got.
struct Server {
    origin: Origin,
    got: Arc<Mutex<Vec<Message>>>,
}

impl Server {
    /// One that responds to the request of this number, from 0, among those that `answer` counts.
    fn start(answer: impl Fn(usize, &Message) -> Option<(u16, String)> + Send + Sync + 'static) -> Server {
        let got = Arc::<Mutex<Vec<Message>>>::default();
        let kept = Arc::clone(&got);
        let origin = Origin::answer(move |message| {
            let mut kept = kept.lock().unwrap();
            let (status, body) = match answer(kept.len(), message) {
                Some(answer) => {
                    kept.push(message.clone());
                    answer
                }
                None => besides(message),
            };
            let length = body.len();
            format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
        });
        Server { origin: origin.unwrap(), got }
    }

    fn got(&self) -> Vec<Message> {
        self.got.lock().unwrap().clone()
    }
}

/// Requests to servers other than batches: their version, or a token.
fn besides(message: &Message) -> (u16, String) {
    match &*message.head.line {
        "GET / HTTP/1.1" => (200, r#"{"version": {"number": "6.8.23"}}"#.to_owned()),
        "POST /token HTTP/1.1" => {
            assert!(
                message
                    .text()
                    .starts_with("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&")
            );
            (200, r#"{"access_token": "s3cret-token", "expires_in": 3600}"#.to_owned())
        }
        other => panic!("nobody asks {other}"),
    }
}

/// Everything that a client has sent, as a server might repeat it.
fn echoed(message: &Message) -> String {
    let fields = message.head.fields.iter().map(|(name, value)| format!("{name}: {value}\n"));
    format!("{}\n{}", message.head.line, fields.collect::<String>())
}

/// A plugin, and what its server gets.
struct Shipper {
    plugin: &'static str,
    /// Its configuration, but for what all of them have. Every secret has `s3cret` in it.
    conf: fn(u16) -> Value,
    /// The request line, without the version.
    line: &'static str,
    fields: &'static [(&'static str, &'static str)],
    /// The body for one request, for `/1?x="`, times and ids taken out.
    body: fn(&Message) -> String,
    expected: &'static str,
    /// Status and body of a response that says that the batch was taken.
    taken: (u16, &'static str),
    /// The error log's text for a response with status 500.
    refused: &'static str,
}

fn text(message: &Message) -> String {
    message.text()
}

/// The body as JSON, without members that are never the same.
fn without(message: &Message, pointers: &[&str]) -> String {
    let mut body = message.json().unwrap();
    for pointer in pointers {
        *body.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}: {}", message.text())) = Value::Null;
    }
    body.to_string()
}

const SHIPPERS: &[Shipper] = &[
    Shipper {
        plugin: "loki-logger",
        conf: |port| {
            json!({
                "endpoint_addrs": [format!("http://127.0.0.1:{port}")], "tenant_id": "t",
                "headers": {"X-Key": "s3cret"}, "log_labels": {"job": "j", "x": "$arg_x"}
            })
        },
        line: "POST /loki/api/v1/push",
        fields: &[("content-type", "application/json"), ("x-scope-orgid", "t"), ("x-key", "s3cret")],
        body: |message| without(message, &["/streams/0/values/0/0"]),
        expected: r#"{"streams":[{"stream":{"job":"j","x":"\"\\"},"values":[[null,"{\"uri\":\"/1\",\"x\":\"\\\"\\\\\",\"route_id\":\"r\"}"]]}]}"#,
        taken: (204, ""),
        refused: "loki server returned status: 500, body: POST /loki/api/v1/push",
    },
    Shipper {
        plugin: "elasticsearch-logger",
        conf: |port| {
            json!({
                "endpoint_addrs": [format!("http://127.0.0.1:{port}")], "field": {"index": "i-$arg_x"},
                "auth": {"username": "elastic", "password": "s3cret"}, "headers": {"X-Key": "s3cret-key"}
            })
        },
        line: "POST /_bulk",
        fields: &[
            ("content-type", "application/x-ndjson"),
            ("accept", "application/vnd.elasticsearch+json"),
            ("authorization", "Basic ZWxhc3RpYzpzM2NyZXQ="),
            ("x-key", "s3cret-key"),
        ],
        body: text,
        expected: concat!(
            r#"{"index":{"_index":"i-\"\\","_type":"_doc"}}"#,
            "\n",
            r#"{"uri":"/1","x":"\"\\","route_id":"r"}"#,
            "\n"
        ),
        taken: (200, r#"{"errors":false,"items":[]}"#),
        refused: "elasticsearch server returned status: 500, body: POST /_bulk",
    },
    Shipper {
        plugin: "splunk-hec-logging",
        conf: |port| {
            let uri = format!("http://127.0.0.1:{port}/services/collector");
            json!({"endpoint": {"uri": uri, "token": "s3cret", "channel": "c"}})
        },
        line: "POST /services/collector",
        fields: &[
            ("content-type", "application/json"),
            ("authorization", "Splunk s3cret"),
            ("x-splunk-request-channel", "c"),
        ],
        body: |message| without(message, &["/time", "/host"]),
        expected: r#"{"time":null,"host":null,"source":"apache-apisix-splunk-hec-logging","sourcetype":"_json","event":{"uri":"/1","x":"\"\\","route_id":"r"}}"#,
        taken: (200, r#"{"text":"Success","code":0}"#),
        refused: "failed to send splunk, http status code: 500",
    },
    Shipper {
        plugin: "clickhouse-logger",
        conf: |port| {
            json!({
                "endpoint_addrs": [format!("http://127.0.0.1:{port}/in?a=b")], "user": "u", "password": "s3cret",
                "database": "d", "logtable": "t"
            })
        },
        line: "POST /in?a=b",
        fields: &[
            ("content-type", "application/json"),
            ("x-clickhouse-user", "u"),
            ("x-clickhouse-key", "s3cret"),
            ("x-clickhouse-database", "d"),
        ],
        body: text,
        expected: r#"INSERT INTO t FORMAT JSONEachRow {"uri":"/1","x":"\"\\","route_id":"r"}"#,
        taken: (200, ""),
        refused: "server returned status code[500] host[127.0.0.1] port[",
    },
    Shipper {
        plugin: "skywalking-logger",
        conf: |port| json!({"endpoint_addr": format!("http://127.0.0.1:{port}/path"), "service_name": "s"}),
        line: "POST /v3/logs",
        fields: &[("content-type", "application/json"), ("host", "127.0.0.1")],
        body: text,
        expected: r#"[{"traceContext":{"traceId":"a","traceSegmentId":"b","spanId":7},"body":{"json":{"json":"{\"uri\":\"/1\",\"x\":\"\\\"\\\\\",\"route_id\":\"r\"}"}},"service":"s","serviceInstance":"APISIX Instance Name","endpoint":"/1"}]"#,
        taken: (200, ""),
        refused: "server returned status code[500] host[127.0.0.1] port[",
    },
    Shipper {
        plugin: "google-cloud-logging",
        conf: |port| {
            let key = Command::new("openssl")
                .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-quiet"])
                .output()
                .unwrap();
            let key = String::from_utf8(key.stdout).unwrap();
            let at = format!("http://127.0.0.1:{port}");
            json!({"auth_config": {
                "client_email": "me@p", "private_key": key, "project_id": "p",
                "token_uri": format!("{at}/token"), "entries_uri": format!("{at}/write")
            }})
        },
        line: "POST /write",
        fields: &[("content-type", "application/json"), ("authorization", "Bearer s3cret-token")],
        body: |message| without(message, &["/entries/0/timestamp", "/entries/0/insertId"]),
        expected: r#"{"entries":[{"jsonPayload":{"uri":"/1","x":"\"\\","route_id":"r"},"labels":{"source":"apache-apisix-google-cloud-logging"},"timestamp":null,"resource":{"type":"global"},"insertId":null,"logName":"projects/p/logs/apisix.apache.org%2Flogs"}],"partialSuccess":false}"#,
        taken: (200, "{}"),
        refused: "failed to process entries: POST /write",
    },
    Shipper {
        plugin: "tencent-cloud-cls",
        conf: |port| {
            json!({
                "scheme": "http", "cls_host": format!("127.0.0.1:{port}"), "cls_topic": "t", "secret_id": "id",
                "secret_key": "s3cret", "global_tag": {"x": "tag"}
            })
        },
        line: "POST /structuredlog?topic_id=t",
        fields: &[("content-type", "application/x-protobuf")],
        body: |message| {
            let signed = message.head.get("authorization").unwrap();
            assert!(signed.starts_with("q-sign-algorithm=sha1&q-ak=id&q-sign-time="), "{signed}");
            // Its contents, between a time and an address.
            let contents = message.body.windows(2).position(|pair| pair == b"\x12\x09").unwrap();
            let end = message.body.windows(2).rposition(|pair| pair[0] == b'"').unwrap();
            String::from_utf8(message.body[contents..end].to_vec()).unwrap()
        },
        expected: "\x12\x09\x0a\x03uri\x12\x02/1\x12\x08\x0a\x01x\x12\x03tag\x12\x0d\x0a\x08route_id\x12\x01r",
        taken: (200, ""),
        refused: "got wrong status: 500, headers: content-length: ",
    },
    Shipper {
        plugin: "lago",
        conf: |port| {
            json!({
                "endpoint_addrs": [format!("http://127.0.0.1:{port}/base/")], "token": "s3cret",
                "event_transaction_id": "req_$arg_x", "event_subscription_id": "${consumer_name}",
                "event_code": "c", "event_properties": {"uri": "$uri"}
            })
        },
        line: "POST /base/api/v1/events/batch",
        fields: &[("content-type", "application/json"), ("authorization", "Bearer s3cret")],
        body: |message| without(message, &["/events/0/timestamp"]),
        expected: r#"{"events":[{"transaction_id":"req_\"\\","external_subscription_id":"","code":"c","timestamp":null,"properties":{"uri":"/1"}}]}"#,
        taken: (200, "{}"),
        refused: "lago api returned status: 500, body: POST /base/api/v1/events/batch",
    },
];

impl Shipper {
    /// Its configuration for a server on this port: each entry is sent at once.
    fn conf(&self, port: u16, more: &Value) -> Value {
        let mut conf = (self.conf)(port);
        let members = conf.as_object_mut().unwrap();
        members.insert("batch_max_size".to_owned(), 1.into());
        if self.plugin != "lago" {
            members.insert("log_format".to_owned(), json!({"uri": "$uri", "x": "$arg_x"}));
        }
        members.extend(more.as_object().unwrap().clone());
        conf
    }

    /// Checks its server's input for one request of a client.
    fn check(&self, message: &Message) {
        assert_eq!(message.head.line, format!("{} HTTP/1.1", self.line), "{}", self.plugin);
        for (name, value) in self.fields {
            let values: Vec<&str> = message.head.all(name).collect();
            assert_eq!(values, [*value], "{} {name}", self.plugin);
        }
        assert_eq!((self.body)(message), self.expected, "{}", self.plugin);
    }

    fn is_batch(&self, message: &Message) -> bool {
        message.head.line.starts_with(self.line)
    }

    fn by_name(plugin: &str) -> &'static Shipper {
        SHIPPERS.iter().find(|shipper| shipper.plugin == plugin).unwrap()
    }
}

/// A request whose argument would break out of a text that does not guard itself.
const REQUEST: &str = "GET /1?x=%22%5c HTTP/1.1\r\nHost: h\r\nsw8: 1-YQ==-Yg==-7-x-x-x-x\r\n\r\n";

/// The server refuses the first time and repeats all that it was sent, secrets too.
fn refused_then_taken(shipper: &'static Shipper) {
    let server = Server::start(|number, message| {
        let taken = || (shipper.taken.0, shipper.taken.1.to_owned());
        shipper.is_batch(message).then(|| if number == 0 { (500, echoed(message)) } else { taken() })
    });
    let origin = Origin::echo("a").unwrap();
    let more = json!({"max_retry_count": 3, "retry_delay": 0});
    let conf = shipper.conf(server.origin.port(), &more);
    let gateway = gateway(&origin, shipper.plugin, &conf, &Value::Null);
    assert_eq!(gateway.connect().unwrap().ask(REQUEST).unwrap().status(), 200);
    assert!(until(PATIENCE, || server.got().len() == 2), "{}: {}", shipper.plugin, gateway.stderr());
    tells(&gateway, shipper.refused);
    let shown = gateway.stderr();
    assert!(
        !shown.contains("s3cret") && !shown.contains("ZWxhc3RpYzpzM2NyZXQ"),
        "{}: {shown}",
        shipper.plugin
    );
    assert_eq!(lost(&gateway), 0, "{}: {shown}", shipper.plugin);
    assert!(gateway.stop().unwrap().success());
    let got = server.got();
    assert_eq!(got.len(), 2, "{}", shipper.plugin);
    got.iter().for_each(|message| shipper.check(message));
}

/// Does it with all shippers, some at the same time.
fn with_each(check: impl Fn(&'static Shipper) + Sync) {
    for some in SHIPPERS.chunks(3) {
        std::thread::scope(|scope| {
            for shipper in some {
                scope.spawn(|| check(shipper));
            }
        });
    }
}

#[test]
fn refused_entries_are_sent_again_without_revealing_secrets() {
    with_each(refused_then_taken);
}

/// Without a listener: each entry is dropped and counted.
#[test]
fn a_dead_server_costs_entries_and_nothing_else() {
    with_each(|shipper| {
        let origin = Origin::echo("a").unwrap();
        let conf = shipper.conf(free_port(), &json!({}));
        let gateway = gateway(&origin, shipper.plugin, &conf, &Value::Null);
        let mut client = gateway.connect().unwrap();
        for _ in 0..3 {
            assert_eq!(client.get("/1").unwrap().status(), 200);
        }
        assert!(until(PATIENCE, || lost(&gateway) == 3), "{}: {}", shipper.plugin, gateway.stderr());
        tells(&gateway, "dropping the entries");
    });
}

/// A server takes connections and never responds: no more entries wait than may.
#[test]
fn a_server_that_stalls_holds_a_bounded_number_of_entries() {
    with_each(|shipper| {
        let stalled = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
        let origin = Origin::echo("a").unwrap();
        let conf = shipper.conf(stalled.port(), &json!({}));
        let gateway = gateway(&origin, shipper.plugin, &conf, &json!({"max_pending_entries": 2}));
        let mut client = gateway.connect().unwrap();
        for _ in 0..10 {
            assert_eq!(client.get("/1").unwrap().status(), 200);
        }
        assert!(until(PATIENCE, || lost(&gateway) >= 8), "{}: {}", shipper.plugin, gateway.stderr());
        tells(&gateway, "max pending entries limit exceeded");
    });
}

/// Elasticsearch takes a batch and says in the response which of its entries it did not take.
#[test]
fn entries_that_a_server_refuses_by_themselves_are_counted() {
    let shipper = Shipper::by_name("elasticsearch-logger");
    let server = Server::start(|_, message| {
        let answer = json!({"errors": true, "items": [
            {"index": {"status": 201}},
            {"index": {"status": 400, "error": {"reason": "failed to parse s3cret"}}},
            {"index": {"status": 429, "error": {"reason": "later"}}}
        ]});
        shipper.is_batch(message).then(|| (200, answer.to_string()))
    });
    let origin = Origin::echo("a").unwrap();
    let conf = shipper.conf(server.origin.port(), &json!({"batch_max_size": 3, "max_retry_count": 3}));
    let gateway = gateway(&origin, shipper.plugin, &conf, &Value::Null);
    let mut client = gateway.connect().unwrap();
    for _ in 0..3 {
        client.get("/1").unwrap();
    }
    assert!(until(PATIENCE, || lost(&gateway) == 2), "{}", gateway.stderr());
    let told = r#"elasticsearch server refused entries of a batch: {\"reason\":\"failed to parse ***\"}"#;
    tells(&gateway, told);
    assert!(gateway.stop().unwrap().success());
    assert_eq!(server.got().len(), 1);
}

/// Of a batch that leaves in several calls only the rest is sent again.
#[test]
fn accepted_entries_are_not_sent_again() {
    let shipper = Shipper::by_name("lago");
    let server = Server::start(|number, _| Some((if number == 1 { 500 } else { 200 }, String::new())));
    let origin = Origin::echo("a").unwrap();
    let more =
        json!({"batch_max_size": 101, "max_retry_count": 1, "retry_delay": 0, "inactive_timeout": 600});
    let gateway = gateway(&origin, shipper.plugin, &shipper.conf(server.origin.port(), &more), &Value::Null);
    let mut client = gateway.connect().unwrap();
    for _ in 0..101 {
        client.get("/1").unwrap();
    }
    assert!(until(PATIENCE, || server.got().len() == 3), "{}", gateway.stderr());
    assert!(gateway.stop().unwrap().success());
    let events = |message: &Message| message.json().unwrap()["events"].as_array().unwrap().len();
    assert_eq!(server.got().iter().map(events).collect::<Vec<_>>(), [100, 1, 1]);
}

/// Entries that another attempt cannot help are dropped at once.
#[test]
fn permanently_refused_entries_are_not_sent_again() {
    let shipper = Shipper::by_name("tencent-cloud-cls");
    let server = Server::start(|_, _| Some((403, "no".to_owned())));
    let origin = Origin::echo("a").unwrap();
    let conf = shipper.conf(server.origin.port(), &json!({"max_retry_count": 3, "retry_delay": 0}));
    let gateway = gateway(&origin, shipper.plugin, &conf, &Value::Null);
    gateway.connect().unwrap().get("/1").unwrap();
    assert!(until(PATIENCE, || lost(&gateway) == 1), "{}", gateway.stderr());
    let told = "tencent-cloud-cls: not retryable: got wrong status: 403, headers: ";
    tells(&gateway, told);
    assert!(gateway.stop().unwrap().success());
    assert_eq!(server.got().len(), 1);
}

/// Splunk's response has the reason of a refusal.
#[test]
fn the_collectors_own_words_are_shown() {
    let shipper = Shipper::by_name("splunk-hec-logging");
    let server =
        Server::start(|_, _| Some((403, r#"{"text":"Invalid token s3cret\nERROR","code":4}"#.to_owned())));
    let origin = Origin::echo("a").unwrap();
    let gateway =
        gateway(&origin, shipper.plugin, &shipper.conf(server.origin.port(), &json!({})), &Value::Null);
    gateway.connect().unwrap().get("/1").unwrap();
    assert!(until(PATIENCE, || lost(&gateway) == 1), "{}", gateway.stderr());
    tells(&gateway, r"failed to send splunk, Invalid token ***\nERROR");
}

/// Two requests with different labels are in two streams, and those that exceed the limit in a third.
#[test]
fn streams_of_loki_are_bounded() {
    let shipper = Shipper::by_name("loki-logger");
    let server = Server::start(|_, _| Some((204, String::new())));
    let origin = Origin::echo("a").unwrap();
    let more = json!({"batch_max_size": 6, "max_label_sets": 2, "inactive_timeout": 600});
    let gateway = gateway(&origin, shipper.plugin, &shipper.conf(server.origin.port(), &more), &Value::Null);
    let mut client = gateway.connect().unwrap();
    for path in ["/1?x=a", "/2?x=b", "/3?x=a", "/4?x=c", "/5?x=d", "/6?x=b"] {
        client.get(path).unwrap();
    }
    assert!(until(PATIENCE, || server.got().len() == 1), "{}", gateway.stderr());
    let body = server.got()[0].json().unwrap();
    let streams = body["streams"].as_array().unwrap().iter().map(|stream| {
        let label = stream["stream"]["x"].as_str().unwrap().to_owned();
        (label, stream["values"].as_array().unwrap().len())
    });
    let expected = [("a", 2), ("b", 2), ("overflow", 2)].map(|(label, count)| (label.to_owned(), count));
    assert_eq!(streams.collect::<Vec<_>>(), expected);
}

/// Loggly's place is in the metadata. Its first response repeats the token.
#[test]
fn loggly_takes_a_batch_with_its_tags() {
    let server = Server::start(|number, message| {
        Some(match number {
            0 => (502, echoed(message)),
            1 => (403, String::new()),
            _ => (200, r#"{"response": "ok"}"#.to_owned()),
        })
    });
    let origin = Origin::echo("a").unwrap();
    let conf = json!({
        "customer_token": "s3cret", "tags": ["a", "b c"], "log_format": {"x": "$arg_x"},
        "batch_max_size": 2, "max_retry_count": 2, "retry_delay": 0, "inactive_timeout": 600
    });
    let host = format!("127.0.0.1:{}", server.origin.port());
    let gateway = gateway(&origin, "loggly", &conf, &json!({"host": host, "protocol": "http"}));
    let mut client = gateway.connect().unwrap();
    for path in ["/1?x=%22%5c", "/2?x=2"] {
        assert_eq!(client.get(path).unwrap().status(), 200);
    }
    assert!(until(PATIENCE, || server.got().len() == 3), "{}", gateway.stderr());
    tells(&gateway, "failed to send log to loggly, http status code: 502 left_out=0");
    assert!(!gateway.stderr().contains("s3cret"), "{}", gateway.stderr());
    assert_eq!(lost(&gateway), 0);
    for message in server.got() {
        assert_eq!(message.head.line, "POST /bulk/s3cret/tag/bulk HTTP/1.1");
        assert_eq!(message.head.all("x-loggly-tag").collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!(message.head.all("content-type").collect::<Vec<_>>(), ["application/json"]);
        let lines = [r#"{"x":"\"\\","route_id":"r"}"#, r#"{"x":"2","route_id":"r"}"#];
        assert_eq!(message.text(), lines.join("\n"));
    }
}

/// Loggly's JSON response is shown, without the token.
#[test]
fn loggly_is_quoted_without_the_token() {
    let server = Server::start(|_, message| Some((403, json!({"at": message.head.line}).to_string())));
    let origin = Origin::echo("a").unwrap();
    let conf = json!({"customer_token": "s3cret", "batch_max_size": 1});
    let host = format!("http://127.0.0.1:{}", server.origin.port());
    let gateway = gateway(&origin, "loggly", &conf, &json!({"host": host, "protocol": "https"}));
    gateway.connect().unwrap().get("/1").unwrap();
    assert!(until(PATIENCE, || lost(&gateway) == 1), "{}", gateway.stderr());
    tells(&gateway, "failed to send log to loggly, http status code: 403 response body: ");
    tells(&gateway, "POST /bulk/***/tag/bulk HTTP/1.1");
    assert!(!gateway.stderr().contains("s3cret"), "{}", gateway.stderr());
}
