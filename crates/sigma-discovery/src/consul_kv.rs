//! Nodes in Consul's key-value store.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sigma_config::discovery::{ConsulKv, DiscoveryLimits, Registry};
use sigma_config::resources::Node;

use crate::consul::{Agent, Blocking, encoded};
use crate::node::{self, LeftOut};
use crate::source::{Env, Listing, Source, Trouble};

/// All folders below the prefix.
pub(crate) struct ConsulKeys {
    blocking: Blocking,
    target: String,
    folders: Folders,
}

/// The rules of reading keys.
struct Folders {
    prefix: String,
    skip: Vec<String>,
    weight: u32,
    limits: DiscoveryLimits,
}

impl ConsulKeys {
    pub(crate) fn new(settings: &ConsulKv, env: &Env) -> ConsulKeys {
        let prefix = settings.prefix.trim_matches('/').to_owned();
        let path: Vec<String> = prefix.split('/').map(encoded).collect();
        let agent = Agent::new(settings.agents.timeout, 1, env);
        ConsulKeys {
            blocking: Blocking::new(agent, &settings.agents),
            target: format!("/v1/kv/{}/?recurse=true", path.join("/")),
            folders: Folders {
                prefix,
                skip: settings.skip_keys.clone(),
                weight: settings.agents.weight,
                limits: env.limits,
            },
        }
    }
}

impl Folders {
    /// Returns the folders of a response, without the prefix, with their nodes.
    fn listing(&self, answer: &Value) -> Option<Listing> {
        let keys = answer.as_array()?;
        if keys.len() > self.limits.objects as usize {
            tracing::warn!(keys = keys.len(), "Consul has more keys than `discovery.limits.objects` allows");
            return None;
        }
        let mut folders: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
        let mut left_out = LeftOut::default();
        for item in keys {
            let Some(key) = item.get("Key").and_then(Value::as_str) else {
                left_out.note_malformed(item);
                continue;
            };
            if self.skip.iter().any(|skip| key.starts_with(skip.as_str())) {
                continue;
            }
            let below = key.strip_prefix(self.prefix.as_str()).and_then(|key| key.strip_prefix('/'));
            let Some((folder, address)) = below.and_then(|below| below.rsplit_once('/')) else { continue };
            // A folder is a key as well.
            if address.is_empty() {
                continue;
            }
            let nodes = folders.entry(folder).or_default();
            match read_node(address, item.get("Value"), self.weight) {
                Some(node) => nodes.extend(node),
                None => left_out.note(key),
            }
        }
        left_out.tell(Registry::ConsulKv);
        let listed = |(folder, nodes): (&str, Vec<Node>)| {
            (folder.into(), node::list(folder, nodes, self.limits.nodes))
        };
        left_out.admits(folders.len()).then(|| folders.into_iter().map(listed).collect())
    }
}

/// Parses the node of a key; returns Some(None) if it is not to be used, and None if it is invalid.
fn read_node(address: &str, value: Option<&Value>, weight: u32) -> Option<Option<Node>> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let text = value.and_then(Value::as_str).unwrap_or_default();
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    let settings = match bytes.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&bytes).ok()?,
    };
    if !settings.is_object() && !settings.is_null() {
        return None;
    }
    if settings.get("check_status") == Some(&Value::Bool(false)) {
        return Some(None);
    }
    node::node(host, Some(port), node::weight(settings.get("weight")).unwrap_or(weight)).map(Some)
}

impl Source for ConsulKeys {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        let answer = self.blocking.next(&self.target).await?;
        if answer.status == 404 {
            return Ok(Listing::new());
        }
        let ConsulKeys { blocking, folders, .. } = self;
        blocking.read(answer, |value| folders.listing(value)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use serde_json::json;

    fn keys(items: &[(&str, Option<&str>)]) -> String {
        let item = |(key, value): &(&str, Option<&str>)| {
            let value = value.map(|value| BASE64_STANDARD.encode(value));
            json!({"LockIndex": 0, "Key": key, "Flags": 0, "Value": value, "CreateIndex": 9, "ModifyIndex": 9})
        };
        items.iter().map(item).collect::<Value>().to_string()
    }

    fn shown(listing: &Listing) -> Vec<String> {
        let of = |folder: &str, nodes: &[Node]| {
            let nodes: Vec<String> =
                nodes.iter().map(|n| format!("{}:{:?} {}", n.host, n.port.unwrap_or(0), n.weight)).collect();
            format!("{folder} = {}", nodes.join(", "))
        };
        listing.iter().map(|(service, nodes)| of(service, nodes)).collect()
    }

    #[tokio::test]
    async fn folders_are_services_and_keys_their_nodes() {
        let server = Scripted::start();
        let settings = json!({
            "servers": [server.address()], "skip_keys": ["upstreams/old/"], "token": "hush", "fetch_interval": 1
        });
        let settings: ConsulKv = serde_json::from_value(settings).expect("settings");
        let mut source = ConsulKeys::new(&settings, &Env::of(10, 10));
        server.answer(
            "200 OK",
            "X-Consul-Index: 9\r\n",
            &keys(&[
                ("upstreams/", None),
                ("upstreams/web/10.0.0.1:80", Some(r#"{"weight": 5, "max_fails": 2, "fail_timeout": 1}"#)),
                ("upstreams/web/10.0.0.2:80", None),
                ("upstreams/web/10.0.0.3:80", Some(r#"{"check_status": false}"#)),
                ("upstreams/web/10.0.0.4:80", Some("weight 5")),
                ("upstreams/web/unix::80", None),
                ("upstreams/web/0.0.0.0:80", None),
                ("upstreams/shop/api/host.test:81", Some("{}")),
                ("upstreams/old/10.0.0.5:80", None),
                ("upstreams-of-others/web/10.0.0.6:80", None),
            ]),
        );
        let listing = source.next().await.expect("a listing");
        assert_eq!(shown(&listing), ["shop/api = host.test:81 1", "web = 10.0.0.1:80 5, 10.0.0.2:80 1"]);
        let asked = server.asked("x-consul-token");
        assert_eq!(asked, ("/v1/kv/upstreams/?recurse=true".to_owned(), Some("hush".to_owned())));
        // The folder is gone; its return can be waited for.
        server.answer("404 Not Found", "X-Consul-Index: 10\r\n", "");
        assert_eq!(source.next().await, Ok(Listing::new()));
        assert_eq!(server.asked("host").0, "/v1/kv/upstreams/?recurse=true&index=9&wait=60s");
        for lie in ["{}", "[{}]", "[{\"Key\": 1}]", "no", &keys(&[("upstreams/a/b:1", None); 11])] {
            server.answer("200 OK", "X-Consul-Index: 11\r\n", lie);
            assert!(source.next().await.is_err(), "{lie}");
        }
    }

    #[test]
    fn a_malformed_key_is_left_out_and_the_others_stay() {
        let limits = Env::of(10, 10).limits;
        let folders = Folders { prefix: "upstreams".to_owned(), skip: Vec::new(), weight: 1, limits };
        let good = json!({"Key": "upstreams/web/10.0.0.1:80", "Value": null});
        for malformed in [json!({}), json!(7), json!({"Key": 1}), json!(null), json!([])] {
            let listing = folders.listing(&json!([malformed, good])).expect("a listing");
            assert_eq!(shown(&listing), ["web = 10.0.0.1:80 1"], "{malformed}");
            assert!(folders.listing(&json!([malformed])).is_none(), "{malformed}");
        }
        assert_eq!(folders.listing(&json!([])), Some(Listing::new()));
    }
}
