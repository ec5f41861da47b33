//! Fetched documents: in parallel with the traffic, once for the whole gateway.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_plugin::{Env, Node};

use super::specification::{MOST_BYTES, Scope, Specification};
use sigma_plugin_kit::fetched::{Document, Fetched, Turn};
use sigma_plugin_kit::freshness::Freshness;
use sigma_plugin_kit::registry::Registry;
use sigma_plugin_kit::web::{Address, Reply, Web, WebRequest, WebSettings};

/// Milliseconds after which a server that gave no document is queried again.
const PAUSE_MS: u64 = 1_000;

/// All that tells one source of a document from another.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Settings {
    pub(super) address: Address,
    pub(super) fields: BTreeMap<String, String>,
    pub(super) verify: bool,
    pub(super) timeout_ms: u64,
    /// Seconds after which it is fetched again.
    pub(super) ttl_s: u64,
    /// The parts that are read.
    pub(super) scope: Scope,
}

/// A document, and where it comes from.
pub(super) struct Remote {
    settings: Settings,
    web: Web,
    cell: Fetched<Specification>,
}

#[derive(Default)]
struct Remotes(Registry<Settings, Remote>);

/// The next step of a request.
pub(super) enum FetchStep {
    Known(Arc<Specification>),
    Waits(Pin<Box<dyn Future<Output = ()>>>),
    Nothing,
}

impl Remote {
    /// The one with these settings. For instances to keep, not to be called per request.
    pub(super) fn of(settings: Settings, node: &Node) -> Arc<Remote> {
        node.part(Remotes::default).0.get(settings, Remote::new)
    }

    fn new(settings: Settings) -> Remote {
        let timeout = Duration::from_millis(settings.timeout_ms);
        let web = WebSettings { answer_bytes: MOST_BYTES, ..WebSettings::new(timeout, settings.verify) };
        // A document that came once is used until there is a newer one: otherwise an attacker who blocks the
        // fetch could switch the validation off.
        let fresh_ms = settings.ttl_s.saturating_mul(1_000);
        let rule = Freshness { fresh_ms, stale_ms: u64::MAX, pause_ms: PAUSE_MS };
        Remote { web: Web::new(web), cell: Fetched::new(rule), settings }
    }

    /// The document; `is_last`: the request has waited for it.
    pub(super) fn ask(self: &Arc<Self>, is_last: bool, env: &Env<'_>) -> FetchStep {
        let read = self.cell.read();
        match Fetched::<Specification>::turn(self, &read, read.value.is_some(), is_last, env) {
            Turn::Wait(fetched) => FetchStep::Waits(fetched),
            Turn::Use | Turn::Refuse => read.value.map_or(FetchStep::Nothing, FetchStep::Known),
        }
    }
}

impl Document for Specification {
    type Holder = Remote;

    const NAME: &'static str = "the document of oas-validator";

    fn cell(holder: &Remote) -> &Fetched<Specification> {
        &holder.cell
    }

    async fn fetch(holder: Arc<Remote>) -> Result<Specification, String> {
        let Settings { address, fields, scope, .. } = &holder.settings;
        let scope = *scope;
        let fields = fields.iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec()));
        let question = WebRequest { form: None, fields: fields.collect() };
        let body = match holder.web.put(address, question).await? {
            Reply { status: 200, body } => body,
            Reply { status, .. } => return Err(format!("{address} answered {status}")),
        };
        // A large one takes a while, and the control thread has more to do.
        let read = tokio::task::spawn_blocking(move || {
            let text = String::from_utf8(body).map_err(|_| "it is not UTF-8".to_owned())?;
            Specification::read(&text, scope)
        });
        let read = read.await.map_err(|_| "cannot read it".to_owned())?;
        read.map_err(|error| format!("{address}: {error}"))
    }
}
