//! A registry that a test scripts: it replaces the requests to all registries of the settings; everything behind them is
//! the real code. A script belongs to its thread. Built only with the feature `simulation`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use sigma_config::resources::Node;
use tokio::sync::watch;

use crate::source::{Listing, Source, Trouble};

/// The lists of nodes by service, or the reason of a failure.
type Said = Result<BTreeMap<String, Vec<Node>>, String>;

thread_local! {
    static SCRIPT: RefCell<Option<watch::Receiver<Said>>> = const { RefCell::new(None) };
}

/// The registry of this thread, until it is dropped.
#[derive(Debug)]
#[must_use = "the registry ends with it"]
pub struct Script(watch::Sender<Said>);

/// Begins a registry without services on this thread.
pub fn enter() -> Script {
    let (tell, said) = watch::channel(Ok(BTreeMap::new()));
    SCRIPT.set(Some(said));
    Script(tell)
}

impl Script {
    /// Gives a service these nodes. A registry that failed responds again.
    pub fn set(&self, service: &str, nodes: Vec<Node>) {
        self.0.send_modify(|said| match said {
            Ok(lists) => drop(lists.insert(service.to_owned(), nodes)),
            Err(_) => *said = Ok(BTreeMap::from([(service.to_owned(), nodes)])),
        });
    }

    /// Makes the registry fail, for this reason.
    pub fn fail(&self, reason: &str) {
        self.0.send_modify(|said| *said = Err(reason.to_owned()));
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        SCRIPT.set(None);
    }
}

/// Returns a source of the registry of this thread, if there is one.
pub(crate) fn source() -> Option<Scripted> {
    SCRIPT.with_borrow(|script| script.clone()).map(|said| Scripted { said, is_new: true })
}

/// Returns the lists of the registry.
pub(crate) struct Scripted {
    said: watch::Receiver<Said>,
    /// The present lists were not returned yet.
    is_new: bool,
}

impl Source for Scripted {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        if !self.is_new && self.said.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let said = self.said.borrow_and_update().clone();
        self.is_new = said.is_err();
        let lists = said.map_err(Trouble)?;
        Ok(lists.into_iter().map(|(service, nodes)| (service.into(), nodes.into())).collect())
    }
}
