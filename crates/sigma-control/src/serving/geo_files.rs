//! The databases of addresses: read at the start, and again when their files change.
//!
//! A file is read whole before anything looks at it, and only once it has been the same for a while; then all
//! of it is checked. So neither a file that is replaced while it is read nor one that was written in part
//! comes into force: its former content stays.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sigma_config::geoip::GeoIp;
use sigma_plugin::geography::{Database, Geography};
use sigma_schema::Problem;
use sigma_schema::problem::element;

use super::file_stamp::FileStamp;

/// One file and its last content.
#[derive(Clone)]
struct File {
    path: PathBuf,
    /// As it was when it was last read, with success or without.
    read: Option<FileStamp>,
    /// As it was when it was last looked at.
    seen: Option<FileStamp>,
    database: Arc<Database>,
}

/// The files in force.
#[derive(Clone, Default)]
pub(crate) struct GeoFiles {
    files: Vec<File>,
    /// The largest that is read.
    bytes_max: u64,
    geography: Option<Geography>,
}

impl GeoFiles {
    /// Reads all files that the settings name. Blocks.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be used.
    pub(crate) fn read(settings: &GeoIp) -> Result<GeoFiles, Problem> {
        GeoFiles::default().following(settings)
    }

    /// What they say.
    pub(crate) fn geography(&self) -> Option<Geography> {
        self.geography.clone()
    }

    /// As [`GeoFiles::read`], but those that are in force already are not read again. The calling thread continues
    /// with its other tasks meanwhile.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be used.
    pub(crate) async fn follow(self, settings: &GeoIp) -> Result<GeoFiles, Problem> {
        if self.files.is_empty() && settings.databases.is_empty() {
            return Ok(GeoFiles::default());
        }
        let settings = settings.clone();
        let read = tokio::task::spawn_blocking(move || self.following(&settings)).await;
        // It ends early in a panic only.
        read.unwrap_or_else(|error| Err(Problem::new("geoip.databases", "file", error.to_string())))
    }

    fn following(self, settings: &GeoIp) -> Result<GeoFiles, Problem> {
        let bytes_max = settings.database_bytes;
        let mut files = Vec::new();
        for (index, path) in settings.databases.iter().enumerate() {
            if let Some(known) = self.files.iter().find(|known| known.path == *path) {
                files.push(known.clone());
                continue;
            }
            let stamp = FileStamp::of(path);
            let database = load(path, bytes_max).map_err(|reason| {
                let place = element("geoip.databases", index);
                let message = format!("cannot use {}: {reason}", path.display());
                Problem::new(place, "file", message).hint("name a readable file in MaxMind's format (.mmdb)")
            })?;
            tell(path, &database);
            files.push(File { path: path.clone(), read: stamp, seen: stamp, database });
        }
        Ok(GeoFiles { files, bytes_max, geography: None }.joined())
    }

    fn joined(mut self) -> GeoFiles {
        self.geography = Geography::of(self.files.iter().map(|file| Arc::clone(&file.database)).collect());
        self
    }

    /// Whether a file differs from its last read form, and is the same as at the last call: its writer has
    /// finished. To be asked at intervals.
    pub(crate) fn have_changed(&mut self) -> bool {
        let mut have_changed = false;
        for file in &mut self.files {
            let now = FileStamp::of(&file.path);
            have_changed |= now != file.read && now == file.seen;
            file.seen = now;
        }
        have_changed
    }

    /// Reads the files that have changed; returns whether there is anything new. A file that cannot be used
    /// stays as it was, and the log says so, once for each change.
    pub(crate) async fn refreshed(self) -> (GeoFiles, bool) {
        let before = self.clone();
        let read = tokio::task::spawn_blocking(move || self.reading()).await;
        // It ends early in a panic only.
        read.unwrap_or((before, false))
    }

    fn reading(mut self) -> (GeoFiles, bool) {
        let mut is_new = false;
        for file in &mut self.files {
            let before = FileStamp::of(&file.path);
            if before == file.read {
                continue;
            }
            let loaded = load(&file.path, self.bytes_max);
            if FileStamp::of(&file.path) != before {
                // It is being written: another look will come.
                continue;
            }
            file.read = before;
            match loaded {
                Ok(database) => {
                    tell(&file.path, &database);
                    (file.database, is_new) = (database, true);
                }
                Err(reason) => {
                    let (path, kept) = (file.path.display(), file.database.describe());
                    tracing::error!(%path, reason, kept, "geoip: a changed database is invalid; the old one stays in use");
                }
            }
        }
        (self.joined(), is_new)
    }
}

fn tell(path: &Path, database: &Database) {
    let (path, database) = (path.display(), database.describe());
    tracing::info!(%path, database, "geoip: read a database");
}

fn load(path: &Path, bytes_max: u64) -> Result<Arc<Database>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut content = Vec::new();
    // One byte more shows that there is more.
    let read = file.take(bytes_max.saturating_add(1)).read_to_end(&mut content);
    read.map_err(|error| error.to_string())?;
    if content.len() as u64 > bytes_max {
        return Err(format!("it is larger than {bytes_max} bytes (`geoip.database_bytes`)"));
    }
    Database::parse(content).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use sigma_testkit::GeoDatabase;

    use super::*;

    fn country(code: &str) -> Vec<u8> {
        GeoDatabase::new("Test-Country").city("127.0.0.0/8", ["EU", code, "", "", "", ""]).content()
    }

    fn found(files: &GeoFiles) -> Option<String> {
        let home: IpAddr = [127, 0, 0, 1].into();
        let fact = files.geography()?.fact(home, "country_code").map(|code| code.into_owned());
        fact.and_then(|code| String::from_utf8(code).ok())
    }

    /// Every kind of change that a file can undergo while a gateway runs.
    #[test]
    fn changes_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.mmdb");
        std::fs::write(&path, country("DE")).unwrap();
        let settings = GeoIp { databases: vec![path.clone()], ..GeoIp::default() };
        let mut files = GeoFiles::read(&settings).unwrap();
        let step = |mut files: GeoFiles, change: Option<Vec<u8>>, expected: (&str, bool)| {
            match change {
                Some(content) => {
                    let new = dir.path().join("new");
                    std::fs::write(&new, content).unwrap();
                    std::fs::rename(&new, &path).unwrap();
                }
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert!(!files.have_changed(), "it may still be written");
            assert!(files.have_changed(), "a change is noticed");
            let (mut files, is_new) = files.reading();
            assert_eq!((found(&files).as_deref(), is_new), (Some(expected.0), expected.1));
            assert!(!files.have_changed() && !files.have_changed(), "a change counts once");
            files
        };
        assert!(!files.have_changed());
        files = step(files, Some(country("FR")), ("FR", true));
        let cut = country("IT");
        files = step(files, Some(cut[..cut.len() / 2].to_vec()), ("FR", false));
        files = step(files, Some(country("IT")), ("IT", true));
        files = step(files, None, ("IT", false));
        files = step(files, Some(country("ES")), ("ES", true));
        // Settings that name it again read nothing.
        std::fs::remove_file(&path).unwrap();
        let files = files.following(&settings).unwrap();
        assert_eq!(found(&files).as_deref(), Some("ES"));
        assert_eq!(found(&files.following(&GeoIp::default()).unwrap()), None);
    }

    #[test]
    fn files_that_refuse_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.mmdb");
        let check = |database_bytes, expected: &str| {
            let settings = GeoIp { databases: vec![path.clone()], database_bytes };
            let error =
                GeoFiles::read(&settings).err().map(|problem| problem.to_string()).unwrap_or_default();
            assert!(
                error.starts_with("geoip.databases[0]: cannot use ") && error.contains(expected),
                "{error}"
            );
        };
        check(1024, "No such file");
        std::fs::write(&path, "nothing of the kind").unwrap();
        check(1024, "it is not a valid MaxMind database");
        std::fs::write(&path, country("DE")).unwrap();
        check(64, "it is larger than 64 bytes (`geoip.database_bytes`)");
    }
}
