//! Connections that wait for the next request: each worker has its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sigma_plugin::Local;

use super::connection::{Connection, Failure};
use super::directory::Directory;

/// The number of waiting connections, and their time.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// Idle connections that are kept at most.
    pub connections: usize,
    /// Milliseconds after which an idle connection is closed.
    pub idle_ms: u64,
}

/// The connections of one worker that wait.
#[derive(Default)]
struct Pools(RefCell<HashMap<Box<str>, Vec<Waiting>>>);

struct Waiting {
    connection: Connection,
    until_ms: u64,
}

impl Pools {
    fn take(&self, pool: &str, now_ms: u64) -> Option<Connection> {
        let mut pools = self.0.borrow_mut();
        let waiting = pools.get_mut(pool)?;
        while let Some(Waiting { mut connection, until_ms }) = waiting.pop() {
            if until_ms > now_ms && connection.is_usable() {
                connection.has_answered = false;
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, pool: &str, connection: Connection, keeping: Keeping, now_ms: u64) {
        let mut pools = self.0.borrow_mut();
        // Connections of directories that are no longer configured expire.
        pools.retain(|_, waiting| {
            waiting.retain(|waiting| waiting.until_ms > now_ms);
            !waiting.is_empty()
        });
        let waiting = pools.entry(pool.into()).or_default();
        if waiting.len() < keeping.connections {
            waiting.push(Waiting { connection, until_ms: now_ms.saturating_add(keeping.idle_ms) });
        }
    }
}

/// The response to a request, and the connection that it was sent on.
pub type Answered<T> = Result<(T, Connection), Failure>;

/// Asks a directory, on a waiting connection or on a new one, within this time. A connection that was lost while it
/// waited is replaced once, before any response on it.
pub fn ask<T, Q>(
    directory: Arc<Directory>,
    local: &Local,
    now_ms: u64,
    timeout: Duration,
    question: Q,
) -> impl Future<Output = Answered<T>> + use<T, Q>
where
    T: 'static,
    Q: AsyncFn(&mut Connection) -> Result<T, Failure> + 'static,
{
    let kept = local.part(Pools::default).take(&directory.pool, now_ms);
    let asking = async move {
        if let Some(mut connection) = kept {
            match question(&mut connection).await {
                Ok(answer) => return Ok((answer, connection)),
                Err(failure) if connection.has_answered => return Err(failure),
                Err(_) => {}
            }
        }
        let mut connection = Connection::open(&directory).await?;
        Ok((question(&mut connection).await?, connection))
    };
    async move {
        let late = || Err(Failure(format!("no response within {} ms", timeout.as_millis())));
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| late())
    }
}

/// Keeps a connection for the next request.
pub fn keep(directory: &Directory, connection: Connection, keeping: Keeping, local: &Local, now_ms: u64) {
    local.part(Pools::default).put(&directory.pool, connection, keeping, now_ms);
}
