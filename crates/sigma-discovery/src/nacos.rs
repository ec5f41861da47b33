//! Alibaba's Nacos, by its HTTP API: one service, asked for at intervals.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use sigma_config::discovery::{Nacos, Registry, RegistryAddress};
use sigma_config::resources::{Confidential, DiscoveryArgs, Node};
use tokio::sync::Mutex;

use crate::consul::encoded;
use crate::http::{Answer, Http, Members, Question, Trust};
use crate::node::{self, LeftOut};
use crate::polling::{Asked, Polling};
use crate::source::{Env, Listing, Trouble};

/// The namespace and the group that are meant where none is named.
const NAMESPACE: &str = "public";
const GROUP: &str = "DEFAULT_GROUP";

/// How long a token is used that does not say how long it holds; that of Nacos holds for five hours.
const TOKEN_LIFE: Duration = Duration::from_secs(600);

/// Nacos as all services share it: the tokens of its servers.
pub(crate) struct Server {
    http: Http,
    prefix: String,
    within: Duration,
    access_key: String,
    secret_key: Confidential,
    /// The token of each server that was logged in to.
    tokens: Mutex<Vec<Token>>,
}

struct Token {
    /// The server that it is for.
    base: String,
    text: Confidential,
    /// From then on another one is asked for.
    until: Instant,
}

impl Server {
    pub(crate) fn new(settings: &Nacos, env: &Env) -> Arc<Server> {
        let timeout = settings.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        Arc::new(Server {
            http: Http::new(connect, Trust::System, env),
            prefix: format!("/{}", settings.prefix.trim_matches('/')),
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            access_key: settings.access_key.clone(),
            secret_key: settings.secret_key.clone(),
            tokens: Mutex::default(),
        })
    }

    /// The token for a server, if its address names a user. `is_stale` if the one before was refused.
    async fn token(
        &self,
        address: &RegistryAddress,
        is_stale: bool,
    ) -> Result<Option<Confidential>, Trouble> {
        let Some((user, password)) = address.user() else { return Ok(None) };
        let mut tokens = self.tokens.lock().await;
        let now = Instant::now();
        tokens.retain(|token| token.until > now && !(is_stale && token.base == address.base()));
        if let Some(token) = tokens.iter().find(|token| token.base == address.base()) {
            return Ok(Some(token.text.clone()));
        }
        let target = format!("{}/auth/login", self.prefix);
        let mut question = Question::get(&target, self.within);
        question.method = Method::POST;
        question.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        question.body = Some(format!("username={}&password={}", encoded(user), encoded(password)));
        let answer = self.http.ask(address, question).await?;
        let value =
            answer.json(address).await.map_err(|trouble| Trouble(format!("cannot log in: {trouble}")))?;
        let text = value.get("accessToken").and_then(Value::as_str).filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| Trouble(format!("{} gave no token for its user", address.base())))?;
        let life = node::number(value.get("tokenTtl")).map_or(TOKEN_LIFE, Duration::from_secs);
        // Renewed while it still holds; a life beyond any clock is none.
        let life = life.clamp(Duration::from_secs(1), Duration::from_secs(86_400)).mul_f64(0.8);
        let token = Token { base: address.base().to_owned(), text: text.into(), until: now + life };
        tokens.push(token);
        Ok(Some(Confidential::from(text)))
    }

    /// What signs a question about a service, if there is a key.
    fn signature(&self, group: &str, service: &str, now: SystemTime) -> String {
        if self.access_key.is_empty() || self.secret_key.reveal().is_empty() {
            return String::new();
        }
        let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let data = format!("{millis}@@{group}@@{service}");
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret_key.reveal().as_bytes());
        let signature = BASE64_STANDARD.encode(hmac::sign(&key, data.as_bytes()));
        format!("&ak={}&data={}&signature={}", encoded(&self.access_key), encoded(&data), encoded(&signature))
    }
}

/// The nodes of one service.
pub(crate) struct NacosService {
    server: Arc<Server>,
    namespace: Box<str>,
    group: Box<str>,
    service: Box<str>,
    weight: u32,
    most: u32,
}

fn group_of(args: Option<&DiscoveryArgs>) -> (&str, &str) {
    let namespace = args.and_then(|args| args.namespace_id.as_deref()).unwrap_or(NAMESPACE);
    (namespace, args.and_then(|args| args.group_name.as_deref()).unwrap_or(GROUP))
}

impl NacosService {
    /// It, asked for at intervals.
    pub(crate) fn polled(
        server: Arc<Server>,
        settings: &Nacos,
        service: &str,
        args: Option<&DiscoveryArgs>,
        most: u32,
    ) -> Polling<NacosService> {
        let (namespace, group) = group_of(args);
        let service = NacosService {
            server,
            namespace: namespace.into(),
            group: group.into(),
            service: service.into(),
            weight: settings.weight,
            most,
        };
        let interval = Duration::from_secs(settings.fetch_interval.into());
        Polling::new(service, Members::shuffled(&settings.host), interval)
    }

    /// What a service is called among all of Nacos, as APISIX has it.
    pub(crate) fn key(service: &str, args: Option<&DiscoveryArgs>) -> String {
        let (namespace, group) = group_of(args);
        format!("default/{namespace}/{group}/{service}")
    }

    async fn ask_with_token(&self, address: &RegistryAddress, is_stale: bool) -> Result<Answer, Trouble> {
        let NacosService { server, namespace, group, service, .. } = self;
        let mut target = format!(
            "{}/ns/instance/list?healthyOnly=true&serviceName={}&namespaceId={}&groupName={}",
            server.prefix,
            encoded(service),
            encoded(namespace),
            encoded(group)
        );
        if let Some(token) = server.token(address, is_stale).await? {
            target.push_str(&format!("&accessToken={}", encoded(token.reveal())));
        }
        target.push_str(&server.signature(group, service, SystemTime::now()));
        server.http.ask(address, Question::get(&target, server.within)).await
    }
}

impl Asked for NacosService {
    async fn ask(&mut self, address: &RegistryAddress) -> Result<Listing, Trouble> {
        let mut answer = self.ask_with_token(address, false).await?;
        if matches!(answer.status, 401 | 403) && address.user().is_some() {
            // The token holds no longer, whatever it said of itself.
            answer = self.ask_with_token(address, true).await?;
        }
        let value = answer.json(address).await?;
        let unusable = || Trouble(format!("{} answered something else than instances", address.base()));
        let nodes = nodes(&value, self.weight).ok_or_else(unusable)?;
        let key = format!("default/{}/{}/{}", self.namespace, self.group, self.service);
        let nodes = node::list(&key, nodes, self.most);
        Ok(Listing::from([(key.into(), nodes)]))
    }
}

/// The nodes of an answer of `instance/list`; None if it is none.
fn nodes(answer: &Value, default_weight: u32) -> Option<Vec<Node>> {
    let hosts = answer.get("hosts")?.as_array()?;
    let is_set = |host: &Value, name: &str| host.get(name) != Some(&Value::Bool(false));
    let weight = |host: &Value| host.get("weight").and_then(Value::as_f64).filter(|weight| *weight >= 0.0);
    // Weights are numbers with a fraction, from 0 to 10000; ours are whole.
    let has_fractions = hosts.iter().filter_map(weight).any(|weight| weight.fract() != 0.0);
    let scale = if has_fractions { 100.0 } else { 1.0 };
    let whole = |weight: f64| {
        let scaled = (weight * scale).round().min(f64::from(u32::MAX)) as u32;
        if weight > 0.0 { scaled.max(1) } else { 0 }
    };
    let mut nodes = Vec::with_capacity(hosts.len());
    let mut left_out = LeftOut::default();
    for host in hosts.iter().filter(|host| is_set(host, "enabled") && is_set(host, "healthy")) {
        let address = host.get("ip")?.as_str()?;
        let weight = weight(host).map_or(default_weight, whole);
        let found = node::port(host.get("port")).and_then(|port| node::node(address, Some(port), weight));
        match found {
            Some(node) => nodes.push(Node { metadata: node::metadata(host.get("metadata")), ..node }),
            None => left_out.note(address),
        }
    }
    left_out.tell(Registry::Nacos);
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use crate::source::Source;
    use serde_json::json;

    fn host(ip: &str, more: Value) -> Value {
        let mut host = json!({
            "ip": ip, "port": 8080, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true,
            "clusterName": "DEFAULT", "serviceName": "DEFAULT_GROUP@@web", "metadata": {},
            "instanceHeartBeatInterval": 5000, "instanceHeartBeatTimeOut": 15000, "ipDeleteTimeout": 30000
        });
        host.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        host
    }

    fn hosts(hosts: &[Value]) -> String {
        json!({
            "name": "DEFAULT_GROUP@@web", "groupName": "DEFAULT_GROUP", "clusters": "", "cacheMillis": 10000,
            "hosts": hosts, "lastRefTime": 1, "checksum": "", "allIPs": false,
            "reachProtectionThreshold": false, "valid": true
        })
        .to_string()
    }

    fn settings(host: &[String], more: &Value) -> Nacos {
        let mut settings = json!({ "host": host, "fetch_interval": 1 });
        settings.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        serde_json::from_value(settings).expect("settings")
    }

    fn server(host: &[String], more: &Value) -> Arc<Server> {
        Server::new(&settings(host, more), &Env::of(10, 20))
    }

    fn source(host: &[String], more: Value, args: Option<Value>) -> Polling<NacosService> {
        let settings = settings(host, &more);
        let args: Option<DiscoveryArgs> = args.map(|args| serde_json::from_value(args).expect("arguments"));
        NacosService::polled(Server::new(&settings, &Env::of(10, 20)), &settings, "web", args.as_ref(), 10)
    }

    fn shown(listing: Result<Listing, Trouble>, key: &str) -> Vec<String> {
        let listing = listing.expect("a listing");
        let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
        listing[key].iter().map(shown).collect()
    }

    const KEY: &str = "default/public/DEFAULT_GROUP/web";

    #[tokio::test]
    async fn healthy_instances_are_nodes() {
        let server = Scripted::start();
        let address = server.address().base().to_owned();
        let args = json!({ "namespace_id": "n 1", "group_name": "g&h" });
        let mut source = source(&[address], json!({}), Some(args));
        let of = [
            host("10.0.0.1", json!({ "metadata": {"gRPC_port": "9090"} })),
            host("10.0.0.2", json!({ "weight": 3.0 })),
            host("10.0.0.3", json!({ "weight": null, "port": "81" })),
            host("10.0.0.4", json!({ "enabled": false })),
            host("10.0.0.5", json!({ "healthy": false })),
            host("unix:/s", json!({})),
            host("10.0.0.6", json!({ "port": 0 })),
        ];
        server.answer("200 OK", "", &hosts(&of));
        let key = "default/n 1/g&h/web";
        assert_eq!(
            shown(source.next().await, key),
            ["10.0.0.1:8080 1", "10.0.0.2:8080 3", "10.0.0.3:81 100"]
        );
        let want =
            "/nacos/v1/ns/instance/list?healthyOnly=true&serviceName=web&namespaceId=n%201&groupName=g%26h";
        assert_eq!(server.asked("host").0, want);
        // Fractions are scaled, all of them.
        server.answer("200 OK", "", &hosts(&[host("a", json!({ "weight": 0.5 })), host("b", json!({}))]));
        assert_eq!(shown(source.next().await, key), ["a:8080 50", "b:8080 100"]);
        for lie in ["caused: service not found", "{}", "{\"hosts\": {}}", "{\"hosts\": [{}]}"] {
            server.answer("200 OK", "", lie);
            assert!(source.next().await.is_err(), "{lie}");
        }
    }

    #[tokio::test]
    async fn a_user_is_logged_in_and_its_token_renewed() {
        let server = Scripted::start();
        let address = server.address().base().replace("http://", "http://nacos:p&w@");
        let mut source = source(&[address], json!({}), None);
        let token =
            |text: &str| json!({ "accessToken": text, "tokenTtl": 18000, "globalAdmin": true }).to_string();
        server.answer("200 OK", "", &token("first"));
        server.answer("200 OK", "", &hosts(&[host("10.0.0.1", json!({}))]));
        assert_eq!(shown(source.next().await, KEY), ["10.0.0.1:8080 1"]);
        let login = server.question();
        assert_eq!(login.head.line, "POST /nacos/v1/auth/login HTTP/1.1");
        assert_eq!(login.text(), "username=nacos&password=p%26w");
        assert!(server.asked("host").0.ends_with("&accessToken=first"));
        // The token is refused before its time: another is asked for, once.
        server.answer("403 Forbidden", "", "token invalid!");
        server.answer("200 OK", "", &token("second"));
        server.answer("200 OK", "", &hosts(&[]));
        assert_eq!(shown(source.next().await, KEY), [""; 0]);
        server.question();
        server.question();
        assert!(server.asked("host").0.ends_with("&accessToken=second"));
        // One that is wrong for good is an error without the password or the token.
        server.answer("403 Forbidden", "", "");
        server.answer("403 Forbidden", "", "unknown user!");
        let trouble = source.next().await.expect_err("an error").0;
        assert!(
            trouble.contains("cannot log in") && !trouble.contains("p&w") && !trouble.contains("second"),
            "{trouble}"
        );
    }

    #[test]
    fn questions_are_signed() {
        let keys = json!({ "access_key": "ak", "secret_key": "sk" });
        let signed = server(&["http://h:1".to_owned()], &keys);
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_000);
        // As `printf '1700000000000@@g@@s' | openssl dgst -sha1 -hmac sk -binary | base64` has it.
        assert_eq!(signed.signature("g", "s", at), SIGNED);
        let plain = server(&["http://h:1".to_owned()], &json!({ "access_key": "ak" }));
        assert_eq!(plain.signature("g", "s", at), "");
    }

    const SIGNED: &str = "&ak=ak&data=1700000000000%40%40g%40%40s&signature=rbRPDAUXl6VahTFWYChhIS48n8s%3D";
}
