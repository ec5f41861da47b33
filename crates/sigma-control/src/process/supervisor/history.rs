//! Events of the store, and notifications to the store and the history.

use std::sync::Arc;

use super::Supervisor;
use crate::process::process_history::{LOOK_PERIODS, Trigger};
use crate::store::Event;
use crate::store::history::Unserved;

impl Supervisor {
    /// Processes events of the store, all at once if several changes came together.
    pub(super) fn absorb(&mut self, event: Event) {
        self.has_changed = true;
        let mut next = Some(event);
        while let Some(event) = next {
            if let Some(sharing) = &self.health_sharing {
                sharing.hear(&event);
            }
            self.running.purges().hear(&event);
            if let Some(ordered) = &self.ordered {
                ordered.hear(&event);
            }
            if let Some(process_history) = &self.process_history {
                process_history.history.hear(&event);
            }
            self.publisher.absorb(event);
            next = self.watch.as_mut().and_then(|watch| watch.try_recv().ok());
        }
    }

    /// Reports quarantined objects to the store, which keeps the last good forms.
    pub(super) fn tell_store(&self) {
        let Some(store) = &self.store else { return };
        let state = self.publisher.state();
        let keys: Vec<String> = state.desired.quarantine().map(|one| one.key.to_string()).collect();
        store.judged(state.desired.revision(), &keys);
        drop(state);
        self.tell_history();
    }

    /// Records that all received changes of the store are in force, but for quarantined ones.
    fn tell_history(&self) {
        let Some(process_history) = &self.process_history else { return };
        let state = self.publisher.state();
        let unserved = state.desired.quarantine().map(|one| Unserved {
            key: one.key.to_string(),
            reason: one.reason.clone(),
            served: one.standing.name().to_owned(),
        });
        process_history.history.settled(state.desired.revision(), unserved.collect());
    }

    /// Records the result for a file.
    pub(super) fn tell_history_of_file(&self, trigger: Trigger, result: &Result<(), String>) {
        let Some(process_history) = &self.process_history else { return };
        match result {
            Ok(()) => {
                let state = self.publisher.state();
                process_history.file(
                    &self.options.source,
                    trigger,
                    &state.desired.config,
                    self.store.is_some(),
                );
            }
            Err(reason) => process_history.refused(&self.options.source, trigger, reason),
        }
    }

    /// Records why the newest followed documents are not in force, if they were the only change.
    pub(super) fn judge_documents(&self, trigger: Trigger, problem: Option<&String>) {
        if let (Trigger::Followed, Some(problem), Some(follower)) = (trigger, problem, &self.follower) {
            follower.refused(problem);
        }
    }

    /// Has the history compare everything if something was lost to it.
    pub(super) fn mend_history(&mut self) {
        let Some(process_history) = &mut self.process_history else { return };
        process_history.until_look = process_history.until_look.saturating_sub(1);
        if process_history.until_look > 0 {
            return;
        }
        process_history.until_look = LOOK_PERIODS;
        let Some(store) = self.store.clone().filter(|_| process_history.history.has_missed()) else { return };
        let history = Arc::clone(&process_history.history);
        tokio::spawn(async move {
            if let Ok(contents) = store.load().await {
                history.found(&contents);
            }
        });
    }
}
