//! Cloudflare's API, version 4. The token needs "Zone: Read" and "DNS: Edit".

use reqwest::Method;
use serde_json::{Value, json};
use sigma_config::acme::Cloudflare as Settings;

use super::api::{Api, Call, Response, escaped, id_of};
use super::{Record, Zones};

const BASE: &str = "https://api.cloudflare.com/client/v4";

pub(in super::super) struct Cloudflare {
    api: Api,
    authorization: String,
    ttl: u32,
}

impl Cloudflare {
    pub(super) fn new(settings: &Settings) -> Result<Cloudflare, String> {
        Ok(Cloudflare {
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

impl Zones for Cloudflare {
    async fn find(&self, zone: &str) -> Result<Option<String>, String> {
        let found = self.call(Method::GET, &format!("/zones?name={}", escaped(zone)), None).await?;
        Ok(id_of(&found.json("the search for a zone")?["result"][0]["id"]))
    }

    async fn add(&self, id: &str, record: &Record) -> Result<(), String> {
        let body = json!({"type": "TXT", "name": record.name, "content": record.value, "ttl": self.ttl});
        let target = format!("/zones/{}/dns_records", escaped(id));
        self.call(Method::POST, &target, Some(body)).await?.done("a new record")
    }

    async fn remove(&self, id: &str, record: &Record) -> Result<(), String> {
        let records = format!("/zones/{}/dns_records", escaped(id));
        let target = format!("{records}?type=TXT&per_page=100&name={}", escaped(&record.name));
        let found = self.call(Method::GET, &target, None).await?.json("the search for a record")?;
        for found in found["result"].as_array().into_iter().flatten() {
            let content = found["content"].as_str().unwrap_or_default().trim_matches('"');
            if let Some(id) = id_of(&found["id"]).filter(|_| content == record.value) {
                let target = format!("{records}/{}", escaped(&id));
                self.call(Method::DELETE, &target, None).await?.done("the removal of a record")?;
            }
        }
        Ok(())
    }
}
