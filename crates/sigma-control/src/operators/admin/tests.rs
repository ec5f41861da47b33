//! Requests and their responses, over the store in memory.

use std::net::Ipv4Addr;

use axum::body::Body;
use axum::http::HeaderMap;
use http_body_util::BodyExt;
use serde_json::json;
use sigma_config::settings::{AdminKey, AdminRole, Operators};

use sigma_schema::plugins::{PluginRefusal, PluginScope, Standing};

use super::*;
use crate::store::memory::Memory;

mod access;
mod calls;
mod catalogue;
mod resources;
mod rows;
mod whole;

/// Plugins with a rule or two, as the real ones would have.
struct Plugins {
    any: Value,
}

impl PluginSchemas for Plugins {
    fn names(&self) -> Vec<&str> {
        vec!["grpc-transcode", "key-auth", "limit-count", "prometheus", "traffic-split"]
    }

    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
        let has = match scope {
            PluginScope::Http => self.names().contains(&name),
            PluginScope::Consumer => name == "key-auth",
            _ => false,
        };
        has.then_some(&self.any)
    }

    fn is_auth(&self, name: &str) -> bool {
        name == "key-auth"
    }

    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        if !self.names().contains(&name) {
            return Err(PluginRefusal::Unknown);
        }
        if (name, scope) == ("limit-count", PluginScope::Http) && conf.get("count").is_none() {
            return Err(PluginRefusal::Invalid("property \"count\" is required".into()));
        }
        Ok(())
    }

    fn group_field(&self, name: &str) -> Option<&str> {
        (name == "limit-count").then_some("group")
    }

    fn group(&self, name: &str, conf: &Value) -> Option<Value> {
        conf.get(self.group_field(name)?)?;
        let mut filled = conf.as_object()?.clone();
        filled.remove("_meta");
        filled.entry("key").or_insert_with(|| json!("remote_addr"));
        Some(Value::Object(filled))
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        (name == "key-auth").then_some("key")
    }

    fn secret_fields(&self, name: &str, _: PluginScope) -> Vec<&str> {
        if name == "key-auth" { vec!["key"] } else { Vec::new() }
    }

    fn standing(&self, name: &str) -> Option<Standing<'_>> {
        let priority = match name {
            "grpc-transcode" => 506,
            "key-auth" => 2500,
            "limit-count" => 1002,
            "prometheus" => 500,
            _ => 966,
        };
        Some(Standing { version: "0.1", priority })
    }
}

const KEY: &str = "edd1c9f034335f136f87ad84b625c8f1";
const VIEWER: &str = "4054f7cf07e344346cd3f287985e76a2";

fn settings() -> Admin {
    let key = |key: &str, role| AdminKey { name: None, key: key.to_owned(), role };
    Admin { keys: vec![key(KEY, AdminRole::Admin), key(VIEWER, AdminRole::Viewer)], ..Admin::default() }
}

fn keyring() -> Keyring {
    Keyring::new(&sigma_config::crypt::DEFAULT_KEYRING.map(str::to_owned)).expect("the default keyring")
}

/// An Admin API to call.
struct Api {
    state: Arc<AdminState>,
    peer: SocketAddr,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| self.text.clone().into())
    }
}

impl Api {
    fn new() -> Api {
        Api::with(settings())
    }

    fn with(settings: Admin) -> Api {
        let plugins = Arc::new(Plugins { any: json!({"type": "object"}) });
        let state = AdminState::new(Arc::new(Memory::default()), plugins, keyring(), settings);
        Api { state: Arc::new(state), peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)) }
    }

    /// `line` is a method and a path without `/apisix/admin`, then fields as `Name:value`.
    async fn call(&self, line: &str, body: &str) -> Answer {
        let mut words = line.split(' ');
        let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
        let path = if path == "/openapi.json" { path.to_owned() } else { format!("/apisix/admin{path}") };
        let mut request = Request::builder().method(method).uri(path);
        let mut has_key = false;
        for (name, value) in words.filter_map(|word| word.split_once(':')) {
            has_key |= matches!(name, "X-API-KEY" | "Cookie" | "No-Key");
            request = request.header(name, value.replace('~', " "));
        }
        if !has_key {
            request = request.header("x-api-key", KEY);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let response = serve(State(Arc::clone(&self.state)), ConnectInfo(self.peer), request).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("a text");
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// Calls, and compares all but the times.
    async fn check(&self, line: &str, body: &str, status: u16, expected: Value) {
        let answer = self.call(line, body).await;
        let mut got = answer.json();
        strip_times(&mut got);
        assert_eq!((answer.status, got), (status, expected), "{line} {body}");
    }

    /// Calls for a text in `error_msg`.
    async fn refused(&self, line: &str, body: &str, status: u16, message: &str) {
        self.check(line, body, status, json!({"error_msg": message})).await;
    }

    /// Makes a call that must succeed, and returns the response.
    async fn done(&self, line: &str, body: &str) -> Value {
        let answer = self.call(line, body).await;
        assert!(answer.status < 300, "{line} {body}: {} {}", answer.status, answer.text);
        answer.json()
    }
}

fn strip_times(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for name in ["create_time", "update_time"] {
                if object.get(name).is_some_and(|time| time.as_u64().is_some_and(|time| time > 1_600_000_000))
                {
                    object.shift_remove(name);
                }
            }
            object.values_mut().for_each(strip_times);
        }
        Value::Array(list) => list.iter_mut().for_each(strip_times),
        _ => {}
    }
}

/// A route to nowhere in particular.
const ROUTE: &str = r#"{"uri":"/a","upstream":{"type":"roundrobin","nodes":{"127.0.0.1:1980":1}}}"#;
