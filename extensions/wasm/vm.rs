//! A module with a configuration, and the start of its instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sigma_plugin::Node;
use tokio::sync::watch;
use wasmtime::{
    AsContextMut, Instance, InstancePre, Store, TypedFunc, UpdateDeadline, WasmParams, WasmResults,
};

use crate::code::Code;
use crate::engine::{Runtime, Uses};
use crate::state::{ROOT, State};
use crate::vm_data::{VmData, VmParts};

/// A module with a configuration. All its users share it, and its instances in each worker.
pub(crate) struct Vm {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) code: Arc<Code>,
    data: Arc<VmData>,
    runtime: Arc<Runtime>,
    /// Closed when the last user is gone.
    pub(crate) gone: watch::Receiver<()>,
}

/// A use of a module. Workers free their instances with the last one.
pub(crate) struct VmUse {
    pub(crate) vm: Arc<Vm>,
    _users: watch::Sender<()>,
}

/// The modules in use, by the digests of their configurations; a part of the node.
#[derive(Default)]
pub(crate) struct VmUses(pub(crate) Uses<VmUse>);

impl std::ops::Deref for Vm {
    type Target = VmData;

    fn deref(&self) -> &VmData {
        &self.data
    }
}

impl Vm {
    /// Returns the first use of a module.
    pub(crate) fn first_use(
        name: &str,
        runtime: Arc<Runtime>,
        code: Arc<Code>,
        parts: VmParts,
        node: &Node,
    ) -> VmUse {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let (users, gone) = watch::channel(());
        let data = Arc::new(VmData::new(name, &runtime.settings, parts, &code.digest, node));
        let id = LAST.fetch_add(1, Ordering::Relaxed);
        VmUse { vm: Arc::new(Vm { id, code, data, runtime, gone }), _users: users }
    }

    /// Returns the most time of one callback.
    pub(crate) fn call_time(&self) -> Duration {
        Duration::from_millis(self.settings.call_ms)
    }
}

/// A callback for the response to a call: the context, the call, and the sizes of head, body and trailers.
pub(crate) type OnCallResponse = TypedFunc<(u32, u32, u32, u32, u32), ()>;

/// A callback about fields: version 0.1.0 has no third argument.
#[derive(Clone)]
pub(crate) enum OnHeaders {
    Two(TypedFunc<(u32, u32), u32>),
    Three(TypedFunc<(u32, u32, u32), u32>),
}

impl OnHeaders {
    pub(crate) fn call(
        &self,
        store: &mut Store<State>,
        context: u32,
        fields: u32,
        is_end: bool,
    ) -> wasmtime::Result<u32> {
        match self {
            OnHeaders::Two(callback) => callback.call(store, (context, fields)),
            OnHeaders::Three(callback) => callback.call(store, (context, fields, is_end.into())),
        }
    }
}

/// A callback about a body, or the bytes of a session.
pub(crate) type OnBody = TypedFunc<(u32, u32, u32), u32>;

/// A callback about trailers.
pub(crate) type OnTrailers = TypedFunc<(u32, u32), u32>;

/// The callbacks of an instance; None for those that the module does not have.
pub(crate) struct Exports {
    pub(crate) create: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) request_headers: Option<OnHeaders>,
    pub(crate) request_body: Option<OnBody>,
    pub(crate) request_trailers: Option<OnTrailers>,
    pub(crate) response_headers: Option<OnHeaders>,
    pub(crate) response_body: Option<OnBody>,
    pub(crate) response_trailers: Option<OnTrailers>,
    pub(crate) new_connection: Option<TypedFunc<u32, u32>>,
    pub(crate) downstream_data: Option<OnBody>,
    pub(crate) downstream_close: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) upstream_data: Option<OnBody>,
    pub(crate) upstream_close: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) call_response: Option<OnCallResponse>,
    pub(crate) grpc_initial: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(crate) grpc_receive: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(crate) grpc_trailing: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(crate) grpc_close: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(crate) tick: Option<TypedFunc<u32, ()>>,
    pub(crate) queue_ready: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) done: Option<TypedFunc<u32, u32>>,
    pub(crate) log: Option<TypedFunc<u32, ()>>,
    pub(crate) delete: Option<TypedFunc<u32, ()>>,
}

/// Finds a callback.
pub(crate) fn find<P: WasmParams, R: WasmResults>(
    instance: &Instance,
    store: &mut Store<State>,
    name: &str,
) -> Result<Option<TypedFunc<P, R>>, String> {
    let Some(function) = instance.get_func(store.as_context_mut(), name) else { return Ok(None) };
    let typed = function.typed(store.as_context_mut());
    typed.map(Some).map_err(|_| format!("its function `{name}` has the wrong signature"))
}

fn find_headers(
    instance: &Instance,
    store: &mut Store<State>,
    name: &str,
) -> Result<Option<OnHeaders>, String> {
    let Some(function) = instance.get_func(store.as_context_mut(), name) else { return Ok(None) };
    let is_old = function.ty(store.as_context_mut()).params().len() == 2;
    Ok(match is_old {
        true => find(instance, store, name)?.map(OnHeaders::Two),
        false => find(instance, store, name)?.map(OnHeaders::Three),
    })
}

impl Exports {
    fn new(instance: &Instance, store: &mut Store<State>) -> Result<Exports, String> {
        Ok(Exports {
            create: find(instance, store, "proxy_on_context_create")?,
            request_headers: find_headers(instance, store, "proxy_on_request_headers")?,
            request_body: find(instance, store, "proxy_on_request_body")?,
            request_trailers: find(instance, store, "proxy_on_request_trailers")?,
            response_headers: find_headers(instance, store, "proxy_on_response_headers")?,
            response_body: find(instance, store, "proxy_on_response_body")?,
            response_trailers: find(instance, store, "proxy_on_response_trailers")?,
            new_connection: find(instance, store, "proxy_on_new_connection")?,
            downstream_data: find(instance, store, "proxy_on_downstream_data")?,
            downstream_close: find(instance, store, "proxy_on_downstream_connection_close")?,
            upstream_data: find(instance, store, "proxy_on_upstream_data")?,
            upstream_close: find(instance, store, "proxy_on_upstream_connection_close")?,
            call_response: find(instance, store, "proxy_on_http_call_response")?,
            grpc_initial: find(instance, store, "proxy_on_grpc_receive_initial_metadata")?,
            grpc_receive: find(instance, store, "proxy_on_grpc_receive")?,
            grpc_trailing: find(instance, store, "proxy_on_grpc_receive_trailing_metadata")?,
            grpc_close: find(instance, store, "proxy_on_grpc_close")?,
            tick: find(instance, store, "proxy_on_tick")?,
            queue_ready: find(instance, store, "proxy_on_queue_ready")?,
            done: find(instance, store, "proxy_on_done")?,
            log: find(instance, store, "proxy_on_log")?,
            delete: find(instance, store, "proxy_on_delete")?,
        })
    }
}

/// An instance that has started.
pub(crate) struct Started {
    pub(crate) store: Store<State>,
    pub(crate) exports: Exports,
}

/// Starts an instance. It may take as long as the settings allow: not for a worker's thread.
///
/// # Errors
/// Returns the reason if the module does not start, or refuses its configuration.
pub(crate) fn start(vm: &Arc<Vm>, pre: &InstancePre<State>) -> Result<Started, String> {
    let (mut store, instance) = prepare(vm, pre)?;
    let exports = Exports::new(&instance, &mut store)?;
    configure(vm, &instance, &exports, &mut store)?;
    Ok(Started { store, exports })
}

/// Makes an instance, and runs the initialisation of its language.
///
/// # Errors
/// Returns the reason if that fails.
pub(crate) fn prepare(vm: &Arc<Vm>, pre: &InstancePre<State>) -> Result<(Store<State>, Instance), String> {
    let mut store = Store::new(&vm.runtime.engine, State::new(&vm.data));
    store.limiter(|state| &mut state.limits);
    store.epoch_deadline_callback(|mut context| {
        let budget = &mut context.data_mut().budget;
        match budget.is_spent() {
            true => {
                let limit = budget.limit().as_millis();
                Err(wasmtime::Error::msg(format!("it ran longer than {limit} ms")))
            }
            false => Ok(UpdateDeadline::Continue(1)),
        }
    });
    store.data_mut().budget.begin(Duration::from_millis(vm.settings.start_ms));
    store.set_epoch_deadline(1);
    let instance = pre.instantiate(&mut store).map_err(|error| reason(&error))?;
    store.data_mut().memory = instance.get_memory(&mut store, "memory");
    let allocate = match find(&instance, &mut store, "proxy_on_memory_allocate")? {
        Some(allocate) => Some(allocate),
        None => find(&instance, &mut store, "malloc")?,
    };
    store.data_mut().allocate = allocate;
    initialize(&instance, &mut store)?;
    Ok((store, instance))
}

/// Runs the initialisation of the module's language.
fn initialize(instance: &Instance, store: &mut Store<State>) -> Result<(), String> {
    let is_reactor = instance.get_func(&mut *store, "_initialize").is_some();
    let name = if is_reactor { "_initialize" } else { "_start" };
    if let Some(begin) = find::<(), ()>(instance, store, name)? {
        begin.call(&mut *store, ()).map_err(|error| format!("{name}: {}", reason(&error)))?;
    }
    if let Some(main) =
        instance.get_typed_func::<(u32, u32), u32>(&mut *store, "main").ok().filter(|_| is_reactor)
    {
        main.call(&mut *store, (0, 0)).map_err(|error| format!("main: {}", reason(&error)))?;
    }
    Ok(())
}

/// Makes the plugin's context, and passes the configurations to it.
fn configure(
    vm: &Vm,
    instance: &Instance,
    exports: &Exports,
    store: &mut Store<State>,
) -> Result<(), String> {
    if let Some(create) = &exports.create {
        let created = create.call(&mut *store, (ROOT, 0));
        created.map_err(|error| format!("proxy_on_context_create: {}", reason(&error)))?;
    }
    let steps =
        [("proxy_on_vm_start", vm.vm_configuration.len()), ("proxy_on_configure", vm.configuration.len())];
    for (name, length) in steps {
        let Some(step) = find::<(u32, u32), u32>(instance, store, name)? else { continue };
        store.data_mut().effective = ROOT;
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let is_accepted = step.call(&mut *store, (ROOT, length));
        if is_accepted.map_err(|error| format!("{name}: {}", reason(&error)))? == 0 {
            return Err(format!("{name}: the module refused its configuration"));
        }
    }
    Ok(())
}

/// Returns the reason of a trap, without its backtrace.
pub(crate) fn reason(error: &wasmtime::Error) -> String {
    error.root_cause().to_string()
}
