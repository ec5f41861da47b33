//! Configured health checks, compiled for probing and judging.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sigma_config::checks::{self, CheckType, Checks, PassiveType};
use sigma_config::resources::ProxyProtocolVersion;
use sigma_http::proxy_protocol::{self, Header};
use sigma_net::tls::ClientTls;

use super::outlier::Rules;
use super::state::{Event, Limits, State};

/// Compiled checks of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The active checks, if there are any.
    pub active: Option<Active>,
    /// The passive checks, if there are any.
    pub passive: Option<Passive>,
    /// The time after which a target without probes is used again.
    pub fail_timeout: Duration,
    /// The rules of outlier detection, if it is on.
    pub outliers: Option<Rules>,
    /// The agent checks, if there are any.
    pub agent: Option<Agent>,
    /// The record of requests, if probes depend on traffic.
    pub traffic: Option<Traffic>,
}

/// A flag for recent requests. Two are always equal: it is not a setting.
#[derive(Debug, Clone)]
pub struct Traffic(pub Arc<AtomicBool>);

impl PartialEq for Traffic {
    fn eq(&self, _: &Traffic) -> bool {
        true
    }
}

impl Traffic {
    /// Records a request. Usually it is set already, and nothing is written.
    #[inline]
    pub fn note(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if there was a request since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The settings of agent checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The port on the address of the node.
    pub port: u16,
    /// The time between two checks.
    pub interval: Duration,
    /// The timeout of one check.
    pub timeout: Duration,
    /// The bytes to send first.
    pub send: String,
    /// Nodes have request limits, which agents may change.
    pub bounds: bool,
}

/// The bytes that a probe sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Nothing; a connection is success
    Tcp,
    /// An HTTP request, split around the value of the Host header
    Http {
        /// The request line and all up to `Host: `.
        before_host: Vec<u8>,
        /// The rest, beginning with the line end after the host.
        after_host: Vec<u8>,
        /// A text that must be in the body of a successful response.
        expected: Option<String>,
    },
    /// A call of gRPC's health service for this service
    Grpc(String),
}

/// The TLS of probes. Two are equal if they are the same object.
#[derive(Debug, Clone)]
pub struct ProbeTls(pub ClientTls);

impl PartialEq for ProbeTls {
    fn eq(&self, other: &ProbeTls) -> bool {
        self.0.is_same(&other.0)
    }
}

/// Compiled active checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Active {
    /// The bytes to send.
    pub probe: Probe,
    /// The TLS settings of probes over TLS.
    pub tls: Option<ProbeTls>,
    /// The first bytes for nodes that expect a PROXY header: one without a client. Empty for other nodes.
    pub introduction: Vec<u8>,
    /// The timeout of each of connecting, sending and receiving.
    pub timeout: Duration,
    /// Concurrent probes, per loop; at least 1.
    pub concurrency: usize,
    /// The port to probe instead of the endpoint's.
    pub port: Option<u16>,
    /// The Host header of nodes whose upstream does not rewrite it; None: the node's own host.
    pub host: Option<String>,
    /// The Host header of all nodes (`pass_host: rewrite`).
    pub rewrite_host: Option<String>,
    /// The times between probes.
    pub intervals: ProbeIntervals,
    /// Statuses that are a success.
    pub healthy: StatusSet,
    /// Statuses that are a failure.
    pub unhealthy: StatusSet,
    /// The limits at which the state changes.
    pub limits: Limits,
}

/// The times between the probes of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeIntervals {
    /// For usable targets; None: not probed.
    pub healthy: Option<Duration>,
    /// For unusable targets; None: not probed.
    pub unhealthy: Option<Duration>,
    /// For targets whose state is about to change; None: as in their state.
    pub fast: Option<Duration>,
    /// For usable targets without requests; None: as with requests.
    pub no_traffic: Option<Duration>,
    /// The largest random addition to a time, in percent.
    pub jitter_percent: u8,
}

/// Compiled passive checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passive {
    /// Statuses do not count because the section says so.
    by_connection_only: bool,
    /// Statuses that are a success; empty without a `passive` section.
    pub healthy: StatusSet,
    /// Statuses that are a failure; empty without a `passive` section.
    pub unhealthy: StatusSet,
    /// The limits at which the state changes, for final statuses and failed attempts before a retry.
    pub limits: Limits,
}

impl Passive {
    /// Returns the event for a node from a request's final status; None without one.
    #[inline]
    pub fn judge(&self, status: u16) -> Option<Event> {
        judge(&self.healthy, &self.unhealthy, status)
    }
}

impl ProbeIntervals {
    fn compile(section: &checks::Active) -> Result<ProbeIntervals, PlanError> {
        let seconds = |n: u32| (n > 0).then(|| Duration::from_secs(u64::from(n)));
        let fast = section.fast_interval.map(|fast| time(fast, "/active/fast_interval"));
        Ok(ProbeIntervals {
            healthy: seconds(section.healthy().interval),
            unhealthy: seconds(section.unhealthy().interval),
            fast: fast.transpose()?,
            no_traffic: section.no_traffic_interval.and_then(seconds),
            jitter_percent: section.interval_jitter_percent,
        })
    }

    /// Returns the time until the next probe of a target that was just probed; None if it is not probed. `random` are
    /// 64 random bits.
    pub fn pause(&self, state: State, is_idle: bool, random: u64) -> Option<Duration> {
        let (usual, turns) = match state {
            State::Healthy | State::MostlyHealthy => (self.healthy?, state == State::MostlyHealthy),
            State::Unhealthy | State::MostlyUnhealthy => (self.unhealthy?, state == State::MostlyUnhealthy),
        };
        let pause = match (self.fast, self.no_traffic) {
            (Some(fast), _) if turns => fast,
            (_, Some(slow)) if is_idle && state == State::Healthy => slow,
            _ => usual,
        };
        let part = f64::from(self.jitter_percent) / 100.0 * (random as f64 / u64::MAX as f64);
        Some(pause.mul_f64(1.0 + part))
    }
}

impl Active {
    /// Returns the event for a probe's status; None without one. 0 means a response without a status.
    pub fn judge(&self, status: u16) -> Option<Event> {
        if status == 0 { Some(Event::HttpFailure) } else { judge(&self.healthy, &self.unhealthy, status) }
    }
}

fn judge(healthy: &StatusSet, unhealthy: &StatusSet, status: u16) -> Option<Event> {
    if healthy.contains(status) {
        Some(Event::Success)
    } else if unhealthy.contains(status) {
        Some(Event::HttpFailure)
    } else {
        None
    }
}

/// A set of HTTP statuses below 640.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatusSet([u64; 10]);

impl StatusSet {
    /// Returns true if `status` is in the set.
    #[inline]
    pub fn contains(&self, status: u16) -> bool {
        let word = self.0.get(usize::from(status >> 6)).copied().unwrap_or(0);
        word >> (status & 63) & 1 == 1
    }
}

impl FromIterator<u16> for StatusSet {
    fn from_iter<I: IntoIterator<Item = u16>>(statuses: I) -> StatusSet {
        let mut set = StatusSet::default();
        for status in statuses {
            if let Some(word) = set.0.get_mut(usize::from(status >> 6)) {
                *word |= 1 << (status & 63);
            }
        }
        set
    }
}

/// The reason why checks cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The position, as a pointer below `checks`.
    pub pointer: &'static str,
    /// The reason and the remedy.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checks{}: {}", self.pointer, self.message)
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Returns `tcp`, `http`, `https`, `grpc` or `grpcs`: the protocol of a probe; without probes, of the judged
    /// traffic.
    pub fn probe_name(&self) -> &'static str {
        let Some(active) = &self.active else {
            let by_connection = self.passive.is_some_and(|passive| passive.by_connection_only);
            return if by_connection { "tcp" } else { "http" };
        };
        match active.probe {
            Probe::Tcp => "tcp",
            Probe::Grpc(_) if active.tls.is_some() => "grpcs",
            Probe::Grpc(_) => "grpc",
            Probe::Http { .. } if active.tls.is_some() => "https",
            Probe::Http { .. } => "http",
        }
    }

    /// Returns true if probes, an agent, outlier detection or a `passive` section judge targets. Active checks without
    /// an interval send no probe; only failed connections and timeouts of requests count then.
    pub fn judges(&self) -> bool {
        let probes =
            |active: &Active| active.intervals.healthy.is_some() || active.intervals.unhealthy.is_some();
        let has_section =
            |passive: Passive| passive.by_connection_only || passive.unhealthy != StatusSet::default();
        self.active.as_ref().is_none_or(probes)
            || self.agent.is_some()
            || self.outliers.is_some()
            || self.passive.is_some_and(has_section)
    }

    /// Returns true if probes can find that an unusable target is healthy again.
    pub fn probes_unusable(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.intervals.unhealthy.is_some())
    }

    /// Compiles `checks`.
    ///
    /// `rewrite_host` is `upstream_host` if `pass_host` is `rewrite`. The Host header of a probe is that, else the
    /// node's host if it is a name, else `active.host`, else the node's host. Over TLS, with the settings `tls`, the
    /// server name is the same.
    ///
    /// # Errors
    /// Returns an error if a header line would break a request, or if probes use TLS and `tls` is None.
    pub fn compile(
        checks: &Checks,
        rewrite_host: Option<&str>,
        tls: Option<&ClientTls>,
    ) -> Result<Plan, PlanError> {
        let active = checks.active.as_ref();
        let section = checks.passive.as_ref();
        let fail_timeout = section.and_then(|passive| passive.fail_timeout).unwrap_or(FAIL_TIMEOUT);
        Ok(Plan {
            active: active.map(|section| self::active(section, rewrite_host, tls)).transpose()?,
            passive: Some(passive(section)),
            fail_timeout: time(fail_timeout, "/passive/fail_timeout")?,
            outliers: None,
            agent: checks.agent.as_ref().map(agent).transpose()?,
            traffic: None,
        })
    }

    /// Makes probes begin with a PROXY header of this version, unless they go to another port than requests.
    pub fn introduce(&mut self, version: ProxyProtocolVersion) {
        let Some(active) = self.active.as_mut().filter(|active| active.port.is_none()) else { return };
        match version {
            ProxyProtocolVersion::V1 => proxy_protocol::encode_v1(&Header::Own, &mut active.introduction),
            ProxyProtocolVersion::V2 => proxy_protocol::encode_v2(&Header::Own, &mut active.introduction),
        }
    }

    /// Returns a plan of outlier detection without checks.
    pub fn comparing(rules: Rules) -> Plan {
        let fail_timeout = Duration::from_secs_f64(FAIL_TIMEOUT);
        Plan { active: None, passive: None, fail_timeout, outliers: Some(rules), agent: None, traffic: None }
    }
}

fn agent(section: &checks::Agent) -> Result<Agent, PlanError> {
    Ok(Agent {
        port: section.port,
        interval: time(section.interval, "/agent/interval")?,
        timeout: time(section.timeout, "/agent/timeout")?,
        send: section.send.clone(),
        bounds: false,
    })
}

/// In seconds; nginx's default.
const FAIL_TIMEOUT: f64 = 10.0;

fn time(seconds: f64, pointer: &'static str) -> Result<Duration, PlanError> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| PlanError {
        pointer,
        message: format!("{seconds} is not a time; write seconds above 0"),
    })
}

fn active(
    section: &checks::Active,
    rewrite_host: Option<&str>,
    tls: Option<&ClientTls>,
) -> Result<Active, PlanError> {
    let (healthy, unhealthy) = (section.healthy(), section.unhealthy());
    Ok(Active {
        probe: probe(section)?,
        tls: probe_tls(section, tls)?,
        introduction: Vec::new(),
        timeout: time(section.timeout, "/active/timeout")?,
        concurrency: (section.concurrency as usize).max(1),
        port: section.port,
        host: section.host.clone(),
        rewrite_host: rewrite_host.map(str::to_owned),
        intervals: ProbeIntervals::compile(section)?,
        healthy: healthy.http_statuses.iter().copied().collect(),
        unhealthy: unhealthy.http_statuses.iter().copied().collect(),
        limits: Limits {
            successes: healthy.successes,
            http_failures: unhealthy.http_failures,
            tcp_failures: unhealthy.tcp_failures,
            timeouts: unhealthy.timeouts,
        },
    })
}

fn passive(section: Option<&checks::Passive>) -> Passive {
    let defaults = checks::Passive::default();
    let checks::Passive { healthy, unhealthy, .. } = section.unwrap_or(&defaults);
    // Statuses count only if the section exists and is about HTTP; failed attempts always do.
    let by_status = section.is_some_and(|s| s.kind != PassiveType::Tcp);
    let set = |statuses: &[u16]| statuses.iter().copied().filter(|_| by_status).collect();
    Passive {
        by_connection_only: section.is_some_and(|s| s.kind == PassiveType::Tcp),
        healthy: set(&healthy.http_statuses),
        unhealthy: set(&unhealthy.http_statuses),
        limits: Limits {
            successes: healthy.successes,
            http_failures: unhealthy.http_failures,
            tcp_failures: unhealthy.tcp_failures,
            timeouts: unhealthy.timeouts,
        },
    }
}

fn probe_tls(active: &checks::Active, tls: Option<&ClientTls>) -> Result<Option<ProbeTls>, PlanError> {
    match (active.kind, tls) {
        (CheckType::Https | CheckType::Grpcs, Some(tls)) => Ok(Some(ProbeTls(tls.clone()))),
        (CheckType::Https | CheckType::Grpcs, None) => {
            let message =
                "a probe over TLS needs TLS settings, which this upstream lacks; use `http`, `grpc` or `tcp`"
                    .to_owned();
            Err(PlanError { pointer: "/active/type", message })
        }
        (CheckType::Http | CheckType::Tcp | CheckType::Grpc, _) => Ok(None),
    }
}

fn probe(active: &checks::Active) -> Result<Probe, PlanError> {
    match active.kind {
        CheckType::Tcp => return Ok(Probe::Tcp),
        CheckType::Grpc | CheckType::Grpcs => {
            return Ok(Probe::Grpc(active.grpc_service.clone().unwrap_or_default()));
        }
        CheckType::Http | CheckType::Https => {}
    }
    let broken = |text: &str| text.contains(['\r', '\n', '\0']);
    if broken(&active.http_path) || active.http_path.contains(' ') || !active.http_path.starts_with('/') {
        let message = format!("{:?} is not a path; begin with `/`, without spaces", active.http_path);
        return Err(PlanError { pointer: "/active/http_path", message });
    }
    let mut after_host = String::from("\r\n");
    for line in &active.req_headers {
        let named = line.split_once(':').is_some_and(|(name, _)| !name.is_empty() && !name.contains(' '));
        if broken(line) || !named {
            let message = format!("{line:?} is not a header line; write `Name: value`");
            return Err(PlanError { pointer: "/active/req_headers", message });
        }
        after_host.push_str(line);
        after_host.push_str("\r\n");
    }
    let body = &active.http_req_body;
    if !body.is_empty() {
        after_host.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    after_host.push_str("\r\n");
    after_host.push_str(body);
    let start =
        format!("{} {} HTTP/1.1\r\nConnection: close\r\nHost: ", active.http_method, active.http_path);
    Ok(Probe::Http {
        before_host: start.into_bytes(),
        after_host: after_host.into_bytes(),
        expected: active.http_expected_body.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(change: impl FnOnce(&mut Checks)) -> Result<Plan, PlanError> {
        let mut checks = Checks { active: Some(checks::Active::default()), ..Checks::default() };
        change(&mut checks);
        Plan::compile(&checks, None, None)
    }

    #[test]
    fn statuses_are_judged_by_section() {
        let plan = compile(|c| c.passive = Some(checks::Passive::default())).expect("valid");
        let passive = |plan: &Plan| plan.passive.expect("passive checks");
        let check = |status, active, by_traffic| {
            assert_eq!(
                (plan.active.as_ref().expect("active").judge(status), passive(&plan).judge(status)),
                (active, by_traffic),
                "{status}"
            );
        };
        check(200, Some(Event::Success), Some(Event::Success));
        check(201, None, Some(Event::Success));
        check(404, Some(Event::HttpFailure), None);
        check(503, Some(Event::HttpFailure), Some(Event::HttpFailure));
        check(0, Some(Event::HttpFailure), None);
        check(999, None, None);
        let without = compile(|_| ()).expect("valid");
        assert_eq!(passive(&without).judge(503), None);
        assert_eq!(passive(&without).limits, passive(&plan).limits);
        let tcp = checks::Passive { kind: PassiveType::Tcp, ..checks::Passive::default() };
        assert_eq!(
            compile(|c| c.passive = Some(tcp)).expect("valid").passive.expect("passive").judge(503),
            None
        );
    }

    #[test]
    fn active_checks_without_an_interval_judge_nothing() {
        let check = |change: &dyn Fn(&mut Checks), expected: bool| {
            assert_eq!(compile(change).expect("valid").judges(), expected);
        };
        let active = |active: checks::Active| move |c: &mut Checks| c.active = Some(active.clone());
        let healthy = Some(checks::ActiveHealthy::default());
        let unhealthy = Some(checks::ActiveUnhealthy::default());
        check(&|_| (), false);
        check(&active(checks::Active { healthy, ..Default::default() }), true);
        check(&active(checks::Active { unhealthy, ..Default::default() }), true);
        check(&|c| c.passive = Some(checks::Passive::default()), true);
        let tcp = checks::Passive { kind: PassiveType::Tcp, ..checks::Passive::default() };
        check(&|c| c.passive = Some(tcp.clone()), true);
        check(&|c| *c = Checks { passive: Some(tcp.clone()), ..Checks::default() }, true);
    }

    #[test]
    fn impossible_probes_are_reported() {
        let check = |change: &dyn Fn(&mut checks::Active), pointer: &str| {
            let error = compile(|c| change(c.active.as_mut().expect("active"))).expect_err(pointer);
            assert_eq!(error.pointer, pointer);
        };
        check(&|a| a.kind = CheckType::Https, "/active/type");
        let never = checks::Passive { fail_timeout: Some(0.0), ..checks::Passive::default() };
        let error = compile(|c| c.passive = Some(never)).expect_err("no time");
        assert_eq!(error.pointer, "/passive/fail_timeout");
        check(&|a| a.timeout = -1.0, "/active/timeout");
        check(&|a| a.timeout = f64::NAN, "/active/timeout");
        check(&|a| a.http_path = "/a\r\nb".into(), "/active/http_path");
        check(&|a| a.req_headers = vec!["no colon".into()], "/active/req_headers");
        check(&|a| a.req_headers = vec!["A: b\r\nC: d".into()], "/active/req_headers");
    }

    #[test]
    fn pauses_follow_the_state_and_the_traffic() {
        let second = Duration::from_secs(1);
        let plan = compile(|c| {
            let active = c.active.as_mut().expect("active");
            active.healthy = Some(checks::ActiveHealthy { interval: 10, ..Default::default() });
            active.unhealthy = Some(checks::ActiveUnhealthy { interval: 5, ..Default::default() });
            (active.fast_interval, active.no_traffic_interval) = (Some(1.0), Some(60));
            active.interval_jitter_percent = 50;
        });
        let intervals = plan.expect("valid").active.expect("active").intervals;
        let check = |state, is_idle, random, seconds: f64| {
            let pause = intervals.pause(state, is_idle, random).expect("probed").as_secs_f64();
            assert!((pause - seconds).abs() < 0.001, "{state:?} {is_idle}: {pause}");
        };
        check(State::Healthy, false, 0, 10.0);
        check(State::Healthy, true, 0, 60.0);
        check(State::MostlyHealthy, true, 0, 1.0);
        check(State::Unhealthy, true, 0, 5.0);
        check(State::MostlyUnhealthy, false, 0, 1.0);
        check(State::Healthy, false, u64::MAX, 15.0);
        let never = ProbeIntervals { unhealthy: None, ..intervals.clone() };
        assert_eq!(never.pause(State::MostlyUnhealthy, false, 0), None);
        let plain = ProbeIntervals { fast: None, no_traffic: None, jitter_percent: 0, ..intervals };
        assert_eq!(plain.pause(State::MostlyHealthy, true, u64::MAX), Some(second * 10));
    }
}
