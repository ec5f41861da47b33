//! Another program in the place of this one, in the same process.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

/// Executes the program at `path` in the place of this one, with these arguments, whose first is the path, and nothing
/// but this environment. Descriptors that close on exec are closed; what else the process has stays as it is, the signals
/// that it holds back and those that are pending included. The other threads end wherever they are.
///
/// Returns only if that cannot be. Nothing has changed then: other than by [`std::process::Command`], no signal is
/// set and no folder entered before.
pub fn replace(path: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    match strings(path, arguments, environment) {
        Ok((path, arguments, environment)) => execute(&path, &arguments, &environment),
        Err(error) => error.into(),
    }
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
    // SAFETY: path, arguments and environment end with a zero each, and the lists of pointers with a null; all of them
    // live until after the call, which only reads them.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_cannot_be_executed_is_told() {
        let none = replace(Path::new("/no/such/program"), &[], &[]);
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert_eq!(replace(Path::new("/bin/\0sh"), &[], &[]).kind(), io::ErrorKind::InvalidInput);
        assert_eq!(replace(Path::new("/bin/sh"), &["a\0b".into()], &[]).kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    #[expect(unsafe_code)]
    fn a_program_takes_the_place() {
        let mut command = Command::new("/bin/true");
        // SAFETY: the child has one thread, which allocates; the allocator is made for that (`pthread_atfork`).
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
