//! Exemplars: for each bucket of a histogram a request that fell into it, by its span.
//!
//! A worker has its own and is the only one to write them. A page may read one while it is written: then it
//! leaves out the exemplar of that bucket. There is no memory for them before the first sampled request of a
//! series.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::shared::w3c::SpanContext;

/// A request that was observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exemplar {
    pub(super) span: SpanContext,
    pub(super) value: f64,
    /// When, since 1970.
    pub(super) at: Duration,
}

/// How many series may have exemplars; those that do hold a place each.
#[derive(Debug)]
pub(super) struct Places {
    taken: Arc<()>,
    most: usize,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { taken: Arc::default(), most }
    }

    fn take(&self) -> Option<Arc<()>> {
        // One is its own.
        (Arc::strong_count(&self.taken) <= self.most).then(|| Arc::clone(&self.taken))
    }
}

/// The exemplars of a histogram.
#[derive(Debug, Default)]
pub(super) struct Exemplars(OnceLock<Box<ExemplarSet>>);

#[derive(Debug)]
struct ExemplarSet {
    by_bucket: Box<[Slot]>,
    /// Given back with the series.
    _place: Arc<()>,
}

impl Exemplars {
    /// Replaces the exemplar in `bucket` of so many by `exemplar`. Nothing happens where no further series
    /// may have some. Owning thread only.
    pub(super) fn put(&self, places: &Places, buckets: usize, bucket: usize, exemplar: &Exemplar) {
        let kept = match self.0.get() {
            Some(kept) => kept,
            None => {
                let Some(place) = places.take() else { return };
                let by_bucket = (0..buckets).map(|_| Slot::default()).collect();
                self.0.get_or_init(|| Box::new(ExemplarSet { by_bucket, _place: place }))
            }
        };
        kept.by_bucket[bucket].write(exemplar);
    }

    pub(super) fn get(&self, bucket: usize) -> Option<Exemplar> {
        self.0.get()?.by_bucket.get(bucket)?.read()
    }
}

/// Room for one exemplar.
#[derive(Debug, Default)]
struct Slot {
    /// 0 before the first one; odd while one is written.
    turn: AtomicU64,
    words: [AtomicU64; 5],
}

impl Slot {
    fn write(&self, exemplar: &Exemplar) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // A reader of any word of this one sees the odd turn.
        fence(Ordering::Release);
        let words = words(exemplar);
        self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    fn read(&self) -> Option<Exemplar> {
        let turn = self.turn.load(Ordering::Acquire);
        if turn == 0 || turn % 2 == 1 {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.turn.load(Ordering::Relaxed) == turn).then(|| exemplar(words))
    }
}

fn words(exemplar: &Exemplar) -> [u64; 5] {
    let trace = u128::from_be_bytes(exemplar.span.trace.bytes());
    let at = u64::try_from(exemplar.at.as_millis()).unwrap_or(u64::MAX);
    let span = u64::from_be_bytes(exemplar.span.span.bytes());
    [(trace >> 64) as u64, trace as u64, span, exemplar.value.to_bits(), at]
}

fn exemplar([high, low, span, value, at]: [u64; 5]) -> Exemplar {
    let trace = u128::from(high) << 64 | u128::from(low);
    Exemplar {
        span: SpanContext::sampled(trace.to_be_bytes(), span.to_be_bytes()),
        value: f64::from_bits(value),
        at: Duration::from_millis(at),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn numbered(number: u64) -> Exemplar {
        exemplar([number, !number, number, (number as f64).to_bits(), number])
    }

    #[test]
    fn the_last_one_of_a_bucket_stays() {
        let (exemplars, places) = (Exemplars::default(), Places::new(1));
        assert_eq!(exemplars.get(0), None);
        for number in 1..=3 {
            exemplars.put(&places, 2, 1, &numbered(number));
        }
        assert_eq!((exemplars.get(0), exemplars.get(1), exemplars.get(2)), (None, Some(numbered(3)), None));
    }

    #[test]
    fn series_beyond_the_limit_get_exemplars_after_others_end() {
        let (places, one) = (Places::new(1), numbered(1));
        let (first, second) = (Exemplars::default(), Exemplars::default());
        first.put(&places, 1, 0, &one);
        second.put(&places, 1, 0, &one);
        assert!(first.get(0).is_some() && second.0.get().is_none());
        drop(first);
        second.put(&places, 1, 0, &one);
        assert_eq!(second.get(0), Some(one));
        let none = Exemplars::default();
        none.put(&Places::new(0), 1, 0, &one);
        assert!(none.0.get().is_none());
    }

    /// A page that reads while a worker writes reads whole exemplars.
    #[test]
    fn none_is_read_in_part() {
        let (exemplars, is_over) = (Exemplars::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let places = Places::new(1);
                for number in 1..200_000 {
                    exemplars.put(&places, 1, 0, &numbered(number));
                }
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                if let Some(read) = exemplars.get(0) {
                    assert_eq!(read, numbered(read.value as u64));
                }
            }
        });
        assert_eq!(exemplars.get(0), Some(numbered(199_999)));
    }
}
