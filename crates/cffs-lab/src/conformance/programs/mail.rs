//! Delivery into a maildir with Python's own mailbox module: what was
//! delivered with an fsync is there after a crash.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};

use super::support::{Args, LIMIT, need};
use crate::cleanup::{Cleanup, Guard};
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;
use crate::process::wait_for;
use crate::random::Random;

const DELIVER: &str = include_str!("deliver.py");

/// Kills the mount under deliveries, and reads the mailbox afterwards.
pub fn run(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["python3"])?;
    let script = mount.beside("script")?.join("deliver.py");
    fs::write(&script, DELIVER)?;
    let maildir = mount.root().join("Maildir");
    let mut random = Random::new(args.seed ^ 0xdead);
    let mut promised = BTreeSet::new();
    for round in 1..=args.kills {
        let mut child = Command::new("python3")
            .arg(&script)
            .arg("deliver")
            .arg(&maildir)
            .arg(round.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let guard = Guard::new(Cleanup::End(child.id()));
        let output = child.stdout.take().context("no standard output")?;
        let keys = std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(300 + random.below(1200)));
        let running = child.try_wait()?.is_none();
        kill_process(mount.server()?, Signal::KILL)?;
        ensure!(running, "round {round}: the delivery ended before the kill");
        ensure!(wait_for(&mut child, Duration::from_secs(60))?.is_some(), "the delivery did not end after the kill");
        guard.disarm();
        promised.extend(keys.join().map_err(|_| anyhow::anyhow!("the reader of the keys failed"))?);
        mount.kill()?;
        mount.mount().with_context(|| format!("round {round}: no mount after the kill"))?;
        let read = job.run(command("python3", [&script]).arg("read").arg(&maildir).current_dir("/"), LIMIT)?;
        let found: BTreeSet<String> = read.lines().map(str::to_owned).collect();
        let lost: Vec<_> = promised.difference(&found).collect();
        ensure!(lost.is_empty(), "round {round}: {} delivered messages are lost, such as {}", lost.len(), lost[0]);
    }
    ensure!(promised.len() > args.kills as usize, "only {} messages were delivered", promised.len());
    Ok(format!("{} kills, all of {} delivered messages there and whole", args.kills, promised.len()))
}
