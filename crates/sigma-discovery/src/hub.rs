//! Shared requests: each thing is requested once, for all upstreams that need it.

use std::collections::HashMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sigma_config::discovery::{Protection, Registry};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::guard::Guard;
use crate::last_good::LastLists;
use crate::source::{Env, Listing, Source, Trouble};
use crate::tally::{Report, Tally};

/// The pause after a failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest pause after failures.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The state of a topic.
#[derive(Debug, Clone, Default)]
pub(crate) struct TopicState {
    /// The listing to use, if there is one.
    pub(crate) listing: Option<Arc<Listing>>,
    /// The reason why the registry has no listing now.
    pub(crate) trouble: Option<Trouble>,
    /// The listing comes from the file, since the registry has not sent one yet.
    pub(crate) is_stored: bool,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that a registry is requested. Requests run from the first follower until the last one is gone.
pub(crate) struct Topic {
    registry: Registry,
    name: String,
    tally: Arc<Tally>,
    /// The number of lists held back now.
    held_back: Arc<AtomicU64>,
    told: watch::Receiver<TopicState>,
    work: Mutex<Option<Work>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Topic {
    /// Returns its name in the log, and in the file of the last good lists.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a receiver of its present and future states. Call it within a runtime.
    pub(crate) fn follow(&self) -> watch::Receiver<TopicState> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            let task = tokio::spawn(work).abort_handle();
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
        self.told.clone()
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topic").field(&self.name).finish()
    }
}

/// All topics with followers.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    topics: Mutex<HashMap<String, Weak<Topic>>>,
}

impl Hub {
    /// Returns the topic of this name; `source` makes it if it has no follower yet.
    pub(crate) fn topic<S: Source>(
        &self,
        registry: Registry,
        name: String,
        protection: Protection,
        last: &Arc<LastLists>,
        env: &Env,
        source: impl FnOnce() -> S,
    ) -> Arc<Topic> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.retain(|_, topic| topic.strong_count() > 0);
        if let Some(topic) = topics.get(&name).and_then(Weak::upgrade) {
            return topic;
        }
        let (tell, told) = watch::channel(TopicState::default());
        let (tally, held_back) = (Arc::clone(&env.tally), Arc::<AtomicU64>::default());
        let follower = Follower {
            name: name.clone(),
            tally: Arc::clone(&tally),
            held_back: Arc::clone(&held_back),
            guard: Guard::new(protection),
            last: Arc::clone(last),
            earlier: None,
            said: None,
            tell,
        };
        let work: Work = Box::pin(follower.run(source()));
        let (work, task) = (Mutex::new(Some(work)), Mutex::default());
        let topic = Arc::new(Topic { registry, name: name.clone(), tally, held_back, told, work, task });
        topics.insert(name, Arc::downgrade(&topic));
        topic
    }

    /// Adds the current state of a registry's topics to its report.
    pub(crate) fn complete(&self, tally: &Arc<Tally>, report: &mut Report) {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        for topic in topics.values().filter_map(Weak::upgrade) {
            if !Arc::ptr_eq(&topic.tally, tally) {
                continue;
            }
            report.held_back_now += topic.held_back.load(Ordering::Relaxed);
            let told = topic.told.borrow();
            report.is_stored |= told.is_stored;
            for nodes in told.listing.iter().flat_map(|listing| listing.values()) {
                report.services += 1;
                report.nodes += nodes.len() as u64;
            }
        }
    }

    /// Returns the current listing of a registry.
    pub(crate) fn known(&self, registry: Registry) -> Listing {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let of_registry =
            topics.values().filter_map(Weak::upgrade).filter(|topic| topic.registry == registry);
        let listings = of_registry.filter_map(|topic| topic.told.borrow().listing.clone());
        listings.flat_map(|listing| Listing::clone(&listing)).collect()
    }
}

/// Follows one topic.
struct Follower {
    name: String,
    tally: Arc<Tally>,
    held_back: Arc<AtomicU64>,
    guard: Guard,
    last: Arc<LastLists>,
    /// The last good lists of the previous process, until there are newer ones.
    earlier: Option<Listing>,
    /// The last listing of the registry.
    said: Option<Listing>,
    tell: watch::Sender<TopicState>,
}

impl Follower {
    async fn run<S: Source>(mut self, mut source: S) {
        self.earlier = self.last.read(&self.name).await;
        let patience = Instant::now() + self.last.wait();
        let mut failures = 0u32;
        loop {
            match self.until(patience, source.next()).await {
                Ok(listing) => {
                    if failures > 0 {
                        tracing::warn!(topic = self.name, "the registry responds again");
                    }
                    failures = 0;
                    self.tally.succeeded();
                    self.hear(listing, source.is_certain());
                }
                Err(trouble) => {
                    self.tally.failed();
                    let kept = self.earlier.is_some() || self.tell.borrow().listing.is_some();
                    // Once for each reason: many services may share a registry that is down for long.
                    if self.tell.borrow().trouble.as_ref() != Some(&trouble) {
                        tracing::warn!(topic = self.name, %trouble, kept, "cannot get the list of nodes; the last list stays in use");
                    }
                    self.serve_earlier();
                    self.tell.send_modify(|told| told.trouble = Some(trouble));
                    let pause = backoff(failures);
                    failures = failures.saturating_add(1);
                    self.until(patience, tokio::time::sleep(pause)).await;
                }
            }
        }
    }

    /// Runs `work`, and meanwhile handles due events.
    async fn until<T>(&mut self, patience: Instant, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let earlier = self.earlier.as_ref().map(|_| patience);
            let due = self.guard.due().into_iter().chain(earlier).min();
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if Instant::now() >= patience {
                        self.serve_earlier();
                    }
                    if self.guard.due().is_some_and(|due| due <= Instant::now()) {
                        self.publish(false);
                    }
                }
            }
        }
    }

    /// Uses the lists of the previous process, if there are no others yet.
    fn serve_earlier(&mut self) {
        if let Some(earlier) = self.earlier.take() {
            tracing::warn!(
                topic = self.name,
                services = earlier.len(),
                "the registries are unavailable; using the last good lists of the file"
            );
            self.tell.send_modify(|told| (told.listing, told.is_stored) = (Some(Arc::new(earlier)), true));
        }
    }

    fn hear(&mut self, listing: Listing, is_certain: bool) {
        self.said = Some(listing);
        self.publish(is_certain);
    }

    /// Publishes the admitted part of the registry's listing.
    fn publish(&mut self, is_certain: bool) {
        let Some(said) = &self.said else { return };
        let earlier = self.earlier.take().map(Arc::new);
        let served = self.tell.borrow().listing.clone().or(earlier).unwrap_or_default();
        let (_, doubted) = self.guard.doubts();
        let next = self.guard.admit(Instant::now(), &served, said, is_certain);
        let (held_back, doubted_now) = self.guard.doubts();
        self.held_back.store(held_back, Ordering::Relaxed);
        self.tally.held_back(doubted_now - doubted);
        let is_first = self.tell.borrow().listing.is_none();
        let is_same = next.len() == served.len()
            && next
                .iter()
                .all(|(service, nodes)| served.get(service).is_some_and(|known| Arc::ptr_eq(known, nodes)));
        let is_stored = self.tell.borrow().is_stored;
        if is_first || !is_same {
            self.tally.updated();
        }
        if is_first || !is_same || is_stored || self.tell.borrow().trouble.is_some() {
            let next = Arc::new(next);
            self.last.note(&self.name, &next);
            self.tell.send_modify(|told| *told = TopicState { listing: Some(next), ..TopicState::default() });
        }
    }
}

/// Returns the pause after the first failure (0) and later ones; up to a quarter is taken off at random, so that many
/// gateways do not come back at once.
pub(crate) fn backoff(failures: u32) -> Duration {
    let whole = RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX);
    whole.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node;
    use sigma_config::discovery::LastGood;
    use tokio::sync::mpsc;

    /// Returns the listings of the test.
    struct Scripted(mpsc::UnboundedReceiver<Result<Listing, Trouble>>);

    impl Source for Scripted {
        async fn next(&mut self) -> Result<Listing, Trouble> {
            match self.0.recv().await {
                Some(list) => list,
                None => std::future::pending().await,
            }
        }
    }

    type Say = mpsc::UnboundedSender<Result<Listing, Trouble>>;

    fn scripted() -> (Say, Scripted) {
        let (say, said) = mpsc::unbounded_channel();
        (say, Scripted(said))
    }

    fn web(hosts: &[&str]) -> Listing {
        let nodes = hosts.iter().map(|host| node::node(host, Some(80), 1).expect("a node")).collect();
        Listing::from([("web".into(), nodes)])
    }

    fn served(told: &TopicState) -> Vec<String> {
        let web = told.listing.as_ref().and_then(|listing| listing.get("web").cloned());
        web.iter().flat_map(|nodes| nodes.iter()).map(|node| node.host.to_string()).collect()
    }

    async fn wait_for(told: &mut watch::Receiver<TopicState>, want: &[&str]) {
        let arrived = told.wait_for(|told| served(told) == want);
        let arrived = tokio::time::timeout(Duration::from_secs(20), arrived).await;
        assert!(arrived.is_ok_and(|told| told.is_ok()), "want {want:?}");
    }

    fn topic(hub: &Hub, protection: Protection, last: &Arc<LastLists>, source: Scripted) -> Arc<Topic> {
        hub.topic(Registry::Consul, "consul web".to_owned(), protection, last, &Env::default(), || source)
    }

    fn nowhere() -> Arc<LastLists> {
        LastLists::new(&LastGood { path: "off".into(), ..LastGood::default() })
    }

    #[tokio::test]
    async fn followers_share_one_topic_until_the_last_is_gone() {
        let hub = Hub::default();
        let (say, source) = scripted();
        let first = topic(&hub, Protection::default(), &nowhere(), source);
        let second = topic(&hub, Protection::default(), &nowhere(), scripted().1);
        assert!(Arc::ptr_eq(&first, &second));
        let (mut a, mut b) = (first.follow(), second.follow());
        say.send(Ok(web(&["a"]))).expect("a source");
        wait_for(&mut a, &["a"]).await;
        wait_for(&mut b, &["a"]).await;
        assert_eq!(hub.known(Registry::Consul), web(&["a"]));
        assert!(hub.known(Registry::Nacos).is_empty());
        drop(first);
        assert!(!say.is_closed());
        drop(second);
        tokio::time::timeout(Duration::from_secs(20), say.closed()).await.expect("nobody asks any more");
        assert!(hub.known(Registry::Consul).is_empty());
    }

    #[tokio::test]
    async fn a_failure_changes_nothing_and_ends_with_the_next_list() {
        let hub = Hub::default();
        let (say, source) = scripted();
        let topic = topic(&hub, Protection::default(), &nowhere(), source);
        let mut told = topic.follow();
        say.send(Err(Trouble("away".to_owned()))).expect("a source");
        told.wait_for(|told| told.trouble.is_some() && told.listing.is_none()).await.expect("trouble");
        say.send(Ok(web(&["a"]))).expect("a source");
        wait_for(&mut told, &["a"]).await;
        assert_eq!(told.borrow().trouble, None);
        say.send(Err(Trouble("away".to_owned()))).expect("a source");
        told.wait_for(|told| told.trouble.is_some()).await.expect("trouble");
        assert_eq!(served(&told.borrow()), ["a"]);
        // The same list as before also ends the trouble.
        say.send(Ok(web(&["a"]))).expect("a source");
        told.wait_for(|told| told.trouble.is_none()).await.expect("an end");
    }

    #[tokio::test]
    async fn an_empty_list_is_used_in_time_without_a_new_message() {
        let protection = Protection { believed_after_ms: 300, ..Protection::default() };
        let hub = Hub::default();
        let (say, source) = scripted();
        let topic = topic(&hub, protection, &nowhere(), source);
        let mut told = topic.follow();
        say.send(Ok(web(&["a", "b"]))).expect("a source");
        wait_for(&mut told, &["a", "b"]).await;
        let start = Instant::now();
        say.send(Ok(Listing::new())).expect("a source");
        wait_for(&mut told, &[]).await;
        assert!(start.elapsed() >= Duration::from_millis(300));
    }

    #[tokio::test]
    async fn a_start_without_the_registry_uses_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let settings = LastGood { path: dir.path().join("data/lists.json"), expire: 0, wait_ms: 60_000 };
        let last = LastLists::new(&settings);
        let (say, source) = scripted();
        let topic_before = topic(&Hub::default(), Protection::default(), &last, source);
        let mut told = topic_before.follow();
        say.send(Ok(web(&["a", "b"]))).expect("a source");
        wait_for(&mut told, &["a", "b"]).await;
        last.written().await;

        let (say, source) = scripted();
        let (hub, env) = (Hub::default(), Env::default());
        let name = "consul web".to_owned();
        let again = LastLists::new(&settings);
        let topic_after = hub.topic(Registry::Consul, name, Protection::default(), &again, &env, || source);
        let report = || {
            let mut report = env.tally.report(Registry::Consul, "");
            hub.complete(&env.tally, &mut report);
            report
        };
        let mut told = topic_after.follow();
        say.send(Err(Trouble("away".to_owned()))).expect("a source");
        wait_for(&mut told, &["a", "b"]).await;
        let stored = report();
        assert_eq!((stored.services, stored.nodes, stored.is_stored), (1, 2, true));
        assert_eq!((stored.update_failures, stored.updates, stored.last_success), (1, 0, None));
        // A registry that comes back with few nodes is doubted as usual.
        say.send(Ok(Listing::new())).expect("a source");
        told.wait_for(|told| told.trouble.is_none()).await.expect("an end");
        assert_eq!(served(&told.borrow()), ["a", "b"]);
        let doubted = report();
        assert_eq!((doubted.nodes, doubted.is_stored), (2, false));
        assert_eq!((doubted.held_back, doubted.held_back_now), (1, 1));
        assert!(doubted.last_success.is_some());

        // A registry that never responds is waited for no longer than that.
        let hasty = LastGood { wait_ms: 1, ..settings };
        let (_say, source) = scripted();
        let topic_hasty = topic(&Hub::default(), Protection::default(), &LastLists::new(&hasty), source);
        wait_for(&mut topic_hasty.follow(), &["a", "b"]).await;
    }

    #[test]
    fn pauses_between_failures_grow() {
        for (failures, whole) in [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (40, 30.0)] {
            let pause = backoff(failures).as_secs_f64();
            assert!(pause <= whole && pause >= whole * 0.75, "{failures}: {pause}");
        }
    }
}
