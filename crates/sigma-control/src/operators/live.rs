//! Live statistics of requests: counts of the workers since the first query, by the second and in a window of
//! the last minute.
//!
//! A query makes the workers count, for [`WATCH_FOR`] from then on. The first response after a pause has only the
//! permanent counters.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_observe::figures::{Figures, PERCENTILE_ERROR_PERCENT};
use sigma_proxy::live::{LiveInbox, Table};
use tokio::time::Instant;

/// Workers count for so long after a query.
const WATCH_FOR: Duration = Duration::from_secs(15);
/// Seconds of the series.
const SERIES: u64 = 120;
/// Seconds of the window, by route, by node and by consumer.
const WINDOW: u64 = 60;
/// Seconds that the rows of one slot are about. By the second, a thousand routes would take 10 MiB.
const SLOT: u64 = 5;

/// Statistics of the last minutes.
#[derive(Debug, Default)]
struct Window {
    /// Since when workers count, in seconds of [`Live::began`]; None while they do not.
    since: Option<u64>,
    asked: u64,
    /// By the second, the oldest first; seconds without requests are omitted.
    seconds: VecDeque<(u64, Figures)>,
    /// By [`SLOT`], the oldest first.
    slots: VecDeque<Slot>,
}

/// The rows of [`SLOT`] seconds.
#[derive(Debug, Default)]
struct Slot {
    begins: u64,
    rows: Rows,
    unlisted: u64,
}

/// Figures by route, by node and by consumer.
#[derive(Debug, Default)]
struct Rows {
    /// By the route's id; with its name.
    routes: HashMap<Box<str>, (Option<Box<str>>, Figures)>,
    /// By the node's address; with its host as it was configured.
    nodes: HashMap<String, (String, Figures)>,
    /// By the consumer's name.
    consumers: HashMap<Box<str>, Figures>,
}

impl Rows {
    fn merge(&mut self, other: &Rows) {
        for (id, (name, figures)) in &other.routes {
            let row = self.routes.entry(id.clone()).or_insert_with(|| (name.clone(), Figures::default()));
            row.1.merge(figures);
        }
        for (addr, (host, figures)) in &other.nodes {
            let row = self.nodes.entry(addr.clone()).or_insert_with(|| (host.clone(), Figures::default()));
            row.1.merge(figures);
        }
        for (name, figures) in &other.consumers {
            self.consumers.entry(name.clone()).or_default().merge(figures);
        }
    }
}

impl Window {
    fn add(&mut self, now: u64, table: &Table) {
        match self.seconds.back_mut() {
            Some((second, figures)) if *second == now => figures.merge(&table.total),
            _ => self.seconds.push_back((now, table.total.clone())),
        }
        let begins = now - now % SLOT;
        if self.slots.back().is_none_or(|slot| slot.begins != begins) {
            self.slots.push_back(Slot { begins, ..Slot::default() });
        }
        let Some(slot) = self.slots.back_mut() else { return };
        slot.unlisted += table.unlisted;
        for (facts, figures) in table.routes() {
            let row = slot.rows.routes.entry(facts.id.clone());
            row.or_insert_with(|| (facts.name.clone(), Figures::default())).1.merge(figures);
        }
        for (addr, host, figures) in table.nodes() {
            let row = slot.rows.nodes.entry(addr.to_string());
            row.or_insert_with(|| (host.to_owned(), Figures::default())).1.merge(figures);
        }
        for (name, figures) in table.consumers() {
            slot.rows.consumers.entry(name.into()).or_default().merge(figures);
        }
        self.forget(now);
    }

    fn forget(&mut self, now: u64) {
        while self.seconds.front().is_some_and(|(second, _)| second + SERIES < now) {
            self.seconds.pop_front();
        }
        // The remaining slots are in the window as a whole.
        while self.slots.front().is_some_and(|slot| slot.begins + WINDOW < now) {
            self.slots.pop_front();
        }
    }

    /// Forgets everything after a while without a query. Late counts belong to no window.
    fn end_if_nobody_looks(&mut self, now: u64) {
        if self.asked + WATCH_FOR.as_secs() <= now {
            *self = Window::default();
        }
    }

    /// Seconds that the window is about, one at least.
    fn length(&self, now: u64) -> u64 {
        self.since.map_or(0, |since| now.saturating_sub(since)).clamp(1, WINDOW)
    }

    fn shown(&self, now: u64) -> Value {
        let mut total = Figures::default();
        let length = self.length(now);
        let recent = self.seconds.iter().filter(|(second, _)| second + length >= now);
        recent.for_each(|(_, figures)| total.merge(figures));
        let mut rows = Rows::default();
        self.slots.iter().for_each(|slot| rows.merge(&slot.rows));
        let row = |figures: &Figures, about: Value| {
            let mut row = shown(figures, length);
            if let (Some(row), Value::Object(about)) = (row.as_object_mut(), about) {
                row.extend(about);
            }
            row
        };
        let mut routes: Vec<_> = rows.routes.iter().collect();
        routes.sort_by(|a, b| b.1.1.requests.cmp(&a.1.1.requests).then(a.0.cmp(b.0)));
        let mut consumers: Vec<_> = rows.consumers.iter().collect();
        consumers.sort_by(|a, b| b.1.requests.cmp(&a.1.requests).then(a.0.cmp(b.0)));
        let mut nodes: Vec<_> = rows.nodes.iter().collect();
        nodes.sort_by(|a, b| b.1.1.requests.cmp(&a.1.1.requests).then(a.0.cmp(b.0)));
        let second = |(second, figures): &(u64, Figures)| {
            let mut shown = shown(figures, 1);
            shown["age"] = (now - second).into();
            shown
        };
        json!({
            "watched_seconds": self.since.map_or(0, |since| now.saturating_sub(since)),
            "percentile_error_percent": PERCENTILE_ERROR_PERCENT,
            // The workers are still counting the present second.
            "series": self.seconds.iter().filter(|(second, _)| *second < now).map(second).collect::<Vec<_>>(),
            "window": {
                "seconds": length,
                "total": shown(&total, length),
                "routes": routes.into_iter()
                    .map(|(id, (name, figures))| row(figures, json!({"id": id, "name": name})))
                    .collect::<Vec<_>>(),
                "nodes": nodes.into_iter()
                    .map(|(addr, (host, figures))| row(figures, json!({"address": addr, "host": host})))
                    .collect::<Vec<_>>(),
                "consumers": consumers.into_iter()
                    .map(|(name, figures)| row(figures, json!({"name": name})))
                    .collect::<Vec<_>>(),
                "unlisted": self.slots.iter().map(|slot| slot.unlisted).sum::<u64>(),
            },
        })
    }
}

/// Figures of so many seconds.
fn shown(figures: &Figures, seconds: u64) -> Value {
    let ms = |percent: u8| figures.percentile_ms(percent).map(|ms| (ms * 1000.0).round() / 1000.0);
    let rate = figures.requests as f64 / seconds as f64;
    json!({
        "requests": figures.requests,
        "rate": (rate * 100.0).round() / 100.0,
        "client_errors": figures.client_errors,
        "server_errors": figures.server_errors,
        "faults": figures.faults,
        "p50_ms": ms(50),
        "p90_ms": ms(90),
        "p99_ms": ms(99),
    })
}

/// The sums of some nodes since they were last taken. Workers count while a dashboard is open.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Addresses as text.
    nodes: HashSet<String>,
    sum: Mutex<Figures>,
}

impl Meter {
    fn add(&self, table: &Table) {
        let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
        for (addr, _, figures) in table.nodes() {
            if self.nodes.contains(&addr.to_string()) {
                sum.merge(figures);
            }
        }
    }
}

/// The control thread's part: the time of the last query, and the statistics.
#[derive(Debug)]
pub(crate) struct Live {
    began: Instant,
    window: Mutex<Window>,
    /// The meters in use, and some that are not any more.
    meters: Mutex<Vec<Weak<Meter>>>,
    /// Notified at the first query after a pause.
    looks: tokio::sync::Notify,
}

impl Live {
    /// Collects the workers' counts, until the process ends.
    pub(crate) fn begin(inbox: LiveInbox) -> Arc<Live> {
        let live = Arc::new(Live {
            began: Instant::now(),
            window: Mutex::default(),
            meters: Mutex::default(),
            looks: tokio::sync::Notify::new(),
        });
        tokio::spawn(Arc::clone(&live).follow(inbox));
        live
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        // Sums are whole after each addition.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    async fn follow(self: Arc<Live>, mut inbox: LiveInbox) {
        loop {
            tokio::select! {
                () = self.looks.notified() => inbox.watch(true),
                // Late counts are dropped.
                late = inbox.next() => match late {
                    Some(_) => continue,
                    None => return,
                },
            }
            while let Some(until) = self.watched_until() {
                tokio::select! {
                    table = inbox.next() => match table {
                        Some(table) => {
                            self.window().add(self.now(), &table);
                            self.measure(&table);
                        }
                        None => return,
                    },
                    () = tokio::time::sleep_until(until) => self.end_if_nobody_looks(),
                }
            }
            inbox.watch(false);
        }
    }

    /// Returns until when workers count; None without a query.
    fn watched_until(&self) -> Option<Instant> {
        let window = self.window();
        window.since.map(|_| self.began + Duration::from_secs(window.asked) + WATCH_FOR)
    }

    fn end_if_nobody_looks(&self) {
        self.window().end_if_nobody_looks(self.now());
    }

    /// Returns the statistics, and keeps the workers counting.
    pub(crate) fn look(&self) -> Value {
        let now = self.now();
        let mut window = self.asked(now);
        window.forget(now);
        window.shown(now)
    }

    /// Keeps the workers counting.
    fn asked(&self, now: u64) -> MutexGuard<'_, Window> {
        let mut window = self.window();
        window.asked = now;
        if window.since.is_none() {
            window.since = Some(now);
            self.looks.notify_one();
        }
        window
    }

    /// Returns a meter of the nodes with these addresses, whose workers count from now on.
    pub(crate) fn meter(&self, nodes: HashSet<String>) -> Arc<Meter> {
        let meter = Arc::new(Meter { nodes, sum: Mutex::default() });
        self.meters().push(Arc::downgrade(&meter));
        drop(self.asked(self.now()));
        meter
    }

    /// Takes the sums of a meter, and keeps the workers counting.
    pub(crate) fn take(&self, meter: &Meter) -> Figures {
        drop(self.asked(self.now()));
        std::mem::take(&mut *meter.sum.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn meters(&self) -> MutexGuard<'_, Vec<Weak<Meter>>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure(&self, table: &Table) {
        self.meters().retain(|meter| {
            meter.upgrade().is_some_and(|meter| {
                meter.add(table);
                true
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use sigma_proxy::live::channel;

    use super::*;

    fn table(requests: u64, status: u16) -> Table {
        let mut table = Table::default();
        (0..requests).for_each(|_| table.total.add(status, false, Some(Duration::from_millis(1))));
        table
    }

    #[test]
    fn the_window_moves_on() {
        let mut window = Window { since: Some(0), ..Window::default() };
        window.add(1, &table(10, 200));
        window.add(1, &table(10, 502));
        window.add(2, &table(4, 404));
        let seen = window.shown(4);
        let total = &seen["window"]["total"];
        assert_eq!((&total["requests"], &total["server_errors"]), (&json!(24), &json!(10)), "{seen}");
        assert_eq!((&total["client_errors"], &total["rate"]), (&json!(4), &json!(6.0)), "{seen}");
        assert_eq!(seen["series"][0]["requests"], 20);
        assert_eq!(seen["series"][1]["age"], 2);
        window.add(2 + SERIES + 1, &table(1, 200));
        let seen = window.shown(2 + SERIES + 2);
        assert_eq!(seen["series"].as_array().map(Vec::len), Some(1), "{seen}");
        assert_eq!(seen["window"]["total"]["requests"], 1);
        assert_eq!(window.slots.len(), 1);
    }

    #[test]
    fn workers_do_not_count_without_a_query() {
        let mut window = Window { since: Some(3), asked: 5, ..Window::default() };
        window.add(6, &table(1, 200));
        window.end_if_nobody_looks(4 + WATCH_FOR.as_secs());
        assert_eq!((window.since, window.seconds.len()), (Some(3), 1));
        window.end_if_nobody_looks(5 + WATCH_FOR.as_secs());
        assert_eq!((window.since, window.seconds.len(), window.slots.len()), (None, 0, 0));
    }

    #[tokio::test]
    async fn workers_count_from_the_first_look_on() {
        let (reporter, inbox) = channel();
        let live = Live::begin(inbox);
        tokio::task::yield_now().await;
        assert!(!reporter.is_watched());
        live.look();
        while !reporter.is_watched() {
            tokio::task::yield_now().await;
        }
        assert_eq!(live.look()["watched_seconds"], 0);
    }
}
