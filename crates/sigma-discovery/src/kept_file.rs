//! Files that hand state to the next process.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Reads a file, up to its first `most_bytes`; None if there is no file. It blocks.
///
/// # Errors
/// Returns an error if it cannot be read.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(most_bytes).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Writes a file that other users cannot read. It replaces the old one once it is complete and on disk. It blocks.
///
/// # Errors
/// Returns an error if it cannot be written; then the old one stays.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let draft = path.with_file_name(name);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_complete_and_private() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("new/kept.json");
        assert_eq!(read(&path, 9).expect("no file"), None);
        for content in ["first", "second one"] {
            write(&path, content.as_bytes()).expect("written");
            assert_eq!(read(&path, 100).expect("a file").as_deref(), Some(content.as_bytes()));
        }
        assert_eq!(read(&path, 3).expect("a file").as_deref(), Some(&b"sec"[..]));
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        // An old draft, of a dead process or another user, is not written through.
        let (draft, other) = (dir.path().join("new/kept.json.new"), dir.path().join("other"));
        std::fs::write(&other, "theirs").expect("a file");
        std::os::unix::fs::symlink(&other, &draft).expect("a link");
        write(&path, b"third").expect("written");
        assert_eq!(std::fs::read(&other).expect("a file"), b"theirs");
    }
}
