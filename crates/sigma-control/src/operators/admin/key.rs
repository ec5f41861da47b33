//! The key that is made where an operator configured none.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::pbkdf2;
use sigma_config::settings::{Admin, AdminKey, AdminRole};

use crate::store::history::cleaned;

/// The file's name, next to the store.
const FILE_NAME: &str = "admin.key";
/// As many as APISIX makes: 32 of 52 letters are 182 bits.
const LETTERS: usize = 32;
/// Permissions of other users.
const OTHERS: u32 = 0o007;
/// Longer names of keys are cut.
const NAME_BYTES: usize = 128;
/// Longer is no key but a file put there by mistake.
const FILE_BYTES_MAX: u64 = 4096;

/// How much work the short id of a key is: who has the id of a poor key may guess no more than some hundred keys a
/// second.
const ID_ROUNDS: NonZeroU32 = NonZeroU32::new(20_000).unwrap();

/// Returns the shown name of a key: its name, or else a short stable id that does not reveal the key.
pub(super) fn name_of(key: &AdminKey) -> Arc<str> {
    if let Some(name) = &key.name {
        return cleaned(name, NAME_BYTES).into();
    }
    let mut id = [0; 4];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ID_ROUNDS, b"sigma admin key id", key.key.as_bytes(), &mut id);
    format!("key-{:08x}", u32::from_be_bytes(id)).into()
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[error("cannot store the Admin API's key in {path}: {source}; set keys in `admin.keys`")]
pub struct KeyFileError {
    /// The file.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

/// The file that keeps a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// Its place.
    pub path: PathBuf,
    /// It was made just now: it is not known yet.
    pub is_new: bool,
}

/// Makes sure that there is a key, if one is required: reads the one in `folder/admin.key`, or makes one
/// there, readable by its owner alone. Returns the file, for a message to the operator; None where the
/// settings have keys of their own.
///
/// # Errors
/// Returns an error if the file can be neither read nor made.
pub fn settle_key(settings: &mut Admin, folder: &Path) -> Result<Option<KeyFile>, KeyFileError> {
    if !settings.key_required || !settings.keys.is_empty() {
        return Ok(None);
    }
    let path = folder.join(FILE_NAME);
    let key = match made(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => kept(&path).map(|key| (key, false)),
        made => made.map(|key| (key, true)),
    };
    let (key, is_new) = key.map_err(|source| KeyFileError { path: path.clone(), source })?;
    // The history and the audit log name it; operators know the file.
    settings.keys.push(AdminKey { name: Some(FILE_NAME.to_owned()), key, role: AdminRole::Admin });
    Ok(Some(KeyFile { path, is_new }))
}

fn made(path: &Path) -> io::Result<String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let key = letters()?;
    file.write_all(key.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    Ok(key)
}

fn kept(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // A link of another user would have the gateway take a key that this user knows.
    let file = sigma_observe::own_file::read(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & OTHERS != 0 {
        // A copy of the folder may have come without its permissions. Its group may be meant.
        file.set_permissions(Permissions::from_mode(mode & !OTHERS))?;
        tracing::warn!(
            file = %path.display(),
            "every user of this machine could read the key file of the Admin API; its permissions are now restricted. To replace the key, delete the file and restart"
        );
    }
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let key = text.trim();
    if key.len() < LETTERS {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "it contains no key; delete it, and the gateway generates one",
        ));
    }
    Ok(key.to_owned())
}

fn letters() -> io::Result<String> {
    const ALPHABET: &[u8; 52] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut key = String::with_capacity(LETTERS);
    while key.len() < LETTERS {
        let mut random = [0_u8; LETTERS];
        getrandom::fill(&mut random).map_err(|_| io::Error::other("cannot get random bytes"))?;
        // Bytes above a multiple of 52 are omitted, so that every letter is as likely.
        let fair = random.iter().filter(|byte| **byte < 208);
        key.extend(fair.take(LETTERS - key.len()).map(|byte| char::from(ALPHABET[usize::from(byte % 52)])));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_name_that_does_not_tell_it() {
        let key = |name: Option<&str>, key: &str| AdminKey {
            name: name.map(str::to_owned),
            key: key.to_owned(),
            role: AdminRole::Admin,
        };
        assert_eq!(&*name_of(&key(Some("a\nb"), "secret")), "a b");
        let id = name_of(&key(None, "secret"));
        assert_eq!(id, name_of(&key(None, "secret")));
        assert!(id.starts_with("key-") && id.len() == 12 && !id.contains("secret"), "{id}");
        assert_ne!(id, name_of(&key(None, "secret2")));
    }

    #[test]
    fn a_key_is_made_once_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let settle = || {
            let mut settings = Admin::default();
            let path = settle_key(&mut settings, &folder.path().join("data")).expect("a key");
            (path.expect("a file"), settings.keys[0].key.clone())
        };
        let (KeyFile { path, is_new }, key) = settle();
        assert!(is_new);
        let mode = std::fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_alphabetic()));
        assert_eq!(settle(), (KeyFile { path: path.clone(), is_new: false }, key.clone()));
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("opened");
        assert_eq!(settle(), (KeyFile { path: path.clone(), is_new: false }, key));
        let mode = std::fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "not for everybody");
        std::fs::write(&path, "short").expect("written");
        let refused = settle_key(&mut Admin::default(), &folder.path().join("data"));
        assert!(refused.is_err_and(|error| error.to_string().contains("contains no key")));
        let mut open = Admin { key_required: false, ..Admin::default() };
        assert!(settle_key(&mut open, folder.path()).expect("no need").is_none());
    }
}
