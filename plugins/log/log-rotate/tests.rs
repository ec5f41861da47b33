//! Times of rotation, and the resulting files.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::*;

/// 2000-02-29, 12:34:56.
const NOW: u64 = 951_827_696;

fn rotor(settings: Settings) -> Rotor {
    Rotor::new(settings, NOW)
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn times_are_multiples_of_the_interval() {
    assert_eq!(after(7199, 3600), 7200);
    assert_eq!(after(7200, 3600), 10_800);
    assert_eq!(after(1, u64::MAX), u64::MAX);
}

#[test]
fn files_are_renamed_when_it_is_time() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["error.log", "access.log"].map(|name| dir.path().join(name));
    fs::write(&files[1], "a").unwrap();
    let mut rotor = rotor(Settings::default());
    let hour = NOW - NOW % 3600 + 3600;
    assert!(!rotor.look(&files, hour - 1));
    // One that is missing does not keep the other.
    assert!(rotor.look(&files, hour));
    assert_eq!(names(dir.path()), ["2000-02-29_13-00-00__access.log"]);
    fs::write(&files[1], "b").unwrap();
    assert!(!rotor.look(&files, hour + 3599), "once for each time");
    assert!(rotor.look(&files, hour + 3601), "late is better than never");
    assert_eq!(names(dir.path()), ["2000-02-29_13-00-00__access.log", "2000-02-29_14-00-01__access.log"]);
}

#[test]
fn a_file_is_rotated_when_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["error.log", "access.log"].map(|name| dir.path().join(name));
    files.iter().for_each(|file| fs::write(file, "12").unwrap());
    let mut rotor = rotor(Settings { max_size: 3, ..Settings::default() });
    assert!(!rotor.look(&files, NOW));
    fs::write(&files[0], "123").unwrap();
    assert!(rotor.look(&files, NOW));
    assert_eq!(names(dir.path()), ["2000-02-29_12-34-56__error.log", "access.log"]);
    fs::write(&files[0], "456").unwrap();
    assert!(!rotor.look(&files, NOW), "what has the name is kept");
    assert_eq!(fs::read_to_string(dir.path().join("2000-02-29_12-34-56__error.log")).unwrap(), "123");
}

#[test]
fn as_many_are_kept_as_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.log");
    let others = ["x__access.log", "2000-01-01_00-00-00__error.log", "2000-01-01_00-00-00__old_access.log"];
    let old = ["1999-01-01_00-00-00__access.log", "1999-01-02_00-00-00__access.log.tar.gz"];
    for name in others.iter().chain(&old) {
        fs::write(dir.path().join(name), "").unwrap();
    }
    fs::write(&file, "123").unwrap();
    let mut rotor = rotor(Settings { max_size: 1, max_kept: 2, ..Settings::default() });
    assert!(rotor.look(&[file], NOW));
    let mut expected = vec![old[1], "2000-02-29_12-34-56__access.log"];
    expected.extend(others);
    expected.sort_unstable();
    assert_eq!(names(dir.path()), expected);
}

/// A line that comes while a writer still has the old file is in the archive.
#[test]
fn a_file_without_writers_is_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
    file.write_all(b"first\n").unwrap();
    let mut rotor = rotor(Settings { max_size: 1, enable_compression: true, ..Settings::default() });
    let files = [path.clone()];
    assert!(rotor.look(&files, NOW));
    let _reader = fs::File::open(dir.path().join("2000-02-29_12-34-56__access.log")).unwrap();
    rotor.look(&files, NOW + 1);
    assert_eq!(names(dir.path()), ["2000-02-29_12-34-56__access.log"]);
    let long = "second\n".repeat(100);
    file.write_all(long.as_bytes()).unwrap();
    drop(file);
    rotor.look(&files, NOW + 2);
    assert_eq!(names(dir.path()), ["2000-02-29_12-34-56__access.log.tar.gz"]);
    let tar =
        Command::new("tar").args(["-xzOf"]).arg(dir.path().join(&names(dir.path())[0])).output().unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
    assert_eq!(String::from_utf8(tar.stdout).unwrap(), format!("first\n{long}"));
    fs::write(&path, "1").unwrap();
    assert!(!rotor.look(&files, NOW), "an archive has the name, too");
}

#[test]
fn a_slow_compression_leaves_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
    let rotated = rotate(&path, NOW).unwrap().unwrap();
    let error = rotated.compress(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(names(dir.path()), ["2000-02-29_12-34-56__access.log"]);
}
