//! The dashboard in a real browser.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use super::browser::Browser;
use crate::PATIENCE;
use crate::managed::{EMBEDDED, KEY, VIEWER, admin, answerer, await_answerer, start};

pub(super) fn page(gateway: &Gateway, hash: &str) -> String {
    format!("http://{}/ui/{hash}", gateway.admin_address())
}

pub(super) fn log_in(browser: &Browser, gateway: &Gateway, key: &str) {
    browser.go(&page(gateway, ""));
    browser.write("//input[@id='key']", key);
    browser.press("Log in");
}

/// Makes a resource from its text; shows the differences first.
pub(super) fn create(browser: &Browser, gateway: &Gateway, collection: &str, id: &str, value: &Value) {
    browser.go(&page(gateway, &format!("#/resource/{collection}/")));
    browser.write("//input[@id='id']", id);
    browser.press("JSON");
    browser.write("//textarea[@id='json']", &value.to_string());
    browser.press("Review and save");
    browser.await_true("document.querySelector('dialog .added')");
    browser.press("Save");
    browser.await_true(&format!("location.hash === '#/resources/{collection}'"));
    browser.await_text(id);
}

/// The modules that need no page, in Node.js.
#[test]
fn modules_work_as_described() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard/test/lib.test.js");
    let output = Command::new("node").arg("--test").arg(tests).output().expect("Node.js runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn an_operator_changes_breaks_and_repairs_a_route() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let browser = Browser::start();
    log_in(&browser, &gateway, "no key at all");
    browser.await_text("does not accept this key");
    browser.picture("login");
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    let node = format!("127.0.0.1:{}", origin.port());
    create(&browser, &gateway, "upstreams", "u", &json!({"type": "roundrobin", "nodes": {node: 1}}));
    create(
        &browser,
        &gateway,
        "routes",
        "r",
        &json!({"uri": "/hello", "methods": ["GET"], "upstream_id": "u"}),
    );
    await_answerer(&gateway, "/hello", "a");

    browser.go(&page(&gateway, "#/live"));
    browser.await_text("Up for");
    // The consumer of a request, with its errors, while the page is open.
    let key_auth = json!({"username": "jack", "plugins": {"key-auth": {"key": "heron"}}});
    admin(&gateway).put("consumers/jack", &key_auth).unwrap();
    let nobody = json!({"type": "roundrobin", "nodes": {"127.0.0.1:1": 1}});
    let broken = json!({"uri": "/broken", "plugins": {"key-auth": {}}, "upstream": nobody});
    create(&browser, &gateway, "routes", "broken", &broken);
    browser.go(&page(&gateway, "#/live"));
    let is_seen = until(PATIENCE, || {
        let request = "GET /broken HTTP/1.1\r\nHost: h\r\napikey: heron\r\n\r\n";
        gateway.connect().unwrap().ask(request).unwrap();
        browser.eval("return document.body.innerText.includes('Consumers with errors');") == json!(true)
    });
    assert!(is_seen, "{}", browser.eval("return document.body.innerText;"));
    browser.await_true("document.querySelectorAll(\"a[href='#/resource/consumers/jack']\").length === 2");
    let is_seen = until(PATIENCE, || {
        assert_eq!(answerer(&gateway, "/hello"), "a");
        assert_eq!(answerer(&gateway, "/nothing"), "404");
        browser.eval("return Boolean(document.querySelector(\"a[href='#/resource/routes/r']\"));")
            == json!(true)
    });
    assert!(is_seen, "{}", browser.eval("return document.body.innerText;"));
    let axes = "return [...document.querySelectorAll('.chart')].map((chart) => [chart.querySelector('.y-axis').lastChild.textContent, chart.querySelector('.x-axis').textContent]);";
    let times = "60 s ago30 s agonow";
    assert_eq!(browser.eval(axes), json!([["0/s", times], ["0 ms", times]]));
    browser.await_text("Latencies are accurate to within 19 %.");
    browser.picture("live");

    // A method that does not exist is refused, and the field says so.
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.write(r#"//div[@data-path='["methods"]']/textarea"#, "NOPE");
    browser.press("Review and save");
    browser.await_true("document.querySelector('[aria-invalid=true]')?.id === document.activeElement.id");
    let error = browser.eval("return document.querySelector('.field.invalid .field-error').textContent;");
    assert_eq!(error, "matches none of the enum values");
    browser.picture("error");
    assert_eq!(answerer(&gateway, "/hello"), "a");

    browser.write(r#"//div[@data-path='["methods"]']/textarea"#, "GET");
    browser.write(r#"//div[@data-path='["uri"]']/input"#, "/other");
    browser.press("Review and save");
    browser
        .await_true("document.querySelector('dialog .removed') && document.querySelector('dialog .added')");
    browser.picture("diff");
    browser.press("Save");
    await_answerer(&gateway, "/other", "a");
    await_answerer(&gateway, "/hello", "404");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn an_operator_rolls_back_and_explains_a_request() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let route = |uri: &str| {
        let limit = json!({"limit-count": {"count": 1000, "time_window": 600}});
        json!({"uri": uri, "plugins": limit, "upstream": crate::managed::upstream(&origin)})
    };
    operator.put("routes/r", &route("/first")).unwrap();
    await_answerer(&gateway, "/first", "a");
    operator.put("routes/r", &route("/second")).unwrap();
    await_answerer(&gateway, "/second", "a");
    let history = operator.get("/apisix/admin/history?key=routes/r").unwrap();
    let version = history["list"].as_array().unwrap().last().unwrap()["version"].clone();

    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/history"));
    browser.click(&format!("//a[@href='#/history/{version}']"));
    browser.press("Roll back to this version");
    browser.await_true(
        "[...document.querySelectorAll('dialog .added')].some((line) => line.textContent.includes('/first'))",
    );
    browser.picture("rollback");
    // Cancelling the question changes nothing.
    browser.press("Cancel");
    browser.await_true("!document.querySelector('dialog')");
    assert_eq!(answerer(&gateway, "/second"), "a");
    browser.press("Roll back to this version");
    browser.press("Roll back");
    browser.await_true("location.hash === '#/history'");
    browser.await_text(&format!("restored version {version}: routes/r"));
    await_answerer(&gateway, "/first", "a");
    await_answerer(&gateway, "/second", "404");

    browser.go(&page(&gateway, "#/tester"));
    browser.write("//input[@id='url']", "http://shop.test/first?x=1");
    browser.press("Explain");
    browser.await_text("by routes/r");
    browser.await_text("GET /first?x=1");
    browser.await_text("matched");
    // The limit has counted the requests above.
    browser.await_text("of 1,000 requests left");
    browser.picture("explained");
    browser.write("//input[@id='url']", "http://shop.test/second");
    browser.press("Explain");
    browser.await_text("no route");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn every_view_fits_a_narrow_page_and_keys_lead_there() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let node = format!("127.0.0.1:{}", origin.port());
    operator
        .put(
            "upstreams/a-name-that-is-quite-long-and-has-no-spaces-in-it-at-all",
            &json!({"nodes": {node: 1}}),
        )
        .unwrap();
    operator
        .put("routes/r", &json!({"uri": "/a", "plugins": {"limit-count": {"count": 1, "time_window": 60}}}))
        .unwrap();
    operator
        .put("consumers/jack", &json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}}}))
        .unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    for (keys, hash, text) in [
        ("gn", "#/nodes", "in use"),
        ("gr", "#/resources/routes", "/a"),
        ("gu", "#/resources/upstreams", "a-name-that"),
        ("gt", "#/tester", "Route tester"),
        ("gc", "#/certificates", "In use"),
        ("gp", "#/plugins", "limit-count"),
        ("gs", "#/gateway", "Up to date (revision"),
        ("gm", "#/members", "this gateway"),
        ("gl", "#/live", "Since the start"),
    ] {
        browser.keys(keys);
        browser.await_true(&format!("location.hash === '{hash}'"));
        browser.await_text(text);
        browser.picture(hash.trim_start_matches("#/").replace('/', "-").as_str());
    }
    for (hash, text, name) in [
        ("#/resource/routes/r", "time_window", "route"),
        ("#/resource/upstreams/", "New upstream", "new-upstream"),
        ("#/plugins/limit-count", "Configuration", "plugin"),
        ("#/resources/consumers/jack/credentials", "There is no credential", "credentials"),
    ] {
        browser.go(&page(&gateway, hash));
        browser.await_text(text);
        browser.picture(name);
    }
    browser.keys("?");
    browser.await_text("Keyboard shortcuts");
    browser.picture("shortcuts");
    // No request went to another host.
    let foreign = "return performance.getEntriesByType('resource').map((one) => new URL(one.name).host).filter((host) => host !== location.host);";
    assert_eq!(browser.eval(foreign), json!([]));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_viewer_finds_nothing_to_write_with() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {"key-auth": {}}})).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, VIEWER);
    browser.await_text("viewer");
    browser.go(&page(&gateway, "#/resources/routes"));
    browser.await_text("/a");
    assert_eq!(browser.eval("return document.body.innerText.includes('New route');"), json!(false));
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.await_text("cannot change resources");
    let writable = "return [...document.querySelectorAll('main input, main select, main textarea')].filter((one) => !one.disabled && !one.readOnly).length;";
    assert_eq!(browser.eval(writable), json!(0));
    let buttons = "return [...document.querySelectorAll('main button')].filter((one) => one.role !== 'tab' && one.checkVisibility()).map((one) => one.textContent);";
    assert_eq!(browser.eval(buttons), json!([]));
    // The key goes with the tab.
    browser.press("Log out");
    browser.await_text("Admin key");
    assert_eq!(browser.eval("return sessionStorage.length + localStorage.length;"), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
}
