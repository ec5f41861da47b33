//! Series and who writes them.
//!
//! A worker has its own series and is the only one to write them, so a count is a load and a store
//! of a relaxed atomic. It takes a lock — its own, which only a scrape contends for — when a series
//! is new. A scrape copies the list of pointers under that lock and does everything else without it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foldhash::fast::RandomState;
use sigma_plugin::Context;

use super::cell::Cell;
use super::exemplars::{Exemplar, Exemplars, Places};
use super::labels::{ExtraValues, Labels, extra_values};
use super::native::Native;
use super::settings::{Disabled, Metric, Settings};

/// A histogram that one thread writes.
#[derive(Debug)]
pub(super) struct Histogram {
    /// Observations by the first bound that is not below them; the last one is beyond all bounds.
    pub(super) buckets: Box<[Cell]>,
    /// The same observations, where native histograms are requested.
    pub(super) native: Native,
    /// The bits of a float.
    sum: Cell,
}

impl Histogram {
    fn new(bounds: usize) -> Histogram {
        let buckets = (0..=bounds).map(|_| Cell::default()).collect();
        Histogram { buckets, native: Native::default(), sum: Cell::default() }
    }

    /// Returns the bucket.
    fn observe(&self, settings: &Settings, value: f64) -> usize {
        let bucket = settings.buckets.partition_point(|bound| *bound < value);
        self.buckets[bucket].add(1);
        self.sum.add_float(value);
        if let Some(scale) = &settings.native {
            self.native.observe(scale, value);
        }
        bucket
    }

    pub(super) fn sum(&self) -> f64 {
        f64::from_bits(self.sum.get())
    }
}

/// Latencies of one set of labels, by `type`.
#[derive(Debug)]
pub(super) struct Latency {
    pub(super) request: Histogram,
    /// The exemplars of `request`: a span covers a whole request.
    pub(super) exemplars: Exemplars,
    pub(super) upstream: Histogram,
    pub(super) apisix: Histogram,
}

/// Bytes of one set of labels, by `type`.
#[derive(Debug, Default)]
pub(super) struct Bandwidth {
    pub(super) ingress: Cell,
    pub(super) egress: Cell,
}

/// Numbers with their labels.
#[derive(Debug)]
pub(super) struct Series<N> {
    /// As the text format writes them, without braces and `type`.
    pub(super) labels: Arc<str>,
    pub(super) numbers: N,
    /// When it was last written, in the registry's milliseconds; kept if series expire.
    used_ms: AtomicU64,
    /// A scrape has dropped it; its worker starts again.
    retired: AtomicBool,
}

/// The series of one worker and metric.
#[derive(Debug)]
pub(super) struct SeriesList<N>(Mutex<Vec<Arc<Series<N>>>>);

impl<N> Default for SeriesList<N> {
    fn default() -> Self {
        SeriesList(Mutex::default())
    }
}

impl<N> SeriesList<N> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Series<N>>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All series that are not older than `expire_ms`, in the order of their labels; older ones are forgotten.
    pub(super) fn current(&self, now_ms: u64, expire_ms: u64) -> Vec<Arc<Series<N>>> {
        let mut all = self.lock().clone();
        let known = all.len();
        let is_sorted = all.is_sorted_by(|one, other| one.labels <= other.labels);
        if !is_sorted {
            all.sort_by(|one, other| one.labels.cmp(&other.labels));
        }
        if expire_ms != 0 {
            all.retain(|series| {
                let stays = series.used_ms.load(Ordering::Relaxed).saturating_add(expire_ms) > now_ms;
                if !stays {
                    series.retired.store(true, Ordering::Relaxed);
                }
                stays
            });
        }
        if !is_sorted || all.len() < known {
            self.put_back(all.clone(), known);
        }
        all
    }

    /// Puts the first `known` series in the order of `all`, so that the next page finds them so.
    fn put_back(&self, mut all: Vec<Arc<Series<N>>>, known: usize) {
        let mut list = self.lock();
        all.extend_from_slice(list.get(known..).unwrap_or_default());
        let before = std::mem::replace(&mut *list, all);
        // Freed when the worker may have the lock again.
        drop(list);
        drop(before);
    }
}

/// The series of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerSeries {
    pub(super) status: SeriesList<Cell>,
    pub(super) latency: SeriesList<Latency>,
    pub(super) bandwidth: SeriesList<Bandwidth>,
    /// Sessions by route.
    pub(super) sessions: SeriesList<Cell>,
    /// Sessions by what came of them.
    pub(super) session_status: SeriesList<Cell>,
}

/// All series; a part of the node. They outlive configurations, as counters must.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) settings: Settings,
    workers: Mutex<Vec<Arc<WorkerSeries>>>,
    /// Requests and sessions that found no room for a series.
    pub(super) errors: AtomicU64,
    /// Pages that a collector has, and those that it has not or only a part of.
    pub(super) pushes: [Cell; 2],
    started: Instant,
}

impl Registry {
    pub(super) fn new(settings: Settings) -> Registry {
        Registry {
            settings,
            workers: Mutex::default(),
            errors: AtomicU64::new(0),
            pushes: Default::default(),
            started: Instant::now(),
        }
    }

    /// The series of every worker.
    pub(super) fn workers(&self) -> Vec<Arc<WorkerSeries>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time by which series expire.
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// The numbers that a request adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) request_ms: f64,
    /// None if no node answered.
    pub(super) upstream_ms: Option<f64>,
    pub(super) ingress: u64,
    pub(super) egress: u64,
    /// The request's span, where exemplars are kept and it is sampled.
    pub(super) exemplar: Option<Exemplar>,
}

/// The series in which a request is counted. None where the series would be too many.
#[derive(Debug, Clone)]
struct Cells {
    status: Option<Arc<Series<Cell>>>,
    latency: Option<Arc<Series<Latency>>>,
    bandwidth: Option<Arc<Series<Bandwidth>>>,
}

impl Cells {
    fn is_retired(&self) -> bool {
        fn of<N>(series: Option<&Arc<Series<N>>>) -> bool {
            series.is_some_and(|series| series.retired.load(Ordering::Relaxed))
        }
        of(self.status.as_ref()) || of(self.latency.as_ref()) || of(self.bandwidth.as_ref())
    }

    fn is_complete(&self) -> bool {
        self.status.is_some() && self.latency.is_some() && self.bandwidth.is_some()
    }
}

/// A worker's own side: from a request's labels to its series.
pub(super) struct Table {
    registry: Arc<Registry>,
    mine: Arc<WorkerSeries>,
    exemplified: Places,
    inner: RefCell<Known>,
}

#[derive(Default)]
struct Known {
    /// By all values of a request: one look-up for all metrics.
    cells: HashMap<Box<[u8]>, Cells, RandomState>,
    status: HashMap<Arc<str>, Arc<Series<Cell>>>,
    latency: HashMap<Arc<str>, Arc<Series<Latency>>>,
    bandwidth: HashMap<Arc<str>, Arc<Series<Bandwidth>>>,
    sessions: HashMap<Arc<str>, Arc<Series<Cell>>>,
    session_status: HashMap<Arc<str>, Arc<Series<Cell>>>,
    /// The key of the request at hand; kept for its memory.
    key: Vec<u8>,
}

impl Table {
    pub(super) fn new(registry: &Arc<Registry>) -> Table {
        let mine = Arc::<WorkerSeries>::default();
        registry.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&mine));
        let exemplified = Places::new(registry.settings.exemplar_series);
        Table { registry: Arc::clone(registry), mine, exemplified, inner: RefCell::default() }
    }

    /// Counts a request.
    pub(super) fn count(&self, labels: &Labels<'_>, disabled: Disabled, ctx: &Context, sample: &Sample) {
        let settings = &self.registry.settings;
        let mut known = self.inner.borrow_mut();
        let extra = if settings.has_extra { extra_values(settings, ctx) } else { ExtraValues::default() };
        let mut key = std::mem::take(&mut known.key);
        labels.write_key(disabled, &extra, &mut key);
        match known.cells.get(&key[..]).filter(|cells| !cells.is_retired()) {
            Some(cells) => self.add(cells, sample),
            None => {
                let cells = self.cells(&mut known, labels, disabled, &extra);
                self.add(&cells, sample);
                if cells.is_complete() {
                    known.cells.insert(key[..].into(), cells);
                }
            }
        }
        known.key = key;
    }

    /// Counts a session under the labels of both of its metrics.
    pub(super) fn count_session(&self, route: String, status: String) {
        let max = self.registry.settings.max_series;
        let Known { sessions, session_status, .. } = &mut *self.inner.borrow_mut();
        let found = [
            series(sessions, &self.mine.sessions, route, max, Cell::default),
            series(session_status, &self.mine.session_status, status, max, Cell::default),
        ];
        if found.iter().any(Option::is_none) {
            self.registry.errors.fetch_add(1, Ordering::Relaxed);
        }
        found.iter().flatten().for_each(|series| series.numbers.add(1));
    }

    fn add(&self, cells: &Cells, sample: &Sample) {
        let settings = &self.registry.settings;
        let now_ms = if settings.expire_ms == [0; 3] { 0 } else { self.registry.now_ms() };
        if !cells.is_complete() {
            self.registry.errors.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(status) = &cells.status {
            status.used_ms.store(now_ms, Ordering::Relaxed);
            status.numbers.add(1);
        }
        if let Some(latency) = &cells.latency {
            latency.used_ms.store(now_ms, Ordering::Relaxed);
            let numbers = &latency.numbers;
            let bucket = numbers.request.observe(settings, sample.request_ms);
            if let Some(exemplar) = &sample.exemplar {
                let buckets = settings.buckets.len() + 1;
                numbers.exemplars.put(&self.exemplified, buckets, bucket, exemplar);
            }
            let upstream_ms = sample.upstream_ms.unwrap_or_default();
            if sample.upstream_ms.is_some() {
                numbers.upstream.observe(settings, upstream_ms);
            }
            numbers.apisix.observe(settings, (sample.request_ms - upstream_ms).max(0.0));
        }
        if let Some(bandwidth) = &cells.bandwidth {
            bandwidth.used_ms.store(now_ms, Ordering::Relaxed);
            bandwidth.numbers.ingress.add(sample.ingress);
            bandwidth.numbers.egress.add(sample.egress);
        }
    }

    /// Finds or makes the series of a request.
    fn cells(
        &self,
        known: &mut Known,
        labels: &Labels<'_>,
        disabled: Disabled,
        extra: &ExtraValues,
    ) -> Cells {
        let settings = &self.registry.settings;
        let text = |metric: Metric| labels.text(metric, disabled, settings, extra);
        let max = settings.max_series;
        let histogram = || Histogram::new(settings.buckets.len());
        let latency = || Latency {
            request: histogram(),
            exemplars: Exemplars::default(),
            upstream: histogram(),
            apisix: histogram(),
        };
        let Known { cells, status: statuses, latency: latencies, bandwidth: bandwidths, .. } = known;
        let found = Cells {
            status: series(statuses, &self.mine.status, text(Metric::Status), max, Cell::default),
            latency: series(latencies, &self.mine.latency, text(Metric::Latency), max, latency),
            bandwidth: series(
                bandwidths,
                &self.mine.bandwidth,
                text(Metric::Bandwidth),
                max,
                Bandwidth::default,
            ),
        };
        // Expired cells are dropped when there are about as many of them as of others.
        if cells.len() >= 64 && cells.len() >= 2 * statuses.len() {
            cells.retain(|_, cells| !cells.is_retired());
        }
        found
    }
}

fn series<N>(
    known: &mut HashMap<Arc<str>, Arc<Series<N>>>,
    list: &SeriesList<N>,
    labels: String,
    max: usize,
    make: impl FnOnce() -> N,
) -> Option<Arc<Series<N>>> {
    if let Some(series) = known.get(&labels[..]).filter(|series| !series.retired.load(Ordering::Relaxed)) {
        return Some(Arc::clone(series));
    }
    if known.len() >= max {
        known.retain(|_, series| !series.retired.load(Ordering::Relaxed));
        if known.len() >= max {
            return None;
        }
    }
    let labels: Arc<str> = labels.into();
    let series = Arc::new(Series {
        labels: Arc::clone(&labels),
        numbers: make(),
        used_ms: AtomicU64::new(u64::MAX),
        retired: AtomicBool::new(false),
    });
    known.insert(labels, Arc::clone(&series));
    list.lock().push(Arc::clone(&series));
    Some(series)
}
