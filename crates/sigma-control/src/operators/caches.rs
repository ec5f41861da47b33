//! Metrics of caches, and of the disks that they are on.

use std::sync::atomic::{AtomicU64, Ordering};

use sigma_cache::disk_cache::Counts;
use sigma_cache::{DiskCache, Zones};
use sigma_plugin::facts::Measure;

/// A metric of a disk: name, help, and its number.
type Count = (&'static str, &'static str, fn(&Counts) -> &AtomicU64);

const COUNTS: [Count; 8] = [
    ("cache_disk_written_total", "Answers that were written to a disk", |counts| &counts.written),
    ("cache_disk_read_total", "Answers that were read from it", |counts| &counts.read),
    ("cache_disk_evicted_total", "Answers that made room for others", |counts| &counts.evicted),
    ("cache_disk_inactive_total", "Unused answers that were removed", |counts| &counts.inactive),
    ("cache_disk_found_total", "Answers that were there at the start", |counts| &counts.found),
    ("cache_disk_corrupt_total", "Answers that were not as they were written", |counts| &counts.corrupt),
    ("cache_disk_failures_total", "Failed reads and writes of the disk", |counts| &counts.failed),
    ("cache_disk_left_out_total", "Writes left out because the disk was slow", |counts| &counts.left_out),
];

/// The metrics of these zones.
pub(super) fn measures(zones: &Zones) -> Vec<Measure> {
    let zones = zones.all();
    let labels = |name: &str| vec![("zone", name.to_owned())];
    let of_zones = zones.iter().map(|(name, zone)| (labels(name), zone.held_bytes())).collect();
    let of_disks = |number: &dyn Fn(&DiskCache) -> u64| -> Vec<_> {
        let disk_caches = zones.iter().filter_map(|(name, zone)| Some((name, zone.disk_cache()?)));
        disk_caches.map(|(name, disk_cache)| (labels(name), number(disk_cache))).collect()
    };
    let gauge = |name, help, series| Measure { name, help, is_counter: false, series };
    let mut all = vec![
        gauge("cache_memory_bytes", "Memory that kept answers take, about", of_zones),
        gauge("cache_disk_bytes", "Disk space that kept answers take", of_disks(&DiskCache::bytes)),
        gauge("cache_disk_answers", "How many are there", of_disks(&DiskCache::entries)),
        gauge(
            "cache_disk_ready",
            "Whether all that was there at the start is known",
            of_disks(&|disk_cache| (disk_cache.is_open() && disk_cache.is_known()).into()),
        ),
    ];
    all.extend(COUNTS.map(|(name, help, count)| {
        let series = of_disks(&|disk_cache| count(disk_cache.counts()).load(Ordering::Relaxed));
        Measure { name, help, is_counter: true, series }
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::measures::text;

    #[test]
    fn zones_without_a_disk_have_no_series_of_one() {
        let zones = Zones::default();
        assert_eq!(text(&measures(&zones)), "");
        zones.zone("a", 1 << 20, None);
        assert_eq!(
            text(&measures(&zones)),
            "# TYPE sigma_cache_memory_bytes gauge\nsigma_cache_memory_bytes{zone=\"a\"} 0\n"
        );
    }
}
