//! Notifications of services when nodes go out and come back.
//!
//! Events wait in a queue with a limit, one for each service, and those that wait together go together. An unreachable
//! service delays only its own later events.

mod mail;
mod smtp;
mod webhook;

use std::future::Future;
use std::time::Duration;

use sigma_config::health_events::{Delivery, HealthEvents as Settings};
use sigma_config::tls::Tls;
use sigma_upstream::health::{HealthEvent, HealthEvents};
use tokio::sync::mpsc;

use mail::Mailer;
use webhook::Caller;

/// Events in one notification.
const TOGETHER: usize = 100;

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Starts the notifications of the settings, within a runtime. Returns where events go; None without a service.
pub(crate) fn start(settings: &Settings, tls: &Tls) -> Option<HealthEvents> {
    let webhook = settings.webhook.as_ref();
    let webhook = webhook.map(|webhook| begin(webhook.delivery(), Caller::new(webhook)));
    let mail = settings.mail.as_ref().map(|mail| begin(mail.delivery(), Mailer::new(mail, tls)));
    [webhook, mail].into_iter().flatten().reduce(HealthEvents::and)
}

fn begin<S: Service>(delivery: Delivery, service: S) -> HealthEvents {
    let (sender, queue) = mpsc::channel(delivery.queue as usize);
    let events = HealthEvents::into_queue(sender);
    let notifier = Notifier { service, delivery, events: events.clone(), queue };
    tokio::spawn(notifier.run());
    events
}

/// A service that gets notifications.
trait Service: Send + Sync + 'static {
    /// The path of its settings.
    const PLACE: &'static str;

    /// The shortest time between two notifications.
    fn interval(&self) -> Duration;

    /// Sends events.
    ///
    /// # Errors
    /// Returns the reason, which shows no secret, if they have to be sent again.
    fn send(&self, events: &[HealthEvent]) -> impl Future<Output = Result<(), String>> + Send;
}

/// Sends the events of one queue.
struct Notifier<S> {
    service: S,
    delivery: Delivery,
    events: HealthEvents,
    queue: mpsc::Receiver<HealthEvent>,
}

impl<S: Service> Notifier<S> {
    /// Sends events until the process ends.
    async fn run(mut self) {
        let mut events = Vec::new();
        while self.queue.recv_many(&mut events, TOGETHER).await > 0 {
            let dropped = self.events.take_dropped();
            if dropped > 0 {
                tracing::warn!(dropped, "{}: more events than `queue` has room for", S::PLACE);
            }
            self.notify(&events).await;
            events.clear();
            tokio::time::sleep(self.service.interval()).await;
        }
    }

    async fn notify(&self, events: &[HealthEvent]) {
        let mut pause = Duration::from_millis(self.delivery.retry_delay_ms.into());
        let timeout = Duration::from_millis(self.delivery.timeout_ms.into());
        for attempt in 0..=self.delivery.retries {
            let sent = tokio::time::timeout(timeout, self.service.send(events)).await;
            let Err(problem) = sent.unwrap_or_else(|_| Err("it takes longer than `timeout_ms`".to_owned()))
            else {
                return;
            };
            tracing::warn!(attempt, problem, "{}: cannot send an event to the service", S::PLACE);
            if attempt < self.delivery.retries {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        tracing::error!("{}: events are lost; check the service and its settings", S::PLACE);
    }
}
