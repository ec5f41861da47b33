//! The time of a whole exchange: the limit of a route or an upstream, the limit of the client, and the rest that a node gets in a field.

use std::future::Future;
use std::task::{Context, Waker};

use sigma_config::resources;
use sigma_http::{Fault, FaultKind, RequestHead};
use sigma_net::{Deadline, deadline};

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The limit of a route or an upstream.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    timeout_ms: u64,
    header: Option<Box<str>>,
}

impl From<&resources::ExchangeDeadline> for TimeLimit {
    fn from(config: &resources::ExchangeDeadline) -> TimeLimit {
        TimeLimit { timeout_ms: (config.timeout * 1000.0).ceil() as u64, header: config.header.clone() }
    }
}

/// The time that one exchange has.
#[derive(Debug)]
pub(crate) struct TimeLeft<'l> {
    deadline: Deadline,
    ends_ms: u64,
    /// The time that the client gave a call, which is still in its field.
    call_ms: Option<u64>,
    limit: Option<&'l TimeLimit>,
    is_call: bool,
    /// The client gives less than the limit.
    is_clients: bool,
}

impl<'l> TimeLeft<'l> {
    /// Returns the shorter of `limit` and the client's own limit. None if neither says anything. It began `spent_ms`
    /// ago.
    ///
    /// # Errors
    /// Returns an error if nothing is left of it: no node is asked then, and none could be blamed.
    pub(crate) fn of(
        head: &RequestHead,
        is_call: bool,
        limit: Option<&'l TimeLimit>,
        spent_ms: u64,
    ) -> Result<Option<TimeLeft<'l>>, Fault> {
        let field = |name: &str| head.headers.find(name.as_bytes());
        let call_ms = if is_call { field(GRPC_TIMEOUT).and_then(parse_timeout) } else { None };
        let header = limit.and_then(|limit| limit.header.as_deref());
        let client_ms = header.and_then(field).and_then(parse_ms);
        let limit_ms = limit.map(|limit| limit.timeout_ms);
        let Some(timeout_ms) = [call_ms, client_ms, limit_ms].into_iter().flatten().min() else {
            return Ok(None);
        };
        let is_clients = limit_ms.is_none_or(|limit_ms| timeout_ms < limit_ms);
        let timeout_ms = timeout_ms.saturating_sub(spent_ms);
        if timeout_ms == 0 {
            return Err(over(limit));
        }
        let deadline = Deadline::new();
        deadline.set(timeout_ms);
        let ends_ms = deadline::now_ms().saturating_add(timeout_ms);
        Ok(Some(TimeLeft { deadline, ends_ms, call_ms, limit, is_call, is_clients }))
    }

    /// Returns the outcome of `work`, or a fault when the time has ended first.
    pub(crate) async fn bound<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.deadline.bound(work).await.unwrap_or_else(|| Err(over(self.limit)))
    }

    /// Returns its end, and the fault then.
    pub(crate) fn end(&self) -> (u64, Fault) {
        (self.ends_ms, over(self.limit))
    }

    /// Returns true if the client's limit is the shorter one.
    pub(crate) fn is_clients(&self) -> bool {
        self.is_clients
    }

    /// Returns true if it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.poll_expired(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Sends the node of the next attempt the remaining time.
    pub(crate) fn tell(&self, head: &mut RequestHead) {
        let left_ms = self.ends_ms.saturating_sub(deadline::now_ms()).max(1);
        if self.is_call && self.call_ms.is_none_or(|known| left_ms < known) {
            head.headers.replace(GRPC_TIMEOUT, call_timeout(left_ms).as_bytes());
        }
        if let Some(header) = self.limit.and_then(|limit| limit.header.as_deref()) {
            head.headers.replace(header, itoa::Buffer::new().format(left_ms).as_bytes());
        }
    }
}

fn over(limit: Option<&TimeLimit>) -> Fault {
    let reason = match limit {
        None => "the client's deadline for the call has passed",
        Some(_) => "the deadline of the exchange has passed",
    };
    Fault::new(FaultKind::ResponseTimeout, reason)
}

/// At most eight digits and a unit (gRPC over HTTP/2, "Requests").
fn parse_timeout(text: &[u8]) -> Option<u64> {
    let (unit, digits) = text.split_last()?;
    if digits.len() > 8 {
        return None;
    }
    let n = parse_ms(digits)?;
    Some(match unit {
        b'H' => n * 3_600_000,
        b'M' => n * 60_000,
        b'S' => n * 1_000,
        b'm' => n,
        b'u' => n.div_ceil(1_000),
        b'n' => n.div_ceil(1_000_000),
        _ => return None,
    })
}

fn parse_ms(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

/// In milliseconds while they have eight digits.
fn call_timeout(ms: u64) -> String {
    match ms {
        0..100_000_000 => format!("{ms}m"),
        _ => format!("{}S", (ms / 1_000).min(99_999_999)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        for (text, expected) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3_000)),
            ("250m", Some(250)),
            ("1500u", Some(2)),
            ("1n", Some(1)),
            ("99999999H", Some(99_999_999 * 3_600_000)),
            ("", None),
            ("S", None),
            ("1", None),
            ("123456789m", None),
            ("-1S", None),
            ("1x", None),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(call_timeout(99_999_999), "99999999m");
        assert_eq!(call_timeout(100_000_000), "100000S");
        assert_eq!(call_timeout(u64::MAX), "99999999S");
    }

    /// Checks the fields that the node gets, by the fields of the client and the limit.
    #[track_caller]
    fn check(limit: Option<&TimeLimit>, is_call: bool, fields: &[(&str, &str)], want: &[(&str, &str)]) {
        let mut head = RequestHead::default();
        fields.iter().for_each(|(name, value)| head.headers.append(name, value.as_bytes()));
        if let Ok(Some(left)) = TimeLeft::of(&head, is_call, limit, 0) {
            left.tell(&mut head);
        }
        let told: Vec<(String, String)> = head
            .headers
            .iter()
            .map(|(name, value)| [name, value].map(|text| String::from_utf8_lossy(text).into_owned()).into())
            .collect();
        let told: Vec<(&str, &str)> = told.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(told, want, "{limit:?} {is_call} {fields:?}");
    }

    #[test]
    fn time_that_was_spent_is_not_left() {
        let limit = TimeLimit { timeout_ms: 100, header: None };
        let left = |spent_ms| TimeLeft::of(&RequestHead::default(), false, Some(&limit), spent_ms);
        assert!(left(99).is_ok_and(|left| left.is_some()));
        assert_eq!(left(100).map(drop).map_err(|fault| fault.kind), Err(FaultKind::ResponseTimeout));
        assert!(left(u64::MAX).is_err());
    }

    #[test]
    fn nodes_receive_the_shortest_time() {
        let plain = TimeLimit { timeout_ms: 5_000, header: None };
        let named = TimeLimit { timeout_ms: 5_000, header: Some("X-Time".into()) };
        let timeout = |text| ("grpc-timeout", text);
        check(None, true, &[timeout("10S")], &[timeout("10S")]);
        check(None, true, &[], &[]);
        check(Some(&plain), false, &[], &[]);
        check(Some(&plain), false, &[timeout("10S")], &[timeout("10S")]);
        check(Some(&plain), true, &[timeout("10S")], &[timeout("5000m")]);
        check(Some(&plain), true, &[timeout("3S")], &[timeout("3S")]);
        check(Some(&plain), true, &[], &[timeout("5000m")]);
        check(Some(&named), false, &[], &[("X-Time", "5000")]);
        check(Some(&named), false, &[("X-Time", "800")], &[("X-Time", "800")]);
        // A client cannot extend the time, and an invalid number is ignored.
        for text in ["800000", "99999999999999999999", "-1", "1e3", ""] {
            check(Some(&named), false, &[("X-Time", text)], &[("X-Time", "5000")]);
        }
        check(Some(&named), true, &[("X-Time", "700")], &[timeout("700m"), ("X-Time", "700")]);
    }

    #[test]
    fn the_time_goes_on_over_several_upstreams() {
        let named = TimeLimit { timeout_ms: 5_000, header: Some("X-Time".into()) };
        for (spent_ms, told) in [(0, "5000"), (2_000, "3000"), (4_999, "1")] {
            let mut head = RequestHead::default();
            let left = TimeLeft::of(&head, false, Some(&named), spent_ms).expect("time").expect("a limit");
            left.tell(&mut head);
            assert_eq!(head.headers.find(b"X-Time"), Some(told.as_bytes()), "{spent_ms}");
        }
    }
}
