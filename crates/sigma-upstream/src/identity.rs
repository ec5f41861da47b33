//! Identities of endpoints: small numbers that index tables, and are reused.
//!
//! An identity belongs to the holders of a [`Lease`] on it. After the last lease, the number may go to another
//! endpoint, with another generation: a table with an old entry detects that by comparing [`EndpointId`]s.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, Weak};

use sigma_config::resources::Scheme;

use crate::lock::lock;

/// The name of an endpoint in tables of workers. Equal ones mean the same endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndpointId {
    index: u32,
    /// Never 0, so that an optional identity has the same size.
    generation: NonZeroU32,
}

impl EndpointId {
    /// Returns a dense number, unique among existing endpoints.
    #[inline]
    pub fn index(self) -> usize {
        self.index as usize
    }

    #[cfg(test)]
    pub(crate) fn numbered(index: usize) -> EndpointId {
        EndpointId { index: u32::try_from(index).expect("a small number"), generation: NonZeroU32::MIN }
    }
}

/// The right to an identity. While a clone of it exists, the identity means the same endpoint.
#[derive(Debug, Clone)]
pub struct Lease {
    id: EndpointId,
    held: Arc<()>,
}

impl Lease {
    /// Returns the identity.
    #[inline]
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns a watch that reports the end of the last lease, without being a lease.
    pub fn watch(&self) -> LeaseWatch {
        LeaseWatch { id: self.id, held: Arc::downgrade(&self.held) }
    }

    #[cfg(test)]
    pub(crate) fn numbered(index: usize) -> Lease {
        Lease { id: EndpointId::numbered(index), held: Arc::default() }
    }
}

/// A weak reference to an identity in a table.
#[derive(Debug, Clone)]
pub struct LeaseWatch {
    id: EndpointId,
    held: Weak<()>,
}

impl LeaseWatch {
    /// Returns the identity.
    #[inline]
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns true if the endpoint is gone. It does not come back.
    pub fn is_over(&self) -> bool {
        self.held.strong_count() == 0
    }
}

/// The properties that identify an endpoint.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    scheme: u8,
    host: String,
    /// 0 for unix sockets.
    port: u16,
    /// One of several addresses of a name; None if the host is enough.
    address: Option<IpAddr>,
}

/// The identities of the process. Making one takes a lock: workers do so only for destinations that their clients choose.
///
/// The end of a lease does nothing here, as it may be on a worker: identities without a lease are found when new ones
/// are made. There are at most as many of them as live ones, so the table and the numbers in use are bounded.
#[derive(Debug, Default)]
pub struct EndpointIds {
    table: Mutex<Table>,
}

/// Below this number of identities there is no sweep.
const SWEEP_MIN: usize = 64;

#[derive(Debug)]
struct Table {
    known: HashMap<Identity, LeaseWatch>,
    /// Free numbers below `indices`; the lowest is used first, so that tables can shrink.
    free: BinaryHeap<Reverse<u32>>,
    /// The highest number ever in use.
    indices: u32,
    /// The generation of the next identity. It wraps after four billion identities; no table keeps an entry that
    /// long.
    generation: NonZeroU32,
    /// The number of identities that starts a sweep.
    sweep_at: usize,
}

impl EndpointIds {
    /// Returns a lease on the identity of this endpoint: the existing one while it is leased, else a new one.
    /// `address` separates the addresses of one name.
    pub fn lease(&self, scheme: Scheme, host: &str, port: u16, address: Option<IpAddr>) -> Lease {
        let identity = Identity { scheme: scheme as u8, host: host.to_owned(), port, address };
        let mut table = lock(&self.table);
        if let Some(known) = table.known.get(&identity)
            && let Some(held) = known.held.upgrade()
        {
            return Lease { id: known.id, held };
        }
        table.add(identity)
    }

    /// Returns the number of leased identities.
    pub fn live(&self) -> usize {
        let mut table = lock(&self.table);
        table.sweep();
        table.known.len()
    }

    /// Returns the largest number of concurrent identities: the size limit of tables indexed by them.
    pub fn indices(&self) -> usize {
        lock(&self.table).indices as usize
    }
}

impl Default for Table {
    fn default() -> Table {
        Table {
            known: HashMap::new(),
            free: BinaryHeap::new(),
            indices: 0,
            generation: NonZeroU32::MIN,
            sweep_at: SWEEP_MIN,
        }
    }
}

impl Table {
    fn add(&mut self, identity: Identity) -> Lease {
        if self.known.len() >= self.sweep_at {
            self.sweep();
        }
        let index = self.free.pop().map_or_else(
            || {
                self.indices += 1;
                self.indices - 1
            },
            |Reverse(index)| index,
        );
        let id = EndpointId { index, generation: self.generation };
        self.generation = self.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let lease = Lease { id, held: Arc::default() };
        if let Some(former) = self.known.insert(identity, lease.watch()) {
            self.free.push(Reverse(former.id.index));
        }
        lease
    }

    /// Frees the numbers of identities without a lease. The next sweep is after as many new ones as are left now, so
    /// that the cost is constant for each.
    fn sweep(&mut self) {
        let free = &mut self.free;
        self.known.retain(|_, known| {
            let over = known.is_over();
            if over {
                free.push(Reverse(known.id.index));
            }
            !over
        });
        self.sweep_at = (self.known.len() * 2).max(SWEEP_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ids: &EndpointIds, host: &str) -> Lease {
        ids.lease(Scheme::Http, host, 80, None)
    }

    #[test]
    fn an_identity_is_small() {
        assert_eq!((size_of::<EndpointId>(), size_of::<Option<EndpointId>>()), (8, 8));
    }

    #[test]
    fn every_identifying_property_counts() {
        let ids = EndpointIds::default();
        let ip = |last| Some(IpAddr::from([10, 0, 0, last]));
        let leases = [
            ids.lease(Scheme::Http, "a", 80, None),
            ids.lease(Scheme::Https, "a", 80, None),
            ids.lease(Scheme::Http, "a", 81, None),
            ids.lease(Scheme::Http, "b", 80, None),
            ids.lease(Scheme::Http, "a", 80, ip(1)),
            ids.lease(Scheme::Http, "a", 80, ip(2)),
        ];
        let indices: Vec<usize> = leases.iter().map(|lease| lease.id().index()).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
        assert_eq!(ids.lease(Scheme::Http, "a", 80, ip(1)).id(), leases[4].id());
    }

    #[test]
    fn the_last_lease_ends_an_identity_for_good() {
        let ids = EndpointIds::default();
        let first = lease(&ids, "a");
        let (again, watch) = (lease(&ids, "a"), first.watch());
        assert_eq!(again.id(), first.id());
        drop(first);
        assert!(!watch.is_over());
        drop(again);
        assert!(watch.is_over());
        let second = lease(&ids, "a");
        assert!(watch.is_over() && second.id() != watch.id());
        assert_eq!(ids.live(), 1);
    }

    #[test]
    fn numbers_are_reused_but_never_shared() {
        let ids = EndpointIds::default();
        let staying: Vec<Lease> = (0..10).map(|n| lease(&ids, &format!("stays{n}"))).collect();
        for n in 0..10_000 {
            let comes = lease(&ids, &format!("comes{n}"));
            assert!(staying.iter().all(|stays| stays.id().index() != comes.id().index()));
        }
        assert_eq!(ids.live(), 10);
        assert!(ids.indices() <= SWEEP_MIN, "{}", ids.indices());
        let many: Vec<Lease> = (0..1000).map(|n| lease(&ids, &format!("many{n}"))).collect();
        let mut indices: Vec<usize> = staying.iter().chain(&many).map(|lease| lease.id().index()).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!((indices.len(), ids.live()), (1010, 1010));
    }
}
