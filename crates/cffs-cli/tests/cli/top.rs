//! `top`, in a terminal whose screen is read.

use crate::mounting::{fuse_works, mount_point, umount, wait_until};
use crate::tools::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A terminal of 30 lines, and `cffs top` in it.
struct Terminal {
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    child: Child,
}

impl Terminal {
    fn start(words: &[&str]) -> Terminal {
        Terminal::of_kind("xterm-256color", words)
    }

    fn of_kind(kind: &str, words: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 30, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        // It has to be the terminal of a session of its own, or the size is that of whoever runs the tests.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", CFFS, "top"])
            .args(words)
            .env("TERM", kind)
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(30, 140, 0)));
        let (mut output, parsed) = (keys.try_clone().unwrap(), screen.clone());
        // Ends when the other side is closed.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut piece) {
                parsed.lock().unwrap().process(&piece[..n]);
            }
        });
        Terminal { keys, screen, child }
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    #[track_caller]
    fn wait_for(&self, parts: &[&str]) {
        let shown = || parts.iter().all(|part| self.contents().contains(part));
        let start = std::time::Instant::now();
        while !shown() {
            assert!(start.elapsed() < std::time::Duration::from_secs(60), "{parts:?} is not in\n{}", self.contents());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first number of the line that ends with a name.
fn row(screen: &str, name: &str) -> Option<f64> {
    let line = screen.lines().find(|line| line.trim_end().ends_with(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn work(name: &str, round: usize) {
    let dir = Path::new(name).join("busy");
    fs::create_dir_all(&dir).unwrap();
    for n in 0..20 {
        let mut file = File::create(dir.join(format!("{round}-{n}"))).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        file.sync_all().unwrap();
    }
}

#[test]
fn the_screen_shows_what_a_mount_does_and_keys_sort_and_switch() {
    if !fuse_works() || !have(&[Need::Program("setsid")]) {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &image, &name]);
    let _mounted = Mounted(path);
    let mut t = Terminal::start(&["--interval", "0.3", &name]);
    let all =
        ["cffs top", &image, "device ", "group reads", "cache ", "log ", "space ", "background  nothing", "q quit"];
    t.wait_for(&all);
    t.wait_for(&["directory (a second)", "ms of device*"]);
    let mut round = 0;
    wait_until("the directory that costs most is shown", || {
        round += 1;
        work(&name, round);
        row(&t.contents(), "/busy").is_some_and(|operations| operations > 0.0)
    });
    t.press("ot");
    t.wait_for(&["operation (since the beginning)", " create"]);
    // The screen may be read while it is drawn.
    wait_until("the creations", || row(&t.contents(), " create").is_some_and(|operations| operations >= 20.0));
    // The device works for fsync, which is first; sorted by the next column, which is the first one, something else may be.
    t.press("s");
    t.wait_for(&["operations*"]);
    wait_until("operations in their order", || {
        let screen = t.contents();
        let table: Vec<&str> = screen.lines().skip_while(|l| !l.contains("operation (")).skip(1).collect();
        let counts: Vec<f64> = table.iter().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect();
        counts.len() > 3 && counts.is_sorted_by(|a, b| a >= b)
    });
    t.press("p");
    t.wait_for(&["purpose (since the beginning)", "reads*", "MB written", " log"]);
    t.press("S");
    t.wait_for(&["MB written*"]);
    t.press("k");
    t.wait_for(&["disk (since the beginning)", "is on a single disk"]);
    t.press("m");
    t.wait_for(&["message (since the beginning)", " lookup"]);
    t.press("\t");
    t.wait_for(&["directory (since the beginning)", "/busy"]);
    t.press("+ ");
    t.wait_for(&["every 0.6 s", "PAUSED"]);
    // A smaller terminal is filled, not left.
    tcsetwinsize(&t.keys, Winsize { ws_row: 15, ws_col: 70, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    t.screen.lock().unwrap().screen_mut().set_size(15, 70);
    t.press("d");
    t.wait_for(&["directory"]);
    wait_until("the last line has the keys", || {
        t.contents().lines().nth(14).is_some_and(|line| line.starts_with("d directories"))
    });
    assert!(t.screen.lock().unwrap().screen().alternate_screen());
    t.press("q");
    assert!(t.child.wait().unwrap().success());
    wait_until("the first screen is back", || !t.screen.lock().unwrap().screen().alternate_screen());

    let text = ok(&["top", "--batch", "1", "--interval", "0.2", &name]);
    assert!(text.contains("space ") && text.contains("purpose (a second)") && !text.contains('\u{1b}'), "{text}");
    fails(&["top", &name], 1, &["no terminal", "--batch"]);
    // Whoever records is left alone.
    let trace = dir.path().join("trace").to_str().unwrap().to_owned();
    let inner = format!("{CFFS} top --batch 1 --interval 0.2 {name}");
    let text = ok(&["trace", "-o", &trace, &name, "--", "sh", "-c", &inner]);
    assert!(text.contains("somebody else records"), "{text}");
    assert_eq!(json(&ok(&["trace", "summary", "--json", &trace]))["cut"], false);
    umount(&name);
}

#[test]
fn what_top_cannot_do_is_said() {
    for interval in ["nan", "0", "inf", "1e9", "two"] {
        fails(&["top", "--interval", interval, "/"], 2, &["from 0.1 to 3600"]);
    }
    fails(&["trace", "--seconds", "nan", "/"], 2, &["a number of seconds"]);
    if !fuse_works() || !have(&[Need::Program("setsid")]) {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let mut server = Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap();
    let _mounted = Mounted(path.clone());
    wait_until("a mount", || crate::mounting::is_mounted(&path) && fs::metadata(path.join(".")).is_ok());
    for kind in ["dumb", ""] {
        let mut t = Terminal::of_kind(kind, &[&name]);
        t.wait_for(&["TERM", "--batch"]);
        assert_eq!(t.child.wait().unwrap().code(), Some(1));
    }
    // A name cannot drive the terminal.
    let bad = path.join("a\u{1b}[2Jb\u{7}");
    fs::create_dir(&bad).unwrap();
    wait_until("the directory is shown", || {
        let mut top = Command::new(CFFS)
            .args(["top", "--batch", "3", "-i", "0.3", &name])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut work = Command::new("sh");
        work.args(["-c", "for n in $(seq 20); do echo $n > \"$1/$n\"; sync \"$1/$n\"; done", "sh"]).arg(&bad);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(work.status().unwrap().success());
        let mut text = String::new();
        top.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(top.wait().unwrap().success() && !text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        text.contains("/a\\u{1b}[2Jb\\u{7}")
    });
    // The process of the mount is killed: what is left is said, with the way out.
    server.kill().unwrap();
    server.wait().unwrap();
    for words in [&["top", "--batch", "1", &name][..], &["trace", &name], &["stats", &name], &["info", &name]] {
        fails(words, 1, &[&name, "nobody serves this mount", "unmount it"]);
    }
}

#[test]
fn the_disks_below_a_volume_and_a_log_disk_have_a_table() {
    if !fuse_works() || !have(&[Need::Program("setsid")]) {
        return;
    }
    for layout in ["plain", "log"] {
        let dir = temp_dir();
        let [a, b] = ["a", "b"].map(|n| dir.path().join(n).to_str().unwrap().to_owned());
        ok(&["mkfs", "--mirror", "--layout", layout, "--size", "64M", "--group-size", "64K", &a, &b]);
        let (path, name) = mount_point(dir.path());
        ok(&["mount", &a, &name]);
        let _mounted = Mounted(path.clone());
        let mut t = Terminal::start(&["--interval", "0.3", &name]);
        t.wait_for(&["disks       ", "volume      mirror of 2 members, 2 of them in sync", "k disks"]);
        t.press("kt");
        let both = [format!("disk 0: {a} (in sync)"), format!("disk 1: {b} (in sync)")];
        t.wait_for(&["disk (since the beginning)", "reads*", &both[0], &both[1]]);
        work(&name, 1);
        // Both get each write, and each commit; what for is below each.
        t.press("s");
        wait_until("writes of both", || {
            let screen = t.contents();
            both.iter().all(|disk| row(&screen, disk).is_some()) && screen.matches("      log").count() >= 2
        });
        let counted = json(&ok(&["stats", "--json", &name]));
        let writes = |n: usize| counted["disks"][n]["purposes"]["log"]["write_requests"].as_u64().unwrap();
        assert!(writes(0) >= 20 && writes(0) == writes(1), "{counted}");
        t.press("q");
        assert!(t.child.wait().unwrap().success());
        umount(&name);
        // A member that is missing has its row as well.
        fs::remove_file(&b).unwrap();
        ok(&["mount", "-o", "degraded", &a, &name]);
        let text = ok(&["top", "--batch", "1", "--interval", "0.2", &name]);
        assert!(text.contains("1 of them in sync   DEGRADED"), "{text}");
        assert!(text.contains(&format!("disk 0: {a} (in sync)")) && text.contains("(missing)"), "{text}");
        umount(&name);
    }
}

#[test]
fn space_in_the_log_layout_is_that_of_the_disk() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--layout=log", "--thin=1G", "--size", "64M", "--group-size", "64K", &image]);
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &image, &name]);
    let _mounted = Mounted(path.clone());
    fs::write(path.join("file"), vec![7; 1 << 20]).unwrap();
    let text = ok(&["top", "--batch", "1", "--interval", "0.1", &name]);
    let space = text.lines().find(|l| l.starts_with("space ")).unwrap();
    let usable = json(&ok(&["stats", "--json", &name]))["log_disk"]["usable_bytes"].as_u64().unwrap();
    assert!(space.contains(&format!(" of {:.1} MiB used", usable as f64 / 1_048_576.0)), "{space}");
    assert!(space.contains("in use by files and metadata") && !space.contains("GiB"), "{space}");
    umount(&name);
}
