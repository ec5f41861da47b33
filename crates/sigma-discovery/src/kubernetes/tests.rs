//! An API server on the wire: the responses come from version 1.34.

use serde_json::json;

use super::*;
use crate::list_watch::ListWatch;
use crate::scripted::Scripted;
use crate::source::Source;

fn environment(name: &str) -> Option<String> {
    (name == "TEST_TOKEN").then(|| "from-environment".to_owned())
}

fn source(server: &Scripted, more: Value) -> ListWatch<Endpoints> {
    let base = server.address().base().to_owned();
    let port = base.rsplit_once(':').expect("a port").1;
    let mut settings = json!({
        "service": { "schema": "http", "host": "127.0.0.1", "port": port }, "client": { "token": "hush" }
    });
    settings.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    let settings: Cluster = serde_json::from_value(settings).expect("settings");
    ListWatch::new(Endpoints::with(&settings, environment, &Env::of(10, 20)), &Env::default())
}

fn endpoints(namespace: &str, name: &str, hosts: &[&str]) -> Value {
    let addresses: Vec<Value> = hosts.iter().map(|ip| json!({ "ip": ip, "nodeName": "n1" })).collect();
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": "1", "resourceVersion": "7"},
        "subsets": [{
            "addresses": addresses, "notReadyAddresses": [{"ip": "10.9.9.9"}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"port": 9090, "protocol": "TCP"}]
        }]
    })
}

fn slice(name: &str, service: &str, endpoints: Value) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "resourceVersion": "8",
            "labels": {"kubernetes.io/service-name": service}
        },
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]
    })
}

fn ready(host: &str) -> Value {
    json!({ "addresses": [host], "conditions": {"ready": true, "serving": true, "terminating": false}, "zone": "z1" })
}

fn terminating(host: &str, serving: bool) -> Value {
    json!({ "addresses": [host], "conditions": {"ready": false, "serving": serving, "terminating": true} })
}

fn list(revision: &str, further: &str, items: &[Value]) -> String {
    let metadata = json!({ "resourceVersion": revision, "continue": further });
    json!({ "kind": "EndpointsList", "apiVersion": "v1", "metadata": metadata, "items": items }).to_string()
}

fn events(events: &[(&str, &str, Value)]) -> String {
    let event = |(kind, revision, object): &(&str, &str, Value)| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = (*revision).into();
        format!("{}\n", json!({ "type": kind, "object": object }))
    };
    events.iter().map(event).collect()
}

fn shown(listing: Result<Listing, Trouble>) -> Vec<String> {
    let of = |service: &str, nodes: &[Node]| {
        let node = |node: &Node| format!("{}:{}*{}", node.host, node.port.unwrap_or(0), node.weight);
        format!("{service} = {}", nodes.iter().map(node).collect::<Vec<_>>().join(" "))
    };
    listing.expect("a listing").iter().map(|(service, nodes)| of(service, nodes)).collect()
}

#[tokio::test]
async fn endpoints_are_listed_by_pages_and_watched() {
    let server = Scripted::start();
    let mut source = source(&server, json!({ "label_selector": "a=b,c" }));
    server.answer(
        "200 OK",
        "",
        &list("5", "next page", &[endpoints("default", "web", &["10.0.0.1", "10.0.0.2"])]),
    );
    let malformed = [json!({}), json!(7), json!({"metadata": {"name": "x"}}), json!(null)];
    let page: Vec<Value> = malformed.into_iter().chain([endpoints("shop", "api", &[])]).collect();
    server.answer("200 OK", "", &list("6", "", &page));
    let web = [
        "default/web:9090 = 10.0.0.1:9090*50 10.0.0.2:9090*50",
        "default/web:http = 10.0.0.1:8080*50 10.0.0.2:8080*50",
    ];
    let api = ["shop/api:9090 = ", "shop/api:http = "];
    assert_eq!(shown(source.next().await), [web, api].concat());
    assert!(!source.is_certain(), "a list that was read may be too short");
    let first = "/api/v1/endpoints?labelSelector=a%3Db%2Cc&limit=500";
    assert_eq!(server.asked("authorization"), (first.to_owned(), Some("Bearer hush".to_owned())));
    assert_eq!(server.asked("host").0, format!("{first}&continue=next%20page"));

    let told = events(&[
        ("MODIFIED", "8", endpoints("default", "web", &["10.0.0.2"])),
        ("DELETED", "9", endpoints("shop", "api", &[])),
        ("ADDED", "10", endpoints("shop", "new", &["unix:/s", "10.0.1.1"])),
        ("BOOKMARK", "12", json!({ "kind": "Endpoints", "apiVersion": "v1", "metadata": {} })),
    ]);
    server.answer("200 OK", "", &told);
    let web = ["default/web:9090 = 10.0.0.2:9090*50", "default/web:http = 10.0.0.2:8080*50"];
    let new = ["shop/new:9090 = 10.0.1.1:9090*50", "shop/new:http = 10.0.1.1:8080*50"];
    assert_eq!(shown(source.next().await), [web, new].concat());
    assert!(source.is_certain(), "a message says what is gone");
    let watch = "/api/v1/endpoints?labelSelector=a%3Db%2Cc&watch=true&allowWatchBookmarks=true&timeoutSeconds=240&resourceVersion=";
    assert_eq!(server.asked("host").0, format!("{watch}6"));
    // The next watch begins after the bookmark.
    server.answer("200 OK", "", &events(&[("DELETED", "13", endpoints("default", "web", &[]))]));
    assert_eq!(shown(source.next().await), new);
    assert_eq!(server.asked("host").0, format!("{watch}12"));
}

#[tokio::test]
async fn slices_of_a_service_are_one_list_of_ready_or_serving_endpoints() {
    let server = Scripted::start();
    let mut source =
        source(&server, json!({ "id": "first", "watch_endpoint_slices": true, "default_weight": 3 }));
    let unlabelled = json!({ "metadata": {"name": "x", "namespace": "shop", "resourceVersion": "1"} });
    server.answer(
        "200 OK",
        "",
        &list(
            "5",
            "",
            &[
                slice("web-a", "web", json!([ready("10.0.0.1"), terminating("10.0.0.2", true)])),
                slice("web-b", "web", json!([ready("10.0.0.1"), { "addresses": ["10.0.0.3"] }])),
                slice("old-a", "old", json!([terminating("10.0.0.4", true), terminating("10.0.0.5", false)])),
                unlabelled,
            ],
        ),
    );
    let old = "first/shop/old:http = 10.0.0.4:8080*3";
    let listing = source.next().await.expect("a listing");
    let zone = listing["first/shop/web:http"][0].metadata.as_ref().map(|metadata| metadata["zone"].clone());
    assert_eq!(zone, Some(json!("z1")));
    assert_eq!(shown(Ok(listing)), [old, "first/shop/web:http = 10.0.0.1:8080*3 10.0.0.3:8080*3"]);
    assert_eq!(server.asked("host").0, "/apis/discovery.k8s.io/v1/endpointslices?limit=500");
    // A slice changes its service: it is gone from the former.
    server.answer(
        "200 OK",
        "",
        &events(&[("MODIFIED", "6", slice("web-a", "old", json!([ready("10.0.0.1")])))]),
    );
    let want =
        ["first/shop/old:http = 10.0.0.4:8080*3", "first/shop/web:http = 10.0.0.1:8080*3 10.0.0.3:8080*3"];
    let got = shown(source.next().await);
    assert_eq!(got, ["first/shop/old:http = 10.0.0.1:8080*3", want[1]]);
}

#[tokio::test]
async fn forgotten_history_is_listed_again() {
    let server = Scripted::start();
    let mut source = source(&server, json!({}));
    let web = |host: &str| list("5", "", &[endpoints("default", "web", &[host])]);
    server.answer("200 OK", "", &web("10.0.0.1"));
    assert!(source.next().await.is_ok());
    let status = json!({ "kind": "Status", "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410 });
    let lost = [
        ("200 OK", format!("{}\n", json!({ "type": "ERROR", "object": status }))),
        ("410 Gone", status.to_string()),
        ("200 OK", "{\"type\": 1}\n".to_owned()),
    ];
    for (at, (line, body)) in lost.iter().enumerate() {
        server.answer(line, "", body);
        server.answer("200 OK", "", &web(&format!("10.0.1.{}", at + 1)));
        let got = shown(source.next().await);
        assert_eq!(got[1], format!("default/web:http = 10.0.1.{}:8080*50", at + 1), "{body}");
    }
}

#[tokio::test]
async fn namespaces_are_selected() {
    let check = async |selector: Value, target: &str, want: &[&str]| {
        let server = Scripted::start();
        let mut source = source(&server, json!({ "namespace_selector": selector }));
        let items = ["a", "ab", "kube-system"].map(|namespace| endpoints(namespace, "web", &["10.0.0.1"]));
        server.answer("200 OK", "", &list("5", "", &items));
        let got = shown(source.next().await);
        let namespaces: Vec<&str> = got.iter().step_by(2).filter_map(|line| line.split('/').next()).collect();
        assert_eq!((server.asked("host").0.as_str(), &namespaces[..]), (target, want));
    };
    check(json!({}), "/api/v1/endpoints?limit=500", &["a", "ab", "kube-system"]).await;
    check(json!({ "equal": "a" }), "/api/v1/namespaces/a/endpoints?limit=500", &["a"]).await;
    let not = "/api/v1/endpoints?fieldSelector=metadata.namespace%21%3Da&limit=500";
    check(json!({ "not_equal": "a" }), not, &["ab", "kube-system"]).await;
    check(json!({ "match": ["a", "kube-.*"] }), "/api/v1/endpoints?limit=500", &["a", "kube-system"]).await;
    check(json!({ "not_match": ["kube-.*"] }), "/api/v1/endpoints?limit=500", &["a", "ab"]).await;
}

#[tokio::test]
async fn tokens_come_from_the_environment_or_a_file_that_is_read_each_time() {
    let server = Scripted::start();
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("token");
    std::fs::write(&file, "first\n").expect("a token");
    let mut source_of_file = source(&server, json!({ "client": { "token_file": file } }));
    server.answer("500 Internal Server Error", "", "");
    assert!(source_of_file.next().await.is_err());
    std::fs::write(&file, "second\n").expect("a token");
    server.answer("200 OK", "", &list("5", "", &[]));
    assert!(source_of_file.next().await.is_ok());
    let mut source_of_variable = source(&server, json!({ "client": { "token": "${TEST_TOKEN}" } }));
    server.answer("200 OK", "", &list("5", "", &[]));
    assert!(source_of_variable.next().await.is_ok());
    for token in ["first", "second", "from-environment"] {
        assert_eq!(server.asked("authorization").1, Some(format!("Bearer {token}")));
    }
    for (client, want) in [
        (json!({ "token": "${NO_TOKEN}" }), "`NO_TOKEN` is not set"),
        (json!({ "token_file": "/nowhere/t" }), "cannot read /nowhere/t"),
    ] {
        let trouble = source(&server, json!({ "client": client })).next().await.expect_err("an error");
        assert!(trouble.0.contains(want), "{trouble}");
    }
    let nowhere = json!({ "service": {} });
    let trouble = source(&server, nowhere).next().await.expect_err("an error");
    assert!(trouble.0.contains("`KUBERNETES_SERVICE_HOST` is not set"), "{trouble}");
}

#[tokio::test]
async fn invalid_lists_are_errors() {
    let server = Scripted::start();
    let mut source = source(&server, json!({}));
    let many: Vec<Value> = (0..21).map(|n| endpoints("a", &format!("s{n}"), &[])).collect();
    // Few ports and addresses make many endpoints.
    let hosts: Vec<String> = (1..12).map(|n| format!("10.0.0.{n}")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let wide = [endpoints("a", "web", &hosts)];
    let lies = ["", "{}", "{\"metadata\": {}, \"items\": 1}", "{\"items\": []}"];
    for lie in lies.into_iter().chain([&*list("1", "", &many), &list("1", "", &wide)]) {
        server.answer("200 OK", "", lie);
        assert!(source.next().await.is_err(), "{lie}");
    }
    for status in ["401 Unauthorized", "403 Forbidden", "302 Found"] {
        server.answer(status, "Location: http://127.0.0.1:1/\r\n", &list("1", "", &[]));
        assert!(source.next().await.is_err(), "{status}");
    }
    server.answer("200 OK", "", "{\"metadata\": {\"resourceVersion\": \"1\"}, \"items\": null}");
    assert_eq!(shown(source.next().await), [""; 0]);
}
