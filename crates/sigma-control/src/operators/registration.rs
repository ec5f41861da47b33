//! The state of the gateway's registration in registries, for status pages and metrics.

use serde_json::{Value, json};
use sigma_discovery::{RegistrationReport, SelfRegistration};
use sigma_plugin::facts::Measure;

/// A metric of one registry: name, help, whether it only grows, and its number.
type Metric = (&'static str, &'static str, bool, fn(&RegistrationReport) -> u64);

const METRICS: [Metric; 3] = [
    ("registration_registered", "Whether this gateway is registered in a registry", false, |report| {
        u64::from(report.is_registered && report.problem.is_none())
    }),
    ("registration_registrations_total", "How often this gateway registered in a registry", true, |report| {
        report.registrations
    }),
    ("registration_failures_total", "Registrations and heartbeats that failed", true, |report| {
        report.failures
    }),
];

/// Returns the metrics; none if the gateway does not register.
pub(super) fn measures(registration: Option<&SelfRegistration>) -> Vec<Measure> {
    let Some(registration) = registration else { return Vec::new() };
    let reports = registration.report();
    let measure = |(name, help, is_counter, number): Metric| {
        let labels = |report: &RegistrationReport| vec![("registry", report.registry.to_owned())];
        let series = reports.iter().map(|report| (labels(report), number(report))).collect();
        Measure { name, help, is_counter, series }
    };
    METRICS.into_iter().map(measure).collect()
}

/// Returns the state for the status page; null if the gateway does not register.
pub(super) fn shown(registration: Option<&SelfRegistration>) -> Value {
    let Some(registration) = registration else { return Value::Null };
    let registry = |report: RegistrationReport| {
        json!({
            "registry": report.registry,
            "registered": report.is_registered,
            "registrations": report.registrations,
            "failures": report.failures,
            "last_success": report.last_success,
            "problem": report.problem,
        })
    };
    registration.report().into_iter().map(registry).collect()
}
