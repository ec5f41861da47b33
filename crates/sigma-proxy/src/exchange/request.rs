//! A request as conditions and templates see it: variables by name.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

use sigma_config::Config;
use sigma_http::{HeaderId, Method, RequestHead};
use sigma_net::Peer;
use sigma_observe::date::Clock;
use sigma_plugin::address::IpText;
use sigma_plugin::body_fields::BodyFields;
use sigma_plugin::context::Tls;
use sigma_plugin::geography::Geography;
use sigma_plugin::graphql::{Chosen, NoMessage};
use sigma_plugin::variables::{
    argument, basic_user, cookie, each_repeated, host_name, joined, of_process, proxied,
};
use sigma_schema::defined::{self, Definitions};
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::client_address::{self, ForwardedAddress};
use super::target;
use crate::edge::connection::Origin;
use crate::route::normalize::NormalPath;
use crate::route::{Explanation, Request};
use crate::snapshot::Snapshot;

/// A peer's address as text, formatted once per use on the stack.
pub(crate) enum PeerText {
    Ip(IpText),
    /// For a peer without an address.
    Unix,
}

/// The text for a peer without an address, as nginx shows it.
pub(super) const UNIX: &[u8] = b"unix:";

impl PeerText {
    /// Formats the address of a peer, which may be missing.
    pub(crate) fn of(addr: Option<IpAddr>) -> PeerText {
        addr.map_or(PeerText::Unix, |addr| PeerText::Ip(IpText::of(addr)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            PeerText::Ip(text) => text.as_bytes(),
            PeerText::Unix => UNIX,
        }
    }
}

/// A request before or while it is routed.
pub(crate) struct RequestView<'r> {
    pub(super) head: &'r RequestHead,
    path: &'r NormalPath<'r>,
    host: Cow<'r, [u8]>,
    origin: Origin,
    /// The client's address, if the proxies in front tell it.
    told: Option<ForwardedAddress>,
    tls: Option<&'r Tls>,
    geography: Option<&'r Geography>,
    body: BodyView<'r>,
    /// The variables that the settings define.
    definitions: Option<&'r Definitions>,
    /// Evaluations of the current read of them.
    defined_reads: Cell<u8>,
    /// The gateway itself sent it, with this name, which may be empty.
    internal: Option<&'r str>,
}

/// The body of a request as conditions see it.
struct BodyView<'r> {
    /// The fields, if the body was read.
    fields: Option<&'r BodyFields>,
    /// The request has no body.
    is_absent: bool,
    /// A condition read a field of the body, which was not read, or a value that cannot be decided.
    is_asked: Cell<bool>,
    /// The operation of GraphQL of a request without a body, once a condition requested it.
    operation: OnceCell<Result<Option<Chosen>, NoMessage>>,
}

impl<'r> BodyView<'r> {
    fn new(fields: Option<&'r BodyFields>, is_absent: bool) -> BodyView<'r> {
        BodyView { fields, is_absent, is_asked: Cell::new(false), operation: OnceCell::new() }
    }

    fn field(&self, name: &VarName) -> Option<VarValue<'_>> {
        if self.fields.is_none() && !self.is_absent {
            self.is_asked.set(true);
        }
        self.fields?.get(name)
    }

    /// Returns a variable of the operation that a GraphQL server is asked to execute.
    fn of_graphql(&self, head: &RequestHead, name: &str) -> Option<VarValue<'_>> {
        let operation = if self.is_absent {
            let query = head.query().unwrap_or_default();
            let operation = || Chosen::of(query, &head.headers, b"");
            self.operation.get_or_init(operation).as_ref().ok().map(Option::as_ref)
        } else {
            self.fields.and_then(BodyFields::graphql)
        };
        if operation.is_none() {
            self.is_asked.set(true);
        }
        operation??.get(name)
    }
}

impl<'r> RequestView<'r> {
    /// Returns the view of a request in plain text.
    pub(super) fn new(head: &'r RequestHead, path: &'r NormalPath<'r>, origin: Origin) -> RequestView<'r> {
        RequestView {
            head,
            path,
            host: host_name(head.authority()),
            origin,
            told: None,
            tls: None,
            geography: None,
            body: BodyView::new(None, head.method == Method::Get),
            definitions: None,
            defined_reads: Cell::new(0),
            internal: None,
        }
    }

    /// Adds the body if it was read, or the fact that there is no body.
    pub(super) fn with_body(self, body: Option<&'r BodyFields>, is_bodiless: bool) -> RequestView<'r> {
        RequestView { body: BodyView::new(body, is_bodiless), ..self }
    }

    /// Returns true if the found route may be wrong, as a condition could not be decided: without the body, or at all
    /// if the body is known.
    pub(super) fn asks_body(&self) -> bool {
        self.body.is_asked.get()
    }

    /// The same, from the client with the forwarded address.
    pub(super) fn with_forwarded_address(self, told: Option<ForwardedAddress>) -> RequestView<'r> {
        RequestView { told, ..self }
    }

    /// Returns the client's address.
    fn client_addr(&self) -> Option<IpAddr> {
        self.told.map(|told| told.addr).or_else(|| self.origin.peer.ip())
    }

    /// Returns the client's port, if it is known.
    fn client_port(&self) -> Option<u16> {
        match self.told {
            Some(told) => Some(told.port).filter(|port| *port > 0),
            None => self.origin.peer.port(),
        }
    }

    /// Adds the TLS session, if there is one.
    pub(super) fn within(self, tls: Option<&'r Tls>) -> RequestView<'r> {
        RequestView { tls, ..self }
    }

    /// Adds the databases of geographic locations.
    pub(super) fn located(self, geography: Option<&'r Geography>) -> RequestView<'r> {
        RequestView { geography, ..self }
    }

    /// Adds the variables that the settings define.
    pub(super) fn defined(self, definitions: Option<&'r Definitions>) -> RequestView<'r> {
        RequestView { definitions, ..self }
    }

    /// Says whether the gateway itself sent it, for an error page or a fallback, and with which name.
    pub(super) fn internal(self, name: Option<&'r str>) -> RequestView<'r> {
        RequestView { internal: name, ..self }
    }

    /// Returns variables that are read too seldom to have their own match arm. Variables that are known only later are
    /// absent.
    fn other(&self, name: &str) -> Option<VarValue<'_>> {
        let text = |text: &'r str| Some(VarValue::text(text));
        if let Some(name) = name.strip_prefix(defined::PREFIX) {
            return self.definitions?.value(name, self, &self.defined_reads);
        }
        if let Some(name) = name.strip_prefix("ssl_") {
            return self.tls?.fact(name).and_then(text);
        }
        if let Some(name) = name.strip_prefix("geoip_") {
            return self.geography?.fact(self.client_addr()?, name).map(VarValue::Text);
        }
        if name.starts_with("proxy_protocol_") {
            return proxied(&self.origin.client(), name);
        }
        match name {
            "http2" if self.head.version.as_str() == "HTTP/2.0" => text("h2"),
            "realip_remote_port" => {
                self.origin.peer.port().map(|port| VarValue::Text(Cow::Owned(port.to_string().into_bytes())))
            }
            "https" => self.tls.and_then(|_| text("on")),
            "internal_name" => self.internal.filter(|name| !name.is_empty()).and_then(text),
            "server_name" => Some(VarValue::Text(Cow::Borrowed(Request::host(self)))),
            "remote_user" => {
                let user = basic_user(self.head.headers.get(HeaderId::Authorization)?)?;
                Some(VarValue::Text(Cow::Owned(user)))
            }
            "document_uri" => Some(VarValue::Text(Cow::Borrowed(&self.path.uri))),
            name => of_process(name),
        }
    }
}

impl Request for RequestView<'_> {
    fn method(&self) -> Method {
        self.head.method
    }

    fn path(&self) -> &[u8] {
        self.path.matched()
    }

    fn host(&self) -> &[u8] {
        if self.host.is_empty() { b"_" } else { &self.host }
    }

    fn raw_host(&self) -> &[u8] {
        self.head.authority()
    }

    fn remote_addr(&self) -> Option<IpAddr> {
        self.client_addr()
    }

    fn listener(&self) -> u16 {
        self.origin.listener
    }

    fn content_type(&self) -> Option<&[u8]> {
        self.head.headers.get(HeaderId::ContentType)
    }

    fn accept(&self) -> Option<&[u8]> {
        self.head.headers.get(HeaderId::Accept)
    }

    fn variables(&self) -> &dyn Variables {
        self
    }

    fn is_internal(&self) -> bool {
        self.internal.is_some()
    }
}

impl Variables for RequestView<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let text = |bytes: &[u8]| Some(VarValue::Text(Cow::Owned(bytes.to_vec())));
        let number = |n: u16| Some(VarValue::Text(Cow::Owned(n.to_string().into_bytes())));
        match name {
            VarName::Method => Some(VarValue::Text(Cow::Borrowed(self.head.method_token()))),
            VarName::Uri => Some(VarValue::Text(Cow::Borrowed(&self.path.uri))),
            VarName::RequestUri => {
                let mut uri = self.path.uri.to_vec();
                if let Some(query) = self.head.query() {
                    uri.push(b'?');
                    uri.extend_from_slice(query);
                }
                Some(VarValue::Text(Cow::Owned(uri)))
            }
            VarName::RealRequestUri => Some(VarValue::Text(Cow::Borrowed(self.head.path_and_query()))),
            VarName::Args => self.head.query().map(|q| VarValue::Text(Cow::Borrowed(q))),
            VarName::IsArgs => self.head.query().map(|_| VarValue::Text(Cow::Borrowed(b"?"))),
            VarName::Host => Some(VarValue::Text(Cow::Borrowed(Request::host(self)))),
            VarName::Scheme => Some(VarValue::text(if self.tls.is_some() { "https" } else { "http" })),
            VarName::RemoteAddr => text(PeerText::of(self.client_addr()).as_bytes()),
            VarName::RealipRemoteAddr => text(PeerText::of(self.origin.peer.ip()).as_bytes()),
            VarName::RemotePort => number(self.client_port()?),
            VarName::ServerAddr => text(self.origin.local?.ip().to_canonical().to_string().as_bytes()),
            VarName::ServerPort => number(self.origin.local_port()),
            VarName::ServerProtocol => {
                Some(VarValue::Text(Cow::Borrowed(self.head.version.as_str().as_bytes())))
            }
            VarName::Arg(name) => argument(self.head.query()?, name),
            VarName::Cookie(name) => {
                cookie(&self.head.headers, name).map(|v| VarValue::Text(Cow::Borrowed(v)))
            }
            VarName::Http(name) => joined(&self.head.headers, name).map(VarValue::Text),
            VarName::Hostname => of_process("hostname"),
            VarName::RequestId
            | VarName::RouteId
            | VarName::RouteName
            | VarName::ServiceId
            | VarName::ServiceName
            | VarName::ConsumerName
            | VarName::UriParam(_) => None,
            VarName::PostArg(_) => self.body.field(name),
            VarName::Other(text) if text.starts_with("post_arg_") => self.body.field(name),
            VarName::Other(text) if text.starts_with("graphql_") => self.body.of_graphql(self.head, text),
            VarName::Other(name) => self.other(name),
        }
    }

    fn each(&self, name: &VarName, visit: &mut dyn FnMut(&VarValue<'_>)) {
        if !each_repeated(self.head, name, visit)
            && let Some(value) = self.get(name)
        {
            visit(&value);
        }
    }
}

/// A hypothetical request, as conditions see it.
pub(crate) struct Viewed<'r> {
    head: &'r RequestHead,
    path: NormalPath<'r>,
    origin: Origin,
    told: Option<ForwardedAddress>,
    tls: Option<&'r Tls>,
    geography: Option<&'r Geography>,
    definitions: Option<&'r Definitions>,
}

impl<'r> Viewed<'r> {
    /// Returns the view of a request with this head.
    ///
    /// # Errors
    /// Returns an error if the path of its target is invalid.
    pub(crate) fn of(
        head: &'r RequestHead,
        snapshot: &'r Snapshot,
        origin: Origin,
        tls: Option<&'r Tls>,
    ) -> Result<Viewed<'r>, &'static str> {
        let path = target::normal_path(head, snapshot).map_err(|fault| fault.reason)?;
        let told =
            client_address::forwarded_address(snapshot, &head.headers, origin.peer.ip()).unwrap_or_default();
        let geography = snapshot.geography.as_ref();
        let definitions = snapshot.definitions.as_deref();
        Ok(Viewed { head, path, origin, told, tls, geography, definitions })
    }

    /// Returns the input of routes and conditions.
    pub(crate) fn request(&self) -> RequestView<'_> {
        let request = RequestView::new(self.head, &self.path, self.origin).with_forwarded_address(self.told);
        request.within(self.tls).located(self.geography).defined(self.definitions)
    }

    /// Returns the head.
    pub(crate) fn head(&self) -> &'r RequestHead {
        self.head
    }

    /// The client's address, if the proxies in front tell it.
    pub(crate) fn forwarded_address(&self) -> Option<ForwardedAddress> {
        self.told
    }

    /// Returns the path that routes are compared with.
    pub(crate) fn path(&self) -> String {
        String::from_utf8_lossy(self.path.matched()).into_owned()
    }

    /// Returns the path as variables show it.
    pub(crate) fn normal(&self) -> &[u8] {
        &self.path.uri
    }

    /// Returns the bytes that routes are compared with.
    pub(crate) fn matched(&self) -> &[u8] {
        self.path.matched()
    }

    /// Returns the host with the port, as the client sends it.
    pub(crate) fn authority(&self) -> String {
        String::from_utf8_lossy(self.head.authority()).into_owned()
    }

    /// Returns the path after the route's rewrite, and the query.
    pub(crate) fn rewritten(&self, rewrite: &crate::snapshot::Rewrite) -> String {
        let mut target = Vec::new();
        target::rewrite(rewrite, &self.path, self.head.query(), &mut target);
        String::from_utf8_lossy(&target).into_owned()
    }
}

/// Prepares the head in the same way as an exchange before it looks for a route.
///
/// # Errors
/// Returns an error if the exchange would reject the request before that.
pub(crate) fn accept(head: &mut RequestHead, snapshot: &Snapshot) -> Result<(), &'static str> {
    target::check_method(head, snapshot)
        .and_then(|()| target::canonicalize(head, snapshot))
        .map_err(|fault| fault.reason)
}

/// Explains why each route does or does not match the request with this head.
///
/// # Errors
/// Returns an error if the path of its target is invalid.
pub(crate) fn explain(
    head: &RequestHead,
    snapshot: &Snapshot,
    config: &Config,
) -> Result<Vec<(String, Explanation)>, &'static str> {
    let mut head = head.clone();
    accept(&mut head, snapshot)?;
    let path = target::normal_path(&head, snapshot).map_err(|fault| fault.reason)?;
    let peer = Peer::Ip(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let origin = Origin::new(peer, None, 0, &Clock::new(0));
    let request = RequestView::new(&head, &path, origin).defined(snapshot.definitions.as_deref());
    Ok(snapshot.explain(config, &request))
}

/// Returns the number of the route for the request with this head.
#[cfg(test)]
pub(crate) fn find(snapshot: &Snapshot, head: &RequestHead) -> Option<u32> {
    let mut head = head.clone();
    accept(&mut head, snapshot).ok()?;
    let path = target::normal_path(&head, snapshot).ok()?;
    let peer = Peer::Ip(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let origin = Origin::new(peer, None, 0, &Clock::new(0));
    match snapshot.router.find(&RequestView::new(&head, &path, origin), &mut Default::default()) {
        crate::route::Outcome::Route(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sigma_http::h1::{HeadLimits, parse_request};

    use super::*;
    use crate::route::normalize::{UriOptions, normalized};

    const LIMITS: HeadLimits = HeadLimits {
        line_bytes: 1024,
        head_bytes: 4096,
        fields: 32,
        tolerance: sigma_http::h1::Tolerance::NONE,
    };

    /// Checks the variables that conditions may read before a route is known, in plain text and within TLS.
    #[test]
    fn variables_of_a_request_that_has_no_route_yet() {
        let mut head = RequestHead::default();
        let text = b"GET /a%20b/../c?x=1&y HTTP/1.1\r\nHost: A.com:81\r\nAuthorization: Basic amFjazpw\r\n\
            Cookie: k=v\r\nX-A: 1\r\nX-A: 2\r\n\r\n";
        parse_request(text, &LIMITS, &mut head).expect("a request").expect("a whole one");
        let options = UriOptions { allows_ambiguous: true, ..UriOptions::default() };
        let path = normalized(head.raw_path(), options).expect("a path");
        let peer = Peer::Ip(([10, 0, 0, 1], 5).into());
        let local = Some(([10, 0, 0, 2], 443).into());
        let origin = Origin::new(peer, local, 0, &Clock::new(0));
        let tls = Tls {
            server_name: Some("a.com".into()),
            protocol: "TLSv1.3",
            client_verify: "SUCCESS".into(),
            client_subject: Some("CN=jack".into()),
            ..Tls::default()
        };
        let check = |name: &str, plain: Option<&str>, within: Option<&str>| {
            for (tls, expected) in [(None, plain), (Some(&tls), within)] {
                let view = RequestView::new(&head, &path, origin).within(tls);
                let expected = expected.map(|text| VarValue::Text(Cow::Owned(text.into())));
                assert_eq!(view.get(&VarName::parse(name)), expected, "{name}, TLS: {}", tls.is_some());
            }
        };
        let both = |name: &str, expected: &str| check(name, Some(expected), Some(expected));
        check("scheme", Some("http"), Some("https"));
        check("https", None, Some("on"));
        check("ssl_protocol", None, Some("TLSv1.3"));
        check("ssl_server_name", None, Some("a.com"));
        check("ssl_client_verify", None, Some("SUCCESS"));
        check("ssl_client_s_dn", None, Some("CN=jack"));
        check("ssl_client_serial", None, None);
        both("uri", "/c");
        both("request_uri", "/c?x=1&y");
        both("real_request_uri", "/a%20b/../c?x=1&y");
        both("args", "x=1&y");
        both("is_args", "?");
        both("arg_x", "1");
        both("host", "a.com");
        both("server_name", "a.com");
        both("remote_addr", "10.0.0.1");
        both("remote_port", "5");
        both("server_addr", "10.0.0.2");
        both("server_port", "443");
        both("server_protocol", "HTTP/1.1");
        both("request_method", "GET");
        both("remote_user", "jack");
        both("cookie_k", "v");
        both("http_x_a", "1, 2");
        check("consumer_name", None, None);
        check("upstream_addr", None, None);
    }
}
