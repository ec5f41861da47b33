//! A store in etcd, in APISIX's layout, so that both can share one cluster.
//!
//! Records are at `PREFIX/<directory>/<id>`. The placeholders that APISIX wants in every directory are
//! skipped. A value that is no JSON is a record all the same: what overwrites a record must be seen
//! as that, and not as its deletion.

mod client;
mod follow;
mod keys;
mod link;
mod messages;
mod read;
mod transaction;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Contents, Pending, Record, Store, StoreError, StoreStatus, Transaction, Watch};
use keys::Keys;
use link::{Link, Repeat};
use messages::{LeaseKeepAliveRequest, PutRequest, RangeRequest, StatusRequest};

/// The directories that APISIX expects a placeholder in.
const DIRECTORIES: [&str; 13] = [
    "upstreams",
    "plugins",
    "ssls",
    "stream_routes",
    "plugin_metadata",
    "routes",
    "services",
    "consumers",
    "global_rules",
    "protos",
    "plugin_configs",
    "consumer_groups",
    "secrets",
];

/// The content of a placeholder.
const PLACEHOLDER: &str = "init_dir";

/// The key that is written to obtain a number.
const ID_KEY: &str = "gen_id";

/// Whether this process may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Reads and writes; makes the placeholders of the directories.
    #[default]
    ReadWrite,
    /// Reads only: a gateway without an Admin API.
    ReadOnly,
}

/// How TLS connections to etcd are made. All texts are PEM.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// The authorities that etcd's certificate may come from; None for the system's.
    pub ca: Option<Vec<u8>>,
    /// The certificate chain and the private key that this process shows.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, if it is not the host of the endpoint.
    pub sni: Option<String>,
}

/// How etcd is reached.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port` of the members; the first that answers is used
    /// until it fails.
    pub endpoints: Vec<String>,
    /// Begins with a slash and does not end with one.
    pub prefix: String,
    /// User and password.
    pub user: Option<(String, String)>,
    /// For endpoints that begin with `https://`.
    pub tls: EtcdTls,
    /// Longest time for one request.
    pub timeout: Duration,
    /// A watch that is silent for this long is given up; half-way etcd gets a ping.
    pub watch_timeout: Duration,
    /// Pause after etcd has refused, e.g. the password; up to half of it is added at random.
    pub resync_delay: Duration,
    /// How often the keys that are known are compared with etcd's; up to half of it is added at
    /// random. Zero for never.
    pub compare_interval: Duration,
    /// Whether this process may write.
    pub access: Access,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        EtcdOptions {
            endpoints: vec!["http://127.0.0.1:2379".into()],
            prefix: "/apisix".into(),
            user: None,
            tls: EtcdTls::default(),
            timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(10),
            resync_delay: Duration::from_secs(5),
            compare_interval: Duration::from_secs(300),
            access: Access::default(),
        }
    }
}

/// An etcd cluster.
pub struct Etcd {
    link: Link,
    prepared: AtomicBool,
    /// For the watch that begins where the last load ended.
    loaded: Mutex<Option<Loaded>>,
}

/// The last load.
#[derive(Clone)]
struct Loaded {
    revision: u64,
    /// The connection that it came over.
    connection: u64,
    /// None once a watch has them.
    keys: Option<Keys>,
}

impl Etcd {
    /// Nothing is sent before the first use; etcd need not be there.
    pub fn new(options: EtcdOptions) -> Result<Etcd, StoreError> {
        if options.endpoints.is_empty() {
            return Err(StoreError::Unavailable("no etcd address; set `store.endpoints`".into()));
        }
        Ok(Etcd { link: Link::new(options), prepared: AtomicBool::new(false), loaded: Mutex::default() })
    }

    /// Notes that another place has data of etcd up to this revision.
    pub(super) fn saw_revision(&self, revision: u64) {
        self.link.saw_revision(revision);
    }

    fn options(&self) -> &EtcdOptions {
        self.link.options()
    }

    fn full_key(&self, key: &str) -> String {
        format!("{}/{key}", self.options().prefix)
    }

    fn check_access(&self) -> Result<(), StoreError> {
        match self.options().access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(StoreError::Unavailable(
                "this gateway only reads its store; write through another gateway, or set `store.access: read_write`"
                    .into(),
            )),
        }
    }

    /// Makes the placeholders, once per process. A user that may only read can do without.
    async fn prepare(&self) {
        let reads_only = self.options().access == Access::ReadOnly;
        // The caller of a preparation will report that etcd is unreachable.
        if reads_only || self.prepared.load(Ordering::Relaxed) || self.link.connection().await.is_err() {
            return;
        }
        self.prepared.store(true, Ordering::Relaxed);
        let placeholders = DIRECTORIES.iter().map(|directory| self.full_key(&format!("{directory}/")));
        let request = transaction::placeholders(placeholders);
        if let Err(error) = self.link.call(Repeat::Safe, &request).await {
            tracing::warn!(%error, "cannot write the placeholder keys of APISIX to etcd");
        }
    }

    /// Reads everything, and makes the placeholders before.
    async fn load_everything(&self) -> Result<read::Everything, StoreError> {
        self.prepare().await;
        let everything = read::all(&self.link).await?;
        self.link.set_revision(everything.contents.revision);
        Ok(everything)
    }

    async fn load_contents(&self) -> Result<Contents, StoreError> {
        let read::Everything { contents, keys, connection } = self.load_everything().await?;
        let loaded = Loaded { revision: contents.revision, connection, keys: Some(keys) };
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
        Ok(contents)
    }

    /// Returns the data of the last load for a watch from `revision`; the keys only if that was at this
    /// revision.
    fn take_loaded(&self, revision: u64) -> Option<Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let last = loaded.as_mut()?;
        let keys = if last.revision == revision { last.keys.take() } else { None };
        Some(Loaded { keys, ..*last })
    }

    async fn get_record(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let request = RangeRequest { key: self.full_key(key).into(), ..RangeRequest::default() };
        let found = self.link.call(Repeat::Safe, &request).await?.kvs.into_iter().next();
        Ok(found.and_then(|kv| read::record(key.to_owned(), kv)))
    }

    async fn renew_lease(&self, key: &str, value: &[u8]) -> Result<bool, StoreError> {
        self.check_access()?;
        let request = RangeRequest { key: self.full_key(key).into(), ..RangeRequest::default() };
        let found = self.link.call(Repeat::Safe, &request).await?.kvs.into_iter().next();
        let Some(lease) = found.filter(|kv| kv.value == value && kv.lease != 0).map(|kv| kv.lease) else {
            return Ok(false);
        };
        let answer = self.link.call(Repeat::Safe, &LeaseKeepAliveRequest { id: lease }).await?;
        // A lease that has ended meanwhile has no time to live.
        Ok(answer.ttl > 0)
    }

    async fn put_id(&self) -> Result<u64, StoreError> {
        self.check_access()?;
        let request =
            PutRequest { key: self.full_key(ID_KEY).into(), value: "1".into(), ..PutRequest::default() };
        let answer = self.link.call(Repeat::Safe, &request).await?;
        let revision = link::revision(answer.header.as_ref());
        self.link.saw_revision(revision);
        Ok(revision)
    }
}

impl Store for Etcd {
    fn load(&self) -> Pending<'_, Contents> {
        Box::pin(self.load_contents())
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        Box::pin(self.get_record(key))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        Box::pin(async move { Ok(read::below(&self.link, prefix).await?.contents.records) })
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        Box::pin(async move {
            self.check_access()?;
            let revision = transaction::commit(&self.link, transaction).await?;
            self.link.saw_revision(revision);
            Ok(revision)
        })
    }

    fn renew<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Pending<'a, bool> {
        Box::pin(self.renew_lease(key, value))
    }

    fn version(&self) -> Pending<'_, Option<String>> {
        Box::pin(async {
            let status = self.link.call(Repeat::Safe, &StatusRequest {}).await?;
            Ok(Some(status.version).filter(|version| !version.is_empty()))
        })
    }

    fn next_id(&self) -> Pending<'_, u64> {
        Box::pin(self.put_id())
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        follow::follow(self, revision)
    }

    fn status(&self) -> StoreStatus {
        let (revision, lost) = self.link.status();
        StoreStatus { kind: "etcd", revision, lost, copied: None }
    }
}
