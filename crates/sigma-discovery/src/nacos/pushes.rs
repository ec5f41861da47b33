//! What Nacos pushes: the services of one namespace, subscribed to over one connection.
//!
//! A push names a service and its group but no namespace, so that each namespace has a connection of its
//! own, as in Nacos' own clients. While there is none, the services are asked for at intervals.

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

/// Between two signs of life. Nacos takes a client for gone after 20 seconds without any.
const BEAT: Duration = Duration::from_secs(5);

/// Nacos takes in who connects in its own time: the pause before it is asked again, and how often.
const SETUP: (Duration, u32) = (Duration::from_millis(100), 50);

/// A service that is refused is subscribed to again after this long.
const REFUSED: Duration = Duration::from_secs(60);

/// The code for a client that Nacos does not know.
const UNREGISTERED: u64 = 301;
/// The code for one that has no right, or whose token holds no longer.
const NO_RIGHT: u64 = 403;

/// What of a service was pushed; None while nothing is.
pub(super) type Pushed = watch::Receiver<Option<Listing>>;

/// The services of a namespace.
#[derive(Default)]
pub(super) struct Pushes {
    wanted: Mutex<Wanted>,
    news: Notify,
}

#[derive(Default)]
struct Wanted {
    /// Who waits for each service.
    services: BTreeMap<ServiceKey, watch::Sender<Option<Listing>>>,
    /// A task subscribes to them.
    is_running: bool,
}

impl Pushes {
    /// What is pushed of a service from now on. Within a runtime.
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

    /// Follows the services until nobody waits for any.
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
            // Once for each reason: Nacos 1, and one behind a proxy, never push.
            if told.as_ref() != Some(&trouble) {
                tracing::warn!(%trouble, %namespace, "Nacos pushes nothing, its services are asked for at intervals");
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

    /// Forgets the services that nobody waits for; whether that is all of them. Then the task is over.
    fn is_over(&self) -> bool {
        let mut wanted = self.wanted();
        wanted.services.retain(|_, pushed| pushed.receiver_count() > 0);
        wanted.is_running = !wanted.services.is_empty();
        !wanted.is_running
    }

    /// Tells those who wait for a service what its nodes are.
    fn publish(&self, key: &ServiceKey, nodes: Option<Listing>) {
        if let Some(pushed) = self.wanted().services.get(key) {
            pushed.send_replace(nodes);
        }
    }
}

/// Tells that nothing is pushed any more if the task that takes it in panics: what was pushed last would be
/// served for ever.
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
    /// Services that were refused, and when that is tried again.
    refused: BTreeMap<ServiceKey, Instant>,
}

impl Link<'_> {
    /// Takes in what is pushed, until nobody waits for it any more.
    async fn follow(&mut self, address: &RegistryAddress, namespace: &str) -> Result<(), Trouble> {
        let Server { port_offset, connect, within, env, .. } = self.server;
        let port_offset = port_offset.unwrap_or_default();
        let client = Client::connect(address, port_offset, (*connect, *within), env).await?;
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

    /// Subscribes to what is wanted and was not subscribed to over this connection.
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
                    tracing::warn!(service = %key, %trouble, "Nacos refuses a subscription: it is asked at intervals");
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

    /// Asks for a subscription, or for its end.
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
                    return Err(Trouble(format!("{} takes no clients by gRPC", address.base())));
                }
                Some(NO_RIGHT) if address.user().is_some() && !is_stale => is_stale = true,
                _ => return Ok(answer),
            }
        }
    }

    /// Takes in a message of the server, and answers it.
    async fn take(&self, message: Payload, stream: &Stream, namespace: &str) -> Result<(), Trouble> {
        let kind = &*message.kind().to_owned();
        let unreadable = || Trouble(format!("Nacos pushed a {kind} that cannot be read"));
        let body = message.json().await.ok_or_else(unreadable)?;
        if let Some(id) = body.get("requestId") {
            let answer = json!({ "requestId": id, "resultCode": 200, "errorCode": 0, "success": true });
            let name = kind.replace("Request", "Response");
            // Many pushes come together, and their answers wait for one another.
            let sent = stream.sender.send(Payload::new(&name, Headers::new(), &answer));
            let sent = timeout(self.server.within, sent).await;
            let deaf = || Trouble("Nacos pushes, and takes no answers".to_owned());
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

/// The service that a push is of.
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

/// Whether an answer says that all went well.
fn succeeded(answer: &Value) -> Result<(), Trouble> {
    if answer.get("resultCode").and_then(Value::as_u64) == Some(200) {
        return Ok(());
    }
    let code = answer.get("errorCode").and_then(Value::as_u64).unwrap_or_default();
    let message = answer.get("message").and_then(Value::as_str).unwrap_or("no reason is given");
    let message: String = message.chars().take(200).collect();
    Err(Trouble(format!("refused with code {code}: {message}")))
}

#[cfg(test)]
mod tests;
