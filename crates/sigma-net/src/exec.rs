//! Replaces the program of this process (re-exec).

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Replaces this program with the one at `path`, with these arguments, the first of which is the path, and only this
/// environment. Descriptors with close-on-exec are closed. The rest of the process stays, including blocked and
/// pending signals. All other threads end.
///
/// Returns only on failure. Then nothing has changed: unlike [`std::process::Command`], it sets no signals and
/// changes no directory before.
pub fn replace(path: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    match strings(path, arguments, environment) {
        Ok((path, arguments, environment)) => execute(&path, &arguments, &environment),
        Err(error) => error.into(),
    }
}

/// Makes a program end by SIGTERM when the thread that starts it ends, even if that thread is killed.
#[expect(unsafe_code)]
pub fn end_with_starter(command: &mut Command) {
    let prepare = || set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from);
    // SAFETY: between fork and exec it makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
}

type Strings = (CString, Vec<CString>, Vec<CString>);

fn strings(
    path: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<Strings, std::ffi::NulError> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut all = vec![path.clone()];
    for argument in arguments {
        all.push(CString::new(argument.as_bytes())?);
    }
    let pair = |(name, value): &(OsString, OsString)| {
        let mut text = name.clone();
        text.push("=");
        text.push(value);
        CString::new(text.into_vec())
    };
    Ok((path, all, environment.iter().map(pair).collect::<Result<_, _>>()?))
}

#[expect(unsafe_code)]
fn execute(path: &CString, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<_> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: path, arguments and environment end with a zero each, and the pointer lists with a null; all of them
    // live until after the call, which only reads them.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_with_the_thread_that_starts_it() {
        let started = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_starter(command.arg("600"));
            command.spawn().unwrap()
        });
        let status = started.join().unwrap().wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn a_failed_exec_is_reported() {
        let none = replace(Path::new("/no/such/program"), &[], &[]);
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert_eq!(replace(Path::new("/bin/\0sh"), &[], &[]).kind(), io::ErrorKind::InvalidInput);
        assert_eq!(replace(Path::new("/bin/sh"), &["a\0b".into()], &[]).kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    #[expect(unsafe_code)]
    fn a_program_replaces_another() {
        let mut command = Command::new("/bin/true");
        // SAFETY: the child has one thread, which allocates; the allocator supports that (`pthread_atfork`).
        unsafe {
            command.pre_exec(|| {
                let arguments = ["-c".into(), "echo \"$$ $0 $GREETING $HOME\"".into(), "me".into()];
                Err(replace(Path::new("/bin/sh"), &arguments, &[("GREETING".into(), "hello".into())]))
            });
        }
        let output = command.env("HOME", "/nowhere").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with(" me hello \n"), "{said}");
    }
}
