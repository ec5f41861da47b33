//! `static-files`: requests are answered from a folder.
//!
//! Files are opened and read on blocking threads, a chunk at a time and one chunk ahead of the
//! client; a worker never waits for a disk, and no file is in memory as a whole.

mod body;
mod fallback;
mod folder;
mod listing;
mod media_type;
mod precompressed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::condition::{Outcome, Validators};
use sigma_http::range::Ranges;
use sigma_http::{BodyLength, HeaderId, Headers, Method};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin::{
    Configuration, Context, Descriptor, Env, FileAccess, FileMember, Phase, PhaseSet, Plugin, Reply, Step,
    StreamBody,
};
use sigma_schema::template::Template;

use body::FileBody;
use fallback::Fallback;
use folder::{PathLookup, PathTarget, Symlinks};
use precompressed::Precompressed;

use sigma_plugin_kit::uri_template::UriTemplate;

/// The plugin.
pub(crate) static STATIC_FILES: Descriptor = Descriptor {
    name: "static-files",
    priority: 500,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    variables: &[
        VariableField::shown("try.*", VariableForm::Template),
        VariableField::shown("fallback.pass", VariableForm::Template),
        VariableField::shown("fallback.uri", VariableForm::Template),
        VariableField::shown("folder_fallback", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(StaticFiles { conf: Arc::new(build.config()?) })),
    files: &[FileMember { name: "root", access: FileAccess::ReadFolder }],
    ..Descriptor::of::<Conf>()
};

/// Serves files of a folder.
///
/// Sigma's own. GET and HEAD, validators and conditions (RFC 9110 §13), single and multiple ranges (§14), index files,
/// redirects for folders without a final slash. With `precompressed`, clients that accept the coding get
/// `page.html.br`, `.zst` or `.gz` instead of `page.html`, if `page.html` itself may be served. The compressed file
/// has its own entity tag and ranges. Update these files together with the original. No path leads out of the folder.
/// The route needs no upstream; plugins that guard it run earlier.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Conf {
    /// The folder, an absolute path.
    #[schemars(regex(pattern = "^/"))]
    root: String,
    /// Prefix to strip from the path, e.g. `/static`; other paths are not found.
    #[schemars(extend("default" = ""))]
    prefix: String,
    /// Paths to try in order, texts with variables; the first existing one is served. One that ends with `/` is a folder,
    /// whose index is served; a folder without an index gets 403. Default: the path of the request.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = 16))]
    r#try: Option<Vec<Template>>,
    /// The response to paths without a file: a file below the folder (`/index.html` for applications of a single page),
    /// `{pass: TARGET}` for the upstream of the route, `{uri: TARGET}` for another route, or `{status: STATUS}`.
    /// Default: 404. Another route gets request bodies up to 1 MiB, and its response is in memory up to 1 MiB.
    fallback: Option<Fallback>,
    /// Whether folders without an index get a page with their files and folders.
    #[schemars(extend("default" = false))]
    listing: bool,
    /// Index files of a folder; the first existing one is served.
    #[schemars(inner(regex(pattern = "^[^/]+$")), extend("default" = ["index.html"]))]
    index: Vec<String>,
    /// Index files that the upstream of the route runs, such as `index.php`: a request for a folder with one of them
    /// continues with its path.
    #[schemars(inner(regex(pattern = "^[^/]+$")), extend("default" = []))]
    pass_index: Vec<String>,
    /// Index files that another route serves: a request for a folder with one of them gets the response to the path of
    /// the file, from the route for it. The response is in memory up to 1 MiB.
    #[schemars(inner(regex(pattern = "^[^/]+$")), extend("default" = []))]
    route_index: Vec<String>,
    /// Path and query of another route for folders without an index, a text with variables.
    #[schemars(with = "Option<String>", regex(pattern = "^/"))]
    folder_fallback: Option<UriTemplate>,
    /// Whether a folder without an index counts as missing, so that the next path or the fallback applies.
    #[schemars(extend("default" = false))]
    skip_bare_folders: bool,
    /// Whether the upstream of the route gets the requests for existing files, so that the plugin only checks them.
    #[schemars(extend("default" = false))]
    pass_found: bool,
    /// Whether existing files refuse methods other than GET and HEAD with 405, although `fallback` supports them. By
    /// default the fallback gets all such requests.
    #[schemars(extend("default" = false))]
    strict_methods: bool,
    /// Status of the redirect to the path of a folder with its final slash.
    #[schemars(extend("enum" = [301, 302, 307, 308], "default" = 301))]
    redirect_status: u16,
    /// Whether the path of a file with a final slash is redirected to the path without it.
    #[schemars(extend("default" = false))]
    redirect_files: bool,
    /// Symbolic links below the folder: not followed, followed as far as they stay in it, or followed
    /// anywhere. `inside` needs Linux 5.6; before it, it is `deny`.
    #[schemars(extend("default" = "inside"))]
    symlinks: Symlinks,
    /// Whether files and folders whose name begins with a dot are served.
    #[schemars(extend("default" = false))]
    hidden: bool,
    /// Media types by file name extension; they have precedence over the built-in ones.
    #[schemars(extend("additionalProperties" = {"type": "string", "pattern": "^[\\x21-\\x7e]+/[\\x20-\\x7e]+$"}, "default" = {}))]
    types: BTreeMap<String, String>,
    /// Whether `types` replace the built-in types.
    #[schemars(extend("default" = false))]
    only_types: bool,
    /// The media type of files with an unknown extension.
    #[schemars(regex(pattern = r"^[\x21-\x7e]+/[\x20-\x7e]+$"), extend("default" = "application/octet-stream"))]
    default_type: String,
    /// The dates of `If-Modified-Since` for which a file is unmodified: its own date and later ones, its own date alone,
    /// or none.
    #[schemars(extend("default" = "before"))]
    if_modified_since: IfModifiedSince,
    /// Charset in the type of text files; empty: none.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]*$"), extend("default" = "utf-8"))]
    charset: String,
    /// Codings of precompressed files next to the originals: `.br`, `.zst` and `.gz`. The client's preferred coding
    /// is served, on a tie the first one here.
    #[schemars(extend("default" = []))]
    precompressed: Vec<Precompressed>,
    /// `Cache-Control` of files.
    #[schemars(regex(pattern = r"^[\x20-\x7e]+$"))]
    cache_control: Option<String>,
}

/// The dates for which a file is unmodified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum IfModifiedSince {
    Before,
    Exact,
    Off,
}

impl Configuration for Conf {
    fn check(&self) -> Result<(), String> {
        let prefix = &self.prefix;
        if prefix.is_empty() || prefix.starts_with('/') {
            return Ok(());
        }
        Err(format!("`prefix` `{prefix}` does not begin with a slash"))
    }
}

struct StaticFiles {
    conf: Arc<Conf>,
}

impl Conf {
    /// The segments below the folder that a path names; None for a path that cannot be found.
    fn segments(&self, path: &[u8]) -> Option<Vec<String>> {
        let rest = path.strip_prefix(self.prefix.trim_end_matches('/').as_bytes())?;
        if !rest.is_empty() && rest[0] != b'/' {
            return None;
        }
        self.segments_of(rest)
    }

    /// The path and query of a file below the folder.
    fn target_of(&self, segments: &[String], ctx: &Context) -> Vec<u8> {
        let mut target = Vec::new();
        let path = format!("{}/{}", self.prefix.trim_end_matches('/'), segments.join("/"));
        percent_encode_path(path.as_bytes(), &mut target);
        if let Some(query) = ctx.outgoing_query() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        target
    }

    /// Returns whether a path with a final slash names a file. Blocks.
    fn is_file(&self, root: &OwnedFd, wanted: &PathLookup) -> bool {
        let file = PathLookup { segments: wanted.segments.clone(), is_folder: false };
        wanted.is_folder && matches!(folder::find(root, self, &file, &[]), Ok(PathTarget::File { .. }))
    }

    /// The segments of a path below the folder.
    fn segments_of(&self, path: &[u8]) -> Option<Vec<String>> {
        let path = std::str::from_utf8(path).ok()?;
        let segments = path.split('/').filter(|segment| !segment.is_empty() && *segment != ".");
        let segments: Vec<String> = segments.map(str::to_owned).collect();
        let is_wrong = |segment: &String| {
            segment == ".." || segment.contains('\0') || (!self.hidden && segment.starts_with('.'))
        };
        (!segments.iter().any(is_wrong)).then_some(segments)
    }

    /// The paths to look up, in their order.
    fn wanted(&self, ctx: &Context) -> Vec<PathLookup> {
        let wanted = |path: &[u8]| {
            let segments = self.segments(path)?;
            let is_folder = path.ends_with(b"/") || segments.is_empty();
            Some(PathLookup { segments, is_folder })
        };
        match &self.r#try {
            None => wanted(&ctx.uri).into_iter().collect(),
            Some(texts) => texts.iter().filter_map(|text| wanted(&text.rendered(ctx))).collect(),
        }
    }

    /// The index file of another handler, if the path is a folder that has one. Blocks.
    fn foreign_index(&self, root: &OwnedFd, wanted: &PathLookup) -> Option<Target> {
        let passed = self.index_among(&self.pass_index, root, wanted).map(Target::Passed);
        passed.or_else(|| self.index_among(&self.route_index, root, wanted).map(Target::Routed))
    }

    /// The segments of the first of these files in a folder. Blocks.
    fn index_among(&self, names: &[String], root: &OwnedFd, wanted: &PathLookup) -> Option<Vec<String>> {
        let indexes = names.iter().filter(|_| wanted.is_folder);
        let files = indexes.map(|name| {
            let segments = wanted.segments.iter().chain([name]).cloned().collect();
            PathLookup { segments, is_folder: false }
        });
        let is_file =
            |file: &PathLookup| matches!(folder::find(root, self, file, &[]), Ok(PathTarget::File { .. }));
        files.into_iter().find(is_file).map(|file| file.segments)
    }

    /// Looks the paths up. Blocks.
    fn look(
        &self,
        all: &[PathLookup],
        codings: &[Precompressed],
        request: &RequestedPath,
    ) -> io::Result<Target> {
        let root = folder::root(self)?;
        let is_absent = |found: &io::Result<PathTarget>| found.as_ref().is_err_and(folder::is_absent);
        for wanted in all {
            if let Some(foreign) = self.foreign_index(&root, wanted) {
                return Ok(match request.lacks_slash_of(wanted) {
                    true => Target::Found(PathTarget::Folder),
                    false => foreign,
                });
            }
            let found = folder::find(&root, self, wanted, codings);
            if is_absent(&found) {
                if self.redirect_files && self.is_file(&root, wanted) {
                    return Ok(Target::Slashed);
                }
                continue;
            }
            match found? {
                // An index is served at the path of its folder, so that relative links of it work.
                PathTarget::File { .. } | PathTarget::Bare(_) if request.lacks_slash_of(wanted) => {
                    return Ok(Target::Found(PathTarget::Folder));
                }
                PathTarget::File { .. } if self.pass_found => return Ok(Target::Present),
                file @ PathTarget::File { .. } => return Ok(Target::Found(file)),
                PathTarget::Nothing if self.redirect_files && wanted.is_folder => return Ok(Target::Slashed),
                PathTarget::Folder if self.r#try.is_none() => return Ok(Target::Found(PathTarget::Folder)),
                PathTarget::Bare(folder) if self.listing => {
                    return listing::page(&folder, &request.path, self.hidden).map(Target::Listing);
                }
                PathTarget::Bare(_) if self.skip_bare_folders => {}
                PathTarget::Bare(_) if self.folder_fallback.is_some() => return Ok(Target::Bare),
                PathTarget::Bare(_) if self.r#try.is_some() => return Ok(Target::Forbidden),
                PathTarget::Folder | PathTarget::Bare(_) | PathTarget::Nothing => {}
            }
        }
        if let Some(Fallback::File(path)) = &self.fallback
            && let Some(segments) = self.segments_of(path.as_bytes())
        {
            let wanted = PathLookup { is_folder: path.ends_with('/'), segments };
            let found = folder::find(&root, self, &wanted, codings);
            if !is_absent(&found) {
                return found.map(Target::Found);
            }
        }
        Ok(Target::Nothing)
    }
}

/// The path of the request.
struct RequestedPath {
    path: Vec<u8>,
    segments: Option<Vec<String>>,
}

impl RequestedPath {
    /// Returns true if the request is for this folder, without its final slash.
    fn lacks_slash_of(&self, wanted: &PathLookup) -> bool {
        wanted.is_folder && !self.path.ends_with(b"/") && self.segments.as_ref() == Some(&wanted.segments)
    }
}

/// The result of a look-up.
enum Target {
    Found(PathTarget),
    /// A page with the content of a folder.
    Listing(String),
    /// An index file for the upstream, by its segments.
    Passed(Vec<String>),
    /// An index file for another route, by its segments.
    Routed(Vec<String>),
    /// A file that the upstream serves.
    Present,
    /// A file whose path has a final slash.
    Slashed,
    /// A folder without an index.
    Forbidden,
    /// A folder without an index, which another route serves.
    Bare,
    Nothing,
}

impl Plugin for StaticFiles {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if is_other_method(ctx) && !self.conf.pass_found {
            match &self.conf.fallback {
                Some(fallback) if fallback.takes_all_methods() && !self.conf.strict_methods => {
                    return fallback.step(ctx);
                }
                Some(Fallback::File(_)) => return not_allowed(),
                _ => {}
            }
        }
        let wanted = self.conf.wanted(ctx);
        if wanted.is_empty() && !matches!(self.conf.fallback, Some(Fallback::File(_))) {
            return nothing(&self.conf, ctx);
        }
        let request = RequestedPath { path: ctx.uri.clone(), segments: self.conf.segments(&ctx.uri) };
        let conf = Arc::clone(&self.conf);
        let codings = precompressed::accepted(&conf.precompressed, &ctx.request.headers);
        let opening = async move {
            let find = move || (conf.look(&wanted, &codings, &request), conf);
            tokio::task::spawn_blocking(find).await
        };
        Step::wait(opening, move |opened, ctx, _env| match opened {
            Ok((found, conf)) => respond(found, &conf, ctx),
            Err(error) => {
                tracing::error!(%error, "cannot look up a file");
                Step::status(500)
            }
        })
    }
}

/// Returns the step for a path without a file.
fn nothing(conf: &Conf, ctx: &mut Context) -> Step {
    match &conf.fallback {
        Some(fallback) => fallback.step(ctx),
        None => Step::status(404),
    }
}

/// Returns true if files do not support the method.
fn is_other_method(ctx: &Context) -> bool {
    !matches!(ctx.request.method, Method::Get | Method::Head)
}

fn not_allowed() -> Step {
    Reply::new(405).header(HeaderId::Allow.name(), "GET, HEAD").into()
}

fn respond(found: io::Result<Target>, conf: &Conf, ctx: &mut Context) -> Step {
    match found {
        Ok(
            Target::Found(PathTarget::File { .. } | PathTarget::Folder)
            | Target::Listing(_)
            | Target::Slashed,
        ) if is_other_method(ctx) => not_allowed(),
        Ok(Target::Found(PathTarget::File { file, name, coding, size, modified })) => {
            let media_type = media_type::of(&name, conf).unwrap_or_else(|| conf.default_type.clone());
            Served { file, media_type, coding: coding.map(Precompressed::token), size, modified, conf }
                .respond(ctx)
        }
        Ok(Target::Found(PathTarget::Folder)) => to_folder(conf, ctx).into(),
        Ok(Target::Slashed) => to_file(conf, ctx).into(),
        Ok(Target::Present) => Step::Next,
        Ok(Target::Routed(segments)) => {
            let target = conf.target_of(&segments, ctx);
            fallback::ask(ctx, target)
        }
        Ok(Target::Listing(page)) => {
            Reply::new(200).header(HeaderId::ContentType.name(), "text/html; charset=utf-8").text(page).into()
        }
        Ok(Target::Passed(segments)) => {
            ctx.target = conf.target_of(&segments, ctx);
            Step::Next
        }
        Ok(Target::Forbidden) => Step::status(403),
        Ok(Target::Bare) => match &conf.folder_fallback {
            Some(target) => fallback::ask(ctx, fallback::rendered(target, ctx)),
            None => Step::status(403),
        },
        Ok(Target::Found(PathTarget::Bare(_) | PathTarget::Nothing) | Target::Nothing) => nothing(conf, ctx),
        Err(error) if folder::is_absent(&error) => nothing(conf, ctx),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => Step::status(403),
        Err(error) => {
            tracing::error!(%error, root = %conf.root, "cannot open a file");
            Step::status(500)
        }
    }
}

/// The same path with a slash at the end, so that relative links of the index work.
fn to_folder(conf: &Conf, ctx: &Context) -> Reply {
    redirect(conf, ctx, &[&ctx.uri, &b"/"[..]].concat())
}

/// The same path without its slash at the end.
fn to_file(conf: &Conf, ctx: &Context) -> Reply {
    let end = ctx.uri.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    redirect(conf, ctx, &ctx.uri[..end])
}

/// A redirect to another path, with the query of the request.
fn redirect(conf: &Conf, ctx: &Context, path: &[u8]) -> Reply {
    // One slash at the beginning: with two it would name a host (RFC 3986 §4.2).
    let path = path.iter().position(|b| *b != b'/').map_or(&b""[..], |at| &path[at..]);
    let mut location = b"/".to_vec();
    percent_encode_path(path, &mut location);
    if let Some(query) = ctx.request.query() {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    Reply::new(conf.redirect_status).header(HeaderId::Location.name(), location).text("")
}

/// A file that was found.
struct Served<'c> {
    file: File,
    media_type: String,
    coding: Option<&'static str>,
    size: u64,
    modified: Option<SystemTime>,
    conf: &'c Conf,
}

impl Served<'_> {
    fn respond(self, ctx: &Context) -> Step {
        let validators = validators(self.size, self.modified, self.coding);
        let headers = &ctx.request.headers;
        match validators.judge(headers) {
            Outcome::Failed => return self.head(412, &validators).text("").into(),
            Outcome::NotModified if self.is_unmodified(headers, &validators) => {
                return self.head(304, &validators).text("").into();
            }
            Outcome::NotModified | Outcome::Go => {}
        }
        let ranges = match headers.find(b"Range") {
            Some(range) if ctx.request.method == Method::Get && validators.allows_range(headers) => {
                Ranges::parse(range, self.size)
            }
            _ => Ranges::Whole,
        };
        let mut head = self.head(200, &validators).header("Accept-Ranges", "bytes");
        if let Some(coding) = self.coding {
            head = head.header("Content-Encoding", coding);
        }
        let body = match ranges {
            Ranges::Whole => {
                head = head.header(HeaderId::ContentType.name(), self.media_type);
                FileBody::part(self.file, 0, self.size)
            }
            Ranges::One(range) => {
                head.status = 206;
                head = head
                    .header(HeaderId::ContentType.name(), self.media_type)
                    .header("Content-Range", range.content_range(self.size));
                FileBody::part(self.file, range.start, range.length())
            }
            // Parts of encoded content: nothing would say that the coding is theirs and not the whole's.
            Ranges::Many(_) if self.coding.is_some() => {
                head = head.header(HeaderId::ContentType.name(), self.media_type);
                FileBody::part(self.file, 0, self.size)
            }
            Ranges::Many(ranges) => {
                head.status = 206;
                let boundary = boundary();
                head = head.header(
                    HeaderId::ContentType.name(),
                    format!("multipart/byteranges; boundary={boundary}"),
                );
                FileBody::multipart(self.file, &ranges, self.size, &self.media_type, &boundary)
            }
            Ranges::Unsatisfiable => {
                head.status = 416;
                return head.header("Content-Range", format!("bytes */{}", self.size)).into();
            }
        };
        let length = BodyLength::Known(body.length());
        Step::Stream(Box::new(head), StreamBody { length, source: Box::new(body) })
    }

    /// Returns whether the dates of the configuration allow a 304. A tag decides alone.
    fn is_unmodified(&self, headers: &Headers, validators: &Validators) -> bool {
        if headers.find(b"If-None-Match").is_some() {
            return true;
        }
        let since = headers.find(b"If-Modified-Since");
        match self.conf.if_modified_since {
            IfModifiedSince::Before => true,
            IfModifiedSince::Exact => since
                .is_some_and(|since| validators.last_modified().is_some_and(|own| own.as_bytes() == since)),
            IfModifiedSince::Off => false,
        }
    }

    fn head(&self, status: u16, validators: &Validators) -> Reply {
        let mut head = Reply::new(status);
        if let Some(tag) = &validators.tag {
            head = head.header("ETag", tag.to_vec());
        }
        if let Some(modified) = validators.last_modified() {
            head = head.header("Last-Modified", modified);
        }
        if !self.conf.precompressed.is_empty() {
            head = head.header("Vary", "Accept-Encoding");
        }
        match &self.conf.cache_control {
            Some(cache_control) => head.header("Cache-Control", cache_control.clone()),
            None => head,
        }
    }
}

/// Returns the validators of a file of this size and age; `coding` names the coding of its content, if it has
/// one. Its tag always differs from the tag of the content itself.
fn validators(size: u64, modified: Option<SystemTime>, coding: Option<&str>) -> Validators {
    let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let nanos = since.map_or(0, |since| since.as_nanos());
    let modified = since.map(|since| UNIX_EPOCH + Duration::from_secs(since.as_secs()));
    let (dash, coding) = coding.map_or(("", ""), |coding| ("-", coding));
    let tag = format!("\"{nanos:x}-{size:x}{dash}{coding}\"");
    Validators { tag: Some(tag.into_bytes().into()), modified }
}

/// Returns the boundary of a multipart body: a text that no file holds by chance.
fn boundary() -> String {
    use std::hash::{BuildHasher, RandomState};
    let part = |n: u8| RandomState::new().hash_one(n);
    format!("sigma-{:016x}{:016x}", part(0), part(1))
}
