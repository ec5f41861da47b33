//! Documents that are fetched from services, such as issuers of tokens, and requests to them: on the control thread's
//! runtime, outside the gateway's own requests. A worker waits for the response as a task.
//!
//! Their addresses come from the configuration and from the provider's own documents, and so no earlier than a
//! request needs them: that is why these calls do not use an upstream of the gateway.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::Node;
use sigma_schema::Confidential;
use tokio::sync::{OnceCell, oneshot};

use crate::json_body;

/// Most bytes of a response unless more are wanted. Sets of keys and documents of providers have a few thousand.
const ANSWER_BYTES: usize = 256 << 10;

/// A URL with `http` or `https`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Address(#[schemars(with = "String")] reqwest::Url);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        let url = reqwest::Url::parse(&text).map_err(|error| format!("`{text}` is not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the scheme of `{text}` is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(format!("`{text}` has a user, a password or a fragment: remove it"));
        }
        Ok(Address(url))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address {
    /// Returns true if the connection is encrypted and verified.
    pub fn is_encrypted(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns its path.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// Returns the address without arguments.
    pub fn without_arguments(&self) -> String {
        let mut url = self.0.clone();
        url.set_query(None);
        url.into()
    }

    /// Returns the address with further arguments.
    pub fn with_arguments(&self, pairs: &[(&str, &str)]) -> String {
        let mut url = self.0.clone();
        url.query_pairs_mut().extend_pairs(pairs);
        url.into()
    }
}

/// A request to a provider.
#[derive(Default)]
pub struct WebRequest {
    /// The body; a GET without.
    pub form: Option<String>,
    /// Additional fields.
    pub fields: Vec<(String, Vec<u8>)>,
}

/// The connection settings for an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WebSettings {
    /// For all of an exchange.
    pub timeout: Duration,
    /// Whether its certificate is verified.
    pub verify: bool,
    /// The proxies on the way.
    pub proxies: Vec<Proxy>,
    /// Most bytes of a response; one with more is an error.
    pub answer_bytes: usize,
}

/// A proxy on the way to an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// The address of the proxy.
    pub address: Address,
    /// It is for addresses with `https`; else for those with `http`.
    pub is_for_tls: bool,
    /// The credentials in `Proxy-Authorization`.
    pub authorization: Option<Confidential>,
    /// Hosts that are reached without it, separated by commas: names that match all that end in them, addresses and
    /// networks; `*` for all.
    pub except: Option<String>,
}

impl WebSettings {
    /// Returns settings without proxies.
    pub fn new(timeout: Duration, verify: bool) -> WebSettings {
        WebSettings { timeout, verify, proxies: Vec::new(), answer_bytes: ANSWER_BYTES }
    }
}

impl Proxy {
    fn made(&self) -> Result<reqwest::Proxy, String> {
        let failed = |error: &dyn fmt::Display| format!("the proxy {} is invalid: {error}", self.address);
        let url = self.address.0.clone();
        let proxy = if self.is_for_tls { reqwest::Proxy::https(url) } else { reqwest::Proxy::http(url) };
        let mut proxy = proxy.map_err(|error| failed(&causes(error)))?;
        if let Some(value) = &self.authorization {
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|error| failed(&error))?;
            value.set_sensitive(true);
            proxy = proxy.custom_http_auth(value);
        }
        Ok(proxy.no_proxy(self.except.as_deref().and_then(reqwest::NoProxy::from_string)))
    }
}

/// A client for an issuer: it keeps connections.
pub struct Web {
    settings: WebSettings,
    /// Made when first needed: it reads the system's certificates.
    client: OnceCell<reqwest::Client>,
}

/// A complete response.
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The body, complete.
    pub body: Vec<u8>,
}

impl Web {
    /// Returns a client with these settings.
    pub fn new(settings: WebSettings) -> Web {
        Web { settings, client: OnceCell::new() }
    }

    async fn client(&self) -> Result<&reqwest::Client, String> {
        let make = || async {
            let settings = &self.settings;
            let builder = reqwest::Client::builder()
                .connect_timeout(settings.timeout)
                .timeout(settings.timeout)
                // A server must not choose the next one that the gateway asks.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .pool_idle_timeout(Duration::from_secs(15))
                .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")))
                .tls_danger_accept_invalid_certs(!settings.verify);
            let proxies: Result<Vec<_>, _> = settings.proxies.iter().map(Proxy::made).collect();
            let builder = proxies?.into_iter().fold(builder, reqwest::ClientBuilder::proxy);
            builder.build().map_err(|error| format!("cannot create the HTTP client: {}", causes(error)))
        };
        self.client.get_or_try_init(make).await
    }

    /// Fetches a document.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it does not arrive completely, in time, with status 200.
    pub async fn get(&self, address: &Address) -> Result<Vec<u8>, String> {
        let request = self.client().await?.get(address.0.clone()).header("Accept", "application/json");
        match self.send(address, request).await?.0 {
            Reply { status: 200, body } => Ok(body),
            Reply { status, .. } => Err(format!("{address} answered {status}")),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no response comes whole and in time.
    pub async fn put(&self, address: &Address, question: WebRequest) -> Result<Reply, String> {
        self.put_with_fields(address, question).await.map(|(reply, _)| reply)
    }

    /// Sends a request like [`Web::put`], and returns the fields of the response, too.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no complete response arrives in time.
    pub async fn put_with_fields(
        &self,
        address: &Address,
        question: WebRequest,
    ) -> Result<(Reply, HeaderMap), String> {
        let (client, url) = (self.client().await?, address.0.clone());
        let mut request = match question.form {
            Some(form) => {
                client.post(url).header("Content-Type", "application/x-www-form-urlencoded").body(form)
            }
            None => client.get(url),
        };
        request = request.header("Accept", "application/json");
        for (name, value) in question.fields {
            request = request.header(name, value);
        }
        self.send(address, request).await
    }

    async fn send(
        &self,
        address: &Address,
        request: reqwest::RequestBuilder,
    ) -> Result<(Reply, HeaderMap), String> {
        let failed = |error: reqwest::Error| format!("{address}: {}", causes(error));
        let mut response = request.send().await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            let most = self.settings.answer_bytes;
            if body.len() + piece.len() > most {
                return Err(format!("the response of {address} exceeds {most} bytes"));
            }
            body.extend_from_slice(&piece);
        }
        let fields = std::mem::take(response.headers_mut());
        Ok((Reply { status: response.status().as_u16(), body }, fields))
    }
}

/// Returns an error with all its causes, without the address, which the message names already.
fn causes(error: reqwest::Error) -> String {
    sigma_net::tls::reason::causes(&error.without_url())
}

/// Runs work on the control thread's runtime and waits for it. None without such a runtime.
pub fn beside<W>(node: &Node, work: W) -> impl Future<Output = Option<W::Output>> + use<W>
where
    W: Future<Output: Send> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    node.spawn(async move {
        // The receiver may be gone.
        let _ = sender.send(work.await);
    });
    async move { receiver.await.ok() }
}

/// Returns the members of a JSON object. None if the text is anything else, or has a name twice in one object:
/// readers of such a text take different values. A byte order mark before it is ignored (RFC 8259 §8.1).
pub fn object_of(text: &[u8]) -> Option<Map<String, Value>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    match json_body::unambiguous(text).ok()? {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_each_name_once() {
        assert!(object_of(br#"{"a":1,"b":{"a":[true,null,1.5,"x",-1]}}"#).is_some());
        assert!(object_of(b"\xef\xbb\xbf{}").is_some());
        for text in [r#"{"a":1,"a":2}"#, r#"{"a":{"b":1,"b":1}}"#, r#"[{"a":1}]"#, "{}x", "", "7", "{"] {
            assert!(object_of(text.as_bytes()).is_none(), "{text}");
        }
        // Too deep to be read by recursion.
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(object_of(deep.as_bytes()).is_none());
    }

    #[test]
    fn addresses() {
        let check = |text: &str, fault: &str| {
            let address = Address::try_from(text.to_owned());
            let told = address.as_ref().err().cloned().unwrap_or_default();
            assert!(told.contains(fault) && told.is_empty() == fault.is_empty(), "{text}: {told}");
        };
        check("https://login.example/keys?x=1", "");
        check("http://127.0.0.1:8080/", "");
        check("file:///etc/passwd", "neither http nor https");
        check("login.example", "is not a URL");
        check("https://user:secret@login.example/", "has a user");
    }
}
