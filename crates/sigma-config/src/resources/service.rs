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
    /// Plugins, hosts and an upstream that several routes have in common.
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
        /// A program in Lua that serves the request; needs the Lua engine.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 10, max = 102400))]
        pub script: Optional<Script>,
        /// Allow `Upgrade` (WebSocket).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub enable_websocket: Option<bool>,
        /// Keeps answers of its routes that have no `cache` of their own.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache: Option<Box<RouteCache>>,
        /// How important requests of its routes are that do not say so themselves.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub priority_class: Option<PriorityClass>,
        /// Host patterns of routes that have none of their own.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
        pub hosts: Optional<Vec<String>>,
        /// What fields of its GraphQL schema cost, for `graphql-limit-count`; beside what the Admin API keeps below
        /// the service.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub graphql_cost_decorations: Optional<Decorations>,
    }
}
