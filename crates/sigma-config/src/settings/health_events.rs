//! Notifications when a node becomes unhealthy or healthy.

use std::net::Ipv6Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sigma_schema::{Confidential, Problem};

/// Notifications, besides the error log, when a checked node becomes unhealthy or healthy. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthEvents {
    /// A service that gets notifications over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Notifications by mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail: Option<Mail>,
}

/// A webhook: a `POST` request with a JSON object whose `events` is a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The URL.
    #[schemars(regex(pattern = "^https?://[^/]"))]
    pub url: String,
    /// Timeout of one call in milliseconds.
    #[serde(default = "five_seconds")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
    /// How often a failed call is repeated; a status other than 200 to 299 is a failure.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// Pause before the first retry in milliseconds; it doubles with each further retry, up to a minute.
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub retry_delay_ms: u32,
    /// Maximum number of queued events; further events are dropped and logged.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
}

impl Webhook {
    /// Returns how its notifications wait and are repeated.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        let Webhook { timeout_ms, retries, retry_delay_ms, queue, .. } = *self;
        Delivery { timeout_ms, retries, retry_delay_ms, queue }
    }
}

/// Mails by an SMTP server. Events that come within `interval_s` of a mail are sent together in the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mail {
    /// The server, as `host:port`.
    #[schemars(regex(pattern = r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):[0-9]{1,5}$"))]
    pub server: String,
    /// TLS to the server.
    #[serde(default)]
    pub security: MailSecurity,
    /// User name for `AUTH PLAIN`; unset: no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub username: Option<String>,
    /// Its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Confidential>,
    /// Address of the sender.
    #[schemars(regex(pattern = r"^[!-;=?-~]+@[!-;=?-~]+$"), length(max = 254))]
    pub from: String,
    /// Addresses of the recipients.
    #[schemars(
        length(min = 1, max = 100),
        inner(regex(pattern = r"^[!-;=?-~]+@[!-;=?-~]+$"), length(max = 254))
    )]
    pub to: Vec<String>,
    /// Shortest time in seconds between two mails.
    #[serde(default = "minute")]
    #[schemars(range(max = 86_400))]
    pub interval_s: u32,
    /// Timeout of one mail in milliseconds, with connecting to the server.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
    /// How often a mail is repeated that the server did not take.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// Pause before the first retry in milliseconds; it doubles with each further retry, up to a minute.
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub retry_delay_ms: u32,
    /// Maximum number of queued events; further events are dropped and logged.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
}

impl Mail {
    /// Returns how its notifications wait and are repeated.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        let Mail { timeout_ms, retries, retry_delay_ms, queue, .. } = *self;
        Delivery { timeout_ms, retries, retry_delay_ms, queue }
    }

    /// Returns the host and port of the server.
    ///
    /// # Errors
    /// Returns the reason if `server` has no host or port.
    pub fn address(&self) -> Result<(&str, u16), String> {
        let invalid = || format!("`server` is not host:port: {}", self.server);
        let (host, port) = self.server.rsplit_once(':').ok_or_else(invalid)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(host) => host.parse::<Ipv6Addr>().map(|_| host).map_err(|_| invalid())?,
            None => host,
        };
        Ok((host, port.parse().map_err(|_| invalid())?))
    }
}

/// Returns the problems of mails: a password in cleartext, and a user without a password.
pub(crate) fn of_document(root: &Map<String, Value>) -> Vec<Problem> {
    let mail = root.get("health_events").and_then(|events| events.get("mail")?.as_object());
    let Some(mail) = mail else { return Vec::new() };
    let has = |field: &str| mail.get(field).is_some_and(|value| *value != Value::Null);
    let mut found = Vec::new();
    if mail.get("security").is_some_and(|security| security == "none") && has("username") {
        let message = "the password would be sent in cleartext";
        let hint = "write `security: starttls` or `tls`, or remove `username` and `password`";
        found.push(Problem::new("health_events.mail.security", "conflict", message).hint(hint));
    }
    if has("username") != has("password") {
        let message = "`username` and `password` belong together";
        let hint = "write both, or neither";
        found.push(Problem::new("health_events.mail", "conflict", message).hint(hint));
    }
    found
}

/// TLS to a mail server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MailSecurity {
    /// TLS after `STARTTLS`, usually on port 587. Without it nothing is sent.
    #[default]
    Starttls,
    /// TLS from the first byte, usually on port 465.
    Tls,
    /// Cleartext, for a server on this machine; without `username`.
    None,
}

/// How notifications of a service wait and are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Timeout of one attempt in milliseconds.
    pub timeout_ms: u32,
    /// Further attempts.
    pub retries: u32,
    /// Pause before the first retry in milliseconds.
    pub retry_delay_ms: u32,
    /// Maximum number of queued events.
    pub queue: u32,
}

fn five_seconds() -> u32 {
    5_000
}

fn half_a_minute() -> u32 {
    30_000
}

fn minute() -> u32 {
    60
}

fn one_second() -> u32 {
    1_000
}

fn three() -> u32 {
    3
}

fn thousand() -> u32 {
    1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_mail_is_a_host_and_a_port() {
        let check = |server: &str, expected: Option<(&str, u16)>| {
            let mail = serde_json::json!({ "server": server, "from": "a@b", "to": ["c@d"] });
            let mail: Mail = serde_json::from_value(mail).unwrap();
            assert_eq!(mail.address().ok(), expected, "{server}");
        };
        check("mail.example.com:587", Some(("mail.example.com", 587)));
        check("[::1]:25", Some(("::1", 25)));
        check("[::x]:25", None);
        check("mail.example.com", None);
        check("mail.example.com:70000", None);
    }

    #[test]
    fn passwords_of_mails_are_sent_over_tls_only() {
        let check = |mail: Value, expected: &[&str]| {
            let document = serde_json::json!({ "health_events": { "mail": mail } });
            let found = of_document(document.as_object().unwrap());
            assert_eq!(found.iter().map(|it| &*it.pointer).collect::<Vec<_>>(), expected, "{document}");
        };
        check(serde_json::json!({ "security": "none" }), &[]);
        check(serde_json::json!({ "username": "u", "password": "p" }), &[]);
        check(serde_json::json!({ "username": "u" }), &["health_events.mail"]);
        let open = serde_json::json!({ "security": "none", "username": "u", "password": "p" });
        check(open, &["health_events.mail.security"]);
    }
}
