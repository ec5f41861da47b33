//! Calls of the Admin API: each gets a response, and nothing is stored that the check refuses.
//!
//! The input is calls with a line of `---` between them: a line with method and target, lines with
//! fields, an empty line, the body.

#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sigma_config::crypt::{DEFAULT_KEYRING, Keyring};
use sigma_schema::document::{MAX_DEPTH, is_deeper};
use sigma_config::kind::{Kind, ResourceKey};
use sigma_schema::plugins::NoPlugins;
use sigma_config::settings::Admin;
use sigma_config::settings::UnknownFields;
use sigma_config::stored;
use sigma_control::admin::{AdminState, answer};
use sigma_control::store::Store;
use sigma_control::store::memory::Memory;

fn keyring() -> Keyring {
    Keyring::new(&DEFAULT_KEYRING.map(str::to_owned)).expect("the default keyring")
}

/// None where hyper would refuse the request itself.
fn request(call: &str) -> Option<Request> {
    let (head, body) = call.split_once("\n\n").unwrap_or((call, ""));
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    request.body(Body::from(body.to_owned())).ok()
}

async fn check_store(store: &dyn Store) {
    for record in store.load().await.expect("a store in memory").records {
        let Some(key) = ResourceKey::parse(&record.key) else {
            assert!(record.key == "sigma/configs" || record.key.contains("/graphql_cost_decorations/"));
            continue;
        };
        let mut value: Value = serde_json::from_slice(&record.value).expect("what is stored is JSON");
        assert!(!is_deeper(&value, MAX_DEPTH - 2), "{key} is too deep");
        keyring().decrypt_resource(key.kind, &mut value, &NoPlugins);
        let name = (key.kind == Kind::PluginMetadata).then_some(key.id.as_str());
        let checked = stored::check(key.kind, name, &value, &NoPlugins, UnknownFields::Refuse);
        assert!(checked.is_ok(), "{key} is stored and refused: {checked:?} {value}");
        let read = stored::read(&key, &value, &NoPlugins, UnknownFields::Refuse);
        assert!(read.is_ok(), "{key} is stored and cannot be read: {read:?} {value}");
    }
}

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let settings = Admin { key_required: false, body_bytes: 65_536, ..Admin::default() };
        let state = AdminState::new(Arc::clone(&store), Arc::new(NoPlugins), keyring(), settings);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        for request in text.split("\n---\n").take(16).filter_map(request) {
            let (head, body) = answer(&state, peer, request).await.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let is_json = head.headers.get("content-type").is_some_and(|kind| kind == "application/json");
            if is_json && !body.is_empty() {
                serde_json::from_slice::<Value>(&body).expect("an answer that says so is JSON");
            }
            assert!(head.status != 500, "{}", String::from_utf8_lossy(&body));
        }
        check_store(&*store).await;
    });
});
