//! Protection against lists that suddenly shrink: they are held back for a while.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sigma_config::discovery::Protection;
use sigma_config::resources::Node;
use tokio::time::Instant;

use crate::source::Listing;

/// Decides which part of a registry's list is used. It reads no clock: the time is an argument.
#[derive(Debug)]
pub(crate) struct Guard {
    settings: Protection,
    /// Services whose list is held back.
    doubts: BTreeMap<Arc<str>, Doubt>,
    /// The number of lists held back so far.
    doubted: u64,
}

#[derive(Debug)]
struct Doubt {
    since: Instant,
    /// The previous list.
    before: Arc<[Node]>,
}

impl Guard {
    pub(crate) fn new(settings: Protection) -> Guard {
        Guard { settings, doubts: BTreeMap::new(), doubted: 0 }
    }

    /// Returns the end of the next doubt, if there is one: then the last list must be admitted again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.doubts.values().map(|doubt| doubt.since + self.patience()).min()
    }

    /// Returns the number of lists held back now, and since the start.
    pub(crate) fn doubts(&self) -> (u64, u64) {
        (self.doubts.len() as u64, self.doubted)
    }

    /// Returns the list to use, given the registry's new list `said` and the list `served` in use. An unchanged list
    /// stays the same object. With `is_certain`, the registry has named the removed nodes: then only an empty list is
    /// held back.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        served: &Listing,
        said: &Listing,
        is_certain: bool,
    ) -> Listing {
        let mut admitted = said.clone();
        for (service, nodes) in &mut admitted {
            if let Some(before) = served.get(service).filter(|before| ***before == **nodes) {
                *nodes = Arc::clone(before);
            }
        }
        let mut doubts = std::mem::take(&mut self.doubts);
        let is_new = |(service, nodes): &(&Arc<str>, &Arc<[Node]>)| {
            admitted.get(*service).is_none_or(|next| !Arc::ptr_eq(next, nodes))
                && !doubts.contains_key(*service)
        };
        let of_served = served.iter().filter(is_new);
        let changed: Vec<(Arc<str>, Doubt)> = of_served
            .map(|(service, nodes)| (Arc::clone(service), Doubt { since: now, before: Arc::clone(nodes) }))
            .collect();
        let known = doubts.len();
        let candidates = std::mem::take(&mut doubts).into_iter().chain(changed);
        for (at, (service, doubt)) in candidates.enumerate() {
            let next = said.get(&service).map_or(&[][..], |next| &**next);
            let is_over = now.saturating_duration_since(doubt.since) >= self.patience();
            let is_believed = at >= known && is_certain && !next.is_empty();
            if is_over || is_believed || !self.is_doubtful(doubt.before.len(), next.len()) {
                continue;
            }
            if at >= known {
                self.doubted += 1;
                tracing::warn!(
                    service = &*service,
                    known = doubt.before.len(),
                    said = next.len(),
                    "most nodes of a service disappeared at once: they stay in use for `discovery.protection.believed_after_ms`"
                );
            }
            admitted.insert(Arc::clone(&service), both(&doubt.before, next));
            self.doubts.insert(service, doubt);
        }
        admitted
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.believed_after_ms.into())
    }

    fn is_doubtful(&self, before: usize, after: usize) -> bool {
        let vanished = before.saturating_sub(after) as u64;
        vanished * 100 > before as u64 * u64::from(self.settings.max_vanished_percent)
    }
}

/// Merges both lists; common nodes come from the second.
fn both(before: &[Node], after: &[Node]) -> Arc<[Node]> {
    let named: HashSet<(&str, Option<u16>)> = after.iter().map(|node| (&*node.host, node.port)).collect();
    let gone = before.iter().filter(|node| !named.contains(&(&*node.host, node.port)));
    after.iter().chain(gone).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(services: &[(&str, &[&str])]) -> Listing {
        let nodes = |hosts: &[&str]| -> Arc<[Node]> {
            hosts.iter().map(|host| Node { host: (*host).into(), weight: 1, ..Node::default() }).collect()
        };
        services.iter().map(|(name, hosts)| ((*name).into(), nodes(hosts))).collect()
    }

    fn hosts(listing: &Listing, service: &str) -> Vec<String> {
        listing.get(service).into_iter().flat_map(|nodes| nodes.iter()).map(|n| n.host.to_string()).collect()
    }

    /// A guard with a limit of 10 s, the list in use, and the seconds since the start.
    struct Run {
        guard: Guard,
        served: Listing,
        start: Instant,
    }

    impl Run {
        fn new(max_vanished_percent: u8, first: &[(&str, &[&str])]) -> Run {
            let settings = Protection { max_vanished_percent, believed_after_ms: 10_000 };
            let mut run = Run { guard: Guard::new(settings), served: Listing::new(), start: Instant::now() };
            run.says(0, first);
            run
        }

        fn says(&mut self, second: u64, said: &[(&str, &[&str])]) -> &Listing {
            let now = self.start + Duration::from_secs(second);
            self.served = self.guard.admit(now, &self.served, &listing(said), false);
            &self.served
        }

        fn names(&mut self, second: u64, said: &[(&str, &[&str])]) -> &Listing {
            let now = self.start + Duration::from_secs(second);
            self.served = self.guard.admit(now, &self.served, &listing(said), true);
            &self.served
        }
    }

    #[test]
    fn an_empty_list_is_used_after_a_while() {
        let mut run = Run::new(80, &[("web", &["a", "b"]), ("api", &["c"])]);
        assert_eq!(run.guard.due(), None);
        let web = |run: &Run| hosts(&run.served, "web");
        run.says(1, &[("web", &[]), ("api", &["c"])]);
        assert_eq!(web(&run), ["a", "b"]);
        assert_eq!(run.guard.due(), Some(run.start + Duration::from_secs(11)));
        assert_eq!(run.guard.doubts(), (1, 1));
        // A missing service has no nodes.
        run.says(10, &[("api", &["c", "d"])]);
        assert_eq!(
            (web(&run), hosts(&run.served, "api")),
            (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()])
        );
        run.says(11, &[("api", &["c"])]);
        assert!(!run.served.contains_key("web"));
        assert_eq!(run.guard.due(), None);
        assert_eq!(run.guard.doubts(), (0, 1));
    }

    #[test]
    fn a_list_that_comes_back_ends_the_doubt() {
        let mut run = Run::new(50, &[("web", &["a", "b", "c"])]);
        run.says(1, &[("web", &["a"])]);
        assert_eq!(hosts(&run.served, "web"), ["a", "b", "c"]);
        run.says(5, &[("web", &["a", "c"])]);
        assert_eq!(hosts(&run.served, "web"), ["a", "c"]);
        assert_eq!(run.guard.due(), None);
        // Another doubt starts again.
        run.says(8, &[]);
        run.says(17, &[]);
        assert_eq!(hosts(&run.served, "web"), ["a", "c"]);
        run.says(18, &[]);
        assert_eq!(hosts(&run.served, "web"), [""; 0]);
    }

    #[test]
    fn replaced_nodes_are_accepted_and_new_ones_are_used() {
        let mut run = Run::new(80, &[("web", &["a", "b", "c", "d", "e", "f"])]);
        run.says(1, &[("web", &["g", "h", "i", "j", "k", "l"])]);
        assert_eq!(hosts(&run.served, "web"), ["g", "h", "i", "j", "k", "l"]);
        run.says(2, &[("web", &["m"])]);
        assert_eq!(hosts(&run.served, "web"), ["m", "g", "h", "i", "j", "k", "l"]);
        // Nodes that come and go meanwhile do not pile up.
        run.says(3, &[("web", &["n"])]);
        assert_eq!(hosts(&run.served, "web"), ["n", "g", "h", "i", "j", "k", "l"]);
        run.says(12, &[("web", &["n"])]);
        assert_eq!(hosts(&run.served, "web"), ["n"]);
    }

    #[test]
    fn named_removals_are_accepted_unless_no_node_is_left() {
        let six: &[&str] = &["a", "b", "c", "d", "e", "f"];
        let mut run = Run::new(80, &[("web", six), ("api", &["x"])]);
        run.names(1, &[("web", &["a"]), ("api", &["x"])]);
        assert_eq!(hosts(&run.served, "web"), ["a"]);
        assert_eq!(run.guard.doubts(), (0, 0));
        run.names(2, &[("web", &["a"])]);
        assert_eq!(hosts(&run.served, "api"), ["x"], "the last node of a service");
        // A doubt about a list that was read does not end with a message about another service.
        run.says(3, &[("web", six)]);
        run.says(4, &[("web", &["a"])]);
        run.names(5, &[("web", &["a"]), ("new", &["y"])]);
        assert_eq!(hosts(&run.served, "web").len(), 6);
        run.names(14, &[("web", &["a"]), ("new", &["y"])]);
        assert_eq!(hosts(&run.served, "web"), ["a"]);
    }

    #[test]
    fn an_unchanged_list_stays_the_same() {
        let mut run = Run::new(80, &[("web", &["a"]), ("api", &["b"])]);
        let before = run.served.clone();
        run.says(1, &[("web", &["a"]), ("api", &["b", "c"])]);
        assert!(Arc::ptr_eq(&before["web"], &run.served["web"]));
        assert!(!Arc::ptr_eq(&before["api"], &run.served["api"]));
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut run = Run::new(100, &[("web", &["a"])]);
        run.says(1, &[]);
        assert!(run.served.is_empty());
        let mut run = Run::new(0, &[("web", &["a", "b"])]);
        run.says(1, &[("web", &["a"])]);
        assert_eq!(hosts(&run.served, "web"), ["a", "b"]);
    }
}
