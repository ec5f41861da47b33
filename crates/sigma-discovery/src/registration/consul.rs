//! Registration at a Consul agent, with a check by heartbeats (TTL) or by a URL.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderName;
use serde_json::{Value, json};
use sigma_config::discovery::Consul;
use sigma_config::registration::Registration;
use sigma_schema::Confidential;

use super::{EXPIRY, Registrar, request, unexpected};
use crate::consul::encoded;
use crate::http::{Http, Members, RegistryResponse, Trust};
use crate::source::{Env, Trouble};

/// The time after which Consul removes an instance whose check fails.
const FORGOTTEN: &str = "10m";

/// The timeout of Consul's requests to the URL.
const CHECK_TIMEOUT: &str = "5s";

pub(super) struct ConsulRegistrar {
    http: Http,
    members: Members,
    token: Confidential,
    within: Duration,
    id: String,
    service: Value,
    has_url: bool,
}

impl ConsulRegistrar {
    pub(super) fn new(
        servers: &Consul,
        settings: &Registration,
        every: Duration,
        env: &Env,
    ) -> ConsulRegistrar {
        let timeout = servers.agents.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        let seconds = every.as_secs();
        let check = match &settings.health_url {
            Some(url) => json!({
                "HTTP": url, "Interval": format!("{seconds}s"), "Timeout": CHECK_TIMEOUT,
                "DeregisterCriticalServiceAfter": FORGOTTEN,
            }),
            None => json!({
                "TTL": format!("{}s", seconds * u64::from(EXPIRY)), "Status": "passing",
                "DeregisterCriticalServiceAfter": FORGOTTEN,
            }),
        };
        let id = settings.instance();
        let service = json!({
            "ID": id, "Name": settings.name, "Address": settings.address, "Port": settings.port,
            "Tags": settings.tags, "Meta": settings.metadata, "Check": check,
        });
        ConsulRegistrar {
            http: Http::new(connect, Trust::System, env),
            members: Members::new(&servers.agents.servers),
            token: servers.agents.token.clone(),
            within: connect + Duration::from_millis(timeout.read.into()),
            id,
            service,
            has_url: settings.health_url.is_some(),
        }
    }

    async fn ask(
        &mut self,
        method: Method,
        target: &str,
        body: Option<String>,
    ) -> Result<RegistryResponse, Trouble> {
        let question = request(method, target, body, self.within);
        let question = question.secret(HeaderName::from_static("x-consul-token"), self.token.reveal())?;
        let answer = self.http.ask(self.members.current(), question).await;
        if answer.is_err() {
            // The next agent does not know the instance, and gets a registration.
            self.members.turn();
        }
        answer
    }

    fn refused(&self, answer: &RegistryResponse) -> Trouble {
        unexpected(self.members.current().base(), answer.status, &answer.body)
    }
}

impl Registrar for ConsulRegistrar {
    async fn register(&mut self) -> Result<(), Trouble> {
        let target = "/v1/agent/service/register?replace-existing-checks=true";
        let body = self.service.to_string();
        let answer = self.ask(Method::PUT, target, Some(body)).await?;
        if answer.status == 200 { Ok(()) } else { Err(self.refused(&answer)) }
    }

    async fn renew(&mut self) -> Result<bool, Trouble> {
        let id = encoded(&self.id);
        let answer = match self.has_url {
            true => self.ask(Method::GET, &format!("/v1/agent/service/{id}"), None).await?,
            false => self.ask(Method::PUT, &format!("/v1/agent/check/pass/service:{id}"), None).await?,
        };
        let is_unknown = || String::from_utf8_lossy(&answer.body).contains("nknown check");
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            // Older agents.
            500 if is_unknown() => Ok(false),
            _ => Err(self.refused(&answer)),
        }
    }

    async fn remove(&mut self) -> Result<(), Trouble> {
        let target = format!("/v1/agent/service/deregister/{}", encoded(&self.id));
        let answer = self.ask(Method::PUT, &target, None).await?;
        if matches!(answer.status, 200 | 404) { Ok(()) } else { Err(self.refused(&answer)) }
    }
}
