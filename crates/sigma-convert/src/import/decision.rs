//! The common middle of all conversions: an ordered list of decisions, of which the first match wins.

use serde_json::{Map, Value};

use super::source::SourceLine;

/// Everything that a configuration says, before it becomes a document.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Settings of the process, by their keys at the top level.
    pub settings: Map<String, Value>,
    /// Addresses.
    pub listeners: Vec<Listener>,
    /// Certificates by server name.
    pub certificates: Vec<Certificate>,
    /// Upstreams by their ids.
    pub upstreams: Vec<(String, Value)>,
    /// The decisions in order.
    pub decisions: Vec<Decision>,
    /// Stream routes in order.
    pub streams: Vec<Value>,
    /// Consumers with their credentials.
    pub consumers: Vec<Value>,
    /// Plugins of one global rule.
    pub global_plugins: Map<String, Value>,
    /// Plugin metadata by the plugin's name.
    pub plugin_metadata: Map<String, Value>,
    /// Resources in Sigma's own syntax, by their kind: for formats that have it.
    pub resources: Map<String, Value>,
}

/// An address to listen on.
#[derive(Debug, Clone, Default)]
pub struct Listener {
    /// `host:port`, `:port` or `unix:/path`.
    pub address: String,
    /// The port, by which decisions name the listener; 0 for a Unix socket.
    pub port: u16,
    /// Further fields of the listener: `tls`, `stream`, `proxy_protocol`, `backlog`.
    pub fields: Map<String, Value>,
}

/// A certificate for server names.
#[derive(Debug, Clone, Default)]
pub struct Certificate {
    /// Server names: exact, `*.example.com` or `*`.
    pub names: Vec<String>,
    /// The file of the certificate and its chain.
    pub cert_file: String,
    /// The file of the private key.
    pub key_file: String,
    /// Further fields of the ssl: `client`, `ssl_protocols`.
    pub fields: Map<String, Value>,
}

/// Conditions, and the action for requests that meet all of them.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The source line.
    pub place: SourceLine,
    /// A label for the route's id; made unique where needed. [`super::build::id`] gives the id of a unique name.
    pub name: String,
    /// Ports of the listeners; empty: all.
    pub ports: Vec<u16>,
    /// Hosts, one of which must match; empty: all.
    pub hosts: Vec<Host>,
    /// Paths, one of which must match; empty: all.
    pub paths: Vec<Path>,
    /// Methods; empty: all.
    pub methods: Vec<String>,
    /// Conditions in Sigma's syntax of `vars`; all must hold.
    pub conditions: Vec<Value>,
    /// Plugins by name.
    pub plugins: Map<String, Value>,
    /// The action.
    pub target: Target,
    /// Further fields of the route, such as `timeout` and `enable_websocket`.
    pub fields: Map<String, Value>,
}

impl Decision {
    /// Creates a decision without conditions.
    #[must_use]
    pub fn new(place: SourceLine, name: impl Into<String>, target: Target) -> Self {
        Decision {
            place,
            name: name.into(),
            ports: Vec::new(),
            hosts: Vec::new(),
            paths: Vec::new(),
            methods: Vec::new(),
            conditions: Vec::new(),
            plugins: Map::new(),
            target,
            fields: Map::new(),
        }
    }
}

/// A pattern for the host of a request, without port and in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// This name.
    Exact(String),
    /// `Suffix("a.b")`: all names that end in `.a.b`.
    Suffix(String),
    /// `Prefix("www")`: all names that begin with `www.`.
    Prefix(String),
    /// A regular expression, which ignores case.
    Regex(String),
}

/// A pattern for the path of a request: decoded, without dot segments and doubled slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// This path.
    Exact(String),
    /// A prefix of the text: `/a` matches `/a`, `/a/b` and `/ab`.
    Prefix(String),
    /// A prefix in segments: `/a` matches `/a` and `/a/b`.
    Segments(String),
    /// A regular expression anywhere in the path.
    Regex {
        /// In the syntax of the crate `regex`.
        pattern: String,
        /// Whether case is ignored.
        ignore_case: bool,
    },
}

/// The action of a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// Send the request to the upstream with this id.
    Upstream(String),
    /// Respond with a status; texts may contain variables.
    Respond {
        /// The status.
        status: u16,
        /// The body; None for the gateway's own body of this status.
        body: Option<String>,
        /// Header fields, `Content-Type` among them.
        headers: Vec<(String, String)>,
    },
    /// Redirect; the target is a text with variables that is sent as it is.
    Redirect {
        /// The status.
        status: u16,
        /// The new location.
        to: String,
    },
    /// Serve files: the configuration of the plugin static-files.
    Files(Map<String, Value>),
    /// Close the connection without a response.
    Drop,
    /// A guard that cannot be converted: 503, with the reason in the route's description.
    Closed(String),
}
