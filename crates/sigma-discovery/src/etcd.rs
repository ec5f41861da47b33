//! A folder in etcd in which services register themselves.
//!
//! It uses etcd's JSON gateway (`/v3/`): the folder is read once, and a watch from the next revision reports each
//! change. After compaction in etcd, everything is read again.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use reqwest::header::AUTHORIZATION;
use serde_json::{Value, json};
use sigma_config::discovery::{DiscoveryLimits, EtcdDiscovery, Registry, RegistryAddress};
use sigma_config::resources::Node;
use sigma_schema::Confidential;

use crate::http::{Http, Members, RegistryRequest, Trust, token};
use crate::list_watch::{Heard, Lines, Watched};
use crate::node::{self, LeftOut};
use crate::source::{Env, Listing, Trouble};

/// A watch is restarted after this time, so that a lost connection is detected at last.
const WATCH: Duration = Duration::from_secs(300);

/// The folder.
pub(crate) struct Folder {
    members: Members,
    http: Http,
    user: Option<(String, Confidential)>,
    /// Ends with a slash.
    prefix: String,
    weight: u32,
    within: Duration,
    limits: DiscoveryLimits,
    token: Confidential,
    keys: Keys,
}

/// The content of the folder at a revision.
#[derive(Default)]
struct Keys {
    revision: u64,
    /// By key, without the prefix.
    nodes: BTreeMap<String, Node>,
}

impl Folder {
    pub(crate) fn new(settings: &EtcdDiscovery, env: &Env) -> Folder {
        let timeout = settings.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        Folder {
            members: Members::new(&settings.host),
            http: Http::new(connect, Trust::System, env),
            user: (!settings.user.is_empty()).then(|| (settings.user.clone(), settings.password.clone())),
            prefix: format!("{}/", settings.prefix),
            weight: settings.weight,
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            limits: env.limits,
            token: Confidential::default(),
            keys: Keys::default(),
        }
    }

    fn post_request<'q>(
        &self,
        target: &'q str,
        body: Value,
        within: Duration,
    ) -> Result<RegistryRequest<'q>, Trouble> {
        let mut question = RegistryRequest::get(target, within).secret(AUTHORIZATION, self.token.reveal())?;
        question.method = Method::POST;
        question.body = Some(body.to_string());
        Ok(question)
    }

    fn range(&self) -> (String, String) {
        // The first key after all keys with the prefix, which ends with a slash.
        let end = format!("{}0", self.prefix.trim_end_matches('/'));
        (BASE64_STANDARD.encode(&self.prefix), BASE64_STANDARD.encode(end))
    }

    async fn log_in(&mut self, address: &RegistryAddress) -> Result<(), Trouble> {
        let Some((name, password)) = self.user.clone() else { return Ok(()) };
        self.token = Confidential::default();
        let body = json!({ "name": name, "password": password.reveal() });
        let question = self.post_request("/v3/auth/authenticate", body, self.within)?;
        let answer = self.http.ask(address, question).await?.json(address).await;
        let answer = answer.map_err(|trouble| Trouble(format!("cannot log in: {trouble}")))?;
        self.token = token(answer.get("token"), address)?;
        Ok(())
    }

    fn read(&self, answer: &Value) -> Option<Keys> {
        let revision = node::number(answer.get("header")?.get("revision"))?;
        let mut keys = Keys { revision, nodes: BTreeMap::new() };
        let mut left_out = LeftOut::default();
        for pair in answer.get("kvs").and_then(Value::as_array).into_iter().flatten() {
            match self.name_of(pair) {
                None => left_out.note_malformed(pair),
                Some(_) => self.put(&mut keys, pair, &mut left_out)?,
            }
        }
        left_out.tell(Registry::Etcd);
        left_out.admits(keys.nodes.len()).then_some(keys)
    }

    /// Adds a key with its value; None if that exceeds a limit.
    fn put(&self, keys: &mut Keys, pair: &Value, left_out: &mut LeftOut) -> Option<()> {
        let name = self.name_of(pair)?;
        let text = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        match BASE64_STANDARD.decode(text).ok().and_then(|value| read_node(&value, self.weight)) {
            Some(node) => {
                keys.nodes.insert(name, node);
                (keys.nodes.len() <= self.limits.objects as usize).then_some(())
            }
            None => {
                left_out.note(&name);
                keys.nodes.remove(&name);
                Some(())
            }
        }
    }

    /// Returns the key without the prefix.
    fn name_of(&self, pair: &Value) -> Option<String> {
        let key = String::from_utf8(BASE64_STANDARD.decode(pair.get("key")?.as_str()?).ok()?).ok()?;
        key.strip_prefix(&self.prefix).map(str::to_owned)
    }

    /// Handles the events of a message; None if they are invalid.
    fn take(&self, keys: &mut Keys, result: &Value) -> Option<Heard> {
        let revision = node::number(result.get("header")?.get("revision"))?;
        // A revision that goes back belongs to another history, such as a restored copy.
        if result.get("canceled") == Some(&Value::Bool(true)) || revision < keys.revision {
            return None;
        }
        let events = result.get("events").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut left_out = LeftOut::default();
        for event in events {
            let pair = event.get("kv")?;
            match event.get("type").and_then(Value::as_str) {
                Some("DELETE") => drop(keys.nodes.remove(&self.name_of(pair)?)),
                _ => self.put(keys, pair, &mut left_out)?,
            }
        }
        left_out.tell(Registry::Etcd);
        keys.revision = revision;
        Some(if events.is_empty() { Heard::Nothing } else { Heard::Change })
    }
}

impl Watched for Folder {
    async fn load(&mut self) -> Result<(), Trouble> {
        let address = self.members.current().clone();
        self.log_in(&address).await?;
        let (key, range_end) = self.range();
        let body = json!({ "key": key, "range_end": range_end });
        let question = self.post_request("/v3/kv/range", body, self.within)?;
        let value = self.http.ask(&address, question).await?.json(&address).await?;
        let unusable = || Trouble(format!("{} returned no keys, or too many", address.base()));
        self.keys = self.read(&value).ok_or_else(unusable)?;
        Ok(())
    }

    async fn open(&mut self) -> Result<Option<Lines>, Trouble> {
        let address = self.members.current().clone();
        let (key, range_end) = self.range();
        // There is no revision after the largest number; a server that reports it is wrong.
        let start_revision = self.keys.revision.saturating_add(1).to_string();
        let body = json!({
            "create_request": { "key": key, "range_end": range_end, "start_revision": start_revision }
        });
        let response = self.http.open(&address, self.post_request("/v3/watch", body, WATCH)?).await?;
        match response.status().as_u16() {
            200 => Ok(Some(Lines::new(response, self.limits.answer_bytes as usize))),
            // The token has expired.
            401 | 403 => Ok(None),
            status => Err(Trouble(format!("{} responded with status {status}", address.base()))),
        }
    }

    fn hear(&mut self, message: &Value) -> Heard {
        let mut keys = std::mem::take(&mut self.keys);
        let heard = message.get("result").and_then(|result| self.take(&mut keys, result));
        self.keys = keys;
        heard.unwrap_or(Heard::Gone)
    }

    fn listing(&self) -> Listing {
        let mut services: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
        for (name, node) in &self.keys.nodes {
            if let Some((service, _)) = name.rsplit_once('/') {
                services.entry(service).or_default().push(node.clone());
            }
        }
        let listed = |(service, nodes): (&str, Vec<Node>)| {
            (service.into(), node::list(service, nodes, self.limits.nodes))
        };
        services.into_iter().map(listed).collect()
    }

    fn turn(&mut self) {
        self.members.turn();
    }
}

/// Parses the node in a value; None if it is invalid.
fn read_node(value: &[u8], default_weight: u32) -> Option<Node> {
    let value: Value = serde_json::from_slice(value).ok()?;
    // As in all registries, null means that there is no value.
    let known = |name: &str| value.get(name).filter(|value| !value.is_null());
    let priority = match known("priority") {
        Some(priority) => i32::try_from(priority.as_i64()?).ok()?,
        None => 0,
    };
    let port = match known("port") {
        Some(port) => Some(node::port(Some(port))?),
        None => None,
    };
    let weight = node::weight(value.get("weight")).unwrap_or(default_weight);
    let metadata = node::metadata(value.get("metadata"));
    let found = node::node(value.get("host")?.as_str()?, port, weight)?;
    Some(Node { priority, metadata, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list_watch::ListWatch;
    use crate::scripted::Scripted;
    use crate::source::Source;

    fn source(server: &Scripted, more: Value) -> ListWatch<Folder> {
        let mut settings = json!({ "host": [server.address()], "prefix": "/services" });
        settings.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        let settings: EtcdDiscovery = serde_json::from_value(settings).expect("settings");
        ListWatch::new(Folder::new(&settings, &Env::of(10, 20)), &Env::default())
    }

    fn pair(key: &str, value: &str) -> Value {
        let (key, value) = (BASE64_STANDARD.encode(key), BASE64_STANDARD.encode(value));
        json!({ "key": key, "create_revision": "4", "mod_revision": "4", "version": "1", "value": value })
    }

    fn range(revision: u64, pairs: &[Value]) -> String {
        json!({ "header": {"cluster_id": "1", "revision": revision.to_string()}, "kvs": pairs }).to_string()
    }

    fn message(revision: u64, more: Value) -> String {
        let mut result = json!({ "header": {"revision": revision.to_string()} });
        result.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        format!("{}\n", json!({ "result": result }))
    }

    fn shown(listing: Result<Listing, Trouble>) -> Vec<String> {
        let of = |service: &str, nodes: &[Node]| {
            let node =
                |node: &Node| format!("{}:{:?}*{}^{}", node.host, node.port, node.weight, node.priority);
            format!("{service} = {}", nodes.iter().map(node).collect::<Vec<_>>().join(" "))
        };
        listing.expect("a listing").iter().map(|(service, nodes)| of(service, nodes)).collect()
    }

    fn asked(server: &Scripted) -> (String, Value, Option<String>) {
        let message = server.question();
        let token = message.head.get("authorization").map(str::to_owned);
        (message.head.line.clone(), message.json().expect("JSON"), token)
    }

    #[tokio::test]
    async fn keys_are_read_and_followed() {
        let server = Scripted::start();
        let mut source = source(&server, json!({ "user": "root", "password": "hush" }));
        server.answer("200 OK", "", "{\"header\":{},\"token\":\"t1\"}");
        server.answer("200 OK", "", &range(9, &[
            pair("/services/web/1", r#"{"host": "10.0.0.1", "port": 80}"#),
            pair("/services/web/2", r#"{"host": "10.0.0.2", "port": 80, "weight": 5, "priority": -1, "metadata": {"zone": "a"}}"#),
            pair("/services/shop/api/x", r#"{"host": "api.test"}"#),
            pair("/services/web/3", r#"{"host": "unix:/s", "port": 80}"#),
            pair("/services/web/4", r#"{"host": "10.0.0.4", "port": 0}"#),
            pair("/services/web/5", "10.0.0.5:80"),
            pair("/services/alone", r#"{"host": "10.0.0.6"}"#),
        ]));
        let want = ["shop/api = api.test:None*1^0", "web = 10.0.0.1:Some(80)*1^0 10.0.0.2:Some(80)*5^-1"];
        assert_eq!(shown(source.next().await), want);
        assert_eq!(asked(&server).1, json!({ "name": "root", "password": "hush" }));
        let (line, body, token) = asked(&server);
        assert_eq!((line.as_str(), token.as_deref()), ("POST /v3/kv/range HTTP/1.1", Some("t1")));
        let key = |name: &str| BASE64_STANDARD.decode(body[name].as_str().expect("text")).expect("base64");
        assert_eq!((key("key"), key("range_end")), (b"/services/".to_vec(), b"/services0".to_vec()));

        // A watch reports changes; after its end the next one continues at the same revision.
        let events = json!({ "events": [
            {"kv": pair("/services/web/3", r#"{"host": "10.0.0.3"}"#)},
            {"type": "DELETE", "kv": pair("/services/web/1", "")},
        ] });
        server.answer(
            "200 OK",
            "",
            &format!("{}{}", message(9, json!({ "created": true })), message(10, events)),
        );
        let want = ["shop/api = api.test:None*1^0", "web = 10.0.0.2:Some(80)*5^-1 10.0.0.3:None*1^0"];
        assert_eq!(shown(source.next().await), want);
        assert_eq!(asked(&server).1["create_request"]["start_revision"], "10");
        let gone = json!({ "events": [{"type": "DELETE", "kv": pair("/services/shop/api/x", "")}] });
        server.answer("200 OK", "", &message(12, gone));
        assert_eq!(shown(source.next().await), [want[1]]);
        assert_eq!(asked(&server).1["create_request"]["start_revision"], "11");
    }

    #[test]
    fn null_is_no_value() {
        let check = |text: &str, expected: Option<(Option<u16>, u32, i32)>| {
            let found = read_node(text.as_bytes(), 7);
            assert_eq!(found.map(|node| (node.port, node.weight, node.priority)), expected, "{text}");
        };
        check(
            r#"{"host": "a", "port": null, "priority": null, "weight": null, "metadata": null}"#,
            Some((None, 7, 0)),
        );
        check(r#"{"host": "a", "port": "80", "priority": -2, "weight": "3"}"#, Some((Some(80), 3, -2)));
        check(r#"{"host": "a", "port": "x"}"#, None);
        check(r#"{"host": "a", "priority": "1"}"#, None);
        check(r#"{"host": null}"#, None);
        check("null", None);
    }

    #[tokio::test]
    async fn compacted_history_is_read_again() {
        let server = Scripted::start();
        let mut source = source(&server, json!({}));
        let web = |host: &str| range(9, &[pair("/services/web/1", &format!("{{\"host\": \"{host}\"}}"))]);
        server.answer("200 OK", "", &web("a"));
        assert_eq!(shown(source.next().await), ["web = a:None*1^0"]);
        let lost = [
            // The end of a history at this revision is impossible.
            message(u64::MAX, json!({ "canceled": true })),
            message(30, json!({ "canceled": true, "compact_revision": "20" })),
            message(3, json!({ "created": true })),
            "{\"error\": {\"grpc_code\": 14}}\n".to_owned(),
            message(10, json!({ "events": [{"kv": {"key": "?"}}] })),
        ];
        for (at, lost) in lost.iter().enumerate() {
            server.answer("200 OK", "", lost);
            server.answer("200 OK", "", &web(&format!("b{at}")));
            assert_eq!(shown(source.next().await), [format!("web = b{at}:None*1^0")]);
        }
    }

    #[tokio::test]
    async fn an_invalid_folder_is_an_error_and_recovery_is_reported() {
        let server = Scripted::start();
        let mut source = source(&server, json!({}));
        let many: Vec<Value> =
            (0..21).map(|n| pair(&format!("/services/web/{n}"), "{\"host\": \"a\"}")).collect();
        let others = range(9, &[pair("/other/web/1", "{\"host\": \"a\"}")]);
        for lie in ["", "[]", "{}", "{\"header\": {}}", &range(9, &many), &others] {
            server.answer("200 OK", "", lie);
            assert!(source.next().await.is_err(), "{lie}");
        }
        server.answer("200 OK", "", &range(u64::MAX, &[pair("/services/web/1", "{\"host\": \"a\"}")]));
        assert_eq!(shown(source.next().await), ["web = a:None*1^0"]);
        server.answer("503 Service Unavailable", "", "");
        assert!(source.next().await.is_err());
        server.answer("200 OK", "", &message(u64::MAX, json!({ "created": true })));
        assert_eq!(shown(source.next().await), ["web = a:None*1^0"]);
    }

    #[tokio::test]
    async fn a_malformed_key_is_left_out_and_the_others_stay() {
        let server = Scripted::start();
        let mut source = source(&server, json!({}));
        let good = pair("/services/web/1", "{\"host\": \"a\"}");
        let malformed = [json!({}), json!({"key": 7}), json!({"key": "?"}), json!(null)];
        let pairs: Vec<Value> = malformed.into_iter().chain([good]).collect();
        server.answer("200 OK", "", &range(9, &pairs));
        assert_eq!(shown(source.next().await), ["web = a:None*1^0"]);
    }
}
