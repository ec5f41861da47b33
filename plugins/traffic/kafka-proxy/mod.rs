//! `kafka-proxy`: topics of Kafka over WebSocket, by APISIX's PubSub protocol.

mod consumer;
mod pubsub;
mod session;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_net::tls::ClientTls;
use sigma_plugin::{
    Bridge, Build, Configuration, Context, Descriptor, Env, Far, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Confidential;

use consumer::Target;
use session::Session;
use sigma_plugin_kit::kafka::sasl::{Mechanism, Sasl};
use sigma_plugin_kit::server::Host;
use sigma_plugin_kit::websocket::handshake;

const NAME: &str = "kafka-proxy";

/// Seconds that a step at a broker may take where the upstream says nothing.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The plugin, and what serves upstreams of the scheme, with the plugin or without.
pub(crate) static KAFKA_PROXY: Descriptor = Descriptor {
    name: NAME,
    priority: 508,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(std::sync::Arc::new(KafkaProxy::new(build)?)),
    bridge: Some(Bridge { scheme: "kafka", open }),
    ..Descriptor::of::<Config>()
};

/// The configuration.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Credentials of the gateway. Default: no login.
    sasl: Option<Login>,
}

#[derive(Deserialize, JsonSchema)]
struct Login {
    /// The user.
    username: String,
    /// The user's password.
    password: Confidential,
    /// `PLAIN` sends the password itself; the other mechanisms only prove its knowledge.
    #[schemars(extend("default" = "PLAIN", "own_default" = true))]
    mechanism: Mechanism,
}

impl Config {
    fn login(self) -> Option<Sasl> {
        self.sasl.map(|Login { username, password, mechanism }| Sasl::new(mechanism, username, password))
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let Some(Login { username, password, mechanism }) = &self.sasl else { return Ok(()) };
        let sasl = Sasl::new(*mechanism, username.clone(), password.clone());
        sasl.check().map_err(|_| "sasl: neither username nor password may have a NUL in it".to_owned())
    }
}

/// An instance: how its route logs in.
struct KafkaProxy(Option<Sasl>);

impl KafkaProxy {
    fn new(build: &Build<'_>) -> Result<KafkaProxy, String> {
        Ok(KafkaProxy(build.config::<Config>()?.login()))
    }
}

/// State for the bridge.
struct Credentials(Sasl);

impl Plugin for KafkaProxy {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        if let Some(sasl) = &self.0 {
            ctx.keep(self, Credentials(sasl.clone()));
        }
        Step::Next
    }
}

/// Opens a WebSocket to the brokers.
fn open(far: &Far, ctx: &mut Context, env: &Env<'_>) -> Step {
    let reply = match handshake(&ctx.request) {
        Ok(reply) => reply,
        Err(refusal) => return refusal.into(),
    };
    let brokers =
        far.nodes.iter().filter_map(|(host, port)| Some((Host::try_from(host.to_string()).ok()?, *port)));
    let tls = far.tls.as_ref().and_then(|tls| tls.downcast_ref::<ClientTls>()).cloned();
    if tls.is_none() && far.tls.is_some() {
        // The contract of bridges requires it.
        return Step::status(500);
    }
    let timeout = far.read_timeout.unwrap_or(TIMEOUT);
    let sasl = ctx.kept_by_any::<Credentials>().map(|Credentials(sasl)| sasl.clone());
    let target = Target { brokers: brokers.collect(), tls, sasl, timeout };
    Step::Takeover(Box::new(reply), Box::new(Session::begin(target, env.node)))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sigma_plugin::Reply;

    use super::pubsub::{Command, Fetched, Message, Request, Response, State};
    use super::*;

    /// Numbers of fields, as a client of APISIX has them.
    #[test]
    fn messages_follow_the_protocol() {
        let ping = Request { sequence: 300, command: Some(Command::Ping(State { state: b"ab".to_vec() })) };
        let bytes = [0x08, 0xac, 0x02, 0x82, 0x02, 0x04, 0x0a, 0x02, b'a', b'b'];
        assert_eq!(ping.encode_to_vec(), bytes);
        let fetch = [0x08, 1, 0x8a, 0x02, 5, 0x0a, 1, b't', 0x18, 7];
        let Ok(Request { command: Some(Command::Fetch(fetch)), .. }) = Request::decode(&fetch[..]) else {
            panic!("a fetch")
        };
        assert_eq!((&*fetch.topic, fetch.partition, fetch.offset), ("t", 0, 7));
        let list = [
            0x92, 0x02, 16, 0x0a, 1, b't', 0x10, 2, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 1,
        ];
        let Ok(Request { sequence: 0, command: Some(Command::ListOffset(list)) }) =
            Request::decode(&list[..])
        else {
            panic!("a question for an offset")
        };
        assert_eq!((&*list.topic, list.partition, list.timestamp), ("t", 2, -1));
        let message = Message { offset: 1, timestamp: 2, key: b"k".to_vec(), value: b"v".to_vec() };
        let fetched = pubsub::PubSubResponse::Fetched(Fetched { messages: vec![message] });
        let bytes = [0x8a, 0x02, 12, 0x0a, 10, 0x08, 1, 0x10, 2, 0x1a, 1, b'k', 0x22, 1, b'v'];
        assert_eq!(Response { sequence: 0, answer: Some(fetched) }.encode_to_vec(), bytes);
        let error = Response { sequence: 0, answer: Some(pubsub::PubSubResponse::error("no")) };
        assert_eq!(error.encode_to_vec(), [0xfa, 0x01, 4, 0x12, 2, b'n', b'o']);
    }

    #[test]
    fn invalid_handshakes_are_refused() {
        let head = Context::default().request;
        assert!(matches!(handshake(&head), Err(Reply { status: 400, .. })));
    }
}
