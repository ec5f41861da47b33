//! Native histograms of Prometheus: buckets whose bounds follow from a schema, of which only the used ones
//! are written.
//!
//! Bucket `i` of the schema `s` counts values above 2^((i−1)/2^s) and at most 2^(i/2^s); one schema less
//! joins two buckets to one. A worker has its own histogram and is the only one to write it. Its buckets are
//! a window of cells that grows with the observed values. Where it would be larger than its limit, all
//! buckets are joined in pairs and the schema is one less: values far apart cost precision, never memory. A
//! page that reads meanwhile reads again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};

use super::cell::Cell;

/// Schemas that Prometheus has.
pub(super) const COARSEST: i32 = -4;
pub(super) const FINEST: i32 = 8;
/// Values up to this one count as zero. In milliseconds it is a bit less than a microsecond, so that a
/// clock's last digits take up no buckets.
pub(super) const ZERO: f64 = 1.0 / 1024.0;
/// All values between [`ZERO`] and [`MOST`] are in so many buckets of the coarsest schema.
pub(super) const FEWEST: usize = 4;
/// Values above this one count as this: 34 years in milliseconds.
const MOST: f64 = (1_u64 << 40) as f64;

/// How values become buckets; the same for all histograms.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    /// The schema that histograms begin with.
    schema: i32,
    /// Cells of a histogram.
    limit: usize,
    /// The upper bounds of the buckets between ½ and 1, those included; of schemas below 0 as of 0.
    bounds: Box<[f64]>,
}

impl Scale {
    pub(super) fn new(schema: i32, limit: usize) -> Scale {
        let schema = schema.clamp(COARSEST, FINEST);
        let parts = 1_i32 << schema.max(0);
        let bounds = (0..parts).map(|part| (f64::from(part) / f64::from(parts) - 1.0).exp2()).collect();
        Scale { schema, limit: limit.max(FEWEST), bounds }
    }

    /// The bucket of a value above [`ZERO`].
    fn bucket(&self, value: f64) -> i32 {
        /// Bits of a float behind its exponent.
        const FRACTION: u64 = (1 << 52) - 1;
        // value = fraction · 2^exponent, with ½ ≤ fraction < 1.
        let bits = value.min(MOST).to_bits();
        let exponent = (bits >> 52) as i32 - 1022;
        let fraction = f64::from_bits(bits & FRACTION | 1022 << 52);
        let part = self.bounds.partition_point(|bound| *bound < fraction);
        joined(part as i32 + (exponent - 1) * self.bounds.len() as i32, (-self.schema).max(0) as u32)
    }
}

/// The bucket that holds this one `times` schemas below.
fn joined(bucket: i32, times: u32) -> i32 {
    (bucket + (1 << times) - 1) >> times
}

/// A histogram that one thread writes. It has no memory for buckets before the first observation.
#[derive(Debug, Default)]
pub(super) struct Native(OnceLock<Box<ThreadHistogram>>);

#[derive(Debug)]
struct ThreadHistogram {
    zero: Cell,
    /// The bucket `i` is the cell `i` modulo their number.
    cells: Box<[Cell]>,
    /// The first bucket and the one behind the last.
    start: AtomicI32,
    end: AtomicI32,
    /// How many schemas it is below the one that it began with.
    below: AtomicU32,
    /// Odd while buckets are joined.
    turn: AtomicU32,
}

impl Native {
    /// Owning thread only.
    pub(super) fn observe(&self, scale: &Scale, value: f64) {
        let kept = self.0.get_or_init(|| ThreadHistogram::new(scale.limit));
        // NaN is not above it either.
        if value > ZERO {
            kept.add(scale.bucket(value));
        } else {
            kept.zero.add(1);
        }
    }

    /// Returns the observations so far; None for nothing.
    pub(super) fn read(&self, scale: &Scale) -> Option<Buckets> {
        let kept = self.0.get()?;
        loop {
            if let Some(buckets) = kept.read(scale) {
                return Some(buckets);
            }
            // The worker has a few hundred instructions to go.
            std::thread::yield_now();
        }
    }
}

impl ThreadHistogram {
    fn new(limit: usize) -> Box<ThreadHistogram> {
        Box::new(ThreadHistogram {
            zero: Cell::default(),
            cells: (0..limit).map(|_| Cell::default()).collect(),
            start: AtomicI32::new(0),
            end: AtomicI32::new(0),
            below: AtomicU32::new(0),
            turn: AtomicU32::new(0),
        })
    }

    fn cell(&self, bucket: i32) -> &Cell {
        // There are some cells, and not more than a setting allows.
        &self.cells[bucket.rem_euclid(self.cells.len() as i32) as usize]
    }

    /// `bucket`: of the schema at the beginning.
    fn add(&self, bucket: i32) {
        let at = joined(bucket, self.below.load(Ordering::Relaxed));
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        if (start..end).contains(&at) {
            return self.cell(at).add(1);
        }
        self.reach(bucket);
    }

    /// Counts in a bucket outside of the window, which grows or becomes coarser.
    #[cold]
    fn reach(&self, bucket: i32) {
        loop {
            let at = joined(bucket, self.below.load(Ordering::Relaxed));
            let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
            let (from, to) = if start == end { (at, at + 1) } else { (start.min(at), end.max(at + 1)) };
            if (to - from) as usize <= self.cells.len() {
                self.cell(at).add(1);
                self.start.store(from, Ordering::Relaxed);
                return self.end.store(to, Ordering::Relaxed);
            }
            // In the coarsest schema all have room: there are `FEWEST` cells at least.
            self.coarsen(start, end);
        }
    }

    /// Joins the buckets in pairs.
    fn coarsen(&self, start: i32, end: i32) {
        let counts: Vec<u64> = (start..end).map(|bucket| self.cell(bucket).get()).collect();
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // A reader of any of the following sees the odd turn.
        fence(Ordering::Release);
        self.cells.iter().for_each(|cell| cell.set(0));
        for (bucket, count) in (start..end).zip(counts) {
            self.cell(joined(bucket, 1)).add(count);
        }
        self.start.store(joined(start, 1), Ordering::Relaxed);
        self.end.store(joined(end - 1, 1) + 1, Ordering::Relaxed);
        self.below.store(self.below.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// None while buckets are joined.
    fn read(&self, scale: &Scale) -> Option<Buckets> {
        let turn = self.turn.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        // Of two turns, it may be any window: then all of this is for nothing, and must be so soon.
        let end = end.clamp(start, start.saturating_add(self.cells.len() as i32));
        let counts = (start..end).map(|bucket| self.cell(bucket).get()).collect();
        let schema = scale.schema - self.below.load(Ordering::Relaxed) as i32;
        let zero = self.zero.get();
        fence(Ordering::Acquire);
        let is_whole = turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn;
        is_whole.then_some(Buckets { schema, zero, start, counts })
    }
}

/// The content of a histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Buckets {
    pub(super) schema: i32,
    /// Observations of at most [`ZERO`].
    pub(super) zero: u64,
    /// The number of the first bucket.
    pub(super) start: i32,
    pub(super) counts: Vec<u64>,
}

impl Buckets {
    /// All that was observed.
    pub(super) fn count(&self) -> u64 {
        self.zero + self.counts.iter().sum::<u64>()
    }

    /// Both together, in the coarser of their schemas.
    pub(super) fn with(mut self, mut other: Buckets) -> Buckets {
        let schema = self.schema.min(other.schema);
        self.coarsen(schema);
        other.coarsen(schema);
        if self.counts.is_empty() || other.counts.is_empty() {
            let zero = self.zero + other.zero;
            let of = if self.counts.is_empty() { other } else { self };
            return Buckets { zero, ..of };
        }
        let start = self.start.min(other.start);
        let end = |of: &Buckets| of.start + of.counts.len() as i32;
        let mut counts = vec![0; (end(&self).max(end(&other)) - start) as usize];
        for of in [&self, &other] {
            let places = &mut counts[(of.start - start) as usize..];
            places.iter_mut().zip(&of.counts).for_each(|(sum, count)| *sum += count);
        }
        Buckets { schema, zero: self.zero + other.zero, start, counts }
    }

    /// At most so many buckets from the first to the last, as one histogram has.
    pub(super) fn within(mut self, scale: &Scale) -> Buckets {
        while self.counts.len() > scale.limit {
            self.coarsen(self.schema - 1);
        }
        self
    }

    fn coarsen(&mut self, schema: i32) {
        let times = (self.schema - schema) as u32;
        let (start, mut counts) = (joined(self.start, times), Vec::new());
        for (bucket, count) in (self.start..).zip(&self.counts) {
            let at = (joined(bucket, times) - start) as usize;
            counts.resize(at + 1, 0);
            counts[at] += count;
        }
        *self = Buckets { schema, zero: self.zero, start, counts };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// The bounds of a bucket.
    fn bounds(schema: i32, bucket: i32) -> (f64, f64) {
        let bound = |bucket: i32| (f64::from(bucket) * (-f64::from(schema)).exp2()).exp2();
        (bound(bucket - 1), bound(bucket))
    }

    #[test]
    fn a_value_is_in_the_bucket_around_it() {
        for schema in COARSEST..=FINEST {
            let scale = Scale::new(schema, 160);
            for value in [0.001, 0.1, 0.999, 1.0, 1.001, 3.0, 7.0, 1000.5, 60_000.0, 1e12] {
                let (below, at_most) = bounds(schema, scale.bucket(value));
                assert!(below < value && value <= at_most, "{schema} {value}: {below} {at_most}");
            }
            for power in [-9, 0, 1, 16, 40] {
                let value = f64::from(power).exp2();
                let (below, at_most) = bounds(schema, scale.bucket(value));
                assert!(below < value && value <= at_most, "{schema} {value}: {below} {at_most}");
                assert!(schema < 0 || at_most == value, "powers of two are bounds: {schema} {value}");
            }
            assert_eq!(scale.bucket(f64::INFINITY), scale.bucket(MOST));
        }
    }

    fn observed(scale: &Scale, values: &[f64]) -> Buckets {
        let native = Native::default();
        assert_eq!(native.read(scale), None);
        values.iter().for_each(|value| native.observe(scale, *value));
        native.read(scale).unwrap()
    }

    #[test]
    fn observations_are_written() {
        let scale = Scale::new(0, 160);
        // Bounds are powers of two: 1, 2, 4, 8, …
        let buckets = observed(&scale, &[0.0, 0.0005, -1.0, f64::NAN, 3.0, 4.0, 4.5, 100.0]);
        let counts = vec![2, 1, 0, 0, 0, 1];
        assert_eq!(buckets, Buckets { schema: 0, zero: 4, start: 2, counts });
        assert_eq!(buckets.count(), 8);
        let zeros = observed(&scale, &[0.0]);
        assert_eq!((zeros.zero, zeros.counts.len(), zeros.count()), (1, 0, 1));
    }

    /// Values far apart make a histogram coarser, in whatever order they come, and none is lost.
    #[test]
    fn buckets_are_joined_where_they_are_too_many() {
        for limit in [4, 5, 10, 160] {
            let scale = Scale::new(FINEST, limit);
            for turned in [false, true] {
                let mut values: Vec<f64> = (-9..=40).map(|power| f64::from(power).exp2() * 1.01).collect();
                if turned {
                    values.reverse();
                }
                let buckets = observed(&scale, &values);
                assert_eq!(buckets.count(), values.len() as u64);
                assert!(buckets.counts.len() <= limit && buckets.schema >= COARSEST, "{buckets:?}");
                let coarse = Scale::new(buckets.schema, 4096);
                assert_eq!(buckets, observed(&coarse, &values), "as if it had been so from the beginning");
            }
        }
    }

    #[test]
    fn histograms_of_workers_are_added_up() {
        let (fine, coarse) = (Scale::new(3, 160), Scale::new(1, 160));
        let (some, others) = ([1.5, 2.0, 0.0], [700.0, 2.1]);
        let all = [&some[..], &others].concat();
        let sum = observed(&fine, &some).with(observed(&coarse, &others));
        assert_eq!(sum, observed(&coarse, &all));
        let zero = observed(&fine, &[0.0]);
        let more = observed(&fine, &[0.0, 5.0]);
        assert_eq!(zero.clone().with(more.clone()), more.with(zero.clone()));
        assert_eq!(zero.clone().with(zero).count(), 2);
        let narrow = Scale::new(3, 10);
        let within = observed(&fine, &all).within(&narrow);
        assert!(within.counts.len() <= 10 && within.count() == 5, "{within:?}");
    }

    /// A page that reads while a worker writes reads a histogram of all earlier observations.
    #[test]
    fn none_is_read_while_buckets_are_joined() {
        let scale = Scale::new(FINEST, 64);
        for _ in 0..200 {
            let (native, is_over) = (Native::default(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..1000 {
                        native.observe(&scale, f64::from(1 + number % 40).exp2());
                    }
                    is_over.store(true, Ordering::SeqCst);
                });
                let mut before = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let count = native.read(&scale).map_or(0, |buckets| buckets.count());
                    assert!((before..=1000).contains(&count), "{before} {count}");
                    before = count;
                }
            });
            assert_eq!(native.read(&scale).unwrap().count(), 1000);
        }
    }
}
