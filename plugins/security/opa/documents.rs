//! Resources as an agent is shown them: JSON, without upstreams and secrets.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sigma_config::crypt::mask_resource;
use sigma_config::kind::Kind;
use sigma_config::resources::{Consumer, PluginConfig, Route, Service};
use sigma_plugin::resource::AnyResource;
use sigma_plugin::{Build, Context, Env, Resource, Roster};
use sigma_schema::plugins::PluginSchemas;

/// Documents that one worker keeps.
const KEPT: usize = 1_000;

/// Makes documents. Each worker keeps those that it made.
pub(super) struct Documents {
    /// Knows what of a plugin's configuration is secret.
    roster: Arc<Roster>,
}

/// The source of a document. While it is kept nothing else can be at its place in memory.
type Source = Arc<dyn Any>;

/// A document, with what keeps its source in place; None where there is nothing to show.
type Document = (Source, Option<Rc<str>>);

/// The documents of one worker, by the address of their source and their kind.
#[derive(Default)]
struct WorkerDocuments(RefCell<HashMap<(usize, &'static str), Document>>);

/// A resource as JSON.
fn written<T: AnyResource + Serialize>(resource: &Option<Resource>) -> Option<Value> {
    serde_json::to_value(resource.as_ref()?.get::<T>()?).ok()
}

impl Documents {
    pub(super) fn of(build: &Build<'_>) -> Documents {
        // Made once: its schemas are the schemas of all plugins.
        let roster = build.node.part(|| Roster::new(build.kinds(), None));
        Documents { roster }
    }

    /// The route, with the plugins of its plugin config and service.
    pub(super) fn route(&self, ctx: &Context, env: &Env<'_>) -> Option<Rc<str>> {
        let facts = ctx.route.as_ref()?;
        self.kept(env, Arc::as_ptr(facts).addr(), "route", Arc::clone(facts) as Source, || {
            let resources = &facts.resources;
            let mut route = written::<Route>(&resources.route)?;
            let outer =
                [written::<PluginConfig>(&resources.plugin_config), written::<Service>(&resources.service)];
            for plugins in
                outer.into_iter().flatten().filter_map(|mut outer| Some(outer.get_mut("plugins")?.take()))
            {
                let own = route
                    .as_object_mut()?
                    .entry("plugins")
                    .or_insert_with(|| Value::Object(Default::default()));
                for (name, conf) in plugins.as_object()? {
                    if own.get(name).is_none() {
                        own[name] = conf.clone();
                    }
                }
            }
            Some(self.shown(Kind::Route, route))
        })
    }

    /// The route's service.
    pub(super) fn service(&self, ctx: &Context, env: &Env<'_>) -> Option<Rc<str>> {
        let facts = ctx.route.as_ref()?;
        self.kept(env, Arc::as_ptr(facts).addr(), "service", Arc::clone(facts) as Source, || {
            let service = written::<Service>(&facts.resources.service)?;
            Some(self.shown(Kind::Service, service))
        })
    }

    /// The consumer that the request is from.
    pub(super) fn consumer(&self, ctx: &Context, env: &Env<'_>) -> Option<Rc<str>> {
        let consumer = ctx.consumer()?;
        self.kept(env, Arc::as_ptr(consumer).addr(), "consumer", Arc::clone(consumer) as Source, || {
            let document = written::<Consumer>(&consumer.resource)?;
            Some(self.shown(Kind::Consumer, document))
        })
    }

    fn kept(
        &self,
        env: &Env<'_>,
        place: usize,
        kind: &'static str,
        source: Source,
        make: impl FnOnce() -> Option<Value>,
    ) -> Option<Rc<str>> {
        let kept = env.local.part(WorkerDocuments::default);
        let mut kept = kept.0.borrow_mut();
        if kept.len() >= KEPT {
            kept.clear();
        }
        let made = || (source, make().map(|document| Rc::from(document.to_string())));
        kept.entry((place, kind)).or_insert_with(made).1.clone()
    }

    fn shown(&self, kind: Kind, mut document: Value) -> Value {
        if let Some(members) = document.as_object_mut() {
            members.shift_remove("upstream");
        }
        if let Some(plugins) = document.get_mut("plugins").and_then(Value::as_object_mut) {
            // The secrets of an unknown plugin are unknown.
            let names = self.roster.names();
            plugins.retain(|name, _| names.binary_search(&name.as_str()).is_ok());
        }
        mask_resource(kind, &mut document, &*self.roster);
        document
    }
}
