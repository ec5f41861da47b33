//! The page as messages of Protocol Buffers: `io.prometheus.client.MetricFamily` after `metrics.proto` of
//! Prometheus' client model, written by hand like the messages of OTLP; each follows its length.
//!
//! A family of many series leaves in several messages of its name, since the length of one precedes it and
//! the whole of it is never in memory. Prometheus reads them one after the other.

use prost::Message as _;

use super::exemplars;
use super::labels::Pairs;
use super::native::{self, Buckets};
use super::text::Text;

/// Bytes of a message, about.
const MESSAGE_BYTES: usize = 16 * 1024;

/// Written output that has not left: the series of one family.
#[derive(Default)]
pub(super) struct Families {
    family: Family,
    bytes: usize,
}

impl Families {
    /// Begins the family of the next series. A family without a series is not written.
    pub(super) fn begin(&mut self, text: &mut Text, family: Family) {
        self.leave(text);
        self.family = family;
    }

    /// A series of a counter or gauge.
    pub(super) fn number(&mut self, text: &mut Text, labels: &str, value: u64) {
        let value = Some(Number { value: Some(value as f64) });
        let metric = Metric { label: pairs(labels), ..Metric::default() };
        let metric = match self.family.kind() {
            Kind::Counter => Metric { counter: value, ..metric },
            Kind::Gauge | Kind::Histogram => Metric { gauge: value, ..metric },
        };
        self.add(text, metric);
    }

    pub(super) fn histogram(&mut self, text: &mut Text, labels: &str, histogram: Histogram) {
        self.add(text, Metric { label: pairs(labels), histogram: Some(histogram), ..Metric::default() });
    }

    fn add(&mut self, text: &mut Text, metric: Metric) {
        self.bytes += metric.encoded_len();
        self.family.metric.push(metric);
        if self.bytes >= MESSAGE_BYTES {
            self.leave(text);
        }
    }

    /// Writes the rest of the family.
    pub(super) fn leave(&mut self, text: &mut Text) {
        if !self.family.metric.is_empty() {
            text.write(&self.family.encode_length_delimited_to_vec());
        }
        self.family.metric.clear();
        self.bytes = 0;
    }
}

fn pairs(labels: &str) -> Vec<LabelPair> {
    let pair = |(name, value): (&str, String)| LabelPair { name: Some(name.to_owned()), value: Some(value) };
    Pairs(labels).map(pair).collect()
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Family {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) help: Option<String>,
    #[prost(enumeration = "Kind", optional, tag = "3")]
    pub(super) r#type: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    pub(super) metric: Vec<Metric>,
}

impl Family {
    /// `kind`: as the text format calls it.
    pub(super) fn new(prefix: &str, name: &str, kind: &str, help: &str) -> Family {
        let kind = match kind {
            "counter" => Kind::Counter,
            "histogram" => Kind::Histogram,
            _ => Kind::Gauge,
        };
        Family {
            name: Some([prefix, name].concat()),
            help: Some(help.to_owned()),
            r#type: Some(kind.into()),
            metric: Vec::new(),
        }
    }

    fn kind(&self) -> Kind {
        self.r#type()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(super) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LabelPair {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) value: Option<String>,
}

/// `Gauge` and `Counter`, which are the same as far as they are written.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Number {
    #[prost(double, optional, tag = "1")]
    pub(super) value: Option<f64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    pub(super) sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    pub(super) schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    pub(super) zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    pub(super) zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    pub(super) positive_span: Vec<Span>,
    /// The count of the first bucket, then what each has more than the one before.
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    pub(super) positive_delta: Vec<i64>,
}

impl Histogram {
    /// `bucket`: the buckets of the classic form.
    pub(super) fn of(native: &Buckets, sum: f64, bucket: Vec<Bucket>) -> Histogram {
        let (mut spans, mut deltas) = (Vec::<Span>::new(), Vec::new());
        // The bucket behind the last span, and the count before.
        let (mut behind, mut before) = (0, 0);
        for (at, count) in (native.start..).zip(&native.counts).filter(|(_, count)| **count > 0) {
            match spans.last_mut() {
                Some(Span { length: Some(length), .. }) if at == behind => *length += 1,
                _ => spans.push(Span { offset: Some(at - behind), length: Some(1) }),
            }
            deltas.push(*count as i64 - before);
            (behind, before) = (at + 1, *count as i64);
        }
        Histogram {
            sample_count: Some(native.count()),
            sample_sum: Some(sum),
            bucket,
            schema: Some(native.schema),
            zero_threshold: Some(native::ZERO),
            zero_count: Some(native.zero),
            positive_span: spans,
            positive_delta: deltas,
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    pub(super) cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    pub(super) exemplar: Option<Exemplar>,
}

/// Buckets without a gap: so many behind the span before, or for the first one its number.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Span {
    #[prost(sint32, optional, tag = "1")]
    pub(super) offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    pub(super) length: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    pub(super) label: Vec<LabelPair>,
    #[prost(double, optional, tag = "2")]
    pub(super) value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    pub(super) timestamp: Option<Timestamp>,
}

impl Exemplar {
    pub(super) fn of(exemplar: &exemplars::Exemplar) -> Exemplar {
        let text = |hex: &[u8]| Some(String::from_utf8_lossy(hex).into_owned());
        let pair = |name: &str, hex: &[u8]| LabelPair { name: Some(name.to_owned()), value: text(hex) };
        let span = &exemplar.span;
        Exemplar {
            label: vec![pair("trace_id", &span.trace.hex()), pair("span_id", &span.span.hex())],
            value: Some(exemplar.value),
            timestamp: Some(Timestamp {
                seconds: exemplar.at.as_secs() as i64,
                nanos: exemplar.at.subsec_nanos() as i32,
            }),
        }
    }
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}
