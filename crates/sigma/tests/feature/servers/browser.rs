//! Chromium, driven over WebDriver. Its pictures are kept in `target/dashboard`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_testkit::{free_port, until};

use super::{Running, ask, npm_package, try_ask};
use crate::{PATIENCE, SIGMA};

/// A tab without a head.
pub(super) struct Browser {
    port: u16,
    session: String,
    _driver: Running,
    profile: tempfile::TempDir,
}

impl Browser {
    pub(super) fn start() -> Browser {
        Browser::start_with(&[])
    }

    /// Starts it with further options of Chromium.
    pub(super) fn start_with(options: &[&str]) -> Browser {
        let port = free_port();
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).env("HOME", profile.path());
        let driver = Running::start(&mut command, &profile.path().join("driver.log"));
        let is_up =
            until(PATIENCE, || try_ask(port, "GET /status", "", "").is_some_and(|one| one.status() == 200));
        assert!(is_up, "no chromedriver");
        let folder = format!("--user-data-dir={}", profile.path().join("profile").display());
        let usual =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900", &folder];
        let args = [&usual[..], options].concat();
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

    pub(super) fn go(&self, url: &str) {
        self.post("/url", json!({"url": url}));
    }

    /// Returns the result of a function body.
    pub(super) fn eval(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    pub(super) fn await_true(&self, what: &str) {
        let is_so = until(PATIENCE, || self.eval(&format!("return Boolean({what});")) == json!(true));
        let page = self.eval("return document.body.innerText;");
        assert!(is_so, "{what}:\n{}", page.as_str().unwrap_or_default());
    }

    pub(super) fn await_text(&self, text: &str) {
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

    pub(super) fn click(&self, path: &str) {
        let element = self.element(path);
        self.post(&format!("/element/{element}/click"), json!({}));
    }

    pub(super) fn press(&self, button: &str) {
        self.click(&format!("//button[normalize-space()='{button}']"));
    }

    /// Replaces the text of a field.
    pub(super) fn write(&self, path: &str, text: &str) {
        let element = self.element(path);
        self.post(&format!("/element/{element}/clear"), json!({}));
        self.post(&format!("/element/{element}/value"), json!({"text": text}));
    }

    /// Presses keys wherever the focus is.
    pub(super) fn keys(&self, text: &str) {
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

    /// Returns what axe finds: the rule, its meaning and the elements.
    fn barriers(&self) -> Value {
        if self.eval("return Boolean(window.axe);") != json!(true) {
            self.eval(axe());
        }
        // A page of many elements takes a while on a busy machine.
        self.post("/timeouts", json!({"script": 300_000}));
        self.post("/execute/async", json!({"script": BARRIERS, "args": []}))
    }

    /// Keeps a picture of the whole page, in both widths and both themes; nothing may be wider than the page, every
    /// text has to stand out from its ground, and axe must find no barrier for people with disabilities.
    pub(super) fn picture(&self, name: &str) {
        for (width, scheme) in [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")] {
            self.look(width, scheme);
            let wide = self.eval("return document.documentElement.scrollWidth;").as_u64().unwrap();
            assert!(wide <= u64::from(width), "{name} is {wide} wide at {width}: {}", self.eval(WIDEST));
            assert_eq!(self.eval(FAINT), json!([]), "{name}: texts that hardly stand out, {scheme}");
            assert_eq!(self.barriers(), json!([]), "{name}: barriers at {width}, {scheme}");
            let shot = self.devtools("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
            let picture = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
            std::fs::write(pictures().join(format!("{name}-{width}-{scheme}.png")), picture).unwrap();
        }
        self.look(1280, "light");
    }

    /// The errors that the page has logged; a refused call is not an error.
    pub(super) fn complaints(&self) -> Vec<String> {
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

/// The version of axe-core.
const AXE: &str = "4.10.3";

/// Runs all rules of axe on the page: names, labels, roles, keyboard, contrast, structure.
const BARRIERS: &str = "
    const done = arguments[arguments.length - 1];
    const shown = ({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 5).map(({ html }) => html.slice(0, 120)).join(' | ')}`;
    axe.run(document, { resultTypes: ['violations'] }).then(
        ({ violations }) => done(violations.map(shown)),
        (error) => done([String(error)]));";

/// The text of axe, which npm installs the first time in `target/tools`.
fn axe() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| std::fs::read_to_string(npm_package("axe-core", AXE).join("axe.min.js")).unwrap())
}

fn pictures() -> PathBuf {
    let folder = Path::new(SIGMA).ancestors().nth(2).unwrap().join("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
