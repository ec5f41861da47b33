//! The histograms of the page.

use std::sync::Arc;

use super::exemplars::Exemplar;
use super::native::Buckets;
use super::page::Page;
use super::protobuf;
use super::series::{Histogram, Latency, Series};
use super::text::{Form, Text};

/// The lines of one `type` and one set of labels, which series of several workers may have.
pub(super) fn write_latency(page: &mut Page, kind: &str, same: &[Arc<Series<Latency>>]) {
    let of: fn(&Latency) -> &Histogram = match kind {
        "apisix" => |numbers| &numbers.apisix,
        "request" => |numbers| &numbers.request,
        _ => |numbers| &numbers.upstream,
    };
    if page.form == Form::Protobuf {
        return write_message(page, kind, of, same);
    }
    let Page { prefix, form, text, bucket, count, sum, bounds, sums, .. } = page;
    let has_exemplars = *form == Form::OpenMetrics && kind == "request";
    let mut total = 0.0;
    sums.clear();
    sums.resize(bounds.len(), 0);
    for histogram in same.iter().map(|series| of(&series.numbers)) {
        sums.iter_mut().zip(&histogram.buckets).for_each(|(sum, cell)| *sum += cell.get());
        total += histogram.sum();
    }
    if sums.iter().all(|count| *count == 0) {
        // No node answered under these labels.
        return;
    }
    let labels = &*same[0].labels;
    let mut observed = 0;
    bucket.set(&[prefix, "http_latency_bucket{type=\"", kind, "\",", labels]);
    for (at, (bound, of_bucket)) in bounds.iter_mut().zip(&*sums).enumerate() {
        observed += of_bucket;
        text.repeat(bucket);
        text.repeat(bound);
        text.number(observed);
        if has_exemplars && let Some(exemplar) = newest(same, at) {
            write_exemplar(text, &exemplar);
        }
        text.write(b"\n");
    }
    count.set(&[prefix, "http_latency_count{type=\"", kind, "\",", labels, "} "]);
    text.repeat(count);
    text.number(observed);
    text.write(b"\n");
    sum.set(&[prefix, "http_latency_sum{type=\"", kind, "\",", labels, "} "]);
    text.repeat(sum);
    text.show(total);
    text.write(b"\n");
}

/// The newest exemplar that workers have of a bucket.
fn newest(same: &[Arc<Series<Latency>>], bucket: usize) -> Option<Exemplar> {
    let all = same.iter().filter_map(|series| series.numbers.exemplars.get(bucket));
    all.max_by_key(|exemplar| exemplar.at)
}

fn write_exemplar(text: &mut Text, exemplar: &Exemplar) {
    text.write(b" # {trace_id=\"");
    text.write(&exemplar.span.trace.hex());
    text.write(b"\",span_id=\"");
    text.write(&exemplar.span.span.hex());
    text.write(b"\"} ");
    let at = exemplar.at;
    text.show(format_args!("{} {}.{:03}", exemplar.value, at.as_secs(), at.subsec_millis()));
}

/// A histogram in both its forms. The count is the native one's, which was read last: so there are never more
/// observations in buckets than altogether.
fn write_message(page: &mut Page, kind: &str, of: fn(&Latency) -> &Histogram, same: &[Arc<Series<Latency>>]) {
    let Page { text, families, limits, sums, native: Some(scale), .. } = page else { return };
    let (mut total, mut native) = (0.0, None::<Buckets>);
    sums.clear();
    sums.resize(limits.len(), 0);
    for histogram in same.iter().map(|series| of(&series.numbers)) {
        sums.iter_mut().zip(&histogram.buckets).for_each(|(sum, cell)| *sum += cell.get());
        total += histogram.sum();
        let Some(read) = histogram.native.read(scale) else { continue };
        native = Some(match native {
            Some(before) => before.with(read),
            None => read,
        });
    }
    // No node answered under these labels.
    let Some(native) = native else { return };
    let native = native.within(scale);
    let count = native.count();
    let mut observed = 0;
    let bucket = |(at, (limit, of_bucket)): (usize, (&f64, &u64))| {
        observed += of_bucket;
        let exemplar = if kind == "request" { newest(same, at) } else { None };
        protobuf::Bucket {
            cumulative_count: Some(observed.min(count)),
            upper_bound: Some(*limit),
            exemplar: exemplar.map(|exemplar| protobuf::Exemplar::of(&exemplar)),
        }
    };
    let mut buckets: Vec<protobuf::Bucket> = limits.iter().zip(&*sums).enumerate().map(bucket).collect();
    // The bucket behind all bounds is written for its exemplar only: its count is known.
    if kind == "request"
        && let Some(exemplar) = newest(same, limits.len())
    {
        buckets.push(protobuf::Bucket {
            cumulative_count: Some(count),
            upper_bound: Some(f64::INFINITY),
            exemplar: Some(protobuf::Exemplar::of(&exemplar)),
        });
    }
    let labels = format!("type=\"{kind}\",{}", same[0].labels);
    families.histogram(text, &labels, protobuf::Histogram::of(&native, total, buckets));
}
