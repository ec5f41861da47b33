//! A document that is fetched when it is needed: one fetch at a time for the whole gateway, and kept as [`Freshness`]
//! says.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sigma_plugin::system::{Host, System};
use sigma_plugin::{Env, Node};
use tokio::sync::watch;

use crate::freshness::{Advice, Freshness, History};
use crate::log_throttle::LogThrottle;
use crate::web::beside;

/// A document and its fetch.
pub trait Document: Send + Sync + Sized + 'static {
    /// The holder of the cell, which knows the location of the document.
    type Holder: Send + Sync + 'static;

    /// The name of the document, for the log.
    const NAME: &'static str;

    /// Returns the cell of a holder.
    fn cell(holder: &Self::Holder) -> &Fetched<Self>;

    /// Fetches it.
    fn fetch(holder: Arc<Self::Holder>) -> impl Future<Output = Result<Self, String>> + Send;

    /// Handles a successful fetch; [`Fetched::read`] already returns the new document.
    fn taken(_holder: &Self::Holder, _before: Option<&Self>, _after: &Self, _fresh_until_ms: u64) {}
}

/// The cell for it.
pub struct Fetched<T> {
    rule: Freshness,
    published: watch::Sender<Published<T>>,
    /// Held while it is fetched, on the control thread.
    fetching: tokio::sync::Mutex<()>,
    /// A fetch is running outside the requests.
    refreshing: AtomicBool,
}

/// The document that was fetched last.
pub struct Published<T> {
    /// The document; None before the first success.
    pub value: Option<Arc<T>>,
    /// The times of the attempts so far.
    pub history: History,
    /// Grows with each fetch.
    attempts: u64,
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Published { value: self.value.clone(), history: self.history, attempts: self.attempts }
    }
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Published { value: None, history: History::default(), attempts: 0 }
    }
}

/// The decision on a request that needs the document.
pub enum Turn {
    /// It uses the document.
    Use,
    /// It waits.
    Wait(Pin<Box<dyn Future<Output = ()>>>),
    /// It continues without the document.
    Refuse,
}

impl<T: Document> Fetched<T> {
    /// Returns a cell whose document has not been fetched yet.
    pub fn new(rule: Freshness) -> Fetched<T> {
        Fetched {
            rule,
            published: watch::Sender::new(Published::default()),
            fetching: tokio::sync::Mutex::default(),
            refreshing: AtomicBool::new(false),
        }
    }

    /// Returns the current document.
    pub fn read(&self) -> Published<T> {
        self.published.borrow().clone()
    }

    /// Decides on a request by the document that was read. `is_enough`: it contains the searched entry. `is_last`:
    /// the request has waited.
    pub fn turn(
        holder: &Arc<T::Holder>,
        read: &Published<T>,
        is_enough: bool,
        is_last: bool,
        env: &Env<'_>,
    ) -> Turn {
        let (cell, attempts) = (T::cell(holder), read.attempts);
        match cell.rule.advise(read.history, uptime_ms(env.machine), is_enough) {
            Advice::Use => Turn::Use,
            Advice::UseAndFetch => {
                Self::refresh(holder, env.node, attempts);
                Turn::Use
            }
            Advice::Wait if !is_last => {
                let holder = Arc::clone(holder);
                let fetched = beside(env.node, async move { Self::fetch(&holder, attempts).await });
                Turn::Wait(Box::pin(async move { fetched.await.unwrap_or_default() }))
            }
            Advice::Wait | Advice::Refuse => Turn::Refuse,
        }
    }

    /// Fetches outside the requests, unless a fetch is running.
    fn refresh(holder: &Arc<T::Holder>, node: &Node, attempts: u64) {
        let refreshing = &T::cell(holder).refreshing;
        // Read first: workers must not write to memory that others read with every request.
        if refreshing.load(Ordering::Relaxed) || refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let holder = Arc::clone(holder);
        node.spawn(async move {
            Self::fetch(&holder, attempts).await;
            T::cell(&holder).refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Fetches, unless that has happened since `attempts` fetches were made.
    async fn fetch(holder: &Arc<T::Holder>, attempts: u64) {
        let cell = T::cell(holder);
        let _one = cell.fetching.lock().await;
        let before = cell.read();
        if before.attempts != attempts {
            return;
        }
        let fetched = T::fetch(Arc::clone(holder)).await;
        let now_ms = uptime_ms(&Host);
        let mut after = Published { attempts: attempts.wrapping_add(1), ..before.clone() };
        after.history.tried_ms = Some(now_ms);
        let value = fetched.map(Arc::new);
        if let Ok(value) = &value {
            after.history.keys_ms = Some(now_ms);
            after.value = Some(Arc::clone(value));
        }
        cell.published.send_replace(after);
        match value {
            Ok(value) => {
                let fresh_until_ms = now_ms.saturating_add(cell.rule.fresh_ms);
                T::taken(holder, before.value.as_deref(), &value, fresh_until_ms);
            }
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::warn!(left_out, %error, "{} cannot be fetched", T::NAME);
                }
            }
        }
    }
}

/// Milliseconds of the clock that never goes back; the same for workers and the control thread.
pub fn uptime_ms(machine: &dyn System) -> u64 {
    u64::try_from(machine.uptime().as_millis()).unwrap_or(u64::MAX)
}
