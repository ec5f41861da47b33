//! Changes on their way: everything that can fail, before anything has changed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::kind::ResourceKey;
use sigma_config::settings::Settings;
use sigma_discovery::DocumentFollower;
use sigma_plugin::Roster;
use sigma_proxy::Failure;
use tokio::sync::oneshot;

use super::Supervisor;
use crate::process::documents::refuse;
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
use crate::serving::plugin_files::AllPlugins;
use crate::serving::plugins::Rosters;
use crate::serving::publisher::{Part, Publisher, Whole, problems};
use crate::serving::source::Source;
use crate::store::Store;

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
                let loading = Loading {
                    source,
                    sandbox: self.options.sandbox.clone(),
                    plugins: self.options.plugins.clone(),
                    rosters: self.rosters.clone(),
                    settings: Arc::clone(&self.current.settings),
                    publisher,
                    store: self.store.clone(),
                    follower: self.follower.clone(),
                    is_of_documents: trigger == Trigger::Followed,
                };
                Box::pin(async move { Outcome::File(loading.load().await, trigger, asker) })
            }
            Change::Edit(edit, asker) => Box::pin(async move {
                let mut next = publisher.state().desired.clone();
                let whole = match edit.apply(&mut next.config) {
                    Ok(()) => compile(&source, &publisher, next, is_stored, None).await,
                    Err(reason) => Err(StartError::Edit(reason)),
                };
                Outcome::Edit(whole, asker)
            }),
            Change::Successor(Some(channel)) => {
                let (possessions, limit) = (self.possessions(), self.upgrade_limit());
                Box::pin(async move {
                    let successor = match possessions {
                        Ok(mut possessions) => upgrade::give(channel, &mut possessions, limit).await,
                        Err(error) => Err(format!("cannot hand over the state: {error}")),
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
                        Err(error) => Err(format!("cannot hand over the state: {error}")),
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

/// The reading of a file, and of the files of plugins.
struct Loading {
    source: Source,
    sandbox: Sandbox,
    /// The plugins in force.
    plugins: AllPlugins,
    rosters: Rosters,
    settings: Arc<Settings>,
    publisher: Arc<Publisher>,
    store: Option<Arc<dyn Store>>,
    follower: Option<Arc<DocumentFollower>>,
    /// The cause is a change of a followed document.
    is_of_documents: bool,
}

impl Loading {
    /// Reads the files again, and compiles the configuration with the newest followed documents. If these are invalid,
    /// they do not prevent another change: the documents in force are used.
    async fn load(mut self) -> Result<Whole, StartError> {
        let Some(follower) = self.follower.clone() else { return self.load_once().await };
        let newest = follower.take();
        let former = follower.in_force().filter(|former| !self.is_of_documents && *former != newest);
        self.source.documents = Arc::clone(&newest);
        let error = match (self.load_once().await, &former) {
            (Ok(mut whole), _) => {
                whole.documents = Some(newest);
                return Ok(whole);
            }
            (Err(error), None) => return Err(error),
            (Err(error), Some(former)) => {
                self.source.documents = Arc::clone(former);
                error
            }
        };
        let Ok(mut whole) = self.load_once().await else { return Err(error) };
        refuse(&follower, &error.to_string());
        whole.documents = former;
        Ok(whole)
    }

    async fn load_once(&self) -> Result<Whole, StartError> {
        let Loading { source, sandbox, plugins, rosters, settings, publisher, store, .. } = self;
        let content = plugins.files.content;
        let of = |read: &AllPlugins| match read.files.content == content {
            true => (Arc::clone(&rosters.all), None),
            false => {
                let kinds: Vec<_> = read.kinds().collect();
                // As at the start: the settings of plugins take effect at the next one.
                let rosters = Rosters::new(&kinds, settings);
                (Arc::clone(&rosters.all), Some(rosters))
            }
        };
        let (checked, read, newer) = source.load_aside(plugins.built_in.clone(), of).await?;
        sandbox.check(&checked.config, newer.as_ref().map_or(&rosters.all, |newer| &newer.all))?;
        for warning in &checked.warnings {
            tracing::warn!("{}: {warning}", source.path.display());
        }
        let mut next = publisher.state().desired.clone();
        let enabled = newer.as_ref().map(|newer| Arc::clone(&newer.enabled));
        if let Some(store) = store {
            if let Some(problem) = examine::two_sources(&checked.config) {
                return Err(source.invalid(vec![problem]).into());
            }
            next.replace_settings(checked);
            if let Some(enabled) = &enabled {
                let contents = store.load().await?;
                let refused = next.renew(Arc::clone(enabled) as _, &contents);
                refused.map_err(|problems| source.invalid(problems))?;
            }
        } else {
            next.replace_file(checked);
        }
        let mut whole = compile(source, publisher, next, store.is_some(), enabled).await?;
        whole.plugins = newer.map(|newer| (read, newer));
        Ok(whole)
    }
}

/// Compiles a configuration; with other plugins if there are any.
async fn compile(
    source: &Source,
    publisher: &Publisher,
    next: Desired,
    is_stored: bool,
    plugins: Option<Arc<Roster>>,
) -> Result<Whole, StartError> {
    let whole = publisher.compile_with(next, !is_stored && source.skip_invalid, plugins).await;
    whole.map_err(|failures: Vec<Failure>| source.invalid(problems(failures)).into())
}

/// Waits for the outcome of the current change; forever without one.
pub(super) async fn outcome_of(under_way: &mut Option<UnderWay>) -> Outcome {
    match under_way {
        Some(change) => change.await,
        None => std::future::pending().await,
    }
}
