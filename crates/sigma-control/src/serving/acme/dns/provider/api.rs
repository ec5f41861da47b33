//! Calls of a provider's API: JSON or XML over TLS, each with a time limit and a greatest response.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Method, Url, redirect};
use serde_json::Value;

/// Largest response. A page of records is far below it.
const RESPONSE_BYTES: usize = 1 << 20;

/// Time of one call.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Most bytes of a provider's text in an error.
const SHOWN_BYTES: usize = 300;

/// The API of a provider.
pub(super) struct Api {
    base: String,
    client: reqwest::Client,
}

/// A call.
pub(super) struct Call<'c> {
    pub(super) method: Method,
    /// Path and query behind the base.
    pub(super) target: &'c str,
    pub(super) fields: &'c [(&'c str, &'c str)],
    pub(super) body: String,
}

/// The response to a call.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Api {
    /// Returns the API at a base address without a final slash.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the address is not https. Cleartext is allowed on this machine.
    pub(super) fn new(base: &str) -> Result<Api, String> {
        let url = Url::parse(base).map_err(|error| format!("`{base}` is not an address: {error}"))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_local = host.parse().is_ok_and(|addr: IpAddr| addr.is_loopback());
        if url.scheme() != "https" && !(url.scheme() == "http" && is_local) {
            return Err(format!("`{base}` is not https: the credentials would be sent in cleartext"));
        }
        let builder = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // Credentials are for this address only.
            .redirect(redirect::Policy::none())
            .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")));
        let client = builder.build().map_err(|error| format!("no TLS on this machine: {error}"))?;
        Ok(Api { base: base.trim_end_matches('/').to_owned(), client })
    }

    /// The base address.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Makes a call and reads the response, whatever its status.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Response, String> {
        let failed = |error: reqwest::Error| format!("cannot reach the API: {error}");
        let url = format!("{}{}", self.base, call.target);
        let mut request = self.client.request(call.method, url).body(call.body);
        for (name, value) in call.fields {
            request = request.header(*name, *value);
        }
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > RESPONSE_BYTES {
                return Err(format!("a response exceeds {RESPONSE_BYTES} bytes"));
            }
            body.extend_from_slice(&part);
        }
        Ok(Response { status, body })
    }
}

impl Response {
    /// Returns true for a status of success.
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the error of a call that was refused.
    pub(super) fn refused(&self, what: &str) -> String {
        let shown = &self.body[..self.body.len().min(SHOWN_BYTES)];
        let text = String::from_utf8_lossy(shown);
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{what} was refused with {}: {}", self.status, text.trim())
    }

    /// Returns the JSON of a successful response.
    pub(super) fn json(&self, what: &str) -> Result<Value, String> {
        if !self.is_success() {
            return Err(self.refused(what));
        }
        serde_json::from_slice(&self.body).map_err(|_| format!("the response to {what} is not JSON"))
    }

    /// Checks for success.
    pub(super) fn done(&self, what: &str) -> Result<(), String> {
        if self.is_success() { Ok(()) } else { Err(self.refused(what)) }
    }
}

/// Returns a text as part of a query or path.
pub(super) fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Returns an identifier that a provider made, whether number or text.
pub(super) fn id_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
