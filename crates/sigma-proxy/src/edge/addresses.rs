//! Open connections by address, over all workers.
//!
//! Addresses are not stored. Each is counted in two tables, at positions given by a secret hash. So memory is bounded
//! for any clients, and there is no lock. A position may be shared, and then shows too many, never too few. An
//! address is rejected early only if others crowd both of its positions, and no client can find such an address on
//! purpose.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The positions of one table: as many as the clients of a busy gateway, so that few share one. Both tables are half
/// a MiB.
const PLACES: usize = 1 << 16;

/// The counts of all addresses; they take no memory until the first one.
#[derive(Default)]
pub(crate) struct Addresses(OnceLock<Tables>);

struct Tables([(Box<[AtomicU32]>, RandomState); 2]);

/// The positions of a connection's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressPositions([u16; 2]);

impl Default for Tables {
    fn default() -> Tables {
        let table = || ((0..PLACES).map(|_| AtomicU32::new(0)).collect(), RandomState::new());
        Tables([table(), table()])
    }
}

impl Tables {
    fn counts(&self, AddressPositions([first, second]): AddressPositions) -> [&AtomicU32; 2] {
        // A table has as many positions as there are numbers of 16 bits.
        [&self.0[0].0[usize::from(first)], &self.0[1].0[usize::from(second)]]
    }
}

impl Addresses {
    /// Adds a connection, if its address has at most `most` with it.
    ///
    /// All present connections were counted in both tables before their check, so the last check has seen the others:
    /// there are never more than `most`. Of several that reach the last free position at the same moment, all may be
    /// rejected.
    fn enter(&self, ip: IpAddr, most: u32) -> Option<AddressPositions> {
        let tables = self.0.get_or_init(Tables::default);
        let network = network(ip);
        let hashed = |hasher: &RandomState| (hasher.hash_one(network) >> 32) as u16;
        let [(_, first), (_, second)] = &tables.0;
        let place = AddressPositions([hashed(first), hashed(second)]);
        let counts = tables.counts(place);
        for count in counts {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let seen = counts.iter().map(|count| count.load(Ordering::SeqCst)).min();
        if seen.is_some_and(|seen| seen <= most) {
            return Some(place);
        }
        self.leave(place);
        None
    }

    /// Removes a connection.
    fn leave(&self, place: AddressPositions) {
        let Some(tables) = self.0.get() else { return };
        for count in tables.counts(place) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A connection of an address, which counts until this is dropped.
pub(crate) struct Counted(Arc<Addresses>, AddressPositions);

impl Counted {
    /// Adds a connection; None if its address is at its limit.
    pub(crate) fn new(addresses: &Arc<Addresses>, ip: IpAddr, most: u32) -> Option<Counted> {
        Some(Counted(Arc::clone(addresses), addresses.enter(ip, most)?))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// Returns the network of an address: itself, or with IPv6 the /64 network of a customer.
fn network(ip: IpAddr) -> (u8, u64) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => (4, u64::from(u32::from(ip))),
        IpAddr::V6(ip) => (6, (u128::from(ip) >> 64) as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn addresses_and_networks() {
        let addresses = Addresses::default();
        let enter = |ip: &str| addresses.enter(ip.parse().unwrap(), 2);
        let first = enter("192.0.2.1").unwrap();
        assert!(enter("::ffff:192.0.2.1").is_some());
        assert_eq!(enter("192.0.2.1"), None);
        assert!(enter("192.0.2.2").is_some());
        addresses.leave(first);
        assert!(enter("192.0.2.1").is_some());
        // An IPv6 network counts as one.
        assert!(enter("2001:db8::1").is_some() && enter("2001:db8::2").is_some());
        assert_eq!(enter("2001:db8:0:0:ffff::"), None);
        assert!(enter("2001:db8:0:1::1").is_some());
        // An IPv6 address with the same bits is another address.
        assert!(enter("0:0:0:0:c000:201::").is_some());
    }

    #[test]
    fn a_crowd_of_addresses_takes_no_memory_and_blocks_few() {
        let addresses = Addresses::default();
        let mut places = Vec::new();
        for number in 0..20_000u32 {
            let ip = IpAddr::V4((0x0a00_0000 + number).into());
            places.extend((0..4).filter_map(|_| addresses.enter(ip, 4)));
        }
        // Two crowded positions of one address are rare, and none has more than four.
        assert!((70_000..=80_000).contains(&places.len()), "{}", places.len());
        places.into_iter().for_each(|place| addresses.leave(place));
        let tables = addresses.0.get().unwrap();
        assert!(
            tables.0.iter().all(|(counts, _)| counts.iter().all(|count| count.load(Ordering::SeqCst) == 0))
        );
    }

    /// For any interleaving of workers, the limit holds, and all positions are free at the end.
    #[test]
    fn the_limit_holds_over_any_interleaving() {
        for most in [1, 3] {
            let (addresses, inside) = (Addresses::default(), AtomicU32::new(0));
            let ip: IpAddr = "192.0.2.1".parse().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        for _ in 0..20_000 {
                            let Some(place) = addresses.enter(ip, most) else { continue };
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < most);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            addresses.leave(place);
                        }
                    });
                }
            });
            let again: Vec<_> = (0..=most).map(|_| addresses.enter(ip, most)).collect();
            assert_eq!(again.iter().flatten().count(), most as usize);
        }
    }
}
