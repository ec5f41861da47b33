//! The certificates in force, for operators: as a list and as a metric.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sigma_net::tls::certificate;
use sigma_plugin::facts::Measure;
use sigma_proxy::Snapshot;
use sigma_proxy::snapshot::Presented;

use crate::serving::expiry::{InUse, leaf};

/// The certificates of a snapshot as they stand at `now`, in Unix seconds.
pub(super) fn listed(snapshot: &Snapshot, now: i64) -> Vec<Value> {
    let days = &snapshot.settings.tls.expiry_warning_days;
    snapshot.presented().iter().map(|presented| shown(presented, days, now)).collect()
}

fn shown(presented: &Presented, days: &[u32], now: i64) -> Value {
    let (in_use, leaf) = (InUse::of(presented), leaf(presented));
    let validity = leaf.and_then(certificate::validity);
    json!({
        "resource": in_use.place,
        "type": in_use.side.name(),
        "names": leaf.map(certificate::dns_names).unwrap_or_default(),
        "subject": leaf.and_then(certificate::subject),
        "issuer": leaf.and_then(certificate::issuer),
        "serial": in_use.serial,
        "validity_start": validity.map(|validity| validity.not_before),
        "validity_end": validity.map(|validity| validity.not_after),
        "chain_validity_end": in_use.ends,
        "status": in_use.standing(days, now).name(),
    })
}

/// When each certificate of a snapshot expires.
pub(super) fn measure(snapshot: &Snapshot) -> Measure {
    let mut series: BTreeMap<Vec<(&'static str, String)>, u64> = BTreeMap::new();
    for InUse { place, side, serial, ends, .. } in snapshot.presented().iter().map(InUse::of) {
        let Some(ends) = ends else { continue };
        let labels = vec![("resource", place), ("type", side.name().to_owned()), ("serial", serial)];
        let ends = u64::try_from(ends).unwrap_or(0);
        // A series has one number: the end of the certificate that expires first.
        series.entry(labels).and_modify(|first| *first = ends.min(*first)).or_insert(ends);
    }
    Measure {
        name: "ssl_certificate_expires_timestamp_seconds",
        help: "When the first certificate of a chain that is shown expires",
        is_counter: false,
        series: series.into_iter().collect(),
    }
}
