//! Changes on their way: everything that can fail, before anything has changed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::kind::ResourceKey;
use sigma_plugin::Roster;
use sigma_proxy::Failure;
use tokio::sync::oneshot;

use super::Supervisor;
use crate::process::examine;
use crate::process::handover::Channel;
use crate::process::log_control::LIFE;
use crate::process::pid_file::PidFile;
use crate::process::process_history::Trigger;
use crate::process::sandbox::Sandbox;
use crate::process::start::StartError;
use crate::process::upgrade::{self, Possessions, Successor};
use crate::serving::desired::Desired;
use crate::serving::edit::Edit;
use crate::serving::publisher::{Part, Publisher, Whole, problems};
use crate::serving::source::Source;

/// A change that is to come into force.
pub(super) enum Change {
    /// Resources of the store that the publisher has received.
    Resources,
    /// Secrets that may have changed at their manager.
    Secrets,
    /// Databases of addresses that have changed.
    Places,
    /// Certificates in files that have changed.
    Pairs,
    /// Certificates that were ordered for these ssls.
    Certificates(Vec<ResourceKey>),
    /// The content of the file.
    File(Trigger, Asker),
    /// Nodes, in memory only.
    Edit(Edit, Asker),
    /// Another process replaces this one: one that the parent has started, or one that this one starts.
    Successor(Option<Channel>),
}

/// The caller that waits for the outcome of a change.
pub(super) type Asker = Option<oneshot::Sender<Result<(), String>>>;

/// The outcome of a change before it is put into force.
pub(super) enum Outcome {
    Part(Option<Part>),
    File(Result<Whole, StartError>, Trigger, Asker),
    Edit(Result<Whole, StartError>, Asker),
    Successor(Result<Successor, String>),
}

/// A change on its way.
pub(super) type UnderWay = Pin<Box<dyn Future<Output = Outcome>>>;

impl Supervisor {
    /// Begins a change; nothing has changed before it is given to [`Supervisor::finish`].
    pub(super) fn begin(&self, change: Change) -> UnderWay {
        let (publisher, source) = (Arc::clone(&self.publisher), self.options.source.clone());
        let is_stored = self.store.is_some();
        match change {
            Change::Resources => Box::pin(async move { Outcome::Part(publisher.change().await) }),
            Change::Secrets => Box::pin(async move { Outcome::Part(publisher.refresh().await) }),
            Change::Places => Box::pin(async move { Outcome::Part(publisher.refresh_places().await) }),
            Change::Pairs => Box::pin(async move { Outcome::Part(publisher.refresh_pairs().await) }),
            Change::Certificates(ssls) => Box::pin(async move { Outcome::Part(publisher.show(ssls).await) }),
            Change::File(trigger, asker) => {
                let (plugins, sandbox) = (Arc::clone(&self.all_plugins), self.options.sandbox.clone());
                Box::pin(async move {
                    let whole = load(&source, &sandbox, &plugins, &publisher, is_stored).await;
                    Outcome::File(whole, trigger, asker)
                })
            }
            Change::Edit(edit, asker) => Box::pin(async move {
                let mut next = publisher.state().desired.clone();
                let whole = match edit.apply(&mut next.config) {
                    Ok(()) => compile(&source, &publisher, next, is_stored).await,
                    Err(reason) => Err(StartError::Edit(reason)),
                };
                Outcome::Edit(whole, asker)
            }),
            Change::Successor(Some(channel)) => {
                let (possessions, limit) = (self.possessions(), self.upgrade_limit());
                Box::pin(async move {
                    let successor = match possessions {
                        Ok(mut possessions) => upgrade::give(channel, &mut possessions, limit).await,
                        Err(error) => Err(format!("what there is cannot be given: {error}")),
                    };
                    Outcome::Successor(successor)
                })
            }
            Change::Successor(None) => {
                tracing::info!(target: LIFE, program = %self.program.path().display(), "starting a successor");
                let (command, starter) = (self.program.command(), self.starter.clone());
                let possessions = self.possessions();
                let limit = self.upgrade_limit();
                Box::pin(async move {
                    let successor = match possessions {
                        Ok(mut possessions) => {
                            upgrade::start(command, &starter, &mut possessions, limit).await
                        }
                        Err(error) => Err(format!("what there is cannot be given: {error}")),
                    };
                    Outcome::Successor(successor)
                })
            }
        }
    }

    fn upgrade_limit(&self) -> Duration {
        Duration::from_millis(self.current.settings.process.upgrade_timeout_ms.into())
    }

    /// Returns the possessions for a successor.
    fn possessions(&self) -> std::io::Result<Possessions> {
        let Supervisor { gateway, entrances, store, publisher, running, node, pid_file, .. } = self;
        let pid_file = pid_file.as_ref().map(PidFile::path);
        Possessions::of(gateway, entrances, store.as_ref(), publisher, running, node, pid_file)
    }
}

/// Reads the file again, and compiles it.
async fn load(
    source: &Source,
    sandbox: &Sandbox,
    plugins: &Arc<Roster>,
    publisher: &Publisher,
    is_stored: bool,
) -> Result<Whole, StartError> {
    let checked = source.load_aside(plugins).await?;
    sandbox.check(&checked.config, plugins)?;
    for warning in &checked.warnings {
        tracing::warn!("{}: {warning}", source.path.display());
    }
    let mut next = publisher.state().desired.clone();
    if is_stored {
        if let Some(problem) = examine::two_sources(&checked.config) {
            return Err(source.invalid(vec![problem]).into());
        }
        next.replace_settings(checked);
    } else {
        next.replace_file(checked);
    }
    compile(source, publisher, next, is_stored).await
}

async fn compile(
    source: &Source,
    publisher: &Publisher,
    next: Desired,
    is_stored: bool,
) -> Result<Whole, StartError> {
    let whole = publisher.compile(next, !is_stored && source.skip_invalid).await;
    whole.map_err(|failures: Vec<Failure>| source.invalid(problems(failures)).into())
}

/// Waits for the outcome of the current change; forever without one.
pub(super) async fn outcome_of(under_way: &mut Option<UnderWay>) -> Outcome {
    match under_way {
        Some(change) => change.await,
        None => std::future::pending().await,
    }
}
