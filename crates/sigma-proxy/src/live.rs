//! What requests are like right now, by route and by node: counted while somebody looks, and for nobody else.
//!
//! Each worker has a table of its own, which it gives to the control thread once a second and begins anew. While
//! nobody looks there is no table, and an exchange pays one branch.

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

/// Tables that may be on their way. A worker whose table finds no room goes on with it.
const TABLES: usize = 64;

/// What one worker has seen in about a second.
#[derive(Debug, Default)]
pub struct Table {
    /// All exchanges, those without a route too.
    pub total: Figures,
    /// By route; the address of the facts, which the table keeps alive, stands for the route.
    routes: HashMap<usize, (Arc<RouteFacts>, Figures)>,
    nodes: HashMap<NodeAddr, (String, Figures)>,
    /// Exchanges and attempts for whose route or node there was no room.
    pub unlisted: u64,
}

impl Table {
    /// The routes that exchanges had, with their figures.
    pub fn routes(&self) -> impl Iterator<Item = (&RouteFacts, &Figures)> {
        self.routes.values().map(|(facts, figures)| (&**facts, figures))
    }

    /// The nodes that were asked, each with its host as it was configured. Each attempt counts; its time is the
    /// one until the head of the node's answer.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, &str, &Figures)> {
        self.nodes.iter().map(|(addr, (host, figures))| (addr, &**host, figures))
    }

    fn note(&mut self, route: Option<&Arc<RouteFacts>>, record: &Record, room: Room) {
        // What changed its protocol took as long as both sides wished.
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

/// The workers' end; clone one per worker. By default nobody ever looks.
#[derive(Debug, Clone, Default)]
pub struct LiveReporter {
    is_watched: Arc<AtomicBool>,
    tables: Option<mpsc::Sender<Table>>,
}

impl LiveReporter {
    /// Whether somebody looks.
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
    /// Has workers count from their next tick on, or no longer.
    pub fn watch(&self, watched: bool) {
        // Written when somebody begins to look and when nobody does any more, by this end alone.
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
    /// What the last tick found.
    is_watched: Cell<bool>,
    table: RefCell<Table>,
}

impl Live {
    pub(crate) fn new(reporter: LiveReporter) -> Live {
        Live { reporter, ..Live::default() }
    }

    /// Whether exchanges are to be noted.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.get()
    }

    /// An exchange is over. There is room for so many routes and nodes.
    #[cold]
    pub(crate) fn note(&self, route: Option<&Arc<RouteFacts>>, record: &Record, room: Room) {
        self.table.borrow_mut().note(route, record, room);
    }

    /// To be called once per tick of the worker's clock.
    pub(crate) fn tick(&self) {
        self.is_watched.set(self.reporter.is_watched());
    }

    /// Gives the table away if there is something in it; to be called once a second.
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
        let room = Room { routes: 20, nodes: 2 };
        table.note(Some(&first), &record(1, 200), room);
        table.note(Some(&first), &record(2, 502), room);
        table.note(Some(&second), &record(1, 404), room);
        table.note(None, &Record { status: 404, ..Record::default() }, room);
        assert_eq!((table.total.requests, table.total.server_errors), (4, 1));
        let mut routes: Vec<_> = table.routes().map(|(facts, sum)| (&*facts.id, sum.requests)).collect();
        routes.sort_unstable();
        assert_eq!(routes, [("a", 2), ("b", 1)]);
        let mut nodes: Vec<_> =
            table.nodes().map(|(addr, _, sum)| (addr.to_string(), sum.requests)).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [("127.0.0.1:1".to_owned(), 2), ("127.0.0.1:2".to_owned(), 1)]);
        let many: Vec<_> = (0..20).map(|n| facts(&n.to_string())).collect();
        many.iter().for_each(|facts| table.note(Some(facts), &record(1, 200), room));
        assert_eq!((table.routes.len(), table.unlisted), (20, 2));
        table.note(None, &record(3, 200), room);
        assert_eq!((table.nodes.len(), table.unlisted), (2, 3));
    }

    #[tokio::test]
    async fn tables_go_only_while_somebody_looks_and_none_is_lost() {
        let (reporter, mut inbox) = channel();
        let live = Live::new(reporter);
        live.tick();
        assert!(!live.is_watched());
        live.report();
        inbox.watch(true);
        live.tick();
        assert!(live.is_watched());
        // More than there is room for: the last one keeps what the others have not taken.
        for _ in 0..TABLES + 3 {
            live.note(None, &record(1, 200), Room::default());
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
