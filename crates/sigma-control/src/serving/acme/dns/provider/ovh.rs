//! OVH's API, version 1, with its own signature. The consumer key needs GET, POST and DELETE on `/domain/zone/*`.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use reqwest::Method;
use serde_json::{Value, json};
use sigma_config::acme::Ovh as Settings;
use sigma_plugin::hex;
use sigma_schema::Confidential;

use super::api::{Api, Call, Response, escaped, id_of};
use super::{Record, Zones};

const BASE: &str = "https://eu.api.ovh.com/1.0";

pub(in super::super) struct Ovh {
    api: Api,
    application_key: String,
    application_secret: Confidential,
    consumer_key: Confidential,
    ttl: u32,
}

impl Ovh {
    pub(super) fn new(settings: &Settings) -> Result<Ovh, String> {
        Ok(Ovh {
            api: Api::new(settings.endpoint.as_deref().unwrap_or(BASE))?,
            application_key: settings.application_key.clone(),
            application_secret: settings.application_secret.clone(),
            consumer_key: settings.consumer_key.clone(),
            ttl: settings.ttl,
        })
    }

    async fn call(&self, method: Method, target: &str, body: Option<Value>) -> Result<Response, String> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string();
        let url = format!("{}{target}", self.api.base());
        let signature = self.signature(&method, &url, &body, &seconds);
        let fields = [
            ("content-type", "application/json"),
            ("x-ovh-application", &*self.application_key),
            ("x-ovh-consumer", self.consumer_key.reveal()),
            ("x-ovh-signature", &*signature),
            ("x-ovh-timestamp", &*seconds),
        ];
        self.api.call(Call { method, target, fields: &fields, body }).await
    }

    fn signature(&self, method: &Method, url: &str, body: &str, seconds: &str) -> String {
        let (secret, consumer) = (self.application_secret.reveal(), self.consumer_key.reveal());
        let text = format!("{secret}+{consumer}+{method}+{url}+{body}+{seconds}");
        format!("$1${}", hex::text(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref()))
    }

    async fn publish(&self, records: &str) -> Result<(), String> {
        let zone = records.trim_end_matches("/record");
        self.call(Method::POST, &format!("{zone}/refresh"), None).await?.done("the publication of the zone")
    }
}

impl Zones for Ovh {
    async fn find(&self, zone: &str) -> Result<Option<String>, String> {
        let found = self.call(Method::GET, &format!("/domain/zone/{}", escaped(zone)), None).await?;
        match found.status {
            404 => Ok(None),
            _ => found.done("the search for a zone").map(|()| Some(zone.to_owned())),
        }
    }

    async fn add(&self, id: &str, record: &Record) -> Result<(), String> {
        let records = format!("/domain/zone/{}/record", escaped(id));
        let (name, value) = (record.below(), &record.value);
        let body = json!({"fieldType": "TXT", "subDomain": name, "target": value, "ttl": self.ttl.max(60)});
        self.call(Method::POST, &records, Some(body)).await?.done("a new record")?;
        self.publish(&records).await
    }

    async fn remove(&self, id: &str, record: &Record) -> Result<(), String> {
        let records = format!("/domain/zone/{}/record", escaped(id));
        let target = format!("{records}?fieldType=TXT&subDomain={}", escaped(record.below()));
        let ids = self.call(Method::GET, &target, None).await?.json("the search for a record")?;
        for id in ids.as_array().into_iter().flatten().filter_map(id_of) {
            let target = format!("{records}/{}", escaped(&id));
            let found = self.call(Method::GET, &target, None).await?.json("the reading of a record")?;
            if found["target"].as_str().is_some_and(|text| text.trim_matches('"') == record.value) {
                self.call(Method::DELETE, &target, None).await?.done("the removal of a record")?;
            }
        }
        self.publish(&records).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of OVH's guide has these values.
    #[test]
    fn signatures_are_of_all_parts() {
        let settings: Settings = serde_json::from_value(json!({
            "application_key": "7kbG7Bk7S9Nt7ZSV", "application_secret": "EXEgWIz07P0HYwtQDs7cNIqCiQaWSuHF",
            "consumer_key": "MtSwSrPpNjqfVSmJhLbPyr2i45lSwPU1",
        }))
        .unwrap();
        let ovh = Ovh::new(&settings).unwrap();
        let sign =
            |body| ovh.signature(&Method::GET, "https://eu.api.ovh.com/1.0/domains/", body, "1366560945");
        assert_eq!(sign(""), "$1$d3705e8afb27a0d2970a322b96550abfc67bb798");
        assert_ne!(sign("x"), sign(""));
    }
}
