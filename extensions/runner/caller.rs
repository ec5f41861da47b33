//! The common part of the three plugins: the configuration, the runner, and failures.

use std::sync::Arc;

use sigma_plugin::{Build, Context, Env, Node, Reply, Resident};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::client::{Call, Client, Conf, Failure};
use crate::config::Fields;
use crate::messages::{Message, PAYLOAD_MAX};
use crate::process;
use crate::runner::Runner;

/// The largest body for a runner: its message has a few bytes besides it.
pub(crate) const BODY_MAX: usize = PAYLOAD_MAX - 64;

/// A plugin's way to the runner.
#[derive(Debug)]
pub(crate) struct Caller {
    runner: Arc<Runner>,
    conf: Arc<Conf>,
    allow_degradation: bool,
    /// The name of the plugin, for the log.
    plugin: Box<str>,
}

/// The process of the runner; each of the plugins brings it.
struct Process(Arc<Runner>);

impl Resident for Process {
    fn prepare(&self, node: &Arc<Node>) {
        process::supervise(&self.0, node);
    }
}

/// Makes the process-wide part.
pub(crate) fn resident(build: &Build<'_>) -> Result<Arc<dyn Resident>, String> {
    Ok(Arc::new(Process(Runner::of(build.node))))
}

impl Caller {
    pub(crate) fn new(build: &Build<'_>) -> Result<Caller, String> {
        let fields: Fields = build.config()?;
        let allow_degradation = fields.allow_degradation;
        let conf = Arc::new(fields.for_runner(build));
        Ok(Caller { runner: Runner::of(build.node), conf, allow_degradation, plugin: build.plugin.into() })
    }

    /// Returns a call that is not sent yet. `message` gets the number of the call.
    pub(crate) fn call(&self, env: &Env<'_>, message: impl FnOnce(u32) -> Message) -> Result<Call, Failure> {
        let client = Client::of(env);
        let id = client.next_id(env.local.worker());
        client.call(&self.runner, &self.conf, message(id), env.machine.uptime())
    }

    /// Logs a failure. Returns None if the exchange continues without the runner, else its response.
    pub(crate) fn failed(&self, failure: &Failure) -> Option<Reply> {
        self.log(&failure.0);
        self.runner.state.failed(failure.kind());
        let refused = || Reply::new(503).because("the runner of external plugins failed");
        (!self.allow_degradation).then(refused)
    }

    pub(crate) fn log(&self, reason: &str) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(left_out, degraded = self.allow_degradation, "{}: {reason}", self.plugin);
        }
    }
}

/// Returns the text of a variable.
pub(crate) fn variable(ctx: &Context, name: &[u8]) -> Option<Vec<u8>> {
    let name = VarName::parse(std::str::from_utf8(name).ok()?);
    Some(match ctx.get(&name)? {
        VarValue::Text(text) => text.into_owned(),
        VarValue::Bool(truth) => truth.to_string().into_bytes(),
        VarValue::List(items) => items.join(&b", "[..]),
    })
}
