//! A client of the Admin API, the Control API or the status page of a gateway.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Address, DEADLINE, Message, Peer};

/// A client with a key, on one connection after the other.
#[derive(Debug, Clone)]
pub struct Operator {
    address: Address,
    key: Option<String>,
}

impl Operator {
    /// Returns a client of the listener at `address`.
    pub fn new(address: Address) -> Operator {
        Operator { address, key: None }
    }

    /// Sends this `X-API-KEY`.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Operator {
        self.key = Some(key.to_owned());
        self
    }

    /// Makes one call; `fields` are further header lines, each with its line end.
    pub fn call_with(
        &self,
        method: &str,
        target: &str,
        fields: &str,
        body: Option<&Value>,
    ) -> Result<Message> {
        let key = self.key.as_ref().map(|key| format!("X-API-KEY: {key}\r\n")).unwrap_or_default();
        let body = body.map(Value::to_string).unwrap_or_default();
        crate::secrets::note(&body);
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{key}{fields}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = Peer::connect(&self.address)?.with_deadline(DEADLINE * 4).ask(request);
        answer.with_context(|| format!("{method} {target}"))
    }

    /// Makes one call.
    pub fn call(&self, method: &str, target: &str, body: Option<&Value>) -> Result<Message> {
        self.call_with(method, target, "", body)
    }

    /// Reads a resource or page as JSON; it must exist.
    pub fn get(&self, target: &str) -> Result<Value> {
        let answer = self.call("GET", target, None)?;
        ensure!(answer.status() == 200, "GET {target}: {} {}", answer.status(), answer.text());
        answer.json()
    }

    /// Writes a resource below `/apisix/admin`; it must be accepted.
    pub fn put(&self, resource: &str, value: &Value) -> Result<()> {
        self.write("PUT", resource, Some(value))
    }

    /// Changes a resource below `/apisix/admin`; it must be accepted.
    pub fn patch(&self, resource: &str, value: &Value) -> Result<()> {
        self.write("PATCH", resource, Some(value))
    }

    /// Deletes a resource below `/apisix/admin`; it must succeed.
    pub fn delete(&self, resource: &str) -> Result<()> {
        self.write("DELETE", resource, None)
    }

    fn write(&self, method: &str, resource: &str, value: Option<&Value>) -> Result<()> {
        let answer = self.call(method, &format!("/apisix/admin/{resource}"), value)?;
        ensure!(
            (200..300).contains(&answer.status()),
            "{method} {resource}: {} {}",
            answer.status(),
            answer.text()
        );
        Ok(())
    }
}
