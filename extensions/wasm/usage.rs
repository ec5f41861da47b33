//! The use of a module by a plugin.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sigma_plugin::{Build, Env, Reply, Step};
use sigma_plugin_kit::tallies::Counted;

use crate::code::{digest_of, load};
use crate::config::Target;
use crate::engine::Runtime;
use crate::events::Event;
use crate::instances::Worker;
use crate::vm::{Vm, VmUse, VmUses};
use crate::vm_data::{Service, VmParts};

/// The part of a plugin that its exchanges share.
pub(crate) struct Shared {
    pub(crate) vm_use: Arc<VmUse>,
    pub(crate) fail_open: bool,
    pub(crate) allow_on_headers_stop_iteration: bool,
    /// The module has the rules of APISIX: pauses are calls, and bodies are requested by properties.
    pub(crate) is_apisix: bool,
    pub(crate) counted: Counted<Event>,
}

impl Shared {
    /// Returns the means of this worker.
    pub(crate) fn worker(&self, env: &Env<'_>) -> Worker {
        Worker::new(env, self.counted.tally(env.local))
    }

    /// Returns the response after a failure.
    pub(crate) fn failure(&self) -> Reply {
        Reply::new(503).because("the WebAssembly module failed").text(Vec::new())
    }

    /// Ends the hook of a request without an instance.
    pub(crate) fn without(&self, env: &Env<'_>) -> Step {
        if self.fail_open {
            self.counted.count(env, Event::FailedOpen);
            return Step::Next;
        }
        self.failure().into()
    }
}

/// A module as a configuration names it.
pub(crate) struct ModuleReference<'c> {
    pub(crate) name: &'c str,
    pub(crate) file: &'c Path,
    pub(crate) sha256: Option<&'c str>,
    pub(crate) parts: VmParts,
}

/// Returns the module of a configuration. Equal configurations share it.
///
/// # Errors
/// Returns an error message if the module cannot be used.
pub(crate) fn vm_use(build: &Build<'_>, wanted: ModuleReference<'_>) -> Result<Arc<VmUse>, String> {
    let runtime = Runtime::of(build.node)?;
    let code = load(wanted.file, wanted.sha256, build.node)?;
    let parts = wanted.parts;
    let lists = format!("{:?}{:?}", parts.env, parts.services);
    let texts: [&[u8]; 7] = [
        wanted.name.as_bytes(),
        &code.digest,
        parts.vm_id.as_bytes(),
        parts.root_id.as_bytes(),
        &parts.configuration,
        &parts.vm_configuration,
        lists.as_bytes(),
    ];
    let digest = digest_of(&texts);
    let (name, node) = (wanted.name, build.node);
    node.part(VmUses::default)
        .0
        .get(digest, move || Ok(Arc::new(Vm::first_use(name, runtime, code, parts, node))))
}

/// Returns the services that a module may call.
pub(crate) fn services(build: &Build<'_>, targets: &BTreeMap<String, Target>) -> Vec<Service> {
    let service = |(name, target): (&String, &Target)| Service {
        name: name.as_str().into(),
        upstream: build.upstream_key(name).into(),
        host: target.uri.host.clone(),
        is_grpc: target.grpc,
    };
    targets.iter().map(service).collect()
}
