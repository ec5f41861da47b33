//! Golden files: `<name>.json` is translated to `<name>.expected.json` with the warnings in `<name>.warnings`.
//! `SIGMA_BLESS=1` rewrites them.

use std::path::{Path, PathBuf};

use super::*;
use sigma_config::{ParseOptions, parse};
use sigma_schema::plugins::{PluginRefusal, PluginSchemas, PluginScope};

/// Accepts the plugins that translations use. Tests of the whole program check their configurations.
struct Named;

impl PluginSchemas for Named {
    fn names(&self) -> Vec<&str> {
        vec!["cors", "forwarded-fields", "gzip", "redirect", "security-headers", "static-files"]
    }

    fn schema(&self, _: &str, _: PluginScope) -> Option<&Value> {
        None
    }

    fn is_auth(&self, _: &str) -> bool {
        false
    }

    fn check(&self, name: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
        if self.names().contains(&name) { Ok(()) } else { Err(PluginRefusal::Unknown) }
    }

    fn unique_attribute(&self, _: &str) -> Option<&str> {
        None
    }

    fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
        Vec::new()
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/seed/golden").join(name)
}

fn read(text: &str) -> Document {
    Document::parse(text, 1 << 20).unwrap()
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn compare(name: &str, actual: &str) {
    let path = golden(name);
    if std::env::var_os("SIGMA_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{name}");
}

fn check_golden(name: &str, text: &str, options: Option<&str>, instances: Option<u16>) {
    let document = read(text);
    let format = detect(&document).unwrap();
    let companion = options.map(read);
    let (value, warnings) = translate(format, &document, companion.as_ref(), instances).unwrap();
    compare(
        &format!("{name}.expected.json"),
        &format!("{}\n", serde_json::to_string_pretty(&value).unwrap()),
    );
    compare(&format!("{name}.warnings"), &lines(&warnings));
    let formats = Seeds { companion: options, instances, in_background: false };
    let whole = ParseOptions { formats: &formats, plugins: &Named, ..ParseOptions::default() };
    if let Err(problems) = parse(text, &whole) {
        panic!("{name}: the translation is refused:\n{}", lines(&problems));
    }
}

#[test]
fn published_examples_are_translated() {
    let sigma = include_str!("../../../../examples/sigma.json");
    let options = include_str!("../../../../examples/options.json");
    check_golden("sigma-example", sigma, Some(options), Some(1));
    check_golden("niubix-example", include_str!("../../../../examples/niubix.json"), None, None);
}

#[test]
fn start_goes_to_the_background_with_a_log_file() {
    let text = include_str!("../../../../examples/sigma.json");
    let formats = Seeds { in_background: true, ..Seeds::default() };
    let (value, _) = formats.translate(&read(text)).expect("a translation");
    assert_eq!(value["process"]["daemon"], true);
    assert_eq!(value["error_log"], serde_json::json!({ "path": "log/sigma.log", "level": "info" }));
    assert_eq!(value["plugin_attr"]["log-rotate"]["interval"], 86_400);
}

/// Event loops are workers, unless the command line has a number; the resolver's servers and times are `dns`.
#[test]
fn options_with_a_counterpart_take_effect() {
    let sigma = read(include_str!("../../../../examples/sigma.json"));
    let options = read(
        r#"{ "eventLoopPoolSize": 20, "workerPoolSize": 5, "addressResolverOptions": {
            "servers": ["192.0.2.1", "192.0.2.2:5353"], "cacheMinTimeToLive": 0, "cacheMaxTimeToLive": 60,
            "queryTimeout": 5000, "ndots": 1 } }"#,
    );
    let translated =
        |instances| translate(Format::Sigma, &sigma, Some(&options), instances).expect("a translation");
    let (value, warnings) = translated(None);
    assert_eq!(value["workers"], 20);
    let dns = serde_json::json!({
        "servers": ["192.0.2.1", "192.0.2.2:5353"], "ttl_min_s": 1, "ttl_max_s": 60, "query_timeout_ms": 5000,
    });
    assert_eq!(value["dns"], dns);
    let warnings = lines(&warnings);
    assert!(
        warnings.contains("without effect: workerPoolSize") && warnings.contains("without effect: ndots")
    );
    assert!(!warnings.contains("eventLoopPoolSize"), "{warnings}");
    assert_eq!(translated(Some(3)).0["workers"], 3);
}

#[test]
fn every_key_is_translated_or_reported() {
    check_golden("sigma-every-key", include_str!("golden/sigma-every-key.json"), None, None);
    check_golden("sigma-https", include_str!("golden/sigma-https.json"), None, None);
    check_golden("niubix-every-key", include_str!("golden/niubix-every-key.json"), None, None);
    check_golden("niubix-protocols", include_str!("golden/niubix-protocols.json"), None, None);
}

#[test]
fn seed_documents_pass_the_whole_way() {
    for text in [include_str!("golden/sigma-every-key.json"), include_str!("golden/niubix-every-key.json")] {
        let options = ParseOptions { formats: &Seeds::default(), plugins: &Named, ..ParseOptions::default() };
        let checked = parse(text, &options).unwrap_or_else(|problems| panic!("{problems:?}"));
        assert!(!checked.config.resources.routes.is_empty());
        // Serialised once, since JSON does not distinguish 1.0 from 1.
        let again = parse(&checked.normalized().to_string(), &options).unwrap();
        let third = parse(&again.normalized().to_string(), &options).unwrap();
        assert_eq!(third.config, again.config);
    }
}

#[test]
fn formats_are_detected_by_content() {
    let check = |text: &str, expected: Option<Format>| assert_eq!(detect(&read(text)), expected, "{text}");
    check(r#"{"proxy-server": {}}"#, Some(Format::Sigma));
    check(r#"{"apps": []}"#, Some(Format::Niubix));
    check(r#"{"routes": []}"#, None);
}

#[test]
fn files_of_other_programs_are_recognised() {
    let check = |text: &str, name: &str| {
        let options = ParseOptions { formats: &Seeds::default(), ..ParseOptions::default() };
        let problems = parse(text, &options).expect_err(text);
        assert_eq!(problems.len(), 1, "{text}");
        assert!(problems[0].message.contains(name), "{}", problems[0]);
        assert!(
            problems[0].hint.as_ref().is_some_and(|hint| hint.contains("sigma import")),
            "{}",
            problems[0]
        );
    };
    check("apisix:\n  node_listen: 9080\ndeployment:\n  role: data_plane\n", "config.yaml of APISIX");
    check("entryPoints:\n  web:\n    address: \":80\"\n", "static configuration of Traefik");
    check("http:\n  routers:\n    a: { rule: \"Path(`/a`)\" }\n", "dynamic configuration of Traefik");
    check("_format_version: \"3.0\"\nservices: {}\n", "Kong");
    check("static_resources:\n  listeners: []\n", "Envoy");
    check("version: 3\nendpoints: []\n", "KrakenD");
    check("spring:\n  cloud: {}\n", "Spring");
}

/// Replaces `from` by `to` in a published example and expects exactly these errors, in part.
fn check_errors(example: &str, edits: &[(&str, &str)], expected: &[&str]) {
    let mut text = example.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    let document = read(&text);
    let problems = match translate(detect(&document).unwrap(), &document, None, None) {
        Ok(_) => panic!("no error after {edits:?}"),
        Err(problems) => problems,
    };
    let is_error = |problem: &&Problem| problem.code != "without_effect" && problem.code != "approximate";
    let errors: Vec<String> = problems.iter().filter(is_error).map(ToString::to_string).collect();
    assert_eq!(errors.len(), expected.len(), "{edits:?}: {errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{error}\nlacks {expected}");
    }
}

#[test]
fn errors_of_sigma_name_line_and_remedy() {
    let check = |edits: &[(&str, &str)], expected: &[&str]| {
        check_errors(include_str!("../../../../examples/sigma.json"), edits, expected);
    };
    check(
        &[("\"port\": 80", "\"prot\": 80")],
        &[
            "line 7: proxy-server.http.prot: unknown field `prot` (did you mean `port`?)",
            "line 4: proxy-server.http.port: `port` is missing",
        ],
    );
    check(
        &[("\"port\": 80", "\"port\": 65536")],
        &["line 7: proxy-server.http.port: expected a whole number from 0 to 65535"],
    );
    check(
        &[("\"upstream-id\": \"upstream-1\"", "\"upstream-id\": \"u\"")],
        &["line 34: proxy-pass[0].upstream-id: unknown upstream `u`"],
    );
    check(
        &[("\"proxy-pass-id\": \"proxy-pass-1\"", "\"proxy-pass-id\": \"p\"")],
        &["line 26: router[0].route[0].proxy-pass-id: unknown proxy pass `p`"],
    );
    check(
        &[("\"proxy-server-id\": \"proxy-server-1\"", "\"proxy-server-id\": \"x\"")],
        &[
            "router: no enabled router serves the listener",
            "router[0].proxy-server-id: the router serves `x`",
        ],
    );
    check(&[("/test/*", "test")], &["router[0].route[0].path: the path `test` does not begin with `/`"]);
    check(
        &[("(?<segment>.*)", "(?<segment>.*+)")],
        &["proxy-pass[0].plugin.rewrite-path.regexp: `/test/(?<segment>.*+)`: possessive"],
    );
    check(
        &[("${segment}", "${part}")],
        &["rewrite-path.replacement: `/${part}`: `regexp` has no group named `part`"],
    );
    check(
        &[
            ("http://localhost:8888", "http://[::1]:8888"),
            ("\"max-pool-size-per-server\": 256", "\"ssl\": true"),
        ],
        &["upstream[0].nodes[0]: `http://[::1]:8888`: IPv6"],
    );
    check(
        &[("\"http\": {", "\"https\": {\"enable\": true}, \"http\": {")],
        &[
            "proxy-server.https.ssl: SSL config error, must config SSL, SSL type, SSL KeyPath and SSL certPath!",
            "proxy-server.https.id: `id` is missing",
        ],
    );
    let cors = r#""plugin": {"cors": {"enable": true, "allow-origins": ["example.com"]}}, "id": "router-1""#;
    check(
        &[("\"id\": \"router-1\"", cors)],
        &["router[0].plugin.cors.allow-origins[0]: `example.com` is not an origin"],
    );
    let files = r#""plugin": {"static-resources": {"enable": true, "root-path": "www"}}, "port": 80"#;
    check(
        &[("\"port\": 80", files)],
        &["proxy-server.http.plugin.static-resources.root-path: `root-path` `www` is not an absolute path"],
    );
    check(
        &[("\"id\": \"router-1\"", "\"allow-forward\": \"SOME\"")],
        &["router[0].allow-forward: `allow-forward` cannot be `SOME`"],
    );
}

#[test]
fn errors_of_niubix_name_line_and_remedy() {
    let check = |edits: &[(&str, &str)], expected: &[&str]| {
        check_errors(include_str!("../../../../examples/niubix.json"), edits, expected);
    };
    check(
        &[("\"protocol\": \"http\"", "\"protocol\": \"udp\"")],
        &["line 16: apps[0].protocol: `protocol` cannot be `udp`"],
    );
    check(
        &[("\"protocol\": \"http\"", "\"protocol\": \"https\", \"ssl_certificate\": \"a.crt\"")],
        &["apps[0].ssl_certificate_key: `ssl_certificate_key` is missing"],
    );
    check(
        &[("\"protocol\": \"http\"", "\"protocol\": \"tcp\", \"proxy_protocol\": \"v3\"")],
        &["apps[0].proxy_protocol: `proxy_protocol` cannot be `v3`"],
    );
    let other = |protocol: &str| {
        format!(
            r#""apps": [{{"name": "other", "listen": ":8081", {protocol}, "http_host": "a.test",
            "balance_policy": "random", "backend_protocol": "tcp", "backends": [{{"host": "127.0.0.1:1"}}]}},"#
        )
    };
    let files =
        |cert| format!(r#""protocol": "https", "ssl_certificate": "{cert}", "ssl_certificate_key": "k""#);
    check(
        &[("\"apps\": [", &other("\"protocol\": \"tcp\""))],
        &["apps[1].protocol: the app at apps[0] uses tcp on this address"],
    );
    check(
        &[
            ("\"apps\": [", &other("\"protocol\": \"tcp\"")),
            ("\"protocol\": \"http\"", "\"protocol\": \"tcp\""),
        ],
        &["apps[1].listen: the app at apps[0] already serves all sessions of this address"],
    );
    check(
        &[("\"apps\": [", &other(&files("a"))), ("\"protocol\": \"http\"", &files("b"))],
        &["apps[1].ssl_certificate: the app at apps[0] has another certificate"],
    );
    check(&[("\"weight\": 5", "\"weight\": 0")], &["apps[0].backends: all backends have the weight 0"]);
    check(
        &[("127.0.0.1:8080", "localhost:8080"), ("\"/x\"", "\"x\"")],
        &[
            "apps[0].backends[0].health_check_uri: a health check needs",
            "apps[0].backends[0].host: `localhost:8080` is not an IPv4 address with a port",
        ],
    );
    check(
        &[("info|warn|error", "loud"), ("\"pid_file\"", "\"pidfile\"")],
        &["pid_file: `pid_file` is missing", "log_level: `loud`"],
    );
    check(
        &[("\"admin_ip_white_list\": \"127.0.0.1\"", "\"admin_ip_white_list\": \"me\"")],
        &["admin_ip_white_list: `me` is not an IP address"],
    );
    check(
        &[(":8081", "8081"), ("roundrobin", "fastest")],
        &[
            "apps[0].listen: `8081` is not an address",
            "apps[0].balance_policy: `balance_policy` cannot be `fastest`",
        ],
    );
    let app = r#"{"name": "test", "listen": ":8081", "protocol": "http", "http_host": "Default", "balance_policy": "random",
        "backend_protocol": "http", "backends": [{"host": "127.0.0.1:1"}]},"#;
    check(
        &[("\"apps\": [", &format!("\"apps\": [{app}"))],
        &[
            "apps[1].name: the app at apps[0]",
            "apps[1].http_host: the app at apps[0] serves the host `default`",
        ],
    );
}
