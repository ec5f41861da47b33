//! Text of configuration files: the files read, places in them, and access to further files.

use std::collections::BTreeMap;

/// Maximum size of one file in bytes; the largest known nginx.conf files have about 1 MiB.
pub const FILE_BYTES: usize = 16 << 20;

/// Maximum size of all files of one conversion in bytes.
pub const TOTAL_BYTES: usize = 64 << 20;

/// Maximum number of files of one conversion.
pub const FILE_COUNT: usize = 4096;

/// A file with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path as the operator wrote it, or as an include found it.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A line of a file that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SourceLine {
    /// Index in the list of files read.
    pub file: u16,
    /// The line, from 1; 0 for the file as a whole.
    pub line: u32,
}

/// Access to further files and to environment variables.
pub trait Files {
    /// Returns the text of a file.
    ///
    /// # Errors
    /// Returns a sentence without the name of the file.
    fn read(&self, path: &str) -> Result<String, String>;
    /// Returns the paths that a pattern with `*`, `?` and `[…]` matches, in order of their names.
    fn list(&self, pattern: &str) -> Vec<String>;
    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns whether there is a file or folder of this name.
    fn exists(&self, path: &str) -> bool;
}

/// The input of a conversion.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The files named on the command line, in order.
    pub files: &'a [SourceFile],
    /// Access to others.
    pub access: &'a dyn Files,
}

/// The files read so far, with the limits on them.
#[derive(Debug, Default)]
pub struct Sources {
    names: Vec<String>,
    bytes: usize,
}

impl Sources {
    /// Adds a file and returns its index.
    ///
    /// # Errors
    /// Returns a sentence if the file, their number or their sum exceeds its limit.
    pub fn add(&mut self, name: &str, text: &str) -> Result<u16, String> {
        if text.len() > FILE_BYTES {
            return Err(format!("{name} is larger than {} MiB", FILE_BYTES >> 20));
        }
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > TOTAL_BYTES {
            return Err(format!("the files have more than {} MiB together", TOTAL_BYTES >> 20));
        }
        let index = u16::try_from(self.names.len()).ok().filter(|index| usize::from(*index) < FILE_COUNT);
        let index = index.ok_or_else(|| format!("more than {FILE_COUNT} files"))?;
        self.names.push(name.to_owned());
        Ok(index)
    }

    /// Returns the names of the files, in the order of their indexes.
    #[must_use]
    pub fn into_names(self) -> Vec<String> {
        self.names
    }

    /// Returns the name of the file with this index.
    #[must_use]
    pub fn name(&self, index: u16) -> &str {
        self.names.get(usize::from(index)).map_or("", String::as_str)
    }
}

/// Files in memory: for tests and fuzzing.
#[derive(Debug, Clone, Default)]
pub struct MemoryFiles {
    /// Texts by path.
    pub files: BTreeMap<String, String>,
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
}

impl Files for MemoryFiles {
    fn read(&self, path: &str) -> Result<String, String> {
        self.files.get(path).cloned().ok_or_else(|| "the file does not exist".to_owned())
    }

    fn list(&self, pattern: &str) -> Vec<String> {
        self.files.keys().filter(|path| path_matches(pattern, path)).cloned().collect()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn exists(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.contains_key(path) || self.files.keys().any(|name| name.starts_with(&folder))
    }
}

/// The file system and the environment of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFiles;

impl Files for DiskFiles {
    fn read(&self, path: &str) -> Result<String, String> {
        let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
        if size > FILE_BYTES as u64 {
            return Err(format!("it has more than {} MiB", FILE_BYTES >> 20));
        }
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn list(&self, pattern: &str) -> Vec<String> {
        let (mut found, rest) = match pattern.strip_prefix('/') {
            Some(rest) => (vec!["/".to_owned()], rest),
            None => (vec![String::new()], pattern),
        };
        for segment in rest.split('/').filter(|segment| !segment.is_empty()) {
            let mut next = Vec::new();
            for folder in &found {
                entries(folder, segment, &mut next);
                if next.len() > FILE_COUNT {
                    break;
                }
            }
            found = next;
        }
        found.sort_unstable();
        found
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn exists(&self, path: &str) -> bool {
        std::path::Path::new(path).exists()
    }
}

/// Adds the entries of `folder` that one segment of a pattern matches.
fn entries(folder: &str, segment: &str, found: &mut Vec<String>) {
    let join = |name: &str| match folder {
        "" => name.to_owned(),
        folder if folder.ends_with('/') => format!("{folder}{name}"),
        folder => format!("{folder}/{name}"),
    };
    if !is_pattern(segment) {
        let path = join(segment);
        if std::path::Path::new(&path).exists() {
            found.push(path);
        }
        return;
    }
    let Ok(list) = std::fs::read_dir(if folder.is_empty() { "." } else { folder }) else { return };
    for entry in list.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // As in a shell, a leading dot is matched by a dot alone.
        if name_matches(segment.as_bytes(), name.as_bytes())
            && (!name.starts_with('.') || segment.starts_with('.'))
        {
            found.push(join(&name));
        }
    }
}

/// Returns whether a text has a character of patterns.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Returns whether a pattern matches a path, segment by segment.
#[must_use]
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let (patterns, names): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
    patterns.len() == names.len()
        && patterns
            .iter()
            .zip(&names)
            .all(|(pattern, name)| name_matches(pattern.as_bytes(), name.as_bytes()))
}

/// Returns whether a pattern of one segment matches a name: `*`, `?`, `[a-z]`, `[!a]`.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    // The last star and the place in the name up to which it has matched: no recursion, quadratic at worst.
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < name.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => bracket(&pattern[at..], name[place]),
            Some(byte) if *byte == name[place] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(length), _) => {
                at += length;
                place += 1;
            }
            (None, Some((star_at, matched))) => {
                star = Some((star_at, matched + 1));
                at = star_at + 1;
                place = matched + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of a bracket expression that matches `byte`.
fn bracket(pattern: &[u8], byte: u8) -> Option<usize> {
    let is_negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if is_negated { 2 } else { 1 };
    // A bracket directly after the start is one of the characters.
    let end = pattern.iter().skip(start + 1).position(|byte| *byte == b']')? + start + 1;
    let set = &pattern[start..end];
    let mut at = 0;
    let mut is_member = false;
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == b'-' {
            is_member |= (set[at]..=set[at + 2]).contains(&byte);
            at += 3;
        } else {
            is_member |= set[at] == byte;
            at += 1;
        }
    }
    (is_member != is_negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_within_a_segment() {
        for (pattern, path, expected) in [
            ("conf.d/*.conf", "conf.d/a.conf", true),
            ("conf.d/*.conf", "conf.d/x/a.conf", false),
            ("*/a?.conf", "x/ab.conf", true),
            ("[a-c]*", "b1", true),
            ("[!a-c]*", "b1", false),
            ("[]]x", "]x", true),
            ("a[", "a[", false),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxc", false),
            ("", "", true),
        ] {
            assert_eq!(path_matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn sources_have_limits() {
        let mut sources = Sources::default();
        assert_eq!(sources.add("a", "text"), Ok(0));
        assert_eq!(sources.add("b", "text"), Ok(1));
        assert_eq!(sources.name(1), "b");
        let long = " ".repeat(FILE_BYTES + 1);
        assert!(sources.add("c", &long).is_err());
    }
}
