//! A configuration that is looked at and not served.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::settings::{ListenPlace, written_listener};
use sigma_net::tls::KeyPassphrases;
use sigma_plugin::cloud::CloudIdentities;
use sigma_plugin::{Node, Roster};
use sigma_proxy::compile::{CertificateSource, NoCertificates, Sources};
use sigma_proxy::{Compiler, Snapshot};
use sigma_schema::Problem;

use crate::operators::{identity, pages};
use crate::serving::cloud_identity;
use crate::serving::endpoints::Endpoints;
use crate::serving::files::Files;
use crate::serving::geo_files::GeoFiles;
use crate::serving::publisher;
use crate::serving::references::References;
use crate::serving::revealed::Revealed;
use crate::serving::secret::{Limits, Secrets, Unresolved};

/// Compiles a configuration that is not to be served, for tools that look at it. `plugins` are the build's
/// plugins. External values are looked up as at a start: the environment, and the secret managers that the
/// configuration names. Blocks meanwhile; not to be called within a runtime.
///
/// # Errors
/// Returns an error if the configuration cannot be compiled: every problem that the check of the
/// document could not see.
pub fn compile_only(config: &Config, plugins: &Arc<Roster>) -> Result<Arc<Snapshot>, Vec<Problem>> {
    let unfit = unfit(config, plugins);
    if !unfit.is_empty() {
        return Err(unfit);
    }
    if let Some(tls) = config.settings.admin.as_ref().and_then(|admin| admin.tls.as_ref()) {
        identity::read(tls).map_err(|problem| vec![problem])?;
    }
    let (mut endpoints, mut revealed, mut files) =
        (Endpoints::of(&config.settings, 1), Revealed::default(), Files::default());
    let unresolved = learn_secrets(config, &mut revealed);
    let node = Arc::<Node>::default();
    node.part(CloudIdentities::default)
        .allow(cloud_identity::allowed(config.settings.cloud_identity.as_ref()));
    let compiler = Compiler::new(Arc::clone(plugins), node);
    let geography = GeoFiles::read(&config.settings.geoip).map_err(|problem| vec![problem])?;
    let ordered = config.settings.acme.clone().map(NoCertificates);
    let sources = Sources {
        endpoints: &mut endpoints.plan(),
        secrets: &revealed,
        files: &mut files,
        geography: geography.geography(),
        ordered: ordered.as_ref().map(|ordered| ordered as &dyn CertificateSource),
        passphrases: KeyPassphrases::default(),
    };
    let compiled = compiler.compile(config, 0, sources);
    compiled.map(|(_, snapshot)| snapshot).map_err(|failures| {
        let explained = |mut problem: Problem| {
            let told = unresolved.iter().find(|secret| problem.message.contains(&secret.reference));
            let told = told.filter(|secret| !problem.message.contains(&secret.reason));
            problem.hint = problem.hint.or(told.map(|secret| secret.reason.clone()));
            problem
        };
        publisher::problems(failures).into_iter().map(explained).collect()
    })
}

/// Returns the problems that prevent any start: resources in two places, and conflicting listeners.
pub(crate) fn unfit(config: &Config, plugins: &Roster) -> Vec<Problem> {
    let mut problems = Vec::new();
    if config.settings.store.is_some() || config.settings.admin.is_some() {
        problems.extend(two_sources(config));
    }
    let places = places(config, plugins);
    for (index, (name, address)) in places.iter().enumerate() {
        let clash = places[..index].iter().find(|(_, other)| overlap(*address, *other));
        if let Some((other, _)) = clash {
            let text = format!("{address} is already the address of {other}");
            let hint = "give each its own address";
            problems.push(Problem::new(name.as_str(), "address_in_use", text).hint(hint));
        }
    }
    problems
}

/// Where a store holds the resources, a file must not.
pub(crate) fn two_sources(config: &Config) -> Option<Problem> {
    if config.resources.keys().is_empty() {
        return None;
    }
    let text = "this file contains resources, but `store` or `admin` is set, so they belong in the store";
    let hint = "move them to another file and write that to the store with `sigma ctl apply -f FILE`, or remove `store` and `admin`";
    Some(Problem::new("", "two_sources", text).hint(hint))
}

/// Where the process listens for operators, then for clients: the setting and the address.
fn places(config: &Config, plugins: &Roster) -> Vec<(String, SocketAddr)> {
    let settings = &config.settings;
    let own = [
        ("status.address", settings.status.as_ref().map(|status| status.address)),
        ("niubix_admin.address", settings.niubix_admin.as_ref().map(|admin| admin.address)),
        ("admin.address", settings.admin.as_ref().map(|admin| admin.address)),
        ("control.address", settings.control.as_ref().map(|control| control.address)),
    ];
    let own = own.into_iter().filter_map(|(name, address)| Some((name.to_owned(), address?)));
    let is_enabled = |name: &str| {
        settings.plugins.as_ref().is_none_or(|list| list.iter().any(|plugin| plugin.name == name))
    };
    let pages = plugins.kinds().filter(|kind| !kind.endpoints().is_empty() && is_enabled(kind.name()));
    let pages = pages.filter_map(|kind| {
        let attribute = settings.plugin_attr.get(kind.name())?;
        // One that cannot be read is reported when it is opened.
        let address = pages::address(kind.name(), attribute).ok()??;
        Some((format!("plugin_attr.{}.export_addr", kind.name()), address))
    });
    let operators: Vec<_> = own.chain(pages).collect();
    let for_clients = settings.listeners.iter().enumerate().filter_map(|(index, listener)| {
        let ListenPlace::Tcp(address) = listener.place() else { return None };
        let clashes = operators.iter().any(|(_, other)| overlap(address, *other));
        // Among themselves they are compared by the check of the document.
        let written = written_listener(&settings.listeners, index);
        clashes.then(|| (format!("listeners[{written}].address"), address))
    });
    let for_clients: Vec<_> = for_clients.collect();
    operators.into_iter().chain(for_clients).collect()
}

/// Whether a socket at one address keeps another one from opening.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (everywhere || one.ip() == other.ip())
}

/// Looks up the references in `config`; returns those without a response.
fn learn_secrets(config: &Config, revealed: &mut Revealed) -> Vec<Unresolved> {
    let mut references = References::default();
    references.note(config, &config.resources.keys());
    let names: Vec<String> = references.all().into_iter().collect();
    if names.is_empty() {
        return Vec::new();
    }
    let Ok(secrets) =
        Secrets::new(Limits::of(&config.settings.secret_lookup), |name| std::env::var(name).ok());
    let identities = Arc::new(CloudIdentities::default());
    secrets.use_identities(Arc::clone(&identities));
    secrets.set_accesses(config.resources.secrets.iter().cloned());
    let mut values = Value::from(names.clone());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let reason = format!("cannot resolve names: {error}");
            let unanswered =
                |reference| Unresolved { pointer: String::new(), reference, reason: reason.clone() };
            return names.into_iter().map(unanswered).collect();
        }
    };
    let unresolved = runtime.block_on(async {
        cloud_identity::begin(config.settings.cloud_identity.as_ref(), &identities).await;
        secrets.resolve(&mut values).await
    });
    let found = values.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    revealed.note_refusals(&names, &unresolved);
    revealed.learn(names.into_iter().zip(found));
    unresolved
}
