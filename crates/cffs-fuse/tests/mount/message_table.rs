//! The table of docs/messages.md: what each operation costs is counted here and compared, so that the page cannot become untrue.

use crate::common::{Image, Messages, Mounted, can_mount};
use cffs_testenv::skipped;
use rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags, open};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/messages.md");

/// Names in the directory that is listed.
const LISTED: usize = 100;

/// How much of a mount the kernel knows when an operation comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// The directory's attributes, and nothing of what is in it.
    Cold,
    /// What the same operation on the same name left behind.
    Warm,
}
use Kernel::{Cold, Warm};

/// An operation, as the table calls it, with what it does in the directory `d`. The number tells rounds apart.
struct Operation {
    name: &'static str,
    kernel: Kernel,
    work: fn(&Path, usize),
}

const fn operation(name: &'static str, kernel: Kernel, work: fn(&Path, usize)) -> Operation {
    Operation { name, kernel, work }
}

const OPERATIONS: &[Operation] = &[
    operation("stat, cold", Cold, stat),
    operation("stat, warm", Warm, stat),
    operation("stat with the birth time, cold", Cold, stat_birth),
    operation("stat with the birth time, warm", Warm, stat_birth),
    operation("stat of a missing name, cold", Cold, stat_missing),
    operation("stat of a missing name, warm", Warm, stat_missing),
    operation("open, read 1 KiB, close, cold", Cold, read_small),
    operation("open, read 1 KiB, close, warm", Warm, read_small),
    operation("open, read 1 MiB, close, cold", Cold, read_large),
    operation("list 100 names with their attributes, cold", Cold, list),
    operation("list 100 names with their attributes, warm", Warm, list),
    operation("create, write 1 KiB, close", Warm, create),
    operation("create, write 1 KiB, fsync, close", Warm, create_durably),
    operation("create ten files of 1 KiB in a directory", Warm, create_ten),
    operation("create, write 1 MiB, close", Warm, create_large),
    operation("make a file without a name (O_TMPFILE)", Warm, tmpfile),
    operation("write over 4 KiB in place, cold", Cold, overwrite),
    operation("write over 4 KiB in place, warm", Warm, overwrite),
    operation("truncate at open, write 1 KiB, close", Warm, rewrite),
    operation("append 100 bytes, warm", Warm, append),
    operation("fsync of a file without changes", Warm, fsync),
    operation("fsync of a directory", Warm, fsync_dir),
    operation("truncate", Warm, truncate),
    operation("chmod", Warm, chmod),
    operation("utimensat", Warm, touch),
    operation("fallocate", Warm, allocate),
    operation("lseek to a hole", Warm, seek),
    operation("mkdir", Warm, mkdir),
    operation("rmdir", Warm, rmdir),
    operation("unlink", Warm, unlink),
    operation("rename to a new name", Warm, rename),
    operation("rename over a file", Warm, rename_over),
    operation("link", Warm, link),
    operation("symlink", Warm, make_symlink),
    operation("readlink, cold", Cold, readlink),
    operation("readlink, warm", Warm, readlink),
    operation("setxattr", Warm, setxattr),
    operation("getxattr", Warm, getxattr),
    operation("statfs", Warm, statfs),
];

/// What all operations find; also the names that they remove, two for each round.
fn fill(m: &Mounted) {
    let dir = m.path("d");
    for dir in [&dir, &m.path("d/listed")] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(dir.join("small"), [7; 1024]).unwrap();
    fs::write(dir.join("page"), [7; 8192]).unwrap();
    fs::write(dir.join("large"), vec![7; 1 << 20]).unwrap();
    symlink("some/where", dir.join("symlink")).unwrap();
    for n in 0..LISTED {
        fs::write(dir.join(format!("listed/f{n}")), [7; 10]).unwrap();
    }
    for n in 0..2 * ROUNDS {
        fs::write(dir.join(format!("gone{n}")), "x").unwrap();
        fs::write(dir.join(format!("from{n}")), "x").unwrap();
        fs::write(dir.join(format!("over{n}")), "x").unwrap();
        fs::create_dir(dir.join(format!("gonedir{n}"))).unwrap();
    }
    rustix::fs::setxattr(dir.join("small"), "user.x", b"1", XattrFlags::empty()).unwrap();
}

const ROUNDS: usize = 10;

/// As C programs do it: that of Rust asks for the birth time.
fn stat(d: &Path, _: usize) {
    rustix::fs::lstat(d.join("small")).unwrap();
}

fn stat_birth(d: &Path, _: usize) {
    fs::symlink_metadata(d.join("small")).unwrap();
}

fn tmpfile(d: &Path, _: usize) {
    open(d, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).unwrap();
}

fn stat_missing(d: &Path, _: usize) {
    assert!(rustix::fs::lstat(d.join("missing")).is_err());
}

fn read_small(d: &Path, _: usize) {
    let mut bytes = [0; 2048];
    assert_eq!(File::open(d.join("small")).unwrap().read(&mut bytes).unwrap(), 1024);
}

fn read_large(d: &Path, _: usize) {
    let mut bytes = vec![0; 1 << 20];
    File::open(d.join("large")).unwrap().read_exact(&mut bytes).unwrap();
}

fn list(d: &Path, _: usize) {
    let entries = fs::read_dir(d.join("listed")).unwrap();
    let sizes = entries.map(|e| rustix::fs::lstat(e.unwrap().path()).unwrap().st_size);
    assert_eq!(sizes.sum::<i64>(), 10 * LISTED as i64);
}

fn create_with(path: &Path, len: usize) -> File {
    let mut file = File::create_new(path).unwrap();
    file.write_all(&vec![7; len]).unwrap();
    file
}

fn create(d: &Path, n: usize) {
    create_with(&d.join(format!("new{n}")), 1024);
}

fn create_ten(d: &Path, n: usize) {
    for f in 0..10 {
        create_with(&d.join(format!("ten{n}-{f}")), 1024);
    }
}

fn create_durably(d: &Path, n: usize) {
    create_with(&d.join(format!("durable{n}")), 1024).sync_all().unwrap();
}

fn create_large(d: &Path, n: usize) {
    create_with(&d.join(format!("newlarge{n}")), 1 << 20);
}

fn overwrite(d: &Path, _: usize) {
    OpenOptions::new().write(true).open(d.join("page")).unwrap().write_all(&[8; 4096]).unwrap();
}

fn rewrite(d: &Path, _: usize) {
    File::create(d.join("page")).unwrap().write_all(&[8; 1024]).unwrap();
}

fn append(d: &Path, _: usize) {
    OpenOptions::new().append(true).open(d.join("small")).unwrap().write_all(&[8; 100]).unwrap();
}

fn fsync(d: &Path, _: usize) {
    File::open(d.join("small")).unwrap().sync_all().unwrap();
}

fn fsync_dir(d: &Path, _: usize) {
    File::open(d).unwrap().sync_all().unwrap();
}

fn truncate(d: &Path, n: usize) {
    rustix::fs::ftruncate(OpenOptions::new().write(true).open(d.join("page")).unwrap(), 100 + n as u64).unwrap();
}

fn chmod(d: &Path, n: usize) {
    fs::set_permissions(d.join("small"), fs::Permissions::from_mode(0o600 + n as u32 % 8)).unwrap();
}

fn touch(d: &Path, _: usize) {
    File::open(d.join("small")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
}

fn allocate(d: &Path, n: usize) {
    let file = OpenOptions::new().write(true).open(d.join("large")).unwrap();
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, (2 + n as u64) << 20, 4096).unwrap();
}

fn seek(d: &Path, _: usize) {
    rustix::fs::seek(File::open(d.join("large")).unwrap(), rustix::fs::SeekFrom::Hole(0)).unwrap();
}

fn mkdir(d: &Path, n: usize) {
    fs::create_dir(d.join(format!("dir{n}"))).unwrap();
}

fn rmdir(d: &Path, n: usize) {
    fs::remove_dir(d.join(format!("gonedir{n}"))).unwrap();
}

fn unlink(d: &Path, n: usize) {
    fs::remove_file(d.join(format!("gone{n}"))).unwrap();
}

fn rename(d: &Path, n: usize) {
    fs::rename(d.join(format!("from{n}")), d.join(format!("to{n}"))).unwrap();
}

fn rename_over(d: &Path, n: usize) {
    fs::rename(d.join(format!("over{n}")), d.join("target")).unwrap();
}

fn link(d: &Path, n: usize) {
    fs::hard_link(d.join("small"), d.join(format!("link{n}"))).unwrap();
}

fn make_symlink(d: &Path, n: usize) {
    symlink("some/where", d.join(format!("symlink{n}"))).unwrap();
}

fn readlink(d: &Path, _: usize) {
    fs::read_link(d.join("symlink")).unwrap();
}

fn setxattr(d: &Path, _: usize) {
    rustix::fs::setxattr(d.join("small"), "user.x", b"2", XattrFlags::empty()).unwrap();
}

fn getxattr(d: &Path, _: usize) {
    rustix::fs::getxattr(d.join("small"), "user.x", &mut [0; 10]).unwrap();
}

fn statfs(d: &Path, _: usize) {
    rustix::fs::statfs(d).unwrap();
}

/// What the table shows of a count: kinds and numbers, without the messages that nobody waits for.
fn shown(cost: &Messages) -> String {
    let all = format!("{cost:?}");
    let kinds = all.trim_matches(['{', '}']).replace(['"', ':'], "");
    let kinds: Vec<&str> = kinds.split(", ").filter(|k| !k.is_empty() && !k.starts_with("forget ")).collect();
    if kinds.is_empty() { "none".into() } else { kinds.join(", ") }
}

/// Counts an operation on a mount of its own. The number is that of the round.
fn count(image: &Image, operation: &Operation, round: usize) -> String {
    let m = image.mount();
    let d = m.path("d");
    // What the kernel asks once for all of a mount: whether it has to ask when files are opened and closed, and the like.
    let name = |what: &str| m.path(&format!("{what}-{}-{round}", operation.name.replace(' ', "-")));
    fs::write(name("other"), "x").unwrap();
    fs::read(name("other")).unwrap();
    File::open(name("other")).unwrap().sync_all().unwrap();
    fs::read_dir(m.dir()).unwrap().for_each(drop);
    fs::symlink_metadata(&d).unwrap();
    if operation.kernel == Warm {
        // Its own names, if it leaves any, and those that other rounds use.
        for entry in fs::read_dir(&d).unwrap() {
            entry.unwrap().metadata().unwrap();
        }
        (operation.work)(&d, ROUNDS + round);
        fs::symlink_metadata(&d).unwrap();
    }
    // The first look at the counters costs more than the next.
    m.messages();
    let cost = m.messages_of(|| (operation.work)(&d, round));
    let nothing = m.messages_of(|| ());
    assert_eq!(shown(&nothing), "none", "looking at the counters is counted");
    m.unmount();
    shown(&cost)
}

/// Rows of the table: operation, messages, the least, the reason.
fn table() -> Vec<[&'static str; 4]> {
    let (_, rest) = PAGE.split_once("<!-- messages: begin -->").expect("the table begins");
    let (table, _) = rest.split_once("<!-- messages: end -->").expect("the table ends");
    let rows = table.trim().lines().skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|cells| panic!("a row has four cells, and not {cells:?}"))
    })
    .collect()
}

/// How many messages a cell names.
fn sum(cell: &str) -> u64 {
    let number = |kind: &str| kind.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
    if cell == "none" {
        0
    } else {
        cell.split(", ").map(|k| number(k).unwrap_or_else(|| panic!("{k}: how many?"))).sum()
    }
}

/// Whether this is the kernel that the page was counted on: others know other messages.
fn is_kernel_of_page() -> bool {
    let (_, rest) = PAGE.split_once("Counted on Linux ").expect("the page names the kernel");
    let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap().trim_end_matches('.');
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let same = release.strip_prefix(version).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    if !same {
        skipped("linux", &format!("docs/messages.md was counted on Linux {version}, and this is {}", release.trim()));
    }
    same
}

#[test]
fn the_page_of_messages_says_what_is_counted() {
    if !can_mount() || !is_kernel_of_page() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fill(&m);
    m.unmount();
    let table = table();
    let mut wrong = Vec::new();
    for operation in OPERATIONS {
        let row = table.iter().find(|row| row[0] == operation.name);
        let said = row.map_or("", |row| row[1]);
        // A kernel that is short of memory forgets, and asks again.
        let mut counted = Vec::new();
        while counted.len() < ROUNDS && counted.last().is_none_or(|c| c != said) {
            counted.push(count(&image, operation, counted.len()));
            if row.is_none() {
                break;
            }
        }
        println!("| {} | {} |", operation.name, counted.last().unwrap());
        if counted.last().unwrap() != said {
            wrong.push(format!("{}: the page says \"{said}\", counted: {counted:?}", operation.name));
        }
    }
    assert!(wrong.is_empty(), "docs/messages.md:\n{}", wrong.join("\n"));
}

#[test]
fn the_page_of_messages_gives_a_reason_for_each_message_too_many() {
    let table = table();
    assert_eq!(table.len(), OPERATIONS.len(), "an operation has no row, or a row no operation");
    for [operation, sent, least, reason] in table {
        assert!(OPERATIONS.iter().any(|o| o.name == operation), "{operation}: nobody counts this");
        assert!(sum(sent) >= sum(least), "{operation}: fewer messages than the least");
        assert_eq!(
            sum(sent) > sum(least),
            !reason.is_empty(),
            "{operation}: a reason where more is sent than the least"
        );
    }
}
