//! Load balancing options of an upstream, besides its type.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::Confidential;
use sigma_schema::id::Id;

/// Slow start: the share of a new node grows over a window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SlowStart {
    /// Seconds until a node has its full share.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86400))]
    pub window: f64,
    /// Growth of the share: it is (age / window)^(1 / aggression) of the full share. 1 is linear; a larger value grows
    /// faster at the beginning.
    #[serde(default = "even")]
    #[schemars(range(min = 0.01, max = 100))]
    pub aggression: f64,
    /// The smallest share, in percent of the full share.
    #[serde(default = "tenth")]
    #[schemars(range(min = 1, max = 100))]
    pub min_weight_percent: u8,
}

fn even() -> f64 {
    1.0
}

fn tenth() -> u8 {
    10
}

/// Session affinity: requests of a session go to the same node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SessionAffinity {
    /// The cookie with the node of a session, set by the gateway.
    pub cookie: AffinityCookie,
    /// The key of the hash in the cookie, the same on all gateways. With it, a client could compute the node in a
    /// cookie.
    #[schemars(length(min = 16, max = 256))]
    pub secret: Confidential,
    /// When the node of a session no longer exists, is unusable, or was already tried.
    #[serde(default)]
    pub on_gone: OnGone,
}

/// The treatment of a session whose node no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnGone {
    /// Another node is chosen, and the client gets a new cookie.
    #[default]
    Rebalance,
    /// The request gets 503; a session of a stream route is closed.
    Reject,
}

/// Sessions identified by a cookie or header of the nodes, or by the client's address. The gateway remembers the node
/// of each session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StickTable {
    /// The response cookie with the session id, such as `JSESSIONID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub cookie: Option<Box<str>>,
    /// The response header with the session id, such as `Mcp-Session-Id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub header: Option<Box<str>>,
    /// Sessions are identified by the client's address: all its requests and all its stream sessions go to one node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub address: bool,
    /// The session id in a request: texts with variables, of which the first non-empty one counts. Unset: the same
    /// cookie, or header.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    pub matches: Vec<Box<str>>,
    /// Approximate maximum number of sessions; each takes 36 bytes. Beyond it the least recently used ones are removed.
    #[serde(default = "many")]
    #[schemars(range(min = 64, max = 10000000))]
    pub size: u32,
    /// Seconds after its last use until a session is removed.
    #[serde(default = "hour")]
    #[schemars(range(min = 1, max = 2592000))]
    pub expire: u32,
    /// When the node of a session no longer exists, is unusable, or was already tried.
    #[serde(default)]
    pub on_gone: OnGone,
}

fn many() -> u32 {
    100_000
}

fn hour() -> u32 {
    3_600
}

/// A cookie that identifies a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct AffinityCookie {
    /// Name of the cookie.
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: Box<str>,
    /// `Path` of the cookie.
    #[serde(default = "root")]
    #[schemars(length(max = 1024), extend("pattern" = "^/[!-:<-~]*$"))]
    pub path: Box<str>,
    /// `Domain` of the cookie; unset: the host of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("pattern" = "^[0-9A-Za-z.-]+$"))]
    pub domain: Option<Box<str>>,
    /// `Max-Age` of the cookie in seconds; unset: a session cookie of the browser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_age: Option<u32>,
    /// `HttpOnly`: scripts cannot read the cookie.
    #[serde(default = "yes")]
    pub http_only: bool,
    /// `Secure`: browsers send it over TLS only.
    #[serde(default)]
    pub secure: bool,
    /// `SameSite`; unset: the browser's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_site: Option<CrossSite>,
}

/// The cross-site requests to which a cookie is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CrossSite {
    /// Links only.
    Lax,
    /// No request.
    Strict,
    /// All requests; with `secure` only.
    None,
}

fn root() -> Box<str> {
    "/".into()
}

fn yes() -> bool {
    true
}

/// An upstream that is a member of another upstream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct UpstreamMember {
    /// The upstream. It must have nodes, not members.
    pub upstream_id: Id,
    /// Its share of the requests among members of its priority; 0: no requests.
    #[serde(default = "one")]
    #[schemars(range(max = 1000000))]
    pub weight: u32,
    /// Members with a lower priority serve only if no member with a higher one can.
    #[serde(default)]
    pub priority: i32,
}

fn one() -> u32 {
    1
}

/// Zone-aware balancing: requests stay in the zone of the gateway, as far as its nodes have capacity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ZoneAware {
    /// The key of a node's `metadata` with its zone.
    #[schemars(length(min = 1, max = 128))]
    pub metadata_key: Box<str>,
    /// Minimum number of usable nodes on a level of `priority`; below it all zones are used equally.
    #[schemars(range(min = 1))]
    pub min_cluster_size: u32,
    /// The number of gateways in each zone; unset: the same number in each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gateways: BTreeMap<Box<str>, u32>,
}

impl Default for ZoneAware {
    fn default() -> Self {
        ZoneAware { metadata_key: "zone".into(), min_cluster_size: 6, gateways: BTreeMap::new() }
    }
}

/// Subsets: nodes are selected by their metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Subsets {
    /// The sets of keys that select nodes.
    #[schemars(length(min = 1, max = 16))]
    pub selectors: Vec<SubsetSelector>,
    /// The values that a request selects by: a text with variables for each key. An empty value is ignored.
    pub criteria: BTreeMap<Box<str>, Box<str>>,
    /// The nodes for a request without criteria, or whose criteria match no node.
    #[serde(default)]
    pub fallback: SubsetFallback,
    /// With `fallback: default`, here or in a selector: the metadata of the fallback nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub default: BTreeMap<Box<str>, Box<str>>,
}

/// A set of keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SubsetSelector {
    /// Keys of `metadata`. Nodes that have all of them, as texts, form a subset for each combination of values.
    #[schemars(length(min = 1, max = 8))]
    pub keys: Vec<Box<str>>,
    /// The nodes for a request whose values for these keys match no node; unset: the `fallback` of the subsets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<SelectorFallback>,
    /// With `fallback: keys_subset`: the keys for the second lookup. They must be the keys of another selector, whose
    /// own fallback then applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 7))]
    pub fallback_keys_subset: Vec<Box<str>>,
}

/// The nodes if a selector finds no subset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SelectorFallback {
    /// No node: the request gets 503.
    None,
    /// All nodes.
    Any,
    /// Nodes with the metadata of `default`.
    Default,
    /// Nodes that match the keys of `fallback_keys_subset`.
    KeysSubset,
}

/// The nodes if no subset is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubsetFallback {
    /// No node: the request gets 503.
    #[default]
    None,
    /// All nodes.
    Any,
    /// Nodes with the metadata of `default`.
    Default,
}
