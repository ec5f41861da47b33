//! A disk in memory, and manual threads: with both, a test can trigger any disk event at any time.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Poll, Waker};

use sigma_cache::disk_cache::port::{Disk, DiskThreads, FileId, Job, OpenFile, ScannedFile, Trouble};
use sigma_cache::disk_cache::{Bounds, Maintenance};
use sigma_cache::{DiskCache, Purge, Stored, Zone};
use sigma_http::Headers;
use sigma_plugin::BodySource;

type Content = Arc<Mutex<Vec<u8>>>;

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The content of the disk, for every mount.
#[derive(Debug, Default)]
pub(crate) struct Platter {
    pub(crate) files: BTreeMap<(FileId, bool), Content>,
    /// The capacity in bytes; 0 for no limit.
    pub(crate) capacity: u64,
    /// The error of all operations.
    pub(crate) fails: Option<ErrorKind>,
    /// Files cannot be opened.
    pub(crate) unreadable: bool,
    /// The writer dies after this number of steps; the last one is half done.
    pub(crate) steps_left: Option<usize>,
}

impl Platter {
    fn bytes(&self) -> u64 {
        self.files.values().map(|content| held(content).len() as u64).sum()
    }
}

/// A handle of a disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryDisk(pub(crate) Arc<Mutex<Platter>>);

impl MemoryDisk {
    pub(crate) fn platter(&self) -> MutexGuard<'_, Platter> {
        held(&self.0)
    }

    /// Returns the content of all complete files.
    pub(crate) fn contents(&self) -> Vec<Content> {
        let platter = self.platter();
        platter
            .files
            .iter()
            .filter(|((_, is_draft), _)| !is_draft)
            .map(|(_, content)| Arc::clone(content))
            .collect()
    }

    /// Counts a step. Returns an error if the disk fails, or the writer is dead; false if it dies in this step.
    fn step(&self) -> io::Result<bool> {
        let mut platter = self.platter();
        if let Some(kind) = platter.fails {
            return Err(Error::from(kind));
        }
        match &mut platter.steps_left {
            None => Ok(true),
            Some(0) => Err(Error::other("dead")),
            Some(left) => {
                *left -= 1;
                Ok(*left > 0)
            }
        }
    }
}

impl Disk for MemoryDisk {
    fn create(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>> {
        self.step()?;
        let content = Content::default();
        let known = self.platter().files.insert((id, true), Arc::clone(&content));
        assert!(known.is_none(), "a name is used once");
        Ok(Arc::new(MemoryFile { disk: self.clone(), content }))
    }

    fn open(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>> {
        self.step()?;
        if self.platter().unreadable {
            return Err(Error::other("unreadable"));
        }
        let content = self.platter().files.get(&(id, false)).cloned().ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile { disk: self.clone(), content }))
    }

    fn publish(&self, id: FileId) -> io::Result<()> {
        self.step()?;
        let mut platter = self.platter();
        let content = platter.files.remove(&(id, true)).ok_or(ErrorKind::NotFound)?;
        platter.files.insert((id, false), content);
        Ok(())
    }

    fn remove(&self, ScannedFile { id, is_draft }: ScannedFile) -> io::Result<()> {
        self.step()?;
        self.platter().files.remove(&(id, is_draft));
        Ok(())
    }

    fn parts(&self) -> usize {
        2
    }

    fn list(&self, part: usize) -> io::Result<Vec<ScannedFile>> {
        self.step()?;
        let all = self.platter();
        let ids = all.files.keys().map(|(id, is_draft)| ScannedFile { id: *id, is_draft: *is_draft });
        Ok(ids.filter(|found| found.id.0 % 2 == part as u128).collect())
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    content: Content,
}

impl OpenFile for MemoryFile {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.step()?;
        let content = held(&self.content);
        let rest = content.get(at as usize..).unwrap_or_default();
        let length = rest.len().min(bytes.len());
        bytes[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let lives = self.disk.step()?;
        let bytes = if lives { bytes } else { &bytes[..bytes.len() / 2] };
        let end = at as usize + bytes.len();
        let (capacity, taken) = {
            let platter = self.disk.platter();
            (platter.capacity, platter.bytes())
        };
        let mut content = held(&self.content);
        let more = end.saturating_sub(content.len()) as u64;
        if capacity > 0 && taken + more > capacity {
            return Err(ErrorKind::StorageFull.into());
        }
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }
}

/// Threads that run only on demand.
#[derive(Debug, Default)]
pub(crate) struct SlowThreads {
    jobs: Mutex<Jobs>,
    /// The reported problems.
    pub(crate) told: Mutex<Vec<Trouble>>,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    most: Option<usize>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").field("queue", &self.queue.len()).finish()
    }
}

impl SlowThreads {
    /// Runs one job; returns false without one.
    pub(crate) fn work_once(&self) -> bool {
        let job = held(&self.jobs).queue.pop_front();
        let is_there = job.is_some();
        if let Some(job) = job {
            job();
        }
        is_there
    }

    /// Runs all jobs.
    pub(crate) fn work(&self) {
        while self.work_once() {}
    }

    /// Sets the limit of waiting jobs.
    pub(crate) fn take_at_most(&self, most: usize) {
        held(&self.jobs).most = Some(most);
    }

    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut held(&self.told))
    }
}

impl DiskThreads for SlowThreads {
    fn offer(&self, job: Job) -> bool {
        let mut jobs = held(&self.jobs);
        let fits = jobs.most.is_none_or(|most| jobs.queue.len() < most);
        if fits {
            jobs.queue.push_back(job);
        }
        fits
    }

    fn give(&self, job: Job) {
        held(&self.jobs).queue.push_back(job);
    }

    fn tell(&self, trouble: Trouble, _: Option<&io::Error>) {
        held(&self.told).push(trouble);
    }
}

/// A process with a zone on a disk.
pub(crate) struct Process {
    pub(crate) disk: MemoryDisk,
    pub(crate) threads: Arc<SlowThreads>,
    pub(crate) disk_cache: Arc<DiskCache>,
    pub(crate) zone: Arc<Zone>,
    pub(crate) now: u64,
    maintenance: Maintenance,
}

pub(crate) const ROOMY: Bounds = Bounds { disk_bytes: 1 << 30, table_bytes: 16 << 20, inactive_s: 1 << 30 };

impl Process {
    /// Returns a process before its scan; `names` is a number that no other process on this disk had.
    pub(crate) fn begin(
        disk: &MemoryDisk,
        names: u64,
        bounds: Bounds,
        memory: u64,
        orders: &[Purge],
    ) -> Process {
        let threads = Arc::new(SlowThreads::default());
        let disk_cache = DiskCache::new(bounds, Arc::clone(&threads) as _);
        let zone = Arc::new(Zone::with_disk_cache(memory, Some(Arc::clone(&disk_cache))));
        disk_cache.open(Arc::new(disk.clone()), names, orders);
        Process {
            disk: disk.clone(),
            threads,
            disk_cache,
            zone,
            now: 1_000,
            maintenance: Maintenance::default(),
        }
    }

    /// Returns a process after its scan.
    pub(crate) fn start(disk: &MemoryDisk, names: u64, bounds: Bounds) -> Process {
        let mut process = Process::begin(disk, names, bounds, 4 << 20, &[]);
        process.look_through();
        process
    }

    pub(crate) fn look_through(&mut self) {
        while !self.disk_cache.is_known() {
            self.maintain();
        }
    }

    pub(crate) fn maintain(&mut self) {
        self.disk_cache.maintain(&mut self.maintenance, self.now);
    }

    /// Returns the response under a key, in memory or on the disk.
    pub(crate) fn get(&self, key: &[u8], request: &Headers) -> Option<Arc<Stored>> {
        let known = self.zone.find(key, request);
        if known.is_some() {
            return known;
        }
        let mut fetch = self.zone.fetch(key, request, self.now)?;
        self.threads.work();
        let mut task = Task::from_waker(Waker::noop());
        match std::pin::Pin::new(&mut fetch).poll(&mut task) {
            Poll::Ready(stored) => stored,
            Poll::Pending => panic!("nobody reads it"),
        }
    }

    /// Returns its body; the error has the bytes before a failure.
    pub(crate) fn body(&self, stored: &Stored) -> Result<Vec<u8>, Vec<u8>> {
        self.part(stored, 0, stored.body.length())
    }

    pub(crate) fn part(&self, stored: &Stored, start: u64, length: u64) -> Result<Vec<u8>, Vec<u8>> {
        let (mut all, mut task) = (Vec::new(), Task::from_waker(Waker::noop()));
        let mut reader = stored.body.read(start, length);
        loop {
            match reader.poll_piece(&mut task) {
                Poll::Ready(Ok(Some(piece))) => all.extend_from_slice(&piece),
                Poll::Ready(Ok(None)) => return Ok(all),
                Poll::Ready(Err(_)) => return Err(all),
                Poll::Pending => assert!(self.threads.work_once(), "nobody reads it"),
            }
        }
    }
}
