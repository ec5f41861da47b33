//! Services.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache::RouteCache;
use super::decoration::Decorations;
use super::optional::Optional;
use super::overload::PriorityClass;
use super::route::Script;
use super::shared::{Labels, Plugins, UnixTime};
use super::upstream::Upstream;
use sigma_schema::forms::HostPattern;
use sigma_schema::id::Id;

resource! {
    /// Plugins, hosts and an upstream that several routes share.
    pub struct Service [id name about times] {
        /// Plugins by name.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub plugins: Plugins,
        /// Inline upstream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Arc<Upstream>>,
        /// Reference to an upstream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// A Lua program that serves the request; not supported.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 10, max = 102400))]
        pub script: Optional<Script>,
        /// Allow `Upgrade` (WebSocket).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub enable_websocket: Option<bool>,
        /// Caches responses of its routes without their own `cache`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache: Option<Box<RouteCache>>,
        /// The importance of requests of its routes without their own `priority_class`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub priority_class: Option<PriorityClass>,
        /// Host patterns of routes without their own.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
        pub hosts: Optional<Vec<String>>,
        /// Costs of GraphQL fields, for `graphql-limit-count`; in addition to the costs in the Admin API below the
        /// service.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub graphql_cost_decorations: Optional<Decorations>,
    }
}
