//! The response cache, a stage between the plugins of the request and the upstream (RFC 9111).
//!
//! A stored response is the node's, before the plugins' filters; the filters also run on reuse. Concurrent requests
//! for one response are collapsed.

mod background;
mod cache_status;
mod conditions;
mod neighbours;
mod parts;
mod persons;
mod present;
mod purge;
mod slices;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sigma_cache::{
    Answered, Directives, Draft, Epoch, ExchangeTimes, Fill, Lead, MayUse, SingleFlight, Stored, Zone,
    may_keep, may_use,
};
use sigma_http::{BodyLength, Fault, Headers, Method, RequestHead};
use sigma_plugin::cache::{CacheOrder, CacheWish};
use sigma_plugin::{BodyFilter, Context, Reply};

use super::local_reply::LocalReply;
use super::plan::Ended;
use super::reply::may_be_stale;
use super::transfer::client_gone;
use super::{Exchange, client};
use crate::route::normalize::UriOptions;
use crate::worker::Worker;
use cache_status::{Forward, NodeReport, Status, tell_asked, tell_hit, tell_reused};
use conditions::{ask_whether_good, has_validators};
use present::{RequestedPart, hide, present};
use purge::resource;
use slices::{Outcome, Slicing, TRIES, Taken, forget};

/// How long a disk may take to find a response. After it a node is contacted, and the disk is skipped for a while.
const FETCH_WAIT: Duration = Duration::from_millis(500);

/// Waiting requests get bodies up to this size through the exchange that fetches: they arrive with their heads, so a
/// slow client does not matter.
const SMALL_BYTES: u64 = 16 * 1024;

/// A request whose response may be stored, or that purges others.
#[derive(Debug)]
pub(super) struct Turn {
    wish: Box<CacheWish>,
    zone: Arc<Zone>,
    request: CacheRequest,
    /// It leads a flight.
    lead: Option<Lead>,
    /// The response that was read from a disk.
    fetched: Option<Arc<Stored>>,
    /// A stale response that needs revalidation.
    stale: Option<Arc<Stored>>,
    epoch: Epoch,
    /// The time of the request to the node, in seconds since 1970.
    began: u64,
    /// The response may be stored.
    keeps: bool,
    /// The node revalidates the stale response: a 304 confirms it, and does not answer the client's own conditions.
    validates: bool,
    status: Status,
    why: Forward,
    slicing: Slicing,
}

/// The client's request as the cache has seen it, before the changes for a node.
#[derive(Debug, Default)]
struct CacheRequest {
    fields: Headers,
    /// The resource, for purges.
    resource: Vec<u8>,
    /// The client's authority: the node may get another one.
    authority: Vec<u8>,
    uri_options: UriOptions,
}

impl CacheRequest {
    fn copy(&mut self, ctx: &Context) {
        self.fields.copy_from(&ctx.request.headers);
        self.resource = resource(ctx);
        self.authority = ctx.request.authority().to_vec();
    }
}

/// The result of a cache look-up.
enum Look {
    Use(Arc<Stored>, Status),
    /// Another request is fetching it, and it is arriving
    Share(Arc<Stored>),
    /// It is used, and revalidated in the background
    UseAndAsk(Arc<Stored>),
    Ask,
    Wait(Arc<SingleFlight>),
    /// The client accepts only a stored response, and it is missing
    Nothing,
    /// It may be stored in slices
    Slices,
    /// The whole has arrived meanwhile, instead of a slice
    Again,
}

impl Exchange<'_, '_> {
    /// Sets the cache order of the route; a plugin's order has precedence.
    pub(super) fn wish_for_cache(&mut self, order: &CacheOrder) {
        if self.scratch.ctx.cache.is_none() {
            self.scratch.ctx.client = client(&self.down, &self.view, self.scratch.told);
            self.scratch.ctx.cache = Some(Box::new(order.wish(&self.scratch.ctx)));
        }
    }

    /// Responds from the cache; returns false if a node must be contacted, whose response goes to the turn.
    pub(super) async fn answer_from_cache(&mut self) -> Result<bool, Fault> {
        let wish = self.scratch.ctx.cache.take().filter(|_| !self.asks_upgrade);
        let Some(mut wish) = wish else { return Ok(false) };
        self.mark_person();
        wish.seal(&self.scratch.ctx);
        let method = self.scratch.ctx.request.method;
        if matches!(method, Method::Get | Method::Head) && !self.request_length().is_empty() {
            // The body of the request decides, which is in no key.
            return Ok(false);
        }
        let is_by_content = !matches!(method, Method::Get | Method::Head);
        if is_by_content && wish.rule.methods.contains(&method) && wish.content.is_none() {
            // The bodies are indistinguishable.
            (wish.is_bypassed, wish.is_kept_out) = (true, true);
        }
        wish.complete(&self.scratch.ctx, &self.chosen_nodes());
        let zone = self.worker.caches.zone(&wish.rule);
        if method == Method::Purge && wish.rule.purges {
            return self.purge(&wish, &zone).await.map(|()| true);
        }
        let mut turn = Turn::new(wish, zone);
        let mut tries = 0;
        let look = loop {
            match self.look_or_wait(&mut turn).await? {
                // Boxed, as few routes have slices.
                Look::Slices => match Box::pin(self.answer_in_slices(&turn.wish, &turn.zone)).await? {
                    Outcome::Answered => return Ok(true),
                    Outcome::Asked => return Ok(false),
                    Outcome::Again => (tries, turn.slicing.is_plain) = (tries + 1, tries + 1 >= TRIES),
                    Outcome::Plain => turn.slicing.is_plain = true,
                },
                look => break look,
            }
            turn.epoch = turn.zone.epoch(&turn.wish.key);
        };
        let own = match look {
            Look::Use(stored, status) => self.use_kept(&turn, &stored, status),
            Look::Share(stored) => self.share(&turn, &stored),
            Look::UseAndAsk(stored) => {
                let own = self.use_kept(&turn, &stored, Status::Updating);
                self.prepare(&mut turn);
                self.ask_in_background(turn);
                own
            }
            Look::Nothing => return self.reply(Reply::new(504).text("").into()).await.map(|()| true),
            Look::Ask | Look::Wait(_) | Look::Slices | Look::Again => {
                self.prepare(&mut turn);
                if let Some(stale) = turn.stale.as_deref().filter(|_| turn.validates) {
                    ask_whether_good(&mut self.scratch.ctx.request.headers, stale);
                }
                self.scratch.turn = Some(Box::new(turn));
                return Ok(false);
            }
        };
        self.send_own(own).await.map(|()| true)
    }

    /// Prepares a turn for a node's response.
    fn prepare(&self, turn: &mut Turn) {
        turn.prepare(&self.scratch.ctx, self.now_s());
        turn.request.uri_options = self.view.snapshot.uri_options;
    }

    /// Responds with a stale response if no node has responded and the rule allows it; returns true if it did.
    pub(super) async fn stand_in(&mut self, fault: Fault) -> Result<bool, Fault> {
        let Some(turn) = self.scratch.turn.take() else { return Ok(false) };
        match turn.stand_in(self.now_s()).filter(|_| may_be_stale(fault)) {
            None => Ok(false),
            Some(stale) => {
                let own = turn.give_stale(&stale, None, self.now_s(), &mut self.scratch.ctx);
                self.send_own(own).await.map(|()| true)
            }
        }
    }

    /// Returns seconds since 1970.
    fn now_s(&self) -> u64 {
        self.worker.clock.borrow().unix_ms() / 1000
    }

    /// Looks until there is a response, or this request must fetch it.
    async fn look_or_wait(&mut self, turn: &mut Turn) -> Result<Look, Fault> {
        let wait = tokio::time::sleep(Duration::from_millis(turn.wish.rule.wait_ms.into()));
        let (mut wait, mut is_over) = (pin!(wait), false);
        loop {
            turn.fetch(&self.scratch.ctx.request, self.now_s()).await;
            let flight = match turn.look(&self.scratch.ctx.request, self.now_s(), !is_over) {
                Look::Wait(flight) => flight,
                other => return Ok(other),
            };
            let Some(place) = flight.join(turn.wish.rule.waiters_max) else { return Ok(Look::Ask) };
            let mut news = pin!(place.news());
            is_over = poll_fn(|task| {
                if news.as_mut().poll(task).is_ready() {
                    return Poll::Ready(Ok(false));
                }
                if self.down.poll_departure(task).is_ready() {
                    return Poll::Ready(Err(client_gone()));
                }
                wait.as_mut().poll(task).map(|()| Ok(true))
            })
            .await?;
        }
    }

    /// Sets a stored response, as the client wants it.
    fn use_kept(&mut self, turn: &Turn, stored: &Stored, status: Status) -> LocalReply {
        let now = self.now_s();
        stored.touch(now);
        let ctx = &mut self.scratch.ctx;
        let wanted = RequestedPart::of(stored, &ctx.request.headers, ctx.request.method);
        let own = present(&turn.wish.rule, stored, wanted, ctx);
        tell_hit(&turn.wish.rule, status, &stored.freshness, now, ctx);
        own
    }

    /// The same with an arriving response of another request.
    fn share(&mut self, turn: &Turn, coming: &Stored) -> LocalReply {
        let now = self.now_s();
        let ctx = &mut self.scratch.ctx;
        let wanted = RequestedPart::of(coming, &ctx.request.headers, ctx.request.method);
        let own = present(&turn.wish.rule, coming, wanted, ctx);
        tell_reused(&coming.freshness, now, ctx);
        let (status, why) = (Status::Hit, turn.why);
        let asked = NodeReport { status, why, answered: None, is_stored: false, is_collapsed: true };
        tell_asked(&turn.wish.rule, asked, ctx);
        own
    }
}

impl Turn {
    fn new(wish: Box<CacheWish>, zone: Arc<Zone>) -> Turn {
        let epoch = zone.epoch(&wish.key);
        Turn {
            wish,
            zone,
            request: CacheRequest::default(),
            lead: None,
            fetched: None,
            stale: None,
            epoch,
            began: 0,
            keeps: false,
            validates: false,
            status: Status::Miss,
            why: Forward::Method,
            slicing: Slicing::default(),
        }
    }

    fn prepare(&mut self, ctx: &Context, now: u64) {
        self.began = now;
        self.request.copy(ctx);
        self.validates = self.wish.rule.revalidates && self.stale.as_deref().is_some_and(has_validators);
    }

    /// Reads the stored response from a disk, if it is not in memory.
    async fn fetch(&mut self, request: &RequestHead, now: u64) {
        self.fetched = None;
        let (zone, key) = (&self.zone, &self.wish.key);
        if zone.disk_cache().is_none()
            || self.wish.is_bypassed
            || !self.wish.rule.methods.contains(&request.method)
        {
            return;
        }
        if zone.find(key, &request.headers).is_some() {
            return;
        }
        let Some(mut fetch) = zone.fetch(key, &request.headers, now) else { return };
        match tokio::time::timeout(FETCH_WAIT, &mut fetch).await {
            Ok(fetched) => self.fetched = fetched,
            Err(_) => fetch.give_up(now),
        }
    }

    /// Returns the stored response: in memory, or as it was read from a disk.
    fn find(&self, asked: &Headers) -> Option<Arc<Stored>> {
        let known = self.zone.find(&self.wish.key, asked);
        known.or_else(|| self.fetched.clone().filter(|fetched| fetched.is_kept()))
    }

    fn look(&mut self, request: &RequestHead, now: u64, may_wait: bool) -> Look {
        let (rule, asked) = (&*self.wish.rule, &request.headers);
        if !rule.methods.contains(&request.method) {
            return Look::Ask;
        }
        let wishes = if rule.heeds_requests { wishes(asked) } else { Directives::default() };
        if self.wish.is_bypassed || wishes.no_store || wishes.no_cache {
            self.why = if self.wish.is_bypassed { Forward::Bypass } else { Forward::Request };
            self.status = Status::Bypass;
            return Look::Ask;
        }
        // Responses to HEAD have no body for a later GET.
        let is_slice = self.slicing.slice.is_some();
        let is_whole = is_slice || request.method != Method::Head && asked.find(b"Range").is_none();
        self.keeps = is_whole && !self.wish.is_kept_out;
        self.stale = self.find(asked);
        if let Some(stored) = &self.stale {
            if may_use(rule, &stored.freshness, &wishes, now) == MayUse::Yes {
                return Look::Use(Arc::clone(stored), Status::Hit);
            }
            self.why = if stored.freshness.is_fresh(now) { Forward::Request } else { Forward::Stale };
            self.status = if stored.freshness.is_fresh(now) { Status::Stale } else { Status::Expired };
        } else if let Some(look) = self.look_beside(request.method, asked, now) {
            return look;
        } else {
            self.why = if self.zone.has(&self.wish.key) { Forward::VaryMiss } else { Forward::UriMiss };
            if wishes.only_if_cached {
                return Look::Nothing;
            }
        }
        let is_passed = self.zone.is_passed(&self.wish.key, now);
        if let Some(stored) = self.while_asked(&wishes, now).filter(|_| is_passed && rule.asks_aside) {
            // A node has just failed: it is not contacted again so soon.
            return Look::Use(stored, Status::Updating);
        }
        let is_for_all =
            is_slice || rule.wait_ms > 0 || (rule.asks_aside && self.while_asked(&wishes, now).is_some());
        if !is_for_all || !self.keeps || is_passed {
            return Look::Ask;
        }
        let look = self.look_with_others(asked, &wishes, now, may_wait && rule.wait_ms > 0);
        if self.lead.is_some()
            && let Some(stored) = self.find(asked)
            && may_use(&self.wish.rule, &stored.freshness, &wishes, now) == MayUse::Yes
        {
            // The earlier one has just got its response.
            self.lead = None;
            return Look::Use(stored, Status::Hit);
        }
        if self.lead.is_some() && self.was_overtaken() {
            self.lead = None;
            return Look::Again;
        }
        look
    }

    /// Returns a stale response that may be used during revalidation, for a client that accepts it.
    fn while_asked(&self, wishes: &Directives, now: u64) -> Option<Arc<Stored>> {
        let wants_fresh = wishes.max_age.is_some() || wishes.min_fresh.is_some();
        self.stale.as_ref().filter(|stored| !wants_fresh && stored.freshness.may_wait(now)).cloned()
    }

    /// Looks with request collapsing.
    fn look_with_others(&mut self, asked: &Headers, wishes: &Directives, now: u64, may_wait: bool) -> Look {
        let stale = self.while_asked(wishes, now);
        let flight = match self.zone.lead(&self.wish.key, now, self.wish.rule.lead_s) {
            Ok(lead) => {
                self.lead = Some(lead);
                return stale.filter(|_| self.wish.rule.asks_aside).map_or(Look::Ask, Look::UseAndAsk);
            }
            Err(flight) => flight,
        };
        if let Some(stored) = stale {
            return Look::Use(stored, Status::Updating);
        }
        match flight.coming() {
            Some(coming) if coming.fits(asked) => Look::Share(coming),
            None if may_wait => Look::Wait(flight),
            // The arriving response cannot be shared, or does not come in time.
            _ => Look::Ask,
        }
    }

    /// Returns the stored response, if it may be used after a failure.
    fn stand_in(&self, now: u64) -> Option<Arc<Stored>> {
        self.stale.as_ref().filter(|stored| stored.freshness.may_stand_in(now)).cloned()
    }

    /// Returns the result of the attempt, as [`answered`] does.
    fn answered(&mut self, ctx: &mut Context, length: BodyLength, is_sent: bool, now: u64) -> Option<Ended> {
        if let Some(of) = self.slicing.slice.take()
            && let Taken::Ended(ended) = self.take_slice(of, ctx, length, now)
        {
            return ended;
        }
        let (status, method) = (ctx.response.status, ctx.request.method);
        if status == 304
            && self.validates
            && let Some(stale) = self.stale.take()
        {
            return Some(Ended::Instead(Box::new(self.still_good(ctx, &stale, now))));
        }
        if self.wish.rule.failures.contains(&status)
            && let Some(stale) = self.stand_in(now)
        {
            if let Some(lead) = self.lead.take() {
                lead.fail(now);
            }
            return Some(Ended::Instead(Box::new(self.give_stale(&stale, Some(status), now, ctx))));
        }
        if changes_something(method)
            && !self.wish.rule.methods.contains(&method)
            && (200..400).contains(&status)
        {
            // RFC 9111 §4.4.
            forget(&self.zone, &self.wish.key);
            for key in neighbours::keys(&self.wish, &self.request.authority, self.request.uri_options, ctx) {
                forget(&self.zone, &key);
            }
        }
        let fill = self.keep(ctx, length, now);
        let asked = NodeReport { is_stored: fill.is_some(), ..self.as_asked() };
        if let Some(shared) = fill.as_ref().and_then(Fill::shared)
            && is_sent
            && (self.slicing.was_sliced || shared.body.length() > SMALL_BYTES)
            && let Some(fill) = fill
        {
            // It is used for the first time: the node has just sent it.
            let own = present(&self.wish.rule, &shared, self.wanted(&shared, ctx), ctx);
            tell_asked(&self.wish.rule, asked, ctx);
            return Some(Ended::Apart(Box::new((fill, own))));
        }
        hide(&self.wish.rule, &mut ctx.response.headers);
        tell_asked(&self.wish.rule, asked, ctx);
        ctx.keeper = fill.map(Fill::filter);
        None
    }

    fn as_asked(&self) -> NodeReport {
        let (status, why) = (self.status, self.why);
        NodeReport { status, why, answered: None, is_stored: false, is_collapsed: false }
    }

    /// Stores a response, if that is allowed.
    fn keep(&mut self, ctx: &Context, length: BodyLength, now: u64) -> Option<Fill> {
        let lead = self.lead.take();
        let answered = Answered {
            head: &ctx.response,
            request: &self.request.fields,
            is_isolated: self.wish.is_isolated,
            is_unnamed: self.wish.is_unnamed,
            times: ExchangeTimes { requested: self.began, received: now },
        };
        // A hook may have changed the request for the node after the key was made.
        let keeps = self.keeps && self.wish.is_sent(ctx);
        let freshness = may_keep(&self.wish.rule, answered).filter(|_| keeps);
        let least = self.wish.rule.least_uses;
        let refused = match freshness {
            None => lead,
            Some(_) if least > 1 && self.zone.count_use(&self.wish.key) < least => lead,
            Some(freshness) => {
                let draft = Draft {
                    zone: &self.zone,
                    key: &self.wish.key,
                    head: &ctx.response,
                    request: &self.request.fields,
                    resource: &self.request.resource,
                    varies: !self.wish.rule.ignores.vary,
                    freshness,
                    length,
                    most: self.wish.rule.most_bytes,
                    epoch: self.epoch,
                    now,
                };
                match Fill::new(draft, lead) {
                    Ok(fill) => return Some(fill),
                    Err(lead) => lead,
                }
            }
        };
        let is_another = !matches!(ctx.response.status, 206 | 304 | 500..);
        if freshness.is_none() && self.keeps && self.stale.is_some() && is_another {
            // There is a newer one, which is not shareable.
            self.zone.purge(&self.wish.key);
        }
        // A response caused by a client's own condition says nothing about other responses.
        let says_nothing = freshness.is_some() || matches!(ctx.response.status, 304 | 500..);
        match refused {
            Some(lead) if says_nothing => lead.fail(now),
            Some(lead) => lead.part(now),
            None => {}
        }
        None
    }

    /// Handles a successful revalidation.
    fn still_good(&mut self, ctx: &mut Context, stale: &Stored, now: u64) -> LocalReply {
        let mut renewed = stale.refreshed(&ctx.response.headers, stale.freshness);
        ctx.response.status = renewed.status;
        std::mem::swap(&mut ctx.response.headers, &mut renewed.headers);
        let answered = Answered {
            head: &ctx.response,
            request: &self.request.fields,
            is_isolated: self.wish.is_isolated,
            is_unnamed: self.wish.is_unnamed,
            times: ExchangeTimes { requested: self.began, received: now },
        };
        let freshness = may_keep(&self.wish.rule, answered);
        renewed.headers.copy_from(&ctx.response.headers);
        match freshness {
            Some(freshness) => {
                renewed.freshness = freshness;
                self.zone.insert(&self.wish.key, renewed.clone(), self.epoch, now);
            }
            // Valid for this request only.
            None => {
                self.zone.purge(&self.wish.key);
            }
        }
        // Waiting requests look again, and find it.
        self.lead = None;
        if let Some(of) = &mut self.slicing.slice {
            of.tell(&renewed);
        }
        let own = self.present(&renewed, ctx);
        tell_reused(&renewed.freshness, now, ctx);
        let told = NodeReport { status: Status::Revalidated, answered: Some(304), ..self.as_asked() };
        tell_asked(&self.wish.rule, NodeReport { is_stored: freshness.is_some(), ..told }, ctx);
        own
    }

    /// Responds with a stale response after a node failed, with this status or without a response.
    fn give_stale(&self, stale: &Stored, answered: Option<u16>, now: u64, ctx: &mut Context) -> LocalReply {
        let own = self.present(stale, ctx);
        tell_reused(&stale.freshness, now, ctx);
        tell_asked(&self.wish.rule, NodeReport { status: Status::Stale, answered, ..self.as_asked() }, ctx);
        own
    }

    /// Sets a stored response.
    fn present(&self, stored: &Stored, ctx: &mut Context) -> LocalReply {
        match &self.slicing.slice {
            Some(of) => of.present(stored, ctx),
            None => present(&self.wish.rule, stored, self.wanted(stored, ctx), ctx),
        }
    }

    fn wanted(&self, stored: &Stored, ctx: &Context) -> RequestedPart {
        RequestedPart::of(stored, &self.request.fields, ctx.request.method)
    }
}

/// Handles a node's response with the head in `ctx` and `length` bytes after it; `is_sent` is true if the node has
/// the whole request. Returns the end of the attempt, or None if the response continues: then [`Context::keeper`]
/// stores it.
pub(super) fn answered(
    turn: &mut Option<Box<Turn>>,
    ctx: &mut Context,
    length: BodyLength,
    is_sent: bool,
    worker: &Worker,
) -> Option<Ended> {
    let now = worker.clock.borrow().unix_ms() / 1000;
    turn.as_mut()?.answered(ctx, length, is_sent, now)
}

/// Puts the storing filter before the filters of a response, if it is to be stored.
pub(super) fn kept_first(
    ctx: &mut Context,
    mut filters: Vec<Box<dyn BodyFilter>>,
) -> Vec<Box<dyn BodyFilter>> {
    if let Some(keeper) = ctx.keeper.take() {
        filters.insert(0, keeper);
    }
    filters
}

/// Returns the cache directives of a request; `Pragma` counts without `Cache-Control` (RFC 9111 §5.4).
fn wishes(asked: &Headers) -> Directives {
    let said = Directives::of(asked);
    let is_old = asked.find(b"Pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    if is_old && asked.find(b"Cache-Control").is_none() {
        Directives { no_cache: true, ..said }
    } else {
        said
    }
}

/// Returns true if a method may change the response to a later GET. An unknown method may (RFC 9111 §4.4).
fn changes_something(method: Method) -> bool {
    !matches!(method, Method::Get | Method::Head | Method::Options | Method::Trace | Method::Connect)
}
