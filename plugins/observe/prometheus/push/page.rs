//! From the page that is scraped to data points.
//!
//! A collector that scrapes does just this. The page is the one list of all metrics, and its labels are text
//! from the beginning; so pushed and scraped metrics are the same, today and with the next metric.

use super::super::labels::Pairs;
use super::messages::{CUMULATIVE, Data, Gauge, Histogram, HistogramPoint, Metric, Number, NumberPoint, Sum};
use crate::shared::otlp::{Attributes, KeyValue};

/// Reads a page piece by piece.
pub(super) struct Reader {
    /// When counting began, and the time of the page, in nanoseconds of Unix.
    pub(super) start: u64,
    pub(super) time: u64,
    /// The beginning of a line whose end is in the next piece.
    rest: Vec<u8>,
    family: Family,
    /// The histogram of which not all lines have come.
    buckets: Buckets,
    metrics: Vec<Metric>,
    points: usize,
}

/// The family of the current lines.
#[derive(Clone, Default)]
struct Family {
    name: String,
    help: String,
    kind: Kind,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Gauge,
    Counter,
    Histogram,
}

#[derive(Default)]
struct Buckets {
    attributes: Vec<KeyValue>,
    bounds: Vec<f64>,
    /// How many were at most the bound, and at last all of them.
    observed: Vec<u64>,
}

impl Reader {
    pub(super) fn new(start: u64, time: u64) -> Reader {
        Reader {
            start,
            time,
            rest: Vec::new(),
            family: Family::default(),
            buckets: Buckets::default(),
            metrics: Vec::new(),
            points: 0,
        }
    }

    /// How many data points are there.
    pub(super) fn points(&self) -> usize {
        self.points
    }

    /// Returns the metrics since the last call.
    pub(super) fn take(&mut self) -> Vec<Metric> {
        self.points = 0;
        std::mem::take(&mut self.metrics)
    }

    pub(super) fn read(&mut self, piece: &[u8]) {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.rest = bytes.split_off(end);
        // The page is text: its parts were cut to whole characters.
        String::from_utf8_lossy(&bytes).lines().for_each(|line| self.line(line));
    }

    fn line(&mut self, line: &str) {
        if let Some(heading) = line.strip_prefix("# HELP ") {
            let (name, help) = heading.split_once(' ').unwrap_or((heading, ""));
            self.family = Family { name: name.to_owned(), help: help.to_owned(), kind: Kind::Gauge };
        } else if let Some(heading) = line.strip_prefix("# TYPE ") {
            self.family.kind = match heading.rsplit(' ').next() {
                Some("counter") => Kind::Counter,
                Some("histogram") => Kind::Histogram,
                _ => Kind::Gauge,
            };
        } else if let Some((head, value)) = line.rsplit_once(' ') {
            let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
            let labels = labels.strip_suffix('}').unwrap_or(labels);
            match self.family.kind {
                Kind::Histogram => self.histogram_line(name, labels, value),
                Kind::Gauge | Kind::Counter => self.number(labels, value),
            }
        }
    }

    fn number(&mut self, labels: &str, value: &str) {
        let number = match value.parse() {
            Ok(number) => Number::Int(number),
            Err(_) => match value.parse() {
                Ok(number) => Number::Double(number),
                Err(_) => return,
            },
        };
        let point = NumberPoint {
            start_time_unix_nano: if self.family.kind == Kind::Counter { self.start } else { 0 },
            time_unix_nano: self.time,
            value: Some(number),
            attributes: attributes(labels).0,
        };
        match &mut self.metric().data {
            Some(Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. })) => {
                data_points.push(point);
            }
            _ => return,
        }
        self.points += 1;
    }

    /// Buckets come first, by their bounds, then the count and the sum.
    fn histogram_line(&mut self, name: &str, labels: &str, value: &str) {
        let part = name.strip_prefix(&*self.family.name).unwrap_or_default();
        if part == "_bucket" {
            let (mut found, bound) = attributes(labels);
            let Buckets { attributes, bounds, observed } = &mut self.buckets;
            observed.push(value.parse().unwrap_or_default());
            // The last one is without a bound.
            bounds.extend(bound.and_then(|bound| bound.parse().ok()).filter(|bound: &f64| bound.is_finite()));
            std::mem::swap(attributes, &mut found);
        } else if part == "_sum" {
            let Buckets { attributes, bounds, observed } = std::mem::take(&mut self.buckets);
            let before = std::iter::once(0).chain(observed.iter().copied());
            let point = HistogramPoint {
                start_time_unix_nano: self.start,
                time_unix_nano: self.time,
                count: observed.last().copied().unwrap_or_default(),
                sum: value.parse().ok(),
                bucket_counts: observed
                    .iter()
                    .zip(before)
                    .map(|(all, below)| all.saturating_sub(below))
                    .collect(),
                explicit_bounds: bounds,
                attributes,
            };
            if let Some(Data::Histogram(histogram)) = &mut self.metric().data {
                histogram.data_points.push(point);
                self.points += 1;
            }
        }
    }

    /// The metric of the lines at hand.
    fn metric(&mut self) -> &mut Metric {
        let Family { name, help, kind } = &self.family;
        if self.metrics.last().is_none_or(|last| last.name != *name) {
            let data = match kind {
                Kind::Gauge => Data::Gauge(Gauge::default()),
                Kind::Counter => Data::Sum(Sum {
                    aggregation_temporality: CUMULATIVE,
                    is_monotonic: true,
                    ..Sum::default()
                }),
                Kind::Histogram => {
                    Data::Histogram(Histogram { aggregation_temporality: CUMULATIVE, ..Histogram::default() })
                }
            };
            let metric = Metric { name: name.clone(), description: help.clone(), data: Some(data) };
            self.metrics.push(metric);
        }
        let last = self.metrics.len() - 1;
        &mut self.metrics[last]
    }
}

/// The labels of a line that have a value, and apart from them the bound of a bucket.
fn attributes(labels: &str) -> (Vec<KeyValue>, Option<String>) {
    let (mut all, mut bound) = (Attributes::default(), None);
    for (name, value) in Pairs(labels) {
        match name {
            "le" => bound = Some(value),
            _ if value.is_empty() => {}
            name => all.add(name, &*value),
        }
    }
    (all.0, bound)
}

#[cfg(test)]
mod tests {
    use crate::shared::otlp::{AnyValue, Value};

    use super::*;

    const PAGE: &str = "# HELP a_total what it is\n# TYPE a_total counter\n\
        a_total{code=\"200\",route=\"\",path=\"a\\\"}\\\\ b\\n,c=\\\"\"} 7\na_total 9223372036854775808\n\
        # HELP g now\n# TYPE g gauge\ng -1.5\n\
        # HELP l times\n# TYPE l histogram\n\
        l_bucket{t=\"x\",le=\"1\"} 2\nl_bucket{t=\"x\",le=\"2.5\"} 2\nl_bucket{t=\"x\",le=\"+Inf\"} 5\n\
        l_count{t=\"x\"} 5\nl_sum{t=\"x\"} 12.5\n";

    fn shown(attributes: &[KeyValue]) -> Vec<(&str, &str)> {
        let text = |value: &KeyValue| match &value.value {
            Some(AnyValue { value: Some(Value::Text(text)) }) => text.clone().leak() as &str,
            other => panic!("{other:?}"),
        };
        attributes.iter().map(|one| (&*one.key, text(one))).collect()
    }

    /// However it is cut into pieces.
    #[test]
    fn a_page_becomes_data_points() {
        for length in [1, 7, 64, PAGE.len()] {
            let mut reader = Reader::new(1, 2);
            PAGE.as_bytes().chunks(length).for_each(|piece| reader.read(piece));
            assert_eq!(reader.points(), 4);
            let metrics = reader.take();
            let [counter, gauge, histogram] = &metrics[..] else { panic!("{metrics:?}") };
            assert_eq!((&*counter.name, &*counter.description), ("a_total", "what it is"));
            let Some(Data::Sum(sum)) = &counter.data else { panic!("{counter:?}") };
            assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
            let [first, second] = &sum.data_points[..] else { panic!("{sum:?}") };
            assert_eq!(shown(&first.attributes), [("code", "200"), ("path", "a\"}\\ b\n,c=\"")]);
            assert_eq!((&first.value, first.start_time_unix_nano), (&Some(Number::Int(7)), 1));
            assert_eq!(second.value, Some(Number::Double(9_223_372_036_854_775_808.0)));
            let Some(Data::Gauge(now)) = &gauge.data else { panic!("{gauge:?}") };
            let [now] = &now.data_points[..] else { panic!("{now:?}") };
            assert_eq!((&now.value, now.start_time_unix_nano), (&Some(Number::Double(-1.5)), 0));
            let Some(Data::Histogram(times)) = &histogram.data else { panic!("{histogram:?}") };
            let [times] = &times.data_points[..] else { panic!("{times:?}") };
            assert_eq!((times.count, times.sum, times.time_unix_nano), (5, Some(12.5), 2));
            assert_eq!(
                (&times.bucket_counts[..], &times.explicit_bounds[..]),
                (&[2, 0, 3][..], &[1.0, 2.5][..])
            );
            assert_eq!(shown(&times.attributes), [("t", "x")]);
        }
    }

    #[test]
    fn taken_metrics_do_not_come_again() {
        let mut reader = Reader::new(1, 2);
        let (begin, end) = PAGE.split_at(PAGE.find("l_bucket{t=\"x\",le=\"2.5\"").unwrap());
        reader.read(begin.as_bytes());
        assert_eq!((reader.take().len(), reader.points()), (2, 0));
        reader.read(end.as_bytes());
        let metrics = reader.take();
        let Some(Data::Histogram(times)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(times.data_points[0].bucket_counts, [2, 0, 3]);
        assert_eq!(metrics.len(), 1);
    }

    #[test]
    fn invalid_lines_are_left_out() {
        let mut reader = Reader::new(1, 2);
        reader.read(
            b"\n#\n# HELP\na\na b\na{ 1\n{=\"\\ 1\n# TYPE x histogram\nl_sum 1\nx_bucket 1\n\xff 1\nend",
        );
        reader.take();
    }
}
