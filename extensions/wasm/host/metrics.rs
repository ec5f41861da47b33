//! Functions of metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wasmtime::Linker;

use super::guest::Span;
use super::{Guest, Outcome, Status, function};
use crate::metrics::{Kind, Metric};
use crate::state::State;

/// The longest name.
const NAME_BYTES: u32 = 256;

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
