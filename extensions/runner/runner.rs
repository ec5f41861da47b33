//! The runner of the gateway: its socket, its tokens, and the latest about its process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{geteuid, getpid};
use serde::Deserialize;
use sigma_config::ext_plugin::ExtPlugin;
use sigma_plugin::Node;
use sigma_plugin::runner_state::{RunnerPhase, RunnerState};

use crate::tokens::Tokens;

/// The name of the settings among the settings of plugins.
pub(crate) const SETTINGS: &str = "ext-plugin";

/// The folder of root's gateways for files of a run, as for pid files.
const ROOTS_FOLDER: &str = "/run/sigma";

/// The runner, which all workers share.
#[derive(Debug, Default)]
pub(crate) struct Runner {
    settings: ExtPlugin,
    socket: Option<PathBuf>,
    pub(crate) tokens: Tokens,
    is_started: AtomicBool,
    pub(crate) state: Arc<RunnerState>,
}

impl Runner {
    /// Returns the runner of a node.
    pub(crate) fn of(node: &Node) -> Arc<Runner> {
        // The settings were checked with the whole configuration.
        let state = node.part(RunnerState::default);
        node.part(|| {
            let runner = Runner::new(ExtPlugin::deserialize(node.attribute(SETTINGS)).unwrap_or_default());
            let runner = Runner { state, ..runner };
            runner.state.change(|facts| {
                facts.phase = match (runner.command(), runner.socket()) {
                    (Some(_), _) => RunnerPhase::Waiting,
                    (None, Some(_)) => RunnerPhase::External,
                    (None, None) => RunnerPhase::Unused,
                };
                facts.socket = runner.socket().map(|path| path.display().to_string()).unwrap_or_default();
            });
            runner
        })
    }

    pub(crate) fn new(settings: ExtPlugin) -> Runner {
        let named = settings.socket().map(Path::to_owned);
        let socket = named.or_else(|| settings.cmd.as_ref().map(|_| default_socket()));
        Runner { settings, socket, ..Runner::default() }
    }

    /// Returns the socket; None without a runner.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the program and its arguments; None if the operator starts the runner.
    pub(crate) fn command(&self) -> Option<(&str, &[String])> {
        let (program, arguments) = self.settings.cmd.as_ref()?.split_first()?;
        Some((program, arguments))
    }

    /// Returns true the first time: each plugin wants the process, and one starts it.
    pub(crate) fn is_to_be_started(&self) -> bool {
        self.command().is_some() && !self.is_started.swap(true, Ordering::Relaxed)
    }

    /// Returns the last lines of output, in one line.
    pub(crate) fn last_lines(&self) -> String {
        self.state.lines().join(" | ")
    }
}

/// Returns the socket of this process. After an upgrade of the binary both processes have their own.
fn default_socket() -> PathBuf {
    let named = |name: &str| std::env::var(name).ok().filter(|folder| folder.starts_with('/'));
    let service = named("RUNTIME_DIRECTORY").and_then(|all| all.split(':').next().map(PathBuf::from));
    let root = || geteuid().is_root().then(|| PathBuf::from(ROOTS_FOLDER));
    let login = || named("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("sigma"));
    let folder = service.or_else(root).or_else(login);
    // No other user may be able to put a socket there.
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join(format!("sigma-{}", geteuid().as_raw())));
    folder.join(format!("runner-{}.sock", getpid().as_raw_nonzero()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_socket_is_named_or_belongs_to_the_process() {
        let socket = |settings: serde_json::Value| {
            Runner::new(serde_json::from_value(settings).unwrap()).socket().map(Path::to_owned)
        };
        assert_eq!(socket(json!({})), None);
        assert_eq!(socket(json!({"path_for_test": "/a"})), Some("/a".into()));
        assert_eq!(socket(json!({"path_for_test": "/a", "path": "/b", "cmd": ["x"]})), Some("/b".into()));
        let own = socket(json!({"cmd": ["x"]})).unwrap();
        assert!(own.to_string_lossy().contains(&std::process::id().to_string()), "{}", own.display());
    }
}
