//! The access log: formats, flushing, and reopening after a rotation.

use std::fs;

use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, in_front_of};

fn lines(gateway: &Gateway, file: &str) -> Vec<String> {
    let text = fs::read_to_string(gateway.dir().join(file)).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

fn await_lines(gateway: &Gateway, file: &str, count: usize) -> Vec<String> {
    assert!(until(PATIENCE, || lines(gateway, file).len() >= count), "{file}: {:?}", lines(gateway, file));
    lines(gateway, file)
}

#[test]
fn the_default_line() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "access_log:\n  path: \"{dir}/access.log\"\n  flush_ms: 50");
    let mut client = gateway.connect().unwrap();
    client.ask("GET /p?q=1 HTTP/1.1\r\nHost: h.example\r\nUser-Agent: t\"est\r\nReferer: r\r\n\r\n").unwrap();
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    for part in [
        "127.0.0.1 - - [",
        "] h.example \"GET /p?q=1 HTTP/1.1\" 200 ",
        " \"r\" \"t\\x22est\" ",
        &format!("127.0.0.1:{} 200 ", origin.port()),
    ] {
        assert!(line.contains(part), "{part:?} is missing in {line}");
    }
}

#[test]
fn json_lines_parse() {
    let origin = Origin::echo("a").unwrap();
    let gateway =
        in_front_of(&origin, "access_log:\n  path: \"{dir}/access.log\"\n  format: json\n  flush_ms: 50");
    let mut client = gateway.connect().unwrap();
    client
        .ask("GET /p HTTP/1.1\r\nHost: h\r\nUser-Agent: \"\\\x7f\u{e9}\r\n\r\n".replace('\x7f', ""))
        .unwrap();
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(json["status"].to_string().trim_matches('"'), "200", "{line}");
}

#[test]
fn a_format_of_ones_own() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "access_log:\n  path: \"{dir}/access.log\"\n  format: '$request_method|$uri|$args|$status|$http_x_a'\n  flush_ms: 50",
    );
    let mut client = gateway.connect().unwrap();
    client.ask("GET /p?a=b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n\r\n").unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 1), ["GET|/p|a=b|200|1"]);
}

#[test]
fn times_are_seconds_or_whole_milliseconds() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "access_log:\n  path: \"{dir}/access.log\"\n  format: '$request_time ${request_time_ms}ms'\n  flush_ms: 50",
    );
    gateway.connect().unwrap().get("/p").unwrap();
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    let (seconds, ms) = line.split_once(' ').unwrap();
    let seconds: f64 = seconds.parse().unwrap();
    let ms: u32 = ms.strip_suffix("ms").unwrap().parse().unwrap();
    // Each is read from the clock when it is written.
    assert!((seconds * 1000.0 - f64::from(ms)).abs() < 100.0, "{line}");
}

#[test]
fn refused_requests_are_logged_too() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "access_log:\n  path: \"{dir}/access.log\"\n  format: '$status'\n  flush_ms: 50",
    );
    let mut client = gateway.connect().unwrap();
    client.ask("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 1), ["400"]);
}

/// The line of a request whose head is rejected has the known part of the head.
#[test]
fn rejected_heads_are_logged_as_far_as_they_are_known() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "limits: { request_body_bytes: 10, request_line_bytes: 1024, request_head_bytes: 4096, request_headers: 20 }\naccess_log:\n  path: \"{dir}/access.log\"\n  \
         format: '$status $request|$host|$http_user_agent'\n  flush_ms: 50",
    );
    let fields = "Host: h.example\r\nUser-Agent: ua\r\n";
    let long = "x".repeat(4096);
    let cases = [
        (
            format!("POST /up?a=b HTTP/1.1\r\n{fields}Content-Length: 11\r\n\r\n"),
            "413 POST /up?a=b HTTP/1.1|h.example|ua",
        ),
        (format!("GET /f HTTP/1.1\r\n{fields}A : b\r\nX: y\r\n\r\n"), "400 GET /f HTTP/1.1|h.example|ua"),
        (format!("GET /l HTTP/1.1\r\n{fields}Content-Length: x\r\n\r\n"), "400 GET /l HTTP/1.1|h.example|ua"),
        ("GET /h HTTP/1.1\r\nUser-Agent: ua\r\n\r\n".to_owned(), "400 GET /h HTTP/1.1|-|ua"),
        (format!("GET /b HTTP/1.1\r\n{fields}X: {long}\r\n\r\n"), "431 GET /b HTTP/1.1|h.example|ua"),
        (
            format!("GET /n HTTP/1.1\r\n{fields}{}\r\n", "A: b\r\n".repeat(30)),
            "431 GET /n HTTP/1.1|h.example|ua",
        ),
        (format!("GET /a b HTTP/1.1\r\n{fields}\r\n"), "400 -|-|-"),
    ];
    for (count, (head, expected)) in cases.iter().enumerate() {
        let mut client = gateway.connect().unwrap();
        let status = client.ask(head.clone()).unwrap().status();
        assert!(expected.starts_with(&status.to_string()), "{head}: {status}");
        assert_eq!(await_lines(&gateway, "access.log", count + 1)[count], *expected, "{head}");
    }
    crate::h2::within(async {
        let (mut sender, _driver) = crate::h2::connect(&gateway).await;
        let head =
            crate::h2::request("POST", "/two").header("user-agent", "ua").header("content-length", "11");
        let (response, _stream) = sender.send_request(head.body(()).unwrap(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 413);
    });
    let lines = await_lines(&gateway, "access.log", cases.len() + 1);
    assert_eq!(lines[cases.len()], "413 POST /two HTTP/2.0|h.example|ua");
}

/// A body that is announced as too large is logged with the address that the proxy in front sends.
#[test]
fn a_rejected_body_is_logged_with_the_address_of_the_client() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "limits: { request_body_bytes: 10 }\ntrusted_addresses: [127.0.0.1]\nclient_address: {}\naccess_log:\n  \
         path: \"{dir}/access.log\"\n  format: '$status $remote_addr'\n  flush_ms: 50",
    );
    let head = "POST / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 198.51.100.7\r\nContent-Length: 11\r\n\r\n";
    gateway.connect().unwrap().ask(head).unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 1), ["413 198.51.100.7"]);
}

#[test]
fn a_rotated_file_is_reopened() {
    let origin = Origin::echo("a").unwrap();
    let gateway =
        in_front_of(&origin, "access_log:\n  path: \"{dir}/access.log\"\n  format: '$uri'\n  flush_ms: 50");
    let mut client = gateway.connect().unwrap();
    client.get("/one").unwrap();
    await_lines(&gateway, "access.log", 1);
    fs::rename(gateway.dir().join("access.log"), gateway.dir().join("access.log.1")).unwrap();
    gateway.reopen_logs().unwrap();
    assert!(until(PATIENCE, || gateway.dir().join("access.log").exists()), "cannot reopen");
    client.get("/two").unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 1), ["/two"]);
    assert_eq!(lines(&gateway, "access.log.1"), ["/one"]);
}

#[test]
fn lines_are_flushed_at_the_end() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "access_log:\n  path: \"{dir}/access.log\"\n  format: '$uri'\n  flush_ms: 60000",
    );
    let mut client = gateway.connect().unwrap();
    client.get("/last").unwrap();
    drop(client);
    let kept = gateway.dir().join("access.log");
    // The folder goes with the gateway, so the file is held open before the stop.
    assert!(until(PATIENCE, || kept.exists()));
    let mut file = fs::File::open(&kept).unwrap();
    assert!(gateway.stop().unwrap().success());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    assert_eq!(text, "/last\n");
}

/// Variables that are not fields of the log's own are there too, and never from another exchange.
#[test]
fn any_variable_can_be_logged() {
    let origin = Origin::echo("a").unwrap();
    let format = "$status|$arg_a|$binary_remote_addr|$hostname|$upstream_unresolved_host|$balancer_port|$request_completion";
    let settings =
        format!("access_log:\n  path: \"{{dir}}/access.log\"\n  format: '{format}'\n  flush_ms: 50");
    let gateway = in_front_of(&origin, &settings);
    gateway.connect().unwrap().ask("GET /p?a=b HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let address = "\\x7F\\x00\\x00\\x01";
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    let values: Vec<&str> = line.split('|').collect();
    let port = origin.port().to_string();
    assert_eq!(
        [&values[..3], &values[4..]].concat(),
        ["200", "b", address, "127.0.0.1", &port, "OK"],
        "{line}"
    );
    assert!(!values[3].is_empty() && values[3] != "-", "{line}");
    // Refused before any plugin saw it.
    gateway.connect().unwrap().ask("GET /p HTTP/1.1\r\nHost: a b\r\n\r\n").unwrap();
    let line = await_lines(&gateway, "access.log", 2).remove(1);
    assert!(line.starts_with(&format!("400|-|{address}|")) && line.ends_with("|-|-|-"), "{line}");
}

/// Lines with the path alone, and these settings of the access log.
fn paths(settings: &str) -> String {
    format!("access_log:\n  path: \"{{dir}}/access.log\"\n  format: '$uri'\n  flush_ms: 50\n  {settings}")
}

#[test]
fn only_selected_exchanges_have_a_line() {
    let origin = Origin::echo("a").unwrap();
    let condition = r#"if: [["arg_keep", "==", "1"], ["status", "<", 400], ["http_x_a", "~~", "^y"]]"#;
    let gateway = in_front_of(&origin, &paths(condition));
    let mut client = gateway.connect().unwrap();
    for (target, field) in [("/1?keep=0", "y"), ("/2?keep=1", "n"), ("/3?keep=1", "yes"), ("/4", "y")] {
        client.ask(format!("GET {target} HTTP/1.1\r\nHost: h\r\nX-A: {field}\r\n\r\n")).unwrap();
    }
    // One worker's lines are in order.
    client.ask("GET /5?keep=1 HTTP/1.1\r\nHost: h\r\nX-A: y\r\n\r\n").unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 2), ["/3", "/5"]);
}

#[test]
fn a_sample_has_all_errors_in_it_unless_they_are_not_wanted() {
    let origin = Origin::answer(|message| {
        let status = if message.head.line.contains("/bad") { "503 No" } else { "200 OK" };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let origin = origin.unwrap();
    let ask = |settings: &str| {
        let gateway = in_front_of(&origin, &paths(settings));
        let mut client = gateway.connect().unwrap();
        for path in ["/good", "/bad"].repeat(20) {
            client.get(path).unwrap();
        }
        drop(client);
        let file = gateway.dir().join("access.log");
        // Its folder ends with it.
        let kept = tempfile::tempdir().unwrap();
        let link = kept.path().join("access.log");
        fs::hard_link(&file, &link).unwrap();
        assert!(gateway.stop().unwrap().success());
        fs::read_to_string(link).unwrap()
    };
    assert_eq!(ask("sample_one_in: 1000000000"), "/bad\n".repeat(20));
    assert_eq!(ask("sample_one_in: 1000000000\n  sample_errors: false"), "");
    assert_eq!(ask("sample_one_in: 1"), "/good\n/bad\n".repeat(20));
    let half = ask("sample_one_in: 2\n  sample_errors: false").lines().count();
    assert!((1..40).contains(&half), "{half}");
}

#[test]
fn a_condition_on_nothing_is_refused() {
    for (settings, expected) in [
        (r#"if: [["stats", "==", 200]]"#, "unknown variable `stats`; did you mean `status`?"),
        (r#"stream_if: [["uri", "==", "/"]]"#, "a TCP or UDP session has no variables of a request"),
        (r#"if: [["status", "~", 200]]"#, "invalid operator '~'"),
        ("sample_one_in: 0", "access_log.sample_one_in"),
    ] {
        let text = crate::catch_all(&paths(settings), "{ \"127.0.0.1:1\": 1 }", "");
        let error = Gateway::start(crate::SIGMA, &text).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{expected}: {error:#}");
    }
    // A field of the log need not be a variable elsewhere.
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, &paths(r#"if: [["request_time_ms", "<", 3600000]]"#));
    gateway.connect().unwrap().get("/p").unwrap();
    assert_eq!(await_lines(&gateway, "access.log", 1), ["/p"]);
}

#[test]
fn json_lines_list_the_attempts() {
    let origin = Origin::echo("a").unwrap();
    let settings = "access_log:\n  path: \"{dir}/access.log\"\n  format: json\n  flush_ms: 50";
    let gateway = in_front_of(&origin, settings);
    gateway.connect().unwrap().get("/p").unwrap();
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    let attempt = &json["upstream_attempts"][0];
    assert_eq!(attempt["node"], format!("127.0.0.1:{}", origin.port()), "{line}");
    assert_eq!(attempt["status"], 200);
    for time in ["connect_time", "header_time", "response_time"] {
        assert!((0.0..60.0).contains(&attempt[time].as_f64().unwrap()), "{time}: {line}");
    }
}

/// Made up where it is missing; a plugin sends the same id to the node and the client.
#[test]
fn each_request_has_an_id() {
    let origin = Origin::echo("a").unwrap();
    let settings = "access_log:\n  path: \"{dir}/access.log\"\n  format: json\n  flush_ms: 50\n\
        global_rules:\n  - id: told\n    plugins:\n      request-id: { _meta: { filter: [[arg_tell, \"==\", \"1\"]] } }";
    let gateway = in_front_of(&origin, settings);
    let mut client = gateway.connect().unwrap();
    let [_, _, told] = ["/1", "/2", "/3?tell=1"].map(|target| client.get(target).unwrap());
    let lines = await_lines(&gateway, "access.log", 3);
    let [first, second, third] = [0, 1, 2].map(|number| {
        let json: serde_json::Value = serde_json::from_str(&lines[number]).unwrap();
        json["request_id"].as_str().unwrap_or_else(|| panic!("{}", lines[number])).to_owned()
    });
    for id in [&first, &second] {
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    }
    assert_ne!(first, second);
    assert_eq!(told.head.get("x-request-id"), Some(&*third));
}

#[test]
fn fields_of_a_proxy_about_the_client_can_be_logged() {
    let origin = Origin::echo("a").unwrap();
    let format = "$proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port $realip_remote_port $connection_time $http2 $nginx_version";
    let config = format!(
        "workers: 1\naccess_log: {{ path: \"{{dir}}/access.log\", flush_ms: 50, format: '{format}' }}\n\
         listeners: [{{ address: \"{{listen}}\", proxy_protocol: {{ trusted: [127.0.0.1] }} }}]\n\
         routes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {} }} }}]\n",
        crate::nodes(&[&origin])
    );
    let gateway = Gateway::start(crate::SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    client.send("PROXY TCP4 192.0.2.7 192.0.2.8 4000 443\r\n").unwrap();
    assert_eq!(client.get("/p").unwrap().status(), 200);
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    let (told, rest) = line.split_once(" 4000 ").unwrap();
    assert_eq!(told, "192.0.2.7:4000 192.0.2.8:443");
    let (open, rest) = rest.split_once(' ').unwrap();
    assert!((0.0..60.0).contains(&open.parse::<f64>().unwrap()), "{line}");
    assert_eq!(rest, format!("- {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bytes_to_and_from_nodes() {
    let answer = "HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello";
    let origin = Origin::answer(move |_| answer.as_bytes().to_vec()).unwrap();
    let gateway = in_front_of(
        &origin,
        "access_log:\n  path: \"{dir}/access.log\"\n  format: '$upstream_bytes_received $upstream_bytes_sent'\n  flush_ms: 50",
    );
    let mut client = gateway.connect().unwrap();
    // On one connection: each line counts its own request.
    client.ask("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").unwrap();
    client.ask("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n0123456789").unwrap();
    let lines = await_lines(&gateway, "access.log", 2);
    let numbers: Vec<Vec<usize>> =
        lines.iter().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!((numbers[0][0], numbers[1][0]), (answer.len(), answer.len()));
    // Ten bytes of body, and a digit more in the length of it.
    assert_eq!(numbers[1][1], numbers[0][1] + 11, "{lines:?}");
}

/// A gateway with a key in the query, whose access log and entries of `file-logger` are looked at.
fn logged_with_key(origin: &Origin, access: &str, logger: &str) -> (String, String) {
    let config = format!(
        "listeners:\n  - address: \"{{listen}}\"\naccess_log:\n  path: \"{{dir}}/access.log\"\n  flush_ms: 50\n  \
         format: '$request|$args|$http_referer|$http_cookie|$arg_apikey|$http_x_other'\n{access}\n\
         consumers:\n  - {{ username: jack, plugins: {{ key-auth: {{ key: jacks-key }} }} }}\n\
         routes:\n  - id: all\n    uri: \"/*\"\n    plugins:\n      key-auth: {{ header: X-Key }}\n      \
         file-logger: {{ path: \"{{dir}}/entries.log\"{logger} }}\n    upstream:\n      nodes: {}\n",
        crate::nodes(&[origin])
    );
    let gateway = Gateway::start(crate::SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    let request = "GET /p?apikey=jacks-key&a=1 HTTP/1.1\r\nHost: h\r\nReferer: http://h/?apikey=jacks-key\r\n\
        Cookie: session=secret\r\nAuthorization: Bearer secret\r\nX-Key: jacks-key\r\nX-Other: 1\r\n\r\n";
    assert_eq!(client.ask(request).unwrap().status(), 200, "{}", gateway.stderr());
    let line = await_lines(&gateway, "access.log", 1).remove(0);
    (line, await_lines(&gateway, "entries.log", 1).remove(0))
}

#[test]
fn credentials_are_masked_in_all_logs() {
    let origin = Origin::echo("a").unwrap();
    let (line, entry) = logged_with_key(&origin, "", "");
    assert_eq!(line, "GET /p?apikey=***&a=1 HTTP/1.1|apikey=***&a=1|http://h/?apikey=***|***|***|1");
    let entry: serde_json::Value = serde_json::from_str(&entry).unwrap();
    assert!(!entry.to_string().contains("secret"), "{entry}");
    let request = &entry["request"];
    for field in ["cookie", "authorization", "x-key"] {
        assert_eq!(request["headers"][field], "***", "{entry}");
    }
    assert_eq!(
        (&request["querystring"]["apikey"], &request["querystring"]["a"]),
        (&"***".into(), &"1".into())
    );
    assert_eq!(request["uri"], "/p?apikey=***&a=1");
}

#[test]
fn credentials_are_shown_on_demand() {
    let origin = Origin::echo("a").unwrap();
    let (line, entry) = logged_with_key(&origin, "  log_credentials: true", ", log_credentials: true");
    assert!(line.starts_with("GET /p?apikey=jacks-key&a=1 HTTP/1.1|apikey=jacks-key&a=1|"), "{line}");
    assert!(line.ends_with("|session=secret|jacks-key|1"), "{line}");
    assert!(entry.contains("session=secret") && entry.contains("Bearer secret"), "{entry}");
}
