//! Pushes of Nacos: the services of one namespace, subscribed to over one connection.
//!
//! A push names a service and its group but no namespace, so each namespace has its own connection, as in Nacos' own
//! clients. Without a connection, the services are polled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_config::discovery::RegistryAddress;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::grpc::{Client, Headers, Payload, Stream};
use super::{Server, ServiceKey};
use crate::http::Members;
use crate::hub::backoff;
use crate::source::{Listing, Trouble};

/// The interval of heartbeats. Nacos drops a client after 20 seconds without one.
const BEAT: Duration = Duration::from_secs(5);

/// Nacos registers a new client with a delay: the pause before a retry, and the number of retries.
const SETUP: (Duration, u32) = (Duration::from_millis(100), 50);

/// The time until a rejected subscription is tried again.
const REFUSED: Duration = Duration::from_secs(60);

/// The code for a client that Nacos does not know.
const UNREGISTERED: u64 = 301;
/// The code for missing rights, or an expired token.
const NO_RIGHT: u64 = 403;

/// The pushed list of a service; None without pushes.
pub(super) type Pushed = watch::Receiver<Option<Listing>>;

/// The services of a namespace.
#[derive(Default)]
pub(super) struct Pushes {
    wanted: Mutex<Wanted>,
    news: Notify,
}

#[derive(Default)]
struct Wanted {
    /// The receivers for each service.
    services: BTreeMap<ServiceKey, watch::Sender<Option<Listing>>>,
    /// A task maintains the subscriptions.
    is_running: bool,
}

impl Pushes {
    /// Returns the pushes of a service. Call it within a runtime.
    pub(super) fn subscribe(self: &Arc<Self>, server: &Arc<Server>, key: &ServiceKey) -> Pushed {
        let mut wanted = self.wanted();
        let pushed = wanted.services.entry(key.clone()).or_default().subscribe();
        if !std::mem::replace(&mut wanted.is_running, true) {
            tokio::spawn(Arc::clone(self).run(Arc::clone(server), key.namespace.clone()));
        }
        self.news.notify_one();
        pushed
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the services until none has a receiver.
    async fn run(self: Arc<Self>, server: Arc<Server>, namespace: Box<str>) {
        let _broken = Broken(&self);
        let mut members = Members::shuffled(&server.members);
        let (mut failures, mut told) = (0, None);
        loop {
            let mut link = Link {
                pushes: &self,
                server: &server,
                subscribed: BTreeSet::new(),
                refused: BTreeMap::new(),
            };
            let trouble = match link.follow(members.current(), &namespace).await {
                Ok(()) => return,
                Err(trouble) => trouble,
            };
            if !link.subscribed.is_empty() {
                (failures, told) = (0, None);
            }
            // Once for each reason: Nacos 1, and a server behind a proxy, never push.
            if told.as_ref() != Some(&trouble) {
                tracing::warn!(%trouble, %namespace, "Nacos pushes no changes; the gateway polls its services");
            }
            told = Some(trouble);
            members.turn();
            for pushed in self.wanted().services.values() {
                pushed.send_replace(None);
            }
            sleep(backoff(failures)).await;
            failures += 1;
            if self.is_over() {
                return;
            }
        }
    }

    /// Drops services without receivers; returns true if none are left. Then the task ends.
    fn is_over(&self) -> bool {
        let mut wanted = self.wanted();
        wanted.services.retain(|_, pushed| pushed.receiver_count() > 0);
        wanted.is_running = !wanted.services.is_empty();
        !wanted.is_running
    }

    /// Publishes the nodes of a service.
    fn publish(&self, key: &ServiceKey, nodes: Option<Listing>) {
        if let Some(pushed) = self.wanted().services.get(key) {
            pushed.send_replace(nodes);
        }
    }
}

/// Reports the end of pushes if the task panics: otherwise the last push would be used forever.
struct Broken<'p>(&'p Pushes);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut wanted = self.0.wanted();
            wanted.is_running = false;
            wanted.services.values().for_each(|pushed| drop(pushed.send_replace(None)));
        }
    }
}

/// A connection, while it lasts.
struct Link<'p> {
    pushes: &'p Pushes,
    server: &'p Server,
    subscribed: BTreeSet<ServiceKey>,
    /// Rejected services, and the times of their retries.
    refused: BTreeMap<ServiceKey, Instant>,
}

impl Link<'_> {
    /// Handles pushes until there are no receivers.
    async fn follow(&mut self, address: &RegistryAddress, namespace: &str) -> Result<(), Trouble> {
        let Server { port_offset, connect, within, env, .. } = self.server;
        let port_offset = port_offset.unwrap_or_default();
        let client = Client::connect(address, port_offset, *connect, *within, env).await?;
        let checked = client.call("ServerCheckRequest", Headers::new(), &json!({})).await?;
        succeeded(&checked)?;
        let setup = json!({
            "clientVersion": concat!("sigma/", env!("CARGO_PKG_VERSION")),
            "tenant": namespace,
            "labels": { "source": "sdk", "module": "naming", "AppName": "sigma" },
            "abilities": {},
        });
        let mut stream = client.open(Payload::new("ConnectionSetupRequest", Headers::new(), &setup))?;
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once.
        beat.tick().await;
        loop {
            self.subscribe_to_new(&client, address).await?;
            tokio::select! {
                message = stream.next() => self.take(message?, &stream, namespace).await?,
                () = self.pushes.news.notified() => {}
                _ = beat.tick() => {
                    if self.pushes.is_over() {
                        return Ok(());
                    }
                    let alive = client.call("HealthCheckRequest", Headers::new(), &json!({})).await?;
                    succeeded(&alive)?;
                    self.server.env.tally.succeeded();
                    self.unsubscribe_from_gone(&client, address).await?;
                }
            }
        }
    }

    /// Subscribes to services that are not subscribed to on this connection.
    async fn subscribe_to_new(&mut self, client: &Client, address: &RegistryAddress) -> Result<(), Trouble> {
        let now = Instant::now();
        self.refused.retain(|_, until| *until > now);
        let is_new = |key: &&ServiceKey| !self.subscribed.contains(*key) && !self.refused.contains_key(*key);
        let new: Vec<ServiceKey> = self.pushes.wanted().services.keys().filter(is_new).cloned().collect();
        for key in new {
            let answer = self.ask(client, address, &key, true).await?;
            match succeeded(&answer).and_then(|()| self.server.listing(&key, answer.get("serviceInfo"))) {
                Ok(listing) => {
                    self.pushes.publish(&key, Some(listing));
                    self.subscribed.insert(key);
                }
                Err(trouble) => {
                    tracing::warn!(service = %key, %trouble, "Nacos refuses a subscription; the gateway polls the service");
                    self.refused.insert(key, now + REFUSED);
                }
            }
        }
        Ok(())
    }

    async fn unsubscribe_from_gone(
        &mut self,
        client: &Client,
        address: &RegistryAddress,
    ) -> Result<(), Trouble> {
        let gone: Vec<ServiceKey> = {
            let wanted = self.pushes.wanted();
            self.subscribed.iter().filter(|key| !wanted.services.contains_key(*key)).cloned().collect()
        };
        for key in gone {
            self.ask(client, address, &key, false).await?;
            self.subscribed.remove(&key);
        }
        Ok(())
    }

    /// Sends a subscription, or its end.
    async fn ask(
        &self,
        client: &Client,
        address: &RegistryAddress,
        key: &ServiceKey,
        subscribe: bool,
    ) -> Result<Value, Trouble> {
        let body = json!({
            "namespace": key.namespace, "groupName": key.group, "serviceName": key.service,
            "clusters": "", "subscribe": subscribe, "module": "naming",
        });
        let (mut is_stale, mut setups) = (false, 0);
        loop {
            let headers = self.server.headers(address, key, is_stale).await?;
            let answer = client.call("SubscribeServiceRequest", headers, &body).await?;
            match answer.get("errorCode").and_then(Value::as_u64) {
                Some(UNREGISTERED) if setups < SETUP.1 => {
                    setups += 1;
                    sleep(SETUP.0).await;
                }
                Some(UNREGISTERED) => {
                    return Err(Trouble(format!("{} accepts no gRPC clients", address.base())));
                }
                Some(NO_RIGHT) if address.user().is_some() && !is_stale => is_stale = true,
                _ => return Ok(answer),
            }
        }
    }

    /// Handles a message of the server, and responds to it.
    async fn take(&self, message: Payload, stream: &Stream, namespace: &str) -> Result<(), Trouble> {
        let kind = &*message.kind().to_owned();
        let unreadable = || Trouble(format!("Nacos pushed an unreadable {kind}"));
        let body = message.json().await.ok_or_else(unreadable)?;
        if let Some(id) = body.get("requestId") {
            let answer = json!({ "requestId": id, "resultCode": 200, "errorCode": 0, "success": true });
            let name = kind.replace("Request", "Response");
            // Many pushes may come together, and then responses wait in a queue.
            let sent = stream.sender.send(Payload::new(&name, Headers::new(), &answer));
            let sent = timeout(self.server.within, sent).await;
            let deaf = || Trouble("Nacos does not accept responses to its pushes".to_owned());
            sent.map_err(|_| deaf())?.map_err(|_| deaf())?;
        }
        match kind {
            "NotifySubscriberRequest" => {
                let info = body.get("serviceInfo").ok_or_else(unreadable)?;
                let key = named(namespace, info).ok_or_else(unreadable)?;
                if self.subscribed.contains(&key) {
                    let listing = self.server.listing(&key, Some(info)).map_err(|_| unreadable())?;
                    self.pushes.publish(&key, Some(listing));
                }
                Ok(())
            }
            "ConnectResetRequest" => Err(Trouble("Nacos asks to connect to another server".to_owned())),
            _ => Ok(()),
        }
    }
}

/// Returns the service of a push.
fn named(namespace: &str, info: &Value) -> Option<ServiceKey> {
    let text = |name: &str| info.get(name).and_then(Value::as_str);
    let name = text("name")?;
    let (group, service) = match (text("groupName"), name.split_once("@@")) {
        (_, Some((group, service))) => (group, service),
        (Some(group), None) => (group, name),
        (None, None) => return None,
    };
    Some(ServiceKey { namespace: namespace.into(), group: group.into(), service: service.into() })
}

/// Returns an error unless a response reports success.
fn succeeded(answer: &Value) -> Result<(), Trouble> {
    if answer.get("resultCode").and_then(Value::as_u64) == Some(200) {
        return Ok(());
    }
    let code = answer.get("errorCode").and_then(Value::as_u64).unwrap_or_default();
    let message = answer.get("message").and_then(Value::as_str).unwrap_or("without a reason");
    let message: String = message.chars().take(200).collect();
    Err(Trouble(format!("refused with code {code}: {message}")))
}

#[cfg(test)]
mod tests;
