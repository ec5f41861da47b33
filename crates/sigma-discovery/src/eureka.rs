//! Netflix Eureka: all applications, polled at intervals.
//!
//! If the settings enable it, only changes are requested. With them Eureka sends the expected result: the number of
//! instances of each status. On a difference everything is requested; also from time to time, since two changes may
//! cancel out.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderValue};
use serde_json::{Map, Value};
use sigma_config::discovery::{DiscoveryLimits, Eureka, Registry, RegistryAddress};
use sigma_config::resources::Node;

use crate::http::{Http, Members, RegistryRequest, RegistryResponse, Trust};
use crate::node::{self, LeftOut};
use crate::polling::{MemberQuery, Polling};
use crate::source::{Env, Listing, Trouble};

/// The metadata key of a node's zone, for every registry.
pub(crate) const ZONE: &str = "zone";

/// The number of responses with changes after which everything is requested.
const DELTAS: u32 = 10;

/// All applications.
pub(crate) struct Applications {
    http: Http,
    target: String,
    within: Duration,
    weight: u32,
    limits: DiscoveryLimits,
    /// The remaining number of requests for changes.
    deltas_left: u32,
    asks_for_deltas: bool,
    instances: Instances,
}

impl Applications {
    /// Returns all applications, polled at intervals.
    pub(crate) fn polled(settings: &Eureka, env: &Env) -> Polling<Applications> {
        let interval = Duration::from_secs(settings.fetch_interval.into());
        Polling::new(Applications::new(settings, env), Members::shuffled(&settings.host), interval)
    }

    fn new(settings: &Eureka, env: &Env) -> Applications {
        let timeout = settings.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        Applications {
            http: Http::new(connect, Trust::System, env),
            target: format!("/{}/apps", settings.prefix.trim_matches('/')).replace("//", "/"),
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            weight: settings.weight,
            limits: env.limits,
            deltas_left: 0,
            asks_for_deltas: settings.delta,
            instances: Instances::default(),
        }
    }

    async fn get(&self, address: &RegistryAddress, further: &str) -> Result<RegistryResponse, Trouble> {
        let target = format!("{}{further}", self.target);
        let mut question = RegistryRequest::get(&target, self.within);
        question.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        self.http.ask(address, question).await
    }

    /// Requests changes; returns true if the result is complete.
    async fn ask_for_changes(&mut self, address: &RegistryAddress) -> Result<bool, Trouble> {
        let answer = self.get(address, "/delta").await?;
        if matches!(answer.status, 403 | 404) {
            tracing::warn!(
                "this Eureka server does not support delta queries: the gateway fetches all applications each time"
            );
            self.asks_for_deltas = false;
            return Ok(false);
        }
        let value = answer.json(address).await?;
        let has_taken = self.instances.take(&value, true, self.weight, self.limits.objects).is_some();
        let hash = value.get("applications").and_then(|all| all.get("apps__hashcode")?.as_str());
        Ok(has_taken && hash == Some(&*self.instances.hash()))
    }
}

impl MemberQuery for Applications {
    async fn ask(&mut self, address: &RegistryAddress) -> Result<Listing, Trouble> {
        if self.deltas_left > 0 {
            self.deltas_left -= 1;
            if self.ask_for_changes(address).await? {
                return Ok(self.instances.listing(self.limits.nodes));
            }
        }
        let value = self.get(address, "").await?.json(address).await?;
        let mut instances = Instances::default();
        let base = address.base();
        let unusable = || Trouble(format!("{base} did not return a list of applications, or too many"));
        instances.take(&value, false, self.weight, self.limits.objects).ok_or_else(unusable)?;
        self.instances = instances;
        self.deltas_left = if self.asks_for_deltas { DELTAS } else { 0 };
        Ok(self.instances.listing(self.limits.nodes))
    }

    fn turned(&mut self) {
        // Another server has other changes.
        self.deltas_left = 0;
    }
}

/// Every instance, by application and identity.
#[derive(Default)]
struct Instances(BTreeMap<(Box<str>, Box<str>), Instance>);

struct Instance {
    status: Box<str>,
    /// None if it is not to be used.
    node: Option<Node>,
}

impl Instances {
    /// Handles a response; None if it is invalid, or there are too many instances.
    fn take(&mut self, answer: &Value, is_delta: bool, weight: u32, most: u32) -> Option<()> {
        let mut left_out = LeftOut::default();
        for application in items(answer.get("applications")?.as_object()?.get("application"))? {
            let name = application.get("name").and_then(Value::as_str);
            let (Some(name), Some(instances)) = (name, items(application.get("instance"))) else {
                left_out.note_malformed(application);
                continue;
            };
            for about in instances {
                if !about.is_object() {
                    left_out.note_malformed(about);
                    continue;
                }
                let key: (Box<str>, Box<str>) = (name.into(), identity(about));
                if is_delta && about.get("actionType").and_then(Value::as_str) == Some("DELETED") {
                    self.0.remove(&key);
                    continue;
                }
                let status = about.get("status").and_then(Value::as_str).unwrap_or("UNKNOWN").into();
                let node = if is_up(about) { read(about, weight) } else { None };
                if node.is_none() && is_up(about) {
                    left_out.note(&key.1);
                }
                self.0.insert(key, Instance { status, node });
                if self.0.len() > most as usize {
                    tracing::warn!("Eureka has more instances than `discovery.limits.objects` allows");
                    return None;
                }
            }
        }
        left_out.tell(Registry::Eureka);
        left_out.admits(self.0.len()).then_some(())
    }

    /// Returns the counts of each status, in Eureka's format.
    fn hash(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.0.values().for_each(|instance| *counts.entry(&instance.status).or_default() += 1);
        counts.into_iter().map(|(status, count)| format!("{status}_{count}_")).collect()
    }

    fn listing(&self, most: u32) -> Listing {
        let mut applications: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
        for ((name, _), instance) in &self.0 {
            applications.entry(name).or_default().extend(instance.node.clone());
        }
        applications.into_iter().map(|(name, nodes)| (name.into(), node::list(name, nodes, most))).collect()
    }
}

/// Returns the identity of an instance within its application; older servers have no name for it.
fn identity(about: &Value) -> Box<str> {
    let text = |name: &str| about.get(name).and_then(Value::as_str);
    let port = about.get("port").and_then(|port| node::number(port.get("$"))).unwrap_or_default();
    let place = || format!("{}:{}:{port}", text("hostName").unwrap_or(""), text("ipAddr").unwrap_or(""));
    text("instanceId").map_or_else(|| place().into(), Into::into)
}

/// Returns a list, which older servers write as an object if it has one element.
fn items(value: Option<&Value>) -> Option<Vec<&Value>> {
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(items)) => Some(items.iter().collect()),
        Some(one @ Value::Object(_)) => Some(vec![one]),
        Some(_) => None,
    }
}

/// Returns true if an instance reports that it is up, and no operator overrides it.
fn is_up(instance: &Value) -> bool {
    let word = |name: &str| instance.get(name).and_then(Value::as_str);
    // Both spellings exist.
    let overridden = word("overriddenStatus").or_else(|| word("overriddenstatus")).unwrap_or("UNKNOWN");
    word("status") == Some("UP") && matches!(overridden, "UP" | "UNKNOWN" | "")
}

fn read(instance: &Value, weight: u32) -> Option<Node> {
    let port = |name: &str| {
        let port = instance.get(name)?;
        let is_enabled = port.get("@enabled").is_none_or(|enabled| *enabled == "true" || *enabled == true);
        is_enabled.then(|| node::port(port.get("$")))?
    };
    let secure = instance.get("securePort").filter(|port| port.get("@enabled").is_some());
    let port = secure.and_then(|_| port("securePort")).or_else(|| port("port"))?;
    let text = |name: &str| instance.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let host = text("ipAddr").or_else(|| text("hostName"))?;
    let free = instance.get("metadata");
    let weight = node::weight(free.and_then(|free| free.get("weight"))).unwrap_or(weight);
    let mut metadata: Map<String, Value> = free.and_then(Value::as_object).cloned().unwrap_or_default();
    let of_amazon = || instance.get("dataCenterInfo")?.get("metadata")?.get("availability-zone").cloned();
    if let Some(zone) = metadata.get(ZONE).cloned().or_else(of_amazon) {
        metadata.insert(ZONE.to_owned(), zone);
    }
    let metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
    node::node(host, Some(port), weight).map(|node| Node { metadata, ..node })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use crate::source::Source;
    use serde_json::json;

    fn instance(address: &str, more: Value) -> Value {
        let mut instance = json!({
            "instanceId": format!("{address}:user:8080"), "hostName": "h1", "app": "USER", "ipAddr": address,
            "status": "UP", "overriddenStatus": "UNKNOWN",
            "port": {"$": 8080, "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "countryId": 1, "dataCenterInfo": {"@class": "com.netflix.appinfo.MyDataCenterInfo", "name": "MyOwn"},
            "metadata": {"management.port": "8080"}, "vipAddress": "user", "actionType": "ADDED"
        });
        instance.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        instance
    }

    fn applications(application: &Value) -> String {
        json!({"applications": {"versions__delta": "1", "apps__hashcode": "UP_1_", "application": application}})
            .to_string()
    }

    fn shown(listing: &Listing, name: &str) -> Vec<String> {
        let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
        listing[name].iter().map(shown).collect()
    }

    fn source(server: &Scripted, delta: bool) -> Polling<Applications> {
        let settings = json!({ "host": [server.address()], "fetch_interval": 1, "delta": delta });
        let settings: Eureka = serde_json::from_value(settings).expect("settings");
        Applications::polled(&settings, &Env::of(10, 20))
    }

    #[tokio::test]
    async fn instances_that_are_up_are_nodes() {
        let server = Scripted::start();
        let mut source = source(&server, false);
        let secure = json!({ "securePort": {"$": "8443", "@enabled": true}, "metadata": {"weight": "7", "zone": "z1"} });
        let of_amazon =
            json!({ "dataCenterInfo": {"name": "Amazon", "metadata": {"availability-zone": "us-1a"}} });
        let users = [
            instance("10.0.0.1", json!({})),
            instance("10.0.0.2", secure),
            instance("10.0.0.3", json!({ "status": "DOWN" })),
            instance("10.0.0.4", json!({ "overriddenStatus": "OUT_OF_SERVICE" })),
            instance("10.0.0.5", json!({ "overriddenStatus": null, "overriddenstatus": "UP" })),
            instance("unix:/s", json!({})),
            instance("10.0.0.6", of_amazon),
        ];
        let body = applications(&json!([
            {"name": "USER", "instance": users},
            {"name": "SHOP", "instance": instance("10.0.1.1", json!({}))},
        ]));
        server.answer("200 OK", "", &body);
        let listing = source.next().await.expect("a listing");
        let want = ["10.0.0.1:8080 100", "10.0.0.2:8443 7", "10.0.0.5:8080 100", "10.0.0.6:8080 100"];
        assert_eq!(shown(&listing, "USER"), want);
        assert_eq!(shown(&listing, "SHOP"), ["10.0.1.1:8080 100"]);
        let zone = |at: usize| {
            listing["USER"][at].metadata.as_ref().and_then(|metadata| metadata.get(ZONE).cloned())
        };
        assert_eq!([zone(0), zone(1), zone(3)], [None, Some(json!("z1")), Some(json!("us-1a"))]);
        assert_eq!(server.asked("accept"), ("/eureka/apps".to_owned(), Some("application/json".to_owned())));
        // The last application is gone.
        server.answer("200 OK", "", &applications(&json!([])));
        assert_eq!(source.next().await, Ok(Listing::new()));
    }

    #[tokio::test]
    async fn invalid_lists_are_errors() {
        let server = Scripted::start();
        let mut source = source(&server, false);
        let many: Vec<Value> = (0..21).map(|n| instance(&format!("10.0.0.{n}"), json!({}))).collect();
        let too_many = applications(&json!([{"name": "USER", "instance": many}]));
        let lies = [
            "",
            "[]",
            "{}",
            "{\"applications\": 1}",
            "{\"applications\": {\"application\": [{}]}}",
            &too_many,
        ];
        for lie in lies {
            server.answer("200 OK", "", lie);
            assert!(source.next().await.is_err(), "{lie}");
        }
        for status in ["401 Unauthorized", "503 Service Unavailable", "302 Found"] {
            server.answer(status, "Location: http://127.0.0.1:1/\r\n", &applications(&json!([])));
            assert!(source.next().await.is_err(), "{status}");
        }
    }

    #[tokio::test]
    async fn a_malformed_entry_is_left_out_and_the_others_stay() {
        let server = Scripted::start();
        let mut source = source(&server, false);
        let good = instance("10.0.0.1", json!({}));
        let all = json!([
            {}, {"name": 7}, {"name": "A", "instance": 7}, null, [], "USER",
            {"name": "USER", "instance": [7, good, null]},
        ]);
        server.answer("200 OK", "", &applications(&all));
        let listing = source.next().await.expect("a listing");
        assert_eq!(shown(&listing, "USER"), ["10.0.0.1:8080 100"]);
    }

    #[tokio::test]
    async fn changes_are_requested_while_they_are_complete() {
        let server = Scripted::start();
        let mut source = source(&server, true);
        let whole = |hash: &str, instances: &[Value]| {
            let application = json!([{"name": "USER", "instance": instances}]);
            json!({"applications": {"apps__hashcode": hash, "application": application}}).to_string()
        };
        let next = async |source: &mut Polling<Applications>| {
            shown(&source.next().await.expect("a listing"), "USER")
        };
        let (a, b) = (instance("10.0.0.1", json!({})), instance("10.0.0.2", json!({})));
        server.answer("200 OK", "", &whole("UP_1_", std::slice::from_ref(&a)));
        assert_eq!(next(&mut source).await, ["10.0.0.1:8080 100"]);
        let changed = |address: &str, status: &str, action: &str| {
            instance(address, json!({ "status": status, "actionType": action }))
        };
        let delta = [changed("10.0.0.2", "UP", "ADDED"), changed("10.0.0.1", "DOWN", "MODIFIED")];
        server.answer("200 OK", "", &whole("DOWN_1_UP_1_", &delta));
        assert_eq!(next(&mut source).await, ["10.0.0.2:8080 100"]);
        server.answer("200 OK", "", &whole("UP_1_", &[changed("10.0.0.1", "DOWN", "DELETED")]));
        assert_eq!(next(&mut source).await, ["10.0.0.2:8080 100"]);
        // A change was missed: everything is requested, at once.
        server.answer("200 OK", "", &whole("UP_2_", &[]));
        server.answer("200 OK", "", &whole("UP_2_", &[a.clone(), b]));
        assert_eq!(next(&mut source).await, ["10.0.0.1:8080 100", "10.0.0.2:8080 100"]);
        // A server without changes is not requested them again.
        server.answer("403 Forbidden", "", "");
        server.answer("200 OK", "", &whole("UP_1_", std::slice::from_ref(&a)));
        server.answer("200 OK", "", &whole("UP_1_", &[a]));
        for _ in 0..2 {
            assert_eq!(next(&mut source).await, ["10.0.0.1:8080 100"]);
        }
        let targets: Vec<String> = (0..8).map(|_| server.asked("host").0).collect();
        let delta = "/eureka/apps/delta";
        assert_eq!(
            targets,
            ["/eureka/apps", delta, delta, delta, "/eureka/apps", delta, "/eureka/apps", "/eureka/apps"]
        );
    }

    #[tokio::test]
    async fn a_user_is_sent_and_another_server_tried_when_one_fails() {
        let (good, bad) = (Scripted::start(), Scripted::start());
        let port = |server: &Scripted| server.address().base().rsplit_once(':').map(|at| at.1.to_owned());
        let host =
            [&good, &bad].map(|server| format!("http://u:hush@127.0.0.1:{}", port(server).expect("a port")));
        let settings = json!({ "host": host, "prefix": "/", "fetch_interval": 1 });
        let settings: Eureka = serde_json::from_value(settings).expect("settings");
        let mut source = Applications::polled(&settings, &Env::of(10, 20));
        let body = applications(&json!([{"name": "USER", "instance": [instance("10.0.0.1", json!({}))]}]));
        good.answer("200 OK", "", &body);
        good.answer("200 OK", "", &body);
        for _ in 0..2 {
            bad.answer("500 Internal Server Error", "", "");
            assert_eq!(shown(&source.next().await.expect("a listing"), "USER"), ["10.0.0.1:8080 100"]);
        }
        assert_eq!(good.asked("authorization"), ("/apps".to_owned(), Some("Basic dTpodXNo".to_owned())));
    }
}
