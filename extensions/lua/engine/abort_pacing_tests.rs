//! Rules of the pacing, and a simulated worker with clients of endless scripts. Time is simulated.

use super::*;

const RUN: Duration = Duration::from_millis(20);
const HALF_MS: Duration = Duration::from_micros(500);

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A pacing with the default share, at a time of its own.
struct World {
    pacing: AbortPacing,
    now: Instant,
}

impl World {
    fn new(aborted_ms_per_second: u64) -> World {
        World { pacing: AbortPacing::new(aborted_ms_per_second), now: Instant::now() }
    }

    fn client(&self, last: u8) -> ClientHash {
        self.pacing.client(Some([192, 0, 2, last].into()))
    }

    fn admit(&self, script: u64, client: u8) -> RunAdmission {
        self.pacing.admit(script, self.client(client), RUN, self.now)
    }

    /// An endless run of a client; whether it ran. Time passes by its run time.
    fn loops(&mut self, script: u64, client: u8) -> bool {
        let (used, is_short) = match self.admit(script, client) {
            RunAdmission::Whole => (RUN, false),
            RunAdmission::Short(short) => (short, true),
            RunAdmission::Refused { .. } => return false,
        };
        self.now += used;
        self.pacing.aborted(script, self.client(client), RUN, used, is_short, self.now);
        true
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

fn is_refused(admission: RunAdmission) -> bool {
    matches!(admission, RunAdmission::Refused { .. })
}

#[test]
fn a_script_without_aborted_runs_is_never_affected() {
    let mut world = World::new(5);
    for script in 1..50 {
        while world.loops(script, 1) {}
    }
    assert_eq!(world.admit(0, 1), RunAdmission::Whole);
    assert_eq!(world.admit(51, 2), RunAdmission::Whole);
}

#[test]
fn one_aborted_run_is_tolerated_and_the_second_costs_time() {
    let mut world = World::new(5);
    assert!(world.loops(1, 1));
    assert_eq!(world.admit(1, 1), RunAdmission::Whole);
    assert!(world.loops(1, 1));
    // 40 ms are owed and 30 are tolerated: 2.5 ms are paid back in each second.
    assert_eq!(world.admit(1, 1), RunAdmission::Short(HALF_MS));
    world.pass(millis(3_900));
    assert_eq!(world.admit(1, 1), RunAdmission::Short(HALF_MS));
    world.pass(millis(200));
    assert_eq!(world.admit(1, 1), RunAdmission::Whole);
    world.pass(millis(20_000));
    world.admit(1, 1);
    assert!(world.pacing.is_idle(), "all is paid back");
}

#[test]
fn a_refused_script_runs_again_within_the_time_that_the_refusal_names() {
    for scripts in [1, 7] {
        let mut world = World::new(5);
        for script in 0..scripts {
            while world.loops(script, 1) {}
        }
        let RunAdmission::Refused { aborted, wait } = world.admit(0, 1) else { panic!("it is refused") };
        assert_eq!(aborted, 3);
        assert!(wait <= millis(4_001) * scripts as u32, "{wait:?}");
        world.pass(wait + millis(1));
        assert_eq!(world.admit(0, 1), RunAdmission::Whole, "{scripts} scripts");
    }
}

/// One client cannot get a script refused for the others.
#[test]
fn other_clients_of_an_aborted_script_keep_its_short_time() {
    let mut world = World::new(5);
    while world.loops(1, 1) {}
    for _ in 0..100_000 {
        world.loops(1, 1);
        assert!(!is_refused(world.admit(1, 2)));
        world.pass(millis(1));
    }
    // Many clients can, for as long as they send endless requests.
    for client in 10..200 {
        world.loops(1, client);
    }
    assert!(is_refused(world.admit(1, 2)));
    world.pass(millis(1_000));
    assert!(!is_refused(world.admit(1, 2)));
}

#[test]
fn a_script_that_ends_later_than_others_gets_a_longer_short_time() {
    let mut world = World::new(5);
    world.loops(1, 1);
    world.pacing.ended(1, millis(5));
    world.pacing.ended(1, millis(2));
    world.loops(1, 1);
    assert_eq!(world.admit(1, 1), RunAdmission::Short(millis(10)));
    world.pacing.ended(1, millis(19));
    assert_eq!(world.admit(1, 1), RunAdmission::Short(RUN), "never more than the run time");
    // The longer time is owed in full.
    world.loops(1, 1);
    assert!(is_refused(world.admit(1, 1)));
    world.pass(millis(7_900));
    world.pacing.aborted(1, world.client(1), RUN, RUN * 2, false, world.now);
    assert!(is_refused(world.admit(1, 1)));
}

#[test]
fn clients_of_one_ipv6_network_are_one() {
    let pacing = AbortPacing::new(5);
    let client = |text: &str| pacing.client(Some(text.parse().unwrap()));
    assert_eq!(client("2001:db8::1"), client("2001:db8::2:3"));
    assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
    assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    assert_ne!(client("192.0.2.1"), pacing.client(None));
}

#[test]
fn a_debt_has_a_limit() {
    let mut world = World::new(5);
    for _ in 0..100 {
        world.pacing.aborted(1, world.client(1), RUN, millis(1_000), false, world.now);
        world.pacing.aborted(1, world.client(1), RUN, millis(1_000), true, world.now);
    }
    let RunAdmission::Refused { wait, .. } = world.admit(1, 1) else { panic!("it is refused") };
    assert!(wait <= LONGEST_DEBT + millis(1), "{wait:?}");
    world.pass(LONGEST_DEBT + millis(1));
    assert_eq!(world.admit(1, 1), RunAdmission::Whole);
}

#[test]
fn the_number_of_scripts_is_bounded() {
    let mut world = World::new(5);
    for script in 0..MOST_SCRIPTS as u64 {
        world.loops(script, 1);
        world.loops(script, 1);
    }
    // The one with the smallest debt is forgotten.
    world.pacing.aborted(0, world.client(1), RUN, RUN * 50, false, world.now);
    for script in 2_000..4_000 {
        world.loops(script, 1);
    }
    assert_eq!(world.pacing.scripts.borrow().len(), MOST_SCRIPTS);
    assert_ne!(world.admit(0, 1), RunAdmission::Whole);
}

#[test]
fn the_whole_second_is_no_limit() {
    let mut world = World::new(NO_LIMIT_MS);
    assert!((0..100).all(|_| world.loops(1, 1)));
    assert!(world.pacing.is_idle());
}

/// The share holds for any number of scripts: aborted runs take it at most, besides the two that each script has free.
#[test]
fn aborted_runs_keep_to_their_share() {
    for (scripts, clients) in [(1, 1), (1, 50), (4, 1), (20, 3)] {
        let mut world = World::new(5);
        let began = world.now;
        let mut used = Duration::ZERO;
        while world.now - began < Duration::from_secs(120) {
            for script in 0..scripts {
                for client in 0..clients {
                    let before = world.now;
                    world.loops(script, client);
                    used += world.now - before;
                }
            }
            world.pass(millis(10));
        }
        // Each script may begin its last run before the time of the others is paid back.
        let free = (tolerated(RUN) + RUN + HALF_MS * 3) * u32::try_from(scripts).unwrap();
        let share = millis(120 * 5);
        assert!(used <= free + share, "{scripts} scripts, {clients} clients: {used:?}");
        assert!(used >= share / 4, "the share is used: {used:?}");
    }
}

/// A worker that serves one request after the other, and the delays of its other requests.
struct Worker {
    world: World,
    /// Numbers of a fixed seed.
    random: u64,
    delays: Vec<Duration>,
}

/// The time of a request besides its script: of an honest one, and of one whose run was refused.
const SERVICE: Duration = Duration::from_micros(200);
const REFUSAL: Duration = Duration::from_micros(40);

impl Worker {
    /// A number from 0 to 1.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Serves honest requests for two minutes, 400 a second, next to clients of these scripts. Each client sends its next
    /// request five milliseconds after a response.
    fn run(ms_per_second: u64, hostile: &[u64]) -> Vec<Duration> {
        let mut worker =
            Worker { world: World::new(ms_per_second), random: 88_172_645_463_325_252, delays: vec![] };
        let began = worker.world.now;
        let end = began + Duration::from_secs(120);
        let mut honest = began;
        let mut due = vec![began + millis(50); hostile.len()];
        while honest < end {
            let next =
                due.iter().enumerate().min_by_key(|(_, due)| **due).map(|(client, due)| (client, *due));
            match next.filter(|(_, due)| *due <= honest) {
                Some((client, due_at)) => {
                    worker.world.now = worker.world.now.max(due_at);
                    worker.world.loops(hostile[client], client as u8);
                    worker.world.now += REFUSAL;
                    due[client] = worker.world.now + millis(5);
                }
                None => {
                    worker.world.now = worker.world.now.max(honest) + SERVICE;
                    worker.delays.push(worker.world.now - honest);
                    honest += Duration::from_secs(1).mul_f64(-worker.random().max(1e-12).ln() / 400.0);
                }
            }
        }
        worker.delays.sort_unstable();
        worker.delays
    }
}

/// Returns a percentile of sorted delays.
fn percentile(delays: &[Duration], percent: usize) -> Duration {
    delays[delays.len() * percent / 100]
}

#[test]
fn other_requests_keep_their_latency_next_to_endless_scripts() {
    let without = Worker::run(5, &[]);
    for hostile in [&[1, 1, 1, 1][..], &[1, 2, 3, 4]] {
        let next_to_them = Worker::run(5, hostile);
        for percent in [50, 90, 99] {
            let (before, after) = (percentile(&without, percent), percentile(&next_to_them, percent));
            assert!(after <= before * 2, "p{percent} of {hostile:?}: {before:?} became {after:?}");
        }
        // The measure itself: without a limit it is many times as long.
        let unpaced = percentile(&Worker::run(NO_LIMIT_MS, hostile), 99);
        assert!(unpaced > percentile(&without, 99) * 20, "{unpaced:?}");
    }
}
