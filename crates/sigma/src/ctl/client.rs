//! Calls to the Admin API and the Control API.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value;
use sigma_net::tls::reason::innermost;

use super::identity::Identity;

/// A response takes no longer than this, a whole configuration included.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The field of a response with a warning about the written resource.
const WARNING: &str = "x-sigma-warning";
const DEFAULT_ADMIN: &str = "http://127.0.0.1:9180";
/// The Control API that commands ask unless `--control` names another.
pub(crate) const DEFAULT_CONTROL: &str = "http://127.0.0.1:9090";

/// The API of a gateway, and the options that name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Admin,
    Control,
    /// The Admin API, where a Control API would do as well.
    Either,
}

impl Api {
    /// Returns a hint for the case that it cannot be reached.
    fn remedy(self, is_tls: bool) -> &'static str {
        match self {
            Api::Admin | Api::Either if is_tls => {
                "check that the gateway runs, and that --ca, --cert and --cert-key match its `admin.tls`"
            }
            Api::Admin => "check that the gateway runs and that its address is right (--admin, SIGMA_ADMIN)",
            Api::Control => {
                "check that the gateway runs with `control` at this address, or name another address with --control"
            }
            Api::Either => {
                "check that the gateway runs and that its address is right (--admin, SIGMA_ADMIN); if it has no Admin API, because its routes are in a file, use --control URL"
            }
        }
    }
}

/// A change of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> reqwest::Method {
        match method {
            Method::Get => reqwest::Method::GET,
            Method::Put => reqwest::Method::PUT,
            Method::Post => reqwest::Method::POST,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        }
    }
}

/// A path with a query.
pub(crate) fn with_query<'a>(path: &str, arguments: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(arguments);
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// A gateway to talk to.
pub(crate) struct Client {
    api: Api,
    base: String,
    key: Option<String>,
    http: reqwest::Client,
}

impl Client {
    /// Of the Control API at `url`.
    pub(crate) fn of_control(url: &str) -> Result<Client> {
        let client = Client::over(reqwest::Client::builder(), Some(url.to_owned()), None)?;
        Ok(Client { api: Api::Control, ..client })
    }

    /// Returns the clients of a question that both APIs answer: the named Control APIs, else the Admin API if there is a
    /// key for it, else the default Control API.
    pub(crate) fn choose(&self, controls: &[String]) -> Result<Vec<Client>> {
        match controls {
            [] if self.key.is_some() => Ok(vec![self.or_control()]),
            [] => Ok(vec![Client::of_control(DEFAULT_CONTROL)?]),
            all => all.iter().map(|url| Client::of_control(url)).collect(),
        }
    }

    /// The gateway's URL.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The path below which both APIs have the same names.
    fn root(&self) -> &'static str {
        if self.api == Api::Control { "v1" } else { "apisix/admin" }
    }

    /// Reads what both APIs have under the same name.
    async fn read(&self, name: &str) -> Result<Value> {
        let (_, text) = self.send(self.http.get(format!("{}/{}/{name}", self.base, self.root()))).await?;
        serde_json::from_str(&text).context("the response is not JSON; is this a gateway's API?")
    }

    /// The same, for a question that a Control API answers too.
    fn or_control(&self) -> Client {
        let Client { base, key, http, .. } = self;
        Client { api: Api::Either, base: base.clone(), key: key.clone(), http: http.clone() }
    }

    /// Returns the same client, with a certificate if there is one.
    pub(crate) fn known_as(identity: Identity, url: Option<String>, key: Option<String>) -> Result<Client> {
        Client::over(identity.apply(reqwest::Client::builder())?, url, key)
    }

    fn over(http: reqwest::ClientBuilder, url: Option<String>, key: Option<String>) -> Result<Client> {
        let url =
            url.or_else(|| std::env::var("SIGMA_ADMIN").ok()).unwrap_or_else(|| DEFAULT_ADMIN.to_owned());
        if !url.starts_with("http://") && !url.starts_with("https://") {
            bail!("`{url}` is not the URL of a gateway; write http://host:port");
        }
        // A proxy of the environment is meant for the world outside, not for the gateways within.
        let http = http.timeout(TIMEOUT).no_proxy().build()?;
        Ok(Client { api: Api::Admin, base: url.trim_end_matches('/').to_owned(), key, http })
    }

    /// Calls the Admin API; `path` is below `/apisix/admin`.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let url = format!("{}/apisix/admin/{path}", self.base);
        let mut request = self.http.request(method.into(), url);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let (_, text) = self.send(request).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Posts to a path of the Admin API, if this is still the newest version of the history.
    pub(crate) async fn call_if_newest(&self, path: &str, version: u64) -> Result<Value> {
        let url = format!("{}/apisix/admin/{path}", self.base);
        let (_, text) = self.send(self.http.post(url).header("if-match", format!("\"{version}\""))).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Asks the Admin API, or the Control API at `control`, for what both tell under the same path.
    pub(crate) async fn ask(&self, control: Option<&str>, path: &str) -> Result<Value> {
        let Some(control) = control else { return self.or_control().call(Method::Get, path, None).await };
        let other = Client::of_control(control)?;
        let (_, text) = other.send(other.http.get(format!("{}/v1/{path}", other.base))).await?;
        serde_json::from_str(&text).context("the response is not JSON; check that the URL is a Control API")
    }

    /// Asks the Admin API, or the Control API at `control`, for a response without an end.
    pub(crate) async fn stream(&self, control: Option<&str>, path: &str) -> Result<reqwest::Response> {
        let (client, root) = match control {
            Some(control) => (Client::of_control(control)?, "v1"),
            None => (self.or_control(), "apisix/admin"),
        };
        let request = client.http.get(format!("{}/{root}/{path}", client.base)).timeout(Duration::MAX);
        let answer = client.begin(request).await?;
        match answer.status().as_u16() {
            200 => Ok(answer),
            status => Err(refusal(status, &answer.text().await.context("the response is incomplete")?)),
        }
    }

    /// Replaces the whole configuration; returns the status.
    pub(crate) async fn replace(&self, path: &str, body: &Value) -> Result<u16> {
        let text = body.to_string();
        let digest = digest(&SHA256, text.as_bytes());
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let url = format!("{}/apisix/admin/{path}", self.base);
        let request = self.http.put(url).header("x-digest", digest).body(text);
        Ok(self.send(request).await?.0)
    }

    /// Reads the revision in force.
    pub(crate) async fn revision(&self) -> Result<Value> {
        self.read("revision").await
    }

    /// Reads the certificates in force.
    pub(crate) async fn certificates(&self) -> Result<Value> {
        let mut found = self.read("certificates").await?;
        // The Admin API has the ordered ones next to them.
        Ok(if found.is_object() { found["certificates"].take() } else { found })
    }

    /// Returns the certificates that the gateway orders.
    pub(crate) async fn orders(&self) -> Result<Value> {
        match self.api {
            Api::Control => self.read("acme").await,
            // The Admin API has them next to the certificates in force.
            Api::Admin | Api::Either => Ok(self.read("certificates").await?["orders"].take()),
        }
    }

    /// Has the certificate of an ssl ordered now.
    pub(crate) async fn order_now(&self, ssl: &str) -> Result<()> {
        let url = format!("{}/{}/acme/{ssl}/order", self.base, self.root());
        self.send(self.http.post(url)).await.map(drop)
    }

    /// Reads upstreams with their nodes: one, or all.
    pub(crate) async fn nodes(&self, upstream: Option<&str>) -> Result<Value> {
        let Some(upstream) = upstream.map(|upstream| upstream.trim_matches('/')) else {
            return self.read("nodes").await;
        };
        if self.api == Api::Control {
            return Ok(Value::Array(vec![self.read(&format!("nodes/{upstream}")).await?]));
        }
        let all = self.read("nodes").await?;
        let found = all.as_array().into_iter().flatten().find(|one| one["upstream"] == upstream);
        let found = found.ok_or_else(|| {
            anyhow!("the gateway serves no upstream `{upstream}`; `sigma ctl upstreams` lists its upstreams")
        })?;
        Ok(Value::Array(vec![found.clone()]))
    }

    /// Puts a node into a state; returns the response.
    pub(crate) async fn set_node_state(&self, upstream: &str, node: &str, state: &str) -> Result<Value> {
        // A path of a unix socket has slashes, and the name of a node is one segment.
        let node = node.replace('%', "%25").replace('/', "%2F").replace('[', "%5B").replace(']', "%5D");
        let url = format!("{}/{}/nodes/{}/{node}", self.base, self.root(), upstream.trim_matches('/'));
        let body = serde_json::json!({"state": state}).to_string();
        let (_, text) = self.send(self.http.put(url).body(body)).await?;
        serde_json::from_str(&text).context("the response is not JSON; is this a gateway's API?")
    }

    /// Starts, stops or shows the stress test of an upstream; without one, shows all.
    pub(crate) async fn stress(
        &self,
        method: Method,
        upstream: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value> {
        let path = upstream.map(|upstream| format!("/{}", upstream.trim_matches('/'))).unwrap_or_default();
        let url = format!("{}/{}/stress{path}", self.base, self.root());
        let mut request = self.http.request(method.into(), url);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let (_, text) = self.send(request).await?;
        serde_json::from_str(&text).context("the response is not JSON; is this a gateway's API?")
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(u16, String)> {
        let answer = self.begin(request).await?;
        let status = answer.status().as_u16();
        warnings(answer.headers()).iter().for_each(|warning| eprintln!("warning: {warning}"));
        let text = answer.text().await.context("the response is incomplete")?;
        if status < 300 {
            return Ok((status, text));
        }
        Err(refusal(status, &text))
    }

    async fn begin(&self, mut request: reqwest::RequestBuilder) -> Result<reqwest::Response> {
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key);
        }
        request.send().await.map_err(|error| {
            let remedy = self.api.remedy(self.base.starts_with("https://"));
            anyhow!("cannot reach {}: {}; {remedy}", self.base, innermost(&error))
        })
    }
}

/// The warnings about a write; control characters do not reach the terminal.
fn warnings(fields: &reqwest::header::HeaderMap) -> Vec<String> {
    let shown = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text = |value: &reqwest::header::HeaderValue| {
        String::from_utf8_lossy(value.as_bytes()).chars().map(shown).collect()
    };
    fields.get_all(WARNING).iter().map(text).collect()
}

fn refusal(status: u16, text: &str) -> anyhow::Error {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let word = |name: &str| body.get(name).and_then(Value::as_str);
    let mut message = match (word("error_msg").or_else(|| word("message")), word("description")) {
        (Some(message), Some(description)) => format!("{message}: {description}"),
        (Some(message), None) => message.to_owned(),
        _ => text.trim().to_owned(),
    };
    for error in body.get("errors").and_then(Value::as_array).into_iter().flatten() {
        let part = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
        message.push_str(&format!(
            "\n  {}/{}: {}",
            part("resource_type"),
            part("resource_id"),
            part("error")
        ));
    }
    let hint = match status {
        401 if word("description") == Some("invalid method for role viewer") => {
            "; this key has the role viewer: use a key with the role admin"
        }
        401 => {
            "; give the key with --key-file or SIGMA_ADMIN_KEY (a generated key is in admin.key next to the store)"
        }
        // Other refusals say themselves what to do.
        403 if !message.contains("operators.") => "; call from an address in `admin.allow`",
        _ => "",
    };
    anyhow!("{status}: {message}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_and_how() {
        let check = |status: u16, text: &str, expected: &str| {
            assert_eq!(refusal(status, text).to_string(), expected);
        };
        check(400, r#"{"error_msg":"wrong route id"}"#, "400: wrong route id");
        check(404, r#"{"message":"Key not found"}"#, "404: Key not found");
        check(502, "oops\n", "502: oops");
        check(
            400,
            r#"{"error_msg":"x","errors":[{"resource_type":"routes","resource_id":"1","index":0,"error":"y"}]}"#,
            "400: x\n  routes/1: y",
        );
        let text = r#"{"error_msg":"failed to check token","description":"missing apikey"}"#;
        let viewer =
            r#"{"error_msg":"failed to check token","description":"invalid method for role viewer"}"#;
        let said = refusal(401, viewer).to_string();
        assert!(said.ends_with("this key has the role viewer: use a key with the role admin"), "{said}");
        assert!(
            refusal(401, text).to_string().starts_with("401: failed to check token: missing apikey; give")
        );
    }

    #[test]
    fn the_remedy_names_the_option_of_the_command() {
        for is_tls in [false, true] {
            assert!(Api::Control.remedy(is_tls).contains("--control"));
            assert!(!Api::Control.remedy(is_tls).contains("--admin"));
            assert!(!Api::Admin.remedy(is_tls).contains("--control"));
        }
        assert!(
            Api::Either.remedy(false).contains("--admin") && Api::Either.remedy(false).contains("--control")
        );
    }

    #[test]
    fn warnings_are_shown() {
        let mut fields = reqwest::header::HeaderMap::new();
        assert!(warnings(&fields).is_empty());
        for text in ["uri: `x` never matches", "a\tb"] {
            fields.append(WARNING, text.parse().unwrap());
        }
        assert_eq!(warnings(&fields), ["uri: `x` never matches", "a b"]);
    }

    #[test]
    fn a_key_chooses_the_admin_api() {
        let chosen = |key: Option<&str>, controls: &[&str]| {
            let admin = Client::known_as(
                Identity::default(),
                Some("http://a:9180".to_owned()),
                key.map(str::to_owned),
            );
            let controls: Vec<String> = controls.iter().map(|url| (*url).to_owned()).collect();
            let clients = admin.unwrap().choose(&controls).unwrap();
            clients.iter().map(|client| client.base().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(None, &[]), [DEFAULT_CONTROL]);
        assert_eq!(chosen(Some("k"), &[]), ["http://a:9180"]);
        assert_eq!(chosen(Some("k"), &["http://b", "http://c"]), ["http://b", "http://c"]);
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(with_query("routes", [("name", "a b&c")].into_iter()), "routes?name=a+b%26c");
        assert_eq!(with_query("routes", std::iter::empty()), "routes");
    }
}
