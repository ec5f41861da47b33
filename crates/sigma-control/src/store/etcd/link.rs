//! The connection to one member of the cluster, and what happens when it fails.
//!
//! One member at a time is used. A failure discards the connection, and the next use tries the
//! members in turn, each with a read that needs a quorum: a member that accepts connections but is
//! paused or cut off from the others is passed over.

use std::error::Error as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, GetOptions, Identity, KvClient, ResponseHeader, TlsOptions,
};

use super::{EtcdOptions, ID_KEY};
use crate::store::StoreError;

/// Longest time to find out whether a member answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// After all members failed, callers within this time get the same answer.
const FAILURE_LASTS: Duration = Duration::from_millis(500);

/// HTTP/2 pings on a quiet connection, and how long the answer may take. etcd closes connections
/// that ping more than every 5 seconds.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Whether a request may be sent a second time when the answer to the first did not come.
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
    number: u64,
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

    /// The connection in use, or a new one to the first member that answers.
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
        let error = StoreError::Unavailable(format!("etcd cannot be used: {}", reasons.join("; ")));
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

    /// Sends a request; passes on to the next member when one fails.
    pub(super) async fn call<T, F, Fut>(&self, repeat: Repeat, request: F) -> Result<T, StoreError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut tries = self.options.endpoints.len() + 1;
        loop {
            let connection = self.connection().await?;
            let error = match request(connection.client.clone()).await {
                Ok(answer) => return Ok(answer),
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

    /// The revision and the id of the cluster, as a quorum sees them.
    pub(super) async fn probe(&self) -> Result<(u64, u64), StoreError> {
        let key = format!("{}/{ID_KEY}", self.options.prefix);
        let request = |client: Client| probe_request(client, key.clone());
        let response = self.call(Repeat::Safe, request).await?;
        Ok((revision(response.header()), response.header().map_or(0, ResponseHeader::cluster_id)))
    }

    async fn open(&self, endpoint: &str) -> Result<Client, String> {
        let limit = PROBE_TIMEOUT.min(self.options.timeout);
        let key = format!("{}/{ID_KEY}", self.options.prefix);
        let attempt = async {
            let client = Client::connect([endpoint], Some(self.connect_options(endpoint)?)).await?;
            probe_request(client.clone(), key).await?;
            Ok::<_, Error>(client)
        };
        match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(explain(&error)),
            Err(_) => Err(format!("no answer within {limit:?}")),
        }
    }

    fn connect_options(&self, endpoint: &str) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new()
            .with_timeout(self.options.timeout)
            .with_connect_timeout(PROBE_TIMEOUT.min(self.options.timeout))
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = &self.options.user {
            options = options.with_user(user, password);
        }
        if endpoint.starts_with("https://") {
            let tls = &self.options.tls;
            let mut with = match &tls.ca {
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
                None => TlsOptions::new().with_native_roots(),
            };
            if let Some((cert, key)) = &tls.identity {
                with = with.identity(Identity::from_pem(cert, key));
            }
            if let Some(sni) = &tls.sni {
                with = with.domain_name(sni);
            }
            options = options.with_tls(with);
        }
        Ok(options)
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

/// A client for keys and values whose answers may be as large as etcd makes them.
pub(super) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

async fn probe_request(mut client: Client, key: String) -> Result<etcd_client::GetResponse, Error> {
    client.get(key, Some(GetOptions::new().with_keys_only())).await
}

/// The revision in the header of an answer. etcd always sends one; without it nothing is known.
pub(super) fn revision(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| unsigned(header.revision()))
}

/// etcd's revisions are signed and never negative.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Whether another connection may succeed where this one failed. etcd's own refusals come with
/// other codes.
pub(super) fn is_broken(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            let code = i32::from(status.code());
            // Cancelled, unknown, deadline exceeded, internal, unavailable, unauthenticated.
            matches!(code, 1 | 2 | 4 | 13 | 14 | 16) || status.message().contains("auth store is old")
        }
        Error::IoError(_) | Error::TransportError(_) | Error::WatchError(_) => true,
        _ => false,
    }
}

/// Whether the request cannot have reached etcd, because there was no connection.
fn was_not_sent(error: &Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => Some(error),
        _ => None,
    };
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        source = error.source();
    }
    false
}

/// The innermost reason, in a sentence that says what to do where that is known.
pub(super) fn explain(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else {
        return innermost(error);
    };
    let message = status.message();
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
        return "no answer in time".to_owned();
    }
    match status.source().map(innermost) {
        Some(inner) if !message.contains(&inner) => format!("{message}: {inner}"),
        _ => message.to_owned(),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
