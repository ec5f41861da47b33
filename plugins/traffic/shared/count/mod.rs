//! Requests per window of time: `limit-count`, and with costs `graphql-limit-count`.
//!
//! | file | question |
//! |---|---|
//! | `config` | the configuration |
//! | `window` | how requests are counted, in memory |
//! | `remote` | the same in Redis |
//! | `delayed` | counting here first, and telling Redis from time to time |
//! | `fields` | the quota in response fields |

mod config;
mod delayed;
mod fields;
mod remote;
mod window;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use redis::RedisResult;
use serde_json::{Value, json};
use sigma_http::Headers;
use sigma_plugin::descriptor::parsed;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Context, Env, Plugin, ResponseStep, Step};
use sigma_schema::Problem;

use crate::shared::quota::{self, Amount, Key, Refusal, Space, Unlimited};
use config::OF_COST_HEADER;
use config::ResetForm;
pub(crate) use config::{Config, Metadata};
use delayed::Delayed;
use fields::FieldNames;
use remote::Counting;
use sigma_plugin_kit::redis::{Connections, SharedConnection, Target, idle_settings};
use window::{Counters, Quota, Verdict, WindowType};

/// The plugin whose groups have no prefix.
const PLAIN: &str = "limit-count";

/// The member that names a group.
pub(crate) const GROUP_FIELD: &str = "group";

/// Where a configuration names variables.
pub(crate) const VARIABLES: &[VariableField] = &[
    VariableField::guard("key", VariableForm::Key),
    VariableField::guard("rules.*.key", VariableForm::Template),
    VariableField::guard("count", VariableForm::Template),
    VariableField::guard("time_window", VariableForm::Template),
    VariableField::guard("rules.*.count", VariableForm::Template),
    VariableField::guard("rules.*.time_window", VariableForm::Template),
];

/// Returns warnings about a valid configuration.
pub(crate) fn warnings(conf: &Value) -> Vec<Problem> {
    let idle = OF_COST_HEADER
        .iter()
        .filter(|field| conf.get("cost_header").is_none() && conf.get(**field).is_some());
    let idle = idle.map(|field| {
        Problem::new(*field, "no_effect", "it has no effect without `cost_header`").hint("set `cost_header`")
    });
    let is_local = conf.get("policy").is_none_or(|policy| policy == "local");
    let interval = conf.get("sync_interval").filter(|interval| is_local && interval.as_f64() != Some(-1.0));
    let unsent = interval.map(|_| {
        let message = "`sync_interval` has no effect with `policy: local`";
        Problem::new("sync_interval", "no_effect", message).hint("remove it")
    });
    let idle = idle.chain(unsent).collect();
    let status = quota::unset_status(conf);
    [quota::client_chosen(conf), quota::idle_rules(conf), idle_settings(conf), idle, status].concat()
}

/// The members of groups, as long as instances are in use.
#[derive(Default)]
struct Groups(Mutex<Vec<(String, Weak<Membership>)>>);

/// The right to count for a group: all members have one configuration.
struct Membership {
    /// With defaults, and without `_meta`.
    conf: Value,
    resource: Box<str>,
    written: Value,
}

impl Membership {
    /// Joins a group. Members whose resource has another configuration by now, or is gone, do not count: their instances
    /// live until their last requests are served.
    fn of(group: &str, build: &Build<'_>) -> Result<Arc<Membership>, String> {
        let mut conf = build.conf.clone();
        if let Some(members) = conf.as_object_mut() {
            members.remove("_meta");
        }
        let groups = build.node.part(Groups::default);
        let mut known = groups.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, member)| member.strong_count() > 0);
        let group = group_name(group.to_owned(), build);
        let others =
            known.iter().filter(|(name, _)| *name == group).filter_map(|(_, member)| member.upgrade());
        let mut current = others.filter(|other| build.is_current(&other.resource, &other.written));
        if current.any(|other| other.conf != conf) {
            return Err("group conf mismatched".to_owned());
        }
        drop(current);
        let (resource, written) = (build.resource.into(), build.written().clone());
        let membership = Arc::new(Membership { conf, resource, written });
        known.push((group, Arc::downgrade(&membership)));
        Ok(membership)
    }
}

/// Returns the name of a group among the groups of all plugins. A group of `limit-count` keeps its written
/// name, which is also the name of its counters in Redis.
fn group_name(group: String, build: &Build<'_>) -> String {
    if build.plugin == PLAIN { group } else { format!("{}:{group}", build.plugin) }
}

/// One limit.
struct Rule {
    count: Amount<1>,
    window: Amount<1>,
    key: Key,
    space: Space,
    /// It is one of `rules`: skipped where its key has no value.
    listed: bool,
    names: FieldNames,
}

impl Rule {
    /// The limit for a request; None if it does not apply.
    ///
    /// # Errors
    /// Returns an error, which is the reason, if the quota cannot be determined.
    fn quota(&self, ctx: &Context) -> Result<Option<(Vec<u8>, Quota)>, Unlimited> {
        let key = match self.listed {
            true => self.space.by_value(&self.key, ctx),
            false => Some(self.space.by_value_or_address(&self.key, ctx)),
        };
        let Some(key) = key else { return Ok(None) };
        let limit = self.count.of(ctx, "`count` must be a whole number of 1 or more")?;
        let window_s = self.window.of(ctx, "`time_window` must be a whole number of 1 or more")?;
        Ok(Some((key, Quota { limit, window_s })))
    }
}

enum Store {
    Local,
    Redis { target: Arc<Target>, delayed: Option<Arc<Delayed>> },
}

/// An instance.
pub(crate) struct LimitCount {
    /// Itself, for what continues after waiting.
    me: Weak<LimitCount>,
    store: Store,
    counters: Arc<Counters>,
    window_type: WindowType,
    shown: bool,
    reset_form: ResetForm,
    standard_fields: bool,
    refusal: Arc<Refusal>,
    rules: Vec<Rule>,
    learning: Option<Learning>,
    _group: Option<Arc<Membership>>,
}

/// A limit that applies to a request.
struct Applied {
    /// Which rule it is.
    rule: usize,
    key: Vec<u8>,
    quota: Quota,
}

/// The quotas to report to the client. Most configurations have one rule.
struct QuotaReport {
    first: Counted,
    others: Vec<Counted>,
}

/// A limit that a request was counted for: of which rule, and how it went.
struct Counted {
    rule: usize,
    quota: Quota,
    verdict: Verdict,
    /// The key, if the cost is known later.
    key: Option<Vec<u8>>,
}

/// The cost of a request, as its response reports it.
struct Learning {
    header: Box<str>,
    default: u64,
    most: u64,
    hides: bool,
}

impl Learning {
    fn of(config: &mut Config) -> Option<Learning> {
        let (default, most, hides) = (config.cost_default, config.cost_most, config.hide_cost_header);
        config.cost_header.take().map(|header| Learning { header, default, most, hides })
    }

    /// Returns the cost that is still to be counted after the cost at the start.
    fn rest(&self, headers: &mut Headers) -> u64 {
        let cost = self.stated_cost(headers);
        if self.hides {
            headers.remove_name(self.header.as_bytes());
        }
        cost.min(self.most).saturating_sub(self.default)
    }

    /// The cost in the header fields of a response.
    fn stated_cost(&self, headers: &Headers) -> u64 {
        let mut fields = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(self.header.as_bytes()));
        let first = fields.next().map(|(_, value)| value.trim_ascii());
        let told = first.filter(|value| !value.is_empty() && value.iter().all(u8::is_ascii_digit));
        let Some(digits) = told.filter(|_| fields.next().is_none()) else { return self.default };
        // More digits than a number has are more than the most.
        std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(self.most)
    }
}

/// Why a request is not counted.
const NONE_APPLIES: &str = "no rule applies";

/// The cost of a request that nothing else is known of.
const COST: u64 = 1;

impl LimitCount {
    /// The limits that a configuration has, of this plugin or of one with the same fields and more.
    pub(crate) fn new(build: &Build<'_>) -> Result<Arc<LimitCount>, String> {
        let (mut config, metadata): (Config, Metadata) = (parsed(build.conf)?, build.metadata_as()?);
        let learning = Learning::of(&mut config);
        let counters = build.node.inherited(Counters::default);
        let group = config.group.as_deref().map(|group| Membership::of(group, build)).transpose()?;
        let interval = config.sync_interval();
        let store = match config.policy.target() {
            None => Store::Local,
            Some(target) => {
                let target = target.shared(build.node);
                let delayed = |interval| Delayed::new(interval, config.window_type, &target, build.node);
                let delayed = interval.map(delayed);
                Store::Redis { target, delayed }
            }
        };
        let space =
            config.group.map_or_else(|| Space::of(build), |group| Space::named(group_name(group, build)));
        let rules = match (config.rules, config.count, config.time_window) {
            (Some(rules), ..) => (1..)
                .zip(rules)
                .map(|(number, rule)| {
                    let prefix = rule.header_prefix.unwrap_or_else(|| number.to_string());
                    Rule {
                        count: rule.count,
                        window: rule.time_window,
                        key: Key::template(&rule.key),
                        space: space.clone().rule(number),
                        listed: true,
                        names: FieldNames::new(&metadata, Some(&prefix)),
                    }
                })
                .collect(),
            (None, Some(count), Some(window)) => {
                let key = Key::new(&config.key, config.key_type);
                vec![Rule {
                    count,
                    window,
                    key,
                    space,
                    listed: false,
                    names: FieldNames::new(&metadata, None),
                }]
            }
            _ => return Err("either count and time_window or rules are needed".to_owned()),
        };
        Ok(Arc::new_cyclic(|me| LimitCount {
            me: Weak::clone(me),
            store,
            counters,
            window_type: config.window_type,
            shown: config.show_limit_quota_header,
            reset_form: config.reset_form,
            standard_fields: config.standard_fields,
            refusal: config.refusal.of(build),
            rules,
            learning,
            _group: group,
        }))
    }

    /// The limits for a request.
    ///
    /// # Errors
    /// Returns an error, which is the reason, if a quota cannot be determined or if none applies.
    fn applied(&self, ctx: &Context) -> Result<Vec<Applied>, Unlimited> {
        let mut applied = Vec::with_capacity(self.rules.len());
        for (rule, limit) in self.rules.iter().enumerate() {
            if let Some((key, quota)) = limit.quota(ctx)? {
                applied.push(Applied { rule, key, quota });
            }
        }
        if applied.is_empty() { Err(NONE_APPLIES.into()) } else { Ok(applied) }
    }

    /// Counts in memory, up to the first limit that refuses.
    fn local(&self, applied: &[Applied], cost: u64) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(applied.len());
        for limit in applied {
            let verdict = self.counters.count(self.window_type, &limit.key, limit.quota, cost);
            verdicts.push(verdict);
            if verdict.is_refusal() {
                break;
            }
        }
        verdicts
    }

    /// Counts in Redis, up to the first limit that refuses.
    ///
    /// # Errors
    /// Returns an error if Redis did not respond.
    async fn ask(
        &self,
        connection: &SharedConnection,
        applied: &[Applied],
        cost: u64,
    ) -> RedisResult<Vec<Verdict>> {
        let mut verdicts = Vec::with_capacity(applied.len());
        for limit in applied {
            let delayed = match &self.store {
                Store::Redis { delayed: Some(delayed), .. } if delayed.suits(limit.quota) => Some(delayed),
                _ => None,
            };
            let verdict = match delayed {
                Some(delayed) => delayed.count(connection, &limit.key, limit.quota, cost).await,
                None => {
                    let (kind, counting) = (self.window_type, Counting::IfRoom);
                    remote::count(connection, kind, counting, &limit.key, limit.quota, cost).await?
                }
            };
            verdicts.push(verdict);
            if verdict.is_refusal() {
                break;
            }
        }
        Ok(verdicts)
    }

    /// Returns verdicts that need no Redis, because all of the state is local.
    fn known(&self, applied: &[Applied], cost: u64) -> Option<Vec<Verdict>> {
        let Store::Redis { delayed: Some(delayed), .. } = &self.store else { return None };
        // One after the other would count the first ones twice if a later one is not known.
        let [limit] = applied else { return None };
        if !delayed.suits(limit.quota) {
            return None;
        }
        delayed.count_here(&limit.key, limit.quota, cost).map(|verdict| vec![verdict])
    }

    /// Counts in memory for the only rule.
    fn only(&self, rule: &Rule, ctx: &mut Context, env: &Env<'_>, cost: u64) -> Result<Step, Unlimited> {
        let (key, quota) = rule.quota(ctx)?.ok_or(NONE_APPLIES)?;
        let verdict = self.counters.count(self.window_type, &key, quota, cost);
        Ok(self.conclude(ctx, env, [(Applied { rule: 0, key, quota }, verdict)]))
    }

    /// Reports the quota to the client and the access log, and refuses requests over it.
    fn conclude(
        &self,
        ctx: &mut Context,
        env: &Env<'_>,
        counted: impl IntoIterator<Item = (Applied, Verdict)>,
    ) -> Step {
        let (mut told, mut last) = (None::<QuotaReport>, None);
        for (Applied { rule, key, quota }, verdict) in counted {
            let learns = self.learning.is_some() && (!verdict.is_refusal() || self.refusal.is_dry());
            let one = Counted { rule, quota, verdict, key: learns.then(|| key.clone()) };
            match &mut told {
                None => told = Some(QuotaReport { first: one, others: Vec::new() }),
                Some(told) => told.others.push(one),
            }
            last = Some((key, quota, verdict));
        }
        let Some((key, quota, verdict)) = last else { return Step::Next };
        ctx.set_variable_with("rate_limiting_info", move || fields::info(&key, quota, verdict));
        if let Some(told) = told.filter(|_| self.shown || self.standard_fields || self.learning.is_some()) {
            ctx.keep(self, told);
        }
        let is_told = self.shown || self.standard_fields;
        match verdict.is_refusal() {
            true => self.refusal.over(env, is_told.then_some(verdict.reset_s)),
            false => Step::Next,
        }
    }

    fn remote(
        &self,
        target: &Arc<Target>,
        applied: Vec<Applied>,
        ctx: &mut Context,
        env: &Env<'_>,
        cost: u64,
    ) -> Step {
        if let Some(verdicts) = self.known(&applied, cost) {
            return self.conclude(ctx, env, applied.into_iter().zip(verdicts));
        }
        if let Store::Redis { delayed: Some(delayed), .. } = &self.store {
            delayed.keep_telling(env.node);
        }
        let connection = env.local.part(Connections::default).to(target);
        // The caller of a hook holds the instance.
        let Some(this) = self.me.upgrade() else { return Step::Next };
        let counted = async move {
            let verdicts = this.ask(&connection, &applied, cost).await;
            (this, applied, verdicts)
        };
        Step::wait(counted, |(this, applied, verdicts), ctx, env| match verdicts {
            Ok(verdicts) => this.conclude(ctx, env, applied.into_iter().zip(verdicts)),
            Err(error) => this.refusal.undetermined(error),
        })
    }

    /// Counts a request with this cost, and refuses it if it exceeds the limit.
    pub(crate) fn charge(&self, ctx: &mut Context, env: &Env<'_>, cost: u64) -> Step {
        let counted = match (&self.store, &self.rules[..]) {
            (Store::Local, [rule]) => self.only(rule, ctx, env, cost),
            (Store::Local, _) => self.applied(ctx).map(|applied| {
                let verdicts = self.local(&applied, cost);
                self.conclude(ctx, env, applied.into_iter().zip(verdicts))
            }),
            (Store::Redis { target, .. }, _) => {
                self.applied(ctx).map(|applied| self.remote(target, applied, ctx, env, cost))
            }
        };
        counted.unwrap_or_else(|unlimited| self.refusal.unlimited(unlimited))
    }

    /// Tells the client of its quota.
    fn tell(&self, told: &Counted, headers: &mut Headers) {
        let Counted { rule, quota, verdict, key: _ } = told;
        let (rule, quota, verdict) = (*rule, *quota, *verdict);
        let names = &self.rules[rule].names;
        if self.shown {
            names.set(headers, quota, verdict, self.reset_form);
        }
        if self.standard_fields {
            names.append_standard(headers, quota, verdict);
        }
    }

    /// Counts the rest of a request's cost after its response.
    fn learn(&self, mut told: Vec<Counted>, rest: u64, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        let Store::Redis { target, delayed } = &self.store else {
            for one in &mut told {
                if let Some(key) = &one.key {
                    one.verdict = self.counters.add(self.window_type, key, one.quota, rest);
                }
            }
            told.iter().for_each(|one| self.tell(one, &mut ctx.response.headers));
            return ResponseStep::Next;
        };
        let connection = env.local.part(Connections::default).to(target);
        let (delayed, kind) = (delayed.clone(), self.window_type);
        let Some(this) = self.me.upgrade() else { return ResponseStep::Next };
        let counted = async move {
            for one in &mut told {
                let Some(key) = &one.key else { continue };
                if let Some(delayed) = delayed.as_ref().filter(|delayed| delayed.suits(one.quota)) {
                    delayed.add(key, one.quota, rest);
                    continue;
                }
                match remote::count(&connection, kind, Counting::Always, key, one.quota, rest).await {
                    Ok(verdict) => one.verdict = verdict,
                    // It was served: it is too late to refuse it.
                    Err(error) => drop(this.refusal.undetermined(error)),
                }
            }
            (this, told)
        };
        ResponseStep::wait(counted, |(this, told), ctx, _| {
            told.iter().for_each(|one| this.tell(one, &mut ctx.response.headers));
            ResponseStep::Next
        })
    }

    /// How requests are answered that do not pass.
    pub(crate) fn refusal(&self) -> &Arc<Refusal> {
        &self.refusal
    }

    /// Whether responses show the quota.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown
    }
}

impl Plugin for LimitCount {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.charge(ctx, env, self.learning.as_ref().map_or(COST, |learning| learning.default))
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        let Some(QuotaReport { first, others }) = ctx.take_kept(self) else { return ResponseStep::Next };
        let rest = self.learning.as_ref().map_or(0, |learning| learning.rest(&mut ctx.response.headers));
        if rest > 0 {
            return self.learn(std::iter::once(first).chain(others).collect(), rest, ctx, env);
        }
        std::iter::once(&first).chain(&others).for_each(|one| self.tell(one, &mut ctx.response.headers));
        ResponseStep::Next
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        let applied = match self.applied(ctx) {
            Ok(applied) => applied,
            Err(unlimited) => return Some(json!({"problem": unlimited.reason})),
        };
        let limits = applied.iter().map(|Applied { rule, key, quota }| {
            let mut shown = json!({"rule": rule + 1, "limit": quota.limit, "time_window": quota.window_s});
            match self.store {
                Store::Local => {
                    let (left, reset_s) = self.counters.left(self.window_type, key, *quota);
                    (shown["remaining"], shown["reset"]) = (left.into(), reset_s.into());
                }
                // To ask there is not worth a connection.
                Store::Redis { .. } => shown["counted_in"] = "redis".into(),
            }
            shown
        });
        Some(json!({"limits": limits.collect::<Vec<_>>()}))
    }
}
