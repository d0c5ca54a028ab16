//! Compiling: many small files written, read back at once, mapped and run, and
//! times that make and cargo believe.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::support::{Args, LIMIT, need};
use crate::conformance::check::missing;
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

/// Source packages of Debian, and how each is built and tests itself.
const C_PROJECTS: [(&str, &str); 2] =
    [("zlib", "./configure && make && make test && make -q all"), ("bzip2", "make && make test")];

/// Sources from the distribution, compiled and tested on the mount.
pub fn c_projects(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["apt-get", "make", "gcc", "tar"])?;
    let apt = mount.beside("apt")?;
    for dir in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(dir))?;
    }
    let release = fs::read_to_string("/etc/os-release")?;
    let codename = release.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME="));
    let Some(codename) = codename else { return missing("/etc/os-release does not name a Debian release") };
    // Lists of our own: the machine's are not touched.
    fs::write(apt.join("sources.list"), format!("deb-src http://deb.debian.org/debian {codename} main\n"))?;
    let apt_get = |words: &[&str]| {
        let mut apt_get = command("apt-get", ["-qq", "-o", "Dir::Etc::SourceParts=/dev/null"]);
        for (key, name) in
            [("Dir::Etc::SourceList", "sources.list"), ("Dir::State::Lists", "lists"), ("Dir::Cache", "cache")]
        {
            apt_get.arg("-o").arg(format!("{key}={}", apt.join(name).display()));
        }
        apt_get.args(words).current_dir(&apt);
        apt_get
    };
    let names: Vec<&str> = C_PROJECTS.iter().map(|(name, _)| *name).collect();
    let (listed, _) = job.outcome(&mut apt_get(&["update"]), LIMIT)?;
    let words = [&["source", "--download-only"][..], &names].concat();
    if !listed || !job.outcome(&mut apt_get(&words), LIMIT)?.0 {
        return missing("no source packages from deb.debian.org");
    }
    for (name, build) in C_PROJECTS {
        let dir = mount.root().join(name);
        fs::create_dir(&dir)?;
        let archive = original(&apt, name)?;
        job.run(command("tar", ["-xf"]).arg(archive).arg("-C").arg(&dir).arg("--strip-components=1"), LIMIT)?;
        job.run(command("sh", ["-ec", build]).current_dir(&dir), LIMIT).with_context(|| name.to_owned())?;
    }
    mount.again()?;
    for (name, _) in C_PROJECTS {
        let up_to_date = job.outcome(command("make", ["-q", "all"]).current_dir(mount.root().join(name)), LIMIT)?.0;
        // bzip2's "all" has the test in it, which is never up to date.
        ensure!(up_to_date || name == "bzip2", "{name}: make has something to do after a cold mount");
    }
    Ok(format!("{} compiled, their own tests pass, make has nothing to do afterwards", names.join(" and ")))
}

/// The archive that `apt-get source` has fetched for a package.
fn original(dir: &Path, package: &str) -> Result<std::path::PathBuf> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("{package}_")) && name.contains(".orig.tar") && !name.ends_with(".asc") {
            return Ok(entry.path());
        }
    }
    Err(anyhow::anyhow!("no sources of {package} have come"))
}

/// This project, compiled on the mount by cargo, which then must find everything fresh.
pub fn rust_project(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["git", "cargo"])?;
    let clone = mount.root().join("project");
    let repo = args.repo.canonicalize()?;
    let mut git = command("git", ["-c", "safe.directory=*", "clone", "--quiet"]);
    job.run(git.arg(&repo).arg(&clone), LIMIT)?;
    let cargo = |words: &[&str]| {
        let mut cargo = command("cargo", words);
        cargo.current_dir(&clone).env("CARGO_TARGET_DIR", clone.join("target")).env("TMPDIR", &clone);
        cargo
    };
    let build = ["build", "--locked", "-p", "cffs-cli"];
    job.run(&mut cargo(&build), LIMIT)?;
    job.run(&mut cargo(&["test", "--locked", "-p", "cffs-buf"]), LIMIT)?;
    // What was compiled works, on an image on the file system that it was compiled on.
    let (cffs, image) = (clone.join("target/debug/cffs"), clone.join("image"));
    let cffs = cffs.to_string_lossy();
    job.run(command(&cffs, ["mkfs", "--size", "64M"]).arg(&image), LIMIT)?;
    job.run(command(&cffs, ["fsck", "-n"]).arg(&image), LIMIT)?;
    mount.again()?;
    let fresh = job.run(cargo(&build).args(["--message-format", "json"]), LIMIT)?;
    let compiled = fresh.lines().filter(|line| line.contains("\"fresh\":false")).count();
    ensure!(compiled == 0, "cargo compiles {compiled} crates again after a cold mount");
    let crates = fresh.lines().filter(|line| line.contains("\"fresh\":true")).count();
    ensure!(crates > 0, "cargo says nothing about what is fresh");
    Ok(format!("{crates} targets compiled, a test program run, everything fresh after a cold mount"))
}
