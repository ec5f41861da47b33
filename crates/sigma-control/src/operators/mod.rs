//! The listeners for operators: status, Admin API, NiubiX's admin calls, and pages of plugins.

pub mod admin;
mod caller;
mod certificates;
pub mod control_api;
pub(crate) mod entrances;
pub(crate) mod identity;
mod listener;
mod measures;
pub(crate) mod niubix;
mod orders;
pub(crate) mod pages;
mod registries;
pub(crate) mod running;
pub(crate) mod status;

use std::net::SocketAddr;
use std::sync::Arc;

use sigma_config::crypt::Keyring;
use sigma_config::settings::{Operators, Settings};
use sigma_config::store::StoreKind;

use self::admin::AdminState;
use self::caller::Trusted;
use self::control_api::ControlState;
use self::entrances::Entrances;
use self::identity::Identity;
use self::running::Running;
use crate::serving::plugins::Plugins;
use crate::serving::trial::Trial;
use crate::store::Store;

/// Why a listener for operators cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The key of the Admin API.
    #[error(transparent)]
    AdminKey(#[from] admin::KeyFileError),
    /// The certificate of the Admin API.
    #[error("{0}")]
    AdminTls(sigma_config::Problem),
    /// What a plugin says of where its pages are to be served.
    #[error("{0}")]
    Pages(String),
}

/// Opens those that the settings name.
pub(crate) async fn serve(
    settings: &Settings,
    running: &Arc<Running>,
    store: Option<&Arc<dyn Store>>,
    plugins: &Plugins,
    keyring: Keyring,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    let limits = Arc::new(settings.operators.clone());
    let trusted = Arc::new(Trusted::from(&settings.operators));
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
            // Whoever starts for the first time has to find it, however little is logged.
            if file.is_new {
                tracing::warn!(file = %path, "a key for the Admin API was made; it is in this file");
            } else {
                tracing::info!(file = %path, "the key of the Admin API is in this file");
            }
        }
        let identity = Identity::of(&admin).await.map_err(OpenError::AdminTls)?;
        let (address, plugins) = (admin.address, Arc::clone(&plugins.enabled));
        let trial = Trial::new(Arc::clone(&plugins), settings);
        let mut state = AdminState::new(Arc::clone(store), plugins, keyring, admin);
        state.behind(&settings.operators);
        state.trial = Some(trial);
        state.has_streams = {
            let running = Arc::clone(running);
            Arc::new(move || running.has_streams())
        };
        state.unknown_fields = settings.compat.unknown_fields;
        state.router = settings.router.http;
        if store_settings.kind == StoreKind::Etcd {
            state.key_prefix = store_settings.prefix;
        }
        listen_as(identity, address, admin::router(state), &limits, entrances).await?;
    }
    if let Some(control) = &settings.control {
        let (inspect, plugins) = (Arc::clone(running) as _, Arc::clone(&plugins.enabled));
        let state = ControlState::new(inspect, plugins, key_prefix(settings, store.is_some()));
        let router = caller::guarded(control_api::router(state), &trusted);
        listen(control.address, router, &limits, entrances).await?;
    }
    pages::serve(running, plugins, &limits, entrances).await?;
    entrances.are_bound();
    Ok(())
}

/// What stands before the keys of resources: those of a file have nothing before them.
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

/// The same over TLS, if there is somebody to be.
async fn listen_as(
    identity: Option<Arc<Identity>>,
    address: SocketAddr,
    router: axum::Router,
    limits: &Arc<Operators>,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    let listener = entrances.bind(address).await.map_err(|source| OpenError::Listen { address, source })?;
    tokio::spawn(listener::accept(listener, router, Arc::clone(limits), identity, Arc::clone(entrances)));
    Ok(())
}
