//! The plugin without a gateway.

use serde_json::{Value, json};
use sigma_plugin::{Phase, Reply};

use crate::testing::{Case, entry, field, refusal};

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    for folder in ["root/d/e", "root/.git", "outside"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    for (name, text) in [
        ("root/a.txt", "0123456789"),
        ("root/d/index.html", "index"),
        ("root/.secret", "s"),
        ("root/.git/config", "s"),
        ("root/empty", ""),
        ("outside/o.txt", "outside"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    std::os::unix::fs::symlink("a.txt", root.join("in.txt")).unwrap();
    std::os::unix::fs::symlink("../outside/o.txt", root.join("out.txt")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), root.join("out")).unwrap();
    dir
}

fn ask(dir: &tempfile::TempDir, conf: &Value, request: &str) -> Reply {
    let mut conf = conf.clone();
    conf["root"] = dir.path().join("root").to_str().unwrap().into();
    let plugin = entry("static-files", conf).unwrap();
    let (line, fields) = request.split_once('\n').unwrap_or((request, ""));
    Case::new(&format!("{line} HTTP/1.1\nHost: h\n{fields}")).run(&plugin, Phase::Access).unwrap()
}

fn shown(reply: &Reply) -> String {
    let body = reply.body.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    format!("{} {body}", reply.status).trim_end().to_owned()
}

#[test]
fn index_files_are_passed_on() {
    let dir = folder();
    let root = dir.path().join("root");
    std::fs::write(root.join("d/e/index.php"), "code").unwrap();
    let conf = json!({"root": root.to_str().unwrap(), "index": [], "pass_index": ["index.php"], "try": ["$uri", "$uri/"]});
    let plugin = entry("static-files", conf).unwrap();
    let run = |line: &str| Case::new(&format!("{line} HTTP/1.1\nHost: h\n")).run(&plugin, Phase::Access);
    assert!(run("GET /d/e/?q").is_none());
    assert_eq!(run("GET /d/e").unwrap().status, 301);
    assert_eq!(run("GET /d/").unwrap().status, 403);
}

#[test]
fn existing_files_may_be_left_to_the_upstream() {
    let dir = folder();
    let conf = json!({"root": dir.path().join("root").to_str().unwrap(), "pass_found": true, "try": ["$uri"],
        "fallback": {"status": 404}});
    let plugin = entry("static-files", conf).unwrap();
    let run = |line: &str| Case::new(&format!("{line} HTTP/1.1\nHost: h\n")).run(&plugin, Phase::Access);
    assert!(run("GET /a.txt").is_none());
    assert!(run("POST /a.txt").is_none());
    assert_eq!(run("GET /none").unwrap().status, 404);
    assert_eq!(run("POST /none").unwrap().status, 404);
}

#[test]
fn existing_files_refuse_other_methods_although_the_fallback_takes_them() {
    let dir = folder();
    let conf = json!({"root": dir.path().join("root").to_str().unwrap(), "strict_methods": true, "try": ["$uri", "$uri/"],
        "fallback": {"pass": ""}});
    let plugin = entry("static-files", conf).unwrap();
    let run = |line: &str| Case::new(&format!("{line} HTTP/1.1\nHost: h\n")).run(&plugin, Phase::Access);
    assert_eq!(run("POST /a.txt").unwrap().status, 405);
    assert_eq!(run("DELETE /d/").unwrap().status, 405);
    assert!(run("POST /none").is_none());
    assert!(run("GET /none").is_none());
}

#[test]
fn redirects_have_a_status_and_a_slash_or_none() {
    let dir = folder();
    let check = |conf: Value, line: &str, expected: &str| {
        let reply = ask(&dir, &conf, line);
        let location = field(&reply, "location").unwrap_or_default();
        assert_eq!(format!("{} {location}", reply.status).trim_end(), expected, "{conf} {line}");
    };
    check(json!({"redirect_status": 308}), "GET /d?q", "308 /d/?q");
    check(json!({"prefix": "/p"}), "GET /p", "301 /p/");
    let files = json!({"redirect_status": 308, "redirect_files": true});
    check(files.clone(), "GET /a.txt/?q", "308 /a.txt?q");
    check(files.clone(), "GET /none/", "404");
    check(files.clone(), "POST /a.txt/", "405");
    check(
        json!({"try": ["$uri", "$uri/"], "skip_bare_folders": true, "fallback": "/a.txt"}),
        "GET /d/e/",
        "200",
    );
}

#[test]
fn types_and_dates_have_rules() {
    let dir = folder();
    std::fs::write(dir.path().join("root/plain"), "x").unwrap();
    let kind = |conf: Value, path: &str| {
        field(&ask(&dir, &conf, &format!("GET {path}")), "content-type").unwrap_or_default()
    };
    assert_eq!(kind(json!({}), "/plain"), "application/octet-stream");
    assert_eq!(kind(json!({"default_type": "text/x-own"}), "/plain"), "text/x-own");
    let only = json!({"types": {"html": "text/html"}, "only_types": true, "default_type": "text/x-own"});
    assert_eq!([kind(only.clone(), "/a.txt"), kind(only, "/d/")], ["text/x-own", "text/html"]);
    let date = field(&ask(&dir, &json!({}), "GET /a.txt"), "last-modified").unwrap();
    let later = "Fri, 01 Jan 2100 00:00:00 GMT";
    for (rule, own, after) in [("before", 304, 304), ("exact", 304, 200), ("off", 200, 200)] {
        let status = |since: &str| {
            let request = format!("GET /a.txt\nIf-Modified-Since: {since}");
            ask(&dir, &json!({"if_modified_since": rule}), &request).status
        };
        assert_eq!([status(&date), status(later)], [own, after], "{rule}");
    }
}

#[test]
fn paths_lead_to_files_and_never_out() {
    let dir = folder();
    let check = |conf: Value, line: &str, expected: &str| {
        assert_eq!(shown(&ask(&dir, &conf, line)), expected, "{conf} {line}");
    };
    let none = || json!({});
    check(none(), "GET /a.txt", "200 0123456789");
    check(none(), "GET /a.txt?q", "200 0123456789");
    check(none(), "GET /a.txt/", "404");
    check(none(), "GET /d/", "200 index");
    check(none(), "GET /d/e/", "404");
    check(json!({"index": ["none", "index.html"]}), "GET /d/", "200 index");
    check(none(), "GET /", "404");
    check(none(), "GET /none", "404");
    check(none(), "GET /empty", "200");
    check(none(), "POST /a.txt", "405");
    check(none(), "GET /../outside/o.txt", "404");
    check(none(), "GET /d/%2e%2e/a.txt", "404");
    check(none(), "GET /a.txt%00", "404");
    check(none(), "GET /.secret", "404");
    check(none(), "GET /.git/config", "404");
    check(json!({"hidden": true}), "GET /.secret", "200 s");
    check(json!({"hidden": true}), "GET /../outside/o.txt", "404");
    check(json!({"prefix": "/static"}), "GET /static/a.txt", "200 0123456789");
    check(json!({"prefix": "/static/"}), "GET /static/a.txt", "200 0123456789");
    check(json!({"prefix": "/static"}), "GET /statica.txt", "404");
    check(json!({"prefix": "/static"}), "GET /a.txt", "404");
    check(json!({"symlinks": "deny"}), "GET /in.txt", "404");
    check(none(), "GET /out.txt", "404");
    check(none(), "GET /out/o.txt", "404");
    check(json!({"symlinks": "deny"}), "GET /out/o.txt", "404");
    check(json!({"symlinks": "follow"}), "GET /out.txt", "200 outside");
    check(json!({"symlinks": "follow"}), "GET /out/o.txt", "200 outside");
}

#[test]
fn paths_without_a_file_have_a_fallback() {
    let dir = folder();
    let check = |conf: Value, line: &str, expected: &str| {
        assert_eq!(shown(&ask(&dir, &conf, line)), expected, "{conf} {line}");
    };
    let single_page = || json!({"fallback": "/d/index.html"});
    check(single_page(), "GET /any/view", "200 index");
    check(single_page(), "GET /a.txt", "200 0123456789");
    check(single_page(), "GET /.secret", "200 index");
    check(single_page(), "POST /any", "405");
    check(json!({"fallback": {"file": "/none"}}), "GET /any", "404");
    check(json!({"fallback": {"file": "/.secret"}}), "GET /any", "404");
    check(json!({"fallback": "/a.txt", "prefix": "/p"}), "GET /other", "200 0123456789");
    check(json!({"fallback": {"status": 410}}), "GET /any", "410");
    check(json!({"try": ["$uri", "$uri.txt"]}), "GET /a", "200 0123456789");
    check(json!({"try": ["$uri", "/a.txt"]}), "GET /none", "200 0123456789");
    check(json!({"try": ["$uri", "$uri/"]}), "GET /d/", "200 index");
    check(json!({"try": ["$uri", "$uri/"]}), "GET /d", "301");
    check(json!({"try": ["$uri", "$uri/"]}), "GET /d/e", "301");
    check(json!({"try": ["$uri", "/d/"]}), "GET /none", "200 index");
    check(json!({"try": ["$uri", "$uri/"]}), "GET /d/e/", "403");
    check(json!({"try": ["$uri", "$uri/"], "fallback": "/a.txt"}), "GET /d/f/", "200 0123456789");
    check(json!({"try": ["$arg_f"]}), "GET /?f=/../outside/o.txt", "404");
    let pass = |target: &str, line: &str| {
        let mut conf = json!({"fallback": {"pass": target}});
        conf["root"] = dir.path().join("root").to_str().unwrap().into();
        let plugin = entry("static-files", conf).unwrap();
        let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: h"));
        assert!(case.run(&plugin, Phase::Access).is_none(), "{line}");
        case.target()
    };
    assert_eq!(pass("/index.php$is_args$args", "GET /any?x=%201"), "/index.php?x=%201");
    assert_eq!(pass("/index.php?q=$uri&$args", "GET /a%20b?x=1"), "/index.php?q=/a%20b&x=1");
    assert_eq!(pass("", "GET /any?x"), "/any?x");
    assert_eq!(pass("/i", "POST /a.txt"), "/i");
}

#[test]
fn folders_are_listed_if_asked() {
    let dir = folder();
    let page = |conf: Value, line: &str| {
        let reply = ask(&dir, &conf, line);
        assert_eq!(field(&reply, "content-type").as_deref(), Some("text/html; charset=utf-8"));
        String::from_utf8(reply.body.unwrap()).unwrap()
    };
    let root = page(json!({"listing": true}), "GET /");
    assert!(root.contains("<a href=\"./a.txt\">a.txt</a>") && root.contains("<td>10</td>"), "{root}");
    assert!(root.find("./d/").unwrap() < root.find("./a.txt").unwrap(), "{root}");
    assert!(!root.contains("secret") && !root.contains("../"), "{root}");
    assert!(page(json!({"listing": true, "hidden": true}), "GET /").contains(".secret"));
    let empty = page(json!({"listing": true}), "GET /d/e/");
    assert!(empty.contains("<h1>Index of /d/e/</h1>") && empty.contains("href=\"../\""), "{empty}");
    assert_eq!(shown(&ask(&dir, &json!({"listing": true}), "GET /d/")), "200 index");
    assert_eq!(shown(&ask(&dir, &json!({"listing": true}), "GET /none/")), "404");
    assert_eq!(shown(&ask(&dir, &json!({"listing": true}), "GET /out/")), "404");
}

#[test]
fn folders_without_a_slash_are_elsewhere() {
    let dir = folder();
    let check = |line: &str, expected: &str| {
        let reply = ask(&dir, &json!({}), line);
        assert_eq!((reply.status, field(&reply, "Location").as_deref()), (301, Some(expected)));
    };
    check("GET /d", "/d/");
    check("GET /d?a=b", "/d/?a=b");
    check("GET //d", "/d/");
}

#[test]
fn heads_ranges_and_conditions() {
    let dir = folder();
    let plain = ask(&dir, &json!({"cache_control": "max-age=5"}), "GET /a.txt");
    let tag = field(&plain, "ETag").unwrap();
    let date = field(&plain, "Last-Modified").unwrap();
    assert_eq!(field(&plain, "Content-Type").as_deref(), Some("text/plain; charset=utf-8"));
    assert_eq!(field(&plain, "Cache-Control").as_deref(), Some("max-age=5"));
    assert_eq!(field(&plain, "Accept-Ranges").as_deref(), Some("bytes"));
    let check = |fields: String, expected: &str, content_range: Option<&str>| {
        let reply = ask(&dir, &json!({}), &format!("GET /a.txt\n{fields}"));
        assert_eq!(shown(&reply), expected, "{fields}");
        assert_eq!(field(&reply, "Content-Range").as_deref(), content_range, "{fields}");
        assert_eq!(field(&reply, "ETag").as_ref(), Some(&tag));
    };
    check("Range: bytes=2-4".into(), "206 234", Some("bytes 2-4/10"));
    check("Range: bytes=-2".into(), "206 89", Some("bytes 8-9/10"));
    check("Range: bytes=10-".into(), "416", Some("bytes */10"));
    check("Range: bytes=x".into(), "200 0123456789", None);
    check(format!("Range: bytes=2-4\nIf-Range: {tag}"), "206 234", Some("bytes 2-4/10"));
    check(format!("Range: bytes=2-4\nIf-Range: {date}"), "206 234", Some("bytes 2-4/10"));
    check("Range: bytes=2-4\nIf-Range: \"other\"".into(), "200 0123456789", None);
    check(format!("If-None-Match: {tag}"), "304", None);
    check(format!("If-Modified-Since: {date}"), "304", None);
    check("If-Match: \"other\"".into(), "412", None);
}

#[test]
fn several_ranges_are_parts() {
    let dir = folder();
    let reply = ask(&dir, &json!({}), "GET /a.txt\nRange: bytes=0-1,5-6");
    assert_eq!(reply.status, 206);
    let media_type = field(&reply, "Content-Type").unwrap();
    let boundary = media_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, text: &str| {
        format!(
            "--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Range: bytes {range}/10\r\n\r\n{text}\r\n"
        )
    };
    let expected = format!("{}{}--{boundary}--\r\n", part("0-1", "01"), part("5-6", "56"));
    assert_eq!(String::from_utf8(reply.body.unwrap()).unwrap(), expected);
}

/// Returns a folder in which files have precompressed siblings: `all` in every coding, the others in ways
/// that lead nowhere.
fn with_siblings() -> tempfile::TempDir {
    let dir = folder();
    let root = dir.path().join("root");
    for (name, text) in [
        ("all.html", "content"),
        ("all.html.br", "brotli"),
        ("all.html.zst", "standard"),
        ("all.html.gz", "gzipped"),
        ("d/index.html.gz", "gzipped index"),
        ("alone.txt.gz", "x"),
    ] {
        std::fs::write(root.join(name), text).unwrap();
    }
    std::fs::create_dir(root.join("a.txt.gz")).unwrap();
    std::os::unix::fs::symlink("../outside/o.txt", root.join("a.txt.br")).unwrap();
    std::os::unix::fs::symlink("all.html.zst", root.join("a.txt.zst")).unwrap();
    dir
}

#[test]
fn precompressed_files_are_served_to_clients_that_accept_them() {
    let dir = with_siblings();
    let check = |symlinks: &str, path: &str, accept: &str, expected: &str, coding: Option<&str>| {
        let conf = json!({"precompressed": ["br", "zstd", "gzip"], "symlinks": symlinks});
        let reply = ask(&dir, &conf, &format!("GET {path}\nAccept-Encoding: {accept}"));
        assert_eq!(shown(&reply), expected, "{path} {accept}");
        assert_eq!(field(&reply, "Content-Encoding").as_deref(), coding, "{path} {accept}");
        let vary = (reply.status == 200).then_some("Accept-Encoding");
        assert_eq!(field(&reply, "Vary").as_deref(), vary, "{path} {accept}");
    };
    check("inside", "/all.html", "gzip, br, zstd", "200 brotli", Some("br"));
    check("inside", "/all.html", "gzip, br;q=0.5, zstd;q=0.8", "200 gzipped", Some("gzip"));
    check("inside", "/all.html", "*, br;q=0", "200 standard", Some("zstd"));
    check("inside", "/all.html", "identity", "200 content", None);
    check("inside", "/all.html", "", "200 content", None);
    check("inside", "/d/", "br, gzip", "200 gzipped index", Some("gzip"));
    check("inside", "/alone.txt", "gzip", "404", None);
    // Neither a folder nor a way out.
    check("inside", "/a.txt", "gzip, br", "200 0123456789", None);
    check("inside", "/a.txt", "gzip, br, zstd", "200 standard", Some("zstd"));
    check("deny", "/a.txt", "gzip, br, zstd", "200 0123456789", None);
    check("follow", "/a.txt", "br", "200 outside", Some("br"));
    let plain = ask(&dir, &json!({}), "GET /all.html\nAccept-Encoding: br");
    assert_eq!((shown(&plain).as_str(), field(&plain, "Vary")), ("200 content", None));
}

#[test]
fn each_representation_has_its_own_tag_and_ranges() {
    let dir = with_siblings();
    let conf = json!({"precompressed": ["gzip"]});
    let ask = |fields: &str| ask(&dir, &conf, &format!("GET /all.html\n{fields}"));
    let tag = |fields: &str| field(&ask(fields), "ETag").unwrap();
    let (plain, gzip) = (tag("X: x"), tag("Accept-Encoding: gzip"));
    assert!(plain != gzip && gzip.ends_with("-gzip\""), "{plain} {gzip}");
    let check = |fields: String, expected: &str| {
        let reply = ask(&format!("Accept-Encoding: gzip\n{fields}"));
        assert_eq!(shown(&reply), expected, "{fields}");
        assert_eq!(
            (field(&reply, "ETag"), field(&reply, "Vary")),
            (Some(gzip.clone()), Some("Accept-Encoding".into()))
        );
    };
    let whole = ask("Accept-Encoding: gzip");
    assert_eq!(field(&whole, "Content-Type").as_deref(), Some("text/html; charset=utf-8"));
    check(format!("If-None-Match: {gzip}"), "304");
    check(format!("If-None-Match: {plain}"), "200 gzipped");
    check(format!("If-Match: {plain}"), "412");
    check("Range: bytes=0-1".into(), "206 gz");
    check(format!("Range: bytes=0-1\nIf-Range: {gzip}"), "206 gz");
    check(format!("Range: bytes=0-1\nIf-Range: {plain}"), "200 gzipped");
    check("Range: bytes=0-0,2-3".into(), "200 gzipped");
    check("Range: bytes=99-".into(), "416");
}

#[test]
fn wrong_configurations_are_refused() {
    let check = |conf: Value, expected: &str| {
        let refusal = refusal("static-files", &conf);
        assert!(refusal.contains(expected), "{conf}: {refusal}");
    };
    check(json!({}), "property \"root\" is required");
    check(json!({"root": "www"}), "failed to match pattern");
    check(json!({"root": "/", "precompressed": ["deflate"]}), "precompressed");
    check(json!({"root": "/", "prefix": "a"}), "`prefix` `a` does not begin with a slash");
    check(json!({"root": "/", "index": ["../x"]}), "failed to match pattern");
    check(json!({"root": "/", "types": {"a": "b"}}), "failed to match pattern");
}
