//! Records in the zones of DNS providers, by their APIs.

mod api;
mod cloudflare;
mod digitalocean;
mod ovh;
mod route53;
#[cfg(test)]
mod tests;

use std::future::Future;

use hickory_proto::rr::Name;
use sigma_config::acme::AcmeDns;

use self::cloudflare::Cloudflare;
use self::digitalocean::DigitalOcean;
use self::ovh::Ovh;
use self::route53::Route53;
use super::Action;

/// A TXT record of a zone.
struct Record {
    /// The zone, without a final dot.
    zone: String,
    /// The whole name, without a final dot.
    name: String,
    value: String,
}

impl Record {
    /// The name below the zone; `@` is the zone itself at no provider used here, since records begin with
    /// `_acme-challenge`, or are the target of an alias.
    fn below(&self) -> &str {
        self.name.strip_suffix(&self.zone).map_or("", |name| name.trim_end_matches('.'))
    }
}

/// The calls of one provider.
trait Zones {
    /// Returns the provider's id of the zone with this name; None if the account has no such zone.
    async fn find(&self, zone: &str) -> Result<Option<String>, String>;

    /// Adds a record and keeps others of the same name. `id` is the result of [`Zones::find`].
    async fn add(&self, id: &str, record: &Record) -> Result<(), String>;

    /// Removes exactly this record, if it is there.
    async fn remove(&self, id: &str, record: &Record) -> Result<(), String>;
}

/// A provider with its credentials.
pub(super) enum Provider {
    Cloudflare(Cloudflare),
    DigitalOcean(DigitalOcean),
    Ovh(Ovh),
    Route53(Route53),
}

impl Provider {
    /// Returns the provider of the settings; None if they name none.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if an address cannot be used.
    pub(super) fn new(settings: &AcmeDns) -> Result<Option<Provider>, String> {
        if let Some(settings) = &settings.cloudflare {
            return Cloudflare::new(settings).map(Provider::Cloudflare).map(Some);
        }
        if let Some(settings) = &settings.digitalocean {
            return DigitalOcean::new(settings).map(Provider::DigitalOcean).map(Some);
        }
        if let Some(settings) = &settings.ovh {
            return Ovh::new(settings).map(Provider::Ovh).map(Some);
        }
        settings.route53.as_ref().map(|settings| Route53::new(settings).map(Provider::Route53)).transpose()
    }

    /// Adds or removes a record.
    ///
    /// # Errors
    /// Returns an error, which is a sentence.
    pub(super) async fn act(&self, action: Action, record: &Name, value: &str) -> Result<(), String> {
        let acted = async {
            match self {
                Provider::Cloudflare(zones) => act(zones, action, record, value).await,
                Provider::DigitalOcean(zones) => act(zones, action, record, value).await,
                Provider::Ovh(zones) => act(zones, action, record, value).await,
                Provider::Route53(zones) => act(zones, action, record, value).await,
            }
        };
        acted.await.map_err(|error| format!("{}: {error}", self.name()))
    }

    fn name(&self) -> &'static str {
        match self {
            Provider::Cloudflare(_) => "Cloudflare",
            Provider::DigitalOcean(_) => "DigitalOcean",
            Provider::Ovh(_) => "OVH",
            Provider::Route53(_) => "Route 53",
        }
    }
}

fn act<'z>(
    zones: &'z impl Zones,
    action: Action,
    record: &Name,
    value: &str,
) -> impl Future<Output = Result<(), String>> + 'z {
    let name = record.to_ascii().trim_end_matches('.').to_lowercase();
    let value = value.to_owned();
    async move {
        let (id, zone) = zone_of(zones, &name).await?;
        let record = Record { zone, name, value };
        match action {
            Action::Present => zones.add(&id, &record).await,
            Action::Cleanup => zones.remove(&id, &record).await,
        }
    }
}

/// Finds the zone of a name: the longest end of the name that is a zone of the account.
async fn zone_of(zones: &impl Zones, name: &str) -> Result<(String, String), String> {
    let mut rest = name;
    // A zone has two labels at least: no account has a top-level domain.
    while let Some((_, end)) = rest.split_once('.')
        && end.contains('.')
    {
        if let Some(id) = zones.find(end).await? {
            return Ok((id, end.to_owned()));
        }
        rest = end;
    }
    Err(format!("the account has no zone for `{name}`"))
}
