//! Facts that many requests need from a service: it is queried once, and the response is used for a while.

use std::rc::Rc;

use sigma_plugin::outbound::{Call, CallError, ServiceResponse};
use sigma_plugin::{Context, Env, Step};

use crate::decisions::{Bound, DecisionState, Decisions, Key};

/// The value read from a response, and the milliseconds for which it is used. None for a response that only the
/// waiting requests use.
pub type Read<V> = Box<dyn FnOnce(Result<ServiceResponse, CallError>) -> (V, Option<u64>)>;

/// The question.
pub struct CachedCall<V, C> {
    /// The key of the response; it includes every input of the response.
    pub key: Key,
    /// Makes the call.
    pub call: C,
    /// Reads the response.
    pub read: Read<V>,
}

impl<V: 'static, C: FnOnce(&Context, &Env<'_>) -> Call + 'static> CachedCall<V, C> {
    /// Continues with the response in this worker's memory, the response to another request, or a new response of the service.
    pub fn ask(
        self,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(&V, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        self.ask_within(Bound::default(), ctx, env, then)
    }

    /// As [`CachedCall::ask`], where a worker knows so much at most.
    pub fn ask_within(
        self,
        bound: Bound,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(&V, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        match known::<V>(env).look(self.key, env.now_ms) {
            DecisionState::Decided(value) => then(&value, ctx, env),
            DecisionState::Asked(pending) => Step::wait(pending.wait(), move |value, ctx, env| match value {
                Some(value) => then(&value, ctx, env),
                // The client of the request that asked has left.
                None => self.ask_within(bound, ctx, env, then),
            }),
            DecisionState::Nothing(asking) => {
                let CachedCall { call, read, .. } = self;
                Step::wait(env.outbound.call(call(ctx, env)), move |answer, ctx, env| {
                    let (value, kept_ms) = read(answer);
                    let value = Rc::new(value);
                    let until_ms = kept_ms.map(|kept_ms| env.now_ms.saturating_add(kept_ms));
                    asking.answer(&value, until_ms, bound);
                    then(&value, ctx, env)
                })
            }
        }
    }
}

/// Forgets a wrong value.
pub fn forget<V: 'static>(key: &Key, env: &Env<'_>) {
    known::<V>(env).forget(key);
}

fn known<V: 'static>(env: &Env<'_>) -> Rc<Decisions<V>> {
    env.local.part(Decisions::<V>::default)
}
