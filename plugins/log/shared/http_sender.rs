//! How entries leave over HTTP: the same for all plugins that ship them so.
//!
//! All of it runs in parallel with the traffic, on the control thread's runtime. The text of a server's
//! refusal is shown in the error log: the beginning of it, on one line and without the secrets that it was
//! sent.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use sigma_plugin::system::{Host, System};
use sigma_schema::Confidential;
use sigma_schema::described::CONFIDENTIAL;
use tokio::sync::OnceCell;

use sigma_plugin_kit::cleartext::is_exposed;
use sigma_plugin_kit::service::Keepalive;

/// Bytes of a refusing response that the error log shows.
const SHOWN_ANSWER_BYTES: usize = 1024;

/// Bytes of a response that are read so that its connection can serve the next batch.
const DRAINED_ANSWER_BYTES: usize = 64 << 10;

/// A URL with `http` or `https`. It is shown in logs, and so has no credentials in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Address(Url);

impl JsonSchema for Address {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "pattern": r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?"
        })
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        let url = Url::parse(&text).map_err(|error| format!("`{text}` is not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the scheme of `{text}` is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!("the URL for `{}` has a user or a password: remove it", place(&url)));
        }
        Ok(Address(url))
    }
}

impl Address {
    /// The address of `path` below this one.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if both together are no URL.
    pub(crate) fn with_path(&self, path: &str) -> Result<Address, String> {
        if self.0.query().is_some() {
            return Err(format!("`{}` has a query, but the plugin appends a path: remove the query", self.0));
        }
        let base = self.0.as_str();
        let base = base.strip_suffix('/').unwrap_or(base);
        let path = path.strip_prefix('/').unwrap_or(path);
        Address::try_from(format!("{base}/{path}"))
    }

    /// Returns the address of `path` on the same server, and drops the former path.
    pub(crate) fn at_path(&self, path: &str) -> Address {
        let mut url = self.0.clone();
        url.set_query(None);
        url.set_path(path);
        Address(url)
    }

    /// The address with one more argument.
    pub(crate) fn with_argument(&self, name: &str, value: &str) -> Address {
        let mut url = self.0.clone();
        url.query_pairs_mut().append_pair(name, value);
        Address(url)
    }

    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The server's name or address.
    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(80)
    }
}

/// Scheme, host and port: what of a URL is never a secret.
fn place(url: &Url) -> String {
    let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
    format!("{scheme}://{host}:{}", url.port_or_known_default().unwrap_or(80))
}

/// The servers that batches may go to, one of them for each.
#[derive(Debug)]
pub(crate) struct Endpoints(Vec<Address>);

impl Endpoints {
    /// # Errors
    /// Returns an error, which is a sentence, if the list is empty.
    pub(crate) fn new(addresses: Vec<Address>) -> Result<Endpoints, String> {
        match addresses.is_empty() {
            true => Err("endpoint_addrs: write at least one".to_owned()),
            false => Ok(Endpoints(addresses)),
        }
    }

    /// Returns the endpoints of `path` on all servers.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the list is empty, or one is not a URL with the path.
    pub(crate) fn at(addresses: &[Address], path: &str) -> Result<Endpoints, String> {
        Endpoints::new(addresses.iter().map(|address| address.with_path(path)).collect::<Result<_, _>>()?)
    }

    /// One of them, at random.
    pub(crate) fn pick(&self) -> &Address {
        let mut random = [0; 8];
        // Without random bytes it is always the first one.
        let _ = Host.fill_random(&mut random);
        let at = u64::from_le_bytes(random) % self.0.len() as u64;
        &self.0[at as usize]
    }

    pub(crate) fn all(&self) -> &[Address] {
        &self.0
    }
}

/// Header fields of the operator's own; their values are secrets.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct OwnFields(BTreeMap<String, Confidential>);

impl JsonSchema for OwnFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OwnFields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({
            "type": "object", "additionalProperties": {"type": "string", "minLength": 1}
        });
        schema.insert(CONFIDENTIAL.to_owned(), true.into());
        schema
    }
}

/// The header fields of the requests for batches, and which of their values are secrets.
#[derive(Default)]
pub(crate) struct Fields {
    map: HeaderMap,
    secrets: Vec<Confidential>,
}

impl Fields {
    /// Sets a field. `place` names its value in the configuration.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no field can hold the value.
    pub(crate) fn set(&mut self, name: &'static str, value: &str, place: &str) -> Result<(), String> {
        self.map.insert(HeaderName::from_static(name), field_value(value, place)?);
        Ok(())
    }

    /// Adds a field and keeps others of its name.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no field can hold the value.
    pub(crate) fn add(&mut self, name: &'static str, value: &str, place: &str) -> Result<(), String> {
        self.map.append(HeaderName::from_static(name), field_value(value, place)?);
        Ok(())
    }

    /// Sets a field to a value that holds `secret`.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no field can hold the value.
    pub(crate) fn set_secret(
        &mut self,
        name: &'static str,
        value: &str,
        secret: &str,
        place: &str,
    ) -> Result<(), String> {
        let mut value = field_value(value, place)?;
        value.set_sensitive(true);
        self.map.insert(HeaderName::from_static(name), value);
        self.hide(secret);
        Ok(())
    }

    /// Sets the operator's own fields.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one of them is no field.
    pub(crate) fn set_own(&mut self, own: &OwnFields) -> Result<(), String> {
        for (name, value) in &own.0 {
            let place = format!("headers.{name}");
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("headers: `{name}` is not the name of a header field"))?;
            let mut field = field_value(value.reveal(), &place)?;
            field.set_sensitive(true);
            self.map.insert(name, field);
            self.hide(value.reveal());
        }
        Ok(())
    }

    /// Adds a secret, which is omitted from shown responses.
    pub(crate) fn hide(&mut self, secret: &str) {
        if !secret.is_empty() {
            self.secrets.push(secret.into());
        }
    }
}

fn field_value(value: &str, place: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(value)
        .map_err(|_| format!("{place}: it contains a character that a header field cannot carry"))
}

/// How servers are reached.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    connect_timeout: Duration,
    /// For the whole exchange, connecting included.
    timeout: Duration,
    /// Whether certificates are verified.
    verify: bool,
    /// How many connections wait for the next batch, and for how long.
    kept: Option<(usize, Duration)>,
}

impl Transport {
    /// A new connection for each batch, so that none is lost with one that the server has closed meanwhile.
    /// `timeout` is for connecting, and for the exchange after that.
    pub(crate) fn new(timeout: Duration, verify: bool) -> Transport {
        Transport::with_timeouts(timeout, timeout, verify)
    }

    /// The same with a time for connecting, and one for the exchange after that.
    pub(crate) fn with_timeouts(connect: Duration, exchange: Duration, verify: bool) -> Transport {
        Transport { connect_timeout: connect, timeout: connect + exchange, verify, kept: None }
    }

    /// The same with connections that are kept.
    pub(crate) fn keeping(self, keepalive: &Keepalive) -> Transport {
        Transport { kept: keepalive.kept(), ..self }
    }

    /// The same with connections that are kept for so long.
    pub(crate) fn keeping_for(self, idle: Duration) -> Transport {
        Transport { kept: Some((usize::MAX, idle)), ..self }
    }
}

/// The sender of batches.
pub(crate) struct HttpSender {
    transport: Transport,
    fields: Fields,
    /// Made with the first batch: it reads the system's certificates.
    client: OnceCell<reqwest::Client>,
}

impl HttpSender {
    /// For a plugin whose batches go to these addresses.
    pub(crate) fn new(
        plugin: &str,
        addresses: &[Address],
        transport: Transport,
        fields: Fields,
    ) -> HttpSender {
        for Address(url) in addresses {
            if is_exposed(url.as_str()) {
                tracing::warn!("{plugin}: entries are sent to {} in cleartext", place(url));
            } else if url.scheme() == "https" && !transport.verify {
                tracing::warn!("{plugin}: the certificate of {} is not checked (ssl_verify)", place(url));
            }
        }
        HttpSender { transport, fields, client: OnceCell::new() }
    }

    /// Posts a batch.
    ///
    /// # Errors
    /// Returns an error if no head of a response comes in time.
    pub(crate) async fn post<'s>(
        &'s self,
        to: &'s Address,
        body: Vec<u8>,
    ) -> Result<ServerResponse<'s>, Failure> {
        self.exchange(Method::POST, to, HeaderMap::new(), body).await
    }

    /// Posts a batch with one more field, whose value is a secret.
    ///
    /// # Errors
    /// Returns an error if no head of a response comes in time, or no field can hold the value.
    pub(crate) async fn post_with<'s>(
        &'s self,
        to: &'s Address,
        name: &'static str,
        value: &str,
        body: Vec<u8>,
    ) -> Result<ServerResponse<'s>, Failure> {
        let field = field_value(value, name).map_err(|reason| Failure::new(FailureKind::Send, to, reason));
        let mut field = field?;
        field.set_sensitive(true);
        let further = HeaderMap::from_iter([(HeaderName::from_static(name), field)]);
        let answer = self.exchange(Method::POST, to, further, body).await?;
        // A scheme comes before the secret.
        let secret = value.split_once(' ').map_or(value, |(_, secret)| secret);
        Ok(ServerResponse { further: Some(secret.into()), ..answer })
    }

    /// Asks a question without a body.
    ///
    /// # Errors
    /// Returns an error if no head of a response comes in time.
    pub(crate) async fn get<'s>(&'s self, from: &'s Address) -> Result<ServerResponse<'s>, Failure> {
        self.exchange(Method::GET, from, HeaderMap::new(), Vec::new()).await
    }

    async fn exchange<'s>(
        &'s self,
        method: Method,
        to: &'s Address,
        further: HeaderMap,
        body: Vec<u8>,
    ) -> Result<ServerResponse<'s>, Failure> {
        let failed = |error: &reqwest::Error| Failure::new(FailureKind::of(error), to, causes(error));
        let client = self.client.get_or_try_init(|| async { self.transport.client() }).await;
        let mut request = client.map_err(|error| failed(&error))?.request(method, to.0.clone());
        request = request.headers(self.fields.map.clone()).headers(further);
        if !body.is_empty() {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| failed(&error))?;
        Ok(ServerResponse {
            status: response.status().as_u16(),
            response,
            sender: self,
            from: to,
            further: None,
        })
    }
}

impl Transport {
    fn client(&self) -> Result<reqwest::Client, reqwest::Error> {
        let (most, idle) = self.kept.unwrap_or_default();
        reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .timeout(self.timeout)
            // A server must not choose where entries go.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(most)
            .pool_idle_timeout(idle)
            .tls_danger_accept_invalid_certs(!self.verify)
            .build()
    }
}

/// A response whose body may be to come.
pub(crate) struct ServerResponse<'s> {
    pub(crate) status: u16,
    response: reqwest::Response,
    sender: &'s HttpSender,
    from: &'s Address,
    /// A secret of this request alone.
    further: Option<Confidential>,
}

impl ServerResponse<'_> {
    /// The body, or as much of it as comes and fits.
    pub(crate) async fn body(&mut self, limit: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < limit
            && let Ok(Some(piece)) = self.response.chunk().await
        {
            body.extend_from_slice(&piece);
        }
        body.truncate(limit);
        body
    }

    /// The beginning of the body for an error's text. The status says enough if it does not come.
    pub(crate) async fn shown_body(&mut self) -> String {
        let longest = self.secrets().map(|secret| secret.reveal().len()).max();
        // A secret that crosses the end is seen whole.
        let body = self.body(SHOWN_ANSWER_BYTES + longest.unwrap_or_default()).await;
        self.shown(&String::from_utf8_lossy(&body))
    }

    /// Returns the beginning of the server's text, without secrets that it repeats.
    pub(crate) fn shown(&self, text: &str) -> String {
        shown(text, self.secrets())
    }

    fn secrets(&self) -> impl Iterator<Item = &Confidential> {
        self.sender.fields.secrets.iter().chain(&self.further)
    }

    /// The header fields of the response for an error's text.
    pub(crate) fn shown_fields(&self) -> String {
        let fields = self.response.headers().iter();
        let lines =
            fields.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        self.shown(&lines.collect::<Vec<_>>().join(", "))
    }

    /// Reads the rest of a small response, so that its connection can be reused.
    pub(crate) async fn finish(mut self) {
        if self.sender.transport.kept.is_some() {
            self.body(DRAINED_ANSWER_BYTES).await;
        }
    }

    /// # Errors
    /// Returns an error, in APISIX's words, if the status is 400 or more.
    pub(crate) async fn below_400(mut self) -> Result<(), String> {
        if self.status < 400 {
            return Ok(());
        }
        let (status, host, port) = (self.status, self.from.host(), self.from.port());
        let body = self.shown_body().await;
        Err(format!("server returned status code[{status}] host[{host}] port[{port}] body[{body}]"))
    }
}

/// Returns the beginning of a foreign text, on one line and without these secrets.
fn shown<'s>(text: &str, secrets: impl Iterator<Item = &'s Confidential>) -> String {
    let mut text = text.to_owned();
    for secret in secrets {
        text = text.replace(secret.reveal(), "***");
    }
    cut(&mut text, SHOWN_ANSWER_BYTES);
    // It must not look like lines of the log.
    text.escape_debug().to_string()
}

/// Leaves the first bytes of a text, as many whole characters as fit.
pub(crate) fn cut(text: &mut String, bytes: usize) {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    host: String,
    port: u16,
    /// The reason alone.
    pub(crate) reason: String,
}

#[derive(Debug, Clone, Copy)]
enum FailureKind {
    Connect,
    Tls,
    Send,
}

impl FailureKind {
    fn of(error: &reqwest::Error) -> FailureKind {
        match (error.is_connect(), is_about_tls(error)) {
            (false, _) => FailureKind::Send,
            (true, true) => FailureKind::Tls,
            (true, false) => FailureKind::Connect,
        }
    }
}

impl Failure {
    fn new(kind: FailureKind, to: &Address, reason: String) -> Failure {
        Failure { kind, host: to.host().to_owned(), port: to.port(), reason }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { kind, host, port, reason } = self;
        match kind {
            FailureKind::Send => write!(f, "error while sending data to [{host}] port[{port}] {reason}"),
            FailureKind::Tls => write!(f, "failed to perform SSL with host[{host}] port[{port}] {reason}"),
            FailureKind::Connect => write!(f, "failed to connect to host[{host}] port[{port}] {reason}"),
        }
    }
}

/// Errors of TLS come as invalid data of the connection.
fn is_about_tls(error: &reqwest::Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut system = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    system.any(|cause| cause.kind() == std::io::ErrorKind::InvalidData)
}

/// Everything that led to an error, without the address: the message names it already, and its path may be a
/// secret.
fn causes(error: &reqwest::Error) -> String {
    let all = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let texts: Vec<String> = all.map(ToString::to_string).collect();
    match texts.is_empty() {
        true if error.is_timeout() => "timeout".to_owned(),
        true => "cannot create the request".to_owned(),
        false => texts.join(": "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<Address, String> {
        Address::try_from(text.to_owned())
    }

    #[test]
    fn addresses_have_a_scheme_and_no_credentials() {
        let check = |text: &str, expected: &str| assert_eq!(address(text).unwrap_err(), expected);
        check("ftp://h/", "the scheme of `ftp://h/` is neither http nor https");
        check("h", "`h` is not a URL: relative URL without a base");
        check("http://joe:word@h/in", "the URL for `http://h:80` has a user or a password: remove it");
    }

    #[test]
    fn a_path_follows_one_slash() {
        let check = |base: &str, path: &str, expected: &str| {
            assert_eq!(address(base).unwrap().with_path(path), address(expected), "{base} {path}");
        };
        check("http://h:3100", "/loki/api/v1/push", "http://h:3100/loki/api/v1/push");
        check("http://h:3100/", "/push", "http://h:3100/push");
        check("https://[::1]/base", "push?a=1", "https://[::1]/base/push?a=1");
        assert!(address("http://h/?a=1").unwrap().with_path("/push").unwrap_err().contains("has a query"));
        assert_eq!(
            Ok(address("http://h:1/a?b=c").unwrap().at_path("/v3/logs")),
            address("http://h:1/v3/logs")
        );
    }

    #[test]
    fn every_endpoint_gets_batches() {
        assert!(Endpoints::new(Vec::new()).is_err());
        let endpoints = Endpoints::new(["http://a/", "http://b/"].map(|at| address(at).unwrap()).into());
        let endpoints = endpoints.unwrap();
        let mut hosts: Vec<&str> = (0..200).map(|_| endpoints.pick().host()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        assert_eq!(hosts, ["a", "b"], "one of them never comes once in 2^199 runs");
    }

    #[test]
    fn shown_answers_are_short_on_one_line_and_without_secrets() {
        let check = |text: &str, expected: &str| {
            let secrets: [Confidential; 2] = ["t0ken".into(), "p\"w".into()];
            assert_eq!(shown(text, secrets.iter()), expected, "{text}");
        };
        check("bad\nERROR forged", "bad\\nERROR forged");
        check("no t0ken, no p\"w", "no ***, no ***");
        let long = format!("{}t0ken", "é".repeat(511));
        check(&long, &format!("{}**", "é".repeat(511)));
    }

    #[test]
    fn fields_hold_what_fields_can() {
        let own = |name: &str, value: &str| {
            let own = OwnFields(BTreeMap::from([(name.to_owned(), value.into())]));
            let mut fields = Fields::default();
            fields.set_own(&own).map(|()| fields.map)
        };
        assert_eq!(own("a b", "x").unwrap_err(), "headers: `a b` is not the name of a header field");
        assert_eq!(
            own("a", "x\r\ny: z").unwrap_err(),
            "headers.a: it contains a character that a header field cannot carry"
        );
        assert!(own("x-a", "v").unwrap()["x-a"].is_sensitive());
    }
}
