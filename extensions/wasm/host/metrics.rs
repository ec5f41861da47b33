//! Metrics that modules define. They appear in Prometheus' page as `wasm_counter`, `wasm_gauge` and
//! `wasm_histogram_…`, with the module's name for them as a label.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sigma_plugin_kit::tallies::{Family, Labels};
use wasmtime::Linker;

use super::guest::Span;
use super::{Guest, Outcome, Status, function};
use crate::state::State;

/// The longest name.
const NAME_BYTES: u32 = 256;

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
    kind: Kind,
    module: Box<str>,
    name: Box<str>,
    value: AtomicU64,
    /// The sum of the values of a histogram.
    sum: AtomicU64,
}

/// All metrics; a part of the node. Their numbers outlive their configurations, as counters must.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Vec<Arc<Metric>>>);

impl Metrics {
    /// Returns the metric of this name. None if there are too many.
    fn get(&self, kind: Kind, module: &str, name: &str, most: usize) -> Option<Arc<Metric>> {
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

fn define(guest: &mut Guest<'_>, kind: u32, name: Span, out: u32) -> Outcome {
    let kind = match kind {
        0 => Kind::Counter,
        1 => Kind::Gauge,
        2 => Kind::Histogram,
        _ => return Err(Status::BadArgument.into()),
    };
    if name.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let name = String::from_utf8(guest.read(name)?).map_err(|_| Status::BadArgument)?;
    let state = guest.state();
    let vm = &state.vm;
    let metric = vm.metrics.get(kind, &vm.name, &name, vm.settings.metrics).ok_or(Status::InternalFailure)?;
    let known = state.metrics.iter().position(|known| Arc::ptr_eq(known, &metric));
    let at = known.unwrap_or_else(|| {
        state.metrics.push(metric);
        state.metrics.len() - 1
    });
    guest.write_u32(out, u32::try_from(at + 1).unwrap_or_default())
}

fn metric<'s>(guest: &'s mut Guest<'_>, id: u32) -> Result<&'s Metric, Status> {
    let at = (id as usize).checked_sub(1);
    at.and_then(|at| guest.state().metrics.get(at)).map(|metric| &**metric).ok_or(Status::NotFound)
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(linker, "proxy_define_metric", |guest, kind: u32, at: u32, length: u32, out: u32| {
        define(guest, kind, Span { at, length }, out)
    });
    function!(linker, "proxy_record_metric", |guest, id: u32, value: u64| {
        let metric = metric(guest, id)?;
        match metric.kind {
            Kind::Counter => return Err(Status::BadArgument.into()),
            Kind::Gauge => metric.value.store(value, Ordering::Relaxed),
            Kind::Histogram => {
                metric.value.fetch_add(1, Ordering::Relaxed);
                metric.sum.fetch_add(value, Ordering::Relaxed);
            }
        }
        Ok(())
    });
    function!(linker, "proxy_increment_metric", |guest, id: u32, offset: i64| {
        let metric = metric(guest, id)?;
        match (metric.kind, offset) {
            (Kind::Histogram, _) | (Kind::Counter, ..0) => return Err(Status::BadArgument.into()),
            (_, offset) => {
                metric.value.fetch_add(offset.cast_unsigned(), Ordering::Relaxed);
            }
        }
        Ok(())
    });
    function!(linker, "proxy_get_metric", |guest, id: u32, out: u32| {
        let value = match metric(guest, id)? {
            metric if metric.kind == Kind::Histogram => return Err(Status::BadArgument.into()),
            metric => metric.value.load(Ordering::Relaxed),
        };
        guest.write_u64(out, value)
    });
    Ok(())
}
