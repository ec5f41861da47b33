//! The configuration of Redis (APISIX: the fields `redis_*` and `sentinel_*`).

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::described::schema_of;

use super::target::{Deployment, Encryption, Login, Role, ServerAddress, Target};

/// The storage of counters: the value of `policy`, with the fields that belong to it. The schema of a plugin has them
/// from [`policies`].
#[derive(Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Policy {
    /// Counters in this gateway's memory.
    Local,
    /// One server.
    Redis(Single),
    /// A cluster.
    RedisCluster(Cluster),
    /// Servers that Sentinels watch.
    RedisSentinel(Sentinel),
}

#[derive(Deserialize, JsonSchema)]
pub struct Single {
    /// Host of the Redis server.
    #[schemars(length(min = 2))]
    redis_host: String,
    /// Port of the Redis server.
    #[schemars(range(min = 1), extend("default" = 6379))]
    redis_port: u16,
    /// Number of the database.
    #[schemars(range(min = 0), extend("default" = 0))]
    redis_database: i64,
    /// Whether the connection is encrypted.
    #[schemars(extend("default" = false))]
    redis_ssl: bool,
    /// Whether the server's certificate must be valid.
    #[schemars(extend("default" = false))]
    redis_ssl_verify: bool,
    /// User; without it the default user.
    #[schemars(length(min = 1))]
    redis_username: Option<String>,
    #[serde(flatten)]
    usual: Usual,
}

#[derive(Deserialize, JsonSchema)]
pub struct Cluster {
    /// Some nodes of the cluster, as host:port.
    #[schemars(length(min = 1), inner(length(min = 2, max = 100)))]
    redis_cluster_nodes: Vec<ClusterNode>,
    /// Name of the cluster, only for compatibility: APISIX requires it.
    #[serde(rename = "redis_cluster_name")]
    _name: String,
    /// Whether connections are encrypted.
    #[schemars(extend("default" = false))]
    redis_cluster_ssl: bool,
    /// Whether the certificates of nodes must be valid.
    #[schemars(extend("default" = false))]
    redis_cluster_ssl_verify: bool,
    #[serde(flatten)]
    usual: Usual,
}

/// The settings that a server and a cluster share.
#[derive(Deserialize, JsonSchema)]
struct Usual {
    /// Password; empty for none.
    #[schemars(length(min = 0))]
    redis_password: Option<Confidential>,
    /// Timeout in milliseconds, for the connection and for a response.
    #[schemars(range(min = 1), extend("default" = 1000))]
    redis_timeout: u64,
    /// Idle time in milliseconds after which a connection is replaced.
    #[schemars(range(min = 1000), extend("default" = 10000))]
    redis_keepalive_timeout: u64,
    /// Without effect: each worker has one connection, which all its requests share.
    #[serde(rename = "redis_keepalive_pool")]
    #[schemars(range(min = 1), extend("default" = 100))]
    _pool: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
pub struct Sentinel {
    /// The sentinels, used in this order.
    #[schemars(length(min = 1))]
    redis_sentinels: Vec<ServerAddress>,
    /// The name of the master at the sentinels.
    #[schemars(length(min = 1))]
    redis_master_name: String,
    /// Whether the master or one of its replicas is used.
    #[schemars(extend("default" = "master"))]
    redis_role: Role,
    /// Connect timeout in milliseconds.
    #[schemars(range(min = 1), extend("default" = 1000))]
    redis_connect_timeout: u64,
    /// Timeout in milliseconds for a response.
    #[schemars(range(min = 1), extend("default" = 1000))]
    redis_read_timeout: u64,
    /// Idle time in milliseconds after which a connection is replaced.
    #[schemars(range(min = 1), extend("default" = 60000))]
    redis_keepalive_timeout: u64,
    /// Number of the database.
    #[schemars(range(min = 0), extend("default" = 0))]
    redis_database: i64,
    /// User; without it the default user.
    #[schemars(length(min = 1))]
    redis_username: Option<String>,
    /// Password; empty for none.
    redis_password: Option<Confidential>,
    /// User at the sentinels.
    #[schemars(length(min = 1))]
    sentinel_username: Option<String>,
    /// Password at the sentinels; empty for none.
    sentinel_password: Option<Confidential>,
}

/// A server as one text.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct ClusterNode(ServerAddress);

impl TryFrom<String> for ClusterNode {
    type Error = String;

    fn try_from(node: String) -> Result<ClusterNode, String> {
        let parts = node.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let parts = parts.map(|(host, port)| (host.trim_matches(['[', ']']), port));
        match parts.filter(|(host, port)| !host.is_empty() && *port != 0) {
            Some((host, port)) => Ok(ClusterNode(ServerAddress { host: host.to_owned(), port })),
            None => Err(format!("redis_cluster_nodes: `{node}` is not of the form host:port")),
        }
    }
}

impl Policy {
    /// Returns the target of commands. None for the policy `local`.
    pub fn target(self) -> Option<Target> {
        match self {
            Policy::Local => None,
            Policy::Redis(single) => Some(single.target()),
            Policy::RedisCluster(cluster) => Some(cluster.target()),
            Policy::RedisSentinel(sentinel) => Some(sentinel.target()),
        }
    }
}

impl Usual {
    fn target(self, deployment: Deployment, encryption: Encryption) -> Target {
        let timeout = Duration::from_millis(self.redis_timeout);
        Target {
            deployment,
            login: login(None, self.redis_password),
            database: 0,
            encryption,
            connect_timeout: timeout,
            answer_timeout: timeout,
            idle_timeout: Duration::from_millis(self.redis_keepalive_timeout),
        }
    }
}

impl Single {
    fn target(self) -> Target {
        let place = ServerAddress { host: self.redis_host, port: self.redis_port };
        let encryption = Encryption::of(self.redis_ssl, self.redis_ssl_verify);
        let target = self.usual.target(Deployment::Single(place), encryption);
        let login = Login { username: self.redis_username, ..target.login };
        Target { login, database: self.redis_database, ..target }
    }
}

impl Cluster {
    fn target(self) -> Target {
        let places = self.redis_cluster_nodes.into_iter().map(|ClusterNode(place)| place).collect();
        let encryption = Encryption::of(self.redis_cluster_ssl, self.redis_cluster_ssl_verify);
        self.usual.target(Deployment::Cluster(places), encryption)
    }
}

impl Sentinel {
    fn target(self) -> Target {
        Target {
            deployment: Deployment::Sentinel {
                sentinels: self.redis_sentinels,
                master: self.redis_master_name,
                role: self.redis_role,
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

fn login(username: Option<String>, password: Option<Confidential>) -> Login {
    Login { username, password: password.unwrap_or_default() }
}

/// Returns settings of a configuration that do not have the effect that they seem to have. Settings that its policy
/// does not have at all are found by the schema.
pub fn idle_settings(conf: &Value) -> Vec<Problem> {
    let policy = conf.get("policy").and_then(Value::as_str).unwrap_or("local");
    let text = |field: &str| conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let on = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    let nameless = |user: &str, password: &str| !text(user).is_empty() && text(password).is_empty();
    const NO_PASSWORD: &str = "a user name has no effect without a password";
    const CLEAR: &str = "certificates are not checked without TLS";
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

/// Returns the schema of a [`Policy`], to be flattened into a plugin's: the field `policy`, and for each of its
/// values the fields that belong to it (`if`, `then`, `else`), with the fields of `More` in addition. Sentinels may
/// be chosen if `SENTINELS` is true.
pub fn policies<More: JsonSchema, const SENTINELS: bool>(_: &mut SchemaGenerator) -> Schema {
    let mut known = vec![("redis", schema_of::<Single>()), ("redis-cluster", schema_of::<Cluster>())];
    if SENTINELS {
        known.push(("redis-sentinel", schema_of::<Sentinel>()));
    }
    let names: Vec<&str> = ["local"].into_iter().chain(known.iter().map(|(name, _)| *name)).collect();
    let policy = json!({
        "type": "string",
        "enum": names,
        "default": "local",
        "description": "Where counters are stored: in the memory of this gateway, or in Redis, where several gateways share them."
    });
    let more = schema_of::<More>();
    let more = more.get("properties").and_then(Value::as_object);
    let conditions = known.into_iter().rev().fold(Map::new(), |otherwise, (name, brought)| {
        let mut properties = brought["properties"].clone();
        properties.as_object_mut().into_iter().for_each(|all| all.extend(more.cloned().unwrap_or_default()));
        let test = json!({"properties": {"policy": {"enum": [name]}}, "required": ["policy"]});
        let then = json!({"properties": properties, "required": brought["required"]});
        let mut chain = Map::from_iter([("if".to_owned(), test), ("then".to_owned(), then)]);
        if !otherwise.is_empty() {
            chain.insert("else".to_owned(), Value::Object(otherwise));
        }
        chain
    });
    let mut schema = json_schema!({"type": "object", "properties": {"policy": policy}});
    schema.ensure_object().extend(conditions);
    schema
}
