//! Rules of an upstream by which a node is chosen, beside its type.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::Confidential;
use sigma_schema::id::Id;

/// Slow start of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SlowStart {
    /// Seconds until a node has its full share.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86400))]
    pub window: f64,
    /// How fast the share grows: it is (age / window)^(1 / aggression) of the full one. At 1 it grows
    /// evenly, above faster at the beginning.
    #[serde(default = "even")]
    #[schemars(range(min = 0.01, max = 100))]
    pub aggression: f64,
    /// The least share, in percent of the full one.
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

/// Sessions that stay on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SessionAffinity {
    /// The cookie by which clients name the node of their session; the gateway makes it.
    pub cookie: AffinityCookie,
    /// The key of the hash that names a node, the same on all gateways. Who knows it can tell which
    /// node a cookie names.
    #[schemars(length(min = 16, max = 256))]
    pub secret: Confidential,
    /// When the node of a session is gone, unusable or was tried.
    #[serde(default)]
    pub on_gone: OnGone,
}

/// What becomes of a session whose node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnGone {
    /// Another node is chosen, and the client is told it.
    #[default]
    Rebalance,
    /// The request is answered 503; a session of a stream route is closed.
    Reject,
}

/// Sessions that nodes name, and that stay where they were named, or that are told by their client's address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StickTable {
    /// The cookie of an answer that names a session, such as `JSESSIONID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub cookie: Option<Box<str>>,
    /// The header of an answer that names a session, such as `Mcp-Session-Id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub header: Option<Box<str>>,
    /// Sessions are told by the address of their client: all that it asks, and all sessions of stream routes that
    /// it begins, are on one node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub address: bool,
    /// Where a request names its session: texts with variables, of which the first that has a value counts.
    /// Unset: the same cookie, or header.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    pub matches: Vec<Box<str>>,
    /// How many sessions are known, about; 36 bytes each. Beyond, those are forgotten that were not used for
    /// longest.
    #[serde(default = "many")]
    #[schemars(range(min = 64, max = 10000000))]
    pub size: u32,
    /// Seconds since its last use after which a session is forgotten.
    #[serde(default = "hour")]
    #[schemars(range(min = 1, max = 2592000))]
    pub expire: u32,
    /// When the node of a session is gone, unusable or was tried.
    #[serde(default)]
    pub on_gone: OnGone,
}

fn many() -> u32 {
    100_000
}

fn hour() -> u32 {
    3_600
}

/// A cookie that names a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct AffinityCookie {
    /// Its name.
    #[schemars(length(min = 1, max = 128), extend("pattern" = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: Box<str>,
    /// Its `Path`.
    #[serde(default = "root")]
    #[schemars(length(max = 1024), extend("pattern" = "^/[!-:<-~]*$"))]
    pub path: Box<str>,
    /// Its `Domain`; unset: the host of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("pattern" = "^[0-9A-Za-z.-]+$"))]
    pub domain: Option<Box<str>>,
    /// Its `Max-Age` in seconds; unset: the client forgets it when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_age: Option<u32>,
    /// `HttpOnly`: scripts do not see it.
    #[serde(default = "yes")]
    pub http_only: bool,
    /// `Secure`: it is sent over TLS only.
    #[serde(default)]
    pub secure: bool,
    /// `SameSite`; unset: as the browser thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_site: Option<CrossSite>,
}

/// To which requests of other sites a cookie is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CrossSite {
    /// Links.
    Lax,
    /// None.
    Strict,
    /// All; with `secure` only.
    None,
}

fn root() -> Box<str> {
    "/".into()
}

fn yes() -> bool {
    true
}

/// An upstream as a part of another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct UpstreamMember {
    /// The upstream. It has nodes, not members.
    pub upstream_id: Id,
    /// Its share of the requests among members of its priority; 0: none.
    #[serde(default = "one")]
    #[schemars(range(max = 1000000))]
    pub weight: u32,
    /// Members of a lower priority serve where none of a higher one can.
    #[serde(default)]
    pub priority: i32,
}

fn one() -> u32 {
    1
}

/// Requests stay in the zone of the gateway, as far as its nodes carry them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ZoneAware {
    /// The member of a node's `metadata` that names its zone.
    #[schemars(length(min = 1, max = 128))]
    pub metadata_key: Box<str>,
    /// With fewer usable nodes on a level of `priority` all zones are served alike.
    #[schemars(range(min = 1))]
    pub min_cluster_size: u32,
    /// How many gateways there are in each zone; unset: as many in each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gateways: BTreeMap<Box<str>, u32>,
}

impl Default for ZoneAware {
    fn default() -> Self {
        ZoneAware { metadata_key: "zone".into(), min_cluster_size: 6, gateways: BTreeMap::new() }
    }
}

/// Nodes by their metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Subsets {
    /// The sets of keys that requests may ask by.
    #[schemars(length(min = 1, max = 16))]
    pub selectors: Vec<SubsetSelector>,
    /// What a request asks for: a text with variables for each key. One without a value is not asked for.
    pub criteria: BTreeMap<Box<str>, Box<str>>,
    /// The nodes for a request that asks for what no node has, or for nothing.
    #[serde(default)]
    pub fallback: SubsetFallback,
    /// With `fallback: default`, here or at a selector: the metadata of the nodes that are got.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub default: BTreeMap<Box<str>, Box<str>>,
}

/// A set of keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SubsetSelector {
    /// Members of `metadata`: nodes that have all of them, as texts, form a subset for each combination of
    /// values.
    #[schemars(length(min = 1, max = 8))]
    pub keys: Vec<Box<str>>,
    /// The nodes for a request that asks by these keys for values that no node has; unset: as `fallback` of
    /// the subsets says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<SelectorFallback>,
    /// With `fallback: keys_subset`: the keys by which it is asked again. They are those of another
    /// selector, whose own fallback then counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 7))]
    pub fallback_keys_subset: Vec<Box<str>>,
}

/// The nodes where a selector finds no subset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SelectorFallback {
    /// None: the request is answered 503.
    None,
    /// All.
    Any,
    /// Those with the metadata of `default`.
    Default,
    /// Those that fewer of the keys find.
    KeysSubset,
}

/// The nodes where no subset is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubsetFallback {
    /// None: the request is answered 503.
    #[default]
    None,
    /// All.
    Any,
    /// Those with the metadata of `default`.
    Default,
}
