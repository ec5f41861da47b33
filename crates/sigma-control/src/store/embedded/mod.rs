//! A store in one file on local disk, for a gateway that needs nothing else installed.
//!
//! All records are held in memory as well, so that reading costs nothing; writing goes through one thread,
//! which takes all waiting writes, commits them with a single fsync, and only then shows and acknowledges
//! them. A write that was acknowledged therefore survives `kill -9` and a power failure, and one that was
//! refused is taken out again if the disk has it all the same.
//!
//! Times to live follow the monotonic clock while the store is open. Over a restart the wall clock is
//! all that is left: who sets it meanwhile moves them.

#[cfg(test)]
mod fault;
mod file;
mod writer;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

use tokio::sync::oneshot;

use super::feed::{Fed, Feed};
use super::records::Records;
use super::{Contents, Pending, Record, Store, StoreError, StoreStatus, Transaction, Watch};
use writer::{Order, Ordered, Writer};

/// A store in the file `store.redb` of a directory. Only one process can have it open.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    /// None only while it is dropped.
    orders: Option<mpsc::Sender<Order>>,
    writer: Option<JoinHandle<()>>,
}

/// The readers' view; the writer changes it after each commit.
#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    feed: Feed,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    records: Records,
    lost: Option<(SystemTime, String)>,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        // Changes are inserts and removals of whole records, which do not panic half-way.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Embedded {
    /// Opens the store in `dir`; makes both if they do not exist (modes 0600 and 0700). Records whose time to live
    /// ended meanwhile are deleted, as its own change. Blocks on the disk.
    pub fn open(dir: &Path) -> Result<Embedded, StoreError> {
        let (opened, result) = mpsc::channel();
        let (orders, waiting) = mpsc::channel();
        let place = dir.to_owned();
        let run = move || {
            let writer = Writer::open(&place);
            match writer {
                Ok((writer, shared)) => {
                    // The caller has left if this fails.
                    if opened.send(Ok(shared)).is_ok() {
                        writer.run(&waiting);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        let writer = std::thread::Builder::new().name("sigma-store".into()).spawn(run).map_err(|error| {
            StoreError::Unavailable(format!("cannot start the thread of the store: {error}"))
        })?;
        // The thread ends without a word when reading a damaged file panics.
        let shared =
            result.recv().unwrap_or_else(|_| Err(file::damaged(dir, "its content violates its format")))?;
        Ok(Embedded { shared, orders: Some(orders), writer: Some(writer) })
    }

    async fn write(&self, transaction: Transaction) -> Result<u64, StoreError> {
        self.order(|reply| Order::Write(Ordered { transaction, reply })).await?
    }

    /// Sends an order to the thread, and waits for its reply.
    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, StoreError> {
        let stopped =
            || StoreError::Unavailable("the store's thread has stopped; restart the gateway".into());
        let (reply, answer) = oneshot::channel();
        let orders = self.orders.as_ref().ok_or_else(stopped)?;
        orders.send(order(reply)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())
    }
}

impl Drop for Embedded {
    /// Waits for the commit under way, so that the file is closed afterwards.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            // It has printed a panic on stderr by itself.
            let _ = writer.join();
        }
    }
}

impl Fed for Embedded {
    fn feed(&self) -> &Feed {
        &self.shared.feed
    }
}

impl Store for Embedded {
    fn load(&self) -> Pending<'_, Contents> {
        let state = self.shared.read();
        let contents =
            Contents { revision: state.revision, records: state.records.iter().cloned().collect() };
        Box::pin(std::future::ready(Ok(contents)))
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        let record = self.shared.read().records.get(key).cloned();
        Box::pin(std::future::ready(Ok(record)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        let records = self.shared.read().records.with_prefix(prefix);
        Box::pin(std::future::ready(Ok(records)))
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        Box::pin(self.write(transaction))
    }

    fn next_id(&self) -> Pending<'_, u64> {
        // Its own revision, kept on disk like any other, so that none is handed out again.
        Box::pin(self.write(Transaction::default()))
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        Feed::follow(&self, revision)
    }

    fn release(&self) -> Pending<'_, ()> {
        Box::pin(self.order(Order::Release))
    }

    fn take_back(&self) -> Pending<'_, ()> {
        Box::pin(async { self.order(Order::TakeBack).await? })
    }

    fn status(&self) -> StoreStatus {
        let state = self.shared.read();
        StoreStatus { kind: "embedded", revision: state.revision, lost: state.lost.clone(), copied: None }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::super::Write;
    use super::*;

    fn put(key: &str, value: &'static str, ttl: Option<Duration>) -> Transaction {
        let write = Write::Put { key: key.into(), value: value.into(), ttl };
        Transaction { conditions: vec![], writes: vec![write] }
    }

    /// One process opens the file while the other still answers; if it ends, the first continues.
    #[tokio::test]
    async fn the_file_passes_to_another_process_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path()).unwrap();
        store.commit(put("routes/1", "{}", None)).await.unwrap();
        store.commit(put("routes/2", "{}", Some(Duration::from_millis(5)))).await.unwrap();
        assert!(Embedded::open(dir.path()).is_err(), "it is open");
        store.release().await.unwrap();
        assert_eq!(store.get("routes/1").await.unwrap().unwrap().value.as_ref(), b"{}");
        let refused = store.commit(put("routes/3", "{}", None)).await;
        assert!(refused.unwrap_err().to_string().contains("repeat the call"));
        let successor = Embedded::open(dir.path()).unwrap();
        assert!(store.take_back().await.is_err(), "the other one has it");
        drop(successor);
        store.take_back().await.unwrap();
        store.commit(put("routes/3", "{}", None)).await.unwrap();
        drop(store);
        let reopened = Embedded::open(dir.path()).unwrap();
        assert!(reopened.get("routes/3").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn everything_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/data");
        let store = Embedded::open(&place).unwrap();
        let first = store.commit(put("routes/1", "{}", None)).await.unwrap();
        let id = store.next_id().await.unwrap();
        let second = store.commit(put("routes/1", r#"{"a":1}"#, None)).await.unwrap();
        let before = store.load().await.unwrap();
        drop(store);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("store.redb"))), (0o700, 0o600));
        let store = Embedded::open(&place).unwrap();
        assert_eq!(store.load().await.unwrap(), before);
        let record = store.get("routes/1").await.unwrap().unwrap();
        assert_eq!((record.created, record.modified), (first, second));
        assert!(first < id && id < second && second < store.next_id().await.unwrap());
    }

    #[tokio::test]
    async fn a_time_to_live_goes_on_through_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path()).unwrap();
        store.commit(put("routes/1", "{}", Some(Duration::from_millis(1)))).await.unwrap();
        store.commit(put("routes/2", "{}", Some(Duration::from_millis(400)))).await.unwrap();
        store.commit(put("routes/3", "{}", Some(Duration::from_millis(400)))).await.unwrap();
        let last = store.commit(put("routes/3", "{}", None)).await.unwrap();
        drop(store);
        std::thread::sleep(Duration::from_millis(2));
        let store = Arc::new(Embedded::open(dir.path()).unwrap());
        let contents = store.load().await.unwrap();
        assert!(contents.revision >= last);
        assert!(contents.records.iter().all(|record| record.key != "routes/1"));
        let mut watch = Arc::clone(&store).watch(last);
        let limit = Duration::from_secs(5);
        while store.get("routes/2").await.unwrap().is_some() {
            tokio::time::timeout(limit, watch.recv()).await.unwrap().unwrap();
        }
        assert!(store.get("routes/3").await.unwrap().is_some());
    }

    #[test]
    fn unopenable_stores_have_a_reason_and_a_remedy() {
        let check = |dir: &Path, fragments: &[&str]| {
            let error = Embedded::open(dir).unwrap_err().to_string();
            for fragment in fragments {
                assert!(error.contains(fragment), "{error}: {fragment}");
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let open = Embedded::open(dir.path()).unwrap();
        check(dir.path(), &["store.redb is open in another process", "store.path"]);
        drop(open);
        let file = dir.path().join("store.redb");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, "this is not a database, but it is long enough to be taken for one").unwrap();
        check(dir.path(), &["store.redb is damaged", "move it away"]);
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        check(dir.path(), &["store.redb is damaged", "move it away"]);
        let flipped: Vec<u8> = whole.iter().map(|byte| byte ^ 0x10).collect();
        std::fs::write(&file, flipped).unwrap();
        check(dir.path(), &["store.redb is damaged", "move it away"]);
        std::fs::write(&file, "").unwrap();
        check(dir.path(), &["store.redb is empty", "restore it from a backup", "remove it"]);
        // Neither is anything behind a link opened, nor a pipe waited for.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(dir.path().join("other"), &whole).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &file).unwrap();
        check(dir.path(), &["store.redb: it is not a regular file", "store.path"]);
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap();
        check(dir.path(), &["store.redb: it is not a regular file"]);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        check(&dir.path().join("plain"), &["plain", "not a directory"]);
        // A half-made file of a former start is made again.
        std::fs::write(dir.path().join("store.redb.new"), "half").unwrap();
        drop(Embedded::open(dir.path()).unwrap());
        assert!(!dir.path().join("store.redb.new").exists());
    }
}
