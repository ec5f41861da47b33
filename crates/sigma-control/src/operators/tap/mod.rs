//! Taps: operators see exchanges of this process as they end, a line of JSON for each.
//!
//! Workers copy exchanges that match a filter (`sigma_proxy::tap`); here secrets are masked, and a stream is
//! made that ends with its reader. A slow reader loses exchanges, and gets their number.

mod masks;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use serde_json::{Value, json};
use sigma_config::resources::{PluginConfig, Plugins, Route, Service};
use sigma_config::tap as settings;
use sigma_observe::Clock;
use sigma_plugin::Resource;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::record::Source;
use sigma_proxy::tap::{SeenFields, SeenValue, TapBoard, TapNews, TapReader, TapWish, TappedExchange};
use sigma_schema::plugins::PluginSchemas;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

pub(crate) use self::masks::Masks;
use crate::operators::refused_call::RefusedCall;
use crate::serving::publisher::Publisher;

/// The longest time without a line to a reader, so that one that has left is noticed.
const ALIVE: Duration = Duration::from_secs(5);

/// The media type of lines of JSON.
pub(crate) const MEDIA_TYPE: &str = "application/x-ndjson";

/// Opens taps.
pub(crate) struct Tapping {
    board: Arc<TapBoard>,
    publisher: Arc<Publisher>,
    plugins: Arc<dyn PluginSchemas>,
    settings: settings::Tap,
}

impl Tapping {
    pub(crate) fn new(
        board: Arc<TapBoard>,
        publisher: Arc<Publisher>,
        plugins: Arc<dyn PluginSchemas>,
        settings: settings::Tap,
    ) -> Tapping {
        Tapping { board, publisher, plugins, settings }
    }

    /// Whether the Control API, which needs no key, opens taps.
    pub(crate) fn is_open_to_all(&self) -> bool {
        self.settings.control_api
    }

    /// Opens a tap, as the arguments of a query wish it; the body ends with it.
    ///
    /// # Errors
    /// Returns an error if as many taps are open as may be, or an argument is invalid.
    pub(crate) fn open(self: &Arc<Tapping>, arguments: &[(String, String)]) -> Result<Body, RefusedCall> {
        let wish = self.wish(arguments).map_err(RefusedCall::bad)?;
        let most = usize::from(self.settings.taps);
        let reader = self.board.open(wish.clone(), self.settings.queue as usize, most).ok_or_else(|| {
            let message = format!("{most} taps are open, the maximum: end one, or raise `tap.taps`");
            RefusedCall::new(StatusCode::TOO_MANY_REQUESTS, message)
        })?;
        tracing::info!(?wish, "an operator started a tap");
        // One line at most waits here: others wait where they are counted, within the limits there.
        let (lines, body) = mpsc::channel(1);
        tokio::spawn(Arc::clone(self).tell(reader, lines));
        Ok(Body::from_stream(ReceiverStream::new(body)))
    }

    fn wish(&self, arguments: &[(String, String)]) -> Result<TapWish, String> {
        let mut wish = TapWish {
            route: None,
            service: None,
            consumer: None,
            clients: Vec::new(),
            status: None,
            sample: NonZeroU32::MIN,
            value_bytes: self.settings.value_bytes as usize,
            head_bytes: self.settings.head_bytes as usize,
        };
        for (name, value) in arguments {
            let odd = |what: &str| format!("invalid argument {name}: {value} is not a valid {what}");
            match name.as_str() {
                "route" => wish.route = Some(value.as_str().into()),
                "service" => wish.service = Some(value.as_str().into()),
                "consumer" => wish.consumer = Some(value.as_str().into()),
                "client" => wish.clients.push(value.parse().map_err(|_| odd("address or network"))?),
                "status" => {
                    wish.status = Some(status(value).ok_or_else(|| odd("status, such as 404 or 5xx"))?)
                }
                "sample" => wish.sample = value.parse().map_err(|_| odd("number from 1 on"))?,
                // The key of the Admin API may stand there.
                "api_key" => {}
                _ => {
                    return Err(format!(
                        "unknown argument {name}: write route, service, consumer, client, status or sample"
                    ));
                }
            }
        }
        Ok(wish)
    }

    /// Sends lines to a reader until it leaves, the time has ended, or the workers have ended.
    async fn tell(self: Arc<Tapping>, mut reader: TapReader, lines: mpsc::Sender<Line>) {
        let end = Instant::now() + Duration::from_secs(self.settings.seconds.into());
        let mut alive = tokio::time::interval(ALIVE);
        let reason = loop {
            let line = tokio::select! {
                news = reader.next() => match news {
                    Some(TapNews::Seen(seen)) => self.shown(&seen),
                    Some(TapNews::Lost(count)) => json!({"type": "lost", "exchanges": count}),
                    None => break "the gateway stops, or another process replaces it",
                },
                () = lines.closed() => return,
                () = tokio::time::sleep_until(end) => break "its time has ended: see `tap.seconds`",
                _ = alive.tick() => json!({"type": "alive"}),
            };
            if lines.send(written(&line)).await.is_err() {
                return;
            }
        };
        let _ = lines.send(written(&json!({"type": "end", "reason": reason}))).await;
    }

    fn shown(&self, seen: &TappedExchange) -> Value {
        let masks = self.masks(seen.route.as_deref());
        let waits = seen.waits.iter().map(|(plugin, ms)| json!({"plugin": plugin, "ms": rounded(*ms)}));
        let attempts = seen.attempts.iter().map(|attempt| {
            let mut shown = attempt.shown();
            shown["host"] = attempt.host.as_str().into();
            shown["reused"] = attempt.reused.into();
            shown
        });
        let facts = seen.route.as_deref();
        json!({
            "type": "exchange",
            "time": time(seen),
            "client": seen.client,
            "method": text(&seen.request.method),
            "target": masks.link(&cut(&seen.request.target)),
            "rewritten": seen.request.rewritten.as_ref().map(|target| masks.link(&cut(target)).into_owned()),
            "version": seen.request.version,
            "status": seen.response.status,
            "source": match seen.response.source {
                Source::Upstream => "node",
                Source::Gateway => "gateway",
                Source::Fault => "fault",
            },
            "fault": seen.response.fault.map(|fault| json!({"type": fault.kind.error_type(), "reason": fault.reason})),
            "plugin": seen.response.plugin.as_deref(),
            "route": facts.map(|facts| &*facts.id),
            "route_name": facts.and_then(|facts| facts.name.as_deref()),
            "service": facts.and_then(|facts| facts.service_id.as_deref()),
            "consumer": seen.consumer.as_deref(),
            "ms": seen.elapsed_ms.map(rounded),
            "attempts": attempts.collect::<Vec<_>>(),
            "waits": waits.collect::<Vec<_>>(),
            "bytes_received": seen.bytes_received,
            "bytes_sent": seen.bytes_sent,
            "request": fields(&seen.request.fields, &masks),
            "answer": fields(&seen.response.fields, &masks),
        })
    }

    /// Returns the names under which plugins of the exchange read keys.
    fn masks(&self, facts: Option<&RouteFacts>) -> Masks {
        let mut masks = Masks::default();
        let authenticates = |name: &str| self.plugins.is_auth(name);
        let mut add = |plugins: &Plugins| {
            for (name, conf) in plugins.iter() {
                masks.add(name, conf, &authenticates);
            }
        };
        if let Some(resources) = facts.map(|facts| &facts.resources) {
            let route = resources.route.as_ref().and_then(Resource::get::<Route>);
            route.iter().for_each(|route| add(&route.plugins));
            let service = resources.service.as_ref().and_then(Resource::get::<Service>);
            service.iter().for_each(|service| add(&service.plugins));
            let config = resources.plugin_config.as_ref().and_then(Resource::get::<PluginConfig>);
            config.iter().for_each(|config| add(&config.plugins));
        }
        let state = self.publisher.state();
        state.desired.config.resources.global_rules.iter().for_each(|rule| add(&rule.plugins));
        drop(state);
        masks
    }
}

type Line = Result<Bytes, std::convert::Infallible>;

fn written(line: &Value) -> Line {
    Ok(format!("{line}\n").into())
}

/// `404`, or a class such as `5xx`.
fn status(word: &str) -> Option<(u16, u16)> {
    if let Some(class) = word.strip_suffix("xx") {
        let class: u16 = class.parse().ok().filter(|class| (1..=5).contains(class))?;
        return Some((class * 100, class * 100 + 99));
    }
    // 0 means no response at all.
    let status = word.parse().ok().filter(|status| *status == 0 || (100..=999).contains(status))?;
    Some((status, status))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A value as far as it is known.
fn cut(value: &SeenValue) -> String {
    let shown = text(&value.text);
    match value.length == value.text.len() {
        true => shown,
        false => format!("{shown}… ({} bytes)", value.length),
    }
}

fn fields(seen: &SeenFields, masks: &Masks) -> Value {
    let shown = seen.fields.iter().map(|(name, value)| {
        let name = text(name);
        let value = masks.field(&name, &cut(value)).into_owned();
        [name, value]
    });
    json!({"fields": shown.collect::<Vec<_>>(), "left_out": seen.left_out})
}

fn rounded(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}

fn time(seen: &TappedExchange) -> String {
    text(Clock::new(seen.at_ms).time_iso8601())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_classes_are_read() {
        let check = |word: &str, expected: Option<(u16, u16)>| assert_eq!(status(word), expected, "{word}");
        check("404", Some((404, 404)));
        check("5xx", Some((500, 599)));
        check("0", Some((0, 0)));
        for odd in ["", "xx", "6xx", "40x", "99", "1000", "-1", "5XX"] {
            check(odd, None);
        }
    }
}
