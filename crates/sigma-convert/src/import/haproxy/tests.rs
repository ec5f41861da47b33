//! Tests of the conversion as a whole.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, Import, import};

fn converted(text: &str) -> Import {
    let files = [SourceFile { name: "haproxy.cfg".to_owned(), text: text.to_owned() }];
    let mut access = MemoryFiles::default();
    access.files.insert("friends.lst".to_owned(), "127.0.0.40\n".to_owned());
    import(Format::Haproxy, &Input { files: &files, access: &access }).expect("a document")
}

fn routes(import: &Import) -> &Vec<Value> {
    import.document["routes"].as_array().expect("routes")
}

#[test]
fn rules_become_decisions_in_order() {
    let import = converted(
        "defaults\n mode http\nfrontend f\n bind :80\n acl a hdr(host) -i a.test\n http-request deny if { path_beg /x }\n \
         redirect scheme https if a !{ ssl_fc }\n use_backend b if a\n default_backend c\n\
         backend b\n http-request set-header X-B 1\n server s 10.0.0.1:80\n\
         backend c\n server s 10.0.0.2:80 weight 5 backup\n server t 10.0.0.3:81\n",
    );
    let routes = routes(&import);
    assert_eq!(routes.len(), 4);
    assert_eq!(routes[0]["uri"], "/x*");
    assert_eq!(routes[1]["hosts"], json!(["a.test"]));
    assert_eq!(routes[2]["upstream_id"], "b");
    assert_eq!(routes[2]["plugins"]["proxy-rewrite"]["headers"]["set"]["X-B"], "1");
    assert_eq!(routes[3]["upstream_id"], "c");
    let nodes = &import.document["upstreams"][1]["nodes"];
    assert_eq!(nodes[0], json!({"host": "10.0.0.2", "port": 80, "weight": 5}));
    assert_eq!(nodes[1]["priority"], 1);
}

#[test]
fn limits_become_plugins_with_a_filter() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n acl friend src -f friends.lst\n stick-table type ip size 1k store http_req_rate(60s)\n \
         http-request track-sc0 src\n http-request deny deny_status 429 if { sc_http_req_rate(0) gt 6 } !friend\n default_backend b\n\
         backend b\n mode http\n server s 10.0.0.1:80\n",
    );
    let plugin = &routes(&import)[0]["plugins"]["limit-count"];
    assert_eq!(
        (&plugin["count"], &plugin["time_window"], &plugin["rejected_code"]),
        (&json!(6), &json!(60), &json!(429))
    );
    assert_eq!(plugin["_meta"]["filter"], json!([["remote_addr", "!", "ipmatch", ["127.0.0.40"]]]));
    assert!(!import.report.has_open_guards());
}

#[test]
fn unknown_guards_close_later_routes() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n http-request deny if { lua.bad }\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n",
    );
    assert!(import.report.has_open_guards());
    assert!(routes(&import)[0]["desc"].as_str().is_some_and(|text| text.starts_with("closed: ")));
}

#[test]
fn agents_and_logins_without_a_counterpart_close_later_routes() {
    for line in [
        "filter spoe engine modsecurity config /etc/spoe.conf",
        "http-request send-spoe-group e g",
        "http-request redirect location /login if { lua.unknown }",
        "redirect location /login unless { lua.session }",
        "http-request set-var(txn.bad) lua.check\n http-request deny if { var(txn.bad) -m bool }",
    ] {
        let import = converted(&format!(
            "frontend f\n mode http\n bind :80\n {line}\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n"
        ));
        assert!(import.report.has_open_guards(), "{line}");
        let desc = routes(&import)[0]["desc"].clone();
        assert!(desc.as_str().is_some_and(|text| text.starts_with("closed: ")), "{line}");
    }
    let moved = "http-request redirect location /new code 301 if { lua.unknown }";
    let import = converted(&format!(
        "frontend f\n mode http\n bind :80\n {moved}\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n"
    ));
    assert!(!import.report.has_open_guards());
}

#[test]
fn users_become_basic_auth() {
    let import = converted(
        "userlist u\n user jo insecure-password password\nfrontend f\n mode http\n bind :80\n acl ok http_auth(u)\n \
         http-request auth realm R if { path_beg /a } !ok\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n",
    );
    let plugin = &routes(&import)[0]["plugins"]["basic-auth"];
    assert_eq!(plugin["users"], json!(["jo:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="]));
    assert_eq!(plugin["realm"], "R");
    assert_eq!(plugin["_meta"]["filter"], json!([["uri", "~~", "^/a"]]));
}

#[test]
fn sessions_are_chosen_by_name() {
    let import = converted(
        "frontend f\n mode tcp\n bind :443\n tcp-request inspect-delay 5s\n tcp-request content accept if { req_ssl_hello_type 1 }\n \
         use_backend a if { req_ssl_sni -i a.test }\n use_backend a if { req.ssl_sni -m end .b.test }\n default_backend c\n\
         backend a\n mode tcp\n server s 10.0.0.1:443\nbackend c\n mode tcp\n server s 10.0.0.2:443\n",
    );
    let streams = import.document["stream_routes"].as_array().expect("stream routes");
    let names: Vec<&Value> = streams.iter().map(|route| &route["sni"]).collect();
    assert_eq!(names, [&json!("a.test"), &json!("*.b.test"), &Value::Null]);
    assert_eq!(import.document["listeners"][0]["stream"], "tls");
    assert_eq!(streams[0]["tls"], "passthrough");
}

#[test]
fn every_line_has_a_remark() {
    let text = "global\n maxconn 100\ndefaults\n mode http\n option httplog\nfrontend f\n bind :80\n default_backend b\nbackend b\n server s 10.0.0.1:80 check\n";
    let import = converted(text);
    let mut lines: Vec<u32> = import.report.remarks.iter().map(|it| it.place.line).collect();
    lines.dedup();
    assert_eq!(lines, (1..=10).collect::<Vec<_>>());
    assert!(import.report.remarks.iter().all(|it| it.verdict != Verdict::NotPossible));
}

#[test]
fn the_example_of_the_page() {
    let (import, _) = super::super::testing::page_example(Format::Haproxy, "from-haproxy.md", "haproxy.cfg");
    let routes = routes(&import);
    assert_eq!(routes[0]["uri"], "/admin*");
    assert_eq!(routes[1]["upstream_id"], "api");
    assert!(routes[1]["plugins"]["proxy-rewrite"]["regex_uri"].is_array());
    assert_eq!((routes.len(), &routes[2]["upstream_id"]), (3, &json!("web")));
    assert_eq!((import.report.count(Verdict::Differs), import.report.count(Verdict::NotPossible)), (1, 0));
}

#[test]
fn groups_narrow_a_list_of_users() {
    let import = converted(
        "userlist u\n group admins users jo\n user jo insecure-password a\n user al insecure-password b\n user cy insecure-password c groups admins\n\
         frontend f\n mode http\n bind :80\n http-request auth unless { http_auth_group(u) admins }\n default_backend b\n\
         backend b\n mode http\n server s 10.0.0.1:80\n",
    );
    let users = &routes(&import)[0]["plugins"]["basic-auth"]["users"];
    let names: Vec<&str> =
        users.as_array().expect("users").iter().filter_map(|user| user.as_str()?.split(':').next()).collect();
    assert_eq!(names, ["jo", "cy"]);
}

#[test]
fn a_guard_without_a_counterpart_closes_the_requests_that_it_may_concern() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n http-request deny if { path_beg /a } { lua.unknown }\n\
         use_backend c if { path_beg /b } { lua.unknown }\n default_backend b\n\
         backend b\n mode http\n server s 10.0.0.1:80\nbackend c\n mode http\n server s 10.0.0.2:80\n",
    );
    assert!(import.report.has_open_guards());
    let routes = routes(&import);
    let closed: Vec<(&str, bool)> = routes
        .iter()
        .map(|route| (route["uri"].as_str().unwrap_or_default(), route.get("upstream_id").is_none()))
        .collect();
    assert_eq!(closed, [("/a*", true), ("/b*", true), ("/*", false)]);
    let import = converted(
        "frontend f\n mode http\n bind :80\n http-request deny unless { path_beg /a } { lua.unknown }\n default_backend b\n\
         backend b\n mode http\n server s 10.0.0.1:80\n",
    );
    assert!(
        import.document["routes"]
            .as_array()
            .expect("routes")
            .iter()
            .all(|it| it.get("upstream_id").is_none())
    );
}

#[test]
fn variables_may_be_set_under_conditions_and_after_their_use() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n acl is_api var(txn.kind) -m str api\n http-request set-var(txn.kind) str(api) if { path_beg /api }\n\
         http-request set-header X-Kind %[var(txn.kind)]\n http-request redirect location https://%[hdr(host),lower]/x if is_api\n default_backend b\n\
         backend b\n mode http\n server s 10.0.0.1:80\n",
    );
    assert_eq!(import.report.count(Verdict::NotPossible), 0, "{}", import.report.text());
    let routes = routes(&import);
    assert!(routes[0]["filter_func"].as_str().is_some_and(|code| code.contains("\"api\"")));
    let reply = &routes[0]["plugins"]["serverless-pre-function"];
    assert!(reply["functions"][0].as_str().is_some_and(|code| code.contains("return 302")), "{reply}");
    assert_eq!(reply["phase"], "access");
}

#[test]
fn cookies_of_applications_are_not_replaced() {
    let upstream = |mode: &str| {
        let import = converted(&format!(
            "frontend f\n mode http\n bind :80\n default_backend b\nbackend b\n mode http\n cookie SID {mode}\n server s 10.0.0.1:80 cookie s\n"
        ));
        import.document["upstreams"][0].clone()
    };
    assert!(upstream("insert indirect")["session_affinity"].is_object());
    for mode in ["prefix", "rewrite"] {
        let upstream = upstream(mode);
        assert_eq!(
            (upstream.get("session_affinity"), &upstream["stick_table"]["cookie"]),
            (None, &json!("SID"))
        );
    }
}

#[test]
fn guards_after_a_change_of_the_path_close_the_changed_paths() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n http-request replace-path ^/app(/.*)$ \\1\n \
         http-request deny if { path_beg /admin }\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n",
    );
    let routes = routes(&import);
    let desc = routes[0]["desc"].as_str().expect("a reason");
    assert!(desc.starts_with("closed: "), "{desc}");
    assert_eq!(routes[0]["vars"], json!([["uri", "~~", "^/app(/.*)$"]]));
    assert_eq!(
        (&routes[1]["uri"], &routes[1]["plugins"]["respond"]["status"]),
        (&json!("/admin*"), &json!(403))
    );
    assert!(import.report.has_open_guards());
}

#[test]
fn use_server_selects_one_server() {
    let import = converted(
        "frontend f\n mode http\n bind :80\n default_backend b\n\
         backend b\n mode http\n use-server two if { hdr(X-Use) two }\n server one 10.0.0.1:80\n server two 10.0.0.2:80 weight 0\n",
    );
    let routes = routes(&import);
    assert_eq!((&routes[0]["upstream_id"], &routes[1]["upstream_id"]), (&json!("b-two"), &json!("b")));
    assert!(routes[0]["vars"].to_string().contains("http_x_use"), "{}", routes[0]);
    let upstreams = import.document["upstreams"].as_array().expect("upstreams");
    let two = upstreams.iter().find(|upstream| upstream["id"] == "b-two").expect("an upstream");
    assert_eq!(two["nodes"], json!([{"host": "10.0.0.2", "port": 80, "weight": 1}]));
}

#[test]
fn sessions_are_selected_by_address() {
    let import = converted(
        "frontend f\n mode tcp\n bind :80\n acl local src 10.0.0.0/8\n use_backend a if local\n default_backend b\n\
         backend a\n mode tcp\n server s 10.0.0.1:80\nbackend b\n mode tcp\n server s 10.0.0.2:80\n",
    );
    let streams = import.document["stream_routes"].as_array().expect("stream routes");
    assert_eq!((&streams[0]["remote_addr"], &streams[0]["upstream_id"]), (&json!("10.0.0.0/8"), &json!("a")));
    assert_eq!((streams[1].get("remote_addr"), &streams[1]["upstream_id"]), (None, &json!("b")));
    assert!(!import.report.has_open_guards());
}

#[test]
fn hashes_of_fields_have_a_valid_key() {
    let import = converted(
        "listen l\n mode http\n bind :80\n balance hdr(X-User)\n server s 10.0.0.1:80\n server t 10.0.0.2:80\n",
    );
    let upstream = &import.document["upstreams"][0];
    assert_eq!(
        (&upstream["hash_on"], &upstream["key"]),
        (&json!("vars_combinations"), &json!("$http_x_user"))
    );
}
