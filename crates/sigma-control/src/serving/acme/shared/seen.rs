//! A gateway's view of the shared state, by the events of the store.

use std::collections::BTreeMap;

use crate::serving::acme::kept::Record;
use crate::serving::acme::proofs::Proof;
use crate::store::{self, Change};

/// Where all of it is, among what gateways report.
pub(super) const FOLDER: &str = "data_plane/acme/";

/// The records of ssls, and the responses to an authority.
pub(super) const CERTIFICATES: &str = "data_plane/acme/certificates/";
pub(super) const PROOFS: &str = "data_plane/acme/proofs";
/// Ssls that an operator wants ordered now.
pub(super) const DEMANDS: &str = "data_plane/acme/demands/";

/// A change that is new to a gateway.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serving::acme) enum Heard {
    /// Something of an ssl.
    Record(Box<Record>),
    /// The proofs that are to be given from now on, and no others.
    Proofs(Vec<Proof>),
    /// An ssl is to be ordered now.
    Demand(String),
}

/// What is known.
#[derive(Default)]
pub(super) struct SharedCertificates {
    /// By ssl; None is what no key opens.
    records: BTreeMap<String, (u64, Option<Record>)>,
    /// The revision of the proofs that are given.
    proofs: u64,
    /// Moves with every change.
    changes: u64,
}

impl SharedCertificates {
    /// Takes in a change. `open` has the text that was sealed.
    pub(super) fn hear(&mut self, change: &Change, open: impl Fn(&str) -> Option<String>) -> Option<Heard> {
        match change {
            Change::Put(record) if record.key == PROOFS => {
                self.changes += 1;
                self.proofs = record.modified;
                // An unreadable record proves nothing.
                Some(Heard::Proofs(serde_json::from_slice(&record.value).unwrap_or_default()))
            }
            Change::Put(record) => match record.key.strip_prefix(DEMANDS) {
                Some(ssl) => Some(Heard::Demand(ssl.to_owned())),
                None => self.put(record, open),
            },
            Change::Delete { key, revision } if key == PROOFS => {
                self.changes += 1;
                self.proofs = *revision;
                Some(Heard::Proofs(Vec::new()))
            }
            Change::Delete { key, .. } => {
                if self.records.remove(key.strip_prefix(CERTIFICATES)?).is_some() {
                    self.changes += 1;
                }
                None
            }
        }
    }

    fn put(&mut self, record: &store::Record, open: impl Fn(&str) -> Option<String>) -> Option<Heard> {
        let ssl = record.key.strip_prefix(CERTIFICATES)?;
        if self.records.get(ssl).is_some_and(|(known, _)| *known >= record.modified) {
            return None;
        }
        self.changes += 1;
        let opened = opened(record, ssl, open);
        if let Err(reason) = &opened {
            tracing::error!(
                ssl,
                reason,
                "this gateway cannot use the certificates that another gateway ordered, and orders none"
            );
        }
        let opened = opened.ok();
        self.records.insert(ssl.to_owned(), (record.modified, opened.clone()));
        opened.map(|record| Heard::Record(Box::new(record)))
    }

    /// Takes in what this gateway has written itself.
    pub(super) fn keep(&mut self, record: &Record, revision: u64) {
        if self.records.get(&record.ssl).is_none_or(|(known, _)| *known < revision) {
            self.changes += 1;
            self.records.insert(record.ssl.clone(), (revision, Some(record.clone())));
        }
    }

    /// Replaces the whole state. Returns the news in it.
    pub(super) fn replace(
        &mut self,
        records: &[store::Record],
        open: impl Fn(&str) -> Option<String>,
    ) -> Vec<Heard> {
        self.records
            .retain(|ssl, _| records.iter().any(|record| record.key.strip_prefix(CERTIFICATES) == Some(ssl)));
        let mut heard: Vec<Heard> = Vec::new();
        if !records.iter().any(|record| record.key == PROOFS) {
            heard.push(Heard::Proofs(Vec::new()));
        }
        // An order that came while this gateway read no events has to be repeated.
        let lasting = records.iter().filter(|record| !record.key.starts_with(DEMANDS));
        let puts = lasting.map(|record| Change::Put(record.clone()));
        heard.extend(puts.filter_map(|put| self.hear(&put, &open)));
        self.changes += 1;
        heard
    }

    /// Returns the records of all ssls; None as long as a part of them cannot be read.
    pub(super) fn records(&self) -> Option<BTreeMap<String, Record>> {
        let all = self.records.iter();
        all.map(|(ssl, (_, record))| Some((ssl.clone(), record.clone()?))).collect()
    }

    /// The revision of the proofs that are given.
    pub(super) fn proofs(&self) -> u64 {
        self.proofs
    }

    /// A number that moves with every change.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

fn opened(
    record: &store::Record,
    ssl: &str,
    open: impl Fn(&str) -> Option<String>,
) -> Result<Record, String> {
    let mut opened: Record = serde_json::from_slice(&record.value).map_err(|error| error.to_string())?;
    if opened.ssl != ssl || !opened.is_known() {
        return Err("its format is unknown; run the same version on all gateways".to_owned());
    }
    if !opened.key.reveal().is_empty() {
        let key = open(opened.key.reveal());
        let key = key
            .ok_or("no key of `data_encryption.keyring` decrypts it: set the same keyring on all gateways")?;
        opened.key = key.as_str().into();
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_config::resources::AcmeChallenge;

    use super::*;

    fn record(key: &str, modified: u64, value: &serde_json::Value) -> store::Record {
        let value = value.to_string().as_bytes().into();
        store::Record { key: key.to_owned(), value, created: 1, modified }
    }

    fn of_ssl(ssl: &str, modified: u64, key: &str) -> store::Record {
        let value = json!({ "version": 1, "ssl": ssl, "cert": "c", "key": key });
        record(&format!("{CERTIFICATES}{ssl}"), modified, &value)
    }

    /// Opens what begins with `sealed-`.
    fn open(sealed: &str) -> Option<String> {
        sealed.strip_prefix("sealed-").map(str::to_owned)
    }

    fn keys(seen: &SharedCertificates) -> Option<Vec<(String, String)>> {
        Some(seen.records()?.into_iter().map(|(ssl, record)| (ssl, record.key.reveal().to_owned())).collect())
    }

    #[test]
    fn newer_records_win_in_any_order() {
        let mut seen = SharedCertificates::default();
        let mut put = |record| seen.hear(&Change::Put(record), open).is_some();
        assert!(put(of_ssl("1", 5, "sealed-new")));
        assert!(!put(of_ssl("1", 4, "sealed-old")));
        assert!(put(record("data_plane/acme/demands/1", 6, &json!({}))));
        assert!(
            !put(record("data_plane/acme/leader", 6, &json!({}))) && !put(record("routes/1", 6, &json!({})))
        );
        assert_eq!(keys(&seen), Some(vec![("1".to_owned(), "new".to_owned())]));
        let all = [of_ssl("1", 5, "sealed-new"), of_ssl("2", 7, "sealed-two")];
        // A known record is not news.
        assert_eq!(seen.replace(&all, open).len(), 2);
        assert_eq!(seen.replace(&all[1..], open), [Heard::Proofs(Vec::new())]);
        assert_eq!(keys(&seen), Some(vec![("2".to_owned(), "two".to_owned())]));
        let gone = Change::Delete { key: format!("{CERTIFICATES}2"), revision: 9 };
        assert_eq!((seen.hear(&gone, open), keys(&seen)), (None, Some(Vec::new())));
    }

    /// A late event of the watch is older than this gateway's own writes.
    #[test]
    fn own_writes_count_at_once() {
        let mut seen = SharedCertificates::default();
        let own = Record { key: "own".into(), ..Record::new("1") };
        seen.keep(&own, 5);
        assert_eq!(seen.hear(&Change::Put(of_ssl("1", 4, "sealed-former")), open), None);
        assert_eq!(seen.hear(&Change::Put(of_ssl("1", 5, "sealed-own")), open), None);
        assert_eq!(keys(&seen), Some(vec![("1".to_owned(), "own".to_owned())]));
        seen.keep(&Record::new("1"), 3);
        assert_eq!(keys(&seen), Some(vec![("1".to_owned(), "own".to_owned())]));
    }

    #[test]
    fn a_record_that_cannot_be_opened_blocks_ordering() {
        for odd in [
            of_ssl("1", 2, "of another keyring"),
            record(&format!("{CERTIFICATES}1"), 2, &json!([])),
            record(&format!("{CERTIFICATES}1"), 2, &json!({ "version": 2, "ssl": "1" })),
            record(&format!("{CERTIFICATES}1"), 2, &json!({ "version": 1, "ssl": "2" })),
        ] {
            let mut seen = SharedCertificates::default();
            assert!(seen.hear(&Change::Put(of_ssl("2", 1, "sealed-a")), open).is_some());
            assert_eq!(seen.hear(&Change::Put(odd), open), None);
            assert_eq!(keys(&seen), None);
            assert!(seen.hear(&Change::Put(of_ssl("1", 3, "sealed-b")), open).is_some());
            assert_eq!(keys(&seen).map(|keys| keys.len()), Some(2));
        }
    }

    #[test]
    fn the_last_proofs_count() {
        let mut seen = SharedCertificates::default();
        let proof = Proof {
            name: "a.test".to_owned(),
            token: "t".to_owned(),
            answer: "t.k".to_owned(),
            challenge: AcmeChallenge::Http01,
        };
        let told = record(PROOFS, 8, &json!([proof]));
        let heard = seen.hear(&Change::Put(told), open);
        assert_eq!((heard, seen.proofs()), (Some(Heard::Proofs(vec![proof])), 8));
        let heard = seen.hear(&Change::Put(record(PROOFS, 9, &json!({}))), open);
        assert_eq!((heard, seen.proofs()), (Some(Heard::Proofs(Vec::new())), 9));
        let heard = seen.hear(&Change::Delete { key: PROOFS.to_owned(), revision: 11 }, open);
        assert_eq!((heard, seen.proofs()), (Some(Heard::Proofs(Vec::new())), 11));
    }
}
