//! The listeners for operators: status, Admin API, NiubiX's admin calls, and pages of plugins.

pub mod admin;
pub(crate) mod audit;
mod caches;
mod caller;
mod certificates;
pub mod control_api;
mod documents;
pub(crate) mod entrances;
mod explain;
pub(crate) mod history;
pub(crate) mod identity;
mod instruments;
mod listener;
pub(crate) mod live;
mod measures;
pub(crate) mod members;
pub(crate) mod niubix;
#[cfg(not(feature = "profiles"))]
mod no_profiles;
mod node_states;
mod nodes;
mod orders;
pub(crate) mod pages;
mod plugin_paths;
#[cfg(feature = "profiles")]
mod profile;
mod questions;
mod refused_call;
mod registration;
mod registries;
mod runner;
pub(crate) mod running;
mod scripts;
pub(crate) mod status;
mod stress;
mod summaries;
mod tap;

use std::net::SocketAddr;
use std::sync::Arc;

use sigma_config::crypt::Keyring;
use sigma_config::settings::{Operators, Settings};
use sigma_config::store::StoreKind;
use sigma_net::listen::{Occupant, Transport};
use sigma_plugin::Roster;
use sigma_plugin::docs::reference;

use self::admin::{AdminState, ProcessCalls};
use self::audit::{Audit, audited};
use self::caller::Trusted;
use self::control_api::{ControlState, Inspect as _};
use self::entrances::Entrances;
use self::explain::Explainer;
use self::history::HistoryReader;
use self::identity::Identity;
#[cfg(not(feature = "profiles"))]
use self::no_profiles as profile;
use self::plugin_paths::PluginPaths;
use self::running::Running;
use self::tap::Tapping;
use crate::serving::plugins::Plugins;
use crate::serving::trial::Trial;
use crate::store::Store;
use crate::store::history::History;

/// Why a listener for operators cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its address.
    #[error("cannot listen on {address}: {source}{remedy}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
        /// The remedy, after a semicolon; empty if it is unknown.
        remedy: String,
    },
    /// The key of the Admin API.
    #[error(transparent)]
    AdminKey(#[from] admin::KeyFileError),
    /// The certificate of the Admin API.
    #[error("{0}")]
    AdminTls(sigma_schema::Problem),
    /// The audit log.
    #[error("cannot write the audit log {path}: {source}; name another file in `audit_log.path`")]
    AuditLog {
        /// The file.
        path: std::path::PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A plugin's setting of the listener for its pages.
    #[error("{0}")]
    Pages(String),
}

/// The logs of changes and calls.
pub(crate) struct Records {
    /// The history; None if none is kept.
    pub(crate) history: Option<Arc<History>>,
    /// The audit log; None if it is off.
    pub(crate) audit: Option<Arc<Audit>>,
}

/// Opens those that the settings name.
pub(crate) async fn serve(
    settings: &Settings,
    running: &Arc<Running>,
    store: Option<&Arc<dyn Store>>,
    plugins: &Plugins,
    keyring: Keyring,
    records: &Records,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    let limits = Arc::new(settings.operators.clone());
    let trusted = Arc::new(Trusted::from(&settings.operators));
    let explainer = Arc::new(Explainer::new(Arc::clone(running.publisher())));
    let audit = records.audit.as_ref();
    let (board, publisher) = (Arc::clone(running.taps()), Arc::clone(running.publisher()));
    let tapping = Arc::new(Tapping::new(board, publisher, Arc::clone(&plugins.enabled) as _, settings.tap));
    let history = records.history.as_ref().map(|history| {
        let plugins = Arc::clone(&plugins.enabled);
        Arc::new(HistoryReader::new(Arc::clone(history), keyring.clone(), plugins))
    });
    if let Some(status) = &settings.status {
        listen(status.address, status::router(Arc::clone(running)), &limits, entrances).await?;
    }
    if let Some(admin) = &settings.niubix_admin {
        listen(admin.address, niubix::router(Arc::clone(running), admin, &trusted), &limits, entrances)
            .await?;
    }
    if let (Some(admin), Some(store)) = (&settings.admin, store) {
        let mut admin = admin.clone();
        let store_settings = settings.store.clone().unwrap_or_default();
        if let Some(file) = admin::settle_key(&mut admin, &store_settings.path)? {
            let path = file.path.display();
            // An operator at the first start has to find it, at any log level.
            if file.is_new {
                tracing::warn!(file = %path, "generated a key for the Admin API; it is in this file");
            } else {
                tracing::info!(file = %path, "the key for the Admin API is in this file");
            }
        }
        let identity = Identity::of(&admin).await.map_err(OpenError::AdminTls)?;
        let (address, plugins) = (admin.address, Arc::clone(&plugins.enabled));
        let roster = Arc::clone(&plugins);
        let trial = Trial::new(Arc::clone(&plugins), settings);
        let mut state = AdminState::new(Arc::clone(store), plugins, keyring, admin);
        state.behind(&settings.operators);
        state.rules.trial = Some(trial);
        state.history = history.clone();
        state.gateway.explainer = Some(Arc::clone(&explainer));
        state.gateway.tapping = Some(Arc::clone(&tapping));
        ask(&mut state, running, roster);
        state.check_by(settings);
        if store_settings.kind == StoreKind::Etcd {
            state.key_prefix = store_settings.prefix;
        }
        listen_as(identity, address, audited(admin::router(state), audit), &limits, entrances).await?;
    }
    if let Some(control) = &settings.control {
        let (inspect, schemas) = (Arc::clone(running) as _, Arc::clone(&plugins.enabled));
        let mut state = ControlState::new(inspect, schemas, key_prefix(settings, store.is_some()));
        state.history = history;
        state.explainer = Some(explainer);
        state.tapping = Some(tapping);
        state.plugin_paths =
            Some(PluginPaths { roster: Arc::clone(&plugins.enabled), node: Arc::clone(&plugins.node) });
        state.profiling = settings.process.profiling.then(Arc::default);
        if state.profiling.is_some() && !cfg!(feature = "profiles") {
            tracing::warn!("process.profiling: {}", control_api::NOT_BUILT);
        }
        let router = audited(caller::guarded(control_api::router(state), &trusted), audit);
        listen(control.address, router, &limits, entrances).await?;
    }
    pages::serve(running, plugins, &limits, entrances).await?;
    entrances.are_bound();
    Ok(())
}

/// Lets an Admin API ask the running gateway, and its plugins for their documentation.
fn ask(state: &mut AdminState, running: &Arc<Running>, plugins: Arc<Roster>) {
    let has_streams = Arc::clone(running);
    state.rules.has_streams = Arc::new(move || has_streams.has_streams());
    state.gateway.process = Some(process_calls(running));
    let members = Arc::clone(running);
    state.gateway.members = Some(Arc::new(move || members.listed()));
    let reloading = Arc::clone(running);
    state.gateway.reload = Some(Arc::new(move || {
        let running = Arc::clone(&reloading);
        Box::pin(async move { running.reload().await })
    }));
    state.gateway.purges = Some(Arc::clone(running.purges()));
    let described = Arc::clone(&plugins);
    state.summaries = Arc::new(move || summaries::summaries(&described));
    let foreseeing = Arc::clone(running);
    state.gateway.foresee = Some(Arc::new(move |proposal, revision| foreseeing.foresee(proposal, revision)));
    state.documentation = Arc::new(move |name| Some(reference(&**plugins.get(name)?)));
}

/// Returns the calls of an Admin API to the running gateway.
fn process_calls(running: &Arc<Running>) -> ProcessCalls {
    let [asked, set, ordering, stressed] = [(); 4].map(|()| Arc::clone(running));
    ProcessCalls {
        query: Arc::new(move |question| questions::answer(&*asked, question)),
        set_node_state: Arc::new(move |upstream, node, body| {
            let change = |upstream: &str, node: &str, wanted| set.set_node_state(upstream, node, wanted);
            node_states::set(&change, upstream, node, body)
        }),
        order: Arc::new(move |ssl| {
            let running = Arc::clone(&ordering);
            Box::pin(async move { running.order_now(&ssl).await })
        }),
        stress: Arc::new(move |call| stressed.stress(call)),
    }
}

/// Returns the prefix of the keys of resources: keys of a file have no prefix.
fn key_prefix(settings: &Settings, is_stored: bool) -> &str {
    match &settings.store {
        Some(store) if store.kind == StoreKind::Etcd => &store.prefix,
        _ if is_stored => "/apisix",
        _ => "",
    }
}

/// Serves `router` at an address in cleartext until the process ends.
pub(crate) async fn listen(
    address: SocketAddr,
    router: axum::Router,
    limits: &Arc<Operators>,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    listen_as(None, address, router, limits, entrances).await
}

/// Listens over TLS, if there is a certificate.
async fn listen_as(
    identity: Option<Arc<Identity>>,
    address: SocketAddr,
    router: axum::Router,
    limits: &Arc<Operators>,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    #[cfg(test)]
    let Some(router) = crate::simulation::seams::listen(address, router) else { return Ok(()) };
    let listener = entrances.bind(address).await.map_err(|source| {
        let remedy = remedy(address, &source);
        OpenError::Listen { address, source, remedy }
    })?;
    tokio::spawn(listener::accept(listener, router, Arc::clone(limits), identity, Arc::clone(entrances)));
    Ok(())
}

/// Returns the remedy if an address is in use, with the process that has it.
fn remedy(address: SocketAddr, source: &std::io::Error) -> String {
    if source.kind() != std::io::ErrorKind::AddrInUse {
        return String::new();
    }
    match sigma_net::listen::occupant(address, Transport::Tcp) {
        Some(Occupant { pid, name }) => {
            format!("; pid {pid} ({name}) listens on this address: stop it, or choose another port")
        }
        None => "; another program listens on this address: stop it, or choose another port".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_address_in_use_has_a_remedy() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let check = |kind: ErrorKind, expected: &str| assert_eq!(remedy(address, &kind.into()), expected);
        // The own process is not named: it would be this test.
        check(
            ErrorKind::AddrInUse,
            "; another program listens on this address: stop it, or choose another port",
        );
        check(ErrorKind::PermissionDenied, "");
        let error = |source: Error| OpenError::Listen { address, remedy: remedy(address, &source), source };
        let text = error(ErrorKind::AddrInUse.into()).to_string();
        assert!(text.contains(&address.to_string()) && text.ends_with("choose another port"), "{text}");
    }
}
