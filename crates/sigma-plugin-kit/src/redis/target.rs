//! The target of a connection.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::Node;
use sigma_schema::Confidential;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ServerAddress {
    /// Host of a sentinel.
    #[schemars(length(min = 2))]
    pub host: String,
    /// Port of the sentinel.
    #[schemars(range(min = 1))]
    pub port: u16,
}

/// The credentials of the gateway. Without a password there is no authentication.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Login {
    pub username: Option<String>,
    pub password: Confidential,
}

/// The arrangement of servers.
#[derive(Clone, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single(ServerAddress),
    /// A cluster that these nodes know.
    Cluster(Vec<ServerAddress>),
    /// The master, or a replica of it, that sentinels know.
    Sentinel { sentinels: Vec<ServerAddress>, master: String, role: Role, login: Login },
}

/// The server behind sentinels that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Role {
    #[serde(rename = "master")]
    Master,
    #[serde(rename = "slave")]
    Replica,
}

/// The encryption of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// Cleartext.
    Off,
    /// Any certificate is accepted.
    Unverified,
    /// The certificate must be valid for the system's authorities.
    Verified,
}

impl Encryption {
    /// Returns the encryption of two settings: whether there is any, and whether the certificate is verified.
    pub fn of(is_encrypted: bool, is_verified: bool) -> Encryption {
        match (is_encrypted, is_verified) {
            (false, _) => Encryption::Off,
            (true, false) => Encryption::Unverified,
            (true, true) => Encryption::Verified,
        }
    }
}

/// Everything that distinguishes connections.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The servers, and how they belong together.
    pub deployment: Deployment,
    /// The user and password.
    pub login: Login,
    /// The number of the database.
    pub database: i64,
    /// The encryption of connections.
    pub encryption: Encryption,
    /// The longest time to connect.
    pub connect_timeout: Duration,
    /// The longest time to wait for a response.
    pub answer_timeout: Duration,
    /// A connection that was silent for longer is replaced.
    pub idle_timeout: Duration,
}

impl std::fmt::Display for Target {
    /// Shows the addresses only: credentials are secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, places) = match &self.deployment {
            Deployment::Single(place) => return write!(f, "redis {}:{}", place.host, place.port),
            Deployment::Cluster(places) => ("redis cluster", places),
            Deployment::Sentinel { sentinels, .. } => ("redis sentinels", sentinels),
        };
        f.write_str(kind)?;
        places.iter().try_for_each(|place| write!(f, " {}:{}", place.host, place.port))
    }
}

/// Returns the target of one server, with the usual timeouts.
pub fn single_server(
    place: ServerAddress,
    username: Option<String>,
    password: Option<Confidential>,
    encryption: Encryption,
) -> Target {
    Target {
        deployment: Deployment::Single(place),
        login: Login { username, password: password.unwrap_or_default() },
        database: 0,
        encryption,
        connect_timeout: Duration::from_secs(1),
        answer_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(10),
    }
}

/// The targets in use, so that equal ones are one object with one connection per worker.
#[derive(Default)]
struct Targets {
    known: Mutex<Vec<Weak<Target>>>,
}

impl Target {
    /// Returns the one object for this target.
    pub fn shared(self, node: &Node) -> Arc<Target> {
        let targets = node.part(Targets::default);
        // A panic elsewhere leaves at worst a target that is not shared.
        let mut known = targets.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|target| target.strong_count() > 0);
        if let Some(same) = known.iter().filter_map(Weak::upgrade).find(|target| **target == self) {
            return same;
        }
        let target = Arc::new(self);
        known.push(Arc::downgrade(&target));
        target
    }
}
