//! The candidates at one key, in the order in which they are tried.

use std::slice;
use std::sync::Arc;

use super::candidate::{Candidate, Rank};
use super::tree::{ARC_BYTES, Content, KeyKind};

/// Most candidates of a [`Chunk`], and so the most that an edit copies.
const CHUNK_LEN: usize = 64;

/// Candidates of a key. Nearly all keys have one.
#[derive(Debug, Clone, Default)]
pub(super) enum Candidates {
    #[default]
    None,
    One(KeyKind, Candidate),
    Many(Arc<Runs>),
}

/// Both kinds of keys that are written alike, `/a` and `/a*`.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    exact: Run,
    prefix: Run,
}

type Chunk = Arc<Vec<Candidate>>;

/// Candidates in order of rank, in chunks that are shared as long as they are the same. Chunks
/// are never empty. Small ones are not joined: the next candidate of their rank fills them.
#[derive(Debug, Clone, Default)]
struct Run {
    chunks: Vec<Chunk>,
}

impl Candidates {
    /// Adds a candidate in its order.
    pub(super) fn insert(&mut self, kind: KeyKind, candidate: Candidate) {
        match std::mem::take(self) {
            Candidates::None => *self = Candidates::One(kind, candidate),
            Candidates::One(other_kind, other) => {
                let mut runs = Runs::default();
                runs.of_mut(other_kind).insert(other);
                runs.of_mut(kind).insert(candidate);
                *self = Candidates::Many(Arc::new(runs));
            }
            Candidates::Many(mut runs) => {
                Arc::make_mut(&mut runs).of_mut(kind).insert(candidate);
                *self = Candidates::Many(runs);
            }
        }
    }

    /// Removes the candidate with this rank, if there is one.
    pub(super) fn remove(&mut self, kind: KeyKind, rank: &Rank) {
        match self {
            Candidates::None => {}
            Candidates::One(own_kind, candidate) => {
                if *own_kind == kind && candidate.rank() == *rank {
                    *self = Candidates::None;
                }
            }
            Candidates::Many(runs) => {
                let runs = Arc::make_mut(runs);
                runs.of_mut(kind).remove(rank);
                if let Some((kind, last)) = runs.single() {
                    *self = Candidates::One(kind, last.clone());
                }
            }
        }
    }

    /// Returns the candidates of one kind of key.
    #[inline]
    pub(super) fn of(&self, kind: KeyKind) -> Iter<'_> {
        let (chunk, rest): (&[Candidate], &[Chunk]) = match self {
            Candidates::One(own_kind, candidate) if *own_kind == kind => (slice::from_ref(candidate), &[]),
            Candidates::Many(runs) => (&[], &runs.of(kind).chunks),
            Candidates::None | Candidates::One(..) => (&[], &[]),
        };
        Iter { chunk: chunk.iter(), rest: rest.iter() }
    }
}

impl Content for Candidates {
    #[inline]
    fn has(&self, kind: KeyKind) -> bool {
        match self {
            Candidates::None => false,
            Candidates::One(own_kind, _) => *own_kind == kind,
            Candidates::Many(runs) => !runs.of(kind).chunks.is_empty(),
        }
    }

    fn heap_bytes(&self) -> usize {
        let Candidates::Many(runs) = self else { return 0 };
        let of_chunk =
            |chunk: &Chunk| ARC_BYTES + size_of_val(chunk) + chunk.capacity() * size_of::<Candidate>();
        let of_run = |run: &Run| {
            run.chunks.capacity() * size_of::<Chunk>() + run.chunks.iter().map(of_chunk).sum::<usize>()
        };
        ARC_BYTES + size_of::<Runs>() + of_run(&runs.exact) + of_run(&runs.prefix)
    }
}

impl Runs {
    #[inline]
    fn of(&self, kind: KeyKind) -> &Run {
        match kind {
            KeyKind::Exact => &self.exact,
            KeyKind::Prefix => &self.prefix,
        }
    }

    fn of_mut(&mut self, kind: KeyKind) -> &mut Run {
        match kind {
            KeyKind::Exact => &mut self.exact,
            KeyKind::Prefix => &mut self.prefix,
        }
    }

    /// Returns the only candidate, if there is exactly one.
    fn single(&self) -> Option<(KeyKind, &Candidate)> {
        let (kind, chunks) = match (self.exact.chunks.as_slice(), self.prefix.chunks.as_slice()) {
            (chunks, []) => (KeyKind::Exact, chunks),
            ([], chunks) => (KeyKind::Prefix, chunks),
            _ => return None,
        };
        let [chunk] = chunks else { return None };
        let [candidate] = chunk.as_slice() else { return None };
        Some((kind, candidate))
    }
}

impl Run {
    fn insert(&mut self, candidate: Candidate) {
        let rank = candidate.rank();
        let Some(mut index) = self.chunk_of(&rank) else {
            self.chunks.push(Arc::new(vec![candidate]));
            return;
        };
        let mut chunk = Arc::make_mut(&mut self.chunks[index]);
        let mut at = chunk.partition_point(|other| other.rank() < rank);
        if chunk.len() >= CHUNK_LEN {
            let upper = chunk.split_off(CHUNK_LEN / 2);
            chunk.shrink_to_fit();
            self.chunks.insert(index + 1, Arc::new(upper));
            if at > CHUNK_LEN / 2 {
                at -= CHUNK_LEN / 2;
                index += 1;
            }
            chunk = Arc::make_mut(&mut self.chunks[index]);
        }
        chunk.insert(at, candidate);
    }

    fn remove(&mut self, rank: &Rank) {
        let Some(index) = self.chunk_of(rank) else { return };
        let Ok(at) = self.chunks[index].binary_search_by_key(rank, Candidate::rank) else { return };
        if self.chunks[index].len() == 1 {
            self.chunks.remove(index);
        } else {
            Arc::make_mut(&mut self.chunks[index]).remove(at);
        }
    }

    /// Returns the chunk of a candidate of this rank: the last that does not begin after it.
    fn chunk_of(&self, rank: &Rank) -> Option<usize> {
        let begins_behind = |chunk: &Chunk| chunk.first().is_some_and(|first| first.rank() > *rank);
        let behind = self.chunks.partition_point(|chunk| !begins_behind(chunk));
        (!self.chunks.is_empty()).then(|| behind.saturating_sub(1))
    }
}

/// The candidates of a key, first come first tried.
#[derive(Debug)]
pub(super) struct Iter<'a> {
    chunk: slice::Iter<'a, Candidate>,
    rest: slice::Iter<'a, Chunk>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Candidate;

    #[inline]
    fn next(&mut self) -> Option<&'a Candidate> {
        loop {
            if let Some(candidate) = self.chunk.next() {
                return Some(candidate);
            }
            self.chunk = self.rest.next()?.iter();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::super::candidate::{MethodSet, PathCheck};
    use super::*;

    fn candidate(priority: i64, route: u32) -> Candidate {
        Candidate {
            route,
            uri: 0,
            priority,
            pattern_len: 1,
            order: u64::from(route),
            conditions: None,
            path: PathCheck::Free,
            methods: MethodSet::ANY,
            method_not_allowed: false,
        }
    }

    #[test]
    fn one_candidate_needs_no_memory_of_its_own() {
        assert_eq!(size_of::<Candidates>(), 64);
        let mut candidates = Candidates::default();
        candidates.insert(KeyKind::Exact, candidate(0, 1));
        assert_eq!(candidates.heap_bytes(), 0);
        candidates.insert(KeyKind::Prefix, candidate(0, 2));
        assert!(candidates.heap_bytes() > 0);
        candidates.remove(KeyKind::Prefix, &candidate(0, 1).rank());
        candidates.remove(KeyKind::Exact, &candidate(0, 1).rank());
        assert_eq!(candidates.heap_bytes(), 0);
        assert!(candidates.has(KeyKind::Prefix) && !candidates.has(KeyKind::Exact));
    }

    proptest! {
        #[test]
        fn stay_in_order(edits in prop::collection::vec((0i64..3, 0u32..400, prop::bool::ANY, prop::bool::weighted(0.7)), 0..1500)) {
            let mut candidates = Candidates::default();
            let mut expected = [Vec::new(), Vec::new()];
            let mut earlier = Vec::new();
            for (step, (priority, route, exact, stays)) in edits.into_iter().enumerate() {
                let kind = if exact { KeyKind::Exact } else { KeyKind::Prefix };
                let list = &mut expected[kind as usize];
                let at = list.binary_search(&(Reverse(priority), route));
                match (stays, at) {
                    (true, Err(at)) => {
                        list.insert(at, (Reverse(priority), route));
                        candidates.insert(kind, candidate(priority, route));
                    }
                    (true, Ok(_)) => {}
                    (false, at) => {
                        at.map(|at| list.remove(at)).ok();
                        candidates.remove(kind, &candidate(priority, route).rank());
                    }
                }
                if step % 300 == 0 {
                    earlier.push((candidates.clone(), expected.clone()));
                }
            }
            earlier.push((candidates, expected));
            for (candidates, expected) in earlier {
                for kind in [KeyKind::Exact, KeyKind::Prefix] {
                    let found: Vec<_> = candidates.of(kind).map(|one| (Reverse(one.priority), one.route)).collect();
                    prop_assert_eq!(&found, &expected[kind as usize]);
                    prop_assert_eq!(candidates.has(kind), !found.is_empty());
                }
            }
        }
    }
}
