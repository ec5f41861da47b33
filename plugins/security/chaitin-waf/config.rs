//! The configuration of `chaitin-waf`: the detectors in its plugin metadata, and the requests to them on each
//! route.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::Configuration;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_schema::expr::Expr;

use super::DETECTORS;
use sigma_plugin_kit::condition;

/// Checks requests for attacks with Chaitin's SafeLine WAF, over its protocol T1K.
///
/// The plugin metadata list the detectors, which are used in turn; an unreachable one is skipped. `monitor`, the
/// default, permits every request and logs refusals to the error log. `block` responds to attacks for the detector,
/// and with 500 to requests without a verdict. A detector gets the head at the time when the plugin runs, with the
/// client's path and query, and the first `req_body_size` KB of the body. A refusal counts with every status, with or
/// without an event id; a status that is not an error becomes 403. A verdict has at most 64 KiB.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// Action on attacks. Unset: `mode` of the plugin metadata, or else `monitor`.
    mode: Option<Mode>,
    /// Conditions for requests to check; one must match. Unset or empty: all requests.
    #[serde(rename = "match")]
    pub(super) matching: Option<Vec<Match>>,
    /// Whether the response has the result, in `X-APISIX-CHAITIN-WAF` and similar fields.
    #[schemars(extend("default" = true))]
    pub(super) append_waf_resp_header: bool,
    /// Whether the response also names the detector and the error.
    #[schemars(extend("default" = false))]
    pub(super) append_waf_debug_header: bool,
    /// Settings for calls of detectors, instead of the plugin metadata. Missing numbers have their defaults, not the
    /// values of the metadata.
    config: Option<Own>,
}

/// The detectors, and the settings of all routes.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Metadata {
    /// The detectors.
    #[schemars(length(min = 1))]
    nodes: Vec<Node>,
    /// Action on attacks for routes without a setting.
    mode: Option<Mode>,
    /// The connection to the detectors.
    config: Option<Shared>,
}

/// The action on attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Detectors are not called.
    Off,
    /// Attacks are logged in the error log, and forwarded.
    Monitor,
    /// Attacks are refused.
    Block,
}

#[derive(Deserialize, JsonSchema)]
struct Node {
    /// The host: an address, a name, or `unix:/path`.
    #[schemars(regex(pattern = r"^\*?[0-9a-zA-Z-._\[\]:/]+$"))]
    host: String,
    /// The port.
    #[schemars(range(min = 1, max = 65_535), extend("default" = 80))]
    port: u16,
}

/// A condition.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "MatchFields")]
#[schemars(with = "MatchFields")]
pub(super) struct Match(pub(super) Expr);

#[derive(Deserialize, JsonSchema)]
struct MatchFields {
    /// An expression on variables.
    #[schemars(with = "Option<Vec<Value>>")]
    vars: Option<Value>,
}

impl TryFrom<MatchFields> for Match {
    type Error = String;

    fn try_from(fields: MatchFields) -> Result<Match, String> {
        let parsed = condition::parse::<serde_json::Error>("vars", &fields.vars.unwrap_or_default());
        let rule = parsed.map_err(|error| error.to_string())?;
        match rule.needs_body() {
            Some(variable) => Err(format!(
                "failed to validate the 'vars' expression: `{variable}` is read from the request body, which has not \
                 arrived when this is decided"
            )),
            None => Ok(Match(rule)),
        }
    }
}

/// The calls of detectors, for one route.
#[derive(Deserialize, JsonSchema)]
struct Own {
    #[serde(flatten)]
    numbers: Numbers,
    /// Whether a detector gets the client's address as the gateway detected it, instead of the address of the
    /// connection.
    real_client_ip: Option<bool>,
}

/// The calls of detectors, for all routes.
#[derive(Deserialize, JsonSchema)]
struct Shared {
    #[serde(flatten)]
    numbers: Numbers,
    /// Whether a detector gets the client's address as the gateway detected it, instead of the address of the
    /// connection.
    #[schemars(extend("default" = true))]
    real_client_ip: Option<bool>,
}

/// Times in milliseconds, and sizes.
#[derive(Default, Clone, Copy, Deserialize, JsonSchema)]
struct Numbers {
    /// Connect timeout in milliseconds; 1000 by default.
    #[schemars(range(min = 1, max = 600_000))]
    connect_timeout: Option<u64>,
    /// Send timeout of the request to the detector in milliseconds; 1000 by default.
    #[schemars(range(min = 1, max = 600_000))]
    send_timeout: Option<u64>,
    /// Timeout of the verdict in milliseconds; 1000 by default.
    #[schemars(range(min = 1, max = 600_000))]
    read_timeout: Option<u64>,
    /// Maximum KB of a body for a detector; 1024 by default.
    #[schemars(range(min = 1, max = 65_536))]
    req_body_size: Option<usize>,
    /// Maximum idle connections of each worker to a detector; 256 by default.
    #[schemars(range(min = 1))]
    keepalive_size: Option<u32>,
    /// Idle timeout of a connection in milliseconds; 60000 by default.
    #[schemars(range(min = 1))]
    keepalive_timeout: Option<u64>,
}

/// The settings of a route, merged with the metadata's.
pub(super) struct Settings {
    pub(super) mode: Mode,
    /// Most bytes of a body that a detector sees.
    pub(super) body_bytes: usize,
    /// Milliseconds for all of a question.
    pub(super) timeout_ms: u64,
    pub(super) real_client_ip: bool,
    numbers: Numbers,
}

impl Configuration for Config {}

impl Settings {
    pub(super) fn of(config: &Config, metadata: &Metadata) -> Settings {
        let shared = metadata.config.as_ref();
        let numbers = match (&config.config, shared) {
            (Some(own), _) => own.numbers,
            (None, Some(shared)) => shared.numbers,
            (None, None) => Numbers::default(),
        };
        let own = config.config.as_ref().and_then(|own| own.real_client_ip);
        let Numbers { connect_timeout, send_timeout, read_timeout, .. } = numbers;
        let all = [connect_timeout, send_timeout, read_timeout].map(|ms| ms.unwrap_or(TIMEOUT_MS));
        Settings {
            mode: config.mode.or(metadata.mode).unwrap_or(Mode::Monitor),
            body_bytes: numbers.req_body_size.unwrap_or(1024) << 10,
            timeout_ms: all.iter().sum(),
            real_client_ip: own.or(shared.and_then(|shared| shared.real_client_ip)).unwrap_or(true),
            numbers,
        }
    }
}

const TIMEOUT_MS: u64 = 1000;

/// The detectors as an upstream, asked as a route wants it.
pub(super) fn upstream(conf: &Value, metadata: &Value) -> Option<InlineUpstream> {
    let metadata = Metadata::deserialize(metadata).ok()?;
    let Numbers { connect_timeout, send_timeout, read_timeout, keepalive_size, keepalive_timeout, .. } =
        Settings::of(&Config::deserialize(conf).ok()?, &metadata).numbers;
    let seconds = |ms: Option<u64>, default: u64| ms.unwrap_or(default) as f64 / 1000.0;
    let nodes = metadata.nodes.iter();
    // The scheme of connections in cleartext, each for one exchange at a time.
    let upstream = json!({
        "scheme": "http",
        "nodes": nodes.map(|Node { host, port }| json!({"host": host, "port": port, "weight": 1})).collect::<Value>(),
        "timeout": {
            "connect": seconds(connect_timeout, TIMEOUT_MS),
            "send": seconds(send_timeout, TIMEOUT_MS),
            "read": seconds(read_timeout, TIMEOUT_MS),
        },
        "keepalive_pool": {
            "size": keepalive_size.unwrap_or(256),
            "idle_timeout": seconds(keepalive_timeout, 60_000),
        },
    });
    Some(InlineUpstream { name: DETECTORS.to_owned(), upstream })
}
