//! What a full check costs, in time and requests: `cffs fsck -n` beside
//! `e2fsck -f -n` and `xfs_repair -n`, each on its own file system with the
//! same tree, on the same disk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cleanup::{Cleanup, Guard};
use crate::peer_harness::{Harness, write_json};
use crate::process::{find_program, run, run_command};
use crate::served::{Counted, Counters, Served, Sparse};

const LIMIT: Duration = Duration::from_secs(3600);

/// A file system and its program that checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// cffs fsck -n
    Cffs,
    /// e2fsck -f -n
    Ext4,
    /// xfs_repair -n
    Xfs,
}

/// Arguments of `cffs-lab checktime`.
#[derive(clap::Args)]
pub struct Args {
    /// Files of the tree, 100 to a directory
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Bytes of each
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Size of the disk in GiB, a sparse file
    #[arg(long, default_value_t = 16)]
    size: u64,
    /// File systems
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cffs,ext4,xfs")]
    only: Vec<Kind>,
    /// Checks of each, of which the fastest counts
    #[arg(long, default_value_t = 2)]
    repeat: u32,
    /// Where the disk's file goes
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Also write what was measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
struct Row {
    kind: Kind,
    files: u64,
    /// Seconds, of the file itself.
    time: f64,
    /// Peak memory of the program in bytes.
    memory: u64,
    /// What the disk was asked.
    requests: Counters,
    /// Blocks of 4 KiB that were read.
    blocks: u64,
    /// Those that were read more than once, and the most often that one was.
    again: u64,
    most: u8,
}

/// Runs the subcommand.
///
/// # Errors
/// When it cannot run, or a check finds something.
pub fn run_checktime(args: &Args) -> Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "takes root: it mounts");
    let harness = Harness::new("check", &args.dir, &args.cffs)?;
    let harness = Checks { image: harness.dir.join("image"), harness };
    let mut rows = Vec::new();
    println!("check          files       time     memory     reads  read bytes  blocks read  more than once");
    for &kind in &args.only {
        if let Some(missing) = kind.programs().iter().find(|name| find_program(name).is_none()) {
            eprintln!("SKIPPED: {kind:?}: there is no {missing} here");
            continue;
        }
        let row = harness.measure(args, kind)?;
        println!(
            "{:12} {:7} {:8.2} s {:6} MiB {:9} {:7} MiB {:12} {:8} (at most {} times)",
            kind.name(),
            row.files,
            row.time,
            row.memory >> 20,
            row.requests.reads,
            row.requests.read_bytes >> 20,
            row.blocks,
            row.again,
            row.most
        );
        rows.push(row);
    }
    if let Some(own) = rows.iter().find(|row| row.kind == Kind::Cffs) {
        for other in rows.iter().filter(|row| row.kind != Kind::Cffs) {
            println!(
                "cffs / {}: time {:.2}, requests {:.3}, bytes {:.2}",
                other.kind.name(),
                own.time / other.time,
                own.requests.reads as f64 / other.requests.reads as f64,
                own.requests.read_bytes as f64 / other.requests.read_bytes as f64
            );
        }
    }
    write_json(args.json.as_deref(), &rows)?;
    Ok(ExitCode::SUCCESS)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Cffs => "cffs fsck -n",
            Kind::Ext4 => "e2fsck -f -n",
            Kind::Xfs => "xfs_repair -n",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Kind::Cffs => &[],
            Kind::Ext4 => &["mkfs.ext4", "e2fsck"],
            Kind::Xfs => &["mkfs.xfs", "xfs_repair"],
        }
    }
}

struct Checks {
    harness: Harness,
    image: PathBuf,
}

impl Checks {
    fn measure(&self, args: &Args, kind: Kind) -> Result<Row> {
        self.make(args, kind)?;
        let mut fastest = f64::MAX;
        let mut memory = 0;
        for _ in 0..args.repeat {
            let (time, peak) = self.check(kind, &self.image)?;
            fastest = fastest.min(time);
            memory = memory.max(peak);
        }
        let medium = Arc::new(Counted::new(Sparse::open(&self.image)?));
        let at = self.harness.dir.join("disk");
        fs::create_dir(&at)?;
        let served = Served::start(medium.clone(), &at)?;
        medium.watch_blocks();
        let before = medium.counters();
        self.check(kind, &served.file())?;
        let requests = medium.counters() - before;
        let (blocks, again, most) = medium.blocks_read();
        served.stop()?;
        fs::remove_dir(&at)?;
        fs::remove_file(&self.image)?;
        Ok(Row { kind, files: args.files, time: fastest, memory, requests, blocks, again, most })
    }

    /// A file system with the tree.
    fn make(&self, args: &Args, kind: Kind) -> Result<()> {
        let image = self.image.to_string_lossy().into_owned();
        drop(Sparse::create(&self.image, args.size << 30)?);
        match kind {
            Kind::Cffs => run(&[&self.harness.cffs, "mkfs", "--force", &image], LIMIT)?,
            // As many inodes as the tree needs, whatever the size.
            Kind::Ext4 => {
                let inodes = (args.files + args.files / 50 + 1000).to_string();
                run(&["mkfs.ext4", "-q", "-F", "-N", &inodes, &image], LIMIT)?
            }
            Kind::Xfs => run(&["mkfs.xfs", "-q", "-f", &image], LIMIT)?,
        };
        if kind == Kind::Cffs {
            let mounted = self.harness.mount(&self.image, LIMIT)?;
            populate(&mounted.root, args.files, args.bytes)?;
            return mounted.unmount(LIMIT);
        }
        let root = self.harness.dir.join("mnt");
        fs::create_dir_all(&root)?;
        let guard = Guard::new(Cleanup::Unmount(root.clone()));
        run(&["mount", "-o", "loop", &image, &root.to_string_lossy()], LIMIT)?;
        populate(&root, args.files, args.bytes)?;
        run(&["umount", &root.to_string_lossy()], LIMIT)?;
        guard.disarm();
        Ok(())
    }

    /// The time, and the peak memory where time(1) is there to say it.
    fn check(&self, kind: Kind, image: &Path) -> Result<(f64, u64)> {
        let report = self.harness.dir.join("memory");
        let mut argv: Vec<&str> = match kind {
            Kind::Cffs => vec![&self.harness.cffs, "fsck", "-n"],
            Kind::Ext4 => vec!["e2fsck", "-f", "-n"],
            Kind::Xfs => vec!["xfs_repair", "-n"],
        };
        if kind == Kind::Xfs {
            argv.push("-f");
        }
        let image = image.to_string_lossy().into_owned();
        argv.push(&image);
        let timed = find_program("time");
        let mut command = match &timed {
            Some(time) => {
                let mut command = Command::new(time);
                command.args(["-f", "%M", "-o"]).arg(&report).args(&argv);
                command
            }
            None => {
                let mut command = Command::new(argv[0]);
                command.args(&argv[1..]);
                command
            }
        };
        command.env("LC_ALL", "C");
        let clock = Instant::now();
        run_command(command, LIMIT).with_context(|| format!("{} found something", kind.name()))?;
        let time = clock.elapsed().as_secs_f64();
        let memory = fs::read_to_string(&report).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        Ok((time, memory << 10))
    }
}

/// The tree: directories of 100 files, 100 directories in one above.
fn populate(root: &Path, files: u64, bytes: usize) -> Result<()> {
    let content = vec![b'x'; bytes];
    let mut dir = root.to_path_buf();
    for n in 0..files {
        if n % 100 == 0 {
            dir = root.join(format!("t{}", n / 10_000)).join(format!("d{}", n / 100));
            fs::create_dir_all(&dir)?;
        }
        let path = dir.join(format!("file{n}.c"));
        fs::File::create(&path)
            .and_then(|mut file| file.write_all(&content))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
