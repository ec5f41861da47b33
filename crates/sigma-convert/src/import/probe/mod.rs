//! Requests that show whether a conversion behaves like its original.

pub mod compare;
pub mod response;

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

/// Reads probes from their JSON.
///
/// # Errors
/// Returns a sentence if the text is not JSON, or a probe lacks its method or target.
pub fn read(text: &str) -> Result<Vec<Probe>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let list = value.get("probes").and_then(Value::as_array).ok_or("the list `probes` is missing")?;
    list.iter()
        .enumerate()
        .map(|(at, value)| one(value).map_err(|reason| format!("probes[{at}]: {reason}")))
        .collect()
}

fn one(value: &Value) -> Result<Probe, String> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let line = |name: &str| {
        let found = text(name).ok_or_else(|| format!("`{name}` is missing"))?;
        match found.is_empty() || found.contains(|char: char| char.is_whitespace() || char.is_control()) {
            true => Err(format!("`{name}` has a space or a control character, or is empty")),
            false => Ok(found),
        }
    };
    let mut headers = Vec::new();
    for pair in value.get("headers").and_then(Value::as_array).into_iter().flatten() {
        let part = |at: usize| pair.get(at).and_then(Value::as_str).map(str::to_owned);
        let (name, value) =
            part(0).zip(part(1)).ok_or("each item of `headers` must be a list of a name and a value")?;
        if name.is_empty() || format!("{name}{value}").contains(['\r', '\n']) {
            return Err(format!("the field `{name}` is invalid"));
        }
        headers.push((name, value));
    }
    let host = text("host").unwrap_or_default();
    if host.contains(['\r', '\n']) {
        return Err("`host` has a line break".to_owned());
    }
    let port =
        value.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    Ok(Probe {
        name: text("name").unwrap_or_default(),
        method: line("method")?,
        target: line("target")?,
        host,
        port,
        headers,
        body: text("body"),
    })
}

/// Returns the bytes of a request of HTTP/1.1; `authority` is the host where the probe names none.
#[must_use]
pub fn request(probe: &Probe, authority: &str) -> Vec<u8> {
    let host = if probe.host.is_empty() { authority } else { probe.host.as_str() };
    let mut text =
        format!("{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", probe.method, probe.target);
    for (name, value) in &probe.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = &probe.body {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    } else if matches!(probe.method.as_str(), "POST" | "PUT" | "PATCH") {
        text.push_str("Content-Length: 0\r\n");
    }
    text.push_str("\r\n");
    text.push_str(probe.body.as_deref().unwrap_or_default());
    text.into_bytes()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_written_and_read() {
        let mut probe = Probe::get("n", "a.test", "/x?y");
        probe.headers = vec![("X-A".to_owned(), "1".to_owned())];
        probe.body = Some("b".to_owned());
        let text = json(std::slice::from_ref(&probe)).to_string();
        assert_eq!(read(&text).expect("probes"), std::slice::from_ref(&probe));
        let bytes = String::from_utf8(request(&probe, "h:1")).expect("text");
        assert_eq!(
            bytes,
            "GET /x?y HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nX-A: 1\r\nContent-Length: 1\r\n\r\nb"
        );
        for text in [
            "",
            "{}",
            r#"{"probes": [{"method": "GET"}]}"#,
            r#"{"probes": [{"method": "G T", "target": "/"}]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
