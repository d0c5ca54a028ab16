//! Operations in directories that all processes share: few names, so that they
//! meet. Which of several errors comes is a matter of luck; an error that no
//! order of operations explains is a failure.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;

use crate::random::Random;

/// How many shared directories there are.
pub const DIRS: u64 = 4;
const NAMES: u64 = 30;

/// Every byte of a shared file at offset `o` is this, whoever wrote it, or 0 where nobody did.
fn byte(offset: u64) -> u8 {
    (offset % 251) as u8 + 1
}

fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(byte).collect()
}

/// One random operation.
pub fn step(root: &Path, random: &mut Random) -> Result<()> {
    let path = some_path(root, random);
    let choice = random.below(100);
    let done = operation(root, &path, choice, random);
    match done {
        Ok(()) => Ok(()),
        Err(e) => match e.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            Some(number) if explained(Errno::from_raw_os_error(number)) => Ok(()),
            _ => Err(e).with_context(|| format!("{}, operation {choice}", path.display())),
        },
    }
}

/// What can come of it that somebody else was faster.
fn explained(error: Errno) -> bool {
    [
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTEMPTY,
        Errno::ISDIR,
        Errno::NOTDIR,
        // A directory renamed into itself; a FIFO has no place to read from.
        Errno::INVAL,
        Errno::LOOP,
        // A device without a driver, a FIFO without a reader.
        Errno::NXIO,
        // A mapping or an offset in something that is no file any more.
        Errno::SPIPE,
    ]
    .contains(&error)
}

fn some_path(root: &Path, random: &mut Random) -> PathBuf {
    let mut path = root.join(format!("shared{}", random.below(DIRS)));
    // Names that are files for the one are directories for the other.
    if random.below(3) == 0 {
        path.push(format!("n{}", random.below(NAMES)));
    }
    path.join(format!("n{}", random.below(NAMES)))
}

fn operation(root: &Path, path: &Path, choice: u64, random: &mut Random) -> Result<()> {
    let other = some_path(root, random);
    let offset = random.below(300 << 10);
    let len = random.below(20 << 10) as usize;
    match choice {
        0..20 => {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            file.write_all_at(&pattern(offset, len), offset)?;
        }
        20..40 => read(path)?,
        40..48 => fs::remove_file(path)?,
        48..58 => fs::rename(path, other)?,
        58..63 => match fs::hard_link(path, other) {
            // It has become a directory.
            Err(e) if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {}
            done => done?,
        },
        63..68 => fs::create_dir(path)?,
        68..71 => fs::remove_dir(path)?,
        // Directories that were renamed into others may be too deep for any path here: without this there would be ever more.
        71 => fs::remove_dir_all(path)?,
        72..77 => OpenOptions::new().write(true).open(path)?.set_len(random.below(400 << 10))?,
        77..80 => symlink("n1", path)?,
        80..86 => list(path.parent().unwrap_or(root))?,
        86..89 => File::open(path)?.sync_all()?,
        89..91 => File::open(path.parent().unwrap_or(root))?.sync_all()?,
        91..94 => append(path)?,
        94..97 => {
            let flags = if random.below(2) == 0 {
                rustix::fs::RenameFlags::EXCHANGE
            } else {
                rustix::fs::RenameFlags::NOREPLACE
            };
            let io = |e: Errno| std::io::Error::from(e);
            rustix::fs::renameat_with(rustix::fs::CWD, path, rustix::fs::CWD, &other, flags).map_err(io)?;
        }
        97..99 => unlinked(path, random)?,
        _ => fs::set_permissions(path, fs::Permissions::from_mode_bits(random))?,
    }
    Ok(())
}

/// Permissions that do not shut root out.
trait SomeMode {
    fn from_mode_bits(random: &mut Random) -> Self;
}

impl SomeMode for fs::Permissions {
    fn from_mode_bits(random: &mut Random) -> Self {
        use std::os::unix::fs::PermissionsExt;
        fs::Permissions::from_mode(0o600 | random.below(0o200) as u32)
    }
}

/// A byte is the pattern's or, in a hole, zero.
fn read(path: &Path) -> Result<()> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let wrong = bytes.iter().enumerate().find(|(i, b)| **b != 0 && **b != byte(*i as u64));
    ensure!(wrong.is_none(), "byte {} of {} is foreign", wrong.map_or(0, |(i, _)| i), bytes.len());
    Ok(())
}

/// At its end, wherever that is for the moment: zeros, which are right everywhere.
fn append(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    // Bounded, or it grows for ever.
    if file.metadata()?.len() < 1 << 20 {
        file.write_all(&[0; 3000])?;
    }
    Ok(())
}

/// To its end. What changes meanwhile may be in it or not, also twice (renamed from behind to before), so the names say
/// nothing.
fn list(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        entry?;
    }
    Ok(())
}

/// A file without a name keeps its contents for the one who has it open.
fn unlinked(path: &Path, random: &mut Random) -> Result<()> {
    let name = path.with_extension(format!("gone-{:x}", random.next()));
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(&name)?;
    let bytes = pattern(0, random.below(100 << 10) as usize);
    file.write_all_at(&bytes, 0)?;
    // Its directory may have been moved away meanwhile, with it.
    fs::remove_file(&name)?;
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0)?;
    ensure!(found == bytes, "a file without a name has changed");
    Ok(())
}
