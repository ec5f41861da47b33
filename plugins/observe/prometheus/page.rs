//! The page in the making, in whatever form it is wanted.

use std::collections::HashSet;

use super::native::Scale;
use super::protobuf::{Families, Family};
use super::series::Registry;
use super::text::{Form, Look, Repeated, Text};

/// Written output of a page that has not left, and the parts of its next lines.
pub(super) struct Page {
    pub(super) prefix: Box<str>,
    pub(super) form: Form,
    /// The metrics that were begun, where names may not stand there twice.
    begun: HashSet<String>,
    pub(super) text: Text,
    /// Name and labels of a line.
    pub(super) head: Repeated,
    /// The same for lines of histograms, up to the bound of buckets.
    pub(super) bucket: Repeated,
    pub(super) count: Repeated,
    pub(super) sum: Repeated,
    /// The ends of heads of buckets, by bound.
    pub(super) bounds: Vec<Repeated>,
    /// The buckets of the histogram at hand, added up over workers.
    pub(super) sums: Vec<u64>,
    /// The messages of the page.
    pub(super) families: Families,
    /// The upper bounds of buckets as numbers.
    pub(super) limits: Box<[f64]>,
    pub(super) native: Option<Scale>,
}

impl Page {
    pub(super) fn new(registry: &Registry, look: Look) -> Page {
        let bounds = registry.settings.buckets.iter().map(|bound| bound.to_string());
        let bounds =
            bounds.chain(["+Inf".to_owned()]).map(|bound| Repeated::of(format!(",le=\"{bound}\"}} ")));
        Page {
            prefix: registry.settings.prefix.as_str().into(),
            form: look.form,
            begun: HashSet::new(),
            text: Text::new(look),
            head: Repeated::default(),
            bucket: Repeated::default(),
            count: Repeated::default(),
            sum: Repeated::default(),
            bounds: bounds.collect(),
            sums: Vec::new(),
            families: Families::default(),
            limits: registry.settings.buckets.clone(),
            native: registry.settings.native.clone(),
        }
    }

    pub(super) fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let (name, kind) = match self.form {
            Form::Text => (name, kind),
            Form::OpenMetrics => self.named(name, kind),
            Form::Protobuf => {
                return self.families.begin(&mut self.text, Family::new(&self.prefix, name, kind, help));
            }
        };
        let prefix = &self.prefix;
        self.text.show(format_args!("# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}\n"));
    }

    /// Returns the name of a metric in OpenMetrics, so that its series keep their names: a counter loses
    /// `_total`, and one whose series lack it is `unknown`, as is one whose name would be another metric's.
    fn named<'n>(&mut self, name: &'n str, kind: &'n str) -> (&'n str, &'n str) {
        let (name, kind) = match (kind, name.strip_suffix("_total")) {
            ("counter", Some(short)) if !self.begun.contains(short) => (short, kind),
            ("counter", _) => (name, "unknown"),
            _ => (name, kind),
        };
        self.begun.insert(name.to_owned());
        (name, kind)
    }

    pub(super) fn line(&mut self, name: &str, labels: &str, value: u64) {
        if self.form == Form::Protobuf {
            return self.families.number(&mut self.text, labels, value);
        }
        match labels {
            "" => self.head.set(&[&self.prefix, name, " "]),
            labels => self.head.set(&[&self.prefix, name, "{", labels, "} "]),
        }
        self.text.repeat(&mut self.head);
        self.text.number(value);
        self.text.write(b"\n");
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, "gauge", help);
        self.line(name, "", value);
    }
}
