//! The configuration of `proxy-mirror`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::{Build, Configuration};
use sigma_schema::template::Template;

use crate::shared::zones::scaled;
use sigma_plugin_kit::fields::{frames, is_name};

/// Sends copies of requests to other hosts and drops their responses.
///
/// A copy has the method, the header fields, the `Host` and the body that the node gets. It is sent over HTTP/1.1, or
/// over HTTP/2 for gRPC. It has no credentials (header fields or arguments) that another plugin hides from the node.
/// It is sent in the background when the whole body has arrived; the request never waits for it. Requests that the
/// gateway itself responds to, and requests with unusual methods, are not copied.
///
/// Copies beyond the limits of number and memory are dropped and counted in the metric `mirror_copies_total`;
/// failures are in the error log as well.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    #[serde(flatten)]
    pub(super) first: Target,
    /// Additional hosts, each with its own share.
    #[schemars(length(min = 1, max = 16))]
    pub(super) mirrors: Option<Vec<Target>>,
    /// Maximum bytes of a copied body; requests with longer bodies are not copied.
    #[schemars(range(min = 0), extend("default" = 67_108_864, "own_default" = true))]
    pub(super) max_req_body_size: usize,
    /// Maximum bytes read of a response body before the copy's connection is closed.
    #[schemars(range(min = 0), extend("default" = 1_048_576, "own_default" = true))]
    pub(super) max_resp_body_size: usize,
    /// Header fields that mark the copy; they replace the request's own. Values may contain variables.
    #[serde(default)]
    #[schemars(with = "Value", extend(
        "type" = "object",
        "minProperties" = 1,
        "patternProperties" = {"^[^:]+$": {"type": "string"}}
    ))]
    pub(super) headers: Fields,
    /// Whether certificates of mirrors are verified.
    #[schemars(extend("default" = false, "own_default" = true))]
    pub(super) ssl_verify: bool,
    /// Compares responses to copies with responses to the requests. Differences are in the error log, without values,
    /// and in the metric `mirror_comparisons_total`.
    #[serde(default)]
    #[schemars(extend("own_default" = true))]
    pub(super) compare: Option<Compare>,
}

/// A host that gets copies.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Target {
    /// The host, with `http`, `https`, `grpc` or `grpcs`, and without a path.
    #[schemars(regex(pattern = HOST))]
    pub(super) host: String,
    /// Another path, or a prefix of the request's; not for gRPC.
    #[schemars(regex(pattern = r"^/[^?&]+$"))]
    pub(super) path: Option<String>,
    /// Whether `path` replaces the request's path or is its prefix.
    #[schemars(extend("default" = "replace"))]
    pub(super) path_concat_mode: PathMode,
    /// The share of requests that are copied.
    #[schemars(range(min = 0.00001, max = 1), extend("default" = 1))]
    pub(super) sample_ratio: f64,
}

const HOST: &str = r"^(http(s)?|grpc(s)?):\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?$";

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum PathMode {
    Replace,
    Prefix,
}

/// The compared parts of responses.
#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct Compare {
    /// Whether the status is compared.
    #[schemars(extend("default" = true))]
    pub(super) status: bool,
    /// The compared header fields.
    #[schemars(extend("default" = []))]
    pub(super) headers: Vec<String>,
    /// Whether the body is compared, byte for byte.
    #[schemars(extend("default" = true))]
    pub(super) body: bool,
}

/// Fields with templates, in the order in which they are written.
#[derive(Default, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub(super) struct Fields(pub(super) Vec<(String, Template)>);

impl TryFrom<Map<String, Value>> for Fields {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<Fields, String> {
        let field = |(name, value): (String, Value)| {
            if !is_name(&name) {
                return Err(format!("headers: `{name}` is not the name of a header field"));
            }
            if frames(&name) || name.eq_ignore_ascii_case("host") {
                return Err(format!("headers: the gateway itself sets `{name}`: remove it"));
            }
            Ok((name, Template::parse(value.as_str().unwrap_or_default())))
        };
        fields.into_iter().map(field).collect::<Result<_, _>>().map(Fields)
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if let Some(compare) = &self.compare {
            if let Some(name) = compare.headers.iter().find(|name| !is_name(name)) {
                return Err(format!("compare.headers: `{name}` is not the name of a header field"));
            }
            if !compare.status && !compare.body && compare.headers.is_empty() {
                return Err("compare: it compares nothing; remove it, or list header fields".to_owned());
            }
        }
        self.targets().try_for_each(|target| match (target.address(), &target.path) {
            (None, _) => Err(format!("`{}` has an invalid port", target.host)),
            (_, Some(path)) if !path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') => {
                Err(format!("`{path}` contains characters that must be percent-encoded"))
            }
            _ => Ok(()),
        })
    }
}

impl Config {
    /// All hosts that get copies.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.first).chain(self.mirrors.iter().flatten())
    }
}

impl Target {
    /// Scheme, host and port.
    fn address(&self) -> Option<(&str, &str, u16)> {
        let (scheme, authority) = self.host.split_once("://")?;
        // The colons of an address of IPv6 stand in brackets.
        let at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let implied = if matches!(scheme, "https" | "grpcs") { 443 } else { 80 };
        let (host, port) = match at {
            None => (authority, implied),
            Some(at) => (&authority[..at], authority[at + 1..].parse().ok().filter(|port| *port > 0)?),
        };
        Some((scheme, host, port))
    }

    pub(super) fn is_grpc(&self) -> bool {
        self.host.starts_with("grpc")
    }
}

/// The mirrors as upstreams, named by their numbers.
pub(super) fn upstreams(conf: &Value) -> Vec<InlineUpstream> {
    let Ok(config) = Config::deserialize(conf) else { return Vec::new() };
    let upstream = |(number, target): (usize, &Target)| {
        let (scheme, host, port) = target.address()?;
        let mut upstream = json!({
            "scheme": scheme,
            "nodes": [{ "host": host, "port": port, "weight": 1 }],
            // The time of a copy as a whole ends them.
            "timeout": { "connect": 86400, "send": 86400, "read": 86400 },
            "retries": 0,
        });
        if matches!(scheme, "https" | "grpcs") {
            upstream["tls"] = json!({ "verify": config.ssl_verify });
        }
        Some(InlineUpstream { name: number.to_string(), upstream })
    };
    config.targets().enumerate().filter_map(upstream).collect()
}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Attributes {
    timeout: Times,
    copies: Bounds,
}

/// The parts of a copy's timeout, which is their sum. Each is a number with `ms`, `s`, `m` or `h`, or a number of
/// seconds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Times {
    /// The connect timeout.
    connect: String,
    /// The send timeout.
    send: String,
    /// The response timeout.
    read: String,
}

impl Default for Times {
    fn default() -> Times {
        let [connect, send, read] = ["60s"; 3].map(str::to_owned);
        Times { connect, send, read }
    }
}

/// Limits of copies in each worker, over all configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Bounds {
    /// Maximum concurrent copies: a hanging mirror occupies this number of connections.
    #[schemars(range(min = 1))]
    pub(super) worker_running: usize,
    /// Maximum copies that wait for a running one to end.
    pub(super) worker_waiting: usize,
    /// Maximum bytes of the bodies of all copies.
    pub(super) worker_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { worker_running: 64, worker_waiting: 256, worker_bytes: 64 << 20 }
    }
}

impl Attributes {
    /// Returns the attributes of the plugin that is built.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if a value means nothing.
    pub(super) fn of(build: &Build<'_>) -> Result<Attributes, String> {
        let told = Option::<Attributes>::deserialize(build.node.attribute(build.plugin));
        told.map(Option::unwrap_or_default).map_err(|error| format!("plugin_attr.{}: {error}", build.plugin))
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.copies
    }

    /// Milliseconds that a copy may take.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one of them is no time.
    pub(super) fn timeout_ms(&self) -> Result<u64, String> {
        let Times { connect, send, read } = &self.timeout;
        [("connect", connect), ("send", send), ("read", read)].into_iter().try_fold(
            0u64,
            |sum, (name, text)| {
                let time = milliseconds(text).filter(|ms| *ms > 0);
                let time = time.ok_or_else(|| {
                    format!("plugin_attr.proxy-mirror.timeout.{name}: `{text}` is not a time such as 60s")
                })?;
                Ok(sum.saturating_add(time))
            },
        )
    }
}

fn milliseconds(text: &str) -> Option<u64> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse().ok(),
        None => scaled(text, &[('s', 1), ('m', 60), ('h', 3600)])?.checked_mul(1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_refusal, config_of};

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("proxy-mirror", &conf, expected);
        for host in ["http://a", "https://a.b-c:8443", "grpc://127.0.0.1:50051", "grpcs://[::1]:443"] {
            check(json!({"host": host}), "");
        }
        check(json!({}), "property \"host\" is required");
        for host in ["a", "ftp://a", "http://a/", "http://a/b", "http://a:b", "http://", "http://::1"] {
            check(json!({"host": host}), "property \"host\" validation failed: failed to match pattern");
        }
        check(json!({"host": "http://a:70000"}), "`http://a:70000` has an invalid port");
        let more = |more: Value| crate::testing::merged(json!({"host": "http://a"}), &more);
        check(more(json!({"path": "/a"})), "");
        for path in ["a", "/a?b", "/a&b", "/"] {
            check(
                more(json!({"path": path})),
                "property \"path\" validation failed: failed to match pattern",
            );
        }
        check(more(json!({"path": "/a b"})), "`/a b` contains characters that must be percent-encoded");
        check(more(json!({"path_concat_mode": "x"})), "property \"path_concat_mode\" validation failed");
        check(more(json!({"sample_ratio": 0})), "expected 0 to be at least 1e-05");
        check(more(json!({"sample_ratio": 1.1})), "expected 1.1 to be at most 1");
        check(more(json!({"mirrors": [{"host": "http://b"}, {"host": "grpc://c"}]})), "");
        check(more(json!({"mirrors": [{}]})), "property \"host\" is required");
        check(more(json!({"headers": {"a b": "1"}})), "`a b` is not the name of a header field");
        check(more(json!({"headers": {"Host": "a"}})), "the gateway itself sets `Host`: remove it");
        check(more(json!({"compare": {}})), "");
        check(more(json!({"compare": {"headers": ["a b"]}})), "`a b` is not the name of a header field");
        check(
            more(json!({"compare": {"status": false, "body": false}})),
            "compare: it compares nothing; remove it, or list header fields",
        );
    }

    #[test]
    fn addresses() {
        let check = |host: &str, expected| {
            let config: Config = config_of(json!({ "host": host }));
            assert_eq!(config.first.address(), Some(expected), "{host}");
        };
        check("http://a", ("http", "a", 80));
        check("grpcs://a:1", ("grpcs", "a", 1));
        check("https://[::1]", ("https", "[::1]", 443));
        check("grpc://[::1]:50051", ("grpc", "[::1]", 50051));
    }

    #[test]
    fn times() {
        let check = |timeout: Value, expected: Result<u64, &str>| {
            let attributes: Attributes = serde_json::from_value(json!({ "timeout": timeout })).unwrap();
            let got = attributes.timeout_ms();
            assert_eq!(got, expected.map_err(str::to_owned), "{timeout}");
        };
        check(json!({}), Ok(180_000));
        check(json!({"connect": "500ms", "send": "2", "read": "1m"}), Ok(62_500));
        let wrong = "plugin_attr.proxy-mirror.timeout.read: `soon` is not a time such as 60s";
        check(json!({"read": "soon"}), Err(wrong));
    }
}
