//! The outcome of orders (`sigma reload`, `sigma upgrade`): a file in memory without a name, which the process passes to
//! callers over a socket. `/proc` does not show it: the descriptors of a process that is not dumpable are hidden there,
//! even from its own user.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;

/// The name of the file, which `/proc/PID/fd` shows.
const NAME: &str = "sigma-reload";

/// The longest wait of a command for the file: the process has nothing else to do on that socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// The stack of the thread that passes the file.
const STACK: usize = 128 << 10;

/// The outcome of the last order, as the process writes it.
pub(crate) struct Outcome {
    file: File,
    orders: u64,
}

impl Outcome {
    /// None where the system has no such files; the commands then report that the result is unknown.
    pub(crate) fn new() -> Option<Outcome> {
        let fd: OwnedFd = memfd_create(NAME, MemfdFlags::CLOEXEC).ok()?;
        let mut outcome = Outcome { file: File::from(fd), orders: 0 };
        outcome.write(Ok(""));
        outcome.pass();
        Some(outcome)
    }

    /// The one that another program has written before, in the same process.
    pub(crate) fn over(fd: OwnedFd) -> Outcome {
        let outcomes = Outcomes(File::from(fd));
        let orders = outcomes.last().map_or(0, |last| last.orders);
        let outcome = Outcome { file: outcomes.0, orders };
        outcome.pass();
        outcome
    }

    /// Begins to pass the file to callers. Without a socket the error log alone has the outcome.
    fn pass(&self) {
        let pass = || {
            // Opened again, to be read only.
            let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
            let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
            let thread = std::thread::Builder::new().name("sigma-outcome".into()).stack_size(STACK);
            thread.spawn(move || pass_to_callers(&listener, &file)).map(drop)
        };
        if let Err(error) = pass() {
            tracing::debug!(%error, "cannot publish the outcome of reloads for `sigma reload`");
        }
    }

    pub(crate) fn tell(&mut self, result: Result<&str, &str>) {
        self.orders += 1;
        self.write(result);
    }

    /// In one write, so that a reader sees the whole of it: the number, the problem, and an end mark; then the number,
    /// the note, and an end mark, which earlier versions neither write nor read.
    fn write(&mut self, result: Result<&str, &str>) {
        let (orders, note, problem) =
            (self.orders, result.unwrap_or_default(), result.err().unwrap_or_default());
        let text = format!("{orders}\n{problem}\0{orders}\n{note}\0");
        // A file in memory: writing fails only if the memory is full.
        let _ = self.file.write_all_at(text.as_bytes(), 0).and_then(|()| self.file.flush());
    }
}

impl AsFd for Outcome {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The abstract socket of a process. Another process may have taken the name: so both ends check the other's identity.
fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("sigma-outcome-{pid}"))
}

/// Root and the user of this process get the file, as they may send it signals.
fn pass_to_callers(listener: &UnixListener, file: &File) {
    for caller in listener.incoming() {
        let Ok(caller) = caller else {
            // Out of descriptors, most likely.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let may = |user: rustix::fs::Uid| user.is_root() || user == geteuid();
        if socket_peercred(&caller).is_ok_and(|peer| may(peer.uid)) {
            // A caller that has gone wants nothing.
            let _ = send(&caller, file.as_fd());
        }
    }
}

fn send(to: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &[IoSlice::new(b"1")], &mut control, flags)?;
    Ok(())
}

/// The outcome of the last order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// How many orders there were.
    pub(crate) orders: u64,
    /// A note on the changes, empty from an earlier version; or the problem.
    pub(crate) result: Result<String, String>,
}

/// The outcomes of orders of a process. They can be read on when the process has ended.
pub(crate) struct Outcomes(File);

impl Outcomes {
    /// None if the process does not give one to this user, or does not exist.
    pub(crate) fn of(pid: i32) -> Option<Outcomes> {
        received(pid).or_else(|| in_proc(pid)).map(Outcomes)
    }

    /// None if there is no outcome to be read.
    pub(crate) fn last(&self) -> Option<Last> {
        let mut text = vec![0; usize::try_from(self.0.metadata().ok()?.len()).ok()?];
        self.0.read_exact_at(&mut text, 0).ok()?;
        let mut parts = text.split(|byte| *byte == 0).map(|part| {
            let (orders, text) = std::str::from_utf8(part).ok()?.split_once('\n')?;
            Some((orders.parse::<u64>().ok()?, text))
        });
        let (orders, problem) = parts.next()??;
        if !problem.is_empty() {
            return Some(Last { orders, result: Err(problem.to_owned()) });
        }
        // After the problem an earlier version leaves the rest of a longer one.
        let note = parts.next().flatten().filter(|(of, _)| *of == orders);
        Some(Last { orders, result: Ok(note.map(|(_, note)| note.to_owned()).unwrap_or_default()) })
    }
}

/// The file that the process passes.
fn received(pid: i32) -> Option<File> {
    let socket = UnixStream::connect_addr(&address(u32::try_from(pid).ok()?).ok()?).ok()?;
    if socket_peercred(&socket).ok()?.pid.as_raw_nonzero().get() != pid {
        return None;
    }
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let files = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files?.next().map(File::from)
}

/// The file as an older version shows it, which is dumpable.
fn in_proc(pid: i32) -> Option<File> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let mut entries = std::fs::read_dir(folder).ok()?.flatten();
    let is_it = |name: PathBuf| name.to_string_lossy().starts_with(&format!("/memfd:{NAME}"));
    let entry = entries.find(|entry| std::fs::read_link(entry.path()).is_ok_and(is_it))?;
    File::open(entry.path()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: the process has one socket.
    #[test]
    fn another_process_reads_the_outcome() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut outcome = Outcome::new().unwrap();
        let outcomes = Outcomes(received(own).unwrap());
        let check = |orders: u64, result: Result<&str, &str>| {
            let result = result.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(outcomes.last(), Some(Last { orders, result }));
        };
        check(0, Ok(""));
        let problem = "line 1: a long problem\nand another";
        outcome.tell(Err(problem));
        check(1, Err(problem));
        outcome.tell(Ok("reloaded; needs a restart: workers"));
        check(2, Ok("reloaded; needs a restart: workers"));
        outcome.tell(Err("the last"));
        let mut outcome = Outcome::over(outcome.file.into());
        check(3, Err("the last"));
        outcome.tell(Ok("another program writes into it"));
        check(4, Ok("another program writes into it"));
        // As an earlier version does.
        outcome.file.write_all_at(b"5\n\0", 0).unwrap();
        check(5, Ok(""));
        outcome.orders = 5;
        outcome.tell(Err("the last"));
        drop(outcome);
        check(6, Err("the last"));
        assert!(outcomes.0.write_at(b"6", 0).is_err(), "callers only read");
        let old = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        assert!(in_proc(own).is_some(), "an older version shows it in /proc");
        drop(old);
        assert!(received(1).is_none(), "another process passes nothing");
    }
}
