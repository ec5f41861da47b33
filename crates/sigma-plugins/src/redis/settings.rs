//! What a configuration says of Redis (APISIX: the fields `redis_*` and `sentinel_*`).

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_config::Problem;
use sigma_config::wording::is_secret_reference;

use super::target::{Deployment, Encryption, Login, Place, Role, Target};

/// Where counters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    Local,
    Redis,
    RedisCluster,
    RedisSentinel,
}

#[derive(Deserialize)]
struct Single {
    redis_host: String,
    redis_port: u16,
    redis_username: Option<String>,
    redis_password: Option<String>,
    redis_database: i64,
    redis_timeout: u64,
    redis_ssl: bool,
    redis_ssl_verify: bool,
    redis_keepalive_timeout: u64,
}

#[derive(Deserialize)]
struct Cluster {
    redis_cluster_nodes: Vec<String>,
    redis_password: Option<String>,
    redis_timeout: u64,
    redis_cluster_ssl: bool,
    redis_cluster_ssl_verify: bool,
    redis_keepalive_timeout: u64,
}

#[derive(Deserialize)]
struct Sentinel {
    redis_sentinels: Vec<SentinelPlace>,
    redis_master_name: String,
    redis_role: String,
    redis_connect_timeout: u64,
    redis_read_timeout: u64,
    redis_keepalive_timeout: u64,
    redis_database: i64,
    redis_username: Option<String>,
    redis_password: Option<String>,
    sentinel_username: Option<String>,
    sentinel_password: Option<String>,
}

#[derive(Deserialize)]
struct SentinelPlace {
    host: String,
    port: u16,
}

/// Checks what the schema cannot say of a configuration with defaults filled in. What refers to a
/// secret is not known yet.
///
/// # Errors
/// As [`target_of`].
pub(crate) fn check_target(policy: Policy, conf: &Value) -> Result<(), String> {
    if policy != Policy::RedisCluster {
        return target_of(policy, conf).map(drop);
    }
    let nodes = Cluster::deserialize(conf).map_err(text)?.redis_cluster_nodes;
    nodes.iter().filter(|node| !is_secret_reference(node)).try_for_each(|node| place(node).map(drop))
}

/// The target of a checked configuration with defaults filled in; None for the policy `local`.
///
/// # Errors
/// A node of a cluster without a port; a sentence.
pub(crate) fn target_of(policy: Policy, conf: &Value) -> Result<Option<Target>, String> {
    let target = match policy {
        Policy::Local => return Ok(None),
        Policy::Redis => Single::deserialize(conf).map(Single::target),
        Policy::RedisCluster => return Cluster::deserialize(conf).map_err(text)?.target().map(Some),
        Policy::RedisSentinel => Sentinel::deserialize(conf).map(Sentinel::target),
    };
    target.map(Some).map_err(text)
}

fn text(error: serde_json::Error) -> String {
    error.to_string()
}

fn login(username: Option<String>, password: Option<String>) -> Login {
    Login { username: username.filter(|name| !name.is_empty()), password: password.unwrap_or_default() }
}

fn encryption(on: bool, verified: bool) -> Encryption {
    match (on, verified) {
        (false, _) => Encryption::Off,
        (true, false) => Encryption::Unverified,
        (true, true) => Encryption::Verified,
    }
}

impl Single {
    fn target(self) -> Target {
        Target {
            deployment: Deployment::Single(Place { host: self.redis_host, port: self.redis_port }),
            login: login(self.redis_username, self.redis_password),
            database: self.redis_database,
            encryption: encryption(self.redis_ssl, self.redis_ssl_verify),
            connect_timeout: Duration::from_millis(self.redis_timeout),
            answer_timeout: Duration::from_millis(self.redis_timeout),
            idle_timeout: Duration::from_millis(self.redis_keepalive_timeout),
        }
    }
}

impl Cluster {
    fn target(self) -> Result<Target, String> {
        let places = self.redis_cluster_nodes.iter().map(|node| place(node)).collect::<Result<_, _>>()?;
        Ok(Target {
            deployment: Deployment::Cluster(places),
            login: login(None, self.redis_password),
            database: 0,
            encryption: encryption(self.redis_cluster_ssl, self.redis_cluster_ssl_verify),
            connect_timeout: Duration::from_millis(self.redis_timeout),
            answer_timeout: Duration::from_millis(self.redis_timeout),
            idle_timeout: Duration::from_millis(self.redis_keepalive_timeout),
        })
    }
}

fn place(node: &str) -> Result<Place, String> {
    let parts = node.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let parts = parts.map(|(host, port)| (host.trim_matches(['[', ']']), port));
    match parts.filter(|(host, port)| !host.is_empty() && *port != 0) {
        Some((host, port)) => Ok(Place { host: host.to_owned(), port }),
        None => Err(format!("redis_cluster_nodes: `{node}` is not of the form host:port")),
    }
}

impl Sentinel {
    fn target(self) -> Target {
        let sentinels = self.redis_sentinels.into_iter().map(|at| Place { host: at.host, port: at.port });
        let role = if self.redis_role == "slave" { Role::Replica } else { Role::Master };
        Target {
            deployment: Deployment::Sentinel {
                sentinels: sentinels.collect(),
                master: self.redis_master_name,
                role,
                login: login(self.sentinel_username, self.sentinel_password),
            },
            login: login(self.redis_username, self.redis_password),
            database: self.redis_database,
            encryption: Encryption::Off,
            connect_timeout: Duration::from_millis(self.redis_connect_timeout),
            answer_timeout: Duration::from_millis(self.redis_read_timeout),
            idle_timeout: Duration::from_millis(self.redis_keepalive_timeout),
        }
    }
}

/// Settings of a configuration as it is written that do not do what they seem to. Those that its
/// policy does not have at all are found by the schema.
pub(crate) fn idle_settings(conf: &Value) -> Vec<Problem> {
    let policy = conf.get("policy").and_then(Value::as_str).unwrap_or("local");
    let text = |field: &str| conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let on = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    let nameless = |user: &str, password: &str| !text(user).is_empty() && text(password).is_empty();
    const NO_PASSWORD: &str = "without a password nobody logs in, and no user is named";
    const CLEAR: &str = "the connection is not encrypted, so that there is no certificate";
    let cases = [
        (
            "redis_keepalive_pool",
            conf.get("redis_keepalive_pool").is_some(),
            "each worker has one connection, which all its requests share",
        ),
        ("redis_username", nameless("redis_username", "redis_password"), NO_PASSWORD),
        ("sentinel_username", nameless("sentinel_username", "sentinel_password"), NO_PASSWORD),
        ("redis_ssl_verify", on("redis_ssl_verify") && !on("redis_ssl"), CLEAR),
        ("redis_cluster_ssl_verify", on("redis_cluster_ssl_verify") && !on("redis_cluster_ssl"), CLEAR),
    ];
    let idle = cases.into_iter().filter(|(_, is_idle, _)| *is_idle && policy != "local");
    idle.map(|(field, _, why)| {
        Problem::new(field, "no_effect", format!("`{field}` has no effect: {why}")).hint("remove it")
    })
    .collect()
}

/// The property `policy` with these values.
pub(crate) fn schema_of_policies(policies: &[&str]) -> Value {
    json!({
        "type": "string",
        "enum": policies,
        "default": "local",
        "description": "Where the counters are kept: in the memory of this gateway, or in Redis, \
            where several gateways share them."
    })
}

/// What a schema requires further for each policy: the members `if`, `then` and `else`. `extra`
/// are properties that all policies with Redis have besides.
pub(crate) fn policy_conditions(policies: &[&str], extra: &Value) -> Map<String, Value> {
    let all = [("redis", single()), ("redis-cluster", cluster()), ("redis-sentinel", sentinel())];
    let known = all.into_iter().filter(|(name, _)| policies.contains(name));
    known.rev().fold(Map::new(), |otherwise, (name, mut schema)| {
        if let (Some(Value::Object(fields)), Some(extra)) = (schema.get_mut("properties"), extra.as_object())
        {
            fields.extend(extra.clone());
        }
        let mut chain = Map::new();
        let test = json!({"properties": {"policy": {"enum": [name]}}, "required": ["policy"]});
        chain.insert("if".to_owned(), test);
        chain.insert("then".to_owned(), schema);
        if !otherwise.is_empty() {
            chain.insert("else".to_owned(), Value::Object(otherwise));
        }
        chain
    })
}

fn milliseconds(default: u64, least: u64, about: &str) -> Value {
    json!({"type": "integer", "minimum": least, "default": default, "description": about})
}

fn flag(about: &str) -> Value {
    json!({"type": "boolean", "default": false, "description": about})
}

/// Accepted because APISIX has it: all exchanges of a worker share one connection.
fn pool() -> Value {
    json!({"type": "integer", "minimum": 1, "default": 100,
        "description": "Without effect: each worker has one connection, which all its requests share."})
}

const KEEPALIVE: &str = "Milliseconds of silence after which a connection is made anew.";
const PASSWORD: &str = "Password; empty for none.";

fn single() -> Value {
    json!({
        "properties": {
            "redis_host": {"type": "string", "minLength": 2, "description": "Host of the Redis server."},
            "redis_port": {"type": "integer", "minimum": 1, "maximum": 65535, "default": 6379,
                "description": "Port of the Redis server."},
            "redis_username": {"type": "string", "minLength": 1, "description": "User; without it the default user."},
            "redis_password": {"type": "string", "minLength": 0, "description": PASSWORD},
            "redis_database": {"type": "integer", "minimum": 0, "default": 0, "description": "Number of the database."},
            "redis_timeout": milliseconds(1000, 1, "Milliseconds to connect, and to wait for an answer."),
            "redis_ssl": flag("Whether the connection is encrypted."),
            "redis_ssl_verify": flag("Whether the server's certificate must be valid."),
            "redis_keepalive_timeout": milliseconds(10000, 1000, KEEPALIVE),
            "redis_keepalive_pool": pool()
        },
        "required": ["redis_host"]
    })
}

fn cluster() -> Value {
    json!({
        "properties": {
            "redis_cluster_nodes": {"type": "array", "minItems": 1,
                "items": {"type": "string", "minLength": 2, "maxLength": 100},
                "description": "Some nodes of the cluster, as host:port."},
            "redis_cluster_name": {"type": "string", "description": "Name of the cluster, for people: APISIX asks for it."},
            "redis_password": {"type": "string", "minLength": 0, "description": PASSWORD},
            "redis_timeout": milliseconds(1000, 1, "Milliseconds to connect, and to wait for an answer."),
            "redis_cluster_ssl": flag("Whether connections are encrypted."),
            "redis_cluster_ssl_verify": flag("Whether the certificates of nodes must be valid."),
            "redis_keepalive_timeout": milliseconds(10000, 1000, KEEPALIVE),
            "redis_keepalive_pool": pool()
        },
        "required": ["redis_cluster_nodes", "redis_cluster_name"]
    })
}

fn sentinel() -> Value {
    json!({
        "properties": {
            "redis_sentinels": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "host": {"type": "string", "minLength": 2, "description": "Host of a sentinel."},
                        "port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "Its port."}
                    },
                    "required": ["host", "port"],
                    "additionalProperties": false
                },
                "description": "The sentinels, asked in this order."
            },
            "redis_master_name": {"type": "string", "minLength": 1, "description": "The name under which sentinels know the master."},
            "redis_role": {"type": "string", "enum": ["master", "slave"], "default": "master",
                "description": "Whether the master or one of its replicas is asked."},
            "redis_connect_timeout": milliseconds(1000, 1, "Milliseconds to connect."),
            "redis_read_timeout": milliseconds(1000, 1, "Milliseconds to wait for an answer."),
            "redis_keepalive_timeout": milliseconds(60000, 1, KEEPALIVE),
            "redis_database": {"type": "integer", "minimum": 0, "default": 0, "description": "Number of the database."},
            "redis_username": {"type": "string", "minLength": 1, "description": "User; without it the default user."},
            "redis_password": {"type": "string", "description": PASSWORD},
            "sentinel_username": {"type": "string", "minLength": 1, "description": "User at the sentinels."},
            "sentinel_password": {"type": "string", "description": "Password at the sentinels; empty for none."}
        },
        "required": ["redis_sentinels", "redis_master_name"]
    })
}
