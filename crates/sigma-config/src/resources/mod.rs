//! The resources that an operator configures.
//!
//! The same types are used by the file, the store, the schemas and the documentation. Fields of APISIX's format keep
//! its names, defaults and ranges. The types are compact, because there may be hundreds of thousands of them: a rarely
//! used field takes one pointer.

#[macro_use]
mod base;

mod balancing;
mod cache;
pub mod checks;
mod client_auth;
mod consumer;
mod decoration;
mod destination;
mod fastcgi;
pub mod kind;
mod node_states;
pub mod nodes;
mod optional;
mod ordered;
mod outliers;
mod overload;
mod plugin;
mod proto;
pub mod reference;
mod retry;
mod route;
mod secret;
mod service;
mod shared;
mod ssl;
mod stapling;
mod stream;
pub mod table;
mod upstream;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

pub use balancing::{
    AffinityCookie, CrossSite, OnGone, SelectorFallback, SessionAffinity, SlowStart, StickTable,
    SubsetFallback, SubsetSelector, Subsets, UpstreamMember, ZoneAware,
};
pub use cache::{CacheValid, CachedMethod, IgnoredHeader, RouteCache};
pub use client_auth::{Cleartext, CrlVerify, SslClient, SslCrl, SslOcsp, WithoutAnswer};
pub use consumer::{Consumer, ConsumerGroup, Credential};
pub(crate) use consumer::{ConsumerItem, split_credential};
pub use decoration::{Decoration, Decorations, FieldPath};
pub use destination::{OriginalDestination, Ports};
pub use fastcgi::{FastCgi, FastCgiHttps};
pub use node_states::NodeState;
pub use optional::{Optional, Unset};
pub use ordered::{AcmeChallenge, CertificateKey, SslAcme};
pub use outliers::{OnUnhealthy, OutlierDetection};
pub use overload::{
    AdaptiveConcurrency, AdmissionControl, CircuitBreaker, Fallback, PriorityClass, RequestLimits,
    RequestQueue,
};
pub use plugin::{EnabledPlugin, GlobalRule, PluginConfig, PluginMetadata};
pub use proto::Proto;
pub use retry::{BackOff, ExchangeDeadline, Hedging, RetryBudget, RetryOn, RetryPolicy};
pub use route::{PathRewrite, Route, Script};
pub use secret::{GcpAccount, Secret, SecretProvider};
pub use service::Service;
pub use shared::{Labels, Plugins, Status, Timeout, UnixTime};
pub use ssl::{Ssl, SslType, TlsVersion};
pub use stapling::SslStapling;
pub use stream::{Protocol, ProtocolLogger, StreamRoute, StreamTls, StreamUdp};
pub use upstream::{
    Balance, DiscoveryArgs, HashOn, KeepalivePool, Node, PassHost, ProxyProtocolVersion, Scheme, StartTls,
    Upstream, UpstreamTls,
};

use crate::resources::kind::{Kind, ResourceKey};
use crate::resources::table::{Resource, Table};
use sigma_schema::described::{schema_of, take_confidential};

macro_rules! identified {
    ($($type:ty: $field:ident;)*) => {$(
        impl Resource for $type {
            fn id(&self) -> &str {
                self.$field.as_ref()
            }
        }
    )*};
}

identified! {
    Route: id;
    Service: id;
    Upstream: id;
    Consumer: username;
    Credential: id;
    ConsumerGroup: id;
    Ssl: id;
    GlobalRule: id;
    PluginConfig: id;
    PluginMetadata: id;
    Proto: id;
    StreamRoute: id;
    Secret: id;
}

/// All resources of one configuration. Clones share them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resources {
    /// Routes.
    pub routes: Table<Route>,
    /// Services.
    pub services: Table<Service>,
    /// Upstreams.
    pub upstreams: Table<Upstream>,
    /// Consumers by name.
    pub consumers: Table<Consumer>,
    /// Credentials of consumers; the id is `jack/credentials/c1`.
    pub credentials: Table<Credential>,
    /// Consumer groups.
    pub consumer_groups: Table<ConsumerGroup>,
    /// Certificates.
    pub ssls: Table<Ssl>,
    /// Global rules.
    pub global_rules: Table<GlobalRule>,
    /// Plugin configs.
    pub plugin_configs: Table<PluginConfig>,
    /// Plugin metadata by plugin.
    pub plugin_metadata: Table<PluginMetadata>,
    /// Protocol Buffers definitions.
    pub protos: Table<Proto>,
    /// Routes for TCP and UDP.
    pub stream_routes: Table<StreamRoute>,
    /// Configurations of secret managers; the id is `vault/1`.
    pub secrets: Table<Secret>,
    /// Closed resources, which keep their place but do not serve: their requests get 503, their handshakes are refused.
    closed: BTreeSet<ResourceKey>,
}

impl Resources {
    /// Returns whether a resource is closed.
    #[must_use]
    pub fn is_closed(&self, key: &ResourceKey) -> bool {
        !self.closed.is_empty() && self.closed.contains(key)
    }

    /// Closes an existing resource: it keeps its place but does not serve, until it is replaced.
    pub fn close(&mut self, key: ResourceKey) {
        self.closed.insert(key);
    }

    pub(crate) fn reopen(&mut self, key: &ResourceKey) {
        if !self.closed.is_empty() {
            self.closed.remove(key);
        }
    }
}

/// Serialises the sections of a file, each as a list; credentials are among the consumers. The oldest sections are
/// written even if they are empty.
impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn list<T: Serialize, E: serde::ser::Error>(table: &Table<T>) -> Result<Vec<Value>, E> {
            match serde_json::to_value(table).map_err(E::custom)? {
                Value::Array(items) => Ok(items),
                _ => Ok(Vec::new()),
            }
        }
        let mut consumers = list(&self.consumers)?;
        consumers.append(&mut list(&self.credentials)?);
        let mut sections = Map::new();
        let always = ["routes", "services", "upstreams"];
        for (section, items) in [
            ("routes", list(&self.routes)?),
            ("services", list(&self.services)?),
            ("upstreams", list(&self.upstreams)?),
            ("consumers", consumers),
            ("consumer_groups", list(&self.consumer_groups)?),
            ("plugin_configs", list(&self.plugin_configs)?),
            ("global_rules", list(&self.global_rules)?),
            ("plugin_metadata", list(&self.plugin_metadata)?),
            ("ssls", list(&self.ssls)?),
            ("protos", list(&self.protos)?),
            ("secrets", list(&self.secrets)?),
            ("stream_routes", list(&self.stream_routes)?),
        ] {
            if !items.is_empty() || always.contains(&section) {
                sections.insert(section.to_owned(), Value::Array(items));
            }
        }
        sections.serialize(serializer)
    }
}

/// The sections of a file with resources, for the schema of the file.
#[derive(schemars::JsonSchema)]
#[schemars(deny_unknown_fields, rename = "Resources")]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct Sections {
    /// Routes.
    #[schemars(default)]
    routes: Vec<Route>,
    /// Services.
    #[schemars(default)]
    services: Vec<Service>,
    /// Upstreams.
    #[schemars(default)]
    upstreams: Vec<Upstream>,
    /// Consumers and their credentials.
    #[schemars(default)]
    consumers: Vec<ConsumerItem>,
    /// Consumer groups.
    #[schemars(default)]
    consumer_groups: Vec<ConsumerGroup>,
    /// Plugin configs.
    #[schemars(default)]
    plugin_configs: Vec<PluginConfig>,
    /// Global rules.
    #[schemars(default)]
    global_rules: Vec<GlobalRule>,
    /// Plugin metadata.
    #[schemars(default)]
    plugin_metadata: Vec<PluginMetadata>,
    /// Certificates.
    #[schemars(default)]
    ssls: Vec<Ssl>,
    /// Protocol Buffers definitions.
    #[schemars(default)]
    protos: Vec<Proto>,
    /// Configurations of secret managers.
    #[schemars(default)]
    secrets: Vec<Secret>,
    /// Routes for TCP and UDP.
    #[schemars(default)]
    stream_routes: Vec<StreamRoute>,
}

/// The sections of a file with lists of resources.
pub(crate) const SECTIONS: [&str; 12] = [
    "routes",
    "services",
    "upstreams",
    "consumers",
    "consumer_groups",
    "plugin_configs",
    "global_rules",
    "plugin_metadata",
    "ssls",
    "protos",
    "secrets",
    "stream_routes",
];

/// Returns the schema of a type without marks.
fn described<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    take_confidential(&mut schema);
    schema
}

/// Returns APISIX's schema of a kind with Sigma's own fields; it is built at every call.
pub(crate) fn apisix_schema(kind: Kind) -> Value {
    match kind {
        Kind::Route => described::<Route>(),
        Kind::Service => described::<Service>(),
        Kind::Upstream => described::<Upstream>(),
        Kind::Consumer => described::<Consumer>(),
        Kind::Credential => described::<Credential>(),
        Kind::ConsumerGroup => described::<ConsumerGroup>(),
        Kind::Ssl => described::<Ssl>(),
        Kind::GlobalRule => described::<GlobalRule>(),
        Kind::PluginConfig => described::<PluginConfig>(),
        Kind::PluginMetadata => described::<PluginMetadata>(),
        Kind::Proto => described::<Proto>(),
        Kind::StreamRoute => described::<StreamRoute>(),
        Kind::Secret => {
            let forms: Vec<Value> = SecretProvider::ALL.map(secret::schema).into();
            serde_json::json!({ "type": "object", "oneOf": forms })
        }
    }
}

/// Returns APISIX's schema of one secret manager; it is built at every call.
pub(crate) fn apisix_secret_schema(manager: SecretProvider) -> Value {
    secret::schema(manager)
}
