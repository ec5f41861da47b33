//! Modules: reading, checking and compiling them.

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustix::io::Errno;
use sigma_plugin::Node;
use tokio::sync::watch;
use wasmtime::{InstancePre, Module};

use crate::engine::{Digest, Runtime, Uses};
use crate::handler::functions;
use crate::host;
use crate::outline::{Abi, Outline};
use crate::state::State;

/// Returns the digest of several parts; each begins with its length.
pub(crate) fn digest_of(parts: &[&[u8]]) -> Digest {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    sha256(&bytes)
}

fn sha256(bytes: &[u8]) -> Digest {
    let mut value = [0; 32];
    value.copy_from_slice(digest(&SHA256, bytes).as_ref());
    value
}

/// A module that may still be compiling.
pub(crate) struct Code {
    pub(crate) digest: Digest,
    pub(crate) abi: Abi,
    /// It imports the function of the handler ABI that reads bodies.
    pub(crate) reads_body: bool,
    result: watch::Receiver<Option<Compiled>>,
}

/// The modules in use, by their digests; a part of the node.
#[derive(Default)]
struct Codes(Uses<Code>);

/// A compiled module, or the reason that it could not be compiled.
type Compiled = Result<Arc<InstancePre<State>>, Arc<str>>;

impl Code {
    /// Returns the compiled module, once it is there.
    ///
    /// # Errors
    /// Returns the reason if it could not be compiled.
    pub(crate) async fn compiled(&self) -> Compiled {
        let mut result = self.result.clone();
        match result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone()) {
            Some(compiled) => compiled,
            // The gateway is about to end.
            None => Err("the module was not compiled".into()),
        }
    }
}

/// Reads a module and begins to compile it, unless another configuration has done so.
///
/// # Errors
/// Returns an error message if the file cannot be read, or cannot be used here.
pub(crate) fn load(path: &Path, expected: Option<&str>, node: &Node) -> Result<Arc<Code>, String> {
    let runtime = Runtime::of(node)?;
    let name = path.display();
    let bytes = read(path, runtime.settings.module_bytes).map_err(|error| format!("{name}: {error}"))?;
    let digest = sha256(&bytes);
    let written: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(&written)) {
        return Err(format!("{name}: its SHA-256 is {written}, not the one in `sha256`"));
    }
    node.part(Codes::default).0.get(digest, || {
        let (outline, abi) = check(&runtime, &bytes).map_err(|error| format!("{name}: {error}"))?;
        let reads_body = outline.imports.iter().any(|(_, name)| name == "read_body");
        let (sender, result) = watch::channel(None);
        let (runtime, name) = (Arc::clone(&runtime), path.display().to_string());
        node.spawn(async move {
            // A separate thread: the control thread continues.
            let compiled = tokio::task::spawn_blocking(move || compile(&runtime, &bytes, abi)).await;
            let compiled = compiled.unwrap_or_else(|_| Err("the compiler failed".into()));
            if let Err(reason) = &compiled {
                tracing::error!("wasm: {name}: {reason}");
            }
            sender.send_replace(Some(compiled));
        });
        Ok(Arc::new(Code { digest, abi, reads_body, result }))
    })
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    if about.len() > limit {
        return Err(format!(
            "it has {} bytes, but plugin_attr.wasm.module_bytes allows {limit}",
            about.len()
        ));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Checks that the module is valid, and that the host has all of its imports.
fn check(runtime: &Runtime, bytes: &[u8]) -> Result<(Outline, Abi), String> {
    let outline = Outline::of(bytes)?;
    Module::validate(&runtime.engine, bytes).map_err(|error| format!("the module is invalid: {error:#}"))?;
    let abi = outline.abi().ok_or(
        "it exports no version of proxy-wasm (proxy_abi_version_0_1_0, _0_2_0 or _0_2_1) and not the functions of http-wasm (handle_request and handle_response): build it with an SDK",
    )?;
    for (module, name) in &outline.imports {
        let is_provided = match abi {
            Abi::HttpHandler => functions::provides(module, name),
            _ => host::provides(module, name),
        };
        if !is_provided {
            return Err(format!("it imports `{module}.{name}`, which the gateway does not have"));
        }
    }
    Ok((outline, abi))
}

fn compile(runtime: &Runtime, bytes: &[u8], abi: Abi) -> Compiled {
    let link = || {
        let module = Module::from_binary(&runtime.engine, bytes)?;
        let linker = match abi {
            Abi::HttpHandler => functions::linker(&runtime.engine, &module)?,
            _ => host::linker(&runtime.engine, &module, abi)?,
        };
        linker.instantiate_pre(&module)
    };
    link().map(Arc::new).map_err(|error| {
        // Compiled code needs executable memory.
        let errno = error.root_cause().downcast_ref::<Errno>();
        let is_denied = errno.is_some_and(|errno| matches!(*errno, Errno::PERM | Errno::ACCESS));
        let hint = if is_denied { "; `process.sandbox` forbids compiled code, turn it off" } else { "" };
        format!("cannot compile the module: {error:#}{hint}").into()
    })
}
