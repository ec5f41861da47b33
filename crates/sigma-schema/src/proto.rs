//! Protocol Buffers definitions: a `.proto` file, or compiled ones in base64.

pub mod http_rule;

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use protox::prost::Message;
use protox::prost_reflect::DescriptorPool;
use protox::prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use protox::{Compiler, Error};

/// The file's name in messages.
const NAME: &str = "content";

/// The folder of the files that every compiler includes.
const WELL_KNOWN: &str = "google/protobuf/";

/// Files that other services import, besides the compiler's own.
const GOOGLE_APIS: [(&str, &str); 3] = [
    ("google/api/annotations.proto", include_str!("proto/google/api/annotations.proto")),
    ("google/api/http.proto", include_str!("proto/google/api/http.proto")),
    ("google/rpc/status.proto", include_str!("proto/google/rpc/status.proto")),
];

/// Checks that a definition is complete: every name is defined in it or in a bundled file. The bundled files are
/// `google/protobuf/` and Google's files for gRPC over HTTP. Like APISIX, it tries a `.proto` text first.
///
/// # Errors
/// Returns the first mistake, with line and column where there are any.
pub fn check(content: &str) -> Result<(), String> {
    read(content, |content| text(content).map(drop), descriptors)
}

/// Returns the messages and services of a definition, as [`check`] reads it.
///
/// # Errors
/// Returns the first mistake as a sentence.
pub fn pool(content: &str) -> Result<DescriptorPool, String> {
    read(content, text, |set| {
        descriptors(set)?;
        // The names of a set are first resolved here.
        caught(|| resolved(set))
    })
}

/// Reads a definition as a `.proto` text, or else as a descriptor set.
fn read<T>(
    content: &str,
    of_text: impl Fn(&str) -> Result<T, String>,
    of_set: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<T, String> {
    let reason = match caught(|| of_text(content)) {
        Ok(read) => return Ok(read),
        Err(reason) => reason,
    };
    // Apart from line breaks, which tools add to base64, no .proto text is also base64.
    let packed: String = content.lines().map(str::trim_end).collect();
    match STANDARD.decode(packed) {
        Ok(set) if !set.is_empty() => of_set(&set),
        _ => Err(reason),
    }
}

/// Catches a panic of the compiler. No text is known to cause one, but it must not end the control thread.
fn caught<T>(compile: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(compile));
    compiled.unwrap_or_else(|_| Err("the proto compiler cannot compile it".to_owned()))
}

fn text(content: &str) -> Result<DescriptorPool, String> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Only(content.to_owned()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    // The short form lacks the position, and both forms may have several lines.
    compiler.open_file(NAME).map_err(|error| one_line(&format!("{error:?}")))?;
    Ok(compiler.descriptor_pool())
}

/// Checks a descriptor set without resolving its names: the resolver trusts sets and panics on some malformed ones.
fn descriptors(set: &[u8]) -> Result<(), String> {
    let set = FileDescriptorSet::decode(set)
        .map_err(|error| format!("no FileDescriptorSet: {}", one_line(&error.to_string())))?;
    if set.file.is_empty() {
        return Err("the FileDescriptorSet is empty".to_owned());
    }
    let names: HashSet<&str> = set.file.iter().map(|file| file.name()).collect();
    for file in &set.file {
        if !["", "proto2", "proto3"].contains(&file.syntax()) {
            return Err(format!("unknown syntax '{}' in `{}`", file.syntax(), file.name()));
        }
        let known = |import: &&String| import.starts_with(WELL_KNOWN) || names.contains(import.as_str());
        if let Some(import) = file.dependency.iter().find(|import| !known(import)) {
            return Err(format!("import '{import}' of `{}` is not in the FileDescriptorSet", file.name()));
        }
    }
    Ok(())
}

/// Returns the files of a set, plus the bundled files that it lacks.
fn resolved(set: &[u8]) -> Result<DescriptorPool, String> {
    let unread = |error: &dyn std::error::Error| one_line(&error.to_string());
    let files = FileDescriptorSet::decode(set).map_err(|error| unread(&error))?.file;
    let mut pool = DescriptorPool::new();
    let mut missing = imports(&files);
    let mut added: HashSet<String> = HashSet::new();
    let mut known: Vec<FileDescriptorProto> = Vec::new();
    while let Some(import) = missing.pop() {
        let is_there = files.iter().any(|file| file.name() == import);
        if is_there || !added.insert(import.clone()) {
            continue;
        }
        let file = GoogleFileResolver::new().open_file(&import).map_err(|error| unread(&error))?;
        let file = file.file_descriptor_proto().clone();
        missing.extend(imports(std::slice::from_ref(&file)));
        known.push(file);
    }
    pool.add_file_descriptor_protos(known).map_err(|error| unread(&error))?;
    // The decoded set would lose custom options of the files.
    pool.decode_file_descriptor_set(set).map_err(|error| unread(&error))?;
    Ok(pool)
}

fn imports(files: &[FileDescriptorProto]) -> Vec<String> {
    let all = files.iter().flat_map(|file| &file.dependency);
    all.filter(|import| import.starts_with(WELL_KNOWN)).cloned().collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The only file, with its allowed imports.
struct Only(String);

impl FileResolver for Only {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        let known = GOOGLE_APIS.iter().find(|(known, _)| *known == name);
        match (name, known) {
            (NAME, _) => File::from_source(NAME, &self.0),
            (name, Some((_, source))) => File::from_source(name, source),
            (other, None) => Err(Error::file_not_found(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output of `protoc -o` for one file, in base64.
    fn compiled(source: &str) -> String {
        let file = File::from_source("a.proto", source).unwrap().file_descriptor_proto().clone();
        let file = FileDescriptorProto { source_code_info: None, ..file };
        STANDARD.encode(FileDescriptorSet { file: vec![file] }.encode_to_vec())
    }

    #[test]
    fn definitions_are_read_or_refused_with_their_fault() {
        let check = |content: &str, expected: &str| {
            let error = super::check(content).err().unwrap_or_default();
            assert_eq!(error, expected, "{content}");
        };
        check("syntax = \"proto3\";", "");
        check("message Old { required int32 n = 1; }", "");
        let greeter = "syntax = \"proto3\"; package p; message M { string s = 1; } service S { rpc Call(M) returns (stream M); }";
        check(greeter, "");
        check(&compiled(greeter), "");
        let folded =
            compiled(greeter).as_bytes().chunks(60).map(|line| [line, b"\r\n"].concat()).collect::<Vec<_>>();
        check(&String::from_utf8(folded.concat()).unwrap(), "");
        check(
            "syntax = \"proto3\"; import \"google/protobuf/any.proto\"; message M { google.protobuf.Any a = 1; }",
            "",
        );
        check(
            "not proto",
            "content:1:1: expected 'enum', 'extend', 'import', 'message', 'option', 'service', 'package' or ';', but found 'not'",
        );
        check("syntax = \"proto4\";", "content:1:10: unknown syntax 'proto4'");
        check(
            "syntax = \"proto3\";\nmessage M {\n  string a = ;\n}\n",
            "content:3:14: expected an integer, but found ';'",
        );
        check("syntax = \"proto3\"; message M { N n = 1; }", "content:1:32: name 'N' is not defined");
        check(
            "message M { optional int32 a = 1; optional int32 b = 1; }",
            "content:1:54: field number '1' is already used",
        );
        check("import \"other.proto\";", "content:1:1: import 'other.proto' not found");
        check("import \"content\";", "import cycle detected: content -> content");
        check("AAAA", "no FileDescriptorSet: failed to decode Protobuf message: invalid tag value: 0");
        check(&STANDARD.encode([0x80, 0x01, 0x00]), "the FileDescriptorSet is empty");
        let lacking = compiled("syntax = \"proto3\"; import \"b.proto\"; message M { string s = 1; }");
        check(&lacking, "import 'b.proto' of `a.proto` is not in the FileDescriptorSet");
        check(&compiled("syntax = \"proto3\"; import \"google/protobuf/any.proto\";"), "");
        // Found by fuzzing.
        let damaged = "CjQKB2EucHJvdG8SAXAiDgoBTRIJCgFzGAEgASgJMg4KAVMSCQoBQxIBTRoBTWIGaHJvdG8z";
        check(damaged, "unknown syntax 'hroto3' in `a.proto`");
    }

    #[test]
    fn services_are_found_in_texts_and_in_sets() {
        let greeter = "syntax = \"proto3\"; package p; import \"google/api/annotations.proto\"; \
            import \"google/protobuf/wrappers.proto\"; message M { google.protobuf.StringValue s = 1; } \
            service S { rpc Call(M) returns (stream M) { option (google.api.http) = { get: \"/v1/{s.value}\" }; } }";
        let check = |content: &str| {
            let pool = super::pool(content).unwrap();
            let service = pool.get_service_by_name("p.S").unwrap();
            let call = service.methods().next().unwrap();
            assert!(call.is_server_streaming() && call.input().full_name() == "p.M");
            let http = pool.get_extension_by_name("google.api.http").unwrap();
            let rule = call.options().get_extension(&http).into_owned();
            let get = rule.as_message().unwrap().get_field_by_name("get").unwrap().into_owned();
            assert_eq!(get.as_str(), Some("/v1/{s.value}"));
        };
        check(greeter);
        let set = text(greeter).unwrap().encode_to_vec();
        check(&STANDARD.encode(&set));
        // `protoc` without `--include_imports` omits the bundled files.
        let mut files = FileDescriptorSet::decode(&set[..]).unwrap();
        files.file.retain(|file| !file.name().starts_with(WELL_KNOWN));
        assert_eq!(files.file.len(), 3);
        let pool = super::pool(&STANDARD.encode(files.encode_to_vec())).unwrap();
        assert!(pool.get_message_by_name("google.protobuf.StringValue").is_some());
    }

    #[test]
    fn sets_whose_names_lead_nowhere_are_refused() {
        let mut file = File::from_source("a.proto", "syntax = \"proto3\"; message M { M m = 1; }").unwrap();
        let mut lost = file.file_descriptor_proto().clone();
        lost.message_type[0].field[0].type_name = Some(".N".to_owned());
        let set = STANDARD.encode(FileDescriptorSet { file: vec![lost] }.encode_to_vec());
        assert_eq!(super::pool(&set).unwrap_err(), "name '.N' is not defined");
        file = File::from_source("a.proto", "import \"google/protobuf/nothing.proto\";").unwrap();
        let set = FileDescriptorSet { file: vec![file.file_descriptor_proto().clone()] };
        let error = super::pool(&STANDARD.encode(set.encode_to_vec())).unwrap_err();
        assert!(error.contains("google/protobuf/nothing.proto"), "{error}");
    }
}
