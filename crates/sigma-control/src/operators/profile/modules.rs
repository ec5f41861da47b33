//! The program and the libraries that this process runs: where they are, how their stacks unwind, and the names of their
//! functions. They are read from their files while a profile is taken, and forgotten with it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of one section that are read: sections of a debug build with all its symbols are tens of MiB.
const SECTION_BYTES: u64 = 256 << 20;
/// Sections of a file that are looked at.
const MOST_SECTIONS: u16 = 4096;

/// Executable mappings.
pub(super) struct Modules(Vec<Module>);

/// A part of a file that is mapped to run.
pub(super) struct Module {
    /// Where it is mapped, from the first byte to the one behind the last, and which byte of the file is the first.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
    /// The file's path, as the kernel names it.
    pub(super) path: String,
    /// The offset from the addresses in the file.
    bias: u64,
    unwinding: Option<Unwinding>,
    functions: Functions,
}

/// How stacks unwind: sections, and their addresses in the file.
#[derive(Default)]
pub(super) struct Unwinding {
    pub(super) index: Vec<u8>,
    pub(super) index_at: u64,
    pub(super) frames: Vec<u8>,
    pub(super) frames_at: u64,
    pub(super) text_at: u64,
}

impl Modules {
    /// Returns the modules of this process as they are now.
    ///
    /// # Errors
    /// Returns an error if the kernel's list cannot be read. Files that cannot be read are omitted: their functions
    /// have no names, and stacks end there.
    pub(super) fn of_this_process() -> io::Result<Modules> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let program = fs::read_link("/proc/self/exe").unwrap_or_default();
        let module = |line| {
            let mut module = Module::mapped(line)?;
            // The path may have another program by now: after an upgrade, for example.
            let is_program = program.to_str() == Some(&module.path);
            let path = if is_program { "/proc/self/exe" } else { &module.path };
            if let Ok(file) = File::open(path) {
                module.read(&file);
            }
            Some(module)
        };
        Ok(Modules(maps.lines().filter_map(module).collect()))
    }

    /// All of them, in the order of their addresses.
    pub(super) fn all(&self) -> &[Module] {
        &self.0
    }

    /// The place among all of the one that an address is in.
    pub(super) fn position(&self, address: u64) -> Option<usize> {
        let at = self.0.partition_point(|module| module.end <= address);
        (self.0.get(at)?.start <= address).then_some(at)
    }

    /// How the stack unwinds at an address, and that address as the file has it.
    pub(super) fn unwinding(&self, address: u64) -> Option<(&Unwinding, u64)> {
        let module = &self.0[self.position(address)?];
        Some((module.unwinding.as_ref()?, address.wrapping_sub(module.bias)))
    }

    /// The name of the function that an address is in.
    pub(super) fn name(&self, address: u64) -> Option<String> {
        let module = &self.0[self.position(address)?];
        module.functions.name(address.wrapping_sub(module.bias))
    }
}

impl Module {
    /// From a line of the kernel's list, if it is a file that is run.
    fn mapped(line: &str) -> Option<Module> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let (rights, offset) = (fields.next()?, fields.next()?);
        let path = fields.nth(2)?.trim_start();
        let number = |text| u64::from_str_radix(text, 16).ok();
        (rights.as_bytes().get(2) == Some(&b'x') && path.starts_with('/')).then_some(Module {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            path: path.to_owned(),
            bias: 0,
            unwinding: None,
            functions: Functions::default(),
        })
    }

    /// Reads what its file says; as much as can be read.
    fn read(&mut self, file: &File) {
        let Some(elf) = Elf::open(file) else { return };
        let Some(bias) = elf.bias(self) else { return };
        self.bias = bias;
        let text_at = elf.section(".text").map_or(0, |section| section.address);
        if let (Some(index), Some(frames)) = (elf.section(".eh_frame_hdr"), elf.section(".eh_frame"))
            && let (Some(index_bytes), Some(frame_bytes)) = (elf.bytes(index), elf.bytes(frames))
        {
            self.unwinding = Some(Unwinding {
                index: index_bytes,
                index_at: index.address,
                frames: frame_bytes,
                frames_at: frames.address,
                text_at,
            });
        }
        // A file without its own has those that others link to.
        for (table, names) in [(".symtab", ".strtab"), (".dynsym", ".dynstr")] {
            if let (Some(table), Some(names)) = (elf.section(table), elf.section(names))
                && let (Some(table), Some(names)) = (elf.bytes(table), elf.bytes(names))
            {
                self.functions = Functions::of(&table, names);
                return;
            }
        }
    }
}

/// Functions by their addresses, and the text that has their names.
#[derive(Default)]
struct Functions {
    /// Address, bytes and position of the name.
    all: Vec<(u64, u64, u32)>,
    names: Vec<u8>,
}

impl Functions {
    fn of(table: &[u8], names: Vec<u8>) -> Functions {
        /// The kind of a symbol that is a function, in the low bits.
        const FUNCTION: u8 = 2;
        let mut all: Vec<(u64, u64, u32)> = table
            .chunks_exact(24)
            .filter(|symbol| symbol[4] & 0xf == FUNCTION)
            .filter_map(|symbol| Some((u64_at(symbol, 8)?, u64_at(symbol, 16)?, u32_at(symbol, 0)?)))
            .filter(|(address, ..)| *address != 0)
            .collect();
        all.sort_unstable();
        Functions { all, names }
    }

    fn name(&self, address: u64) -> Option<String> {
        let behind = self.all.partition_point(|(start, ..)| *start <= address);
        let (start, length, name) = *self.all.get(behind.checked_sub(1)?)?;
        // Functions in assembly may have no length.
        if length != 0 && address - start >= length {
            return None;
        }
        let name = self.names.get(usize::try_from(name).ok()?..)?;
        let name = String::from_utf8_lossy(name.split(|byte| *byte == 0).next()?).into_owned();
        (!name.is_empty()).then_some(name)
    }
}

/// A file in the format of programs, of 64 bits and little-endian, as far as it is needed here.
struct Elf<'f> {
    file: &'f File,
    header: Vec<u8>,
    sections: Vec<Section>,
}

struct Section {
    name: String,
    address: u64,
    offset: u64,
    length: u64,
}

impl<'f> Elf<'f> {
    fn open(file: &'f File) -> Option<Elf<'f>> {
        let header = at(file, 0, 64)?;
        if header.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let mut elf = Elf { file, header, sections: Vec::new() };
        let (start, count) = (u64_at(&elf.header, 40)?, u16_at(&elf.header, 60)?.min(MOST_SECTIONS));
        let table = at(file, start, u64::from(count) * 64)?;
        let section = |entry: &[u8]| {
            let section = Section {
                name: String::new(),
                address: u64_at(entry, 16)?,
                offset: u64_at(entry, 24)?,
                length: u64_at(entry, 32)?,
            };
            Some((u32_at(entry, 0)?, section))
        };
        let mut sections: Vec<(u32, Section)> = table.chunks_exact(64).filter_map(section).collect();
        let (_, names) = sections.get(usize::from(u16_at(&elf.header, 62)?))?;
        let names = elf.bytes(names)?;
        for (name, section) in &mut sections {
            let text = names.get(usize::try_from(*name).ok()?..)?;
            section.name = String::from_utf8_lossy(text.split(|byte| *byte == 0).next()?).into_owned();
        }
        elf.sections = sections.into_iter().map(|(_, section)| section).collect();
        Some(elf)
    }

    fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    fn bytes(&self, section: &Section) -> Option<Vec<u8>> {
        at(self.file, section.offset, section.length)
    }

    /// Returns the offset from the addresses in the file where `module` is mapped.
    fn bias(&self, module: &Module) -> Option<u64> {
        /// A segment that is mapped, and the right to run it.
        const LOAD: u32 = 1;
        const RUN: u32 = 1;
        let (start, count) = (u64_at(&self.header, 32)?, u16_at(&self.header, 56)?);
        let segments = at(self.file, start, u64::from(count) * 56)?;
        let of_module = segments.chunks_exact(56).find_map(|segment| {
            let (kind, rights, offset) = (u32_at(segment, 0)?, u32_at(segment, 4)?, u64_at(segment, 8)?);
            let (address, length) = (u64_at(segment, 16)?, u64_at(segment, 32)?);
            // It is mapped in whole pages, of which the first and the last may be of its neighbours as well.
            let is_within = offset < module.offset.checked_add(module.end - module.start)?
                && module.offset < offset.checked_add(length)?;
            (kind == LOAD && rights & RUN != 0 && is_within).then_some((offset, address))
        });
        let (offset, address) = of_module?;
        let of_offset = module.start.wrapping_sub(module.offset).wrapping_add(offset);
        Some(of_offset.wrapping_sub(address))
    }
}

/// So many bytes of a file.
fn at(file: &File, offset: u64, length: u64) -> Option<Vec<u8>> {
    let has_it = offset.checked_add(length)? <= file.metadata().ok()?.len();
    if length > SECTION_BYTES || !has_it {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_line_of_the_kernels_list_is_a_module_if_it_runs() {
        let line = "7f10-7f30 r-xp 00002000 fe:00 77    /lib/my lib.so";
        let module = Module::mapped(line).unwrap();
        let places = (module.start, module.end, module.offset, &*module.path);
        assert_eq!(places, (0x7f10, 0x7f30, 0x2000, "/lib/my lib.so"));
        for other in [
            "7f10-7f30 r--p 00002000 fe:00 77    /lib/a.so",
            "7f10-7f30 r-xp 00000000 00:00 0    [vdso]",
            "7f10-7f30 r-xp 00000000 00:00 0 ",
            "7f10 r-xp",
            "",
        ] {
            assert!(Module::mapped(other).is_none(), "{other}");
        }
    }

    #[inline(never)]
    fn known_by_name() -> u64 {
        std::hint::black_box(3)
    }

    #[test]
    fn functions_of_this_program_and_of_its_libraries_have_names() {
        let modules = Modules::of_this_process().unwrap();
        assert_eq!(known_by_name(), 3);
        let name = modules.name(known_by_name as fn() -> u64 as usize as u64).unwrap();
        assert!(name.contains("known_by_name"), "{name}");
        let of_libc = modules.all().iter().find(|module| module.path.contains("libc.so")).unwrap();
        assert!(of_libc.unwinding.is_some() && of_libc.functions.all.len() > 1000);
        assert!(modules.name(8).is_none() && modules.unwinding(u64::MAX).is_none());
    }

    /// Another file, or one that is cut off, is read as far as it makes sense.
    #[test]
    fn other_files_are_left_alone() {
        let whole = fs::read("/proc/self/exe").unwrap();
        let mut sizes: Vec<usize> = (0..200).collect();
        sizes.extend((0..50).map(|part| whole.len() / 50 * part));
        for size in sizes {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&whole[..size]).unwrap();
            let mut module = Module::mapped("1000-2000 r-xp 00000000 fe:00 77 /x").unwrap();
            module.read(&file);
        }
        // A header that points anywhere.
        for at in 16..64 {
            let mut header = whole[..4096].to_vec();
            header[at] ^= 0xff;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&header).unwrap();
            let mut module = Module::mapped("1000-2000 r-xp 00000000 fe:00 77 /x").unwrap();
            module.read(&file);
        }
    }
}
