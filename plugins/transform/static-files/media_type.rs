//! Media types by file name extension (IANA's registry, and what browsers agree on).

use std::collections::BTreeMap;

use super::Conf;

/// The type of a file, if its extension has one. Types of the configuration go before the built-in ones, to which the
/// charset is added.
pub(super) fn of(name: &str, conf: &Conf) -> Option<String> {
    match conf.only_types {
        true => conf.types.get(&extension(name)).cloned(),
        false => of_both(name, &conf.types, &conf.charset),
    }
}

fn extension(name: &str) -> String {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    extension.unwrap_or_default()
}

fn of_both(name: &str, own: &BTreeMap<String, String>, charset: &str) -> Option<String> {
    let extension = extension(name);
    if let Some(media_type) = own.get(&extension) {
        return Some(media_type.clone());
    }
    let media_type = known(&extension)?;
    if media_type.starts_with("text/") && !charset.is_empty() {
        return Some(format!("{media_type}; charset={charset}"));
    }
    Some(media_type.to_owned())
}

fn known(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "html" | "htm" | "shtml" => "text/html",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "txt" | "text" | "log" | "conf" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "csv" => "text/csv",
        "xml" | "xsl" => "text/xml",
        "vtt" => "text/vtt",
        "ics" => "text/calendar",
        "json" | "map" => "application/json",
        "jsonld" => "application/ld+json",
        "webmanifest" => "application/manifest+json",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "rtf" => "application/rtf",
        "xhtml" => "application/xhtml+xml",
        "atom" => "application/atom+xml",
        "rss" => "application/rss+xml",
        "yaml" | "yml" => "application/yaml",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "bz2" => "application/x-bzip2",
        "xz" => "application/x-xz",
        "zst" => "application/zstd",
        "7z" => "application/x-7z-compressed",
        "tar" => "application/x-tar",
        "rar" => "application/vnd.rar",
        "jar" | "war" => "application/java-archive",
        "doc" => "application/msword",
        "xls" => "application/vnd.ms-excel",
        "ppt" => "application/vnd.ms-powerpoint",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "m3u8" => "application/vnd.apple.mpegurl",
        "epub" => "application/epub+zip",
        "png" => "image/png",
        "apng" => "image/apng",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "svg" | "svgz" => "image/svg+xml",
        "ico" => "image/x-icon",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "eot" => "application/vnd.ms-fontobject",
        "mp3" => "audio/mpeg",
        "oga" | "ogg" | "opus" => "audio/ogg",
        "wav" => "audio/wav",
        "flac" => "audio/flac",
        "m4a" => "audio/mp4",
        "aac" => "audio/aac",
        "mid" | "midi" => "audio/midi",
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "ogv" => "video/ogg",
        "mpeg" | "mpg" => "video/mpeg",
        "mov" => "video/quicktime",
        "avi" => "video/x-msvideo",
        "ts" => "video/mp2t",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_by_extension() {
        let own = BTreeMap::from([("html".to_owned(), "text/x-own".to_owned())]);
        let check = |name: &str, charset: &str, expected: Option<&str>| {
            assert_eq!(of_both(name, &own, charset).as_deref(), expected, "{name}");
        };
        check("a.css", "utf-8", Some("text/css; charset=utf-8"));
        check("a.CSS", "", Some("text/css"));
        check("a.tar.gz", "utf-8", Some("application/gzip"));
        check("a.html", "utf-8", Some("text/x-own"));
        check("Makefile", "utf-8", None);
    }
}
