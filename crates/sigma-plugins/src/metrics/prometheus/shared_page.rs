//! One page of metrics for all who ask at the same time.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;

use sigma_http::{BodyLength, Chunk};
use sigma_plugin::{BodySource, Reply, Step, StreamBody};
use tokio::sync::Mutex;

/// Makes pages of metrics, one at a time for the whole gateway; a part of the node.
///
/// A page may take longer than a worker can be spared and be as large as many megabytes.
/// So who asks while one is made waits for the next one, and all who wait get the same.
#[derive(Default)]
pub(super) struct SharedPage {
    /// How many answers were begun.
    begun: AtomicU64,
    last: Arc<Mutex<Last>>,
}

#[derive(Default)]
struct Last {
    /// Which one it was, from 1.
    number: u64,
    /// Gone when everybody has it.
    reply: Weak<Reply>,
}

impl SharedPage {
    pub(super) fn answer(
        self: Arc<SharedPage>,
        make: impl FnOnce() -> Reply + Send + 'static,
    ) -> impl Future<Output = Arc<Reply>> {
        // One that is begun from here on is as new as one of our own.
        let arrived = self.begun.load(Ordering::SeqCst);
        async move {
            // Moved to the thread that makes the answer: who leaves meanwhile starts no second one.
            let mut last = Arc::clone(&self.last).lock_owned().await;
            if last.number > arrived
                && let Some(reply) = last.reply.upgrade()
            {
                return reply;
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let making = move || {
                let reply = Arc::new(make());
                *last = Last { number, reply: Arc::downgrade(&reply) };
                reply
            };
            let made = tokio::task::spawn_blocking(making).await;
            made.unwrap_or_else(|_| Arc::new(Reply::new(500)))
        }
    }
}

/// An answer whose body is not copied for each who gets it.
pub(super) fn shared(reply: &Arc<Reply>) -> Step {
    let Some(body) = &reply.body else { return Reply::clone(reply).into() };
    let head = Reply { headers: reply.headers.clone(), ..Reply::new(reply.status) };
    let length = BodyLength::Known(body.len() as u64);
    let source = Box::new(SharedBody { reply: Arc::clone(reply), sent: 0 });
    Step::Stream(Box::new(head), StreamBody { length, source })
}

struct SharedBody {
    reply: Arc<Reply>,
    sent: usize,
}

impl BodySource for SharedBody {
    fn poll_piece(&mut self, _task: &mut std::task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        /// Bytes that are copied at a time.
        const PIECE_BYTES: usize = 16 * 1024;
        let rest = &self.reply.body.as_deref().unwrap_or_default()[self.sent..];
        let piece = &rest[..rest.len().min(PIECE_BYTES)];
        self.sent += piece.len();
        Poll::Ready(Ok((!piece.is_empty()).then(|| Chunk::copy_of(piece))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_is_made_at_a_time_and_shared() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let page = Arc::new(SharedPage::default());
        let (made, at_once) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ask = || {
            let (made, at_once) = (Arc::clone(&made), Arc::clone(&at_once));
            Arc::clone(&page).answer(move || {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two are made at once");
                std::thread::yield_now();
                let number = made.fetch_add(1, Ordering::SeqCst) + 1;
                at_once.fetch_sub(1, Ordering::SeqCst);
                Reply::new(200).text(number.to_string())
            })
        };
        let body = |reply: &Arc<Reply>| String::from_utf8(reply.body.clone().unwrap()).unwrap();
        runtime.block_on(async {
            // All have asked before the first is begun.
            let all: Vec<_> = (0..100).map(|_| ask()).collect();
            let mut replies = Vec::new();
            for asking in all {
                replies.push(asking.await);
            }
            assert!(replies.iter().all(|reply| body(reply) == "1"));
            // Who asks later gets a newer one, even while the old one is still being sent.
            assert_eq!(body(&ask().await), "2");
            // Who has left holds nobody up.
            drop(ask());
            assert_eq!(body(&ask().await), "3");
        });
    }
}
