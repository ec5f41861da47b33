//! The memory of the process: the allocator's, and the pages of its code.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::{fs, io, ptr};

use rustix::mm::{Advice, madvise};

/// Returns the private memory of this process in bytes, without file pages, which the system can reclaim. `status` is
/// the open `/proc/self/status`.
///
/// # Errors
/// Returns an error if it cannot be read.
pub fn own_bytes(status: &mut File) -> io::Result<u64> {
    let mut text = String::new();
    status.read_to_string(&mut text)?;
    let of_own = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = of_own.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map(|kibibytes| kibibytes.saturating_mul(1024)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the lowest memory limit of this process's cgroup and the groups above it, in bytes; None without a limit.
pub fn cgroup_limit() -> Option<u64> {
    let memberships = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_limit_below(Path::new("/sys/fs/cgroup"), &memberships)
}

/// Returns the memory of the machine in bytes; None if unknown.
pub fn machine_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

/// Returns the same with cgroups mounted at `root`, in both versions.
fn cgroup_limit_below(root: &Path, memberships: &str) -> Option<u64> {
    let mut lowest = None;
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container its own group is the root of the mount, for any path.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(mount.join(group).join(name)).ok();
            let limit = limit.and_then(|text| text.trim().parse().ok()).filter(|limit| *limit < UNLIMITED);
            lowest = limit.into_iter().chain(lowest).min();
        }
    }
    lowest
}

/// The value of version 1 for no limit, in whole pages.
const UNLIMITED: u64 = 1 << 62;

/// Returns freed memory and the allocator's reserve to the system, for pages of this thread and of no thread.
///
/// The allocator does so by itself only while it works. A control thread that has read a large configuration and then
/// waits for the next one would keep several times its need. It costs a system call for each range: for a thread that
/// no request waits for.
#[expect(unsafe_code)]
pub fn give_back() {
    // SAFETY: it takes no pointers and works on the calling thread's own heap. In a program with another allocator
    // that heap is empty.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// The largest statistics in bytes; they had some 10 KiB.
const MOST_FIGURES: usize = 256 << 10;

/// Returns the allocator's statistics as JSON: allocated, mapped and used bytes now and at peak, by kinds of pages
/// and sizes of blocks. None without statistics. In a program with another allocator they do not cover its memory.
#[expect(unsafe_code)]
pub fn allocator_figures() -> Option<String> {
    let mut text = vec![0_u8; MOST_FIGURES];
    // SAFETY: it writes at most as many bytes as the buffer has, and keeps no pointer to it.
    let written = unsafe { libmimalloc_sys::mi_stats_get_json(text.len(), text.as_mut_ptr().cast()) };
    if written.is_null() {
        return None;
    }
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
}

/// The allocator of the program. With the feature `profiles` its allocations can be sampled.
#[cfg(feature = "profiles")]
pub type Allocator<A> = crate::allocations::Sampled<A>;
/// The allocator of the program.
#[cfg(not(feature = "profiles"))]
pub type Allocator<A> = A;

/// Returns the allocator for `#[global_allocator]`; `inner` does all the work.
#[cfg(feature = "profiles")]
pub const fn allocator<A>(inner: A) -> Allocator<A> {
    crate::allocations::Sampled::new(inner)
}

/// Returns the allocator for `#[global_allocator]`: `inner` itself.
#[cfg(not(feature = "profiles"))]
pub const fn allocator<A>(inner: A) -> Allocator<A> {
    inner
}

/// Removes the program's code and constants from this process's memory; needed pages come back from the page cache, a
/// few at a time. Returns the number of bytes that were mapped.
///
/// Most code of a start never runs again: reading configurations, building tables, handshakes with stores. Call it
/// after the start.
///
/// # Errors
/// Returns an error if `/proc` cannot be read or the system refuses.
#[expect(unsafe_code)]
pub fn release_code() -> io::Result<usize> {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_entered() {
        return Ok(0);
    }
    let program = fs::read_link("/proc/self/exe")?;
    let mut released = 0;
    for (start, len) in unchanged(&fs::read_to_string("/proc/self/smaps")?, &program) {
        // SAFETY: the mapping is one of the program's own file, which stays in place until the process ends. It is
        // not writable, and no page differs from the file, so a page that is read again has the same content.
        unsafe { madvise(ptr::without_provenance_mut(start), len, Advice::LinuxDontNeed) }?;
        released += len;
    }
    Ok(released)
}

/// Returns the private, read-only mappings of the file `program` without changed pages, from the kernel's list of a
/// process: addresses and lengths. Mappings with relocated pointers became read-only after their change; they are
/// omitted.
fn unchanged(smaps: &str, program: &Path) -> Vec<(usize, usize)> {
    let Some(program) = program.to_str().map(|path| format!(" {path}")) else { return Vec::new() };
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(first) = fields.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let rights = fields.next().unwrap_or_default();
            let range = usize::from_str_radix(start, 16).ok().zip(usize::from_str_radix(end, 16).ok());
            candidate = range.filter(|_| line.ends_with(&program) && matches!(rights, "r-xp" | "r--p"));
        } else if first == "Anonymous:" && fields.next() == Some("0") {
            found.extend(candidate.take().map(|(start, end)| (start, end - start)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    const SMAPS: &str = "\
1000-3000 r--p 00000000 fe:00 77 /bin/sigma
Rss:                   8 kB
Anonymous:             0 kB
3000-8000 r-xp 00002000 fe:00 77 /bin/sigma
Anonymous:             0 kB
8000-9000 r--p 00007000 fe:00 77 /bin/sigma
Anonymous:             4 kB
9000-a000 rw-p 00008000 fe:00 77 /bin/sigma
Anonymous:             0 kB
b000-c000 r-xp 00000000 fe:00 78 /lib/libc.so
Anonymous:             0 kB
d000-e000 r--p 00000000 00:00 0
Anonymous:             0 kB
";

    #[test]
    fn only_unchanged_pages_are_released() {
        assert_eq!(unchanged(SMAPS, Path::new("/bin/sigma")), [(0x1000, 0x2000), (0x3000, 0x5000)]);
        assert_eq!(unchanged(SMAPS, Path::new("/sigma")), []);
        assert_eq!(unchanged("1000 r--p\nx-y r-xp /bin/sigma\nAnonymous: 0 kB", Path::new("/bin/sigma")), []);
    }

    #[test]
    fn a_program_continues_without_its_code() {
        let make: [fn(i32) -> Box<dyn std::fmt::Display>; 2] =
            [|n| Box::new(n), |n| Box::new(format!("{n} times"))];
        for n in 0..3 {
            assert!(release_code().expect("own mappings") > 0);
            let texts = make.map(|make| make(n).to_string());
            assert_eq!(texts, [format!("{n}"), format!("{n} times")]);
        }
    }

    /// Set in the separate process that counts memory.
    const ALONE: &str = "SIGMA_TEST_MEMORY_ALONE";

    /// Other tests free memory at the same time: so a separate process is measured.
    #[test]
    fn own_memory_grows_with_use() {
        if env::var_os(ALONE).is_none() {
            let mut alone = Command::new(env::current_exe().expect("a program"));
            alone.args(["--exact", "memory::tests::own_memory_grows_with_use"]);
            let ended = alone.env(ALONE, "1").output().expect("a process");
            let output = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        let bytes = || own_bytes(&mut File::open("/proc/self/status").expect("proc")).expect("numbers");
        let before = bytes();
        let held = vec![1_u8; 64 << 20];
        assert!(bytes() >= before + (48 << 20), "{before}");
        assert!(held.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn the_lowest_cgroup_limit_applies() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let limit = |memberships| cgroup_limit_below(dir.path(), memberships);
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "2000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(2_000));
        write("memory.max", "1000\n");
        assert_eq!(limit("0::/elsewhere\n"), Some(1_000));
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/x/memory.limit_in_bytes", "500\n");
        assert_eq!(limit("9:cpu,memory:/x\n1:name=systemd:/\n"), Some(500));
        assert_eq!(limit("9:cpu,memory:/y\n"), None);
        assert_eq!(limit("nonsense\n::\n"), Some(1_000));
    }

    #[test]
    fn the_allocator_returns_statistics() {
        let figures = allocator_figures().expect("a text");
        assert!(figures.starts_with('{') && figures.trim_end().ends_with('}'), "{figures}");
    }

    #[test]
    fn can_be_called_with_any_allocator() {
        let held = vec![1_u8; 1 << 20];
        super::give_back();
        assert!(held.iter().all(|byte| *byte == 1));
    }
}
