//! Numbered requests, to recognise them in servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sigma_testkit::{Gateway, Peer, until};

use crate::PATIENCE;

/// Requests for `<path>/n0`, `<path>/n1` and so on, until it ends.
pub(super) struct Numbered {
    answered: Arc<AtomicUsize>,
    end: Sender<()>,
    sends: JoinHandle<()>,
}

impl Numbered {
    pub(super) fn begin(gateway: &Gateway, path: &'static str) -> Numbered {
        /// A server that starts takes its time: what waits for it has to have room.
        const PACE: Duration = Duration::from_millis(50);
        let (answered, mut client) = (Arc::<AtomicUsize>::default(), gateway.connect().unwrap());
        let (count, (end, is_ended)) = (Arc::clone(&answered), channel());
        let sends = std::thread::spawn(move || {
            while is_ended.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                let number = count.load(Ordering::SeqCst);
                assert_eq!(client.get(&format!("{path}/n{number}")).unwrap().status(), 200);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Numbered { answered, end, sends }
    }

    /// How many got a response.
    pub(super) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Waits until so many got a response.
    pub(super) fn wait_for(&self, count: usize) {
        assert!(until(PATIENCE, || self.answered() >= count), "{} of {count}", self.answered());
    }

    /// How many were answered at the end.
    pub(super) fn end(self) -> usize {
        drop(self.end);
        self.sends.join().unwrap();
        self.answered.load(Ordering::SeqCst)
    }
}

/// Sends so many requests whose entries are sent once, while the server is away: they are lost with their
/// batches, and counted.
pub(super) fn lose(gateway: &Gateway, path: &str, count: usize) {
    assert_eq!(dropped(gateway), 0, "{}", gateway.stderr());
    let mut client = gateway.connect().unwrap();
    for number in 0..count {
        assert_eq!(client.get(&format!("{path}/{number}")).unwrap().status(), 200);
    }
    let are_counted = || dropped(gateway) == count as u64;
    assert!(until(PATIENCE, are_counted), "{}\n{}", dropped(gateway), gateway.stderr());
}

/// How many entries of logs the gateway has dropped.
pub(super) fn dropped(gateway: &Gateway) -> u64 {
    let page = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix("sigma_access_lines_dropped_total "));
    line.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}
