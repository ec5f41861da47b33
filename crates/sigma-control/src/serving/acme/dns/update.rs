//! Dynamic updates (RFC 2136), signed (RFC 8945).

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hickory_proto::op::update_message::{append, delete_by_rdata};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::{Name, RData, Record, RecordSet, RecordType, TSigner};
use sigma_config::acme::{self as settings, DnsUpdate};

use super::Action;
use super::ask::{ask, exchange};
use super::lookup::zone_in;
use crate::serving::clock::unix_seconds;

/// By how many seconds the clocks of both sides may differ; what RFC 8945 §10 suggests.
const FUDGE: u16 = 300;

/// A server that takes updates.
pub(super) struct Updates {
    server: SocketAddr,
    zone: Option<Name>,
    signer: TSigner,
    ttl: u32,
}

impl Updates {
    /// # Errors
    /// Returns an error, which is a sentence, if a name or the key is invalid; the check of the settings
    /// prevents that.
    pub(super) fn new(settings: &DnsUpdate) -> Result<Updates, String> {
        let name = |text: &str| {
            let mut name = Name::from_ascii(text)
                .map_err(|error| format!("`acme.dns.update`: `{text}` is not a name: {error}"))?;
            name.set_fqdn(true);
            Ok::<_, String>(name)
        };
        let algorithm = match settings.algorithm {
            settings::TsigAlgorithm::HmacSha256 => TsigAlgorithm::HmacSha256,
            settings::TsigAlgorithm::HmacSha512 => TsigAlgorithm::HmacSha512,
        };
        let secret = STANDARD.decode(settings.secret.reveal());
        let secret = secret.map_err(|_| "`acme.dns.update.secret` is not base64".to_owned())?;
        let signer = TSigner::new(secret, algorithm, name(&settings.key)?, FUDGE);
        Ok(Updates {
            server: settings.server.0,
            zone: settings.zone.as_deref().map(name).transpose()?,
            signer: signer.map_err(|error| format!("`acme.dns.update`: {error}"))?,
            ttl: settings.ttl,
        })
    }

    /// Adds a record to the others of its name, or removes it from them.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the server did not say that it did so.
    pub(super) async fn write(&self, action: Action, name: &Name, value: &str) -> Result<(), String> {
        let zone = match &self.zone {
            Some(zone) => zone.clone(),
            None => self.zone_of(name).await?,
        };
        if !zone.zone_of(name) {
            return Err(format!("{name} is not in the zone {zone}; check `acme.dns.update.zone`"));
        }
        let record = Record::from_rdata(name.clone(), self.ttl, RData::TXT(TXT::new(vec![value.to_owned()])));
        let record = RecordSet::from(record);
        let mut update = match action {
            Action::Present => append(record, zone, false, false),
            Action::Cleanup => delete_by_rdata(record, zone, false),
        };
        self.send(&mut update).await
    }

    async fn send(&self, update: &mut Message) -> Result<(), String> {
        let server = self.server;
        let unmade = |error: hickory_proto::ProtoError| format!("cannot make a DNS update: {error}");
        let mut verifier = update
            .finalize(&self.signer, unix_seconds().unsigned_abs())
            .map_err(unmade)?
            .ok_or_else(|| "cannot sign a DNS update".to_owned())?;
        let answer = exchange(server, &update.to_vec().map_err(unmade)?).await?;
        // A server that refuses a signature cannot sign its response, so a refusal is accepted unsigned.
        let code = Message::from_vec(&answer)
            .map_err(|error| format!("{server} sent a malformed response to an update: {error}"))?
            .metadata
            .response_code;
        if code != ResponseCode::NoError {
            return Err(format!(
                "the name server {server} refused the update: {code}; check `acme.dns.update` and the log of the name server"
            ));
        }
        match verifier.verify(&answer) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(format!("the signature of {server}'s response to an update is invalid: {error}"))
            }
        }
    }

    /// The zone of a name, as the server knows it.
    async fn zone_of(&self, name: &Name) -> Result<Name, String> {
        let answer = ask(self.server, name, RecordType::SOA, false).await?;
        zone_in(&answer, name).ok_or_else(|| {
            format!("{} does not return the zone of {name}; set `acme.dns.update.zone`", self.server)
        })
    }
}
