//! Plugins that tell of the traffic: `file-logger`, `http-logger`, `prometheus`; and the program's output
//! about plugins.

use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA, nodes};

/// A gateway with one route to `origin`, `plugins` on it and `settings` above.
fn with_plugins(origin: &Origin, settings: &str, plugins: &str) -> Gateway {
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: all\n    uri: \"/*\"\n    \
         plugins: {plugins}\n    upstream:\n      nodes: {}\n",
        nodes(&[origin])
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn json_lines(gateway: &Gateway, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(gateway.dir().join(file)).unwrap_or_default();
    // The last line may be half written.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn file_logger_writes_a_line_with_bodies_and_reopens() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_plugins(
        &origin,
        "",
        "{file-logger: {path: log.json, include_req_body: true, include_resp_body: true, max_req_body_bytes: 4}}",
    );
    let mut client = gateway.connect().unwrap();
    client.ask("POST /p?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabcdef").unwrap();
    assert!(until(PATIENCE, || json_lines(&gateway, "log.json").len() == 1));
    let entry = json_lines(&gateway, "log.json").remove(0);
    assert_eq!(entry["request"]["body"], "abcd", "{entry}");
    assert_eq!(entry["request"]["uri"], "/p?a=1");
    assert_eq!(entry["response"]["status"], 200);
    assert!(entry["response"]["body"].as_str().is_some_and(|body| !body.is_empty()), "{entry}");
    assert_eq!(entry["upstream"], format!("127.0.0.1:{}", origin.port()));
    assert!(
        entry["request"]["size"].as_u64().unwrap() > 40 && entry["response"]["size"].as_u64().unwrap() > 40
    );
    fs::rename(gateway.dir().join("log.json"), gateway.dir().join("old.json")).unwrap();
    gateway.reopen_logs().unwrap();
    let reopened = until(PATIENCE, || {
        client.get("/again").unwrap();
        !json_lines(&gateway, "log.json").is_empty()
    });
    assert!(reopened, "{}", gateway.stderr());
}

#[test]
fn a_body_that_is_compressed_for_the_client_is_logged_as_it_was() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_plugins(
        &origin,
        "",
        "{file-logger: {path: log.json, include_resp_body: true}, gzip: {types: \"*\"}}",
    );
    let mut client = gateway.connect().unwrap();
    let answer = client.ask("GET /p HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    assert_eq!(answer.head.get("content-encoding"), Some("gzip"));
    assert!(until(PATIENCE, || json_lines(&gateway, "log.json").len() == 1));
    let entry = json_lines(&gateway, "log.json").remove(0);
    assert!(
        entry["response"]["body"].as_str().is_some_and(|body| body.starts_with("{\"method\"")),
        "{entry}"
    );
    assert_eq!(entry["response"]["headers"]["content-encoding"], "gzip");
    let warned = gateway.stderr() + &gateway.stdout();
    assert!(!warned.contains("WARN"), "{warned}");
}

#[test]
fn a_file_that_cannot_be_written_is_no_trouble() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_plugins(&origin, "", "{file-logger: {path: none/log.json}}");
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
    let told = || gateway.stderr().contains("failed to open file: none/log.json, error info: ");
    assert!(until(PATIENCE, told), "{}", gateway.stderr());
}

#[test]
fn http_logger_sends_batches_when_they_are_full_or_old() {
    let origin = Origin::echo("a").unwrap();
    let batches = Arc::<Mutex<Vec<(String, String)>>>::default();
    let got = Arc::clone(&batches);
    let server = Origin::answer(move |message| {
        let head = format!("{} at {}", message.head.line, message.head.get("host").unwrap_or_default());
        got.lock().unwrap().push((head, message.text()));
        b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()
    });
    let server = server.unwrap();
    let plugins = format!(
        "{{http-logger: {{uri: \"http://127.0.0.1:{}/in?x=1\", concat_method: new_line, batch_max_size: 2, inactive_timeout: 2, \
         log_format: {{uri: $uri}}}}}}",
        server.port()
    );
    let gateway = with_plugins(&origin, "", &plugins);
    let mut client = gateway.connect().unwrap();
    for path in ["/1", "/2", "/3"] {
        client.get(path).unwrap();
    }
    assert!(until(PATIENCE, || batches.lock().unwrap().len() == 2), "{}", gateway.stderr());
    let entry = |uri: &str| format!("{{\"uri\":\"{uri}\",\"route_id\":\"all\"}}");
    let sent = batches.lock().unwrap().clone();
    let expected = [format!("{}\n{}", entry("/1"), entry("/2")), entry("/3")];
    assert_eq!(sent, expected.map(|body| ("POST /in?x=1 HTTP/1.1 at 127.0.0.1".to_owned(), body)));
}

/// Without a route there is no id of one: `file-logger` leaves it out, `http-logger` says so.
#[test]
fn global_loggers_tell_of_requests_without_a_route() {
    let origin = Origin::echo("a").unwrap();
    let (server, batches) = log_server(200);
    let settings = format!(
        "global_rules:\n  - id: g\n    plugins:\n      file-logger: {{path: log.json}}\n      \
         http-logger: {{uri: \"http://127.0.0.1:{}\", batch_max_size: 1}}",
        server.port()
    );
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: a\n    uri: /a\n    upstream:\n      nodes: {}\n",
        nodes(&[&origin])
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    assert_eq!(gateway.connect().unwrap().get("/none").unwrap().status(), 404);
    assert!(until(PATIENCE, || json_lines(&gateway, "log.json").len() == 1
        && !batches.lock().unwrap().is_empty()));
    let entry = json_lines(&gateway, "log.json").remove(0);
    assert_eq!((&entry["service_id"], entry.get("route_id")), (&Value::from("localhost"), None), "{entry}");
    assert_eq!((&entry["response"]["status"], entry.get("upstream")), (&Value::from(404), None), "{entry}");
    // One entry is no list.
    let sent: Value = serde_json::from_str(&batches.lock().unwrap()[0][2]).unwrap();
    assert_eq!(
        (&sent["route_id"], &sent["service_id"]),
        (&Value::from("no-matched"), &Value::from("localhost")),
        "{sent}"
    );
}

/// A server for logs, and the batches that it got: content type, authorization, body.
fn log_server(status: u16) -> (Origin, Arc<Mutex<Vec<[String; 3]>>>) {
    let batches = Arc::<Mutex<Vec<[String; 3]>>>::default();
    let got = Arc::clone(&batches);
    let origin = Origin::answer(move |message| {
        let field = |name: &str| message.head.get(name).unwrap_or_default().to_owned();
        got.lock().unwrap().push([field("content-type"), field("authorization"), message.text()]);
        format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    (origin.unwrap(), batches)
}

#[test]
fn http_logger_sends_batches_and_the_rest_at_the_end() {
    let origin = Origin::echo("a").unwrap();
    let (server, batches) = log_server(200);
    let plugins = format!(
        "{{http-logger: {{uri: \"http://127.0.0.1:{}/in?x=1\", auth_header: secret, batch_max_size: 2, inactive_timeout: 600, \
         log_format: {{uri: $uri, status: $status}}}}}}",
        server.port()
    );
    let gateway = with_plugins(&origin, "", &plugins);
    let mut client = gateway.connect().unwrap();
    for path in ["/1", "/2", "/3"] {
        client.get(path).unwrap();
    }
    assert!(until(PATIENCE, || batches.lock().unwrap().len() == 1), "{}", gateway.stderr());
    drop(client);
    assert!(gateway.stop().unwrap().success());
    let batches = batches.lock().unwrap();
    let entry = |uri: &str| format!("{{\"uri\":\"{uri}\",\"status\":200,\"route_id\":\"all\"}}");
    let sent: Vec<&str> = batches.iter().map(|batch| &*batch[2]).collect();
    assert_eq!(sent, [format!("[{},{}]", entry("/1"), entry("/2")), format!("[{}]", entry("/3"))]);
    assert_eq!(batches[0][..2], ["application/json", "secret"]);
}

#[test]
fn http_logger_drops_refused_entries() {
    let origin = Origin::echo("a").unwrap();
    let (server, batches) = log_server(500);
    let plugins = format!(
        "{{http-logger: {{uri: \"http://127.0.0.1:{}\", batch_max_size: 1, max_retry_count: 1, retry_delay: 0, concat_method: new_line}}}}",
        server.port()
    );
    let gateway = with_plugins(&origin, "", &plugins);
    gateway.connect().unwrap().get("/1").unwrap();
    let dropped = "Batch Processor[http logger] exceeded the max_retry_count[1] dropping the entries";
    gateway.await_log(dropped);
    assert!(
        gateway.stderr().contains("server returned status code[500] host[127.0.0.1]"),
        "{}",
        gateway.stderr()
    );
    assert_eq!(batches.lock().unwrap().len(), 2);
    assert_eq!(batches.lock().unwrap()[0][0], "text/plain");
}

#[test]
fn prometheus_shows_its_page_on_a_listener_and_on_a_route() {
    let origin = Origin::echo("a").unwrap();
    let port = free_port();
    let settings = format!(
        "plugin_attr:\n  prometheus:\n    export_addr: {{ip: 127.0.0.1, port: {port}}}\n    refresh_interval: 1\n\
         global_rules:\n  - id: 1\n    plugins: {{prometheus: {{}}}}"
    );
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: metrics\n    uri: /apisix/prometheus/metrics\n    \
         plugins: {{public-api: {{}}}}\n  - id: all\n    uri: \"/p/*\"\n    plugins: {{prometheus: {{}}}}\n    upstream:\n      nodes: {}\n",
        nodes(&[&origin])
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    for path in ["/p/1", "/p/2", "/none"] {
        gateway.connect().unwrap().get(path).unwrap();
    }
    let address = Address::loopback(port);
    let scrape = |path: &str| Peer::connect(&address).unwrap().get(path).unwrap();
    let counted = format!(
        "apisix_http_status{{code=\"200\",route=\"all\",matched_uri=\"/p/*\",matched_host=\"\",service=\"\",consumer=\"\",node=\"127.0.0.1\",\
         request_type=\"traditional_http\",request_llm_model=\"\",llm_model=\"\",response_source=\"upstream\"}} {}",
        2
    );
    let mut page = String::new();
    let complete = until(PATIENCE, || {
        page = scrape("/apisix/prometheus/metrics").text();
        page.contains(&counted) && page.contains("code=\"404\",route=\"\"")
    });
    assert!(complete, "{counted}\n{page}\n{}", gateway.stderr());
    assert!(page.contains("\napisix_node_info{hostname=\""), "{page}");
    assert!(page.contains("\napisix_nginx_http_current_connections{state=\"accepted\"} "), "{page}");
    assert_eq!(scrape("/other").status(), 404);
    let public = gateway.connect().unwrap().get("/apisix/prometheus/metrics").unwrap();
    assert_eq!(public.status(), 200);
    assert!(public.text().contains(&counted), "{}", public.text());
}

/// A gateway with the series of so many routes, and the port of its metrics.
fn gateway_of_routes(routes: usize, origin: &Origin) -> (Gateway, u16) {
    let port = free_port();
    let mut config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n\
         plugin_attr: {{ prometheus: {{ export_addr: {{ ip: 127.0.0.1, port: {port} }} }} }}\n\
         global_rules:\n  - id: 1\n    plugins: {{prometheus: {{}}}}\n\
         upstreams: [ {{ id: \"1\", nodes: {} }} ]\nroutes:\n  - id: metrics\n    \
         uri: /metrics\n    plugins: {{public-api: {{uri: /apisix/prometheus/metrics}}}}\n",
        nodes(&[origin])
    );
    for number in 0..routes {
        config.push_str(&format!("  - {{ id: r{number}, uri: /r/{number}, upstream_id: \"1\" }}\n"));
    }
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    for number in 0..routes {
        assert_eq!(client.get(&format!("/r/{number}")).unwrap().status(), 200);
    }
    (gateway, port)
}

/// The page of many routes as a scraper gets it: in pieces, and compressed if it takes that.
#[test]
fn curl_scrapes_many_routes() {
    const ROUTES: usize = 400;
    let origin = Origin::echo("a").unwrap();
    let (gateway, port) = gateway_of_routes(ROUTES, &origin);
    let curl = |options: &[&str], port: u16, path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let output =
            Command::new("curl").args(["-sf", "-w", "\n%{size_download}"]).args(options).arg(url).output();
        let output = output.unwrap();
        assert!(output.status.success(), "curl {options:?} {path}: {}", output.status);
        let text = String::from_utf8(output.stdout).unwrap();
        let (page, size) = text.rsplit_once('\n').unwrap();
        (page.to_owned(), size.parse::<usize>().unwrap())
    };
    let public = gateway.address().port().unwrap();
    for (port, path) in [(port, "/apisix/prometheus/metrics"), (public, "/metrics")] {
        for options in [&["--compressed"][..], &[]] {
            let (page, size) = curl(options, port, path);
            for number in [0, ROUTES - 1] {
                assert!(page.contains(&format!("route=\"r{number}\"")), "{options:?} {path}: {page}");
            }
            assert!(page.contains("\napisix_node_info{"), "{options:?} {path}");
            let is_small = size < page.len() / 8;
            assert_eq!(is_small, !options.is_empty(), "{options:?} {path}: {size} of {}", page.len());
        }
    }
}

/// Scrapers that read slowly, or leave in the middle, delay nothing.
#[test]
fn slow_scrapers_delay_nothing() {
    const ASK: &str =
        "GET /apisix/prometheus/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let origin = Origin::echo("a").unwrap();
    // More than sockets hold.
    let (gateway, port) = gateway_of_routes(1500, &origin);
    let before_kib = gateway.settled_memory_kib().unwrap();
    let address = Address::loopback(port);
    let begun = |_| {
        let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
        peer.send(ASK).unwrap();
        assert_eq!(peer.read_head().unwrap().status().unwrap(), 200);
        peer
    };
    let slow: Vec<Peer> = (0..3).map(begun).collect();
    (0..3).map(begun).for_each(drop);
    let mut whole = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
    let page = whole.get("/apisix/prometheus/metrics").unwrap().text();
    assert!(page.contains("route=\"r1499\"") && page.contains("\napisix_node_info{"), "{}", page.len());
    let grown_kib = gateway.peak_memory_kib().unwrap() - before_kib;
    assert!(grown_kib < page.len() as u64 / 1024, "{grown_kib} KiB for pages of {} bytes", page.len());
    // The slow ones get a page or a break, never a part that looks whole.
    for mut peer in slow {
        if let Ok(bytes) = peer.read_to_close() {
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(text.ends_with("\r\n0\r\n\r\n"), text.contains("\napisix_node_info{"));
        }
    }
}

/// Many who request the page at once all get it, however few threads there are.
#[test]
fn more_scrapers_than_threads_are_answered() {
    /// More than the threads for blocking work that a runtime has.
    const SCRAPERS: usize = 540;
    let port = free_port();
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\noperators: {{ connections: 600 }}\n\
         plugin_attr: {{ prometheus: {{ export_addr: {{ ip: 127.0.0.1, port: {port} }} }} }}\n"
    );
    let _gateway = Gateway::start(SIGMA, &config).unwrap();
    let address = Address::loopback(port);
    let ask = |_| {
        let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
        peer.send("GET /apisix/prometheus/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        peer
    };
    let scrapers: Vec<Peer> = (0..SCRAPERS).map(ask).collect();
    for (at, mut scraper) in scrapers.into_iter().enumerate() {
        let page = scraper.read_response("GET").unwrap_or_else(|error| panic!("scraper {at}: {error:#}"));
        assert_eq!(page.status(), 200, "scraper {at}");
    }
}

#[test]
fn the_program_lists_its_plugins() {
    let output = |args: &[&str]| Command::new(SIGMA).args(args).output().unwrap();
    let list = String::from_utf8(output(&["plugins"]).stdout).unwrap();
    let line = list.lines().find(|line| line.starts_with("file-logger ")).unwrap();
    assert!(line.ends_with("Appends one JSON line per request to a file."), "{line}");
    let reference = String::from_utf8(output(&["plugins", "http-logger"]).stdout).unwrap();
    assert!(reference.starts_with("# http-logger\n"), "{reference}");
    assert!(reference.contains("| `uri` | string | required | The URL for batches. |"), "{reference}");
    let unknown = output(&["plugins", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("unknown plugin [nonsense]"));
}
