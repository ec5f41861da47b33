//! Responses that are looked at on their way: the head when it is there, the body once it is whole.

use std::rc::Rc;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Headers};
use sigma_plugin::record::Source;
use sigma_plugin::{BodyFilter, Context, Env, Pieces, Reply, ResponseStep, Slot, Transform};
use sigma_schema::validation::SchemaId;

use super::Validator;
use super::answers::{Fate, Kind, Unfit, Wrong};
use super::specification::Specification;
use sigma_plugin_kit::budget::{Share, WorkerBytes};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::response_body::{Encoding, Undecoded, ask_for_readable};
use sigma_plugin_kit::tallies::Tally;

/// The action on responses that do not match the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    // They are errors in the log, and pass.
    Report,
    // The client gets a 502 in their place.
    Refuse,
}

/// The operation that a request was of, for its response.
pub(super) struct MatchedOperation {
    specification: Arc<Specification>,
    operation: usize,
    /// The schema of its body, once the head is known.
    look: Option<(SchemaId, Encoding)>,
}

/// The bodies that one worker holds.
#[derive(Default)]
struct Bodies(Rc<WorkerBytes>);

/// Never reported where a reply replaces the response.
const REFUSED: Fault = Fault::new(FaultKind::BadResponse, "the response does not match the document");

impl Validator {
    /// Remembers the operation of a request that continues, if its response is to be looked at.
    pub(super) fn expect(
        &self,
        slot: Slot,
        ctx: &mut Context,
        specification: &Arc<Specification>,
        operation: usize,
    ) {
        let Some(answers) = specification.answers(operation).filter(|_| self.answers.is_some()) else {
            return;
        };
        if answers.look_at_bodies() {
            ask_for_readable(&mut ctx.request.headers);
        }
        ctx.keep(slot, MatchedOperation { specification: Arc::clone(specification), operation, look: None });
    }

    /// Looks at the head of a response.
    pub(super) fn look(&self, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        let Some(verdict) = self.answers else { return ResponseStep::Next };
        let Some(mut asked) = ctx.take_kept::<_, MatchedOperation>(slot) else { return ResponseStep::Next };
        if !is_of_node(ctx) {
            return ResponseStep::Next;
        }
        let looked = asked.specification.look(asked.operation, ctx, self.limits());
        for wrong in &looked.wrong {
            self.note(verdict, wrong, &self.problems.tally(env.local));
        }
        if verdict == Verdict::Refuse && !looked.wrong.is_empty() {
            let told: Vec<&str> = looked.wrong.iter().map(|wrong| wrong.told.as_str()).collect();
            return ResponseStep::Replace(Box::new(self.refusal(&told.join("\n"))));
        }
        asked.look = looked.schema.map(|schema| (schema, Encoding::of(&ctx.response.headers)));
        ctx.keep(slot, asked);
        ResponseStep::Next
    }

    /// The filter that looks at the body of a response whose head was looked at.
    pub(super) fn inspection(
        self: &Arc<Self>,
        slot: Slot,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Option<Box<dyn BodyFilter>> {
        let verdict = self.answers?;
        let asked = ctx.kept::<_, MatchedOperation>(slot)?;
        let (schema, encoding) = asked.look.take()?;
        let inspection = Inspection {
            validator: Arc::clone(self),
            specification: Arc::clone(&asked.specification),
            verdict,
            schema,
            encoding,
            slot,
            tally: self.problems.tally(env.local),
            held: Vec::new(),
            share: self.budget.share(Rc::clone(&env.local.part(Bodies::default).0)),
            is_over: false,
        };
        Some(inspection.filter())
    }

    /// Logs and counts something that is wrong with a response.
    fn note(&self, verdict: Verdict, wrong: &Wrong, tally: &Tally<Unfit>) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let fate = match verdict {
            Verdict::Report => Fate::Reported,
            Verdict::Refuse => Fate::Refused,
        };
        tally.count(Unfit { kind: wrong.kind, fate });
        if let Some(left_out) = COMPLAINT.due() {
            let Wrong { told, details, .. } = wrong;
            tracing::error!(left_out, ?told, ?details, "oas-validator: failed to validate response");
        }
    }

    /// Returns the client's reply that replaces a response.
    fn refusal(&self, told: &str) -> Reply {
        let details = if self.config.verbose_errors { told } else { "" };
        let message = format!("failed to validate response. {details}");
        Reply::new(502)
            .json(&json!({ "message": message }))
            .because("the node's response does not match the document")
    }
}

/// Whether a response is a node's: from it right now, or kept by the cache.
fn is_of_node(ctx: &Context) -> bool {
    ctx.record.source == Source::Upstream || ctx.set_by_plugin("upstream_cache_status").is_some()
}

/// A body that is looked at once it is whole. One that may be refused is held back until then, with its head.
struct Inspection {
    validator: Arc<Validator>,
    specification: Arc<Specification>,
    verdict: Verdict,
    schema: SchemaId,
    encoding: Encoding,
    slot: Slot,
    tally: Tally<Unfit>,
    held: Vec<u8>,
    /// Of the memory that all such bodies of a worker have.
    share: Share,
    /// The fault was reported; the rest is not checked.
    is_over: bool,
}

impl Inspection {
    /// Returns the fault of the body; it is complete.
    fn verdict(&self) -> Result<(), Wrong> {
        let limit = self.validator.config.max_resp_body_size.min(self.share.room());
        let decoded = match self.encoding {
            Encoding::Identity => None,
            encoding => Some(encoding.decoded(&self.held, limit).map_err(|reason| {
                unread(match reason {
                    Undecoded::TooLong => "the decoded body exceeds max_resp_body_size",
                    Undecoded::Broken => "the body does not match its Content-Encoding",
                    Undecoded::Unknown => "the body has a Content-Encoding other than gzip and br",
                })
            })?),
        };
        let body = decoded.as_deref().unwrap_or(&self.held);
        let outcome = self.specification.answer(self.schema, body, self.validator.limits());
        let told = || "body does not match".to_owned();
        outcome.map_err(|details| Wrong { kind: Kind::Body, told: told(), details })
    }

    /// Something is wrong.
    fn end_with(&mut self, wrong: &Wrong, ctx: &mut Context, out: &mut Pieces) {
        self.validator.note(self.verdict, wrong, &self.tally);
        self.is_over = true;
        if self.verdict == Verdict::Refuse {
            // A reply that replaces the response is not of a node.
            let _ = ctx.take_kept::<_, MatchedOperation>(self.slot);
            ctx.instead = Some(Box::new(self.validator.refusal(&wrong.told)));
            out.fail(REFUSED);
        }
        self.share.shrink(self.held.len());
        self.held = Vec::new();
    }
}

fn unread(told: &str) -> Wrong {
    Wrong { kind: Kind::Unread, told: told.to_owned(), details: String::new() }
}

impl Transform for Inspection {
    fn length(&self, length: BodyLength) -> BodyLength {
        length
    }

    fn holds_head(&self) -> bool {
        self.verdict == Verdict::Refuse
    }

    fn data(&mut self, ctx: &mut Context, data: Chunk, out: &mut Pieces) {
        if !self.is_over {
            if data.len() > self.validator.config.max_resp_body_size - self.held.len() {
                self.end_with(&unread("the body exceeds max_resp_body_size"), ctx, out);
            } else if data.len() > self.share.room() {
                let told = "the bodies that oas-validator buffers exceed their limit";
                self.end_with(&unread(told), ctx, out);
            } else {
                self.share.grow(data.len());
                self.held.extend_from_slice(&data);
            }
        }
        if self.verdict == Verdict::Report {
            out.piece(data);
        }
    }

    fn end(&mut self, ctx: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        if self.is_over {
            return;
        }
        match self.verdict() {
            Err(wrong) => self.end_with(&wrong, ctx, out),
            Ok(()) if self.verdict == Verdict::Refuse => out.bytes(&self.held),
            Ok(()) => {}
        }
    }
}
