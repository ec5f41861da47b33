//! `limit-count`: requests per window of time.
//!
//! | file | question |
//! |---|---|
//! | `config` | what an operator may write |
//! | `window` | how requests are counted, in memory |
//! | `remote` | the same in Redis |
//! | `delayed` | counting here first, and telling Redis from time to time |
//! | `fields` | what the client is told of its quota |

mod config;
mod delayed;
mod fields;
mod remote;
#[cfg(test)]
mod tests;
mod window;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use sigma_config::expr::{VarName, Variables};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

use super::quota::{Amount, Key, Refusal, key_prefix};
use crate::redis::{Line, Lines, Target, target_of};
use config::Config;
use delayed::Delayed;
use fields::FieldNames;
use window::{Counters, Quota, Verdict, WindowType};

/// Set once an action of `workflow` has limited a request, so that the plugin itself does not.
const DONE_BY_WORKFLOW: &str = "limit-count.workflow";

/// The plugin.
pub(crate) static LIMIT_COUNT: Descriptor = Descriptor {
    name: "limit-count",
    version: "0.4",
    priority: 1002,
    doc: "Limits requests per window of time.\n\n\
        Each key may make `count` requests in `time_window` seconds. A fixed window begins with \
        the first request of a key; a sliding one weighs the window before. Counters are kept in \
        this gateway, or in Redis, where several gateways share them.",
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    schema: config::schema,
    metadata_schema: Some(config::metadata_schema),
    secret_fields: &["redis_password", "sentinel_password"],
    check: Some(config::check),
    build: |build| Ok(new(build, None)? as Arc<dyn Plugin>),
    ..Descriptor::BASE
};

/// An instance; `action` is its number among the actions of a `workflow`.
///
/// # Errors
/// Rules beyond the schema, or a group that has another configuration; a sentence.
pub(crate) fn new(build: &Build<'_>, action: Option<usize>) -> Result<Arc<LimitCount>, String> {
    config::check(build.conf)?;
    let config: Config = build.config()?;
    if action.is_some() && config.group.is_some() {
        return Err("group is not supported".to_owned());
    }
    let group = config.group.as_deref().map(|group| Membership::of(group, build)).transpose()?;
    let store = match target_of(config.policy, build.conf)? {
        None => Store::Local,
        Some(target) => {
            let target = target.shared(build.node);
            let counters = build.node.part(Counters::default);
            let delayed = config
                .sync_interval
                .map(|interval| Delayed::new(interval, config.window_type, &target, Arc::clone(&counters)));
            Store::Redis { target, delayed }
        }
    };
    Ok(Arc::new_cyclic(|me| LimitCount {
        me: Weak::clone(me),
        store,
        counters: build.node.part(Counters::default),
        window_type: config.window_type,
        allow_degradation: config.allow_degradation,
        shown: config.show_limit_quota_header,
        refusal: config.refusal,
        rules: config.limits.into_iter().map(|limit| Rule::new(limit, build.metadata)).collect(),
        prefix: match &config.group {
            Some(group) => format!("{group}:"),
            None => key_prefix(build),
        },
        suffix: action.map(|number| format!(":{number}")).unwrap_or_default(),
        is_action: action.is_some(),
        done_by_workflow: VarName::parse(DONE_BY_WORKFLOW),
        _group: group,
    }))
}

/// The configurations of groups, as long as somebody uses them.
#[derive(Default)]
struct Groups(Mutex<Vec<(String, Weak<Value>)>>);

/// The right to count for a group: all members have one configuration.
struct Membership {
    _conf: Arc<Value>,
}

impl Membership {
    fn of(group: &str, build: &Build<'_>) -> Result<Membership, String> {
        let mut conf = build.conf.clone();
        if let Some(members) = conf.as_object_mut() {
            members.remove("_meta");
        }
        let groups = build.node.part(Groups::default);
        let mut known = groups.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, conf)| conf.strong_count() > 0);
        let first = known.iter().find(|(name, _)| name == group).and_then(|(_, conf)| conf.upgrade());
        match first {
            Some(first) if *first == conf => Ok(Membership { _conf: first }),
            Some(_) => Err("group conf mismatched".to_owned()),
            None => {
                let conf = Arc::new(conf);
                known.push((group.to_owned(), Arc::downgrade(&conf)));
                Ok(Membership { _conf: conf })
            }
        }
    }
}

/// One limit.
struct Rule {
    count: Amount,
    window: Amount,
    key: Key,
    /// It is one of `rules`: skipped where its key has no value.
    listed: bool,
    names: FieldNames,
}

impl Rule {
    fn new(limit: config::Limit, metadata: &Value) -> Rule {
        let names = FieldNames::new(metadata, limit.header_prefix.as_deref());
        Rule { count: limit.count, window: limit.window, key: limit.key, listed: limit.listed, names }
    }
}

enum Store {
    Local,
    Redis { target: Arc<Target>, delayed: Option<Arc<Delayed>> },
}

/// An instance.
pub(crate) struct LimitCount {
    /// Itself, for what goes on after waiting.
    me: Weak<LimitCount>,
    store: Store,
    counters: Arc<Counters>,
    window_type: WindowType,
    allow_degradation: bool,
    shown: bool,
    refusal: Refusal,
    rules: Vec<Rule>,
    prefix: String,
    suffix: String,
    is_action: bool,
    done_by_workflow: VarName,
    _group: Option<Membership>,
}

/// A limit that applies to a request.
struct Applied {
    /// Which rule it is.
    rule: usize,
    key: Vec<u8>,
    quota: Quota,
}

/// What the client is to be told: of which rule, and how it went.
struct Told(Vec<(usize, Quota, Verdict)>);

/// Room for the value of a key, so that most take one allocation.
const USUAL_KEY: usize = 40;

/// The cost of a request.
const COST: u64 = 1;

impl LimitCount {
    /// The limits for a request; None if one is not to be determined, or none applies.
    fn applied(&self, cx: &Context) -> Option<Vec<Applied>> {
        let mut applied = Vec::with_capacity(self.rules.len());
        for (number, rule) in self.rules.iter().enumerate() {
            let mut key = Vec::with_capacity(self.prefix.len() + self.suffix.len() + USUAL_KEY);
            key.extend_from_slice(self.prefix.as_bytes());
            if !rule.key.write(cx, &mut key) {
                if rule.listed {
                    continue;
                }
                key.extend_from_slice(cx.remote_addr().as_bytes());
            }
            key.extend_from_slice(self.suffix.as_bytes());
            let quota = Quota { limit: rule.count.resolve(cx, 1)?, window_s: rule.window.resolve(cx, 1)? };
            applied.push(Applied { rule: number, key, quota });
        }
        (!applied.is_empty()).then_some(applied)
    }

    /// Counts in memory, up to the first limit that refuses.
    fn local(&self, applied: &[Applied]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(applied.len());
        for limit in applied {
            let verdict = self.counters.count(self.window_type, &limit.key, limit.quota, COST);
            verdicts.push(verdict);
            if verdict.is_refusal() {
                break;
            }
        }
        verdicts
    }

    /// Counts in Redis, up to the first limit that refuses. None if it did not answer.
    async fn ask(&self, line: &Line, applied: &[Applied]) -> Option<Vec<Verdict>> {
        let mut verdicts = Vec::with_capacity(applied.len());
        for limit in applied {
            let delayed = match &self.store {
                Store::Redis { delayed: Some(delayed), .. } if delayed.suits(limit.quota) => Some(delayed),
                _ => None,
            };
            let verdict = match delayed {
                Some(delayed) => delayed.count(line, &limit.key, limit.quota, COST).await,
                None => remote::count(line, self.window_type, &limit.key, limit.quota, COST).await.ok()?,
            };
            verdicts.push(verdict);
            if verdict.is_refusal() {
                break;
            }
        }
        Some(verdicts)
    }

    /// What may be answered without Redis, because all of it is known here.
    fn known(&self, applied: &[Applied]) -> Option<Vec<Verdict>> {
        let Store::Redis { delayed: Some(delayed), .. } = &self.store else { return None };
        // One after the other would count the first ones twice if a later one is not known.
        let [limit] = applied else { return None };
        if !delayed.suits(limit.quota) {
            return None;
        }
        delayed.count_here(&limit.key, limit.quota, COST).map(|verdict| vec![verdict])
    }

    /// Tells the client and the access log, and refuses what is over.
    fn conclude(&self, cx: &mut Context, applied: &[Applied], verdicts: &[Verdict]) -> Step {
        if let Some((limit, verdict)) = applied.iter().zip(verdicts).next_back() {
            cx.set_variable("rate_limiting_info", fields::info(&limit.key, limit.quota, *verdict));
        }
        if self.shown {
            let told =
                applied.iter().zip(verdicts).map(|(limit, verdict)| (limit.rule, limit.quota, *verdict));
            cx.keep(self, Told(told.collect()));
        }
        match verdicts.last() {
            Some(last) if last.is_refusal() => self.refusal.step(),
            _ => Step::Next,
        }
    }

    fn remote(&self, target: &Arc<Target>, applied: Vec<Applied>, cx: &mut Context, env: &Env<'_>) -> Step {
        if let Some(verdicts) = self.known(&applied) {
            return self.conclude(cx, &applied, &verdicts);
        }
        if let Store::Redis { delayed: Some(delayed), .. } = &self.store {
            delayed.keep_telling(env.node);
        }
        let line = env.local.part(Lines::default).to(target);
        // Whoever calls a hook holds the instance.
        let Some(this) = self.me.upgrade() else { return Step::Next };
        let counted = async move {
            let verdicts = this.ask(&line, &applied).await;
            (this, applied, verdicts)
        };
        Step::wait(counted, |(this, applied, verdicts), cx, _| match verdicts {
            Some(verdicts) => this.conclude(cx, &applied, &verdicts),
            None if this.allow_degradation => Step::Next,
            None => Step::json(500, &serde_json::json!({"error_msg": "failed to limit count"})),
        })
    }
}

impl Plugin for LimitCount {
    fn access(&self, cx: &mut Context, env: &Env<'_>) -> Step {
        if self.is_action {
            cx.set_variable(DONE_BY_WORKFLOW, "1");
        } else if cx.get(&self.done_by_workflow).is_some() {
            return Step::Next;
        }
        let Some(applied) = self.applied(cx) else {
            return if self.allow_degradation { Step::Next } else { Step::status(500) };
        };
        match &self.store {
            Store::Local => {
                let verdicts = self.local(&applied);
                self.conclude(cx, &applied, &verdicts)
            }
            Store::Redis { target, .. } => self.remote(target, applied, cx, env),
        }
    }

    fn header_filter(&self, cx: &mut Context, _env: &Env<'_>) {
        let Some(Told(told)) = cx.take_kept(self) else { return };
        for (rule, quota, verdict) in told {
            self.rules[rule].names.set(&mut cx.response.headers, quota, verdict);
        }
    }
}
