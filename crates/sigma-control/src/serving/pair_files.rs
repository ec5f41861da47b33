//! Certificates of ssls with their keys, in files that are followed.
//!
//! A certificate and its key are often two files, which change one after the other. So both are read together, and a
//! pair comes into force only when its parts fit; until then the last good pair stays.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};

use sigma_net::tls::KeyPassphrases;
use sigma_net::tls::pem::Pair;

use super::file_stamp::FileStamp;

/// Largest file; a chain with a key of RSA has about 8 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Attempts to read two files that change meanwhile.
const ATTEMPTS: usize = 3;

/// The files of a pair.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Names {
    cert: PathBuf,
    /// None if the key is in `cert`.
    key: Option<PathBuf>,
}

/// The stamps of both files.
type Stamps = [Option<FileStamp>; 2];

/// The pairs in use, by their files.
#[derive(Default)]
pub(crate) struct PairFiles {
    files: HashMap<Names, File>,
    /// A compilation took a new pair, and has not come into force.
    is_pending: bool,
}

/// Two files, and the last good pair in them.
struct File {
    /// The state in which they were read last, with success or without.
    read: Stamps,
    /// Their state at the last look.
    seen: Stamps,
    /// A digest of the texts of `pair`.
    digest: u64,
    pair: Pair,
    /// The passphrases of its key, if that is encrypted.
    passphrases: KeyPassphrases,
}

impl PairFiles {
    /// The pair in these files. If they changed they are read again; if they cannot be used, the last good pair stays.
    /// Blocks.
    ///
    /// # Errors
    /// Returns an error if there is no good pair yet.
    pub(crate) fn pair(
        &mut self,
        cert: &Path,
        key: Option<&Path>,
        passphrases: &KeyPassphrases,
    ) -> Result<Pair, String> {
        let names = Names { cert: cert.to_owned(), key: key.map(Path::to_owned) };
        if let Some(file) = self.files.get_mut(&names) {
            file.passphrases = passphrases.clone();
            if file.may_differ(stamps(&names)) {
                self.is_pending |= file.read_again(&names);
            }
            return Ok(file.pair.clone());
        }
        let (read, loaded) = load(&names, passphrases);
        let (digest, pair) = loaded?;
        let passphrases = passphrases.clone();
        let file = File { read, seen: read, digest, pair: pair.clone(), passphrases };
        self.files.insert(names, file);
        Ok(pair)
    }

    /// Whether files are in another state than when they were read, and in the same as when this was queried before:
    /// the writer has finished. To be asked at intervals.
    pub(crate) fn have_changed(&mut self) -> bool {
        let mut have_changed = self.is_pending;
        for (names, file) in &mut self.files {
            let now = stamps(names);
            have_changed |= file.may_differ(now) && now == file.seen;
            file.seen = now;
        }
        have_changed
    }

    /// Reads the files that have changed; reports whether there is a new pair. The error log names files that cannot
    /// be used, once for each change. Blocks.
    pub(crate) fn refresh(&mut self) -> bool {
        let mut is_new = std::mem::take(&mut self.is_pending);
        for (names, file) in &mut self.files {
            if file.may_differ(stamps(names)) {
                is_new |= file.read_again(names);
            }
        }
        is_new
    }

    /// A configuration with these files is in force; others are forgotten.
    pub(crate) fn in_force<'f>(&mut self, named: impl Iterator<Item = (&'f Path, Option<&'f Path>)>) {
        let named: Vec<Names> =
            named.map(|(cert, key)| Names { cert: cert.to_owned(), key: key.map(Path::to_owned) }).collect();
        self.files.retain(|names, _| named.contains(names));
        self.is_pending = false;
    }
}

impl File {
    /// Whether the files may hold something else than was read.
    fn may_differ(&self, now: Stamps) -> bool {
        let is_fresh = |stamps: &Stamps| stamps.iter().flatten().any(FileStamp::is_fresh);
        // A write within one step of the clock leaves the same stamp.
        now != self.read || is_fresh(&self.read) && !is_fresh(&now)
    }

    /// Reads the files; returns whether they hold a new pair.
    fn read_again(&mut self, names: &Names) -> bool {
        let has_changed = stamps(names) != self.read;
        let (read, loaded) = load(names, &self.passphrases);
        self.read = read;
        match loaded {
            Ok((digest, _)) if digest == self.digest => false,
            Ok((digest, pair)) => {
                (self.digest, self.pair) = (digest, pair);
                tracing::info!(cert = %names.cert.display(), "read a changed certificate");
                true
            }
            Err(reason) => {
                if has_changed {
                    tracing::error!(
                        reason,
                        "the changed files of a certificate are invalid; the last valid pair stays in use"
                    );
                }
                false
            }
        }
    }
}

fn stamps(names: &Names) -> Stamps {
    let Names { cert, key } = names;
    [FileStamp::of(cert), key.as_deref().and_then(FileStamp::of)]
}

/// Reads both files in one state, which is returned with the digest of their texts and the pair.
fn load(names: &Names, passphrases: &KeyPassphrases) -> (Stamps, Result<(u64, Pair), String>) {
    let mut before = stamps(names);
    let mut loaded = parse(names, passphrases);
    for _ in 1..ATTEMPTS {
        let now = stamps(names);
        if now == before {
            break;
        }
        (before, loaded) = (now, parse(names, passphrases));
    }
    (before, loaded)
}

/// The reason of a failure names files, and shows nothing of their content.
fn parse(names: &Names, passphrases: &KeyPassphrases) -> Result<(u64, Pair), String> {
    let Names { cert, key } = names;
    let certificate = text(cert)?;
    let own_key = key.as_deref().map(text).transpose()?;
    let pair = Pair::unlock(&certificate, own_key.as_ref().unwrap_or(&certificate), None, passphrases);
    let pair = pair.map_err(|error| match key {
        Some(key) => format!("{error} ({}, {})", cert.display(), key.display()),
        None => format!("{error} ({}; `key_file` names another file for the key)", cert.display()),
    })?;
    let mut hasher = DefaultHasher::new();
    (&certificate, &own_key).hash(&mut hasher);
    Ok((hasher.finish(), pair))
}

fn text(path: &Path) -> Result<String, String> {
    let failed = |reason: &dyn std::fmt::Display| format!("cannot read {}: {reason}", path.display());
    let state = std::fs::metadata(path).map_err(|error| failed(&error))?;
    // A pipe would hold up the thread.
    if !state.is_file() {
        return Err(failed(&"it is not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut content = Vec::new();
    // One byte more shows that there is more.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(|error| failed(&error))?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(&format_args!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(content).map_err(|_| failed(&"it is not PEM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Puts a file into its place as certbot does, by a rename.
        fn put(&self, name: &str, text: &str) {
            std::fs::write(self.path("new"), text).unwrap();
            std::fs::rename(self.path("new"), self.path(name)).unwrap();
        }
    }

    /// A certificate and its key.
    fn made() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn none() -> KeyPassphrases {
        KeyPassphrases::default()
    }

    /// Looks at the files at most three times, as the watch does each second.
    fn watch(files: &mut PairFiles) -> bool {
        (0..3).any(|_| files.have_changed()) && files.refresh()
    }

    #[test]
    fn a_pair_is_taken_over_when_both_files_fit() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let (cert, key) = (folder.path("cert.pem"), folder.path("key.pem"));
        let (old, new) = (made(), made());
        folder.put("cert.pem", &old.0);
        folder.put("key.pem", &old.1);
        let mut files = PairFiles::default();
        let first = files.pair(&cert, Some(&key), &none()).unwrap();
        assert!(!files.have_changed() && files.pair(&cert, Some(&key), &none()).unwrap().is(&first));
        type Change<'c> = &'c dyn Fn();
        let steps: [(&str, Change<'_>); 5] = [
            ("the certificate alone", &|| folder.put("cert.pem", &new.0)),
            ("a half of the key", &|| folder.put("key.pem", &new.1[..60])),
            ("no key", &|| std::fs::remove_file(&key).unwrap()),
            ("the old key", &|| folder.put("key.pem", &old.1)),
            ("the old pair", &|| folder.put("cert.pem", &old.0)),
        ];
        for (name, change) in steps {
            change();
            assert!(!watch(&mut files), "{name}");
            // As a reload does.
            assert!(files.pair(&cert, Some(&key), &none()).unwrap().is(&first), "{name}");
        }
        folder.put("cert.pem", &new.0);
        folder.put("key.pem", &new.1);
        assert!(watch(&mut files));
        let second = files.pair(&cert, Some(&key), &none()).unwrap();
        assert!(!second.is(&first) && second.chain() != first.chain());
        assert!(!watch(&mut files), "a change counts once");
    }

    /// An encrypted key whose passphrase is not known leaves the pair before in use.
    #[test]
    fn an_encrypted_key_needs_its_passphrase() {
        const LOCKED: &str = include_str!("locked.pem");
        let folder = Folder(tempfile::tempdir().unwrap());
        let (path, passphrase) = (folder.path("both.pem"), folder.path("passphrase"));
        let known = KeyPassphrases::new([], vec![passphrase.clone()]);
        let put = |(cert, key): (String, String)| folder.put("both.pem", &format!("{key}{cert}"));
        put(made());
        let mut files = PairFiles::default();
        let first = files.pair(&path, None, &known).unwrap();
        folder.put("both.pem", LOCKED);
        folder.put("passphrase", "wrong\n");
        assert!(!watch(&mut files) && files.pair(&path, None, &known).unwrap().is(&first));
        let error = PairFiles::default().pair(&path, None, &known).map(|_| ()).unwrap_err();
        assert!(error.contains("no passphrase of") && !error.contains("wrong"), "{error}");
        folder.put("passphrase", "wrong\nsecret\n");
        folder.put("both.pem", &format!("\n{LOCKED}"));
        assert!(watch(&mut files) && !files.pair(&path, None, &known).unwrap().is(&first));
    }

    #[test]
    fn a_reload_that_fails_is_made_up_for() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let path = folder.path("both.pem");
        let put = |(cert, key): (String, String)| folder.put("both.pem", &format!("{key}{cert}"));
        put(made());
        let mut files = PairFiles::default();
        let first = files.pair(&path, None, &none()).unwrap();
        put(made());
        assert!(!files.pair(&path, None, &none()).unwrap().is(&first), "a reload reads it");
        assert!(files.have_changed() && files.refresh(), "the reload has not come into force");
        assert!(!files.have_changed());
        put(made());
        files.pair(&path, None, &none()).unwrap();
        files.in_force([(&*path, None)].into_iter());
        assert!(!files.have_changed());
        files.in_force(std::iter::empty());
        std::fs::remove_file(&path).unwrap();
        assert!(files.pair(&path, None, &none()).is_err(), "files that are not in use are forgotten");
    }

    #[test]
    fn failures_name_the_file_and_show_nothing_of_it() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let (cert, key) = made();
        folder.put("cert.pem", &cert);
        folder.put("other.key", &made().1);
        folder.put("key.pem", &key);
        folder.put("secret", "root:hunter2\n-----BEGIN hunter2-----\n");
        folder.put("large", &"x".repeat(FILE_BYTES_MAX as usize + 1));
        std::fs::write(folder.path("binary"), [0xff; 8]).unwrap();
        let check = |cert: &str, key: Option<&str>, file: &str, reason: &str| {
            let key = key.map(|key| folder.path(key));
            let Err(error) = PairFiles::default().pair(&folder.path(cert), key.as_deref(), &none()) else {
                panic!("{cert} is not a pair")
            };
            let file = folder.path(file).display().to_string();
            assert!(error.contains(&file) && error.contains(reason), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        };
        check("none", None, "none", "No such file");
        check("cert.pem", Some("none"), "none", "No such file");
        check("", None, "", "not a regular file");
        check("large", None, "large", "larger than 1048576 bytes");
        check("binary", None, "binary", "not PEM");
        check("secret", Some("key.pem"), "secret", "failed to parse cert");
        check("cert.pem", Some("secret"), "secret", "failed to parse key");
        check("cert.pem", Some("other.key"), "other.key", "the key does not belong to the certificate");
        check("cert.pem", None, "cert.pem", "`key_file` names another file");
    }
}
