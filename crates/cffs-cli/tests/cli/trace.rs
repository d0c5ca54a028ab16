//! `trace`: recording a mount, and what is said of it.

use crate::mounting::{Foreground, fuse_works, is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use cffs::device::Purpose;
use cffs::trace::{Item, Kind, Reader};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const FILES: usize = 120;

/// An image with files to be read, mounted; what is traced is done by a shell.
fn mounted(dir: &Path, options: &[&str]) -> (String, Mounted) {
    let image = make_image(dir, &[]);
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("old")).unwrap();
    (0..FILES).for_each(|n| fs::write(tree.join(format!("old/{n}")), vec![n as u8; 3000]).unwrap());
    ok(&["import", tree.to_str().unwrap(), &image]);
    let (path, name) = mount_point(dir);
    ok(&[&["mount"], options, &[&image, &name]].concat());
    (name, Mounted(path))
}

/// Reads all, and creates as many and makes them durable.
fn work(name: &str) -> String {
    format!(
        "cat {name}/old/* > /dev/null && mkdir {name}/new && for n in $(seq {FILES}); do echo $n > {name}/new/$n; done && sync {name}/new/1"
    )
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("no number: {v}"))
}

#[test]
fn a_trace_has_each_request_that_the_mount_counts_with_purpose_and_cause() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    let said = ok(&["trace", "-o", &file, &name, "--", "sh", "-c", &format!("{} && echo said", work(&name))]);
    assert_eq!(said, "said\n");

    let summary = json(&ok(&["trace", "summary", "--json", &file]));
    let requests = &summary["requests"];
    assert_eq!((&summary["lost"], &summary["cut"]), (&0.into(), &false.into()), "{summary}");
    for what in ["reads", "writes", "flushes"] {
        assert_eq!(number(&requests["all"][what]), number(&requests["counted"][what]), "{what}: {summary}");
        for table in ["by_purpose", "by_cause"] {
            let rows = requests[table].as_object().unwrap();
            let sum: f64 = rows.values().map(|row| number(&row[what])).sum();
            assert!((sum - number(&requests["all"][what])).abs() < 1e-6, "{what} {table}: {summary}");
        }
    }
    assert!(number(&requests["by_purpose"]["demand"]["reads"]) > 0.0, "{summary}");
    assert!(number(&requests["by_purpose"]["log"]["writes"]) > 0.0, "{summary}");
    assert!(number(&requests["by_cause"]["create"]["writes"]) > 0.0, "a creation writes later: {summary}");
    assert!(requests["by_cause"].get("unknown").is_none(), "{summary}");
    let count = |op: &str| summary["operations"][op]["count"].as_u64().unwrap();
    assert!(count("read") >= FILES as u64 && count("create") == FILES as u64 && count("mkdir") == 1, "{summary}");
    assert_eq!(summary["slowest"].as_array().unwrap().len(), 10);
    let text = ok(&["trace", "summary", "--slowest", "1", &file]);
    for part in ["Requests by purpose", "counted", "create", "The slowest operations", "for the rest: locks, copying"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    the_graph_is_whole(&file);
    the_timeline_is_well_formed(&file, dir.path());
    umount(&name);
}

#[test]
fn a_recording_for_a_replay_has_the_tree_and_what_was_done_and_no_name_if_that_is_asked() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    let work = format!("mkdir {name}/confidential && echo x > {name}/confidential/letterhead && cat {name}/old/7");
    let undo = format!("rm -r {name}/confidential");
    for scramble in [true, false] {
        let file = dir.path().join("trace").to_str().unwrap().to_owned();
        let options: &[&str] = if scramble { &["--scramble"] } else { &[] };
        let words = [&["trace", "--replay", "-o", &file], options, &[&name, "--", "sh", "-c", &work]].concat();
        assert_eq!(ok(&words).len(), 3000);
        assert!(Command::new("sh").args(["-c", &undo]).status().unwrap().success());
        let bytes = fs::read(&file).unwrap();
        let has = |name: &str| bytes.windows(name.len()).any(|w| w == name.as_bytes());
        assert_eq!((has("confidential"), has("letterhead")), (!scramble, !scramble));
        let (mut listed, mut created, mut first) = (0, None, None);
        let mut reader = Reader::new(&bytes[..]).unwrap();
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Listing(l) => listed += l.entries.len(),
                Item::Span(r) => {
                    first = first.or(Some(r.clone()).filter(|r| r.kind == Kind::DeviceRead));
                    created = created.or(r.detail.filter(|_| r.kind == Kind::Create));
                }
                _ => {}
            }
        }
        assert_eq!(listed, FILES + 1, "all files and their directory");
        let created = created.unwrap();
        assert!(created.inode > 1 && created.errno == 0 && created.name(0).len() == "letterhead".len());
        // The second time the kernel has it all.
        assert!(first.is_some() || !scramble, "it begins with nothing in the cache");
        let summary = json(&ok(&["trace", "summary", "--json", &file]));
        let requests = &summary["requests"];
        for what in ["reads", "writes", "flushes"] {
            assert_eq!(number(&requests["all"][what]), number(&requests["counted"][what]), "{what}: {summary}");
        }
        assert_eq!(summary["operations"]["create"]["count"], 1);
    }
    // Through a pipe, to wherever it is kept: what the command prints is not in it.
    let out = run(&["trace", "-o", "-", &name, "--", "sh", "-c", &format!("ls {name} && echo said")]);
    assert!(out.status.success() && stderr(&out).contains("said"));
    let mut reader = Reader::new(&out.stdout[..]).unwrap();
    let items = std::iter::from_fn(|| reader.next_item().unwrap()).count();
    assert!(items > 3 && !reader.is_cut());
    umount(&name);
}

fn the_graph_is_whole(file: &str) {
    let graph = json(&ok(&["trace", "graph", "--json", file]));
    let spans = graph.as_array().unwrap();
    let ids: BTreeSet<u64> = spans.iter().map(|s| s["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), spans.len(), "each span once");
    let requests: Vec<&Value> = spans.iter().filter(|s| s["kind"].as_str().unwrap().starts_with("device-")).collect();
    assert!(!requests.is_empty());
    for r in requests {
        assert!(r["purpose"].is_string() && r["carries"].is_string(), "{r}");
        assert!(ids.contains(&r["cause"].as_u64().expect("a cause")), "{r}");
    }
    // Each creation names its transaction, and there is a commit of it.
    let commits: BTreeSet<u64> = spans
        .iter()
        .filter(|s| s["kind"] == "commit")
        .map(|s| s["arguments"]["transaction"].as_u64().unwrap())
        .collect();
    let created = spans.iter().filter(|s| s["kind"] == "create");
    assert!(created.clone().all(|s| commits.contains(&s["transaction"].as_u64().unwrap())), "{commits:?}");
    let text = ok(&["trace", "graph", "--only", "fsync", file]);
    assert!(text.contains("commit transaction=") && text.contains("device-flush"), "{text}");
    let merged = ok(&["trace", "graph", "--merged", file]);
    assert!(merged.lines().count() < spans.len() / 4 && merged.contains("device-read"), "{merged}");
}

/// As the Trace Event Format wants it: complete events that nest in their thread, and arrows that begin and end in one.
fn the_timeline_is_well_formed(file: &str, dir: &Path) {
    let out = dir.join("timeline.json");
    ok(&["trace", "perfetto", "-o", out.to_str().unwrap(), file]);
    let timeline = json(&fs::read_to_string(out).unwrap());
    let mut tracks: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let (mut names, mut arrows) = (BTreeSet::new(), BTreeMap::new());
    let ns = |v: &Value| (number(v) * 1000.0).round() as u64;
    for event in timeline["traceEvents"].as_array().unwrap() {
        match event["ph"].as_str().unwrap() {
            "X" => {
                let start = ns(&event["ts"]);
                assert!(event["name"].is_string() && event["cat"].is_string() && event["args"].is_object(), "{event}");
                tracks.entry(event["tid"].as_u64().unwrap()).or_default().push((start, start + ns(&event["dur"])));
            }
            "M" => drop(names.insert(event["tid"].as_u64())),
            "s" => assert!(arrows.insert(event["id"].as_u64().unwrap(), ns(&event["ts"])).is_none(), "{event}"),
            "f" => {
                let start = arrows.remove(&event["id"].as_u64().unwrap()).expect("an arrow begins before it ends");
                assert!(start <= ns(&event["ts"]), "{event}");
            }
            other => panic!("{other}: {event}"),
        }
    }
    assert!(arrows.is_empty() && !tracks.is_empty());
    for (thread, mut spans) in tracks {
        assert!(names.contains(&Some(thread)), "a name for thread {thread}");
        spans.sort_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
        let mut open: Vec<u64> = Vec::new();
        for (start, end) in spans {
            while open.last().is_some_and(|last| *last <= start) {
                open.pop();
            }
            assert!(open.last().is_none_or(|last| end <= *last), "thread {thread}: spans cross at {start} ns");
            open.push(end);
        }
    }
}

#[test]
fn classes_are_chosen_and_a_mount_can_be_traced_from_its_beginning() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &["-o", "trace=op+device"]);
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    // What was recorded since the mount goes to whoever asks first.
    let out = run(&["trace", "--classes", "op,device", "-o", &file, &name, "--", "sh", "-c", "exit 7"]);
    assert_eq!(out.status.code(), Some(7), "that of the command: {}", stderr(&out));
    let graph = json(&ok(&["trace", "graph", "--json", &file]));
    let kinds: BTreeSet<&str> = graph.as_array().unwrap().iter().map(|s| s["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains("mount") && kinds.contains("device-read"), "{kinds:?}");
    let requests = &json(&ok(&["trace", "summary", "--json", &file]))["requests"];
    for what in ["reads", "writes", "flushes"] {
        assert_eq!(number(&requests["all"][what]), number(&requests["counted"][what]), "since the mount: {requests}");
    }
    assert!(number(&requests["counted"]["reads"]) > 0.0);
    assert!(!kinds.contains("message") && !kinds.contains("miss"), "{kinds:?}");
    let roots = graph.as_array().unwrap();
    assert!(roots.iter().any(|s| s["kind"] == "device-read" && s["origin"] == "mount"), "{graph}");

    // A recorder that is killed leaves what it has, and does not stand in the way of the next one.
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    let mut killed = Command::new(CFFS).args(["trace", "-o", &other, &name]).spawn().unwrap();
    let has_spans = || {
        let out = run(&["trace", "summary", &other]);
        out.status.success() && !stdout(&out).contains(" 0 spans")
    };
    wait_until("a trace in the file", has_spans);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(has_spans());

    // Nothing is recorded by now.
    let bytes = ok(&["trace", "-o", "-", "--seconds", "0", "--classes", "none", &name]);
    assert!(bytes.starts_with("cffstrac"));
    let out = run(&["trace", "--classes", "op,nosuch", &name]);
    assert_eq!(out.status.code(), Some(2));
    fails(&["trace", "-o", &format!("{name}/trace"), &name], 1, &["in the file system that is to be traced"]);
    assert!(!Path::new(&name).join("trace").exists());
    fs::write(Path::new(&name).join("notes"), "mine").unwrap();
    fails(&["trace", "-o", &format!("{name}/notes"), &name], 1, &["in the file system that is to be traced"]);
    assert_eq!(fs::read_to_string(Path::new(&name).join("notes")).unwrap(), "mine");

    // The command is waited for when the recording has ended before it, and told to end when the recorder is.
    let out = run(&["trace", "-o", &file, "--seconds", "0", &name, "--", "sh", "-c", "sleep 0.2; exit 3"]);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    let started = dir.path().join("started");
    let script = format!("trap 'exit 5' TERM; : > {}; while :; do sleep 0.05; done", started.display());
    let mut recorder =
        Command::new(CFFS).args(["trace", "-o", &file, &name, "--", "sh", "-c", &script]).spawn().unwrap();
    wait_until("the command", || started.exists());
    rustix::process::kill_process(rustix::process::Pid::from_child(&recorder), rustix::process::Signal::TERM).unwrap();
    assert_eq!(recorder.wait().unwrap().code(), Some(5));
    umount(&name);
}

/// As many requests in a trace as the mount has counted, each of somebody.
#[track_caller]
fn all_is_counted(file: &str) -> Value {
    let requests = json(&ok(&["trace", "summary", "--json", file]))["requests"].clone();
    for what in ["reads", "writes", "flushes"] {
        assert_eq!(number(&requests["all"][what]), number(&requests["counted"][what]), "{what}: {requests}");
    }
    requests
}

#[test]
fn what_a_log_disk_and_a_volume_are_asked_before_the_mount_is_in_its_trace() {
    if !fuse_works() {
        return;
    }
    let cases: [&[&str]; 4] = [&["--layout=log"], &["--mirror"], &["--mirror", "--layout=log"], &["--stripe", "1M"]];
    for how in cases {
        let dir = temp_dir();
        let count = if how[0] == "--layout=log" { 1 } else { 2 };
        let images: Vec<String> =
            ["a", "b"][..count].iter().map(|n| dir.path().join(n).to_str().unwrap().to_owned()).collect();
        let all: Vec<&str> = ["mkfs", "--size", "64M", "--group-size", "64K"].iter().chain(how).copied().collect();
        ok(&[&all[..], &images.iter().map(String::as_str).collect::<Vec<_>>()].concat());
        let (path, name) = mount_point(dir.path());
        {
            let _mounted = Mounted(path.clone());
            let served = Foreground(Command::new(CFFS).args(["mount", "-f", &images[0], &name]).spawn().unwrap());
            wait_until("mounted", || is_mounted(&path));
            for n in 0..20 {
                fs::write(path.join(n.to_string()), vec![n; 9000]).unwrap();
                fs::File::open(path.join(n.to_string())).unwrap().sync_all().unwrap();
            }
            drop(served);
        }
        // The last member is named; disks have the numbers of members all the same.
        ok(&["mount", "-o", "trace=all", images.last().unwrap(), &name]);
        let _mounted = Mounted(path.clone());
        // A request that is on its way when the recording ends is counted, and not in the trace: so the resync after the kill comes to its end before.
        wait_until("the members are equal", || {
            let volume = json(&ok(&["stats", "--json", &name]))["volume"].clone();
            volume["members"].as_array().is_none_or(|all| all.iter().all(|m| m["lacks_bytes"] == 0))
        });
        let file = dir.path().join("trace").to_str().unwrap().to_owned();
        ok(&["trace", "-o", &file, &name, "--", "true"]);
        let requests = all_is_counted(&file);
        assert!(requests["by_cause"].get("unknown").is_none(), "{how:?}: {requests}");
        assert!(number(&requests["by_cause"]["mount"]["reads"]) >= 4.0, "{how:?}: {requests}");
        // Superblocks: of the log disk or of each member, the first that is read of it.
        let mut reader = Reader::new(fs::File::open(&file).unwrap()).unwrap();
        let (mut disks, mut kinds, mut first) = (BTreeMap::<u64, u64>::new(), BTreeSet::new(), BTreeMap::new());
        while let Some(item) = reader.next_item().unwrap() {
            let Item::Span(r) = item else { continue };
            kinds.insert(r.kind);
            if let Some(request) = r.request().filter(|_| r.kind == Kind::DeviceRead) {
                *disks.entry(request.disk).or_default() += 1;
                first.entry(request.disk).or_insert((r.args[0], request.purpose));
            }
        }
        assert_eq!(disks.len(), count, "{how:?}: {disks:?}");
        assert!(first.values().all(|first| *first == (0, Purpose::Log)), "{how:?}: {first:?}");
        assert_eq!(kinds.contains(&Kind::Recover), how.contains(&"--layout=log"), "{how:?}: {kinds:?}");
        let members = json(&ok(&["stats", "--json", &name]))["volume"]["members"].clone();
        for (n, image) in images.iter().enumerate().filter(|_| count > 1) {
            assert_eq!((&members[n]["name"], &members[n]["disk"]), (&image.as_str().into(), &n.into()), "{members}");
            assert_eq!(
                requests["by_disk"][n.to_string()]["reads"],
                requests["by_disk"][n.to_string()]["counted"]["reads"].as_f64().unwrap()
            );
        }
        for image in &images {
            fails(&["trace", "-o", image, &name], 1, &["all that the file system lies on"]);
        }
        umount(&name);
    }
}

#[test]
fn a_snapshot_that_is_mounted_beside_takes_no_requests_out_of_the_trace() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--layout=log", "--size", "64M", "--group-size", "64K", &image]);
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &image, &name]);
    let _mounted = Mounted(path.clone());
    fs::write(path.join("file"), "contents").unwrap();
    ok(&["snapshot", "create", &name, "then"]);
    let other = dir.path().join("other");
    fs::create_dir_all(&other).unwrap();
    let (beside, beside_name) = mount_point(&other);
    ok(&["snapshot", "mount", &name, "then", &beside_name]);
    let _beside = Mounted(beside.clone());
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    let script = format!("echo more > {name}/file && sync {name}/file");
    ok(&["trace", "-o", &file, &name, "--", "sh", "-c", &script]);
    let requests = all_is_counted(&file);
    assert!(number(&requests["all"]["writes"]) > 0.0 && requests["by_cause"].get("unknown").is_none(), "{requests}");
    // The other way round: what the snapshot asks for is not the disks' in its own trace, and nobody says what these were asked.
    let read = format!("{beside_name}/file");
    assert_eq!(ok(&["trace", "-o", &file, &beside_name, "--", "cat", &read]), "contents");
    let requests = json(&ok(&["trace", "summary", "--json", &file]))["requests"].clone();
    assert!(requests["counted"].is_null() && number(&requests["all"]["reads"]) == 0.0, "{requests}");
    assert_eq!(requests["by_disk"].as_object().map(|disks| disks.len()), Some(0), "{requests}");
    assert!(ok(&["trace", "summary", &file]).contains("Another mount has the disks"));
    assert_eq!(json(&ok(&["stats", "--json", &beside_name]))["disks"].as_array().map_or(0, Vec::len), 0);
    umount(&beside_name);
    umount(&name);
}

#[test]
fn a_member_that_comes_or_goes_while_it_is_recorded_is_counted_as_far_as_it_is_known() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let images = ["a", "b", "c"].map(|n| dir.path().join(n).to_str().unwrap().to_owned());
    ok(&["mkfs", "--size", "64M", "--mirror", &images[0], &images[1]]);
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &images[0], &name]);
    let _mounted = Mounted(path.clone());
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    let write = format!("echo more > {name}/file && sync {name}/file");
    let traced = |change: &str| {
        ok(&[
            "trace",
            "-o",
            &file,
            &name,
            "--",
            "sh",
            "-c",
            &format!("{write} && {CFFS} volume {name} {change} && {write}"),
        ]);
        json(&ok(&["trace", "summary", "--json", &file]))["requests"].clone()
    };
    fs::File::create(&images[2]).unwrap().set_len(64 << 20).unwrap();
    let joined = traced(&format!("add {}", images[2]));
    for disk in ["0", "1", "2"] {
        let row = &joined["by_disk"][disk];
        assert!(number(&row["writes"]) > 0.0, "{joined}");
        for what in ["reads", "writes", "flushes"] {
            assert_eq!(number(&row[what]), number(&row["counted"][what]), "{disk} {what}: {joined}");
        }
    }
    assert_eq!(number(&joined["counted"]["writes"]), number(&joined["all"]["writes"]), "{joined}");
    let left = traced(&format!("remove {}", images[1]));
    assert!(left["counted"].is_null() && left["by_disk"]["1"]["counted"].is_null(), "{left}");
    assert!(number(&left["by_disk"]["1"]["writes"]) > 0.0, "{left}");
    for disk in ["0", "2"] {
        let row = &left["by_disk"][disk];
        assert_eq!(number(&row["writes"]), number(&row["counted"]["writes"]), "{left}");
    }
    assert!(ok(&["trace", "summary", &file]).contains("it has left meanwhile"));
    umount(&name);
}

#[test]
fn a_trace_is_not_written_over_the_device_of_the_log() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let [image, log] = ["image", "log"].map(|n| dir.path().join(n).to_str().unwrap().to_owned());
    fs::File::create(&log).unwrap().set_len(8 << 20).unwrap();
    ok(&["mkfs", "--size", "64M", "--log-device", &log, &image]);
    let (path, name) = mount_point(dir.path());
    ok(&["mount", "-o", &format!("logdev={log}"), &image, &name]);
    let _mounted = Mounted(path.clone());
    for over in [&log, &image] {
        fails(&["trace", "-o", over, &name], 1, &["all that the file system lies on"]);
    }
    ok(&["trace", "-o", "/dev/null", "--seconds", "0", &name]);
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    ok(&["trace", "-o", &file, &name, "--", "sh", "-c", &format!("echo x > {name}/file && sync {name}/file")]);
    let requests = all_is_counted(&file);
    assert!(number(&requests["by_disk"]["log"]["flushes"]) > 0.0, "{requests}");
    umount(&name);
}

#[test]
fn the_share_in_work_for_many_is_one_of_bytes_whatever_classes_are_recorded() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &["-o", "strictatime"]);
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    // 120 files get a time of access, and one gets 6 MB.
    let work = format!("cat {name}/old/* > /dev/null && head -c 6000000 /dev/zero > {name}/large && sync -f {name}");
    for classes in ["all", "op,device"] {
        ok(&["trace", "--classes", classes, "-o", &file, &name, "--", "sh", "-c", &work]);
        let summary = json(&ok(&["trace", "summary", "--json", &file]));
        let causes = &summary["requests"]["by_cause"];
        let bytes = |cause: &str| causes[cause]["write_bytes"].as_f64().unwrap_or(0.0);
        let all = number(&summary["requests"]["all"]["write_bytes"]);
        assert!(all > 6e6 && bytes("write") > 0.9 * all, "{classes}: {summary}");
        assert!(bytes("read") < 0.05 * all && bytes("sync") < 0.05 * all, "{classes}: {summary}");
        assert!(causes.get("unknown").is_none(), "{classes}: {summary}");
        // The times go to the log, and whoever has read has his part of it.
        assert!(bytes("read") > 0.0, "{classes}: {summary}");
        let graph = json(&ok(&["trace", "graph", "--json", &file]));
        let many = graph.as_array().unwrap().iter().filter(|s| s["shares"].is_object());
        assert!(many.clone().any(|s| s["kind"] == "commit") && many.clone().any(|s| s["kind"] == "writeback"));
        for span in many {
            let sum: f64 = span["shares"].as_object().unwrap().values().map(number).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{span}");
        }
    }
    umount(&name);
}

#[test]
fn counters_are_told_in_the_format_of_prometheus() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    fs::read(Path::new(&name).join("old/1")).unwrap();
    let text = ok(&["stats", "--prometheus", &name]);
    let reads = text.lines().find(|l| l.contains(r#"purpose="demand",operation="read""#)).expect("a sample");
    assert!(reads.starts_with("cffs_device_requests_total{image=") && !reads.ends_with(" 0"), "{reads}");
    if have(&[Need::Program("promtool")]) {
        use std::io::Write;
        let mut tool = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
        tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(tool.wait().unwrap().success(), "{text}");
    }
    umount(&name);
}

#[test]
fn what_is_no_trace_is_refused() {
    let dir = temp_dir();
    let file = dir.path().join("file").to_str().unwrap().to_owned();
    for bytes in [&b""[..], b"short", &[7; 5000], b"cffstrac\x09\0\0\0\0\0\0\0"] {
        fs::write(&file, bytes).unwrap();
        for command in ["summary", "graph", "perfetto"] {
            fails(&["trace", command, &file], 1, &[&file, "trace"]);
        }
    }
    // An empty one is a trace.
    fs::write(&file, b"cffstrac\x01\0\0\0\0\0\0\0").unwrap();
    assert!(ok(&["trace", "summary", &file]).contains("0 spans"));
    assert_eq!(json(&ok(&["trace", "perfetto", &file]))["traceEvents"].as_array().unwrap().len(), 1);
    fs::write(&file, b"cffstrac\x01\0\0\0\0\0\0\0\x05\0\0").unwrap();
    let out = run(&["trace", "summary", &file]);
    assert!(out.status.success() && stderr(&out).contains("ends in the middle"), "{}", stderr(&out));
    fails(&["trace", "-o", &file, dir.path().to_str().unwrap()], 1, &["not on a mounted cffs"]);
}

/// Runs a reader with limited memory; it must end by itself, and say so if it does not like what it read.
fn survives(command: &str, file: &str, dir: &Path) -> bool {
    // 1.5 GB of address space is far more than it needs.
    let limit = format!("ulimit -v 1500000; exec {CFFS} trace {command} {file}");
    let out = Command::new("timeout").args(["60", "sh", "-c", &limit]).current_dir(dir).output().unwrap();
    let message = stderr(&out);
    assert!(!message.contains("panicked") && !message.contains("memory allocation"), "{command}: {message}");
    match out.status.code() {
        Some(0) => true,
        Some(1) => {
            assert!(message.contains("trace") && message.contains(file), "{command}: {message}");
            false
        }
        other => panic!("{command}: {other:?}, {message}"),
    }
}

#[test]
fn damaged_traces_are_refused_or_read_up_to_their_end_by_every_reader() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    let file = dir.path().join("trace").to_str().unwrap().to_owned();
    ok(&["trace", "--replay", "-o", &file, &name, "--", "sh", "-c", &work(&name)]);
    umount(&name);
    let good = fs::read(&file).unwrap();
    let readers =
        ["summary", "summary --json", "graph", "graph --json", "graph --merged", "perfetto", "perfetto -o out.json"];
    let broken = dir.path().join("broken").to_str().unwrap().to_owned();
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..40 {
        let mut bad = good.clone();
        match round % 4 {
            0 => bad.truncate(random(good.len())),
            1 => bad[random(good.len())] ^= 1 << random(8),
            // With its checksum right, so that the contents are what is wrong.
            2 => reseal(&mut bad, &mut random),
            _ => {
                let at = random(good.len() - 64);
                (0..64).for_each(|n| bad[at + n] = random(256) as u8);
            }
        }
        fs::write(&broken, &bad).unwrap();
        survives(readers[round % readers.len()], &broken, dir.path());
    }
    // What was there stays where nothing could be read at all.
    fs::write(dir.path().join("out.json"), "mine").unwrap();
    fs::write(&broken, "no trace at all, but long enough").unwrap();
    assert!(!survives("perfetto -o out.json", &broken, dir.path()));
    assert_eq!(contents(dir.path().join("out.json")), b"mine");
}

/// Changes bytes of frames, and makes their checksums right again.
fn reseal(file: &mut [u8], random: &mut dyn FnMut(usize) -> usize) {
    let mut at = 16;
    while at + 8 < file.len() {
        let len = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let body = &mut file[at + 8..at + 8 + len];
        for _ in 0..3 {
            body[random(len)] ^= 1 << random(8);
        }
        let crc = cffs::format::crc32c(body);
        file[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at += 8 + len;
    }
}

#[test]
fn a_recording_whose_output_fails_ends_with_the_error_and_the_mount_goes_on() {
    if !fuse_works() || !have(&[Need::Root]) {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    // A full disk.
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&small).status().unwrap();
    assert!(mount.success());
    let _small = Mounted(small.clone());
    let file = small.join("trace").to_str().unwrap().to_owned();
    let busy = format!("for i in $(seq 40); do cat {name}/old/* > /dev/null; touch {name}/old/*; done; exit 0");
    fails(&["trace", "-o", &file, &name, "--", "sh", "-c", &busy], 1, &["No space left"]);
    // What is there is a trace that ends in the middle.
    let out = run(&["trace", "summary", &file]);
    assert!(out.status.success() && stderr(&out).contains("ends in the middle"), "{}", stderr(&out));
    // A reader that goes away.
    let mut piped = Command::new(CFFS);
    piped.args(["trace", "-o", "-", &name, "--", "sh", "-c", &busy]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recorder = piped.spawn().unwrap();
    let mut first = [0; 16];
    std::io::Read::read_exact(recorder.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(recorder.stdout.take());
    let out = recorder.wait_with_output().unwrap();
    assert!(
        out.status.code() == Some(1) && stderr(&out).contains("whoever read the trace has gone"),
        "{:?} {}",
        out.status,
        stderr(&out)
    );
    // Nothing is recorded any more, and the next recording has all it asks for.
    let next = dir.path().join("next").to_str().unwrap().to_owned();
    ok(&["trace", "-o", &next, &name, "--", "cat", &format!("{name}/old/3")]);
    assert_eq!(json(&ok(&["trace", "summary", "--json", &next]))["lost"], 0);
    umount(&name);
}

#[test]
fn recorders_take_turns_and_a_mount_goes_while_one_looks() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (name, _mounted) = mounted(dir.path(), &[]);
    let file = |n: usize| dir.path().join(format!("trace{n}")).to_str().unwrap().to_owned();
    // Each takes over from the one before, which says so.
    let mut recorders: Vec<_> = Vec::new();
    for n in 0..4 {
        let recorder =
            Command::new(CFFS).args(["trace", "-o", &file(n), &name]).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it records", || fs::metadata(file(n)).is_ok_and(|m| m.len() > 100));
        recorders.push(recorder);
    }
    let last = recorders.pop().unwrap();
    for recorder in recorders {
        let out = recorder.wait_with_output().unwrap();
        assert!(out.status.code() == Some(1) && stderr(&out).contains("another recording"), "{}", stderr(&out));
    }
    // Classes that change all the time, by other recorders, under load.
    let script = format!("while [ ! -e {}/over ]; do cat {name}/old/* > /dev/null; done", dir.path().display());
    let mut load = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    for n in 0..30 {
        let classes = ["all", "none", "op", "device", "cache,journal", "replay"][n % 6];
        ok(&["trace", "--classes", classes, "--seconds", "0.02", "-o", &file(9), &name]);
        assert_eq!(json(&ok(&["trace", "summary", "--json", &file(9)]))["cut"], false);
    }
    fs::write(dir.path().join("over"), "").unwrap();
    assert!(load.wait().unwrap().success());
    let out = last.wait_with_output().unwrap();
    assert!(out.status.code() == Some(1) && stderr(&out).contains("another recording"));
    // Detached while it is recorded: the recorder holds it, then it is gone.
    let mut held = Command::new(CFFS).args(["trace", "-o", &file(5), "--seconds", "1", &name]).spawn().unwrap();
    wait_until("it records", || fs::metadata(file(5)).is_ok_and(|m| m.len() > 100));
    assert!(Command::new("umount").args(["-l", &name]).status().unwrap().success());
    assert_eq!(held.wait().unwrap().code(), Some(0));
    assert!(ok(&["trace", "summary", &file(5)]).contains(" 0 lost"));
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    wait_until("the mount has ended", || run(&["fsck", "-n", &image]).status.success());
}
