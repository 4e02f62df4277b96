//! Checks whether PROG can be run with the object injected. It finds PROG as execvp(3) does and reads its
//! header: every case in which the loader would leave the object out is an error of one line.

use anyhow::{Result, bail};
use object::elf::{
    DT_NEEDED, DT_SONAME, DynamicTag, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_INTERP,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind};
use rustix::fs::{Access, AtFlags, CWD, accessat, getxattr};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why a program without a dynamic loader has not got the object.
const NOT_LOADED: &str = "is statically linked or for musl, and was not loaded: because of --static=off, or because it was started in \
    another root or namespace, or by a system call past libc";
/// The kernel's limit on scripts whose interpreters are scripts.
const MAX_SCRIPTS: usize = 5;
/// The kernel reads this much of a script's first line.
const FIRST_LINE: usize = 256;
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How a program that can be run gets the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its dynamic loader preloads the object.
    Preloaded,
    /// It has no dynamic loader: the object loads the program.
    Loaded,
}

/// A program that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file to execute.
    pub path: PathBuf,
    pub way: Way,
    /// The ELF file that runs: the same one, or a script's interpreter.
    pub program: PathBuf,
    /// What takes the place of PROG among the arguments, where the object loads the interpreter of a
    /// script: what the kernel would make of its first line. Empty: PROG stays.
    pub before: Vec<OsString>,
}

/// Finds and checks PROG, and its interpreter if it is a script.
pub fn find(name: &OsStr) -> Result<Found> {
    let path = look_up(name)?;
    check(&path, MAX_SCRIPTS)
}

/// Why the object cannot be injected into the program in a file; `None` if it can. The text follows the
/// program's name.
pub fn obstacle(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let checked = check_privilege(path, &file);
    let checked = checked.and_then(|()| check_elf(path, &ReadCache::new(file)));
    let reason = match checked {
        Ok(Way::Preloaded) => return None,
        Ok(Way::Loaded) => NOT_LOADED.into(),
        Err(e) => e.to_string(),
    };
    let shown = path.display().to_string();
    Some(
        reason
            .strip_prefix(&shown)
            .unwrap_or(&reason)
            .trim_start()
            .into(),
    )
}

/// The file that `name` names: itself if it has a slash, else the first in PATH.
fn look_up(name: &OsStr) -> Result<PathBuf> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        bail!("the program's name is empty: give one after --");
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(Errno::NOENT | Errno::NOTDIR) => bail!("{shown} does not exist: check the path"),
            Err(Errno::ISDIR) => bail!("{shown} is a directory: name the program in it"),
            Err(Errno::ACCESS) => {
                bail!("{shown} may not be executed by this user: check its permissions (chmod +x)")
            }
            Err(e) => bail!("{shown} cannot be executed: {e}"),
        };
    }
    let list = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut denied = None;
    for dir in std::env::split_paths(&list) {
        // An empty entry is the working directory.
        let path = if dir.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            dir.join(name)
        };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(Errno::ACCESS) => denied = denied.or(Some(path)),
            Err(_) => {}
        }
    }
    match denied {
        Some(p) => bail!(
            "{} may not be executed by this user: check its permissions (chmod +x)",
            p.display()
        ),
        None => bail!("{shown} is not found in PATH: check the name, or give its whole path"),
    }
}

/// An error unless this user may execute the file.
fn executable(path: &Path) -> Result<(), Errno> {
    let meta = std::fs::metadata(path)
        .map_err(|e| e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
    if meta.is_dir() {
        return Err(Errno::ISDIR);
    }
    if !meta.is_file() {
        return Err(Errno::ACCESS);
    }
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
}

/// Checks a file that execve(2) would be given.
fn check(path: &Path, scripts_left: usize) -> Result<Found> {
    let shown = path.display();
    let mut file = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => bail!(
            "{shown} may be executed but not read, so it cannot be checked: get read permission for it"
        ),
        Err(e) => bail!("{shown} cannot be opened: {e}"),
    };
    let mut head = Vec::with_capacity(FIRST_LINE);
    file.by_ref()
        .take(FIRST_LINE as u64)
        .read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        if scripts_left == 0 {
            bail!(
                "{shown}: too many scripts that run scripts: start the last interpreter directly"
            );
        }
        return check_script(path, line, scripts_left - 1);
    }
    if !head.starts_with(b"\x7fELF") {
        bail!(
            "{shown} is neither a program (ELF) nor a script with a #! line: start it with what runs it, like sh {shown}"
        );
    }
    check_privilege(path, &file)?;
    Ok(Found {
        path: path.into(),
        way: check_elf(path, &ReadCache::new(file))?,
        program: path.into(),
        before: Vec::new(),
    })
}

/// Checks the interpreter of a script, and the program that `env` runs.
fn check_script(path: &Path, line: &[u8], scripts_left: usize) -> Result<Found> {
    let shown = path.display();
    let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let mut words = line
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
        .map(OsStr::from_bytes);
    let Some(interpreter) = words.next() else {
        bail!("{shown} has an empty #! line: write its interpreter there, like #!/bin/sh");
    };
    let interpreter_path = Path::new(interpreter);
    if let Err(e) = executable(interpreter_path) {
        bail!(
            "{shown} is a script for {}, which {}",
            interpreter_path.display(),
            if e == Errno::NOENT {
                "does not exist: install it"
            } else {
                "cannot be executed: check its permissions"
            }
        );
    }
    let mut found = check(interpreter_path, scripts_left)?;
    found.path = path.into();
    if found.way == Way::Loaded {
        if found.before.is_empty() {
            found.before.push(interpreter.into());
        }
        // The rest of the line is one argument.
        let option = line[interpreter.len()..].trim_ascii();
        if !option.is_empty() {
            found.before.push(OsStr::from_bytes(option).into());
        }
        found.before.push(path.into());
        return Ok(found);
    }
    if interpreter_path.file_name() == Some(OsStr::new("env")) {
        let program =
            words.find(|w| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'='));
        if let Some(program) = program {
            let program = look_up(program)
                .map_err(|e| e.context(format!("{shown} is a script for another program")))?;
            found.program = check(&program, scripts_left)?.program;
        }
    }
    Ok(found)
}

/// An error if the program gains privilege: the loader ignores injected objects there.
fn check_privilege(path: &Path, file: &File) -> Result<()> {
    let shown = path.display();
    let mode = file.metadata()?.permissions().mode();
    if mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        let kind = if mode & libc::S_ISUID != 0 {
            "setuid"
        } else {
            "setgid"
        };
        bail!("{shown} is {kind}, so nothing can be injected into it: run a copy without that bit");
    }
    // Any error but "no such attribute" and "no attributes here" means that there may be some.
    let mut value = [0u8; 64];
    if getxattr(path, c"security.capability", &mut value[..]).is_ok() {
        bail!(
            "{shown} has file capabilities, so nothing can be injected into it: run a copy without them (cp drops them)"
        );
    }
    Ok(())
}

/// An error unless the file is a program for this machine: a dynamic one for the GNU C library, which preloads the
/// object, or one for musl or without a dynamic loader, which the object loads.
fn check_elf<'data, R: ReadRef<'data>>(path: &Path, data: R) -> Result<Way> {
    let shown = path.display();
    let damaged = |_| anyhow::anyhow!("{shown} is a damaged ELF file: install it again");
    match FileKind::parse(data).map_err(damaged)? {
        FileKind::Elf64 => {}
        FileKind::Elf32 => {
            bail!("{shown} is a 32-bit program: hugeswap needs the 64-bit (x86-64) one")
        }
        _ => bail!("{shown} is not a program"),
    }
    let header = FileHeader64::<Endianness>::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let machine = header.e_machine(endian);
    if machine != EM_X86_64 {
        bail!(
            "{shown} is for another kind of processor (ELF machine {}): hugeswap needs x86-64",
            machine.0
        );
    }
    let kind = header.e_type(endian);
    if kind != ET_EXEC && kind != ET_DYN {
        bail!("{shown} is an object file, not a program: link it first");
    }
    let segments = header.program_headers(endian, data).map_err(damaged)?;
    let Some(segment) = segments.iter().find(|s| s.p_type(endian) == PT_INTERP) else {
        // A dynamic loader itself, which is executed to run a program: it preloads, too.
        let names = named(header, data, DT_SONAME).unwrap_or_default();
        match names.first() {
            Some(name) if name.starts_with(b"ld-linux") => return Ok(Way::Preloaded),
            Some(_) => bail!(
                "{shown} is a library, or a dynamic loader other than glibc's: name a program"
            ),
            None => {}
        }
        if needs(header, data, b"").unwrap_or(false) {
            bail!("{shown} needs shared libraries and names no loader for them: install it again");
        }
        return Ok(Way::Loaded);
    };
    check_sanitizer(path, header, data)?;
    let loader = segment
        .interpreter(endian, data)
        .map_err(damaged)?
        .unwrap_or_default();
    let loader = Path::new(OsStr::from_bytes(loader));
    if std::fs::metadata(loader).is_err() {
        bail!(
            "{shown} needs the loader {}, which does not exist here: install it",
            loader.display()
        );
    }
    let is_for_musl = loader
        .file_name()
        .is_some_and(|n| n.as_bytes().starts_with(b"ld-musl"));
    Ok(match is_for_musl {
        true => Way::Loaded,
        false => Way::Preloaded,
    })
}

/// An error if the program needs AddressSanitizer's library, which ends a program in which it is not the
/// first library, unless an option forbids that.
fn check_sanitizer<'data, R: ReadRef<'data>>(
    path: &Path,
    header: &FileHeader64<Endianness>,
    data: R,
) -> Result<()> {
    const OPTION: &str = "verify_asan_link_order=0";
    let allowed = std::env::var("ASAN_OPTIONS").is_ok_and(|o| o.contains(OPTION));
    if !allowed && needs(header, data, b"libasan.so").unwrap_or(false) {
        bail!(
            "{} is built with AddressSanitizer, which refuses preloaded objects: set ASAN_OPTIONS={OPTION} (managed blocks are not checked \
             then), or use a build without it",
            path.display()
        );
    }
    Ok(())
}

/// Whether the program needs a library whose name begins with `name`. `None`: its header does not say.
fn needs<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    data: R,
    name: &[u8],
) -> Option<bool> {
    let libraries = named(header, data, DT_NEEDED)?;
    Some(libraries.iter().any(|l| l.starts_with(name)))
}

/// The names of one kind in the program's dynamic section: of libraries that it needs (DT_NEEDED), its own as a
/// library (DT_SONAME). `None`: its header does not say.
fn named<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    data: R,
    kind: DynamicTag,
) -> Option<Vec<&'data [u8]>> {
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (entries, strings) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let names = entries.iter().filter(|e| e.d_tag(endian) == kind);
    Some(
        names
            .filter_map(|e| e.string(endian, strings).ok())
            .collect(),
    )
}

/// What a program that can be run is made of, as far as its file tells.
#[derive(Debug, Default)]
pub struct Parts {
    /// The names of the libraries that it needs.
    pub libraries: Vec<String>,
    /// The Go toolchain built it.
    pub is_go: bool,
}

/// Looks into an ELF file; what cannot be read is left out.
pub fn parts(path: &Path) -> Parts {
    let Ok(file) = File::open(path) else {
        return Parts::default();
    };
    let cache = ReadCache::new(file);
    let data = &cache;
    let Ok(header) = FileHeader64::<Endianness>::parse(data) else {
        return Parts::default();
    };
    let libraries = named(header, data, DT_NEEDED).unwrap_or_default();
    let name = |l: &&[u8]| String::from_utf8_lossy(l).into_owned();
    let has_section = |wanted: &[u8]| -> Option<bool> {
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        Some(sections.section_by_name(endian, wanted).is_some())
    };
    Parts {
        libraries: libraries.iter().map(name).collect(),
        is_go: has_section(b".go.buildinfo") == Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    /// A file in a directory of its own, removed with it.
    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        use std::io::Write;
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("prog");
        let mut f = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .unwrap();
        f.write_all(content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn refusal(content: &[u8]) -> String {
        let (_dir, path) = file(content, 0o755);
        format!("{:#}", find(path.as_os_str()).unwrap_err())
    }

    /// A 64-bit ELF file: one program header, pointing at `loader`.
    fn elf(machine: u16, kind: u16, segment: u32, loader: &[u8]) -> Vec<u8> {
        let mut b = vec![0u8; 64 + 56];
        b[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        b[16..18].copy_from_slice(&kind.to_le_bytes());
        b[18..20].copy_from_slice(&machine.to_le_bytes());
        b[20..24].copy_from_slice(&1u32.to_le_bytes());
        b[32..40].copy_from_slice(&64u64.to_le_bytes());
        b[52..54].copy_from_slice(&64u16.to_le_bytes());
        b[54..56].copy_from_slice(&56u16.to_le_bytes());
        b[56..58].copy_from_slice(&1u16.to_le_bytes());
        b[64..68].copy_from_slice(&segment.to_le_bytes());
        b[64 + 8..64 + 16].copy_from_slice(&120u64.to_le_bytes());
        b[64 + 32..64 + 40].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        b.extend_from_slice(loader);
        b
    }

    const X86: u16 = 62;
    const DYN: u16 = 3;
    const LOAD: u32 = 1;
    const INTERP: u32 = 3;

    #[test]
    fn a_dynamic_program_passes() {
        let found = find(OsStr::new("/bin/sh")).unwrap();
        assert_eq!(
            (found.path.as_path(), found.way),
            (Path::new("/bin/sh"), Way::Preloaded)
        );
        assert_eq!(found.program, found.path);
        let libraries = parts(&found.program).libraries;
        assert!(libraries.iter().any(|l| l == "libc.so.6"), "{libraries:?}");
        let (_dir, path) = file(
            &elf(X86, DYN, INTERP, b"/lib64/ld-linux-x86-64.so.2\0"),
            0o755,
        );
        find(path.as_os_str()).unwrap();
    }

    #[test]
    fn a_program_without_a_loader_is_loaded_by_the_object() {
        let (_dir, path) = file(&elf(X86, DYN, LOAD, b""), 0o755);
        assert_eq!(find(path.as_os_str()).unwrap().way, Way::Loaded);
    }

    #[test]
    fn elf_files_that_cannot_be_injected_into() {
        assert!(refusal(&elf(183, DYN, INTERP, b"/x\0")).contains("processor (ELF machine 183)"));
        assert!(refusal(&elf(X86, 1, INTERP, b"/x\0")).contains("object file"));
        assert!(
            refusal(&elf(X86, DYN, INTERP, b"/lib/ld-musl-none.so.1\0")).contains("ld-musl-none")
        );
        assert!(refusal(&elf(X86, DYN, INTERP, b"/no/such/loader\0")).contains("/no/such/loader"));
        assert!(refusal(b"\x7fELF\x01\x01\x01 and so on, 32 bits wide").contains("32-bit"));
        assert!(refusal(b"\x7fELF\x02\x01\x01").contains("damaged"));
        let mut cut = elf(X86, DYN, INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
        cut.truncate(100);
        assert!(refusal(&cut).contains("damaged"));
    }

    #[test]
    fn scripts_stand_for_their_interpreters() {
        for line in [
            "#!/bin/sh\n",
            "#! /bin/sh -e\n",
            "#!/usr/bin/env sh\n",
            "#!/usr/bin/env -S A=1 sh -e\n",
        ] {
            let (_dir, path) = file(line.as_bytes(), 0o755);
            let found = find(path.as_os_str()).unwrap();
            assert_eq!((&found.path, found.way), (&path, Way::Preloaded), "{line}");
            assert_eq!(found.program.file_name(), Some(OsStr::new("sh")), "{line}");
        }
        assert!(refusal(b"#!/no/such\n").contains("/no/such, which does not exist"));
        assert!(
            refusal(b"#!/usr/bin/env no-such-program\n").contains("no-such-program is not found")
        );
        assert!(refusal(b"#!\n").contains("empty #! line"));
        assert!(refusal(b"echo hello\n").contains("neither a program"));
        assert!(refusal(b"").contains("neither a program"));
    }

    #[test]
    fn a_script_of_a_program_that_is_loaded_is_its_argument() {
        let (_a, program) = file(&elf(X86, DYN, LOAD, b""), 0o755);
        let (_b, inner) = file(
            format!("#! {} -a b \n", program.display()).as_bytes(),
            0o755,
        );
        let (_c, outer) = file(format!("#!{}\n", inner.display()).as_bytes(), 0o755);
        let found = find(outer.as_os_str()).unwrap();
        assert_eq!((found.way, &found.program), (Way::Loaded, &program));
        assert_eq!(found.path, outer);
        let before = [&program, Path::new("-a b"), &inner, &outer];
        assert!(found.before.iter().eq(before));
    }

    #[test]
    fn a_script_that_runs_itself_ends() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("loop");
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(
            find(path.as_os_str())
                .unwrap_err()
                .to_string()
                .contains("too many scripts")
        );
    }

    #[test]
    fn places_and_permissions() {
        let (dir, path) = file(b"#!/bin/sh\n", 0o644);
        let error = |p: &Path| find(p.as_os_str()).unwrap_err().to_string();
        assert!(error(&path).contains("may not be executed"));
        assert!(error(dir.path()).contains("is a directory"));
        assert!(error(&dir.path().join("absent")).contains("does not exist"));
        assert!(error(Path::new("")).contains("empty"));
        assert!(error(Path::new("no-such-program-anywhere")).contains("not found in PATH"));
        std::fs::copy("/bin/sh", dir.path().join("su")).unwrap();
        for (mode, kind) in [(0o4755, "setuid"), (0o2755, "setgid")] {
            let p = dir.path().join("su");
            std::fs::set_permissions(&p, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(error(&p).contains(kind), "{kind}");
        }
    }
}
