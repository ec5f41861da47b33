//! `request-id`: every request has an identity in a field.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::owned::texts;
use sigma_plugin::{
    Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, ResponseStep, Step,
};

use sigma_plugin_kit::fields::{frames, is_name};

/// The plugin.
pub(crate) static REQUEST_ID: Descriptor = Descriptor {
    name: "request-id",
    priority: 12015,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    owned_fields: Some(|conf| texts(conf, "header_name").map(OwnedField::shared).collect()),
    ..Descriptor::itself::<RequestId>()
};

/// APISIX's letters; the J is missing and the G is there twice.
const CHAR_SET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIGKLMNOPQRSTUVWXYZ0123456789";

/// Gives each request a unique id in a header field.
///
/// A request with the field keeps it; others get a new id. The variables `request_id` and `apisix_request_id` have
/// it, for logs and templates.
#[derive(Deserialize, JsonSchema)]
struct RequestId {
    /// The field's name.
    #[schemars(extend("default" = "X-Request-Id"))]
    header_name: String,
    /// Whether the client gets the field too, unless the node has set it.
    #[schemars(extend("default" = true))]
    include_in_response: bool,
    /// The algorithm that generates an id.
    #[schemars(extend("default" = "uuid"))]
    algorithm: Algorithm,
    /// The options of the algorithm `range_id`.
    #[schemars(extend("default" = {}))]
    range_id: Range,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Algorithm {
    Uuid,
    Nanoid,
    RangeId,
    Ksuid,
    Uuidv7,
}

#[derive(Deserialize, JsonSchema)]
struct Range {
    /// Number of characters.
    #[schemars(range(min = 6, max = 1024), extend("default" = 16))]
    length: usize,
    /// The characters to choose from.
    #[schemars(length(min = 6), extend("default" = CHAR_SET))]
    char_set: String,
}

impl Configuration for RequestId {
    fn check(&self) -> Result<(), String> {
        let name = &self.header_name;
        match is_name(name) && !frames(name) && !name.eq_ignore_ascii_case("host") {
            true => Ok(()),
            false => Err(format!("`header_name`: `{name}` cannot carry a request id")),
        }
    }
}

/// The identity that this instance saw or made.
struct RequestIdentity(String);

impl Plugin for RequestId {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let sent = ctx.request.headers.find(self.header_name.as_bytes()).filter(|value| !value.is_empty());
        let id = match sent {
            Some(id) => String::from_utf8_lossy(id).into_owned(),
            None => {
                let id = self.generate(env);
                ctx.request.headers.replace(&self.header_name, id.as_bytes());
                id
            }
        };
        ctx.set_request_id(&id);
        ctx.keep(self, RequestIdentity(id));
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if !self.include_in_response {
            return ResponseStep::Next;
        }
        let name = self.header_name.as_bytes();
        match ctx.response.headers.find(name) {
            Some(value) if !value.is_empty() => return ResponseStep::Next,
            Some(_) => ctx.response.headers.remove_name(name),
            None => {}
        }
        let Context { request, response, .. } = ctx;
        let mut is_there = false;
        for (_, id) in request.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)) {
            response.headers.append(&self.header_name, id);
            is_there = true;
        }
        if !is_there && let Some(RequestIdentity(id)) = ctx.take_kept(self) {
            // A later plugin took it out of the request.
            ctx.response.headers.append(&self.header_name, id.as_bytes());
        }
        ResponseStep::Next
    }
}

impl RequestId {
    fn generate(&self, env: &Env<'_>) -> String {
        match self.algorithm {
            Algorithm::Uuid => {
                let mut bytes = random::<16>(env);
                bytes[6] = bytes[6] & 0x0f | 0x40;
                hyphenated(bytes)
            }
            Algorithm::Uuidv7 => hyphenated(env.local.part(Sequence::default).next(env)),
            Algorithm::Nanoid => nanoid(&random::<21>(env)),
            Algorithm::RangeId => {
                let letters: Vec<char> = self.range_id.char_set.chars().collect();
                let pick = |_| letters[(env.local.random() % letters.len() as u64) as usize];
                (0..self.range_id.length).map(pick).collect()
            }
            Algorithm::Ksuid => ksuid(env.unix_time().as_secs(), random::<16>(env)),
        }
    }
}

/// Random bytes of the operating system; of the worker's generator if the system cannot provide any.
fn random<const N: usize>(env: &Env<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    if env.machine.fill_random(&mut bytes).is_err() {
        bytes.fill_with(|| (env.local.random() >> 32) as u8);
    }
    bytes
}

/// A UUID's text (RFC 9562 §4); sets its variant.
fn hyphenated(mut bytes: [u8; 16]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = [b'-'; 36];
    let mut place = 0;
    for (at, byte) in bytes.iter().enumerate() {
        place += usize::from(matches!(at, 4 | 6 | 8 | 10));
        text[place] = DIGITS[usize::from(byte >> 4)];
        text[place + 1] = DIGITS[usize::from(byte & 0xf)];
        place += 2;
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn nanoid(random: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    random.iter().map(|byte| LETTERS[usize::from(byte & 63)] as char).collect()
}

/// Seconds since 2014-05-13T16:53:20Z and 16 random bytes, as 27 digits of base 62.
fn ksuid(unix_seconds: u64, random: [u8; 16]) -> String {
    const EPOCH: u64 = 1_400_000_000;
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut number = [0; 20];
    number[..4].copy_from_slice(&(unix_seconds.saturating_sub(EPOCH) as u32).to_be_bytes());
    number[4..].copy_from_slice(&random);
    let mut text = [0; 27];
    for digit in text.iter_mut().rev() {
        // One long division of the 160-bit number by 62.
        let mut rest = 0;
        for byte in &mut number {
            let part = rest * 256 + u32::from(*byte);
            *byte = (part / 62) as u8;
            rest = part % 62;
        }
        *digit = DIGITS[rest as usize];
    }
    text.iter().map(|digit| *digit as char).collect()
}

/// The last UUIDv7 of this worker: time and sequence only ever grow.
#[derive(Default)]
struct Sequence {
    last: std::cell::Cell<(u64, u32)>,
}

impl Sequence {
    /// 48 bits of milliseconds, 18 of a sequence, the rest random (RFC 9562 §5.7 and §6.2).
    fn next(&self, env: &Env<'_>) -> [u8; 16] {
        let (last_ms, last) = self.last.get();
        // A clock before 1970 makes poor identities, but they are still unique by their random part.
        let ms = (env.unix_time().as_millis() as u64).max(last_ms);
        let (ms, sequence) = match ms == last_ms {
            true if last + 1 < 1 << 18 => (ms, last + 1),
            true => (ms + 1, 0),
            false => (ms, 0),
        };
        self.last.set((ms, sequence));
        let mut bytes = random::<16>(env);
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        // 12 bits next to the version, 6 next to the variant.
        bytes[6] = 0x70 | (sequence >> 14) as u8;
        bytes[7] = (sequence >> 6) as u8;
        bytes[8] = (sequence & 0x3f) as u8;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::json;
    use sigma_plugin::system::System;

    use super::*;
    use crate::testing::{Case, entry, refusal};

    const REQUEST: &str = "GET / HTTP/1.1\nHost: x";

    /// A machine with a stopped clock.
    #[derive(Debug)]
    struct Stopped;

    impl System for Stopped {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
        }

        fn uptime(&self) -> Duration {
            Duration::ZERO
        }

        fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
            bytes.fill(7);
            Ok(())
        }
    }

    #[test]
    fn identities_have_their_forms() {
        let check = |conf: serde_json::Value, length: usize, valid: fn(char) -> bool| {
            let plugin = entry("request-id", conf.clone()).unwrap();
            let mut seen = std::collections::HashSet::new();
            let mut case = Case::new(REQUEST);
            for _ in 0..100 {
                case.request(REQUEST);
                assert!(case.run(&plugin, Phase::Rewrite).is_none());
                let id = case.sent("X-Request-Id").unwrap();
                assert_eq!(id.chars().count(), length, "{id}");
                assert!(id.chars().all(valid), "{id}");
                assert_eq!(case.ctx.request_id(), id);
                assert!(seen.insert(id), "{conf}");
            }
        };
        let hex: fn(char) -> bool = |c| matches!(c, '0'..='9' | 'a'..='f' | '-');
        check(json!({}), 36, hex);
        check(json!({"algorithm": "uuidv7"}), 36, hex);
        check(json!({"algorithm": "nanoid"}), 21, |c| c.is_ascii_alphanumeric() || "-_".contains(c));
        check(json!({"algorithm": "ksuid"}), 27, |c| c.is_ascii_alphanumeric());
        check(json!({"algorithm": "range_id"}), 16, |c| c.is_ascii_alphanumeric());
        let conf = json!({"algorithm": "range_id", "range_id": {"length": 20, "char_set": "abcdefé"}});
        check(conf, 20, |c| "abcdefé".contains(c));
    }

    #[test]
    fn versions_variants_and_order_of_uuids() {
        // The clock is stopped, so that ids differ only in the sequence.
        let (node, local, consumers) = Default::default();
        let env = Env { machine: &Stopped, ..Env::new(&node, &local, &consumers) };
        let sequence = Sequence::default();
        let ids: Vec<String> = (0..1000).map(|_| hyphenated(sequence.next(&env))).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.as_bytes()[14] == b'7' && b"89ab".contains(&id.as_bytes()[19])));
        sequence.last.set((u64::MAX >> 17, (1 << 18) - 1));
        assert!(hyphenated(sequence.next(&env)).starts_with("80000000-0000-7000-80"));
        assert_eq!(ksuid(1_400_000_000, [0; 16]), "0".repeat(27));
        // The largest of the format's definition.
        assert_eq!(ksuid(1_400_000_000 + u64::from(u32::MAX), [0xff; 16]), "aWgEPTl1tmebfsQzFP4bxwgy80V");
    }

    #[test]
    fn the_field_goes_both_ways() {
        let check = |conf: serde_json::Value, fields: &str, answer: &str, sent: &str, answered: &str| {
            let plugin = entry("request-id", conf).unwrap();
            let mut case = Case::new(&format!("{REQUEST}{fields}"));
            case.run(&plugin, Phase::Rewrite);
            case.respond(200, answer);
            case.header_filter(&plugin);
            assert_eq!(case.sent("X-Id").unwrap_or_default(), sent);
            assert_eq!(case.answered("X-Id"), answered);
        };
        let named = || json!({"header_name": "X-Id"});
        check(named(), "\nX-Id: a", "", "a", "a");
        check(named(), "\nX-Id: a\nx-id: b", "", "a", "a, b");
        check(named(), "\nX-Id: a", "X-Id: n", "a", "n");
        check(named(), "\nX-Id: a", "X-Id: ", "a", "a");
        check(json!({"header_name": "X-Id", "include_in_response": false}), "\nX-Id: a", "", "a", "");
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check =
            |conf: serde_json::Value, expected: &str| assert_eq!(refusal("request-id", &conf), expected);
        check(
            json!({"algorithm": "snowflake"}),
            "property \"algorithm\" validation failed: matches none of the enum values",
        );
        check(
            json!({"range_id": {"length": 5}}),
            "property \"range_id\" validation failed: property \"length\" validation failed: expected 5 to be at least 6",
        );
        for name in ["a b", "", "Content-Length", "transfer-encoding", "Host"] {
            check(
                json!({"header_name": name}),
                &format!("`header_name`: `{name}` cannot carry a request id"),
            );
        }
    }
}
