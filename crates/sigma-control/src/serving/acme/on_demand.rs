//! Certificates that are ordered at the first handshake for a name.
//!
//! A client chooses the name in its handshake, so all effects are limited: a name has to be in the list and
//! pass the operator's service before anything else happens; waiting handshakes, names, and orders in an hour
//! are counted; a name that was refused is refused for a while without a query.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sigma_config::acme::OnDemand as Settings;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{Identity, Issuer, Obtained, Offer, Resumption, ServerIdentity, Versions};
use tokio::sync::{Notify, OnceCell, Semaphore, watch};
use tokio::task::JoinSet;

use crate::serving::clock::unix_seconds;

/// The mark before a name among the ssls: no id of an ssl has it.
const MARK: char = '~';

/// Seconds for which a name that was refused is refused without a question.
pub(super) const REFUSED_S: i64 = 60;

/// Most names that were refused which are remembered; the oldest are forgotten.
const REFUSED_MAX: usize = 10_000;

/// Questions to the operator's service at a time.
const QUESTIONS: usize = 8;

/// Seconds between two lines of the log about names that are refused.
const SILENCE_S: i64 = 60;

const HOUR: i64 = 3_600;

/// The verdict of the operator's service on a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Permitted,
    Refused,
    /// It could not be asked, or has failed itself.
    Unknown(String),
}

/// The names that have certificates without an ssl.
pub(super) struct OnDemand {
    settings: Settings,
    /// Places of handshakes that wait.
    places: Semaphore,
    state: Mutex<State>,
    /// Changes when a name that a handshake waits for is decided.
    moves: watch::Sender<u64>,
    /// There is a name to decide on.
    asked: Notify,
    /// The client of the operator's service.
    client: OnceCell<reqwest::Client>,
}

#[derive(Default)]
struct State {
    shown: HashMap<String, Arc<ServerIdentity>>,
    /// Names that are ordered or have a certificate.
    names: BTreeSet<String>,
    /// Names that wait for a decision, and names that are being decided.
    queue: VecDeque<String>,
    open: BTreeSet<String>,
    /// Until when names are refused, in Unix seconds; and the order in which they were.
    refused: HashMap<String, i64>,
    refusals: VecDeque<String>,
    /// When orders were permitted within the last hour.
    orders: VecDeque<i64>,
    /// When the log said last that a name was refused.
    told: i64,
}

/// The state of a name that a handshake waits for.
enum NameState {
    Shown(Arc<ServerIdentity>),
    Refused,
    Open,
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address of the service may have a secret in it.
        f.debug_struct("OnDemand").finish_non_exhaustive()
    }
}

/// Returns the name in a name's form among the ssls.
pub(super) fn name_of(ssl: &str) -> Option<&str> {
    ssl.strip_prefix(MARK)
}

/// Returns a name's form among the ssls.
pub(super) fn ssl_of(name: &str) -> String {
    format!("{MARK}{name}")
}

impl State {
    /// Whether a handshake may wait for a name; starts its decision if necessary. Time is in Unix seconds.
    fn wish(&mut self, name: &str, settings: &Settings, now: i64) -> bool {
        if self.is_refused(name, now) {
            return false;
        }
        if self.names.contains(name) || self.open.contains(name) {
            return true;
        }
        if self.open.len() >= settings.waiting as usize || !self.has_room(settings) {
            return false;
        }
        self.queue.push_back(name.to_owned());
        self.open.insert(name.to_owned());
        true
    }

    fn has_room(&self, settings: &Settings) -> bool {
        self.names.len() < settings.certificates as usize
    }

    fn is_refused(&self, name: &str, now: i64) -> bool {
        // A clock that was set back refuses no longer than an authority may request.
        self.refused.get(name).is_some_and(|until| (now..=now + 7 * 24 * HOUR).contains(until))
    }

    /// The decision on a name: it is ordered if that is permitted, and there is room for it in this hour.
    ///
    /// # Errors
    /// Returns an error if it is not, which says why.
    fn decide(&mut self, name: &str, verdict: Verdict, settings: &Settings, now: i64) -> Result<(), String> {
        self.open.remove(name);
        while self.orders.front().is_some_and(|at| !(now - HOUR..=now).contains(at)) {
            self.orders.pop_front();
        }
        let refusal = match verdict {
            Verdict::Refused => Some("`acme.on_demand.ask` does not permit it".to_owned()),
            Verdict::Unknown(reason) => Some(format!("`acme.on_demand.ask` failed: {reason}")),
            Verdict::Permitted if !self.has_room(settings) => {
                Some("the maximum number of names is reached (`acme.on_demand.certificates`)".to_owned())
            }
            Verdict::Permitted if self.orders.len() >= settings.orders_per_hour as usize => {
                Some("the maximum number of orders is reached (`acme.on_demand.orders_per_hour`)".to_owned())
            }
            Verdict::Permitted => None,
        };
        if let Some(refusal) = refusal {
            self.refuse(name, now + REFUSED_S);
            return Err(refusal);
        }
        self.orders.push_back(now);
        self.names.insert(name.to_owned());
        Ok(())
    }

    /// Whether the log may report now that a name was refused: endless names do not fill it.
    fn may_tell(&mut self, now: i64) -> bool {
        let may = !(self.told..self.told + SILENCE_S).contains(&now);
        if may {
            self.told = now;
        }
        may
    }

    /// Refuses a name for a while; it has no certificate.
    fn refuse(&mut self, name: &str, until: i64) {
        self.names.remove(name);
        self.shown.remove(name);
        if self.refused.insert(name.to_owned(), until).is_none() {
            self.refusals.push_back(name.to_owned());
        }
        if self.refusals.len() > REFUSED_MAX
            && let Some(oldest) = self.refusals.pop_front()
        {
            self.refused.remove(&oldest);
        }
    }

    fn known(&self, name: &str) -> NameState {
        match self.shown.get(name) {
            Some(shown) => NameState::Shown(Arc::clone(shown)),
            None if self.names.contains(name) || self.open.contains(name) => NameState::Open,
            None => NameState::Refused,
        }
    }
}

impl OnDemand {
    pub(super) fn new(settings: &Settings) -> OnDemand {
        OnDemand {
            settings: settings.clone(),
            places: Semaphore::new(settings.waiting as usize),
            state: Mutex::default(),
            moves: watch::Sender::new(0),
            asked: Notify::new(),
            client: OnceCell::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole at once.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_moved(&self) {
        self.moves.send_modify(|moves| *moves = moves.wrapping_add(1));
    }

    /// Returns the names that are ordered or have a certificate.
    pub(super) fn names(&self) -> Vec<String> {
        self.state().names.iter().cloned().collect()
    }

    /// Whether a name is ordered or has a certificate.
    pub(super) fn has(&self, name: &str) -> bool {
        self.state().names.contains(name)
    }

    /// Shows a certificate from now on, which may be one that an earlier process has ordered. A name that is
    /// not in the list any more, or that there is no room for, is not shown.
    pub(super) fn show(&self, name: &str, pair: Pair) {
        let identity = Identity {
            pairs: vec![pair],
            versions: Versions::ALL,
            offer: Offer::default(),
            client_auth: None,
            resumption: Resumption::Off,
        };
        match ServerIdentity::new(identity) {
            Ok(identity) => {
                let mut state = self.state();
                let has_place = state.names.contains(name) || state.has_room(&self.settings);
                if self.settings.allows(name) && has_place {
                    state.names.insert(name.to_owned());
                    state.shown.insert(name.to_owned(), Arc::new(identity));
                }
            }
            Err(error) => tracing::error!(name, %error, "cannot use an ordered certificate"),
        }
        self.has_moved();
    }

    /// A name has no certificate, and none is ordered before this time, in Unix seconds.
    pub(super) fn refuse(&self, name: &str, until: i64) {
        self.state().refuse(name, until);
        self.has_moved();
    }

    /// Queries the operator's service, which has the list, about a name.
    pub(super) async fn ask(&self, name: &str) -> Verdict {
        let Some(service) = &self.settings.ask else { return Verdict::Permitted };
        match self.client().await {
            Ok(client) => asked(client.clone(), permission_url(service, name)).await,
            Err(reason) => Verdict::Unknown(reason),
        }
    }

    async fn client(&self) -> Result<&reqwest::Client, String> {
        let timeout = Duration::from_millis(self.settings.ask_timeout_ms.into());
        let build = move || {
            let builder =
                reqwest::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
            builder.no_proxy().user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION"))).build()
        };
        let built = || async {
            // Reading the authorities of the system takes a while.
            match tokio::task::spawn_blocking(build).await {
                Ok(built) => built.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        };
        self.client.get_or_try_init(built).await
    }

    /// Decides on names for as long as the process runs; `ordered` is notified of names that are to be
    /// ordered.
    pub(super) async fn decide(self: &Arc<OnDemand>, ordered: &Notify) {
        let mut questions = JoinSet::new();
        loop {
            while questions.len() < QUESTIONS {
                let Some(name) = self.state().queue.pop_front() else { break };
                let desk = Arc::clone(self);
                questions.spawn(async move {
                    let verdict = desk.ask(&name).await;
                    (name, verdict)
                });
            }
            tokio::select! {
                () = self.asked.notified() => {}
                Some(answer) = questions.join_next() => {
                    // Nothing in a question panics.
                    let Ok((name, verdict)) = answer else { continue };
                    self.settle(&name, verdict, ordered);
                }
            }
        }
    }

    fn settle(&self, name: &str, verdict: Verdict, ordered: &Notify) {
        let now = unix_seconds();
        let mut state = self.state();
        let decision = state.decide(name, verdict, &self.settings, now);
        let may_tell = decision.is_err() && state.may_tell(now);
        drop(state);
        match decision {
            Ok(()) => ordered.notify_one(),
            Err(reason) if may_tell => {
                tracing::warn!(name, reason, "a certificate on demand was not ordered")
            }
            Err(_) => {}
        }
        self.has_moved();
    }
}

impl Issuer for OnDemand {
    fn obtain<'i>(&'i self, name: &'i str) -> Obtained<'i> {
        Box::pin(async move {
            if !self.settings.allows(name) {
                return None;
            }
            if let NameState::Shown(shown) = self.state().known(name) {
                return Some(shown);
            }
            let _place = self.places.try_acquire().ok()?;
            let mut moves = self.moves.subscribe();
            if !self.state().wish(name, &self.settings, unix_seconds()) {
                return None;
            }
            self.asked.notify_one();
            loop {
                match self.state().known(name) {
                    NameState::Shown(shown) => return Some(shown),
                    NameState::Refused => return None,
                    NameState::Open => {}
                }
                moves.changed().await.ok()?;
            }
        })
    }

    fn patience_ms(&self) -> u64 {
        self.settings.wait_ms.into()
    }
}

/// The address to which the service sends queries for a name, which has no character that means anything in one.
fn permission_url(service: &str, name: &str) -> String {
    let joint = if service.contains('?') { '&' } else { '?' };
    format!("{service}{joint}domain={name}")
}

/// Asks the operator's service. Its response is its status alone.
async fn asked(client: reqwest::Client, question: String) -> Verdict {
    match client.get(question).send().await {
        Ok(answer) if answer.status() == http::StatusCode::OK => Verdict::Permitted,
        Ok(answer) if answer.status().is_server_error() => Verdict::Unknown(answer.status().to_string()),
        Ok(_) => Verdict::Refused,
        // The address may have a secret in it.
        Err(error) => Verdict::Unknown(error.without_url().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn settings() -> Settings {
        Settings {
            waiting: 3,
            certificates: 4,
            orders_per_hour: 2,
            names: vec!["*.test".into()],
            ..Settings::default()
        }
    }

    #[test]
    fn endless_names_cost_no_more_than_the_limits() {
        let (mut state, settings) = (State::default(), settings());
        let mut wished = 0;
        for n in 0..100_000 {
            wished += usize::from(state.wish(&format!("{n}.test"), &settings, NOW));
        }
        // Undecided names.
        assert_eq!((wished, state.open.len(), state.queue.len()), (3, 3, 3));
        let mut ordered = 0;
        for n in 0..100_000 {
            let name = format!("{n}.test");
            if state.wish(&name, &settings, NOW) {
                ordered += usize::from(state.decide(&name, Verdict::Permitted, &settings, NOW).is_ok());
            }
        }
        assert_eq!((ordered, state.names.len(), state.orders.len()), (2, 2, 2));
        assert!(state.refused.len() <= REFUSED_MAX && state.refusals.len() <= REFUSED_MAX);
        assert!(state.open.is_empty());
    }

    #[test]
    fn names_and_orders_are_counted() {
        let (mut state, settings) = (State::default(), settings());
        let mut decide = |name: &str, is_permitted, now| {
            let verdict = if is_permitted { Verdict::Permitted } else { Verdict::Refused };
            state.wish(name, &settings, now) && state.decide(name, verdict, &settings, now).is_ok()
        };
        assert!(decide("a.test", true, NOW) && decide("b.test", true, NOW));
        assert!(!decide("c.test", true, NOW) && !decide("d.test", false, NOW));
        // Refused for a while without a question; then there is room in another hour, up to all that there may be.
        assert!(!decide("c.test", true, NOW + 59));
        let later = NOW + HOUR + 1;
        assert!(decide("c.test", true, later) && decide("e.test", true, later));
        let much_later = NOW + 9 * HOUR;
        assert!(!decide("f.test", true, much_later));
    }

    #[test]
    fn failed_names_are_refused_until_the_next_attempt() {
        let (mut state, settings) = (State::default(), settings());
        assert!(state.wish("a.test", &settings, NOW));
        state.decide("a.test", Verdict::Permitted, &settings, NOW).unwrap();
        assert!(matches!(state.known("a.test"), NameState::Open));
        state.refuse("a.test", NOW + 300);
        assert!(matches!(state.known("a.test"), NameState::Refused));
        assert!(!state.wish("a.test", &settings, NOW + 299));
        assert!(state.wish("a.test", &settings, NOW + 301));
    }

    #[test]
    fn the_oldest_refusal_is_forgotten() {
        let mut state = State::default();
        (0..=REFUSED_MAX).for_each(|n| state.refuse(&format!("{n}.test"), NOW + REFUSED_S));
        assert!(!state.is_refused("0.test", NOW) && state.is_refused("1.test", NOW));
        assert_eq!(state.refused.len(), REFUSED_MAX);
    }

    /// Handshakes wait together for one order, and no more than may.
    #[tokio::test]
    async fn handshakes_wait_together() {
        let desk = Arc::new(OnDemand::new(&Settings { ask: None, ..settings() }));
        let ordered = Notify::new();
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let desk = Arc::clone(&desk);
                tokio::spawn(async move { desk.obtain("a.test").await.is_some() })
            })
            .collect();
        assert!(desk.obtain("a.other").await.is_none());
        tokio::select! {
            () = desk.decide(&ordered) => {}
            () = ordered.notified() => {}
        }
        assert_eq!(desk.names(), ["a.test"]);
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        let pair = Pair::parse(&made.cert.pem(), &made.signing_key.serialize_pem(), None).unwrap();
        desk.show("a.test", pair);
        let mut served = 0;
        for one in waiting {
            served += usize::from(one.await.unwrap());
        }
        assert_eq!(served, 3);
        assert!(desk.obtain("a.test").await.is_some());
        desk.refuse("a.test", unix_seconds() + REFUSED_S);
        assert!(desk.obtain("a.test").await.is_none());
    }

    /// A client may write any bytes into its hello.
    #[tokio::test]
    async fn odd_names_open_no_question() {
        let desk = OnDemand::new(&Settings {
            names: Vec::new(),
            ask: Some("http://127.0.0.1:1/".into()),
            ..settings()
        });
        let (long, label) = ("a.".repeat(121) + "test", "a".repeat(64) + ".test");
        let odd = [
            "10.0.0.1",
            "::1",
            "[::1]",
            "0x7f.1",
            "1.2",
            "localhost",
            "",
            ".",
            "a..test",
            "a.test.",
            "-a.test",
        ];
        let odder = [
            "a_b.test",
            "*.test",
            "a/../b.test",
            "a.test&domain=b.test",
            "a%2e.test",
            "a b.test",
            "\u{e9}.test",
            "~a.test",
            "a.test\n",
        ];
        for name in odd.iter().chain(&odder).copied().chain([&*long, &*label]) {
            assert!(desk.obtain(name).await.is_none(), "{name:?}");
        }
        let state = desk.state();
        assert!(state.queue.is_empty() && state.open.is_empty() && state.refused.is_empty());
    }

    /// Without a listener: a service that cannot be reached permits nothing.
    #[tokio::test]
    async fn a_service_that_is_away_permits_nothing() {
        let ask = Some("http://127.0.0.1:1/?secret=1".to_owned());
        let desk = OnDemand::new(&Settings { ask, ..settings() });
        let Verdict::Unknown(reason) = desk.ask("a.test").await else { panic!("it was asked") };
        assert!(!reason.contains("secret"), "{reason}");
        let mut state = State::default();
        assert!(state.wish("a.test", &desk.settings, NOW));
        assert!(state.decide("a.test", Verdict::Unknown(reason), &desk.settings, NOW).is_err());
        assert!(
            matches!(state.known("a.test"), NameState::Refused) && !state.wish("a.test", &desk.settings, NOW)
        );
    }

    #[test]
    fn the_log_is_written_now_and_then() {
        let mut state = State::default();
        assert!(state.may_tell(NOW) && !state.may_tell(NOW + 59) && state.may_tell(NOW + 60));
        // A clock that is set back silences nothing.
        assert!(state.may_tell(NOW));
    }
}
