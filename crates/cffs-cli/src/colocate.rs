//! `cffs colocate`: by what the small files of a subtree are placed together; on a mount or in an image.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_only, open_read_write};
use crate::text::print_json;
use anyhow::{Context, anyhow, bail};
use cffs::path::resolve;
use cffs::{Attr, COLOCATION_ATTRIBUTE, Caller, ColocationKey, FileType, Fs, ROOT_INO};
use cffs_fuse::control::Control;
use clap::Args;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Show or set by what small files are placed together
///
/// Small files of a directory lie next to each other, so that one request reads many. Where other files are read together, a
/// directory can name another key. It holds for what is below the directory too, as far as no directory there names one.
/// Files that are there already move with the next `cffs regroup`.
///
/// On a mount it takes the right to write to the directory. It is stored as the extended attribute user.cffs.colocate.
#[derive(Args, Debug)]
pub struct ColocateArgs {
    /// The key: directory, owner, process (that made the files), age (of last use), learned (from the order in which programs read
    /// them), or label:NAME (all files below directories with this label)
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    by: Option<ColocationKey>,
    /// The directory names no key any more: that of the directories above it holds
    #[arg(long, conflicts_with = "by")]
    inherit: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount, or of an image
    #[arg(value_name = "DIR|IMAGE[:/PATH]")]
    path: PathBuf,
}

fn parse_key(text: &str) -> Result<ColocationKey, String> {
    ColocationKey::parse(text).ok_or_else(|| {
        format!("'{text}' is no key: directory, owner, process, age, learned, or label: and up to 32 letters, digits, dots, hyphens, underscores")
    })
}

/// Runs the subcommand.
pub fn run(args: &ColocateArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let (key, named_by) = if args.path.is_dir() { on_mount(args)? } else { in_image(args)? };
    let path = args.path.display();
    if args.json {
        print_json(&json!({ "path": path.to_string(), "key": key.to_string(), "named_by": named_by }))?;
    } else {
        match named_by {
            Some(dir) => println!("{path}: {key}, named by {dir}"),
            None => println!("{path}: {key}"),
        }
    }
    Ok(0)
}

/// The key that holds, and the directory that names it.
type Holds = (ColocationKey, Option<String>);

fn on_mount(args: &ColocateArgs) -> anyhow::Result<Holds> {
    // The path has to be on a cffs: elsewhere the attribute would mean nothing.
    Control::open(&args.path)?;
    let about = || args.path.display().to_string();
    let top = args.path.canonicalize().with_context(about)?;
    if let Some(key) = &args.by {
        rustix::fs::setxattr(&top, COLOCATION_ATTRIBUTE, key.to_string().as_bytes(), XattrFlags::empty())
            .map_err(|e| anyhow!("{}: {}", about(), why(e)))?;
    } else if args.inherit {
        match rustix::fs::removexattr(&top, COLOCATION_ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => bail!("{}: {}", about(), why(e)),
        }
    }
    let device = std::fs::metadata(&top).with_context(about)?.dev();
    for dir in top.ancestors() {
        // What is above belongs to another file system.
        if std::fs::metadata(dir).map(|m| m.dev()).ok() != Some(device) {
            break;
        }
        match named_on_mount(dir) {
            Ok(Some(key)) => return Ok((key, Some(dir.display().to_string()))),
            Ok(None) => {}
            // Not for us to see.
            Err(Errno::ACCESS) if dir != top => break,
            Err(e) => bail!("{}: {}", dir.display(), why(e)),
        }
    }
    Ok((ColocationKey::Directory, None))
}

fn named_on_mount(dir: &Path) -> rustix::io::Result<Option<ColocationKey>> {
    let mut value = [0; 256];
    match rustix::fs::getxattr(dir, COLOCATION_ATTRIBUTE, &mut value[..]) {
        Ok(n) => Ok(std::str::from_utf8(&value[..n]).ok().and_then(ColocationKey::parse)),
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What an error of the attribute means.
pub fn why(e: Errno) -> String {
    match e {
        Errno::OPNOTSUPP => "no extended attributes: the file system is mounted with noxattr".into(),
        Errno::ACCESS | Errno::PERM => format!("{}: it takes the right to write to it", std::io::Error::from(e)),
        e => std::io::Error::from(e).to_string(),
    }
}

fn in_image(args: &ColocateArgs) -> anyhow::Result<Holds> {
    let at = ImagePath::parse(args.path.as_os_str());
    let changes = args.by.is_some() || args.inherit;
    let fs = if changes { open_read_write(&at.image, &args.log)? } else { open_read_only(&at.image, &args.log)? };
    let outcome = in_open_image(&fs, &at, args);
    fs.close().about(|| at.image.display().to_string())?;
    outcome
}

fn in_open_image(fs: &Fs, at: &ImagePath, args: &ColocateArgs) -> anyhow::Result<Holds> {
    let about = || at.display();
    let Attr { ino, file_type, .. } = resolve(fs, &at.path).about(about)?;
    if file_type != FileType::Directory {
        bail!("{}: not a directory", about());
    }
    if args.by.is_some() || args.inherit {
        fs.set_colocation_key(Caller::ROOT, ino, args.by.as_ref()).about(about)?;
    }
    let (key, dir) = fs.colocation_key(ino).about(about)?;
    let named = dir != ROOT_INO || fs.getxattr(dir, COLOCATION_ATTRIBUTE.as_bytes()).is_ok();
    let above = || if dir == ino { about() } else { format!("inode {dir}, which is above it") };
    let named_by = named.then(above);
    fs.forget(ino, 1);
    Ok((key, named_by))
}
