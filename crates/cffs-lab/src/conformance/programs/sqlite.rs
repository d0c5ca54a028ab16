//! SQLite: what it has said is committed is there after a crash, and the
//! database is whole.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, kill_process};

use super::support::{Args, LIMIT, need};
use crate::cleanup::{Cleanup, Guard};
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;
use crate::process::wait_for;
use crate::random::Random;

/// Rows that each transaction adds.
const ROWS: u64 = 5;

/// With a write-ahead log; a commit is an fsync of the log.
pub fn wal(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    run(args, job, mount, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=50;")
}

/// With a rollback journal; a commit is the removal of the journal. SQLite makes that durable with EXTRA and not yet with
/// FULL, on any file system.
pub fn rollback(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    run(args, job, mount, "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA;")
}

fn run(args: &Args, job: &Job, mount: &mut TestMount, mode: &str) -> Result<String> {
    need(&["sqlite3", "stdbuf"])?;
    ensure!(args.kills > 0, "no kill is no test");
    let db = mount.root().join("test.db");
    let table = format!("{mode} CREATE TABLE t(n INTEGER, data BLOB); CREATE INDEX i ON t(n);");
    job.run(command("sqlite3", ["-bail"]).arg(&db).arg(&table), LIMIT)?;
    // Otherwise there is no file to find after an early kill.
    std::fs::File::open(mount.root())?.sync_all()?;
    let mut random = Random::new(args.seed);
    let mut promised = 0;
    for round in 1..=args.kills {
        let time = Duration::from_millis(50 + random.below(1500));
        let acknowledged = load(mount, &db, mode, promised, time).with_context(|| format!("round {round}"))?;
        mount.kill()?;
        mount.mount().with_context(|| format!("round {round}: no mount after the kill"))?;
        let found = verify(job, &db, acknowledged.max(promised)).with_context(|| format!("round {round}"))?;
        job.note(&format!("round {round}: {acknowledged} acknowledged, {found} there"));
        promised = found;
    }
    ensure!(promised > u64::from(args.kills), "only {promised} transactions in {} rounds", args.kills);
    Ok(format!("{} kills, integrity_check ok after each, all of {promised} transactions there", args.kills))
}

/// Feeds transactions after number `last` to sqlite3 until the mount is killed; returns the last one it acknowledged.
fn load(mount: &TestMount, db: &Path, mode: &str, last: u64, time: Duration) -> Result<u64> {
    let mut child = Command::new("stdbuf")
        .args(["-oL", "sqlite3", "-bail"])
        .arg(db)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let guard = Guard::new(Cleanup::End(child.id()));
    let mut input = child.stdin.take().context("no standard input")?;
    let output = child.stdout.take().context("no standard output")?;
    let head = format!("{mode}\nPRAGMA cache_size=20;\n");
    std::thread::spawn(move || {
        let mut result = input.write_all(head.as_bytes());
        let mut n = last;
        while result.is_ok() {
            n += 1;
            result = input.write_all(transaction(n).as_bytes());
        }
        // It has ended, or its standard input is closed from our side: both end this thread.
    });
    let acknowledged = Arc::new(AtomicU64::new(0));
    let latest = acknowledged.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(n) = line.strip_prefix("done ").and_then(|n| n.parse().ok()) {
                latest.store(n, Ordering::SeqCst);
            }
        }
    });
    std::thread::sleep(time);
    let running = child.try_wait()?.is_none();
    // What it says later is no promise: it outlives its file system, as no program does when a machine crashes, and takes
    // a directory that it cannot open (to fsync it) for one that needs no fsync.
    let promise = acknowledged.load(Ordering::SeqCst);
    kill_process(mount.server()?, Signal::KILL)?;
    ensure!(running, "sqlite3 ended before the kill");
    // Its next access fails, and -bail ends it.
    let ended = wait_for(&mut child, Duration::from_secs(60))?;
    if ended.is_none() {
        bail!("sqlite3 did not end although its file system is gone");
    }
    guard.disarm();
    reader.join().map_err(|_| anyhow::anyhow!("the reader of sqlite3's output failed"))?;
    Ok(promise)
}

/// New rows, and older ones changed and taken away in a way that keeps [`ROWS`] of each number.
fn transaction(n: u64) -> String {
    let insert = format!("INSERT INTO t VALUES({n}, randomblob(abs(random()) % 3000));");
    let inserts = insert.repeat(ROWS as usize);
    let old = n / 2;
    format!(
        "BEGIN;{inserts}UPDATE t SET data = randomblob(abs(random()) % 3000) WHERE n = {old};\
         COMMIT;\nSELECT 'done {n}';\n"
    )
}

/// The database is whole and has every transaction up to `promised`; returns the last it has.
fn verify(job: &Job, db: &Path, promised: u64) -> Result<u64> {
    let query = format!(
        "PRAGMA integrity_check; SELECT coalesce(max(n), 0) FROM t; SELECT count(DISTINCT n) FROM t; \
         SELECT count(*) FROM (SELECT n FROM t GROUP BY n HAVING count(*) <> {ROWS});"
    );
    let answer = job.run(command("sqlite3", ["-bail"]).arg(db).arg(query), LIMIT)?;
    let lines: Vec<&str> = answer.lines().collect();
    let [integrity, last, count, torn] = lines[..] else { bail!("sqlite3 answers {answer:?}") };
    ensure!(integrity == "ok", "integrity_check: {integrity}");
    ensure!(torn == "0", "{torn} transactions are there in part");
    ensure!(last == count, "the last transaction is {last}, and there are {count}");
    let last: u64 = last.parse()?;
    ensure!(last >= promised, "transaction {promised} was acknowledged, and the last one is {last}");
    Ok(last)
}
