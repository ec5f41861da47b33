//! Metrics that modules define. They appear in Prometheus' page as `wasm_counter`, `wasm_gauge` and
//! `wasm_histogram_…`, with the module's name for them as a label.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sigma_plugin_kit::tallies::{Family, Labels};

/// A kind of metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric of all workers.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) kind: Kind,
    module: Box<str>,
    name: Box<str>,
    pub(crate) value: AtomicU64,
    /// The sum of the values of a histogram.
    pub(crate) sum: AtomicU64,
}

/// All metrics; a part of the node. Their numbers outlive their configurations, as counters must.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Vec<Arc<Metric>>>);

impl Metrics {
    /// Returns the metric of this name. None if there are too many.
    pub(crate) fn get(&self, kind: Kind, module: &str, name: &str, most: usize) -> Option<Arc<Metric>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |metric: &&Arc<Metric>| metric.kind == kind && *metric.module == *module && *metric.name == *name;
        if let Some(known) = all.iter().find(is_same) {
            return Some(Arc::clone(known));
        }
        if all.len() >= most {
            return None;
        }
        let (value, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        let metric = Arc::new(Metric { kind, module: module.into(), name: name.into(), value, sum });
        all.push(Arc::clone(&metric));
        Some(metric)
    }
}

/// A metric of Prometheus' page.
pub(crate) struct Page {
    metrics: Arc<Metrics>,
    kind: Kind,
    is_sum: bool,
}

/// Returns the metrics of Prometheus' page, by name.
pub(crate) fn pages(metrics: &Arc<Metrics>) -> [(&'static str, Arc<dyn Family>); 4] {
    let page = |name, kind, is_sum| {
        let page: Arc<dyn Family> = Arc::new(Page { metrics: Arc::clone(metrics), kind, is_sum });
        (name, page)
    };
    [
        page("wasm_counter", Kind::Counter, false),
        page("wasm_gauge", Kind::Gauge, false),
        page("wasm_histogram_count", Kind::Histogram, false),
        page("wasm_histogram_sum", Kind::Histogram, true),
    ]
}

impl Family for Page {
    fn help(&self) -> &'static str {
        "Metrics that WebAssembly modules define"
    }

    fn kind(&self) -> &'static str {
        if self.kind == Kind::Gauge { "gauge" } else { "counter" }
    }

    fn all(&self) -> Vec<(Labels, u64)> {
        let all = self.metrics.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = all.iter().filter(|metric| metric.kind == self.kind);
        of_kind
            .map(|metric| {
                let value = if self.is_sum { &metric.sum } else { &metric.value };
                let labels = vec![("module", metric.module.clone()), ("name", metric.name.clone())];
                (labels, value.load(Ordering::Relaxed))
            })
            .collect()
    }
}
