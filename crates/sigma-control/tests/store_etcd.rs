//! Tests of etcd alone: its layout, and all the ways in which it fails and comes back.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod store_support;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sigma_config::store::{Store as StoreSettings, StoreAccess, StoreKind, StoreTls};
use sigma_control::store::copy::{CopyFile, Mirrored};
use sigma_control::store::etcd::{Access, Etcd, EtcdOptions};
use sigma_control::store::{Change, Event, Record, Store, StoreError, open};
use sigma_testkit::Relay;
use store_support::{DEADLINE, EtcdExt, EtcdServer, absent, always, delete, next, put, put_for, until, when};

fn keys(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.as_str()).collect()
}

/// Waits for the put of a key.
async fn until_put(watch: &mut sigma_control::store::Watch, key: &str) {
    until(watch, |event| match event {
        Event::Changed { changes, .. } => changes
            .iter()
            .any(|change| matches!(change, Change::Put(record) if record.key == key))
            .then_some(()),
        Event::Reloaded(contents) => contents.records.iter().any(|record| record.key == key).then_some(()),
        _ => None,
    })
    .await;
}

async fn until_lost(watch: &mut sigma_control::store::Watch) -> String {
    until(watch, |event| if let Event::Lost(reason) = event { Some(reason.clone()) } else { None }).await
}

async fn until_regained(watch: &mut sigma_control::store::Watch) {
    until(watch, |event| matches!(event, Event::Regained { .. }).then_some(())).await;
}

#[tokio::test]
async fn the_layout_equals_apisix() {
    let server = EtcdServer::start().unwrap();
    server.put("/apisix/routes/1", r#"{"uri":"/a"}"#).unwrap();
    server.put("/apisix/plugins", r#"[{"name":"cors"}]"#).unwrap();
    server.put("/apisix2/routes/2", "{}").unwrap();
    let store = Arc::new(server.store());
    let contents = store.load().await.unwrap();
    assert_eq!(keys(&contents.records), ["plugins", "routes/1"]);
    let value = |key: &str| server.get(key).unwrap().unwrap().0;
    assert_eq!(value("/apisix/consumer_groups/"), b"init_dir");
    assert_eq!(server.count("/apisix/").unwrap(), 13 + 2);

    let mut watch = Arc::clone(&store).watch(contents.revision);
    store.commit(always([put("consumers/jack", r#"{"username":"jack"}"#)])).await.unwrap();
    assert_eq!(value("/apisix/consumers/jack"), br#"{"username":"jack"}"#);
    until_put(&mut watch, "consumers/jack").await;
    // A record that is overwritten with something else is not gone: others have to see that.
    let overwritten = server.put("/apisix/routes/1", "no object").unwrap();
    let Event::Changed { changes, revision } = next(&mut watch).await else { panic!("no change") };
    let [Change::Put(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((record.key.as_str(), &record.value[..]), ("routes/1", &b"no object"[..]));
    assert_eq!((record.modified, revision), (overwritten, overwritten));
    assert_eq!(store.get("routes/1").await.unwrap().as_ref(), Some(record));
    assert!(store.load().await.unwrap().records.contains(record));
    let id = store.next_id().await.unwrap();
    let written = |key: &str| server.get(key).unwrap().unwrap().1;
    assert_eq!(written("/apisix/gen_id"), id);
    assert_eq!(next(&mut watch).await, Event::Changed { revision: id, changes: vec![] });

    // Another process finds the placeholders and leaves them as they are.
    let before = written("/apisix/routes/");
    server.store().load().await.unwrap();
    assert_eq!(written("/apisix/routes/"), before);
}

#[tokio::test]
async fn a_reader_does_not_write() {
    let server = EtcdServer::start().unwrap();
    let store = Etcd::new(EtcdOptions { access: Access::ReadOnly, ..server.options() }).unwrap();
    assert_eq!(store.load().await.unwrap().records, []);
    assert_eq!(server.count("/").unwrap(), 0);
    let refused = store.commit(always([put("routes/1", "{}")])).await.unwrap_err();
    assert!(refused.to_string().contains("this gateway only reads its store"), "{refused}");
    assert!(store.next_id().await.is_err());
}

#[tokio::test]
async fn leases_do_not_outlive_their_records() {
    let server = EtcdServer::start().unwrap();
    let store = server.store();
    let long = Duration::from_secs(600);
    let leases = || server.leases().unwrap();
    store.commit(always([put_for("routes/1", "{}", long), put_for("routes/2", "{}", long)])).await.unwrap();
    assert_eq!(leases(), 1);
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    // The other record still needs it.
    assert_eq!(leases(), 1);
    store.commit(always([put_for("routes/2", "{}", long * 2)])).await.unwrap();
    assert_eq!(leases(), 1);
    let conflict = when([absent("routes/1")], [put_for("routes/3", "{}", long)]);
    assert_eq!(store.commit(conflict).await, Err(StoreError::Conflict));
    assert_eq!(leases(), 1);
    assert_eq!(keys(&store.load().await.unwrap().records), ["routes/1", "routes/2"]);
}

#[tokio::test]
async fn large_writes_are_split_or_refused_with_a_sentence() {
    let server = EtcdServer::start().unwrap();
    let store = server.store();
    let value = format!("{{\"desc\":\"{}\"}}", "x".repeat(900_000));
    let many: Vec<_> = (0..5).map(|number| put(&format!("routes/{number}"), &value)).collect();
    let conditions: Vec<_> = (0..200).map(|number| absent(&format!("services/{number}"))).collect();
    store.commit(when(conditions.clone(), many)).await.unwrap();
    let records = store.load().await.unwrap().records;
    assert_eq!(records.iter().map(|record| record.value.len()).sum::<usize>(), 5 * value.len());
    // The last of two hundred conditions is looked at as well.
    store.commit(always([put("services/199", "{}")])).await.unwrap();
    assert_eq!(store.commit(when(conditions, [delete("routes/0")])).await, Err(StoreError::Conflict));
    let whale = format!("{{\"desc\":\"{}\"}}", "x".repeat(2_000_000));
    let refused = store.commit(always([put("routes/9", &whale)])).await.unwrap_err();
    assert!(refused.to_string().contains("--max-request-bytes"), "{refused}");
}

#[tokio::test]
async fn a_killed_etcd_is_lost_and_found() {
    let mut server = EtcdServer::start().unwrap();
    let store = Arc::new(server.store());
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(&store).watch(from);
    store.commit(always([put("routes/2", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/2").await;
    server.kill().unwrap();
    let reason = until_lost(&mut watch).await;
    assert!(reason.contains(&server.endpoint()), "{reason}");
    assert!(store.status().lost.is_some_and(|(_, why)| why.contains("cannot use etcd")));
    let error = store.commit(always([put("routes/3", "{}")])).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    server.run().unwrap();
    until_regained(&mut watch).await;
    assert_eq!(store.status().lost, None);
    store.commit(always([put("routes/4", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/4").await;
    assert_eq!(keys(&store.load().await.unwrap().records), ["routes/1", "routes/2", "routes/4"]);
}

#[tokio::test]
async fn a_paused_etcd_is_noticed() {
    let server = EtcdServer::start().unwrap();
    let store = Arc::new(server.store());
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(&store).watch(from);
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/1").await;
    server.pause().unwrap();
    until_lost(&mut watch).await;
    assert!(store.get("routes/1").await.is_err());
    server.resume().unwrap();
    until_regained(&mut watch).await;
    store.commit(always([put("routes/2", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/2").await;
}

#[tokio::test]
async fn after_compaction_everything_comes_again() {
    let server = EtcdServer::start().unwrap();
    let store = Arc::new(server.store());
    let first = store.commit(always([put("routes/1", "{}")])).await.unwrap();
    store.commit(always([put("routes/2", "{}"), delete("routes/1")])).await.unwrap();
    store.commit(always([put("routes/3", "{}")])).await.unwrap();
    server.compact().unwrap();
    let mut watch = Arc::clone(&store).watch(first);
    let Event::Reloaded(contents) = next(&mut watch).await else { panic!("not reloaded") };
    assert_eq!(keys(&contents.records), ["routes/2", "routes/3"]);
    store.commit(always([put("routes/4", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/4").await;
}

#[tokio::test]
async fn a_restored_backup_is_taken_over() {
    let mut server = EtcdServer::start().unwrap();
    let store = Arc::new(server.store());
    for number in 0..20 {
        store.commit(always([put(&format!("routes/{number}"), "{}")])).await.unwrap();
    }
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(&store).watch(from);
    store.commit(always([put("routes/20", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/20").await;
    server.kill().unwrap();
    server.forget().unwrap();
    server.run().unwrap();
    server.put("/apisix/routes/old", "{}").unwrap();
    let contents = until(&mut watch, |event| match event {
        Event::Reloaded(contents) => Some(contents.clone()),
        _ => None,
    });
    let contents = contents.await;
    assert!(contents.revision < from);
    assert_eq!(keys(&contents.records), ["routes/old"]);
    assert_eq!(store.status().revision, contents.revision);
}

/// Another program writes five routes; returns the revisions.
fn write_routes(server: &EtcdServer, round: u32) -> Vec<u64> {
    let write = |number| server.put(&format!("/apisix/routes/{number}"), &format!("{{\"round\":{round}}}"));
    (0..5).map(|number| write(number).unwrap()).collect()
}

/// Waits until the watcher knows everything up to a revision, by any events.
async fn until_revision(watch: &mut sigma_control::store::Watch, last: u64) {
    let told = |event: &Event| match event {
        Event::Changed { revision, .. } => *revision >= last,
        Event::Reloaded(contents) => contents.revision >= last,
        _ => false,
    };
    until(watch, |event| told(event).then_some(())).await;
}

/// Waits until everything is sent again, and checks that all five routes are of this round.
async fn until_reloaded(watch: &mut sigma_control::store::Watch, round: u32) {
    let contents = until(watch, |event| match event {
        Event::Reloaded(contents) => Some(contents.clone()),
        _ => None,
    });
    let records = contents.await.records;
    assert_eq!(keys(&records), ["routes/0", "routes/1", "routes/2", "routes/3", "routes/4"]);
    let expected = format!("{{\"round\":{round}}}");
    assert!(records.iter().all(|record| *record.value == *expected.as_bytes()), "{records:?}");
}

/// A backup takes etcd back to an older revision, and others write on from there before the gateway
/// looks again: neither the id of the cluster nor a revision shows that this is another history.
#[tokio::test]
async fn a_restored_backup_is_noticed_whatever_its_revision() {
    let mut server = EtcdServer::start().unwrap();
    let relay = Relay::to(server.port()).unwrap();
    let endpoints = vec![format!("http://127.0.0.1:{}", relay.port())];
    let store = Arc::new(Etcd::new(EtcdOptions { endpoints, ..server.options() }).unwrap());
    write_routes(&server, 1);
    let contents = store.load().await.unwrap();
    server.save().unwrap();
    let mut watch = Arc::clone(&store).watch(contents.revision);
    let seen = write_routes(&server, 2)[4];
    until_revision(&mut watch, seen).await;
    relay.cut();
    server.restore().unwrap();
    let passed = (0..20).map(|number| server.put(&format!("/other/{number}"), "x").unwrap()).max();
    assert!(passed > Some(seen));
    relay.mend();
    until_reloaded(&mut watch, 1).await;

    // The same keys are written in the same revisions, with other values.
    server.save().unwrap();
    let revisions = write_routes(&server, 3);
    until_revision(&mut watch, revisions[4]).await;
    relay.cut();
    server.restore().unwrap();
    assert_eq!(write_routes(&server, 4), revisions);
    relay.mend();
    until_reloaded(&mut watch, 4).await;
    write_routes(&server, 5);
    until_revision(&mut watch, revisions[4] + 5).await;
    assert_eq!(store.status().lost, None);
}

#[tokio::test]
async fn keys_that_do_not_agree_are_read_again() {
    let server = EtcdServer::start().unwrap();
    let options = EtcdOptions { compare_interval: Duration::from_millis(200), ..server.options() };
    let store = Arc::new(Etcd::new(options).unwrap());
    write_routes(&server, 1);
    let contents = store.load().await.unwrap();
    // A watch that claims to know unsent changes simulates lost changes.
    let claimed = write_routes(&server, 2)[4];
    let mut lost = Arc::clone(&store).watch(claimed);
    until_reloaded(&mut lost, 2).await;
    // Without a loss nothing is sent again, although history is compacted meanwhile.
    let mut whole = Arc::clone(&store).watch(contents.revision);
    until_revision(&mut whole, claimed).await;
    for number in 0..10 {
        server.put(&format!("/other/{number}"), "x").unwrap();
        server.compact().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(whole.is_empty(), "{:?}", whole.try_recv());
    // A comparison while history is compacted and routes are written may be read in vain.
    let last = write_routes(&server, 3);
    until_revision(&mut whole, last[4]).await;
    until_revision(&mut lost, last[4]).await;
}

#[tokio::test]
async fn users_and_passwords() {
    let mut server = EtcdServer::start().unwrap();
    server.protect("secret").unwrap();
    let with = |user: Option<(&str, &str)>| {
        let user = user.map(|(user, password)| (user.to_owned(), password.to_owned()));
        Arc::new(Etcd::new(EtcdOptions { user, ..server.options() }).unwrap())
    };
    let store = with(Some(("root", "secret")));
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    assert_eq!(keys(&store.load().await.unwrap().records), ["routes/1"]);
    let mut watch = Arc::clone(&store).watch(store.load().await.unwrap().revision);
    store.commit(always([put("routes/2", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/2").await;
    drop(watch);
    let check = async |user: Option<(&str, &str)>, fragments: &[&str]| {
        let error = with(user).load().await.unwrap_err().to_string();
        for fragment in fragments {
            assert!(error.contains(fragment), "{error}: {fragment}");
        }
        assert!(!error.contains("wrong"), "{error} shows the password");
    };
    check(Some(("root", "wrong")), &["insufficient credentials code: 401", "`store.password`"]).await;
    check(Some(("nobody", "wrong")), &["insufficient credentials code: 401"]).await;
    check(None, &["`store.user`"]).await;
    // A wrong password is reported to the watcher, which may be the only reader.
    let mut watch = with(Some(("root", "wrong"))).watch(0);
    assert!(until_lost(&mut watch).await.contains("code: 401"));
    // A new etcd process knows none of the tokens that the old one gave out.
    let mut watch = Arc::clone(&store).watch(store.load().await.unwrap().revision);
    server.kill().unwrap();
    server.run().unwrap();
    store.commit(always([put("routes/3", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/3").await;
}

#[tokio::test]
async fn tls_with_a_certificate_on_both_sides() {
    let server = EtcdServer::start_with_tls().unwrap();
    let [ca, cert, key] = server.tls().unwrap().clone();
    let settings = |ca: &PathBuf, sni: Option<&str>| StoreSettings {
        kind: StoreKind::Etcd,
        endpoints: vec![server.endpoint()],
        path: server.dir().join("data"),
        tls: Some(StoreTls {
            ca: Some(ca.clone()),
            cert: Some(cert.clone()),
            key: Some(key.clone()),
            sni: sni.map(str::to_owned),
        }),
        ..StoreSettings::default()
    };
    let store = open(&settings(&ca, Some("etcd.test"))).await.unwrap();
    let revision = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(&store).watch(revision);
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/1").await;
    let other_name =
        StoreSettings { startup_retry: 0, path: server.dir().join("none"), ..settings(&ca, None) };
    let error = open(&other_name).await.unwrap().load().await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn members_that_are_dead_or_mute_are_passed_over() {
    let mut server = EtcdServer::start().unwrap();
    let dead = EtcdServer::absent().unwrap().endpoint();
    // The kernel accepts connections for it, but no process answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = format!("http://{}", mute.local_addr().unwrap());
    let endpoints = vec![dead.clone(), mute, server.endpoint()];
    let timeout = Duration::from_secs(1);
    let store = Arc::new(Etcd::new(EtcdOptions { endpoints, timeout, ..server.options() }).unwrap());
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    let mut watch = Arc::clone(&store).watch(store.load().await.unwrap().revision);
    store.commit(always([put("routes/2", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/2").await;
    assert_eq!(store.status().lost, None);
    server.kill().unwrap();
    let reason = until_lost(&mut watch).await;
    assert!(reason.contains(&dead) && reason.contains("no response"), "{reason}");
}

/// A gateway moves to another member without losing the watch.
#[tokio::test]
async fn the_next_member_takes_over() {
    // Two clusters stand for two members: what counts here is that the second is used.
    let (mut first, second) = (EtcdServer::start().unwrap(), EtcdServer::start().unwrap());
    let endpoints = vec![first.endpoint(), second.endpoint()];
    let store = Arc::new(Etcd::new(EtcdOptions { endpoints, ..first.options() }).unwrap());
    store.commit(always([put("routes/first", "{}")])).await.unwrap();
    let mut watch = Arc::clone(&store).watch(store.load().await.unwrap().revision);
    store.commit(always([put("routes/again", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/again").await;
    first.kill().unwrap();
    // Another cluster has another history, whatever its revision.
    let Event::Reloaded(contents) = next(&mut watch).await else { panic!("not reloaded") };
    assert_eq!(contents.records, []);
    store.commit(always([put("routes/second", "{}")])).await.unwrap();
    until_put(&mut watch, "routes/second").await;
}

#[tokio::test]
async fn a_start_without_etcd_takes_the_local_copy() {
    let mut server = EtcdServer::start().unwrap();
    let data = server.dir().join("data");
    let mirrored = |server: &EtcdServer| {
        Arc::new(Mirrored::new(server.store(), CopyFile::new(&data, "/apisix"), 1).unwrap())
    };
    let store = mirrored(&server);
    store.commit(always([put("routes/1", "{}")])).await.unwrap();
    let from = store.load().await.unwrap().revision;
    let mut watch = Arc::clone(&store).watch(from);
    let last = store.commit(always([put("routes/2", "{}"), delete("routes/1")])).await.unwrap();
    until_put(&mut watch, "routes/2").await;
    assert_eq!(store.status().copied, None);
    let file = CopyFile::new(&data, "/apisix");
    let began = Instant::now();
    while file.read().unwrap().is_none_or(|copy| copy.contents.revision < last) {
        assert!(began.elapsed() < DEADLINE, "the copy is not written");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop((watch, store));
    server.kill().unwrap();

    let store = mirrored(&server);
    let contents = store.load().await.unwrap();
    assert_eq!((contents.revision, keys(&contents.records)), (last, vec!["routes/2"]));
    let status = store.status();
    assert!(status.copied.is_some() && status.lost.is_some(), "{status:?}");
    assert_eq!((status.kind, status.revision), ("etcd", last));
    let mut watch = Arc::clone(&store).watch(contents.revision);
    until_lost(&mut watch).await;
    server.run().unwrap();
    server.put("/apisix/routes/3", "{}").unwrap();
    until_put(&mut watch, "routes/3").await;
    let status = store.status();
    assert_eq!((status.copied, status.lost), (None, None));
}

#[tokio::test]
async fn a_start_without_etcd_and_copy_says_so() {
    let server = EtcdServer::absent().unwrap();
    let settings = StoreSettings {
        kind: StoreKind::Etcd,
        endpoints: vec![server.endpoint()],
        path: server.dir().join("data"),
        access: StoreAccess::ReadOnly,
        startup_retry: 0,
        ..StoreSettings::default()
    };
    let store = open(&settings).await.unwrap();
    let error = store.load().await.unwrap_err().to_string();
    for fragment in ["cannot use etcd", &server.endpoint(), "there is no local copy yet"] {
        assert!(error.contains(fragment), "{error}: {fragment}");
    }
}

#[tokio::test]
async fn settings_open_the_store_that_they_name() {
    let dir = tempfile::tempdir().unwrap();
    let settings = StoreSettings { path: dir.path().join("data"), ..StoreSettings::default() };
    let store = open(&settings).await.unwrap();
    assert_eq!(store.status().kind, "embedded");
    let tls = StoreTls { ca: Some(PathBuf::from("/none/ca.pem")), ..Default::default() };
    let endpoints = vec!["https://127.0.0.1:1".to_owned()];
    let settings = StoreSettings { kind: StoreKind::Etcd, endpoints, tls: Some(tls), ..settings };
    let Err(error) = open(&settings).await else { panic!("opened") };
    assert!(error.to_string().starts_with("`store.tls.ca`: /none/ca.pem: "), "{error}");
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, "no certificate").unwrap();
    let tls = Some(StoreTls { ca: Some(ca), ..Default::default() });
    let Err(error) = open(&StoreSettings { tls, ..settings }).await else { panic!("opened") };
    assert!(error.to_string().contains("ca.pem: it contains no certificate"), "{error}");
}

/// Start-up with a hundred thousand routes.
#[tokio::test]
async fn a_full_load_of_a_hundred_thousand_routes_is_quick() {
    let server = EtcdServer::start().unwrap();
    let store = Etcd::new(EtcdOptions { timeout: Duration::from_secs(20), ..server.options() }).unwrap();
    let value = |number: usize| {
        format!(
            "{{\"id\":\"{number}\",\"uri\":\"/r{number}\",\"upstream\":{{\"nodes\":{{\"127.0.0.1:1980\":1}}}}}}"
        )
    };
    for chunk in (0..100_000).collect::<Vec<_>>().chunks(4096) {
        let writes: Vec<_> =
            chunk.iter().map(|number| put(&format!("routes/{number}"), &value(*number))).collect();
        store.commit(always(writes)).await.unwrap();
    }
    let contents = tokio::time::timeout(DEADLINE, store.load()).await.expect("all of them in time").unwrap();
    assert_eq!(contents.records.len(), 100_000);
}
