//! The dictionaries of `ngx.shared`, by name.

pub(crate) mod dictionary;

use std::collections::BTreeMap;
use std::sync::Mutex;

use dictionary::Dictionary;

/// The dictionaries of APISIX. Each has this size, unless it is configured.
const NAMES: &[&str] = &[
    "access-tokens",
    "balancer-ewma",
    "balancer-ewma-last-touched-at",
    "balancer-ewma-locks",
    "cas-auth",
    "discovery",
    "etcd-cluster-health-check",
    "ext-plugin",
    "internal-status",
    "introspection",
    "jwks",
    "lrucache-lock",
    "mcp-session",
    "ocsp-stapling",
    "plugin-ai-rate-limiting",
    "plugin-api-breaker",
    "plugin-graphql-limit-count",
    "plugin-limit-conn",
    "plugin-limit-count",
    "plugin-limit-req",
    "prometheus-cache",
    "prometheus-metrics",
    "tracing_buffer",
    "upstream-healthcheck",
    "worker-events",
];

const DEFAULT_BYTES: usize = 10 << 20;

/// The largest dictionary that can be configured.
const MOST_BYTES: usize = 1 << 30;

/// All dictionaries of the process, in the order of their names.
#[derive(Debug)]
pub(crate) struct Dictionaries(pub(crate) BTreeMap<String, Mutex<Dictionary>>);

impl Dictionaries {
    /// The dictionaries of APISIX, and further ones that a configuration names, with sizes such as `10m`.
    ///
    /// # Errors
    /// Returns an error message if a size is invalid.
    pub(crate) fn new(configured: &BTreeMap<String, String>) -> Result<Dictionaries, String> {
        let mut sizes: BTreeMap<String, usize> =
            NAMES.iter().map(|name| ((*name).to_owned(), DEFAULT_BYTES)).collect();
        for (name, size) in configured {
            let bytes = bytes_of(size).filter(|bytes| (12 << 10..=MOST_BYTES).contains(bytes));
            let bytes = bytes.ok_or_else(|| {
                format!("custom_lua_shared_dict.{name}: {size} is not a size from 12k to 1024m, such as 10m")
            })?;
            sizes.insert(name.clone(), bytes);
        }
        let made = sizes.into_iter().map(|(name, bytes)| (name, Mutex::new(Dictionary::new(bytes))));
        Ok(Dictionaries(made.collect()))
    }
}

/// A size of nginx: bytes, or `k` or `m`.
fn bytes_of(size: &str) -> Option<usize> {
    let (digits, unit) = match size.as_bytes().last()? {
        b'k' | b'K' => (&size[..size.len() - 1], 1 << 10),
        b'm' | b'M' => (&size[..size.len() - 1], 1 << 20),
        _ => (size, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}
