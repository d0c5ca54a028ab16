//! A timeline of real programs, read by Perfetto's own trace processor.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: usize = 8;

/// Where `scripts/setup.sh` puts it.
fn engine() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/perfetto")
}

/// The trace processor is WebAssembly, and made for a browser: `query.js` runs it in Node.
fn processor_works() -> bool {
    if !engine().join("engine_bundle.js").exists() {
        skipped(
            "perfetto",
            "Perfetto's trace processor is missing: scripts/setup.sh puts it into target/tools/perfetto",
        );
        return false;
    }
    have(&[Need::Program("node")])
}

/// What the trace processor answers to each query: rows of columns by name.
fn ask(timeline: &Path, queries: &[&str]) -> Vec<Vec<Map<String, Value>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perfetto/query.js");
    let mut node = Command::new("timeout");
    node.args(["110", "node"]).args([script, engine(), timeline.to_owned()]).args(queries);
    let out = node.output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    serde_json::from_str(&stdout(&out)).unwrap()
}

/// A small project in C, with a repository of git. Each source is in a directory of its own with more files, so that there is
/// something to read.
fn project(at: &Path) {
    let mut objects = String::new();
    for n in 0..SOURCES {
        let dir = at.join(format!("part{n}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("part.h"), format!("int part{n}(int);\n")).unwrap();
        let source = format!("#include \"part.h\"\nint part{n}(int x) {{ return x + {n}; }}\n");
        fs::write(dir.join("part.c"), source).unwrap();
        (0..20).for_each(|i| fs::write(dir.join(format!("notes{i}")), vec![b'a' + n as u8; 2000]).unwrap());
        objects += &format!(" part{n}/part.o");
    }
    let declared: String = (0..SOURCES).map(|n| format!("#include \"part{n}/part.h\"\n")).collect();
    let sum: Vec<String> = (0..SOURCES).map(|n| format!("part{n}(0)")).collect();
    fs::write(at.join("main.c"), format!("{declared}int main(void) {{ return {}; }}\n", sum.join(" + "))).unwrap();
    let rule = format!("all: main.o{objects}\n\tcc -o all main.o{objects}\n%.o: %.c\n\tcc -c -o $@ $<\n");
    fs::write(at.join("Makefile"), rule).unwrap();
    fs::write(at.join(".gitignore"), "*.o\n/all\n").unwrap();
}

fn shell(command: &str) {
    let out = Command::new("timeout").args(["100", "sh", "-ec", command]).output().unwrap();
    assert!(out.status.success(), "{command}: {}", stderr(&out));
}

fn number(row: &Map<String, Value>, column: &str) -> u64 {
    let v = &row[column];
    // A sum of nothing is null.
    if v.is_null() { 0 } else { v.as_f64().unwrap_or_else(|| panic!("no number: {v}")).round() as u64 }
}

fn text<'a>(row: &'a Map<String, Value>, column: &str) -> &'a str {
    row[column].as_str().unwrap_or_else(|| panic!("no text: {row:?}"))
}

/// What went wrong while it was read.
const ERRORS: &str = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";
const SPANS: &str = "select count(*) as n from slice";
const REQUESTS: &str = "
    select name, extract_arg(arg_set_id, 'args.purpose') as purpose, count(*) as n,
        sum(extract_arg(arg_set_id, 'args.length')) as bytes
    from slice where category = 'device' group by name, purpose";
/// Operations that are a part of no other one, as those in the table of `trace summary`.
const OPERATIONS: &str = "
    select name, count(*) as n, sum(dur) as ns, max(dur) as longest
    from slice s where category = 'op' and not exists (select 1 from ancestor_slice(s.id) where category = 'op')
    group by name";
/// Who waited for requests: what they are a part of in their thread, as Perfetto nests it.
const WAITED: &str = "
    select op.name as name, sum(r.name = 'device-read') as reads, sum(r.name = 'device-write') as writes
    from slice r join slice op on op.id = (
        select a.id from ancestor_slice(r.id) a where a.category = 'op' order by a.depth limit 1)
    where r.category = 'device' group by op.name";
const ARROWS: &str = "select count(*) as n from flow";
const THREADS: &str =
    "select count(distinct utid) as n from thread_track join slice on slice.track_id = thread_track.id";

/// Sums of the trace processor and of `trace summary`, and how many arrows there are.
fn agrees(trace: &str, timeline: &Path) -> u64 {
    ok(&["trace", "perfetto", "-o", timeline.to_str().unwrap(), trace]);
    let summary = json(&ok(&["trace", "summary", "--json", trace]));
    assert_eq!((&summary["lost"], &summary["cut"]), (&0.into(), &false.into()), "{summary}");
    let answers = ask(timeline, &[ERRORS, SPANS, REQUESTS, OPERATIONS, WAITED, ARROWS, THREADS]);
    let [errors, spans, requests, operations, waited, arrows, threads] = &answers[..] else { panic!("{answers:?}") };
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(number(&spans[0], "n"), summary["spans"].as_u64().unwrap());
    assert!(number(&threads[0], "n") > 1);

    let mut counted: BTreeMap<(String, &str), (u64, u64)> = BTreeMap::new();
    for (purpose, row) in summary["requests"]["by_purpose"].as_object().unwrap() {
        let of = |key: &str| row[key].as_f64().unwrap().round() as u64;
        counted.insert((purpose.clone(), "device-read"), (of("reads"), of("read_bytes")));
        counted.insert((purpose.clone(), "device-write"), (of("writes"), of("write_bytes")));
        counted.insert((purpose.clone(), "device-flush"), (of("flushes"), 0));
        counted.insert((purpose.clone(), "device-discard"), (of("discards"), 0));
    }
    counted.retain(|_, (n, _)| *n > 0);
    let length = |row: &Map<String, Value>| match text(row, "name") {
        "device-read" | "device-write" => number(row, "bytes"),
        _ => 0,
    };
    let read: BTreeMap<_, _> = requests
        .iter()
        .map(|row| {
            let kind = counted.keys().map(|k| k.1).find(|kind| *kind == text(row, "name")).unwrap_or("other");
            ((text(row, "purpose").to_owned(), kind), (number(row, "n"), length(row)))
        })
        .collect();
    assert_eq!(read, counted, "requests by purpose");

    let table = summary["operations"].as_object().unwrap();
    let programs: Vec<_> = table.iter().filter(|(name, _)| !["regroup", "scrub"].contains(&name.as_str())).collect();
    assert_eq!(operations.len(), programs.len(), "{operations:?}");
    for row in operations {
        let of = |key: &str| table[text(row, "name")][key].as_u64().unwrap();
        let read = ["n", "ns", "longest"].map(|column| number(row, column));
        assert_eq!(read, ["count", "total_ns", "max_ns"].map(of), "{row:?}");
    }
    let held_up =
        |v: &Value| v["waited_for"]["reads"].as_f64() > Some(0.0) || v["waited_for"]["writes"].as_f64() > Some(0.0);
    assert_eq!(
        waited.iter().filter(|row| number(row, "reads") + number(row, "writes") > 0).count(),
        programs.iter().filter(|(_, v)| held_up(v)).count(),
        "{waited:?}"
    );
    for row in waited {
        let of = |key: &str| table[text(row, "name")]["waited_for"][key].as_f64().unwrap().round() as u64;
        assert_eq!(["reads", "writes"].map(|c| number(row, c)), ["reads", "writes"].map(of), "{row:?}");
    }
    number(&arrows[0], "n")
}

#[test]
fn a_build_and_git_status_are_read_by_perfetto_with_the_same_sums() {
    let programs = ["git", "make", "cc"].map(Need::Program);
    if !fuse_works() || !processor_works() || !have(&programs) {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    project(&path);
    let user = "-c user.name=nobody -c user.email=nobody@localhost";
    shell(&format!("git -C {name} init -q && git -C {name} add . && git -C {name} {user} commit -q -m all"));
    // What they read is in nobody's memory.
    umount(&name);
    ok(&["mount", &image, &name]);

    let file = |what: &str| dir.path().join(what).to_str().unwrap().to_owned();
    let built = file("build");
    ok(&["trace", "-o", &built, &name, "--", "sh", "-c", &format!("make -s -C {name} && sync -f {name}")]);
    assert_eq!(Command::new(path.join("all")).status().unwrap().code(), Some((0..SOURCES as i32).sum()));
    let arrows = agrees(&built, &dir.path().join("build.json"));
    assert!(arrows > 0, "a commit was done for somebody");
    let operations = &json(&ok(&["trace", "summary", "--json", &built]))["operations"];
    assert!(operations["create"]["count"].as_u64().unwrap() > SOURCES as u64, "each has its object: {operations}");

    umount(&name);
    ok(&["mount", &image, &name]);
    let status = file("status");
    let said = ok(&["trace", "-o", &status, &name, "--", "git", "-C", &name, "status", "--short"]);
    assert_eq!(said, "", "what was built is ignored");
    agrees(&status, &dir.path().join("status.json"));
    let requests = &json(&ok(&["trace", "summary", "--json", &status]))["requests"];
    assert!(requests["by_purpose"]["demand"]["reads"].as_f64() > Some(0.0), "it was cold: {requests}");
    umount(&name);

    // What is none is no timeline to the processor either: it would tell.
    let broken = dir.path().join("broken.json");
    let text = fs::read_to_string(dir.path().join("status.json")).unwrap();
    fs::write(&broken, text.replace("\"dur\":", "\"dura\":")).unwrap();
    assert!(
        ask(&broken, &[SPANS, ERRORS]).iter().flatten().any(|row| row.contains_key("value")),
        "complete events have lengths"
    );
}
