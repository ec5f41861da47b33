//! Trial compilation of a resource, before it is stored.

use std::sync::Arc;

use sigma_config::Config;
use sigma_config::reference::is_reference;
use sigma_config::resources::{Plugins, Ssl, Upstream};
use sigma_config::stored::AnyResource;
use sigma_config::tls::Tls;
use sigma_net::tls::KeyPassphrases;
use sigma_net::tls::pem::Pair;
use sigma_plugin::{Node, Roster};
use sigma_schema::Problem;
use sigma_schema::plugins::{PluginSchemas, PluginScope};

use super::certificates::{self, Sessions};
use super::compiled::is_off;
use super::sources::Sources;
use super::{State, Task};

/// Compiles one resource for trial. Parts that depend on other resources, or on external secrets, are omitted: these
/// may come later, and change.
///
/// # Errors
/// Returns an error for a problem that the check of the resource alone could not see.
pub fn try_out(
    resource: AnyResource,
    roster: &Arc<Roster>,
    mut sources: Sources<'_>,
) -> Result<(), Vec<Problem>> {
    let resource = alone(resource, roster);
    let key = resource.key();
    if let AnyResource::Ssl(ssl) = &resource
        && certificates::refers(ssl)
    {
        return known_parts(ssl, &sources.passphrases)
            .map_err(|reason| vec![Problem::new(key.to_string(), "tls", reason)]);
    }
    let sessions = Sessions::of(&Tls::default(), None, None).map_err(|problem| vec![problem])?;
    let mut config = Config::default();
    config.resources.put(resource, 0);
    let node = Arc::<Node>::default();
    let sources = sources.reborrow();
    let (failures, is_renewed) = (Vec::new(), false);
    let mut task = Task { config: &config, roster, node: &node, sessions, sources, failures, is_renewed };
    task.compile_one(&key, &State::default());
    if task.failures.is_empty() {
        return Ok(());
    }
    Err(task.failures.into_iter().map(|failure| failure.problem).collect())
}

/// Returns the resource without parts that depend on others.
fn alone(mut resource: AnyResource, roster: &Roster) -> AnyResource {
    match &mut resource {
        AnyResource::Route(route) => {
            let route = Arc::make_mut(route);
            keep_known(&mut route.plugins, roster);
            route.upstream.iter_mut().for_each(without_others);
        }
        AnyResource::Service(service) => {
            let service = Arc::make_mut(service);
            keep_known(&mut service.plugins, roster);
            service.upstream.iter_mut().for_each(without_others);
        }
        AnyResource::Upstream(upstream) => without_others(upstream),
        AnyResource::StreamRoute(route) => {
            let route = Arc::make_mut(route);
            keep_known(&mut route.plugins, roster);
            route.upstream.iter_mut().for_each(without_others);
        }
        AnyResource::Consumer(consumer) => keep_known(&mut Arc::make_mut(consumer).plugins, roster),
        AnyResource::Credential(credential) => keep_known(&mut Arc::make_mut(credential).plugins, roster),
        AnyResource::ConsumerGroup(group) => keep_known(&mut Arc::make_mut(group).plugins, roster),
        AnyResource::GlobalRule(rule) => keep_known(&mut Arc::make_mut(rule).plugins, roster),
        AnyResource::PluginConfig(config) => keep_known(&mut Arc::make_mut(config).plugins, roster),
        _ => {}
    }
    resource
}

/// Removes plugins with external parts: secrets, or the plugin's metadata. Disabled plugins, which may be invalid,
/// are removed as well.
fn keep_known(plugins: &mut Plugins, roster: &Roster) {
    let is_left_out = |name: &str, conf: &serde_json::Value| {
        let has_metadata = roster.schema(name, PluginScope::Metadata).is_some();
        has_metadata || refers(conf) || is_off(conf)
    };
    if !plugins.iter().any(|(name, conf)| is_left_out(name, conf)) {
        return;
    }
    let known = plugins.iter().filter(|(name, conf)| !is_left_out(name, conf));
    *plugins = known
        .map(|(name, conf)| (name.clone(), Arc::clone(conf)))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into();
}

fn refers(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => is_reference(text),
        Value::Array(items) => items.iter().any(refers),
        Value::Object(members) => members.values().any(refers),
        _ => false,
    }
}

fn without_others(upstream: &mut Arc<Upstream>) {
    let Some(tls) = upstream.tls.as_deref() else { return };
    let texts =
        [tls.client_cert.as_deref(), tls.client_key.as_ref().map(|key| key.reveal()), tls.ca.as_deref()];
    let elsewhere = texts.into_iter().flatten().any(is_reference);
    if elsewhere || tls.client_cert_id.is_some() {
        let upstream = Arc::make_mut(upstream);
        let tls = upstream.tls.as_deref_mut().filter(|_| !elsewhere);
        match tls {
            Some(tls) => tls.client_cert_id = None,
            None => upstream.tls = None,
        }
    }
}

/// Compiles the inline parts of an ssl.
fn known_parts(ssl: &Ssl, passphrases: &KeyPassphrases) -> Result<(), String> {
    certificates::demands(ssl, |text| Ok(Some(text).filter(|text| !is_reference(text)).map(str::to_owned)))?;
    certificates::chosen_by(ssl)?;
    for (cert, key) in ssl.pairs().filter(|(cert, key)| !is_reference(cert) && !is_reference(key)) {
        Pair::unlock(cert, key, None, passphrases).map_err(|error| error.to_string())?;
    }
    Ok(())
}
