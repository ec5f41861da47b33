//! Whether a text is a Protocol Buffers definition: a `.proto` file, or compiled ones in base64.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use protox::prost::Message;
use protox::prost_reflect::prost_types::FileDescriptorSet;
use protox::{Compiler, Error};

/// The file's name in messages.
const NAME: &str = "content";

/// Checks that a definition can be used: everything that it names is in it, or is one of the files
/// of `google/protobuf/` that come with every compiler. Like APISIX, a `.proto` text is tried first.
///
/// # Errors
/// Returns the first mistake, with line and column where there are any.
pub(crate) fn check(content: &str) -> Result<(), String> {
    // The compiler is made for texts that want to be compiled. One that trips it, which none is known
    // to do, must be refused, not end the thread that a whole gateway is steered from.
    let compiled = std::panic::catch_unwind(|| text(content));
    let compiled = compiled.unwrap_or_else(|_| Err("the compiler of definitions fails on it".to_owned()));
    let Err(reason) = compiled else { return Ok(()) };
    // Line breaks apart, which tools put into base64, no .proto text is base64 as well.
    let packed: String = content.lines().map(str::trim_end).collect();
    match STANDARD.decode(packed) {
        Ok(set) if !set.is_empty() => descriptors(&set),
        _ => Err(reason),
    }
}

fn text(content: &str) -> Result<(), String> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Only(content.to_owned()));
    resolver.add(GoogleFileResolver::new());
    // Its short form lacks the place, and both may be of several lines.
    let compiled = Compiler::with_file_resolver(resolver).open_file(NAME).map(drop);
    compiled.map_err(|error| one_line(&format!("{error:?}")))
}

/// A set comes from a compiler that has resolved its names, and is only read: what resolves names
/// here trusts sets, and does not survive every malformed one.
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
        let known =
            |import: &&String| import.starts_with("google/protobuf/") || names.contains(import.as_str());
        if let Some(import) = file.dependency.iter().find(|import| !known(import)) {
            return Err(format!("import '{import}' of `{}` is not in the FileDescriptorSet", file.name()));
        }
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The one file that there is.
struct Only(String);

impl FileResolver for Only {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        match name {
            NAME => File::from_source(NAME, &self.0),
            other => Err(Error::file_not_found(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use protox::prost_reflect::prost_types::FileDescriptorProto;

    use super::*;

    /// What `protoc -o` makes of one file, in base64.
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
}
