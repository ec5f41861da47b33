//! The instances of a worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sigma_plugin::outbound::Outbound;
use sigma_plugin::{Env, Local};
use sigma_plugin_kit::tallies::Tally;
use tokio::sync::watch;

use crate::events::Event;
use crate::instance::{Instance, attend};
use crate::vm::{Started, Vm, start};

/// The time after which an instance that did not start is started again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The instances of one worker, by the ids of their modules; a part of the worker.
#[derive(Default)]
pub(crate) struct Instances(RefCell<HashMap<u64, Entry>>);

enum Entry {
    /// It starts; the channel closes when it has
    Starting(watch::Receiver<()>),
    Ready(Rc<Instance>),
    /// It did not start
    Failed(Instant),
}

/// The means of a worker for instances.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) instances: Rc<Instances>,
    pub(crate) outbound: Rc<dyn Outbound>,
    pub(crate) local: Rc<Local>,
    pub(crate) tally: Tally<Event>,
}

impl Worker {
    pub(crate) fn new(env: &Env<'_>, tally: Tally<Event>) -> Worker {
        let (instances, local) = (env.local.part(Instances::default), Rc::clone(env.local));
        Worker { instances, outbound: env.outbound.kept(), local, tally }
    }

    /// Makes an instance of one that has started, and begins its work in the background.
    fn adopt(&self, vm: &Arc<Vm>, started: Started) -> Rc<Instance> {
        let Worker { instances, outbound, local, tally } = self.clone();
        let instance = Instance::new(vm, started, outbound, &local, tally);
        let (id, attended) = (vm.id, Rc::clone(&instance));
        tokio::task::spawn_local(async move {
            attend(Rc::clone(&attended)).await;
            instances.forget(id, &attended);
        });
        instance
    }
}

/// There is no instance. The reason is in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotStarted;

/// The present state of an instance.
enum InstanceState {
    Ready(Rc<Instance>),
    Starting(watch::Receiver<()>),
    Failed,
}

impl Instances {
    #[cfg(test)]
    #[cfg(feature = "tests")]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Returns the instance of a module, if it is ready.
    pub(crate) fn ready(&self, vm: &Vm) -> Option<Rc<Instance>> {
        match self.0.borrow().get(&vm.id) {
            Some(Entry::Ready(instance)) if !instance.is_broken() => Some(Rc::clone(instance)),
            _ => None,
        }
    }

    /// Removes an instance that is broken or has no user.
    pub(crate) fn forget(&self, id: u64, instance: &Rc<Instance>) {
        let mut entries = self.0.borrow_mut();
        if matches!(entries.get(&id), Some(Entry::Ready(known)) if Rc::ptr_eq(known, instance)) {
            entries.remove(&id);
        }
    }

    /// Returns the state of an instance; starts it if it is missing or broken.
    fn find(&self, vm: &Arc<Vm>, worker: &Worker) -> InstanceState {
        match self.0.borrow().get(&vm.id) {
            Some(Entry::Ready(instance)) if !instance.is_broken() => {
                return InstanceState::Ready(Rc::clone(instance));
            }
            Some(Entry::Starting(started)) => return InstanceState::Starting(started.clone()),
            Some(Entry::Failed(until)) if Instant::now() < *until => return InstanceState::Failed,
            _ => {}
        }
        let (sender, started) = watch::channel(());
        self.0.borrow_mut().insert(vm.id, Entry::Starting(started.clone()));
        let (vm, worker) = (Arc::clone(vm), worker.clone());
        tokio::task::spawn_local(async move {
            let entry = match begin(&vm).await {
                Ok(begun) => Entry::Ready(worker.adopt(&vm, begun)),
                Err(reason) => {
                    tracing::error!("wasm {}: the module failed to start: {reason}", vm.name);
                    worker.tally.count(Event::NotStarted);
                    Entry::Failed(Instant::now() + RETRY)
                }
            };
            let mut entries = worker.instances.0.borrow_mut();
            // The last user may have gone meanwhile.
            match vm.gone.has_changed() {
                Ok(_) => drop(entries.insert(vm.id, entry)),
                Err(_) => drop(entries.remove(&vm.id)),
            }
            drop(sender);
        });
        InstanceState::Starting(started)
    }
}

/// Returns the instance of a module, once it has started.
///
/// # Errors
/// Returns an error if it does not start.
pub(crate) async fn obtain(vm: Arc<Vm>, worker: Worker) -> Result<Rc<Instance>, NotStarted> {
    /// More rounds mean that each instance breaks before it is used.
    const ROUNDS: usize = 8;
    for _ in 0..ROUNDS {
        match worker.instances.find(&vm, &worker) {
            InstanceState::Ready(instance) => return Ok(instance),
            InstanceState::Failed => return Err(NotStarted),
            // It closes.
            InstanceState::Starting(mut started) => drop(started.changed().await),
        }
    }
    Err(NotStarted)
}

/// Starts an instance on its own thread.
async fn begin(vm: &Arc<Vm>) -> Result<Started, String> {
    let compiled = vm.code.compiled().await.map_err(|reason| reason.to_string())?;
    let vm = Arc::clone(vm);
    let started = tokio::task::spawn_blocking(move || start(&vm, &compiled)).await;
    started.unwrap_or_else(|_| Err("the start failed".to_owned()))
}
