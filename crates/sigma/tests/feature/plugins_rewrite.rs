//! Plugins that rewrite, redirect, compress and serve files, on real sockets.

use std::fs;
use std::process::Command;

use sigma_testkit::{Gateway, Origin};

use crate::SIGMA;

/// A gateway whose routes are these lines of YAML.
fn with_routes(routes: &str) -> Gateway {
    let config = format!("workers: 1\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n{routes}");
    Gateway::start(SIGMA, &config).unwrap()
}

fn curl(gateway: &Gateway, path: &str, args: &[&str]) -> Vec<u8> {
    let url = format!("http://{}{path}", gateway.address());
    let output = Command::new("curl").args(["-sS", "--max-time", "20"]).args(args).arg(url).output();
    let output = output.expect("curl is missing: apt-get install -y curl");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn curl_text(gateway: &Gateway, path: &str, args: &[&str]) -> String {
    String::from_utf8_lossy(&curl(gateway, path, args)).into_owned()
}

#[test]
fn requests_are_rewritten() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_routes(&format!(
        r#"  - uri: "/*"
    plugins:
      real-ip: {{ source: http_x_client, trusted_addresses: ["127.0.0.0/8"] }}
      request-id: {{ algorithm: uuidv7 }}
      proxy-rewrite:
        regex_uri: ["^/old/(.*)/(.*)$", "/new/$2/$1"]
        method: PUT
        host: other.example
        headers: {{ set: {{ X-Group: "$1" }}, remove: [X-Gone] }}
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
"#,
        origin.port()
    ));
    let mut client = gateway.connect().unwrap();
    let answer = client
        .ask("POST /old/a/b%20c?q=1 HTTP/1.1\r\nHost: h\r\nX-Gone: 1\r\nX-Client: 192.0.2.7:99\r\nContent-Length: 2\r\n\r\nhi")
        .unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let echoed = answer.json().unwrap();
    assert_eq!(echoed["target"], "/new/b%20c/a?q=1");
    assert_eq!(echoed["method"], "PUT");
    let headers = echoed["headers"].to_string().to_lowercase();
    for part in [
        r#"["host","other.example"]"#,
        r#"["x-group","a"]"#,
        r#"["x-real-ip","192.0.2.7"]"#,
        r#"["x-forwarded-for","192.0.2.7"]"#,
    ] {
        assert!(headers.contains(part), "{part} is missing in {headers}");
    }
    assert!(!headers.contains("x-gone"), "{headers}");
    let id = answer.head.get("x-request-id").unwrap();
    assert!(headers.contains(id) && id.as_bytes()[14] == b'7', "{id} {headers}");
}

#[test]
fn the_host_of_the_upstream_goes_before_the_plugins() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_routes(&format!(
        "  - uri: \"/*\"\n    plugins: {{ proxy-rewrite: {{ host: other.example }} }}\n    upstream: {{ pass_host: rewrite, upstream_host: up.example, nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n",
        origin.port()
    ));
    let echoed = gateway.connect().unwrap().get("/").unwrap().json().unwrap();
    let headers = echoed["headers"].to_string().to_lowercase();
    assert!(headers.contains(r#"["host","up.example"]"#), "{headers}");
}

#[test]
fn a_head_made_of_a_get_leaves_the_connection_usable() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_routes(&format!(
        "  - uri: \"/*\"\n    plugins: {{ proxy-rewrite: {{ method: HEAD }} }}\n    upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n",
        origin.port()
    ));
    let mut client = gateway.connect().unwrap();
    for _ in 0..2 {
        let answer = client.get("/").unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, ""));
    }
}

#[test]
fn responses_are_rewritten_before_they_are_compressed() {
    let origin = Origin::answer(|request| {
        let text = "hello ".repeat(1000);
        let (_, target) = request.head.request_line().unwrap();
        if target == "/chunked" {
            let chunk = format!("{:x}\r\n{text}\r\n", text.len());
            return format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n")
                .into_bytes();
        }
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"e\"\r\nContent-Length: {}\r\n\r\n{text}", text.len())
            .into_bytes()
    })
    .unwrap();
    let upstream = format!("    upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n", origin.port());
    let gateway = with_routes(&format!(
        "  - uri: \"/rewritten\"\n    plugins:\n      gzip: {{ vary: true }}\n      response-rewrite: {{ filters: [{{ regex: hello, replace: bye, scope: global }}], headers: {{ X-Status: \"$status\" }} }}\n{upstream}\
         \x20 - uri: \"/replaced\"\n    plugins: {{ response-rewrite: {{ status_code: 404, body: new, vars: [[status, \"==\", 200]] }} }}\n{upstream}\
         \x20 - uri: \"/*\"\n    plugins: {{ gzip: {{}} }}\n{upstream}"
    ));
    let head =
        curl_text(&gateway, "/rewritten", &["--compressed", "-D", "-", "-o", "/dev/null"]).to_lowercase();
    for field in ["content-encoding: gzip", "vary: accept-encoding", "x-status: 200"] {
        assert!(head.contains(field), "{field} is missing in {head}");
    }
    assert_eq!(curl_text(&gateway, "/rewritten", &["--compressed"]), "bye ".repeat(1000));
    assert_eq!(curl_text(&gateway, "/rewritten", &[]), "bye ".repeat(1000));
    assert_eq!(curl_text(&gateway, "/plain", &["--compressed"]), "hello ".repeat(1000));
    assert_eq!(curl_text(&gateway, "/chunked", &["--compressed"]), "hello ".repeat(2000));
    assert!(curl(&gateway, "/plain", &["-H", "Accept-Encoding: gzip"]).len() < 500);
    assert_eq!(
        curl_text(&gateway, "/plain", &["-I", "--compressed"]).lines().next(),
        Some("HTTP/1.1 200 OK")
    );
    let mut client = gateway.connect().unwrap();
    for _ in 0..2 {
        let answer = client.get("/replaced").unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (404, "new"));
    }
}

#[test]
fn redirects() {
    let gateway = with_routes(
        "  - uri: \"/secure/*\"\n    plugins: { redirect: { http_to_https: true } }\n  - uri: \"/*\"\n    plugins: { redirect: { uri: \"/new$uri\", ret_code: 307, append_query_string: true } }\n",
    );
    let mut client = gateway.connect().unwrap();
    let answer = client.ask("GET /secure/a?b HTTP/1.1\r\nHost: Example.com:80\r\n\r\n").unwrap();
    assert_eq!((answer.status(), answer.head.get("location")), (301, Some("https://example.com/secure/a?b")));
    let answer = client.get("/a?b").unwrap();
    assert_eq!((answer.status(), answer.head.get("location")), (307, Some("/new/a?b")));
}

/// Paths without a file go to the upstream of the route, or to another route that clients do not reach.
#[test]
fn paths_without_a_file_go_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "file").unwrap();
    let origin = Origin::echo("a").unwrap();
    let (root, port) = (dir.path().display(), origin.port());
    let gateway = with_routes(&format!(
        r#"  - uri: "/pass/*"
    plugins: {{ static-files: {{ root: "{root}", prefix: /pass, fallback: {{ pass: "/index.php?q=$uri&$args" }} }} }}
    upstream: {{ nodes: {{ "127.0.0.1:{port}": 1 }} }}
  - uri: "/route/*"
    plugins: {{ static-files: {{ root: "{root}", prefix: /route, fallback: {{ uri: "/inner$is_args$args" }} }} }}
  - uri: /inner
    internal: true
    upstream: {{ nodes: {{ "127.0.0.1:{port}": 1 }} }}
"#
    ));
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.get("/pass/a.txt").unwrap().text(), "file");
    let echoed = client.get("/pass/b%20c?x=1").unwrap().json().unwrap();
    assert_eq!(echoed["target"], "/index.php?q=/pass/b%20c&x=1", "{echoed}");
    assert_eq!(client.get("/inner").unwrap().status(), 404);
    let echoed = client.get("/route/none?x=1").unwrap().json().unwrap();
    assert_eq!(echoed["target"], "/inner?x=1", "{echoed}");
    let post = "POST /route/none HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
    let echoed = client.ask(post).unwrap().json().unwrap();
    assert_eq!((&echoed["method"], &echoed["body_bytes"]), (&"POST".into(), &4.into()), "{echoed}");
}

/// Bytes that tell their position.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn files_are_streamed_in_ranges_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let big = pattern(48 << 20);
    fs::write(dir.path().join("big.bin"), &big).unwrap();
    fs::write(dir.path().join("small.txt"), "0123456789").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/index.html"), "<p>index</p>".repeat(100)).unwrap();
    fs::write(dir.path().join("small.txt.zst"), "as it stands").unwrap();
    let gateway = with_routes(&format!(
        "  - uri: \"/files/*\"\n    plugins:\n      static-files: {{ root: \"{}\", prefix: /files, precompressed: [zstd] }}\n      gzip: {{ types: [text/plain, text/html], min_length: 1 }}\n",
        dir.path().display()
    ));
    let before = gateway.settled_memory_kib().unwrap();
    assert!(curl(&gateway, "/files/big.bin", &[]) == big, "the whole file differs");
    assert!(curl(&gateway, "/files/big.bin", &["-r", "1000000-40999999"]) == big[1_000_000..41_000_000]);
    assert!(curl(&gateway, "/files/big.bin", &["--http2-prior-knowledge"]) == big, "over HTTP/2 it differs");
    let grown = gateway.peak_memory_kib().unwrap() - before;
    assert!(grown < 16 << 10, "{grown} KiB for files that are streamed");
    assert_eq!(curl_text(&gateway, "/files/small.txt", &["-r", "2-4"]), "234");
    assert_eq!(curl_text(&gateway, "/files/small.txt", &["-r", "-3"]), "789");
    let parts = curl_text(&gateway, "/files/small.txt", &["-r", "0-1,8-"]);
    assert!(
        parts.contains("Content-Range: bytes 0-1/10\r\n\r\n01\r\n")
            && parts.contains("bytes 8-9/10\r\n\r\n89\r\n"),
        "{parts}"
    );
    // A precompressed file is not compressed again.
    let accepting = ["-H", "Accept-Encoding: gzip, zstd"];
    assert_eq!(curl_text(&gateway, "/files/small.txt", &accepting), "as it stands");
    let status = ["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}"];
    assert_eq!(
        curl_text(&gateway, "/files/small.txt", &[&status[..], &["-r", "10-"]].concat()).trim(),
        "416"
    );
    let location = format!("301 http://{}/files/d/", gateway.address());
    assert_eq!(curl_text(&gateway, "/files/d", &status), location);
    assert_eq!(curl_text(&gateway, "/files/d/", &["--compressed"]), "<p>index</p>".repeat(100));
    assert!(curl(&gateway, "/files/d/", &["-H", "Accept-Encoding: gzip"]).len() < 200);
    assert_eq!(
        curl_text(&gateway, "/files/../etc/passwd", &[&status[..], &["--path-as-is"]].concat()).trim(),
        "400"
    );
    let mut client = gateway.connect().unwrap();
    let answer = client.ask("HEAD /files/big.bin HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!((answer.status(), answer.head.get("content-length")), (200, Some("50331648")));
    let tag = answer.head.get("etag").unwrap().to_owned();
    let request = format!("GET /files/big.bin HTTP/1.1\r\nHost: h\r\nIf-None-Match: {tag}\r\n\r\n");
    assert_eq!(client.ask(request).unwrap().status(), 304);
    assert_eq!(client.get("/files/small.txt").unwrap().text(), "0123456789");
}

#[test]
fn a_client_that_leaves_a_file_is_no_trouble() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), pattern(32 << 20)).unwrap();
    let gateway = with_routes(&format!(
        "  - uri: \"/*\"\n    plugins: {{ static-files: {{ root: \"{}\" }} }}\n",
        dir.path().display()
    ));
    for _ in 0..3 {
        let mut client = gateway.connect().unwrap();
        client.send("GET /big.bin HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        client.read_head().unwrap();
        client.reset().unwrap();
    }
    assert_eq!(curl(&gateway, "/big.bin", &["-r", "0-9"]), pattern(10));
}
