//! Users of one configuration, without consumers: names and hashes of passwords.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use sigma_plugin_kit::decisions::{Key, key};
use tokio::sync::Semaphore;

use super::stored_password::StoredPassword;

/// Most bytes of a file with users.
const FILE_BYTES: u64 = 4 << 20;

/// Most bytes of a password: SHA-crypt's time grows with the square of the length.
pub(super) const PASSWORD_BYTES: usize = 512;

/// Most slow checks of the process that wait for a processor; more are refused.
const MAX_WAITING: usize = 256;

/// As many slow checks at a time as the machine has processors: the workers need time as well.
static CHECKS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, |count| count.get().div_ceil(2))));

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Names and hashes.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_name: HashMap<Box<str>, StoredPassword>,
    /// Compared for unknown names, so that the time of a refusal does not tell which names exist.
    decoy: Option<StoredPassword>,
}

/// A comparison that is left to do.
pub(super) struct Comparison {
    stored: StoredPassword,
    password: Vec<u8>,
    is_known: bool,
}

impl Users {
    /// Reads lines `NAME:HASH` of the configuration and of a file.
    ///
    /// # Errors
    /// Returns all lines that are wrong, each with its place.
    pub(super) fn read<'l>(
        lines: impl Iterator<Item = &'l str>,
        file: Option<&str>,
    ) -> Result<Users, String> {
        let mut users = Users::default();
        let mut errors = Vec::new();
        for (at, line) in lines.enumerate() {
            users.add(line, || format!("users[{at}]"), &mut errors);
        }
        if let Some(path) = file {
            let text = text_of(path).map_err(|error| format!("auth_file {path}: {error}"))?;
            let is_entry = |line: &&str| !line.is_empty() && !line.starts_with('#');
            for (at, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| is_entry(line)) {
                users.add(line, || format!("auth_file {path}:{}", at + 1), &mut errors);
            }
        }
        if users.by_name.is_empty() && errors.is_empty() {
            errors.push("the list has no user: every request would be refused".to_owned());
        }
        users.decoy = users.by_name.values().find(|stored| stored.is_slow()).cloned();
        match errors.is_empty() {
            true => Ok(users),
            false => Err(errors.join("; ")),
        }
    }

    fn add(&mut self, line: &str, place: impl Fn() -> String, errors: &mut Vec<String>) {
        // A third part is a comment, as in files of nginx.
        let mut parts = line.splitn(3, ':');
        let (Some(name @ [_, ..]), Some(hash)) = (parts.next().map(str::as_bytes), parts.next()) else {
            return errors.push(format!("{}: write NAME:HASH", place()));
        };
        let name: Box<str> = String::from_utf8_lossy(name).into();
        match StoredPassword::parse(hash) {
            Ok(_) if self.by_name.contains_key(&name) => {
                errors.push(format!("{}: the user `{name}` occurs twice", place()));
            }
            Ok(stored) => drop(self.by_name.insert(name, stored)),
            Err(error) => errors.push(format!("{}: user `{name}`: {error}", place())),
        }
    }

    /// Prepares the comparison of a password. None if no comparison is needed to refuse it.
    pub(super) fn comparison(&self, user: &[u8], password: &[u8]) -> Option<Comparison> {
        let stored = std::str::from_utf8(user).ok().and_then(|user| self.by_name.get(user));
        if password.len() > PASSWORD_BYTES {
            return None;
        }
        let is_known = stored.is_some();
        let stored = stored.or(self.decoy.as_ref())?.clone();
        Some(Comparison { stored, password: password.to_vec(), is_known })
    }
}

impl Comparison {
    /// Returns true if it takes longer than a worker may.
    pub(super) fn is_slow(&self) -> bool {
        self.stored.is_slow()
    }

    /// Returns a digest of hash and password.
    pub(super) fn key(&self, user: &[u8]) -> Key {
        key([user, format!("{:?}", self.stored).as_bytes(), &self.password])
    }

    /// Compares.
    pub(super) fn run(self) -> bool {
        // The comparison comes first: it takes the same time for unknown users.
        self.stored.matches(&self.password) && self.is_known
    }

    /// Compares on another thread. None if too many wait.
    pub(super) async fn run_beside(self) -> Option<bool> {
        struct Waits;
        impl Drop for Waits {
            fn drop(&mut self) {
                WAITING.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let before = WAITING.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits;
        if before >= MAX_WAITING {
            return None;
        }
        let permit = CHECKS.acquire().await.ok()?;
        // The permit goes along: a client that leaves does not end the work.
        let work = move || {
            let _permit = permit;
            self.run()
        };
        tokio::task::spawn_blocking(work).await.ok()
    }
}

fn text_of(path: &str) -> Result<String, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    match length <= FILE_BYTES {
        true => std::fs::read_to_string(path).map_err(|error| error.to_string()),
        false => Err(format!("it has more than {FILE_BYTES} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
    const APR1: &str = "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/";

    #[test]
    fn lines_are_read_with_their_places() {
        let read = |lines: &[&str]| Users::read(lines.iter().copied(), None);
        let users = read(&[&format!("jack:{SHA}"), &format!("jill:{APR1}:comment")]).unwrap();
        let compare = |user: &str, password: &str| {
            users.comparison(user.as_bytes(), password.as_bytes()).is_some_and(Comparison::run)
        };
        assert!(compare("jack", "secret") && compare("jill", "secret"));
        assert!(!compare("jack", "other") && !compare("joe", "secret") && !compare("", "secret"));
        assert!(users.comparison(b"jack", &[b'a'; PASSWORD_BYTES + 1]).is_none());
        for (lines, expected) in [
            (&[][..], "the list has no user"),
            (&["jack"], "users[0]: write NAME:HASH"),
            (&[":x"], "users[0]: write NAME:HASH"),
            (&["jack:secret"], "users[0]: user `jack`: it is not a hash"),
        ] {
            let error = read(lines).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let twice = format!("jack:{SHA}");
        assert!(
            read(&[&twice, &twice, "x"])
                .unwrap_err()
                .contains("users[1]: the user `jack` occurs twice; users[2]")
        );
    }

    #[test]
    fn files_are_read_with_their_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("# users\n\njack:{SHA}\njill:plain\n")).unwrap();
        let path = file.path().to_str().unwrap();
        let error = Users::read(std::iter::empty(), Some(path)).unwrap_err();
        assert!(error.starts_with(&format!("auth_file {path}:4: user `jill`")), "{error}");
        assert!(!error.contains("plain"), "{error}");
        assert!(Users::read(std::iter::empty(), Some("/nonexistent")).unwrap_err().contains("auth_file"));
    }
}
