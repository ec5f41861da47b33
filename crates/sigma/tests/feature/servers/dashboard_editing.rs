//! Writes of the dashboard in a real browser: dialogs, reviews and results.

use serde_json::json;
use sigma_testkit::{Gateway, free_port, until};

use super::browser::Browser;
use super::dashboard::{log_in, page};
use crate::managed::{EMBEDDED, KEY, admin, await_admin, config, start};
use crate::{PATIENCE, SIGMA};

/// Holds back writes from here on until `release()` is called. A dry run is no write.
const HOLD_WRITES: &str = "
    const real = window.fetch;
    window.held = [];
    window.fetch = (target, options = {}) => {
        const isWrite = options.method !== 'GET' && !String(target).includes('dry_run');
        if (!isWrite) return real(target, options);
        return new Promise((resolve) => window.held.push(() => resolve(real(target, options))));
    };
    window.release = () => window.held.splice(0).forEach((send) => send());";

/// Holds back dry runs in the same way.
const HOLD_DRY_RUNS: &str = "
    const real = window.fetch;
    window.held = [];
    window.fetch = (target, options = {}) => {
        if (!String(target).includes('dry_run')) return real(target, options);
        return new Promise((resolve, reject) => {
            options.signal?.addEventListener('abort', () => reject(options.signal.reason));
            window.held.push(() => resolve(real(target, { ...options, signal: undefined })));
        });
    };
    window.release = () => window.held.splice(0).forEach((send) => send());";

fn change_path(browser: &Browser, to: &str) {
    browser.write("//div[@data-path='[\"uri\"]']/input", to);
    browser.press("Review and save");
}

#[test]
fn a_dialog_closes_when_its_page_is_left() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {"key-auth": {}}})).unwrap();
    let stored = || operator.get("/apisix/admin/routes/r").unwrap()["value"]["uri"].clone();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    for leave in [
        "history.back();",
        "document.querySelector(\"a[href='#/live']\").click();",
        "location.hash = '#/live';",
    ] {
        browser.go(&page(&gateway, "#/live"));
        browser.await_text("Live traffic");
        browser.go(&page(&gateway, "#/resource/routes/r"));
        change_path(&browser, "/b");
        browser.await_true("document.querySelector('dialog[open] .added')");
        browser.eval(leave);
        browser.await_true("location.hash === '#/live'");
        browser.await_true("!document.querySelector('dialog')");
        assert_eq!(stored(), "/a", "{leave}");
    }
    for (hash, button) in [("#/resource/routes/r", "Delete"), ("#/history/1", "Roll back to this version")] {
        browser.go(&page(&gateway, hash));
        browser.press(button);
        browser.await_true("document.querySelector('dialog[open]')");
        browser.eval("location.hash = '#/plugins';");
        browser.await_true("!document.querySelector('dialog')");
        assert_eq!(stored(), "/a", "{button}");
    }
    browser.keys("?");
    browser.await_true("document.querySelector('dialog[open]')");
    browser.eval("location.hash = '#/live';");
    browser.await_true("!document.querySelector('dialog')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_result_of_a_write_is_not_shown_on_another_page() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {"key-auth": {}}})).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    let is_quiet = "location.hash === '#/plugins' && !document.querySelector('dialog') \
                    && document.getElementById('status').textContent === ''";

    // A write that was sent comes to its end, without a word and without a move to another page.
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.eval(HOLD_WRITES);
    change_path(&browser, "/b");
    browser.press("Save");
    browser.await_true("window.held.length === 1");
    browser.eval("location.hash = '#/plugins';");
    browser.await_text("limit-count");
    browser.eval("window.release();");
    let is_stored =
        || operator.get("/apisix/admin/routes/r").is_ok_and(|route| route["value"]["uri"] == "/b");
    assert!(until(PATIENCE, is_stored));
    browser.await_true(is_quiet);

    // A check that ends after its page was left asks no question.
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.await_text("Review and save");
    browser.eval(HOLD_DRY_RUNS);
    change_path(&browser, "/c");
    browser.await_true("window.held.length === 1");
    browser.eval("location.hash = '#/plugins';");
    browser.await_text("limit-count");
    browser.eval("window.release();");
    browser.await_true(is_quiet);
    assert_eq!(operator.get("/apisix/admin/routes/r").unwrap()["value"]["uri"], "/b");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Writes the JSON of a new resource and saves it after its review.
fn save_json(browser: &Browser, value: &serde_json::Value) {
    browser.press("JSON");
    browser.write("//textarea[@id='json']", &value.to_string());
    browser.press("Review and save");
    browser.await_true("document.querySelector('dialog[open] .added')");
    browser.press("Save");
}

#[test]
fn stream_routes_and_credentials_have_pages() {
    let stream = format!("listeners:\n  - {{ address: \"127.0.0.1:{}\", stream: tcp }}\n", free_port());
    let gateway = Gateway::start(SIGMA, &config(EMBEDDED).replacen("listeners:\n", &stream, 1)).unwrap();
    await_admin(&gateway);
    let operator = admin(&gateway);
    operator.put("consumers/jack", &json!({"username": "jack"})).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");

    browser.click("//nav//a[.='Stream routes']");
    browser.click("//a[.='New stream route']");
    browser.write("//input[@id='id']", "s");
    save_json(&browser, &json!({"server_port": 6380, "upstream": {"nodes": {"127.0.0.1:1": 1}}}));
    browser.await_true("location.hash === '#/resources/stream_routes'");
    browser.await_text("port 6380");
    browser.picture("stream-routes");
    browser.click("//a[.='s']");
    browser.await_text("Stream route s");
    browser.picture("stream-route");

    // The page of a consumer leads to its credentials and back.
    browser.go(&page(&gateway, "#/resource/consumers/jack"));
    browser.await_text("There is no credential.");
    browser.click("//a[.='New credential']");
    browser.await_text("New credential of jack");
    browser.write("//input[@id='id']", "first");
    save_json(&browser, &json!({"plugins": {"key-auth": {"key": "k"}}}));
    browser.await_true("location.hash === '#/resources/consumers/jack/credentials'");
    browser.click("//a[.='first']");
    browser.await_text("Credential first of jack");
    browser.await_text("key-auth");
    browser.picture("credential");
    browser.click("//a[.='Consumer jack']");
    browser.await_true("document.querySelector('main').innerText.includes('first')");
    browser.picture("consumer");
    let stored = operator.get("/apisix/admin/consumers/jack/credentials/first").unwrap();
    assert!(stored["value"]["plugins"]["key-auth"].is_object(), "{stored}");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn stream_routes_without_a_stream_listener_are_explained() {
    let gateway = start(EMBEDDED);
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.click("//nav//a[.='Stream routes']");
    browser.await_text("no listener for TCP or UDP");
    browser.picture("no-stream-routes");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn references_are_chosen_from_a_list() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let nodes = json!({"127.0.0.1:1": 1});
    operator.put("upstreams/u", &json!({"name": "orders", "nodes": nodes})).unwrap();
    operator.put("upstreams/gone", &json!({"nodes": nodes})).unwrap();
    operator.put("consumer_groups/g", &json!({"plugins": {}})).unwrap();
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {}, "upstream_id": "gone"})).unwrap();
    let deleted = operator.call("DELETE", "/apisix/admin/upstreams/gone?force=true", None).unwrap();
    assert_eq!(deleted.status(), 200, "{}", deleted.text());
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    let options = |field: &str| {
        format!(
            "[...document.querySelector('[data-path=\"[\\\\\"{field}\\\\\"]\"] select').options].map((one) => one.text).join('|')"
        )
    };
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.await_true("document.querySelector('select')");
    browser.await_true(&format!("{} === 'none|gone (missing)|orders (u)'", options("upstream_id")));
    browser.await_true(&format!("{} === 'none'", options("service_id")));
    browser.picture("references");
    browser.click(r#"//div[@data-path='["upstream_id"]']/select/option[.='orders (u)']"#);
    browser.press("Review and save");
    browser.await_true("document.querySelector('dialog[open] .added')");
    browser.press("Save");
    browser.await_true("location.hash === '#/resources/routes'");
    let stored = operator.get("/apisix/admin/routes/r").unwrap();
    assert_eq!(stored["value"]["upstream_id"], "u", "{stored}");

    browser.go(&page(&gateway, "#/resource/consumers/"));
    browser.await_true("document.querySelector('select')");
    browser.await_true(&format!("{} === 'none|g'", options("group_id")));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_review_shows_warnings() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {"request-id": {}}})).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/resource/routes/r"));
    change_path(&browser, "x");
    browser.await_true(
        "document.querySelector('dialog[open] .warnings li')?.textContent.includes('never matches')",
    );
    browser.await_text("1 warning");
    browser.picture("warning");
    browser.press("Cancel");
    change_path(&browser, "/b");
    browser.await_true("document.querySelector('dialog[open] .added')");
    assert_eq!(browser.eval("return document.querySelectorAll('.warnings').length;"), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_last_change_is_undone_after_a_review() {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    let route = |uri: &str| json!({"uri": uri, "plugins": {"key-auth": {}}});
    operator.put("routes/r", &route("/first")).unwrap();
    operator.put("routes/r", &route("/second")).unwrap();
    let stored = || operator.get("/apisix/admin/routes/r").unwrap()["value"]["uri"].clone();
    let versions = || operator.get("/apisix/admin/history").unwrap()["list"].clone();
    assert!(until(PATIENCE, || versions().as_array().is_some_and(|list| list.len() >= 3)));
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/history"));
    browser.await_text("1 changed");
    browser.await_text("1 created");
    browser.picture("history");
    browser.press("Undo the last change");
    browser.await_true(
        "[...document.querySelectorAll('dialog[open] .added')].some((line) => line.textContent.includes('/first'))",
    );
    browser.picture("undo");
    browser.press("Cancel");
    browser.await_true("!document.querySelector('dialog')");
    assert_eq!(stored(), "/second");
    browser.press("Undo the last change");
    browser.press("Undo");
    browser.await_text("is undone.");
    assert_eq!(stored(), "/first");
    browser.await_text("restored version");
    assert_eq!(browser.complaints(), [""; 0]);
}
