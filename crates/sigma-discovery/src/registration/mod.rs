//! Registration of this gateway as a service in registries.
//!
//! A registry is one file, which implements [`Registrar`]. The rest is common: a task for each registry registers, sends
//! heartbeats, registers again when the registry has forgotten the gateway, and deregisters at the end.

mod consul;
mod eureka;
mod nacos;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use sigma_config::discovery::Discovery;
use sigma_config::registration::{Registration, RegistrationTarget};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::centres::backoff;
use crate::http::RegistryRequest;
use crate::source::{Env, Trouble};
use crate::tally::unix_now;

/// The longest time of a deregistration; without it the registration expires.
const LEAVING: Duration = Duration::from_secs(3);

/// The number of heartbeats after which a registration expires.
const EXPIRY: u32 = 3;

/// The registration of one instance in one registry.
pub(crate) trait Registrar: Send + 'static {
    /// Registers the instance; it may be registered already.
    fn register(&mut self) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Sends a heartbeat; returns false if the registry does not know the instance.
    fn renew(&mut self) -> impl Future<Output = Result<bool, Trouble>> + Send;

    /// Deregisters the instance.
    fn remove(&mut self) -> impl Future<Output = Result<(), Trouble>> + Send;
}

/// The state of the registration in one registry, for status pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationReport {
    /// `consul`, `eureka` or `nacos`.
    pub registry: &'static str,
    /// Whether the registry has accepted the registration, and every heartbeat since.
    pub is_registered: bool,
    /// Number of registrations since the start.
    pub registrations: u64,
    /// Number of failures since the start.
    pub failures: u64,
    /// Time of the last accepted registration or heartbeat, in Unix seconds.
    pub last_success: Option<u64>,
    /// The reason of the last failure, if nothing has succeeded since.
    pub problem: Option<String>,
}

/// The registrations of this gateway.
pub struct SelfRegistration {
    is_leaving: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    states: Vec<Arc<Mutex<RegistrationReport>>>,
}

impl SelfRegistration {
    /// Begins to register. Call it within a runtime, when the gateway serves.
    #[must_use]
    pub fn begin(settings: &Registration, discovery: &Discovery) -> SelfRegistration {
        let registration = SelfRegistration {
            is_leaving: watch::Sender::new(false),
            tasks: Mutex::default(),
            states: Vec::new(),
        };
        settings.registries.iter().fold(registration, |mut registration, target| {
            registration.add(*target, settings, discovery);
            registration
        })
    }

    fn add(&mut self, target: RegistrationTarget, settings: &Registration, discovery: &Discovery) {
        let env = Env { limits: discovery.limits, ..Env::default() };
        let every = |default: u64| Duration::from_secs(settings.heartbeat_s.map_or(default, u64::from));
        // The check of the settings demands the servers.
        match target {
            RegistrationTarget::Consul => {
                let Some(servers) = &discovery.consul else { return };
                let every = every(10);
                let registrar = consul::ConsulRegistrar::new(servers, settings, every, &env);
                self.spawn("consul", registrar, every);
            }
            RegistrationTarget::Eureka => {
                let Some(servers) = &discovery.eureka else { return };
                let every = every(30);
                let registrar = eureka::EurekaRegistrar::new(servers, settings, every, &env);
                self.spawn("eureka", registrar, every);
            }
            RegistrationTarget::Nacos => {
                let Some(servers) = &discovery.nacos else { return };
                let every = every(5);
                let registrar = nacos::NacosRegistrar::new(servers, settings, every, &env);
                self.spawn("nacos", registrar, every);
            }
        }
    }

    fn spawn(&mut self, registry: &'static str, registrar: impl Registrar, every: Duration) {
        let state = Arc::new(Mutex::new(RegistrationReport {
            registry,
            is_registered: false,
            registrations: 0,
            failures: 0,
            last_success: None,
            problem: None,
        }));
        let task = tokio::spawn(keep(registrar, Arc::clone(&state), every, self.is_leaving.subscribe()));
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).push(task);
        self.states.push(state);
    }

    /// Deregisters everywhere, within some seconds.
    pub async fn leave(&self) {
        self.is_leaving.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A task that panicked has printed its reason.
            let _ = task.await;
        }
    }

    /// Sends nothing any more: a successor has registered with the same id.
    pub fn fall_silent(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(JoinHandle::abort);
    }

    /// Returns the state of all registrations.
    #[must_use]
    pub fn report(&self) -> Vec<RegistrationReport> {
        self.states.iter().map(|state| lock(state).clone()).collect()
    }
}

fn lock(state: &Mutex<RegistrationReport>) -> MutexGuard<'_, RegistrationReport> {
    // Nothing panics between the statements that change it.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the instance registered until the gateway leaves, then deregisters it.
async fn keep<R: Registrar>(
    mut registrar: R,
    state: Arc<Mutex<RegistrationReport>>,
    every: Duration,
    mut is_leaving: watch::Receiver<bool>,
) {
    let mut failures: u32 = 0;
    loop {
        let is_registered = lock(&state).is_registered;
        let round = async {
            if is_registered { registrar.renew().await } else { registrar.register().await.map(|()| true) }
        };
        let result = tokio::select! {
            result = round => result,
            _ = is_leaving.wait_for(|is_leaving| *is_leaving) => break,
        };
        failures = if result.is_ok() { 0 } else { failures.saturating_add(1) };
        note(&state, &result);
        // After a lost registration the next one follows at once.
        let rest = if matches!(result, Ok(true)) { every } else { backoff(failures).min(every) };
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            _ = is_leaving.wait_for(|is_leaving| *is_leaving) => break,
        }
    }
    // A request that was interrupted may have arrived.
    let registry = lock(&state).registry;
    match tokio::time::timeout(LEAVING, registrar.remove()).await {
        Ok(Ok(())) => tracing::info!(registry, "deregistered this gateway"),
        Ok(Err(trouble)) => {
            tracing::warn!(registry, %trouble, "cannot deregister this gateway; its registration expires")
        }
        Err(_) => {
            tracing::warn!(registry, "cannot deregister this gateway in time; its registration expires")
        }
    }
    lock(&state).is_registered = false;
}

/// Records the result of a registration or heartbeat, and logs it if it is news.
fn note(state: &Mutex<RegistrationReport>, result: &Result<bool, Trouble>) {
    let mut state = lock(state);
    let registry = state.registry;
    match result {
        Ok(true) => {
            if !std::mem::replace(&mut state.is_registered, true) {
                state.registrations += 1;
                tracing::info!(registry, "registered this gateway");
            } else if state.problem.is_some() {
                tracing::info!(registry, "heartbeats succeed again");
            }
            (state.last_success, state.problem) = (Some(unix_now()), None);
        }
        Ok(false) => {
            state.is_registered = false;
            tracing::warn!(registry, "the registry does not know this gateway any more; it registers again");
        }
        Err(trouble) => {
            state.failures += 1;
            if state.problem.as_ref() != Some(&trouble.0) {
                tracing::warn!(registry, %trouble, "cannot register this gateway, or send its heartbeat");
                state.problem = Some(trouble.0.clone());
            }
        }
    }
}

/// The longest part of a response in a message.
const SHOWN_MAX: usize = 200;

/// Returns a request that may have a body of JSON.
fn request(method: Method, target: &str, body: Option<String>, within: Duration) -> RegistryRequest<'_> {
    let mut request = RegistryRequest::get(target, within);
    request.method = method;
    if body.is_some() {
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    request.body = body;
    request
}

/// Returns the error of a status, with the beginning of the response.
fn unexpected(base: &str, status: u16, body: &[u8]) -> Trouble {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_MAX)]);
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    Trouble(
        format!("{base} responded with status {status}: {}", text.trim())
            .trim_end_matches([':', ' '])
            .to_owned(),
    )
}

#[cfg(test)]
mod tests;
