//! One connection with streams: its codec, its transport, and the tasks that wait for either.
//!
//! Everything of a connection belongs to one thread. Exchanges reach the codec through [`Mux`]; one task drives the
//! [`Transport`]. Output of many streams is sent in one write, because the driver runs after all ready exchanges.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sigma_http::Chunk;
use sigma_http::h2::{Codec, Config, SLICES_MAX, StreamKey};
use sigma_net::{Stream, deadline};

/// The spare room of the input buffer below which an incomplete frame moves to its front.
const LEAST_SPARE_BYTES: usize = 16 * 1024;

/// A connection from the view of its streams.
#[derive(Debug)]
pub(super) struct Mux {
    codec: RefCell<Codec>,
    /// Wakers of the exchanges, by slot of their stream.
    wakers: RefCell<Vec<Option<Waker>>>,
    /// The waker of the task that drives the transport.
    driver: RefCell<Option<Waker>>,
    /// Bytes read so far.
    read: Cell<u64>,
}

impl Mux {
    pub(super) fn new(config: Config) -> Rc<Mux> {
        Rc::new(Mux {
            codec: RefCell::new(Codec::new(config)),
            wakers: RefCell::default(),
            driver: RefCell::default(),
            read: Cell::new(0),
        })
    }

    /// Runs `act` on the codec, and wakes the driver if that causes output.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Codec) -> R) -> R {
        let mut codec = self.codec.borrow_mut();
        let result = act(&mut codec);
        self.wake_streams(&mut codec);
        if codec.has_output() {
            self.wake_driver();
        }
        result
    }

    /// As [`Mux::with`], for the driver itself, which runs anyway.
    pub(super) fn drive<R>(&self, act: impl FnOnce(&mut Codec) -> R) -> R {
        let mut codec = self.codec.borrow_mut();
        let result = act(&mut codec);
        self.wake_streams(&mut codec);
        result
    }

    /// Reads from the codec.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Codec) -> R) -> R {
        look(&self.codec.borrow())
    }

    /// Wakes this task at the next event of a stream.
    pub(super) fn wait(&self, key: StreamKey, cx: &Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        if wakers.len() <= key.slot() {
            wakers.resize_with(key.slot() + 1, || None);
        }
        match &mut wakers[key.slot()] {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            waker => *waker = Some(cx.waker().clone()),
        }
    }

    /// Releases the stream of a finished exchange.
    pub(super) fn release(&self, key: StreamKey) {
        if let Some(waker) = self.wakers.borrow_mut().get_mut(key.slot()) {
            *waker = None;
        }
        let last = self.with(|codec| {
            codec.release(key);
            codec.held() == 0
        });
        if last {
            let mut wakers = self.wakers.borrow_mut();
            if wakers.capacity() > KEPT_WAKERS {
                *wakers = Vec::new();
            }
            drop(wakers);
            // The driver may have waited for that.
            self.wake_driver();
        }
    }

    /// Returns the bytes read so far.
    pub(super) fn read(&self) -> u64 {
        self.read.get()
    }

    fn wake_streams(&self, codec: &mut Codec) {
        if !codec.has_woken() {
            return;
        }
        let mut wakers = self.wakers.borrow_mut();
        codec.take_woken(|slot| {
            if let Some(waker) = wakers.get_mut(slot).and_then(Option::take) {
                waker.wake();
            }
        });
    }

    /// Wakes the driver.
    pub(super) fn wake_driver(&self) {
        if let Some(waker) = self.driver.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The capacity for wakers of a connection without streams.
const KEPT_WAKERS: usize = 16;

/// The state of a connection's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything is written.
    Idle,
    /// The peer does not read.
    Blocked,
}

/// The byte side of a connection, and its access to the codec.
#[derive(Debug)]
pub(super) struct Transport {
    stream: Stream,
    input: Chunk,
    mux: Rc<Mux>,
    /// The first bytes, read before the version was known, are not processed yet.
    fresh: bool,
}

impl Transport {
    /// Returns a transport that drives `mux` over `stream`, with the bytes `first` already read.
    pub(super) fn new(stream: Stream, first: Chunk, mux: Rc<Mux>) -> Transport {
        mux.read.set(first.len() as u64);
        Transport { stream, input: first, mux, fresh: true }
    }

    /// Writes and reads as far as possible. Ready when the connection has ended. Take new requests after each call.
    pub(super) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mux = Rc::clone(&self.mux);
        let mut codec = mux.codec.borrow_mut();
        // From here on, wake-ups find this task running.
        match &mut *mux.driver.borrow_mut() {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            waker => *waker = Some(cx.waker().clone()),
        }
        if std::mem::take(&mut self.fresh) {
            codec.receive(&mut self.input, deadline::now_ms());
        }
        let outcome = self.exchange_bytes(cx, &mut codec);
        codec.count_output();
        mux.wake_streams(&mut codec);
        outcome
    }

    fn exchange_bytes(&mut self, cx: &mut Context<'_>, codec: &mut Codec) -> Poll<()> {
        loop {
            let written = self.write(cx, codec);
            if matches!(written, Poll::Ready(false)) {
                codec.lose();
                return Poll::Ready(());
            }
            if codec.failure().is_some() && written.is_ready() {
                return Poll::Ready(());
            }
            if !codec.may_receive() {
                return Poll::Pending;
            }
            match self.stream.poll_fill(cx, &mut self.input) {
                Poll::Pending => {
                    // The rest of a frame is missing; the peer decides how long that takes.
                    self.input.shrink();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    codec.lose();
                    return Poll::Ready(());
                }
                Poll::Ready(Ok(n)) => {
                    self.mux.read.set(self.mux.read.get() + n as u64);
                    codec.receive(&mut self.input, deadline::now_ms());
                    if self.input.spare().len() < LEAST_SPARE_BYTES {
                        self.input.compact();
                    }
                }
            }
        }
    }

    /// Ready when all bytes are written, with false if the transport is broken.
    fn write(&mut self, cx: &mut Context<'_>, codec: &mut Codec) -> Poll<bool> {
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let written = match codec.slices(&mut slices) {
                0 => return self.stream.poll_flush(cx).map(|flushed| flushed.is_ok()),
                1 => self.stream.poll_write(cx, &slices[0]),
                n => self.stream.poll_write_vectored(cx, &slices[..n]),
            };
            match written {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(false),
                Poll::Ready(Ok(n)) => codec.advance(n),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Returns the state of the output after the last [`Transport::poll_drive`].
    pub(super) fn progress(&self) -> Progress {
        if self.mux.look(Codec::has_output) { Progress::Blocked } else { Progress::Idle }
    }

    /// Closes the sending side, and reads until the peer has closed its own. Closing over unread bytes would make the
    /// system reset the connection, and the last bytes would be lost.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_shutdown(cx).is_pending() {
            return Poll::Pending;
        }
        loop {
            self.input = Chunk::empty();
            match self.stream.poll_fill(cx, &mut self.input) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
            }
        }
    }
}
