//! The connections of one worker that pushes reach, and their channels.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Waker};

use sigma_http::websocket::messages::Kind;

use super::push::{Item, Pushed, Target};

/// The overhead of a message in a queue.
const MESSAGE_BYTES: usize = 100;

/// The limits of all connections of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How many there are at once.
    pub(crate) connections: usize,
    /// Bytes in their queues together.
    pub(crate) bytes: usize,
}

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) channels: usize,
    pub(crate) queue_bytes: usize,
}

/// How a client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    WebSocket,
    Events,
}

/// The next action of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To send this.
    Message(Kind, Arc<[u8]>),
    /// To end, with a code and a reason.
    End(u16, Box<str>),
}

/// The connections of a worker.
pub(crate) struct Room {
    bounds: Bounds,
    lines: RefCell<HashMap<Box<str>, Rc<Line>>>,
    channels: RefCell<HashMap<Box<str>, Vec<Rc<Line>>>>,
    queued: Cell<usize>,
}

/// A connection, as pushes reach it.
pub(crate) struct Line {
    id: Box<str>,
    medium: Medium,
    share: Share,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Kind, Arc<[u8]>)>,
    bytes: usize,
    channels: Vec<Box<str>>,
    end: Option<(u16, Box<str>)>,
    waker: Option<Waker>,
}

/// A connection that is reached as long as this lives.
pub(crate) struct Seat {
    room: Rc<Room>,
    line: Rc<Line>,
}

/// The code for a client that takes less than it is sent (RFC 6455 §7.4.1).
const POLICY: u16 = 1008;

impl Room {
    pub(crate) fn new(bounds: Bounds) -> Room {
        Room { bounds, lines: RefCell::default(), channels: RefCell::default(), queued: Cell::default() }
    }

    /// Takes a connection in, under a name that no other one has; None if there are too many.
    pub(crate) fn enter(self: &Rc<Room>, id: &str, medium: Medium, share: Share) -> Option<Seat> {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= self.bounds.connections || lines.contains_key(id) {
            return None;
        }
        let line = Rc::new(Line { id: id.into(), medium, share, state: RefCell::default() });
        lines.insert(id.into(), Rc::clone(&line));
        Some(Seat { room: Rc::clone(self), line })
    }

    /// Puts an item before all whom it is for; returns how many that are.
    pub(crate) fn push(&self, item: &Item) -> u32 {
        let reached: Vec<Rc<Line>> = match &item.target {
            Target::Connection(id) => self.lines.borrow().get(&**id).cloned().into_iter().collect(),
            Target::Channel(name) => self.channels.borrow().get(&**name).cloned().unwrap_or_default(),
        };
        reached.iter().map(|line| u32::from(self.push_to(line, item))).sum()
    }

    fn push_to(&self, line: &Line, item: &Item) -> bool {
        let pushed = match line.medium {
            Medium::WebSocket => &item.websocket,
            Medium::Events => &item.events,
        };
        let Some(pushed) = pushed else { return false };
        let mut state = line.state.borrow_mut();
        if state.end.is_some() {
            return false;
        }
        match pushed {
            Pushed::End(code, reason) => state.end = Some((*code, reason.clone())),
            Pushed::Message(kind, bytes) => {
                let more = MESSAGE_BYTES + bytes.len();
                let fits = state.bytes + more <= line.share.queue_bytes;
                if !fits || self.queued.get() + more > self.bounds.bytes {
                    // It would miss a message without knowing it; it has to connect again.
                    self.queued.set(self.queued.get() - std::mem::take(&mut state.bytes));
                    state.queue.clear();
                    state.end = Some((POLICY, "too slow".into()));
                    state.wake();
                    return false;
                }
                state.queue.push_back((*kind, Arc::clone(bytes)));
                state.bytes += more;
                self.queued.set(self.queued.get() + more);
            }
        }
        state.wake();
        true
    }

    fn leave(&self, name: &str, line: &Rc<Line>) {
        let mut channels = self.channels.borrow_mut();
        if let Some(lines) = channels.get_mut(name) {
            lines.retain(|other| !Rc::ptr_eq(other, line));
            if lines.is_empty() {
                channels.remove(name);
            }
        }
    }
}

impl State {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Seat {
    /// Returns its next action; None, and `task` is registered to be woken, if it has nothing to do.
    pub(crate) fn next(&self, task: &Task<'_>) -> Option<Next> {
        let mut state = self.line.state.borrow_mut();
        if let Some((kind, bytes)) = state.queue.pop_front() {
            let less = MESSAGE_BYTES + bytes.len();
            state.bytes -= less;
            self.room.queued.set(self.room.queued.get() - less);
            return Some(Next::Message(kind, bytes));
        }
        match state.end.clone() {
            Some((code, reason)) => Some(Next::End(code, reason)),
            None => {
                state.waker = Some(task.waker().clone());
                None
            }
        }
    }

    /// Puts the connection into a channel; false if it is in too many.
    pub(crate) fn subscribe(&self, name: &str) -> bool {
        let mut state = self.line.state.borrow_mut();
        if state.channels.iter().any(|known| **known == *name) {
            return true;
        }
        if state.channels.len() >= self.line.share.channels {
            return false;
        }
        state.channels.push(name.into());
        let mut channels = self.room.channels.borrow_mut();
        channels.entry(name.into()).or_default().push(Rc::clone(&self.line));
        true
    }

    /// Takes it out of a channel.
    pub(crate) fn unsubscribe(&self, name: &str) {
        self.line.state.borrow_mut().channels.retain(|known| **known != *name);
        self.room.leave(name, &self.line);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let State { bytes, channels, .. } = std::mem::take(&mut *self.line.state.borrow_mut());
        self.room.queued.set(self.room.queued.get() - bytes);
        channels.iter().for_each(|name| self.room.leave(name, &self.line));
        self.room.lines.borrow_mut().remove(&self.line.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Share = Share { channels: 2, queue_bytes: 2 * MESSAGE_BYTES + 10 };

    fn room(connections: usize, messages: usize) -> Rc<Room> {
        Rc::new(Room::new(Bounds { connections, bytes: messages * (MESSAGE_BYTES + 1) }))
    }

    fn item(target: Target, text: &str) -> Item {
        let bytes: Arc<[u8]> = text.as_bytes().into();
        Item { target, websocket: Some(Pushed::Message(Kind::Text, bytes)), events: None }
    }

    fn channel(name: &str) -> Target {
        Target::Channel(name.into())
    }

    fn next(seat: &Seat) -> Option<String> {
        match seat.next(&Task::from_waker(Waker::noop()))? {
            Next::Message(_, bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Next::End(code, reason) => Some(format!("{code} {reason}")),
        }
    }

    #[test]
    fn pushes_reach_connections_and_channels() {
        let room = room(10, 100);
        let enter = |id: &str, medium| room.enter(id, medium, SHARE).unwrap();
        let (a, b, c) =
            (enter("a", Medium::WebSocket), enter("b", Medium::WebSocket), enter("c", Medium::Events));
        for seat in [&a, &b, &c] {
            assert!(seat.subscribe("all") && seat.subscribe("all"));
        }
        assert!(a.subscribe("own") && !a.subscribe("third"));
        // Connections of another medium do not receive it.
        assert_eq!(room.push(&item(channel("all"), "1")), 2);
        assert_eq!(room.push(&item(channel("own"), "2")), 1);
        assert_eq!(room.push(&item(Target::Connection("b".into()), "3")), 1);
        for target in [channel("none"), Target::Connection("d".into()), Target::Connection("c".into())] {
            assert_eq!(room.push(&item(target, "4")), 0);
        }
        let all = |seat| std::iter::from_fn(|| next(seat)).collect::<Vec<_>>();
        assert_eq!(
            (all(&a), all(&b), all(&c)),
            (vec!["1".into(), "2".into()], vec!["1".into(), "3".into()], vec![])
        );
        a.unsubscribe("all");
        assert_eq!(room.push(&item(channel("all"), "5")), 1);
        drop(b);
        assert_eq!(room.push(&item(channel("all"), "6")), 0);
        drop((a, c));
        assert!(room.lines.borrow().is_empty() && room.channels.borrow().is_empty());
        assert_eq!(room.queued.get(), 0);
    }

    #[test]
    fn queues_are_bounded() {
        let one = room(1, 100);
        let seat = one.enter("a", Medium::WebSocket, SHARE).unwrap();
        assert!(one.enter("b", Medium::WebSocket, SHARE).is_none());
        let to_a = || item(Target::Connection("a".into()), "x");
        assert_eq!(
            [one.push(&to_a()), one.push(&to_a()), one.push(&to_a()), one.push(&to_a())],
            [1, 1, 0, 0]
        );
        assert_eq!((next(&seat), one.queued.get()), (Some("1008 too slow".to_owned()), 0));
        // All connections of a worker have a bound together.
        let two = room(2, 3);
        let seats = ["a", "b"].map(|id| two.enter(id, Medium::WebSocket, SHARE).unwrap());
        seats.iter().for_each(|seat| assert!(seat.subscribe("all")));
        assert_eq!([two.push(&item(channel("all"), "x")), two.push(&item(channel("all"), "y"))], [2, 1]);
        assert_eq!(next(&seats[0]), Some("x".to_owned()));
        assert_eq!(next(&seats[1]), Some("1008 too slow".to_owned()));
    }

    #[test]
    fn an_end_follows_earlier_pushes() {
        let room = room(1, 100);
        let seat = room.enter("a", Medium::WebSocket, SHARE).unwrap();
        let to_a = || Target::Connection("a".into());
        assert_eq!(room.push(&item(to_a(), "x")), 1);
        let end = Item { target: to_a(), websocket: Some(Pushed::End(4000, "bye".into())), events: None };
        assert_eq!((room.push(&end), room.push(&item(to_a(), "y"))), (1, 0));
        assert_eq!((next(&seat), next(&seat)), (Some("x".to_owned()), Some("4000 bye".to_owned())));
    }
}
