//! A gateway in the background: started by a process that ends once it serves.

use std::process::Stdio;
use std::time::Duration;

use sigma_config::settings::Settings;

use super::handover::{self, Origin};
use super::parent::Orphanage;
use super::start::StartError;
use super::upgrade::{self, Starter};

/// Starts the gateway in the background, and waits until it serves. Returns its process id. Must be called within a
/// runtime.
///
/// # Errors
/// Returns an error that says why it does not serve; it has ended then.
pub async fn launch(origin: &Origin, settings: &Settings) -> Result<Option<u32>, StartError> {
    if settings.error_log.path == "stderr" {
        let text = "`process.daemon` needs a file in `error_log.path`: the stderr of a background process is not visible";
        return Err(StartError::Background(text.to_owned()));
    }
    let mut command = origin.program.command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let starter = Starter::new().map_err(StartError::Handover)?;
    let mut sockets = Orphanage(origin.take_sockets());
    let limit = Duration::from_millis(settings.process.upgrade_timeout_ms.into());
    let successor = upgrade::start(command, &starter, &mut sockets, limit).await;
    let successor = successor.map_err(StartError::Background)?;
    handover::leave(&successor.channel).await;
    Ok(successor.pid)
}

/// Leaves the terminal that the process was started from.
pub fn detach() {
    // It is refused where the process leads its own session already.
    let _ = rustix::process::setsid();
}
