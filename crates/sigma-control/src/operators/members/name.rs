//! The id of this gateway: the same over restarts, where there is a folder for it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// The file's name, next to the store.
const FILE_NAME: &str = "gateway.id";
/// As long as an id may be; a longer file was put there by mistake.
const BYTES_MAX: usize = 64;

/// Returns the id in `folder`, which is made there if it is missing; without a folder a new one. A file that
/// cannot be read or written causes a warning, and the gateway serves nevertheless.
pub(super) fn settled(folder: Option<&Path>) -> String {
    let Some(path) = folder.map(|folder| folder.join(FILE_NAME)) else { return made() };
    let id = made();
    let written = match write(&path, &id) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(&path),
        written => written.map(|()| id.clone()),
    };
    written.unwrap_or_else(|error| {
        let path = path.display();
        tracing::warn!(%path, %error, "this gateway gets a new id at each start; set `members.id`");
        id
    })
}

/// A UUID of random bits (version 4).
fn made() -> String {
    let mut bytes = fastrand::u128(..).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    format!("{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

fn write(path: &Path, id: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX as u64 + 2).read_to_string(&mut text)?;
    let id = text.trim_end();
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match !id.is_empty() && id.len() <= BYTES_MAX && id.bytes().all(is_id) {
        true => Ok(id.to_owned()),
        false => Err(io::Error::new(ErrorKind::InvalidData, "it contains no id; remove it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("new");
        let id = settled(Some(&place));
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'));
        assert_eq!(settled(Some(&place)), id);
        assert_ne!(settled(None), id);
        // An invalid id is not used, and not overwritten.
        for odd in ["", "a/b\n", &"a".repeat(65)] {
            std::fs::write(place.join(FILE_NAME), odd).unwrap();
            assert_eq!(settled(Some(&place)).len(), 36);
            assert_eq!(std::fs::read_to_string(place.join(FILE_NAME)).unwrap(), odd);
        }
    }
}
