//! Taps: an operator sees exchanges as they end, as far as they pass a filter.
//!
//! A worker learns of taps once per tick of its clock. Without taps an exchange pays the one branch that it pays for
//! any watcher; with taps, an exchange that no filter lets through pays a few comparisons. Exchanges are copied, with
//! bounds, and passed to the control thread in a queue; a full queue loses them, and reports how many.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sigma_http::{Fault, Headers};
use sigma_plugin::context::{Context, RouteFacts};
use sigma_plugin::record::{Attempt, Record, Source};
use sigma_schema::cidr::Cidr;
use tokio::sync::{mpsc, watch};

use crate::attempt::refuser::refuser;

/// The filter of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapWish {
    /// Only exchanges of the route with this id.
    pub route: Option<Box<str>>,
    /// Only exchanges of the service with this id.
    pub service: Option<Box<str>>,
    /// Only exchanges of this consumer.
    pub consumer: Option<Box<str>>,
    /// Only exchanges of clients in one of these networks; empty for all.
    pub clients: Vec<Cidr>,
    /// Only exchanges with a status from the first to the second.
    pub status: Option<(u16, u16)>,
    /// One in so many of the remaining ones, at random.
    pub sample: NonZeroU32,
    /// Most bytes of a value that are shown.
    pub value_bytes: usize,
    /// Most bytes of the fields of one head that are shown.
    pub head_bytes: usize,
}

/// The facts that an exchange is selected by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks<'e> {
    pub(crate) route: Option<&'e RouteFacts>,
    pub(crate) consumer: Option<&'e str>,
    /// None for clients of Unix sockets.
    pub(crate) client: Option<IpAddr>,
    pub(crate) status: u16,
}

impl TapWish {
    /// Returns true if the filter lets an exchange through, sampling apart.
    fn takes(&self, marks: &Marks<'_>) -> bool {
        let is =
            |wanted: &Option<Box<str>>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        let is_client = |cidr: &Cidr| marks.client.is_some_and(|client| cidr.contains(client));
        is(&self.route, marks.route.map(|route| &*route.id))
            && is(&self.service, marks.route.and_then(|route| route.service_id.as_deref()))
            && is(&self.consumer, marks.consumer)
            && (self.clients.is_empty() || self.clients.iter().any(is_client))
            && self.status.is_none_or(|(from, to)| (from..=to).contains(&marks.status))
    }
}

/// The fields of a head, as far as they are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenFields {
    /// Names and values, in order.
    pub fields: Vec<(Box<[u8]>, SeenValue)>,
    /// How many more there were.
    pub left_out: usize,
}

/// The beginning of a value, and how long it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenValue {
    /// As much as is shown.
    pub text: Box<[u8]>,
    /// All of its bytes.
    pub length: usize,
}

impl SeenValue {
    fn of(value: &[u8], most: usize) -> SeenValue {
        SeenValue { text: value[..value.len().min(most)].into(), length: value.len() }
    }
}

impl SeenFields {
    fn of(headers: &Headers, wish: &TapWish) -> SeenFields {
        let (mut seen, mut left) = (SeenFields::default(), wish.head_bytes);
        for (name, value) in headers.iter() {
            let value = SeenValue::of(value, wish.value_bytes);
            match left.checked_sub(name.len() + value.text.len()) {
                Some(rest) => {
                    left = rest;
                    seen.fields.push((name.into(), value));
                }
                None => seen.left_out += 1,
            }
        }
        seen
    }
}

/// An exchange that has ended. It still contains secrets: mask them before showing it.
#[derive(Debug)]
pub struct TappedExchange {
    /// When it ended, in milliseconds since 1970 by the worker's clock.
    pub at_ms: u64,
    /// The client's address as logs show it.
    pub client: String,
    /// The request.
    pub request: TappedRequest,
    /// The response.
    pub response: TappedResponse,
    /// The route.
    pub route: Option<Arc<RouteFacts>>,
    /// The consumer.
    pub consumer: Option<Box<str>>,
    /// Milliseconds from the request's head to the end; None if it began before the first watcher came.
    pub elapsed_ms: Option<f64>,
    /// Attempts on nodes.
    pub attempts: Vec<Attempt>,
    /// Hooks that waited: the plugin, and for how many milliseconds.
    pub waits: Vec<(Box<str>, f64)>,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Bytes to the client.
    pub bytes_sent: u64,
}

/// A request that a tap shows.
#[derive(Debug)]
pub struct TappedRequest {
    /// The method.
    pub method: Box<[u8]>,
    /// The target that the client sent.
    pub target: SeenValue,
    /// Path and query that the node was requested, if that is something else.
    pub rewritten: Option<SeenValue>,
    /// The version of HTTP that the client spoke.
    pub version: &'static str,
    /// The fields, as plugins have left them.
    pub fields: SeenFields,
}

impl TappedRequest {
    fn of(ctx: &Context, wish: &TapWish) -> TappedRequest {
        let head = &ctx.request;
        // A head that was not understood has no parts to show.
        let is_known = !head.method_token().is_empty();
        let target = if is_known { head.path_and_query() } else { b"" };
        TappedRequest {
            method: head.method_token().into(),
            target: SeenValue::of(target, wish.value_bytes),
            rewritten: (!ctx.target.is_empty()).then(|| SeenValue::of(&ctx.target, wish.value_bytes)),
            version: if is_known { head.version.as_str() } else { "" },
            fields: SeenFields::of(&head.headers, wish),
        }
    }
}

/// A response that a tap shows.
#[derive(Debug)]
pub struct TappedResponse {
    /// The fields.
    pub fields: SeenFields,
    /// The status sent to the client, 0 if none.
    pub status: u16,
    /// The source of the response.
    pub source: Source,
    /// The fault, in the gateway's view.
    pub fault: Option<Fault>,
    /// The plugin that rejected the request, or failed it. None with a fault.
    pub plugin: Option<Box<str>>,
}

impl TappedResponse {
    fn of(ctx: &Context, wish: &TapWish) -> TappedResponse {
        let Record { status, source, fault, .. } = ctx.record;
        TappedResponse {
            fields: SeenFields::of(&ctx.response.headers, wish),
            status,
            source,
            fault,
            plugin: if fault.is_none() { refuser(ctx).map(Into::into) } else { None },
        }
    }
}

impl TappedExchange {
    /// Copies an exchange that has ended.
    pub(crate) fn of(
        ctx: &Context,
        route: Option<Arc<RouteFacts>>,
        at_ms: u64,
        client: String,
        wish: &TapWish,
    ) -> Box<TappedExchange> {
        let Record { attempts, waits, bytes_received, bytes_sent, .. } = &ctx.record;
        let consumer = ctx.identity.as_ref().map(|identity| identity.consumer.name.clone());
        let waited = |wait: &sigma_plugin::record::Wait| {
            (wait.plugin.clone(), (wait.ended - wait.began).as_secs_f64() * 1000.0)
        };
        Box::new(TappedExchange {
            at_ms,
            client,
            request: TappedRequest::of(ctx, wish),
            response: TappedResponse::of(ctx, wish),
            route,
            consumer,
            elapsed_ms: ctx.record.elapsed_ms(),
            attempts: attempts.clone(),
            waits: waits.iter().map(waited).collect(),
            bytes_received: *bytes_received,
            bytes_sent: *bytes_sent,
        })
    }
}

/// A message to a tap.
#[derive(Debug)]
pub enum TapNews {
    /// An exchange.
    Seen(Box<TappedExchange>),
    /// So many exchanges did not fit in the queue.
    Lost(u64),
}

/// A tap that is open.
#[derive(Debug)]
struct Tap {
    number: u64,
    wish: TapWish,
    news: mpsc::Sender<TapNews>,
}

/// The taps that are open, as workers are shown them.
type Open = Arc<[Arc<Tap>]>;

/// The control thread's end.
#[derive(Debug)]
pub struct TapBoard {
    open: watch::Sender<Open>,
    numbers: AtomicU64,
}

impl Default for TapBoard {
    fn default() -> TapBoard {
        TapBoard { open: watch::Sender::new(Arc::new([])), numbers: AtomicU64::new(0) }
    }
}

impl TapBoard {
    /// Opens a tap with room for `queue` exchanges; None if `most` are open. It ends when it is dropped.
    pub fn open(self: &Arc<TapBoard>, wish: TapWish, queue: usize, most: usize) -> Option<TapReader> {
        let (sender, news) = mpsc::channel(queue.max(1));
        let number = self.numbers.load(Ordering::Relaxed);
        self.numbers.store(number + 1, Ordering::Relaxed);
        let tap = Arc::new(Tap { number, wish, news: sender });
        let has_room = self.open.send_if_modified(|open| {
            let has_room = open.len() < most;
            if has_room {
                *open = open.iter().cloned().chain([tap]).collect();
            }
            has_room
        });
        has_room.then(|| TapReader { board: Arc::clone(self), number, news })
    }

    /// Ends all taps: nothing will be seen any more.
    pub fn close(&self) {
        self.open.send_replace(Arc::new([]));
    }

    /// The workers' end.
    pub(crate) fn orders(&self) -> TapOrders {
        TapOrders(Some(self.open.subscribe()))
    }
}

/// The reading end of a tap.
#[derive(Debug)]
pub struct TapReader {
    board: Arc<TapBoard>,
    number: u64,
    news: mpsc::Receiver<TapNews>,
}

impl TapReader {
    /// The next exchange; None when the tap is ended.
    pub async fn next(&mut self) -> Option<TapNews> {
        self.news.recv().await
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        let number = self.number;
        self.board.open.send_modify(|open| {
            *open = open.iter().filter(|tap| tap.number != number).cloned().collect();
        });
    }
}

/// The workers' end; clone one per worker. Without a board there is never a tap.
#[derive(Debug, Clone, Default)]
pub struct TapOrders(Option<watch::Receiver<Open>>);

/// One worker's part.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    orders: RefCell<TapOrders>,
    open: RefCell<Vec<OpenTap>>,
    is_open: Cell<bool>,
}

/// A tap, and what this worker could not tell it yet.
#[derive(Debug)]
struct OpenTap {
    tap: Arc<Tap>,
    lost: Cell<u64>,
}

impl OpenTap {
    /// Hands over an exchange. Nothing is copied if the queue is full.
    fn tell(&self, seen: impl FnOnce(&TapWish) -> Box<TappedExchange>) {
        self.tell_of_lost();
        match self.tap.news.try_reserve() {
            Ok(place) if self.lost.get() == 0 => place.send(TapNews::Seen(seen(&self.tap.wish))),
            _ => self.lost.set(self.lost.get() + 1),
        }
    }

    fn tell_of_lost(&self) {
        if self.lost.get() > 0
            && let Ok(place) = self.tap.news.try_reserve()
        {
            place.send(TapNews::Lost(self.lost.take()));
        }
    }
}

impl Taps {
    pub(crate) fn new(orders: TapOrders) -> Taps {
        Taps { orders: RefCell::new(orders), ..Taps::default() }
    }

    /// Returns true if a tap is open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Shows a finished exchange to the taps that select it.
    #[cold]
    pub(crate) fn show(
        &self,
        marks: &Marks<'_>,
        random: impl Fn() -> u64,
        seen: impl Fn(&TapWish) -> Box<TappedExchange>,
    ) {
        for open in &*self.open.borrow() {
            let wish = &open.tap.wish;
            if wish.takes(marks) && random().is_multiple_of(wish.sample.get().into()) {
                open.tell(&seen);
            }
        }
    }

    /// To be called once per tick of the worker's clock.
    pub(crate) fn tick(&self) {
        let TapOrders(Some(orders)) = &mut *self.orders.borrow_mut() else { return };
        if !orders.has_changed().unwrap_or(false) {
            return;
        }
        let (wanted, mut open) = (orders.borrow_and_update().clone(), self.open.borrow_mut());
        open.retain(|known| wanted.iter().any(|tap| tap.number == known.tap.number));
        for tap in &*wanted {
            if open.iter().all(|known| known.tap.number != tap.number) {
                open.push(OpenTap { tap: Arc::clone(tap), lost: Cell::new(0) });
            }
        }
        self.is_open.set(!open.is_empty());
    }

    /// Reports losses, though no new exchange comes; call it once a second.
    pub(crate) fn report(&self) {
        self.open.borrow().iter().for_each(OpenTap::tell_of_lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> TapWish {
        TapWish {
            route: None,
            service: None,
            consumer: None,
            clients: Vec::new(),
            status: None,
            sample: NonZeroU32::MIN,
            value_bytes: 8,
            head_bytes: 40,
        }
    }

    fn marks(facts: &RouteFacts) -> Marks<'_> {
        let client = Some(IpAddr::from([10, 0, 0, 7]));
        Marks { route: Some(facts), consumer: Some("jack"), client, status: 404 }
    }

    #[test]
    fn filters_let_through_what_fits_all_of_them() {
        let facts = RouteFacts { id: "7".into(), service_id: Some("s".into()), ..RouteFacts::default() };
        let check = |change: fn(&mut TapWish), expected: bool| {
            let mut wish = wish();
            change(&mut wish);
            assert_eq!(wish.takes(&marks(&facts)), expected, "{wish:?}");
        };
        check(|_| {}, true);
        check(|wish| wish.route = Some("7".into()), true);
        check(|wish| wish.route = Some("8".into()), false);
        check(|wish| wish.service = Some("s".into()), true);
        check(|wish| wish.service = Some("7".into()), false);
        check(|wish| wish.consumer = Some("jack".into()), true);
        check(|wish| wish.consumer = Some("jill".into()), false);
        check(|wish| wish.clients = vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()], true);
        check(|wish| wish.clients = vec!["192.168.0.0/16".parse().unwrap()], false);
        check(|wish| wish.status = Some((400, 499)), true);
        check(|wish| wish.status = Some((500, 599)), false);
        check(|wish| (wish.route, wish.status) = (Some("7".into()), Some((200, 200))), false);
        // An exchange without a route, consumer or address passes no such filter.
        let nobody = Marks { route: None, consumer: None, client: None, status: 404 };
        assert!(wish().takes(&nobody));
        assert!(!TapWish { consumer: Some("jack".into()), ..wish() }.takes(&nobody));
        assert!(!TapWish { clients: vec!["0.0.0.0/0".parse().unwrap()], ..wish() }.takes(&nobody));
    }

    #[test]
    fn copies_have_bounds() {
        let mut headers = Headers::default();
        headers.append("A", b"short");
        headers.append("B", b"much longer than that");
        (0..9).for_each(|_| headers.append("Cc", b"12345678"));
        let seen = SeenFields::of(&headers, &wish());
        let shown: Vec<_> = seen.fields.iter().map(|(_, value)| (&*value.text, value.length)).collect();
        assert_eq!(shown[..2], [(&b"short"[..], 5), (&b"much lon"[..], 21)]);
        assert_eq!((shown.len(), seen.left_out), (4, 7));
    }

    #[tokio::test]
    async fn a_slow_reader_learns_how_many_it_lost() {
        let board = Arc::new(TapBoard::default());
        let taps = Taps::new(board.orders());
        taps.tick();
        assert!(!taps.is_open());
        let mut reader = board.open(wish(), 2, 1).expect("a tap");
        assert!(board.open(wish(), 2, 1).is_none(), "one too many");
        taps.tick();
        assert!(taps.is_open());
        let facts = RouteFacts::default();
        let ctx = Context::default();
        let see =
            || taps.show(&marks(&facts), || 0, |wish| TappedExchange::of(&ctx, None, 0, "c".into(), wish));
        (0..5).for_each(|_| see());
        let next = async |reader: &mut TapReader| reader.next().await.expect("news");
        for _ in 0..2 {
            assert!(matches!(next(&mut reader).await, TapNews::Seen(seen) if seen.client == "c"));
        }
        // The order is kept: first the losses, then the next exchange.
        see();
        assert!(matches!(next(&mut reader).await, TapNews::Lost(3)));
        assert!(matches!(next(&mut reader).await, TapNews::Seen(_)));
        (0..4).for_each(|_| see());
        for _ in 0..2 {
            next(&mut reader).await;
        }
        // No new exchange comes, and the losses are reported all the same.
        taps.report();
        assert!(matches!(next(&mut reader).await, TapNews::Lost(2)));
        drop(reader);
        taps.tick();
        assert!(!taps.is_open());
        let mut last = board.open(wish(), 2, 1).expect("there is room again");
        board.close();
        assert!(last.next().await.is_none());
    }

    #[test]
    fn one_in_so_many_is_seen() {
        let board = Arc::new(TapBoard::default());
        let taps = Taps::new(board.orders());
        let sample = NonZeroU32::new(10).unwrap();
        let mut reader = board.open(TapWish { sample, ..wish() }, 1_000, 1).expect("a tap");
        taps.tick();
        let (facts, ctx) = (RouteFacts::default(), Context::default());
        for number in 0..100 {
            taps.show(
                &marks(&facts),
                || number,
                |wish| TappedExchange::of(&ctx, None, 0, String::new(), wish),
            );
        }
        let seen = std::iter::from_fn(|| reader.news.try_recv().ok()).count();
        assert_eq!(seen, 10);
    }
}
