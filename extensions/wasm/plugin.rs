//! The instances of plugins that are modules.

use std::rc::Rc;
use std::sync::Arc;

use sigma_plugin::{BodyFilter, Build, Context, Env, Plugin, ResponseStep, Slot, Step};
use sigma_plugin_kit::tallies::counted;

use crate::config::{Config, RequestPhase};
use crate::handler::exchange::Exchange;
use crate::outline::Abi;
use crate::stream::Stream;
use crate::usage::{ModuleReference, Shared, services, vm_use};
use crate::vm_data::VmParts;
use crate::{handler, request, response};

/// An instance of a plugin.
pub(crate) struct WasmPlugin {
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: RequestPhase,
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
        services: services(build, &config.upstreams),
    };
    let name = config.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let sha256 = config.sha256.as_deref();
    let vm_use = vm_use(build, ModuleReference { name: &name, file: &config.file, sha256, parts })?;
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
        match self.is_handler() {
            true => handler::request::begin(&self.shared, Slot::from(self), ctx, env),
            false => request::begin(&self.shared, Slot::from(self), ctx, env),
        }
    }

    fn is_handler(&self) -> bool {
        self.shared.vm_use.vm.code.abi == Abi::HttpHandler
    }

    /// Returns the exchange of a module with the handler ABI, if its request has gone on.
    fn handled(&self, ctx: &mut Context) -> Option<Rc<Exchange>> {
        let exchange: &mut Rc<Exchange> = ctx.kept(self)?;
        Some(Rc::clone(exchange))
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
        if self.is_handler() {
            let exchange = self.handled(ctx);
            return exchange.map_or(ResponseStep::Next, |exchange| handler::response::head(&exchange, ctx));
        }
        match self.stream(ctx) {
            Some(stream) => response::head(&stream, ctx),
            None => ResponseStep::Next,
        }
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if self.is_handler() {
            return handler::response::filter(&self.handled(ctx)?, ctx);
        }
        let stream = self.stream(ctx)?;
        response::filter(&stream, ctx)
    }

    fn log(&self, ctx: &mut Context, _: &Env<'_>) {
        if let Some(exchange) = self.handled(ctx) {
            exchange.end(ctx);
        }
        if let Some(stream) = self.stream(ctx) {
            stream.end(ctx);
        }
    }
}
