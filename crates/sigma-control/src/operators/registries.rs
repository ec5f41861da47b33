//! Metrics of the registries that upstreams take their nodes from.

use sigma_discovery::Report;
use sigma_plugin::facts::Measure;

/// A metric: name, help, whether it only grows, and its number in a report; None where it does not apply.
type Metric = (&'static str, &'static str, bool, fn(&Report) -> Option<u64>);

const METRICS: [Metric; 10] = [
    ("discovery_requests_total", "Requests sent to a registry", true, |report| Some(report.requests)),
    (
        "discovery_request_failures_total",
        "Requests to a registry that got no response or an error status",
        true,
        |report| Some(report.request_failures),
    ),
    (
        "discovery_update_failures_total",
        "How often no member of a registry returned a usable response",
        true,
        |report| Some(report.update_failures),
    ),
    ("discovery_updates_total", "How often the nodes of a service changed", true, |report| {
        Some(report.updates)
    }),
    ("discovery_held_back_total", "How often the protection held back a list that shrank", true, |report| {
        Some(report.held_back)
    }),
    ("discovery_held_back_services", "Services whose list the protection holds back now", false, |report| {
        Some(report.held_back_now)
    }),
    (
        "discovery_last_success_timestamp_seconds",
        "Time of the last usable response of a registry",
        false,
        |report| report.last_success,
    ),
    ("discovery_services", "Known services", false, |report| Some(report.services)),
    ("discovery_nodes", "Known nodes", false, |report| Some(report.nodes)),
    (
        "discovery_stored_list",
        "Whether the stored list is served because the registry has not sent one yet",
        false,
        |report| Some(u64::from(report.is_stored)),
    ),
];

/// The metrics of these registries.
pub(super) fn measures(reports: &[Report]) -> Vec<Measure> {
    let measure = |(name, help, is_counter, number): Metric| {
        let labels = |report: &Report| {
            vec![("type", report.registry.to_string()), ("id", report.id.clone().into_string())]
        };
        let series = reports.iter().filter_map(|report| Some((labels(report), number(report)?))).collect();
        Measure { name, help, is_counter, series }
    };
    METRICS.into_iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::measures::text;
    use sigma_config::discovery::Registry;

    #[test]
    fn every_registry_has_its_series_and_no_success_before_the_first() {
        let never = Report::none(Registry::Consul, "");
        let known = Report {
            requests: 7,
            last_success: Some(1_700_000_000),
            nodes: 3,
            is_stored: true,
            ..Report::none(Registry::Kubernetes, "first")
        };
        let text = text(&measures(&[never, known]));
        for line in [
            "# TYPE sigma_discovery_requests_total counter",
            "sigma_discovery_requests_total{type=\"consul\",id=\"\"} 0",
            "sigma_discovery_requests_total{type=\"kubernetes\",id=\"first\"} 7",
            "# TYPE sigma_discovery_last_success_timestamp_seconds gauge",
            "sigma_discovery_last_success_timestamp_seconds{type=\"kubernetes\",id=\"first\"} 1700000000",
            "sigma_discovery_nodes{type=\"kubernetes\",id=\"first\"} 3",
            "sigma_discovery_stored_list{type=\"kubernetes\",id=\"first\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("last_success_timestamp_seconds{").count(), 1);
        assert_eq!(super::super::measures::text(&measures(&[])), "");
    }
}
