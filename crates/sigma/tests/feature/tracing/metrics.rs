//! DogStatsD, StatsD without tags, and exemplars of Prometheus.

use std::net::UdpSocket;

use sigma_testkit::{Origin, free_port};

use super::{PARENT, TRACE, ask, comes, gateway};
use crate::PATIENCE;

fn config(agent: u16, batch: &str, origin: &Origin) -> String {
    format!(
        r#"
plugin_metadata:
  - {{ id: datadog, host: 127.0.0.1, port: {agent}, namespace: shop, constant_tags: ["env:test"] }}
routes:
  - id: orders
    name: all-orders
    uri: /orders/*
    plugins:
      datadog: {{ include_path: true, include_method: true, {batch} }}
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
"#,
        origin.port()
    )
}

#[test]
fn an_agent_gets_the_lines_of_a_request_in_one_datagram() {
    let (agent, origin) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Origin::echo("a").unwrap());
    agent.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = agent.local_addr().unwrap().port();
    let gateway = gateway(&config(port, "batch_max_size: 2", &origin));
    for _ in 0..2 {
        ask(&gateway, "/orders/1", "");
    }
    for _ in 0..2 {
        let mut room = [0; 65536];
        let length = agent.recv(&mut room).unwrap();
        let text = String::from_utf8(room[..length].to_vec()).unwrap();
        let tags = "env:test,route_name:all-orders,path:/orders/*,method:GET,balancer_ip:127.0.0.1,\
                    response_status:200,response_status_class:2xx,scheme:http";
        let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(':').unwrap()).collect();
        let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "shop.request.counter",
                "shop.request.latency",
                "shop.upstream.latency",
                "shop.apisix.latency",
                "shop.ingress.size",
                "shop.egress.size"
            ]
        );
        for ((_, rest), kind) in lines.iter().zip(["c", "h", "h", "h", "ms", "ms"]) {
            let (value, rest) = rest.split_once('|').unwrap();
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{value}");
            assert_eq!(rest, format!("{kind}|#{tags}"));
        }
    }
}

/// Without a listener: the traffic continues, and the error log names the losses.
#[test]
fn an_agent_that_is_away_is_nobodys_trouble() {
    let origin = Origin::echo("a").unwrap();
    let gateway =
        gateway(&config(free_port(), "batch_max_size: 3, max_retry_count: 1, retry_delay: 0", &origin));
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "/orders/1", "").status(), 200);
    }
    comes(&gateway, || {
        gateway.stderr().contains("failed to send metrics to dogstatsd server: host[127.0.0.1] port[")
    });
}

/// A request's lines, in datagrams that are no longer than wanted.
#[test]
fn an_agent_without_tags_gets_names() {
    let (agent, origin) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Origin::echo("a").unwrap());
    agent.set_read_timeout(Some(PATIENCE)).unwrap();
    let (port, node) = (agent.local_addr().unwrap().port(), origin.port());
    let gateway = gateway(&format!(
        r#"
plugin_metadata:
  - {{ id: statsd, host: 127.0.0.1, port: {port}, namespace: shop.edge, datagram_bytes: 512 }}
global_rules: [{{ id: all, plugins: {{ statsd: {{ include_method: true, include_path: true, batch_max_size: 1 }} }} }}]
routes:
  - {{ id: orders, name: all.orders, uri: /orders/*, upstream: {{ nodes: {{ "127.0.0.1:{node}": 1 }} }} }}
"#
    ));
    let lines_of = |count: usize| {
        let mut lines = Vec::new();
        while lines.len() < count {
            let mut room = [0; 65536];
            let length = agent.recv(&mut room).unwrap();
            assert!(length <= 512, "{length}");
            lines.extend(std::str::from_utf8(&room[..length]).unwrap().lines().map(str::to_owned));
        }
        lines
    };
    ask(&gateway, "/orders/1", "");
    let shown = |line: &String| {
        let (name, rest) = line.split_once(':').unwrap();
        let (value, kind) = rest.split_once('|').unwrap();
        assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        format!("{name} {kind}")
    };
    let names = [
        "request.counter c",
        "response.status.200 c",
        "request.latency ms",
        "upstream.latency ms",
        "gateway.latency ms",
        "ingress.size ms",
        "egress.size ms",
    ]
    .map(|name| format!("shop.edge.route.all_orders.service.none.path._orders__.method.GET.{name}"));
    assert_eq!(lines_of(7).iter().map(shown).collect::<Vec<_>>(), names);
    // No name has a client's text.
    gateway.connect().unwrap().ask("BREW /a.b HTTP/1.1\r\nHost: evil.test\r\n\r\n").unwrap();
    for line in lines_of(6) {
        let begin = "shop.edge.route.none.service.none.path.none.method.other.";
        assert!(line.starts_with(begin), "{line}");
    }
}

/// Whether the plugins are of a route or of all, the bucket of a sampled request leads to its trace.
#[test]
fn a_bucket_leads_to_the_trace_of_a_request() {
    let origin = Origin::echo("a").unwrap();
    let (node, collector) = (origin.port(), free_port());
    let gateway = gateway(&format!(
        r#"
plugin_attr: {{ prometheus: {{ exemplar_series: 100 }} }}
plugin_metadata: [{{ id: opentelemetry, collector: {{ address: "127.0.0.1:{collector}" }} }}]
global_rules: [{{ id: metrics, plugins: {{ prometheus: {{}} }} }}]
routes:
  - {{ id: page, uri: /apisix/prometheus/metrics, plugins: {{ public-api: {{}} }} }}
  - id: orders
    uri: /orders/*
    plugins: {{ opentelemetry: {{ sampler: {{ name: parent_base }} }} }}
    upstream: {{ nodes: {{ "127.0.0.1:{node}": 1 }} }}
"#
    ));
    let page = || {
        let open = "Accept: application/openmetrics-text; version=1.0.0, text/plain;q=0.5\r\n";
        ask(&gateway, "/apisix/prometheus/metrics", open).text()
    };
    ask(&gateway, "/orders/1", &format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"));
    comes(&gateway, || page().contains("http_latency_bucket{type=\"request\",route=\"orders\""));
    assert!(!page().contains(" # {"), "it was not sampled: {}", page());
    ask(&gateway, "/orders/1", &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"));
    let leads = |line: &str| {
        line.contains("type=\"request\",route=\"orders\"")
            && line.contains(&format!(" # {{trace_id=\"{TRACE}\",span_id="))
    };
    comes(&gateway, || page().lines().any(leads));
}
