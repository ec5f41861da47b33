//! Requests counted and shown; `promtool` reads the page.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use prost::Message as _;
use serde_json::{Value, json};
use sigma_plugin::address::NodeAddr;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::facts::{Facts, FactsBoard, Measure, NodeHealth, Websockets};
use sigma_plugin::record::{Attempt, Source};
use sigma_plugin::{Env, Local, Node};

use super::protobuf::Family;
use super::*;
use crate::testing::{Case, refusal_in};
use sigma_plugin_kit::tallies::{Event, counted};

/// A gateway with the plugin.
struct World {
    case: Case,
    plugin: Arc<dyn Plugin>,
}

impl World {
    fn new(conf: Value, metadata: Value, attribute: Value) -> World {
        let mut case = Case::new("GET /foo/1?a=b HTTP/1.1\nHost: foo.com");
        let attributes = json!({"prometheus": attribute});
        case.node = Arc::new(Node::new(
            |work| drop(std::thread::spawn(move || runtime().block_on(work)).join()),
            attributes,
            "node\"1".to_owned(),
        ));
        let roster = crate::testing::roster();
        let metadata = (!metadata.is_null()).then(|| Arc::new(metadata));
        let conf = Arc::new(conf);
        let built = roster.build(
            NAME,
            &conf,
            Value::clone(&conf),
            "/apisix/routes/1",
            &|_: &str| metadata.clone(),
            &case.node,
        );
        World { case, plugin: built.unwrap().plugin }
    }

    /// A request of route `id` that a node responded with `status`.
    fn request(&mut self, id: &str, status: u16) {
        let text = |text: &str| Box::<str>::from(text);
        let ctx = &mut self.case.ctx;
        ctx.route = Some(Arc::new(RouteFacts {
            id: text(id),
            name: Some(text(&format!("name-{id}"))),
            service_id: Some(text("s")),
            uris: [text("/bar"), text("/foo/*"), text("/foo")].into(),
            hosts: [text("foo.com")].into(),
            ..RouteFacts::default()
        }));
        ctx.record.attempts = vec![Attempt {
            addr: NodeAddr::Tcp(([127, 0, 0, 1], 1980).into()),
            host: String::new(),
            began: None,
            reused: false,
            version: None,
            linked_ms: None,
            status,
            connect_ms: None,
            sent_ms: None,
            header_ms: None,
            carried: None,
            response_ms: Some(1.5),
        }];
        ctx.record.source = Source::Upstream;
        self.finish(status);
    }

    fn finish(&mut self, status: u16) {
        let ctx = &mut self.case.ctx;
        ctx.record.status = status;
        ctx.record.started = Instant::now().checked_sub(std::time::Duration::from_millis(7));
        (ctx.record.bytes_received, ctx.record.bytes_sent) = (10, 100);
        let Case { ctx, node, local, consumers, .. } = &mut self.case;
        let env = Env::new(node, local, consumers);
        self.plugin.log(ctx, &env);
    }

    fn page(&self) -> String {
        let reply = scraped(&self.case.node, "identity");
        assert_eq!(reply.status, 200);
        assert_eq!(crate::testing::field(&reply, "content-type").unwrap(), "text/plain; charset=utf-8");
        String::from_utf8(reply.body.unwrap()).unwrap()
    }

    fn check(&self, lines: &[&str]) {
        let page = self.page();
        for line in lines {
            assert!(page.lines().any(|known| known == *line), "{line} is missing in\n{page}");
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The whole page, as a request with this `Accept-Encoding` gets it.
fn scraped(node: &Arc<Node>, coding: &str) -> Reply {
    scraped_as(node, coding, "*/*")
}

/// The same with this `Accept`.
fn scraped_as(node: &Arc<Node>, coding: &str, accept: &str) -> Reply {
    let (local, consumers) = (Rc::new(Local::default()), sigma_plugin::Consumers::default());
    let env = Env::new(node, &local, &consumers);
    let mut ctx = Context::default();
    ctx.request.headers.append("Accept-Encoding", coding.as_bytes());
    ctx.request.headers.append("Accept", accept.as_bytes());
    let step = answer(&mut ctx, &env);
    runtime().block_on(step.settled(&mut ctx, &env, Vec::new())).unwrap().unwrap()
}

/// Events that other plugins count are on the page, once there are some.
#[test]
fn events_of_plugins_are_shown() {
    #[derive(Clone, Copy)]
    struct Denied;

    impl Event for Denied {
        const METRIC: &'static str = "decisions_total";
        const HELP: &'static str = "Decisions of a plugin";
        const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[&[("decision", "denied")]];

        fn number(self) -> usize {
            0
        }
    }

    let world = World::new(json!({}), Value::Null, Value::Null);
    let Case { node, local, consumers, .. } = &world.case;
    let counted = counted(node, "/apisix/routes/1");
    assert!(!world.page().contains("decisions_total"));
    counted.count(&Env::new(node, local, consumers), Denied);
    world.check(&[
        "# HELP apisix_decisions_total Decisions of a plugin",
        "# TYPE apisix_decisions_total counter",
        r#"apisix_decisions_total{resource="/apisix/routes/1",decision="denied"} 1"#,
    ]);
}

const ROUTE_1: &str = r#"route="1",service="s",consumer="",node="127.0.0.1",request_type="traditional_http",request_llm_model="",llm_model="""#;

#[test]
fn a_request_is_counted_under_its_labels() {
    let mut world = World::new(json!({}), Value::Null, Value::Null);
    world.request("1", 200);
    world.request("1", 200);
    world.check(&[
        "# HELP apisix_http_status HTTP status codes per service in APISIX",
        "# TYPE apisix_http_status counter",
        r#"apisix_http_status{code="200",route="1",matched_uri="/foo/*",matched_host="foo.com",service="s",consumer="",node="127.0.0.1",request_type="traditional_http",request_llm_model="",llm_model="",response_source="upstream"} 2"#,
        "# TYPE apisix_http_latency histogram",
        &format!(r#"apisix_http_latency_bucket{{type="request",{ROUTE_1},le="5"}} 0"#),
        &format!(r#"apisix_http_latency_bucket{{type="upstream",{ROUTE_1},le="1"}} 0"#),
        &format!(r#"apisix_http_latency_bucket{{type="upstream",{ROUTE_1},le="2"}} 2"#),
        &format!(r#"apisix_http_latency_bucket{{type="upstream",{ROUTE_1},le="+Inf"}} 2"#),
        &format!(r#"apisix_http_latency_count{{type="upstream",{ROUTE_1}}} 2"#),
        &format!(r#"apisix_http_latency_sum{{type="upstream",{ROUTE_1}}} 3"#),
        &format!(r#"apisix_http_latency_count{{type="apisix",{ROUTE_1}}} 2"#),
        &format!(r#"apisix_bandwidth{{type="ingress",{ROUTE_1}}} 20"#),
        &format!(r#"apisix_bandwidth{{type="egress",{ROUTE_1}}} 200"#),
        r#"apisix_node_info{hostname="node\"1",version="0.1.0"} 1"#,
        "apisix_nginx_metric_errors_total 0",
    ]);
}

#[test]
fn a_request_without_a_route_has_empty_labels_and_no_upstream_latency() {
    let mut world = World::new(json!({}), Value::Null, Value::Null);
    world.finish(404);
    world.check(&[
        r#"apisix_http_status{code="404",route="",matched_uri="",matched_host="",service="",consumer="",node="",request_type="traditional_http",request_llm_model="",llm_model="",response_source="apisix"} 1"#,
    ]);
    assert!(!world.page().contains(r#"type="upstream""#));
}

#[test]
fn names_labels_and_buckets_are_settings() {
    let attribute = json!({
        "metric_prefix": "my_", "default_buckets": [5, 0.5], "metrics": {
            "http_status": {"extra_labels": [{"arg": "$arg_a"}, {"none": "$arg_none"}, {"le": "$uri"}]}
        }
    });
    let metadata = json!({"disabled_labels": {"http_status": ["matched_uri", "node"]}});
    let mut world = World::new(json!({"prefer_name": true}), metadata, attribute);
    world.request("1", 200);
    world.check(&[
        r#"my_http_status{code="200",route="name-1",matched_uri="",matched_host="foo.com",service="s",consumer="",node="",request_type="traditional_http",request_llm_model="",llm_model="",response_source="upstream",arg="b",none=""} 1"#,
    ]);
    let mut world = World::new(json!({}), Value::Null, json!({"default_buckets": [0.5, 8000]}));
    world.request("1", 200);
    world.check(&[
        &format!(r#"apisix_http_latency_bucket{{type="request",{ROUTE_1},le="0.5"}} 0"#),
        &format!(r#"apisix_http_latency_bucket{{type="request",{ROUTE_1},le="8000"}} 1"#),
    ]);
}

#[test]
fn surplus_series_are_counted_but_not_shown() {
    let mut world = World::new(json!({}), Value::Null, json!({"max_series": 2}));
    for id in ["1", "2", "3", "3", "1"] {
        world.request(id, 200);
    }
    let page = world.page();
    assert_eq!(page.matches("apisix_http_status{").count(), 2, "{page}");
    world.check(&["apisix_nginx_metric_errors_total 2"]);
}

#[test]
fn expired_series_start_again() {
    let attribute = json!({"metrics": {"http_status": {"expire": 1}}});
    let mut world = World::new(json!({}), Value::Null, attribute);
    world.request("1", 200);
    let registry = registry(&world.case.node);
    let count = |now_ms| registry.workers()[0].status.current(now_ms, 1000).len();
    let now_ms = registry.now_ms();
    assert_eq!((count(now_ms), count(now_ms + 2000), count(now_ms)), (1, 0, 0));
    world.request("1", 200);
    world.check(&[&format!(r#"apisix_http_latency_count{{type="request",{ROUTE_1}}} 2"#)]);
    assert_eq!(count(registry.now_ms()), 1);
    assert!(world.page().contains(r#"response_source="upstream"} 1"#));
}

#[test]
fn workers_are_added_up() {
    let mut world = World::new(json!({}), Value::Null, Value::Null);
    for worker in 0..3 {
        world.case.local = Rc::new(Local::new(worker, 1));
        world.request("1", 200);
    }
    world.check(&[&format!(r#"apisix_bandwidth{{type="egress",{ROUTE_1}}} 300"#)]);
}

#[test]
fn facts_of_the_gateway_are_shown() {
    let world = World::new(json!({}), Value::Null, Value::Null);
    let node = |port: u16, healthy: bool| NodeHealth {
        resource: "/apisix/upstreams/1".to_owned(),
        ip: "127.0.0.1".to_owned(),
        port,
        healthy,
        reason: if healthy { String::new() } else { "active check: timeout".to_owned() },
    };
    world.case.node.part(FactsBoard::default).post(Facts {
        requests: 9,
        requests_active: 1,
        connections_active: 3,
        connections_accepted: 5,
        websockets_by_upgrade: Websockets { opened: 6, active: 2 },
        websockets_by_connect: Websockets { opened: 4, active: 1 },
        websocket_bytes_in: 30,
        websocket_bytes_out: 40,
        quarantined: vec![("routes", 2)],
        revision: Some(12),
        modified: vec![("routes", 11), ("upstreams", 7)],
        store_reachable: Some(true),
        measures: vec![Measure {
            name: "discovery_nodes",
            help: "Nodes",
            is_counter: false,
            series: vec![(vec![("type", "kubernetes".to_owned()), ("id", "a\"b".to_owned())], 3)],
        }],
        nodes: vec![node(1, true), node(2, false)],
    });
    world.check(&[
        "apisix_http_requests_total 9",
        r#"apisix_nginx_http_current_connections{state="active"} 3"#,
        r#"apisix_nginx_http_current_connections{state="waiting"} 2"#,
        r#"apisix_nginx_http_current_connections{state="writing"} 1"#,
        r#"apisix_quarantined_objects{kind="routes"} 2"#,
        r#"apisix_websocket_connections{by="upgrade"} 2"#,
        r#"apisix_websocket_connections{by="connect"} 1"#,
        r#"apisix_websocket_connections_total{by="upgrade"} 6"#,
        r#"apisix_websocket_connections_total{by="connect"} 4"#,
        r#"apisix_websocket_bytes_total{type="ingress"} 30"#,
        r#"apisix_websocket_bytes_total{type="egress"} 40"#,
        "apisix_etcd_reachable 1",
        "# TYPE apisix_discovery_nodes gauge",
        r#"apisix_discovery_nodes{type="kubernetes",id="a\"b"} 3"#,
        r#"apisix_etcd_modify_indexes{key="routes"} 11"#,
        r#"apisix_etcd_modify_indexes{key="protos"} 0"#,
        r#"apisix_etcd_modify_indexes{key="max_modify_index"} 11"#,
        r#"apisix_etcd_modify_indexes{key="x_etcd_index"} 12"#,
        r#"apisix_upstream_status{name="/apisix/upstreams/1",ip="127.0.0.1",port="1"} 1"#,
        r#"apisix_upstream_status{name="/apisix/upstreams/1",ip="127.0.0.1",port="2"} 0"#,
        r#"apisix_upstream_node_out{name="/apisix/upstreams/1",ip="127.0.0.1",port="1",reason=""} 0"#,
        r#"apisix_upstream_node_out{name="/apisix/upstreams/1",ip="127.0.0.1",port="2",reason="active check: timeout"} 1"#,
    ]);
}

#[test]
fn label_values_are_escaped() {
    let mut out = String::new();
    labels::write_label(&mut out, "a", "q\"b\\n\nü");
    labels::write_label(&mut out, "b", "");
    assert_eq!(out, "a=\"q\\\"b\\\\n\\nü\",b=\"\"");
}

#[test]
fn the_metadata_names_what_may_be_left_out() {
    let metadata = |labels: Value| {
        refusal_in(NAME, sigma_schema::plugins::PluginScope::Metadata, &json!({"disabled_labels": labels}))
    };
    assert_eq!(metadata(json!({"http_status": ["route"], "llm_latency": ["node"]})), "");
    for bad in
        [json!({"http_status": ["code"]}), json!({"http_latency": ["type"]}), json!({"other": ["route"]})]
    {
        assert_ne!(metadata(bad.clone()), "", "{bad}");
    }
}

/// Workers count on while a page of many routes is made.
#[test]
fn a_scrape_of_ten_thousand_routes_delays_no_request() {
    const ROUTES: usize = 10_000;
    let mut world = World::new(json!({}), Value::Null, json!({"default_buckets": [10]}));
    for id in 0..ROUTES {
        world.request(&id.to_string(), 200);
    }
    let node = Arc::clone(&world.case.node);
    let scraper = std::thread::spawn(move || scraped(&node, "identity").body.unwrap().len());
    let mut counted = 0_u64;
    while !scraper.is_finished() {
        world.request(&counted.to_string(), 200);
        counted += 1;
    }
    assert!(scraper.join().unwrap() > ROUTES * 100);
    assert!(counted > 0);
}

#[test]
fn the_compressed_page_has_the_same_text() {
    let check = |accept: &str, expected: Option<&str>| {
        let world = World::new(json!({}), Value::Null, Value::Null);
        let reply = scraped(&world.case.node, accept);
        assert_eq!(crate::testing::field(&reply, "content-encoding").as_deref(), expected, "{accept}");
        assert_eq!(crate::testing::field(&reply, "vary").unwrap(), "accept-encoding");
    };
    check("gzip", Some("gzip"));
    check("zstd, gzip;q=0.5", Some("gzip"));
    check("*", Some("gzip"));
    check("", None);
    check("br", None);
    check("gzip;q=0", None);
    check("gzip;q=0.5, identity", None);

    let mut world = World::new(json!({}), Value::Null, Value::Null);
    // Labels that share much, little and nothing with those before them, some longer than a repetition.
    for id in 0..300_usize {
        let name = match id % 3 {
            0 => id.to_string(),
            1 => format!("{id}{}", "long\\ \"name\"".repeat(id % 200)),
            _ => format!("ü{}", usize::MAX / (id + 1)),
        };
        world.request(&name, 200);
        world.request(&id.to_string(), 200 + (id % 5) as u16);
    }
    let plain = world.page();
    let compressed = scraped(&world.case.node, "gzip").body.unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&compressed[..]), &mut text).unwrap();
    assert!(text == plain);
    assert!(compressed.len() < plain.len() / 4, "{} of {}", compressed.len(), plain.len());
}

/// Sessions by the names that APISIX has for them; the gateway counts those that are open itself.
#[test]
fn sessions_are_counted_by_route_and_by_what_came_of_them() {
    use sigma_plugin::address::NodeAddr;
    use sigma_plugin::flow::{FlowFacts, Tried};
    use sigma_plugin::traffic::Traffic;
    let world = World::new(json!({}), Value::Null, Value::Null);
    assert!(!world.page().contains("stream_active_connections"), "no listener has had a session");
    let node = |addr: &str| Tried { addr: NodeAddr::Tcp(addr.parse().unwrap()), connect_ms: None };
    let mut session = Session::default();
    session.route =
        Arc::new(FlowFacts { id: "1".into(), name: Some("data\"base".into()), ..FlowFacts::default() });
    let Case { node: shared, local, consumers, .. } = &world.case;
    session.traffic = Traffic::of(shared, local, "127.0.0.1:9100");
    session.traffic.enter();
    session.traffic.pass(3, 40);
    let log = |session: &Session, prefer_name: bool| {
        let plugin =
            Prometheus { prefer_name, disabled: Disabled::default(), registry: registry(&world.case.node) };
        FlowPlugin::log(&plugin, session, &Env::new(shared, local, consumers));
    };
    session.course.status = 403;
    log(&session, false);
    (session.course.status, session.course.nodes) = (200, vec![node("127.0.0.1:1"), node("127.0.0.1:2")]);
    log(&session, false);
    log(&session, true);
    world.check(&[
        "# TYPE apisix_stream_connection_total counter",
        r#"apisix_stream_connection_total{route="1"} 2"#,
        r#"apisix_stream_connection_total{route="data\"base"} 1"#,
        r#"apisix_stream_status{code="403",listen_addr="127.0.0.1:9100",node=""} 1"#,
        r#"apisix_stream_status{code="200",listen_addr="127.0.0.1:9100",node="127.0.0.1:2"} 2"#,
        r#"apisix_stream_active_connections{listen_addr="127.0.0.1:9100"} 1"#,
        r#"apisix_stream_bandwidth{listen_addr="127.0.0.1:9100",type="ingress",side="downstream"} 3"#,
        r#"apisix_stream_bandwidth{listen_addr="127.0.0.1:9100",type="egress",side="upstream"} 3"#,
        r#"apisix_stream_bandwidth{listen_addr="127.0.0.1:9100",type="ingress",side="upstream"} 40"#,
        r#"apisix_stream_bandwidth{listen_addr="127.0.0.1:9100",type="egress",side="downstream"} 40"#,
    ]);
}

const OPEN: &str =
    "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

const SPAN: ([u8; 16], [u8; 8]) = ([0xab; 16], [0xcd; 8]);

impl World {
    /// Returns the page for a scraper that wants OpenMetrics.
    fn open(&self) -> String {
        let reply = scraped_as(&self.case.node, "identity", OPEN);
        let kind = crate::testing::field(&reply, "content-type").unwrap();
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        String::from_utf8(reply.body.unwrap()).unwrap()
    }

    /// A request of which a plugin tells a collector.
    fn sampled(&mut self, id: &str) {
        struct Tracer;
        impl Plugin for Tracer {}
        self.case.ctx.keep(&Tracer, SpanContext::sampled(SPAN.0, SPAN.1));
        self.request(id, 200);
        self.case.ctx.drop_kept();
    }
}

/// A bucket has the span of a request that fell into it, for who accepts OpenMetrics.
#[test]
fn buckets_lead_to_traces() {
    let mut world =
        World::new(json!({}), Value::Null, json!({"exemplar_series": 1, "default_buckets": [1, 60000]}));
    world.request("1", 200);
    assert!(!world.open().contains(" # {"), "no request was sampled");
    world.sampled("1");
    // A series beyond the limit does not get any.
    world.sampled("2");
    let page = world.open();
    let with: Vec<&str> = page.lines().filter(|line| line.contains(" # {")).collect();
    let [line] = with[..] else { panic!("{page}") };
    assert!(line.starts_with("apisix_http_latency_bucket{type=\"request\",route=\"1\","), "{line}");
    let ids =
        format!("le=\"60000\"}} 2 # {{trace_id=\"{}\",span_id=\"{}\"}} ", "ab".repeat(16), "cd".repeat(8));
    let (_, rest) = line.split_once(&ids).unwrap_or_else(|| panic!("{line}"));
    let numbers: Vec<f64> = rest.split(' ').map(|number| number.parse().unwrap()).collect();
    assert!(numbers.len() == 2 && numbers[0] >= 7.0 && numbers[1] > 1e9, "{rest}");
    assert!(page.ends_with("\n# EOF\n"));
    assert!(!world.page().contains("# EOF") && !world.page().contains(" # {"), "text has no exemplars");
}

/// Series are called the same in both forms.
#[test]
fn both_forms_have_the_same_series() {
    let mut world = World::new(json!({}), Value::Null, json!({"exemplar_series": 1}));
    world.request("1", 200);
    let series = |page: &str| -> Vec<String> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    let (text, open) = (world.page(), world.open());
    assert_eq!(series(&text), series(&open));
    let mut named: Vec<&str> = open.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    assert!(named.contains(&"# TYPE apisix_http_status unknown"), "{named:?}");
    assert!(named.contains(&"# TYPE apisix_nginx_metric_errors counter"), "{named:?}");
    let total = named.len();
    named.sort_by_key(|line| line.split(' ').nth(2));
    named.dedup_by_key(|line| line.split(' ').nth(2));
    assert_eq!(named.len(), total, "no name appears twice");
}

#[test]
fn accept_selects_the_form() {
    let check = |accept: &str, expected: Form| {
        let mut headers = Headers::default();
        headers.append("Accept", accept.as_bytes());
        let offered = [Form::Text, Form::OpenMetrics, Form::Protobuf];
        assert_eq!(form_of(&headers, &offered), expected, "{accept}");
        // A form that is not offered is ignored.
        assert_eq!(form_of(&headers, &[Form::Text]), Form::Text, "{accept}");
    };
    check(OPEN, Form::OpenMetrics);
    check("application/openmetrics-text", Form::OpenMetrics);
    check("Application/OpenMetrics-Text; version=0.0.1", Form::OpenMetrics);
    check("application/openmetrics-text;version=2.0.0", Form::Text);
    check("application/openmetrics-text;q=0", Form::Text);
    check("text/plain;q=0.9, application/openmetrics-text;q=0.5", Form::Text);
    check("*/*", Form::Text);
    check("", Form::Text);
    check(NATIVE, Form::Protobuf);
    let family = "application/vnd.google.protobuf; proto=\"io.prometheus.client.MetricFamily\"; encoding=\"delimited\"";
    check(family, Form::Protobuf);
    check(&format!("{family};q=0"), Form::Text);
    check(&format!("text/plain, {family}"), Form::Protobuf);
    check(&format!("text/plain, {family}; q=0.9"), Form::Text);
    check(&format!("application/openmetrics-text; Q=0.7, {family}; q=0.6"), Form::OpenMetrics);
    check("application/vnd.google.protobuf", Form::Text);
    check(&family.replace("delimited", "text"), Form::Text);
    check(&family.replace("MetricFamily", "Metric"), Form::Text);
    check("application/vnd.google.protobuf;proto;encoding=;;=;q", Form::Text);
    // The page has no exemplars and no native histograms if they are not enabled.
    let world = World::new(json!({}), Value::Null, Value::Null);
    for accept in [OPEN, NATIVE] {
        let reply = scraped_as(&world.case.node, "identity", accept);
        let field = |name| crate::testing::field(&reply, name).unwrap();
        let expected = ("text/plain; charset=utf-8", "accept-encoding");
        assert_eq!((&*field("content-type"), &*field("vary")), expected);
    }
}

/// Any `Accept` of a client selects one of the forms.
#[test]
fn any_accept_is_read() {
    const PARTS: [&str; 16] = [
        "text/plain",
        "application/openmetrics-text",
        "application/vnd.google.protobuf",
        "*/*",
        ";",
        ",",
        "=",
        "\"",
        " ",
        "q",
        "0.5",
        "proto",
        "io.prometheus.client.MetricFamily",
        "encoding",
        "delimited",
        "version",
    ];
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut accept = Vec::new();
        for _ in 0..seed >> 59 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match PARTS.get((seed >> 58) as usize % 17) {
                Some(part) => accept.extend_from_slice(part.as_bytes()),
                None => accept.push((seed >> 40) as u8),
            }
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut headers = Headers::default();
        headers.append("Accept", &accept);
        assert_eq!(form_of(&headers, &[Form::Text]), Form::Text);
        form_of(&headers, &[Form::Text, Form::OpenMetrics, Form::Protobuf]);
    }
}

/// The `Accept` of Prometheus when it takes native histograms.
const NATIVE: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
    application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
    text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

impl World {
    /// The messages that a scraper gets that wants them.
    fn families(&self, coding: &str) -> Vec<Family> {
        let reply = scraped_as(&self.case.node, coding, NATIVE);
        let field = |name| crate::testing::field(&reply, name);
        let kind =
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
        assert_eq!(
            (field("content-type").as_deref(), field("vary").as_deref()),
            (Some(kind), Some("accept, accept-encoding"))
        );
        let mut body = reply.body.clone().unwrap();
        if field("content-encoding").is_some() {
            let mut plain = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&body[..]), &mut plain).unwrap();
            assert!(body.len() < plain.len() / 3, "{} of {}", body.len(), plain.len());
            body = plain;
        }
        let mut rest = &body[..];
        let mut families = Vec::new();
        while !rest.is_empty() {
            families.push(Family::decode_length_delimited(&mut rest).unwrap());
        }
        families
    }
}

/// Messages as the lines of text that say the same.
fn lines(families: &[Family]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for family in families {
        let name = family.name.as_deref().unwrap();
        all.insert(format!("# HELP {name} {}", family.help.as_deref().unwrap()));
        all.insert(format!("# TYPE {name} {}", format!("{:?}", family.r#type()).to_lowercase()));
        for metric in &family.metric {
            let mut labels = String::new();
            for pair in &metric.label {
                labels::write_label(
                    &mut labels,
                    pair.name.as_deref().unwrap(),
                    pair.value.as_deref().unwrap(),
                );
            }
            let line = |part: &str, more: &str, value: f64| {
                let labels = [&labels, more].into_iter().filter(|labels| !labels.is_empty());
                let labels = labels.collect::<Vec<_>>().join(",");
                let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                format!("{name}{part}{braces} {value}")
            };
            let number = metric.counter.as_ref().or(metric.gauge.as_ref());
            all.extend(number.map(|number| line("", "", number.value.unwrap())));
            let Some(histogram) = &metric.histogram else { continue };
            for bucket in &histogram.bucket {
                let bound = format!("le=\"{}\"", bucket.upper_bound.unwrap());
                all.insert(line("_bucket", &bound, bucket.cumulative_count.unwrap() as f64));
            }
            let count = histogram.sample_count.unwrap() as f64;
            all.insert(line("_bucket", "le=\"+Inf\"", count));
            all.insert(line("_count", "", count));
            all.insert(line("_sum", "", histogram.sample_sum.unwrap()));
        }
    }
    all
}

/// Every family and every number is in both forms, however long the page is.
#[test]
fn messages_have_the_content_of_the_text() {
    let attribute = json!({"native_histograms": true, "exemplar_series": 1});
    let mut world = World::new(json!({}), Value::Null, attribute);
    for id in 0..300_usize {
        // Escaped, empty and long ones.
        let name = ["a\"b\\c\n,=\"", "", "ü"][id % 3].repeat(1 + id % 5);
        world.request(&format!("{name}{id}"), 200 + (id % 3) as u16);
    }
    world.sampled("x");
    world.finish(404);
    let page = world.page();
    let text: BTreeSet<String> = page.lines().map(str::to_owned).collect();
    for coding in ["identity", "gzip"] {
        let families = world.families(coding);
        let told = lines(&families);
        // A heading without series is in the text only.
        let missing: Vec<&String> = text.difference(&told).filter(|line| !line.starts_with("# ")).collect();
        assert!(missing.is_empty(), "{missing:#?}");
        let more: Vec<&String> = told.difference(&text).collect();
        assert!(more.is_empty(), "{more:#?}");
        let of_latency =
            families.iter().filter(|family| family.name.as_deref() == Some("apisix_http_latency"));
        assert!(of_latency.count() > 1, "a long family leaves in parts");
        let exemplars =
            families.iter().flat_map(|family| &family.metric).flat_map(|metric| &metric.histogram);
        let exemplars =
            exemplars.flat_map(|histogram| &histogram.bucket).filter_map(|bucket| bucket.exemplar.as_ref());
        let [exemplar] = exemplars.collect::<Vec<_>>()[..] else { panic!("one request was sampled") };
        assert_eq!(exemplar.label[0].value.as_deref(), Some(&*"ab".repeat(16)));
    }
}

/// The sparse buckets count the same as the classic ones, of all workers.
#[test]
fn native_buckets_count_the_latencies() {
    let attribute = json!({"native_histograms": true, "native_histogram_schema": 1});
    let mut world = World::new(json!({}), Value::Null, attribute);
    for worker in 0..3 {
        world.case.local = Rc::new(Local::new(worker, 1));
        world.request("1", 200);
    }
    let families = world.families("identity");
    let histograms: Vec<&protobuf::Histogram> = families
        .iter()
        .flat_map(|family| &family.metric)
        .filter_map(|metric| metric.histogram.as_ref())
        .collect();
    assert_eq!(histograms.len(), 3, "apisix, request, upstream");
    for histogram in &histograms {
        assert_eq!(
            (histogram.schema, histogram.sample_count, histogram.zero_count),
            (Some(1), Some(3), Some(0))
        );
        let mut before = 0;
        let counts: Vec<i64> = histogram
            .positive_delta
            .iter()
            .map(|delta| {
                before += delta;
                before
            })
            .collect();
        assert_eq!(counts.iter().sum::<i64>(), 3, "{histogram:?}");
        let spans: u32 = histogram.positive_span.iter().map(|span| span.length.unwrap()).sum();
        assert_eq!(spans as usize, counts.len());
    }
    // 1.5 ms are above √2 and at most 2.
    assert_eq!(histograms[2].positive_span, [protobuf::Span { offset: Some(2), length: Some(1) }]);
    assert_eq!(histograms[2].positive_delta, [3]);
    // The text has no more than it had.
    assert!(!world.page().contains("schema"));
}

/// Tests with the installed `promtool`.
mod installed {
    use super::*;

    /// `promtool` reads the page. It advises other names than APISIX's, which is not for Sigma to change.
    #[test]
    fn promtool_reads_the_page() {
        let mut world = World::new(json!({}), Value::Null, Value::Null);
        world.request("1", 200);
        world.finish(404);
        let tool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut tool) = tool else {
            panic!("promtool is missing: install it with `apt-get install -y prometheus` (make test does)");
        };
        tool.stdin.take().unwrap().write_all(world.page().as_bytes()).unwrap();
        let output = tool.wait_with_output().unwrap();
        let advice = String::from_utf8_lossy(&output.stderr).into_owned();
        // 3 means advice on style, 1 a page that cannot be read.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{advice}");
        let about_names = ["\"_total\" suffix", "base unit", "abbreviated", "no help text"];
        for line in advice.lines() {
            assert!(about_names.iter().any(|name| line.contains(name)), "{line}");
        }
    }

    /// Prometheus itself reads the page in OpenMetrics, exemplars and all.
    #[test]
    fn prometheus_reads_openmetrics() {
        let mut world = World::new(json!({}), Value::Null, json!({"exemplar_series": 9}));
        world.sampled("1");
        world.request("2", 404);
        let dir = tempfile::tempdir().unwrap();
        // A sample from a file needs a time.
        let timed = |line: &str| match line.split_once(" # {") {
            _ if line.starts_with('#') => format!("{line}\n"),
            Some((sample, exemplar)) => format!("{sample} 1600000000 # {{{exemplar}\n"),
            None => format!("{line} 1600000000\n"),
        };
        let page: String = world.open().lines().map(timed).collect();
        assert!(page.contains(" # {trace_id="));
        std::fs::write(dir.path().join("page"), page).unwrap();
        let tool = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "page", "blocks"])
            .current_dir(dir.path())
            .output();
        let Ok(output) = tool else {
            panic!("promtool is missing: install it with `apt-get install -y prometheus` (make test does)");
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
