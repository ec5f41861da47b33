//! A worker in a network that a test makes up: with fixed nodes, without files and secrets.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use sigma_config::{ParseOptions, resources};
use sigma_http::Chunk;
use sigma_net::{Peer, Stream};
use sigma_plugin::{Local, Roster};
use sigma_schema::Problem;
use sigma_upstream::endpoint::{EndpointSet, Location, UpstreamCell, plan_nodes};
use sigma_upstream::health::plan::Plan;
use sigma_upstream::health::{HealthRecords, passive_channel};
use sigma_upstream::identity::EndpointIds;

use super::{Entered, Open, serve};
use crate::compile::{Compiler, EndpointSource, NoFiles, NoSecrets, Sources};
use crate::edge::admit::Admitted;
use crate::edge::connection::Origin;
use crate::snapshot::Snapshot;
use crate::worker::{Worker, WorkerParts};

/// A connection that a worker has accepted, until it ends.
pub(super) fn accepted(worker: &Rc<Worker>, open: &Open, stream: Stream) -> impl Future<Output = ()> + use<> {
    let origin = Origin::new(Peer::Unix, None, worker.enter(), &worker.clock.borrow());
    serve(
        Entered(Rc::clone(worker)),
        Admitted { stream, early: Chunk::empty(), origin, is_misplaced: false },
        Rc::clone(&open.0),
        None,
    )
}

/// A worker that serves by a snapshot.
pub(super) fn serving(snapshot: Arc<Snapshot>, seed: u64) -> Rc<Worker> {
    let (health, _) = passive_channel(1);
    Worker::new(WorkerParts {
        snapshot,
        counters: Arc::default(),
        log: None,
        health,
        node: Arc::default(),
        local: Local::new(0, seed),
        live: Default::default(),
        taps: Default::default(),
        seed,
    })
}

/// The snapshot of a configuration in YAML.
///
/// # Panics
/// The configuration is invalid.
pub(super) fn compiled(text: &str, plugins: Roster) -> Arc<Snapshot> {
    let options = ParseOptions { plugins: &plugins, ..ParseOptions::default() };
    let config = match sigma_config::parse(text, &options) {
        Ok(checked) => checked.config,
        Err(problems) => panic!("{problems:?}"),
    };
    let compiler = Compiler::new(Arc::new(plugins), Arc::default());
    let sources = Sources {
        endpoints: &mut Fixed,
        secrets: &NoSecrets,
        files: &mut NoFiles,
        geography: None,
        ordered: None,
        passphrases: Default::default(),
    };
    match compiler.compile(&config, 0, sources) {
        Ok((_, snapshot)) => snapshot,
        Err(failures) => panic!("{failures:?}"),
    }
}

/// Nodes at the addresses that the configuration has, never checked.
struct Fixed;

impl EndpointSource for Fixed {
    fn identities(&self) -> Arc<EndpointIds> {
        Arc::default()
    }

    fn endpoints(
        &mut self,
        _: &str,
        config: &resources::Upstream,
        _: Option<&sigma_net::tls::ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem> {
        let (ids, records) = (EndpointIds::default(), HealthRecords::default());
        let planned = plan_nodes(config.scheme, &config.nodes);
        let endpoints = planned.iter().map(|node| match &node.location {
            Location::Fixed(address) => node.at(address.clone(), &ids, &records),
            Location::Name(name) => unreachable!("{name} is an address"),
        });
        let set = EndpointSet::new(endpoints.collect(), Arc::clone(records.epoch()));
        Ok((Arc::new(UpstreamCell::new(Arc::new(set))), None))
    }
}
