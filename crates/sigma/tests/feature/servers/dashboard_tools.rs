//! The tools of the dashboard in a real browser: search of plugins, last errors, commands, import.

use serde_json::json;
use super::browser::Browser;
use super::dashboard::{log_in, page};
use crate::managed::{EMBEDDED, KEY, start};

#[test]
fn plugins_are_found_by_description_and_phase() {
    let gateway = start(EMBEDDED);
    let browser = Browser::start();
    log_in(&browser, &gateway, KEY);
    browser.await_text("Live traffic");
    browser.go(&page(&gateway, "#/plugins"));
    browser.await_text("Limits requests per window of time.");
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
