//! Responses in slices: fetched, stored and sent as requests want them.
//!
//! The request's own exchange fetches the first wanted slice, so that a node without range support responds as usual.
//! The others are fetched in the background, one ahead of the client.

mod reader;
mod slice_request;

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_cache::{
    Answered, Draft, Epoch, ExchangeTimes, Fill, SliceTable, Stored, Version, Zone, is_all, may_keep,
    slice_key, table_key,
};
use sigma_http::range::Ranges;
use sigma_http::{BodyLength, Fault, Headers, Method};
use sigma_plugin::Context;
use sigma_plugin::cache::{CacheRule, CacheWish};
use tokio::sync::oneshot;

use super::cache_status::{Forward, NodeReport, Status, tell_asked, tell_hit, tell_reused};
use super::conditions::ask_without_condition;
use super::{Look, Turn};
use crate::exchange::Exchange;
use crate::exchange::delivery::OwnBody;
use crate::exchange::local_reply::LocalReply;
use crate::exchange::plan::Ended;
use crate::exchange::transfer::client_gone;
use reader::{Assembly, FirstSlice, Trouble};
pub(super) use slice_request::SliceRequest;

/// How often a look-up is repeated if the node's version has changed, or other requests were faster.
pub(super) const TRIES: u8 = 3;

/// Slices that are checked before the head is sent. If later ones belong to another version, the response is cut.
const LOOKED_AT: u64 = 1024;

/// The use of slices by a request.
#[derive(Debug, Default)]
pub(super) struct Slicing {
    /// It is about a slice.
    pub(super) slice: Option<Box<OfSlice>>,
    /// A slice was requested, and the whole has come.
    pub(super) was_sliced: bool,
    /// The client's original request is sent, even if there are slices.
    pub(super) is_plain: bool,
}

/// A turn for one slice.
#[derive(Debug)]
pub(super) struct OfSlice {
    slice_request: Rc<SliceRequest>,
    number: u64,
    /// Its table, if there is one yet.
    table: Option<SliceTable>,
    /// The purge counts at the time of the request: of the table, and of the whole response.
    table_epoch: Epoch,
    whole_epoch: Epoch,
    /// No client waits for the response.
    is_aside: bool,
    /// Notified when the slice begins to arrive.
    tell: Option<oneshot::Sender<Arc<Stored>>>,
}

/// The result of a look-up for slices.
pub(super) enum Outcome {
    /// The client has its response
    Answered,
    /// A node is contacted
    Asked,
    /// The look-up must be repeated from the beginning
    Again,
    /// The client's original request must be sent
    Plain,
}

/// The kind of a node's response to a slice request.
pub(super) enum Taken {
    /// A usual response, with the whole
    Whole,
    Ended(Option<Ended>),
}

/// Returns true if a request with these fields may get slices. A conditional request by the client's own validators
/// goes to the node.
fn may_be_sliced(asked: &Headers) -> bool {
    asked.find(b"If-Match").is_none() && asked.find(b"If-Unmodified-Since").is_none()
}

/// Returns the size of a slice; 0 without slices.
fn slice_bytes(rule: &CacheRule, zone: &Zone) -> u64 {
    rule.slice_bytes.min(zone.largest()).min(rule.most_bytes)
}

/// Purges a response, whole or in slices; returns true if there was one.
pub(super) fn forget(zone: &Zone, key: &[u8]) -> bool {
    let had_slices = zone.purge(&table_key(key));
    zone.purge(key) || had_slices
}

impl Turn {
    /// Returns true if a response that is not stored whole is looked up in slices. Slices are not requested from a
    /// node that has recently refused them, nor before enough uses.
    fn goes_by_slices(&self, method: Method, asked: &Headers, now: u64) -> bool {
        let (zone, key) = (&self.zone, &self.wish.key);
        self.slicing.slice.is_none()
            && !self.slicing.is_plain
            && slice_bytes(&self.wish.rule, zone) > 0
            && method == Method::Get
            && !self.wish.is_kept_out
            && may_be_sliced(asked)
            && !zone.is_passed(key, now)
            && !zone.is_passed(&table_key(key), now)
            && self.is_wanted_often()
    }

    fn is_wanted_often(&self) -> bool {
        let least = self.wish.rule.least_uses;
        least <= 1 || self.zone.count_use(&table_key(&self.wish.key)) >= least
    }

    /// Looks for a response in slices, or one that arrives in another form.
    pub(super) fn look_beside(&self, method: Method, asked: &Headers, now: u64) -> Option<Look> {
        if let Some(of) = self.slicing.slice.as_deref().filter(|of| of.is_first_of_all()) {
            let is_whole = self.zone.find(of.whole_key(), asked).is_some();
            let is_known =
                is_whole || self.zone.coming(of.whole_key()).is_some() || of.slice_request.has_table();
            return is_known.then_some(Look::Again);
        }
        if let Some(of) = self.slicing.slice.as_deref() {
            // It may have been requested before there was a table.
            let key = slice_key(of.whole_key(), 0, of.number);
            let coming = self.zone.coming(&key).filter(|coming| coming.fits(asked))?;
            let version = Version::of_kept(&coming, of.number, of.slice_request.slice_bytes);
            let is_same =
                version.is_some() && version.as_ref() == of.table.as_ref().map(|table| &table.version);
            return is_same.then_some(Look::Share(coming));
        }
        if !self.goes_by_slices(method, asked, now) {
            return None;
        }
        let coming = self.zone.coming(&self.wish.key).filter(|coming| coming.fits(asked));
        Some(coming.map_or(Look::Slices, Look::Share))
    }

    /// Returns true if a table has appeared since this turn began without one.
    pub(super) fn was_overtaken(&self) -> bool {
        self.slicing.slice.as_deref().is_some_and(|of| of.is_first_of_all() && of.slice_request.has_table())
    }

    /// Handles a node's response to a slice request.
    pub(super) fn take_slice(
        &mut self,
        of: Box<OfSlice>,
        ctx: &mut Context,
        length: BodyLength,
        now: u64,
    ) -> Taken {
        match ctx.response.status {
            206 if !of.is_aside && is_all(&ctx.response, length) => {
                ctx.response.status = 200;
                ctx.response.headers.remove_name(b"Content-Range");
                self.zone.purge(&of.slice_request.table_key());
                self.become_whole(&of, now);
                Taken::Whole
            }
            206 => Taken::Ended(self.take_part(of, ctx, length, now)),
            304 if self.validates => {
                self.slicing.slice = Some(of);
                Taken::Whole
            }
            // It would not answer a client's request.
            _ if of.is_aside => {
                // The version has changed, has no slices, or is gone.
                if matches!(ctx.response.status, 200 | 404 | 410 | 416) {
                    self.zone.purge(&of.slice_request.table_key());
                }
                let stale = self.stand_in(now).filter(|_| self.fails(ctx.response.status));
                if let (Some(stale), Some(tell)) = (stale, of.tell) {
                    let _ = tell.send(stale);
                }
                Taken::Ended(Some(self.drop_aside(now)))
            }
            416 if !of.is_beyond() => Taken::Ended(Some(self.ask_plainly(&of, ctx))),
            status if status >= 500 => {
                // A stale one may be used.
                let may_stand_in = self.fails(status) && self.stand_in(now).is_some();
                match may_stand_in {
                    true => self.slicing.slice = Some(of),
                    false => self.become_whole(&of, now),
                }
                Taken::Whole
            }
            status => {
                if status == 200 || status == 416 {
                    // The version has changed, or has no slices.
                    self.zone.purge(&of.slice_request.table_key());
                }
                self.become_whole(&of, now);
                Taken::Whole
            }
        }
    }

    fn fails(&self, status: u16) -> bool {
        self.wish.rule.failures.contains(&status)
    }

    /// The request was for the whole.
    fn become_whole(&mut self, of: &OfSlice, now: u64) {
        (self.lead, self.stale) = (None, None);
        self.wish.key.clone_from(&of.slice_request.wish.key);
        self.epoch = of.whole_epoch;
        self.lead = self.zone.lead(&self.wish.key, now, self.wish.rule.lead_s).ok();
        self.slicing.was_sliced = true;
    }

    /// Sends the client's original request, and stores nothing of its response.
    fn ask_plainly(&mut self, of: &OfSlice, ctx: &mut Context) -> Ended {
        (self.lead, self.stale) = (None, None);
        self.wish.key.clone_from(&of.slice_request.wish.key);
        (self.keeps, self.validates) = (false, false);
        let request = &mut ctx.request.headers;
        ask_without_condition(request);
        request.remove_name(b"Range");
        for (name, value) in self.request.fields.iter() {
            if CHANGED.iter().any(|changed| name.eq_ignore_ascii_case(changed.as_bytes())) {
                request.append_parts(name, &[value]);
            }
        }
        Ended::Anew
    }

    /// Drops a background request that has brought no slice.
    fn drop_aside(&mut self, now: u64) -> Ended {
        if let Some(lead) = self.lead.take() {
            lead.fail(now);
        }
        Ended::Instead(Box::new(nothing()))
    }

    /// Handles a partial response of a node.
    fn take_part(
        &mut self,
        mut of: Box<OfSlice>,
        ctx: &mut Context,
        length: BodyLength,
        now: u64,
    ) -> Option<Ended> {
        let size = of.slice_request.slice_bytes;
        let version = Version::of_slice(&ctx.response, length, of.number, size);
        let Some(version) = version else { return Some(self.refuse(&of, ctx, now)) };
        let is_other = of.table.as_ref().is_some_and(|table| table.version != version);
        if is_other {
            self.zone.purge(&of.slice_request.table_key());
            // This response is not affected by the purge just made.
            of.table_epoch = self.zone.epoch_since(&of.slice_request.table_key(), of.table_epoch);
            of.table = None;
            if of.is_aside {
                return Some(self.drop_aside(now));
            }
        }
        ctx.response.status = 200;
        let Some(draft) = self.slice_as_stored(ctx, now) else {
            ctx.response.status = 206;
            return Some(self.refuse(&of, ctx, now));
        };
        let table = match of.table.take() {
            Some(table) => table,
            None => self.begin_table(&of, version, &draft, now),
        };
        let Some(fill) = self.fill_slice(&of, &table, ctx, draft, length, now) else {
            return Some(match of.is_aside {
                true => self.drop_aside(now),
                false => self.ask_plainly(&of, ctx),
            });
        };
        let (fill, shared) = fill;
        if let Some(tell) = of.tell.take() {
            let _ = tell.send(Arc::clone(&shared));
        }
        if of.is_aside {
            ctx.keeper = Some(fill.filter());
            return None;
        }
        let first = FirstSlice { number: of.number, stored: shared };
        let assembly = Assembly::new(Rc::clone(&of.slice_request), table, first);
        let own = assembly.present(ctx);
        tell_asked(&self.wish.rule, NodeReport { is_stored: true, ..self.as_asked() }, ctx);
        Some(Ended::Apart(Box::new((fill, own))))
    }

    /// Handles a part that must not be stored, or cannot be combined with others: for a while original requests are
    /// sent.
    fn refuse(&mut self, of: &OfSlice, ctx: &mut Context, now: u64) -> Ended {
        self.zone.purge(&of.slice_request.table_key());
        self.zone.lead_apart(&of.slice_request.table_key(), now).part(now);
        if of.is_aside { self.drop_aside(now) } else { self.ask_plainly(of, ctx) }
    }

    /// Returns the slice whose head is in `ctx`, without its body; None if it must not be stored.
    fn slice_as_stored(&self, ctx: &Context, now: u64) -> Option<Stored> {
        let answered = Answered {
            head: &ctx.response,
            request: &self.request.fields,
            is_isolated: self.wish.is_isolated,
            is_unnamed: self.wish.is_unnamed,
            times: ExchangeTimes { requested: self.began, received: now },
        };
        let freshness = may_keep(&self.wish.rule, answered).filter(|_| self.wish.is_sent(ctx))?;
        let varies = !self.wish.rule.ignores.vary;
        Stored::new(&ctx.response, freshness, &self.request.fields, &self.request.resource, varies)
    }

    /// Returns the table for a slice that was requested without one: an existing one of the same version, or a new
    /// one.
    fn begin_table(&self, of: &OfSlice, version: Version, slice: &Stored, now: u64) -> SliceTable {
        let key = of.slice_request.table_key();
        let known = self.zone.find(&key, &self.request.fields).and_then(|kept| SliceTable::of(&kept));
        let slice_bytes = of.slice_request.slice_bytes;
        if let Some(known) =
            known.filter(|table| table.version == version && table.slice_bytes == slice_bytes)
        {
            return known;
        }
        let table = SliceTable { id: table_id(), slice_bytes, version };
        self.zone.insert(&key, table.stored(slice), of.table_epoch, now);
        table
    }

    /// Stores a slice while it arrives; None if there is no room for it.
    fn fill_slice(
        &mut self,
        of: &OfSlice,
        table: &SliceTable,
        ctx: &Context,
        slice: Stored,
        length: BodyLength,
        now: u64,
    ) -> Option<(Fill, Arc<Stored>)> {
        let key = slice_key(&of.slice_request.wish.key, table.id, of.number);
        let draft = Draft {
            zone: &self.zone,
            key: &key,
            head: &ctx.response,
            request: &self.request.fields,
            resource: &self.request.resource,
            varies: !self.wish.rule.ignores.vary,
            freshness: slice.freshness,
            length,
            most: of.slice_request.slice_bytes,
            epoch: self.zone.epoch_since(&key, self.epoch),
            now,
        };
        let lead = self.lead.take();
        let lead = lead.unwrap_or_else(|| self.zone.lead_apart(&key, now));
        match Fill::new(draft, Some(lead)) {
            Ok(fill) => {
                let shared = fill.shared()?;
                Some((fill, shared))
            }
            Err(lead) => {
                if let Some(lead) = lead {
                    lead.fail(now);
                }
                None
            }
        }
    }
}

/// The fields that a slice request changes.
const CHANGED: [&str; 4] = ["Range", "If-Range", "If-None-Match", "If-Modified-Since"];

/// Returns a unique table id, also over earlier processes, whose slices are on disks.
fn table_id() -> u64 {
    RandomState::new().hash_one(b"table").max(1)
}

/// Returns the reply to a background request.
fn nothing() -> LocalReply {
    LocalReply { body: OwnBody::Bytes(Vec::new(), 0), length: BodyLength::Known(0), is_silent: false }
}

impl OfSlice {
    /// Sets the whole response that `slice` belongs to, as the client wants it.
    pub(super) fn present(&self, slice: &Stored, ctx: &mut Context) -> LocalReply {
        match &self.table {
            Some(table) if !self.is_aside => {
                let first = FirstSlice { number: self.number, stored: Arc::new(slice.clone()) };
                Assembly::new(Rc::clone(&self.slice_request), table.clone(), first).present(ctx)
            }
            _ => nothing(),
        }
    }

    /// Gives the waiting request a slice that is still valid.
    pub(super) fn tell(&mut self, slice: &Stored) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(Arc::new(slice.clone()));
        }
    }

    /// Returns true if no response about the slice has arrived except the one that replaced it.
    fn is_first_of_all(&self) -> bool {
        self.table.is_none()
    }

    /// Returns the key of the whole response.
    fn whole_key(&self) -> &[u8] {
        &self.slice_request.wish.key
    }

    /// Returns true if the client wants a single range that begins in this slice or after it: without the slice,
    /// there is no such range.
    fn is_beyond(&self) -> bool {
        let asked = self.slice_request.asked();
        let range = asked.find(b"Range").map(|range| Ranges::parse(range, u64::MAX));
        let from = self.number.saturating_mul(self.slice_request.slice_bytes);
        asked.find(b"If-Range").is_none()
            && from > 0
            && matches!(range, Some(Ranges::One(range)) if range.start >= from)
    }
}

impl Exchange<'_, '_> {
    /// Responds from slices, or fetches the first wanted one.
    pub(super) async fn answer_in_slices(
        &mut self,
        wish: &CacheWish,
        zone: &Arc<Zone>,
    ) -> Result<Outcome, Fault> {
        let Some(slice_request) = self.slice_request(wish, zone) else { return Ok(Outcome::Plain) };
        let now = self.now_s();
        let table = slice_request.find_table(now).await;
        let Some(number) = slice_request.first(table.as_ref()) else { return Ok(Outcome::Plain) };
        let mut turn = slice_request.turn(number, table.clone());
        let mut why = Forward::Partial;
        let (stored, status, collapsed) = match self.look_or_wait(&mut turn).await? {
            Look::Use(stored, status) => (stored, status, false),
            Look::Share(stored) => {
                why = turn.why;
                (stored, Status::Hit, true)
            }
            Look::UseAndAsk(stored) => {
                self.prepare(&mut turn);
                slice_request.ask_in_background(turn, None);
                (stored, Status::Updating, false)
            }
            Look::Nothing | Look::Slices => return Ok(Outcome::Plain),
            Look::Again => return Ok(Outcome::Again),
            Look::Ask | Look::Wait(_) => {
                self.prepare(&mut turn);
                let request = &mut self.scratch.ctx.request.headers;
                slice_request.ask_for(number, turn.stale.as_deref().filter(|_| turn.validates), request);
                self.scratch.turn = Some(Box::new(turn));
                return Ok(Outcome::Asked);
            }
        };
        let version = Version::of_kept(&stored, number, slice_request.slice_bytes);
        let Some(version) = version else { return Ok(Outcome::Plain) };
        let table = match table {
            Some(table) => table,
            // Another request has created the table.
            None => match slice_request.find_table(now).await {
                Some(table) => table,
                None => return Ok(Outcome::Plain),
            },
        };
        if table.version != version {
            zone.purge(&slice_request.table_key());
            return Ok(Outcome::Again);
        }
        let first = FirstSlice { number, stored: Arc::clone(&stored) };
        let assembly = Assembly::new(Rc::clone(&slice_request), table, first);
        let missing = match self.await_missing(&assembly).await? {
            Ok(missing) => missing,
            Err(Trouble::Changed) => return Ok(Outcome::Again),
            Err(Trouble::Failed) => return Ok(Outcome::Plain),
        };
        stored.touch(now);
        let ctx = &mut self.scratch.ctx;
        let own = assembly.present(ctx);
        if missing || collapsed {
            tell_reused(&stored.freshness, now, ctx);
            let status = if missing { Status::Miss } else { status };
            let told =
                NodeReport { status, why, answered: None, is_stored: missing, is_collapsed: collapsed };
            tell_asked(&wish.rule, told, ctx);
        } else {
            tell_hit(&wish.rule, status, &stored.freshness, now, ctx);
        }
        self.send_own(own).await.map(|()| Outcome::Answered)
    }

    /// Waits until the first wanted and missing slice begins to arrive, so that another version is detected before
    /// the head is sent. Returns true if it arrives.
    async fn await_missing(&mut self, assembly: &Rc<Assembly>) -> Result<Result<bool, Trouble>, Fault> {
        let Some(missing) = assembly.first_missing(self.now_s()) else { return Ok(Ok(false)) };
        let mut slice = pin!(Rc::clone(assembly).obtain(missing));
        poll_fn(|task| {
            if let Poll::Ready(obtained) = slice.as_mut().poll(task) {
                return Poll::Ready(Ok(obtained.map(|_| true)));
            }
            self.down.poll_departure(task).map(|()| Err(client_gone()))
        })
        .await
    }
}
