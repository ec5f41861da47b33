//! Live figures of requests, by route, by node and by consumer: counted only while an operator watches.
//!
//! Each worker has its own table, which it gives to the control thread once a second and starts again. Without a
//! watcher there is no table, and an exchange pays one branch.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sigma_config::live::Live as Room;
use sigma_observe::figures::Figures;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::record::Record;
use tokio::sync::mpsc;

/// Tables that may be on their way. A worker whose table does not fit in the queue continues with it.
const TABLES: usize = 64;

/// The figures of one worker over about a second.
#[derive(Debug, Default)]
pub struct Table {
    /// All exchanges, including those without a route.
    pub total: Figures,
    /// The figures by route; the key is the address of the facts, which the table keeps alive.
    routes: HashMap<usize, (Arc<RouteFacts>, Figures)>,
    nodes: HashMap<NodeAddr, (String, Figures)>,
    /// By the name of the consumer.
    consumers: HashMap<Box<str>, Figures>,
    /// Exchanges and attempts whose route, node or consumer did not fit in.
    pub unlisted: u64,
}

impl Table {
    /// Returns the routes of the exchanges, with their figures.
    pub fn routes(&self) -> impl Iterator<Item = (&RouteFacts, &Figures)> {
        self.routes.values().map(|(facts, figures)| (&**facts, figures))
    }

    /// Returns the nodes of the attempts, each with its host as it was configured. Each attempt counts; its time ends
    /// at the head of the node's response.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, &str, &Figures)> {
        self.nodes.iter().map(|(addr, (host, figures))| (addr, &**host, figures))
    }

    /// Returns the consumers of the exchanges, by name, with their figures.
    pub fn consumers(&self) -> impl Iterator<Item = (&str, &Figures)> {
        self.consumers.iter().map(|(name, figures)| (&**name, figures))
    }

    fn note(&mut self, parties: Parties<'_>, record: &Record, room: Room) {
        let Parties { route, consumer } = parties;
        // A changed protocol lasts as long as both sides like.
        let timed = record.started.filter(|_| record.status != 101);
        let latency = timed.map(|at: Instant| at.elapsed());
        let is_fault = record.fault.is_some();
        self.total.add(record.status, is_fault, latency);
        if let Some(facts) = route {
            let key = Arc::as_ptr(facts).addr();
            if self.routes.len() < room.routes as usize || self.routes.contains_key(&key) {
                let row = self.routes.entry(key).or_insert_with(|| (Arc::clone(facts), Figures::default()));
                row.1.add(record.status, is_fault, latency);
            } else {
                self.unlisted += 1;
            }
        }
        if let Some(name) = consumer {
            if !self.consumers.contains_key(name) && self.consumers.len() < room.consumers as usize {
                self.consumers.insert(name.into(), Figures::default());
            }
            match self.consumers.get_mut(name) {
                Some(figures) => figures.add(record.status, is_fault, latency),
                None => self.unlisted += 1,
            }
        }
        for attempt in &record.attempts {
            if !self.nodes.contains_key(&attempt.addr) {
                if self.nodes.len() >= room.nodes as usize {
                    self.unlisted += 1;
                    continue;
                }
                self.nodes.insert(attempt.addr.clone(), (attempt.host.clone(), Figures::default()));
            }
            if let Some((_, figures)) = self.nodes.get_mut(&attempt.addr) {
                let latency = attempt.header_ms.map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1000.0));
                figures.add(attempt.status, attempt.status == 0, latency);
            }
        }
    }
}

/// The parties of an exchange, besides its nodes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parties<'x> {
    pub(crate) route: Option<&'x Arc<RouteFacts>>,
    /// The name of the consumer.
    pub(crate) consumer: Option<&'x str>,
}

/// The workers' end; clone one per worker. Without a channel there is never a watcher.
#[derive(Debug, Clone, Default)]
pub struct LiveReporter {
    is_watched: Arc<AtomicBool>,
    tables: Option<mpsc::Sender<Table>>,
}

impl LiveReporter {
    /// Returns true while an operator watches.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct LiveInbox {
    is_watched: Arc<AtomicBool>,
    tables: mpsc::Receiver<Table>,
}

/// Both ends.
pub fn channel() -> (LiveReporter, LiveInbox) {
    let (sender, tables) = mpsc::channel(TABLES);
    let is_watched = Arc::<AtomicBool>::default();
    let reporter = LiveReporter { is_watched: Arc::clone(&is_watched), tables: Some(sender) };
    (reporter, LiveInbox { is_watched, tables })
}

impl LiveInbox {
    /// Makes workers count from their next tick on, or stop.
    pub fn watch(&self, watched: bool) {
        // Written when the first watcher comes and the last one leaves, by this end alone.
        self.is_watched.store(watched, Ordering::Relaxed);
    }

    /// The next table of a worker; None if all workers are gone.
    pub async fn next(&mut self) -> Option<Table> {
        self.tables.recv().await
    }
}

/// One worker's part.
#[derive(Debug, Default)]
pub(crate) struct Live {
    reporter: LiveReporter,
    /// The flag as of the last tick.
    is_watched: Cell<bool>,
    table: RefCell<Table>,
}

impl Live {
    pub(crate) fn new(reporter: LiveReporter) -> Live {
        Live { reporter, ..Live::default() }
    }

    /// Returns true if exchanges are counted.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.get()
    }

    /// Counts an exchange that has ended. There is room for so many routes, nodes and consumers.
    #[cold]
    pub(crate) fn note(&self, parties: Parties<'_>, record: &Record, room: Room) {
        self.table.borrow_mut().note(parties, record, room);
    }

    /// Updates the flag; call it once per tick of the worker's clock.
    pub(crate) fn tick(&self) {
        self.is_watched.set(self.reporter.is_watched());
    }

    /// Gives the table away if it is not empty; call it once a second.
    pub(crate) fn report(&self) {
        let mut table = self.table.borrow_mut();
        if table.total.requests > 0
            && let Some(tables) = &self.reporter.tables
            && let Ok(place) = tables.try_reserve()
        {
            place.send(std::mem::take(&mut *table));
        }
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::record::Attempt;

    use super::*;

    fn facts(id: &str) -> Arc<RouteFacts> {
        Arc::new(RouteFacts { id: id.into(), ..RouteFacts::default() })
    }

    fn record(port: u16, status: u16) -> Record {
        let attempt = Attempt {
            addr: NodeAddr::Tcp(([127, 0, 0, 1], port).into()),
            host: "node".to_owned(),
            began: None,
            status,
            reused: false,
            version: None,
            linked_ms: None,
            connect_ms: None,
            sent_ms: None,
            header_ms: Some(2.0),
            carried: None,
            response_ms: None,
        };
        Record { status, started: Some(Instant::now()), attempts: vec![attempt], ..Record::default() }
    }

    #[test]
    fn rows_are_kept_apart_and_bounded() {
        let mut table = Table::default();
        let (first, second) = (facts("a"), facts("b"));
        let room = Room { routes: 20, nodes: 2, consumers: 2 };
        let of = |route| Parties { route: Some(route), consumer: None };
        table.note(of(&first), &record(1, 200), room);
        table.note(of(&first), &record(2, 502), room);
        table.note(of(&second), &record(1, 404), room);
        table.note(Parties::default(), &Record { status: 404, ..Record::default() }, room);
        assert_eq!((table.total.requests, table.total.server_errors), (4, 1));
        let mut routes: Vec<_> = table.routes().map(|(facts, sum)| (&*facts.id, sum.requests)).collect();
        routes.sort_unstable();
        assert_eq!(routes, [("a", 2), ("b", 1)]);
        let mut nodes: Vec<_> =
            table.nodes().map(|(addr, _, sum)| (addr.to_string(), sum.requests)).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [("127.0.0.1:1".to_owned(), 2), ("127.0.0.1:2".to_owned(), 1)]);
        let many: Vec<_> = (0..20).map(|n| facts(&n.to_string())).collect();
        many.iter().for_each(|facts| table.note(of(facts), &record(1, 200), room));
        assert_eq!((table.routes.len(), table.unlisted), (20, 2));
        table.note(Parties::default(), &record(3, 200), room);
        assert_eq!((table.nodes.len(), table.unlisted), (2, 3));
    }

    #[test]
    fn consumers_are_counted_up_to_a_limit() {
        let mut table = Table::default();
        let room = Room { routes: 20, nodes: 20, consumers: 2 };
        for (name, status) in [("jack", 200), ("jill", 503), ("jack", 429), ("joe", 200), ("jill", 200)] {
            table.note(Parties { route: None, consumer: Some(name) }, &record(1, status), room);
        }
        let mut consumers: Vec<_> = table
            .consumers()
            .map(|(name, sum)| (name, sum.requests, sum.client_errors, sum.server_errors))
            .collect();
        consumers.sort_unstable();
        assert_eq!(consumers, [("jack", 2, 1, 0), ("jill", 2, 0, 1)]);
        assert_eq!((table.unlisted, table.total.requests), (1, 5));
    }

    #[tokio::test]
    async fn tables_are_sent_only_while_watched_and_none_is_lost() {
        let (reporter, mut inbox) = channel();
        let live = Live::new(reporter);
        live.tick();
        assert!(!live.is_watched());
        live.report();
        inbox.watch(true);
        live.tick();
        assert!(live.is_watched());
        // More than fit in the queue: the last one contains the figures that the others left.
        for _ in 0..TABLES + 3 {
            live.note(Parties::default(), &record(1, 200), Room::default());
            live.report();
        }
        let mut taken = 0;
        for _ in 0..TABLES {
            taken += inbox.next().await.expect("a table").total.requests;
        }
        live.report();
        taken += inbox.next().await.expect("a table").total.requests;
        assert_eq!(taken, TABLES as u64 + 3);
        inbox.watch(false);
        live.tick();
        assert!(!live.is_watched());
    }
}
