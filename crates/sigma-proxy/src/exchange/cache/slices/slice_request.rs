//! The common part of all slices of one request.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_cache::{SliceTable, Stored, Zone, slice_key, table_key};
use sigma_http::range::Ranges;
use sigma_http::{Headers, Method, RequestHead};
use sigma_plugin::cache::CacheWish;
use tokio::sync::oneshot;

use super::super::background::BackgroundExchange;
use super::super::conditions::{ask_whether_good, ask_without_condition};
use super::super::present::RequestedPart;
use super::super::{FETCH_WAIT, Turn};
use super::{OfSlice, slice_bytes};
use crate::edge::connection::{ConnectionInfo, Origin};
use crate::exchange::stage::Stage;
use crate::exchange::{Exchange, Scratch};
use crate::worker::{View, Worker};

/// The request and its context, for later slice requests.
pub(in crate::exchange::cache) struct SliceRequest {
    pub(super) worker: Rc<Worker>,
    view: Rc<View>,
    origin: Origin,
    stage: Stage,
    /// The exchange after its plugins, before any slice request. Present until this is dropped.
    template: Option<Box<Scratch>>,
    pub(super) zone: Arc<Zone>,
    /// The cache order, with the key of the whole response.
    pub(super) wish: Box<CacheWish>,
    pub(super) slice_bytes: u64,
    none: RequestHead,
}

impl std::fmt::Debug for SliceRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SliceRequest").field("slice_bytes", &self.slice_bytes).finish_non_exhaustive()
    }
}

impl Drop for SliceRequest {
    fn drop(&mut self) {
        if let Some(scratch) = self.template.take() {
            self.worker.give_scratch(scratch);
        }
    }
}

impl Exchange<'_, '_> {
    /// Returns the course of this exchange; None at the end of the worker.
    pub(super) fn slice_request(&self, wish: &CacheWish, zone: &Arc<Zone>) -> Option<Rc<SliceRequest>> {
        let worker = self.worker.calls.worker()?;
        let mut template = worker.take_scratch();
        self.scratch.ctx.repeat_in(&mut template.ctx);
        template.begin();
        Some(Rc::new(SliceRequest {
            view: Rc::clone(&self.view),
            origin: *self.down.origin(),
            stage: self.stage.again(),
            template: Some(template),
            zone: Arc::clone(zone),
            wish: Box::new(wish.clone()),
            slice_bytes: slice_bytes(&wish.rule, zone),
            none: RequestHead::default(),
            worker,
        }))
    }
}

impl SliceRequest {
    /// Returns the request as the cache has seen it.
    pub(super) fn request(&self) -> &RequestHead {
        self.template.as_ref().map_or(&self.none, |template| &template.ctx.request)
    }

    pub(super) fn asked(&self) -> &Headers {
        &self.request().headers
    }

    pub(super) fn table_key(&self) -> Vec<u8> {
        table_key(&self.wish.key)
    }

    /// Returns seconds since 1970.
    pub(super) fn now_s(&self) -> u64 {
        self.worker.clock.borrow().unix_ms() / 1000
    }

    /// Returns the table of stored slices of this size, from memory or a disk.
    pub(super) async fn find_table(&self, now: u64) -> Option<SliceTable> {
        let key = self.table_key();
        let mut kept = self.zone.find(&key, self.asked());
        if kept.is_none()
            && self.zone.disk_cache().is_some()
            && let Some(mut fetch) = self.zone.fetch(&key, self.asked(), now)
        {
            kept = match tokio::time::timeout(FETCH_WAIT, &mut fetch).await {
                Ok(fetched) => fetched,
                Err(_) => {
                    fetch.give_up(now);
                    None
                }
            };
        }
        let kept = kept?;
        kept.touch(now);
        self.table_of(&kept)
    }

    /// Returns true if the table is in memory now.
    pub(super) fn has_table(&self) -> bool {
        let kept = self.zone.find(&self.table_key(), self.asked());
        kept.is_some_and(|kept| self.table_of(&kept).is_some())
    }

    fn table_of(&self, kept: &Stored) -> Option<SliceTable> {
        SliceTable::of(kept).filter(|table| table.slice_bytes == self.slice_bytes)
    }

    /// Returns the number of the first wanted slice; None if the response has no such slice. Without a table the last bytes
    /// are unknown: the first slice shows them.
    pub(super) fn first(&self, table: Option<&SliceTable>) -> Option<u64> {
        let range = self.asked().find(b"Range");
        let start = match (table, range) {
            (_, None) => 0,
            (None, Some(range)) => match Ranges::parse(range, u64::MAX) {
                Ranges::One(range) if range.start < u64::MAX / 2 => range.start,
                _ => 0,
            },
            (Some(table), Some(range)) => match Ranges::parse(range, table.version.total) {
                // It may be longer now.
                Ranges::Unsatisfiable => return None,
                Ranges::One(range) => range.start,
                Ranges::Many(ranges) => ranges.iter().map(|range| range.start).min().unwrap_or(0),
                Ranges::Whole => 0,
            },
        };
        Some(start / self.slice_bytes)
    }

    /// Returns a turn for one slice.
    pub(super) fn turn(self: &Rc<SliceRequest>, number: u64, table: Option<SliceTable>) -> Turn {
        let (zone, whole) = (&self.zone, &self.wish.key);
        let id = table.as_ref().map_or(0, |table| table.id);
        let wish = self.wish.under(slice_key(whole, id, number));
        let of = OfSlice {
            slice_request: Rc::clone(self),
            number,
            table,
            table_epoch: zone.epoch(&self.table_key()),
            whole_epoch: zone.epoch(whole),
            is_aside: false,
            tell: None,
        };
        let mut turn = Turn::new(Box::new(wish), Arc::clone(zone));
        turn.slicing.slice = Some(Box::new(of));
        turn
    }

    /// Makes a request one for a slice, or for a newer version of the stored one.
    pub(super) fn ask_for(&self, number: u64, stale: Option<&Stored>, request: &mut Headers) {
        ask_without_condition(request);
        if let Some(stale) = stale {
            ask_whether_good(request, stale);
        }
        let start = number.saturating_mul(self.slice_bytes);
        let end = start.saturating_add(self.slice_bytes - 1);
        request.remove_name(b"Range");
        request.append("Range", format!("bytes={start}-{end}").as_bytes());
    }

    /// Requests a slice from a node in the background; `tell` is notified when it begins to arrive.
    pub(super) fn ask_in_background(
        self: &Rc<SliceRequest>,
        mut turn: Turn,
        tell: Option<oneshot::Sender<Arc<Stored>>>,
    ) {
        let Some(template) = &self.template else { return };
        let mut scratch = self.worker.take_scratch();
        template.ctx.repeat_in(&mut scratch.ctx);
        scratch.begin();
        let Some(of) = &mut turn.slicing.slice else { return };
        (of.is_aside, of.tell) = (true, tell);
        let number = of.number;
        let stale = turn.stale.as_deref().filter(|_| turn.validates);
        self.ask_for(number, stale, &mut scratch.ctx.request.headers);
        scratch.turn = Some(Box::new(turn));
        BackgroundExchange {
            worker: Rc::clone(&self.worker),
            view: Rc::clone(&self.view),
            info: ConnectionInfo { origin: self.origin, session: None, logs_in: Cell::default() },
            stage: self.stage.again(),
            scratch,
        }
        .spawn();
    }

    /// Prepares a turn for a node's response.
    pub(super) fn prepare(&self, turn: &mut Turn) {
        let Some(template) = &self.template else { return };
        turn.prepare(&template.ctx, self.now_s());
    }

    /// Returns the longest wait for a slice of another request.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_millis(self.wish.rule.wait_ms.into())
    }

    /// Returns the part that the request wants of this number of bytes with these fields.
    pub(super) fn wanted(&self, headers: &Headers, total: u64) -> RequestedPart {
        RequestedPart::of_whole(headers, total, self.asked(), Method::Get)
    }
}
