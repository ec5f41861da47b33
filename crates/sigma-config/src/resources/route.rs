//! Routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::cache::RouteCache;
use super::optional::Optional;
use super::overload::PriorityClass;
use super::retry::{ExchangeDeadline, RetryPolicy};
use super::shared::{Labels, Plugins, Status, Timeout, UnixTime};
use super::upstream::Upstream;
use sigma_schema::cidr::{Cidr, CidrSet};
use sigma_schema::expr::Expr;
use sigma_schema::forms::{CidrText, HostPattern, MethodName};
use sigma_schema::id::Id;

resource! {
    /// A route: conditions that select requests, and their plugins and upstream.
    #[schemars(transform = conditions)]
    pub struct Route [id name about times] {
        /// One path pattern, such as `/api/*`, or a regular expression after `~` (`~*` ignores case), such as
        /// `~^/api/(?<id>[0-9]+)$`; exactly one of `uri` and `uris`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>", length(min = 1, max = 4096))]
        pub uri: Option<Box<str>>,
        /// Several path patterns.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<String>", length(min = 1), extend("uniqueItems" = true))]
        pub uris: Optional<Vec<String>>,
        /// Order among routes with the same path key, and among all routes with `router.http: ordered`; higher first.
        #[schemars(extend("minimum" = i64::MIN, "maximum" = i64::MAX))]
        pub priority: i64,
        /// Methods; empty for all.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<MethodName>", extend("uniqueItems" = true))]
        pub methods: Optional<Vec<String>>,
        /// One host pattern: exact, `*.example.com` or `*`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<HostPattern>")]
        pub host: Option<Box<str>>,
        /// Several host patterns.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
        pub hosts: Optional<Vec<String>>,
        /// One client address or network.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<CidrText>")]
        pub remote_addr: Option<Box<Cidr>>,
        /// Several client addresses or networks.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<CidrText>", length(min = 1), extend("uniqueItems" = true))]
        pub remote_addrs: Optional<CidrSet>,
        /// Upstream timeouts of this route; replaces the upstream's as a whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout: Option<Box<Timeout>>,
        /// The retry policy of this route; replaces the upstream's as a whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub retry_policy: Option<Box<RetryPolicy>>,
        /// The deadline of exchanges of this route; replaces the upstream's.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub deadline: Option<Box<ExchangeDeadline>>,
        /// Caches responses; replaces the service's cache as a whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache: Option<Box<RouteCache>>,
        /// The importance of its requests when the gateway must refuse some; unset: the service's, else `critical`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub priority_class: Option<PriorityClass>,
        /// Conditions on variables.
        #[serde(skip_serializing_if = "Optional::is_unset")]
            pub vars: Optional<Expr>,
        /// A condition in Lua: `function(vars) … end`. The route serves requests for which it returns true.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 10), extend("pattern" = "^function"))]
        pub filter_func: Optional<Script>,
        /// A Lua chunk that returns a table of functions by phase. They run instead of the plugins of the route.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 10, max = 102400))]
        pub script: Optional<Script>,
        /// Accepted for APISIX, without effect.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub script_id: Option<Box<Id>>,
        /// Media types of request bodies; a body of another type gets 415.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub consumes: Optional<Vec<String>>,
        /// Media types of responses; a request that accepts none of them gets 406.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub produces: Optional<Vec<String>>,
        /// Respond 405 with `Allow` instead of 404 if only the method does not match.
        pub method_not_allowed: bool,
        /// Whether clients cannot reach the route: it serves requests of the gateway itself, for error pages and
        /// fallbacks.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        pub internal: bool,
        /// Variables of this route by name, texts that are read as `$var_NAME`. They replace the setting `variables`.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "BTreeMap<String, String>", extend("maxProperties" = 256))]
        pub set: Optional<BTreeMap<Box<str>, Box<str>>>,
        /// Names of the listeners of this route; empty for all.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub listeners: Optional<Vec<String>>,
        /// Rewrites the path for the upstream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rewrite: Option<Box<PathRewrite>>,
        /// Plugins by name.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub plugins: Plugins,
        /// Reference to a plugin config; plugins of the route have precedence over its plugins.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub plugin_config_id: Option<Id>,
        /// Inline upstream: an object, or the short form `http://host:port`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Arc<Upstream>>,
        /// Reference to an upstream; has precedence over `upstream`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// Reference to a service.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub service_id: Option<Id>,
        /// Allow `Upgrade` (WebSocket); unset: the service's value.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub enable_websocket: Option<bool>,
        /// Other protocols that `Upgrade` may switch to, such as `SPDY/3.1`. Plugins and limits do not apply to the
        /// upgraded connection. `connect` allows CONNECT, for a plugin that opens tunnels.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(inner(regex(pattern = UPGRADE_PROTOCOL)), extend("uniqueItems" = true))]
        pub upgrade_protocols: Optional<Vec<String>>,
        /// 1 enabled, 0 disabled.
        pub status: Status,
    }
}

/// A Lua text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Script(String);

impl Script {
    /// Returns the text; empty without one.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl super::optional::Unset for Script {
    const UNSET: &'static Self = &Script(String::new());
}

/// Replaces every match of `regex` in the path for the upstream; the query string is not changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRewrite {
    /// A regular expression in the syntax of the Rust crate `regex`.
    #[serde(deserialize_with = "compiling_regex")]
    pub regex: String,
    /// The text that replaces a match: `$1` or `${name}` for a group, `$$` for a dollar sign.
    pub replacement: String,
}

fn compiling_regex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let source = String::deserialize(deserializer)?;
    regex::Regex::new(&source).map_err(serde::de::Error::custom)?;
    Ok(source)
}

/// Groups of fields of which a route must have one, in the order in which the failure names them.
const ACTIONS: [[&str; 2]; 10] = [
    ["plugins", "uri"],
    ["upstream", "uri"],
    ["upstream_id", "uri"],
    ["service_id", "uri"],
    ["plugins", "uris"],
    ["upstream", "uris"],
    ["upstream_id", "uris"],
    ["service_id", "uris"],
    ["script", "uri"],
    ["script", "uris"],
];

/// Returns the schema of at most one of two fields.
fn at_most_one(one: &str, several: &str) -> Value {
    let (one, several) = (json!({ "required": [one] }), json!({ "required": [several] }));
    json!({ "oneOf": [{ "not": { "anyOf": [one, several] } }, one, several] })
}

/// A protocol name with an optional version (RFC 9110 §7.8).
const UPGRADE_PROTOCOL: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+(/[A-Za-z0-9!#$%&'*+.^_`|~-]+)?$";

/// Adds the required and the exclusive fields of a route.
fn conditions(route: &mut Schema) {
    let required = |fields: &[&str]| json!({ "required": fields });
    let all = json!([
        { "oneOf": [required(&["uri"]), required(&["uris"])] },
        at_most_one("host", "hosts"),
        at_most_one("remote_addr", "remote_addrs"),
    ]);
    route.insert("allOf".to_owned(), all);
    route.insert("anyOf".to_owned(), ACTIONS.iter().map(|fields| required(fields)).collect());
    let beside_script = [required(&["script", "plugins"]), required(&["script", "plugin_config_id"])];
    route.insert("not".to_owned(), json!({ "anyOf": beside_script }));
}
