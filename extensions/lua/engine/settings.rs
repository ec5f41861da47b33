//! Limits of scripts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Node;
use sigma_plugin::script_counts::ScriptBoard;
use sigma_schema::cidr::{Cidr, CidrSet};

use super::dictionaries::Dictionaries;

/// Settings of Lua for the whole process, in `plugin_attr.serverless-pre-function`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Attributes {
    /// The longest run of a script without a wait, in milliseconds of processor time. The script is aborted then.
    #[schemars(range(min = 1, max = 10000))]
    run_ms: u64,
    /// The processor time in each second that a worker spends on aborted runs, in milliseconds. A script with more of
    /// them gets less time for its next runs, or is refused, until the time is paid back. Scripts without aborted runs
    /// are not affected. 1000 is no limit.
    #[schemars(range(min = 1, max = 1000))]
    aborted_ms_per_second: u64,
    /// The most memory of all scripts of one worker, in MiB. Bytes that its sockets hold have the same limit again.
    #[schemars(range(min = 4, max = 4096))]
    memory_mib: usize,
    /// The largest request body that a script may read, in bytes.
    #[schemars(range(min = 1))]
    body_bytes: usize,
    /// The largest response body that a script may write, in bytes.
    #[schemars(range(min = 1))]
    output_bytes: usize,
    /// The most timers of one worker that wait (`ngx.timer.at`).
    pending_timers: usize,
    /// The most timers of one worker that run.
    running_timers: usize,
    /// The most light threads of one run (`ngx.thread.spawn`).
    threads: usize,
    /// Further dictionaries of `ngx.shared`, by name, with sizes such as `10m`.
    custom_lua_shared_dict: BTreeMap<String, String>,
    /// Networks for special use that scripts may connect to: loopback, private, link-local and similar addresses are
    /// refused otherwise. The check is made on each resolved address. Public addresses need no entry.
    allowed_networks: Vec<Network>,
    /// The most sockets of the scripts of one worker, those in pools included.
    sockets: usize,
    /// The most bytes that one read of a socket returns, and the largest response body of `resty.http`.
    socket_bytes: usize,
    /// Limits of the scripts of single plugins, by the plugin's name.
    plugin_limits: BTreeMap<String, PluginLimits>,
}

/// Limits of the scripts of one plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PluginLimits {
    /// As `run_ms` of all plugins.
    #[schemars(range(min = 1, max = 10000))]
    run_ms: u64,
}

/// A network in CIDR notation, or an address.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Network(#[schemars(with = "String")] Cidr);

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            run_ms: 20,
            aborted_ms_per_second: 5,
            memory_mib: 64,
            body_bytes: 1 << 20,
            output_bytes: 8 << 20,
            pending_timers: 1024,
            running_timers: 256,
            threads: 64,
            custom_lua_shared_dict: BTreeMap::new(),
            allowed_networks: Vec::new(),
            sockets: 256,
            socket_bytes: 8 << 20,
            plugin_limits: BTreeMap::new(),
        }
    }
}

/// The limits, ready for use.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) run_time: Duration,
    pub(crate) aborted_ms_per_second: u64,
    pub(crate) memory_bytes: usize,
    pub(crate) body_bytes: usize,
    pub(crate) output_bytes: usize,
    pub(crate) pending_timers: usize,
    pub(crate) running_timers: usize,
    pub(crate) threads: usize,
    /// Shared by all workers.
    pub(crate) dictionaries: Arc<Dictionaries>,
    pub(crate) allowed_networks: CidrSet,
    pub(crate) sockets: usize,
    pub(crate) socket_bytes: usize,
    /// `run_time` of single plugins.
    run_times: Rc<BTreeMap<String, Duration>>,
    /// Where scripts are counted.
    pub(crate) board: Arc<ScriptBoard>,
    /// The setting `plugin_attr`.
    pub(crate) attributes: Rc<Value>,
    pub(crate) hostname: String,
}

impl Settings {
    /// The settings of a gateway.
    ///
    /// # Errors
    /// Returns an error message if they are invalid.
    pub(crate) fn of(node: &Node) -> Result<Settings, String> {
        let told = Option::<Attributes>::deserialize(node.attribute("serverless-pre-function"));
        let told = told.map_err(|error| format!("plugin_attr.serverless-pre-function: {error}"))?;
        let Attributes {
            run_ms,
            aborted_ms_per_second,
            memory_mib,
            body_bytes,
            output_bytes,
            pending_timers,
            running_timers,
            threads,
            custom_lua_shared_dict,
            allowed_networks,
            sockets,
            socket_bytes,
            plugin_limits,
        } = told.unwrap_or_default();
        let made = Dictionaries::new(&custom_lua_shared_dict)
            .map_err(|error| format!("plugin_attr.serverless-pre-function.{error}"))?;
        Ok(Settings {
            dictionaries: node.part(|| made),
            run_time: Duration::from_millis(run_ms),
            aborted_ms_per_second,
            memory_bytes: memory_mib << 20,
            body_bytes,
            output_bytes,
            pending_timers,
            running_timers,
            threads,
            allowed_networks: allowed_networks.into_iter().map(|network| network.0).collect(),
            sockets,
            socket_bytes,
            run_times: Rc::new(
                plugin_limits
                    .into_iter()
                    .map(|(plugin, limits)| (plugin, Duration::from_millis(limits.run_ms)))
                    .collect(),
            ),
            board: node.part(ScriptBoard::default),
            attributes: Rc::new(node.attributes().clone()),
            hostname: node.hostname().to_owned(),
        })
    }

    /// The longest run of a plugin's scripts without a wait.
    pub(crate) fn run_time_of(&self, plugin: &str) -> Duration {
        self.run_times.get(plugin).copied().unwrap_or(self.run_time)
    }
}
