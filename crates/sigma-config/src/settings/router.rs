//! The router, and the accepted paths and methods of requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Router settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// The router.
    pub http: RouterKind,
    /// Remove one `/` at the end of the path before matching.
    pub delete_uri_tail_slash: bool,
    /// Remove `;parameters` from path segments before matching. Set it for nodes that do so (Tomcat, Jetty, Spring);
    /// otherwise `/admin;x/users` does not match a route for `/admin/*`.
    pub normalize_uri_like_servlet: bool,
    /// Keep `%2F` in the path for route matching.
    pub match_uri_encoded_slash: bool,
    /// The path for nodes, plugins, authorisers, caches and logs. `raw` is APISIX's behaviour.
    pub forward_path: ForwardPath,
    /// The treatment of paths that a node may split into other segments than the router. Such a path can match an open
    /// route and reach a protected one.
    pub ambiguous_paths: AmbiguousPaths,
    /// The accepted request methods.
    pub methods: Methods,
}

/// The router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterKind {
    /// Host tree first, then a path tree per host pattern.
    #[default]
    RadixtreeHostUri,
    /// One path tree; the host is a condition.
    RadixtreeUri,
    /// As `radixtree_uri`, with `:name` and `*name` parameters.
    RadixtreeUriWithParameter,
    /// All routes compete by `priority`, then by their place in the file; the lengths of paths and hosts do not count.
    /// With the parameters of `radixtree_uri_with_parameter`.
    Ordered,
}

impl RouterKind {
    /// Returns true if `:name` and `*name` in path patterns are parameters.
    #[must_use]
    pub const fn has_parameters(self) -> bool {
        matches!(self, RouterKind::RadixtreeUriWithParameter | RouterKind::Ordered)
    }

    /// Returns true if routes are found by host first; otherwise the host is one of their conditions.
    #[must_use]
    pub const fn has_host_tree(self) -> bool {
        matches!(self, RouterKind::RadixtreeHostUri | RouterKind::Ordered)
    }
}

/// The path that nodes get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForwardPath {
    /// As the client sent it.
    #[default]
    Raw,
    /// As the client sent it, but `//` is `/`: for nodes that were behind a gateway which does so.
    Merged,
    /// The normalised path, percent-encoded again: all parts see the path that routes are matched against.
    Canonical,
}

/// The treatment of paths that a node may read differently from the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AmbiguousPaths {
    /// They get 400.
    #[default]
    Refuse,
    /// They are forwarded: the nodes protect themselves.
    Allow,
}

/// The accepted request methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Methods {
    /// Every token, except a known method in another case.
    #[default]
    Any,
    /// GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS, TRACE and PURGE. Others get 405.
    Known,
}
