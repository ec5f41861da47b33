//! The labels of a request: as a key under which its series are found, and as text.

use sigma_plugin::address::{IpText, NodeAddr};
use sigma_plugin::record::Source;
use sigma_plugin::{Context, Session};
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::settings::{Disabled, Label, Metric, Settings};

/// The sources of a request's labels. They become text when it is the first one with them.
#[derive(Debug, Default)]
pub(super) struct Labels<'v> {
    pub(super) status: u16,
    pub(super) source: Source,
    /// The node that was asked last.
    pub(super) node: Option<&'v NodeAddr>,
    pub(super) consumer: &'v str,
    pub(super) route: &'v str,
    pub(super) service: &'v str,
    pub(super) matched_uri: &'v str,
    pub(super) matched_host: &'v str,
}

impl Labels<'_> {
    /// Writes a key that no other labels have. Texts stand with their lengths: no two requests share a key
    /// by accident.
    pub(super) fn write_key(&self, disabled: Disabled, extra: &ExtraValues, key: &mut Vec<u8>) {
        fn text(key: &mut Vec<u8>, text: &[u8]) {
            key.extend_from_slice(&(text.len() as u32).to_le_bytes());
            key.extend_from_slice(text);
        }
        key.clear();
        key.extend_from_slice(&disabled.bytes());
        key.extend_from_slice(&self.status.to_le_bytes());
        key.push(self.source as u8);
        match self.node {
            None => key.push(0),
            Some(NodeAddr::Tcp(addr)) => match addr.ip() {
                std::net::IpAddr::V4(ip) => {
                    key.push(4);
                    key.extend_from_slice(&ip.octets());
                }
                std::net::IpAddr::V6(ip) => {
                    key.push(6);
                    key.extend_from_slice(&ip.octets());
                }
            },
            Some(NodeAddr::Unix(path)) => {
                key.push(1);
                text(key, path.as_os_str().as_encoded_bytes());
            }
        }
        for part in [self.consumer, self.route, self.service, self.matched_uri, self.matched_host] {
            text(key, part.as_bytes());
        }
        extra.iter().flatten().for_each(|value| text(key, value.as_bytes()));
    }

    /// The labels of a metric as the text format writes them.
    pub(super) fn text(
        &self,
        metric: Metric,
        disabled: Disabled,
        settings: &Settings,
        extra: &ExtraValues,
    ) -> String {
        let mut out = String::with_capacity(160);
        for label in metric.labels() {
            let value = if disabled.has(metric, *label) { String::new() } else { self.value(*label) };
            write_label(&mut out, label.name(), &value);
        }
        for ((name, _), value) in settings.extra[metric as usize].iter().zip(&extra[metric as usize]) {
            write_label(&mut out, name, value);
        }
        out
    }

    fn value(&self, label: Label) -> String {
        match label {
            Label::Code => self.status.to_string(),
            Label::Route => self.route.to_owned(),
            Label::MatchedUri => self.matched_uri.to_owned(),
            Label::MatchedHost => self.matched_host.to_owned(),
            Label::Service => self.service.to_owned(),
            Label::Consumer => self.consumer.to_owned(),
            Label::Node => match self.node {
                None => String::new(),
                Some(NodeAddr::Tcp(addr)) => IpText::of(addr.ip()).as_str().to_owned(),
                Some(path) => path.to_string(),
            },
            Label::RequestType => "traditional_http".to_owned(),
            Label::RequestLlmModel | Label::LlmModel => String::new(),
            Label::ResponseSource => self.source.as_str().to_owned(),
        }
    }
}

/// The values of labels that the configuration adds, by metric.
pub(super) type ExtraValues = [Vec<String>; 3];

/// Returns the values of a request.
pub(super) fn extra_values(settings: &Settings, ctx: &Context) -> ExtraValues {
    settings.extra.each_ref().map(|labels| labels.iter().map(|(_, name)| extra_value(name, ctx)).collect())
}

fn extra_value(name: &VarName, ctx: &Context) -> String {
    match ctx.get(name) {
        Some(VarValue::Text(text)) => valid_start(&text).to_owned(),
        Some(VarValue::Bool(truth)) => truth.to_string(),
        _ => String::new(),
    }
}

/// Bytes of a value that a variable gives: the number of series is limited, and so must be their size.
const VALUE_BYTES: usize = 256;

/// Text up to the first byte that is no UTF-8, or to its limit.
fn valid_start(bytes: &[u8]) -> &str {
    let bytes = &bytes[..bytes.len().min(VALUE_BYTES)];
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Returns the labels of both metrics of a session: the labels of its route, and the labels of its result.
pub(super) fn of_session(session: &Session, prefer_name: bool) -> (String, String) {
    let facts = &session.route;
    let name = facts.name.as_deref().filter(|_| prefer_name);
    let node = session.course.nodes.last().map(|node| node.addr.to_string()).unwrap_or_default();
    let (mut route, mut status) = (String::new(), String::with_capacity(64));
    write_label(&mut route, "route", name.unwrap_or(&facts.id));
    write_label(&mut status, "code", &session.course.status.to_string());
    write_label(&mut status, "listen_addr", session.traffic.listener());
    write_label(&mut status, "node", &node);
    (route, status)
}

/// Appends `name="value"`, after a comma if something is before it.
pub(super) fn write_label(out: &mut String, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The labels of a text that [`write_label`] has made, names and values.
pub(super) struct Pairs<'t>(pub(super) &'t str);

impl<'t> Iterator for Pairs<'t> {
    type Item = (&'t str, String);

    fn next(&mut self) -> Option<(&'t str, String)> {
        let (name, after) = self.0.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.chars();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            match c {
                '\\' => match chars.next() {
                    Some('n') => value.push('\n'),
                    escaped => value.extend(escaped),
                },
                c => value.push(c),
            }
        }
        self.0 = chars.as_str();
        Some((name.trim_start_matches(','), value))
    }
}
