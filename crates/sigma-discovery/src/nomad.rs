//! Services of Nomad, which registers them itself: blocking queries as Consul has them.

use std::sync::Arc;

use reqwest::header::HeaderName;
use serde_json::Value;
use sigma_config::discovery::{Nomad, Registry};
use sigma_config::resources::{DiscoveryArgs, Node};

use crate::consul::{Agent, Blocking, BlockingSettings, Dialect, encoded};
use crate::labels::Labels;
use crate::node::{self, LeftOut};
use crate::source::{Listing, Source, Trouble};

/// The nodes of one service.
pub(crate) struct NomadService {
    blocking: Blocking,
    service: Arc<str>,
    target: String,
    wanted: Wanted,
    most: u32,
}

/// The instances that are nodes.
struct Wanted {
    datacenter: Option<Box<str>>,
    tags: Vec<Box<str>>,
    /// The weight of instances without the tag.
    weight: u32,
}

/// Returns the arguments of a query for a service.
fn query(settings: &Nomad, args: Option<&DiscoveryArgs>) -> String {
    let namespace = args.and_then(|args| args.namespace_id.as_deref()).unwrap_or(&settings.namespace);
    let mut query = format!("namespace={}", encoded(namespace));
    if let Some(region) = &settings.region {
        query.push_str(&format!("&region={}", encoded(region)));
    }
    query
}

impl NomadService {
    pub(crate) fn new(
        agent: Arc<Agent>,
        settings: &Nomad,
        service: &str,
        args: Option<&DiscoveryArgs>,
        most: u32,
    ) -> NomadService {
        let dialect = Dialect {
            token: HeaderName::from_static("x-nomad-token"),
            index: HeaderName::from_static("x-nomad-index"),
        };
        let blocking = BlockingSettings {
            servers: &settings.servers,
            token: &settings.token,
            timeout: settings.timeout,
            interval: settings.fetch_interval,
            waits: settings.keepalive,
            dialect,
        };
        NomadService {
            blocking: Blocking::of(agent, blocking),
            service: service.into(),
            target: format!("/v1/service/{}?{}", encoded(service), query(settings, args)),
            wanted: Wanted {
                datacenter: args.and_then(|args| args.datacenter.clone()),
                tags: args.map(|args| args.tags.clone()).unwrap_or_default(),
                weight: settings.weight,
            },
            most,
        }
    }

    /// Returns the name that identifies the topic of a service.
    pub(crate) fn name(settings: &Nomad, service: &str, args: Option<&DiscoveryArgs>) -> String {
        let datacenter =
            args.and_then(|args| args.datacenter.as_deref()).map(|name| format!("dc={}", encoded(name)));
        let tags = args.map_or(&[][..], |args| &args.tags).iter().map(|tag| format!("tag={}", encoded(tag)));
        let wanted: Vec<String> = datacenter.into_iter().chain(tags).collect();
        let name = format!("nomad {service} {}", query(settings, args));
        if wanted.is_empty() { name } else { format!("{name} {}", wanted.join("&")) }
    }
}

impl Source for NomadService {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        let answer = self.blocking.next(&self.target).await?;
        let NomadService { blocking, wanted, .. } = self;
        let nodes = blocking.read(answer, |value| wanted.nodes(value)).await?;
        let nodes = node::list(&self.service, nodes, self.most);
        Ok(Listing::from([(Arc::clone(&self.service), nodes)]))
    }
}

impl Wanted {
    /// Returns the nodes in a response of `/v1/service/NAME`; None if it is invalid.
    fn nodes(&self, answer: &Value) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        let mut left_out = LeftOut::default();
        let mut instances = 0;
        for entry in answer.as_array()? {
            let tags = entry.get("Tags").unwrap_or(&Value::Null);
            if !entry.is_object() || !(tags.is_array() || tags.is_null()) {
                left_out.note_malformed(entry);
                continue;
            }
            instances += 1;
            let tags: Vec<&str> = tags.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let is_there = self.datacenter.as_deref().is_none_or(|wanted| wanted == text("Datacenter"));
            if !is_there || !self.tags.iter().all(|wanted| tags.contains(&&**wanted)) {
                continue;
            }
            match self.node(text("Address"), entry, &tags) {
                Ok(node) => nodes.push(node),
                Err(reason) => left_out.note(&reason),
            }
        }
        left_out.tell(Registry::Nomad);
        left_out.admits(instances).then_some(nodes)
    }

    fn node(&self, host: &str, entry: &Value, tags: &[&str]) -> Result<Node, String> {
        let labels = Labels::new(tags.iter().filter_map(|tag| tag.split_once('=')));
        let weight = labels.number("weight")?.unwrap_or(self.weight);
        let port = node::port(entry.get("Port")).ok_or_else(|| format!("{host} has no port"))?;
        let node = node::node(host, Some(port), weight).ok_or_else(|| host.to_owned())?;
        Ok(Node { metadata: labels.metadata(), ..node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use crate::source::Env;
    use serde_json::json;

    fn entry(address: &str, port: u16, tags: Value) -> Value {
        json!({
            "Address": address, "AllocID": "177160af", "CreateIndex": 14, "Datacenter": "dc1", "ID": "_nomad-task-1",
            "JobID": "example", "ModifyIndex": 14, "Namespace": "default", "NodeID": "7406e90b", "Port": port,
            "ServiceName": "web", "Tags": tags
        })
    }

    fn source(server: &Scripted, args: Value) -> NomadService {
        let settings = json!({
            "servers": [server.address()], "token": "hush", "region": "eu 1", "timeout": { "wait": 5 }, "weight": 7
        });
        let settings: Nomad = serde_json::from_value(settings).expect("settings");
        let args: DiscoveryArgs = serde_json::from_value(args).expect("arguments");
        let agent = Agent::new(settings.timeout, settings.max_blocking_queries, &Env::of(100, 100));
        NomadService::new(agent, &settings, "web app", Some(&args), 100)
    }

    fn shown(listing: Result<Listing, Trouble>) -> Vec<String> {
        let listing = listing.expect("a listing");
        let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
        listing["web app"].iter().map(shown).collect()
    }

    #[tokio::test]
    async fn a_request_waits_for_the_next_index_of_its_namespace() {
        let server = Scripted::start();
        let mut source = source(&server, json!({ "namespace_id": "shop" }));
        let target = "/v1/service/web%20app?namespace=shop&region=eu%201";
        let answer = |index: &str, entries: &[Value]| {
            let head = format!("X-Nomad-Index: {index}\r\nX-Nomad-Knownleader: true\r\n");
            server.answer("200 OK", &head, &Value::from(entries).to_string());
        };
        let asked = |index: Option<u32>| {
            let (asked, token) = server.asked("x-nomad-token");
            let want =
                index.map_or_else(|| target.to_owned(), |index| format!("{target}&index={index}&wait=5s"));
            assert_eq!((asked, token.as_deref()), (want, Some("hush")));
        };
        let tags = json!(["sigma.weight=3", "sigma.metadata.zone=a", "v2"]);
        answer(
            "20",
            &[
                entry("10.0.0.2", 81, tags),
                entry("10.0.0.3", 82, json!([])),
                entry("10.0.0.4", 0, Value::Null),
                entry("unix:/s", 80, json!([])),
                entry("10.0.0.5", 80, json!(["sigma.weight=x"])),
            ],
        );
        let first = source.next().await.expect("a listing");
        assert_eq!(first["web app"][0].metadata.as_ref().map(|meta| &meta["zone"]), Some(&json!("a")));
        assert_eq!(shown(Ok(first)), ["10.0.0.2:81 3", "10.0.0.3:82 7"]);
        asked(None);
        // The wait ends without a change, then with one; an index that goes back does not wait.
        answer("20", &[]);
        answer("25", &[entry("10.0.0.9", 80, json!([]))]);
        assert_eq!(shown(source.next().await), ["10.0.0.9:80 7"]);
        asked(Some(20));
        asked(Some(20));
        answer("3", &[]);
        assert_eq!(shown(source.next().await), [""; 0]);
        asked(Some(25));
        answer("4", &[]);
        assert_eq!(shown(source.next().await), [""; 0]);
        asked(None);
    }

    #[tokio::test]
    async fn tags_and_the_datacenter_choose_instances() {
        let server = Scripted::start();
        let mut source = source(&server, json!({ "tags": ["v2"], "datacenter": "dc1" }));
        let mut other = entry("10.0.0.3", 80, json!(["v2"]));
        other["Datacenter"] = "dc2".into();
        let entries =
            json!([entry("10.0.0.1", 80, json!(["v2", "x"])), entry("10.0.0.2", 80, json!(["v1"])), other]);
        server.answer("200 OK", "X-Nomad-Index: 9\r\n", &entries.to_string());
        assert_eq!(shown(source.next().await), ["10.0.0.1:80 7"]);
        // None of them is wanted: the service has no nodes, which is not an error.
        let entries = json!([entry("10.0.0.2", 80, json!(["v1"]))]);
        server.answer("200 OK", "X-Nomad-Index: 10\r\n", &entries.to_string());
        assert_eq!(shown(source.next().await), [""; 0]);
    }

    #[tokio::test]
    async fn invalid_lists_are_errors() {
        let server = Scripted::start();
        let mut source = source(&server, json!({}));
        for (status, body, want) in [
            ("403 Forbidden", "Permission denied", "responded with status 403"),
            ("500 Internal Server Error", "No cluster leader", "responded with status 500"),
            ("200 OK", "<html>", "did not return JSON"),
            ("200 OK", "{}", "unexpected response"),
            ("200 OK", "[7, null, {\"Tags\": 7}]", "unexpected response"),
            ("302 Found", "", "responded with status 302"),
            ("404 Not Found", "", "responded with status 404"),
        ] {
            server.answer(status, "X-Nomad-Index: 9\r\nLocation: http://127.0.0.1:1/\r\n", body);
            let trouble = source.next().await.expect_err("an error").0;
            assert!(trouble.contains(want) && !trouble.contains("hush"), "{status} {body}: {trouble}");
        }
        let mixed = json!([7, entry("10.0.0.1", 80, json!([]))]);
        server.answer("200 OK", "", &mixed.to_string());
        assert_eq!(shown(source.next().await), ["10.0.0.1:80 7"]);
    }
}
