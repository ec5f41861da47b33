//! Listings of folders without an index.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType};
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin_kit::utc::rfc3339;

/// Most entries of a listing. A longer page is of little use, so the rest is omitted.
const MOST_ENTRIES: usize = 10_000;

/// A file or folder.
struct Entry {
    name: String,
    is_folder: bool,
    size: u64,
    modified: Option<SystemTime>,
}

/// Returns a page with the entries of a folder; names that begin with a dot only if `hidden`. Blocks.
pub(super) fn page(folder: &OwnedFd, path: &[u8], hidden: bool) -> io::Result<String> {
    let mut entries = entries(folder, hidden)?;
    entries.sort_by(|a, b| b.is_folder.cmp(&a.is_folder).then_with(|| a.name.cmp(&b.name)));
    let title = escaped(&String::from_utf8_lossy(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<html>\n<head><meta charset=\"utf-8\"><title>Index of {title}</title></head>\n<body>\n\
         <h1>Index of {title}</h1>\n<table>\n"
    );
    if path != b"/" {
        page += "<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n";
    }
    for entry in &entries {
        let slash = if entry.is_folder { "/" } else { "" };
        let mut link = Vec::new();
        percent_encode_path(entry.name.as_bytes(), &mut link);
        let size = if entry.is_folder { "-".to_owned() } else { entry.size.to_string() };
        page += &format!(
            "<tr><td><a href=\"./{}{slash}\">{}{slash}</a></td><td>{}</td><td>{size}</td></tr>\n",
            escaped(&String::from_utf8_lossy(&link)),
            escaped(&entry.name),
            entry.modified.map(time).unwrap_or_default(),
        );
    }
    page += "</table>\n</body>\n</html>\n";
    Ok(page)
}

fn entries(folder: &OwnedFd, hidden: bool) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        // Paths that are not UTF-8 are not served either.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") || (!hidden && name.starts_with('.')) {
            continue;
        }
        // Links are shown as they are: whether they may be followed is decided when they are opened.
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
            continue;
        }
        let seconds = u64::try_from(stat.st_mtime).ok();
        entries.push(Entry {
            name: name.to_owned(),
            is_folder: kind == FileType::Directory,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: seconds
                .and_then(|seconds| UNIX_EPOCH.checked_add(std::time::Duration::from_secs(seconds))),
        });
        if entries.len() == MOST_ENTRIES {
            break;
        }
    }
    Ok(entries)
}

/// Returns a time in UTC, to the second.
fn time(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = rfc3339(since.as_secs() * 1000);
    // `2015-08-30T12:36:00.000Z`
    text.get(..19).map(|text| text.replace('T', " ")).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
