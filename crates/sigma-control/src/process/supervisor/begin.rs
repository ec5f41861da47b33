//! The start of a process, in three steps: the ground without side effects, the first configuration in force,
//! and its servers.

use std::sync::Arc;

use sigma_cache::Zones;
use sigma_config::Checked;
use sigma_config::crypt::Keyring;
use sigma_discovery::DocumentFollower;
use sigma_plugin::cloud::CloudIdentities;
use sigma_proxy::{Gateway, Inheritance, Snapshot};
use sigma_upstream::health::{REPORT_QUEUE, passive_channel};
use tokio::sync::mpsc;

use super::{COMMANDS, Options, SETTLING_PERIODS, Supervisor, residents};
use crate::operators::audit::Audit;
use crate::operators::entrances::Entrances;
use crate::operators::live::Live;
use crate::operators::members::Members;
use crate::operators::running::Running;
use crate::operators::{self, Records};
use crate::process::documents::{FirstConfiguration, Reader, refuse};
use crate::process::handover::Origin;
use crate::process::log_control::LogControl;
use crate::process::parent::Link;
use crate::process::pid_file::{PidFile, PidFileLocation};
use crate::process::process_history::{ProcessHistory, Trigger};
use crate::process::start::{
    Before, Signals, StartError, access_log, endpoints, files, keyring, look_after, must_fit, open_store,
    secrets, with_stored, worker_count,
};
use crate::process::systemd::Systemd;
use crate::process::usage::Usage;
use crate::process::watch_over::WatchOver;
use crate::serving::acme::{Keeper, Ordered};
use crate::serving::cache_disk::{Asking, Disks};
use crate::serving::cloud_identity;
use crate::serving::desired::Desired;
use crate::serving::health_file::HealthFile;
use crate::serving::health_sharing::HealthSharing;
use crate::serving::plugins::{Plugins, Rosters};
use crate::serving::publisher::{Publisher, problems};
use crate::serving::purges::Purges;
use crate::store::Store;

/// The state before a configuration is in force.
struct Ground {
    plugins: Plugins,
    keyring: Keyring,
    before: Before,
    store: Option<Arc<dyn Store>>,
    /// Folders of caches that wait to be admitted.
    asking: Asking,
    inheritance: Inheritance,
    live: Arc<Live>,
    cpus: Vec<usize>,
}

impl Ground {
    async fn lay(options: &Options, checked: &Checked, origin: &Origin) -> Result<Ground, StartError> {
        let settings = &checked.config.settings;
        let kinds: Vec<_> = options.plugins.kinds().collect();
        let plugins = Plugins::new(&kinds, settings);
        let identities = plugins.node.part(CloudIdentities::default);
        cloud_identity::begin(settings.cloud_identity.as_ref(), &identities).await;
        let asking = Disks::begin(&plugins.node, settings);
        let keyring = keyring(settings)?;
        must_fit(&options.source, checked, &plugins)?;
        let mut before = Before::ask(origin).await?;
        before.go_on_with_plugins(&plugins.node);
        let store = open_store(&checked.config).await?;
        let (reporter, inbox) = passive_channel(REPORT_QUEUE);
        tokio::spawn(inbox.run());
        let cpus = sigma_net::limits::usable_cpus();
        let (watched, tables) = sigma_proxy::live::channel();
        let workers = worker_count(settings, cpus.len());
        let inheritance = Inheritance::new(workers, reporter, Arc::clone(&plugins.node))
            .with_live_reporter(watched)
            .with_sockets(Arc::clone(&before.sockets));
        before.count_on(inheritance.counters());
        Ok(Ground { plugins, keyring, before, store, asking, inheritance, live: Live::begin(tables), cpus })
    }
}

/// The first configuration, in force, and what keeps it up.
struct First {
    publisher: Arc<Publisher>,
    current: Arc<Snapshot>,
    ordered: Option<Arc<Ordered>>,
    keeper: Option<Keeper>,
    health_file: Option<HealthFile>,
    process_history: Option<ProcessHistory>,
    follower: Option<Arc<DocumentFollower>>,
}

impl First {
    async fn compile(
        ground: &Ground,
        options: &Options,
        first: FirstConfiguration,
    ) -> Result<First, StartError> {
        let FirstConfiguration { checked, documents, fallback, follower } = first;
        let Ground { plugins, keyring, before, store, inheritance, .. } = ground;
        let (settings, store) = (&checked.config.settings, store.as_ref());
        let desired = |checked| Desired::new(checked, Arc::clone(&plugins.enabled) as _, keyring.clone());
        let health_file = HealthFile::of(&settings.health_file);
        let workers = inheritance.counters().len();
        let endpoints = endpoints(settings, workers, health_file.as_ref(), before.state.as_ref());
        let (ordered, keeper) = Ordered::of(settings, store, keyring).await;
        let nothing = desired(Checked::default());
        let files = files(settings, store, keyring).await;
        let compiler = inheritance.compiler(Arc::clone(&plugins.enabled));
        let publisher = Publisher::new(
            nothing,
            endpoints,
            compiler,
            secrets(settings, &plugins.node),
            ordered.clone(),
            files,
        );
        let publisher = Arc::new(publisher);
        let process_history =
            ProcessHistory::begin(&checked.config, store, keyring, Arc::clone(&plugins.enabled) as _);
        let newest = with_stored(desired(checked), store, process_history.as_ref()).await?;
        let closes = store.is_some() || options.source.skip_invalid;
        let whole = publisher.compile(newest, closes).await;
        let whole = whole.map_err(|failures| options.source.invalid(problems(failures)));
        let (whole, documents) = match (whole, fallback, &follower) {
            (Err(error), Some(kept), Some(follower)) => {
                refuse(follower, &error.to_string());
                let whole = publisher.compile(desired(kept.checked), closes).await;
                let whole = whole.map_err(|failures| options.source.invalid(problems(failures)))?;
                (whole, Some(kept.documents))
            }
            (whole, ..) => (whole?, documents),
        };
        if let (Some(follower), Some(documents)) = (&follower, &documents) {
            follower.accepted(documents);
        }
        let current = Arc::clone(&whole.snapshot);
        publisher.adopt(whole);
        Ok(First { publisher, current, ordered, keeper, health_file, process_history, follower })
    }
}

/// Takes over from the previous process, and takes its pid file. The file of a gateway is free only when it
/// leaves, and nothing may stop this process any more then: a failure to write it is only logged.
async fn take_place(
    before: Before,
    gateway: &mut Gateway,
    place: Option<&PidFileLocation>,
) -> (Option<Link>, Option<PidFile>) {
    let place = place.filter(|_| before.state.is_some());
    let former = before.state.as_ref().and_then(|state| state.pid_file.clone());
    let parent = before.take_place(gateway).await.parent.map(Link::over);
    let write = |place: &PidFileLocation| {
        place.write().map_err(|error| tracing::error!("{error}; the gateway serves without it")).ok()?
    };
    let pid_file = place.and_then(write);
    PidFileLocation::remove_former(place, former.as_deref());
    (parent, pid_file)
}

impl Supervisor {
    /// Starts everything. Must be called within a runtime.
    ///
    /// # Errors
    /// Returns an error if the process cannot start; nothing keeps running then.
    pub async fn start(
        options: Options,
        checked: Checked,
        log: Box<dyn LogControl>,
        origin: &Origin,
    ) -> Result<Supervisor, StartError> {
        // Before anything listens: a client that sees the gateway accept may signal it.
        let signals = Signals::receive().map_err(StartError::Signals)?;
        let starter = options.sandbox.starter().clone();
        let Options { source, plugins, sandbox, .. } = &options;
        let first = FirstConfiguration::read(Reader { source, plugins, sandbox }, checked).await?;
        let ground = Ground::lay(&options, &first.checked, origin).await?;
        let first = First::compile(&ground, &options, first).await?;
        let Ground { plugins, keyring, before, store, asking, inheritance, live, cpus } = ground;
        let First { publisher, current, ordered, keeper, health_file, process_history, follower } = first;
        let settings = Arc::clone(&current.settings);
        let writer = access_log(&settings)?;
        let pinned: &[usize] = if settings.pin_workers { &cpus } else { &[] };
        let (tell, commands) = mpsc::channel(COMMANDS);
        let (hostname, counters) = (plugins.node.hostname(), inheritance.counters());
        let usage = Usage::of(&plugins.node, counters.len());
        let members = Arc::new(Members::new(&settings, store.as_ref(), hostname, &publisher, counters));
        let purges = Purges::of(&settings, plugins.node.part(Zones::default), store.as_ref(), asking);
        let (publishing, stored) = (Arc::clone(&publisher), store.clone());
        let running = Running::new(&inheritance, live, publishing, stored, members, purges, tell);
        let running = Arc::new(running.with_documents(follower.clone()));
        // Before anything accepts traffic: a client that sees the gateway up may query its status.
        let entrances = Arc::new(Entrances::new(Arc::clone(&before.sockets)));
        let history = process_history.as_ref().map(|process_history| Arc::clone(&process_history.history));
        let audit = Audit::of(&settings, history.as_ref())?;
        let records = Records { history, audit };
        operators::serve(&settings, &running, store.as_ref(), &plugins, keyring, &records, &entrances)
            .await?;
        before.resume_tickets(&current);
        // A parent has one.
        let place = PidFileLocation::of(&settings, options.source.default_pid_file.as_deref())
            .filter(|_| before.links.parent.is_none());
        // Before anything accepts traffic, unless another process has it until this one serves.
        let own_file = place.as_ref().filter(|_| before.state.is_none()).map(PidFileLocation::write);
        let own_file = own_file.transpose()?.flatten();
        current.residents.prepare(None, &plugins.node);
        let mut gateway =
            Gateway::start(Arc::clone(&current), inheritance, pinned, writer, before.receiving())?;
        running.set_unready(None);
        running.members().begin();
        running.register(&settings);
        let (parent, taken_file) = take_place(before, &mut gateway, place.as_ref()).await;
        look_after(&publisher, health_file.as_ref(), keeper);
        let sharing = settings.health_sharing.zip(store.as_ref());
        let revision = publisher.state().desired.revision();
        let supervisor = Supervisor {
            usage,
            files_stamp: options.plugins.stamp(),
            options,
            rosters: Rosters { all: plugins.all, enabled: plugins.enabled },
            health_sharing: sharing.map(|(how, store)| HealthSharing::begin(how, store, &publisher)),
            publisher,
            ordered,
            gateway,
            node: plugins.node,
            current,
            watch: store.as_ref().map(|store| Arc::clone(store).watch(revision)),
            store,
            follower,
            process_history,
            audit: records.audit,
            log,
            running,
            commands,
            pid_file: own_file.or(taken_file),
            entrances,
            program: origin.program.clone(),
            starter,
            systemd: parent.is_none().then(|| Systemd::of_environment(origin.has_predecessor())),
            parent,
            watch_over: WatchOver::default(),
            health_file,
            has_changed: true,
            until_settled: SETTLING_PERIODS,
            signals: Some(signals),
        };
        supervisor.tell_of_start().await;
        Ok(supervisor)
    }

    /// Begins with what plugins do for the process, and tells everybody who waits for it that it serves.
    async fn tell_of_start(&self) {
        residents::begin(&self.node, &self.current, self.parent.is_some());
        self.tell_store();
        self.tell_history_of_file(Trigger::Start, &Ok(()));
        self.tell_parent_of_sockets().await;
        if let Some(parent) = &self.parent {
            parent.ready().await;
        }
        if let Some(systemd) = &self.systemd {
            systemd.ready();
        }
    }
}
