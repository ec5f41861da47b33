//! How routes are chosen, and which paths and methods of requests are served.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RouterKind;

/// Router settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// How routes are chosen.
    pub http: RouterKind,
    /// Remove one `/` at the end of the path before matching.
    pub delete_uri_tail_slash: bool,
    /// Cut `;parameters` from path segments before matching. Set it for nodes that do so (Tomcat, Jetty,
    /// Spring): else `/admin;x/users` passes a route for `/admin/*`.
    pub normalize_uri_like_servlet: bool,
    /// Keep `%2F` in the path that routes are matched against.
    pub match_uri_encoded_slash: bool,
    /// The path that nodes, plugins, authorisers, caches and logs get. `raw` is APISIX's.
    pub forward_path: ForwardPath,
    /// What becomes of a path that a node may read with other segments than the routes. Such a path passes an
    /// open route and reaches a guarded one.
    pub ambiguous_paths: AmbiguousPaths,
    /// Which request methods are served.
    pub methods: Methods,
}

/// The path that is sent to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForwardPath {
    /// As the client wrote it.
    #[default]
    Raw,
    /// The normalised path, percent-encoded again: everything sees the path that routes are matched against.
    Canonical,
}

/// The treatment of paths that a node may read in another way than the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AmbiguousPaths {
    /// They are answered 400.
    #[default]
    Refuse,
    /// They pass: the nodes guard themselves.
    Allow,
}

/// Which request methods are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Methods {
    /// Every token, except a known method in another case.
    #[default]
    Any,
    /// GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS, TRACE and PURGE. Others are answered 405.
    Known,
}
