//! The memory that the process holds: the allocator's, and that of its own code.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::{fs, io, ptr};

use rustix::mm::{Advice, madvise};

/// The bytes of memory that are this process's own: not those of files, which the system can take back. `status`
/// is the open `/proc/self/status`.
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

/// The lowest limit of memory that is set for this process's cgroup or one above it, in bytes; None if there is none.
pub fn cgroup_limit() -> Option<u64> {
    let memberships = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_limit_below(Path::new("/sys/fs/cgroup"), &memberships)
}

/// The memory of the machine in bytes; None if the system does not say.
pub fn machine_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

/// The same with cgroups mounted at `root`, in both versions.
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
        // Within a container its own group is the root of what is mounted, whatever the path says.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(mount.join(group).join(name)).ok();
            let limit = limit.and_then(|text| text.trim().parse().ok()).filter(|limit| *limit < UNLIMITED);
            lowest = limit.into_iter().chain(lowest).min();
        }
    }
    lowest
}

/// What version 1 says where no limit is set, in whole pages.
const UNLIMITED: u64 = 1 << 62;

/// Gives the system back what was freed and what the allocator keeps for its next use, in the pages
/// of this thread and in those that no thread uses.
///
/// The allocator does so by itself only while it works. A control thread that has read a large
/// configuration and then waits for the next one would keep several times what it needs. Takes a
/// system call for each stretch of memory: for a thread that no request waits for.
#[expect(unsafe_code)]
pub fn give_back() {
    // SAFETY: it takes no pointers and works on the calling thread's own heap. In a program with
    // another allocator that heap is empty.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// What the allocator tells of itself, as a text of JSON: what is allocated, mapped and used now and was at most, by
/// kinds of pages and sizes of blocks. None if it says nothing. In a program with another allocator it tells of nothing
/// that the program uses.
#[expect(unsafe_code)]
pub fn allocator_figures() -> Option<String> {
    // SAFETY: with a size of 0 and no buffer it makes a text of its own, which ends with a zero byte and is nobody
    // else's.
    let text = unsafe { libmimalloc_sys::mi_stats_get_json(0, ptr::null_mut()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: the text is not null, ends with a zero byte, and nobody writes it.
    let figures = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: it was made by this allocator and is not used after this.
    unsafe { libmimalloc_sys::mi_free(text.cast()) };
    Some(figures)
}

/// Takes the program's code and constants out of this process's memory; what is needed again comes back from
/// the system's cache of the file, some pages at a time. Returns the bytes that were mapped.
///
/// Most of what a start has run through is never run again: reading configurations, building tables,
/// handshakes with stores. To be called when that is over.
///
/// # Errors
/// Returns an error if `/proc` cannot be read or the system refuses.
#[expect(unsafe_code)]
pub fn release_code() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let mut released = 0;
    for (start, len) in unchanged(&fs::read_to_string("/proc/self/smaps")?, &program) {
        // SAFETY: the mapping is one of the program's own file, which stay where they are until the process
        // ends. It is not writable, and no page of it differs from the file, so that a page that is
        // read again has the content that it has now.
        unsafe { madvise(ptr::without_provenance_mut(start), len, Advice::LinuxDontNeed) }?;
        released += len;
    }
    Ok(released)
}

/// The private mappings of the file `program` that are not writable and have no page that differs from the
/// file, in the kernel's list of a process: their addresses and lengths. Those that hold relocated pointers
/// are made read-only after they were changed; these are left out.
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
    fn only_what_is_as_in_the_file_is_released() {
        assert_eq!(unchanged(SMAPS, Path::new("/bin/sigma")), [(0x1000, 0x2000), (0x3000, 0x5000)]);
        assert_eq!(unchanged(SMAPS, Path::new("/sigma")), []);
        assert_eq!(unchanged("1000 r--p\nx-y r-xp /bin/sigma\nAnonymous: 0 kB", Path::new("/bin/sigma")), []);
    }

    #[test]
    fn a_program_goes_on_without_its_code() {
        let make: [fn(i32) -> Box<dyn std::fmt::Display>; 2] =
            [|n| Box::new(n), |n| Box::new(format!("{n} times"))];
        for n in 0..3 {
            assert!(release_code().expect("own mappings") > 0);
            let texts = make.map(|make| make(n).to_string());
            assert_eq!(texts, [format!("{n}"), format!("{n} times")]);
        }
    }

    /// Set in the process of its own that counts memory.
    const ALONE: &str = "SIGMA_TEST_MEMORY_ALONE";

    /// The other tests free memory at the same time: a process of its own is counted.
    #[test]
    fn own_memory_grows_with_what_is_used() {
        if env::var_os(ALONE).is_none() {
            let mut alone = Command::new(env::current_exe().expect("a program"));
            alone.args(["--exact", "memory::tests::own_memory_grows_with_what_is_used"]);
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
    fn the_lowest_limit_of_cgroups_holds() {
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
    fn the_allocator_tells_of_itself() {
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
