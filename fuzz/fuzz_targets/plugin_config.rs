//! Configurations of plugins: none panics, and one that passes the check of a write can be built.
//!
//! The first byte chooses the plugin, the second the scope of the configuration, the rest is JSON.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sigma_config::kind::Kind;
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_config::settings::{RouterKind, UnknownFields};
use sigma_config::{Surroundings, stored};
use sigma_plugin::{Node, Roster};

/// Whether the configuration has parts that are known later: variables, references to secrets.
fn is_open(conf: &Value) -> bool {
    conf.to_string().contains('$')
}

fuzz_target!(|input: &[u8]| {
    let [plugin, place, text @ ..] = input else { return };
    let kinds = sigma_plugins::kinds();
    let kind = Arc::clone(&kinds[usize::from(*plugin) % kinds.len()]);
    let name = kind.name();
    let Ok(conf) = serde_json::from_slice::<Value>(text) else { return };
    let roster = Roster::new(kinds.iter().cloned(), None);
    let surroundings = Surroundings {
        plugins: &roster,
        unknown: UnknownFields::Refuse,
        router: RouterKind::default(),
        now: 0,
        trusts_proxies: false,
    };
    let judged = |kind, id, value: &Value| {
        let accepted = stored::check(kind, Some(id), value, &roster, UnknownFields::Refuse).is_ok();
        stored::warnings(kind, Some(id), value, &surroundings);
        accepted
    };
    match place % 3 {
        0 => {
            let route = serde_json::json!({"uri": "/a", "plugins": {name: conf}});
            let is_disabled = conf.get("_meta").is_some_and(|meta| meta.get("disable").is_some());
            if !judged(Kind::Route, "1", &route) || is_open(&conf) || is_disabled {
                return;
            }
            // A file may be named by the metadata, which a write of the configuration does not see.
            let metadata = serde_json::json!({"path": "/dev/null"});
            let metadata = (name == "file-logger").then(|| Arc::new(metadata));
            let conf = Arc::new(conf);
            let resolved = Value::clone(&conf);
            let node = Arc::new(Node::default());
            let built = roster.build(name, &conf, resolved, "/apisix/routes/1", &|_: &str| metadata.clone(), &node);
            assert!(built.is_ok(), "{name} accepted, but not built: {conf}: {:?}", built.err());
        }
        1 => {
            let consumer = serde_json::json!({"username": "jack", "plugins": {name: conf}});
            if judged(Kind::Consumer, "jack", &consumer) && !is_open(&conf) {
                let _ = roster.identity(name, &conf);
            }
        }
        _ => {
            if judged(Kind::PluginMetadata, name, &conf) {
                assert!(roster.check(name, PluginScope::Metadata, &conf).is_ok());
            }
        }
    }
});
