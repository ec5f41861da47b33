//! Metrics of the certificates that the gateway orders by itself.

use sigma_plugin::facts::Measure;

use crate::serving::acme::Standing;

/// A metric: name, help, and its number for an ssl.
type Metric = (&'static str, &'static str, fn(&Standing) -> u64);

const METRICS: [Metric; 3] = [
    ("acme_certificates", "Whether there is an ordered certificate", |order| {
        u64::from(order.not_after.is_some())
    }),
    ("acme_order_failures", "Failed orders since the last successful one", |order| order.failures.into()),
    ("acme_next_attempt_timestamp_seconds", "When a certificate is ordered or renewed next", |order| {
        order.next_attempt.unsigned_abs()
    }),
];

/// The metrics of these orders.
pub(super) fn measures(orders: &[Standing]) -> Vec<Measure> {
    let measure = |(name, help, number): Metric| {
        let series = orders.iter().map(|order| (vec![("ssl", order.ssl.clone())], number(order))).collect();
        Measure { name, help, is_counter: false, series }
    };
    METRICS.into_iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_its_series() {
        let order = Standing {
            ssl: "1".to_owned(),
            names: vec!["a.test".to_owned()],
            state: "failed",
            not_after: None,
            next_attempt: 1_700_000_000,
            failures: 3,
            last_error: None,
        };
        let values = |orders: &[Standing]| -> Vec<(&str, u64)> {
            let all = measures(orders).into_iter();
            all.flat_map(|measure| measure.series.into_iter().map(move |(_, number)| (measure.name, number)))
                .collect()
        };
        let expected = [
            ("acme_certificates", 0),
            ("acme_order_failures", 3),
            ("acme_next_attempt_timestamp_seconds", 1_700_000_000),
        ];
        assert_eq!(values(&[order]), expected);
        assert_eq!(values(&[]), []);
    }
}
