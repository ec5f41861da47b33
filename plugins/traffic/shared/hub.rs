//! How a push reaches the connections of all workers.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sigma_plugin::Env;
use tokio::sync::{mpsc, oneshot};

use super::push::Item;
use super::room::{Bounds, Room};

/// Pushes that wait for a worker; more are refused.
const WAITING: usize = 64;

/// Items on their way to a worker, and the receiver of how many connections each of them has reached.
struct Delivery {
    items: Arc<[Item]>,
    reached: oneshot::Sender<Vec<u32>>,
}

/// The workers that have connections.
#[derive(Default)]
pub(crate) struct Hub(Mutex<Vec<(usize, mpsc::Sender<Delivery>)>>);

/// A worker's room, once it has one.
struct Own(Rc<Room>);

/// A push that a worker has no room for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Busy;

impl Hub {
    /// The room of the worker that runs the hook.
    pub(crate) fn room(&self, env: &Env<'_>, bounds: Bounds) -> Rc<Room> {
        let own = env.local.part(|| {
            let room = Rc::new(Room::new(bounds));
            let (sender, mut inbox) = mpsc::channel::<Delivery>(WAITING);
            let mut workers = lock(&self.0);
            // Ended workers are removed.
            workers.retain(|(_, sender)| !sender.is_closed());
            workers.push((env.local.worker(), sender));
            let members = Rc::clone(&room);
            tokio::task::spawn_local(async move {
                while let Some(Delivery { items, reached }) = inbox.recv().await {
                    // The pusher may have left.
                    let _ = reached.send(items.iter().map(|item| members.push(item)).collect());
                }
            });
            Own(room)
        });
        Rc::clone(&own.0)
    }

    /// Delivers items to all workers. The result has how many connections each has reached.
    ///
    /// # Errors
    /// Returns an error if too much waits for a worker; others may have it then.
    pub(crate) fn deliver(&self, items: Vec<Item>) -> Result<impl Future<Output = Vec<u32>> + use<>, Busy> {
        let items: Arc<[Item]> = items.into();
        let workers: Vec<_> = lock(&self.0).iter().map(|(_, sender)| sender.clone()).collect();
        let mut answers = Vec::new();
        for worker in workers {
            let (reached, answer) = oneshot::channel();
            match worker.try_send(Delivery { items: Arc::clone(&items), reached }) {
                Ok(()) => answers.push(answer),
                // Its connections have ended with it.
                Err(mpsc::error::TrySendError::Closed(_)) => {}
                Err(mpsc::error::TrySendError::Full(_)) => return Err(Busy),
            }
        }
        Ok(async move {
            let mut sums = vec![0; items.len()];
            for answer in answers {
                if let Ok(reached) = answer.await {
                    sums.iter_mut().zip(reached).for_each(|(sum, more)| *sum += more);
                }
            }
            sums
        })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A list of senders, whole after each change.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
