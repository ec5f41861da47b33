//! Disks of caches: the folders and threads that the disk caches of `sigma-cache` need.
//!
//! A zone on a disk is opened when the configuration first names it. One thread tends it: it waits for the
//! folder, which another process may have, and for the orders to purge that this gateway has missed; then it
//! scans the folder in parallel with the traffic.

mod folder;
mod threads;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sigma_cache::disk_cache::{Bounds, Maintenance};
use sigma_cache::{DiskCache, Purge, Zones};
use sigma_config::settings::Settings;
use sigma_plugin::Node;
use sigma_plugin::cache::{CacheDisk, CacheDisks};
use tokio::sync::{mpsc, oneshot};

use folder::Folder;
use threads::Pool;

/// How often a folder is looked at that another process has: the one whose place this one takes leaves it at any moment.
const LOOK: Duration = Duration::from_millis(100);

/// For how long it is not logged that another process has it: at an upgrade that is normal.
const LATE: Duration = Duration::from_secs(3);

/// How often it is said that all orders are known. A gateway that was away for less than the orders last, and this,
/// has missed none.
pub(crate) const STAMP_PERIOD: Duration = Duration::from_secs(30);

/// How long pending writes are awaited at the end of the process.
const LAST_WRITES: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(10);

/// Folders that wait to be admitted.
const ASKING: usize = 64;

/// A folder may be used once missed orders to purge are known.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Since when its orders are not known, in seconds since 1970; None if it is unknown.
    pub(crate) since: Option<u64>,
    pub(crate) reply: oneshot::Sender<Vec<Purge>>,
}

/// The disks of a process.
#[derive(Debug)]
pub(crate) struct Disks {
    admissions: mpsc::Sender<Admission>,
    /// This gateway knows of all orders.
    is_in_touch: Arc<AtomicBool>,
    pools: Mutex<Vec<Arc<Pool>>>,
}

/// Folders that wait for admission, and whether this gateway knows all orders.
pub(crate) struct Asking {
    pub(crate) admissions: mpsc::Receiver<Admission>,
    pub(crate) is_in_touch: Arc<AtomicBool>,
}

impl Disks {
    /// Opens zones on disks as they are named; the zone of routes with a `cache` at once, if it has one.
    pub(crate) fn begin(node: &Arc<Node>, settings: &Settings) -> Asking {
        let (sender, admissions) = mpsc::channel(ASKING);
        let is_in_touch = Arc::new(AtomicBool::new(true));
        let disks = Arc::new(Disks {
            admissions: sender,
            is_in_touch: Arc::clone(&is_in_touch),
            pools: Mutex::default(),
        });
        let zones = node.part(Zones::default);
        let (own, of_zones) = (Arc::clone(&disks), Arc::downgrade(&zones));
        zones.make_disk_caches_by(move |name, bytes, disk| {
            let orders = of_zones.upgrade().map(|zones| zones.orders_for(name)).unwrap_or_default();
            own.disk_cache(name, bytes, disk, orders)
        });
        let wanted = Arc::clone(&zones);
        node.part(CacheDisks::default).open_by(move |rule| {
            drop(wanted.zone(&rule.zone, rule.zone_bytes, rule.disk.as_ref()));
        });
        if let Some(disk) = &settings.cache.disk {
            zones.zone("", settings.cache.memory_bytes, Some(&sigma_proxy::cache_disk(disk)));
        }
        node.at_end(async move { disks.finish().await });
        Asking { admissions, is_in_touch }
    }

    fn disk_cache(&self, zone: &str, bytes: u64, disk: &CacheDisk, orders: Vec<Purge>) -> Arc<DiskCache> {
        let zone = if zone.is_empty() { "routes" } else { zone };
        let pool = Pool::start(zone);
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pool));
        let bounds = Bounds { disk_bytes: disk.bytes, table_bytes: bytes, inactive_s: disk.inactive_s };
        let disk_cache = DiskCache::new(bounds, pool);
        let keeper = Keeper {
            zone: zone.to_owned(),
            disk: disk.clone(),
            disk_cache: Arc::clone(&disk_cache),
            admissions: self.admissions.clone(),
            is_in_touch: Arc::clone(&self.is_in_touch),
        };
        let thread = std::thread::Builder::new().name("sigma-shelf".to_owned());
        if let Err(error) = thread.spawn(move || keeper.keep(orders)) {
            tracing::error!(zone, %error, "a cache zone uses memory only: cannot start its thread");
        }
        disk_cache
    }

    /// Waits a while for pending writes.
    async fn finish(&self) {
        let is_idle =
            || self.pools.lock().unwrap_or_else(PoisonError::into_inner).iter().all(|pool| pool.is_idle());
        let idle = async {
            while !is_idle() {
                tokio::time::sleep(LAST_LOOK).await;
            }
        };
        // Unfinished writes are fetched again later.
        let _ = tokio::time::timeout(LAST_WRITES, idle).await;
    }
}

/// The keeper of one disk cache.
struct Keeper {
    zone: String,
    disk: CacheDisk,
    disk_cache: Arc<DiskCache>,
    admissions: mpsc::Sender<Admission>,
    is_in_touch: Arc<AtomicBool>,
}

impl Keeper {
    fn keep(self, mut orders: Vec<Purge>) {
        let Some(folder) = self.folder() else { return self.disk_cache.give_up() };
        let (reply, missed) = oneshot::channel();
        let admission = Admission { since: folder.stamp(), reply };
        let missed = self.admissions.blocking_send(admission).ok().and_then(|()| missed.blocking_recv().ok());
        // Without a response the process ends.
        let Some(missed) = missed else { return };
        orders.extend(missed);
        let folder = Arc::new(folder);
        self.disk_cache.open(Arc::clone(&folder) as _, names(), &orders);
        drop(orders);
        // The disk cache lets it go when another process is to have it.
        let stamps = Arc::downgrade(&folder);
        drop(folder);
        let (mut maintenance, mut is_known, mut stamped) = (Maintenance::default(), false, 0);
        while self.disk_cache.is_open() {
            let now = unix_s();
            let pause = self.disk_cache.maintain(&mut maintenance, now);
            if !is_known && self.disk_cache.is_known() {
                is_known = true;
                let (answers, bytes) = (self.disk_cache.entries(), self.disk_cache.bytes());
                tracing::info!(zone = self.zone, answers, bytes, "the scan of a disk cache is complete");
            }
            let is_due = now.abs_diff(stamped) >= STAMP_PERIOD.as_secs();
            if is_due && self.is_in_touch.load(Ordering::Acquire) {
                stamped = now;
                let written = stamps.upgrade().map(|folder| folder.set_stamp(now));
                if let Some(Err(error)) = written {
                    tracing::debug!(zone = self.zone, %error, "cannot update the stamp of a disk cache");
                }
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
    }

    /// The folder, as soon as no other process has it; None if it cannot be used, or is a successor's to take.
    fn folder(&self) -> Option<Folder> {
        let (zone, path) = (&self.zone, &self.disk.path);
        let (began, mut is_told) = (Instant::now(), false);
        while !self.disk_cache.is_left() {
            match Folder::take(path, &self.disk.levels) {
                Ok(Some(folder)) => return Some(folder),
                Ok(None) if is_told || began.elapsed() < LATE => {}
                Ok(None) => {
                    is_told = true;
                    let path = path.display();
                    tracing::warn!(zone, %path, "another process uses the folder of a disk cache: the cache uses memory only until that process ends");
                }
                Err(error) => {
                    let path = Path::display(path);
                    tracing::error!(zone, %path, %error, "cannot use the folder of a disk cache: the cache uses memory only");
                    return None;
                }
            }
            std::thread::sleep(LOOK);
        }
        None
    }
}

/// Returns the prefix of the names of this process's files. It differs from the prefix of other processes.
fn names() -> u64 {
    fastrand::u64(..)
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
