//! The needs of a binary on its machine.

/// The program header of the loader (ELF-64, `PT_INTERP`).
const INTERPRETER: u32 = 3;

/// The machines that binaries are for (`e_machine`).
pub(super) const X86_64: u16 = 62;
pub(super) const AARCH64: u16 = 183;

const WRONG: &str = "the binary is not an ELF file of 64 bits";

/// The machine that the binary is for.
///
/// # Errors
/// Returns an error, which is a sentence, if this is no binary of 64 bits.
pub(super) fn machine(binary: &[u8]) -> Result<u16, &'static str> {
    // All targets are little-endian.
    match number(binary, 18) {
        Some(machine) if binary.starts_with(b"\x7fELF\x02\x01") => Ok(u16::from_le_bytes(machine)),
        _ => Err(WRONG),
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The loader that the binary is started with; None if it is linked statically.
///
/// # Errors
/// Returns an error, which is a sentence, if this is no binary of 64 bits.
pub(super) fn interpreter(binary: &[u8]) -> Result<Option<String>, &'static str> {
    machine(binary)?;
    let headers = || {
        let start = u64::from_le_bytes(number(binary, 32)?) as usize;
        let size = usize::from(u16::from_le_bytes(number(binary, 54)?));
        let count = usize::from(u16::from_le_bytes(number(binary, 56)?));
        Some((0..count).map(move |n| start.saturating_add(n * size)))
    };
    for at in headers().ok_or(WRONG)? {
        if u32::from_le_bytes(number(binary, at).ok_or(WRONG)?) != INTERPRETER {
            continue;
        }
        let offset = u64::from_le_bytes(number(binary, at + 8).ok_or(WRONG)?) as usize;
        let name = binary.get(offset..).and_then(|rest| rest.split(|byte| *byte == 0).next()).ok_or(WRONG)?;
        return Ok(Some(String::from_utf8_lossy(name).into_owned()));
    }
    Ok(None)
}

/// The names of the binary's sections; none if its table was left out.
///
/// # Errors
/// Returns an error, which is a sentence, if this is no binary of 64 bits.
pub(super) fn sections(binary: &[u8]) -> Result<Vec<String>, &'static str> {
    machine(binary)?;
    let names = || {
        let start = u64::from_le_bytes(number(binary, 40)?) as usize;
        let [size, count, names] = [58, 60, 62].map(|at| number(binary, at).map(u16::from_le_bytes));
        let (size, count) = (usize::from(size?), usize::from(count?));
        let header = |n: usize| binary.get(start.checked_add(n * size)?..);
        if count == 0 {
            return Some(Vec::new());
        }
        let names = u64::from_le_bytes(number(header(names?.into())?, 24)?) as usize;
        let name = |n: usize| {
            let at = u32::from_le_bytes(number(header(n)?, 0)?) as usize;
            let name = binary.get(names.checked_add(at)?..)?.split(|byte| *byte == 0).next()?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        (0..count).map(name).collect()
    };
    names().ok_or(WRONG)
}

/// The newest version of glibc whose functions a binary with a loader calls: the names of versions stand in it.
pub(super) fn newest_glibc(binary: &[u8]) -> Option<[u32; 2]> {
    const NAME: &[u8] = b"GLIBC_";
    if !matches!(interpreter(binary), Ok(Some(_))) {
        return None;
    }
    let version = |at: usize| {
        let rest = binary.get(at + NAME.len()..)?;
        let name = std::str::from_utf8(rest.split(|byte| *byte == 0).next()?).ok()?;
        let (major, minor) = name.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some([major.parse().ok()?, minor.parse().ok()?])
    };
    let names = binary.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    names.filter_map(|(at, _)| version(at)).max()
}
