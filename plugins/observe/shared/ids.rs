//! The ids of traces and spans, and their digits.

use sigma_plugin::{Env, hex};

/// The id of a trace; not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId([u8; 16]);

/// The id of a span; not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanId([u8; 8]);

impl TraceId {
    /// From 32 hexadecimal digits of either case, not all of them zero.
    pub(crate) fn parse(digits: &[u8]) -> Option<TraceId> {
        bytes_of(digits).filter(|id| *id != [0; 16]).map(TraceId)
    }

    /// Makes an id from its bytes.
    pub(crate) fn of(bytes: [u8; 16]) -> TraceId {
        TraceId(bytes)
    }

    /// A new one.
    pub(crate) fn draw(env: &Env<'_>) -> TraceId {
        TraceId(drawn(env))
    }

    pub(crate) fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// 32 digits in lower case.
    pub(crate) fn hex(&self) -> [u8; 32] {
        let mut out = [0; 32];
        hex::write(&self.0, &mut out);
        out
    }
}

impl SpanId {
    /// From 16 hexadecimal digits of either case, not all of them zero.
    pub(crate) fn parse(digits: &[u8]) -> Option<SpanId> {
        bytes_of(digits).filter(|id| *id != [0; 8]).map(SpanId)
    }

    /// Makes an id from its bytes.
    pub(crate) fn of(bytes: [u8; 8]) -> SpanId {
        SpanId(bytes)
    }

    /// A new one.
    pub(crate) fn draw(env: &Env<'_>) -> SpanId {
        SpanId(drawn(env))
    }

    pub(crate) fn bytes(&self) -> [u8; 8] {
        self.0
    }

    /// 16 digits in lower case.
    pub(crate) fn hex(&self) -> [u8; 16] {
        let mut out = [0; 16];
        hex::write(&self.0, &mut out);
        out
    }
}

/// Digits as text.
pub(crate) fn text(digits: &[u8]) -> String {
    String::from_utf8_lossy(digits).into_owned()
}

/// A UUID of version 4.
pub(crate) fn uuid(env: &Env<'_>) -> String {
    let mut bytes = random::<16>(env);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut digits = [0; 32];
    hex::write(&bytes, &mut digits);
    let digits = text(&digits);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Whether something that happens with this probability happens now.
pub(crate) fn happens(probability: f64, env: &Env<'_>) -> bool {
    // As many bits as a float has; so the result is below 1.
    let drawn = (env.local.random() >> 11) as f64 / (1_u64 << 53) as f64;
    drawn < probability
}

/// Random bytes of the system, or of the worker's generator if the system cannot provide any.
fn random<const N: usize>(env: &Env<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    if env.machine.fill_random(&mut bytes).is_err() {
        bytes.fill_with(|| (env.local.random() >> 32) as u8);
    }
    bytes
}

fn drawn<const N: usize>(env: &Env<'_>) -> [u8; N] {
    let mut bytes = random(env);
    if bytes == [0; N] {
        bytes[N - 1] = 1;
    }
    bytes
}

fn bytes_of<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| (pair[at] as char).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Case;

    proptest! {
        #[test]
        fn ids_are_read_as_they_are_written(trace: [u8; 16], span: [u8; 8]) {
            let (trace, span) = (TraceId(trace), SpanId(span));
            prop_assume!(trace.0 != [0; 16] && span.0 != [0; 8]);
            prop_assert_eq!(TraceId::parse(&trace.hex()), Some(trace));
            prop_assert_eq!(TraceId::parse(&trace.hex().to_ascii_uppercase()), Some(trace));
            prop_assert_eq!(SpanId::parse(&span.hex()), Some(span));
        }
    }

    #[test]
    fn invalid_ids_are_refused() {
        for digits in
            ["", "0", "0000000000000000", "000000000000000g", "00000000000000001", "+000000000000001"]
        {
            assert_eq!(SpanId::parse(digits.as_bytes()), None, "{digits}");
        }
        assert_eq!(TraceId::parse(&[b'0'; 32]), None);
        assert_eq!(TraceId::parse(&[b'1'; 16]), None);
    }

    #[test]
    fn new_ids_differ_and_uuids_look_like_it() {
        let case = Case::new("GET / HTTP/1.1\nHost: h");
        let env = Env::new(&case.node, &case.local, &case.consumers);
        assert_ne!(TraceId::draw(&env), TraceId::draw(&env));
        assert_ne!(SpanId::draw(&env), SpanId::draw(&env));
        let uuid = uuid(&env);
        assert_eq!((uuid.len(), &uuid[14..15], uuid.matches('-').count()), (36, "4", 4), "{uuid}");
    }

    #[test]
    fn shares_are_kept() {
        let case = Case::new("GET / HTTP/1.1\nHost: h");
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let share = |probability: f64| (0..1000).filter(|_| happens(probability, &env)).count();
        assert_eq!((share(0.0), share(1.0)), (0, 1000));
        assert!((100..400).contains(&share(0.25)), "{}", share(0.25));
    }
}
