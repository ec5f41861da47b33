//! The identity of the machine at clouds: fetched at the start, renewed before it ends, and published to plugins and to
//! the lookup of secrets by [`CloudIdentities`].
//!
//! Each identity has one task, which asks one service at a time. After a failure the old credential stays in use until
//! it ends, and the pause doubles up to a minute. Nothing is fetched without the settings.

mod aws;
mod azure;
mod caller;
mod gcp;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::cloud_identity::CloudIdentity;
use sigma_plugin::cloud::{Allowed, Cloud, CloudIdentities, Identity};
use tokio::task::JoinSet;

use caller::Caller;

use crate::serving::clock::unix_seconds;

/// The longest time for which the start waits for the first credentials.
const START: Duration = Duration::from_secs(5);

/// The pause after the first failure, and the longest one.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A credential is renewed this long before it ends, or after half of a shorter life.
const AHEAD: Duration = Duration::from_secs(300);

/// The shortest pause after a success.
const PACE: Duration = Duration::from_secs(10);

/// Reads an environment variable.
type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A credential, and its end in Unix seconds; None if it has no end.
#[derive(Debug)]
struct Credential<C> {
    value: C,
    end_s: Option<u64>,
}

type Fetching<'f, C> = Pin<Box<dyn Future<Output = Result<Credential<C>, String>> + Send + 'f>>;

/// A service that gives credentials.
trait Service<C>: Send + Sync + 'static {
    /// The cloud.
    const CLOUD: Cloud;

    /// Fetches a credential.
    ///
    /// # Errors
    /// Returns an error, which is a sentence without secrets, if the cloud gives no credential.
    fn fetch(&self) -> Fetching<'_, C>;
}

/// Sets the identities of the settings, and keeps them up to date within this runtime. Waits for the first credentials,
/// but not for long: requests that need one fail until it arrives.
pub(crate) async fn begin(settings: Option<&CloudIdentity>, identities: &CloudIdentities) {
    begin_in(settings, identities, Arc::new(|name: &str| std::env::var(name).ok())).await;
}

async fn begin_in(settings: Option<&CloudIdentity>, identities: &CloudIdentities, environment: Environment) {
    let allowed = allowed(settings);
    let mut first = JoinSet::new();
    if let (Some(settings), Some(identity)) =
        (settings.and_then(|settings| settings.aws.clone()), &allowed.aws)
    {
        let caller = Caller::new(settings.timeout_ms);
        let environment = Arc::clone(&environment);
        first.spawn(Keeper::of(aws::Aws { settings, caller, environment }, identity).start());
    }
    if let (Some(settings), Some(identity)) =
        (settings.and_then(|settings| settings.gcp.clone()), &allowed.gcp)
    {
        let caller = Caller::new(settings.timeout_ms);
        first.spawn(Keeper::of(gcp::Gcp { settings, caller }, identity).start());
    }
    if let Some(settings) = settings.and_then(|settings| settings.azure.as_ref()) {
        for (token, identity) in settings.tokens.iter().zip(&allowed.azure) {
            let (settings, caller) = (settings.clone(), Caller::new(settings.timeout_ms));
            let (resource, environment) = (token.resource.clone(), Arc::clone(&environment));
            let service = azure::Azure { settings, resource, caller, environment };
            first.spawn(Keeper::of(service, identity).start());
        }
    }
    identities.allow(allowed);
    let waited = async { while first.join_next().await.is_some() {} };
    if tokio::time::timeout(START, waited).await.is_err() {
        tracing::warn!("the machine's identity at a cloud is not known yet; requests that need it fail");
        first.detach_all();
    }
}

/// Returns the identities of the settings, without credentials.
pub(crate) fn allowed(settings: Option<&CloudIdentity>) -> Allowed {
    let Some(CloudIdentity { aws, gcp, azure }) = settings else { return Allowed::default() };
    let tokens = azure.iter().flat_map(|azure| &azure.tokens);
    Allowed {
        aws: aws.as_ref().map(|aws| Arc::new(Identity::new(hosts(&aws.hosts)))),
        gcp: gcp.as_ref().map(|gcp| Arc::new(Identity::new(hosts(&gcp.hosts)))),
        azure: tokens.map(|token| Arc::new(Identity::new(hosts(&token.hosts)))).collect(),
    }
}

fn hosts(names: &[String]) -> impl Iterator<Item = Box<str>> {
    names.iter().map(|name| name.as_str().into())
}

/// Keeps one identity up to date.
struct Keeper<S, C> {
    service: S,
    identity: Arc<Identity<C>>,
}

impl<C: Send + Sync + 'static, S: Service<C>> Keeper<S, C> {
    fn of(service: S, identity: &Arc<Identity<C>>) -> Keeper<S, C> {
        Keeper { service, identity: Arc::clone(identity) }
    }

    /// Fetches the first credential, and goes on in the background, whether that succeeds or not.
    async fn start(self) {
        let pause = self.renew(0).await;
        tokio::spawn(self.run(pause));
    }

    async fn run(self, first: Result<Option<Duration>, Duration>) {
        let (mut next, mut failures) = (first, u32::from(first.is_err()));
        loop {
            match next {
                // It has no end.
                Ok(None) => return,
                Ok(Some(pause)) => {
                    failures = 0;
                    tokio::time::sleep(pause).await;
                }
                Err(pause) => {
                    failures = failures.saturating_add(1);
                    tokio::time::sleep(pause).await;
                }
            }
            next = self.renew(failures).await;
        }
    }

    /// Fetches a credential; returns the time until the next fetch, or the pause after a failure.
    async fn renew(&self, failures: u32) -> Result<Option<Duration>, Duration> {
        match self.service.fetch().await {
            Ok(Credential { value, end_s }) => {
                self.identity.publish(value, end_s.unwrap_or(u64::MAX));
                Ok(end_s.map(|end_s| until_renewal(end_s.saturating_sub(unix_now()))))
            }
            Err(reason) => {
                let pause = RETRY.saturating_mul(1 << failures.min(10)).min(RETRY_MAX);
                tracing::warn!(cloud = %S::CLOUD, reason, "cannot get the machine's identity; a valid one stays in use");
                // Many gateways must not come back at once.
                Err(pause.mul_f64(1.0 - fastrand::f64() / 4.0))
            }
        }
    }
}

/// Returns when a credential that lives for so many seconds is renewed.
fn until_renewal(life_s: u64) -> Duration {
    let life = Duration::from_secs(life_s);
    life.saturating_sub(AHEAD.min(life / 2)).max(PACE)
}

/// Returns the time in Unix seconds.
pub(crate) fn unix_now() -> u64 {
    unix_seconds().unsigned_abs()
}
