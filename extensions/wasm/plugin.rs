//! The instances of plugins that are modules.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use sigma_plugin::{BodyFilter, Build, Context, Env, Plugin, Reply, ResponseStep, Slot, Step};
use sigma_plugin_kit::tallies::{Counted, counted};

use crate::code::{digest_of, load};
use crate::config::{Config, RequestPhase};
use crate::engine::Runtime;
use crate::events::Event;
use crate::instance::Worker;
use crate::stream::Stream;
use crate::vm::{Vm, VmParts, VmUse};
use crate::{request, response};

/// An instance of a plugin.
pub(crate) struct WasmPlugin {
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: RequestPhase,
}

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
        Reply::new(503).because("the WebAssembly module has failed").text(Vec::new())
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
pub(crate) struct Wanted<'c> {
    pub(crate) name: &'c str,
    pub(crate) file: &'c Path,
    pub(crate) sha256: Option<&'c str>,
    pub(crate) parts: VmParts,
}

/// Returns the module of a configuration. Equal configurations share it.
///
/// # Errors
/// Returns an error message if the module cannot be used.
pub(crate) fn vm_use(build: &Build<'_>, wanted: Wanted<'_>) -> Result<Arc<VmUse>, String> {
    let runtime = Runtime::of(build.node)?;
    let code = load(wanted.file, wanted.sha256, build.node)?;
    let parts = wanted.parts;
    let lists = format!("{:?}{:?}", parts.env, parts.upstreams);
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
    let of_runtime = Arc::clone(&runtime);
    let (name, node) = (wanted.name, build.node);
    runtime.vm(digest, move || Ok(Arc::new(Vm::new(name, of_runtime, code, parts, node))))
}

/// Returns the keys of upstreams, by the names that the module uses.
pub(crate) fn keys<'n>(
    build: &Build<'_>,
    names: impl Iterator<Item = &'n String>,
) -> Vec<(Box<str>, Box<str>)> {
    names.map(|name| (name.as_str().into(), build.upstream_key(name).into())).collect()
}

/// Makes an instance of the plugin `wasm`.
///
/// # Errors
/// Returns an error message if the module cannot be used.
pub(crate) fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    let config: Config = build.config()?;
    let parts = VmParts {
        vm_id: config.vm_id.as_str().into(),
        root_id: config.root_id.as_str().into(),
        configuration: config.conf.as_ref().map(crate::config::Text::bytes).unwrap_or_default(),
        vm_configuration: config.vm_conf.as_ref().map(crate::config::Text::bytes).unwrap_or_default(),
        env: config.env.clone(),
        upstreams: keys(build, config.upstreams.keys()),
    };
    let name = config.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let sha256 = config.sha256.as_deref();
    let vm_use = vm_use(build, Wanted { name: &name, file: &config.file, sha256, parts })?;
    let shared = Shared {
        vm_use,
        fail_open: config.fail_open,
        allow_on_headers_stop_iteration: config.allow_on_headers_stop_iteration,
        is_apisix: false,
        counted: counted(build.node, build.resource),
    };
    Ok(Arc::new(WasmPlugin { shared: Arc::new(shared), phase: config.http_request_phase }))
}

impl WasmPlugin {
    fn begin(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        request::begin(&self.shared, Slot::from(self), ctx, env)
    }

    /// Returns the exchange, if the module runs for it.
    fn stream(&self, ctx: &mut Context) -> Option<Rc<Stream>> {
        let stream: &mut Rc<Stream> = ctx.kept(self)?;
        (!stream.is_over()).then(|| Rc::clone(stream))
    }
}

impl Plugin for WasmPlugin {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.phase == RequestPhase::Rewrite { self.begin(ctx, env) } else { Step::Next }
    }

    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.phase == RequestPhase::Access { self.begin(ctx, env) } else { Step::Next }
    }

    fn request_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let stream = self.stream(ctx)?;
        request::filter(&stream, ctx)
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        match self.stream(ctx) {
            Some(stream) => response::head(&stream, ctx),
            None => ResponseStep::Next,
        }
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let stream = self.stream(ctx)?;
        response::filter(&stream, ctx)
    }

    fn log(&self, ctx: &mut Context, _: &Env<'_>) {
        if let Some(stream) = self.stream(ctx) {
            stream.end(ctx);
        }
    }
}
