//! `cffs together`: these files are read together; on a mount or in an image.

use crate::colocate::why;
use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_write};
use anyhow::{Context, anyhow, bail};
use cffs::path::resolve;
use cffs::{COLOCATION_ATTRIBUTE, Caller, Fs, Ino, list_values};
use cffs_fuse::control::Control;
use clap::Args;
use rustix::fs::XattrFlags;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Say that files are read together, in this order
///
/// They may be in any directories of one file system. The next `cffs regroup` brings the small ones next to each other, and what
/// is written to them later goes there too. A file belongs to the last list that it was named in.
///
/// On a mount it takes the right to write to the files. It is stored as the extended attribute user.cffs.colocate of each file;
/// `setfattr -x user.cffs.colocate FILE` takes a file off its list.
#[derive(Args, Debug)]
pub struct TogetherArgs {
    /// Read the names from a file, one in a line; - is standard input
    #[arg(long, value_name = "LIST", conflicts_with = "files")]
    from: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Files of one mount, or of one image
    #[arg(value_name = "FILE|IMAGE:/PATH", required_unless_present = "from")]
    files: Vec<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &TogetherArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let files = match &args.from {
        Some(list) => read_list(list)?,
        None => args.files.clone(),
    };
    let Some(first) = files.first() else { bail!("the list is empty: name at least one file") };
    if std::fs::symlink_metadata(first).is_ok() && ImagePath::parse(first.as_os_str()).path.is_empty() {
        on_mount(&files)?;
    } else {
        in_image(&files, &args.log)?;
    }
    Ok(0)
}

fn read_list(list: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let about = || list.display().to_string();
    let input: Box<dyn Read> = if list == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(list).with_context(about)?)
    };
    let lines = BufReader::new(input).split(b'\n').collect::<Result<Vec<_>, _>>().with_context(about)?;
    Ok(lines.into_iter().filter(|line| !line.is_empty()).map(|line| PathBuf::from(OsString::from_vec(line))).collect())
}

/// Looks at all files before the first is changed.
fn on_mount(files: &[PathBuf]) -> anyhow::Result<()> {
    let mut device = None;
    let mut first = 0;
    for path in files {
        let meta = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
        if !meta.is_file() {
            bail!("{}: {NOT_A_FILE}", path.display());
        }
        if device.is_none() {
            Control::open(path)?;
            first = meta.ino();
        }
        if *device.get_or_insert(meta.dev()) != meta.dev() {
            bail!("{}: not in the file system that {} is in", path.display(), files[0].display());
        }
    }
    for (path, value) in files.iter().zip(list_values(first)) {
        rustix::fs::setxattr(path, COLOCATION_ATTRIBUTE, value.as_bytes(), XattrFlags::empty())
            .map_err(|e| anyhow!("{}: {}", path.display(), why(e)))?;
    }
    Ok(())
}

const NOT_A_FILE: &str = "not a regular file";

fn in_image(files: &[PathBuf], log: &LogArgs) -> anyhow::Result<()> {
    let parsed: Vec<ImagePath> = files.iter().map(|f| ImagePath::parse(f.as_os_str())).collect();
    let image = &parsed[0].image;
    if let Some(other) = parsed.iter().find(|p| p.image != *image) {
        bail!("{}: not in {}, where the first file is", other.display(), image.display());
    }
    if parsed[0].path.is_empty() {
        bail!("{}: no such file on a mount, and no IMAGE:/PATH", image.display());
    }
    let fs = open_read_write(image, log)?;
    let outcome = in_open_image(&fs, &parsed);
    fs.close().about(|| image.display().to_string())?;
    outcome
}

fn in_open_image(fs: &Fs, files: &[ImagePath]) -> anyhow::Result<()> {
    let mut found: Vec<Ino> = Vec::new();
    for file in files {
        let attr = resolve(fs, &file.path).about(|| file.display())?;
        found.push(attr.ino);
        if attr.file_type != cffs::FileType::Regular {
            bail!("{}: {NOT_A_FILE}", file.display());
        }
    }
    let outcome = fs.read_together(Caller::ROOT, &found).about(|| files[0].display());
    found.into_iter().for_each(|ino| fs.forget(ino, 1));
    outcome
}
