//! The state of followed documents (`config_sources`), for status pages and metrics.

use serde_json::{Value, json};
use sigma_discovery::{DocumentFollower, DocumentReport};
use sigma_plugin::facts::Measure;

/// A metric of one document: name, help, whether it only grows, and its number; None where it does not apply.
type Metric = (&'static str, &'static str, bool, fn(&DocumentReport) -> Option<u64>);

const METRICS: [Metric; 4] = [
    (
        "config_document_reachable",
        "Whether a followed document can be read from its source",
        false,
        |report| Some(u64::from(report.lost.is_none())),
    ),
    ("config_document_updates_total", "How often the text of a followed document changed", true, |report| {
        Some(report.updates)
    }),
    ("config_document_failures_total", "How often a followed document could not be read", true, |report| {
        Some(report.failures)
    }),
    (
        "config_document_last_success_timestamp_seconds",
        "Time of the last usable response with a followed document",
        false,
        |report| report.last_success,
    ),
];

/// Returns the metrics; none if no documents are followed.
pub(super) fn measures(follower: Option<&DocumentFollower>) -> Vec<Measure> {
    let Some(follower) = follower else { return Vec::new() };
    let reports = follower.report();
    let measure = |(name, help, is_counter, number): Metric| {
        let labels = |report: &DocumentReport| vec![("document", report.name.to_string())];
        let series = reports.iter().filter_map(|report| Some((labels(report), number(report)?))).collect();
        Measure { name, help, is_counter, series }
    };
    let refused = Measure {
        name: "config_documents_refused",
        help: "Whether the newest followed documents are invalid and not in force",
        is_counter: false,
        series: vec![(Vec::new(), u64::from(follower.refusal().is_some()))],
    };
    METRICS.into_iter().map(measure).chain([refused]).collect()
}

/// Returns the state for the status page; null if no documents are followed.
pub(super) fn shown(follower: Option<&DocumentFollower>) -> Value {
    let Some(follower) = follower else { return Value::Null };
    let since = |problem: Option<(u64, String)>| {
        problem.map(|(since, reason)| json!({"since": since, "reason": reason}))
    };
    let document = |report: DocumentReport| {
        json!({
            "name": &*report.name,
            "sha256": report.sha256,
            "last_success": report.last_success,
            "updates": report.updates,
            "failures": report.failures,
            "lost": since(report.lost),
            "kept": report.is_kept,
        })
    };
    json!({
        "refused": since(follower.refusal()),
        "documents": follower.report().into_iter().map(document).collect::<Vec<_>>(),
    })
}
