//! DigitalOcean's API, version 2. The token needs to read and write domains.

use reqwest::Method;
use serde_json::{Value, json};
use sigma_config::acme::Digitalocean as Settings;

use super::api::{Api, Call, Response, escaped, id_of};
use super::{Record, Zones};

const BASE: &str = "https://api.digitalocean.com";

pub(in super::super) struct DigitalOcean {
    api: Api,
    authorization: String,
    ttl: u32,
}

impl DigitalOcean {
    pub(super) fn new(settings: &Settings) -> Result<DigitalOcean, String> {
        Ok(DigitalOcean {
            api: Api::new(settings.endpoint.as_deref().unwrap_or(BASE))?,
            authorization: format!("Bearer {}", settings.api_token.reveal()),
            ttl: settings.ttl,
        })
    }

    async fn call(&self, method: Method, target: &str, body: Option<Value>) -> Result<Response, String> {
        let fields = [("authorization", &*self.authorization), ("content-type", "application/json")];
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.api.call(Call { method, target, fields: &fields, body }).await
    }
}

impl Zones for DigitalOcean {
    async fn find(&self, zone: &str) -> Result<Option<String>, String> {
        let found = self.call(Method::GET, &format!("/v2/domains/{}", escaped(zone)), None).await?;
        match found.status {
            404 => Ok(None),
            _ => found.done("the search for a zone").map(|()| Some(zone.to_owned())),
        }
    }

    async fn add(&self, id: &str, record: &Record) -> Result<(), String> {
        let body =
            json!({"type": "TXT", "name": record.below(), "data": record.value, "ttl": self.ttl.max(30)});
        let target = format!("/v2/domains/{}/records", escaped(id));
        self.call(Method::POST, &target, Some(body)).await?.done("a new record")
    }

    async fn remove(&self, id: &str, record: &Record) -> Result<(), String> {
        let records = format!("/v2/domains/{}/records", escaped(id));
        let target = format!("{records}?type=TXT&per_page=200&name={}", escaped(&record.name));
        let found = self.call(Method::GET, &target, None).await?.json("the search for a record")?;
        for found in found["domain_records"].as_array().into_iter().flatten() {
            let is_ours = found["data"].as_str() == Some(&record.value);
            if let Some(id) = id_of(&found["id"]).filter(|_| is_ours) {
                let target = format!("{records}/{}", escaped(&id));
                self.call(Method::DELETE, &target, None).await?.done("the removal of a record")?;
            }
        }
        Ok(())
    }
}
