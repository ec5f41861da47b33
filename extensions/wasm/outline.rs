//! The names that a module imports and exports, read without compiling it.

/// The start of every module: the magic bytes, version 1, layer 0.
const MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// The start of every binary of WebAssembly.
const MAGIC: &[u8] = b"\0asm";

/// Section numbers.
const IMPORTS: u8 = 2;
const EXPORTS: u8 = 7;

/// The imports and exports of a module, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Pairs of a module and a name.
    pub(crate) imports: Vec<(String, String)>,
    pub(crate) exports: Vec<String>,
}

/// The interface between a module and its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abi {
    /// proxy-wasm 0.1.0
    V010,
    /// proxy-wasm 0.2.0
    V020,
    /// proxy-wasm 0.2.1
    V021,
    /// The handler ABI of http-wasm
    HttpHandler,
}

impl Outline {
    /// Reads the outline of a binary.
    ///
    /// # Errors
    /// Returns a sentence if the binary is not a module.
    pub(crate) fn of(bytes: &[u8]) -> Result<Outline, String> {
        let Some(sections) = bytes.strip_prefix(MODULE) else { return Err(unlike_module(bytes)) };
        let broken = || "the module is truncated or damaged".to_owned();
        let (mut reader, mut outline) = (Reader(sections), Outline::default());
        while let Some(section) = reader.byte() {
            let length = reader.number().ok_or_else(broken)?;
            let mut content = Reader(reader.take(length as usize).ok_or_else(broken)?);
            match section {
                IMPORTS => outline.imports = content.imports().ok_or_else(broken)?,
                EXPORTS => outline.exports = content.exports().ok_or_else(broken)?,
                _ => {}
            }
        }
        Ok(outline)
    }

    pub(crate) fn exports(&self, name: &str) -> bool {
        self.exports.iter().any(|export| export == name)
    }

    /// Returns the ABI that the module declares; of several the newest.
    pub(crate) fn abi(&self) -> Option<Abi> {
        let versions = [("0_2_1", Abi::V021), ("0_2_0", Abi::V020), ("0_1_0", Abi::V010)];
        let declared = |version: &str| self.exports(&format!("proxy_abi_version_{version}"));
        let declared = versions.into_iter().find(|(version, _)| declared(version)).map(|(_, abi)| abi);
        let is_handler = || self.exports("handle_request") && self.exports("handle_response");
        declared.or_else(|| is_handler().then_some(Abi::HttpHandler))
    }
}

fn unlike_module(bytes: &[u8]) -> String {
    let is_component = bytes.starts_with(MAGIC) && bytes.get(6) == Some(&1);
    let text = match is_component {
        true => "it is a component; build a core module (target wasm32-wasip1)",
        false => "it is not a WebAssembly module",
    };
    text.to_owned()
}

/// Reads the binary format. None at the end, and for damaged bytes.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// An unsigned number in LEB128.
    fn number(&mut self) -> Option<u32> {
        let mut number = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            number |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let length = self.number()?;
        Some(String::from_utf8_lossy(self.take(length as usize)?).into_owned())
    }

    /// Skips the limits of a memory or a table.
    fn skip_limits(&mut self) -> Option<()> {
        let has_maximum = self.byte()? & 1 == 1;
        self.number()?;
        if has_maximum {
            self.number()?;
        }
        Some(())
    }

    fn imports(&mut self) -> Option<Vec<(String, String)>> {
        let count = self.number()?;
        let mut imports = Vec::new();
        for _ in 0..count {
            imports.push((self.text()?, self.text()?));
            match self.byte()? {
                0 => drop(self.number()?),
                1 => {
                    self.byte()?;
                    self.skip_limits()?;
                }
                2 => self.skip_limits()?,
                3 => drop(self.take(2)?),
                _ => return None,
            }
        }
        Some(imports)
    }

    fn exports(&mut self) -> Option<Vec<String>> {
        let count = self.number()?;
        let mut exports = Vec::new();
        for _ in 0..count {
            exports.push(self.text()?);
            self.byte()?;
            self.number()?;
        }
        Some(exports)
    }
}

#[cfg(test)]
#[cfg(feature = "tests")]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        Outline::of(&wat::parse_str(text).unwrap()).unwrap()
    }

    #[test]
    fn imports_and_exports_are_read() {
        let text = r#"(module
            (import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
            (import "env" "memory" (memory 1 2))
            (import "env" "table" (table 1 funcref))
            (import "env" "global" (global i32))
            (func (export "proxy_abi_version_0_2_0")) (func (export "proxy_abi_version_0_1_0")))"#;
        let outline = outline(text);
        let names: Vec<&str> = outline.imports.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["proxy_log", "memory", "table", "global"]);
        assert_eq!(outline.abi(), Some(Abi::V020));
        assert_eq!(self::outline("(module)"), Outline::default());
    }

    #[test]
    fn other_bytes_are_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let error = Outline::of(bytes).unwrap_err();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        };
        check(b"", "not a WebAssembly module");
        check(b"(module)", "not a WebAssembly module");
        check(b"\0asm\x0d\0\x01\0", "component");
        let whole = wat::parse_str(r#"(module (func (export "long-name-of-a-function")))"#).unwrap();
        for end in 9..whole.len() {
            // The end of a section is the end of a module, too.
            if let Err(error) = Outline::of(&whole[..end]) {
                assert!(error.contains("truncated or damaged"), "{error}");
            }
        }
        check(&[MODULE, &[7, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat(), "truncated or damaged");
        check(&[MODULE, &[7, 0xff, 0xff, 0xff, 0xff, 0xff, 1]].concat(), "truncated or damaged");
    }
}
