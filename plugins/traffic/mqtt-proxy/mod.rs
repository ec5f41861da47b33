//! `mqtt-proxy`: looks at the first packet of MQTT before a node is chosen.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Descriptor, Env, Flow, FlowPlugin, FlowStep, Session};

/// The plugin. It has nothing to do with requests, and no hook on routes.
pub(crate) static MQTT_PROXY: Descriptor = Descriptor {
    name: "mqtt-proxy",
    priority: 1000,
    doc: DOC,
    example: include_str!("example.md"),
    flow: Some(Flow::itself::<MqttProxy>()),
    ..Descriptor::BASE
};

const DOC: &str = "Load balances MQTT sessions by client.

For stream routes only. The client's first packet, CONNECT, must have the configured protocol and level, or \
the session is closed before it reaches a node. The client's identifier becomes the variable \
`mqtt_client_id`, which an upstream of type `chash` can use as its key. Clients without an identifier are \
balanced by their address. The packet is sent unchanged.";

/// The first byte of a CONNECT packet, whose flags are reserved (MQTT 3.1.1 §3.1, MQTT 5.0 §3.1).
const CONNECT: std::ops::RangeInclusive<u8> = 0x10..=0x20;

/// The status of a session that is no MQTT, or of another version.
const REFUSED: u16 = 503;

/// The level from which a packet has properties.
const LEVEL_5: u8 = 5;

/// Reads the first packet of an MQTT session.
#[derive(Deserialize, JsonSchema)]
struct MqttProxy {
    /// The name of the protocol.
    #[schemars(extend("default" = "MQTT"))]
    protocol_name: String,
    /// The level of the protocol: 4 is MQTT 3.1.1, 5 is MQTT 5.0.
    protocol_level: i64,
}

impl Configuration for MqttProxy {}

/// A CONNECT packet, as far as it is looked at.
#[derive(Debug, PartialEq, Eq)]
struct Connect<'p> {
    protocol: &'p [u8],
    level: u8,
    client_id: &'p [u8],
}

/// Why no packet was read.
#[derive(Debug, PartialEq, Eq)]
enum NoConnect {
    /// More bytes are needed.
    Incomplete,
    /// It is another packet, or none.
    Other(String),
}

fn malformed(reason: &str) -> NoConnect {
    NoConnect::Other(format!("failed to parse mqtt request, {reason}"))
}

/// Reads a number of one to four bytes, seven bits each (MQTT 3.1.1 §2.2.3), and returns the rest with it.
fn variable_int(bytes: &[u8]) -> Result<(usize, &[u8]), NoConnect> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(4) {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((value, &bytes[at + 1..]));
        }
    }
    if bytes.len() < 4 { Err(NoConnect::Incomplete) } else { Err(malformed("its length is malformed")) }
}

/// So many bytes of a packet, and the rest.
fn split(packet: &[u8], n: usize) -> Result<(&[u8], &[u8]), NoConnect> {
    let short = || malformed(&format!("expect len: {n} but got {}", packet.len()));
    packet.split_at_checked(n).ok_or_else(short)
}

/// A text with its length in front.
fn text(packet: &[u8]) -> Result<(&[u8], &[u8]), NoConnect> {
    let (length, rest) = split(packet, 2)?;
    split(rest, usize::from(u16::from_be_bytes([length[0], length[1]])))
}

impl Connect<'_> {
    fn parse(bytes: &[u8]) -> Result<Connect<'_>, NoConnect> {
        let Some((kind, rest)) = bytes.split_first() else { return Err(NoConnect::Incomplete) };
        if !CONNECT.contains(kind) {
            return Err(NoConnect::Other(format!("Received unexpected MQTT packet type+flags: {kind}")));
        }
        let (length, rest) = variable_int(rest)?;
        // The payload behind the identifier may be long, and is not looked at.
        let (packet, complete) = match rest.get(..length) {
            Some(packet) => (packet, true),
            None => (rest, false),
        };
        let parsed = Connect::fields(packet);
        match parsed {
            Err(NoConnect::Other(_)) | Err(NoConnect::Incomplete) if !complete => Err(NoConnect::Incomplete),
            Err(NoConnect::Incomplete) => Err(malformed("its properties are truncated")),
            parsed => parsed,
        }
    }

    fn fields(packet: &[u8]) -> Result<Connect<'_>, NoConnect> {
        let (protocol, rest) = text(packet)?;
        let (level, rest) = split(rest, 1)?;
        // Flags, and the time to keep the session.
        let (_, mut rest) = split(rest, 3)?;
        if level[0] == LEVEL_5 {
            let (length, properties) = variable_int(rest)?;
            rest = split(properties, length)?.1;
        }
        let (client_id, _) = text(rest)?;
        Ok(Connect { protocol, level: level[0], client_id })
    }
}

impl FlowPlugin for MqttProxy {
    fn preread(&self, session: &mut Session, _: &Env<'_>) -> FlowStep {
        let refuse = |reason: &str| {
            tracing::debug!(reason, "mqtt-proxy closed a session");
            FlowStep::Close(REFUSED)
        };
        let client_id = match Connect::parse(&session.early) {
            Err(NoConnect::Incomplete) => return FlowStep::More,
            Err(NoConnect::Other(reason)) => return refuse(&reason),
            Ok(Connect { protocol, level, client_id }) => {
                if protocol != self.protocol_name.as_bytes() {
                    let got = String::from_utf8_lossy(protocol).into_owned();
                    return refuse(&format!("expect protocol name: {}, but got {got}", self.protocol_name));
                }
                if i64::from(level) != self.protocol_level {
                    return refuse(&format!(
                        "expect protocol level: {}, but got {level}",
                        self.protocol_level
                    ));
                }
                client_id.to_vec()
            }
        };
        if !client_id.is_empty() {
            session.set_variable("mqtt_client_id", &client_id);
        }
        FlowStep::Next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{refusal, refusal_in};

    /// A packet of this level, with properties if it has some, and a will behind the identifier.
    fn packet(level: u8, client_id: &str) -> Vec<u8> {
        let mut body = b"\x00\x04MQTT".to_vec();
        body.extend([level, 0x02, 0, 60]);
        if level == LEVEL_5 {
            body.extend([5, 0x11, 0, 0, 0, 10]);
        }
        body.extend((client_id.len() as u16).to_be_bytes());
        body.extend(client_id.as_bytes());
        let mut packet = vec![0x10, body.len() as u8];
        packet.extend(body);
        packet
    }

    #[test]
    fn the_first_packet_is_read_whole_or_not_at_all() {
        for (level, id) in [(4, "sensor-1"), (5, "sensor-1"), (4, "")] {
            let bytes = packet(level, id);
            let expected = Connect { protocol: b"MQTT", level, client_id: id.as_bytes() };
            assert_eq!(Connect::parse(&bytes), Ok(expected));
            for end in 0..bytes.len() {
                assert_eq!(Connect::parse(&bytes[..end]), Err(NoConnect::Incomplete), "{level} {end}");
            }
        }
        let check = |bytes: &[u8], expected: &str| {
            let found = Connect::parse(bytes);
            assert!(matches!(&found, Err(NoConnect::Other(text)) if text.contains(expected)), "{found:?}");
        };
        check(b"GET / HTTP/1.1", "unexpected MQTT packet type+flags: 71");
        check(b"\x10\xff\xff\xff\xff\x01", "length is malformed");
        check(b"\x10\x02\x00\x04", "expect len: 4 but got 0");
        check(b"\x10\x0a\x00\x04MQTT\x05\x02\x00\x3c", "properties are truncated");
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| {
            assert_eq!(refusal_in("mqtt-proxy", PluginScope::Stream, &conf), expected, "{conf}");
        };
        check(json!({"protocol_level": 4}), "");
        check(json!({}), "property \"protocol_level\" is required");
        check(
            json!({"protocol_level": "4"}),
            "property \"protocol_level\" validation failed: wrong type: expected integer, got string",
        );
        assert_ne!(refusal("mqtt-proxy", &json!({"protocol_level": 4})), "", "it is for stream routes");
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let _ = Connect::parse(&bytes);
        }
    }
}
