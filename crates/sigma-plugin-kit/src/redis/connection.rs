//! The choice of a command's connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::connect::{self, Connection};
use super::target::Target;
use crate::log_throttle::LogThrottle;

/// The first pause after an attempt that came to nothing; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One connection of one worker to one target, which all its exchanges share. It is opened when first
/// needed, and again when it was lost.
pub struct SharedConnection {
    target: Arc<Target>,
    open: Mutex<Option<Open>>,
    /// Held while a connection is made, so that others wait for it instead of making their own.
    attempts: tokio::sync::Mutex<Attempts>,
    /// The number of the connection that answered last.
    answered: AtomicU64,
}

struct Open {
    connection: Connection,
    /// The number that distinguishes this connection from the ones before and after it.
    number: u64,
    used: Instant,
}

#[derive(Default)]
struct Attempts {
    connections: u64,
    /// The last connection that is known to have responded.
    answered: u64,
    /// Consecutive failed attempts.
    failures: u32,
    /// The end of the pause, and the last error.
    pause: Option<(Instant, RedisError)>,
}

impl Attempts {
    /// Notes that the connection with this number has responded: the count of failures starts again.
    fn note_answered(&mut self, number: u64) {
        if number != self.answered {
            (self.answered, self.failures) = (number, 0);
        }
    }

    fn fail(&mut self, error: &RedisError) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.pause = Some((Instant::now() + pause, error.clone()));
    }
}

impl SharedConnection {
    /// Returns a connection that is not open yet.
    pub fn new(target: &Arc<Target>) -> SharedConnection {
        SharedConnection {
            target: Arc::clone(target),
            open: Mutex::default(),
            attempts: tokio::sync::Mutex::default(),
            answered: AtomicU64::new(0),
        }
    }

    /// Runs a command. It may run twice if the connection was lost under it.
    ///
    /// # Errors
    /// Returns an error without a connection or a response in time, or if the server responds with one. Errors other
    /// than responses of the server were logged.
    pub async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        if let Some((mut connection, number)) = self.held() {
            match self.ask_on(&mut connection, number, command).await {
                // It was lost while it was idle, or leads to a server that was demoted.
                Err(error) if is_lost(&error) && !error.is_timeout() => {}
                answer => return answer,
            }
        }
        let (mut connection, number) = self.connection().await?;
        self.ask_on(&mut connection, number, command).await
    }

    /// Runs a command on the existing connection, without making one: it comes after all commands that were sent
    /// before.
    ///
    /// # Errors
    /// Returns an error in the cases in which [`SharedConnection::ask`] does; None if there is no
    /// connection.
    pub async fn ask_in_order(&self, command: &Cmd) -> Option<RedisResult<Value>> {
        let (mut connection, number) = self.held()?;
        Some(self.ask_on(&mut connection, number, command).await)
    }

    async fn ask_on(&self, connection: &mut Connection, number: u64, command: &Cmd) -> RedisResult<Value> {
        let answer = connection.ask(command).await.and_then(Value::extract_error);
        match &answer {
            Err(error) if is_lost(error) => self.give_up(number, error).await,
            _ if self.answered.load(Ordering::Relaxed) != number => {
                self.answered.store(number, Ordering::Relaxed);
            }
            _ => {}
        }
        answer
    }

    async fn give_up(&self, number: u64, error: &RedisError) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(target = %self.target, %error, left_out, "the connection to Redis was closed");
        }
        self.with_open(|open| {
            open.take_if(|open| open.number == number);
        });
        if self.answered.load(Ordering::Relaxed) == number {
            return;
        }
        // A server that accepts and then does not respond, because it is full or read-only, would be dialled again for
        // every request.
        let mut attempts = self.attempts.lock().await;
        if attempts.connections == number && attempts.pause.is_none() {
            attempts.fail(error);
        }
    }

    fn with_open<R>(&self, change: impl FnOnce(&mut Option<Open>) -> R) -> R {
        // A panic cannot leave half of an assignment.
        change(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the existing connection unless it was silent for too long.
    fn held(&self) -> Option<(Connection, u64)> {
        let now = Instant::now();
        self.with_open(|open| {
            open.take_if(|open| now.duration_since(open.used) > self.target.idle_timeout);
            let open = open.as_mut()?;
            open.used = now;
            Some((open.connection.clone(), open.number))
        })
    }

    /// Returns the connection, and makes one if necessary.
    async fn connection(&self) -> RedisResult<(Connection, u64)> {
        let mut attempts = self.attempts.lock().await;
        // The previous holder of the lock may have made one.
        if let Some(held) = self.held() {
            return Ok(held);
        }
        if let Some((until, error)) = &attempts.pause
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        attempts.note_answered(self.answered.load(Ordering::Relaxed));
        match connect::connect(&self.target).await {
            Ok(connection) => {
                attempts.connections += 1;
                let number = attempts.connections;
                attempts.pause = None;
                let open = Open { connection: connection.clone(), number, used: Instant::now() };
                self.with_open(|slot| *slot = Some(open));
                Ok((connection, number))
            }
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(target = %self.target, %error, left_out, "cannot use Redis");
                }
                attempts.fail(&error);
                Err(error)
            }
        }
    }
}

/// Returns true if the connection is useless now.
fn is_lost(error: &RedisError) -> bool {
    let demoted = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
    demoted || error.is_io_error() || error.is_unrecoverable_error()
}

/// The connections of one worker, or of the control thread: one to each target.
#[derive(Default)]
pub struct Connections {
    /// By the address of the target, which stays reserved as long as its weak reference exists.
    known: Mutex<HashMap<usize, ReservedConnection>>,
}

struct ReservedConnection {
    target: Weak<Target>,
    connection: Arc<SharedConnection>,
}

impl Connections {
    /// Returns the connection to a target.
    pub fn to(&self, target: &Arc<Target>) -> Arc<SharedConnection> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ReservedConnection { connection, .. }) = known.get(&(Arc::as_ptr(target).addr())) {
            return Arc::clone(connection);
        }
        // The connection itself is the last to hold a target that is no longer configured.
        known.retain(|_, known| known.target.strong_count() > 1 || Arc::strong_count(&known.connection) > 1);
        let connection = Arc::new(SharedConnection::new(target));
        known.insert(
            Arc::as_ptr(target).addr(),
            ReservedConnection { target: Arc::downgrade(target), connection: Arc::clone(&connection) },
        );
        connection
    }
}
