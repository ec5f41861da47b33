//! `chaitin-waf`: a detector of SafeLine says whether a request is an attack.

mod config;
pub(crate) mod t1k;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::outbound::{BytesAnswer, BytesCall, BytesError, Missing};
use sigma_plugin::step::BodyStart;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Slot, Step,
};
use sigma_schema::described::schema_of;

use config::{Config, Match, Metadata, Mode, Settings};
use sigma_plugin_kit::fields::{frames, is_name};
use sigma_plugin_kit::log_throttle::LogThrottle;
use t1k::Verdict;

/// The plugin.
pub(crate) static CHAITIN_WAF: Descriptor = Descriptor {
    name: "chaitin-waf",
    priority: 2700,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<Metadata>),
    variables: &[VariableField::guard("match.*.vars", VariableForm::Condition)],
    upstreams_by_metadata: Some(|conf, metadata| config::upstream(conf, metadata).into_iter().collect()),
    build: |build| Ok(Arc::new(ChaitinWaf::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of the detectors among the plugin's upstreams.
const DETECTORS: &str = "detectors";

/// Most bytes of a verdict.
const ANSWER_BYTES: usize = 64 << 10;

/// The prefix of the fields about the WAF for a client.
const FIELD: &str = "X-APISIX-CHAITIN-WAF";

struct ChaitinWaf(Arc<Waf>);

/// The requests to detectors, and the handling of verdicts.
struct Waf {
    config: Config,
    /// How the detectors are queried; None where no metadata say where they are.
    detectors: Option<Detectors>,
}

struct Detectors {
    /// The key of their upstream.
    upstream: Box<str>,
    settings: Settings,
}

/// The result for a request, kept for the client's response.
#[derive(Default)]
struct WafReport {
    /// In one word.
    outcome: &'static str,
    error: Option<String>,
    server: Option<String>,
    took: Option<Duration>,
    verdict: Option<Verdict>,
    /// The detector's fields go to the client.
    blocks: bool,
}

impl ChaitinWaf {
    fn new(build: &Build<'_>) -> Result<ChaitinWaf, String> {
        let config: Config = build.config()?;
        let metadata = Option::<Metadata>::deserialize(build.metadata).map_err(|error| error.to_string())?;
        let detectors = metadata.map(|metadata| Detectors {
            upstream: build.upstream_key(DETECTORS).into(),
            settings: Settings::of(&config, &metadata),
        });
        Ok(ChaitinWaf(Arc::new(Waf { config, detectors })))
    }
}

impl Detectors {
    /// Returns the data of a request for a detector. `id` distinguishes it  from others.
    fn detector_request(&self, ctx: &Context, env: &Env<'_>, id: u128, start: &BodyStart) -> Vec<u8> {
        let body = Some(&*start.bytes).filter(|bytes| !bytes.is_empty());
        t1k::detection_request(&head(ctx), body, self.facts(ctx, env, id).as_bytes())
    }

    fn facts(&self, ctx: &Context, env: &Env<'_>, id: u128) -> String {
        let peer = ctx.client.peer.map(|peer| peer.to_canonical().to_string());
        let (remote, local) = (ctx.remote_addr(), ctx.client.local);
        let remote = if self.settings.real_client_ip { remote } else { peer.unwrap_or(remote) };
        let (local, local_port) = local.map_or_else(Default::default, |local| {
            (local.ip().to_canonical().to_string(), local.port().to_string())
        });
        let host = ctx.host_name();
        let facts: [(&str, &str); 11] = [
            ("UUID", &format!("{id:032x}")),
            ("RemoteAddr", &remote),
            ("RemotePort", &ctx.client.port.to_string()),
            ("LocalAddr", &local),
            ("LocalPort", &local_port),
            ("Scheme", ctx.scheme()),
            ("ServerName", &String::from_utf8_lossy(&host)),
            ("ProxyName", env.node.hostname()),
            ("ReqBeginTime", &env.unix_time().as_micros().to_string()),
            ("HasRspIfOK", "n"),
            ("HasRspIfBlock", "n"),
        ];
        // No value becomes another fact.
        let line = |(name, value): (&str, &str)| format!("{name}:{}\n", value.replace(['\r', '\n'], ""));
        facts.into_iter().map(line).collect()
    }
}

/// The head of the request, as if it had come by HTTP/1.1.
fn head(ctx: &Context) -> Vec<u8> {
    let request = &ctx.request;
    let mut head = [request.method_token(), b" ", request.path_and_query(), b" HTTP/1.1\r\n"].concat();
    let mut add = |name: &[u8], value: &[u8]| head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    if request.headers.get(HeaderId::Host).is_none() {
        add(b"Host", request.authority());
    }
    request.headers.iter().for_each(|(name, value)| add(name, value));
    head.extend_from_slice(b"\r\n");
    head
}

impl Waf {
    fn ask(self: Arc<Waf>, slot: Slot, ctx: &mut Context, env: &Env<'_>, start: &BodyStart) -> Step {
        let Some(detectors) = &self.detectors else { return self.without_metadata(slot, ctx) };
        let mut id = [0; 16];
        if let Err(error) = env.machine.fill_random(&mut id) {
            return self.without_verdict(slot, ctx, "waf-err", error, None);
        }
        let call = BytesCall {
            upstream: detectors.upstream.clone(),
            request: detectors.detector_request(ctx, env, u128::from_ne_bytes(id), start),
            end: t1k::end,
            timeout_ms: detectors.settings.timeout_ms,
            limit: ANSWER_BYTES,
        };
        let began = env.machine.uptime();
        Step::wait(env.outbound.call_bytes(call), move |answer, ctx, env| {
            let took = env.machine.uptime().saturating_sub(began);
            self.settle(slot, answer, took, ctx)
        })
    }

    fn settle(
        &self,
        slot: Slot,
        answer: Result<BytesAnswer, BytesError>,
        took: Duration,
        ctx: &mut Context,
    ) -> Step {
        let (bytes, server) = match answer {
            Ok(BytesAnswer { bytes, node }) => (bytes, node),
            Err(BytesError { reason, missing }) => {
                let outcome = match missing {
                    Missing::Node => "unhealthy",
                    Missing::Time => "timeout",
                    Missing::Response => "waf-err",
                };
                return self.without_verdict(slot, ctx, outcome, reason, Some(took));
            }
        };
        let verdict = match t1k::verdict(&bytes) {
            Ok(verdict) => verdict,
            Err(reason) => {
                let reason = format!("the response of a detector is malformed: {reason}");
                return self.without_verdict(slot, ctx, "waf-err", reason, Some(took));
            }
        };
        let (blocks, refused) = (self.blocks(), verdict.refused);
        let event_id = verdict.event_id.clone();
        let said = WafReport {
            outcome: "yes",
            server: Some(server),
            took: Some(took),
            blocks,
            ..WafReport::default()
        };
        ctx.keep(slot, WafReport { verdict: Some(verdict), ..said });
        match refused {
            Some(status) if blocks => {
                let body = format!(
                    "{{\"code\": {status}, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web \
                     Application Firewall\", \"event_id\": \"{event_id}\"}}\n"
                );
                Reply::new(status).text(body).because("the WAF reports an attack").into()
            }
            Some(_) => {
                static REJECTED: LogThrottle = LogThrottle::new();
                if let Some(left_out) = REJECTED.due() {
                    tracing::warn!(
                        left_out,
                        "chaitin-waf monitor mode: request would have been rejected, event_id: {event_id}"
                    );
                }
                Step::Next
            }
            None => Step::Next,
        }
    }

    fn blocks(&self) -> bool {
        self.detectors.as_ref().is_none_or(|detectors| detectors.settings.mode == Mode::Block)
    }

    /// Returns the step for a request without a verdict.
    fn without_verdict(
        &self,
        slot: Slot,
        ctx: &mut Context,
        outcome: &'static str,
        error: String,
        took: Option<Duration>,
    ) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(left_out, error, "chaitin-waf: no detector responded");
        }
        ctx.keep(slot, WafReport { outcome, error: Some(error), took, ..WafReport::default() });
        if self.blocks() { Step::status(500) } else { Step::Next }
    }

    fn without_metadata(&self, slot: Slot, ctx: &mut Context) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(left_out, "chaitin-waf: the plugin metadata with the detectors are missing");
        }
        let error = Some("missing metadata".to_owned());
        ctx.keep(slot, WafReport { outcome: "err", error, ..WafReport::default() });
        Step::status(500)
    }
}

impl Plugin for ChaitinWaf {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let slot = Slot::from(self);
        let Some(detectors) = &self.0.detectors else { return self.0.without_metadata(slot, ctx) };
        let matching = self.0.config.matching.as_deref().unwrap_or_default();
        let outcome = match detectors.settings.mode {
            Mode::Off => "off",
            _ if !matching.is_empty() && !matching.iter().any(|Match(rule)| rule.may_hold(ctx)) => "no",
            _ => {
                let waf = Arc::clone(&self.0);
                let then = move |ctx: &mut Context, env: &Env<'_>, start| waf.ask(slot, ctx, env, &start);
                return Step::ReadStart { limit: detectors.settings.body_bytes, then: Box::new(then) };
            }
        };
        ctx.keep(slot, WafReport { outcome, ..WafReport::default() });
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        let Some(said) = ctx.take_kept::<_, WafReport>(self) else { return ResponseStep::Next };
        let headers = &mut ctx.response.headers;
        for (name, value) in said.verdict.iter().filter(|_| said.blocks).flat_map(|verdict| &verdict.fields) {
            if is_name(name) && !frames(name) && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                headers.append(name, value);
            }
        }
        let Config { append_waf_resp_header: true, append_waf_debug_header: debugs, .. } = self.0.config
        else {
            return ResponseStep::Next;
        };
        let refused = said.verdict.as_ref().map(|verdict| verdict.refused);
        let fields = [
            ("", Some(said.outcome.to_owned())),
            ("-TIME", said.took.map(|took| took.as_millis().to_string())),
            ("-STATUS", refused.map(|refused| refused.unwrap_or(200).to_string())),
            ("-ACTION", refused.map(|refused| if refused.is_some() { "reject" } else { "pass" }.to_owned())),
            ("-ERROR", said.error.filter(|_| debugs)),
            ("-SERVER", said.server.filter(|_| debugs)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                headers.replace(&format!("{FIELD}{name}"), value.as_bytes());
            }
        }
        ResponseStep::Next
    }
}
