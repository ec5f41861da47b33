//! Names and values of request variables.

use std::borrow::Cow;
use std::fmt;

use super::body_field::BodyField;

/// The prefix of variables with the location of the client's address.
const PLACES: &str = "geoip_";

/// The operation that a GraphQL request asks for.
const GRAPHQL: [&str; 3] = ["graphql_name", "graphql_operation", "graphql_root_fields"];

/// A variable name, parsed once so that a lookup compares no text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VarName {
    /// `method`, `request_method`.
    Method,
    /// `uri`: the normalised path.
    Uri,
    /// `request_uri`: the normalised path and the arguments.
    RequestUri,
    /// `real_request_uri`: the request target as sent.
    RealRequestUri,
    /// `args`, `query_string`.
    Args,
    /// `is_args`: `?` when there are arguments.
    IsArgs,
    /// `host`, without port, lower case.
    Host,
    /// `scheme`: `http` or `https`.
    Scheme,
    /// `remote_addr`.
    RemoteAddr,
    /// `remote_port`.
    RemotePort,
    /// `realip_remote_addr`: the direct peer, even if a plugin changed `remote_addr`.
    RealipRemoteAddr,
    /// `server_addr`.
    ServerAddr,
    /// `server_port`.
    ServerPort,
    /// `server_protocol`, e.g. `HTTP/1.1`.
    ServerProtocol,
    /// `hostname` of this machine.
    Hostname,
    /// `request_id`.
    RequestId,
    /// `route_id`.
    RouteId,
    /// `route_name`.
    RouteName,
    /// `service_id`.
    ServiceId,
    /// `service_name`.
    ServiceName,
    /// `consumer_name`.
    ConsumerName,
    /// `arg_<name>`: the first query argument of that name.
    Arg(String),
    /// `cookie_<name>`.
    Cookie(String),
    /// `http_<name>`, `content_type`, `content_length`, `cookie`: a request header, lower case
    /// with `-` for `_`.
    Http(String),
    /// `uri_param_<name>`: a parameter of the matched path pattern.
    UriParam(String),
    /// `post_arg.<path>`: a field of a structured request body.
    PostArg(BodyField),
    /// Any other name.
    Other(String),
}

impl VarName {
    /// Parses a name. Every text is a valid name.
    #[must_use]
    pub fn parse(name: &str) -> VarName {
        Self::fixed(name).or_else(|| Self::prefixed(name)).unwrap_or_else(|| VarName::Other(name.to_owned()))
    }

    /// Returns whether the variable is a location of the client's address: `geoip_…`.
    #[must_use]
    pub fn is_place(&self) -> bool {
        matches!(self, VarName::Other(name) if name.starts_with(PLACES))
    }

    /// Returns whether the variable is the current time.
    #[must_use]
    pub fn is_time(&self) -> bool {
        matches!(self, VarName::Other(name) if ["msec", "time_iso8601", "time_local"].contains(&name.as_str()))
    }

    /// Returns whether the variable is absent until the request body is read.
    #[must_use]
    pub fn needs_body(&self) -> bool {
        match self {
            VarName::PostArg(_) => true,
            VarName::Other(name) => name.starts_with("post_arg_") || GRAPHQL.contains(&name.as_str()),
            _ => false,
        }
    }

    /// Returns whether a request can have several values of the variable.
    pub(super) fn may_repeat(&self) -> bool {
        match self {
            VarName::Arg(_) | VarName::Cookie(_) | VarName::Http(_) => true,
            VarName::Other(name) => name.starts_with("post_arg_"),
            _ => false,
        }
    }

    /// Returns why the variable is always absent, although APISIX has its name.
    pub(super) fn why_absent(&self) -> Option<String> {
        let VarName::Other(name) = self else { return None };
        let path = name.strip_prefix(BodyField::PREFIX)?;
        Some(format!(
            "the variable `{name}` needs a path like `a.b`, `a[0].b`, `a[*]` or `..b`, not `{path}`"
        ))
    }

    fn fixed(name: &str) -> Option<VarName> {
        Some(match name {
            "method" | "request_method" => VarName::Method,
            "uri" => VarName::Uri,
            "request_uri" => VarName::RequestUri,
            "real_request_uri" => VarName::RealRequestUri,
            "args" | "query_string" => VarName::Args,
            "is_args" => VarName::IsArgs,
            "host" => VarName::Host,
            "scheme" => VarName::Scheme,
            "remote_addr" => VarName::RemoteAddr,
            "remote_port" => VarName::RemotePort,
            "realip_remote_addr" => VarName::RealipRemoteAddr,
            "server_addr" => VarName::ServerAddr,
            "server_port" => VarName::ServerPort,
            "server_protocol" => VarName::ServerProtocol,
            "hostname" => VarName::Hostname,
            "request_id" | "apisix_request_id" => VarName::RequestId,
            "route_id" => VarName::RouteId,
            "route_name" => VarName::RouteName,
            "service_id" => VarName::ServiceId,
            "service_name" => VarName::ServiceName,
            "consumer_name" => VarName::ConsumerName,
            "content_type" => VarName::Http("content-type".into()),
            "content_length" => VarName::Http("content-length".into()),
            "cookie" => VarName::Http("cookie".into()),
            _ => return None,
        })
    }

    fn prefixed(name: &str) -> Option<VarName> {
        let rest = |prefix: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty());
        if let Some(name) = rest("arg_") {
            return Some(VarName::Arg(name.to_owned()));
        }
        if let Some(name) = rest("cookie_") {
            return Some(VarName::Cookie(name.to_owned()));
        }
        if let Some(name) = rest("http_") {
            return Some(VarName::Http(name.to_ascii_lowercase().replace('_', "-")));
        }
        if let Some(path) = rest(BodyField::PREFIX) {
            return BodyField::parse(path).map(VarName::PostArg);
        }
        rest("uri_param_").map(|name| VarName::UriParam(name.to_owned()))
    }
}

impl fmt::Display for VarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fixed = match self {
            VarName::Arg(name) => return write!(f, "arg_{name}"),
            VarName::Cookie(name) => return write!(f, "cookie_{name}"),
            VarName::Http(name) => return write!(f, "http_{}", name.replace('-', "_")),
            VarName::UriParam(name) => return write!(f, "uri_param_{name}"),
            VarName::PostArg(field) => return write!(f, "{field}"),
            VarName::Other(name) => name,
            VarName::Method => "method",
            VarName::Uri => "uri",
            VarName::RequestUri => "request_uri",
            VarName::RealRequestUri => "real_request_uri",
            VarName::Args => "args",
            VarName::IsArgs => "is_args",
            VarName::Host => "host",
            VarName::Scheme => "scheme",
            VarName::RemoteAddr => "remote_addr",
            VarName::RemotePort => "remote_port",
            VarName::RealipRemoteAddr => "realip_remote_addr",
            VarName::ServerAddr => "server_addr",
            VarName::ServerPort => "server_port",
            VarName::ServerProtocol => "server_protocol",
            VarName::Hostname => "hostname",
            VarName::RequestId => "request_id",
            VarName::RouteId => "route_id",
            VarName::RouteName => "route_name",
            VarName::ServiceId => "service_id",
            VarName::ServiceName => "service_name",
            VarName::ConsumerName => "consumer_name",
        };
        f.write_str(fixed)
    }
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VarValue<'a> {
    /// Text; not necessarily UTF-8, since it may come from a header or an argument.
    Text(Cow<'a, [u8]>),
    /// A truth value, e.g. `arg_a` of `?a`.
    Bool(bool),
    /// A list, for `has`.
    List(Vec<Cow<'a, [u8]>>),
}

impl<'a> VarValue<'a> {
    /// Returns a borrowed text.
    #[must_use]
    pub fn text(text: &'a (impl AsRef<[u8]> + ?Sized)) -> VarValue<'a> {
        VarValue::Text(Cow::Borrowed(text.as_ref()))
    }

    /// Returns the same value without borrows.
    #[must_use]
    pub fn into_owned(self) -> VarValue<'static> {
        let owned = |text: Cow<'_, [u8]>| Cow::Owned(text.into_owned());
        match self {
            VarValue::Text(text) => VarValue::Text(owned(text)),
            VarValue::Bool(truth) => VarValue::Bool(truth),
            VarValue::List(items) => VarValue::List(items.into_iter().map(owned).collect()),
        }
    }
}

/// A source of variables: a request, or a table in a test.
pub trait Variables {
    /// Returns the value of `name`, or `None` if it is absent.
    fn get(&self, name: &VarName) -> Option<VarValue<'_>>;

    /// Visits each value of `name`. A header field, an argument and a cookie may be repeated, and nodes differ in the
    /// value they take.
    fn each(&self, name: &VarName, visit: &mut dyn FnMut(&VarValue<'_>)) {
        if let Some(value) = self.get(name) {
            visit(&value);
        }
    }
}
