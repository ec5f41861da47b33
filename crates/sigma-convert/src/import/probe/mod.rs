//! Requests that show whether a conversion behaves like its original.

use serde_json::{Value, json};

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probe {
    /// The condition that it tries, for people.
    pub name: String,
    /// Method.
    pub method: String,
    /// The target: path and query.
    pub target: String,
    /// The host; empty: the address of the server.
    pub host: String,
    /// The port of the source's listener; 0: the first.
    pub port: u16,
    /// Header fields.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Option<String>,
}

impl Probe {
    /// Creates a GET request.
    #[must_use]
    pub fn get(name: impl Into<String>, host: impl Into<String>, target: impl Into<String>) -> Self {
        Probe {
            name: name.into(),
            method: "GET".to_owned(),
            target: target.into(),
            host: host.into(),
            ..Probe::default()
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({"name": self.name, "method": self.method, "target": self.target});
        if !self.host.is_empty() {
            value["host"] = self.host.clone().into();
        }
        if self.port != 0 {
            value["port"] = self.port.into();
        }
        if !self.headers.is_empty() {
            value["headers"] = self.headers.iter().map(|(name, value)| json!([name, value])).collect();
        }
        if let Some(body) = &self.body {
            value["body"] = body.clone().into();
        }
        value
    }
}

/// Returns the probes as JSON: `{"probes": […]}`.
#[must_use]
pub fn json(probes: &[Probe]) -> Value {
    json!({"probes": probes.iter().map(Probe::json).collect::<Vec<_>>()})
}

/// Returns targets at the borders of a path prefix: itself, paths below it, and similar ones.
#[must_use]
pub fn borders(path: &str) -> Vec<String> {
    let base = path.trim_end_matches('/');
    let mut targets =
        vec![format!("{base}/"), format!("{base}/a"), format!("{base}//a"), format!("{base}/a%2Fb")];
    if !base.is_empty() {
        targets.extend([base.to_owned(), format!("{base}b"), base.to_uppercase()]);
    }
    targets
}
