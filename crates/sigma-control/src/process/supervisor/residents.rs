//! Work of plugins for this process: when it begins, and notifications about its logs.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use sigma_config::settings::Settings;
use sigma_plugin::Node;
use sigma_plugin::resident::OwnLogs;
use sigma_proxy::Snapshot;

/// The plugin that works as soon as it is named.
const ROTATING: &str = "log-rotate";

/// Begins with it at the start. A parent has logs too: it reopens them, and orders this process to do the
/// same.
pub(super) fn begin(node: &Arc<Node>, current: &Snapshot, has_parent: bool) {
    let settings = &current.settings;
    let parent = getppid().filter(|_| has_parent);
    let error = Some(&settings.error_log.path).filter(|path| *path != "stderr").map(PathBuf::from);
    let named = settings.plugins.iter().flatten();
    let rotated = named.into_iter().any(|plugin| plugin.name == ROTATING);
    node.set_own_logs(OwnLogs { access: access(settings), error, rotated });
    node.set_reopening(move || reopen(parent));
    current.residents.begin(None, node);
}

/// Continues with another configuration. Of the logs it changes the access log alone.
pub(super) fn go_on(node: &Arc<Node>, before: &Snapshot, current: &Snapshot) {
    node.set_own_logs(OwnLogs { access: access(&current.settings), ..node.own_logs() });
    current.residents.begin(Some(&before.residents), node);
}

/// Notifies them that the logs must not be renamed any more: a successor may have them.
pub(super) fn end(node: &Node) {
    node.set_own_logs(OwnLogs::default());
}

fn access(settings: &Settings) -> Option<PathBuf> {
    let path = &*settings.access_log.path;
    (!matches!(path, "off" | "stdout")).then(|| PathBuf::from(path))
}

/// As an operator does it, by the signal `USR1`.
fn reopen(parent: Option<Pid>) {
    // An ended parent is not the parent any more, and its number may belong to another process.
    let target = parent.filter(|parent| getppid() == Some(*parent)).unwrap_or_else(getpid);
    if let Err(error) = kill_process(target, Signal::USR1) {
        tracing::error!(%error, "cannot reopen the log files");
    }
}
