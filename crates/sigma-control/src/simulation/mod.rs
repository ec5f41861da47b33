//! The whole gateway in one thread and in memory: its control thread, one worker, its clients, nodes and operators.
//!
//! Everything from the sockets up is the real code: the supervisor of the process, the publisher, health checks, registries,
//! operators' APIs and a worker with its accept loop. Simulated are the network ([`peers`]), signals, the listeners of
//! operators and the store ([`seams`]), names (`sigma_upstream::dns::scripted`) and the answers of registries
//! (`sigma_discovery::simulation`), the clocks, and random bytes ([`Machine`]). The configuration is a file in a temporary
//! folder, since a reload reads one.
//!
//! The runtime is tokio's for one thread, with a paused clock: the code of the control thread starts its tasks there, and
//! waits by its timers, so that no other scheduler can run it. Time passes only when no task is ready, so an hour takes
//! seconds. The seed chooses late connections, the sizes of their pieces, and the choices of the test; thereby the order of
//! events. Three limits: the runtime polls ready tasks in the order in which they became ready, `select!` chooses by itself
//! among branches that are ready at once, and another thread reads files while the clock is paused.
//!
//! Each simulation has a thread of its own, because the wheel of deadlines and others belong to a thread.

mod active_checks;
mod answer_fields;
mod balance;
mod cache_keys;
mod client_ends;
mod discovery;
mod drain;
mod failures;
mod gateway;
mod log;
mod mirrors;
mod node_faults;
mod node_limits;
mod node_states;
mod outliers;
mod overload;
mod peers;
mod plugins;
mod pool;
mod properties;
mod purges;
mod registries;
mod reload;
mod retries;
pub(crate) mod seams;
mod stream_guards;
mod streams;
mod tls;

use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use sigma_discovery::simulation::Script;
use sigma_plugin::system::System;
use sigma_proxy::simulation::world::World;
use sigma_upstream::dns::scripted::Names;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc::UnboundedReceiver;

use gateway::Gateway;
use log::Log;
use peers::Network;

/// For events that the gateway brings about: simulated time.
const PATIENCE: Duration = Duration::from_secs(600);

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// The surrounding of a simulated gateway. Clones are the same.
#[derive(Clone)]
struct Simulation(Rc<Parts>);

/// The parts in the order in which they are dropped: tasks need the later ones.
struct Parts {
    runtime: LocalRuntime,
    network: Network,
    names: Names,
    registry: Script,
    log: Log,
    _seams: seams::Entered,
    _network: sigma_net::simulation::Entered,
    _machine: sigma_plugin::system::simulation::Entered,
    _log: tracing::subscriber::DefaultGuard,
}

impl Deref for Simulation {
    type Target = Network;

    fn deref(&self) -> &Network {
        &self.0.network
    }
}

impl Simulation {
    fn new(seed: u64, is_calm: bool) -> Simulation {
        fastrand::seed(seed);
        sigma_observe::moment::read_clock(|| tokio::time::Instant::now().into_std());
        let log = Log::default();
        let subscriber = tracing::subscriber::set_default(log.clone());
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default()).unwrap();
        let world = runtime.block_on(async { World::on_runtime(seed) });
        let network = Network::new(&world, is_calm);
        let dialled = network.clone();
        let entered = sigma_net::simulation::enter(move |addr| dialled.dial(addr));
        let entered = runtime.block_on(async { entered.with_time_of_day() });
        let (names, registry) =
            (sigma_upstream::dns::scripted::enter(), sigma_discovery::simulation::enter());
        Simulation(Rc::new(Parts {
            runtime,
            network,
            names,
            registry,
            log,
            _seams: seams::enter(),
            _network: entered,
            _machine: sigma_plugin::system::simulation::enter(Box::new(Machine)),
            _log: subscriber,
        }))
    }

    /// Returns the names that are resolved.
    fn names(&self) -> &Names {
        &self.0.names
    }

    /// Returns the registry of the settings.
    fn registry(&self) -> &Script {
        &self.0.registry
    }

    /// Runs until `work` is done; the other tasks run meanwhile.
    ///
    /// # Panics
    /// It is not done within ten minutes of simulated time.
    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.0.runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
        done.unwrap_or_else(|_| panic!("something waits forever:\n{}", self.0.log.text()))
    }

    /// Lets time pass.
    fn pass(&self, time: Duration) {
        self.0.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Returns the simulated milliseconds since the beginning. Outside of the runtime its clock is unknown.
    fn now_ms(&self) -> u64 {
        self.0.runtime.block_on(async { self.world.now_ms() })
    }

    /// Lets time pass until a condition holds; returns false if it never does.
    fn until(&self, condition: impl Fn() -> bool) -> bool {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            if condition() {
                return true;
            }
            self.pass(LOOK);
        }
        false
    }

    /// Waits for the next connection of a node that the test serves.
    fn accept(&self, accepted: &mut UnboundedReceiver<peers::Conversation>) -> gateway::Client {
        gateway::Client::new(self.run(accepted.recv()).unwrap(), self)
    }

    /// Begins some work on the side.
    fn begin<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Task<T> {
        let local = self.0.runtime.spawn_local(work);
        Task { local, simulation: self.clone() }
    }

    /// Starts a gateway with this configuration.
    ///
    /// # Panics
    /// It does not start.
    fn gateway(&self, config: serde_json::Value) -> Gateway {
        Gateway::start(self, config).unwrap_or_else(|error| panic!("{error}\n{}", self.0.log.text()))
    }
}

/// Work on the side.
struct Task<T> {
    local: tokio::task::JoinHandle<T>,
    simulation: Simulation,
}

impl<T> Task<T> {
    /// Waits for its result.
    fn join(self) -> T {
        self.simulation.run(self.local).unwrap()
    }
}

/// The clocks and the random bytes of a simulation.
#[derive(Debug)]
struct Machine;

impl System for Machine {
    fn now(&self) -> SystemTime {
        sigma_net::wall_clock::now()
    }

    fn uptime(&self) -> Duration {
        sigma_net::simulation::uptime().unwrap_or_default()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.iter_mut().for_each(|byte| *byte = fastrand::u8(..));
        Ok(())
    }
}

/// The address of the listener.
const LISTEN: SocketAddr = SocketAddr::new(LOOPBACK, 9080);
/// The address of the status listener.
const STATUS: SocketAddr = SocketAddr::new(LOOPBACK, 9091);
/// The address of the Control API.
const CONTROL: SocketAddr = SocketAddr::new(LOOPBACK, 9090);
/// The address of the Admin API.
const ADMIN: SocketAddr = SocketAddr::new(LOOPBACK, 9180);

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Runs an example: a calm simulation, in which only the expected failures happen.
fn example<T: Send + 'static>(test: impl FnOnce(&Simulation) -> T + Send + 'static) -> T {
    on_own_thread(move || test(&Simulation::new(0, true)))
}

/// Runs a property by a seed, in a network that is late in places.
fn property(
    seed: u64,
    test: impl FnOnce(&Simulation) -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    on_own_thread(move || {
        let simulation = Simulation::new(seed, false);
        test(&simulation).map_err(|error| format!("{error}\n{}", simulation.0.log.text()))
    })
}

fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().name("simulation".to_owned()).spawn(work).unwrap();
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
