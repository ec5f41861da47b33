//! The dashboard in a real browser: Chromium, driven over WebDriver. Its pictures are kept in
//! `target/dashboard`.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, free_port, until};

use super::{Running, ask, try_ask};
use crate::managed::{EMBEDDED, KEY, VIEWER, answerer, await_answerer, start};
use crate::{PATIENCE, SIGMA};

/// A tab without a head.
struct Browser {
    port: u16,
    session: String,
    _driver: Running,
    profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Browser {
        let port = free_port();
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).env("HOME", profile.path());
        let driver = Running::start(&mut command, &profile.path().join("driver.log"));
        let is_up =
            until(PATIENCE, || try_ask(port, "GET /status", "", "").is_some_and(|one| one.status() == 200));
        assert!(is_up, "no chromedriver");
        let folder = format!("--user-data-dir={}", profile.path().join("profile").display());
        let args =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900", &folder];
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let mut browser = Browser { port, session: String::new(), _driver: driver, profile };
        let made = browser.post("", json!({"capabilities": {"alwaysMatch": wanted}}));
        browser.session = format!("/{}", made["sessionId"].as_str().unwrap());
        browser
    }

    /// A command of the session; it has to be carried out.
    fn post(&self, command: &str, body: Value) -> Value {
        let line = format!("POST /session{}{command}", self.session);
        let answer = ask(self.port, &line, "Content-Type: application/json\r\n", &body.to_string());
        assert_eq!(answer.status(), 200, "{line} {body}: {}", answer.text());
        answer.json().unwrap()["value"].clone()
    }

    fn go(&self, url: &str) {
        self.post("/url", json!({"url": url}));
    }

    /// What the body of a function answers.
    fn eval(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    fn await_true(&self, what: &str) {
        let is_so = until(PATIENCE, || self.eval(&format!("return Boolean({what});")) == json!(true));
        let page = self.eval("return document.body.innerText;");
        assert!(is_so, "{what}:\n{}", page.as_str().unwrap_or_default());
    }

    fn await_text(&self, text: &str) {
        self.await_true(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// The element of an XPath, once it is there.
    fn element(&self, path: &str) -> String {
        let literal = json!(path);
        self.await_true(&format!(
            "document.evaluate({literal}, document, null, XPathResult.FIRST_ORDERED_NODE_TYPE).singleNodeValue"
        ));
        let found = self.post("/element", json!({"using": "xpath", "value": path}));
        found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned()
    }

    fn click(&self, path: &str) {
        let element = self.element(path);
        self.post(&format!("/element/{element}/click"), json!({}));
    }

    fn press(&self, button: &str) {
        self.click(&format!("//button[normalize-space()='{button}']"));
    }

    /// Writes into a field in place of what is there.
    fn write(&self, path: &str, text: &str) {
        let element = self.element(path);
        self.post(&format!("/element/{element}/clear"), json!({}));
        self.post(&format!("/element/{element}/value"), json!({"text": text}));
    }

    /// Presses keys wherever the focus is.
    fn keys(&self, text: &str) {
        let strokes: Vec<Value> = text
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.post("/actions", json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]}));
    }

    fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters}))
    }

    fn look(&self, width: u32, scheme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size);
        // Pictures have no room for them.
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": true}));
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Keeps a picture of the whole page, in both widths and both themes; nothing may be wider than the page, and
    /// every text has to stand out from its ground.
    fn picture(&self, name: &str) {
        for (width, scheme) in [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")] {
            self.look(width, scheme);
            let wide = self.eval("return document.documentElement.scrollWidth;").as_u64().unwrap();
            assert!(wide <= u64::from(width), "{name} is {wide} wide at {width}: {}", self.eval(WIDEST));
            assert_eq!(self.eval(FAINT), json!([]), "{name}: texts that hardly stand out, {scheme}");
            assert_eq!(self.eval(NAMELESS), json!([]), "{name}: controls without a name");
            let shot = self.devtools("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
            let picture = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
            std::fs::write(pictures().join(format!("{name}-{width}-{scheme}.png")), picture).unwrap();
        }
        self.look(1280, "light");
    }

    /// What the page has complained of; that a call was refused is no complaint.
    fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", json!({"type": "browser"}));
        let errors = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        let messages = errors.filter_map(|entry| entry["message"].as_str());
        messages.filter(|text| !text.contains("Failed to load resource")).map(str::to_owned).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium ends with its session, and the driver after it.
        let _ = try_ask(self.port, &format!("DELETE /session{}", self.session), "", "");
        let _ = self.profile.path();
    }
}

/// The elements that reach beyond the page.
const WIDEST: &str = "
    const width = document.documentElement.clientWidth;
    const wide = [...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > width + 1);
    return wide.slice(0, 5).map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`);";

/// Texts whose contrast is below 4.5 (WCAG 1.4.3).
const FAINT: &str = "
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = parts(colour).slice(0, 3).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (one) => {
        for (; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (parts(colour)[3] !== 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const faint = [];
    for (const one of document.querySelectorAll('body *')) {
        const says = [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!says || one.disabled || !one.checkVisibility()) continue;
        const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`);
    }
    return faint;";

/// Controls that a reader of the screen has no name for.
const NAMELESS: &str = "
    const named = (one) => one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim();
    const all = [...document.querySelectorAll('input, select, textarea, button, a')];
    return all.filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 80));";

fn pictures() -> PathBuf {
    let folder = Path::new(SIGMA).ancestors().nth(2).unwrap().join("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn page(gateway: &Gateway, hash: &str) -> String {
    format!("http://{}/ui/{hash}", gateway.admin_address())
}

fn log_in(browser: &Browser, gateway: &Gateway, key: &str) {
    browser.go(&page(gateway, ""));
    browser.write("//input[@id='key']", key);
    browser.press("Log in");
}

/// Makes a resource from its text; shows what is new before.
fn create(browser: &Browser, gateway: &Gateway, collection: &str, id: &str, value: &Value) {
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
fn modules_do_what_they_say() {
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
    browser.await_text("does not know this key");
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
    let is_seen = until(PATIENCE, || {
        assert_eq!(answerer(&gateway, "/hello"), "a");
        assert_eq!(answerer(&gateway, "/nothing"), "404");
        browser.eval("return Boolean(document.querySelector(\"a[href='#/resource/routes/r']\"));")
            == json!(true)
    });
    assert!(is_seen, "{}", browser.eval("return document.body.innerText;"));
    browser.picture("live");

    // A method that does not exist is refused, and the field says so.
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.write("//div[label='methods']/textarea", "NOPE");
    browser.press("Review and save");
    browser.await_true("document.querySelector('[aria-invalid=true]')?.id === document.activeElement.id");
    let error = browser.eval("return document.querySelector('.field.invalid .field-error').textContent;");
    assert_eq!(error, "matches none of the enum values");
    browser.picture("error");
    assert_eq!(answerer(&gateway, "/hello"), "a");

    browser.write("//div[label='methods']/textarea", "GET");
    browser.write("//div[label='uri']/input", "/other");
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
fn an_operator_goes_back_to_a_version_and_asks_what_becomes_of_a_request() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let operator = crate::managed::admin(&gateway);
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
    browser.press("Roll back to this");
    browser.await_true(
        "[...document.querySelectorAll('dialog .added')].some((line) => line.textContent.includes('/first'))",
    );
    browser.picture("rollback");
    // Whoever leaves the question has changed nothing.
    browser.press("Cancel");
    browser.await_true("!document.querySelector('dialog')");
    assert_eq!(answerer(&gateway, "/second"), "a");
    browser.press("Roll back to this");
    browser.press("Roll back");
    browser.await_true("location.hash === '#/history'");
    browser.await_text(&format!("back to {version}: routes/r"));
    await_answerer(&gateway, "/first", "a");
    await_answerer(&gateway, "/second", "404");

    browser.go(&page(&gateway, "#/tester"));
    browser.write("//input[@id='url']", "http://shop.test/first?x=1");
    browser.press("Explain");
    browser.await_text("by routes/r");
    browser.await_text("GET /first?x=1");
    // What the limit has left for this client, who has asked before.
    browser.await_text("\"remaining\":");
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
    let operator = crate::managed::admin(&gateway);
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
        ("gs", "#/gateway", "Everything is served"),
        ("gm", "#/members", "this one"),
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
    // Nothing was asked of anybody else.
    let foreign = "return performance.getEntriesByType('resource').map((one) => new URL(one.name).host).filter((host) => host !== location.host);";
    assert_eq!(browser.eval(foreign), json!([]));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_viewer_finds_nothing_to_write_with() {
    let gateway = start(EMBEDDED);
    let operator = crate::managed::admin(&gateway);
    operator.put("routes/r", &json!({"uri": "/a", "plugins": {"key-auth": {}}})).unwrap();
    let browser = Browser::start();
    log_in(&browser, &gateway, VIEWER);
    browser.await_text("viewer");
    browser.go(&page(&gateway, "#/resources/routes"));
    browser.await_text("/a");
    assert_eq!(browser.eval("return document.body.innerText.includes('New route');"), json!(false));
    browser.go(&page(&gateway, "#/resource/routes/r"));
    browser.await_text("changes nothing");
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
