//! The file of a recording: a line that says what it is, a version, and blocks, each of a kind, with
//! its length and a checksum, of compressed JSON. It is written from the beginning to the end, so that
//! what is there of it when a recording is cut off can be read.
//!
//! A file may come from anybody. A reader takes nothing on trust: lengths have bounds, blocks that are
//! damaged end the file, and what is in them is only shown.

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

/// What a recording begins with.
pub const MAGIC: &[u8] = b"hugeswap recording\n";
/// Changed whenever a reader of before would misread it.
const VERSION: u32 = 1;
/// Longest block, unpacked, bytes.
const MOST: u32 = 64 << 20;
/// Blocks of a file that are read, unpacked bytes of all together.
const MOST_OF_ALL: u64 = 256 << 20;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    Head = 1,
    Points = 2,
    Events = 3,
    /// All stacks so far.
    Stacks = 4,
    End = 5,
}

/// What was recorded, and where.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Head {
    /// Of hugeswap.
    pub version: String,
    pub command: Vec<String>,
    /// The process that made the pool.
    pub pid: i32,
    /// When the recording began, seconds since 1970.
    pub began: f64,
    /// The recording began with the program.
    pub from_start: bool,
    pub kernel: String,
    pub processors: u64,
    pub machine_bytes: u64,
    /// Swap areas, in words.
    pub swap: Vec<String>,
    /// Settings that are not the default.
    pub settings: Vec<(String, String)>,
}

/// Figures at a time. All but the first line's are totals since the pool was made.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the recording began.
    pub t: f64,
    pub memory: u64,
    pub resident: u64,
    pub swap_used: u64,
    pub zswap: u64,
    /// Anonymous and shared memory of its processes, managed or not.
    pub anonymous: u64,
    pub processes: u64,
    pub pages_in: u64,
    pub pages_out: u64,
    pub zswap_in: u64,
    pub zswap_out: u64,
    /// Faults that read swap, and others.
    pub major: u64,
    pub minor: u64,
    pub fault_ns: u64,
    pub stall_us: u64,
    pub throttle_us: u64,
}

/// Something that happened, as [`hugeswap_policy::recording::Happening`] has it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Event(
    /// Microseconds since the recording began.
    pub u64,
    /// Nanoseconds that it took.
    pub u64,
    /// Its kind and detail.
    pub u8,
    pub u8,
    /// A write.
    pub u8,
    /// How many it stands for.
    pub u32,
    /// Its process.
    pub u32,
    /// Its address.
    pub u64,
    /// Pages.
    pub u32,
);

/// Where in a program faults came from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stacks {
    pub frames: Vec<Frame>,
    /// Each: its frames, the innermost first; how many faults it stands for; how long they took,
    /// nanoseconds.
    pub stacks: Vec<(Vec<u32>, u64, u64)>,
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The file that it is in, and where in it; for code without a file the process.
    pub module: String,
    pub at: u64,
    /// Its functions, the innermost first: several where one was compiled into another. None: not
    /// known.
    pub names: Vec<String>,
}

/// How the recording ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// Seconds since the recording began.
    pub t: f64,
    /// How the program ended, in words; empty: it runs on.
    pub ended: String,
    /// Happenings, and stacks, that found no room.
    pub lost: [u64; 2],
    /// What `hugeswap stat --json` shows.
    pub figures: serde_json::Value,
    /// What `hugeswap run --report json` says of other budgets.
    pub advisor: Option<serde_json::Value>,
    /// Swap areas and their latencies, as there.
    pub areas: Vec<serde_json::Value>,
    /// Processes: id and command.
    pub processes: Vec<(u32, String)>,
}

/// All of a recording.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub head: Head,
    pub points: Vec<Point>,
    pub events: Vec<Event>,
    pub stacks: Stacks,
    /// None: it was cut off.
    pub end: Option<End>,
}

/// Writes a recording.
pub struct Writer(BufWriter<File>);

impl Writer {
    /// Begins a file, which is this user's to read only: addresses and command lines are in it.
    pub fn create(path: &Path, head: &Head) -> Result<Writer> {
        use std::os::unix::fs::OpenOptionsExt;
        let create = || {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)?;
            let mut writer = Writer(BufWriter::new(file));
            writer.0.write_all(MAGIC)?;
            writer.0.write_all(&VERSION.to_le_bytes())?;
            writer.block(Kind::Head, head)?;
            writer.flush()?;
            Ok::<_, anyhow::Error>(writer)
        };
        create().with_context(|| {
            format!(
                "{} cannot be written: name a file in a directory you may write to with -o",
                path.display()
            )
        })
    }

    fn block(&mut self, kind: Kind, of: &impl Serialize) -> Result<()> {
        let plain = serde_json::to_vec(of)?;
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&plain)?;
        let packed = packer.finish()?;
        let mut head = Vec::new();
        for n in [kind as u32, plain.len() as u32, packed.len() as u32] {
            head.extend(n.to_le_bytes());
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&head);
        sum.update(&packed);
        head.extend(sum.finalize().to_le_bytes());
        self.0.write_all(&head)?;
        self.0.write_all(&packed)?;
        Ok(())
    }

    pub fn points(&mut self, points: &[Point]) -> Result<()> {
        self.block(Kind::Points, &points)
    }

    pub fn events(&mut self, events: &[Event]) -> Result<()> {
        self.block(Kind::Events, &events)
    }

    /// All of them so far.
    pub fn stacks(&mut self, stacks: &Stacks) -> Result<()> {
        self.block(Kind::Stacks, stacks)
    }

    pub fn end(&mut self, end: &End) -> Result<()> {
        self.block(Kind::End, end)?;
        self.flush()
    }

    /// What was written so far is in the file.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

/// Is this file a recording?
pub fn is_recording(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut f| f.read_exact(&mut head));
    read.is_ok() && head == MAGIC
}

/// Reads a recording, as far as it is whole.
pub fn read(path: &Path) -> Result<Recording> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
    from(BufReader::new(file)).with_context(|| shown.to_string())
}

fn from(mut file: impl Read) -> Result<Recording> {
    let mut head = [0; MAGIC.len() + 4];
    if file.read_exact(&mut head).is_err() || !head.starts_with(MAGIC) {
        bail!("this is no recording of `hugeswap record`");
    }
    let version = u32_of(&head[MAGIC.len()..]);
    if version != VERSION {
        bail!(
            "this recording is of version {version}, and this hugeswap reads version {VERSION}: use the hugeswap that \
             made it"
        );
    }
    let mut all = Recording::default();
    let (mut has_head, mut total) = (false, 0);
    while let Some((kind, plain)) = block(&mut file) {
        total += plain.len() as u64;
        if total > MOST_OF_ALL {
            bail!("this recording has more in it than any that hugeswap makes: more than 256 MiB");
        }
        match kind {
            k if k == Kind::Head as u32 => (all.head, has_head) = (parsed(&plain)?, true),
            k if k == Kind::Points as u32 => all.points.extend(parsed::<Vec<Point>>(&plain)?),
            k if k == Kind::Events as u32 => all.events.extend(parsed::<Vec<Event>>(&plain)?),
            k if k == Kind::Stacks as u32 => all.stacks = parsed(&plain)?,
            k if k == Kind::End as u32 => all.end = Some(parsed(&plain)?),
            // (Of a later version that adds something.)
            _ => {}
        }
    }
    if !has_head {
        bail!("this recording was cut off before it began: record again");
    }
    let frames = all.stacks.frames.len() as u32;
    let known = |s: &(Vec<u32>, u64, u64)| s.0.iter().all(|&f| f < frames);
    if !all.stacks.stacks.iter().all(known) || !all.points.is_sorted_by(|a, b| a.t <= b.t) {
        bail!("this recording does not hold together");
    }
    Ok(all)
}

fn parsed<T: DeserializeOwned>(plain: &[u8]) -> Result<T> {
    serde_json::from_slice(plain).context("this recording does not hold together")
}

fn u32_of(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(word)
}

/// The next block; `None`: there is none that is whole.
fn block(file: &mut impl Read) -> Option<(u32, Vec<u8>)> {
    let mut head = [0; 16];
    file.read_exact(&mut head).ok()?;
    let [kind, plain, packed, sum] = [0, 4, 8, 12].map(|at| u32_of(&head[at..]));
    if plain > MOST || packed > MOST {
        return None;
    }
    // (As it comes: a length may be a lie.)
    let mut bytes = Vec::new();
    let read = file.take(packed.into()).read_to_end(&mut bytes).ok()?;
    let mut check = crc32fast::Hasher::new();
    check.update(&head[..12]);
    check.update(&bytes);
    if read != packed as usize || check.finalize() != sum {
        return None;
    }
    let mut out = Vec::new();
    let unpacked = ZlibDecoder::new(&bytes[..])
        .take(u64::from(plain) + 1)
        .read_to_end(&mut out);
    (unpacked.ok()? == plain as usize).then_some((kind, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("r");
        let head = Head {
            command: vec!["sort".into(), "x".into()],
            ..Head::default()
        };
        let mut w = Writer::create(&path, &head).unwrap();
        for i in 0..3 {
            let point = Point {
                t: f64::from(i),
                resident: 7,
                ..Point::default()
            };
            w.points(&[point; 2]).unwrap();
            w.events(&[Event(5, 6, 0, 1, 1, 9, 8, 1 << 46, 1)]).unwrap();
        }
        let frame = Frame {
            module: "/bin/x".into(),
            at: 16,
            names: vec!["f".into()],
        };
        let stacks = Stacks {
            frames: vec![frame],
            stacks: vec![(vec![0], 3, 4)],
        };
        w.stacks(&Stacks::default()).unwrap();
        w.stacks(&stacks).unwrap();
        w.end(&End::default()).unwrap();
        path
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        assert!(is_recording(&path));
        let r = read(&path).unwrap();
        assert_eq!(r.head.command, ["sort", "x"]);
        assert_eq!((r.points.len(), r.events.len()), (6, 3));
        assert_eq!(r.events[2].7, 1 << 46);
        assert_eq!((r.stacks.stacks.len(), r.stacks.frames.len()), (1, 1));
        assert!(r.end.is_some());
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Cut off anywhere, or changed in any byte, it is read as far as it is whole, or refused.
    #[test]
    fn damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read(written(dir.path())).unwrap();
        let full = from(&whole[..]).unwrap();
        for cut in 0..whole.len() {
            if let Ok(r) = from(&whole[..cut]) {
                assert!(r.end.is_none() && r.points.len() <= full.points.len());
            }
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1 << (at % 8);
            if let Ok(r) = from(&bad[..]) {
                assert!(r.end.is_none(), "byte {at} was changed, and nobody noticed");
            }
        }
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for (bytes, says) in [
            (&b""[..], "no recording"),
            (b"{\"memory_bytes\": 1}", "no recording"),
            (b"hugeswap recording\n\x07\0\0\0", "version 7"),
            (b"hugeswap recording\n\x01\0\0\0", "cut off"),
            // A block that says it has more than there is.
            (
                b"hugeswap recording\n\x01\0\0\0\x01\0\0\0\xff\xff\xff\x03\xff\xff\xff\x03\0\0\0\0",
                "cut off",
            ),
        ] {
            let e = format!("{:#}", from(bytes).unwrap_err());
            assert!(e.contains(says) && !e.contains('\n'), "{e}");
        }
    }

    #[test]
    fn what_does_not_hold_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let mut w = Writer::create(&path, &Head::default()).unwrap();
        let stacks = Stacks {
            frames: Vec::new(),
            stacks: vec![(vec![1 << 30], 1, 1)],
        };
        w.stacks(&stacks).unwrap();
        w.flush().unwrap();
        let e = format!("{:#}", read(&path).unwrap_err());
        assert!(e.contains("hold together"), "{e}");
    }
}
