//! The cache of answers, a stage between the plugins of the request and the upstream (RFC 9111).
//!
//! What is kept is a node's answer before plugins have seen it; they see what is used again as they would have seen
//! the node's. What is asked for by many is asked of a node once.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sigma_cache::{
    Answered, Directives, Draft, Epoch, Fill, Flight, Lead, Life, MayUse, Stored, Zone, may_keep, may_use,
};
use sigma_http::condition::{Outcome, Validators};
use sigma_http::range::{ByteRange, Ranges};
use sigma_http::{BodyLength, Fault, HeaderId, Headers, Method, RequestHead, Side};
use sigma_plugin::cache::{CacheRule, CacheWish};
use sigma_plugin::record::Source;
use sigma_plugin::{BodyFilter, Context, Reply};
use sigma_wire::Departure;

use super::Exchange;
use super::delivery::OwnBody;
use super::local_reply::LocalReply;
use super::plan::Ended;
use super::transfer::client_gone;
use crate::worker::Worker;

/// The variable that says what the cache did, as nginx names it.
const STATUS_VARIABLE: &str = "upstream_cache_status";

/// Bodies up to this pass on to those who wait with the exchange that asks: they come with their heads, so nobody's
/// slowness is in the way.
const SMALL_BYTES: u64 = 16 * 1024;

/// What the cache did for a request, in nginx's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Miss,
    Bypass,
    Expired,
    Stale,
    Updating,
    Revalidated,
    Hit,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }

    /// Tells the log, and the client if the rule wants it.
    fn tell(self, rule: &CacheRule, ctx: &mut Context) {
        ctx.set_variable(STATUS_VARIABLE, self.as_str());
        if !rule.status_field.is_empty() {
            ctx.response.headers.replace(rule.status_field, self.as_str().as_bytes());
        }
    }
}

/// A request whose answer may be kept, or that makes others be forgotten.
#[derive(Debug)]
pub(super) struct Turn {
    wish: Box<CacheWish>,
    zone: Arc<Zone>,
    /// The fields of the request as the cache has seen them, once a node is asked: for it they are changed.
    asked: Headers,
    /// Asks for all who want the same.
    lead: Option<Lead>,
    /// What is kept, and may not be used as it is.
    stale: Option<Arc<Stored>>,
    epoch: Epoch,
    /// When the node was asked, in seconds since 1970.
    began: u64,
    /// The answer may be kept.
    keeps: bool,
    /// The node is asked whether what is stale is still good: a 304 says so, and is no answer to the client's own
    /// conditions.
    validates: bool,
    status: Status,
}

/// What a look at what is kept comes to.
enum Look {
    Use(Arc<Stored>, Status),
    Ask,
    Wait(Arc<Flight>),
    /// The client wants what is kept or nothing, and nothing is.
    Nothing,
}

impl Exchange<'_, '_> {
    /// Answers from what is kept; false if a node has to be asked, whose answer the turn is told of.
    pub(super) async fn answer_from_cache(&mut self) -> Result<bool, Fault> {
        let wish = self.scratch.ctx.cache.take().filter(|_| !self.asks_upgrade);
        let Some(wish) = wish else { return Ok(false) };
        let method = self.scratch.ctx.request.method;
        if matches!(method, Method::Get | Method::Head) && !self.request_length().is_empty() {
            // What is asked for is said by a body, which no key has.
            return Ok(false);
        }
        let zone = self.worker.caches.zone(&wish.rule);
        if method == Method::Purge {
            let status = if zone.purge(&wish.key) { 200 } else { 404 };
            return self.reply(Reply::new(status).text("").into()).await.map(|()| true);
        }
        let mut turn = Turn::new(wish, zone);
        match self.look_or_wait(&mut turn).await? {
            Look::Use(stored, status) => self.give(&turn, &stored, status).await.map(|()| true),
            Look::Nothing => self.reply(Reply::new(504).text("").into()).await.map(|()| true),
            Look::Ask | Look::Wait(_) => {
                turn.began = self.now_s();
                turn.asked.copy_from(&self.scratch.ctx.request.headers);
                if let Some(stale) = turn.stale.as_deref().filter(|_| turn.wish.rule.revalidates) {
                    turn.validates = ask_whether_good(&mut self.scratch.ctx.request.headers, stale);
                }
                self.scratch.turn = Some(Box::new(turn));
                Ok(false)
            }
        }
    }

    /// Answers with what is kept where no node has answered and the rule lets it; whether it did.
    pub(super) async fn stand_in(&mut self, fault: Fault) -> Result<bool, Fault> {
        let Some(turn) = self.scratch.turn.take() else { return Ok(false) };
        match turn.stand_in(self.now_s()).filter(|_| fault.side() == Side::Upstream) {
            None => Ok(false),
            Some(stale) => {
                let own = turn.reuse(&stale, Status::Stale, self.now_s(), &mut self.scratch.ctx);
                self.send_own(own).await.map(|()| true)
            }
        }
    }

    /// Seconds since 1970.
    fn now_s(&self) -> u64 {
        self.worker.clock.borrow().unix_ms() / 1000
    }

    /// Looks until there is an answer, or somebody has to ask and it is this request.
    async fn look_or_wait(&mut self, turn: &mut Turn) -> Result<Look, Fault> {
        let wait = tokio::time::sleep(Duration::from_millis(turn.wish.rule.wait_ms.into()));
        let (mut wait, mut is_over) = (pin!(wait), false);
        loop {
            let flight = match turn.look(&self.scratch.ctx.request, self.now_s(), !is_over) {
                Look::Wait(flight) => flight,
                other => return Ok(other),
            };
            let mut news = pin!(flight.news());
            is_over = poll_fn(|task| {
                if news.as_mut().poll(task).is_ready() {
                    return Poll::Ready(Ok(false));
                }
                if let Poll::Ready(Departure::Gone) = self.down.poll_departure(task) {
                    return Poll::Ready(Err(client_gone()));
                }
                wait.as_mut().poll(task).map(|()| Ok(true))
            })
            .await?;
        }
    }

    /// Answers with what is kept.
    async fn give(&mut self, turn: &Turn, stored: &Stored, status: Status) -> Result<(), Fault> {
        let now = self.now_s();
        let ctx = &mut self.scratch.ctx;
        let wanted = Wanted::of(stored, &ctx.request.headers, ctx.request.method);
        let own = present(&turn.wish.rule, stored, wanted, ctx);
        reused(&turn.wish.rule, &stored.life, (status, now), ctx);
        self.send_own(own).await
    }
}

impl Turn {
    fn new(wish: Box<CacheWish>, zone: Arc<Zone>) -> Turn {
        let epoch = zone.epoch(&wish.key);
        Turn {
            wish,
            zone,
            asked: Headers::default(),
            lead: None,
            stale: None,
            epoch,
            began: 0,
            keeps: false,
            validates: false,
            status: Status::Miss,
        }
    }

    fn look(&mut self, request: &RequestHead, now: u64, may_wait: bool) -> Look {
        let (rule, asked) = (&*self.wish.rule, &request.headers);
        if !rule.methods.contains(&request.method) {
            return Look::Ask;
        }
        let wishes = if rule.heeds_requests { wishes(asked) } else { Directives::default() };
        if self.wish.is_bypassed || wishes.no_store || wishes.no_cache {
            self.status = Status::Bypass;
            return Look::Ask;
        }
        // Answers to HEAD have no body that a later GET could be given.
        let is_whole = request.method != Method::Head && asked.find(b"Range").is_none();
        self.keeps = is_whole && !self.wish.is_kept_out;
        self.stale = self.zone.find(&self.wish.key, asked);
        if let Some(stored) = &self.stale {
            if may_use(rule, &stored.life, &wishes, now) == MayUse::Yes {
                return Look::Use(Arc::clone(stored), Status::Hit);
            }
            self.status = if stored.life.is_fresh(now) { Status::Stale } else { Status::Expired };
        } else if wishes.only_if_cached {
            return Look::Nothing;
        }
        if rule.wait_ms == 0 || !self.keeps || self.zone.is_passed(&self.wish.key, now) {
            return Look::Ask;
        }
        let look = self.look_with_others(asked, now, may_wait);
        if self.lead.is_some()
            && let Some(stored) = self.zone.find(&self.wish.key, asked)
            && may_use(&self.wish.rule, &stored.life, &wishes, now) == MayUse::Yes
        {
            // The one that asked before has just been answered.
            self.lead = None;
            return Look::Use(stored, Status::Hit);
        }
        look
    }

    /// One asks for all.
    fn look_with_others(&mut self, asked: &Headers, now: u64, may_wait: bool) -> Look {
        let flight = match self.zone.lead(&self.wish.key) {
            Ok(lead) => {
                self.lead = Some(lead);
                return Look::Ask;
            }
            Err(flight) => flight,
        };
        if let Some(stored) = self.stale.as_ref().filter(|stored| stored.life.may_wait(now)) {
            return Look::Use(Arc::clone(stored), Status::Updating);
        }
        match flight.coming() {
            Some(coming) if coming.fits(asked) => Look::Use(coming, Status::Hit),
            None if may_wait => Look::Wait(flight),
            // What is coming is for others, or does not come in time.
            _ => Look::Ask,
        }
    }

    /// What is kept, if it may be given where a node has failed.
    fn stand_in(&self, now: u64) -> Option<Arc<Stored>> {
        let most = self.wish.rule.stale_if_error;
        self.stale.as_ref().filter(|stored| stored.life.may_stand_in(now, most)).cloned()
    }

    /// What becomes of the attempt, as [`answered`] says.
    fn answered(
        &mut self,
        ctx: &mut Context,
        (length, is_sent): (BodyLength, bool),
        now: u64,
    ) -> Option<Ended> {
        let (status, method) = (ctx.response.status, ctx.request.method);
        if status == 304
            && self.validates
            && let Some(stale) = self.stale.take()
        {
            return Some(Ended::Instead(Box::new(self.still_good(ctx, &stale, now))));
        }
        if matches!(status, 500 | 502..=504)
            && let Some(stale) = self.stand_in(now)
        {
            return Some(Ended::Instead(Box::new(self.reuse(&stale, Status::Stale, now, ctx))));
        }
        if changes_something(method)
            && !self.wish.rule.methods.contains(&method)
            && (200..400).contains(&status)
        {
            // RFC 9111 §4.4.
            self.zone.purge(&self.wish.key);
        }
        let fill = self.keep(ctx, length, now);
        if let Some(shared) = fill.as_ref().and_then(Fill::shared)
            && is_sent
            && shared.body.length() > SMALL_BYTES
            && let Some(fill) = fill
        {
            // It is used for the first time: the node has just given it.
            let own = present(&self.wish.rule, &shared, self.wanted(&shared, ctx), ctx);
            self.status.tell(&self.wish.rule, ctx);
            return Some(Ended::Apart(Box::new((fill, own))));
        }
        if self.wish.rule.hides_lifetime {
            hide_lifetime(&mut ctx.response.headers);
        }
        self.status.tell(&self.wish.rule, ctx);
        ctx.keeper = fill.map(Fill::filter);
        None
    }

    /// Keeps an answer, if it may be.
    fn keep(&mut self, ctx: &Context, length: BodyLength, now: u64) -> Option<Fill> {
        let lead = self.lead.take();
        let answered = Answered {
            head: &ctx.response,
            request: &self.asked,
            is_isolated: self.wish.is_isolated,
            times: (self.began, now),
        };
        let refused = match may_keep(&self.wish.rule, answered).filter(|_| self.keeps) {
            None => lead,
            Some(life) => {
                let draft = Draft {
                    zone: &self.zone,
                    key: &self.wish.key,
                    head: &ctx.response,
                    request: &self.asked,
                    life,
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
        match refused {
            Some(lead) if ctx.response.status >= 500 => lead.fail(now),
            Some(lead) => lead.part(now),
            None => {}
        }
        None
    }

    /// The node says that what is kept is still good.
    fn still_good(&mut self, ctx: &mut Context, stale: &Stored, now: u64) -> LocalReply {
        let mut renewed = stale.refreshed(&ctx.response.headers, stale.life);
        ctx.response.status = renewed.status;
        std::mem::swap(&mut ctx.response.headers, &mut renewed.headers);
        let answered = Answered {
            head: &ctx.response,
            request: &self.asked,
            is_isolated: self.wish.is_isolated,
            times: (self.began, now),
        };
        let life = may_keep(&self.wish.rule, answered);
        renewed.headers.copy_from(&ctx.response.headers);
        match life {
            Some(life) => {
                renewed.life = life;
                self.zone.insert(&self.wish.key, renewed.clone(), self.epoch);
            }
            // Good for this request, and for no other.
            None => {
                self.zone.purge(&self.wish.key);
            }
        }
        // Those who wait look again, and find it.
        self.lead = None;
        self.reuse(&renewed, Status::Revalidated, now, ctx)
    }

    /// Answers with what is kept in a node's place.
    fn reuse(&self, stored: &Stored, status: Status, now: u64, ctx: &mut Context) -> LocalReply {
        let own = present(&self.wish.rule, stored, self.wanted(stored, ctx), ctx);
        reused(&self.wish.rule, &stored.life, (status, now), ctx);
        own
    }

    fn wanted(&self, stored: &Stored, ctx: &Context) -> Wanted {
        Wanted::of(stored, &self.asked, ctx.request.method)
    }
}

/// A node has answered with the head in `ctx`, behind which `length` bytes follow; `is_sent` says whether it has the
/// whole request. Returns what becomes of the attempt, unless the answer goes on: then [`Context::keeper`] is what keeps
/// it.
pub(super) fn answered(
    turn: &mut Option<Box<Turn>>,
    ctx: &mut Context,
    (length, is_sent): (BodyLength, bool),
    worker: &Worker,
) -> Option<Ended> {
    let now = worker.clock.borrow().unix_ms() / 1000;
    turn.as_mut()?.answered(ctx, (length, is_sent), now)
}

/// The filters of an answer, before which stands what keeps it, if it is to be kept.
pub(super) fn kept_first(
    ctx: &mut Context,
    mut filters: Vec<Box<dyn BodyFilter>>,
) -> Vec<Box<dyn BodyFilter>> {
    if let Some(keeper) = ctx.keeper.take() {
        filters.insert(0, keeper);
    }
    filters
}

/// What a client wants of the cache; the old way to say so counts where the new one is not used (RFC 9111 §5.4).
fn wishes(asked: &Headers) -> Directives {
    let said = Directives::of(asked);
    let is_old = asked.find(b"Pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    if is_old && asked.find(b"Cache-Control").is_none() {
        Directives { no_cache: true, ..said }
    } else {
        said
    }
}

/// Whether a method may change what a later GET is answered. One that nobody knows may (RFC 9111 §4.4).
fn changes_something(method: Method) -> bool {
    !matches!(method, Method::Get | Method::Head | Method::Options | Method::Trace | Method::Connect)
}

/// Makes a request one for what is newer than what is kept (RFC 9111 §4.3.1). Conditions of the client's own would have
/// the node compare with what the client has. False if nothing tells one version from another.
fn ask_whether_good(request: &mut Headers, stale: &Stored) -> bool {
    let (tag, modified) = (stale.headers.find(b"ETag"), stale.headers.find(b"Last-Modified"));
    if tag.is_none() && modified.is_none() {
        return false;
    }
    for name in ["If-None-Match", "If-Modified-Since", "If-Range"] {
        request.remove_name(name.as_bytes());
    }
    if let Some(tag) = tag {
        request.append("If-None-Match", tag);
    }
    if let Some(modified) = modified {
        request.append("If-Modified-Since", modified);
    }
    true
}

fn hide_lifetime(headers: &mut Headers) {
    headers.remove_name(b"Cache-Control");
    headers.remove_name(b"Expires");
}

/// How much of what is kept a request wants.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    Whole,
    Part(ByteRange),
    /// A part that it has not.
    Beyond,
    /// The client has it already.
    Nothing,
}

impl Wanted {
    /// What a request with these fields wants.
    fn of(stored: &Stored, asked: &Headers, method: Method) -> Wanted {
        if stored.status != 200 {
            return Wanted::Whole;
        }
        let validators = Validators::of(&stored.headers);
        if validators.judge(asked) == Outcome::NotModified {
            return Wanted::Nothing;
        }
        let range = asked.find(b"Range").filter(|_| method == Method::Get);
        let range = range.filter(|_| validators.allows_range(asked));
        match range.map(|range| Ranges::parse(range, stored.body.length())) {
            Some(Ranges::One(part)) => Wanted::Part(part),
            Some(Ranges::Unsatisfiable) => Wanted::Beyond,
            // Several parts are answered with the whole, which is always right (RFC 9110 §14.2).
            Some(Ranges::Whole | Ranges::Many(_)) | None => Wanted::Whole,
        }
    }
}

/// Puts the head of what is kept in its place, as much of it as is wanted.
fn present(rule: &CacheRule, stored: &Stored, wanted: Wanted, ctx: &mut Context) -> LocalReply {
    let whole = stored.body.length();
    let head = &mut ctx.response;
    head.start(stored.status);
    head.headers.copy_from(&stored.headers);
    if rule.hides_lifetime {
        hide_lifetime(&mut head.headers);
    }
    let (start, length) = match wanted {
        Wanted::Whole => (0, whole),
        Wanted::Part(part) => {
            head.status = 206;
            head.headers.replace("Content-Range", part.content_range(whole).as_bytes());
            (part.start, part.length())
        }
        Wanted::Beyond => {
            head.status = 416;
            head.headers.replace("Content-Range", format!("bytes */{whole}").as_bytes());
            (0, 0)
        }
        Wanted::Nothing => {
            head.status = 304;
            head.headers.remove_where(|_, name| {
                name.len() > 8
                    && name[..8].eq_ignore_ascii_case(b"content-")
                    && !name.eq_ignore_ascii_case(b"content-location")
            });
            (0, 0)
        }
    };
    if head.status != 304 {
        head.headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(length).as_bytes());
    }
    let body = OwnBody::Made(Box::new(stored.body.read(start, length)));
    LocalReply { body, length: BodyLength::Known(length) }
}

/// Tells of the answer in its place that it is used again.
fn reused(rule: &CacheRule, life: &Life, (status, now): (Status, u64), ctx: &mut Context) {
    ctx.response.headers.replace("Age", itoa::Buffer::new().format(life.age(now)).as_bytes());
    ctx.record.source = Source::Gateway;
    status.tell(rule, ctx);
}
