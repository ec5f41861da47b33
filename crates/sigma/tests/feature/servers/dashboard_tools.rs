//! The tools of the dashboard in a real browser: search of plugins, last errors, commands, import.

use serde_json::json;
use sigma_testkit::{Origin, free_port, until};

use super::browser::Browser;
use super::dashboard::{log_in, page};
use crate::PATIENCE;
use crate::managed::{EMBEDDED, KEY, admin, answerer, await_answerer, start};

#[test]
fn plugins_are_found_by_description_and_phase() {
    let gateway = start(EMBEDDED);
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/plugins"));
    browser.await_text("Limits requests per time window");
    browser.write("//input[@id='search']", "window access traffic");
    browser.await_true(
        "[...document.querySelectorAll('tbody th')].some((one) => one.innerText === 'limit-count')",
    );
    browser.await_true(
        "![...document.querySelectorAll('tbody th')].some((one) => one.innerText === 'key-auth')",
    );
    browser.picture("plugins-found");
    browser.write("//input[@id='search']", "xyzzy");
    browser.await_text("No plugin matches.");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_overview_shows_the_way_of_a_request() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let node = format!("127.0.0.1:{}", origin.port());
    operator.put("upstreams/shop", &json!({"nodes": {&node: 1}})).unwrap();
    operator.put("services/s", &json!({"name": "orders", "upstream_id": "shop"})).unwrap();
    operator.put("routes/r", &json!({"uri": "/orders/*", "service_id": "s"})).unwrap();
    operator
        .put("routes/other", &json!({"uri": "/other", "upstream": {"nodes": {"127.0.0.1:1": 1}}}))
        .unwrap();
    await_answerer(&gateway, "/orders/1", "a");
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/overview"));
    for text in ["/orders/*", "orders", "1 of 1 in use", &node, "inline, routes/other"] {
        browser.await_text(text);
    }
    assert_eq!(browser.eval("return document.querySelectorAll('.overview .edge').length;"), json!(5));
    browser.picture("overview");
    // The search keeps the items on the way of its hits.
    browser.write("//input[@type='search']", &node);
    browser.await_true("document.querySelectorAll('.overview .box').length === 4");
    browser.write("//input[@type='search']", " xyzzy");
    browser.await_text("Nothing matches.");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_last_errors_have_reasons_while_they_are_watched() {
    let gateway = start(EMBEDDED);
    let closed = format!("127.0.0.1:{}", free_port());
    admin(&gateway).put("routes/n", &json!({"uri": "/n", "upstream": {"nodes": {&closed: 1}}})).unwrap();
    await_answerer(&gateway, "/n", "502");
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.press("Watch errors");
    browser.await_text("Watching.");
    // The tap is open some moment after the page has requested it.
    let is_shown = until(PATIENCE, || {
        assert_eq!(answerer(&gateway, "/n"), "502");
        browser.eval("return document.body.innerText.includes('GET /n');") == json!(true)
    });
    assert!(is_shown, "{}", browser.eval("return document.body.innerText;"));
    browser.await_text("Start the service");
    browser.picture("errors");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_tested_request_is_offered_as_a_command() {
    let gateway = start(EMBEDDED);
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/tester"));
    browser.write("//input[@id='url']", "shop.test/a?b=c");
    browser.write("//textarea[@id='headers']", "X-Name: it's");
    browser.press("Explain");
    browser.await_text("no route");
    browser.await_text(r"curl -i -H 'X-Name: it'\''s' 'http://shop.test/a?b=c'");
    browser.press("Copy as curl");
    browser.await_text("Copied.");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Gives the page a file as an operator would choose it.
const CHOOSE_FILE: &str = "
    const files = new DataTransfer();
    files.items.add(new File([TEXT], 'all.json', { type: 'application/json' }));
    document.getElementById('file').files = files.files;";

#[test]
fn all_resources_are_replaced_after_a_review() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let route = |uri: &str| json!({"uri": uri, "plugins": {"key-auth": {}}});
    operator.put("routes/kept", &route("/kept")).unwrap();
    operator.put("routes/gone", &route("/gone")).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/transfer"));
    browser.await_text("Download all resources");
    browser.picture("transfer");
    let mut all = operator.get("/apisix/admin/configs").unwrap();
    let routes = all["routes"].as_array_mut().unwrap();
    routes.retain(|one| one["id"] != "gone");
    routes
        .push(json!({"id": "new", "uri": "/new", "plugins": {}, "upstream": {"nodes": {"127.0.0.1:1": 1}}}));
    let choose = |text: &str| browser.eval(&CHOOSE_FILE.replace("TEXT", &json!(text).to_string()));
    choose("{");
    browser.press("Review and import");
    browser.await_text("The file is not valid JSON");
    choose(&all.to_string());
    browser.press("Review and import");
    browser.await_true("document.querySelector('dialog[open]')");
    browser.await_text("routes/gone");
    browser.picture("import");
    browser.press("Cancel");
    browser.await_true("!document.querySelector('dialog')");
    assert_eq!(operator.get("/apisix/admin/routes/gone").unwrap()["value"]["uri"], "/gone");
    browser.press("Review and import");
    browser.press("Import");
    browser.await_true("location.hash === '#/history'");
    let left = operator.get("/apisix/admin/routes").unwrap();
    let uris: Vec<_> =
        left["list"].as_array().unwrap().iter().map(|one| one["value"]["uri"].clone()).collect();
    assert_eq!(uris, ["/kept", "/new"]);
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The report has a line without a counterpart; the resources that were there stay.
#[test]
fn files_of_another_gateway_are_converted_and_added() {
    const CHOOSE: &str = "
        const files = new DataTransfer();
        files.items.add(new File([TEXT], 'nginx.conf'));
        document.getElementById('foreign').files = files.files;";
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let kept = json!({"uri": "/kept", "upstream": {"nodes": {"127.0.0.1:1": 1}}});
    operator.put("routes/kept", &kept).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/transfer"));
    let text = "http { server { listen 80; location /shop/ { proxy_pass http://127.0.0.1:1; xslt_types text/xml; } } }";
    browser.await_text("Files, with those that they include");
    browser.eval(&CHOOSE.replace("TEXT", &json!(text).to_string()));
    browser.press("Convert");
    browser.await_text("xslt_types");
    browser.picture("convert");
    browser.press("Review and add");
    browser.await_true("document.querySelector('dialog[open]')");
    browser.press("Import");
    browser.await_true("location.hash === '#/history'");
    let left = operator.get("/apisix/admin/routes").unwrap().to_string();
    assert!(left.contains("/kept") && left.contains("/shop/"), "{left}");
    assert_eq!(browser.complaints(), [""; 0]);
}
