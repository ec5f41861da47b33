//! The seed formats: configurations of Sigma 0.1.0-alpha and of NiubiX.
//!
//! A document of either program is translated once into Sigma's own format (settings, routes, upstreams). All later
//! steps see only the translated document. Three rules apply to both formats:
//!
//! - if the original had a bug, its intent is translated;
//! - an untranslatable part is an error if ignoring it would be unsafe, otherwise a warning;
//! - all problems of a document are reported at once, each with its place and its remedy.

mod foreign;
mod keys;
mod niubix;
mod niubix_edge;
mod pass;
mod rewrite;
mod router_plugin;
mod server;
mod sigma;
#[cfg(test)]
mod tests;
mod vertx;

use serde_json::{Map, Value};
use sigma_schema::formats::{Formats, OwnFormat, Translated};

use foreign::recognised;
use keys::{Report, SourceValue};
use sigma_schema::document::Document;
use sigma_schema::problem::Problem;

/// A configuration format of one of Sigma's two predecessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `sigma.json` of Sigma 0.1.0-alpha.
    Sigma,
    /// `niubix.json` of NiubiX 0.0.1.
    Niubix,
}

impl Format {
    /// Returns the usual name of the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Sigma => SIGMA_JSON,
            Format::Niubix => NIUBIX_JSON,
        }
    }
}

/// The file of Sigma 0.1.0-alpha.
pub const SIGMA_JSON: &str = "sigma.json";

/// The file of NiubiX.
pub const NIUBIX_JSON: &str = "niubix.json";

/// Maximum size of `options.json` in bytes; it has a dozen numbers.
const COMPANION_BYTES: usize = 1 << 20;

/// Detects a seed format by a top-level key: `proxy-server` is Sigma's, `apps` NiubiX's.
pub fn detect(document: &Document) -> Option<Format> {
    if document.value.get("proxy-server").is_some() {
        Some(Format::Sigma)
    } else if document.value.get("apps").is_some() {
        Some(Format::Niubix)
    } else {
        None
    }
}

/// Translates a document of a seed format into Sigma's own format.
///
/// `options_json` is the document of `-options`, `instances` the number of `-instance`; both belong to Sigma's command
/// line. Returns the translated document (settings, `routes` and `upstreams` at the top level) with the warnings. If
/// there is at least one error, returns all errors and warnings. Pointers and lines refer to the source document. A
/// problem in `options_json` says so in its message.
pub fn translate(
    format: Format,
    document: &Document,
    options_json: Option<&Document>,
    instances: Option<u16>,
) -> Result<(Value, Vec<Problem>), Vec<Problem>> {
    let mut report = Report::new(document);
    let root = SourceValue::root(document);
    let mut target = match format {
        Format::Sigma => sigma::translate(&root, &mut report),
        Format::Niubix => niubix::translate(&root, &mut report),
    };
    if let Some(instances) = instances {
        set_workers(&mut target, instances, &mut report);
    }
    let (mut errors, mut warnings) = report.finish();
    if let Some(options) = options_json {
        let mut report = Report::new(options);
        sigma::options(&SourceValue::root(options), &mut target, &mut report);
        let (more_errors, more_warnings) = report.finish();
        errors.extend(more_errors);
        warnings.extend(more_warnings);
    }
    if errors.is_empty() {
        Ok((Value::Object(target), warnings))
    } else {
        errors.extend(warnings);
        Err(errors)
    }
}

fn set_workers(target: &mut Map<String, Value>, instances: u16, report: &mut Report<'_>) {
    if instances == 0 {
        report.error("", "range", "-instance 0: at least one instance is needed", "give -instance 1 or more");
    } else {
        target.insert("workers".into(), instances.into());
    }
}

/// Translates both seed formats before the check. Other files are in Sigma's own format, or refused with the name of
/// their program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seeds<'a> {
    /// Text of `options.json`, which belongs to the `sigma.json` of 0.1.0-alpha.
    pub companion: Option<&'a str>,
    /// The number of `-instance` on the command line of 0.1.0-alpha.
    pub instances: Option<u16>,
    /// The command `start` of 0.1.0-alpha, which runs it in the background.
    pub in_background: bool,
}

impl Formats for Seeds<'_> {
    fn detect(&self, document: &Document) -> Option<&'static str> {
        detect(document).map(Format::name)
    }

    fn refuse(&self, document: &Document) -> Option<Problem> {
        recognised(document)
    }

    fn refuse_text(&self, text: &str) -> Option<Problem> {
        foreign::recognised_text(text)
    }

    fn translate(&self, document: &Document) -> Translated {
        let Some(format) = detect(document) else { return OwnFormat.translate(document) };
        let companion = self.companion.map(|text| Document::parse(text, COMPANION_BYTES)).transpose()?;
        let (mut value, warnings) = translate(format, document, companion.as_ref(), self.instances)?;
        if self.in_background && format == Format::Sigma {
            sigma::go_to_background(&mut value);
        }
        Ok((value, warnings))
    }
}

/// Returns whether `text` is a valid resource id.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
