//! A cache next to a model of it: the same random traffic, and the same responses.
//!
//! The model keeps a list with the meaning of responses, not their text. With `SIGMA_SEED` in the environment, one
//! seed runs, for example the seed of a failure.

mod disk;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};

use disk::{MemoryDisk, Process};
use sigma_cache::disk_cache::Bounds;
use sigma_cache::{
    Answered, Directives, Draft, ExchangeTimes, Fill, MayUse, Purge, Stored, Zone, Zones, may_keep, may_use,
};
use sigma_http::{BodyLength, Chunk, Frame, Headers, ResponseHead};
use sigma_plugin::BodySource;
use sigma_plugin::cache::{CacheDisk, CacheRule, Lifetime};

const REQUESTS: usize = 100_000;
const KEYS: u64 = 24;
const LANGUAGES: [&str; 3] = ["de", "en", "fr, de"];

/// Pseudo-random numbers (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a number, or None.
    fn some(&mut self, n: u64, end: u64) -> Option<u64> {
        self.one_of(n).then(|| self.below(end))
    }
}

/// Formats a directive with seconds, if there is one.
fn directive(name: &str, seconds: Option<u64>) -> Option<String> {
    seconds.map(|seconds| format!("{name}={seconds}"))
}

/// A client's request.
#[derive(Debug, Clone)]
struct Asked {
    key: u64,
    language: usize,
    is_authorized: bool,
    no_store: bool,
    no_cache: bool,
    max_age: Option<u64>,
    min_fresh: Option<u64>,
    max_stale: Option<u64>,
}

impl Asked {
    fn random(chance: &mut Chance) -> Asked {
        Asked {
            key: chance.below(KEYS),
            language: chance.below(LANGUAGES.len() as u64) as usize,
            is_authorized: chance.one_of(8),
            no_store: chance.one_of(30),
            no_cache: chance.one_of(30),
            max_age: chance.some(10, 40),
            min_fresh: chance.some(15, 40),
            max_stale: chance.some(10, 40),
        }
    }

    fn fields(&self, is_odd: bool) -> Headers {
        let mut fields = Headers::default();
        let language = LANGUAGES[self.language];
        // The same in another spelling.
        let written = if is_odd { language.to_uppercase().replace(' ', "") } else { language.to_owned() };
        fields.append("Accept-Language", written.as_bytes());
        if self.is_authorized {
            fields.append("authorization", b"Basic x");
        }
        let said = [
            self.no_store.then(|| "no-store".to_owned()),
            self.no_cache.then(|| "No-Cache".to_owned()),
            directive("max-age", self.max_age),
            directive("min-fresh", self.min_fresh),
            directive("max-stale", self.max_stale),
        ];
        said.into_iter().flatten().for_each(|one| fields.append("Cache-Control", one.as_bytes()));
        fields
    }
}

/// A node's response.
#[derive(Debug, Clone)]
struct Given {
    status: u16,
    no_store: bool,
    private: bool,
    public: bool,
    no_cache: bool,
    must_revalidate: bool,
    max_age: Option<u64>,
    s_maxage: Option<u64>,
    /// Its age on arrival.
    age: Option<u64>,
    varies: bool,
    sets_cookie: bool,
    tag: u64,
    body: Vec<u8>,
}

impl Given {
    fn random(chance: &mut Chance, number: usize) -> Given {
        let length = if chance.one_of(50) { 70_000 } else { chance.below(60) as usize };
        let body: Vec<u8> = number.to_string().into_bytes().into_iter().cycle().take(length + 8).collect();
        Given {
            status: if chance.one_of(10) { 404 } else { 200 },
            no_store: chance.one_of(20),
            private: chance.one_of(20),
            public: chance.one_of(10),
            no_cache: chance.one_of(20),
            must_revalidate: chance.one_of(10),
            max_age: (!chance.one_of(6)).then(|| chance.below(60)),
            s_maxage: chance.some(6, 60),
            age: chance.some(5, 20),
            varies: chance.one_of(2),
            sets_cookie: chance.one_of(20),
            tag: chance.below(5),
            body,
        }
    }

    fn head(&self) -> ResponseHead {
        let mut head = ResponseHead::default();
        head.start(self.status);
        let said = [
            self.no_store.then(|| "no-store".to_owned()),
            self.private.then(|| "private=\"x\"".to_owned()),
            self.public.then(|| "PUBLIC".to_owned()),
            self.no_cache.then(|| "no-cache".to_owned()),
            self.must_revalidate.then(|| "must-revalidate".to_owned()),
            directive("max-age", self.max_age),
            directive("s-maxage", self.s_maxage),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        head.headers.append("cache-control", said.join(" , ").as_bytes());
        if let Some(age) = self.age {
            head.headers.append("Age", age.to_string().as_bytes());
        }
        if self.varies {
            head.headers.append("Vary", b"accept-language");
        }
        if self.sets_cookie {
            head.headers.append("Set-Cookie", b"a=b");
        }
        head.headers.append("Cache-Tag", format!("t{}", self.tag).as_bytes());
        head
    }
}

/// A response in the model.
#[derive(Debug, Clone)]
struct Kept {
    key: u64,
    /// Its language; None for all.
    language: Option<usize>,
    born: u64,
    lifetime: u64,
    never_stale: bool,
    tag: u64,
    body: Vec<u8>,
}

/// A cache in a few lines.
#[derive(Debug, Default)]
struct Model {
    kept: Vec<Kept>,
    /// All stored responses that were not purged, by body.
    given: HashMap<Vec<u8>, Kept>,
}

impl Model {
    /// Returns the newest response to a request; of equally new ones the last arrival.
    fn find(&self, asked: &Asked) -> Option<&Kept> {
        let fits = |kept: &&Kept| {
            kept.key == asked.key && kept.language.is_none_or(|language| language == asked.language)
        };
        self.kept.iter().filter(fits).max_by_key(|kept| kept.born)
    }

    fn may_use(kept: &Kept, asked: &Asked, now: u64) -> bool {
        let age = now - kept.born;
        let stale_for = age.saturating_sub(kept.lifetime);
        let is_fresh = age < kept.lifetime;
        let takes_stale = !kept.never_stale && asked.max_stale.is_some_and(|most| stale_for <= most);
        (is_fresh || takes_stale)
            && asked.max_age.is_none_or(|most| age <= most)
            && asked.min_fresh.is_none_or(|least| kept.lifetime.saturating_sub(age) >= least)
    }

    fn may_keep(asked: &Asked, given: &Given) -> bool {
        let lifetime = given.s_maxage.or(given.max_age).unwrap_or(0);
        let is_for_all = given.public || given.s_maxage.is_some() || given.must_revalidate;
        !given.no_store
            && !given.private
            && !given.no_cache
            && !given.sets_cookie
            && !asked.no_store
            && (!asked.is_authorized || is_for_all)
            && given.age.unwrap_or(0) < lifetime
    }

    fn keep(&mut self, asked: &Asked, given: &Given, now: u64) {
        let language = given.varies.then_some(asked.language);
        let goes = |kept: &Kept| {
            kept.key == asked.key && (kept.language.is_some() != given.varies || kept.language == language)
        };
        self.kept.retain(|kept| !goes(kept));
        let kept = Kept {
            key: asked.key,
            language,
            born: now - given.age.unwrap_or(0),
            lifetime: given.s_maxage.or(given.max_age).unwrap_or(0),
            never_stale: given.must_revalidate || given.s_maxage.is_some(),
            tag: given.tag,
            body: given.body.clone(),
        };
        self.given.insert(kept.body.clone(), kept.clone());
        self.kept.push(kept);
    }

    /// Handles a lack of room for a key.
    fn lose(&mut self, key: u64) {
        self.kept.retain(|kept| kept.key != key);
    }

    /// Removes the responses selected by `is_meant`.
    fn forget(&mut self, is_meant: impl Fn(&Kept) -> bool) {
        self.kept.retain(|kept| !is_meant(kept));
        self.given.retain(|_, kept| !is_meant(kept));
    }

    /// Returns true if this is a valid response.
    fn knows(&self, body: &[u8], asked: &Asked, now: u64) -> bool {
        self.given.get(body).is_some_and(|kept| {
            kept.key == asked.key
                && kept.language.is_none_or(|language| language == asked.language)
                && Model::may_use(kept, asked, now)
        })
    }

    /// Handles a lack of room for the response to a request.
    fn forget_one(&mut self, asked: &Asked) {
        let found = self.find(asked).map(|kept| (kept.key, kept.language));
        self.kept.retain(|kept| Some((kept.key, kept.language)) != found);
    }
}

fn rule() -> CacheRule {
    CacheRule {
        lifetime: Lifetime::Known { otherwise: Vec::new(), guesses: false },
        heeds_requests: true,
        most_bytes: 1 << 20,
        ..CacheRule::default()
    }
}

fn body_of(stored: &Stored) -> Vec<u8> {
    let (mut all, mut task) = (Vec::new(), Task::from_waker(Waker::noop()));
    let mut reader = stored.body.read(0, stored.body.length());
    while let Poll::Ready(Ok(Some(piece))) = reader.poll_piece(&mut task) {
        all.extend_from_slice(&piece);
    }
    all
}

/// The fate of a response on its way.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// Its key is purged meanwhile.
    purged: bool,
    breaks_off: bool,
}

/// The cache and its model, at one time.
struct Both {
    zones: Zones,
    zone: Arc<Zone>,
    model: Model,
    rule: CacheRule,
    now: u64,
    /// The disk process, if there is one, and the number of processes so far.
    process: Option<Process>,
    processes: u64,
    /// A request without a result waits for running writes, and looks again.
    waits: bool,
}

impl Both {
    fn new(bytes: u64) -> Both {
        let zones = Zones::default();
        let zone = zones.zone("z", bytes, None);
        Both {
            zones,
            zone,
            model: Model::default(),
            rule: rule(),
            now: 1_000_000,
            process: None,
            processes: 0,
            waits: false,
        }
    }

    /// Returns both with a disk.
    fn on(disk: &MemoryDisk, bytes: u64, bounds: Bounds) -> Both {
        let mut both = Both::new(bytes);
        both.start(disk, bytes, bounds);
        both
    }

    /// Starts a process with the content of the disk.
    fn start(&mut self, disk: &MemoryDisk, bytes: u64, bounds: Bounds) {
        self.processes += 1;
        let mut process = Process::begin(disk, self.processes, bounds, bytes, &[]);
        process.now = self.now;
        let disk_cache = Arc::clone(&process.disk_cache);
        self.zones = Zones::default();
        self.zones.make_disk_caches_by(move |_, _, _| Arc::clone(&disk_cache));
        let place = CacheDisk { path: "/".into(), levels: vec![1], bytes: 0, inactive_s: 0 };
        self.zone = self.zones.zone("z", bytes, Some(&place));
        process.zone = Arc::clone(&self.zone);
        process.look_through();
        self.process = Some(process);
    }

    /// Returns the stored response for a request, in memory or on the disk.
    fn kept(&mut self, key: &[u8], fields: &Headers) -> Option<Arc<Stored>> {
        match &mut self.process {
            None => self.zone.find(key, fields),
            Some(process) => {
                process.now = self.now;
                let found = process.get(key, fields);
                if found.is_some() || !self.waits {
                    return found;
                }
                process.threads.work();
                process.get(key, fields)
            }
        }
    }

    fn key(number: u64) -> Vec<u8> {
        format!("key {number}").into_bytes()
    }

    /// Returns the responses of cache and model to a request.
    fn looked_up(&mut self, asked: &Asked) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let fields = asked.fields(self.now.is_multiple_of(2));
        let wishes = Directives::of(&fields);
        assert_eq!(wishes.no_cache, asked.no_cache);
        let key = Both::key(asked.key);
        if !self.zone.has(&key) && self.waits {
            self.process.iter().for_each(|process| process.threads.work());
        }
        if !self.zone.has(&key) {
            // It had no room. The comparison decides whether it must have had room.
            self.model.lose(asked.key);
        }
        let found = self.kept(&key, &fields);
        if found.is_none() && self.process.is_some() {
            // There each response comes and goes separately.
            self.model.forget_one(asked);
        }
        let found = found.filter(|stored| {
            !asked.no_cache && may_use(&self.rule, &stored.freshness, &wishes, self.now) == MayUse::Yes
        });
        let known = self.model.find(asked);
        let known = known.filter(|kept| !asked.no_cache && Model::may_use(kept, asked, self.now));
        let process = self.process.as_ref();
        let body = |stored: Arc<Stored>| match process {
            None => body_of(&stored),
            Some(process) => process.body(&stored).expect("it is whole"),
        };
        (found.map(body), known.map(|kept| kept.body.clone()))
    }

    fn answered(&mut self, asked: &Asked, given: &Given, fate: Fate) {
        let (key, head) = (Both::key(asked.key), given.head());
        let fields = asked.fields(self.now.is_multiple_of(3));
        let epoch = self.zone.epoch(&key);
        if fate.purged {
            self.purge(asked.key);
        }
        let times = ExchangeTimes { requested: self.now, received: self.now };
        let answered =
            Answered { head: &head, request: &fields, is_isolated: false, is_unnamed: false, times };
        let freshness = may_keep(&self.rule, answered);
        assert_eq!(freshness.is_some(), Model::may_keep(asked, given), "{asked:?} {given:?}");
        let Some(freshness) = freshness else { return };
        let resource = format!("h/{}", asked.key);
        let draft = Draft {
            zone: &self.zone,
            key: &key,
            head: &head,
            request: &fields,
            resource: resource.as_bytes(),
            varies: true,
            freshness,
            length: BodyLength::Known(given.body.len() as u64),
            most: self.rule.most_bytes,
            epoch,
            now: self.now,
        };
        let Ok(mut fill) = Fill::new(draft, None) else { return };
        given.body.chunks(17_000).for_each(|piece| fill.see(&Frame::Data(Chunk::copy_of(piece))));
        if !fate.breaks_off {
            fill.see(&Frame::End);
            if !fate.purged {
                self.model.keep(asked, given, self.now);
            }
        }
    }

    fn purge(&mut self, key: u64) {
        self.zone.purge(&Both::key(key));
        self.erase();
        self.model.forget(|kept| kept.key == key);
    }

    /// Waits until all purged responses are removed from the disk.
    fn erase(&mut self) {
        if let Some(process) = &mut self.process {
            process.disk.platter().fails = None;
            process.threads.work();
            process.maintain();
        }
    }

    /// Purges by a tag, or by a resource.
    fn sweep(&mut self, chance: &mut Chance) {
        let number = chance.below(5);
        if chance.one_of(2) {
            let tag = format!("t{number}").into_bytes();
            self.zones.purge(&Purge { tags: [tag.into()].into(), ..Purge::default() });
            self.model.forget(|kept| kept.tag == number);
        } else {
            let resource = format!("h/{number}").into_bytes();
            self.zones.purge(&Purge { resources: [resource.into()].into(), ..Purge::default() });
            self.model.forget(|kept| kept.key == number);
        }
        self.erase();
    }
}

/// Runs random traffic. `compare` gets the results of cache and model; returns how often there was one.
fn run(
    seed: u64,
    mut both: Both,
    mut step: impl FnMut(&mut Both, &mut Chance),
    compare: impl Fn(&Both, &Asked, &Option<Vec<u8>>, &Option<Vec<u8>>),
) -> usize {
    let (mut chance, mut hits) = (Chance(seed), 0);
    for number in 0..REQUESTS {
        both.now += chance.below(3);
        step(&mut both, &mut chance);
        if chance.one_of(60) {
            let key = chance.below(KEYS);
            both.purge(key);
        }
        if chance.one_of(200) {
            both.sweep(&mut chance);
        }
        let asked = Asked::random(&mut chance);
        let (found, known) = both.looked_up(&asked);
        compare(&both, &asked, &found, &known);
        hits += usize::from(found.is_some());
        if found.is_none() {
            let given = Given::random(&mut chance, number);
            let fate = Fate { purged: chance.one_of(40), breaks_off: chance.one_of(30) };
            both.answered(&asked, &given, fate);
        }
    }
    hits
}

/// Formats the beginning of a body, and its length.
fn shown(body: &Option<Vec<u8>>) -> String {
    let text = |body: &Vec<u8>| {
        format!("{}… of {}", String::from_utf8_lossy(&body[..body.len().min(8)]), body.len())
    };
    body.as_ref().map_or("nothing".to_owned(), text)
}

fn seeds(own: [u64; 2]) -> Vec<u64> {
    match std::env::var("SIGMA_SEED") {
        Ok(seed) => vec![seed.parse().expect("SIGMA_SEED is a number")],
        Err(_) => own.to_vec(),
    }
}

/// With enough room, each request has one response: the model's.
#[test]
fn with_room_it_matches_the_model() {
    for seed in seeds([1, 2]) {
        let hits = run(
            seed,
            Both::new(256 << 20),
            |_, _| {},
            |both, _, found, known| {
                assert!(found == known, "seed {seed} at {}: {found:?} instead of {known:?}", both.now);
                let all = both.model.kept.iter().all(|kept| both.zone.has(&Both::key(kept.key)));
                assert!(all, "seed {seed} at {}: something had no room", both.now);
            },
        );
        assert!(hits > REQUESTS / 10, "{hits}");
    }
}

/// Without room responses are evicted, but no other response than the model's is sent, and the memory limit holds.
#[test]
fn without_room_it_never_sends_another_response() {
    for seed in seeds([3, 4]) {
        let hits = run(
            seed,
            Both::new(8 << 10),
            |_, _| {},
            |both, _, found, known| {
                assert!(both.zone.held_bytes() <= 8 << 10);
                assert!(found == known, "seed {seed} at {}: {found:?} instead of {known:?}", both.now);
            },
        );
        assert!(hits > REQUESTS / 100, "{hits}");
    }
}

const ROOM: Bounds = Bounds { disk_bytes: 1 << 30, table_bytes: 64 << 20, inactive_s: 1 << 30 };

/// With enough room on a disk, and little in memory, each request has one response: the model's. Neither restarts nor
/// running disk jobs make a difference: a response that is being written is found a moment later, and the one that it
/// replaces is not found any more.
#[test]
fn with_room_on_a_disk_it_matches_the_model() {
    for seed in seeds([5, 6]) {
        let disk = MemoryDisk::default();
        let step = |both: &mut Both, chance: &mut Chance| {
            let is_restart = chance.one_of(500);
            if is_restart || chance.one_of(2) {
                both.process.iter().for_each(|process| process.threads.work());
            }
            if is_restart {
                both.start(&disk, 64 << 10, ROOM);
            }
        };
        let both = Both { waits: true, ..Both::on(&disk, 64 << 10, ROOM) };
        let hits = run(seed, both, step, |both, asked, found, known| {
            let (gave, wanted) = (shown(found), shown(known));
            assert!(found == known, "seed {seed} at {}: {gave} instead of {wanted} for {asked:?}", both.now);
            let process = both.process.as_ref().expect("there is one");
            process.threads.work();
            let all = both.model.kept.iter().all(|kept| both.zone.has(&Both::key(kept.key)));
            assert!(all, "seed {seed} at {}: something had no room", both.now);
            assert_eq!(process.threads.troubles(), []);
        });
        assert!(hits > REQUESTS / 10, "{hits}");
    }
}

/// Without room, with processes that die at any moment and a disk that is full or fails, only earlier and unpurged
/// responses are sent.
#[test]
fn on_a_bad_disk_it_never_sends_another_response() {
    let bounds = Bounds { disk_bytes: 200 << 10, table_bytes: 8 << 10, inactive_s: 60 };
    for seed in seeds([7, 8]) {
        let disk = MemoryDisk::default();
        disk.platter().capacity = 150 << 10;
        let step = |both: &mut Both, chance: &mut Chance| {
            if let Some(process) = &mut both.process {
                let jobs = chance.below(4);
                for _ in 0..jobs {
                    process.threads.work_once();
                }
                process.now = both.now;
                if chance.one_of(20) {
                    process.maintain();
                }
            }
            disk.platter().fails = chance.one_of(50).then_some(std::io::ErrorKind::Other);
            if chance.one_of(300) {
                disk.platter().fails = None;
                let left = chance.below(20) as usize;
                disk.platter().steps_left = Some(left);
                both.process.iter().for_each(|process| process.threads.work());
                disk.platter().steps_left = None;
                both.start(&disk, 64 << 10, bounds);
            }
        };
        let hits = run(seed, Both::on(&disk, 64 << 10, bounds), step, |both, asked, found, _| {
            let held: usize = disk.contents().iter().map(|file| file.lock().expect("no poison").len()).sum();
            assert!(held <= 200 << 10, "{held}");
            let is_right = found.as_ref().is_none_or(|found| both.model.knows(found, asked, both.now));
            assert!(is_right, "seed {seed} at {}: {found:?} for {asked:?}", both.now);
        });
        assert!(hits > REQUESTS / 100, "{hits}");
    }
}
