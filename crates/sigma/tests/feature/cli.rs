//! `sigma check`, and starts that must fail.

use std::fs;
use std::process::{Command, Output, Stdio};

use sigma_testkit::{Gateway, free_port, until};

use crate::{PATIENCE, SIGMA};

fn sigma(args: &[&str], name: &str, text: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), text).unwrap();
    let mut command = Command::new(SIGMA);
    command.args(args).arg(name).current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A gateway that runs where it should have refused would never end by itself.
    if !until(PATIENCE, || child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const GOOD: &str = "routes:\n  - id: r\n    uri: /a\n    upstream:\n      nodes: { \"127.0.0.1:1\": 1 }\n";

#[test]
fn a_good_file_checks() {
    let output = sigma(&["check"], "a.yaml", GOOD);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn every_problem_is_named_with_its_place() {
    fn check(text: &str, words: &[&str]) {
        let output = sigma(&["check"], "a.yaml", text);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}\n{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is missing for\n{text}\n{said}");
        }
    }
    check("routes:\n  - uri: /a\n    upstrem: {}\n", &["upstrem", "upstream", "routes"]);
    check("limits:\n  request_headers: many\n", &["request_headers"]);
    check("routes:\n  - id: r\n    uri: /a\n    upstream_id: nowhere\n", &["nowhere"]);
    check("listeners:\n  - address: \"here\"\n", &["address", "here"]);
    check("routes:\n  - uri: /a\n    priority: x\n  - uri: /b\n    status: 7\n", &["priority", "status"]);
    check("routes: [\n", &["line"]);
}

#[test]
fn a_missing_file_is_named() {
    let output = Command::new(SIGMA).args(["check", "does-not-exist.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output).matches("does-not-exist.yaml").count(), 1, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
}

/// Problems of the compilation are listed with the document's, with their lines.
#[test]
fn problems_of_the_compilation_come_with_the_others() {
    fn check(text: &str, words: &[&str]) {
        let output = sigma(&["check"], "a.yaml", text);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}\n{said}");
        assert_eq!(said.lines().count(), words.len(), "{text}\n{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is missing for\n{text}\n{said}");
        }
    }
    let log = "access_log: { path: a.log, format: \"$stats\" }\n";
    let tcp =
        "routes:\n  - id: k\n    uri: /k\n    upstream: { scheme: tcp, nodes: { \"127.0.0.1:1\": 1 } }\n";
    let route = "  - uri: 7\n    upstream: http://127.0.0.1:1\n";
    let (log_problem, tcp_problem) = ("line 1: access_log.format: ", "routes[0].upstream.scheme: ");
    check(&format!("{log}{tcp}"), &[log_problem, tcp_problem]);
    check(&format!("{log}{tcp}{route}"), &[log_problem, tcp_problem, "routes[1].uri: "]);
}

/// A mistake is reported once, at the place where it was written.
#[test]
fn a_mistake_is_reported_once_at_its_place() {
    #[track_caller]
    fn check(text: &str, lines: &[&[&str]]) {
        let output = sigma(&["check"], "a.yaml", text);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}\n{said}");
        assert_eq!(said.lines().count(), lines.len(), "{text}\n{said}");
        for (line, words) in said.lines().zip(lines) {
            assert!(words.iter().all(|word| line.contains(word)), "{words:?} for\n{text}\n{said}");
        }
    }
    let nodes = "nodes: { \"127.0.0.1:1\": 1 }";
    let checks = |indent: &str, more: &str| {
        format!("{indent}{nodes}\n{indent}checks:\n{indent}  active:\n{indent}    http_path: health\n{more}")
    };
    let path = "is not a path";
    let inline = format!(
        "routes:\n- uri: /a\n  upstream: http://127.0.0.1:1\n- uri: /b\n  upstream:\n{}",
        checks("    ", "")
    );
    check(&inline, &[&["line 9: routes[1].upstream.checks.active.http_path: ", path]]);
    let service = format!("services:\n- id: s\n  upstream:\n{}", checks("    ", ""));
    check(&service, &[&["line 7: services[0].upstream.checks.active.http_path: ", path]]);
    let own = format!("upstreams:\n- id: u\n{}", checks("  ", ""));
    check(&own, &[&["line 6: upstreams[0].checks.active.http_path: ", path]]);
    let split = format!(
        "routes:\n- uri: /a\n  upstream: http://127.0.0.1:1\n  plugins:\n    traffic-split:\n      rules:\n      - weighted_upstreams:\n        - weight: 1\n        - upstream:\n{}",
        checks("            ", "")
    );
    check(
        &split,
        &[&[
            "line 13: routes[0].plugins.traffic-split.rules[0].weighted_upstreams[1].upstream.checks.active.http_path: ",
            path,
        ]],
    );
    let tls = "listeners:\n- \":9080\"\n- address: \":9443\"\n  tls:\n    certificates: [{ cert: missing.pem, key: missing.key }]\n";
    check(&format!("{tls}{GOOD}"), &[&["line 5: listeners[1].tls.certificates", "missing.pem"]]);
    let clash = format!("listeners:\n- \":9080\"\nstatus: {{ address: \"[::1]:9080\" }}\n{GOOD}");
    check(&clash, &[&["line 2: listeners[0].address", "[::]:9080"]]);
    let consumer =
        |name: &str| format!("- {{ username: {name}, plugins: {{ key-auth: {{ key: same }} }} }}\n");
    let both = format!("consumers:\n{}{}{GOOD}", consumer("jack"), consumer("jill"));
    check(
        &both,
        &[&[
            "line 3: consumers[1].plugins.key-auth.key: duplicate key of plugin key-auth found with consumer: jack",
        ]],
    );
    check(
        "routes:\n- uri: /a\n  plugins: [cors]\n",
        &[&["line 3: routes[0].plugins: ", "expected a map, got a list"]],
    );
    check("routes: { r1: { uri: /a } }\n", &[&["line 1: routes: ", "expected a list, got a map"]]);
    check(
        "routes:\n- uri: /a\n  plugins:\n  # cors: {}\n",
        &[&["line 3: routes[0].plugins: ", "the key has no value; expected a map (for example plugins: {"]],
    );
}

/// Keys and certificates that cannot be used are refused with what to do about it.
#[test]
fn material_that_cannot_be_used_has_a_remedy() {
    #[track_caller]
    fn check(cert: &str, key: &str, ca: &str, words: &[&str]) {
        let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let mut text =
            format!("ssls:\n- sni: a.test\n  cert: |\n{}  key: |\n{}", indented(cert), indented(key));
        if !ca.is_empty() {
            text += &format!("  client:\n    ca: |\n{}", indented(&indented(ca)));
        }
        let output = sigma(&["check"], "a.yaml", &(text + GOOD));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
    let root = crate::tls::Authority::new("Root");
    let issued = root.issue("a.test");
    let body = "MIGQ".to_owned() + &"A".repeat(192);
    let block =
        |label: &str, head: &str| format!("-----BEGIN {label}-----\n{head}{body}\n-----END {label}-----");
    let words = [
        "the key is encrypted, and no passphrase is configured",
        "openssl pkey -in encrypted.key -out plain.key",
    ];
    check(&issued.cert, &block("ENCRYPTED PRIVATE KEY", ""), "", &words);
    let head = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n";
    let words = ["encrypted in OpenSSL's old form", "openssl pkcs8 -topk8 -in old.key -out new.key"];
    check(&issued.cert, &block("RSA PRIVATE KEY", head), "", &words);
    let old = include_str!("version_1.pem");
    check(&issued.cert, &issued.key, old, &["certificate 1 has X.509 version 1", "make one of version 3"]);
}

#[test]
fn routes_says_by_its_status_whether_one_matches() {
    fn check(path: &str, status: i32, word: &str) {
        let output = sigma(&["routes", "GET", "h", path, "-c"], "a.yaml", GOOD);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        assert!(said(&output).contains(word), "{}", said(&output));
    }
    check("/a", 0, "r: serves this request");
    check("/b", 3, "no route serves this request: 404");
    for stored in ["store: { path: ./data }\n", "admin: { address: \"127.0.0.1:9180\" }\n"] {
        let output = sigma(&["routes", "GET", "h", "/a", "-c"], "a.yaml", stored);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let expected = "the routes are in the store, not in this file";
        assert!(said(&output).contains(expected), "{}", said(&output));
        assert!(said(&output).contains("sigma ctl explain GET http://h/a"), "{}", said(&output));
    }
    let guarded = GOOD.replace("uri: /a", "uri: /a\n    plugins: { key-auth: {}, prometheus: {} }");
    assert_ne!(guarded, GOOD);
    let output = sigma(&["routes", "GET", "h", "/a", "-c"], "a.yaml", &guarded);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let expected = "r: matches this request; key-auth may still refuse it";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn run_refuses_a_bad_file() {
    let output = sigma(&["run", "-c"], "a.yaml", "routes:\n  - uri: /a\n    upstrem: {}\n");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("upstrem"), "{}", said(&output));
}

#[test]
fn run_names_an_address_that_it_cannot_bind() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output =
        sigma(&["run", "-c"], "a.yaml", &format!("listeners:\n  - address: \"127.0.0.1:{port}\"\n{GOOD}"));
    assert!(!output.status.success());
    assert!(said(&output).contains(&port.to_string()), "{}", said(&output));
}

#[test]
fn version_and_help_answer() {
    for (flag, word) in [("--version", env!("CARGO_PKG_VERSION")), ("--help", "check")] {
        let output = Command::new(SIGMA).arg(flag).output().unwrap();
        assert!(output.status.success() && said(&output).contains(word), "{flag}: {}", said(&output));
    }
}

/// A file that is refused leaves nothing behind: no listener, no pid file, no log.
#[test]
fn nothing_starts_from_an_invalid_file() {
    fn check(bad: &str, word: &str) {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let text =
            format!("listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\npid_file: sigma.pid\n{bad}\n{GOOD}");
        fs::write(dir.path().join("a.yaml"), &text).unwrap();
        let mut command = Command::new(SIGMA);
        command.args(["run", "-c", "a.yaml"]).current_dir(dir.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut accepted = false;
        let ended = until(PATIENCE, || {
            accepted |= std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            child.try_wait().unwrap().is_some()
        });
        if !ended {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(ended && !accepted, "{text}\nran: {}", said(&output));
        assert_eq!(output.status.code(), Some(1), "{text}\n{}", said(&output));
        assert!(said(&output).contains(word), "{text}\n{}", said(&output));
        assert!(!dir.path().join("sigma.pid").exists(), "{text}");
    }
    check("workers: none", "workers");
    check("access_log: { path: a.log, format: \"$stats\" }", "stats");
    for scheme in ["kafka", "fcgi"] {
        let upstream = format!("{{ scheme: {scheme}, nodes: {{ \"127.0.0.1:1\": 1 }} }}");
        let words = "stream routes support the schemes tcp, tls and udp";
        check(&format!("stream_routes: [ {{ upstream: {upstream} }} ]"), words);
        let upstream = upstream.replacen('{', "{ id: other,", 1);
        check(&format!("upstreams: [ {upstream} ]\nstream_routes: [ {{ upstream_id: other }} ]"), words);
        let service = "services: [ { id: s, upstream_id: other } ]";
        check(
            &format!("upstreams: [ {upstream} ]\n{service}\nstream_routes: [ {{ service_id: s }} ]"),
            words,
        );
    }
    check("access_log: { path: . }", "log file");
}

/// Types `line` into a shell in a folder, with the program under test as `sigma`.
fn typed(dir: &std::path::Path, line: &str) -> Output {
    let bin = std::path::Path::new(SIGMA).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Command::new("bash").args(["-c", line]).current_dir(dir).env("PATH", path).output().unwrap()
}

#[test]
fn a_first_file_is_written_once_and_checks() {
    let made = [("", "routes:"), ("--https", "tls:"), ("--admin", "store:"), ("--https --admin", "admin:")];
    for (options, word) in made {
        let dir = tempfile::tempdir().unwrap();
        let output = typed(dir.path(), &format!("sigma init {options}"));
        assert!(output.status.success() && said(&output).contains("sigma.yaml"), "{}", said(&output));
        let text = fs::read_to_string(dir.path().join("sigma.yaml")).unwrap();
        assert!(text.contains(&format!("\n{word}")) || text.contains(&format!("    {word}")), "{text}");
        // The file says itself how its certificate is made.
        let openssl = text.lines().skip_while(|line| !line.contains("#   openssl")).take(3);
        let openssl: String = openssl.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        let output = typed(dir.path(), &format!("{openssl}\nsigma check"));
        assert!(output.status.success(), "{options}: {}\n{text}", said(&output));
        let output = typed(dir.path(), "echo mine > sigma.yaml; sigma init");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert_eq!(fs::read_to_string(dir.path().join("sigma.yaml")).unwrap(), "mine\n");
    }
    let dir = tempfile::tempdir().unwrap();
    let output = typed(dir.path(), "sigma init none/sigma.yaml");
    assert!(said(&output).contains("cannot write none/sigma.yaml"), "{}", said(&output));
}

#[test]
fn a_first_file_serves() {
    let dir = tempfile::tempdir().unwrap();
    assert!(typed(dir.path(), "sigma init").status.success());
    let text = fs::read_to_string(dir.path().join("sigma.yaml")).unwrap();
    let node = format!("127.0.0.1:{}", free_port());
    let text = text.replace("127.0.0.1:9092", "{status}").replace("127.0.0.1:9000", &node);
    let option = format!("--with-demo-origin={node}");
    let gateway = Gateway::start_with(SIGMA, &option, &text.replace(":9080", "{listen}")).unwrap();
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
}

#[test]
fn shells_take_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    let line = "source <(sigma completions bash) && COMP_WORDS=(sigma comp) COMP_CWORD=1 && \
                _sigma sigma comp sigma && echo \"${COMPREPLY[@]}\"";
    let output = typed(dir.path(), line);
    assert_eq!(said(&output), "completions\n");
    for shell in ["zsh", "fish"] {
        let output = typed(dir.path(), &format!("sigma completions {shell}"));
        assert!(output.status.success() && said(&output).contains("completions"), "{shell}");
    }
    assert_eq!(typed(dir.path(), "sigma completions sh").status.code(), Some(2));
}
