//! Registration in Nacos as an ephemeral instance, by the HTTP API of version 1, which Nacos 2 has too.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sigma_config::discovery::Nacos;
use sigma_config::registration::Registration;

use super::{EXPIRY, Registrar, unexpected};
use crate::consul::encoded;
use crate::http::{Members, RegistryResponse};
use crate::nacos::{Server, ServiceKey};
use crate::source::{Env, Trouble};

/// Nacos' code for an instance that it does not know.
const NOT_FOUND: i64 = 20_404;

/// Nacos' code of an accepted heartbeat.
const ACCEPTED: i64 = 10_200;

pub(super) struct NacosRegistrar {
    server: Arc<Server>,
    members: Members,
    key: ServiceKey,
    /// The arguments that name the instance.
    named: String,
    /// Its further arguments.
    more: String,
    beat: String,
}

impl NacosRegistrar {
    pub(super) fn new(
        servers: &Nacos,
        settings: &Registration,
        every: Duration,
        env: &Env,
    ) -> NacosRegistrar {
        let Registration { name, address, port, metadata, nacos: place, .. } = settings;
        let grouped = format!("{}@@{name}", place.group);
        let mut metadata = metadata.clone();
        let expiry = every * EXPIRY;
        // Nacos' own names for the times of its checks.
        for (key, time) in [
            ("preserved.heart.beat.interval", every),
            ("preserved.heart.beat.timeout", expiry),
            ("preserved.ip.delete.timeout", expiry * 2),
        ] {
            metadata.entry(key.to_owned()).or_insert_with(|| time.as_millis().to_string());
        }
        if settings.secure {
            metadata.entry("secure".to_owned()).or_insert_with(|| "true".to_owned());
        }
        let beat = json!({
            "serviceName": grouped, "cluster": place.cluster, "ip": address, "port": port,
            "weight": f64::from(place.weight), "metadata": metadata, "scheduled": true,
        });
        let metadata = serde_json::to_string(&metadata).unwrap_or_default();
        NacosRegistrar {
            server: Server::new(servers, env),
            members: Members::shuffled(&servers.host),
            key: ServiceKey::of(&place.namespace, &place.group, name),
            named: format!(
                "serviceName={}&groupName={}&namespaceId={}&clusterName={}&ip={}&port={port}&ephemeral=true",
                encoded(&grouped),
                encoded(&place.group),
                encoded(&place.namespace),
                encoded(&place.cluster),
                encoded(address),
            ),
            more: format!(
                "weight={}&enabled=true&healthy=true&metadata={}",
                place.weight,
                encoded(&metadata)
            ),
            beat: encoded(&beat.to_string()),
        }
    }

    async fn ask(&mut self, method: Method, target: &str) -> Result<RegistryResponse, Trouble> {
        let answer = self.server.ask_about(self.members.current(), &self.key, method, target).await;
        if answer.as_ref().map_or(true, |answer| answer.status >= 500) {
            self.members.turn();
        }
        answer
    }
}

fn refused(answer: &RegistryResponse) -> Trouble {
    unexpected("Nacos", answer.status, &answer.body)
}

impl Registrar for NacosRegistrar {
    async fn register(&mut self) -> Result<(), Trouble> {
        let target = format!("/ns/instance?{}&{}", self.named, self.more);
        let answer = self.ask(Method::POST, &target).await?;
        if answer.status == 200 { Ok(()) } else { Err(refused(&answer)) }
    }

    async fn renew(&mut self) -> Result<bool, Trouble> {
        let target = format!("/ns/instance/beat?{}&beat={}", self.named, self.beat);
        let answer = self.ask(Method::PUT, &target).await?;
        if answer.status != 200 {
            return Err(refused(&answer));
        }
        let told: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match told.get("code").and_then(Value::as_i64) {
            Some(ACCEPTED) => Ok(true),
            Some(NOT_FOUND) => Ok(false),
            _ => Err(refused(&answer)),
        }
    }

    async fn remove(&mut self) -> Result<(), Trouble> {
        let target = format!("/ns/instance?{}", self.named);
        let answer = self.ask(Method::DELETE, &target).await?;
        if answer.status == 200 { Ok(()) } else { Err(refused(&answer)) }
    }
}
