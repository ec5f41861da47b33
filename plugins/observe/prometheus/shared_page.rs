//! Pages of metrics, made piece by piece for all who ask at the same time.
//!
//! A page of many routes has as many megabytes and takes as long as a worker can never be spared. So one thread
//! for the whole gateway makes the pieces, behind everything else that wants the CPU; a page is never there as a
//! whole, and who asks while one is made waits for the next one, together with all others who do.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::task::{self, Poll, Waker};
use std::time::Duration;

use sigma_http::Chunk;
use sigma_plugin::{BodySource, Node};
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::text::Look;

/// Pieces that are kept for readers who have yet to take them.
const WINDOW: usize = 16;
/// How long a reader who takes nothing may hold up the others of its page, and a page the next one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pages that are not read to their end, since each holds memory. The next one waits for the oldest as long as
/// one waits for a reader; then the oldest breaks off.
const PAGES: usize = 8;
/// The niceness of the thread: where it shares a CPU with a busy worker, a tenth is left for it. With less, a
/// large page on a machine that has much else to do would be later than scrapers wait.
const NICENESS: i32 = 10;

/// Makes the next piece; None at the end.
pub(super) type Pieces = Box<dyn FnMut() -> Option<Vec<u8>> + Send>;

/// A page whose next piece is due, for the thread. Its source of pieces exists only once, and so does a page
/// in the queue.
type Work = (Arc<Page>, Pieces);

/// All pages of the gateway; a part of the node.
#[derive(Default)]
pub(super) struct SharedPages {
    open: Mutex<Open>,
    /// Its holder begins the next page. It was the one before that began last.
    turn: Arc<tokio::sync::Mutex<Weak<Page>>>,
    work: OnceLock<mpsc::Sender<Work>>,
}

#[derive(Default)]
struct Open {
    /// The pages that have not begun, by look: who asks joins them.
    waiting: Vec<(Look, Weak<Page>)>,
    /// The pages that have begun, the oldest first.
    begun: VecDeque<Weak<Page>>,
}

impl SharedPages {
    /// A page as new as one that is begun now. `pieces` makes it, unless there is one that has yet to begin.
    pub(super) fn read<F: FnOnce() -> Pieces>(
        self: Arc<SharedPages>,
        node: &Node,
        look: Look,
        pieces: F,
    ) -> impl Future<Output = Reader> + use<F> {
        let reader = self.join(node, look, pieces);
        async move {
            let mut last = Arc::clone(&self.turn).lock_owned().await;
            let is_begun = reader.page.lock().is_begun;
            if !is_begun {
                if let Some(before) = last.upgrade() {
                    // A page with slow readers continues in parallel with the next. One that waits for the
                    // thread would only wait longer, and at the end be the oldest of too many.
                    while tokio::time::timeout(PATIENCE, before.over()).await.is_err() && before.is_due() {}
                }
                if let Some(oldest) = self.oldest_of_too_many() {
                    // Small pages are made faster than a busy machine wakes those who read them.
                    let _ = tokio::time::timeout(PATIENCE, oldest.left()).await;
                }
                *last = Arc::downgrade(&reader.page);
                self.begin(&reader.page);
            }
            reader
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Nothing that holds the lock can leave the lists half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, node: &Node, look: Look, pieces: impl FnOnce() -> Pieces) -> Reader {
        let mut open = self.lock();
        let waiting = open.waiting.iter().find(|(of, _)| *of == look);
        if let Some(reader) = waiting.and_then(|(_, page)| page.upgrade()?.reader()) {
            return reader;
        }
        let state = State {
            pieces: Some(pieces()),
            is_begun: false,
            end: None,
            made: VecDeque::new(),
            first: 0,
            readers: vec![Some(ReadPosition::default())],
        };
        let page = Arc::new(Page { state: Mutex::new(state), over: Notify::new(), work: self.thread(node) });
        open.waiting.retain(|(of, _)| *of != look);
        open.waiting.push((look, Arc::downgrade(&page)));
        Reader { page, number: 0, piece: Arc::default(), sent: 0, patience: None }
    }

    /// The page that has to go before one more can begin.
    fn oldest_of_too_many(&self) -> Option<Arc<Page>> {
        let mut open = self.lock();
        open.begun.retain(|page| page.upgrade().is_some_and(|page| page.is_read()));
        if open.begun.len() < PAGES { None } else { open.begun.front()?.upgrade() }
    }

    fn begin(&self, page: &Arc<Page>) {
        if let Some(oldest) = self.oldest_of_too_many() {
            oldest.break_off(oldest.lock());
        }
        let mut open = self.lock();
        open.waiting.retain(|(_, waiting)| !std::ptr::eq(waiting.as_ptr(), Arc::as_ptr(page)));
        open.begun.push_back(Arc::downgrade(page));
        drop(open);
        let mut state = page.lock();
        state.is_begun = true;
        page.go_on(&mut state);
    }

    /// The way to the thread that makes pages, which is started with the first one.
    fn thread(&self, node: &Node) -> mpsc::Sender<Work> {
        let start = || {
            let (work, due) = mpsc::channel();
            // The control thread starts it: threads of a worker may be bound to the worker's CPU.
            node.spawn(async move {
                let thread = std::thread::Builder::new().name("metrics".to_owned());
                if let Err(error) = thread.spawn(move || make_all(&due)) {
                    tracing::error!(%error, "cannot start the thread for pages of metrics");
                }
            });
            work
        };
        self.work.get_or_init(start).clone()
    }
}

/// The thread: one piece after the other, whatever page it is of.
fn make_all(due: &mpsc::Receiver<Work>) {
    stand_back();
    for (page, mut pieces) in due {
        let piece = catch_unwind(AssertUnwindSafe(&mut pieces));
        page.take(piece.map_err(drop), pieces);
    }
}

fn stand_back() {
    let this = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(this), NICENESS) {
        tracing::debug!(%error, "the thread for pages of metrics keeps its priority");
    }
}

/// One page, and all who read it.
struct Page {
    state: Mutex<State>,
    /// Told when the page is made or given up, as it is when the last one leaves.
    over: Notify,
    work: mpsc::Sender<Work>,
}

struct State {
    /// None while the next piece is due, and when the page has ended.
    pieces: Option<Pieces>,
    is_begun: bool,
    end: Option<End>,
    /// Finished pieces, and the number of the first of them.
    made: VecDeque<Arc<[u8]>>,
    first: usize,
    /// By number; None for those who have left or were left behind.
    readers: Vec<Option<ReadPosition>>,
}

/// How a page came to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

/// How far a reader is.
#[derive(Default)]
struct ReadPosition {
    /// The piece that it takes next.
    next: usize,
    waker: Option<Waker>,
}

impl State {
    /// Forgets the pieces that everybody has.
    fn forget(&mut self) {
        let slowest = self.readers.iter().flatten().map(|place| place.next).min().unwrap_or(usize::MAX);
        while self.first < slowest && self.made.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.made.len() >= WINDOW
    }
}

impl Page {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock panics but for want of memory, which ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread is to make its next piece.
    fn is_due(&self) -> bool {
        let state = self.lock();
        state.end.is_none() && state.pieces.is_none()
    }

    /// One more who reads it; None if all others have just left.
    fn reader(self: Arc<Page>) -> Option<Reader> {
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        let number = state.readers.len();
        state.readers.push(Some(ReadPosition::default()));
        drop(state);
        Some(Reader { page: self, number, piece: Arc::default(), sent: 0, patience: None })
    }

    /// Has the next piece made, unless it is being made or there is no room for it.
    fn go_on(self: &Arc<Page>, state: &mut State) {
        if state.is_begun
            && !state.is_full()
            && let Some(pieces) = state.pieces.take()
            && self.work.send((Arc::clone(self), pieces)).is_err()
        {
            state.end = Some(End::Broken);
        }
    }

    /// Takes the piece that was made, or an error if that failed.
    fn take(self: &Arc<Page>, piece: Result<Option<Vec<u8>>, ()>, pieces: Pieces) {
        let mut state = self.lock();
        match piece {
            // It has no readers any more.
            _ if state.end.is_some() => {}
            Ok(Some(piece)) => {
                state.made.push_back(piece.into());
                state.pieces = Some(pieces);
                self.go_on(&mut state);
            }
            Ok(None) => state.end = Some(End::Whole),
            Err(()) => state.end = Some(End::Broken),
        }
        self.tell(state);
    }

    /// Whether a reader has yet to take pieces of it.
    fn is_read(&self) -> bool {
        let state = self.lock();
        state.end != Some(End::Broken) && state.readers.iter().any(Option::is_some)
    }

    /// Gives the page up.
    fn break_off(&self, mut state: MutexGuard<'_, State>) {
        state.made.clear();
        state.end = Some(End::Broken);
        state.pieces = None;
        self.tell(state);
    }

    /// Wakes all tasks that wait for the change.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let wakers: Vec<Waker> =
            state.readers.iter_mut().flatten().filter_map(|place| place.waker.take()).collect();
        let is_over = state.end.is_some();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if is_over {
            self.over.notify_waiters();
        }
    }

    /// Waits until the page is made or given up.
    async fn over(&self) {
        self.wait_until(|page| page.lock().end.is_some()).await;
    }

    /// Waits until it has no readers any more.
    async fn left(&self) {
        self.wait_until(|page| !page.is_read()).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&Page) -> bool) {
        loop {
            let told = self.over.notified();
            if is_so(self) {
                return;
            }
            told.await;
        }
    }
}

/// A reader of a page, at its own pace as long as no other one waits for it.
pub(super) struct Reader {
    page: Arc<Page>,
    number: usize,
    piece: Arc<[u8]>,
    sent: usize,
    /// Until the others are left behind.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Reader {
    fn poll_next(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Option<Arc<[u8]>>>> {
        loop {
            let mut state = self.page.lock();
            if state.end == Some(End::Broken) {
                return Poll::Ready(Err(io::Error::other("the page of metrics is incomplete")));
            }
            let State { readers, made, first, end, .. } = &mut *state;
            let Some(place) = &mut readers[self.number] else {
                return Poll::Ready(Err(io::Error::other("a slow reader of metrics delayed other readers")));
            };
            if let Some(piece) = made.get(place.next - *first).cloned() {
                place.next += 1;
                self.patience = None;
                state.forget();
                self.page.go_on(&mut state);
                return Poll::Ready(Ok(Some(piece)));
            }
            if end.is_some() {
                return Poll::Ready(Ok(None));
            }
            place.waker = Some(task.waker().clone());
            if !state.is_full() {
                return Poll::Pending;
            }
            drop(state);
            let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
            task::ready!(patience.as_mut().poll(task));
            self.leave_behind();
        }
    }

    /// Goes on without those who have taken nothing for so long.
    fn leave_behind(&mut self) {
        self.patience = None;
        let mut state = self.page.lock();
        if !state.is_full() {
            return;
        }
        let first = state.first;
        let slow = state.readers.iter_mut().filter_map(|place| place.take_if(|place| place.next == first));
        let slow: Vec<Waker> = slow.filter_map(|place| place.waker).collect();
        state.forget();
        self.page.go_on(&mut state);
        drop(state);
        slow.into_iter().for_each(Waker::wake);
    }
}

impl BodySource for Reader {
    fn poll_piece(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Some(chunk) = Chunk::next_of(&self.piece, &mut self.sent) {
                return Poll::Ready(Ok(Some(chunk)));
            }
            match task::ready!(self.poll_next(task))? {
                Some(piece) => (self.piece, self.sent) = (piece, 0),
                None => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.page.lock();
        state.readers[self.number] = None;
        if state.readers.iter().all(Option::is_none) {
            return self.page.break_off(state);
        }
        state.forget();
        self.page.go_on(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::Value;

    use super::super::text::{Coding, Form};
    use super::*;

    const PLAIN: Look = Look { form: Form::Text, coding: Coding::Identity };
    const GZIP: Look = Look { form: Form::Text, coding: Coding::Gzip };

    /// A gateway whose background work is done, and pages of so many pieces.
    struct World {
        runtime: tokio::runtime::Runtime,
        node: Node,
        pages: Arc<SharedPages>,
        pieces: usize,
        /// Pages that were begun, and pieces that were made.
        begun: Arc<AtomicUsize>,
        made: Arc<AtomicUsize>,
    }

    impl World {
        fn new(pieces: usize) -> World {
            let at_once = |work| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(work);
            };
            let count = Arc::<AtomicUsize>::default;
            World {
                runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
                node: Node::new(
                    move |work| drop(std::thread::spawn(move || at_once(work)).join()),
                    Value::Null,
                    String::new(),
                ),
                pages: Arc::default(),
                pieces,
                begun: count(),
                made: count(),
            }
        }

        /// Its pieces have the number of the page.
        fn ask(&self) -> impl Future<Output = Reader> + use<> {
            let (begun, made, all) = (Arc::clone(&self.begun), Arc::clone(&self.made), self.pieces);
            let (mut number, mut left) = (0, all);
            let pieces = move || {
                if left == all {
                    number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                }
                left = left.checked_sub(1)?;
                made.fetch_add(1, Ordering::SeqCst);
                Some(vec![number as u8; 3])
            };
            Arc::clone(&self.pages).read(&self.node, GZIP, move || Box::new(pieces))
        }
    }

    async fn rest(reader: &mut Reader) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(piece) = std::future::poll_fn(|task| reader.poll_piece(task)).await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    #[test]
    fn a_page_is_for_all_who_wait_for_it() {
        let world = World::new(3);
        world.runtime.block_on(async {
            // All have asked before the first page is begun.
            let asking: Vec<_> = (0..100).map(|_| world.ask()).collect();
            let mut readers = Vec::new();
            for one in asking {
                readers.push(one.await);
            }
            let mut late = world.ask().await;
            for reader in &mut readers {
                assert_eq!(rest(reader).await.unwrap(), [1; 9]);
            }
            // A later request gets a newer one.
            assert_eq!(rest(&mut late).await.unwrap(), [2; 9]);
            // A reader that has left delays no other.
            drop(world.ask());
            drop(world.ask().await);
            let mut last = world.ask().await;
            let page = rest(&mut last).await.unwrap();
            assert!(page == [3; 9] || page == [4; 9], "{page:?}");
        });
    }

    #[test]
    fn unread_pieces_are_not_made() {
        let world = World::new(1000);
        world.runtime.block_on(async {
            let mut reader = world.ask().await;
            let one = std::future::poll_fn(|task| reader.poll_piece(task)).await.unwrap();
            assert_eq!(&*one.unwrap(), [1; 3]);
            // With any order of the threads, no more than the window is ahead.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
                assert!(world.made.load(Ordering::SeqCst) <= WINDOW + 2);
            }
            assert_eq!(rest(&mut reader).await.unwrap().len(), 999 * 3);
        });
    }

    #[test]
    fn a_slow_reader_is_left_behind() {
        let world = World::new(100);
        world.runtime.block_on(async {
            let (slow, fast) = (world.ask(), world.ask());
            let (mut slow, mut fast) = (slow.await, fast.await);
            assert_eq!(rest(&mut fast).await.unwrap().len(), 300);
            assert!(rest(&mut slow).await.is_err());
            // Alone it may be slow; the next page does not wait for it forever.
            let mut slow = world.ask().await;
            let mut next = world.ask().await;
            assert_eq!(rest(&mut next).await.unwrap().len(), 300);
            assert_eq!(rest(&mut slow).await.unwrap().len(), 300);
        });
    }

    #[test]
    fn a_reader_that_is_not_woken_yet_delays_no_other() {
        let world = World::new(3);
        world.runtime.block_on(async {
            let mut readers = Vec::new();
            for _ in 0..PAGES {
                readers.push(world.ask().await);
            }
            // All pages are made, and the first of them is still unread when the next one is due.
            assert_eq!(rest(&mut readers[PAGES - 1]).await.unwrap().len(), 9);
            tokio::time::pause();
            let mut next = tokio::spawn(world.ask());
            assert!(tokio::time::timeout(PATIENCE / 2, &mut next).await.is_err());
            assert_eq!(rest(&mut readers[0]).await.unwrap().len(), 9);
            drop(readers.remove(0));
            assert_eq!(rest(&mut next.await.unwrap()).await.unwrap().len(), 9);
        });
    }

    #[test]
    fn the_oldest_page_makes_room() {
        let world = World::new(100);
        world.runtime.block_on(async {
            tokio::time::pause();
            let mut readers = Vec::new();
            for _ in 0..=PAGES {
                readers.push(world.ask().await);
            }
            assert!(rest(&mut readers[0]).await.is_err());
            for reader in &mut readers[1..] {
                assert_eq!(rest(reader).await.unwrap().len(), 300);
            }
        });
    }

    #[test]
    fn a_page_that_fails_breaks_off() {
        let world = World::new(1);
        world.runtime.block_on(async {
            let failing = || -> Pieces { Box::new(|| panic!("on purpose")) };
            let asked = Arc::clone(&world.pages).read(&world.node, PLAIN, failing);
            let mut reader = asked.await;
            assert!(rest(&mut reader).await.is_err());
            assert_eq!(rest(&mut world.ask().await).await.unwrap(), [1; 3]);
        });
    }
}
