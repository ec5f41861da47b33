//! Records in the DNS that prove names (RFC 8555 §8.4): placed by dynamic updates (`update`), by the API of a provider
//! (`provider`), or by a program of the operator's (`hook`), looked for where the authority will look (`lookup`), and
//! removed whatever came of it.

mod ask;
mod hook;
mod lookup;
mod provider;
mod update;

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::Name;
use sigma_config::acme::AcmeDns;
use tokio::sync::Mutex;

use hook::Hook;
use lookup::RecordLookup;
use provider::Provider;
use update::Updates;

/// The action on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Present,
    Cleanup,
}

/// A record that proves a name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Proof {
    /// The name, without a wildcard.
    domain: String,
    /// Where the record belongs; somewhere else than below the name if an alias leads there.
    record: Name,
    value: String,
}

/// How records are placed.
enum Means {
    Update(Updates),
    Hook(Hook),
    Provider(Provider),
}

impl Means {
    async fn act(&self, action: Action, proof: &Proof) -> Result<(), String> {
        match self {
            Means::Update(updates) => updates.write(action, &proof.record, &proof.value).await,
            Means::Hook(hook) => hook.run(action, proof).await,
            Means::Provider(provider) => provider.act(action, &proof.record, &proof.value).await,
        }
    }
}

/// The records of one order.
pub(super) struct Records {
    means: Means,
    lookup: RecordLookup,
    patience: Duration,
    /// Records that may exist.
    placed: Mutex<Vec<Proof>>,
}

impl Records {
    /// None yet. `resolvers` tell the name servers of a zone, unless the settings name those that are queried; without
    /// any, the system's do.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there are no name servers.
    pub(super) fn new(settings: &AcmeDns, resolvers: &[SocketAddr]) -> Result<Records, String> {
        let means = match (&settings.update, &settings.hook, Provider::new(settings)?) {
            (Some(update), ..) => Means::Update(Updates::new(update)?),
            (None, Some(hook), _) => Means::Hook(Hook::new(hook)),
            (None, None, Some(provider)) => Means::Provider(provider),
            (None, None, None) => {
                return Err("`acme.dns`: set `update` or `hook`, or the API of a provider".to_owned());
            }
        };
        let named: Vec<SocketAddr> = settings.servers.iter().map(|server| server.0).collect();
        let patience = Duration::from_secs(settings.propagation_timeout_s.into());
        Ok(Records {
            means,
            lookup: RecordLookup::new(named, resolvers)?,
            patience,
            placed: Mutex::default(),
        })
    }

    /// Places a record for each name with its value, and waits until they are seen.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one cannot be placed or is not seen in time. Placed records
    /// stay until [`Records::remove`].
    pub(super) async fn place(&self, proofs: &[(String, String)]) -> Result<(), String> {
        for (name, value) in proofs {
            let domain = name.strip_prefix("*.").unwrap_or(name);
            let place = Name::from_ascii(format!("_acme-challenge.{domain}."));
            let place =
                place.map_err(|error| format!("`{domain}` is not a valid name for a record: {error}"))?;
            let record = self.lookup.follow(place).await?;
            let proof = Proof { domain: domain.to_owned(), record, value: value.clone() };
            // First: a record that was placed without a response is to be removed as well.
            self.placed.lock().await.push(proof.clone());
            self.means.act(Action::Present, &proof).await?;
        }
        let placed = self.placed.lock().await.clone();
        for proof in placed {
            self.lookup.wait(&proof.record, &proof.value, self.patience).await?;
        }
        Ok(())
    }

    /// Removes the placed records. A record that cannot be removed stays, and the log says so: it proves
    /// nothing more.
    pub(super) async fn remove(&self) {
        for proof in self.placed.lock().await.drain(..) {
            if let Err(reason) = self.means.act(Action::Cleanup, &proof).await {
                tracing::warn!(record = %proof.record, reason, "cannot remove a challenge record");
            }
        }
    }
}

#[cfg(test)]
mod tests;
