//! A profile as pprof has it (`profile.proto`), for `go tool pprof` and whatever else reads it; written by hand.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::modules::Modules;
use super::{Report, name};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// Numbers of texts in the table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// Texts by their numbers; the first one is empty.
struct Texts {
    known: HashMap<String, i64>,
    all: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = self.all.len() as i64;
        self.known.insert(text.to_owned(), number);
        self.all.push(text.to_owned());
        number
    }
}

impl Profile {
    pub(super) fn of(report: &Report, modules: &Modules) -> Profile {
        let mut texts = Texts { known: HashMap::from([(String::new(), 0)]), all: vec![String::new()] };
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(report.took);
        let counted = report.counted.iter();
        let mut profile = Profile {
            sample_type: counted
                .map(|(kind, unit)| ValueType { kind: texts.number(kind), unit: texts.number(unit) })
                .collect(),
            time_nanos: nanos(since),
            duration_nanos: nanos(report.took),
            period: report.period,
            comment: report.notes.iter().map(|note| texts.number(note)).collect(),
            ..Profile::default()
        };
        profile.mapping = (1..)
            .zip(modules.all())
            .map(|(id, module)| Mapping {
                id,
                memory_start: module.start,
                memory_limit: module.end,
                file_offset: module.offset,
                filename: texts.number(&module.path),
                has_functions: true,
            })
            .collect();
        let shown = profile.sample_type.get(report.first).copied().unwrap_or_default();
        profile.default_sample_type = shown.kind;
        let (kind, unit) = report.period_of;
        profile.period_type = Some(ValueType { kind: texts.number(kind), unit: texts.number(unit) });
        profile.add(report, modules, &mut texts);
        profile.string_table = texts.all;
        profile
    }

    /// Adds the stacks, with the data of their calls.
    fn add(&mut self, report: &Report, modules: &Modules, texts: &mut Texts) {
        let (mut locations, mut functions) = (HashMap::new(), HashMap::new());
        let key = texts.number("thread");
        for stack in &report.stacks {
            let location_id = stack.calls.iter().map(|call| {
                *locations.entry(*call).or_insert_with(|| {
                    let id = self.location.len() as u64 + 1;
                    let name = texts.number(&name(modules, *call));
                    let function_id = *functions.entry(name).or_insert_with(|| {
                        let id = self.function.len() as u64 + 1;
                        // pprof takes a name apart, like one of C++, unless the symbol's is another one.
                        let symbol = modules.name(*call);
                        let system_name = symbol.map_or(name, |symbol| texts.number(&symbol));
                        self.function.push(Function { id, name, system_name });
                        id
                    });
                    let mapping_id = modules.position(*call).map_or(0, |at| at as u64 + 1);
                    let address = if mapping_id == 0 { 0 } else { *call };
                    let line = vec![Line { function_id }];
                    self.location.push(Location { id, mapping_id, address, line });
                    id
                })
            });
            let location_id = location_id.collect();
            let thread = stack.thread.iter();
            self.sample.push(Sample {
                location_id,
                value: stack.values.clone(),
                label: thread.map(|thread| Label { key, str: texts.number(thread) }).collect(),
            });
        }
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
