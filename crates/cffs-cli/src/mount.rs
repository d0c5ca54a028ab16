//! `cffs mount`: mounts an image.
//!
//! The command returns when the mount can be used. A process that serves it stays behind: this program again, started
//! with `--serve` and told apart by that alone, because a process with threads cannot fork. It reports over its
//! standard output, and ends by an unmount, SIGTERM or SIGINT.

use crate::beside::mount_beside;
use crate::exit::{self, ExitCodeExt, with_code};
use crate::image::Image;
use crate::log;
use crate::log_args::LogArgs;
use crate::members;
use crate::mount_options::{self, Options};
use crate::remount;
use crate::scrape;
use crate::second_place;
use anyhow::{Context, anyhow, bail};
use cffs::device::{Observed, OpenMode};
use cffs::trace::MountTrace;
use cffs_fuse::{BlockMount, LogView, MountConfig, places_of, snapshots};
use clap::{Args, ValueHint};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The part of the memory of a mount that its log disk has besides for nodes of its maps.
const MAP_SHARE: usize = 8;
/// The least that it has: with fewer nodes a large store would make checkpoints all the time.
const MAP_LEAST: usize = 32 << 20;

/// The options of `-o` and the exit codes, for help and man pages.
const OPTIONS_HELP: &str = "\
Mount options:
  ro, rw                    Read-only, or not (default)
  cache=SIZE                Memory for metadata, group transfers and unwritten data (default: 256M)
  metadata=journal          Metadata go through the log: after a crash the next mount recovers (default)
  metadata=sync             What has to be in order is written at once; after a crash fsck puts it right
  metadata=delayed          Metadata are written at some time; for data that may be lost
  commit=SECONDS            Interval of the asynchronous commit (default: 5)
  logdev=FILE               Device of the log, if it is not in the image
  members=PATH              File, device or directory in which to look for the other members of a volume; several times for
                            several (default: the directory of the one that is named, or all block devices)
  degraded                  Mount a mirror though members are missing that are up to date
  norecovery, noload        With ro: the log is not replayed, not even in memory, so that files may be inconsistent
  prefetch=adaptive         Read whole groups where that pays (default)
  prefetch=off              Read single blocks
  prefetch=always           Read whole groups always
  relatime                  Access times are kept roughly (default)
  noatime, strictatime      Access times are not kept, or exactly
  discard, nodiscard        Tell the device what is no longer used, or not (default)
  btime, nobtime            statx(2) tells birth times (default), or not, which saves a message for each file that
                            programs in Rust or Node.js look at
  snapshot=NAME             Mount this snapshot, for reading, or this clone, in the log layout; beside the file system if that
                            is mounted, as long as it is
  compress=none|lz4|zstd[:LEVEL]
                            How what is written is compressed, in the log layout (default: as mkfs was told)
  threads=N                 Threads that answer the kernel
  maintenance=SECONDS       Files are brought back together when nobody has used the mount for so long;
                            nomaintenance: never (default)
  learn, nolearn            Where the key `learned` holds, note which files, and which parts of large ones, programs read (default), or not
  io_uring, noio_uring      Messages come through io_uring, or there is no mount; or never. Default: where Linux
                            (from 6.14 on) allows it in /sys/module/fuse/parameters/enable_uring
  scrape=[ADDRESS:]PORT     Answer a Prometheus with the counters at http://ADDRESS:PORT/metrics; without an address at
                            127.0.0.1 alone; noscrape: never (default)
  trace[=CLASSES]           Record a trace from the first moment on, for the first `cffs trace`
  log=LEVEL                 Messages from this level on: error, warn (default), info, debug, trace
  allow_other               Other users may use the mount (default for root); opposite: noallow_other
  default_permissions       The kernel checks permissions (default); opposite: nodefault_permissions
  suid, dev, exec           As for any file system; opposites: nosuid, nodev, noexec
  remount                   Changes ro, rw, suid, dev and exec of the mount there is; the others stay as they were
  defaults, auto, noauto, user, users, nofail, _netdev, x-..., comment=...
                            Accepted for the sake of mount(8) and fstab(5)

Exit codes:
  0   Success
  1   Wrong usage, or missing permission
  2   The system could not start what was needed
  4   A bug in cffs
  8   Interrupted
  32  The mount failed

Environment:
  CFFS_LOG  Filter for messages, such as debug or cffs::journal=trace";

/// Mount an image on a directory
///
/// Returns when the mount can be used; `umount DIR` ends it. Root can mount an image that is mounted already at a second
/// directory: it is the same file system there.
#[derive(Args, Debug, Default)]
#[command(after_long_help = OPTIONS_HELP)]
pub struct MountArgs {
    /// Mount options, separated by commas; see below
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground until unmounted; SIGTERM and SIGINT unmount
    #[arg(short)]
    foreground: bool,
    /// Say more; twice or three times, still more
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Write messages to this file, not to standard error or, in the background, to the system log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Serve the mount for the process that reads standard output
    #[arg(long, hide = true)]
    serve: bool,
    /// Ignore unknown mount options
    #[arg(long, hide = true)]
    sloppy: bool,
    #[arg(skip)]
    fake: bool,
    #[arg(skip)]
    namespace: Option<OsString>,
    /// Device or image file
    image: PathBuf,
    /// Directory to mount it on
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Mount a cffs image; called by mount(8)
#[derive(Args, Debug)]
#[command(after_long_help = OPTIONS_HELP)]
pub struct HelperArgs {
    /// Device or image file
    image: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Ignore unknown mount options
    #[arg(short)]
    sloppy: bool,
    /// Check everything, but do not mount
    #[arg(short)]
    fake: bool,
    /// Do not write to /etc/mtab; nothing does
    #[arg(short)]
    no_mtab: bool,
    /// Say more
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Mount namespace: a process number, or the file of a namespace
    #[arg(short = 'N', value_name = "NS")]
    namespace: Option<OsString>,
    /// Mount options, separated by commas; see below
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Type of the file system: cffs, fuse.cffs or fuseblk.cffs
    #[arg(short = 't', value_name = "TYPE")]
    fstype: Option<String>,
}

impl MountArgs {
    /// An image, on a directory, with these options.
    pub fn of(image: &Path, dir: &Path, options: Vec<String>) -> MountArgs {
        MountArgs { options, image: image.into(), dir: dir.into(), ..MountArgs::default() }
    }
}

impl From<HelperArgs> for MountArgs {
    fn from(h: HelperArgs) -> MountArgs {
        MountArgs {
            options: h.options,
            verbose: h.verbose,
            sloppy: h.sloppy,
            fake: h.fake,
            namespace: h.namespace,
            image: h.image,
            dir: h.dir,
            ..MountArgs::default()
        }
    }
}

/// Runs the subcommand.
pub fn run(args: &MountArgs) -> anyhow::Result<u8> {
    let level = mount_options::log_level(args.options.iter().map(String::as_str));
    log::start_at(level, args.verbose);
    if let Some(path) = &args.log {
        log::to_file(path).with_context(|| path.display().to_string()).exit_code(exit::mount::USAGE)?;
    }
    if let Some(namespace) = &args.namespace {
        enter_namespace(namespace).exit_code(exit::mount::SYSTEM)?;
    }
    if remount::is_wanted(&args.options) {
        return remount::run(&args.dir, &args.options, args.sloppy);
    }
    let name = args.image.display();
    let mut options = Options::parse(args.options.iter().map(String::as_str), args.sloppy)
        .map_err(|e| with_code(exit::mount::USAGE, anyhow!("{name}: {e}")))?;
    // Absolute, since the process that stays behind leaves the current directory.
    let image = absolute(&args.image)?;
    let dir = mount_point(&args.dir)?;
    options.config.fsname = image.display().to_string();
    if let Some(log) = &options.parts.log_device {
        options.parts.log_device = Some(absolute(log)?);
    }
    for path in &mut options.parts.members {
        *path = absolute(path)?;
    }
    if let Some(snapshot) = &options.snapshot {
        if let Some(first) = places_of(&image).unwrap_or_default().first() {
            let at = first.dir().display();
            if args.foreground {
                let text =
                    format!("{name}: it is mounted on {at}, by a process that serves its snapshots too: leave out -f");
                return Err(with_code(exit::mount::FAILED, anyhow!(text)));
            }
            if !args.fake {
                mount_beside(first.dir(), snapshot, &dir, &options)?;
            }
            return Ok(0);
        }
        options.config.fsname = format!("{}@{snapshot}", image.display());
    } else if !args.serve
        && let Some(first) = second_place::first_of(&image, options.engine.read_only)
    {
        if args.foreground {
            let at = first.dir().display();
            let text = format!("{name}: it is mounted on {at} already, so there is nothing to serve: leave out -f");
            return Err(with_code(exit::mount::FAILED, anyhow!(text)));
        }
        if args.fake || second_place::mount(&first, &image, &dir, &options, &args.options)? {
            return Ok(0);
        }
    }
    if args.foreground || args.serve {
        serve(args, &image, &dir, options)
    } else if args.fake {
        open(&image, &options, true, None)?;
        Ok(0)
    } else {
        start_server(args, &image, &dir)
    }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().with_context(|| path.display().to_string()).map_err(|e| anyhow!("{e:#}: check the name"))
}

/// The directory to mount on, without links. Checked before the image is touched.
pub fn mount_point(dir: &Path) -> anyhow::Result<PathBuf> {
    let name = dir.display();
    match dir.canonicalize().and_then(|d| d.metadata().map(|m| (d, m.is_dir()))) {
        Ok((dir, true)) => Ok(dir),
        Ok((_, false)) => bail!("{name}: the mount point is not a directory: name a directory"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("{name}: the mount point does not exist: make it with `mkdir {name}`")
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotConnected => {
            bail!("{name}: there is a dead mount on the mount point: remove it with `umount -l {name}`")
        }
        Err(e) => bail!("{name}: cannot use the mount point: {e}"),
    }
}

/// Goes into another mount namespace, given by the number of a process or as a file.
pub fn enter_namespace(namespace: &OsString) -> anyhow::Result<()> {
    let text = namespace.to_string_lossy();
    let is_process = text.bytes().all(|b| b.is_ascii_digit());
    let path = if is_process { PathBuf::from(format!("/proc/{text}/ns/mnt")) } else { PathBuf::from(namespace) };
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    let kind = rustix::thread::LinkNameSpaceType::Mount;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind))
        .with_context(|| format!("{}: cannot enter the mount namespace", path.display()))
}

/// Opens the image, or the snapshot of it. With a trace, that has what its disks are asked from the first moment on.
fn open(image: &Path, options: &Options, read_only: bool, trace: Option<&MountTrace>) -> anyhow::Result<Image> {
    let open_for = |read_only: bool, observed: Observed| {
        let mode = if read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
        Image::open(image, &LogArgs { observed, ..options.parts.clone() }, mode)
    };
    let open = |read_only| open_for(read_only, trace.map(|t| Observed::by(&t.observer())).unwrap_or_default());
    let read_only = read_only || options.engine.read_only;
    let opened = match &options.snapshot {
        // Nothing is written for a snapshot, so others may read the image as well.
        // What the name is, a look tells.
        Some(name) => open_for(true, Observed::default()).and_then(|look| {
            let is_snapshot = look.log_disk.as_ref().map(|disk| snapshots::is_snapshot(disk, name));
            let only_reads = read_only || is_snapshot.is_none_or(|known| known.unwrap_or(true));
            drop(look);
            open(only_reads)?.at_snapshot(name)
        }),
        None => open(read_only),
    };
    opened.map_err(|e| {
        let denied = e
            .chain()
            .filter_map(|e| e.downcast_ref::<std::io::Error>())
            .any(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
        with_code(if denied { exit::mount::USAGE } else { exit::mount::FAILED }, e)
    })
}

/// Starts the process that serves the mount, and waits until it is ready or has failed.
fn start_server(args: &MountArgs, image: &Path, dir: &Path) -> anyhow::Result<u8> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).exit_code(exit::mount::SYSTEM)?;
    // In another mount namespace this program may have no path.
    let program = match std::env::current_exe() {
        Ok(path) if args.namespace.is_none() && path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    };
    let mut command = Command::new(program);
    command.arg0("cffs").args(["mount", "--serve"]);
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    for _ in 0..args.verbose {
        command.arg("-v");
    }
    if args.sloppy {
        command.arg("--sloppy");
    }
    if let Some(log) = &args.log {
        command.arg("--log").arg(log);
    }
    command.arg("--").arg(image).arg(dir).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server =
        command.spawn().context("cannot start the process that serves the mount").exit_code(exit::mount::SYSTEM)?;
    // Until it is ready, interrupting this process is interrupting that one.
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if let Some(pid) = pid {
                // It may be gone already.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    });
    let mut report = String::new();
    if let Some(mut out) = server.stdout.take() {
        out.read_to_string(&mut report).exit_code(exit::mount::SYSTEM)?;
    }
    if report == READY {
        return Ok(0);
    }
    // It has said on standard error what was wrong.
    let status = server.wait().exit_code(exit::mount::SYSTEM)?;
    match status.code() {
        Some(code) if code != 0 => Ok(u8::try_from(code).unwrap_or(exit::mount::FAILED)),
        _ => Err(with_code(
            exit::mount::INTERNAL,
            anyhow!("{}: the process that serves the mount ended before it was ready ({status})", image.display()),
        )),
    }
}

/// How far the kernel reads ahead where no arm serves the device: four of its longest reads, so that two are with the device while a program copies what
/// the others brought. One often ended before the kernel had asked for more. Several threads of the server take them, and the second may be faster: a disk
/// with an arm would then wait for a rotation.
const READAHEAD: u32 = 4 << 20;

/// What the server says when the mount can be used.
const READY: &str = "ready\n";

/// Mounts, and serves the mount until its end.
fn serve(args: &MountArgs, image: &Path, dir: &Path, options: Options) -> anyhow::Result<u8> {
    let name = image.display().to_string();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).exit_code(exit::mount::SYSTEM)?;
    let path = image;
    let trace = MountTrace::new(options.engine.trace);
    let mounting = trace.mounting();
    let image = match open(path, &options, false, Some(&trace)) {
        Ok(image) => image,
        // Somebody else was mounting it at the same time, and was faster.
        Err(e) => match second_place::first_of(path, options.engine.read_only) {
            Some(first)
                if args.serve
                    && options.snapshot.is_none()
                    && second_place::mount(&first, path, dir, &options, &args.options)? =>
            {
                return report_ready();
            }
            _ => return Err(e),
        },
    };
    let lists = args.options.iter().map(String::as_str);
    let with_defaults = Options::over_defaults(&image.superblock.mount_options_str(), lists, args.sloppy)
        .map_err(|e| with_code(exit::mount::USAGE, anyhow!("{name}: {e}")))?;
    let log_disk = image.log_disk.clone();
    let log_view = options.snapshot.clone().map_or(LogView::FileSystem, LogView::Alone);
    let volume = image.volume.clone();
    let mut options = Options {
        config: MountConfig { fsname: options.config.fsname, log_disk, log_view, volume, ..with_defaults.config },
        parts: options.parts,
        ..with_defaults
    };
    options.engine.read_only |= image.dev.read_only();
    if !image.dev.is_rotational() {
        options.config.readahead = READAHEAD;
    }
    trace.set_classes(options.engine.trace);
    if let Some(log_disk) = &image.log_disk {
        log_disk.set_cache_bytes((options.engine.cache_bytes / MAP_SHARE).max(MAP_LEAST));
    }
    match (&image.log_disk, options.compression) {
        (Some(log_disk), Some(compression)) => log_disk.set_compression(compression),
        (None, Some(_)) => {
            let text = format!("{name}: it has not the log layout, so nothing is compressed: leave out compress=");
            return Err(with_code(exit::mount::USAGE, anyhow!(text)));
        }
        (_, None) => {}
    }
    let warnings = image.volume.as_deref().map(members::warnings).unwrap_or_default();
    warnings.iter().for_each(|what| eprintln!("cffs: warning: {name}: {what}"));
    let scraped = options.scrape.map(scrape::bind).transpose().exit_code(exit::mount::FAILED)?;
    let block = block_mount(&image, &options).exit_code(exit::mount::FAILED)?;
    let fs = image.mount_traced(options.engine, &trace)?;
    drop(mounting);
    let interrupted = signals.pending().next().is_some();
    let attach = || match block {
        Some(block) => cffs_fuse::mount_block(fs.clone(), block, dir, &options.config),
        None => cffs_fuse::mount(fs.clone(), dir, &options.config),
    };
    let session = if interrupted { None } else { Some(attach()) };
    let session = match session {
        Some(Ok(session)) => session,
        failed => {
            fs.close().with_context(|| name.clone())?;
            return match failed {
                Some(Err(e)) => Err(failure(e, &name)),
                _ => Err(with_code(exit::mount::INTERRUPTED, anyhow!("{name}: interrupted before it was mounted"))),
            };
        }
    };
    drop(fs);
    if let Some(listener) = scraped {
        // Without it everything else works.
        let counters = scrape::counters_of(options.config.fsname.clone(), session.counters());
        if let Err(error) = scrape::serve(listener, counters) {
            tracing::error!(image = %name, %error, "nobody answers at the address of scrape=");
        }
    }
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = unmounter.terminate() {
                tracing::error!(%error, "cannot unmount");
            }
        }
    });
    if args.serve {
        go_to_background()?;
    }
    if args.serve {
        // The other messages went to a terminal, where nobody looks later.
        warnings.iter().for_each(|what| tracing::warn!(image = %name, "{what}"));
    }
    tracing::info!(image = %name, dir = %dir.display(), "mounted");
    session.wait().map_err(|e| {
        // In the background nobody sees the error that is returned.
        if args.serve {
            tracing::error!(image = %name, error = %e, "the mount did not end well");
        }
        failure(e, &name)
    })?;
    tracing::info!(image = %name, dir = %dir.display(), "unmounted");
    Ok(0)
}

/// A mount of type `fuseblk`, which the kernel makes for root: it passes sync(2) on (from Linux 6.18), and umount(2) waits for it. Where there
/// is none, `None`: the mount is of type `fuse` then.
///
/// The engine must not be open yet, because the kernel claims a device for itself, so our claim ends before. Nothing is
/// written until one of the two holds again.
fn block_mount(image: &Image, options: &Options) -> anyhow::Result<Option<BlockMount>> {
    // Of a block device there is one mount, and that is not one of a snapshot. Of a volume it is that of the member that was named.
    if !rustix::process::geteuid().is_root() || options.snapshot.is_some() {
        return Ok(None);
    }
    let (config, read_only) = (&options.config, options.engine.read_only);
    let made = if image.file.is_block_device() {
        image.file.release_claim();
        BlockMount::of_device(&image.path, config, read_only)
    } else {
        BlockMount::of_file(&image.path, config, read_only)
    };
    match made {
        Ok(mount) => Ok(Some(mount)),
        Err(error) => {
            tracing::debug!(image = %image.path.display(), %error, "no mount of type fuseblk, so it is of type fuse");
            image.file.reclaim()?;
            Ok(None)
        }
    }
}

fn failure(e: cffs_fuse::Error, image: &str) -> anyhow::Error {
    let code = match &e {
        cffs_fuse::Error::Internal => exit::mount::INTERNAL,
        cffs_fuse::Error::Mount(e) if e.kind() == std::io::ErrorKind::PermissionDenied => exit::mount::USAGE,
        _ => exit::mount::FAILED,
    };
    with_code(code, anyhow!("{image}: {e}"))
}

/// Tells the waiting process that the mount can be used.
fn report_ready() -> anyhow::Result<u8> {
    let mut out = std::io::stdout().lock();
    out.write_all(READY.as_bytes())?;
    out.flush()?;
    Ok(0)
}

/// Tells the waiting process that the mount can be used, and lets go of everything that ties this one to it.
fn go_to_background() -> anyhow::Result<()> {
    // Fails only for the leader of a process group, which a shell may have made this one; nothing is lost then.
    let _ = rustix::process::setsid();
    // Otherwise the file system that holds the current directory could not be unmounted.
    std::env::set_current_dir("/")?;
    log::leave_stderr();
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stderr(&null)?;
    report_ready()?;
    // The reader waits for the end of the pipe, so this is what releases it.
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
