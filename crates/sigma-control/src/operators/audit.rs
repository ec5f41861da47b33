//! The audit log: a line for each call that changes something, and for each that was refused.
//!
//! A line is written by its own thread, after the response has left: no call waits for a disk. The caller in a line
//! comes from the connection and from the verified key, never from a query or a body.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use serde_json::{Value, json};
use sigma_config::audit_log::AuditLog;
use sigma_config::settings::Settings;
use sigma_observe::Clock;
use sigma_observe::throttle::{Allowance, Throttle};

use super::OpenError;
use crate::operators::identity::CertificateOf;
use crate::store::history::{History, cleaned};

/// Lines that may wait for the thread.
const QUEUE: usize = 1024;
/// Longer paths are cut.
const PATH_BYTES: usize = 1024;
/// How long a line waits for the version that its call has made.
const VERSION_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked for.
const VERSION_LOOK: Duration = Duration::from_millis(20);
/// How far behind the newest it is looked for.
const VERSIONS: usize = 32;

/// The name of the key of a call, as an extension of its response.
#[derive(Debug, Clone)]
pub(crate) struct KeyOf(pub(crate) Arc<str>);

/// The revision that a call has made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenRevision(pub(crate) u64);

/// The audit log of a process.
pub(crate) struct Audit {
    thread: SyncSender<AuditMessage>,
    history: Option<Arc<History>>,
    allowance: Allowance,
    throttle: Mutex<Throttle>,
}

enum AuditMessage {
    Line(String),
    Reopen,
}

impl Audit {
    /// Opens the log that the settings name, if they do.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub(crate) fn of(
        settings: &Settings,
        history: Option<&Arc<History>>,
    ) -> Result<Option<Arc<Audit>>, OpenError> {
        let settings = &settings.audit_log;
        let Some(path) = settings.file().map(PathBuf::from) else { return Ok(None) };
        let opened = Audit::open(settings, &path, history);
        opened.map(Some).map_err(|source| OpenError::AuditLog { path, source })
    }

    fn open(settings: &AuditLog, path: &Path, history: Option<&Arc<History>>) -> std::io::Result<Arc<Audit>> {
        let path = path.to_owned();
        let file = open(&path)?;
        let (thread, told) = sync_channel(QUEUE);
        std::thread::Builder::new().name("sigma-audit".into()).spawn(move || write(&path, file, &told))?;
        let rate = settings.refused_per_second.max(1);
        let allowance = Allowance { burst: rate, pause: Duration::from_secs(1) / rate };
        let throttle = Mutex::new(Throttle::new(allowance, Instant::now()));
        Ok(Arc::new(Audit { thread, history: history.cloned(), allowance, throttle }))
    }

    /// Reopens the file after it was moved.
    pub(crate) fn reopen(&self) {
        self.tell(AuditMessage::Reopen);
    }

    fn tell(&self, told: AuditMessage) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.thread.try_send(told) {
            tracing::error!("a line of the audit log was lost: its disk is slow or full");
        }
    }

    /// A line for a call, if it is to have one.
    fn note(self: &Arc<Self>, mut line: Value, status: StatusCode, made: Option<WrittenRevision>) {
        if status.is_client_error() {
            let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(kept_back) = throttle.pass(self.allowance, Instant::now()) else { return };
            if kept_back > 0 {
                line["refused_without_a_line"] = kept_back.into();
            }
        }
        let Some(WrittenRevision(revision)) = made else {
            return self.tell(AuditMessage::Line(format!("{line}\n")));
        };
        line["revision"] = revision.into();
        let Some(history) = self.history.clone() else {
            return self.tell(AuditMessage::Line(format!("{line}\n")));
        };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if let Ok(Some(version)) =
                tokio::time::timeout(VERSION_WAIT, version_of(&history, revision)).await
            {
                line["version"] = version.into();
            }
            this.tell(AuditMessage::Line(format!("{line}\n")));
        });
    }
}

/// The version that a revision is; None if the history cannot be read.
async fn version_of(history: &History, revision: u64) -> Option<u64> {
    loop {
        let newest = history.list(VERSIONS, None, None).await.ok()?;
        if let Some(found) = newest.iter().find(|version| version.revision == revision) {
            return Some(found.version);
        }
        tokio::time::sleep(VERSION_LOOK).await;
    }
}

/// A service whose calls are written down.
pub(crate) fn audited(router: Router, audit: Option<&Arc<Audit>>) -> Router {
    match audit {
        Some(audit) => router.layer(from_fn_with_state(Arc::clone(audit), watch)),
        None => router,
    }
}

async fn watch(State(audit): State<Arc<Audit>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    let certificate = request.extensions().get::<CertificateOf>().cloned();
    // The path alone: a key may stand in the query.
    let mut line = json!({
        "time": Value::Null,
        "address": peer.map(|peer| peer.ip().to_string()),
        "key": Value::Null,
        "certificate": certificate.map(|CertificateOf(subject)| cleaned(&subject, PATH_BYTES)),
        "method": cleaned(request.method().as_str(), PATH_BYTES),
        "path": cleaned(request.uri().path(), PATH_BYTES),
    });
    let is_dry = request.uri().query().is_some_and(|query| {
        form_urlencoded::parse(query.as_bytes()).any(|(name, value)| name == "dry_run" && value == "true")
    });
    if is_dry {
        line["dry_run"] = true.into();
    }
    let answer = next.run(request).await;
    let status = answer.status();
    if changes || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        line["time"] = time().into();
        line["key"] = answer.extensions().get::<KeyOf>().map(|KeyOf(name)| &**name).into();
        line["status"] = status.as_u16().into();
        line["ms"] = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).into();
        audit.note(line, status, answer.extensions().get::<WrittenRevision>().copied());
    }
    answer
}

fn time() -> String {
    // A clock before 1970 is taken for 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = Clock::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    String::from_utf8_lossy(clock.time_iso8601()).into_owned()
}

fn open(path: &Path) -> std::io::Result<File> {
    let file = sigma_observe::own_file::append(path, 0o640)?;
    // Lines for a pipe wait until there is room.
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
    Ok(file)
}

/// Writes lines until all senders are gone.
fn write(path: &Path, mut file: File, told: &Receiver<AuditMessage>) {
    let mut complained = false;
    for one in told {
        let done = match one {
            AuditMessage::Line(line) => file.write_all(line.as_bytes()),
            AuditMessage::Reopen => open(path).map(|opened| file = opened),
        };
        match done {
            Ok(()) => complained = false,
            Err(error) if !complained => {
                tracing::error!(%error, path = %path.display(), "cannot write the audit log");
                complained = true;
            }
            Err(_) => {}
        }
    }
}
