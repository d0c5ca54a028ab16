//! Kills the mount process again and again while several users work against
//! their quotas, and compares what the file system says they use with what
//! they have: by the complete check of the image, and by adding up every file
//! of the mount.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs_record::RecordOption;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::cleanup::{Cleanup, Guard};
use crate::process::{run, wait_for};
use crate::random::Random;
use crate::watched::{MountLog, Watched};

const LIMIT: Duration = Duration::from_secs(120);
/// The users; the last one has no limits, and is given files by root.
const USERS: [u32; 5] = [2001, 2002, 2003, 2004, 2005];
const GROUPS: [u32; 2] = [3001, 3002];
const PROJECT: u32 = 77;
/// Limits of users in bytes and inodes: the first two soon reach one.
const HARD: [(u64, u64); 5] = [(1 << 20, 0), (0, 60), (8 << 20, 400), (4 << 20, 0), (0, 0)];
/// Exit code of a load that was refused where nothing may be refused.
const LATE: i32 = 3;

/// Arguments of `cffs-lab quota`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the mount process is killed
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// The longest time before a kill, in milliseconds
    #[arg(long, default_value_t = 1500)]
    longest: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=64M,commit=1")]
    cffs_options: String,
    /// Keep the image when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Arguments of `cffs-lab quota-load`, which the former starts as each user.
#[derive(clap::Args)]
pub struct LoadArgs {
    /// Where to work
    dir: PathBuf,
    /// Starts the random choices
    seed: u64,
}

/// Bytes and inodes of an id.
type Usage = BTreeMap<u32, (u64, u64)>;

struct Campaign {
    cffs: String,
    image: String,
    mount: PathBuf,
    log: MountLog,
    lab: PathBuf,
    options: String,
}

/// Runs the subcommand: exit code 1 when a record was wrong or a refusal late.
///
/// # Errors
/// When the campaign itself cannot run.
pub fn run_campaign(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted, nothing was tested");
    ensure!(rustix::process::geteuid().is_root(), "takes root: it works as several users");
    let cffs = std::path::absolute(&args.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    let recorder = args.record.open("kills under quotas")?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-quota-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    // The users must be able to run it, wherever it was built.
    let lab = dir.join("cffs-lab");
    fs::copy(std::env::current_exe()?, &lab)?;
    fs::set_permissions(&lab, fs::Permissions::from_mode(0o755))?;
    let it = Campaign {
        cffs: cffs.to_string_lossy().into_owned(),
        image: dir.join("image").to_string_lossy().into_owned(),
        mount: dir.join("mnt"),
        log: MountLog::new(dir.join("mount.log"))?,
        lab,
        options: args.cffs_options.clone(),
    };
    fs::create_dir(&it.mount)?;
    run(&[&it.cffs, "mkfs", "--force", "--size", "512M", "--quota", "user,group,project", &it.image], LIMIT)?;
    it.prepare()?;
    let mut random = Random::new(args.seed);
    let (mut refused, mut operations) = (0, 0);
    let done = |rounds: u32, operations, refused| {
        [(rounds.into(), "kills"), (operations, "operations"), (refused, "of them refused")]
    };
    for round in 1..=args.rounds {
        match it.round(args, &mut random) {
            Ok(found) => {
                refused += found.refused;
                operations += found.operations;
                println!(
                    "round {round:3}: killed after {:4} ms and {:6} operations, {:5} refused, {:2} ids and {:5} inodes exact",
                    found.load.as_millis(),
                    found.operations,
                    found.refused,
                    found.ids,
                    found.inodes
                );
            }
            Err(error) => {
                println!("round {round:3}: FAILED: {error:#}");
                recorder.write(&done(round, operations, refused), &[format!("round {round}")])?;
                if args.keep {
                    dir_guard.disarm();
                    println!("the image is kept: {}", it.image);
                }
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    it.empty().context("emptied")?;
    println!(
        "{} kills, {operations} operations, {refused} refused, none of them late; every record exact after every kill; nothing is used after emptying",
        args.rounds
    );
    recorder.write(&done(args.rounds, operations, refused), &[])?;
    Ok(ExitCode::SUCCESS)
}

/// What one round saw.
struct Found {
    load: Duration,
    operations: u64,
    refused: u64,
    ids: usize,
    inodes: u64,
}

impl Campaign {
    fn mount(&self) -> Result<Watched> {
        Watched::start(&self.cffs, &self.options, &self.image, &self.mount, &self.log, LIMIT)
    }

    fn at(&self) -> String {
        self.mount.to_string_lossy().into_owned()
    }

    fn home(&self, user: u32) -> PathBuf {
        self.mount.join(format!("home{user}"))
    }

    /// Homes and limits.
    fn prepare(&self) -> Result<()> {
        let mount = self.mount()?;
        fs::set_permissions(&self.mount, fs::Permissions::from_mode(0o755))?;
        for (n, (user, (bytes, inodes))) in USERS.into_iter().zip(HARD).enumerate() {
            let home = self.home(user);
            fs::create_dir(&home)?;
            chown(&home, Some(user), Some(GROUPS[n % 2]))?;
            let (subject, bytes, inodes) = (format!("user:{user}"), bytes.to_string(), inodes.to_string());
            let soft = (1 << 19).to_string();
            let soft = if bytes == "0" { "0" } else { &soft };
            let set =
                [&self.cffs, "quota", "set", &subject, "--soft", soft, "--hard", &bytes, "--hard-inodes", &inodes];
            run(&[&set[..], &[&self.at()]].concat(), LIMIT)?;
        }
        let project = self.home(USERS[3]);
        run(&[&self.cffs, "quota", "project", &PROJECT.to_string(), &project.to_string_lossy()], LIMIT)?;
        run(&[&self.cffs, "quota", "set", &format!("project:{PROJECT}"), "--hard", "3M", &self.at()], LIMIT)?;
        mount.unmount(LIMIT)
    }

    fn start_load(&self, user: u32, group: u32, seed: u64) -> Result<Child> {
        let mut command = Command::new(&self.lab);
        command.arg("quota-load").arg(self.home(user)).arg(seed.to_string());
        command.uid(user).gid(group).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command.spawn().context("cannot start the load")
    }

    fn round(&self, args: &Args, random: &mut Random) -> Result<Found> {
        let mount = self.mount().context("cannot mount for the load")?;
        let mut children = Vec::new();
        for (n, user) in USERS.into_iter().enumerate() {
            children.push(self.start_load(user, GROUPS[n % 2], random.next())?);
        }
        let load = Duration::from_millis(50 + random.below(args.longest.max(1)));
        let clock = Instant::now();
        while clock.elapsed() < load {
            self.give_away(random);
        }
        kill_process(mount.pid()?, Signal::KILL)?;
        let (mut operations, mut refused) = (0, 0);
        for mut child in children {
            let mut text = String::new();
            if let Some(mut out) = child.stdout.take() {
                io::Read::read_to_string(&mut out, &mut text)?;
            }
            let status = wait_for(&mut child, LIMIT)?.context("a load does not end")?;
            ensure!(status.code() != Some(LATE), "refused where nothing may be refused: {}", text.trim());
            ensure!(status.success(), "a load ended with {status}: {}", text.trim());
            let numbers: Vec<u64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            operations += numbers.first().unwrap_or(&0);
            refused += numbers.get(1).unwrap_or(&0);
        }
        mount.kill(LIMIT)?;

        // As the kill left it: the log is replayed in memory, everything is counted.
        run(&[&self.cffs, "quota", "check", &self.image], LIMIT)?;
        let mount = self.mount().context("cannot mount after the kill")?;
        let (ids, inodes) = self.compare()?;
        mount.unmount(LIMIT)?;
        run(&[&self.cffs, "fsck", "-n", &self.image], LIMIT).context("the check is not clean")?;
        self.log.expect_no_errors()?;
        Ok(Found { load, operations, refused, ids, inodes })
    }

    /// Root gives somebody's file to the user without limits, or to another group.
    fn give_away(&self, random: &mut Random) {
        let home = self.home(USERS[random.below(5) as usize]);
        let file = home.join(format!("d{}/f{}", random.below(4), random.below(30)));
        let group = GROUPS[random.below(2) as usize];
        let user = (random.below(4) == 0).then_some(USERS[4]);
        // Whatever is there or not by chance.
        let _ = std::os::unix::fs::lchown(&file, user, Some(group));
        std::thread::sleep(Duration::from_millis(2));
    }

    /// What the mount says against the sum over all its files. Returns the ids and the inodes.
    fn compare(&self) -> Result<(usize, u64)> {
        let mut found = [Usage::new(), Usage::new()];
        add_up(&self.mount, &mut found, &mut Default::default())?;
        let text = run(&[&self.cffs, "quota", "report", "--json", &self.at()], LIMIT)?;
        let report: serde_json::Value = serde_json::from_str(&text)?;
        let mut ids = 0;
        for (kind, found) in ["user", "group"].into_iter().zip(&found) {
            let mut said = Usage::new();
            for q in report[kind].as_array().context("no report")? {
                let number = |key: &str| q[key].as_u64().with_context(|| format!("no {key} in {q}"));
                let (id, bytes, inodes) = (number("id")? as u32, number("bytes")?, number("inodes")?);
                if (bytes, inodes) != (0, 0) {
                    said.insert(id, (bytes, inodes));
                }
                let (hard_bytes, hard_inodes) = (number("hard_bytes")?, number("hard_inodes")?);
                ensure!(hard_bytes == 0 || bytes <= hard_bytes, "{kind} {id} has {bytes} bytes of {hard_bytes}");
                ensure!(hard_inodes == 0 || inodes <= hard_inodes, "{kind} {id} has {inodes} inodes of {hard_inodes}");
            }
            ensure!(said == *found, "by {kind} the report says {said:?}, the files have {found:?}");
            ids += said.len();
        }
        Ok((ids, found[0].values().map(|u| u.1).sum()))
    }

    /// Removes everything: nobody but the owner of the root directory uses anything then.
    fn empty(&self) -> Result<()> {
        let mount = self.mount()?;
        for user in USERS {
            fs::remove_dir_all(self.home(user))?;
        }
        mount.unmount(LIMIT)?;
        // What the kernel remembers of the root directory is gone with the mount.
        let mount = self.mount()?;
        let (ids, inodes) = self.compare()?;
        ensure!((ids, inodes) == (2, 1), "{ids} ids still use {inodes} inodes");
        mount.unmount(LIMIT)?;
        run(&[&self.cffs, "fsck", "-n", &self.image], LIMIT)?;
        Ok(())
    }
}

/// Adds up a tree by user and by group; files with several names once.
fn add_up(path: &Path, usage: &mut [Usage; 2], seen: &mut std::collections::BTreeSet<u64>) -> Result<()> {
    let about = || path.display().to_string();
    let meta = fs::symlink_metadata(path).with_context(about)?;
    if !meta.is_dir() && meta.nlink() > 1 && !seen.insert(meta.ino()) {
        return Ok(());
    }
    for (usage, id) in usage.iter_mut().zip([meta.uid(), meta.gid()]) {
        let sum = usage.entry(id).or_default();
        sum.0 += meta.blocks() * 512;
        sum.1 += 1;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).with_context(about)? {
            add_up(&entry?.path(), usage, seen)?;
        }
    }
    Ok(())
}

/// Runs `cffs-lab quota-load`: random operations of one user until the mount goes away. Prints how many there were, and
/// how many were refused for a quota.
///
/// # Errors
/// Never: what may happen is told by the exit code.
pub fn run_load(args: &LoadArgs) -> Result<ExitCode> {
    let mut load = Load { dir: &args.dir, random: Random::new(args.seed), late: None };
    let (mut operations, mut refused) = (0u64, 0u64);
    let mut worked = true;
    while worked {
        worked = match load.step() {
            Ok(()) => true,
            Err(e) if is_quota(&e) => {
                refused += 1;
                true
            }
            Err(e) => tolerable(&e),
        };
        operations += 1;
        if let Some(what) = load.late.take() {
            println!("{what}");
            return Ok(ExitCode::from(LATE as u8));
        }
    }
    println!("{operations} {refused}");
    Ok(ExitCode::SUCCESS)
}

fn is_quota(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::DQUOT.raw_os_error())
}

/// Names are chosen at random, and root gives files away; every other error means that the mount is gone.
fn tolerable(e: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory, NotFound, PermissionDenied};
    let kind = matches!(e.kind(), NotFound | AlreadyExists | DirectoryNotEmpty | NotADirectory | PermissionDenied);
    kind || e.raw_os_error() == Some(Errno::PERM.raw_os_error())
}

struct Load<'a> {
    dir: &'a Path,
    random: Random,
    /// A refusal that came too late.
    late: Option<String>,
}

impl Load<'_> {
    fn path(&mut self) -> PathBuf {
        self.dir.join(format!("d{}/f{}", self.random.below(4), self.random.below(30)))
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.path();
        match self.random.below(20) {
            0 => fs::create_dir(path.parent().unwrap_or(self.dir)),
            1..7 => self.write(&path, true),
            7..10 => self.write(&path, false),
            10..12 => fs::remove_file(&path),
            12 => fs::rename(&path, self.path()),
            13 => fs::hard_link(&path, self.path()),
            14 => {
                let target = "some/where/".repeat(1 + self.random.below(100) as usize);
                std::os::unix::fs::symlink(target, &path)
            }
            15 => OpenOptions::new().write(true).open(&path)?.set_len(self.random.below(200_000)),
            16 => {
                let file = File::open(&path)?;
                self.sync(&file)
            }
            17 => chown(&path, None, Some(GROUPS[0])),
            18 => {
                // Written, unlinked while open, synced.
                let mut file = File::create(&path)?;
                fs::remove_file(&path)?;
                file.write_all(&vec![7; self.random.below(60_000) as usize])?;
                self.sync(&file)
            }
            _ => fs::create_dir(self.dir.join(format!("d{}/sub{}", self.random.below(4), self.random.below(20)))),
        }
    }

    fn write(&mut self, path: &Path, anew: bool) -> io::Result<()> {
        let mut file =
            if anew { File::create(path)? } else { OpenOptions::new().append(true).create(true).open(path)? };
        let most = if self.random.below(10) == 0 { 400_000 } else { 5000 };
        let written = file.write_all(&vec![9; self.random.below(most) as usize]);
        if self.random.below(4) == 0 {
            // What was taken is kept, whatever write said of the rest.
            self.sync(&file)?;
        }
        written
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all().inspect_err(|e| {
            if is_quota(e) || e.kind() == io::ErrorKind::StorageFull {
                self.late = Some(format!("fsync: {e}"));
            }
        })
    }
}
