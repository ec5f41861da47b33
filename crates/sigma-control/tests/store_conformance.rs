//! The contract of all stores, checked for each of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod store_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sigma_control::store::embedded::Embedded;
use sigma_control::store::memory::Memory;
use sigma_control::store::{Change, Contents, Event, Record, Store, StoreError, Watch};
use store_support::{
    DEADLINE, EtcdExt, EtcdServer, absent, always, at, delete, next, put, put_for, until, when,
};

type Shared = Arc<dyn Store>;

#[tokio::test]
async fn memory() {
    conforms(&(Arc::new(Memory::default()) as Shared)).await;
}

#[tokio::test]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let store: Shared = Arc::new(Embedded::open(dir.path()).unwrap());
    conforms(&store).await;
    times_to_live(&store).await;
}

async fn conforms(store: &Shared) {
    reading_and_writing(store).await;
    conditions(store).await;
    revisions_of_a_record(store).await;
    ids(store).await;
    watching(store).await;
    many_writes_in_one_revision(store).await;
    concurrent_writers(store).await;
    replay_equals_load(store).await;
}

async fn value(store: &Shared, key: &str) -> Option<String> {
    let record = store.get(key).await.unwrap()?;
    assert_eq!(record.key, key);
    Some(String::from_utf8(record.value.to_vec()).unwrap())
}

async fn reading_and_writing(store: &Shared) {
    assert_eq!(value(store, "routes/1").await, None);
    let first = store.commit(always([put("routes/1", "{}"), put("routes/10", r#"{"a":1}"#)])).await.unwrap();
    store.commit(always([put("services/1", "{}"), put("routes2/1", "{}")])).await.unwrap();
    assert_eq!(value(store, "routes/10").await.as_deref(), Some(r#"{"a":1}"#));
    let keys = |records: Vec<Record>| records.into_iter().map(|record| record.key).collect::<Vec<_>>();
    assert_eq!(keys(store.list("routes/").await.unwrap()), ["routes/1", "routes/10"]);
    assert_eq!(keys(store.list("plugin").await.unwrap()), [""; 0]);
    let second = store.commit(always([delete("routes/1"), delete("routes/none")])).await.unwrap();
    assert!(second > first);
    assert_eq!(value(store, "routes/1").await, None);
    let contents = store.load().await.unwrap();
    assert!(contents.revision >= second);
    assert_eq!(keys(contents.records), ["routes/10", "routes2/1", "services/1"]);
    assert!(store.status().revision >= second);
    assert_eq!((store.status().lost, store.status().copied), (None, None));
    // The last write of a key counts.
    store.commit(always([put("routes/1", "{}"), put("routes/1", r#"{"b":2}"#)])).await.unwrap();
    assert_eq!(value(store, "routes/1").await.as_deref(), Some(r#"{"b":2}"#));
}

async fn conditions(store: &Shared) {
    let first = store.commit(when([absent("ssls/1")], [put("ssls/1", "{}")])).await.unwrap();
    let refused = [
        when([absent("ssls/1")], [put("ssls/1", r#"{"no":1}"#)]),
        when([at("ssls/1", first + 1)], [put("ssls/1", r#"{"no":2}"#)]),
        when([at("ssls/none", first)], [put("ssls/2", "{}")]),
        when([at("ssls/1", first), absent("ssls/1")], [delete("ssls/1")]),
    ];
    for transaction in refused {
        let shown = format!("{transaction:?}");
        assert_eq!(store.commit(transaction).await, Err(StoreError::Conflict), "{shown}");
    }
    assert_eq!(value(store, "ssls/1").await.as_deref(), Some("{}"));
    assert_eq!(value(store, "ssls/2").await, None);
    let both = when([at("ssls/1", first), absent("ssls/2")], [put("ssls/2", "{}"), delete("ssls/1")]);
    store.commit(both).await.unwrap();
    assert_eq!((value(store, "ssls/1").await, value(store, "ssls/2").await), (None, Some("{}".into())));
}

async fn revisions_of_a_record(store: &Shared) {
    let revisions = async || {
        let record = store.get("protos/1").await.unwrap().unwrap();
        (record.created, record.modified)
    };
    let first = store.commit(always([put("protos/1", "{}")])).await.unwrap();
    assert_eq!(revisions().await, (first, first));
    let second = store.commit(always([put("protos/1", "{}")])).await.unwrap();
    assert_eq!(revisions().await, (first, second));
    store.commit(always([delete("protos/1")])).await.unwrap();
    let third = store.commit(always([put("protos/1", "{}")])).await.unwrap();
    assert_eq!(revisions().await, (third, third));
}

async fn ids(store: &Shared) {
    let before = store.load().await.unwrap().revision;
    let mut ids = BTreeSet::new();
    for _ in 0..20 {
        assert!(ids.insert(store.next_id().await.unwrap()), "an id came twice");
    }
    assert!(ids.first().is_some_and(|first| *first > before));
    let after = store.commit(always([put("protos/2", "{}")])).await.unwrap();
    assert!(ids.last().is_some_and(|last| *last < after));
}

async fn watching(store: &Shared) {
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(store).watch(from);
    let first = store.commit(always([put("routes/w1", "{}"), put("routes/w2", "{}")])).await.unwrap();
    let second = store.commit(always([put("routes/w1", r#"{"a":1}"#)])).await.unwrap();
    let third = store.commit(always([delete("routes/w2")])).await.unwrap();
    let text = |changes: &[Change]| changes.iter().map(shown).collect::<Vec<_>>();
    let expected = [
        format!("routes/w1 {first} {first} {{}}"),
        format!("routes/w2 {first} {first} {{}}"),
        format!("routes/w1 {first} {second} {{\"a\":1}}"),
        format!("routes/w2 gone {third}"),
    ];
    assert_eq!(text(&collect(&mut watch, third).await), expected);
    // A second watcher that begins later gets the same from the history.
    let mut late = Arc::clone(store).watch(first);
    assert_eq!(text(&collect(&mut late, third).await), expected[2..]);
    let mut newest = Arc::clone(store).watch(third);
    drop(late);
    let fourth = store.commit(always([delete("routes/w1")])).await.unwrap();
    let expected = [format!("routes/w1 gone {fourth}")];
    assert_eq!(text(&collect(&mut newest, fourth).await), expected);
    assert_eq!(text(&collect(&mut watch, fourth).await), expected);
}

fn shown(change: &Change) -> String {
    match change {
        Change::Put(Record { key, value, created, modified }) => {
            format!("{key} {created} {modified} {}", String::from_utf8_lossy(value))
        }
        Change::Delete { key, revision } => format!("{key} gone {revision}"),
    }
}

/// The changes up to and with a revision.
async fn collect(watch: &mut Watch, last: u64) -> Vec<Change> {
    let mut all = Vec::new();
    loop {
        match next(watch).await {
            Event::Changed { revision, changes } => {
                all.extend(changes);
                if revision >= last {
                    return all;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn many_writes_in_one_revision(store: &Shared) {
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(store).watch(from);
    let key = |number: usize| format!("upstreams/{number:05}");
    let puts: Vec<_> = (0..3000).map(|number| put(&key(number), r#"{"nodes":{"127.0.0.1:80":1}}"#)).collect();
    let revision = store.commit(when([absent(&key(0))], puts)).await.unwrap();
    let event = next(&mut watch).await;
    let Event::Changed { revision: told, changes } = &event else { panic!("{event:?}") };
    assert_eq!((*told, changes.len()), (revision, 3000));
    let records = store.list("upstreams/").await.unwrap();
    assert_eq!(records.len(), 3000);
    assert!(records.iter().all(|record| record.modified == revision));
    assert!(records.is_sorted_by(|a, b| a.key < b.key));
    let deletes: Vec<_> = (0..3000).map(|number| delete(&key(number))).collect();
    let conflict = when([absent(&key(7))], deletes.clone());
    assert_eq!(store.commit(conflict).await, Err(StoreError::Conflict));
    store.commit(always(deletes)).await.unwrap();
    assert_eq!(store.list("upstreams/").await.unwrap(), []);
}

async fn concurrent_writers(store: &Shared) {
    store.commit(always([put("protos/count", r#"{"n":0}"#)])).await.unwrap();
    let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(increment(Arc::clone(store)))).collect();
    for task in tasks {
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    }
    assert_eq!(value(store, "protos/count").await.as_deref(), Some(r#"{"n":50}"#));
}

/// Adds five, one at a time, and again whenever another writer was faster.
async fn increment(store: Shared) {
    let mut left = 5;
    while left > 0 {
        let record = store.get("protos/count").await.unwrap().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
        let next = serde_json::json!({"n": value["n"].as_u64().unwrap() + 1}).to_string();
        match store.commit(when([at(&record.key, record.modified)], [put(&record.key, &next)])).await {
            Ok(_) => left -= 1,
            Err(StoreError::Conflict) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A watcher that loads once and then follows has the same as a new load.
async fn replay_equals_load(store: &Shared) {
    let Contents { revision, records } = store.load().await.unwrap();
    let mut followed: BTreeMap<_, _> =
        records.into_iter().map(|record| (record.key.clone(), record)).collect();
    let mut watch = Arc::clone(store).watch(revision);
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut last = revision;
    for round in 0..200 {
        let key = |number| format!("routes/r{number}");
        let writes: Vec<_> = (0..=random(3))
            .map(|_| match random(3) {
                0 => delete(&key(random(10))),
                _ => put(&key(random(10)), &format!("{{\"round\":{round}}}")),
            })
            .collect();
        last = store.commit(always(writes)).await.unwrap();
    }
    // Marks the end: a transaction that only deletes missing keys may cause no event.
    last = last.max(store.commit(always([put("routes/end", "{}")])).await.unwrap());
    for change in collect(&mut watch, last).await {
        match change {
            Change::Put(record) => drop(followed.insert(record.key.clone(), record)),
            Change::Delete { key, .. } => drop(followed.remove(&key)),
        }
    }
    let loaded = store.load().await.unwrap();
    assert_eq!(followed.into_values().collect::<Vec<_>>(), loaded.records);
}

async fn times_to_live(store: &Shared) {
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(store).watch(from);
    let second = Duration::from_secs(1);
    let both = [put_for("secrets/short", "{}", second), put_for("secrets/kept", "{}", second)];
    store.commit(always(both)).await.unwrap();
    store.commit(always([put("secrets/kept", r#"{"kept":1}"#)])).await.unwrap();
    let gone = until(&mut watch, |event| match event {
        Event::Changed { revision, changes } => {
            let gone = changes
                .iter()
                .any(|change| matches!(change, Change::Delete { key, .. } if key == "secrets/short"));
            gone.then_some(*revision)
        }
        other => panic!("{other:?}"),
    });
    let gone = gone.await;
    assert!(gone > from);
    assert_eq!(value(store, "secrets/short").await, None);
    // Past its first time to live: a write without one makes a record stay.
    store.commit(always([put_for("secrets/short", "{}", second)])).await.unwrap();
    until(&mut watch, |event| match event {
        Event::Changed { changes, .. } => changes
            .iter()
            .any(|change| matches!(change, Change::Delete { key, revision } if key == "secrets/short" && *revision > gone))
            .then_some(()),
        other => panic!("{other:?}"),
    })
    .await;
    assert_eq!(value(store, "secrets/kept").await.as_deref(), Some(r#"{"kept":1}"#));
}

#[tokio::test]
async fn a_watcher_that_missed_changes_is_handed_everything() {
    let dir = tempfile::tempdir().unwrap();
    let stores: [Shared; 2] = [Arc::new(Memory::default()), Arc::new(Embedded::open(dir.path()).unwrap())];
    for store in stores {
        let first = store.commit(always([put("routes/1", "{}")])).await.unwrap();
        let many: Vec<_> = (0..10_000).map(|number| put(&format!("routes/m{number}"), "{}")).collect();
        store.commit(always(many)).await.unwrap();
        let mut watch = Arc::clone(&store).watch(first);
        assert_eq!(next(&mut watch).await, Event::Reloaded(store.load().await.unwrap()));
        // It goes on from there; a revision from the future is another store's.
        let last = store.commit(always([delete("routes/1")])).await.unwrap();
        let changes = vec![Change::Delete { key: "routes/1".into(), revision: last }];
        assert_eq!(next(&mut watch).await, Event::Changed { revision: last, changes });
        let mut future = Arc::clone(&store).watch(last + 100);
        assert!(matches!(next(&mut future).await, Event::Reloaded(_)));
    }
}

/// Tests with an installed etcd.
mod installed {
    use super::*;

    #[tokio::test]
    async fn etcd() {
        let server = EtcdServer::start().unwrap();
        let store: Shared = Arc::new(server.store());
        conforms(&store).await;
        times_to_live(&store).await;
    }
}
