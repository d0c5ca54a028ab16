//! `cffs image`: copies only the metadata of an image, for bug reports.

use crate::device::open_device;
use crate::disk::disk_of;
use crate::image::{EngineResultExt, LogArgs};
use crate::progress::Steps;
use crate::size::human;
use crate::text::print_json;
use anyhow::{Context, anyhow, bail};
use cffs::device::{Device, Direct, FileDevice, OpenMode};
use cffs::metadump::{Copied, Devices, MetadumpOptions, Obfuscator, copy_metadata};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copy only the metadata of an image, for bug reports
///
/// TARGET becomes a sparse file as large as the image, with superblocks, groups, bitmaps, directories, inodes, tables,
/// extent trees, extended attributes, quotas and the log, and without anything that stood in a file: contents within
/// inodes and in the log are zeros. `cffs fsck -n` finds in it what it finds in the image. Names, targets of symbolic links,
/// owners, sizes and times are in it; with --obfuscate, names, targets, extended attributes and the label are replaced by
/// others of the same length. The image is only read; it must not be mounted.
#[derive(Args, Debug)]
pub struct ImageArgs {
    /// Replace names, targets of symbolic links, extended attributes and the label; each by the same wherever it stands
    #[arg(long, visible_alias = "scramble")]
    obfuscate: bool,
    /// With --obfuscate: take the key from this file, so that another copy has the same names. Without, nobody knows the key
    #[arg(long, value_name = "FILE", requires = "obfuscate")]
    key_file: Option<PathBuf>,
    /// Copy blocks with a wrong checksum whole, not only their header: parts of files may be in them
    #[arg(long)]
    keep_damaged: bool,
    /// Replace TARGET if it is there
    #[arg(short, long)]
    force: bool,
    /// Print what was copied as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// File for the copy of the log, if that is on a device of its own
    #[arg(long, value_name = "FILE", requires = "log_device")]
    log_target: Option<PathBuf>,
    /// Device or image file
    source: PathBuf,
    /// File to make
    target: PathBuf,
}

/// A file under another name until it is whole.
struct Part {
    path: PathBuf,
    part: PathBuf,
    dev: FileDevice,
}

impl Part {
    fn new(path: &Path, len: u64, force: bool) -> anyhow::Result<Part> {
        let name = path.display();
        match fs::symlink_metadata(path) {
            Ok(m) if !m.is_file() => bail!("{name}: not a regular file: a copy is made in a file"),
            Ok(_) if !force => {
                bail!("{name}: there is such a file already: take another name, or --force to replace it")
            }
            _ => {}
        }
        let mut part = OsString::from(path);
        part.push(".part");
        let part = PathBuf::from(part);
        // What an interrupted run has left.
        let _ = fs::remove_file(&part);
        let mode = OpenMode { direct: Direct::Never, ..OpenMode::READ_WRITE };
        let dev = FileDevice::create(&part, len, mode).with_context(|| format!("{name}: cannot be made"))?;
        Ok(Part { path: path.to_owned(), part, dev })
    }

    fn finish(&self) -> anyhow::Result<()> {
        fs::rename(&self.part, &self.path).with_context(|| format!("{}: cannot be made", self.path.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the renaming there is none.
        let _ = fs::remove_file(&self.part);
    }
}

fn obfuscator(args: &ImageArgs) -> anyhow::Result<Option<Obfuscator>> {
    if !args.obfuscate {
        return Ok(None);
    }
    Ok(Some(match &args.key_file {
        Some(file) => {
            let key = fs::read(file).with_context(|| format!("{}: cannot read the key", file.display()))?;
            if key.len() < 8 {
                bail!("{}: a key has at least 8 bytes, this one {}", file.display(), key.len());
            }
            Obfuscator::from_bytes(&key)
        }
        None => Obfuscator::from_bytes(&cffs::mkfs::random_uuid()?),
    }))
}

/// Runs the subcommand.
pub fn run(args: &ImageArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.source.display().to_string();
    let open = |path: &Path| -> anyhow::Result<Arc<dyn Device>> {
        let file = open_device(path, OpenMode::READ_ONLY)?;
        file.use_buffered()?;
        Ok(disk_of(file, path, &args.log)?.dev)
    };
    let source = Devices { dev: open(&args.source)?, log: args.log.log_device.as_deref().map(open).transpose()? };
    let options = MetadumpOptions { obfuscate: obfuscator(args)?, keep_damaged: args.keep_damaged };
    let same = |a: &Path, b: &Path| fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b));
    if same(&args.source, &args.target) {
        bail!("{name}: source and target are the same");
    }
    let to = Part::new(&args.target, source.dev.len(), args.force)?;
    let log_to = match (&args.log_target, &source.log) {
        (Some(path), Some(log)) => Some(Part::new(path, log.len(), args.force)?),
        _ => None,
    };
    remove_on_signal([Some(&to), log_to.as_ref()].into_iter().flatten().map(|p| p.part.clone()).collect())?;
    let copied = {
        let steps = Steps::new();
        let target = Devices { dev: &to.dev as &dyn Device, log: log_to.as_ref().map(|l| &l.dev as &dyn Device) };
        copy_metadata(&source, &target, &options, &|what, done, total| steps.show(what, done, total)).about(|| &name)?
    };
    to.finish()?;
    log_to.as_ref().map(Part::finish).transpose()?;
    report(args, &name, &copied)?;
    Ok(0)
}

fn remove_on_signal(parts: Vec<PathBuf>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("cffs-signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for part in parts {
                let _ = fs::remove_file(part);
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

fn report(args: &ImageArgs, name: &str, c: &Copied) -> anyhow::Result<()> {
    if args.json {
        let mut value = serde_json::to_value(c)?;
        let object = value.as_object_mut().ok_or_else(|| anyhow!("no object"))?;
        object.insert("source".into(), json!(name));
        object.insert("target".into(), json!(args.target.display().to_string()));
        object.insert("scrambled".into(), json!(args.obfuscate));
        return Ok(print_json(&value)?);
    }
    let mut out = io::stdout().lock();
    let target = args.target.display();
    let names = if args.obfuscate { "obfuscated" } else { "as they are" };
    writeln!(out, "{target}: {} of metadata in {} blocks, names {names}", human(c.bytes), c.blocks)?;
    for (n, what) in [
        (c.transactions, "transactions in the log, without contents of files"),
        (c.damaged, "blocks with a wrong checksum"),
        (c.foreign, "blocks that are no metadata although something refers to them: left out"),
        (c.unreadable, "blocks that cannot be read: left out"),
    ] {
        if n > 0 {
            writeln!(out, "{target}: {n} {what}")?;
        }
    }
    if args.log.log_device.is_some() && args.log_target.is_none() {
        writeln!(out, "{target}: without the log, which is on another device: name a file for it with --log-target")?;
    }
    Ok(())
}
