//! The state of workers and extensions that operators read.

use std::sync::Arc;

use sigma_observe::counters::WorkerCounters;
use sigma_plugin::runner_state::RunnerState;
use sigma_plugin::script_counts::ScriptBoard;
use sigma_proxy::Inheritance;
use sigma_proxy::tap::TapBoard;

use crate::operators::live::Live;

/// The sources of the numbers that operators read.
pub(super) struct Instruments {
    /// The counters of each worker.
    pub(super) counters: Vec<Arc<WorkerCounters>>,
    pub(super) live: Arc<Live>,
    pub(super) taps: Arc<TapBoard>,
    /// The counters of scripts.
    pub(super) scripts: Arc<ScriptBoard>,
    pub(super) runner: Arc<RunnerState>,
}

impl Instruments {
    pub(super) fn new(inheritance: &Inheritance, live: Arc<Live>) -> Instruments {
        Instruments {
            counters: inheritance.counters().to_vec(),
            live,
            taps: Arc::clone(inheritance.taps()),
            scripts: inheritance.node().part(ScriptBoard::default),
            runner: inheritance.node().part(RunnerState::default),
        }
    }
}
