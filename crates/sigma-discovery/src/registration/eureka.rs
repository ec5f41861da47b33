//! Registration in Netflix Eureka.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderValue};
use serde_json::{Value, json};
use sigma_config::discovery::Eureka;
use sigma_config::registration::Registration;

use super::{EXPIRY, Registrar, request, unexpected};
use crate::consul::encoded;
use crate::http::{Http, Members, RegistryResponse, Trust};
use crate::source::{Env, Trouble};

pub(super) struct EurekaRegistrar {
    http: Http,
    members: Members,
    within: Duration,
    /// The path of the application.
    application: String,
    id: String,
    instance: Value,
}

impl EurekaRegistrar {
    pub(super) fn new(
        servers: &Eureka,
        settings: &Registration,
        every: Duration,
        env: &Env,
    ) -> EurekaRegistrar {
        let timeout = servers.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        let name = settings.name.to_uppercase();
        let prefix = format!("/{}/apps", servers.prefix.trim_matches('/')).replace("//", "/");
        EurekaRegistrar {
            http: Http::new(connect, Trust::System, env),
            members: Members::shuffled(&servers.host),
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            application: format!("{prefix}/{}", encoded(&name)),
            id: settings.instance(),
            instance: instance(&name, settings, every.as_secs()),
        }
    }

    async fn ask(
        &mut self,
        method: Method,
        target: &str,
        body: Option<String>,
    ) -> Result<RegistryResponse, Trouble> {
        let mut question = request(method, target, body, self.within);
        question.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let answer = self.http.ask(self.members.current(), question).await;
        if answer.as_ref().map_or(true, |answer| answer.status >= 500) {
            self.members.turn();
        }
        answer
    }

    fn refused(&self, answer: &RegistryResponse) -> Trouble {
        unexpected("Eureka", answer.status, &answer.body)
    }
}

/// Returns the instance in Eureka's form.
fn instance(name: &str, settings: &Registration, every: u64) -> Value {
    let Registration { address, port, secure, metadata, health_url, .. } = settings;
    let scheme = if *secure { "https" } else { "http" };
    let home = match address.contains(':') {
        true => format!("{scheme}://[{address}]:{port}/"),
        false => format!("{scheme}://{address}:{port}/"),
    };
    let virtual_address = settings.name.to_lowercase();
    let mut instance = json!({
        "instanceId": settings.instance(),
        "app": name,
        "hostName": address,
        "ipAddr": address,
        "status": "UP",
        "overriddenstatus": "UNKNOWN",
        "port": {"$": if *secure { 80 } else { *port }, "@enabled": (!secure).to_string()},
        "securePort": {"$": if *secure { *port } else { 443 }, "@enabled": secure.to_string()},
        "homePageUrl": home,
        "vipAddress": virtual_address,
        "secureVipAddress": virtual_address,
        "countryId": 1,
        "dataCenterInfo": {
            "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"
        },
        "leaseInfo": {
            "renewalIntervalInSecs": every, "durationInSecs": every * u64::from(EXPIRY),
        },
        "metadata": metadata,
    });
    if let Some(url) = health_url {
        instance["healthCheckUrl"] = url.as_str().into();
        instance["statusPageUrl"] = url.as_str().into();
    }
    json!({ "instance": instance })
}

impl Registrar for EurekaRegistrar {
    async fn register(&mut self) -> Result<(), Trouble> {
        let (target, body) = (self.application.clone(), self.instance.to_string());
        let answer = self.ask(Method::POST, &target, Some(body)).await?;
        if matches!(answer.status, 200 | 204) { Ok(()) } else { Err(self.refused(&answer)) }
    }

    async fn renew(&mut self) -> Result<bool, Trouble> {
        let target = format!("{}/{}?status=UP", self.application, encoded(&self.id));
        let answer = self.ask(Method::PUT, &target, None).await?;
        match answer.status {
            200 | 204 => Ok(true),
            404 => Ok(false),
            _ => Err(self.refused(&answer)),
        }
    }

    async fn remove(&mut self) -> Result<(), Trouble> {
        let target = format!("{}/{}", self.application, encoded(&self.id));
        let answer = self.ask(Method::DELETE, &target, None).await?;
        if matches!(answer.status, 200 | 204 | 404) { Ok(()) } else { Err(self.refused(&answer)) }
    }
}
