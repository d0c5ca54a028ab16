//! The commands of `docs/guide-slow-directory.md`, on a real mount: they find the slow directory, explain it, and mend it.

use crate::mounting::{fuse_works, mount_point, wait_until};
use crate::tools::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

/// Files of the spool.
const SPOOL: usize = 300;
/// Files of each of the other directories.
const OTHERS: usize = 100;
const OTHER_DIRS: [&str; 3] = ["home/a", "home/b", "www"];

fn body(n: usize) -> Vec<u8> {
    (0..3000 + n * 97 % 3000).map(|i| (i * 7 + n) as u8).collect()
}

/// A file of the spool: one in ten has what the job looks for.
fn letter(n: usize) -> Vec<u8> {
    [body(n), if n.is_multiple_of(10) { b"needle".to_vec() } else { Vec::new() }].concat()
}

/// An image whose spool lies in the gaps that others have left, while the other directories were written at once.
fn aged_image(dir: &Path) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--size", "32M", "--group-size", "64K", &image]);
    let device = cffs::device::FileDevice::open(Path::new(&image), cffs::device::OpenMode::READ_WRITE).unwrap();
    let fs = cffs::Fs::open(Arc::new(device), None, cffs::MountOptions::default()).unwrap();
    let root = fs.root().unwrap();
    for dir in OTHER_DIRS.iter().chain(&["spool", "old"]) {
        root.create_dir_all(dir).unwrap();
    }
    for dir in OTHER_DIRS {
        (0..OTHERS).for_each(|n| root.write(format!("{dir}/{n}"), body(n)).unwrap());
    }
    fs.sync().unwrap();
    let mut old = 0;
    while root
        .write(format!("old/{old}"), body(old))
        .and_then(|()| if old.is_multiple_of(50) { fs.sync() } else { Ok(()) })
        .is_ok()
    {
        old += 1;
    }
    assert!(old > 1000, "{old} files filled it");
    // What is left is in small pieces, far from each other.
    let _ = root.remove_file(format!("old/{old}"));
    (0..old).filter(|n| n % 7 == 3).for_each(|n| root.remove_file(format!("old/{n}")).unwrap());
    fs.sync().unwrap();
    for n in 0..SPOOL {
        root.write(format!("spool/{n}"), letter(n)).unwrap();
        fs.sync().unwrap();
    }
    (0..old).filter(|n| n % 7 != 3).for_each(|n| root.remove_file(format!("old/{n}")).unwrap());
    fs.close().unwrap();
    image
}

/// The commands of the page, in their order.
fn commands() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide-slow-directory.md");
    let text = fs::read_to_string(page).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// The image and the mount of the test, in the place of those of the page.
struct Here {
    dir: std::path::PathBuf,
    image: String,
    mount: String,
}

impl Here {
    fn shell(&self, command: &str) -> Command {
        let words = command
            .replace("umount /mnt", "cffs umount /mnt")
            .replace("; mount /dev/sdb /mnt", &format!("; cffs mount {} /mnt", self.image))
            .replace("/mnt", &self.mount);
        let path = format!("{}:{}", Path::new(CFFS).parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("timeout");
        shell.args(["120", "sh", "-ec", &words]).current_dir(&self.dir).env("PATH", path).env_remove("CFFS_LOG");
        shell
    }

    #[track_caller]
    fn run(&self, command: &str) -> String {
        let out: Output = self.shell(command).output().unwrap();
        assert!(out.status.success(), "{command}: {}", stderr(&out));
        stdout(&out)
    }
}

/// Requests (the second column) of a directory in a picture of `cffs top`.
fn requests(picture: &str, directory: &str) -> Option<f64> {
    let line = picture.lines().find(|line| line.split_whitespace().last() == Some(directory))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Reads in a recorded trace: all, and those that reading files has caused.
fn reads(here: &Here, trace: &str) -> (f64, f64) {
    let summary = json(&ok(&["trace", "summary", "--json", here.dir.join(trace).to_str().unwrap()]));
    let requests = &summary["requests"];
    assert_eq!(requests["all"]["reads"], requests["counted"]["reads"].as_f64().unwrap(), "{summary}");
    let of = |v: &serde_json::Value| v["reads"].as_f64().unwrap();
    (of(&requests["all"]), of(&requests["by_cause"]["read"]))
}

#[test]
fn the_slow_directory_of_the_guide_is_found_explained_and_mended_by_its_commands() {
    if !fuse_works() {
        return;
    }
    let temp = temp_dir();
    let (path, mount) = mount_point(temp.path());
    let here = Here { dir: temp.path().to_owned(), image: aged_image(temp.path()), mount };
    let _mounted = Mounted(path.clone());
    let commands = commands();
    let words: Vec<String> =
        commands.iter().map(|c| c.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect();
    let again = "umount /mnt; mount";
    let want = [
        "cffs top --batch",
        again,
        "cffs trace /mnt",
        "cffs trace summary",
        "cffs regroup /mnt",
        again,
        "cffs trace /mnt",
        "cffs trace summary",
    ];
    assert_eq!(words, want);
    let [top, remount, before, explain, regroup, _, after, explain_after] = &commands[..] else { unreachable!() };

    ok(&["mount", &here.image, &here.mount]);
    wait_until("the directory that costs most is shown", || {
        here.run(remount);
        let picture = here.shell(top).stdout(Stdio::piped()).spawn().unwrap();
        // The job begins while top looks.
        std::thread::sleep(std::time::Duration::from_secs(1));
        here.run("cat /mnt/home/a/* /mnt/home/b/* /mnt/www/* /mnt/spool/* > /dev/null");
        let picture = picture.wait_with_output().unwrap();
        assert!(picture.status.success());
        let picture = stdout(&picture);
        let Some(spool) = requests(&picture, "/spool") else { return false };
        OTHER_DIRS.iter().all(|d| requests(&picture, &format!("/{d}")).is_some_and(|other| 2.0 * other < spool))
    });

    here.run(remount);
    here.run(before);
    let text = here.run(explain);
    for part in
        ["Operations, and the requests that they waited for", "demand", "counted", "Requests by what caused them"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (all, of_reading) = reads(&here, "before");
    assert!(of_reading > 0.7 * all, "{of_reading} of {all} requests: {text}");

    let said = here.run(regroup);
    assert!(said.contains("regroup complete") && said.contains("requests to read all small files"), "{said}");
    here.run(remount);
    here.run(after);
    let text = here.run(explain_after);
    let (mended, _) = reads(&here, "after");
    assert!(2.0 * mended < all, "{all} requests before, {mended} after: {text}");
    (0..SPOOL).for_each(|n| assert!(contents(path.join(format!("spool/{n}"))) == letter(n), "{n}"));
    ok(&["umount", &here.mount]);
    ok(&["fsck", "-n", &here.image]);
}
