//! The connection to one member of the cluster, and what happens when it fails.
//!
//! One member at a time is used. A failure discards the connection, and the next use tries the
//! members in turn, each with a read that needs a quorum: a member that accepts connections but is
//! paused or cut off from the others is passed over.

use std::error::Error as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sigma_net::tls::reason::innermost;
use tonic::{Code, Status as Refusal};

use super::client::Client;
use super::messages::{RangeRequest, RangeResponse, Request, ResponseHeader};
use super::{EtcdOptions, ID_KEY};
use crate::store::StoreError;

/// Longest time to find out whether a member answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// After all members failed, callers within this time get the same response.
const FAILURE_LASTS: Duration = Duration::from_millis(500);

/// Whether a request may be sent a second time when the response to the first did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Twice has the effect of once.
    Safe,
    /// Only if it certainly was not sent.
    Unsafe,
}

/// An open connection to a member that answered.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// No other connection has it.
    pub(super) number: u64,
}

/// The cluster, seen through one member.
pub(super) struct Link {
    options: EtcdOptions,
    active: tokio::sync::Mutex<Active>,
    status: Mutex<Status>,
}

#[derive(Default)]
struct Active {
    connection: Option<Connection>,
    /// The endpoint to begin with.
    next: usize,
    opened: u64,
    failed: Option<(Instant, StoreError)>,
}

#[derive(Default)]
struct Status {
    revision: u64,
    lost: Option<(SystemTime, String)>,
}

impl Link {
    pub(super) fn new(options: EtcdOptions) -> Link {
        Link { options, active: tokio::sync::Mutex::default(), status: Mutex::default() }
    }

    pub(super) fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// The connection in use, or a new one to the first member that responds.
    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
        let mut active = self.active.lock().await;
        if let Some(connection) = &active.connection {
            return Ok(connection.clone());
        }
        // Callers that waited for an attempt which failed do not each make their own.
        if let Some((at, error)) = &active.failed
            && at.elapsed() < FAILURE_LASTS
        {
            return Err(error.clone());
        }
        let count = self.options.endpoints.len();
        let mut reasons = Vec::new();
        for step in 0..count {
            let index = (active.next + step) % count;
            let endpoint = &self.options.endpoints[index];
            match self.open(endpoint).await {
                Ok(client) => {
                    active.opened += 1;
                    let connection = Connection { client, number: active.opened };
                    (active.connection, active.next, active.failed) = (Some(connection.clone()), index, None);
                    self.regained();
                    return Ok(connection);
                }
                Err(reason) => reasons.push(format!("{endpoint}: {reason}")),
            }
        }
        let error = StoreError::Unavailable(format!("cannot use etcd: {}", reasons.join("; ")));
        active.failed = Some((Instant::now(), error.clone()));
        self.lost(&error);
        Err(error)
    }

    /// The connection failed; the next use begins with the member after it.
    pub(super) async fn discard(&self, failed: &Connection) {
        let mut active = self.active.lock().await;
        if active.connection.as_ref().is_some_and(|connection| connection.number == failed.number) {
            active.connection = None;
            active.next = (active.next + 1) % self.options.endpoints.len();
        }
    }

    /// Sends a request; forwards to the next member when one fails.
    pub(super) async fn call<R: Request>(&self, repeat: Repeat, request: &R) -> Result<R::Reply, StoreError> {
        let (answer, _) = self.through(repeat, |client| async move { client.call(request).await }).await?;
        Ok(answer)
    }

    /// Does what takes one member, or several requests to the same; forwards to the next member when one fails.
    /// Returns the number of the connection as well.
    pub(super) async fn through<T, F, Fut>(&self, repeat: Repeat, ask: F) -> Result<(T, u64), StoreError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Refusal>>,
    {
        let mut tries = self.options.endpoints.len() + 1;
        loop {
            let connection = self.connection().await?;
            let error = match ask(connection.client.clone()).await {
                Ok(answer) => return Ok((answer, connection.number)),
                Err(error) => error,
            };
            if !is_broken(&error) {
                return Err(StoreError::Unavailable(explain(&error)));
            }
            self.discard(&connection).await;
            tries -= 1;
            let again = repeat == Repeat::Safe || was_not_sent(&error);
            if tries == 0 || !again {
                let doubt = if again { "" } else { "; it is not known whether the write was carried out" };
                return Err(StoreError::Unavailable(format!("{}{doubt}", explain(&error))));
            }
        }
    }

    async fn open(&self, endpoint: &str) -> Result<Client, String> {
        let limit = PROBE_TIMEOUT.min(self.options.timeout);
        let attempt = async {
            let connected = Client::connect(endpoint, &self.options, limit).await;
            let client = connected.map_err(|error| innermost(&error))?;
            let probed: Result<RangeResponse, Refusal> = client.call(&self.probing()).await;
            probed.map_err(|refusal| explain(&refusal))?;
            Ok(client)
        };
        let outcome = tokio::time::timeout(limit, attempt).await;
        outcome.unwrap_or_else(|_| Err(format!("no response within {limit:?}")))
    }

    /// A read that needs a quorum and brings next to nothing.
    fn probing(&self) -> RangeRequest {
        let key = format!("{}/{ID_KEY}", self.options.prefix).into_bytes();
        RangeRequest { key, keys_only: true, ..RangeRequest::default() }
    }

    fn locked(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lost(&self, error: &StoreError) {
        self.locked().lost.get_or_insert_with(|| (SystemTime::now(), error.to_string()));
    }

    pub(super) fn regained(&self) {
        self.locked().lost = None;
    }

    /// A revision was seen; an older one than the newest known changes nothing.
    pub(super) fn saw_revision(&self, revision: u64) {
        let mut status = self.locked();
        status.revision = status.revision.max(revision);
    }

    /// Everything was read at this revision, which may be older after a restored backup.
    pub(super) fn set_revision(&self, revision: u64) {
        self.locked().revision = revision;
    }

    pub(super) fn status(&self) -> (u64, Option<(SystemTime, String)>) {
        let status = self.locked();
        (status.revision, status.lost.clone())
    }
}

/// The revision in the header of a response. etcd always sends one; without it nothing is known.
pub(super) fn revision(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| unsigned(header.revision))
}

/// etcd's revisions are signed and never negative.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Whether another connection may succeed where this one failed. etcd's own refusals come with
/// other codes.
pub(super) fn is_broken(refusal: &Refusal) -> bool {
    let code = refusal.code();
    matches!(
        code,
        Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable
            | Code::Unauthenticated
    ) || refusal.message().contains("auth store is old")
}

/// Whether the request cannot have reached etcd, because there was no connection.
fn was_not_sent(refusal: &Refusal) -> bool {
    let mut source = refusal.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost reason, in a sentence that says what to do where that is known.
pub(super) fn explain(refusal: &Refusal) -> String {
    let message = refusal.message();
    if message.contains("invalid user ID or password") {
        return format!(
            "insufficient credentials code: 401 ({message}); check `store.user` and `store.password`"
        );
    }
    if message.contains("user name is empty") || message.contains("permission denied") {
        return format!("{message}; name a user with the rights in `store.user` and `store.password`");
    }
    if message.contains("request is too large") {
        return format!("{message}; write less at once, or raise etcd's --max-request-bytes");
    }
    if message.contains("too many operations") {
        return format!("{message}; write less at once, or raise etcd's --max-txn-ops");
    }
    if message.contains("Timeout expired") {
        return "no response in time".to_owned();
    }
    match refusal.source().map(innermost) {
        Some(inner) if !message.contains(&inner) => format!("{message}: {inner}"),
        _ => message.to_owned(),
    }
}
