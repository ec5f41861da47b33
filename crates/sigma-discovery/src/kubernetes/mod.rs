//! Endpoints of a Kubernetes cluster: a list, then a watch.

mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use serde_json::Value;
use sigma_config::discovery::{Cluster, KubernetesSchema, NamespaceSelector, Registry, RegistryAddress};
use sigma_config::resources::Node;

use crate::consul::encoded;
use crate::http::{Http, RegistryRequest, Trust, read_file};
use crate::list_watch::{Heard, Lines, Watched};
use crate::node::{self, LeftOut};
use crate::source::{Env, Listing, Trouble};
use objects::{Endpoint, Form, Object, Reader};

/// Objects on one page of a list.
const PAGE: u32 = 500;

/// The API server ends a watch after this time, and the client slightly later.
const WATCH: Duration = Duration::from_secs(240);
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// The token that Kubernetes gives to a pod.
const TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Looks up an environment variable.
type Environment = fn(&str) -> Option<String>;

/// The endpoints of one cluster.
pub(crate) struct Endpoints {
    settings: Cluster,
    form: Form,
    environment: Environment,
    env: Env,
    /// Made on first use, and again after a failure.
    server: Option<(RegistryAddress, Http)>,
    revision: String,
    known: ClusterState,
}

/// The state of the cluster.
#[derive(Default)]
struct ClusterState {
    /// By service, then by name.
    objects: BTreeMap<Box<str>, BTreeMap<Box<str>, Object>>,
    /// The service of each object, by `namespace/name`.
    services: BTreeMap<Box<str>, Box<str>>,
    /// Endpoints of all objects.
    endpoints: usize,
    listing: Listing,
}

impl Endpoints {
    pub(crate) fn new(settings: &Cluster, env: &Env) -> Endpoints {
        Endpoints::with(settings, |name| std::env::var(name).ok(), env)
    }

    fn with(settings: &Cluster, environment: Environment, env: &Env) -> Endpoints {
        Endpoints {
            settings: settings.clone(),
            form: if settings.watch_endpoint_slices { Form::Slices } else { Form::Endpoints },
            environment,
            env: env.clone(),
            server: None,
            revision: String::new(),
            known: ClusterState::default(),
        }
    }

    /// Returns true if the objects of a namespace count.
    fn counts(&self, namespace: &str) -> bool {
        let NamespaceSelector { equal, not_equal, matching, not_matching } =
            &self.settings.namespace_selector;
        equal.as_deref().is_none_or(|only| only == namespace)
            && not_equal.as_deref() != Some(namespace)
            && (matching.is_empty() || matching.iter().any(|pattern| pattern.covers(namespace)))
            && !not_matching.iter().any(|pattern| pattern.covers(namespace))
    }

    /// Returns path and query of a list; a watch adds to them.
    fn target(&self) -> String {
        let (group, kind) = match self.form {
            Form::Endpoints => ("/api/v1", "endpoints"),
            Form::Slices => ("/apis/discovery.k8s.io/v1", "endpointslices"),
        };
        let selector = &self.settings.namespace_selector;
        let mut target = match &selector.equal {
            Some(namespace) => format!("{group}/namespaces/{}/{kind}?", encoded(namespace)),
            None => format!("{group}/{kind}?"),
        };
        if let Some(namespace) = &selector.not_equal {
            target.push_str(&format!("fieldSelector=metadata.namespace%21%3D{}&", encoded(namespace)));
        }
        if !self.settings.label_selector.is_empty() {
            target.push_str(&format!("labelSelector={}&", encoded(&self.settings.label_selector)));
        }
        target
    }

    /// Makes the client of the API server.
    async fn ready(&mut self) -> Result<(), Trouble> {
        if self.server.is_some() {
            return Ok(());
        }
        let service = &self.settings.service;
        let scheme = match service.schema {
            KubernetesSchema::Http => "http",
            KubernetesSchema::Https => "https",
        };
        let host = substituted(&service.host, self.environment)?;
        let port = substituted(&service.port, self.environment)?;
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let address = format!("{scheme}://{host}:{port}");
        let address = address.parse::<RegistryAddress>();
        let address = address.map_err(|error| {
            Trouble(format!("`{host}` and `{port}` are not the address of an API server: {error}"))
        })?;
        let trust = match (service.ssl_verify, &service.ca) {
            (false, _) => Trust::Anybody,
            (true, None) => Trust::System,
            (true, Some(ca)) => Trust::Authorities(read_file(ca.clone()).await?),
        };
        let connect = Duration::from_millis(self.settings.timeout.connect.into());
        self.server = Some((address, Http::new(connect, trust, &self.env)));
        Ok(())
    }

    /// Returns the current token.
    async fn token(&self) -> Result<String, Trouble> {
        let client = &self.settings.client;
        if let Some(token) = &client.token {
            return substituted(token.reveal(), self.environment);
        }
        let file = substituted(client.token_file.as_deref().unwrap_or(TOKEN_FILE), self.environment)?;
        let text = String::from_utf8(read_file(file.into()).await?);
        text.map(|text| text.trim().to_owned()).map_err(|_| Trouble("the token is not valid text".to_owned()))
    }

    async fn authorized_request<'q>(
        &self,
        target: &'q str,
        within: Duration,
    ) -> Result<RegistryRequest<'q>, Trouble> {
        let token = self.token().await?;
        let value = if token.is_empty() { token } else { format!("Bearer {token}") };
        RegistryRequest::get(target, within).secret(AUTHORIZATION, &value)
    }

    fn server(&self) -> Result<&(RegistryAddress, Http), Trouble> {
        self.server.as_ref().ok_or_else(|| Trouble("no API server is configured".to_owned()))
    }

    async fn page(&self, further: &str) -> Result<Value, Trouble> {
        let timeout = self.settings.timeout;
        let millis = u64::from(timeout.connect) + u64::from(timeout.send) + u64::from(timeout.read);
        let mut target = format!("{}limit={PAGE}", self.target());
        if !further.is_empty() {
            target.push_str(&format!("&continue={}", encoded(further)));
        }
        let (address, http) = self.server()?;
        let question = self.authorized_request(&target, Duration::from_millis(millis)).await?;
        http.ask(address, question).await?.json(address).await
    }

    /// Adds an object; None if there are too many objects or endpoints.
    fn put(&self, known: &mut ClusterState, reader: &mut Reader, object: &Value) -> Option<()> {
        let Some((namespace, name)) = objects::names(object) else {
            reader.left_out.note_malformed(object);
            return Some(());
        };
        if !self.counts(namespace) {
            return Some(());
        }
        let key: Box<str> = format!("{namespace}/{name}").into();
        known.remove(&key);
        if let Some(object) = reader.read(object) {
            known.endpoints += object.len();
            known.services.insert(key.clone(), object.service.clone());
            known.objects.entry(object.service.clone()).or_default().insert(key, object);
        }
        let most = self.env.limits.objects as usize;
        (known.services.len() <= most && known.endpoints <= most).then_some(())
    }

    fn reader(&self) -> Reader {
        let (weight, most) = (self.settings.default_weight, self.env.limits.objects as usize + 1);
        Reader { form: self.form, weight, most, left_out: LeftOut::default() }
    }

    /// Rebuilds the lists of a service's ports.
    fn relist(&self, known: &mut ClusterState, service: &str) {
        let id = &self.settings.id;
        let whole = if id.is_empty() { service.to_owned() } else { format!("{id}/{service}") };
        let prefix = format!("{whole}:");
        let before = known.listing.range(Arc::<str>::from(prefix.as_str())..).map(|(key, _)| key.clone());
        let before: Vec<Arc<str>> = before.take_while(|key| key.starts_with(&prefix)).collect();
        before.iter().for_each(|key| drop(known.listing.remove(key)));
        let mut ports: BTreeMap<&str, Vec<&Endpoint>> = BTreeMap::new();
        for object in known.objects.get(service).into_iter().flat_map(BTreeMap::values) {
            for (name, endpoints) in &object.ports {
                ports.entry(name).or_default().extend(endpoints);
            }
        }
        for (port, endpoints) in ports {
            // Terminating endpoints are better than no endpoints.
            let has_ready = endpoints.iter().any(|endpoint| endpoint.is_ready);
            let used = endpoints.into_iter().filter(|endpoint| endpoint.is_ready || !has_ready);
            let nodes: Vec<Node> = used.map(|endpoint| endpoint.node.clone()).collect();
            let key = format!("{prefix}{port}");
            known.listing.insert(key.as_str().into(), node::list(&key, nodes, self.env.limits.nodes));
        }
    }

    /// Handles an event; None if everything must be read again.
    fn take(&mut self, known: &mut ClusterState, message: &Value) -> Option<Heard> {
        let kind = message.get("type")?.as_str()?;
        let object = message.get("object")?;
        if kind == "ERROR" {
            // Most often 410: the history after this revision is gone.
            tracing::info!(cluster = self.settings.id, reason = %object.get("message")?, "a watch ended");
            return None;
        }
        let revision = object.get("metadata")?.get("resourceVersion")?.as_str()?;
        let heard = match kind {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let (namespace, name) = objects::names(object)?;
                let key = format!("{namespace}/{name}");
                let before = known.services.get(key.as_str()).cloned();
                match kind {
                    "DELETED" => known.remove(&key),
                    _ => {
                        let mut reader = self.reader();
                        self.put(known, &mut reader, object)?;
                        reader.left_out.tell(Registry::Kubernetes);
                    }
                }
                let after = known.services.get(key.as_str()).cloned();
                for service in
                    before.iter().chain(after.iter().filter(|after| before.as_ref() != Some(after)))
                {
                    self.relist(known, service);
                }
                if before.is_some() || after.is_some() { Heard::Change } else { Heard::Nothing }
            }
            _ => Heard::Nothing,
        };
        self.revision = revision.to_owned();
        Some(heard)
    }
}

impl ClusterState {
    fn remove(&mut self, key: &str) {
        let Some(service) = self.services.remove(key) else { return };
        if let Some(objects) = self.objects.get_mut(&service) {
            self.endpoints -= objects.remove(key).map_or(0, |object| object.len());
            if objects.is_empty() {
                self.objects.remove(&service);
            }
        }
    }
}

impl Watched for Endpoints {
    async fn load(&mut self) -> Result<(), Trouble> {
        self.ready().await?;
        let (mut known, mut further) = (ClusterState::default(), String::new());
        let (limit, mut reader) = (self.env.limits.objects, self.reader());
        let unusable = || {
            Trouble(format!(
                "the API server returned no list, or more than {limit} objects or endpoints (`discovery.limits.objects`)"
            ))
        };
        // As many pages as objects are allowed: a page may be empty.
        for _ in 0..=limit {
            let page = self.page(&further).await?;
            let metadata = page.get("metadata").ok_or_else(unusable)?;
            let items = page.get("items").ok_or_else(unusable)?;
            // Go writes an empty list as null.
            let items = if items.is_null() { &[] } else { items.as_array().ok_or_else(unusable)?.as_slice() };
            for object in items {
                self.put(&mut known, &mut reader, object).ok_or_else(unusable)?;
            }
            let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            further = text("continue");
            if further.is_empty() {
                let services: Vec<Box<str>> = known.objects.keys().cloned().collect();
                services.iter().for_each(|service| self.relist(&mut known, service));
                reader.left_out.tell(Registry::Kubernetes);
                (self.known, self.revision) = (known, text("resourceVersion"));
                return Ok(());
            }
        }
        Err(unusable())
    }

    async fn open(&mut self) -> Result<Option<Lines>, Trouble> {
        self.ready().await?;
        let target = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            self.target(),
            WATCH.as_secs(),
            encoded(&self.revision)
        );
        let (address, http) = self.server()?;
        let response =
            http.open(address, self.authorized_request(&target, WATCH + WATCH_GRACE).await?).await?;
        match response.status().as_u16() {
            200 => Ok(Some(Lines::new(response, self.env.limits.answer_bytes as usize))),
            410 => Ok(None),
            status => Err(Trouble(format!("{} responded with status {status}", address.base()))),
        }
    }

    fn hear(&mut self, message: &Value) -> Heard {
        let mut known = std::mem::take(&mut self.known);
        let heard = self.take(&mut known, message);
        self.known = known;
        heard.unwrap_or(Heard::Gone)
    }

    fn listing(&self) -> Listing {
        self.known.listing.clone()
    }

    /// Its controllers name each removed endpoint, and remove none because the controllers themselves cannot reach
    /// it.
    fn names_what_is_gone(&self) -> bool {
        true
    }

    fn turn(&mut self) {
        // Its certificate may have been renewed.
        self.server = None;
    }
}

/// Replaces `${NAME}` with environment variables.
fn substituted(text: &str, environment: Environment) -> Result<String, Trouble> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        let value = environment(name);
        let value = value.ok_or_else(|| Trouble(format!("the environment variable `{name}` is not set")))?;
        whole.push_str(before);
        whole.push_str(value.trim());
        rest = behind;
    }
    whole.push_str(rest);
    Ok(whole)
}

#[cfg(test)]
mod tests;
