//! Versions, forward and back.

use super::file::{Draft, Refused};
use super::*;

const PLENTY: Limits = Limits { count: 1000, age_ms: u64::MAX, bytes: 1 << 30 };
const LIMITS: DifferenceLimits = DifferenceLimits { objects: 1000, bytes: 1 << 30 };

fn draft(revision: u64, time_ms: u64) -> Draft {
    Draft {
        author: Author::of(By::Admin),
        revision,
        time_ms,
        rollback_to: None,
        note: None,
        result: Outcome::of(State::Pending),
        always: false,
    }
}

fn item(key: &str, modified: u64, value: Option<&str>) -> Item {
    Item { key: key.to_owned(), modified, value: value.map(|value| value.as_bytes().into()) }
}

fn open(path: Option<&std::path::Path>, subject: &str) -> HistoryFile {
    HistoryFile::open(path, subject).unwrap_or_else(|_| panic!("it opens"))
}

/// Keys with the revisions in which they were written, and their values.
type World = BTreeMap<String, (u64, String)>;

/// From any state, a rollback leads to the former state, and differences list the changes.
#[test]
fn every_version_can_be_gone_back_to() {
    let seeds = std::env::var("SIGMA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    let only = std::env::var("SIGMA_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let mut random = fastrand::Rng::with_seed(seed);
        let file = open(None, "embedded");
        let (mut world, mut states) = (World::new(), BTreeMap::<u64, World>::new());
        for n in 0..random.u64(0..4) {
            world.insert(format!("routes/{n}"), (0, format!("{{\"n\":{n}}}")));
        }
        let items: Vec<Item> = world.iter().map(|(key, (at, text))| item(key, *at, Some(text))).collect();
        let first = file.begin(&items, draft(0, 0)).unwrap();
        states.insert(first.version, world.clone());
        for revision in 1..40 {
            let mut items = Vec::new();
            for _ in 0..random.usize(1..4) {
                let key = format!("routes/{}", random.u64(0..6));
                if items.iter().any(|item: &Item| item.key == key) {
                    continue;
                }
                // Few values, so that many writes change nothing.
                let text = random.bool().then(|| format!("{{\"n\":{}}}", random.u64(0..3)));
                match &text {
                    Some(text) => drop(world.insert(key.clone(), (revision, text.clone()))),
                    None => drop(world.remove(&key)),
                }
                items.push(item(&key, revision, text.as_deref()));
            }
            if let Some(version) = file.record(&items, draft(revision, revision), &PLENTY).unwrap() {
                states.insert(version.version, world.clone());
            }
        }
        let present: BTreeMap<String, u64> =
            world.iter().map(|(key, (modified, _))| (key.clone(), *modified)).collect();
        let values = |world: &World| -> BTreeMap<String, Vec<u8>> {
            world.iter().map(|(key, (_, text))| (key.clone(), text.clone().into_bytes())).collect()
        };
        for (version, state) in &states {
            let target = file.target(*version, &present).unwrap().expect("the present is known");
            let mut back = values(&world);
            for (key, value) in target.objects {
                let former = match value {
                    Some(value) => back.insert(key.clone(), value.clone()).filter(|former| *former == value),
                    None => back.remove(&key).map_or(Some(Vec::new()), |_| None),
                };
                assert_eq!(former, None, "seed {seed}: {key} has not changed");
            }
            assert_eq!(back, values(state), "seed {seed}, version {version}");
            let other = *random.choice(states.keys().collect::<Vec<_>>()).expect("there are some");
            let (differences, total) = file.between(*version, other, None, LIMITS).unwrap();
            assert_eq!(total, differences.len());
            let mut forward = values(state);
            for Difference { key, before, after } in differences {
                assert_eq!(
                    forward.get(&key),
                    before.as_ref(),
                    "seed {seed}: {key} from {version} to {other}"
                );
                match after {
                    Some(after) => drop(forward.insert(key, after)),
                    None => drop(forward.remove(&key)),
                }
            }
            assert_eq!(forward, values(&states[&other]), "seed {seed}, from {version} to {other}");
        }
        // An unknown change prevents a rollback.
        let mut later = present.clone();
        later.insert("routes/new".to_owned(), 99);
        assert_eq!(file.target(first.version, &later).unwrap(), None);
        if let Some((key, _)) = present.first_key_value() {
            let mut later = present.clone();
            later.insert(key.clone(), 99);
            assert_eq!(file.target(first.version, &later).unwrap(), None);
            later.remove(key);
            assert_eq!(file.target(first.version, &later).unwrap(), None);
        }
    }
}

#[test]
fn the_oldest_versions_go_first() {
    let numbers = |file: &HistoryFile| -> Vec<u64> {
        file.list(100, None, None).unwrap().into_iter().map(|version| version.version).collect()
    };
    let write = |file: &HistoryFile, revision: u64, value: &str, limits: &Limits| {
        let items = [item("routes/1", revision, Some(value))];
        file.record(&items, draft(revision, revision * 1000), limits).unwrap();
    };
    let file = open(None, "embedded");
    for revision in 1..=5 {
        write(&file, revision, &revision.to_string(), &Limits { count: 3, ..PLENTY });
    }
    assert_eq!(numbers(&file), [5, 4, 3]);
    write(&file, 6, "6", &Limits { age_ms: 1500, ..PLENTY });
    assert_eq!(numbers(&file), [6, 5]);
    // Queries about the remaining versions are answered as before.
    let (differences, _) = file.between(5, 6, None, LIMITS).unwrap();
    let expected =
        Difference { key: "routes/1".to_owned(), before: Some(b"5".to_vec()), after: Some(b"6".to_vec()) };
    assert_eq!(differences, [expected]);
    // Of one that is larger than all may be there is only the row.
    let large = "x".repeat(4096);
    write(&file, 7, &large, &PLENTY);
    write(&file, 8, "8", &Limits { bytes: 2048, ..PLENTY });
    let left = file.list(100, None, None).unwrap();
    assert_eq!((left.len(), left[0].version, left[0].without_values), (1, 8, true));
    assert_eq!(file.between(7, 8, None, LIMITS).unwrap(), (Vec::new(), 0));
    write(&file, 9, "9", &Limits { bytes: 2048, ..PLENTY });
    assert_eq!(numbers(&file), [9, 8], "numbers go on");
    let present = BTreeMap::from([("routes/1".to_owned(), 9)]);
    let target = file.target(8, &present).unwrap().expect("the present is known");
    assert_eq!(target.objects, BTreeMap::from([("routes/1".to_owned(), Some(b"8".to_vec()))]));
}

#[test]
fn a_list_is_of_a_key_or_of_a_part() {
    let file = open(None, "embedded");
    for revision in 1..=6 {
        let key = if revision % 2 == 0 { "routes/2" } else { "routes/1" };
        file.record(&[item(key, revision, Some(&revision.to_string()))], draft(revision, 0), &PLENTY)
            .unwrap();
    }
    let check = |limit: usize, before: Option<u64>, key: Option<&str>, expected: &[u64]| {
        let found = file.list(limit, before, key).unwrap();
        let found: Vec<u64> = found.into_iter().map(|version| version.version).collect();
        assert_eq!(found, expected, "{limit} {before:?} {key:?}");
    };
    check(2, None, None, &[6, 5]);
    check(2, Some(5), None, &[4, 3]);
    check(9, None, Some("routes/1"), &[5, 3, 1]);
    check(1, Some(5), Some("routes/1"), &[3]);
    check(9, None, Some("routes/3"), &[]);
    let limits = DifferenceLimits { objects: 1, bytes: 1 << 30 };
    let (found, total) = file.between(1, 6, None, limits).unwrap();
    assert_eq!((found.len(), total), (1, 2));
    let (found, total) = file.between(1, 6, None, DifferenceLimits { objects: 9, bytes: 1 }).unwrap();
    assert_eq!((found.len(), total), (1, 2));
    let (found, total) = file.between(1, 6, Some("routes/2"), LIMITS).unwrap();
    assert_eq!((found[0].key.as_str(), total), ("routes/2", 1));
}

/// Changes that were written without a watcher are a version of an unknown author.
#[test]
fn missed_changes_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/history.redb");
    let file = open(Some(&path), "embedded");
    file.begin(&[item("routes/1", 1, Some("a")), item("routes/2", 1, Some("b"))], draft(1, 0)).unwrap();
    assert!(matches!(HistoryFile::open(Some(&path), "embedded"), Err(Refused::Busy)));
    drop(file);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let file = open(Some(&path), "embedded");
    assert!(!file.is_new().unwrap());
    let found = vec![item("routes/1", 1, Some("a")), item("routes/3", 2, Some("c"))];
    let found = file.differences(found, |_| true).unwrap();
    let version = file.record(&found, draft(2, 0), &PLENTY).unwrap().expect("something has changed");
    assert_eq!(version.summary, Summary { created: 1, changed: 0, deleted: 1 });
    drop(file);
    // Another subject has another history.
    assert!(open(Some(&path), "etcd /apisix").is_new().unwrap());
}

async fn settled(history: &History, count: usize) -> Vec<Version> {
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let found = history.list(100, None, None).await.unwrap();
        if found.len() >= count || std::time::Instant::now() > limit {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

fn changed(revision: u64, key: &str, value: Option<&str>) -> Event {
    let change = match value {
        Some(value) => Change::Put(super::super::Record {
            key: key.to_owned(),
            value: value.as_bytes().into(),
            created: 1,
            modified: revision,
        }),
        None => Change::Delete { key: key.to_owned(), revision },
    };
    Event::Changed { revision, changes: vec![change] }
}

fn place(file: Option<PathBuf>, others: By) -> HistoryLocation {
    HistoryLocation { file, subject: "s".to_owned(), others }
}

/// An author may come before the change is seen or after.
#[tokio::test]
async fn authors_and_results_find_their_versions() {
    let history = History::begin(place(None, By::Expiry), PLENTY).unwrap();
    history.found(&Contents { revision: 1, records: Vec::new() });
    let author = |name: &str| Author { key: Some(name.to_owned()), ..Author::of(By::Admin) };
    history.wrote(2, author("before"), None);
    history.hear(&changed(2, "routes/1", Some("{}")));
    history.settled(2, Vec::new());
    history.hear(&changed(3, "routes/1", Some("{\"a\":1}")));
    history.wrote(3, author("after\n"), Some(1));
    let unserved = Unserved { key: "routes/1".into(), reason: "no".into(), served: "closed".into() };
    let other = Unserved { key: "routes/9".into(), ..unserved.clone() };
    history.settled(3, vec![other, unserved.clone()]);
    history.hear(&changed(4, "routes/1", None));
    history.hear(&changed(5, "routes/1", Some("{}")));
    history.hear(&changed(6, "sigma/configs", Some("{}")));
    history.hear(&changed(7, "data_plane/x", Some("{}")));
    history.refused(Author::of(By::File), "bad\nfile");
    let found = settled(&history, 6).await;
    let told: Vec<(u64, By, Option<&str>, State)> = found
        .iter()
        .map(|one| (one.version, one.author.by, one.author.key.as_deref(), one.result.state))
        .collect();
    let expected = [
        (6, By::File, None, State::Refused),
        (5, By::Unknown, None, State::Pending),
        (4, By::Expiry, None, State::Pending),
        (3, By::Admin, Some("after "), State::Quarantined),
        (2, By::Admin, Some("before"), State::InForce),
        (1, By::Unknown, None, State::InForce),
    ];
    assert_eq!(told, expected);
    assert_eq!((found[3].rollback_to, &found[3].result.objects), (Some(1), &vec![unserved]));
    assert_eq!(found[0].result.reason.as_deref(), Some("bad file"));
}

/// A damaged file does not stop the history, and is kept for analysis.
#[tokio::test]
async fn a_damaged_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.redb");
    std::fs::write(&path, "this is not a database, but it is long enough to be taken for one").unwrap();
    let history = History::begin(place(Some(path.clone()), By::Etcd), PLENTY).unwrap();
    history.found(&Contents { revision: 1, records: Vec::new() });
    history.hear(&changed(2, "routes/1", Some("{}")));
    let found = settled(&history, 2).await;
    assert_eq!((found.len(), found[0].author.by), (2, By::Etcd));
    assert!(path.with_extension("redb.damaged").exists());
    // The next process takes the file over as soon as it is closed.
    let next = History::begin(place(Some(path), By::Etcd), PLENTY).unwrap();
    history.close().await;
    next.found(&Contents { revision: 1, records: Vec::new() });
    let found = settled(&next, 3).await;
    assert_eq!((found.len(), found[0].summary.deleted), (3, 1));
    assert!(found[0].note.as_deref().is_some_and(|note| note.contains("comparison")));
}

/// A start opens nothing: the present state is reported once the gateway serves.
#[tokio::test]
async fn nothing_is_opened_before_there_is_something_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.redb");
    let untold = History::begin(place(Some(path.clone()), By::File), PLENTY).unwrap();
    untold.close().await;
    assert!(!path.exists());
    let told = History::begin(place(Some(path.clone()), By::File), PLENTY).unwrap();
    told.found(&Contents { revision: 1, records: Vec::new() });
    assert_eq!(settled(&told, 1).await.len(), 1);
    assert!(path.exists());
}
