//! Entries that take turns by weight, in each worker for itself.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sigma_plugin::Local;

/// Entries with their weights.
pub struct Entries<T> {
    list: Vec<(T, u64)>,
    step: u64,
    heaviest: u64,
}

impl<T: 'static> Entries<T> {
    /// Makes the turns of these entries, each with its weight.
    pub fn new(list: Vec<(T, u64)>) -> Entries<T> {
        let step = list.iter().fold(0, |step, (_, weight)| gcd(step, *weight));
        let heaviest = list.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        Entries { list, step, heaviest }
    }

    /// Returns the next entry in this worker. None without entries.
    pub fn next<'e>(self: &'e Arc<Self>, local: &Local) -> Option<&'e T> {
        if let [] | [_] = &self.list[..] {
            return self.list.first().map(|(entry, _)| entry);
        }
        let turns = local.part(Turns::<T>::default);
        let mut turns = turns.0.borrow_mut();
        let address = Arc::as_ptr(self).addr();
        if !turns.contains_key(&address) {
            turns.retain(|_, (entries, _)| entries.strong_count() > 0);
            // Workers do not all begin with the same one.
            let at = (local.random() % self.list.len() as u64) as usize;
            turns.insert(address, (Arc::downgrade(self), Turn { at, bar: self.heaviest }));
        }
        turns.get_mut(&address).map(|(_, turn)| self.after(turn))
    }

    /// Returns the next in turn: the heavier an entry, the earlier in a round it joins in.
    fn after(&self, turn: &mut Turn) -> &T {
        loop {
            while let Some((entry, weight)) = self.list.get(turn.at) {
                turn.at += 1;
                if *weight >= turn.bar {
                    return entry;
                }
            }
            // Every round lets the heaviest pass, so this ends.
            turn.at = 0;
            turn.bar = match turn.bar.checked_sub(self.step) {
                None | Some(0) => self.heaviest,
                Some(bar) => bar,
            };
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The position of one worker in the rounds of some entries.
struct Turn {
    at: usize,
    /// Weight from which entries are chosen in this round.
    bar: u64,
}

/// The turns of one worker, by the address of the entries, which stays reserved as long as the weak reference exists.
struct Turns<T>(RefCell<HashMap<usize, TurnOf<T>>>);

type TurnOf<T> = (Weak<Entries<T>>, Turn);

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns(RefCell::default())
    }
}
